//! Making objects, powering off, the boot manifest, sessions.

use alloc_crate::string::String;
use alloc_crate::vec::Vec;

use schema::messages_capnp::{
    boot_manifest_read_params, boot_manifest_read_results, factory_create_memory_object_params,
    factory_create_session_params, power_off_params, user_session_info_results, user_session_logout_results,
};

use super::call::{RESULTS_BYTES, call, invoke, invoke_with, read};
use super::{Endpoint, MemoryObject, Outcome};
use crate::error::{Error, Result};
use crate::tls;

super::client!(Factory, "Makes endpoints, memory objects and sessions.");
super::client!(Power, "Powers the machine off.");
super::client!(BootManifest, "The boot manifest, for init.");
super::client!(UserSession, "Who the process works for.");

impl Factory {
    /// A new endpoint, with all rights.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let mut room = [0; RESULTS_BYTES];
        Ok(Endpoint(invoke(self.0.id(), 0, &mut room)?.cap()?))
    }

    /// A new memory object of `bytes` (rounded up to pages), with all rights.
    pub fn memory_object(&self, bytes: u64) -> Result<MemoryObject> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke_with::<factory_create_memory_object_params::Owned>(
            self.0.id(),
            1,
            &mut room,
            |mut params| {
                params.set_bytes(bytes.next_multiple_of(abi::PAGE_BYTES));
            },
        )?;
        Ok(MemoryObject(results.cap()?))
    }

    /// A new session for `name`.
    pub fn session(&self, name: &str) -> Result<UserSession> {
        let (mut params, mut room) = ([0; 128], [0; RESULTS_BYTES]);
        let more = schema::words::text(name.len());
        let fill = |mut params: factory_create_session_params::Builder<'_>| params.set_name(name);
        let len = schema::encode::<factory_create_session_params::Owned>(&mut params, more, fill)
            .map_err(|_| abi::TransportError::TooLong)?;
        let results = call(&tls::current().client, self.0.id(), 2, &params[..len], &mut room)?;
        Ok(UserSession(results.cap()?))
    }
}

impl Power {
    /// Powers the machine off with `status`; returns only if the kernel refuses.
    pub fn off(&self, status: u8) -> Result<core::convert::Infallible> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<power_off_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
            params.set_status(status)
        })?;
        Err(Error::BadReply)
    }
}

impl BootManifest {
    /// All of it.
    pub fn read(&self) -> Result<Vec<u8>> {
        let mut whole = Vec::new();
        let mut room = alloc_crate::vec![0; abi::MAX_MESSAGE_BYTES];
        loop {
            let offset = whole.len() as u64;
            let results =
                invoke_with::<boot_manifest_read_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
                    params.set_offset(offset)
                })?;
            let total = read::<_, boot_manifest_read_results::Owned>(results.bytes, |results| {
                whole.extend_from_slice(results.get_bytes().ok()?);
                Some(results.get_total())
            })?;
            if whole.len() as u64 >= total {
                return Ok(whole);
            }
            if whole.len() as u64 == offset {
                return Err(Error::BadReply);
            }
        }
    }
}

/// A session as it is now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionInfo {
    /// Its number.
    pub id: u64,
    /// Whose it is.
    pub name: String,
    /// Whether nobody has logged out.
    pub is_live: bool,
}

/// What became of the CPU time of a session that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Logout {
    /// Contexts that are stale from now on.
    pub stale_marked: u32,
    /// Contexts that its threads have on loan: they go back with the answer.
    pub donation_inflight_skipped: u32,
}

impl UserSession {
    /// Who it is.
    pub fn info(&self) -> Result<SessionInfo> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 0, &mut room)?;
        read::<_, user_session_info_results::Owned>(results.bytes, |results| {
            let name = results.get_name().ok()?.to_str().ok()?.into();
            Some(SessionInfo { id: results.get_id(), name, is_live: results.get_live() })
        })
    }

    /// Ends the session: what was given to it is taken back. A second time: [`super::OperationResult::AlreadyRevoked`].
    pub fn logout(&self) -> Result<Logout> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 1, &mut room)?;
        let outcome = read::<_, user_session_logout_results::Owned>(results.bytes, |results| {
            let value = Logout {
                stale_marked: results.get_stale_marked(),
                donation_inflight_skipped: results.get_donation_inflight_skipped(),
            };
            Some(Outcome { result: results.get_result().ok()?, value })
        })?;
        outcome.ok()
    }
}
