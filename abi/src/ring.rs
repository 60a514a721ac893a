//! A thread's ring: one page that the thread and the kernel share.
//!
//! The thread writes entries and then `sq_tail`, and reads completions up to `cq_tail`; the kernel does the opposite. The kernel keeps
//! its own copies of what it wrote, and believes nothing that it reads here. Indices run freely and wrap; the slot is `index % entries`.

use core::sync::atomic::AtomicU32;

/// The version of everything in this module and in [`crate::Op`].
pub const RING_ABI_VERSION: u32 = 1;
/// [`Sqe::version`] of the entries below.
pub const SQE_VERSION: u8 = 1;
/// Entries of the submission queue.
pub const SQ_ENTRIES: u32 = 32;
/// Entries of the completion queue; also how many operations a thread can have in progress.
pub const CQ_ENTRIES: u32 = 32;

/// An operation only in a kernel that was booted with `endlease`, and none of [`crate::Op`]; for the proof that no entry is taken once the lease has
/// ended (K-12). Ends the lease of the ring of thread `arg0` of the same process, or of the caller's own ring if that is 0. That ring is then closed
/// for good.
pub const OP_END_LEASE: u8 = 255;

/// One submission.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sqe {
    /// [`crate::Op`].
    pub op: u8,
    /// [`SQE_VERSION`].
    pub version: u8,
    /// [`crate::flags`].
    pub flags: u16,
    /// The capability that is used ([`crate::CapId`]).
    pub cap: u32,
    /// Comes back in the completion.
    pub user_data: u64,
    /// Method number.
    pub method: u32,
    /// Bytes at `addr`.
    pub len: u32,
    /// Where the parameters are.
    pub addr: u64,
    /// Where results go.
    pub result_addr: u64,
    /// Bytes that fit there.
    pub result_len: u32,
    /// A capability to pass along.
    pub xfer: u32,
    /// First argument word.
    pub arg0: u64,
    /// Second argument word.
    pub arg1: u64,
}

/// One completion.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// From the submission.
    pub user_data: u64,
    /// 0, a positive [`crate::Exception`] or a negative [`crate::TransportError`].
    pub status: i32,
    /// A capability that came with it ([`crate::CapId`]).
    pub cap: u32,
    /// The operation's result.
    pub value: u64,
    /// [`crate::cqe_flags`].
    pub flags: u32,
    /// RECV: the badge of the capability that was called.
    pub badge: u32,
    /// Further words; see [`crate::Op`].
    pub w: [u64; 2],
}

/// The page.
#[repr(C, align(4096))]
pub struct Ring {
    /// Next submission to be written; the thread writes it.
    pub sq_tail: AtomicU32,
    /// Next completion to be read; the thread writes it.
    pub cq_head: AtomicU32,
    /// To the end of the thread's cache line.
    pub user_pad: [u32; 14],
    /// Next submission to be taken; the kernel writes it.
    pub sq_head: AtomicU32,
    /// Next completion to be posted; the kernel writes it.
    pub cq_tail: AtomicU32,
    /// [`ring_flags`]; the kernel writes it.
    pub flags: AtomicU32,
    /// To the end of the kernel's cache line.
    pub kernel_pad: [u32; 13],
    /// Submissions.
    pub sq: [Sqe; SQ_ENTRIES as usize],
    /// Completions.
    pub cq: [Cqe; CQ_ENTRIES as usize],
}

/// [`Ring::flags`].
pub mod ring_flags {
    /// The poller sleeps: `cap_enter` wakes it. (Rings in system-call mode never set it.)
    pub const NEED_WAKEUP: u32 = 1;
}

const _: () = {
    assert!(size_of::<Sqe>() == 64);
    assert!(size_of::<Cqe>() == 48);
    assert!(size_of::<Ring>() == 4096);
};
