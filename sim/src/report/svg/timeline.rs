//! The timeline as a picture: one lane a CPU, one block a run, marks for what happened between.

use super::{Anchor, Font, IDLE, INK, LABEL, SYSTEM_COLOUR, Svg, TITLE, Unit, colour};
use super::{GRID, Short, ink_on, round_step, text_width};
use crate::report::units::Human;
use std::collections::BTreeMap;
use trace::{Event, Kind, Run, RunKind, ThreadInfo, Trace};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 36.0;
const TOP: f64 = 52.0;
/// Runs narrower than this are drawn together, so that a picture of a long run stays small.
const BLOCK_WIDTH_MIN: f64 = 0.5;
/// A picture has at most about this many blocks: where there are more runs, more are drawn together.
const BLOCKS_MAX: usize = 20_000;
/// Marks of one kind in one lane keep this distance; closer ones would be a smear.
const MARK_GAP: f64 = 5.0;
/// The legend names at most this many threads.
const LEGEND_MAX: usize = 36;
const DENSE: &str = "#a3adb8";

/// The part of a trace that a picture shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From.
    pub from_ns: u64,
    /// To; taken as later than `from_ns`.
    pub to_ns: u64,
}

/// Where things are on the page.
struct Layout {
    window: Window,
    lane: f64,
    gap: f64,
    bottom: f64,
}

impl Layout {
    fn new(trace: &Trace, window: Option<Window>) -> Self {
        let window = window.unwrap_or(Window { from_ns: 0, to_ns: trace.end_ns });
        let to_ns = window.to_ns.max(window.from_ns.saturating_add(1));
        let cpus = f64::from(trace.cpus.max(1));
        let lane = (1200.0 / cpus).clamp(6.0, 34.0);
        // Marks live between the lanes.
        let gap = if lane > 16.0 { 14.0 } else { 2.0 };
        let bottom = TOP + cpus * (lane + gap);
        Self { window: Window { to_ns, ..window }, lane, gap, bottom }
    }

    fn x(&self, time_ns: u64) -> f64 {
        let Window { from_ns, to_ns } = self.window;
        let part = time_ns.clamp(from_ns, to_ns) - from_ns;
        LEFT + part as f64 / (to_ns - from_ns) as f64 * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, cpu: u16) -> f64 {
        TOP + self.gap + f64::from(cpu) * (self.lane + self.gap)
    }
}

/// Draws the timeline of a trace, or of a part of it.
///
/// Runs too short for the page are gathered into grey blocks; of a trace with very many, a
/// window of a few dozen runs a CPU makes the better picture.
#[must_use]
pub fn timeline(trace: &Trace, window: Option<Window>) -> String {
    let layout = Layout::new(trace, window);
    let mut svg = Svg::new(WIDTH);
    svg.text(LEFT, 30.0, TITLE, &trace.title);
    lanes(trace, &layout, &mut svg);
    axis(&layout, &mut svg);
    let dense = blocks(trace, &layout, &mut svg);
    let marks = marks(trace, &layout, &mut svg);
    let mut entries: Vec<(&str, String)> =
        trace.threads.iter().take(LEGEND_MAX).enumerate().map(label).collect();
    if trace.threads.len() > LEGEND_MAX {
        entries.push(("none", format!("… and {} more", trace.threads.len() - LEGEND_MAX)));
    }
    entries.push((IDLE, "idle".into()));
    entries.push((SYSTEM_COLOUR, "system".into()));
    if dense {
        entries.push((DENSE, "many short runs".into()));
    }
    let below = svg.legend(LEFT, layout.bottom + 42.0, &entries);
    let below = if marks { mark_legend(below, &mut svg) } else { below };
    svg.height = below + 6.0;
    svg.finish(&trace.title)
}

fn label((index, info): (usize, &ThreadInfo)) -> (&'static str, String) {
    let context = info.context.as_ref().map(|context| format!(", {context}")).unwrap_or_default();
    (colour(index), format!("{} (weight {}{context})", info.name, info.weight))
}

fn lanes(trace: &Trace, layout: &Layout, svg: &mut Svg) {
    // Of many thin lanes only some can carry a name.
    let named_every = (14.0 / (layout.lane + layout.gap)).ceil().max(1.0) as u16;
    for cpu in 0..trace.cpus {
        let y = layout.y(cpu);
        svg.rect([LEFT, y, WIDTH - LEFT - RIGHT, layout.lane], IDLE, "");
        if cpu.is_multiple_of(named_every) {
            let font = Font { anchor: Anchor::End, fill: INK, ..LABEL };
            svg.text(LEFT - 10.0, y + layout.lane / 2.0 + 4.0, font, &format!("cpu{cpu}"));
        }
    }
}

