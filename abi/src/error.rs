//! The first and third error planes. (The second, *operation results*, are enumerations in the replies of `schema/capos.capnp`.)

/// A method refused or failed: positive [`crate::Cqe::status`]. A text that says why is in the result buffer, `value` bytes long.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exception {
    /// It cannot be done, now or ever.
    Failed = 1,
    /// A limit is reached; with less in use it may work.
    Overloaded = 2,
    /// The server that should answer is gone, or the capability was revoked.
    Disconnected = 3,
    /// An argument is out of range.
    InvalidArgument = 4,
    /// There is no such method here.
    Unimplemented = 5,
}

impl Exception {
    /// The exception with number `raw`.
    pub const fn from_raw(raw: i32) -> Option<Exception> {
        Some(match raw {
            1 => Exception::Failed,
            2 => Exception::Overloaded,
            3 => Exception::Disconnected,
            4 => Exception::InvalidArgument,
            5 => Exception::Unimplemented,
            _ => return None,
        })
    }
}

/// An entry never reached a method: negative [`crate::Cqe::status`], and the result of `cap_enter` when that failed itself.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportError {
    /// `CAP_ERR_UNSUPPORTED_RING_ABI`: this kernel does not speak the ring ABI that was asked for.
    UnsupportedRingAbi = -1,
    /// `CAP_ERR_UNSUPPORTED_SQE_VERSION`: the entry has a version that this ring does not take.
    UnsupportedSqeVersion = -2,
    /// `CAP_ERR_DEADLINE_EXPIRED`: too late to start.
    DeadlineExpired = -3,
    /// `CAP_ERR_BUDGET_EXHAUSTED`: no budget to do it with.
    BudgetExhausted = -4,
    /// `CAP_ERR_REALTIME_UNSAFE_PATH`: it could block where that is forbidden.
    RealtimeUnsafePath = -5,
    /// `CAP_ERR_REALTIME_ADMISSION_DENIED`: not admitted.
    RealtimeAdmissionDenied = -6,
    /// `CAP_ERR_OVERRUN`: it took more than it was given.
    Overrun = -7,
    /// `CAP_ERR_STALE_INPUT`: what it was given is out of date.
    StaleInput = -8,
    /// There is no such operation.
    UnknownOp = -16,
    /// A flag that this operation does not have, or a field that must be 0.
    BadFlags = -17,
    /// No capability has this number: never had, released, or its slot is used again.
    BadCap = -18,
    /// The capability does not have this operation, or lacks the right.
    NotPermitted = -19,
    /// The capability was revoked.
    Revoked = -20,
    /// A buffer is not (all) in the caller's memory with the needed access.
    BadAddress = -21,
    /// A buffer or message is longer than the operation takes.
    TooLong = -22,
    /// The message is not what the schema says.
    BadMessage = -23,
    /// This consumer's lease on the submission queue has ended: no more entries are taken.
    StaleSqConsumer = -24,
    /// There is no lease on this submission queue: another consumer is at work (try again), or the ring is closed.
    SqBusy = -25,
    /// The operation was withdrawn: its process, thread or endpoint ended.
    Cancelled = -26,
    /// The time is over.
    TimedOut = -27,
    /// PARK: the word did not have the expected value.
    WouldNotPark = -28,
    /// A quota or table of the process is full.
    NoSpace = -29,
    /// RETURN: no call has this token (answered, cancelled, or never existed).
    BadToken = -30,
    /// A system call with a number that does not exist.
    UnknownSyscall = -31,
    /// CALL: the caller's context is lent along as many calls as there can be; the call was not made.
    LoanTooDeep = -32,
    /// CALL: the server that would answer waits, at the other end of the chain of loans, for this very caller's answer; the call
    /// was not made.
    LoanCycle = -33,
    /// CALL: the server may not run on any CPU that is allowed to the caller's context and has the time for it; the call was not
    /// made.
    NoCommonCpu = -34,
}

impl TransportError {
    /// All of them.
    pub const ALL: [TransportError; 27] = [
        TransportError::UnsupportedRingAbi,
        TransportError::UnsupportedSqeVersion,
        TransportError::DeadlineExpired,
        TransportError::BudgetExhausted,
        TransportError::RealtimeUnsafePath,
        TransportError::RealtimeAdmissionDenied,
        TransportError::Overrun,
        TransportError::StaleInput,
        TransportError::UnknownOp,
        TransportError::BadFlags,
        TransportError::BadCap,
        TransportError::NotPermitted,
        TransportError::Revoked,
        TransportError::BadAddress,
        TransportError::TooLong,
        TransportError::BadMessage,
        TransportError::StaleSqConsumer,
        TransportError::SqBusy,
        TransportError::Cancelled,
        TransportError::TimedOut,
        TransportError::WouldNotPark,
        TransportError::NoSpace,
        TransportError::BadToken,
        TransportError::UnknownSyscall,
        TransportError::LoanTooDeep,
        TransportError::LoanCycle,
        TransportError::NoCommonCpu,
    ];

    /// The error with number `raw`.
    pub fn from_raw(raw: i32) -> Option<TransportError> {
        Self::ALL.into_iter().find(|error| *error as i32 == raw)
    }
}
