//! Which page tables a CPU has loaded.

use crate::arch::{cpu, segments};
use crate::dispatch::percpu::{self, PerCpu};
use crate::mm::paging;
use crate::process::Process;
use alloc::sync::Arc;

/// Loads the tables of `process`, or the kernel's, unless they are.
#[inline(always)]
pub(super) fn load_space(me: &'static PerCpu, process: Option<&Arc<Process>>) {
    let root = process.map_or(paging::kernel_root(), |process| process.space.root());
    if me.root.get() != root {
        change_space(me, root, process);
    }
}

#[inline(never)]
fn change_space(me: &'static PerCpu, root: u64, process: Option<&Arc<Process>>) {
    // The last thread of a process that is taken apart runs on the kernel's tables, too.
    let process = process.filter(|_| root != paging::kernel_root());
    if let Some(process) = process {
        // A mask, of fixed size (K-30).
        process.space.resident.insert(me.id);
        segments::clear_selectors();
    }
    let old = me.space.replace(process.map(|process| &raw const process.space).unwrap_or(core::ptr::null()));
    me.root.set(root);
    // SAFETY: every root maps the kernel alike.
    unsafe { cpu::set_cr3(root) };
    // SAFETY: the old space's process is kept by its threads; its last one loads the kernel's tables before it lets go.
    if let Some(old) = unsafe { old.as_ref() } {
        old.resident.remove(me.id);
    }
}

/// Leaves the current process's tables for the kernel's: the process is about to be taken apart.
pub fn leave_space() {
    load_space(percpu::this(), None);
}

/// As [`leave_space`], if the tables at `root` are loaded here: nobody loads them again.
pub fn unload(root: u64) {
    if percpu::this().root.get() == root {
        leave_space();
    }
}
