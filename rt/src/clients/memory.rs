//! Address space, and memory that can be shared.

use schema::messages_capnp::{
    memory_object_info_results, memory_object_map_params, memory_object_map_results,
    memory_object_protect_params, memory_object_unmap_params, virtual_memory_map_params,
    virtual_memory_map_results, virtual_memory_protect_params, virtual_memory_unmap_params,
};

use super::call::{RESULTS_BYTES, invoke, invoke_with, read};
use crate::error::Result;

super::client!(VirtualMemory, "The caller's address space.");
super::client!(MemoryObject, "Memory that can be shared.");

/// What may be done with pages beyond reading them. Writing and executing together is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Protection {
    /// Whether they may be written.
    pub writable: bool,
    /// Whether they may be executed.
    pub executable: bool,
}

impl Protection {
    /// Only read.
    pub const READ: Protection = Protection { writable: false, executable: false };
    /// Read and written.
    pub const READ_WRITE: Protection = Protection { writable: true, executable: false };
    /// Read and executed.
    pub const READ_EXECUTE: Protection = Protection { writable: false, executable: true };
}

impl VirtualMemory {
    /// Maps `bytes` of zeros (rounded up to pages) at `addr`, or where there is room; returns where. Refused if something is
    /// mapped there already: nothing is replaced.
    pub fn map(&self, addr: Option<u64>, bytes: usize, protection: Protection) -> Result<u64> {
        let mut room = [0; RESULTS_BYTES];
        let results =
            invoke_with::<virtual_memory_map_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
                params.set_addr(addr.unwrap_or(0));
                params.set_bytes(pages(bytes));
                params.set_writable(protection.writable);
                params.set_executable(protection.executable);
            })?;
        read::<_, virtual_memory_map_results::Owned>(results.bytes, |results| Some(results.get_addr()))
    }

    /// Unmaps the pages from `addr`.
    ///
    /// # Safety
    /// The pages are not used any more.
    pub unsafe fn unmap(&self, addr: u64, bytes: usize) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<virtual_memory_unmap_params::Owned>(self.0.id(), 1, &mut room, |mut params| {
            params.set_addr(addr);
            params.set_bytes(pages(bytes));
        })?;
        Ok(())
    }

    /// Changes what may be done with the pages from `addr`.
    ///
    /// # Safety
    /// All code that uses the pages must be able to go on with the new protection.
    pub unsafe fn protect(&self, addr: u64, bytes: usize, protection: Protection) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<virtual_memory_protect_params::Owned>(self.0.id(), 2, &mut room, |mut params| {
            params.set_addr(addr);
            params.set_bytes(pages(bytes));
            params.set_writable(protection.writable);
            params.set_executable(protection.executable);
        })?;
        Ok(())
    }
}

impl MemoryObject {
    /// Maps `bytes` of it from `offset` on at `addr`, or where there is room; returns where.
    pub fn map(&self, addr: Option<u64>, offset: u64, bytes: usize, is_writable: bool) -> Result<u64> {
        let mut room = [0; RESULTS_BYTES];
        let results =
            invoke_with::<memory_object_map_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
                params.set_addr(addr.unwrap_or(0));
                params.set_offset(offset);
                params.set_bytes(pages(bytes));
                params.set_writable(is_writable);
            })?;
        read::<_, memory_object_map_results::Owned>(results.bytes, |results| Some(results.get_addr()))
    }

    /// Unmaps the pages from `addr`, which are of this object.
    ///
    /// # Safety
    /// The pages are not used any more.
    pub unsafe fn unmap(&self, addr: u64, bytes: usize) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<memory_object_unmap_params::Owned>(self.0.id(), 1, &mut room, |mut params| {
            params.set_addr(addr);
            params.set_bytes(pages(bytes));
        })?;
        Ok(())
    }

    /// Changes whether the pages from `addr`, which are of this object, may be written.
    ///
    /// # Safety
    /// All code that uses the pages must be able to go on with the new protection.
    pub unsafe fn protect(&self, addr: u64, bytes: usize, is_writable: bool) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<memory_object_protect_params::Owned>(self.0.id(), 2, &mut room, |mut params| {
            params.set_addr(addr);
            params.set_bytes(pages(bytes));
            params.set_writable(is_writable);
        })?;
        Ok(())
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> Result<u64> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 3, &mut room)?;
        read::<_, memory_object_info_results::Owned>(results.bytes, |results| Some(results.get_bytes()))
    }
}

fn pages(bytes: usize) -> u64 {
    (bytes as u64).next_multiple_of(abi::PAGE_BYTES)
}
