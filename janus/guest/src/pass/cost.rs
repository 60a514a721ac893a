//! The costs of instructions. SPEC-021 [SCHED:3.3.1] names loop iterations and calls; here these are the `br` and the
//! `call` that cause them, and every other instruction that does something costs the same: straight-line code is not free,
//! either.

use wasmparser::Operator;

/// Operations that an instruction is charged, wherever it occurs.
pub(super) fn cost(op: &Operator<'_>) -> u64 {
    match op {
        Operator::Nop | Operator::Block { .. } | Operator::Loop { .. } | Operator::Else | Operator::End => 0,
        _ => 1,
    }
}

/// Whether the instruction leaves the function and may come back. `memory.grow` and `table.grow` become calls.
pub(super) fn is_call(op: &Operator<'_>) -> bool {
    matches!(
        op,
        Operator::Call { .. }
            | Operator::CallIndirect { .. }
            | Operator::ReturnCall { .. }
            | Operator::ReturnCallIndirect { .. }
            | Operator::MemoryGrow { .. }
            | Operator::TableGrow { .. }
    ) || bulk_shift(op).is_some()
}

/// For an instruction whose work depends on its last operand: 2 to the power of this many units, that is 64 bytes or 8
/// elements, cost one more operation.
pub(super) fn bulk_shift(op: &Operator<'_>) -> Option<i64> {
    match op {
        Operator::MemoryCopy { .. } | Operator::MemoryFill { .. } | Operator::MemoryInit { .. } => Some(6),
        Operator::TableCopy { .. } | Operator::TableFill { .. } | Operator::TableInit { .. } => Some(3),
        _ => None,
    }
}

/// The function that it calls, if that is known statically.
pub(super) fn called(op: &Operator<'_>) -> Option<u32> {
    match op {
        Operator::Call { function_index } | Operator::ReturnCall { function_index } => Some(*function_index),
        _ => None,
    }
}
