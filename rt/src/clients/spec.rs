//! What is asked for when a scheduling context is created: budget, period and the rest, and sets of CPUs.

use abi::{CPU_MASK_BYTES_MAX, CapId, Overrun};
use schema::messages_capnp::{OverrunPolicy, scheduling_context_spec};
use schema::words;

use super::Endpoint;
use crate::caps::Client;

/// Bytes of a mask that [`CpuMask::raw`] keeps: more than the kernel accepts, to test that it refuses.
const MASK_ROOM: usize = 2 * CPU_MASK_BYTES_MAX;

/// A set of CPUs in the form of the ABI: CPU `n` is bit `n % 8` of byte `n / 8`, and the last byte is not 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CpuMask {
    len: u8,
    /// Zeros after `len`.
    bytes: [u8; MASK_ROOM],
}

impl CpuMask {
    /// Every CPU that there can be.
    pub const ALL: CpuMask = {
        let mut bytes = [0; MASK_ROOM];
        let mut at = 0;
        while at < CPU_MASK_BYTES_MAX {
            bytes[at] = u8::MAX;
            at += 1;
        }
        CpuMask { len: CPU_MASK_BYTES_MAX as u8, bytes }
    };

    /// These CPUs. A number that no CPU can have is left out.
    pub fn of(cpus: impl IntoIterator<Item = u32>) -> CpuMask {
        let mut bytes = [0; MASK_ROOM];
        for cpu in cpus {
            if let Some(byte) = bytes[..CPU_MASK_BYTES_MAX].get_mut(cpu as usize / 8) {
                *byte |= 1 << (cpu % 8);
            }
        }
        let len = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        CpuMask { len: len as u8, bytes }
    }

    /// Any bytes, valid or not, to test the kernel; the first 64 of them.
    pub fn raw(bytes: &[u8]) -> CpuMask {
        let len = bytes.len().min(MASK_ROOM);
        let mut mask = CpuMask { len: len as u8, bytes: [0; MASK_ROOM] };
        mask.bytes[..len].copy_from_slice(&bytes[..len]);
        mask
    }

    /// The bytes as they are in messages.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }

    /// Is this CPU one of them?
    pub fn contains(&self, cpu: u32) -> bool {
        self.bytes().get(cpu as usize / 8).is_some_and(|byte| byte >> (cpu % 8) & 1 == 1)
    }

    /// Their numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..8 * u32::from(self.len)).filter(|&cpu| self.contains(cpu))
    }
}

impl core::fmt::Debug for CpuMask {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        if *self == CpuMask::ALL { f.write_str("all") } else { f.debug_set().entries(self.iter()).finish() }
    }
}

/// A request for CPU time; the kernel says what is wrong with one that it cannot serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spec {
    /// CPU time in every period.
    pub budget_ns: u64,
    /// Length of the period.
    pub period_ns: u64,
    /// How soon after becoming usable the budget must have been available; 0: within the period.
    pub deadline_ns: u64,
    /// The CPUs that may admit it.
    pub cpus: CpuMask,
    /// What happens when the budget is spent.
    pub overrun: Overrun,
    /// 0 to 7: higher ones run first.
    pub criticality: u8,
    /// The endpoint that is told of a timeout.
    pub timeout: CapId,
    /// Pieces that the budget may be split into, 2 to 8; 0: as many as there can be.
    pub refills: u8,
}

impl Spec {
    /// `budget_ns` in every `period_ns`, on any CPU; a thread that has used it up waits for the next refill.
    pub const fn new(budget_ns: u64, period_ns: u64) -> Spec {
        Spec {
            budget_ns,
            period_ns,
            deadline_ns: 0,
            cpus: CpuMask::ALL,
            overrun: Overrun::Throttle,
            criticality: 0,
            timeout: CapId::NONE,
            refills: 0,
        }
    }

    /// Sets the deadline: within this time of becoming usable, instead of within the period.
    pub const fn deadline(self, deadline_ns: u64) -> Spec {
        Spec { deadline_ns, ..self }
    }

    /// On these CPUs only.
    pub fn cpus(self, cpus: impl IntoIterator<Item = u32>) -> Spec {
        self.mask(CpuMask::of(cpus))
    }

    /// On the CPUs of this mask, valid or not.
    pub const fn mask(self, cpus: CpuMask) -> Spec {
        Spec { cpus, ..self }
    }

    /// A thread that has used it up waits for the next refill. This is the default.
    pub const fn throttle(self) -> Spec {
        Spec { overrun: Overrun::Throttle, timeout: CapId::NONE, ..self }
    }

    /// A thread that has used it up goes on at its weight until the next refill.
    pub const fn demote(self) -> Spec {
        Spec { overrun: Overrun::Demote, timeout: CapId::NONE, ..self }
    }

