//! Decides where a function body is charged, and where it is checked.
//!
//! A *segment* is a set of instructions that run together or not at all: if its first one runs, all of them do, unless one
//! traps. Branches divide a body into segments; what follows a construct that nothing leaves early belongs to the segment
//! before it. Each segment is charged once, where it begins (`Budget_Decrement`), so the count is exact.
//!
//! Four transformations reduce the charges and leave the sums of all paths as they are:
//! 1. What both arms of an `if` cost is charged before it.
//! 2. A segment that has no check and ends in an `if` with two arms, one of which is charged anyway, is charged in both arms
//!    instead of before them.
//! 3. A loop whose every way back is a plain `br` charges its first segment on those ways and before the loop.
//! 4. The first segment of a small function that only calls can name is charged by its callers, where they are charged
//!    themselves ([`Prepaid`](super::Prepaid)).
//!
//! `Budget_Check` is placed at the head of every loop, with the charge of every segment that calls, at the entry of every
//! function that is not small, and wherever a path could otherwise run more than [`LAG_MAX`] operations, or [`AFTER_CALL`]
//! after a call, without one.

use super::cost::is_call;
use super::unroll::Step;
use wasmparser::Operator;

/// The most operations that a path inside a function may run between two checks.
const LAG_MAX: u64 = 1024;
/// The most operations that it may run after a call returned. A smaller limit would put a check behind every second call.
const AFTER_CALL: u64 = 192;
/// A function that costs at most this much and neither loops nor calls is charged, but not checked.
const SMALL: u64 = 64;
/// How many declared locals cost one operation, because they are set to zero on entry.
const LOCALS_AN_OP: u64 = 16;

/// One charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// The instruction before which it is charged.
    pub(super) at: usize,
    pub(super) cost: u64,
}

/// What to insert into a body, and what to leave out of it.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The charges, in the order of their places.
    pub(super) segments: Vec<Segment>,
    /// The instructions before which there is a check, in order.
    pub(super) checks: Vec<usize>,
    /// Instructions that no path reaches, which are left out.
    pub(super) dead: Vec<bool>,
    /// `end`s after which nothing is reachable: an `unreachable` is added, so that the module stays valid without what is left
    /// out.
    pub(super) closed: Vec<usize>,
    /// `br`, `br_if` and `br_table` that may leave the function.
    pub(super) leaving: Vec<usize>,
    pub(super) loops: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Function,
    Block,
    Loop,
    If,
    Else,
}

struct Frame {
    kind: Kind,
    /// The segment that the construct stands in.
    outer: usize,
    /// The first segment inside: a loop's head, an arm of an `if`.
    first: usize,
    /// The first arm, once there is a second.
    then: usize,
    /// The outermost construct that something inside branches to: if that is further out, this construct is left early.
    furthest: usize,
    /// Whether something branches to its end, or an arm fell through to it.
    reached: bool,
    /// The longest unchecked path that branches to its end.
    lag: u64,
    /// The longest unchecked path up to the `if`.
    lag_before: u64,
    /// Segments that go back to a loop by `br`; `None` once another branch does.
    back: Option<Vec<usize>>,
}

struct Planner {
    plan: Plan,
    frames: Vec<Frame>,
    current: usize,
    live: bool,
    /// Depth of constructs inside dead code.
    skipped: usize,
    lag: u64,
    /// Every `if` with two arms: the segment that contains it, and the first segments of its arms. Inner ones come first.
    forks: Vec<[usize; 3]>,
}

