//! The machine: code here may be `unsafe`, and almost none elsewhere is.

pub mod acpi;
pub mod apic;
pub mod boot;
pub mod cpu;
pub mod entry;
pub mod features;
pub mod fpu;
pub mod mem;
pub mod percpu;
pub mod phys;
pub mod pit;
pub mod segments;
pub mod serial;
pub mod smp;
pub mod switch;
pub mod tlb;
