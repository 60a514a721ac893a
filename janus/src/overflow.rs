//! Turns the overflow of a fiber's stack into the failure of one task.
//!
//! Everything here but `install` and `AltStack` runs inside a signal handler, on the worker's alternate signal stack:
//! it must not allocate, lock, panic, print or unwind, and of the runtime it may touch only what the hooks hand it.
//!
//! ```text
//!   hard_low  reserve_low     +8 KiB                    limit             top
//!   | hard    | lower reserve | upper reserve           | usable            |
//!   |         |               |                         '- 1. touched: open the upper reserve, mark the task
//!   |         |               |        program text, no library below        -> abandon
//!   |         |               |        in a library, or called back from one -> run on; when the outermost
//!   |         |               |                            call into a library returns, it lands: abandon
//!   |         |               |        a panic is under way                  -> run on, it ends in the fiber
//!   |         |               |        the runtime allocates for it          -> run on, it fails when it ends
//!   |         |               '- 2. touched: open the lower reserve as well
//!   |         |                        the runtime allocates for it          -> run on
//!   |         |                        program text                          -> abandon
//!   |         |                        in a library                          -> as soon as it returns: abandon
//!   |         '- 3. touched: program text, no library below        -> abandon
//!   |                  else                                         -> the process ends, with a message
//!
//!   run on until it lands:   | .. | return address of the library's frame | ..   overwritten by `landing`,
//!                                                                                which abandons
//!   abandon:                 the handler (or `landing`) goes on in the worker's suspended context
//!   any other SIGSEGV:       goes to the handler before ours
//! ```
//!
//! Single-stepping out of the library would need no return address, but a step costs 50 us in a virtual machine whose
//! hypervisor intercepts debug traps, and a call has thousands.
//!
//! Numbered invariants:
//!
//! 1. A fault is ours only if the hook names a running fiber and the address is in the guard of its slot.
//! 2. Abandoning runs no destructor of the fiber: whatever its own code holds (a lock, memory) stays held.
//! 3. A fiber is never abandoned inside a library, inside Rust's output while that holds its lock, or inside the
//!    runtime while that allocates: what is half changed there is shared by the whole process. If the fiber runs out of
//!    reserve there, the process ends. (A fiber that a library calls back is abandoned where its reserve ends, if it
//!    does not print: a sort has no lock.)
//! 4. A return address is overwritten only where the unwind tables and the word in place agree on it.
//! 5. `INSTALLED` is written before our handler is in place, and never again.

use std::cell::RefCell;
use std::ffi::CStr;
use std::fmt::{self, Write as _};
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use libc::{REG_EFL, REG_RIP, REG_RSP, c_int, c_void, siginfo_t, ucontext_t};

use crate::context::Context;
use crate::stack::{PAGE, Reserve, Stack};
use crate::unwind::{Frame, Function, REGS, RIP, RSP, Readable};

/// Trap, direction, resume and alignment-check flags: none may leak into the worker.
const FOREIGN_FLAGS: i64 = 0x100 | 0x400 | 0x1_0000 | 0x4_0000;

/// The fiber that is running on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Running {
    /// The fiber's stack; valid while it runs.
    pub(crate) stack: *const Stack,
    /// Set at the fiber's first overflow, when the reserve is opened.
    pub(crate) overflowed: *const AtomicBool,
    /// Where the worker continues when the fiber is abandoned: its own suspended context.
    pub(crate) resume: *const Context,
    /// The runtime works for the fiber, has called the allocator, and may hold a lock that others wait for.
    pub(crate) inside: bool,
}

/// What the handlers ask of the runtime; all of them are called in signal handlers.
#[derive(Clone, Copy)]
pub(crate) struct Hooks {
    /// The fiber running on this thread. `None` while the worker itself runs.
    pub(crate) current: fn() -> Option<Running>,
    /// The running fiber is being abandoned: the worker's context continues next.
    pub(crate) abandoned: fn(),
    /// The fiber can neither go on nor be abandoned: ends the process. The argument is true if the fiber is printing.
    pub(crate) stuck: fn(bool) -> !,
}

