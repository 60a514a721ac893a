//! Capabilities: those that the process was started with, and those that it got later.

use core::sync::atomic::{AtomicU64, Ordering};

use abi::{CAPSET_MAGIC, CAPSET_MAX, CapId, CapSetEntry, CapSetHeader, Interface, Op, Sqe};

use crate::error::{Error, Result, check};
use crate::ring;

/// A capability of this process. A capability from a message or a result is released when dropped; one of the CapSet stays.
#[derive(Debug)]
pub struct Cap {
    id: CapId,
    is_owned: bool,
}

impl Cap {
    /// A capability that came with a completion: ours to release.
    pub fn owned(id: CapId) -> Cap {
        Cap { id, is_owned: true }
    }

    /// A capability that stays when the value is dropped.
    pub const fn borrowed(id: CapId) -> Cap {
        Cap { id, is_owned: false }
    }

    /// Its number.
    #[inline(always)]
    pub fn id(&self) -> CapId {
        self.id
    }

    /// The number; the caller is responsible for releasing the capability from now on.
    pub fn into_id(self) -> CapId {
        let id = self.id;
        core::mem::forget(self);
        id
    }

    /// Another capability to the same object, with `rights` (a part of this one's) and `badge` (0 keeps it).
    pub fn copy(&self, rights: u16, badge: u32) -> Result<Cap> {
        let sqe = Sqe { arg0: rights.into(), arg1: badge.into(), ..entry(Op::Copy, self.id) };
        // SAFETY: names no memory.
        let cqe = unsafe { ring::run(sqe) };
        check(&cqe)?;
        Ok(Cap::owned(CapId(cqe.cap)))
    }

    /// Takes every other capability to the same object away from all processes.
    pub fn revoke(&self) -> Result<()> {
        // SAFETY: names no memory. Mappings of a memory object stay until they are unmapped.
        check(&unsafe { ring::run(entry(Op::Revoke, self.id)) })
    }

    /// Releases it now, and returns an error if that failed.
    pub fn release(self) -> Result<()> {
        let id = self.into_id();
        // SAFETY: names no memory.
        check(&unsafe { ring::run(entry(Op::Release, id)) })
    }
}

impl Drop for Cap {
    fn drop(&mut self) {
        if self.is_owned && self.id != CapId::NONE {
            // SAFETY: names no memory.
            unsafe { ring::run_quiet(entry(Op::Release, self.id)) };
        }
    }
}

/// An entry for `op` on `cap`, everything else 0.
#[inline(always)]
pub(crate) fn entry(op: Op, cap: CapId) -> Sqe {
    Sqe { op: op as u8, cap: cap.0, ..Sqe::default() }
}

/// A typed capability: what can be asked of an [`Interface`].
pub trait Client: Sized {
    /// The interface that the capability must have.
    const INTERFACE: Interface;
    /// Makes a client from a capability that has this interface.
    fn of(cap: Cap) -> Self;
    /// Its capability.
    fn cap(&self) -> &Cap;
    /// Turns the client back into its capability.
    fn into_cap(self) -> Cap;
}

/// Where the CapSet is; 0 if there is none.
static CAPSET: AtomicU64 = AtomicU64::new(0);

pub(crate) fn set_capset(address: u64) {
    CAPSET.store(address, Ordering::Relaxed);
}

/// Every capability that the process was started with.
pub fn granted() -> &'static [CapSetEntry] {
    let address = CAPSET.load(Ordering::Relaxed);
    if address == 0 {
        return &[];
    }
    // SAFETY: the kernel maps the page read-only for as long as the process lives, and tells its address to the first thread.
    unsafe {
        let header = &*(address as *const CapSetHeader);
        if header.magic != CAPSET_MAGIC {
            return &[];
        }
        let first = (address as usize + size_of::<CapSetHeader>()) as *const CapSetEntry;
        core::slice::from_raw_parts(first, (header.count as usize).min(CAPSET_MAX))
    }
}

/// The name under which `entry` was granted.
pub fn name_of(entry: &CapSetEntry) -> &str {
    let len = entry.name.iter().position(|&byte| byte == 0).unwrap_or(entry.name.len());
    core::str::from_utf8(&entry.name[..len]).unwrap_or("?")
}

/// The capability that was granted as `name`, if it has the interface of `C`.
pub fn get<C: Client>(name: &'static str) -> Result<C> {
    find(name)
        .filter(|entry| entry.interface == C::INTERFACE as u16)
        .map(client)
        .ok_or(Error::NoCapability(name))
}

/// The entry that was granted as `name`.
pub fn find(name: &str) -> Option<&'static CapSetEntry> {
    granted().iter().find(|entry| name_of(entry) == name)
}

/// The first capability that was granted with the interface of `C`, whatever its name.
pub fn any<C: Client>() -> Result<C> {
    let found = granted().iter().find(|entry| entry.interface == C::INTERFACE as u16);
    found.map(client).ok_or(Error::NoCapability(C::INTERFACE.name()))
}

fn client<C: Client>(entry: &CapSetEntry) -> C {
    C::of(Cap::borrowed(entry.cap))
}

/// The capability that rt itself uses for an interface; searched for once.
pub(crate) struct Known {
    interface: Interface,
    /// The [`CapId`], with a 1 in the upper half, so that 0 means not searched for yet.
    id: AtomicU64,
}

impl Known {
    pub(crate) const fn new(interface: Interface) -> Known {
        Known { interface, id: AtomicU64::new(0) }
    }

    /// [`CapId::NONE`] if the process has none; the kernel then refuses what is asked of it.
    #[inline(always)]
    pub(crate) fn id(&self) -> CapId {
        let known = self.id.load(Ordering::Relaxed);
        if known != 0 { CapId(known as u32) } else { self.look() }
    }

    #[cold]
    fn look(&self) -> CapId {
        let found = granted().iter().find(|entry| entry.interface == self.interface as u16);
        let id = found.map_or(CapId::NONE, |entry| entry.cap);
        self.id.store(1 << 32 | id.0 as u64, Ordering::Relaxed);
        id
    }

    /// As [`Known::id`], if there is one.
    pub(crate) fn get(&self) -> Result<CapId> {
        let id = self.id();
        if id == CapId::NONE { Err(Error::NoCapability(self.interface.name())) } else { Ok(id) }
    }
}