fn axis(layout: &Layout, svg: &mut Svg) {
    let Window { from_ns, to_ns } = layout.window;
    let step = round_step((to_ns - from_ns) as f64, 10.0).max(1.0) as u64;
    let mut tick_ns = from_ns.div_ceil(step) * step;
    while tick_ns <= to_ns {
        let x = layout.x(tick_ns);
        svg.line((x, TOP + 4.0), (x, layout.bottom + 6.0), GRID);
        let font = Font { anchor: Anchor::Middle, ..LABEL };
        let shown = if tick_ns == 0 { "0".into() } else { Unit::Time.show(tick_ns as f64, step as f64) };
        svg.text(x, layout.bottom + 22.0, font, &shown);
        tick_ns += step;
    }
}

/// Runs too narrow to be drawn alone, gathered into one block.
struct Dense {
    cpu: u16,
    from: f64,
    to: f64,
    first: Run,
    several: bool,
}

/// Draws the runs; true when some were too short to be drawn alone.
fn blocks(trace: &Trace, layout: &Layout, svg: &mut Svg) -> bool {
    let index: BTreeMap<u32, usize> =
        trace.threads.iter().enumerate().map(|(at, info)| (info.id, at)).collect();
    let mut pending: Option<Dense> = None;
    let mut gathered = false;
    let mut flush = |pending: &mut Option<Dense>, svg: &mut Svg| match pending.take() {
        // A lone short run, such as a switch, keeps its own colour.
        Some(dense) if !dense.several => block(trace, &index, layout, &dense.first, svg),
        Some(Dense { cpu, from, to, .. }) => {
            svg.rect([from, layout.y(cpu), (to - from).max(BLOCK_WIDTH_MIN), layout.lane], DENSE, "");
            gathered = true;
        }
        None => {}
    };
    let Window { from_ns, to_ns } = layout.window;
    let mut runs = trace.runs();
    runs.retain(|run| run.end_ns > from_ns && run.start_ns < to_ns);
    // The lanes together have room for `BLOCKS_MAX` blocks of this width.
    let crowded = f64::from(trace.cpus) * (WIDTH - LEFT - RIGHT) / BLOCKS_MAX as f64;
    let narrow = if runs.len() > BLOCKS_MAX { crowded.max(BLOCK_WIDTH_MIN) } else { BLOCK_WIDTH_MIN };
    for run in &runs {
        let (from, to) = (layout.x(run.start_ns), layout.x(run.end_ns));
        let alone = to - from >= narrow;
        let near = |dense: &&mut Dense| dense.cpu == run.cpu && from - dense.to < narrow;
        if let Some(dense) = pending.as_mut().filter(|_| !alone).filter(near) {
            dense.to = to;
            dense.several = true;
            continue;
        }
        flush(&mut pending, svg);
        if run.kind == RunKind::Idle {
            continue;
        }
        if alone {
            block(trace, &index, layout, run, svg);
        } else {
            pending = Some(Dense { cpu: run.cpu, from, to, first: *run, several: false });
        }
    }
    flush(&mut pending, svg);
    gathered
}

fn block(trace: &Trace, index: &BTreeMap<u32, usize>, layout: &Layout, run: &Run, svg: &mut Svg) {
    let (from, to) = (layout.x(run.start_ns), layout.x(run.end_ns));
    let at = run.thread.and_then(|thread| index.get(&thread)).copied();
    let name = at.map_or(run.kind.name(), |at| trace.threads[at].name.as_str());
    let fill = at.map_or(SYSTEM_COLOUR, colour);
    let tip = format!(
        "{name} on cpu{}: {} for {}, ended by {}",
        run.cpu,
        Human(run.start_ns),
        Human(run.duration_ns()),
        run.ending.name()
    );
    // A hairline of background keeps neighbours of one colour apart.
    let width = if to - from > 3.0 { to - from - 0.6 } else { (to - from).max(BLOCK_WIDTH_MIN) };
    svg.rect([from, layout.y(run.cpu), width, layout.lane], fill, &tip);
    let size = (layout.lane * 0.4).clamp(8.0, 12.0);
    if layout.lane >= 12.0 && text_width(name, size) + 8.0 < width {
        let font = Font { size, fill: ink_on(fill), anchor: Anchor::Middle, bold: false };
        let baseline = layout.y(run.cpu) + layout.lane / 2.0 + size * 0.36;
        svg.text((from + to) / 2.0, baseline, font, name);
    }
}