/// Counts since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverflowCounts {
    /// First hits of a guard.
    pub(crate) overflows: u64,
    /// Overflows that also used up the reserve, or could not open it.
    pub(crate) hard: u64,
    /// Overflows inside a library, where the return address was replaced.
    pub(crate) landings: u64,
    /// Overflows after which the fiber ran on unwatched: while panicking, inside the runtime, or where the stack could
    /// not be walked.
    pub(crate) unwatched: u64,
}

static OVERFLOWS: AtomicU64 = AtomicU64::new(0);
static HARD: AtomicU64 = AtomicU64::new(0);
static UNWATCHED: AtomicU64 = AtomicU64::new(0);
static LANDINGS: AtomicU64 = AtomicU64::new(0);

/// Counts since the start of the process.
pub(crate) fn counts() -> OverflowCounts {
    let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
    OverflowCounts {
        overflows: get(&OVERFLOWS),
        hard: get(&HARD),
        landings: get(&LANDINGS),
        unwatched: get(&UNWATCHED),
    }
}

#[derive(Clone, Copy)]
struct Object {
    low: usize,
    high: usize,
    /// `.eh_frame_hdr`, or 0.
    hdr: usize,
    /// Code that must not be abandoned in the middle.
    system: bool,
    /// The unwinder: it reads the return addresses above it, so none may be replaced under it.
    unwinder: bool,
}

/// Executable ranges of the objects loaded at installation, and functions of Rust's own output that hold a lock.
struct Objects {
    all: Vec<Object>,
    held: Vec<(usize, usize)>,
}

struct Installed {
    hooks: Hooks,
    objects: Objects,
    before: libc::sigaction,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Installs the handler, once per process; a later call changes nothing, not even the hooks.
pub(crate) fn install(hooks: Hooks) -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(|poison| poison.into_inner());
    if INSTALLED.get().is_some() {
        return Ok(());
    }
    let mut objects = Objects { all: list_objects(), held: Vec::new() };
    objects.held = learn_printing(&objects);
    let before = previous(libc::SIGSEGV)?;
    let _ = INSTALLED.set(Installed { hooks, objects, before });
    handle(libc::SIGSEGV, on_segv)
}

