//! Writes a function body again, with the instructions that its plan inserts.
//!
//! The number of operations that may still run is the *fuel*. It lives in a global that no guest can name. A
//! function that loops keeps it in a local while it runs, and stores it back before anything that might read it:
//! calls and returns.

use super::cost::{bulk_shift, called, is_call};
use super::plan::{Plan, entry_cost, plain, plan};
use super::unroll::{Step, unroll};
use super::{Added, How, Prepaid, Rewriter, few};
use crate::error::GuestError;
use wasm_encoder::reencode::Reencode;
use wasm_encoder::{BlockType, Function, ValType};
use wasmparser::{FunctionBody, Operator};

/// How one body reaches the fuel.
struct Body<'a> {
    added: &'a Added,
    out: Function,
    plan: Plan,
    /// The local that the fuel is kept in.
    kept: Option<u32>,
    /// A local for the size of a bulk operation.
    size: u32,
}

/// A body as it was read: its locals, how many there are, and its instructions.
struct Read<'a> {
    locals: Vec<(u32, ValType)>,
    declared: u32,
    ops: Vec<Operator<'a>>,
}

fn read<'a>(rewriter: &mut Rewriter<'_>, body: &FunctionBody<'a>) -> Result<Read<'a>, GuestError> {
    let mut locals = Vec::new();
    let mut declared = 0u32;
    for pair in body.get_locals_reader()? {
        let (count, ty) = pair?;
        declared += count;
        locals.push((count, rewriter.val_type(ty).map_err(super::refused)?));
    }
    let ops: Vec<Operator<'a>> = body.get_operators_reader()?.into_iter().collect::<Result<_, _>>()?;
    for op in &ops {
        if let Operator::Block { blockty } | Operator::Loop { blockty } | Operator::If { blockty } = op
            && let wasmparser::BlockType::FuncType(ty) = blockty
        {
            few(rewriter.params[*ty as usize] as usize)?;
        }
    }
    Ok(Read { locals, declared, ops })
}

