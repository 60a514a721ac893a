//! Kernel objects, and capabilities to them.
//!
//! A capability is an object, the epoch that the object had when the capability was made, rights and a badge. Revoking moves the object's epoch on,
//! which makes every capability of an earlier epoch stale, wherever it is (K-21).

use crate::context::Handle;
use crate::context::complete;
use crate::deferred_work::{self, Remains};
use crate::endpoint::Endpoint;
use crate::lock::{Rank, SpinLock};
use crate::mm::frames::SharedFrames;
use crate::mm::frames::{self, Frame};
use crate::mm::heap;
use crate::mm::space::SpaceError;
use crate::policy::Gate;
use crate::preempt::Pacer;
use crate::process::{Process, StackCharge};
use crate::ring::{Completion, Waitable, Waiter, Withdraw};
use crate::session::Session;
use crate::timers;
use abi::{Exception, Interface, rights};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering};
use kcore::generation::ThreadRef;

/// What a capability names. The variants have the names of the interfaces.
#[allow(clippy::enum_variant_names)]
#[derive(Clone)]
pub enum Object {
    /// The serial line.
    Console,
    /// The clock.
    Timer,
    /// Creates threads in the process that holds it.
    ThreadSpawner,
    /// A thread of the process that holds it.
    ThreadHandle(Arc<ThreadExit>),
    /// The calling thread.
    ThreadControl,
    /// Creates processes.
    ProcessSpawner,
    /// A process.
    ProcessHandle(Arc<Process>),
    /// An endpoint to call or to receive from.
    Endpoint(Arc<Endpoint>),
    /// Parking and unparking of threads.
    ParkSpace,
    /// The caller's address space.
    VirtualMemory,
    /// Memory that processes can share.
    MemoryObject(Arc<MemoryObject>),
    /// The session that the process belongs to.
    UserSession(Arc<Session>),
    /// Information about the machine.
    SystemInfo,
    /// Creates objects.
    Factory,
    /// Turns the machine off.
    Power,
    /// The boot manifest.
    BootManifest,
    /// Sets the calling thread's share of CPU time.
    SchedulingPolicy(Arc<Gate>),
    /// CPU time: a scheduling context.
    SchedulingContext(Arc<Handle>),
}

impl Object {
    /// The interface that its methods belong to.
    pub fn interface(&self) -> Interface {
        match self {
            Object::Console => Interface::Console,
            Object::Timer => Interface::Timer,
            Object::ThreadSpawner => Interface::ThreadSpawner,
            Object::ThreadHandle(_) => Interface::ThreadHandle,
            Object::ThreadControl => Interface::ThreadControl,
            Object::ProcessSpawner => Interface::ProcessSpawner,
            Object::ProcessHandle(_) => Interface::ProcessHandle,
            Object::Endpoint(_) => Interface::Endpoint,
            Object::ParkSpace => Interface::ParkSpace,
            Object::VirtualMemory => Interface::VirtualMemory,
            Object::MemoryObject(_) => Interface::MemoryObject,
            Object::UserSession(_) => Interface::UserSession,
            Object::SystemInfo => Interface::SystemInfo,
            Object::Factory => Interface::Factory,
            Object::Power => Interface::Power,
            Object::BootManifest => Interface::BootManifest,
            Object::SchedulingPolicy(_) => Interface::SchedulingPolicy,
            Object::SchedulingContext(_) => Interface::SchedulingContext,
        }
    }

    /// The object without state that `interface` names.
    pub fn stateless(interface: Interface) -> Option<Object> {
        Some(match interface {
            Interface::Console => Object::Console,
            Interface::Timer => Object::Timer,
            Interface::ThreadSpawner => Object::ThreadSpawner,
            Interface::ThreadControl => Object::ThreadControl,
            Interface::ProcessSpawner => Object::ProcessSpawner,
            Interface::ParkSpace => Object::ParkSpace,
            Interface::VirtualMemory => Object::VirtualMemory,
            Interface::SystemInfo => Object::SystemInfo,
            Interface::Factory => Object::Factory,
            Interface::Power => Object::Power,
            Interface::BootManifest => Object::BootManifest,
            Interface::ThreadHandle
            | Interface::ProcessHandle
            | Interface::Endpoint
            | Interface::MemoryObject
            | Interface::UserSession
            | Interface::SchedulingPolicy
            | Interface::SchedulingContext => return None,
        })
    }

