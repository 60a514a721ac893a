//! The calling thread's share of CPUs.

use alloc_crate::vec::Vec;

use abi::{LatencyClass, Op, Sqe};
use schema::messages_capnp::{
    scheduling_policy_set_latency_class_params, scheduling_policy_set_weight_params,
    scheduling_policy_snapshot_results,
};
use schema::methods::scheduling_policy::{SET_LATENCY_CLASS, SET_WEIGHT, SNAPSHOT};

use super::call::{RESULTS_BYTES, invoke, invoke_with, read};
use crate::caps::entry;
use crate::error::Result;
use crate::pending::Pending;

super::client!(SchedulingPolicy, "How the calling thread shares CPUs with others.");

/// What the scheduler counts of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Its weight.
    pub weight: u16,
    /// Its latency class.
    pub class: LatencyClass,
    /// Time on CPUs.
    pub runtime_ns: u64,
    /// The same, divided by its weight.
    pub virtual_runtime_ns: u64,
    /// How often it waited for something.
    pub voluntary_blocks: u64,
    /// How often it lost a CPU though it could have gone on.
    pub preemptions: u64,
    /// How long it waited for a CPU.
    pub runnable_ns: u64,
    /// How often it changed CPU.
    pub migrations: u64,
    /// How often it ran out of budget.
    pub throttles: u64,
}

impl SchedulingPolicy {
    /// Changes the calling thread's weight, from 1 to 1024; 64 is usual. Takes effect when the thread is queued next.
    pub fn set_weight(&self, weight: u16) -> Result<()> {
        self.set_weight_raw(weight.into())
    }

    /// As [`SchedulingPolicy::set_weight`], with any number that a message can hold.
    pub fn set_weight_raw(&self, weight: u32) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<scheduling_policy_set_weight_params::Owned>(
            self.0.id(),
            SET_WEIGHT,
            &mut room,
            |mut params| params.set_weight(weight),
        )?;
        Ok(())
    }

    /// Changes the calling thread's latency class. Takes effect when the thread is queued next.
    pub fn set_class(&self, class: LatencyClass) -> Result<()> {
        self.set_class_raw(class as u16)
    }

    /// As [`SchedulingPolicy::set_class`], with any number that a message can hold.
    pub fn set_class_raw(&self, class: u16) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<scheduling_policy_set_latency_class_params::Owned>(
            self.0.id(),
            SET_LATENCY_CLASS,
            &mut room,
            |mut params| params.set_class(class),
        )?;
        Ok(())
    }

    /// What the scheduler counts of the calling thread, up to now.
    pub fn snapshot(&self) -> Result<Share> {
        let mut room = [0; RESULTS_BYTES];
        share_of(invoke(self.0.id(), SNAPSHOT, &mut room)?.bytes)
    }

    /// Starts [`SchedulingPolicy::snapshot`].
    pub fn snapshot_start(&self) -> Result<Pending<Share>> {
        let sqe = Sqe { method: SNAPSHOT, ..entry(Op::Call, self.0.id()) };
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; RESULTS_BYTES], |cqe, room| {
            share_of(room.get(..cqe.value as usize).unwrap_or(&[]))
        })
    }
}

fn share_of(bytes: &[u8]) -> Result<Share> {
    read::<_, scheduling_policy_snapshot_results::Owned>(bytes, |share| {
        Some(Share {
            weight: u16::try_from(share.get_weight()).ok()?,
            class: LatencyClass::from_raw(share.get_class().into())?,
            runtime_ns: share.get_runtime_ns(),
            virtual_runtime_ns: share.get_virtual_runtime_ns(),
            voluntary_blocks: share.get_voluntary_blocks(),
            preemptions: share.get_preemptions(),
            runnable_ns: share.get_runnable_accumulated_ns(),
            migrations: share.get_migrations(),
            throttles: share.get_throttles(),
        })
    })
}
