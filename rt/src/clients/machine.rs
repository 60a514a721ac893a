//! Making objects, powering off, the boot manifest, sessions.

use alloc_crate::string::String;
use alloc_crate::vec::Vec;

use schema::messages_capnp::{
    boot_manifest_read_params, boot_manifest_read_results, factory_create_memory_object_params,
    factory_create_session_params, power_off_params, user_session_info_results, user_session_kill_params,
    user_session_logout_results, user_session_quotas_results,
};

use super::call::{RESULTS_BYTES, call, invoke, invoke_with, read};
use super::{Endpoint, MemoryObject, Outcome, ProcessInfo};
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

    /// A new session for `name`, inside this process's own.
    pub fn session(&self, name: &str) -> Result<UserSession> {
        self.make_session(name, false, &[])
    }

    /// As [`Factory::session`], for guests: they get nothing of what is kept for operators.
    pub fn guest_session(&self, name: &str) -> Result<UserSession> {
        self.make_session(name, true, &[])
    }

    /// As [`Factory::guest_session`], with at most so much of each quota, in the order in which [`UserSession::quotas`] lists them; 0: what a
    /// session gets by itself, which is also the most.
    pub fn limited_session(&self, name: &str, limits: &[u64]) -> Result<UserSession> {
        self.make_session(name, true, limits)
    }

    fn make_session(&self, name: &str, is_guest: bool, limits: &[u64]) -> Result<UserSession> {
        let (mut params, mut room) = ([0; 256], [0; RESULTS_BYTES]);
        let more = schema::words::text(name.len()) + limits.len();
        let fill = |mut params: factory_create_session_params::Builder<'_>| {
            params.set_name(name);
            params.set_guest(is_guest);
            if !limits.is_empty() {
                let mut list = params.init_limits(limits.len() as u32);
                limits.iter().zip(0..).for_each(|(limit, at)| list.set(at, *limit));
            }
        };
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
    /// The whole manifest.
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
    /// The name of its user.
    pub name: String,
    /// Whether it has not been logged out.
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

/// One of a session's quotas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quota {
    /// What is counted.
    pub name: String,
    /// What is used.
    pub used: u64,
    /// What may be used.
    pub limit: u64,
}

impl UserSession {
    /// What it is called, and whether it is live.
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

    /// Its processes and those of sessions inside it, whichever process started them.
    pub fn processes(&self) -> Result<Vec<ProcessInfo>> {
        super::system::processes(self.0.id(), 2)
    }

    /// Ends one of these processes.
    pub fn kill(&self, pid: u32) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        let fill = |mut params: user_session_kill_params::Builder<'_>| params.set_pid(pid);
        invoke_with::<user_session_kill_params::Owned>(self.0.id(), 3, &mut room, fill)?;
        Ok(())
    }

    /// What it and the sessions inside it use together, and what they may use.
    pub fn quotas(&self) -> Result<Vec<Quota>> {
        let mut room = [0; 512];
        let results = invoke(self.0.id(), 4, &mut room)?;
        read::<_, user_session_quotas_results::Owned>(results.bytes, |results| {
            let mut list = Vec::new();
            for quota in results.get_quotas().ok()? {
                let name = quota.get_name().ok()?.to_str().ok()?.into();
                list.push(Quota { name, used: quota.get_used(), limit: quota.get_limit() });
            }
            Some(list)
        })
    }
}
