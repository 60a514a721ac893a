//! One HTML file that tells the whole story of a run and needs no network: tables, the
//! share-over-time chart, and a timeline to zoom into.
//!
//! The page's script and style are in `report.js` and `report.css` beside this file; here is
//! what goes into them. All text passes `escape::markup`, all data `trace::json::Quoted`, so a
//! thread may be called `</script>`.

use super::svg::{LineChart, PALETTE, SYSTEM_COLOUR, Series, Unit};
use super::table::{self, Table};
use super::units::{Count, Human, Percent};
use super::{Summary, escape, shares_over_time};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use trace::json::Quoted;
use trace::{Ending, Run, RunKind, State, Trace};

/// A page holds at most this many runs, from the start; it says so when there are more.
pub const RUNS_MAX: usize = 200_000;
/// A page holds at most this many marks (wakes, steals, faults …).
pub const MARKS_MAX: usize = 100_000;
/// A page lists at most this many threads in its tables, its legend and its lanes.
pub const ROWS_MAX: usize = 256;
/// The share-over-time chart shows at most this many threads, those that ran most.
pub const SHARE_LINES_MAX: usize = 12;
const SHARE_BUCKETS: usize = 120;
/// Shares are means over this many buckets: a twelfth of the run evens out which thread ran first.
const SHARE_WINDOW: usize = 10;

const STYLE: &str = include_str!("report.css");
const SCRIPT: &str = include_str!("report.js");

/// The report of a run as one HTML page.
#[must_use]
pub fn page(trace: &Trace, summary: &Summary) -> String {
    let title = escape::markup(&summary.title);
    let (data, note) = data(trace);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n"
    );
    head(summary, &mut page);
    tiles(summary, &mut page);
    timeline_section(&note, &mut page);
    let _ = write!(page, "<section>\n<h2>Threads</h2>\n{}</section>\n", markup(&table::threads(summary)));
    let chart = share_chart(trace, summary).svg();
    let _ = write!(page, "<section class=\"picture\">\n<figure>{chart}</figure>\n</section>\n");
    let (cpus, counters) = (markup(&table::cpus(summary)), markup(&table::counters(summary)));
    let _ = write!(
        page,
        "<div class=\"pair\">\n<section>\n<h2>CPUs</h2>\n{cpus}</section>\n\
         <section>\n<h2>Counters</h2>\n{counters}</section>\n</div>\n</main>\n\
         <script id=\"data\" type=\"application/json\">{data}</script>\n\
         <script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    );
    page
}

/// Makes the word for a missed expectation stand out. The text is escaped already.
fn verdicts_marked(about: &str) -> String {
    about.replace("MISSED:", "<strong class=\"missed\">MISSED:</strong>")
}

fn head(summary: &Summary, page: &mut String) {
    let title = escape::markup(&summary.title);
    let _ = write!(page, "<header>\n<h1>{title}</h1>\n");
    if !summary.about.is_empty() {
        let _ = writeln!(page, "<p class=\"about\">{}</p>", verdicts_marked(&escape::markup(&summary.about)));
    }
    if !summary.command.is_empty() {
        let command = escape::markup(&summary.command);
        let _ = writeln!(
            page,
            "<p class=\"command\"><span>Reproduce</span><code id=\"command\">{command}</code>\
             <button id=\"copy\" type=\"button\">Copy</button></p>"
        );
    }
    page.push_str("</header>\n");
}

