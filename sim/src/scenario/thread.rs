//! Thread lines: the parameters of a thread and of its scheduling context.

use super::lex::{Cursor, Read, Word};
use super::limits::{
    REFILLS_DEFAULT, REFILLS_MAX, REFILLS_MIN, THREADS_MAX, TIME_NS_MAX, WEIGHT_MAX, WEIGHT_MIN,
};
use super::print::duration_text;
use super::program::{Names, Need, Reference};
use super::values::{Pair, cpu, cpu_list, duration, keyword, pairs, small, time_in_run};
use super::{Class, ContextSpec, Overrun, Scenario, SourceLine, ThreadSpec};

/// The keys of a thread line.
const KEYS: [&str; 13] = [
    "count", "weight", "class", "cpus", "start", "home", "budget", "period", "deadline", "band", "overrun",
    "refills", "handler",
];
/// The keys that only mean something together with a budget.
const CONTEXT_KEYS: [&str; 6] = ["period", "deadline", "band", "overrun", "refills", "handler"];
/// The keys of a context alone.
const SPEC_KEYS: [&str; 6] = ["budget", "period", "deadline", "band", "overrun", "refills"];

/// Reads what follows the name on a thread line; `room` is how many threads the
/// scenario may still start.
pub(super) fn thread<'a>(
    name: Word<'a>,
    cursor: &mut Cursor<'a>,
    scenario: &Scenario,
    threads: &Names<'a>,
    room: u32,
) -> Read<(ThreadSpec, Option<Reference<'a>>)> {
    let (given, template) = pairs(cursor, &KEYS, Some("template"))?;
    if template.is_none() && room == 0 {
        return Err(too_many(name.refuse("no further thread")));
    }
    let mut spec = ThreadSpec::new(name.text);
    spec.line = SourceLine(name.line);
    for Pair { key, word, value } in &given {
        match *key {
            "count" | "start" if template.is_some() => {
                let error = word.refuse(format!("no `{key}=` for a template"));
                return Err(error.with_note("a template's instances start by `fork`"));
            }
            "count" => spec.count = small(*value, "a count", 1..=room).map_err(too_many)?,
            "weight" => spec.weight = small(*value, "a weight", WEIGHT_MIN..=WEIGHT_MAX)?,
            "class" => spec.class = keyword(*value, Class::ALL, Class::name)?,
            "cpus" => spec.cpus = Some(cpu_list(*value, scenario.cpus)?),
            "start" => spec.start_ns = time_in_run(*value, "a start", scenario.duration_ns)?,
            "home" => spec.home = Some(cpu(*value, scenario.cpus)?),
            _ => {}
        }
    }
    if template.is_some() {
        spec.template = true;
        spec.count = 0;
    }
    if let (Some(home), Some(cpus)) = (value_of(&given, "home"), &spec.cpus)
        && !spec.home.is_some_and(|home| cpus.contains(&home))
    {
        return Err(home.refuse("a CPU of this thread's `cpus=`"));
    }
    spec.context = context(&given, cursor)?;
    let handler = match (value_of(&given, "handler"), &mut spec.context) {
        (Some(word), Some(context)) if context.overrun == Overrun::Fault => {
            let thread = threads.find(word, "thread")?;
            context.handler = Some(thread);
            Some(Reference { word, thread, need: Need::Receives })
        }
        (Some(word), _) => return Err(word.refuse("`overrun=fault` on the same line")),
        (None, _) => None,
    };
    Ok((spec, handler))
}

/// Reads the new parameters of a context.
pub(super) fn new_context(cursor: &mut Cursor<'_>) -> Read<ContextSpec> {
    let (given, _) = pairs(cursor, &SPEC_KEYS, None)?;
    context(&given, cursor)?.ok_or_else(|| cursor.refuse_end("`budget=` and `period=`"))
}

/// Says that the limit counts all threads of the file.
fn too_many(error: super::ScenarioError) -> super::ScenarioError {
    error.with_note(format!("a scenario starts at most {THREADS_MAX} threads in all"))
}

fn value_of<'a>(given: &[Pair<'a>], key: &str) -> Option<Word<'a>> {
    given.iter().find(|pair| pair.key == key).map(|pair| pair.value)
}

/// The scheduling context, if the line gives a budget.
fn context(given: &[Pair<'_>], cursor: &Cursor<'_>) -> Read<Option<ContextSpec>> {
    let Some(budget) = value_of(given, "budget") else {
        let stray = given.iter().find(|pair| CONTEXT_KEYS.contains(&pair.key));
        return stray.map_or(Ok(None), |pair| {
            let error = pair.word.refuse("`budget=` on the same line");
            Err(error.with_note(format!("`{}` is a parameter of a context", pair.key)))
        });
    };
    let Some(period) = value_of(given, "period") else {
        return Err(cursor.refuse_end("`period=`, because the thread has a `budget=`"));
    };
    let period_ns = duration(period, "a period", 1..=TIME_NS_MAX)?;
    let budget_ns = duration(budget, "a budget", 1..=TIME_NS_MAX)?;
    if budget_ns > period_ns {
        let limit = duration_text(period_ns);
        return Err(budget.refuse(format!("a budget of at most the period, {limit}")));
    }
    let mut spec = ContextSpec {
        budget_ns,
        period_ns,
        deadline_ns: period_ns,
        band: 0,
        overrun: Overrun::default(),
        refills: REFILLS_DEFAULT,
        handler: None,
    };
    for Pair { key, value, .. } in given {
        match *key {
            "deadline" => {
                let read = duration(*value, "a deadline", budget_ns..=period_ns);
                let rule = "a deadline lies between budget and period";
                spec.deadline_ns = read.map_err(|error| error.with_note(rule))?;
            }
            "band" => spec.band = small(*value, "a band", 0..=sched::MAX_CRITICALITY)?,
            "overrun" => spec.overrun = keyword(*value, Overrun::ALL, Overrun::name)?,
            "refills" => spec.refills = small(*value, "a number of refills", REFILLS_MIN..=REFILLS_MAX)?,
            _ => {}
        }
    }
    Ok(Some(spec))
}
