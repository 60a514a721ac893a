//! The canonical form of a [`World`]: what two states must have in common to count as one.

use sched::{Effect, FOREVER, Ticket};

use super::{Killer, Waker, World};
use crate::core::Phase;
use crate::record::Slot;
use crate::sync::Lock;

impl World {
    /// All that decides what can happen from here, and nothing that merely counts up (see `ownership`).
    pub fn key(&self) -> Vec<u8> {
        let mut key = vec![self.kills, self.ticks];
        let bell = &self.machine.bell;
        key.extend([bell.idle() as u8, bell.pending() as u8]);
        for (core, promised_ns) in self.cores.iter().zip(&self.promised_ns) {
            self.phase_key(core.phase, &mut key);
            key.push(core.off().map_or(u8::MAX, |off| off.id().0 as u8));
            key.extend([u8::from(core.armed_ns == FOREVER), u8::from(core.running)]);
            self.machine.look(core.id, |cpu| {
                key.push(cpu.current().map_or(u8::MAX, |id| id.0 as u8));
                key.push(u8::from(cpu.current().is_some() && *promised_ns == FOREVER));
                key.push(u8::from(cpu.wants_dispatch()));
                cpu.for_each_queued(|ticket, _, _| key.extend([ticket.thread.0 as u8, ticket.queue as u8]));
                key.push(u8::MAX);
            });
        }
        for waker in &self.wakers {
            match waker {
                Waker::Free => key.push(0),
                Waker::Aim { thread, cpu, looked_idle } => {
                    key.extend([1, thread.id().0 as u8, cpu.index() as u8, u8::from(*looked_idle)]);
                }
                Waker::Tell { cpu, effect, looked_idle } => {
                    key.extend([
                        2,
                        cpu.index() as u8,
                        u8::from(*looked_idle),
                        u8::from(*effect == Effect::Keep),
                    ]);
                }
                Waker::Help => key.push(3),
            }
        }
        match self.killer {
            Killer::Free => key.push(0),
            Killer::Hunt { thread, last } => {
                let known = self.machine.threads()[usize::from(thread)].ticket();
                key.extend([1, thread, u8::from(last.is_some()), u8::from(last == known)]);
            }
            Killer::Take { thread, ticket } => {
                key.extend([2, thread]);
                self.ticket_key(&ticket, &mut key);
            }
        }
        for (record, noted) in self.machine.threads().iter().zip(&self.noted) {
            let slot = match *record.slot.lock() {
                Slot::Away { permit } => u8::from(permit),
                Slot::Parked(_) => 2,
                Slot::Dead => 3,
            };
            let last = record.ticket().map_or(u8::MAX, |ticket| ticket.cpu.index() as u8);
            key.extend([slot, last, u8::from(record.is_doomed()), u8::from(*noted)]);
        }
        if self.config.ticks > 0 {
            self.time_key(&mut key);
        }
        key
    }

    fn phase_key(&self, phase: Phase, key: &mut Vec<u8>) {
        match phase {
            Phase::Run => key.push(0),
            Phase::Redispatch => key.push(1),
            Phase::Settle => key.push(2),
            Phase::Help => key.push(3),
            Phase::Look => key.push(4),
            Phase::Pull(victim) => key.extend([5, victim.index() as u8]),
            Phase::Announce => key.push(6),
            Phase::Recheck => key.push(7),
            Phase::Halt => key.push(8),
            Phase::PullStale(ticket) => {
                key.push(9);
                self.ticket_key(&ticket, key);
            }
        }
    }

    /// A ticket is good as long as it is the thread's last and the thread is still queued; it never becomes good again.
    fn ticket_key(&self, ticket: &Ticket, key: &mut Vec<u8>) {
        let mut good = false;
        self.machine.look(ticket.cpu, |cpu| cpu.for_each_queued(|queued, _, _| good |= queued == *ticket));
        let known = self.machine.threads()[ticket.thread.0 as usize].ticket() == Some(*ticket);
        key.extend([ticket.thread.0 as u8, ticket.cpu.index() as u8, u8::from(good), u8::from(known)]);
    }

    /// With time: the clocks, tags and virtual times that positions follow from.
    fn time_key(&self, key: &mut Vec<u8>) {
        let mut put = |value: i64| key.extend(value.to_le_bytes());
        put(self.now as i64);
        for core in &self.cores {
            put(core.armed_ns as i64);
            self.machine.look(core.id, |cpu| {
                put(cpu.summary().clock);
                put(cpu.summary().overdue.unwrap_or(i64::MIN));
                put(cpu.current_snapshot().map_or(0, |snapshot| snapshot.virtual_runtime_ns as i64));
                cpu.for_each_queued(|ticket, snapshot, _| {
                    put(ticket.key.tag);
                    put(snapshot.virtual_runtime_ns as i64);
                });
            });
        }
        for record in self.machine.threads() {
            put(record.ticket().map_or(0, |ticket| ticket.key.tag));
            if let Slot::Parked(blocked) = &*record.slot.lock() {
                put(blocked.snapshot().virtual_runtime_ns as i64);
            }
        }
    }
}
