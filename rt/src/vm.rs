//! Pages for the program itself, by its first granted VirtualMemory.

use core::ptr::NonNull;

use abi::Interface;

use crate::caps::{Cap, Known};
use crate::clients::{Protection, VirtualMemory};
use crate::error::{Error, Result};

static MEMORY: Known = Known::new(Interface::VirtualMemory);

/// The process's address space.
pub fn space() -> Result<VirtualMemory> {
    Ok(VirtualMemory(Cap::borrowed(MEMORY.get()?)))
}

/// `bytes` of zeros (rounded up to pages), readable and writable, where there is room.
pub fn map(bytes: usize) -> Result<NonNull<u8>> {
    let at = space()?.map(None, bytes, Protection::READ_WRITE)?;
    NonNull::new(at as *mut u8).ok_or(Error::BadReply)
}

/// Unmaps the pages from `at`.
///
/// # Safety
/// The pages are not used any more.
pub unsafe fn unmap(at: u64, bytes: usize) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { space()?.unmap(at, bytes) }
}
