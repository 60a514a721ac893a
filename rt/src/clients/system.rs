//! What machine and kernel this is, and what runs on it.

use alloc_crate::string::String;
use alloc_crate::vec::Vec;

use capnp::traits::Owned;
use schema::messages_capnp::{
    ThreadState, list_params, system_info_contexts_results, system_info_counters_results,
    system_info_cpus_results, system_info_fail_allocation_params, system_info_fail_allocation_results,
    system_info_info_params, system_info_info_results, system_info_processes_results,
    system_info_threads_results,
};

use super::call::{RESULTS_BYTES, invoke_with, read};
use super::{ContextListing, ProcessInfo};
use crate::error::{Error, Result};

super::client!(SystemInfo, "What machine and kernel this is.");

/// The machine and the kernel.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The ring ABI of the kernel.
    pub ring_abi_version: u32,
    /// Bytes of a submission.
    pub sqe_size: u32,
    /// Bytes of a completion.
    pub cqe_size: u32,
    /// Versions of submissions that it takes.
    pub sqe_versions: Vec<u8>,
    /// CPUs.
    pub cpus: u32,
    /// Frames of memory.
    pub frames: u64,
    /// Frames that are free.
    pub free_frames: u64,
    /// The kernel's version.
    pub kernel_version: String,
    /// Since boot.
    pub uptime_ns: u64,
    /// Kernel memory for one thread.
    pub bytes_per_thread: u32,
    /// Kernel memory for one process.
    pub bytes_per_process: u32,
    /// Memory of one ring.
    pub bytes_per_ring: u32,
    /// The source of timer interrupts.
    pub timer: String,
    /// The source of time.
    pub clock: String,
    /// The ordering policy: `wfq` or `eevdf`.
    pub policy: String,
}

/// A thread as it is now.
#[derive(Clone, Debug)]
pub struct ThreadInfo {
    /// Its process.
    pub pid: u32,
    /// Its number in the process.
    pub tid: u32,
    /// How often the number was used.
    pub generation: u32,
    /// What it is doing.
    pub state: ThreadState,
    /// Where it runs, or ran last.
    pub cpu: u32,
    /// Its weight.
    pub weight: u32,
    /// The number of its scheduling class.
    pub class: u16,
    /// Time on CPUs.
    pub runtime_ns: u64,
    /// The same, divided by its weight.
    pub virtual_runtime_ns: u64,
    /// What it waits for.
    pub waits_for: String,
    /// How often it was switched to.
    pub switches: u64,
    /// How often it was preempted.
    pub preemptions: u64,
    /// How often it moved to another CPU.
    pub migrations: u64,
    /// How long it waited for a CPU.
    pub runnable_ns: u64,
    /// How long it waited for a refill of its budget.
    pub throttled_ns: u64,
}

/// A CPU as it is now.
#[derive(Clone, Copy, Debug)]
pub struct CpuInfo {
    /// Its number.
    pub id: u32,
    /// Its number for the interrupt controller.
    pub apic_id: u32,
    /// Time without work.
    pub idle_ns: u64,
    /// Time with work.
    pub busy_ns: u64,
    /// Time in interrupts.
    pub interrupt_ns: u64,
    /// The part of that which served threads and is charged to them; the rest is charged to no thread.
    pub interrupt_owned_ns: u64,
    /// Switches between threads.
    pub switches: u64,
    /// Threads that it took from others.
    pub steals: u64,
    /// Threads that wait for it.
    pub queued: u32,
    /// Whether it runs.
    pub is_online: bool,
}

/// Something that the kernel counts.
#[derive(Clone, Debug)]
pub struct Counter {
    /// What is counted.
    pub name: String,
    /// How many.
    pub value: u64,
}

