//! What an instruction costs. SPEC-021 [SCHED:3.3.1] names loop iterations and calls; here they are the `br` and the `call`
//! that make them, and every other instruction that does something costs the same: straight code is not free either.

use wasmparser::Operator;

/// Operations that an instruction is charged with, wherever it stands.
pub(super) fn cost(op: &Operator<'_>) -> u64 {
    match op {
        Operator::Nop | Operator::Block { .. } | Operator::Loop { .. } | Operator::Else | Operator::End => 0,
        _ => 1,
    }
}

/// Does it leave the function and perhaps come back? `memory.grow` and `table.grow` become calls.
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

/// An instruction that works on as much as its last operand says: 2 to the power of this are one more operation, that is
/// 64 bytes or 8 elements.
pub(super) fn bulk_shift(op: &Operator<'_>) -> Option<i64> {
    match op {
        Operator::MemoryCopy { .. } | Operator::MemoryFill { .. } | Operator::MemoryInit { .. } => Some(6),
        Operator::TableCopy { .. } | Operator::TableFill { .. } | Operator::TableInit { .. } => Some(3),
        _ => None,
    }
}

/// The function that it calls, if that is known.
pub(super) fn called(op: &Operator<'_>) -> Option<u32> {
    match op {
        Operator::Call { function_index } | Operator::ReturnCall { function_index } => Some(*function_index),
        _ => None,
    }
}
