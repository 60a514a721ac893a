//! What belongs to one thread: its control block, and the thread-local data of the program.
//!
//! The layout is that of the x86-64 ABI (variant II): the program's thread-local data ends where the control block begins, FS points
//! to the control block, and its first word is its own address.

use alloc_crate::boxed::Box;
use core::arch::asm;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicU32, Ordering};

use abi::RuntimeBootInfo;

use crate::ring::Client;

/// How many [`Local`]s a program can have.
pub const LOCALS_MAX: usize = 16;

/// Everything that rt keeps for a thread; FS points to it.
#[repr(C, align(64))]
pub(crate) struct Tcb {
    this: *const Tcb,
    /// Thread id.
    pub(crate) tid: Cell<u32>,
    /// The thread's end of its ring.
    pub(crate) client: Client,
    locals: [Cell<Option<Value>>; LOCALS_MAX],
}

/// A thread's value of one [`Local`].
#[derive(Clone, Copy)]
struct Value {
    /// From `Box::into_raw`.
    at: *mut (),
    /// Frees it.
    /// Safety: only once, with `at`.
    free: unsafe fn(*mut ()),
}

impl Tcb {
    /// Puts the control block of a thread that does not run yet, or has no ring yet, at `place`.
    ///
    /// # Safety
    /// `place` must be writable, aligned, and the thread's own until it has ended.
    pub(crate) unsafe fn put(place: *mut Tcb, tid: u32, ring: *const abi::Ring) {
        let tcb = Tcb {
            this: place,
            tid: Cell::new(tid),
            client: Client::new(ring),
            locals: [const { Cell::new(None) }; LOCALS_MAX],
        };
        // SAFETY: the caller's promise.
        unsafe { place.write(tcb) };
    }
}

/// The calling thread's control block.
#[inline(always)]
pub(crate) fn current() -> &'static Tcb {
    let tcb: *const Tcb;
    // SAFETY: FS points to the control block of the running thread from before its first line of Rust until it has ended. It is
    // not `'static`, but nothing that outlives the thread can hold it: it is not `Sync`, and `current` is private to rt.
    unsafe {
        asm!("mov {}, fs:[0]", out(reg) tcb, options(nostack, preserves_flags, readonly, pure));
        &*tcb
    }
}

/// The part of a program's thread-local data that is the same for each thread.
#[derive(Clone, Copy)]
pub(crate) struct Template {
    image: *const u8,
    file_bytes: usize,
    bytes: usize,
    align: usize,
}

impl Template {
    /// As the kernel found it in the program's PT_TLS segment.
    pub(crate) fn of(info: &RuntimeBootInfo) -> Template {
        Template {
            image: info.tls_image as *const u8,
            file_bytes: info.tls_file_bytes as usize,
            bytes: info.tls_bytes as usize,
            align: (info.tls_align as usize).max(align_of::<Tcb>()),
        }
    }

    /// Bytes of a block for one thread, wherever it begins.
    pub(crate) fn block_bytes(&self) -> usize {
        self.bytes.next_multiple_of(self.align) + size_of::<Tcb>() + self.align
    }

    /// Fills a block at `block` and says where the control block goes: the thread's FS base.
    ///
    /// # Safety
    /// [`Template::block_bytes`] at `block` must be writable and not used by anything else.
    pub(crate) unsafe fn fill(&self, block: *mut u8) -> *mut Tcb {
        let data_bytes = self.bytes.next_multiple_of(self.align);
        let data = block.wrapping_add(block.align_offset(self.align));
        if self.bytes > 0 {
            // SAFETY: both fit in the block, by `block_bytes`; the image is a mapped part of the program.
            unsafe {
                ptr::write_bytes(data, 0, data_bytes);
                ptr::copy_nonoverlapping(self.image, data, self.file_bytes);
            }
        }
        data.wrapping_add(data_bytes).cast()
    }
}

