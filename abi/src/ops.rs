//! The operations of a ring entry, and what their fields mean.

/// `cap_enter(min_complete, timeout_ns)`: `RAX` = 0, `RDI`, `RSI`. Takes entries from the submission queue, then waits until
/// `min_complete` completions are there or the time is over (0 polls, `u64::MAX` waits for ever). Returns how many completions
/// are there, or a negative [`crate::TransportError`]. Clobbers `RCX`, `R11`, the vector registers, and caller-saved registers.
pub const SYS_CAP_ENTER: u64 = 0;
/// `exit(code)`: `RAX` = 1, `RDI`. Ends the calling thread; the process ends with its last thread.
pub const SYS_EXIT: u64 = 1;

/// What an entry asks for: [`crate::Sqe::op`].
///
/// Fields that an operation does not name must be 0.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Nothing; completes at once. No capability.
    Nop = 0,
    /// Calls method `method` of `cap` with `len` bytes at `addr`; the answer goes to `result_addr` (`result_len` bytes at most).
    ///
    /// For kernel objects parameters and results are the Cap'n Proto messages of `schema/capos.capnp`. For an endpoint the bytes are
    /// the server's business; with [`flags::INLINE`] the message is `arg0, arg1` and there is no `addr`/`len`.
    /// `xfer` passes a capability along. Completion: `value` bytes of result, `cap` a capability that came with it, and with
    /// [`cqe_flags::INLINE`] the two words `w`.
    Call = 1,
    /// Waits for a call on endpoint `cap`; the message goes to `result_addr` (`result_len` bytes at most).
    ///
    /// Completion: `value` the token to [`Op::Return`] with, `badge` that of the capability that was called, the method in the upper
    /// half of `flags`, `cap` a capability that came along; with [`cqe_flags::INLINE`] the message is `w`, else `w[0]` is its length.
    Recv = 2,
    /// Answers the call with token `result_addr` of endpoint `cap`: `len` bytes at `addr`, or `arg0, arg1` with [`flags::INLINE`].
    /// `method` 0 answers, 1 to 5 raises that [`crate::Exception`] at the caller. `xfer` passes a capability along.
    Return = 3,
    /// Parks the thread on `addr` of park space `cap` if the `u32` there is `arg0`, for `arg1` ns at most. Must be the last entry.
    Park = 4,
    /// Wakes at most `arg0` threads that are parked on `addr` of park space `cap`. Completion: `value` of them.
    Unpark = 5,
    /// Completes after `arg0` ns by timer `cap`.
    Sleep = 6,
    /// Writes `len` bytes at `addr` to console `cap`. Completion: `value` bytes taken.
    Write = 7,
    /// Reads at least one and at most `result_len` bytes from console `cap` to `result_addr`. Needs [`crate::rights::RECV`]. Completion:
    /// `value` bytes. [`crate::TransportError::NoSpace`]: too many reads wait, of this process or in all.
    Read = 8,
    /// Withdraws the caller's operation whose `user_data` is `arg0`. Completion: `value` 1 if there was one.
    Cancel = 9,
    /// Gives capability `cap` up.
    Release = 10,
    /// Makes a copy of `cap` with rights `arg0` (a part of its own) and badge `arg1` (0 keeps it). Completion: `cap`.
    Copy = 11,
    /// Takes every other capability to the object of `cap` away from all processes. Needs [`crate::rights::REVOKE`].
    Revoke = 12,
    /// Gives the CPU to others; completes when the thread runs again.
    Yield = 13,
}

impl Op {
    /// How many there are.
    pub const COUNT: usize = 14;
    /// All of them, in the order of their numbers.
    pub const ALL: [Op; Op::COUNT] = [
        Op::Nop,
        Op::Call,
        Op::Recv,
        Op::Return,
        Op::Park,
        Op::Unpark,
        Op::Sleep,
        Op::Write,
        Op::Read,
        Op::Cancel,
        Op::Release,
        Op::Copy,
        Op::Revoke,
        Op::Yield,
    ];

    /// The operation with number `raw`.
    pub const fn from_raw(raw: u8) -> Option<Op> {
        if (raw as usize) < Op::COUNT { Some(Op::ALL[raw as usize]) } else { None }
    }
}

/// [`crate::Sqe::flags`].
pub mod flags {
    /// The message is the two argument words (Call to an endpoint, Return).
    pub const INLINE: u16 = 1;
    /// The capability in `xfer` leaves the sender's table (otherwise it is copied).
    pub const MOVE: u16 = 2;
    /// No completion is posted if the operation succeeds at once (Return, Unpark, Write, Release, Nop).
    pub const QUIET: u16 = 4;
    /// Every flag there is.
    pub const ALL: u16 = 7;
}

/// [`crate::Cqe::flags`].
pub mod cqe_flags {
    /// The message is the two words `w`.
    pub const INLINE: u32 = 1;
    /// RECV: the method is `flags >> METHOD_SHIFT`; methods of endpoints have 16 bits.
    pub const METHOD_SHIFT: u32 = 16;
}

/// Longest message of a CALL or RETURN, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 4096;
/// Longest Write or Read, in bytes.
pub const MAX_IO_BYTES: usize = 1024;
/// Longest line of boot options that the kernel reads, in bytes.
pub const BOOT_LINE_BYTES_MAX: usize = 1023;
