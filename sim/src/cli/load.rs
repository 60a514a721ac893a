//! Reading scenarios, with what the command line changes about them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use sim::engine::costs::Costs;
use sim::engine::{Engine, Options, Outcome};
use sim::expect::{fluid_shares, judge};
use sim::report::Summary;
use sim::scenario::{Action, Check, PolicyName, Scenario};

use super::{Failure, Overrides};

/// Events between two looks at the progress display.
const EVENTS_AT_ONCE: u64 = 50_000;

/// A scenario, ready to run.
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) scenario: Scenario,
    pub(super) options: Options,
    overrides: Overrides,
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
    let named = if path.is_file() { path.to_path_buf() } else { folder()?.join(path).with_extension("scn") };
    let Some(path) = Some(&named).filter(|path| path.is_file()) else {
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
        set_cpus(&mut scenario, cpus).map_err(|why| format!("{}: {why}", path.display()))?;
    }
    let mut options = Options::of(&scenario);
    if let Some(file) = &overrides.costs {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        options.costs = Costs::parse(&file.display().to_string(), &text)?;
    }
    Ok(Loaded { path: path.to_path_buf(), scenario, options, overrides: overrides.clone() })
}

/// Sets another number of CPUs; a line that names a CPU which is then missing is refused.
fn set_cpus(scenario: &mut Scenario, cpus: u32) -> Result<(), String> {
    let refuse = |line: u32, what: &str, cpu: u32| {
        Err(format!("line {line}: {what} names CPU {cpu}, and --cpus {cpus} has 0 to {}", cpus - 1))
    };
    for thread in &scenario.threads {
        let named = thread.cpus.iter().flatten().chain(&thread.home);
        if let Some(cpu) = named.copied().find(|cpu| *cpu >= cpus) {
            return refuse(thread.line.0, &format!("thread `{}`", thread.name), cpu);
        }
    }
    for timed in &scenario.timed {
        if let Action::Stall { cpu, .. } = timed.action
            && cpu >= cpus
        {
            return refuse(timed.line.0, "`stall`", cpu);
        }
    }
    for expect in &scenario.expects {
        if let Check::Order { cpu, .. } = expect.check
            && cpu >= cpus
        {
            return refuse(expect.line.0, "`expect order`", cpu);
        }
    }
    (scenario.cpus, scenario.topology) = (cpus, None);
    Ok(())
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
        for verdict in judge(&self.scenario, outcome) {
            let word = if verdict.met { "Met" } else { "MISSED" };
            summary.about += &format!(" {word}: expect {} (found {}).", verdict.expected, verdict.found);
        }
        summary.command = self.command();
        for (row, share) in summary.threads.iter_mut().zip(fluid_shares(&self.scenario).unwrap_or_default()) {
            row.expected_share = Some(share);
        }
        summary.counters.extend([
            ("scheduling events".to_string(), outcome.counters.events),
            ("longest wait ns".to_string(), outcome.counters.longest_wait_ns),
        ]);
        summary
    }

    /// The command that makes the same run again: it names what was changed on the command line, and nothing
    /// else.
    fn command(&self) -> String {
        let mut command = format!("make sim SCENARIO='{}'", self.path.display());
        let mut arguments = String::new();
        if let Some(policy) = &self.overrides.policy {
            command += &format!(" POLICY={policy}");
        }
        if let Some(cpus) = self.overrides.cpus {
            command += &format!(" CPUS={cpus}");
        }
        if let Some(seed) = self.overrides.seed {
            arguments += &format!("--seed {seed} ");
        }
        if let Some(costs) = &self.overrides.costs {
            arguments += &format!("--costs {} ", costs.display());
        }
        if !arguments.is_empty() {
            command += &format!(" ARGS='{}'", arguments.trim_end());
        }
        command
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
