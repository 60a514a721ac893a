//! Threads as the kernel knows them; [`crate::thread`] is what programs mostly want.

use alloc_crate::vec::Vec;

use abi::{CapId, Op, Sqe};
use schema::messages_capnp::{
    thread_control_exit_thread_params, thread_control_get_fs_base_results,
    thread_control_set_affinity_params, thread_control_set_fs_base_params, thread_handle_exit_code_results,
    thread_spawner_create_params,
};

use super::call::{RESULTS_BYTES, invoke, invoke_through, invoke_with, read};
use crate::caps::entry;
use crate::error::Result;
use crate::pending::Pending;
use crate::ring::Client;

super::client!(ThreadSpawner, "Makes threads in this process.");
super::client!(ThreadHandle, "One thread of this process. Dropped, the thread is detached.");
super::client!(ThreadControl, "The calling thread.");

impl ThreadSpawner {
    /// Creates a thread that begins at `entry` with `RDI = arg`, this stack and this FS base.
    ///
    /// # Safety
    /// The code at `entry` must be able to run with these, and what they point to must stay until the thread has ended.
    pub unsafe fn create(
        &self,
        entry: u64,
        stack_top: u64,
        arg: u64,
        fs_base: u64,
        flags: u32,
    ) -> Result<ThreadHandle> {
        crate::start::note_thread();
        let mut room = [0; RESULTS_BYTES];
        let results =
            invoke_with::<thread_spawner_create_params::Owned>(self.0.id(), 0, &mut room, |mut params| {
                params.set_entry(entry);
                params.set_stack_top(stack_top);
                params.set_arg(arg);
                params.set_fs_base(fs_base);
                params.set_flags(flags);
            })?;
        Ok(ThreadHandle(results.cap()?))
    }
}

impl ThreadHandle {
    /// Waits until the thread has ended; returns its exit code. Once only.
    pub fn join(&self) -> Result<i64> {
        let mut room = [0; RESULTS_BYTES];
        Ok(exit_code(&invoke(self.0.id(), 0, &mut room)?.words))
    }

    /// Starts to wait until the thread has ended.
    pub fn join_start(&self) -> Result<Pending<i64>> {
        let sqe = Sqe { method: 0, ..entry(Op::Call, self.0.id()) };
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; RESULTS_BYTES], |cqe, _| Ok(exit_code(&cqe.w)))
    }

    /// The exit code if the thread has ended.
    pub fn exit_code(&self) -> Result<Option<i64>> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 1, &mut room)?;
        read::<_, thread_handle_exit_code_results::Owned>(results.bytes, |results| {
            Some(results.get_exited().then_some(results.get_exit_code()))
        })
    }
}

/// The answer to a join comes in the completion itself, so the thread that ends does not touch the waiting thread's memory.
fn exit_code(words: &[u64; 2]) -> i64 {
    words[0] as i64
}

impl ThreadControl {
    /// Where this thread's FS points.
    pub fn fs_base(&self) -> Result<u64> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 0, &mut room)?;
        read::<_, thread_control_get_fs_base_results::Owned>(results.bytes, |results| {
            Some(results.get_fs_base())
        })
    }

    /// Changes where this thread's FS points.
    ///
    /// # Safety
    /// rt finds everything about a thread there: FS must point to rt's control block again before anything of rt is used, and even
    /// the kernel's answer to this call is read through it.
    pub unsafe fn set_fs_base(&self, fs_base: u64) -> Result<()> {
        set_fs_base(&crate::tls::current().client, self.0.id(), fs_base)
    }

    /// From now on the calling thread runs on these CPUs only (bit `n % 8` of byte `n / 8` is CPU `n`; the last byte is not 0).
    pub fn set_affinity(&self, cpus: &[u8]) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        let mut params = [0; 96];
        let more = schema::words::data(cpus.len());
        let len = schema::encode::<thread_control_set_affinity_params::Owned>(&mut params, more, |mut p| {
            p.set_cpus(cpus)
        })
        .map_err(|_| abi::TransportError::TooLong)?;
        super::call::call(&crate::tls::current().client, self.0.id(), 3, &params[..len], &mut room)?;
        Ok(())
    }

    /// Ends the calling thread; returns only if the kernel refuses.
    pub fn exit_thread(&self, code: i64) -> Result<core::convert::Infallible> {
        let mut room = [0; RESULTS_BYTES];
        invoke_with::<thread_control_exit_thread_params::Owned>(self.0.id(), 2, &mut room, |mut params| {
            params.set_code(code);
        })?;
        Err(crate::Error::BadReply)
    }
}

/// [`ThreadControl::set_fs_base`] through `client`.
pub(crate) fn set_fs_base(client: &Client, control: CapId, fs_base: u64) -> Result<()> {
    let mut room = [0; RESULTS_BYTES];
    invoke_through::<thread_control_set_fs_base_params::Owned>(
        client,
        control,
        1,
        &mut room,
        |mut params| {
            params.set_fs_base(fs_base);
        },
    )?;
    Ok(())
}
