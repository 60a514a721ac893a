//! Unrolls small inner loops, so that they are checked only once in several iterations. The cost does not change: every copy
//! of an instruction costs what the instruction costs, and what is added costs nothing.
//!
//! ```text
//!   loop L            block exit
//!     body              loop L
//!   end                   block next  body, where L is `next`;  br exit  end      (three times)
//!                         body
//!                       end
//!                     end
//! ```

//! A body without nested constructs is charged when it is left, and where the loop repeats: one charge for all copies that
//! were run, and none in between. So such a loop runs at most [`COPIES`] bodies before it is charged.

use super::cost::{cost, is_call};
use wasmparser::{BlockType, Operator};

/// How many copies of a loop's body there are.
const COPIES: usize = 4;
/// The most instructions of a body that is unrolled.
const BODY_MAX: usize = 48;

/// An instruction, and its charge.
#[derive(Clone, Debug)]
pub(super) struct Step<'a> {
    pub(super) op: Operator<'a>,
    pub(super) cost: u64,
    /// The part of the callee's cost that the callee does not charge itself.
    pub(super) ahead: u64,
}

impl<'a> Step<'a> {
    pub(super) fn of(op: &Operator<'a>) -> Step<'a> {
        Step { op: op.clone(), cost: cost(op), ahead: 0 }
    }

    fn free(op: Operator<'a>) -> Step<'a> {
        Step { op, cost: 0, ahead: 0 }
    }
}

/// The body of a function, with its small inner loops unrolled.
pub(super) fn unroll<'a>(ops: &[Operator<'a>]) -> Vec<Step<'a>> {
    let mut steps = Vec::with_capacity(ops.len());
    let mut at = 0;
    while at < ops.len() {
        match body_of(ops, at) {
            Some(body) => {
                if !write_charged_late(body, &mut steps) {
                    write(body, &mut steps);
                }
                // The `loop`, its body, its `end`.
                at += body.len() + 2;
            }
            None => {
                steps.push(Step::of(&ops[at]));
                at += 1;
            }
        }
    }
    steps
}

/// The body of the loop that begins here, if it shall be unrolled.
fn body_of<'o, 'a>(ops: &'o [Operator<'a>], at: usize) -> Option<&'o [Operator<'a>]> {
    let Operator::Loop { blockty: BlockType::Empty } = ops[at] else { return None };
    let mut depth = 0;
    let mut turns = false;
    for (length, op) in ops[at + 1..].iter().enumerate() {
        match op {
            Operator::Loop { .. } | Operator::BrTable { .. } => return None,
            Operator::Block { .. } | Operator::If { .. } => depth += 1,
            Operator::End if depth == 0 => return turns.then_some(&ops[at + 1..=at + length]),
            Operator::End => depth -= 1,
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth } => {
                turns |= *relative_depth == depth
            }
            op if is_call(op) => return None,
            _ => {}
        }
        if length >= BODY_MAX {
            return None;
        }
    }
    None
}

/// Writes the copies of a body that only `br_if` leaves before its last instruction, and in which nothing is nested.
fn write_charged_late<'a>(body: &[Operator<'a>], steps: &mut Vec<Step<'a>>) -> bool {
    let Some((last, before)) = body.split_last() else { return false };
    let nested = |op: &Operator<'_>| {
        matches!(op, Operator::Block { .. } | Operator::If { .. } | Operator::Br { .. } | Operator::Return)
            || matches!(op, Operator::Unreachable | Operator::BrIf { relative_depth: 0 })
    };
    let turns = matches!(last, Operator::Br { relative_depth: 0 } | Operator::BrIf { relative_depth: 0 });
    if !turns || before.iter().any(nested) {
        return false;
    }
    let whole: u64 = body.iter().map(cost).sum();
    let empty = BlockType::Empty;
    let charge = |cost| Step { op: Operator::Nop, cost, ahead: 0 };
    steps.push(Step::free(Operator::Block { blockty: empty }));
    steps.push(Step::free(Operator::Loop { blockty: empty }));
    let mut run = 0;
    for copy in 1..=COPIES {
        for op in before {
            run += cost(op);
            match op {
                // Depths from inside the arm: the arm, the loop, the exit block, and then the constructs outside of the
                // loop.
                Operator::BrIf { relative_depth } => {
                    steps.push(Step::free(Operator::If { blockty: empty }));
                    steps.push(charge(run));
                    steps.push(Step::free(Operator::Br { relative_depth: relative_depth + 2 }));
                    steps.push(Step::free(Operator::End));
                }
                op => steps.push(Step::free(op.clone())),
            }
        }
        run = copy as u64 * whole;
        match last {
            Operator::Br { .. } if copy == COPIES => {
                steps.extend([charge(run), Step::free(Operator::Br { relative_depth: 0 })]);
            }
            // The next copy follows.
            Operator::Br { .. } => {}
            _ if copy == COPIES => {
                steps.extend([charge(run), Step::free(Operator::BrIf { relative_depth: 0 })]);
            }
            _ => {
                steps.push(Step::free(Operator::I32Eqz));
                steps.push(Step::free(Operator::If { blockty: empty }));
                steps.push(charge(run));
                steps.push(Step::free(Operator::Br { relative_depth: 2 }));
                steps.push(Step::free(Operator::End));
            }
        }
    }
    steps.push(Step::free(Operator::End));
    steps.push(Step::free(Operator::End));
    true
}

fn write<'a>(body: &[Operator<'a>], steps: &mut Vec<Step<'a>>) {
    let empty = BlockType::Empty;
    steps.push(Step::free(Operator::Block { blockty: empty }));
    steps.push(Step::free(Operator::Loop { blockty: empty }));
    for _ in 1..COPIES {
        steps.push(Step::free(Operator::Block { blockty: empty }));
        // Depths from inside: the copy's own block, the loop, the exit block, and then the constructs outside of the loop.
        copy(body, 2, steps);
        match steps.last_mut() {
            // A branch to the next copy, which follows anyway.
            Some(last) if matches!(last.op, Operator::Br { relative_depth: 0 }) => last.op = Operator::Nop,
            _ => steps.push(Step::free(Operator::Br { relative_depth: 2 })),
        }
        steps.push(Step::free(Operator::End));
    }
    copy(body, 1, steps);
    steps.push(Step::free(Operator::End));
    steps.push(Step::free(Operator::End));
}

/// Writes one copy; branches that leave the loop pass `further` more constructs than before.
fn copy<'a>(body: &[Operator<'a>], further: u32, steps: &mut Vec<Step<'a>>) {
    let mut depth = 0;
    for op in body {
        let mut step = Step::of(op);
        match &mut step.op {
            Operator::Block { .. } | Operator::If { .. } => depth += 1,
            Operator::End => depth -= 1,
            Operator::Br { relative_depth } | Operator::BrIf { relative_depth }
                if *relative_depth > depth =>
            {
                *relative_depth += further;
            }
            _ => {}
        }
        steps.push(step);
    }
}
