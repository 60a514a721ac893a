//! What contexts that have gone still take, in the quotas of their sessions (K-29, S-13).
//!
//! A CPU holds what a context used until it is back; as long, the context's stake stays with its session, in a list of the CPU. When the promise
//! has left nobody is told: the next who adds a stake, is refused one or asks for quotas finds out, in pieces (K-26).

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

/// The stakes in what leaves a CPU.
pub struct Leaving(SpinLock<Stakes<Stake>>);

impl Leaving {
    /// None, with room for all that a CPU may promise; at boot (K-30).
    pub fn new() -> Leaving {
        Leaving(SpinLock::new(Rank::Stacks, Stakes::with_room(MAX_PROMISES_PER_CPU)))
    }
}

/// One CPU, as objects know it: the whole record.
#[repr(C)]
struct ObjectCpu {
    dispatch: PerCpu,
    leaving: Leaving,
}

/// Makes the record of a CPU, which lives for ever; at boot (K-30).
pub fn make_cpu(id: usize, apic_id: u32, idle_stack: Stack) -> &'static PerCpu {
    let record: *mut ObjectCpu = Box::leak(Box::new_uninit()).as_mut_ptr();
    // SAFETY: room for a whole record, which begins with a `PerCpu`, lives for ever, and is whole when it is registered.
    unsafe {
        percpu::make_at(&raw mut (*record).dispatch, id, apic_id, idle_stack);
        (&raw mut (*record).leaving).write(Leaving::new());
        percpu::register(record.cast())
    }
}

/// The stakes in what leaves `cpu`.
fn of(cpu: &PerCpu) -> &'static Leaving {
    // SAFETY: `make_cpu` makes every record that is registered, and records are never freed.
    unsafe { &(*machine::record(cpu.id).cast::<ObjectCpu>()).leaving }
}

/// `stake` pays for the promise of this number, which leaves `cpu`.
pub fn keep(cpu: &PerCpu, number: u64, template: u64, stake: Stake) {
    if !stake.is_charged() {
        return;
    }
    let mut stake = stakes::Stake { number, template, payment: stake };
    loop {
        sweep(cpu, None);
        // There is room: the list has twice as many places as the CPU has promises, and every newcomer looks at some (`Stakes`).
        match of(cpu).0.lock().push(stake) {
            Ok(()) => return,
            Err(back) => stake = back,
        }
    }
}

/// Gives back the stakes of what has left `cpu`, of the next few in `round`, or in their turn.
fn sweep(cpu: &PerCpu, round: Option<&mut Round>) {
    let mut stakes = of(cpu).0.lock();
    // A round finds out for itself that there is nothing left.
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
    // A session may end with its last stake, which frees it.
    drop(gone);
}

/// Gives back the stakes of all that has left any CPU, in pieces between which others run. No lock is held.
pub fn sweep_all() {
    for cpu in percpu::all() {
        let mut round = of(cpu).0.lock().round();
        while !round.is_over() {
            sweep(cpu, Some(&mut round));
            preempt::point();
        }
    }
}

/// What a new context is paid with.
pub struct Payment {
    stake: Stake,
    /// It is the stake of one of its line that has gone: the new one must take that one's place.
    inherited: Option<Inherited>,
}

/// A promise that leaves a CPU.
struct Inherited {
    cpu: &'static PerCpu,
    number: u64,
    template: u64,
    /// Its stake pays for what is held of it; with this, for the whole context that takes its place.
    growth: Option<Growth>,
    denied: Denied,
}

impl Payment {
    /// For a context of `spec`: out of the quotas, or, where these are used up, with the stake of one of its line whose place it will take.
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

    /// Where the context must be promised, if anywhere in particular.
    pub fn home(&self) -> Option<CpuId> {
        CpuId::new(self.inherited.as_ref()?.cpu.id)
    }

    /// The context was promised: its stake. If it did not take the place that it was to pay for with that, the stake goes back to what leaves.
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

    /// Nothing was promised for it.
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

    /// Its stake pays for what is held of it, as before.
    fn give_back(self, mut stake: Stake) {
        stake.settle(self.growth, false);
        keep(self.cpu, self.number, self.template, stake);
    }
}

/// Sends a context home from the CPU that hosted it, which holds what it used; as long, `stake` pays for that.
pub fn send_home(time: Box<Context>, stake: Option<Stake>) -> Box<Context> {
    let host = percpu::get(time.home().index());
    let (time, departed) = dispatch::send_home(time);
    if let (Some(host), Some(number), Some(stake)) = (host, departed, stake) {
        keep(host, number, 0, stake);
    }
    time
}