fn tiles(summary: &Summary, page: &mut String) {
    let sum = |part: fn(&super::CpuRow) -> u64| summary.cpus.iter().map(part).sum::<u64>() as f64;
    let total = (sum(|cpu| cpu.thread_ns) + sum(|cpu| cpu.idle_ns) + sum(|cpu| cpu.system_ns)).max(1.0);
    let tiles = [
        ("policy", escape::markup(&summary.policy)),
        ("seed", summary.seed.to_string()),
        ("time", Human(summary.end_ns).to_string()),
        ("CPUs", Count(summary.cpus.len() as u64).to_string()),
        ("threads", Count(summary.threads.len() as u64).to_string()),
        ("in threads", Percent(sum(|cpu| cpu.thread_ns) / total).to_string()),
        ("overhead", Percent(sum(|cpu| cpu.system_ns) / total).to_string()),
    ];
    page.push_str("<dl class=\"tiles\">\n");
    for (name, value) in tiles {
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    page.push_str("</dl>\n");
}

fn timeline_section(note: &str, page: &mut String) {
    page.push_str(
        "<section>\n<div class=\"bar\">\n<h2>Timeline</h2>\n\
         <div class=\"choice\" role=\"group\" aria-label=\"Lanes\">\
         <button type=\"button\" id=\"by-cpu\" aria-pressed=\"true\">By CPU</button>\
         <button type=\"button\" id=\"by-thread\" aria-pressed=\"false\">By thread</button></div>\n\
         <span id=\"range\"></span>\n\
         <div class=\"choice\"><button type=\"button\" id=\"zoom-out\" title=\"Zoom out\">−</button>\
         <button type=\"button\" id=\"zoom-in\" title=\"Zoom in\">+</button>\
         <button type=\"button\" id=\"fit\">Fit</button></div>\n</div>\n",
    );
    if !note.is_empty() {
        let _ = writeln!(page, "<p class=\"note\">{}</p>", escape::markup(note));
    }
    page.push_str(
        "<div id=\"legend\" aria-label=\"Threads: click to highlight\"></div>\n\
         <div id=\"view\" tabindex=\"0\" aria-label=\"Timeline\">\
         <canvas id=\"axis\"></canvas><canvas id=\"lanes\"></canvas></div>\n<div id=\"tip\" hidden></div>\n<div id=\"keys\"></div>\n\
         <p class=\"hint\">Wheel: zoom. Drag: move. Shift and wheel, or the arrow keys: along the time. \
         Click a thread to highlight it. Hover for details.</p>\n\
         <noscript><p class=\"note\">The timeline needs JavaScript; the tables do not.</p></noscript>\n</section>\n",
    );
}

fn markup(table: &Table) -> String {
    let mut text = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
    let class = |column: usize| if column < table.left { " class=\"l\"" } else { "" };
    for (column, name) in table.head.iter().enumerate() {
        let _ = write!(text, "<th{}>{}</th>", class(column), escape::markup(name));
    }
    text.push_str("</tr></thead>\n<tbody>\n");
    for row in table.rows.iter().take(ROWS_MAX) {
        text.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(text, "<td{}>{}</td>", class(column), escape::markup(cell));
        }
        text.push_str("</tr>\n");
    }
    text.push_str("</tbody></table></div>\n");
    if table.rows.len() > ROWS_MAX {
        let hidden = Count((table.rows.len() - ROWS_MAX) as u64);
        let _ = writeln!(text, "<p class=\"note\">{hidden} more rows are not shown.</p>");
    }
    text
}

/// The lines are in the order of the table, so that up to a dozen threads have the same colour
/// here and in the timeline.
fn share_chart(trace: &Trace, summary: &Summary) -> LineChart {
    let shares = shares_over_time(trace, SHARE_BUCKETS).smoothed(SHARE_WINDOW);
    let mut busiest: Vec<usize> = (0..shares.by_thread.len().min(summary.threads.len())).collect();
    busiest.sort_by_key(|&at| std::cmp::Reverse(summary.threads[at].run_ns));
    busiest.truncate(SHARE_LINES_MAX);
    busiest.sort_unstable();
    let line = |&at: &usize| {
        let end = |bucket: usize| ((bucket as u64 + 1) * shares.bucket_ns).min(trace.end_ns) as f64;
        let points = shares.by_thread[at].iter().enumerate();
        let points = points.map(|(bucket, &share)| (end(bucket), share)).collect();
        Series { name: summary.threads[at].name.clone(), points, dashed: false }
    };
    LineChart {
        title: "Shares over time".into(),
        x_label: "time".into(),
        y_label: format!(
            "share of one CPU, mean of the last {}",
            Human(shares.bucket_ns * SHARE_WINDOW as u64)
        ),
        x_unit: Unit::Time,
        y_unit: Unit::Share,
        series: busiest.iter().map(line).collect(),
    }
}