impl SystemInfo {
    /// The machine and the kernel. A `ring_abi_version` that the kernel does not support is refused; 0 accepts any.
    pub fn machine(&self, ring_abi_version: u32) -> Result<Machine> {
        let mut room = [0; 512];
        let results =
            invoke_with::<system_info_info_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
                params.set_ring_abi_version(ring_abi_version);
            })?;
        read::<_, system_info_info_results::Owned>(results.bytes, |info| {
            Some(Machine {
                ring_abi_version: info.get_ring_abi_version(),
                sqe_size: info.get_sqe_size(),
                cqe_size: info.get_cqe_size(),
                sqe_versions: info.get_sqe_versions().ok()?.iter().collect(),
                cpus: info.get_cpus(),
                frames: info.get_frames(),
                free_frames: info.get_free_frames(),
                kernel_version: info.get_kernel_version().ok()?.to_str().ok()?.into(),
                uptime_ns: info.get_uptime_ns(),
                bytes_per_thread: info.get_bytes_per_thread(),
                bytes_per_process: info.get_bytes_per_process(),
                bytes_per_ring: info.get_bytes_per_ring(),
                timer: info.get_timer().ok()?.to_str().ok()?.into(),
                clock: info.get_clock().ok()?.to_str().ok()?.into(),
                policy: info.get_policy().ok()?.to_str().ok()?.into(),
            })
        })
    }

    /// Frames that are free.
    pub fn free_frames(&self) -> Result<u64> {
        let mut room = [0; 512];
        let results = invoke_with::<system_info_info_params::Owned>(self.0.id(), 0, &mut room, |_| {})?;
        read::<_, system_info_info_results::Owned>(results.bytes, |info| Some(info.get_free_frames()))
    }

    /// Every process.
    pub fn processes(&self) -> Result<Vec<ProcessInfo>> {
        processes(self.0.id(), 1)
    }

    /// Every thread.
    pub fn threads(&self) -> Result<Vec<ThreadInfo>> {
        let next = |list: &[ThreadInfo]| list.last().map_or(0, |last| last.tid + 1);
        list_from::<_, system_info_threads_results::Owned>(self.0.id(), 2, next, |results, list| {
            for info in results.get_threads().ok()? {
                list.push(ThreadInfo {
                    pid: info.get_pid(),
                    tid: info.get_tid(),
                    generation: info.get_generation(),
                    state: info.get_state().ok()?,
                    cpu: info.get_cpu(),
                    weight: info.get_weight(),
                    class: info.get_class(),
                    runtime_ns: info.get_runtime_ns(),
                    virtual_runtime_ns: info.get_virtual_runtime_ns(),
                    waits_for: info.get_waits_for().ok()?.to_str().ok()?.into(),
                    switches: info.get_switches(),
                    preemptions: info.get_preemptions(),
                    migrations: info.get_migrations(),
                    runnable_ns: info.get_runnable_ns(),
                    throttled_ns: info.get_throttled_ns(),
                });
            }
            Some(results.get_more())
        })
    }

    /// Every CPU.
    pub fn cpus(&self) -> Result<Vec<CpuInfo>> {
        self.list::<_, system_info_cpus_results::Owned>(3, |results, list| {
            for info in results.get_cpus().ok()? {
                list.push(CpuInfo {
                    id: info.get_id(),
                    apic_id: info.get_apic_id(),
                    idle_ns: info.get_idle_ns(),
                    busy_ns: info.get_busy_ns(),
                    interrupt_ns: info.get_interrupt_ns(),
                    interrupt_owned_ns: info.get_interrupt_owned_ns(),
                    switches: info.get_switches(),
                    steals: info.get_steals(),
                    queued: info.get_queued(),
                    is_online: info.get_online(),
                });
            }
            Some(results.get_more())
        })
    }

    /// Everything that the kernel counts.
    pub fn counters(&self) -> Result<Vec<Counter>> {
        self.list::<_, system_info_counters_results::Owned>(4, |results, list| {
            for info in results.get_counters().ok()? {
                let name = info.get_name().ok()?.to_str().ok()?.into();
                list.push(Counter { name, value: info.get_value() });
            }
            Some(results.get_more())
        })
    }

    /// Every context, and which threads have it.
    pub fn contexts(&self) -> Result<Vec<ContextListing>> {
        self.list::<_, system_info_contexts_results::Owned>(5, |results, list| {
            for listing in results.get_contexts().ok()? {
                list.push(ContextListing::of(listing)?);
            }
            Some(results.get_more())
        })
    }

    /// For tests of the kernel: the `after`th allocation that it makes for this process from now on fails, none if that is 0. Returns how many
    /// there were since the last call, and whether one failed.
    pub fn fail_allocation(&self, after: u64) -> Result<(u64, bool)> {
        let mut room = [0; RESULTS_BYTES];
        let fill = |mut params: system_info_fail_allocation_params::Builder<'_>| params.set_after(after);
        let results =
            invoke_with::<system_info_fail_allocation_params::Owned>(self.0.id(), 6, &mut room, fill)?;
        read::<_, system_info_fail_allocation_results::Owned>(results.bytes, |results| {
            Some((results.get_seen(), results.get_failed()))
        })
    }

    /// Reads a list piece by piece; `add` adds one piece and returns whether there is more.
    fn list<T, R: Owned>(
        &self,
        method: u32,
        add: impl FnMut(R::Reader<'_>, &mut Vec<T>) -> Option<bool>,
    ) -> Result<Vec<T>> {
        list_from::<T, R>(self.0.id(), method, |list| list.len() as u32, add)
    }
}

/// Reads a list by capability `cap`, piece by piece; `next` says where to go on after what was read, `add` adds a piece and returns whether there
/// is more.
pub(super) fn list_from<T, R: Owned>(
    cap: abi::CapId,
    method: u32,
    next: impl Fn(&[T]) -> u32,
    mut add: impl FnMut(R::Reader<'_>, &mut Vec<T>) -> Option<bool>,
) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let mut room = alloc_crate::vec![0; abi::MAX_MESSAGE_BYTES];
    loop {
        let (start, count) = (next(&list), list.len());
        let results =
            invoke_with::<list_params::Owned>(cap, method, &mut room, |mut params| params.set_start(start))?;
        let has_more = read::<_, R>(results.bytes, |results| add(results, &mut list))?;
        if !has_more {
            return Ok(list);
        }
        if list.len() == count {
            return Err(Error::BadReply);
        }
    }
}

/// Processes, as method `method` of `cap` lists them.
pub(super) fn processes(cap: abi::CapId, method: u32) -> Result<Vec<ProcessInfo>> {
    let next = |list: &[ProcessInfo]| list.last().map_or(0, |last| last.pid + 1);
    list_from::<_, system_info_processes_results::Owned>(cap, method, next, |results, list| {
        for info in results.get_processes().ok()? {
            list.push(ProcessInfo::of(info)?);
        }
        Some(results.get_more())
    })
}
