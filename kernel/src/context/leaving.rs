//! What contexts that have ended still take from the quotas of their sessions (K-29, S-13).
//!
//! A CPU holds the time that a context used until that time is back. For as long, the context's stake stays charged to its session, in a list of
//! the CPU. Nobody is told when the promise has left. Instead, whoever next adds a stake, is refused one or asks for quotas finds out, in pieces
//! (K-26).

use crate::arch::percpu as machine;
use crate::dispatch;
use crate::dispatch::percpu::{self, PerCpu};
use crate::lock::{Rank, SpinLock};
use crate::mm::stacks::Stack;
use crate::preempt;
use crate::session::{Denied, Session, Stake};
use crate::time;
use ::sched::{Context, CpuId, MAX_PROMISES_PER_CPU, Spec};
use alloc::boxed::Box;
use alloc::sync::Arc;
use kcore::quota::Growth;
use kcore::stakes::{self, Round, Stakes};

/// The stakes in promises that are leaving one CPU.
pub struct Leaving(SpinLock<Stakes<Stake>>);

impl Leaving {
    /// An empty list, with room for all that a CPU may promise; at boot (K-30).
    pub fn new() -> Leaving {
        Leaving(SpinLock::new(Rank::Stacks, Stakes::with_room(MAX_PROMISES_PER_CPU)))
    }
}

/// One CPU as the layer of objects knows it: the whole record.
#[repr(C)]
struct ObjectCpu {
    dispatch: PerCpu,
    leaving: Leaving,
}

/// Makes the record of a CPU, which lives for ever; at boot (K-30).
pub fn make_cpu(id: usize, apic_id: u32, idle_stack: Stack) -> &'static PerCpu {
    let record: *mut ObjectCpu = Box::leak(Box::new_uninit()).as_mut_ptr();
    // SAFETY: there is room for a whole record, which begins with a `PerCpu`, is never freed, and is complete when it is registered.
    unsafe {
        percpu::make_at(&raw mut (*record).dispatch, id, apic_id, idle_stack);
        (&raw mut (*record).leaving).write(Leaving::new());
        percpu::register(record.cast())
    }
}

/// The stakes in promises that are leaving `cpu`.
fn of(cpu: &PerCpu) -> &'static Leaving {
    // SAFETY: `make_cpu` makes every record that is registered, and records are never freed.
    unsafe { &(*machine::record(cpu.id).cast::<ObjectCpu>()).leaving }
}

/// Keeps `stake` to pay for promise `number`, which is leaving `cpu`.
pub fn keep(cpu: &PerCpu, number: u64, template: u64, stake: Stake) {
    if !stake.is_charged() {
        return;
    }
    let mut stake = stakes::Stake { number, template, payment: stake };
    loop {
        sweep(cpu, None);
        // There will be room: the list has twice as many places as the CPU has promises, and each call looks at some of them (`Stakes`).
        match of(cpu).0.lock().push(stake) {
            Ok(()) => return,
            Err(back) => stake = back,
        }
    }
}

/// Gives back the stakes of promises that have left `cpu`: of the next few stakes in `round`, or, without a round, of the next few in turn.
fn sweep(cpu: &PerCpu, round: Option<&mut Round>) {
    let mut stakes = of(cpu).0.lock();
    // A round finds out by itself that there is nothing left.
    if round.is_none() && stakes.is_empty() {
        return;
    }
    let mut queue = cpu.dispatch.queue.lock();
    queue.shed(time::now_ns());
    let is_held = |number, stake: &mut Stake| match queue.held(number) {
        Some(held) => {
            stake.pay_for(held.budget_ns, held.period_ns);
            true
        }
        None => false,
    };
    let gone = match round {
        Some(round) => stakes.go_on(round, is_held),
        None => stakes.sweep(is_held),
    };
    drop(queue);
    drop(stakes);
    // A session may end with its last stake, and is then freed: no lock may be held.
    drop(gone);
}

/// Gives back the stakes of all promises that have left any CPU, in pieces between which others run. The caller holds no lock.
pub fn sweep_all() {
    for cpu in percpu::all() {
        let mut round = of(cpu).0.lock().round();
        while !round.is_over() {
            sweep(cpu, Some(&mut round));
            preempt::point();
        }
    }
}

/// The stake that pays for a new context.
pub struct Payment {
    stake: Stake,
    /// Set if the stake comes from a context of the same template that has ended: the new context must take that one's place.
    inherited: Option<Inherited>,
}

/// A promise that is leaving a CPU, whose stake a new context of the same template uses.
struct Inherited {
    cpu: &'static PerCpu,
    number: u64,
    template: u64,
    /// The stake pays for what the CPU still holds of that promise; with this growth it pays for the whole new context.
    growth: Option<Growth>,
    denied: Denied,
}

impl Payment {
    /// A payment for a context of `spec`: from the quotas, or, if these are used up, the stake of an ended context of the same template, whose
    /// place it takes.
    pub fn take(session: &Arc<Session>, spec: &Spec, template: u64) -> Result<Payment, Denied> {
        let new = |stake| Payment { stake, inherited: None };
        if let Ok(stake) = Stake::take(session, spec) {
            return Ok(new(stake));
        }
        sweep_all();
        let denied = match Stake::take(session, spec) {
            Ok(stake) => return Ok(new(stake)),
            Err(denied) => denied,
        };
        if template == 0 {
            return Err(denied);
        }
        for cpu in percpu::all() {
            let found = of(cpu).0.lock().take(template, |stake| stake.is_of(session));
            let Some(stakes::Stake { number, payment: stake, .. }) = found else { continue };
            return match stake.grow(spec) {
                Ok(growth) => {
                    let inherited = Some(Inherited { cpu, number, template, growth, denied });
                    Ok(Payment { stake, inherited })
                }
                Err(denied) => {
                    keep(cpu, number, template, stake);
                    Err(denied)
                }
            };
        }
        Err(denied)
    }

    /// The CPU that must promise the context, if it has to be a particular one.
    pub fn home(&self) -> Option<CpuId> {
        CpuId::new(self.inherited.as_ref()?.cpu.id)
    }

    /// The context was promised: returns its stake. If the context did not take the place that the stake was inherited from, the stake goes back
    /// there.
    pub fn settle(self) -> Result<Stake, Denied> {
        let Payment { mut stake, inherited } = self;
        match inherited {
            Some(inherited) if inherited.is_held() => {
                let denied = inherited.denied;
                inherited.give_back(stake);
                Err(denied)
            }
            Some(inherited) => {
                stake.settle(inherited.growth, true);
                Ok(stake)
            }
            None => Ok(stake),
        }
    }

    /// No CPU promised the context.
    pub fn give_back(self) {
        if let Some(inherited) = self.inherited {
            inherited.give_back(self.stake);
        }
    }
}

impl Inherited {
    fn is_held(&self) -> bool {
        self.cpu.dispatch.queue.lock().held(self.number).is_some()
    }

    /// The stake pays for what is held of the old promise, as before.
    fn give_back(self, mut stake: Stake) {
        stake.settle(self.growth, false);
        keep(self.cpu, self.number, self.template, stake);
    }
}

/// Sends a context home from the CPU that hosted it. The host holds the time that was used there; until that is back, `stake` pays for it.
pub fn send_home(time: Box<Context>, stake: Option<Stake>) -> Box<Context> {
    let host = percpu::get(time.home().index());
    let (time, departed) = dispatch::send_home(time);
    if let (Some(host), Some(number), Some(stake)) = (host, departed, stake) {
        keep(host, number, 0, stake);
    }
    time
}
