//! The addresses in a new process, and what the kernel tells it at its start.

/// The page of [`RuntimeBootInfo`], read-only; the program's arguments follow the structure in the same page.
pub const BOOTINFO_VADDR: u64 = 0x7f00_0000_0000;
/// The page of the [`crate::CapSetHeader`], read-only.
pub const CAPSET_VADDR: u64 = 0x7f00_0000_1000;
/// The ring of the initial thread.
pub const RING_VADDR: u64 = 0x7f00_0001_0000;
/// Rings of further threads lie here, one page each, where the kernel puts them.
pub const RING_ARENA_VADDR: u64 = 0x7f01_0000_0000;
/// The top of the initial thread's stack; the page below the stack is not mapped.
pub const STACK_TOP_VADDR: u64 = 0x7eff_ffff_0000;
/// Bytes of the initial thread's stack.
pub const STACK_BYTES: u64 = 64 * 1024;
/// `VirtualMemory.map` without an address takes it from here upward.
pub const MMAP_BASE_VADDR: u64 = 0x10_0000_0000;
/// First address above what a program may use.
pub const USER_END_VADDR: u64 = 0x7fff_ffff_f000;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Longest arguments of a program, in bytes, NULs included.
pub const MAX_ARGS_BYTES: usize = 2048;
/// Longest name of a program, process or granted capability, in bytes.
pub const MAX_NAME_BYTES: usize = 24;

/// `RuntimeBootInfo::magic`.
pub const BOOTINFO_MAGIC: u64 = u64::from_le_bytes(*b"capOSrbi");

/// What the kernel tells a process at its start; at [`BOOTINFO_VADDR`], whose address is the initial thread's `RDI`.
///
/// A thread starts with `RDI = arg, RSI = tid, RDX = pid, RCX = ring address, R8 = CAPSET_VADDR`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RuntimeBootInfo {
    /// [`BOOTINFO_MAGIC`].
    pub magic: u64,
    /// Where the initial thread's ring is.
    pub ring_addr: u64,
    /// [`crate::RING_ABI_VERSION`] of the kernel.
    pub ring_abi_version: u32,
    /// Bytes of one submission entry.
    pub sqe_size: u32,
    /// Bytes of one completion entry.
    pub cqe_size: u32,
    /// Bytes of the arguments that follow this structure: strings, each ended by a NUL.
    pub args_len: u32,
    /// Address of the image of thread-local data, 0 if there is none.
    pub tls_image: u64,
    /// Initialised bytes of thread-local data.
    pub tls_file_bytes: u64,
    /// All bytes of thread-local data.
    pub tls_bytes: u64,
    /// Alignment of thread-local data.
    pub tls_align: u64,
    /// CPUs that are online.
    pub cpus: u32,
    /// Process id.
    pub pid: u32,
    /// The process's name, padded with NULs.
    pub name: [u8; MAX_NAME_BYTES],
}