    /// The object's epoch, if it can be revoked.
    fn epoch(&self) -> Option<&AtomicU64> {
        match self {
            Object::Endpoint(endpoint) => Some(&endpoint.epoch),
            Object::MemoryObject(memory) => Some(&memory.epoch),
            Object::ProcessHandle(process) => Some(&process.epoch),
            Object::UserSession(session) => Some(&session.epoch),
            Object::SchedulingPolicy(gate) => Some(&gate.epoch),
            _ => None,
        }
    }

    /// Whether it may be given to another process.
    pub fn is_transferable(&self) -> bool {
        !matches!(self, Object::ThreadHandle(_) | Object::ThreadSpawner | Object::ThreadControl)
    }
}

/// A capability.
pub struct Cap {
    object: Object,
    epoch: u64,
    /// `abi::rights`.
    pub rights: u16,
    /// The number that a server sees with every call through it.
    pub badge: u32,
}

/// The object's epoch has moved on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Revoked;

/// Why a capability cannot revoke the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RevokeError {
    /// It was revoked itself.
    Revoked,
    /// There is nothing to revoke in such an object.
    Never,
}

impl Cap {
    /// A capability to `object` as it is now.
    pub fn new(object: Object, rights: u16, badge: u32) -> Cap {
        let epoch = match &object {
            // The generation that it was made for, which methods compare (docs/contexts.md).
            Object::SchedulingContext(handle) => handle.generation(),
            object => object.epoch().map_or(0, |epoch| epoch.load(Ordering::Acquire)),
        };
        Cap::with_epoch(object, epoch, rights, badge)
    }

    fn with_epoch(object: Object, epoch: u64, rights: u16, badge: u32) -> Cap {
        if let Object::Endpoint(endpoint) = &object
            && rights & rights::RECV != 0
        {
            endpoint.add_server(epoch);
        }
        Cap { object, epoch, rights, badge }
    }

    /// The object, if the capability was not revoked.
    #[inline]
    pub fn object(&self) -> Result<&Object, Revoked> {
        match self.object.epoch() {
            Some(epoch) if epoch.load(Ordering::Acquire) != self.epoch => Err(Revoked),
            _ => Ok(&self.object),
        }
    }

    /// The endpoint that it names, if it has one of `rights` and was not revoked. As [`Cap::object`], for paths that every call takes.
    #[inline]
    pub fn endpoint(&self, rights: u16) -> Option<&Arc<Endpoint>> {
        match &self.object {
            Object::Endpoint(endpoint)
                if self.rights & rights != 0 && endpoint.epoch.load(Ordering::Acquire) == self.epoch =>
            {
                Some(endpoint)
            }
            _ => None,
        }
    }

    /// Whether it names `object`, which has no state.
    #[inline(always)]
    pub fn is(&self, object: &Object) -> bool {
        debug_assert!(Object::stateless(object.interface()).is_some(), "of others there are many");
        core::mem::discriminant(&self.object) == core::mem::discriminant(object)
    }

    /// A capability to the same object with fewer rights and perhaps another badge; revoked together with this one.
    pub fn derive(&self, rights: u16, badge: u32) -> Cap {
        let badge = if badge == 0 { self.badge } else { badge };
        Cap::with_epoch(self.object.clone(), self.epoch, self.rights & rights, badge)
    }

    /// The interface of the object, even if the capability was revoked.
    pub fn interface(&self) -> Interface {
        self.object.interface()
    }

