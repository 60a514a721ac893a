//! The demonstration trace of the report's tests: six threads on four CPUs, one of them with a
//! budget that throttles it, one with a name that tries to break the page.

use super::Summary;
use std::collections::VecDeque;
use trace::{Kind, ThreadInfo, Trace};

const MS: u64 = 1_000_000;
const CPUS: usize = 4;
const SWITCH_NS: u64 = 60_000;
const END_NS: u64 = 240 * MS;
/// The budgeted thread: 4 ms in every 20 ms.
const THROTTLED: u32 = 4;

/// A round-robin scheduler, just good enough to make a plausible picture.
struct Toy {
    trace: Trace,
    queues: [VecDeque<u32>; CPUS],
    asleep: Vec<(u64, u32, usize)>,
    running: [Option<(u32, u64)>; CPUS],
}

fn threads() -> Vec<ThreadInfo> {
    let row = |id, name: &str, weight, class: &str, context: Option<&str>| ThreadInfo {
        id,
        name: name.into(),
        weight,
        class: class.into(),
        context: context.map(str::to_string),
    };
    vec![
        row(0, "compile", 4, "batch", None),
        row(1, "render", 8, "normal", None),
        row(2, "shell", 2, "interactive", None),
        row(3, "netd", 4, "ipc-server", None),
        row(THROTTLED, "audio", 4, "normal", Some("4ms/20ms")),
        row(5, "</script>", 1, "normal", None),
    ]
}

impl Toy {
    /// How long the thread runs before something happens, and what.
    fn burst(&self, thread: u32, round: u64) -> (u64, Kind) {
        match thread {
            2 => (2 * MS + round % 3 * 400_000, Kind::Block { thread }),
            3 => (MS + round % 4 * 700_000, Kind::Block { thread }),
            THROTTLED => (4 * MS, Kind::Throttle { thread }),
            1 => (12 * MS, Kind::Preempt { thread }),
            _ => (8 * MS + u64::from(thread) * MS, Kind::Preempt { thread }),
        }
    }

    fn step(&mut self, now_ns: u64, round: u64) {
        let due: Vec<_> = self.asleep.extract_if(.., |(at_ns, ..)| *at_ns <= now_ns).collect();
        for (_, thread, cpu) in due {
            let kind = if thread == THROTTLED { Kind::Refill { thread } } else { Kind::Wake { thread } };
            self.trace.push(now_ns, cpu as u16, kind);
            self.queues[cpu].push_back(thread);
        }
        for cpu in 0..CPUS {
            self.end_burst(cpu, now_ns, round);
        }
        for cpu in 0..CPUS {
            self.pick(cpu, now_ns);
        }
    }

    fn end_burst(&mut self, cpu: usize, now_ns: u64, round: u64) {
        let Some((thread, since_ns)) = self.running[cpu] else { return };
        let (length_ns, kind) = self.burst(thread, round / 50);
        if now_ns < since_ns + length_ns {
            return;
        }
        self.running[cpu] = None;
        self.trace.push(now_ns, cpu as u16, kind);
        self.trace.push(now_ns, cpu as u16, Kind::Idle);
        // Sleepers come back to the two CPUs where all began, so that the others have to steal.
        let home = thread as usize % 2;
        match kind {
            Kind::Block { .. } => self.asleep.push((now_ns + 5 * MS + u64::from(thread) * MS, thread, home)),
            Kind::Throttle { .. } => self.asleep.push((now_ns + 16 * MS, thread, home)),
            _ => self.queues[cpu].push_back(thread),
        }
    }

    fn pick(&mut self, cpu: usize, now_ns: u64) {
        if self.running[cpu].is_some() {
            return;
        }
        let thread = self.queues[cpu].pop_front().or_else(|| {
            let from = (0..CPUS).max_by_key(|&other| self.queues[other].len())?;
            let thread = self.queues[from].pop_front()?;
            self.trace.push(now_ns, cpu as u16, Kind::Steal { thread, from: from as u16 });
            Some(thread)
        });
        if let Some(thread) = thread {
            self.trace.push(now_ns, cpu as u16, Kind::System);
            self.trace.push(now_ns + SWITCH_NS, cpu as u16, Kind::Run { thread });
            self.running[cpu] = Some((thread, now_ns + SWITCH_NS));
        }
    }
}

/// The trace and its summary.
pub(super) fn demo() -> (Trace, Summary) {
    let title = "Six threads, four CPUs, one budget".to_string();
    let trace = Trace { title, cpus: CPUS as u16, threads: threads(), end_ns: END_NS, ..Trace::default() };
    let mut toy = Toy { trace, queues: Default::default(), asleep: Vec::new(), running: [None; CPUS] };
    for thread in 0..6_u32 {
        // Two CPUs get all the work, so that the others steal.
        toy.trace.push(0, (thread % 2) as u16, Kind::Spawn { thread });
        toy.queues[thread as usize % 2].push_back(thread);
    }
    for round in 0..END_NS / 100_000 {
        toy.step(round * 100_000, round);
    }
    toy.trace.events.retain(|event| event.time_ns <= END_NS);
    toy.trace.events.sort_by_key(|event| event.time_ns);
    let mut summary = Summary::from_trace(&toy.trace);
    summary.about = "A toy round-robin scheduler spreads six threads over four CPUs. The thread audio may \
                     use 4 ms in every 20 ms and is throttled when they are spent."
        .into();
    summary.policy = "toy".into();
    summary.seed = 42;
    summary.command = "cargo run -p sim -- run scenarios/demo.scn --seed 42".into();
    for row in &mut summary.threads {
        row.expected_share = (row.name == "audio").then_some(0.2);
    }
    (toy.trace, summary)
}

#[test]
fn the_demo_is_a_good_trace() {
    let (trace, summary) = demo();
    assert_eq!(trace.check(), Ok(()));
    assert!(summary.threads[THROTTLED as usize].throttles > 5);
    assert!(summary.counters.iter().any(|(name, count)| name == "steal" && *count > 5));
}

/// Writes the pictures to `target/report-demo`, for a person to look at.
#[test]
fn the_demo_pictures_are_written() {
    use super::svg::{BarChart, LineChart, Series, Unit};
    let (trace, summary) = demo();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/report-demo");
    std::fs::create_dir_all(&folder).expect("target is writable");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).expect("target is writable");
    };
    write("report.html", &super::html::page(&trace, &summary));
    write("summary.txt", &super::table::summary(&summary));
    write("timeline.txt", &super::timeline::golden(&trace));
    write("timeline.svg", &super::svg::timeline(&trace, None));
    let points =
        |scale: f64| (0..=20).map(|x| (f64::from(x) * 1e7, scale * (1.0 - 1.0 / f64::from(x + 1)))).collect();
    let series = |name: &str, scale, dashed| Series { name: name.into(), points: points(scale), dashed };
    let lines = LineChart {
        title: "Share over time".into(),
        x_label: "time".into(),
        y_label: "share of one CPU".into(),
        x_unit: Unit::Time,
        y_unit: Unit::Share,
        series: vec![series("A", 0.66, false), series("A expected", 0.7, true), series("B", 0.33, false)],
    };
    write("lines.svg", &lines.svg());
    let bars = BarChart {
        title: "Wake-to-run latency, 99th percentile".into(),
        y_label: "latency".into(),
        y_unit: Unit::Time,
        series: vec!["WFQ".into(), "EEVDF".into()],
        groups: (0..5)
            .map(|n| (format!("{} CPUs", 1 << n), vec![9e6 / f64::from(n + 1), 6e6 / f64::from(n + 1)]))
            .collect(),
    };
    write("bars.svg", &bars.svg());
}