/// A value of each thread, made by `init` when the thread first asks for it. Declared as a `static`.
///
/// At most [`LOCALS_MAX`] per program. Values live on the heap and are dropped when a thread of [`crate::thread`] ends; `init` may
/// not ask for the same key.
pub struct Local<T: 'static> {
    slot: AtomicU32,
    init: fn() -> T,
    of: PhantomData<fn() -> T>,
}

/// How many slots of [`Local`]s are taken; the same for all threads.
static SLOTS: AtomicU32 = AtomicU32::new(0);

impl<T: 'static> Local<T> {
    /// A key; each thread's value will be what `init` returns there.
    pub const fn new(init: fn() -> T) -> Local<T> {
        Local { slot: AtomicU32::new(0), init, of: PhantomData }
    }

    /// Calls `f` with this thread's value.
    ///
    /// # Panics
    /// If the program has more than [`LOCALS_MAX`] keys.
    pub fn with<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let cell = &current().locals[self.slot()];
        let value = cell.get().unwrap_or_else(|| {
            let at = Box::into_raw(Box::new((self.init)())).cast();
            let value = Value { at, free: free_value::<T> };
            cell.set(Some(value));
            value
        });
        // SAFETY: made by a `Box<T>` above for this key alone, freed when its thread ends, and reached only by this thread.
        f(unsafe { &*value.at.cast::<T>() })
    }

    /// The key's slot; taken at its first use. 0 means none yet, so slots are kept plus one.
    fn slot(&self) -> usize {
        let known = self.slot.load(Ordering::Acquire);
        if known != 0 {
            return known as usize - 1;
        }
        let mine = SLOTS.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(mine as usize <= LOCALS_MAX, "more than {LOCALS_MAX} keys of thread-local values: use fewer");
        match self.slot.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => mine as usize - 1,
            // Another thread took one at the same time; ours stays unused.
            Err(theirs) => theirs as usize - 1,
        }
    }
}

/// Safety: `at` is from `Box::<T>::into_raw`, and is not used again.
unsafe fn free_value<T>(at: *mut ()) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(at.cast::<T>()) });
}

/// Drops the calling thread's values, in the order of their keys. Values that a destructor creates again are not dropped.
pub(crate) fn drop_locals() {
    for cell in &current().locals {
        if let Some(value) = cell.take() {
            // SAFETY: taken out, so once; references do not outlive `with`, which has returned.
            unsafe { (value.free)(value.at) };
        }
    }
}

/// For [`crate::thread_word!`]: gives a number its type.
#[doc(hidden)]
pub const fn word(value: u64) -> u64 {
    value
}

/// Declares a word in the program's thread-local data (`.tdata`): each thread starts with a copy of the value, reached through FS.
///
/// `rt::thread_word!(counter = 7);` makes a module `counter` with `get()` and `set(value)`.
#[macro_export]
macro_rules! thread_word {
    ($name:ident = $value:expr) => {
        /// A word of the calling thread.
        mod $name {
            ::core::arch::global_asm!(
                ".pushsection .tdata,\"awT\",@progbits",
                ".balign 8",
                concat!(".global rt_thread_word_", stringify!($name)),
                concat!(".hidden rt_thread_word_", stringify!($name)),
                concat!("rt_thread_word_", stringify!($name), ":"),
                ".quad {value}",
                ".popsection",
                value = const $crate::tls::word($value),
            );

            /// What this thread has.
            pub fn get() -> u64 {
                let value: u64;
                // SAFETY: FS points behind the thread's copy of the data.
                unsafe {
                    ::core::arch::asm!(
                        concat!("mov {}, fs:[rt_thread_word_", stringify!($name), "@tpoff]"),
                        out(reg) value, options(nostack, preserves_flags, readonly)
                    );
                }
                value
            }

            /// Changes it.
            pub fn set(value: u64) {
                // SAFETY: as `get`.
                unsafe {
                    ::core::arch::asm!(
                        concat!("mov fs:[rt_thread_word_", stringify!($name), "@tpoff], {}"),
                        in(reg) value, options(nostack, preserves_flags)
                    );
                }
            }
        }
    };
}