    /// Makes every other capability to the object stale; `owner` is the process that has this one, by number and generation. If two capabilities do
    /// this at the same time one of them wins, and the other is stale.
    pub fn revoke_others(&mut self, owner: (u32, u32)) -> Result<(), RevokeError> {
        let current = self.epoch;
        let next = match &self.object {
            Object::Endpoint(endpoint) => endpoint.revoke(current, owner, self.rights & rights::RECV != 0),
            Object::SchedulingContext(handle) => handle.advance(current),
            object => {
                let epoch = object.epoch().ok_or(RevokeError::Never)?;
                let moved = epoch.compare_exchange(current, current + 1, Ordering::AcqRel, Ordering::Relaxed);
                moved.is_ok().then_some(current + 1)
            }
        };
        self.epoch = next.ok_or(RevokeError::Revoked)?;
        Ok(())
    }

    /// The epoch that the object had when the capability was made.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// If the capability names the same context, it takes over the context's new generation, and so stays valid.
    pub fn follow(&mut self, handle: &Handle, generation: u64) {
        if matches!(&self.object, Object::SchedulingContext(its) if its.id == handle.id) {
            self.epoch = generation;
        }
    }

    /// The endpoint that it may receive from, if it is such a capability.
    pub fn served(&self) -> Option<&Arc<Endpoint>> {
        match &self.object {
            Object::Endpoint(endpoint) if self.rights & rights::RECV != 0 => Some(endpoint),
            _ => None,
        }
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        match &self.object {
            Object::Endpoint(endpoint) if self.rights & rights::RECV != 0 => endpoint.drop_server(self.epoch),
            Object::ThreadHandle(exit) => exit.detach(),
            _ => {}
        }
    }
}

// ---- threads ----------------------------------------------------------------------------------------------------------------

struct Ending {
    code: Option<i64>,
    joined: bool,
    /// Nobody holds a handle, or nobody does any more.
    detached: bool,
    waiter: Option<Waiter>,
    charge: Option<StackCharge>,
}

/// How a thread ends, and which operation waits for that.
pub struct ThreadExit {
    state: SpinLock<Ending>,
    target: SpinLock<ThreadRef>,
}

impl ThreadExit {
    /// For a thread whose record is charged by `charge`. A thread without a handle is detached from the start.
    pub fn new(charge: StackCharge, detached: bool) -> ThreadExit {
        ThreadExit {
            state: SpinLock::new(
                Rank::Object,
                Ending { code: None, joined: false, detached, waiter: None, charge: Some(charge) },
            ),
            target: SpinLock::new(Rank::Object, ThreadRef::NONE),
        }
    }

    /// Sets which thread this is about.
    pub fn set_target(&self, target: ThreadRef) {
        *self.target.lock() = target;
    }

    /// The thread that this is about.
    pub fn target(&self) -> ThreadRef {
        *self.target.lock()
    }

    /// The code, if the thread has ended. Does not consume the right to join.
    pub fn code(&self) -> Option<i64> {
        self.state.lock().code
    }

    /// Registers the operation that joins, or returns the exit code if the thread has ended.
    pub fn join(
        &self,
        register: impl FnOnce() -> Option<Waiter>,
    ) -> Result<Option<i64>, (Exception, &'static str)> {
        let mut state = self.state.lock();
        if state.joined || state.waiter.is_some() {
            return Err((Exception::Failed, "the thread was joined already, or somebody waits to join it"));
        }
        if let Some(code) = state.code {
            state.joined = true;
            let charge = state.charge.take();
            drop(state);
            drop(charge);
            return Ok(Some(code));
        }
        let Some(waiter) = register() else { return Err((Exception::Overloaded, "no operation to spare")) };
        state.waiter = Some(waiter);
        Ok(None)
    }

    /// The thread has ended with `code`, and has left its stack.
    pub fn ended(&self, code: i64) {
        let mut state = self.state.lock();
        state.code = Some(code);
        let waiter = state.waiter.take();
        if waiter.is_some() {
            state.joined = true;
        }
        let charge = if state.joined || state.detached { state.charge.take() } else { None };
        drop(state);
        drop(charge);
        if let Some(waiter) = waiter {
            // The code is in the completion itself, so the memory of the joining thread is not needed.
            complete::operation(&waiter, &Completion { w: [code as u64, 0], ..Completion::OK }, false);
        }
    }

