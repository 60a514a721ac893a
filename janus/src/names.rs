//! Task names that are built at run time.
//!
//! A dump reads the name of a task that may end, and be replaced by another one, meanwhile. So a name lies in words
//! that are read and written atomically, one by one, and never freed before the runtime. A reader may get a mixture;
//! then it also finds another task's id, and ignores the name.

use crate::alloc::Quiet;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Bytes that are kept of a name that is built at run time; longer ones are cut.
const LONGEST: usize = 56;
const WORDS: usize = LONGEST / 8;

/// A task's name.
#[derive(Clone, Copy)]
pub struct Name(Text);

#[derive(Clone, Copy)]
enum Text {
    Static(&'static str),
    Own([u8; LONGEST], u8),
}

impl Name {
    pub(crate) fn fixed(name: &'static str) -> Name {
        Name(Text::Static(name))
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        match &self.0 {
            Text::Static(name) => name,
            // A mixture of two names may not be valid UTF-8: then return the part that is.
            Text::Own(bytes, length) => match std::str::from_utf8(&bytes[..usize::from(*length)]) {
                Ok(text) => text,
                Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
            },
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        **self == **other
    }
}

impl Eq for Name {}

/// The memory of a name.
pub(crate) struct Slot {
    length: AtomicU64,
    words: [AtomicU64; WORDS],
}

impl Slot {
    fn write(&self, text: &str) {
        let length = (0..=text.len().min(LONGEST)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let mut bytes = [0; LONGEST];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length.store(length as u64, Ordering::Relaxed);
        for (word, part) in self.words.iter().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(part);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> Name {
        let mut bytes = [0; LONGEST];
        for (word, part) in self.words.iter().zip(bytes.chunks_exact_mut(8)) {
            part.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        let length = self.length.load(Ordering::Relaxed).min(LONGEST as u64);
        Name(Text::Own(bytes, length as u8))
    }
}

/// The slots of a runtime.
#[derive(Default)]
pub(crate) struct Names(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    /// Each slot comes from a `Box`, which `drop` restores.
    all: Vec<NonNull<Slot>>,
    free: Vec<NonNull<Slot>>,
}

// SAFETY: the pointers are to slots of `all`, which are atomics.
unsafe impl Send for Slots {}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in self.all.drain(..) {
            // SAFETY: `take` made it; the runtime is gone, and with it every task that used it.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

impl Names {
    /// A slot with this name.
    pub(crate) fn take(&self, text: &str) -> NonNull<Slot> {
        let _quiet = Quiet::new();
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop().unwrap_or_else(|| {
            let slot =
                Box::new(Slot { length: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; WORDS] });
            let slot = NonNull::from(Box::leak(slot));
            slots.all.push(slot);
            slot
        });
        drop(slots);
        // SAFETY: slots stay as long as the runtime.
        unsafe { slot.as_ref() }.write(text);
        slot
    }

    /// Frees a slot whose task has ended.
    #[cold]
    pub(crate) fn give(&self, slot: NonNull<Slot>) {
        let _quiet = Quiet::new();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free.push(slot);
    }
}
