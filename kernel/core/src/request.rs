//! An entry of a ring, decoded (K-28): what is asked, with the fields that the operation names and no others.
//!
//! Every entry, however it is submitted, gets the same checks in the same place. Fields that an operation does not name must be 0, so that a later
//! version can give them a meaning; an entry with another value there is refused with [`TransportError::BadFlags`], and nothing has happened.

use abi::{Op, SQE_VERSION, Sqe, TransportError, flags};

/// Fields of an entry that operations name; `op`, `version`, `flags` and `user_data` belong to every entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fields(u16);

impl Fields {
    /// [`Sqe::cap`].
    pub const CAP: Fields = Fields(1);
    /// [`Sqe::method`].
    pub const METHOD: Fields = Fields(1 << 1);
    /// [`Sqe::addr`] and [`Sqe::len`].
    pub const BYTES: Fields = Fields(1 << 2);
    /// [`Sqe::addr`] without a length.
    pub const ADDRESS: Fields = Fields(1 << 3);
    /// [`Sqe::result_addr`] and [`Sqe::result_len`].
    pub const RESULT: Fields = Fields(1 << 4);
    /// [`Sqe::result_addr`] as a token.
    pub const TOKEN: Fields = Fields(1 << 5);
    /// [`Sqe::xfer`].
    pub const XFER: Fields = Fields(1 << 6);
    /// [`Sqe::arg0`].
    pub const ARG0: Fields = Fields(1 << 7);
    /// [`Sqe::arg1`].
    pub const ARG1: Fields = Fields(1 << 8);

    const fn and(self, other: Fields) -> Fields {
        Fields(self.0 | other.0)
    }

    const fn has(self, other: Fields) -> bool {
        self.0 & other.0 != 0
    }
}

/// The fields that an operation names, with these flags.
pub const fn named(op: Op, with: u16) -> Fields {
    let message = if with & flags::INLINE != 0 { Fields::ARG0.and(Fields::ARG1) } else { Fields::BYTES };
    let cap = Fields::CAP;
    match op {
        Op::Nop | Op::Yield => Fields(0),
        Op::Call => cap.and(Fields::METHOD).and(message).and(Fields::RESULT).and(Fields::XFER),
        Op::Recv | Op::Read => cap.and(Fields::RESULT),
        Op::Return => cap.and(Fields::METHOD).and(message).and(Fields::TOKEN).and(Fields::XFER),
        Op::Park => cap.and(Fields::ADDRESS).and(Fields::ARG0).and(Fields::ARG1),
        Op::Unpark => cap.and(Fields::ADDRESS).and(Fields::ARG0),
        Op::Sleep => cap.and(Fields::ARG0),
        Op::Write => cap.and(Fields::BYTES),
        Op::Cancel => Fields::ARG0,
        Op::Release | Op::Revoke => cap,
        Op::Copy => cap.and(Fields::ARG0).and(Fields::ARG1),
    }
}

/// The flags that an operation has.
pub const fn allowed_flags(op: Op) -> u16 {
    match op {
        Op::Call => flags::INLINE | flags::MOVE,
        Op::Return => flags::INLINE | flags::MOVE | flags::QUIET,
        Op::Unpark | Op::Write | Op::Release | Op::Nop => flags::QUIET,
        _ => 0,
    }
}

/// Is every field 0 that is not among `named`? With a constant this is a few instructions.
#[inline(always)]
pub const fn is_rest_zero(sqe: &Sqe, named: Fields) -> bool {
    let mut rest = 0;
    if !named.has(Fields::CAP) {
        rest |= sqe.cap as u64;
    }
    // Two neighbouring fields are one load, where both are looked at.
    match (named.has(Fields::METHOD), named.has(Fields::BYTES)) {
        (false, false) => rest |= sqe.method as u64 | (sqe.len as u64) << 32,
        (false, true) => rest |= sqe.method as u64,
        (true, false) => rest |= sqe.len as u64,
        (true, true) => {}
    }
    if !named.has(Fields::BYTES) && !named.has(Fields::ADDRESS) {
        rest |= sqe.addr;
    }
    match (named.has(Fields::RESULT), named.has(Fields::XFER)) {
        (false, false) => rest |= sqe.result_len as u64 | (sqe.xfer as u64) << 32,
        (false, true) => rest |= sqe.result_len as u64,
        (true, false) => rest |= sqe.xfer as u64,
        (true, true) => {}
    }
    if !named.has(Fields::RESULT) && !named.has(Fields::TOKEN) {
        rest |= sqe.result_addr;
    }
    if !named.has(Fields::ARG0) {
        rest |= sqe.arg0;
    }
    if !named.has(Fields::ARG1) {
        rest |= sqe.arg1;
    }
    rest == 0
}