/// Plans a body with so many declared `locals`; `paid` is what its callers have charged for it, its [`entry_cost`].
pub(super) fn plan(steps: &[Step<'_>], locals: u64, paid: u64) -> Plan {
    let mut planner = Planner::walk(steps, locals);
    // The cost of the functions that it calls is included, so its first segment is no less than what its callers have seen.
    let first = &mut planner.plan.segments[0];
    debug_assert!(first.cost >= paid, "callers charge {paid}, it costs {}", first.cost);
    first.cost = first.cost.saturating_sub(paid);
    planner.push_down();
    planner.plan.segments.retain(|segment| segment.cost > 0);
    planner.plan
}

/// What every path through a body costs at least, and whether that is its whole cost: then it needs neither charge nor check.
pub(super) fn entry_cost(steps: &[Step<'_>], locals: u64) -> (u64, bool) {
    let plan = Planner::walk(steps, locals).plan;
    let whole = plan.checks.is_empty() && plan.segments[1..].iter().all(|segment| segment.cost == 0);
    (plan.segments[0].cost, whole)
}

/// The trivial plan, in which every instruction is a segment. It is the reference for what the other plan counts.
pub(super) fn plain(steps: &[Step<'_>], locals: u64) -> Plan {
    let mut segments = vec![Segment { at: 0, cost: locals / LOCALS_AN_OP }];
    segments.extend(steps.iter().enumerate().map(|(at, step)| Segment { at, cost: step.cost }));
    Plan { segments, dead: vec![false; steps.len()], ..Plan::default() }
}

impl Planner {
    /// Divides a body into segments.
    fn walk(steps: &[Step<'_>], locals: u64) -> Planner {
        let mut planner = Planner {
            plan: Plan { dead: vec![false; steps.len()], ..Plan::default() },
            frames: Vec::new(),
            current: 0,
            live: true,
            skipped: 0,
            lag: 0,
            forks: Vec::new(),
        };
        planner.segment(0);
        planner.plan.segments[0].cost = locals / LOCALS_AN_OP;
        planner.open(Kind::Function, 0);
        let size = locals / LOCALS_AN_OP + steps.iter().map(|step| step.cost).sum::<u64>();
        if size > SMALL {
            planner.check(0);
        }
        for (at, step) in steps.iter().enumerate() {
            planner.step(at, step);
        }
        planner.plan.checks.sort_unstable();
        planner.plan.checks.dedup();
        planner
    }

    /// Begins a segment.
    fn segment(&mut self, at: usize) -> usize {
        self.plan.segments.push(Segment { at, cost: 0 });
        self.current = self.plan.segments.len() - 1;
        self.current
    }

    fn check(&mut self, at: usize) {
        self.plan.checks.push(at);
        self.lag = 0;
    }

    fn open(&mut self, kind: Kind, outer: usize) {
        self.frames.push(Frame {
            kind,
            outer,
            first: self.current,
            then: 0,
            furthest: usize::MAX,
            reached: false,
            lag: 0,
            lag_before: self.lag,
            back: Some(Vec::new()),
        });
    }

    fn step(&mut self, at: usize, step: &Step<'_>) {
        let Step { op, cost, ahead } = step;
        if !self.live {
            match op {
                Operator::Block { .. } | Operator::Loop { .. } | Operator::If { .. } => self.skipped += 1,
                Operator::End if self.skipped > 0 => self.skipped -= 1,
                Operator::End => return self.end(at),
                Operator::Else if self.skipped == 0 => return self.otherwise(at),
                _ => {}
            }
            self.plan.dead[at] = true;
            return;
        }
        if self.lag > LAG_MAX {
            self.check(at);
        }
        if is_call(op) {
            // A check before each call [SCHED:4.1.1], where the call's segment is charged.
            let charged = self.plan.segments[self.current].at;
            self.plan.checks.push(charged);
        }
        self.lag += cost + ahead;
        if is_call(op) {
            // A callee may return without a check at its end, so there is a check here soon after a call. Without it, a chain
            // of returns could run the lag a thousand times.
            self.lag = (self.lag + SMALL).max(LAG_MAX - AFTER_CALL);
        }
        self.plan.segments[self.current].cost += cost + ahead;
        match op {
            Operator::Block { .. } => self.open(Kind::Block, self.current),
            Operator::Loop { .. } => {
                let outer = self.current;
                self.plan.loops = true;
                self.segment(at + 1);
                self.check(at + 1);
                self.open(Kind::Loop, outer);
            }
            Operator::If { .. } => {
                let outer = self.current;
                self.segment(at + 1);
                self.open(Kind::If, outer);
            }
            Operator::Else => self.otherwise(at),
            Operator::End => self.end(at),
            Operator::Br { relative_depth } => {
                self.branch(at, *relative_depth, true);
                self.live = false;
            }
            Operator::BrIf { relative_depth } => {
                self.branch(at, *relative_depth, false);
                self.segment(at + 1);
            }
            Operator::BrTable { targets } => {
                // The body was validated: its targets can be read.
                for depth in targets.targets().flatten().chain([targets.default()]) {
                    self.branch(at, depth, false);
                }
                self.live = false;
            }
            Operator::Return | Operator::ReturnCall { .. } | Operator::ReturnCallIndirect { .. } => {
                self.leaves_for(0);
                self.live = false;
            }
            Operator::Unreachable => self.live = false,
            _ => {}
        }
    }

    /// Recorded in the innermost construct, which passes it on when it ends, so that a deep nest is not walked for each branch.
    fn leaves_for(&mut self, target: usize) {
        if let Some(frame) = self.frames.last_mut() {
            frame.furthest = frame.furthest.min(target);
        }
    }

    fn branch(&mut self, at: usize, depth: u32, plain: bool) {
        let target = self.frames.len() - 1 - depth as usize;
        self.leaves_for(target);
        let frame = &mut self.frames[target];
        if frame.kind == Kind::Loop {
            match &mut frame.back {
                Some(from) if plain => from.push(self.current),
                back => *back = None,
            }
        } else {
            frame.reached = true;
            frame.lag = frame.lag.max(self.lag);
        }
        if target == 0 && self.plan.leaving.last() != Some(&at) {
            self.plan.leaving.push(at);
        }
    }

    fn otherwise(&mut self, at: usize) {
        let live = self.live;
        let lag = self.lag;
        let arm = self.segment(at + 1);
        let Some(frame) = self.frames.last_mut() else { return };
        frame.reached |= live;
        if live {
            frame.lag = frame.lag.max(lag);
        }
        frame.kind = Kind::Else;
        frame.then = std::mem::replace(&mut frame.first, arm);
        self.lag = frame.lag_before;
        self.live = true;
    }

    fn end(&mut self, at: usize) {
        let Some(frame) = self.frames.pop() else { return };
        let escapes = frame.furthest < self.frames.len();
        self.leaves_for(frame.furthest);
        let falls = self.live;
        match frame.kind {
            Kind::Function => return,
            Kind::Loop => self.turn(&frame),
            Kind::Else => self.balance(&frame),
            Kind::If | Kind::Block => {}
        }
        self.lag = match (falls, frame.kind) {
            (true, Kind::If) => self.lag.max(frame.lag).max(frame.lag_before),
            (true, _) => self.lag.max(frame.lag),
            (false, Kind::If) => frame.lag.max(frame.lag_before),
            (false, _) => frame.lag,
        };
        self.live = falls || frame.reached || frame.kind == Kind::If;
        if !self.live {
            self.plan.closed.push(at);
        } else if escapes {
            self.segment(at + 1);
        } else {
            self.current = frame.outer;
        }
    }

    /// Moves the part that both arms cost before them.
    fn balance(&mut self, frame: &Frame) {
        let segments = &mut self.plan.segments;
        let both = segments[frame.then].cost.min(segments[frame.first].cost);
        segments[frame.then].cost -= both;
        segments[frame.first].cost -= both;
        segments[frame.outer].cost += both;
        self.forks.push([frame.outer, frame.then, frame.first]);
    }

    /// Moves a segment's charge into the arms of its `if`: one of the arms always runs, so there is one charge, and not one
    /// before the arms and one in an arm. A charge that stands with a check stays, because together they cost less than apart.
    fn push_down(&mut self) {
        let segments = &mut self.plan.segments;
        for &[outer, then, other] in self.forks.iter().rev() {
            let checked = self.plan.checks.binary_search(&segments[outer].at).is_ok();
            if !checked && segments[then].cost + segments[other].cost > 0 {
                let cost = std::mem::take(&mut segments[outer].cost);
                segments[then].cost += cost;
                segments[other].cost += cost;
            }
        }
    }

    /// Charges a loop's head before the loop and on each way back, if every way back has a charge of its own.
    fn turn(&mut self, frame: &Frame) {
        let Some(from) = &frame.back else { return };
        if from.is_empty() || from.contains(&frame.first) {
            return;
        }
        let segments = &mut self.plan.segments;
        let head = std::mem::take(&mut segments[frame.first].cost);
        for &segment in from.iter().chain([&frame.outer]) {
            segments[segment].cost += head;
        }
    }
}
