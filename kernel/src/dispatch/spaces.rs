//! Which page tables a CPU has loaded.

use crate::arch::{cpu, segments};
use crate::dispatch::heads::ThreadHead;
use crate::dispatch::percpu::{self, PerCpu};
use crate::mm::paging;
use crate::mm::space::Space;

/// The address space of a thread that is about to run.
#[inline(always)]
pub(super) fn of(thread: &ThreadHead) -> Option<&Space> {
    // SAFETY: the layer that made the thread keeps its space alive until the thread is reaped.
    unsafe { thread.space.get().as_ref() }
}

/// Loads the page tables of `space`, or the kernel's, unless they are loaded already.
#[inline(always)]
pub(super) fn load_space(me: &'static PerCpu, space: Option<&Space>) {
    let root = space.map_or(paging::kernel_root(), Space::root);
    if me.root.get() != root {
        change_space(me, root, space);
    }
}

#[inline(never)]
fn change_space(me: &'static PerCpu, root: u64, space: Option<&Space>) {
    // While a process is taken apart its space has the kernel's tables as its root: then this CPU does not count as resident in the space.
    let space = space.filter(|_| root != paging::kernel_root());
    if let Some(space) = space {
        // The mask has a fixed size, so this allocates nothing (K-30).
        space.resident.insert(me.id);
        segments::clear_selectors();
    }
    let old = me.space.replace(space.map_or(core::ptr::null(), core::ptr::from_ref));
    me.root.set(root);
    // SAFETY: every root maps the kernel in the same way.
    unsafe { cpu::set_cr3(root) };
    // SAFETY: the threads of a process keep it, and its space, alive; the last one loads the kernel's tables before it releases the process.
    if let Some(old) = unsafe { old.as_ref() } {
        old.resident.remove(me.id);
    }
}

/// Leaves the current process's tables for the kernel's: the process is about to be taken apart.
pub fn leave_space() {
    load_space(percpu::this(), None);
}

/// As [`leave_space`], if the tables at `root` are loaded here. No CPU loads these tables again.
pub fn unload(root: u64) {
    if percpu::this().root.get() == root {
        leave_space();
    }
}