/// The runs to embed, and the time up to which they are complete.
fn embedded(trace: &Trace, runs_max: usize) -> (Vec<Run>, u64, usize) {
    let mut runs = trace.runs();
    runs.retain(|run| run.kind != RunKind::Idle);
    let total = runs.len();
    if total <= runs_max {
        return (runs, trace.end_ns, total);
    }
    let mut starts: Vec<u64> = runs.iter().map(|run| run.start_ns).collect();
    // All CPUs are cut at one time, or the lanes would lie about each other.
    let (_, &mut cut_ns, _) = starts.select_nth_unstable(runs_max);
    runs.retain(|run| run.start_ns < cut_ns);
    for run in &mut runs {
        run.end_ns = run.end_ns.min(cut_ns);
    }
    (runs, cut_ns, total)
}

/// The timeline's data as JSON, and a note on what was left out.
fn data(trace: &Trace) -> (String, String) {
    let (runs, end_ns, total) = embedded(trace, RUNS_MAX);
    let mut note = String::new();
    if runs.len() < total {
        let _ = write!(
            note,
            "The timeline shows the first {} of {}: {} of {} runs. The tables cover all of it; \
             export a trace to see the rest in Perfetto. ",
            Human(end_ns),
            Human(trace.end_ns),
            Count(runs.len() as u64),
            Count(total as u64)
        );
    }
    if trace.threads.len() > ROWS_MAX {
        let all = Count(trace.threads.len() as u64);
        let _ = write!(note, "Legend and thread lanes show the first {ROWS_MAX} of {all} threads. ");
    }
    let index: BTreeMap<u32, usize> =
        trace.threads.iter().enumerate().map(|(at, info)| (info.id, at)).collect();
    let mut json = String::from("{\"threads\":[");
    for (at, info) in trace.threads.iter().enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let context = info.context.as_deref().unwrap_or("");
        let (name, class) = (Quoted(&info.name), Quoted(&info.class));
        let _ = write!(json, "{comma}[{name},{},{class},{}]", info.weight, Quoted(context));
    }
    let endings = [
        Ending::Preempt,
        Ending::Yield,
        Ending::Block,
        Ending::Exit,
        Ending::Throttle,
        Ending::Switch,
        Ending::End,
    ];
    let _ = write!(json, "],\"endings\":{:?},\"palette\":{PALETTE:?}", endings.map(Ending::name));
    let _ = write!(json, ",\"system\":\"{SYSTEM_COLOUR}\",\"rows\":{ROWS_MAX},\"end\":{end_ns},\"cpus\":");
    let mut lanes: Vec<Vec<[u64; 4]>> = vec![Vec::new(); usize::from(trace.cpus)];
    for run in &runs {
        // 0 is the system; threads count from 1.
        let who = run.thread.and_then(|thread| index.get(&thread)).map_or(0, |&at| at + 1);
        let why = endings.iter().position(|&ending| ending == run.ending).unwrap_or(0);
        lanes[usize::from(run.cpu)].push([who as u64, run.start_ns, run.end_ns, why as u64]);
    }
    spans(&lanes, &mut json);
    json.push_str(",\"waits\":");
    let mut waits: Vec<Vec<[u64; 4]>> = vec![Vec::new(); trace.threads.len().min(ROWS_MAX)];
    for span in trace.states() {
        let state = match span.state {
            State::Runnable => 0,
            State::Throttled => 1,
            State::Running | State::Blocked => continue,
        };
        let lane = index.get(&span.thread).and_then(|&at| waits.get_mut(at));
        if let Some(lane) = lane.filter(|_| span.start_ns < end_ns) {
            lane.push([state, span.start_ns, span.end_ns.min(end_ns), 0]);
        }
    }
    spans(&waits, &mut json);
    let cut = marks(trace, &index, end_ns, &mut json);
    if cut > 0 {
        let _ =
            write!(note, "{} marks after the first {} are not shown.", Count(cut), Count(MARKS_MAX as u64));
    }
    json.push('}');
    (json, note)
}