    /// The handle is dropped.
    pub fn detach(&self) {
        let mut state = self.state.lock();
        state.detached = true;
        // A live thread keeps its charge until it is reaped, even while another thread waits to join it.
        let charge = if state.code.is_some() { state.charge.take() } else { None };
        drop(state);
        drop(charge);
    }
}

impl Withdraw for ThreadExit {
    /// Removes the operation that waits to join.
    fn withdraw(&self, waiter: &Waiter) -> bool {
        let mut state = self.state.lock();
        let found = state.waiter.as_ref().is_some_and(|w| w.thread == waiter.thread && w.op == waiter.op);
        if found {
            state.waiter = None;
        }
        found
    }
}

// ---- memory -----------------------------------------------------------------------------------------------------------------

/// Memory that can be mapped by several processes.
pub struct MemoryObject {
    /// The frames, and the process that created the object: they stay charged to it, whoever has the object now. Taken when the object is dropped.
    remains: Option<Box<Remains>>,
    epoch: AtomicU64,
    id: u64,
}

/// How many pages are zeroed between two preemption points: some 700 instructions each.
const PACE_PAGES: u32 = 16;
/// Largest memory object, in pages.
pub const MAX_OBJECT_PAGES: u64 = 16384;

impl MemoryObject {
    /// Zeroed memory of `pages` pages, charged to `payer`.
    pub fn new(pages: u64, payer: &Arc<Process>) -> Result<MemoryObject, SpaceError> {
        let mut list = Vec::new();
        list.try_reserve_exact(pages as usize).map_err(|_| SpaceError::OutOfMemory)?;
        let kept = heap::keep([Layout::new::<Remains>()]).ok_or(SpaceError::OutOfMemory)?;
        let mut remains = Box::new(Remains::new(list, payer.clone()));
        drop(kept);
        payer.space.charge_object(pages)?;
        let mut pacer = Pacer::of(PACE_PAGES);
        for page in 0..pages {
            let Some(frame) = frames::allocate_zeroed() else {
                // The frames so far are freed as those of an object are; the others were charged, but never allocated.
                payer.space.release_object(pages - page);
                deferred_work::free(remains);
                return Err(SpaceError::OutOfMemory);
            };
            remains.frames.push(frame);
            pacer.step();
        }
        Ok(MemoryObject { remains: Some(remains), epoch: AtomicU64::new(1), id: crate::name::fresh_id() })
    }
}

impl SharedFrames for MemoryObject {
    fn frames(&self) -> &[Frame] {
        self.remains.as_ref().map_or(&[], |remains| &remains.frames)
    }
    fn id(&self) -> u64 {
        self.id
    }
}

impl Drop for MemoryObject {
    fn drop(&mut self) {
        if let Some(remains) = self.remains.take() {
            deferred_work::free(remains);
        }
    }
}

// ---- waiting ----------------------------------------------------------------------------------------------------------------

/// Withdraws an operation from what it waits on; true if nobody else will complete it.
pub fn withdraw(waiter: &Waiter, on: &Waitable) -> bool {
    match on {
        Waitable::Sleep => crate::thread::get(waiter.thread.tid)
            .is_some_and(|thread| timers::cancel_timer(thread, waiter.op as usize)),
        Waitable::Park(key) => crate::park::withdraw(waiter, *key),
        Waitable::Recv(object) => object.withdraw_receiver(waiter),
        Waitable::Call(object) | Waitable::Join(object) | Waitable::Exit(object) => object.withdraw(waiter),
        Waitable::Read => crate::console::withdraw(waiter),
        Waitable::Watch(object) => object.withdraw(waiter),
    }
}

/// Completes an operation that was withdrawn, with the error `Cancelled`.
pub fn cancelled(waiter: &Waiter) {
    complete::operation(waiter, &Completion::error(abi::TransportError::Cancelled), false);
}