fn previous(signal: c_int) -> io::Result<libc::sigaction> {
    let mut old = MaybeUninit::zeroed();
    // SAFETY: only asks; `old` has room for the answer, and all zeros is a valid value too.
    match unsafe { libc::sigaction(signal, null(), old.as_mut_ptr()) } {
        // SAFETY: as above.
        0 => Ok(unsafe { old.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

fn handle(signal: c_int, handler: Handler) -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler keeps to what handlers may do (see the head).
    let done = unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = handler as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigfillset(&mut new.sa_mask);
        libc::sigaction(signal, &new, null_mut())
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Does what would have happened without us: calls the handler before ours, or restores the default action.
fn chain(old: &libc::sigaction, signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: `info` is the kernel's.
    let from_kernel = unsafe { (*info).si_code > 0 };
    match old.sa_sigaction {
        libc::SIG_IGN if !from_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is the default action. A fault repeats on return and kills; a signal that was sent by
            // kill is sent again and arrives on return.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, null_mut());
                if !from_kernel {
                    let (pid, tid) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
                    libc::syscall(libc::SYS_tgkill, pid, tid, signal);
                }
            }
        }
        handler if old.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: it was installed as a handler with this signature.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: it was installed as a handler with this signature.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Runs `body` with `errno` kept.
fn keep_errno(body: impl FnOnce()) {
    // SAFETY: the address of this thread's errno is valid as long as the thread.
    unsafe {
        let errno = *libc::__errno_location();
        body();
        *libc::__errno_location() = errno;
    }
}

extern "C" fn on_segv(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    keep_errno(|| {
        let Some(installed) = INSTALLED.get() else { return };
        // SAFETY: both pointers are the kernel's, and stay valid until the handler returns.
        let (code, addr, uc) =
            unsafe { ((*info).si_code, (*info).si_addr() as usize, &mut *context.cast::<ucontext_t>()) };
        if code > 0
            && let Some(running) = (installed.hooks.current)()
            && overflow(installed, uc, running, addr)
        {
            return;
        }
        chain(&installed.before, signal, info, context);
    });
}

/// Handles a fault at `addr` if it is an overflow of the running stack; returns whether it is.
fn overflow(installed: &Installed, uc: &mut ucontext_t, running: Running, addr: usize) -> bool {
    // SAFETY: the hook promises that both are valid while the fiber runs, which it does: it faulted.
    let (stack, overflowed) = unsafe { (&*running.stack, &*running.overflowed) };
    let sp = uc.uc_mcontext.gregs[REG_RSP as usize] as usize;
    let (hard_low, limit) = (stack.hard_low() as usize, stack.limit() as usize);
    // A large frame may have skipped to below the slot; that faults only if the memory there is not mapped.
    let skipped = addr < hard_low && (hard_low..limit).contains(&sp);
    if !(hard_low..limit).contains(&addr) && !skipped {
        return false;
    }
    let first = !overflowed.swap(true, Ordering::Relaxed);
    if first {
        OVERFLOWS.fetch_add(1, Ordering::Relaxed);
    }
    let (reserve_low, upper_low) = (stack.reserve_low() as usize, stack.upper_low() as usize);
    let low = addr < upper_low || sp < upper_low;
    let opened = addr.min(sp) >= reserve_low
        && (first || low)
        && (!first || stack.open_reserve(Reserve::Upper).is_ok())
        && (!low || stack.open_reserve(Reserve::Lower).is_ok());
    if !opened {
        HARD.fetch_add(1, Ordering::Relaxed);
        // There is no stack left to run on. What the program's own code was changing concerns only its family; what a
        // library was changing concerns the whole process.
        match installed.objects.next(interrupted(uc), stack, false) {
            Next::Abandon if !running.inside => abandon(installed, uc, running),
            _ => (installed.hooks.stuck)(installed.objects.prints(interrupted(uc), stack)),
        }
        return true;
    }
    // A panic ends in the fiber's entry. Abandoning it would leave this thread counted as panicking, which is worth
    // avoiding, but not at the price of running out of stack inside a library. Abandoning the fiber inside the runtime
    // would leave a lock locked that all its workers need; and nobody knows how much stack an allocator takes.
    let next = if running.inside || (std::thread::panicking() && !low) {
        Next::Unwatched
    } else {
        installed.objects.next(interrupted(uc), stack, low)
    };
    match next {
        Next::Abandon => abandon(installed, uc, running),
        Next::Land(slot) => {
            LANDINGS.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the word holds the return address of a frame of the fiber (invariant 4), which is suspended right
            // now. The address is one byte into `landing`, because unwinders look up the byte before a return address.
            unsafe { *(slot as *mut usize) = landing as *const () as usize + 1 };
        }
        Next::Unwatched => {
            UNWATCHED.fetch_add(1, Ordering::Relaxed);
        }
    }
    true
}

/// Where calls into a library return to once their fiber has overflowed.
#[unsafe(naked)]
unsafe extern "C" fn landing() -> ! {
    std::arch::naked_asm!("nop", "and rsp, -16", "call {land}", "ud2", land = sym land)
}

/// Abandons the running fiber, from its own stack.
extern "C" fn land() -> ! {
    let Some((installed, running)) = INSTALLED.get().and_then(|i| Some((i, (i.hooks.current)()?))) else {
        // SAFETY: ends the process: only a running fiber's return address leads here.
        unsafe { libc::abort() }
    };
    (installed.hooks.abandoned)();
    // SAFETY: the hook promises a suspended context of this thread. The worker expects an empty x87 stack and
    // the default modes, as in `abandon`.
    unsafe {
        std::arch::asm!(
            "fninit", "ldmxcsr [{modes}]", "cld",
            "mov rsi, rdi", "mov rsp, [rsi]", "pop rax", "jmp rax",
            modes = in(reg) &0x1f80_u32, in("rdi") running.resume, options(noreturn)
        )
    }
}

/// The frame a signal interrupted.
fn interrupted(uc: &ucontext_t) -> Frame {
    use libc::{REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    use libc::{REG_RAX, REG_RBP, REG_RBX, REG_RCX, REG_RDI, REG_RDX, REG_RSI};
    let order: [c_int; REGS] = [
        REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8, REG_R9, REG_R10,
        REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP,
    ];
    Frame { regs: order.map(|r| uc.uc_mcontext.gregs[r as usize] as usize), exact: true }
}

/// Makes the handler return into the worker's context.
fn abandon(installed: &Installed, uc: &mut ucontext_t, running: Running) {
    (installed.hooks.abandoned)();
    // SAFETY: the hook promises a suspended context of this thread: its word at `sp` is where to continue.
    let (to, rip) = unsafe { (&*running.resume, *((*running.resume).sp as *const usize)) };
    let gregs = &mut uc.uc_mcontext.gregs;
    let mut set = |reg: c_int, value: u64| gregs[reg as usize] = value as i64;
    set(REG_RIP, rip as u64);
    set(REG_RSP, to.sp as u64 + 8);
    // A context loads its own registers from where rsi points.
    set(libc::REG_RSI, std::ptr::from_ref(to).addr() as u64);
    gregs[REG_EFL as usize] &= !FOREIGN_FLAGS;
    if !uc.uc_mcontext.fpregs.is_null() {
        // SAFETY: the kernel saved the floating-point state there. The worker expects an empty x87 stack and
        // the default modes, whatever the fiber was computing.
        let fp = unsafe { &mut *uc.uc_mcontext.fpregs };
        (fp.cwd, fp.swd, fp.ftw, fp.mxcsr) = (0x37f, 0, 0, 0x1f80);
    }
}

/// How to continue after an overflow.
enum Next {
    Abandon,
    /// Run on until the frame whose return address is stored here returns.
    Land(usize),
    Unwatched,
}

impl Objects {
    fn object(&self, pc: usize) -> Option<&Object> {
        self.all.iter().find(|object| object.low <= pc && pc < object.high)
    }

    fn is_system(&self, pc: usize) -> bool {
        self.object(pc).is_some_and(|object| object.system)
            || self.held.iter().any(|&(start, end)| start <= pc && pc < end)
    }

    fn function(&self, frame: &Frame) -> Option<Function> {
        let pc = frame.regs[RIP] - usize::from(!frame.exact);
        Function::find(self.object(pc).filter(|object| object.hdr != 0)?.hdr, pc)
    }

    /// The caller of `frame`, checked: its program counter follows a call. The tables are wrong about some
    /// of libc's assembly (`__mpn_addmul_1` pushes without saying so); those are leaves that change no saved
    /// register before they push it, so their return address is the first word that can be one.
    fn caller(&self, function: &Function, frame: &Frame, stack: Readable) -> Option<Frame> {
        let told = function.caller(frame, stack).filter(|told| {
            let pc = told.regs[RIP];
            told.exact || after_call(pc, self) || pc == landing as *const () as usize + 1
        });
        if told.is_some() || !frame.exact || !self.is_system(frame.regs[RIP]) {
            return told;
        }
        let sp = frame.regs[RSP];
        let at =
            (0..8).map(|i| sp + 8 * i).find(|&at| stack.word(at).is_some_and(|pc| after_call(pc, self)))?;
        let mut caller = Frame { exact: false, ..*frame };
        (caller.regs[RSP], caller.regs[RIP]) = (at + 8, stack.word(at)?);
        Some(caller)
    }

    /// What to do with a fiber that overflowed in `frame`; `low` says that little of its reserve is left.
    fn next(&self, mut frame: Frame, stack: &Stack, low: bool) -> Next {
        let (bottom, top) = (stack.reserve_low() as usize, stack.top() as usize);
        let mut system = self.is_system(frame.regs[RIP]);
        // A fiber that prints holds a lock that the whole process may wait for: it may use all of the reserve to
        // finish.
        let low = low && !self.prints(frame, stack);
        if low && !system {
            return Next::Abandon;
        }
        let mut slot = None;
        while let Some(function) = self.function(&frame) {
            if self.object(function.start).is_some_and(|object| object.unwinder) {
                return Next::Unwatched;
            }
            let Some(caller) = self.caller(&function, &frame, Readable { low: bottom, high: top }) else {
                break;
            };
            let pc = caller.regs[RIP] - usize::from(!caller.exact);
            let caller_system = self.is_system(pc);
            if system && !caller_system {
                let at = caller.regs[RSP] - 8;
                // SAFETY: `caller` read words up to its stack pointer, so this one is in the stack.
                let agreed = at >= bottom && at < top && unsafe { *(at as *const usize) } == caller.regs[RIP];
                slot = agreed.then_some(at);
                if low || slot.is_none() {
                    break;
                }
            }
            (frame, system) = (caller, caller_system);
        }
        match slot {
            Some(slot) => Next::Land(slot),
            None if system || self.seems_system(frame.regs[RSP].max(bottom), top) => Next::Unwatched,
            None => Next::Abandon,
        }
    }

    /// Whether one of the functions of Rust's output that hold its lock is among the callers of `frame`, as far as the
    /// tables tell.
    fn prints(&self, mut frame: Frame, stack: &Stack) -> bool {
        let readable = Readable { low: stack.reserve_low() as usize, high: stack.top() as usize };
        loop {
            let pc = frame.regs[RIP] - usize::from(!frame.exact);
            if self.held.iter().any(|&(start, end)| start <= pc && pc < end) {
                return true;
            }
            let caller = self.function(&frame).and_then(|function| self.caller(&function, &frame, readable));
            match caller {
                Some(caller) => frame = caller,
                None => return false,
            }
        }
    }

    /// Whether, beyond the point where the tables ended, a word looks like a return address into a library.
    fn seems_system(&self, from: usize, top: usize) -> bool {
        (from.next_multiple_of(8)..top).step_by(8).any(|at| {
            // SAFETY: between the reserve's low end and the top, and above the interrupted stack pointer.
            let word = unsafe { *(at as *const usize) };
            self.is_system(word) && after_call(word, self)
        })
    }
}

/// Whether `pc` is in a known object's text and the instruction before it is a call.
fn after_call(pc: usize, objects: &Objects) -> bool {
    if objects.object(pc.wrapping_sub(7)).is_none_or(|object| pc >= object.high) {
        return false;
    }
    // SAFETY: seven bytes of a loaded object's text, which is readable.
    let before = unsafe { *((pc - 7) as *const [u8; 7]) };
    // E8 rel32, or FF /2 in its lengths of two to seven bytes.
    before[2] == 0xe8 || (0..6).any(|i| before[i] == 0xff && before[i + 1] & 0x38 == 0x10)
}

/// Objects that are "system": their locks and heaps belong to the whole process.
const SYSTEM: [&[u8]; 22] = [
    b"libc.so",
    b"libc-",
    b"ld-linux",
    b"ld-",
    b"ld.so",
    b"libm.so",
    b"libm-",
    b"libmvec",
    b"libpthread",
    b"libgcc_s",
    b"libstdc++",
    b"libc++",
    b"libunwind",
    b"linux-vdso",
    b"libdl",
    b"librt",
    b"libresolv",
    b"libnss_",
    b"libanl",
    b"libjemalloc",
    b"libtcmalloc",
    b"libmimalloc",
];

fn list_objects() -> Vec<Object> {
    extern "C" fn each(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> c_int {
        // SAFETY: the linker's description of an object, valid during the call, and our own vector.
        let (info, all) = unsafe { (&*info, &mut *data.cast::<Vec<Object>>()) };
        let name = if info.dlpi_name.is_null() {
            &[]
        } else {
            // SAFETY: the name is a C string.
            unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
        };
        let base = name.rsplit(|&c| c == b'/').next().unwrap_or(name);
        let system = SYSTEM.iter().any(|prefix| base.starts_with(prefix));
        let unwinder = base.starts_with(b"libgcc_s") || base.starts_with(b"libunwind");
        // SAFETY: as many program headers as it says.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let at = |h: &libc::Elf64_Phdr| info.dlpi_addr.wrapping_add(h.p_vaddr) as usize;
        let hdr = headers.iter().find(|h| h.p_type == libc::PT_GNU_EH_FRAME).map_or(0, at);
        for h in headers.iter().filter(|h| h.p_type == libc::PT_LOAD && h.p_flags & libc::PF_X != 0) {
            all.push(Object { low: at(h), high: at(h) + h.p_memsz as usize, hdr, system, unwinder });
        }
        0
    }
    let mut all: Vec<Object> = Vec::new();
    // SAFETY: the callback keeps to the vector it is given.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut all).cast()) };
    all
}

/// The frame of the caller.
#[inline(always)]
fn this_frame() -> Frame {
    let mut frame = Frame { regs: [0; REGS], exact: true };
    // SAFETY: stores registers into `frame.regs`, by DWARF number.
    unsafe {
        std::arch::asm!(
            "mov [{r} + 24], rbx", "mov [{r} + 48], rbp", "mov [{r} + 56], rsp", "mov [{r} + 96], r12",
            "mov [{r} + 104], r13", "mov [{r} + 112], r14", "mov [{r} + 120], r15", "lea {t}, [rip]",
            "mov [{r} + 128], {t}", r = in(reg) &raw mut frame.regs, t = out(reg) _, options(nostack)
        );
    }
    frame
}

/// Whether the caller, on this stack, was called by one of the functions of Rust's output that hold its lock.
#[inline(never)]
pub(crate) fn prints_here(stack: &Stack) -> bool {
    INSTALLED.get().is_some_and(|installed| installed.objects.prints(this_frame(), stack))
}

/// Records the functions between itself and `learn_printing`; prints nothing.
struct Probe<'a>(&'a Objects, &'a RefCell<Vec<(usize, usize)>>);

impl fmt::Display for Probe<'_> {
    #[inline(never)]
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut frame = this_frame();
        let low = frame.regs[RSP];
        for _ in 0..32 {
            let Some(function) = self.0.function(&frame) else { break };
            if function.start == learn_printing as *const () as usize {
                break;
            }
            self.1.borrow_mut().push((function.start, function.end));
            // The frames up to `learn_printing` are live and small.
            let Some(caller) = function.caller(&frame, Readable { low, high: low + 32 * 1024 }) else {
                break;
            };
            frame = caller;
        }
        Ok(())
    }
}

/// The functions of Rust's standard output and error that are on the stack while they hold their lock, without those of
/// formatting in general. They count as system text, so that `print!` is finished as well.
#[inline(never)]
fn learn_printing(objects: &Objects) -> Vec<(usize, usize)> {
    let (printing, formatting) = (RefCell::default(), RefCell::default());
    print!("{}", Probe(objects, &printing));
    eprint!("{}", Probe(objects, &printing));
    let _ = write!(io::stdout(), "{}", Probe(objects, &printing));
    let _ = write!(io::stderr(), "{}", Probe(objects, &printing));
    let mut text = String::new();
    let _ = write!(text, "{}", Probe(objects, &formatting));
    let formatting = formatting.into_inner();
    let mut held = printing.into_inner();
    held.retain(|function| !formatting.contains(function));
    held.sort_unstable();
    held.dedup();
    held
}

/// The calling thread's alternate signal stack, with a guard below it. Dropping it restores the previous one.
pub(crate) struct AltStack {
    base: *mut c_void,
    bytes: usize,
    before: libc::stack_t,
}

impl AltStack {
    /// Installs one for the calling thread, which must also be the one to drop it.
    pub(crate) fn install() -> io::Result<AltStack> {
        // The first use of this thread's panic count may allocate, which a handler must not.
        let _ = std::thread::panicking();
        // SAFETY: asks for a number (AT_MINSIGSTKSZ).
        let least = unsafe { libc::getauxval(51) } as usize;
        let bytes = (64 * 1024).max((least + 48 * 1024).next_multiple_of(PAGE)) + PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        // SAFETY: a new mapping; its lowest page becomes a guard, and the rest the thread's signal stack.
        unsafe {
            let base = libc::mmap(null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let new = libc::stack_t { ss_sp: base.byte_add(PAGE), ss_flags: 0, ss_size: bytes - PAGE };
            let mut before = std::mem::zeroed();
            if libc::mprotect(base, PAGE, libc::PROT_NONE) != 0 || libc::sigaltstack(&new, &mut before) != 0 {
                let error = io::Error::last_os_error();
                libc::munmap(base, bytes);
                return Err(error);
            }
            Ok(AltStack { base, bytes, before })
        }
    }
}

impl Drop for AltStack {
    fn drop(&mut self) {
        // SAFETY: puts back what was there, and unmaps ours, on which no handler runs: we are not in one.
        unsafe {
            if self.before.ss_flags & libc::SS_DISABLE != 0 {
                self.before.ss_size = libc::MINSIGSTKSZ;
            }
            if libc::sigaltstack(&self.before, null_mut()) == 0 {
                libc::munmap(self.base, self.bytes);
            }
        }
    }
}