/// Spans as `what, gap since the last, duration, why`: small numbers, so a small page.
fn spans(lanes: &[Vec<[u64; 4]>], json: &mut String) {
    json.push('[');
    for (at, lane) in lanes.iter().enumerate() {
        json.push_str(if at == 0 { "[" } else { ",[" });
        let mut last_ns = 0;
        for (nth, &[what, start_ns, end_ns, why]) in lane.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            let _ = write!(json, "{comma}{what},{},{},{why}", start_ns - last_ns, end_ns - start_ns);
            last_ns = end_ns;
        }
        json.push(']');
    }
    json.push(']');
}

/// Marks as `kind, time, cpu, who, other CPU + 1`; returns how many were left out.
fn marks(trace: &Trace, index: &BTreeMap<u32, usize>, end_ns: u64, json: &mut String) -> u64 {
    let mut kinds: Vec<&str> = Vec::new();
    let shown = |kind: trace::Kind| !kind.sets_cpu() && (!kind.leaves_cpu() || kind.name() == "throttle");
    let events = trace.events.iter().filter(|event| event.time_ns <= end_ns && shown(event.kind));
    let mut flat = String::new();
    let mut count = 0_usize;
    for event in events {
        count += 1;
        if count > MARKS_MAX {
            continue;
        }
        let name = event.kind.name();
        let kind = kinds.iter().position(|&known| known == name).unwrap_or_else(|| {
            kinds.push(name);
            kinds.len() - 1
        });
        let who = event.kind.thread().and_then(|thread| index.get(&thread)).map_or(0, |&at| at + 1);
        let other = event.kind.other_cpu().map_or(0, |cpu| u32::from(cpu) + 1);
        let comma = if count == 1 { "" } else { "," };
        let _ = write!(flat, "{comma}{kind},{},{},{who},{other}", event.time_ns, event.cpu);
    }
    let _ = write!(json, ",\"kinds\":{kinds:?},\"marks\":[{flat}]");
    count.saturating_sub(MARKS_MAX) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::demo;
    use trace::Kind;

    #[test]
    fn a_hostile_name_stays_text() {
        let (trace, mut summary) = demo::demo();
        summary.title = "<img src=x onerror=alert(1)>".into();
        summary.command = "\"><script>alert(1)</script>".into();
        let page = page(&trace, &summary);
        // The page's own two script ends, and no more.
        assert_eq!(page.matches("</script").count(), 2);
        assert_eq!(page.matches("<script").count(), 2);
        assert!(!page.contains("<img"));
        assert!(page.contains("\\u003c/script\\u003e") && page.contains("&lt;/script&gt;"));
    }

    #[test]
    fn what_was_missed_stands_out() {
        let (trace, mut summary) = demo::demo();
        summary.about = "Met: expect a. MISSED: expect <b> (found c).".into();
        let page = page(&trace, &summary);
        assert!(page.contains("a. <strong class=\"missed\">MISSED:</strong> expect &lt;b&gt;"), "{page}");
        assert!(page.contains(".missed {"), "and has a colour");
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        let (trace, summary) = demo::demo();
        let page = page(&trace, &summary).replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "src=", "@import", "url(", "fetch("] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn the_cap_cuts_all_cpus_at_one_time_and_says_so() {
        let (mut trace, summary) = demo::demo();
        let runs = embedded(&trace, usize::MAX).0.len();
        let (kept, cut_ns, total) = embedded(&trace, runs / 2);
        assert_eq!(total, runs);
        assert!(kept.len() <= runs / 2 && kept.len() > runs / 4, "{} of {runs}", kept.len());
        assert!(kept.iter().all(|run| run.end_ns <= cut_ns && run.end_ns > run.start_ns));
        assert!(!page(&trace, &summary).contains("The timeline shows the first"));
        trace.events.clear();
        for n in 0..RUNS_MAX as u64 + 10 {
            trace.push(n, 0, Kind::Run { thread: (n % 2) as u32 });
        }
        trace.end_ns = RUNS_MAX as u64 + 10;
        let page = page(&trace, &summary);
        assert!(page.contains("The timeline shows the first 200 µs of 200 µs: 200,000 of 200,010 runs."));
    }

    #[test]
    fn spans_are_gaps_and_durations() {
        let mut json = String::new();
        spans(&[vec![[1, 5, 8, 2], [3, 8, 10, 0]], vec![]], &mut json);
        assert_eq!(json, "[[1,5,3,2,3,0,2,0],[]]");
    }
}
