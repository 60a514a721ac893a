//! The methods of kernel objects: Cap'n Proto in, Cap'n Proto out.
//!
//! Each method reads its parameters, checks them, and only then acts. It refuses with an exception and a text.

pub mod context;
pub mod policy;

use crate::endpoint::Endpoint;
use crate::mm::frames::SharedFrames;
use crate::mm::heap;
use crate::mm::space::{Access, SpaceError};
use crate::object::{Cap, MAX_OBJECT_PAGES, MemoryObject, Object, ThreadExit};
use crate::ops::{self, Reply};
use crate::policy::Share;
use crate::process::records::Start;
use crate::process::{MakeError, Name, Process, Reason};
use crate::ring::{self, Completion, Submitter, Waitable, Waiter};
use crate::session::{Denied, NoSession, Session};
use crate::spawn;
use crate::sysinfo;
use crate::thread::Thread;
use crate::{image, power, time};
use abi::{Exception, MAX_MESSAGE_BYTES, TransportError, USER_END_VADDR, rights};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt::{self, Write};
use core::sync::atomic::Ordering;
use kcore::quota::KINDS;
use kcore::request::{self, Buffer};
use schema::messages_capnp as m;

/// Messages of up to this many bytes are kept on the stack.
const SMALL_BYTES: usize = 256;