/// A range of the submitter's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub length: u32,
}

/// The message of a call or an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// Two words, in the entry itself.
    Words([u64; 2]),
    /// Bytes of the submitter's memory.
    Bytes(Buffer),
}

/// A capability that goes along with a call or an answer; 0 for none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Passed {
    /// Its number.
    pub cap: u32,
    /// Whether it leaves the submitter's table.
    pub is_moved: bool,
}

/// A call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call {
    /// The capability that is called.
    pub cap: u32,
    /// The method.
    pub method: u32,
    /// The message.
    pub said: Said,
    /// Where the answer goes.
    pub result: Buffer,
    /// The capability that goes along.
    pub passed: Passed,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Return {
    /// The endpoint that the call came from.
    pub cap: u32,
    /// The call.
    pub token: u64,
    /// 0, or the exception to raise.
    pub method: u32,
    /// The message.
    pub said: Said,
    /// The capability that goes along.
    pub passed: Passed,
}

/// What an entry asks for. Fields have the meanings of [`Op`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "named as in `Op`")]
pub enum Request {
    Nop,
    Call(Call),
    Recv { cap: u32, result: Buffer },
    Return(Return),
    Park { cap: u32, address: u64, expected: u32, timeout_ns: u64 },
    Unpark { cap: u32, address: u64, count: u64 },
    Sleep { cap: u32, ns: u64 },
    Write { cap: u32, bytes: Buffer },
    Read { cap: u32, result: Buffer },
    Cancel { user_data: u64 },
    Release { cap: u32 },
    Copy { cap: u32, rights: u16, badge: u32 },
    Revoke { cap: u32 },
    Yield,
}

/// [`is_rest_zero`] for an operation that is known only at run time: each operation has a check of its own, of the few words that it does not
/// name.
#[inline(always)]
fn is_rest_zero_of(sqe: &Sqe, op: Op) -> bool {
    macro_rules! check {
        ($($op:ident)*) => {
            match op {
                Op::Call if sqe.flags & flags::INLINE != 0 => {
                    is_rest_zero(sqe, const { named(Op::Call, flags::INLINE) })
                }
                Op::Return if sqe.flags & flags::INLINE != 0 => {
                    is_rest_zero(sqe, const { named(Op::Return, flags::INLINE) })
                }
                $(Op::$op => is_rest_zero(sqe, const { named(Op::$op, 0) }),)*
            }
        };
    }
    check!(Nop Call Recv Return Park Unpark Sleep Write Read Cancel Release Copy Revoke Yield)
}