/// The marks: a name, a colour, and a path around (0, 0), which is the top edge of the lane.
const MARKS: [(&str, &str, &str); 4] = [
    ("throttled", "#b42318", "M-4.5,-8 L4.5,-8 L0,0 Z"),
    ("refilled", "#067647", "M-4.5,0 L4.5,0 L0,-8 Z"),
    ("stolen or moved", "#332288", "M0,-9 L4.5,-4.5 L0,0 L-4.5,-4.5 Z"),
    ("woken", "#616e7c", "M-0.8,-7 L0.8,-7 L0.8,0 L-0.8,0 Z"),
];

fn mark_of(event: &Event) -> Option<usize> {
    match event.kind {
        Kind::Throttle { .. } => Some(0),
        Kind::Refill { .. } => Some(1),
        Kind::Steal { .. } | Kind::Balance { .. } | Kind::Place { .. } => Some(2),
        Kind::Wake { .. } => Some(3),
        _ => None,
    }
}

fn marks(trace: &Trace, layout: &Layout, svg: &mut Svg) -> bool {
    if layout.gap < 10.0 {
        return false;
    }
    let mut last: BTreeMap<(u16, usize), f64> = BTreeMap::new();
    let Window { from_ns, to_ns } = layout.window;
    for event in trace.events.iter().filter(|event| (from_ns..=to_ns).contains(&event.time_ns)) {
        let Some(mark) = mark_of(event).filter(|_| event.cpu < trace.cpus) else { continue };
        let x = layout.x(event.time_ns);
        let before = last.get(&(event.cpu, mark)).copied().unwrap_or(f64::NEG_INFINITY);
        if x - before >= MARK_GAP {
            last.insert((event.cpu, mark), x);
            draw_mark(x, layout.y(event.cpu) - 1.5, mark, svg);
        }
    }
    !last.is_empty()
}

fn draw_mark(x: f64, y: f64, mark: usize, svg: &mut Svg) {
    let (_, fill, path) = MARKS[mark];
    let (x, y) = (Short(x), Short(y));
    svg.put(format_args!("<path transform=\"translate({x} {y})\" d=\"{path}\" fill=\"{fill}\"/>"));
}

fn mark_legend(top: f64, svg: &mut Svg) -> f64 {
    let mut x = LEFT;
    for (mark, (name, _, _)) in MARKS.iter().enumerate() {
        draw_mark(x + 6.0, top + 10.0, mark, svg);
        svg.text(x + 18.0, top + 10.5, Font { fill: INK, ..LABEL }, name);
        x += 36.0 + text_width(name, 12.0);
    }
    top + 22.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::demo;

    #[test]
    fn every_run_is_a_block_and_every_name_is_escaped() {
        let (trace, _) = demo::demo();
        let picture = timeline(&trace, None);
        let wide = |run: &&Run| run.kind != RunKind::Idle && run.duration_ns() * 2000 > trace.end_ns;
        let blocks = trace.runs().iter().filter(wide).count();
        assert!(blocks > 50, "the demo is not empty");
        assert!(picture.matches("ended by").count() >= blocks);
        assert!(!picture.contains("</script>") && picture.contains("&lt;/script&gt;"));
        assert!(picture.contains(">throttled</text>"));
    }

    #[test]
    fn a_long_run_stays_a_small_picture() {
        let (mut trace, _) = demo::demo();
        let step_ns = 1000;
        trace.events.clear();
        for n in 0..100_000_u64 {
            let thread = trace.threads[(n % 3) as usize].id;
            trace.push(n * step_ns, 0, Kind::Run { thread });
        }
        trace.end_ns = 100_000 * step_ns;
        let picture = timeline(&trace, None);
        assert!(picture.len() < 20_000, "{} bytes", picture.len());
        assert!(picture.contains("many short runs"));
        // Zoomed in, the same trace shows its runs.
        let part = timeline(&trace, Some(Window { from_ns: 5000, to_ns: 15_000 }));
        assert_eq!(part.matches("ended by").count(), 10);
    }

    #[test]
    fn many_cpus_stay_a_small_picture_too() {
        let (mut trace, _) = demo::demo();
        trace.cpus = 256;
        trace.events.clear();
        for n in 0..150_000_u64 {
            let cpu = (n % 256) as u16;
            trace.push(n, cpu, if n / 256 % 2 == 0 { Kind::System } else { Kind::Idle });
        }
        trace.end_ns = 150_000;
        let picture = timeline(&trace, None);
        assert!(picture.len() < 4_000_000, "{} bytes", picture.len());
    }

    #[test]
    fn an_empty_trace_is_still_a_picture() {
        let picture = timeline(&Trace::default(), Some(Window { from_ns: 9, to_ns: 3 }));
        assert!(picture.starts_with("<svg") && picture.ends_with("</svg>\n"));
        assert!(!picture.contains("NaN") && !picture.contains("inf"), "{picture}");
    }
}