/// Why a method was refused.
pub enum Refusal {
    /// The call could not be read, or its result could not be delivered.
    Transport(TransportError),
    /// The method itself refuses, with a text.
    Exception(Exception, &'static str),
    /// The quotas of the session do not allow it.
    Quota(Denied),
}

impl From<TransportError> for Refusal {
    fn from(error: TransportError) -> Refusal {
        Refusal::Transport(error)
    }
}

impl From<(Exception, &'static str)> for Refusal {
    fn from((kind, why): (Exception, &'static str)) -> Refusal {
        Refusal::Exception(kind, why)
    }
}

impl From<schema::Error> for Refusal {
    fn from(_: schema::Error) -> Refusal {
        Refusal::Transport(TransportError::BadMessage)
    }
}

impl From<core::str::Utf8Error> for Refusal {
    fn from(_: core::str::Utf8Error) -> Refusal {
        Refusal::Transport(TransportError::BadMessage)
    }
}

impl From<SpaceError> for Refusal {
    fn from(error: SpaceError) -> Refusal {
        if let SpaceError::Quota(denied) = error {
            return Refusal::Quota(denied);
        }
        let kind = match error {
            SpaceError::OutOfMemory | SpaceError::TooManyRegions => Exception::Overloaded,
            _ => Exception::InvalidArgument,
        };
        Refusal::Exception(kind, error.message())
    }
}

impl From<MakeError> for Refusal {
    fn from(error: MakeError) -> Refusal {
        if let MakeError::Quota(denied) = error {
            return Refusal::Quota(denied);
        }
        Refusal::Exception(Exception::Overloaded, error.message())
    }
}

/// The outcome of a method.
pub type Outcome = Result<Reply, Refusal>;

/// One call of a method: the caller and the request.
pub struct MethodCall<'a> {
    /// The caller.
    pub thread: &'static Thread,
    /// The caller's process.
    pub process: &'a Arc<Process>,
    /// The caller's own number for the operation, which goes into its completion.
    pub user_data: u64,
    /// The request.
    pub call: &'a request::Call,
    /// Rights of the capability that was used.
    pub rights: u16,
    /// The epoch, or generation, that the capability was made for.
    pub epoch: u64,
}

impl MethodCall<'_> {
    /// Writes a result message for the caller.
    pub fn reply<T>(&self, more_words: usize, fill: impl FnOnce(T::Builder<'_>)) -> Outcome
    where
        T: capnp_traits::Owned,
        for<'b> T::Builder<'b>: capnp_traits::HasStructSize + capnp_traits::FromPointerBuilder<'b>,
    {
        let mut buffer = [0; SMALL_BYTES];
        let length =
            schema::encode::<T>(&mut buffer, more_words, fill).map_err(|_| TransportError::TooLong)?;
        self.deliver(&buffer[..length])
    }

    /// As [`MethodCall::reply`], for long messages.
    pub fn reply_long<T>(&self, more_words: usize, fill: impl FnOnce(T::Builder<'_>)) -> Outcome
    where
        T: capnp_traits::Owned,
        for<'b> T::Builder<'b>: capnp_traits::HasStructSize + capnp_traits::FromPointerBuilder<'b>,
    {
        let mut buffer = Vec::new();
        buffer.try_reserve_exact(MAX_MESSAGE_BYTES).map_err(|_| TransportError::NoSpace)?;
        buffer.resize(MAX_MESSAGE_BYTES, 0);
        let length =
            schema::encode::<T>(&mut buffer, more_words, fill).map_err(|_| TransportError::TooLong)?;
        self.deliver(&buffer[..length])
    }

    /// Refuses if a result could not be delivered: for methods that create something, which the caller would otherwise never hear of.
    pub fn expects<T>(&self) -> Result<(), TransportError>
    where
        T: capnp_traits::Owned,
        for<'b> T::Builder<'b>: capnp_traits::HasStructSize,
    {
        let bytes = schema::words::message::<T>() * 8;
        if bytes > self.call.result.length as usize {
            return Err(TransportError::TooLong);
        }
        let writable = self.process.space.check_writable(self.call.result.address, bytes);
        writable.map_err(|_| TransportError::BadAddress)
    }

    fn deliver(&self, bytes: &[u8]) -> Outcome {
        if bytes.len() > self.call.result.length as usize {
            return Err(TransportError::TooLong.into());
        }
        let written = self.process.space.write(self.call.result.address, bytes);
        written.map_err(|_| TransportError::BadAddress)?;
        Ok(Completion::value(bytes.len() as u64).into())
    }

    /// Refuses with a text that names what was wrong.
    pub fn refuse(&self, kind: Exception, why: fmt::Arguments<'_>) -> Outcome {
        let text = self.said(why);
        Ok(self.raise(kind, text.text()).into())
    }

    fn said(&self, why: fmt::Arguments<'_>) -> Said {
        let mut text = Said { length: 0, bytes: [0; SAID_BYTES] };
        // A text that does not fit is cut.
        let _ = text.write_fmt(why);
        text
    }

    /// The completion of an exception, with its text in the caller's buffer.
    fn raise(&self, kind: Exception, why: &[u8]) -> Completion {
        let text = &why[..why.len().min(self.call.result.length as usize)];
        let written = self.process.space.write(self.call.result.address, text).is_ok();
        let value = if written { text.len() as u64 } else { 0 };
        Completion { status: kind as i32, value, ..Completion::OK }
    }

    /// How many bytes of result the caller has room for.
    pub fn room(&self) -> usize {
        (self.call.result.length as usize).min(MAX_MESSAGE_BYTES)
    }

    /// Gives the caller a capability.
    fn give(&self, object: Object, rights: u16) -> Outcome {
        match self.process.insert_cap(Cap::new(object, rights, 0)) {
            Ok(id) => Ok(Completion { cap: id.0, ..Completion::OK }.into()),
            Err((error, _)) => Err(error.into()),
        }
    }

    /// Registers the caller's operation.
    pub fn register(&self, on: Waitable) -> Option<Waiter> {
        ring::accept(self.thread, self.user_data, on)
    }
}

/// The longest text of an exception that is formatted for one call.
const SAID_BYTES: usize = 96;

/// Such a text, on the stack.
struct Said {
    length: usize,
    bytes: [u8; SAID_BYTES],
}

impl Said {
    fn text(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Said {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.length += count;
        Ok(())
    }
}

/// Traits that the signatures above need.
mod capnp_traits {
    pub(super) use schema::traits::{FromPointerBuilder, HasStructSize, Owned};
}

/// Calls a method of `object`, with the parameters at `params`.
pub fn call(
    by: Submitter,
    user_data: u64,
    object: &Object,
    rights: u16,
    epoch: u64,
    call: &request::Call,
    params: Buffer,
) -> Result<Reply, TransportError> {
    let length = params.length as usize;
    if length > MAX_MESSAGE_BYTES || call.result.length as usize > MAX_MESSAGE_BYTES {
        return Err(TransportError::TooLong);
    }
    let process = ops::process_of(by);
    let context = MethodCall { thread: by.thread, process, user_data, call, rights, epoch };
    let outcome = if length <= SMALL_BYTES {
        let mut small = [0u64; SMALL_BYTES / 8];
        // SAFETY: bytes of an array of words.
        let bytes = unsafe { core::slice::from_raw_parts_mut(small.as_mut_ptr().cast::<u8>(), length) };
        process.space.read(params.address, bytes).map_err(|_| TransportError::BadAddress)?;
        dispatch(&context, object, bytes)
    } else {
        let mut large = Vec::new();
        large.try_reserve_exact(length).map_err(|_| TransportError::NoSpace)?;
        large.resize(length, 0);
        process.space.read(params.address, &mut large).map_err(|_| TransportError::BadAddress)?;
        dispatch(&context, object, &large)
    };
    match outcome {
        Ok(reply) => Ok(reply),
        Err(Refusal::Transport(error)) => Err(error),
        Err(Refusal::Quota(denied)) => {
            let why = context.said(format_args!("{denied}"));
            Ok(context.raise(Exception::Overloaded, why.text()).into())
        }
        Err(Refusal::Exception(kind, why)) => Ok(context.raise(kind, why.as_bytes()).into()),
    }
}

fn dispatch(c: &MethodCall<'_>, object: &Object, params: &[u8]) -> Outcome {
    match (object, c.call.method) {
        (Object::Timer, 0) => c.reply::<m::timer_now_results::Owned>(0, |mut r| r.set_ns(time::now_ns())),
        (Object::ThreadSpawner, 0) => create_thread(c, params),
        (Object::ThreadHandle(exit), 0) => join(c, exit),
        (Object::ThreadHandle(exit), 1) => {
            let code = exit.code();
            c.reply::<m::thread_handle_exit_code_results::Owned>(0, |mut r| {
                r.set_exited(code.is_some());
                r.set_exit_code(code.unwrap_or(0));
            })
        }
        (Object::ThreadControl, 0..=3) => control(c, params),
        (Object::ProcessSpawner, 0) => spawn::spawn(c, params),
        (Object::ProcessSpawner, 1) => sysinfo::programs(c, params),
        (Object::ProcessHandle(process), 0..=3) => handle(c, process),
        (Object::ProcessHandle(process), 4) => exit(c, process, params),
        (Object::VirtualMemory, 0..=2) => memory(c, params),
        (Object::MemoryObject(object), 0..=3) => object_memory(c, object, params),
        (Object::UserSession(session), 0..=4) => user_session(c, session, params),
        (Object::SystemInfo, 0..=6) => sysinfo::call(c, params),
        (Object::Factory, 0..=2) => factory(c, params),
        (Object::Power, 0) => {
            let message = schema::decode(params)?;
            power::off(message.root::<m::power_off_params::Reader<'_>>()?.get_status())
        }
        (Object::BootManifest, 0) => read_manifest(c, params),
        (Object::SchedulingPolicy(_), 0..=2) => policy::call(c, params),
        (Object::SchedulingContext(handle), 0..=10) => context::call(c, handle, c.epoch, params),
        _ => Err((Exception::Unimplemented, "the capability has no such method").into()),
    }
}

fn canonical(address: u64) -> bool {
    address < USER_END_VADDR
}

fn create_thread(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let p = message.root::<m::thread_spawner_create_params::Reader<'_>>()?;
    let (entry, stack, fs_base) = (p.get_entry(), p.get_stack_top(), p.get_fs_base());
    if !canonical(entry) || !canonical(stack) || !canonical(fs_base) {
        return Err((Exception::Failed, "entry, stack or FS base is not a user address").into());
    }
    if !stack.is_multiple_of(16) || stack == 0 {
        return Err((Exception::Failed, "the stack is not aligned to 16 bytes").into());
    }
    if p.get_flags() != 0 {
        return Err((Exception::Failed, "reserved flags are set").into());
    }
    // The slot for the handle first: nothing is created that could not be handed to the caller.
    let slot = c.process.reserve_cap()?;
    let start = Start { entry, stack, argument: p.get_arg() };
    match c.process.make_thread(start, fs_base, None, false) {
        Ok(new) => {
            let handle = Cap::new(Object::ThreadHandle(new.exit.clone()), rights::CALL, 0);
            let id = c.process.caps.lock().commit(slot, handle);
            new.start(Share::INHERITED);
            Ok(Completion { cap: id.0, ..Completion::OK }.into())
        }
        Err(error) => {
            c.process.caps.lock().abort(slot);
            Err(error.into())
        }
    }
}

fn join(c: &MethodCall<'_>, exit: &Arc<ThreadExit>) -> Outcome {
    if exit.target() == c.thread.reference() {
        return Err((Exception::Failed, "a thread cannot join itself").into());
    }
    match exit.join(|| c.register(Waitable::Join(exit.clone())))? {
        Some(code) => Ok(Completion { w: [code as u64, 0], ..Completion::OK }.into()),
        None => Ok(Reply::Later),
    }
}

fn control(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    match c.call.method {
        0 => {
            let base = c.thread.fs_base.get();
            c.reply::<m::thread_control_get_fs_base_results::Owned>(0, |mut r| r.set_fs_base(base))
        }
        1 => {
            let message = schema::decode(params)?;
            let base = message.root::<m::thread_control_set_fs_base_params::Reader<'_>>()?.get_fs_base();
            if !canonical(base) {
                return Err((Exception::Failed, "the FS base is not a user address").into());
            }
            c.thread.fs_base.set(base);
            crate::arch::features::set_fs_base(base);
            Ok(Completion::OK.into())
        }
        3 => {
            let message = schema::decode(params)?;
            let bytes = message.root::<m::thread_control_set_affinity_params::Reader<'_>>()?.get_cpus()?;
            let cpus = sched::CpuMask::from_bytes(bytes)
                .map_err(|_| (Exception::InvalidArgument, "the CPU mask is not canonical"))?;
            crate::dispatch::set_affinity(cpus)
                .map_err(|_| (Exception::InvalidArgument, "no CPU of the mask is online"))?;
            Ok(Completion::OK.into())
        }
        _ => {
            let message = schema::decode(params)?;
            Ok(Reply::Exit(message.root::<m::thread_control_exit_thread_params::Reader<'_>>()?.get_code()))
        }
    }
}

/// The schema's word for a reason.
pub fn reason_word(reason: Reason) -> m::ExitReason {
    match reason {
        Reason::Exited => m::ExitReason::Exited,
        Reason::Killed => m::ExitReason::Killed,
        Reason::Faulted => m::ExitReason::Faulted,
    }
}

fn handle(c: &MethodCall<'_>, process: &Arc<Process>) -> Outcome {
    match c.call.method {
        0 if Arc::ptr_eq(process, c.process) => {
            Err((Exception::Failed, "a process cannot wait for its own end").into())
        }
        0 => match process.wait(c.process.pid, || c.register(Waitable::Exit(process.clone()))) {
            Ok(Some((code, reason))) => {
                Ok(Completion { w: [code as u64, reason as u64], ..Completion::OK }.into())
            }
            Ok(None) => Ok(Reply::Later),
            Err(why) => Err((Exception::Overloaded, why).into()),
        },
        1 => {
            if process.ended().is_some() {
                return Err((Exception::Failed, "the process has ended").into());
            }
            process.kill(-9, Reason::Killed);
            Ok(Completion::OK.into())
        }
        2 => sysinfo::process(c, process),
        _ => {
            let ended = process.ended();
            c.reply::<m::process_handle_exit_code_results::Owned>(0, |mut r| {
                r.set_exited(ended.is_some());
                if let Some((code, reason)) = ended {
                    r.set_exit_code(code);
                    r.set_reason(reason_word(reason));
                }
            })
        }
    }
}

/// ProcessHandle.exit: a process ends itself, all threads, with a code of its own.
fn exit(c: &MethodCall<'_>, process: &Arc<Process>, params: &[u8]) -> Outcome {
    if !Arc::ptr_eq(process, c.process) {
        return Err((Exception::InvalidArgument, "a process exits itself; others kill it").into());
    }
    let message = schema::decode(params)?;
    let code = message.root::<m::thread_control_exit_thread_params::Reader<'_>>()?.get_code();
    process.kill(code, Reason::Exited);
    Ok(Reply::Exit(code))
}

fn memory(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let space = &c.process.space;
    match c.call.method {
        0 => {
            let p = message.root::<m::virtual_memory_map_params::Reader<'_>>()?;
            let access = Access { writable: p.get_writable(), executable: p.get_executable() };
            c.expects::<m::virtual_memory_map_results::Owned>()?;
            let address = space.map_anonymous(p.get_addr(), p.get_bytes(), access)?;
            c.reply::<m::virtual_memory_map_results::Owned>(0, |mut r| r.set_addr(address))
        }
        1 => {
            let p = message.root::<m::virtual_memory_unmap_params::Reader<'_>>()?;
            space.unmap(p.get_addr(), p.get_bytes(), None)?;
            Ok(Completion::OK.into())
        }
        _ => {
            let p = message.root::<m::virtual_memory_protect_params::Reader<'_>>()?;
            let access = Access { writable: p.get_writable(), executable: p.get_executable() };
            space.protect(p.get_addr(), p.get_bytes(), access, None)?;
            Ok(Completion::OK.into())
        }
    }
}

fn object_memory(c: &MethodCall<'_>, object: &Arc<MemoryObject>, params: &[u8]) -> Outcome {
    let space = &c.process.space;
    let access = |writable: bool| {
        if writable && c.rights & rights::WRITE == 0 {
            Err(SpaceError::ReadOnly)
        } else {
            Ok(Access { writable, executable: false })
        }
    };
    if c.call.method == 3 {
        let bytes = object.frames().len() as u64 * 4096;
        return c.reply::<m::memory_object_info_results::Owned>(0, |mut r| r.set_bytes(bytes));
    }
    let object: &Arc<dyn SharedFrames> = &(object.clone() as Arc<dyn SharedFrames>);
    let message = schema::decode(params)?;
    match c.call.method {
        0 => {
            let p = message.root::<m::memory_object_map_params::Reader<'_>>()?;
            let access = access(p.get_writable())?;
            c.expects::<m::memory_object_map_results::Owned>()?;
            let address = space.map_object(p.get_addr(), object, p.get_offset(), p.get_bytes(), access)?;
            c.reply::<m::memory_object_map_results::Owned>(0, |mut r| r.set_addr(address))
        }
        1 => {
            let p = message.root::<m::memory_object_unmap_params::Reader<'_>>()?;
            space.unmap(p.get_addr(), p.get_bytes(), Some(object))?;
            Ok(Completion::OK.into())
        }
        _ => {
            let p = message.root::<m::memory_object_protect_params::Reader<'_>>()?;
            space.protect(p.get_addr(), p.get_bytes(), access(p.get_writable())?, Some(object))?;
            Ok(Completion::OK.into())
        }
    }
}

fn user_session(c: &MethodCall<'_>, session: &Arc<Session>, params: &[u8]) -> Outcome {
    match c.call.method {
        2 => return sysinfo::processes(c, params, Some(session)),
        3 => return kill_in(session, params),
        4 => return sysinfo::quotas(c, session),
        _ => {}
    }
    if c.call.method == 1 {
        let was_live = session.logout();
        let result = if was_live { m::OperationResult::Ok } else { m::OperationResult::AlreadyRevoked };
        let done =
            if was_live { crate::context::logout(session) } else { crate::context::LoggedOut::default() };
        return c.reply::<m::user_session_logout_results::Owned>(0, |mut r| {
            r.set_result(result);
            r.set_stale_marked(done.stale_marked);
            r.set_donation_inflight_skipped(done.donation_inflight_skipped);
        });
    }
    let name = session.name.as_str();
    c.reply::<m::user_session_info_results::Owned>(schema::words::text(name.len()), |mut r| {
        r.set_id(session.id);
        r.set_name(name);
        r.set_live(session.live.load(Ordering::Relaxed));
    })
}

/// UserSession.kill: ends a process of the session, whoever started it.
fn kill_in(session: &Session, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let pid = message.root::<m::user_session_kill_params::Reader<'_>>()?.get_pid();
    let process = crate::process::get(pid).filter(|process| session.holds(&process.session));
    let process = process.ok_or((Exception::Failed, "no process of the session has this number"))?;
    process.kill(-9, Reason::Killed);
    Ok(Completion::OK.into())
}

fn factory(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    match c.call.method {
        0 => {
            let endpoint = Endpoint::new(c.process.ledger.clone()).map_err(Refusal::Quota)?;
            let endpoint = heap::try_arc(endpoint).map_err(|_| SpaceError::OutOfMemory)?;
            c.give(Object::Endpoint(endpoint), rights::ALL)
        }
        1 => {
            let message = schema::decode(params)?;
            let bytes = message.root::<m::factory_create_memory_object_params::Reader<'_>>()?.get_bytes();
            let pages = bytes / 4096;
            if bytes == 0 || !bytes.is_multiple_of(4096) || pages > MAX_OBJECT_PAGES {
                return Err((Exception::InvalidArgument, "a memory object has 1 to 16384 whole pages").into());
            }
            let object = MemoryObject::new(pages, c.process)?;
            let object = heap::try_arc(object).map_err(|_| SpaceError::OutOfMemory)?;
            c.give(Object::MemoryObject(object), rights::ALL)
        }
        _ => {
            let message = schema::decode(params)?;
            let p = message.root::<m::factory_create_session_params::Reader<'_>>()?;
            let name = Name::new(p.get_name()?.to_str()?)
                .ok_or((Exception::InvalidArgument, "a session has a name of 1 to 24 printable bytes"))?;
            let limits = p.get_limits()?;
            let mut asked = [0; KINDS];
            if limits.len() as usize > KINDS {
                return Err((Exception::InvalidArgument, "a session has six quotas").into());
            }
            for (asked, limit) in asked.iter_mut().zip(limits) {
                *asked = limit;
            }
            let session = Session::inside(&c.process.session, name, p.get_guest(), asked).map_err(
                |error| match error {
                    NoSession::TooDeep => {
                        (Exception::Overloaded, "a session inside so many others cannot have more inside")
                            .into()
                    }
                    NoSession::Quota(denied) => Refusal::Quota(denied),
                },
            )?;
            let session = heap::try_arc(session).map_err(|_| SpaceError::OutOfMemory)?;
            c.give(Object::UserSession(session), rights::ALL)
        }
    }
}

fn read_manifest(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let offset = message.root::<m::boot_manifest_read_params::Reader<'_>>()?.get_offset();
    let all = image::manifest_bytes();
    let rest = usize::try_from(offset).ok().and_then(|offset| all.get(offset..));
    let rest = rest.ok_or((Exception::InvalidArgument, "the offset is behind the manifest's end"))?;
    let overhead = (schema::words::message::<m::boot_manifest_read_results::Owned>() + 1) * 8;
    let piece = &rest[..rest.len().min(c.room().saturating_sub(overhead))];
    c.reply_long::<m::boot_manifest_read_results::Owned>(schema::words::data(piece.len()), |mut r| {
        r.set_total(all.len() as u64);
        r.set_bytes(piece);
    })
}