/// Decodes an entry, or says what is wrong with it. Nothing that needs the submitter's tables or memory is checked here.
#[inline(always)]
pub fn decode(sqe: &Sqe) -> Result<Request, TransportError> {
    if sqe.version != SQE_VERSION {
        return Err(TransportError::UnsupportedSqeVersion);
    }
    let op = Op::from_raw(sqe.op).ok_or(TransportError::UnknownOp)?;
    if sqe.flags & !allowed_flags(op) != 0 || !is_rest_zero_of(sqe, op) {
        return Err(TransportError::BadFlags);
    }
    let Sqe { cap, method, arg0, arg1, .. } = *sqe;
    let bytes = Buffer { address: sqe.addr, length: sqe.len };
    let result = Buffer { address: sqe.result_addr, length: sqe.result_len };
    let said = if sqe.flags & flags::INLINE != 0 { Said::Words([arg0, arg1]) } else { Said::Bytes(bytes) };
    let passed = Passed { cap: sqe.xfer, is_moved: sqe.flags & flags::MOVE != 0 };
    if passed.is_moved && passed.cap == 0 {
        return Err(TransportError::BadFlags);
    }
    let narrow = |word: u64| u32::try_from(word).map_err(|_| TransportError::BadFlags);
    Ok(match op {
        Op::Nop => Request::Nop,
        Op::Call => Request::Call(Call { cap, method, said, result, passed }),
        Op::Recv => Request::Recv { cap, result },
        Op::Return => Request::Return(Return { cap, token: sqe.result_addr, method, said, passed }),
        Op::Park => Request::Park { cap, address: sqe.addr, expected: narrow(arg0)?, timeout_ns: arg1 },
        Op::Unpark => Request::Unpark { cap, address: sqe.addr, count: arg0 },
        Op::Sleep => Request::Sleep { cap, ns: arg0 },
        Op::Write => Request::Write { cap, bytes },
        Op::Read => Request::Read { cap, result },
        Op::Cancel => Request::Cancel { user_data: arg0 },
        Op::Release => Request::Release { cap },
        Op::Copy => {
            let rights = u16::try_from(arg0).map_err(|_| TransportError::BadFlags)?;
            Request::Copy { cap, rights, badge: narrow(arg1)? }
        }
        Op::Revoke => Request::Revoke { cap },
        Op::Yield => Request::Yield,
    })
}

/// The usual forms of the usual entries: operation, version and flags as one number. An entry that has such a shape and [`is_usual`] needs no
/// decoding: its fields say what [`decode`] would, and there are no others.
pub mod shape {
    use super::{Op, SQE_VERSION, Sqe, flags};

    const fn of(op: Op, flags: u16) -> u32 {
        op as u32 | (SQE_VERSION as u32) << 8 | (flags as u32) << 16
    }

    /// A call with words and without a capability that goes along, of a method with 16 bits.
    pub const CALL: u32 = of(Op::Call, flags::INLINE);
    /// A wait for a call.
    pub const RECV: u32 = of(Op::Recv, 0);
    /// An answer with words, without an exception or a capability that goes along, and without a completion for the server.
    pub const RETURN: u32 = of(Op::Return, flags::INLINE | flags::QUIET);
    /// A park on a word of 32 bits.
    pub const PARK: u32 = of(Op::Park, 0);
    /// An unpark without a completion.
    pub const UNPARK: u32 = of(Op::Unpark, flags::QUIET);
    /// A sleep of more than nothing.
    pub const SLEEP: u32 = of(Op::Sleep, 0);
    /// A yield.
    pub const YIELD: u32 = of(Op::Yield, 0);

    /// The shape of an entry.
    #[inline(always)]
    pub const fn of_entry(sqe: &Sqe) -> u32 {
        sqe.op as u32 | (sqe.version as u32) << 8 | (sqe.flags as u32) << 16
    }
}

/// Is an entry with the shape `of` the usual one? With a constant this is a few instructions.
#[inline(always)]
pub const fn is_usual(sqe: &Sqe, of: u32) -> bool {
    match of {
        shape::CALL => {
            is_rest_zero(sqe, named(Op::Call, flags::INLINE))
                && sqe.xfer == 0
                && sqe.method <= u16::MAX as u32
        }
        shape::RECV => is_rest_zero(sqe, named(Op::Recv, 0)),
        shape::RETURN => is_rest_zero(sqe, named(Op::Return, flags::INLINE)) && sqe.method | sqe.xfer == 0,
        shape::PARK => is_rest_zero(sqe, named(Op::Park, 0)) && sqe.arg0 <= u32::MAX as u64,
        shape::UNPARK => is_rest_zero(sqe, named(Op::Unpark, 0)),
        shape::SLEEP => is_rest_zero(sqe, named(Op::Sleep, 0)) && sqe.arg0 != 0,
        shape::YIELD => is_rest_zero(sqe, named(Op::Yield, 0)),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
