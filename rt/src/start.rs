//! From the first instruction of a program to its `main`, and the end of threads and programs.

use core::arch::naked_asm;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use abi::{BOOTINFO_MAGIC, CapSetEntry, Cqe, Interface, RING_ABI_VERSION, Ring, RuntimeBootInfo, Sqe};

use crate::tls::{self, Tcb, Template};
use crate::{caps, error, syscall};

/// Exit code of a program whose kernel has another ring ABI, or is no capOS kernel. The program has no ring with which to say more.
pub const EXIT_UNSUPPORTED_ABI: i64 = 120;
/// Exit code of a program that cannot set up its first thread: it has no `ThreadControl`, or too much thread-local data.
pub const EXIT_NO_THREAD_DATA: i64 = 121;
/// Exit code after a panic, in whichever thread.
pub const EXIT_PANIC: i64 = 101;

/// Thread-local data of the initial thread lies on its stack; more than this is refused.
const INITIAL_TLS_MAX: usize = abi::STACK_BYTES as usize / 4;

static BOOT_INFO: AtomicPtr<RuntimeBootInfo> = AtomicPtr::new(core::ptr::null_mut());

/// What the kernel told the process at its start.
pub fn boot_info() -> &'static RuntimeBootInfo {
    // SAFETY: set before `main` to a page that is mapped read-only as long as the process lives.
    unsafe { &*BOOT_INFO.load(Ordering::Relaxed) }
}

/// The first instruction: `RDI` boot info, `RSI` thread id, `RDX` process id, `RCX` ring, `R8` CapSet; the stack is aligned to 16.
///
/// Takes room for the initial thread's local data from its own stack, and goes on in [`begin`].
#[unsafe(naked)]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(link_section = ".text._start")]
unsafe extern "C" fn _start() -> ! {
    naked_asm!(
        "xor ebp, ebp",
        "mov r12, rdi",
        "mov r13, rsi",
        "mov r14, rcx",
        "mov r15, r8",
        "call {room}",
        "sub rsp, rax",
        "and rsp, -64",
        "mov rdi, r12",
        "mov rsi, r13",
        "mov rdx, r14",
        "mov rcx, r15",
        "mov r8, rsp",
        "call {begin}",
        "ud2",
        room = sym room,
        begin = sym begin,
    )
}

/// Checks that this kernel is one that the program understands; returns how many bytes of thread-local data the first thread needs.
extern "C" fn room(info: *const RuntimeBootInfo) -> usize {
    // SAFETY: the kernel passes a mapped page; the magic is looked at before anything else.
    let info = unsafe { &*info };
    let is_known = info.magic == BOOTINFO_MAGIC
        && info.ring_abi_version == RING_ABI_VERSION
        && info.sqe_size as usize == size_of::<Sqe>()
        && info.cqe_size as usize == size_of::<Cqe>();
    if !is_known {
        syscall::exit_thread(EXIT_UNSUPPORTED_ABI);
    }
    let bytes = Template::of(info).block_bytes();
    if bytes > INITIAL_TLS_MAX {
        syscall::exit_thread(EXIT_NO_THREAD_DATA);
    }
    bytes.next_multiple_of(64)
}

/// Sets the initial thread's local data up in `block` and runs the program.
unsafe extern "C" fn begin(
    info: *mut RuntimeBootInfo,
    tid: u32,
    ring: *const Ring,
    capset: *const CapSetEntry,
    block: *mut u8,
) -> ! {
    BOOT_INFO.store(info, Ordering::Relaxed);
    caps::set_capset(capset as u64);
    // SAFETY: `_start` took `room` bytes from the stack for this, which lasts as long as the thread.
    let tcb = unsafe {
        let tcb = Template::of(&*info).fill(block);
        Tcb::put(tcb, tid, ring);
        &*tcb
    };
    if let Err(error) = crate::clients::set_fs_base(&tcb.client, CONTROL.id(), tcb as *const Tcb as u64) {
        // `println!` needs the current thread's control block, which is not set up yet.
        let why = error.exception().map_or("a transport error", |_| "an exception");
        crate::print::write_with(&tcb.client, b"rt: cannot set the FS base: ");
        crate::print::write_with(&tcb.client, why.as_bytes());
        crate::print::write_with(&tcb.client, b"; does the process have a ThreadControl?\n");
        syscall::exit_thread(EXIT_NO_THREAD_DATA);
    }
    unsafe extern "Rust" {
        /// Made by [`crate::main!`].
        safe fn capos_program_main() -> i64;
    }
    let code = capos_program_main();
    exit(code)
}

/// Ends the process with `code`, as std does: the calling thread's [`crate::Local`]s are dropped, other threads end where they are.
pub fn exit(code: i64) -> ! {
    tls::drop_locals();
    end_process(code)
}

/// Whether there was ever a second thread. Without one the end of the thread is the end of the process, with one system call.
static IS_THREADED: AtomicBool = AtomicBool::new(false);

/// From now on the process may have more than one thread.
pub(crate) fn note_thread() {
    IS_THREADED.store(true, Ordering::Relaxed);
}

/// Ends every thread by the handle to the own process, which the kernel grants to each process as `self`.
fn end_process(code: i64) -> ! {
    if IS_THREADED.load(Ordering::Relaxed) {
        // Returns only if the kernel refuses; then the other threads go on, and the process ends with the last of them.
        let _ = crate::clients::exit_process(code);
    }
    syscall::exit_thread(code)
}

/// What `main` may return, as an exit code.
pub trait ExitCode {
    /// The code.
    fn code(self) -> i64;
}

impl ExitCode for () {
    fn code(self) -> i64 {
        0
    }
}

impl ExitCode for i64 {
    fn code(self) -> i64 {
        self
    }
}

impl ExitCode for error::Result<()> {
    fn code(self) -> i64 {
        match self {
            Ok(()) => 0,
            Err(error) => {
                crate::println!("{}: {error}", crate::args::program());
                1
            }
        }
    }
}

/// Names the program's main function: `rt::main!(run);`. It takes nothing and returns `()`, an `i64` exit code, or `rt::Result<()>`.
#[macro_export]
macro_rules! main {
    ($function:path) => {
        #[unsafe(no_mangle)]
        fn capos_program_main() -> i64 {
            $crate::ExitCode::code($function())
        }
    };
}

/// What [`begin`] needs before anything else.
static CONTROL: caps::Known = caps::Known::new(Interface::ThreadControl);

#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    crate::println!("{}: {info}", crate::args::program());
    // No destructors: what they would touch may be what is broken. Other threads end too: they may wait for this one for ever.
    end_process(EXIT_PANIC)
}