    /// A thread that has used it up is stopped, and this endpoint gets a call: see [`super::Timeout`].
    pub fn fault(self, timeout: &Endpoint) -> Spec {
        Spec { overrun: Overrun::Fault, timeout: timeout.cap().id(), ..self }
    }

    /// Which band: 0 to 7, higher ones run first.
    pub const fn criticality(self, criticality: u8) -> Spec {
        Spec { criticality, ..self }
    }

    /// In how many pieces the budget may be split: 2 to 8.
    pub const fn refills(self, refills: u8) -> Spec {
        Spec { refills, ..self }
    }

    /// Words of a message that it takes, without the pointer to it.
    pub(super) fn words(&self) -> usize {
        words::structure::<scheduling_context_spec::Owned>() + words::data(self.cpus.bytes().len())
    }

    pub(super) fn fill(&self, mut spec: scheduling_context_spec::Builder<'_>) {
        spec.set_budget_ns(self.budget_ns);
        spec.set_period_ns(self.period_ns);
        spec.set_relative_deadline_ns(self.deadline_ns);
        spec.set_cpu_mask(self.cpus.bytes());
        spec.set_overrun_policy(match self.overrun {
            Overrun::Throttle => OverrunPolicy::Throttle,
            Overrun::Fault => OverrunPolicy::Fault,
            Overrun::Demote => OverrunPolicy::Demote,
        });
        spec.set_criticality(self.criticality);
        spec.set_timeout_endpoint(self.timeout.0);
        spec.set_max_refills(self.refills);
    }

    pub(super) fn of(spec: scheduling_context_spec::Reader<'_>) -> Option<Spec> {
        Some(Spec {
            budget_ns: spec.get_budget_ns(),
            period_ns: spec.get_period_ns(),
            deadline_ns: spec.get_relative_deadline_ns(),
            cpus: CpuMask::raw(spec.get_cpu_mask().ok()?),
            overrun: Overrun::from_raw(spec.get_overrun_policy().ok()? as u32)?,
            criticality: spec.get_criticality(),
            timeout: CapId(spec.get_timeout_endpoint()),
            refills: spec.get_max_refills(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::messages_capnp::scheduling_context_create_params as create;

    /// Masks have the canonical form, whatever they are made of.
    #[test]
    fn s_01_masks_are_canonical() {
        assert_eq!(CpuMask::of([]).bytes(), []);
        assert_eq!(CpuMask::of([0]).bytes(), [1]);
        assert_eq!(CpuMask::of([8, 0, 8]).bytes(), [1, 1]);
        assert_eq!(CpuMask::of([9]).bytes(), [0, 2]);
        assert_eq!(CpuMask::of([256, 3, u32::MAX]).bytes(), [8]);
        assert_eq!(CpuMask::of(0..256), CpuMask::ALL);
        assert_eq!(CpuMask::ALL.bytes(), [u8::MAX; 32]);
        for cpu in 0..256 {
            let mask = CpuMask::of([cpu]);
            assert_ne!(mask.bytes().last(), Some(&0));
            assert!(mask.iter().eq([cpu]));
            assert!(!mask.contains(cpu + 1));
        }
    }

    /// Invalid masks are kept as they are.
    #[test]
    fn raw_masks_are_kept() {
        assert_eq!(CpuMask::raw(&[1, 0]).bytes(), [1, 0]);
        assert_eq!(CpuMask::raw(&[7; 33]).bytes(), [7; 33]);
        assert_eq!(CpuMask::raw(&[7; 99]).bytes(), [7; 64]);
    }

    /// What is written is what is read, and takes the words that it says.
    #[test]
    fn s_01_specs_survive_a_message() {
        let endpoint = Endpoint::of(crate::Cap::borrowed(CapId(0x1_0007)));
        let specs = [
            Spec::new(2_000_000, 10_000_000),
            Spec::new(u64::MAX, 0).deadline(5).cpus([1, 255]).demote().criticality(255).refills(2),
            Spec::new(20_000, 20_000).fault(&endpoint).mask(CpuMask::raw(&[0; 64])),
            Spec::new(1, 2).fault(&endpoint).throttle().cpus([]),
        ];
        for spec in specs {
            let mut buffer = [0; 256];
            let len = schema::encode::<create::Owned>(&mut buffer, spec.words(), |params| {
                spec.fill(params.init_spec());
            })
            .unwrap();
            let whole = words::message::<create::Owned>() + spec.words();
            assert_eq!(len, 8 * whole, "{spec:?} takes what it says");
            let message = schema::decode(&buffer[..len]).unwrap();
            let params: create::Reader<'_> = message.root().unwrap();
            assert_eq!(Spec::of(params.get_spec().unwrap()), Some(spec));
        }
        assert_eq!(specs[2].timeout, CapId(0x1_0007));
        assert_eq!(specs[3].timeout, CapId::NONE);
    }
}