fn steps_of<'a>(rewriter: &Rewriter<'_>, ops: &[Operator<'a>]) -> Vec<Step<'a>> {
    match rewriter.how {
        How::Unrolled => unroll(ops),
        How::Straight | How::Plain => ops.iter().map(Step::of).collect(),
    }
}

/// What callers may charge on behalf of this body.
pub(super) fn prepaid(rewriter: &mut Rewriter<'_>, body: &FunctionBody<'_>) -> Result<Prepaid, GuestError> {
    let Read { declared, ops, .. } = read(rewriter, body)?;
    let (cost, whole) = entry_cost(&steps_of(rewriter, &ops), u64::from(declared));
    Ok(Prepaid { cost, whole: whole && !ops.iter().any(is_call) })
}

/// Instruments the body of a function with `params` parameters, of which callers have already charged `paid`.
pub(super) fn rewrite(
    rewriter: &mut Rewriter<'_>,
    params: u32,
    body: &FunctionBody<'_>,
    paid: Prepaid,
) -> Result<Function, GuestError> {
    let Read { mut locals, declared, ops } = read(rewriter, body)?;
    let mut steps = steps_of(rewriter, &ops);
    let plan = if rewriter.how == How::Plain {
        plain(&steps, u64::from(declared))
    } else {
        for step in &mut steps {
            step.ahead = called(&step.op).map_or(0, |function| rewriter.prepaid(function).cost);
        }
        plan(&steps, u64::from(declared), paid.cost)
    };
    let mut next = params + declared;
    let mut local = |ty| {
        locals.push((1, ty));
        next += 1;
        next - 1
    };
    let kept = plan.loops.then(|| local(ValType::I64));
    let size = if ops.iter().any(|op| bulk_shift(op).is_some()) { local(ValType::I32) } else { 0 };
    let grows = |op: &Operator<'_>| matches!(op, Operator::MemoryGrow { .. } | Operator::TableGrow { .. });
    rewriter.grows |= ops.iter().any(grows);
    let added = rewriter.added.clone();
    let mut body = Body { added: &added, out: Function::new(locals), plan, kept, size };
    body.write(rewriter, &steps)?;
    Ok(body.out)
}

impl Body<'_> {
    fn write(&mut self, rewriter: &mut Rewriter<'_>, steps: &[Step<'_>]) -> Result<(), GuestError> {
        self.reload();
        let (mut segment, mut check, mut closed, mut leaving) = (0, 0, 0, 0);
        for (at, Step { op, .. }) in steps.iter().enumerate() {
            let mut cost = 0;
            while let Some(due) = self.plan.segments.get(segment).filter(|due| due.at == at) {
                cost += due.cost;
                segment += 1;
            }
            let checked = self.plan.checks.get(check) == Some(&at);
            check += usize::from(checked);
            self.charge(cost, checked);
            if self.plan.dead[at] {
                continue;
            }
            let leaves = self.plan.leaving.get(leaving) == Some(&at);
            leaving += usize::from(leaves);
            if leaves || at + 1 == steps.len() || matches!(op, Operator::Return) {
                self.store();
            }
            self.emit(rewriter, op)?;
            if self.plan.closed.get(closed) == Some(&at) {
                closed += 1;
                self.out.instructions().unreachable();
            }
        }
        Ok(())
    }

    /// Inserts `Budget_Decrement` and, if `checked`, `Budget_Check`.
    fn charge(&mut self, cost: u64, checked: bool) {
        let fuel = self.added.fuel;
        let refuel = self.added.refuel;
        let settle = self.added.settle;
        let mut out = self.out.instructions();
        match self.kept {
            Some(kept) => {
                if cost > 0 {
                    out.local_get(kept).i64_const(cost as i64).i64_sub();
                    if checked {
                        out.local_tee(kept)
                    } else {
                        out.local_set(kept)
                    };
                } else if checked {
                    out.local_get(kept);
                }
                if checked {
                    out.i64_const(0).i64_lt_s().if_(BlockType::Empty);
                    out.local_get(kept).call(refuel).local_set(kept).end();
                }
            }
            None => {
                if cost > 0 {
                    out.global_get(fuel).i64_const(cost as i64).i64_sub().global_set(fuel);
                }
                // Reads the global again: to keep the value in a local meanwhile takes the engine longer.
                if checked {
                    out.global_get(fuel).i64_const(0).i64_lt_s().if_(BlockType::Empty).call(settle).end();
                }
            }
        }
    }

    /// Stores the fuel in the global, where other functions see it.
    fn store(&mut self) {
        if let Some(kept) = self.kept {
            self.out.instructions().local_get(kept).global_set(self.added.fuel);
        }
    }

    fn reload(&mut self) {
        if let Some(kept) = self.kept {
            self.out.instructions().global_get(self.added.fuel).local_set(kept);
        }
    }

    fn emit(&mut self, rewriter: &mut Rewriter<'_>, op: &Operator<'_>) -> Result<(), GuestError> {
        if let Some(shift) = bulk_shift(op) {
            self.store();
            self.out.instructions().local_tee(self.size).local_get(self.size).i64_extend_i32_u();
            self.out.instructions().i64_const(shift).i64_shr_u().call(self.added.charge);
            self.reload();
        }
        match op {
            // The callee neither charges nor checks, so it need not see the fuel.
            Operator::Call { function_index } if rewriter.prepaid(*function_index).whole => {
                self.copy(rewriter, op)?;
            }
            Operator::Call { .. } | Operator::CallIndirect { .. } => {
                self.store();
                self.copy(rewriter, op)?;
                self.reload();
            }
            Operator::ReturnCall { .. } | Operator::ReturnCallIndirect { .. } => {
                self.store();
                self.copy(rewriter, op)?;
            }
            Operator::MemoryGrow { .. } => match self.added.grow_memory {
                Some(grow) => {
                    self.store();
                    self.out.instructions().call(grow);
                    self.reload();
                }
                None => {
                    self.out.instructions().drop().i32_const(-1);
                }
            },
            Operator::TableGrow { table } => match self.added.grow_tables {
                Some(first) => {
                    self.store();
                    self.out.instructions().call(first + table);
                    self.reload();
                }
                None => {
                    self.out.instructions().drop().drop().i32_const(-1);
                }
            },
            _ => self.copy(rewriter, op)?,
        }
        Ok(())
    }

    fn copy(&mut self, rewriter: &mut Rewriter<'_>, op: &Operator<'_>) -> Result<(), GuestError> {
        let op = rewriter.instruction(op.clone()).map_err(super::refused)?;
        self.out.instruction(&op);
        Ok(())
    }
}
