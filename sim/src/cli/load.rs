//! Reading scenarios, with what the command line changes about them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sim::engine::costs::Costs;
use sim::engine::{Engine, Options, Outcome};
use sim::expect::fluid_shares;
use sim::report::Summary;
use sim::scenario::{PolicyName, Scenario};

use super::{Failure, Overrides};

/// Events between two looks at the progress display.
const EVENTS_AT_ONCE: u64 = 50_000;

/// A scenario, ready to run.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) scenario: Scenario,
    pub(super) options: Options,
}

/// The folder of the scenarios, seen from the project's root or from `sim/`.
pub(super) fn folder() -> Result<PathBuf, Failure> {
    let near = ["sim/scenarios", "scenarios"].map(PathBuf::from);
    let here = near.into_iter().find(|path| path.is_dir());
    here.ok_or_else(|| "no folder sim/scenarios here: run this from the project's root".into())
}

/// Every scenario, by name.
pub(super) fn all() -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder()?)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "scn"))
        .collect();
    paths.sort();
    Ok(paths)
}

pub(super) fn read(path: &Path) -> Result<Scenario, Failure> {
    let found = [path.to_path_buf(), folder()?.join(path).with_extension("scn")];
    let Some(path) = found.iter().find(|path| path.is_file()) else {
        let known: Vec<String> =
            all()?.iter().filter_map(|path| Some(path.file_stem()?.to_str()?.to_string())).collect();
        return Err(format!("no scenario at `{}`; known ones: {}", path.display(), known.join(", ")).into());
    };
    let bytes = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Scenario::parse_bytes(&path.display().to_string(), &bytes)?)
}

pub(super) fn load(path: &Path, overrides: &Overrides) -> Result<Loaded, Failure> {
    let mut scenario = read(path)?;
    if let Some(name) = &overrides.policy {
        scenario.policy = PolicyName::from_name(name)
            .ok_or_else(|| format!("--policy: found `{name}`, expected wfq or eevdf"))?;
    }
    if let Some(seed) = overrides.seed {
        scenario.seed = seed;
    }
    if let Some(cpus) = overrides.cpus {
        scenario.cpus = cpus;
        scenario.topology = None;
        // CPU lists may not fit any more: the parser knows.
        let text = scenario.to_string();
        scenario = Scenario::parse(&format!("{} with --cpus {cpus}", path.display()), &text)?;
    }
    let mut options = Options::of(&scenario);
    if let Some(file) = &overrides.costs {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        options.costs = Costs::parse(&file.display().to_string(), &text)?;
    }
    Ok(Loaded { path: path.to_path_buf(), scenario, options })
}

impl Loaded {
    pub(super) fn run(&self) -> Result<Outcome, Failure> {
        let place = |error| format!("{}: {error}", self.path.display());
        let mut engine = Engine::new(&self.scenario, self.options.clone()).map_err(place)?;
        let mut progress = super::play::Progress::new(self.scenario.duration_ns);
        while engine.advance(EVENTS_AT_ONCE).map_err(place)? {
            progress.show(engine.progress());
        }
        progress.clear();
        Ok(engine.run().map_err(place)?)
    }

    /// The summary of a recorded run.
    pub(super) fn summary(&self, outcome: &Outcome) -> Summary {
        let trace = outcome.trace.as_ref().expect("runs from the command line are recorded");
        let mut summary = Summary::from_trace(trace);
        summary.policy = self.scenario.policy.to_string();
        summary.seed = self.scenario.seed;
        summary.about = self.about();
        summary.command = format!(
            "make sim SCENARIO={} POLICY={} CPUS={} ARGS='--seed {}'",
            self.path.display(),
            self.scenario.policy,
            self.scenario.cpus,
            self.scenario.seed
        );
        for (row, share) in summary.threads.iter_mut().zip(fluid_shares(&self.scenario).unwrap_or_default()) {
            row.expected_share = Some(share);
        }
        summary.counters.extend([
            ("scheduling events".to_string(), outcome.counters.events),
            ("longest wait ns".to_string(), outcome.counters.longest_wait_ns),
        ]);
        summary
    }

    /// The comment at the top of the file, as one paragraph.
    fn about(&self) -> String {
        let text = std::fs::read_to_string(&self.path).unwrap_or_default();
        let comment = text.lines().take_while(|line| line.starts_with('#'));
        let lines: Vec<&str> = comment.map(|line| line.trim_start_matches('#').trim()).collect();
        lines.join(" ").trim().to_string()
    }
}

pub(super) fn list() -> Result<ExitCode, Failure> {
    for path in all()? {
        let scenario = read(&path)?;
        println!("{:<46} {}", path.display().to_string(), scenario.title);
    }
    Ok(ExitCode::SUCCESS)
}
