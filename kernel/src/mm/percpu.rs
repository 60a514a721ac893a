//! The part of each CPU's record that the memory layer keeps.

use super::heap::SPARES;
use super::space::Space;
use super::stacks::Stack;
use crate::arch::percpu::{self, MachineCpu};
use core::alloc::Layout;
use core::cell::Cell;
use core::ops::Deref;

/// One CPU, as the layers up to memory know it.
#[repr(C)]
pub struct MemoryCpu {
    machine: MachineCpu,
    /// The address space whose tables are loaded; null for the kernel's.
    pub space: Cell<*const Space>,
    /// Blocks for the next allocations of their layouts; see `heap::keep`.
    pub spares: [Cell<Option<(*mut u8, Layout)>>; SPARES],
    /// The stack of the idle loop.
    pub idle_stack: Stack,
}

impl Deref for MemoryCpu {
    type Target = MachineCpu;
    #[inline(always)]
    fn deref(&self) -> &MachineCpu {
        &self.machine
    }
}

impl MemoryCpu {
    /// The record of a new CPU.
    pub fn new(machine: MachineCpu, idle_stack: Stack) -> MemoryCpu {
        let space = Cell::new(core::ptr::null());
        MemoryCpu { machine, space, spares: [const { Cell::new(None) }; SPARES], idle_stack }
    }
}

/// The CPU that this code runs on.
#[inline(always)]
pub fn this() -> &'static MemoryCpu {
    // SAFETY: a `MemoryCpu` begins with a `MachineCpu`, and the dispatcher registers records that begin with a `MemoryCpu`.
    unsafe { &*percpu::this_record().cast() }
}
