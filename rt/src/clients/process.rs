//! Processes.

use alloc_crate::string::{String, ToString};
use alloc_crate::vec::Vec;

use abi::{CapId, Interface, LatencyClass, Op, Sqe, TransportError, rights};
use schema::messages_capnp::{
    ExitReason, ProcessState, grant, list_params, process_handle_exit_code_results,
    process_handle_info_results, process_info, process_spawner_programs_results,
    process_spawner_spawn_params, process_spawner_spawn_results, thread_control_exit_thread_params,
};
use schema::words;

use super::call::{RESULTS_BYTES, call, invoke, invoke_with, read};
use super::{SchedulingContext, Spec};
use crate::caps::{Cap, entry};
use crate::error::{Error, Result};
use crate::pending::Pending;
use crate::tls;

super::client!(ProcessSpawner, "Makes processes from the programs of the boot image.");
super::client!(ProcessHandle, "One process.");

/// A process to be started: program, arguments, and what it is granted.
#[derive(Debug)]
pub struct Command<'a> {
    program: &'a str,
    name: &'a str,
    args: Vec<u8>,
    grants: Vec<Grant<'a>>,
    weight: u32,
    class: u16,
    policy: Option<CapId>,
    template: Option<(Spec, CapId)>,
}

#[derive(Debug)]
struct Grant<'a> {
    name: &'a str,
    cap: CapId,
    rights: u16,
    badge: u32,
}

impl<'a> Command<'a> {
    /// Runs `program` of the boot image, without arguments and without any capability.
    pub fn new(program: &'a str) -> Command<'a> {
        Command {
            program,
            name: "",
            args: Vec::new(),
            grants: Vec::new(),
            weight: abi::WEIGHT_INHERIT,
            class: abi::CLASS_INHERIT,
            policy: None,
            template: None,
        }
    }

    /// Gives the process another name than the program's.
    pub fn name(mut self, name: &'a str) -> Command<'a> {
        self.name = name;
        self
    }

    /// One more argument. Text after a NUL is left out: arguments end there.
    pub fn arg(mut self, arg: &str) -> Command<'a> {
        self.args.extend(arg.bytes().take_while(|&byte| byte != 0));
        self.args.push(0);
        self
    }

    /// The weight of its first thread, from 1 to 1024, instead of the calling thread's. Needs a [`super::SchedulingPolicy`].
    pub fn weight(mut self, weight: u16) -> Command<'a> {
        self.weight = weight.into();
        self
    }

    /// The latency class of its first thread instead of the calling thread's. Needs a [`super::SchedulingPolicy`].
    pub fn class(self, class: LatencyClass) -> Command<'a> {
        self.class_raw(class as u16)
    }

    /// As [`Command::class`], with any number that a message can hold.
    pub fn class_raw(mut self, class: u16) -> Command<'a> {
        self.class = class;
        self
    }

    /// Weight and class are set with this SchedulingPolicy rather than with the first one that this process was granted.
    pub fn policy(mut self, policy: &Cap) -> Command<'a> {
        self.policy = Some(policy.id());
        self
    }

    /// Each of its threads gets a context of its own with this specification, or is not created. Needs a context that may create
    /// others.
    pub fn template(self, spec: Spec, context: &SchedulingContext) -> Command<'a> {
        self.template_raw(spec, context.0.id())
    }

    /// As [`Command::template`], with any number that a message can hold.
    pub fn template_raw(mut self, spec: Spec, context: CapId) -> Command<'a> {
        self.template = Some((spec, context));
        self
    }

    /// One more capability: the child finds it as `name`, with `rights` (a part of ours) and `badge` (0 keeps ours).
    ///
    /// Capabilities that each process has for itself are not passed on: see [`Command::grant_own`].
    pub fn grant(mut self, name: &'a str, cap: &Cap, rights: u16, badge: u32) -> Command<'a> {
        self.grants.push(Grant { name, cap: cap.id(), rights, badge });
        self
    }

    /// One more capability that is the child's own: a ThreadSpawner, ThreadControl, ParkSpace or VirtualMemory for itself. The parent
    /// need not have one; to the kernel it is a number that no capability has, with the interface as its index.
    pub fn grant_own(mut self, name: &'a str, interface: Interface, rights: u16) -> Command<'a> {
        self.grants.push(Grant { name, cap: CapId::new(interface as u16, 0), rights, badge: 0 });
        self
    }

    /// Everything that a program needs for itself, under the names of manifests: threads, memory, locks.
    pub fn grant_basics(self) -> Command<'a> {
        self.grant_own("thread_control", Interface::ThreadControl, rights::CALL)
            .grant_own("thread_spawner", Interface::ThreadSpawner, rights::CALL)
            .grant_own("virtual_memory", Interface::VirtualMemory, rights::CALL)
            .grant_own("park", Interface::ParkSpace, rights::CALL)
    }

    /// Grants everything that this process was started with, under the same names and with the same rights, except what `is_left_out`
    /// says and the handle to the process itself: each process has its own.
    pub fn grant_all(self, is_left_out: impl Fn(&abi::CapSetEntry) -> bool) -> Command<'a> {
        self.grant_each(|entry| (!is_left_out(entry)).then_some(entry.rights))
    }

    /// As [`Command::grant_all`], each with the rights that `rights` says, or not at all.
    pub fn grant_each(mut self, rights: impl Fn(&abi::CapSetEntry) -> Option<u16>) -> Command<'a> {
        for entry in crate::caps::granted() {
            let name = crate::caps::name_of(entry);
            let Some(rights) = rights(entry).filter(|_| name != "self") else { continue };
            let cap = if is_own(entry.interface) { CapId::new(entry.interface, 0) } else { entry.cap };
            self.grants.push(Grant { name, cap, rights, badge: 0 });
        }
        self
    }

    /// Starts it.
    pub fn spawn(&self, spawner: &ProcessSpawner) -> Result<Child> {
        let texts =
            words::text(self.program.len()) + words::text(self.name.len()) + words::data(self.args.len());
        let grants: usize = self.grants.iter().map(|grant| words::text(grant.name.len())).sum();
        let template = self.template.map_or(0, |(spec, _)| spec.words());
        let more = texts + words::structures::<grant::Owned>(self.grants.len()) + grants + template;
        let mut params = alloc_crate::vec![0; abi::MAX_MESSAGE_BYTES];
        let len = schema::encode::<process_spawner_spawn_params::Owned>(&mut params, more, |params| {
            self.fill(params)
        })
        .map_err(|_| TransportError::TooLong)?;
        let mut room = [0; RESULTS_BYTES];
        let results = call(&tls::current().client, spawner.0.id(), 0, &params[..len], &mut room)?;
        let handle = ProcessHandle(results.cap()?);
        let pid = read::<_, process_spawner_spawn_results::Owned>(results.bytes, |results| {
            Some(results.get_pid())
        })?;
        Ok(Child { pid, handle })
    }

    fn fill(&self, mut params: process_spawner_spawn_params::Builder<'_>) {
        params.set_program(self.program);
        params.set_name(self.name);
        params.set_args(&self.args);
        params.set_weight(self.weight);
        params.set_class(self.class);
        if self.weight != abi::WEIGHT_INHERIT || self.class != abi::CLASS_INHERIT {
            let granted =
                || crate::caps::any::<super::SchedulingPolicy>().map_or(CapId::NONE, |any| any.0.id());
            params.set_policy(self.policy.unwrap_or_else(granted).0);
        }
        if let Some((spec, context)) = self.template {
            params.set_context(context.0);
            spec.fill(params.reborrow().init_template());
        }
        let mut list = params.init_grants(self.grants.len() as u32);
        for (index, grant) in self.grants.iter().enumerate() {
            let mut entry = list.reborrow().get(index as u32);
            entry.set_name(grant.name);
            entry.set_cap(grant.cap.0);
            entry.set_rights(grant.rights);
            entry.set_badge(grant.badge);
        }
    }
}

/// Whether each process has its own capability of this interface.
fn is_own(interface: u16) -> bool {
    let own =
        [Interface::ThreadSpawner, Interface::ThreadControl, Interface::ParkSpace, Interface::VirtualMemory];
    own.iter().any(|own| *own as u16 == interface)
}

/// A process that was started.
#[derive(Debug)]
pub struct Child {
    /// Its number.
    pub pid: u32,
    /// Its handle. Dropped, the process runs on.
    pub handle: ProcessHandle,
}

impl Child {
    /// Waits until it has ended.
    pub fn wait(&self) -> Result<Exit> {
        self.handle.wait()
    }
}

impl ProcessSpawner {
    /// The names of all programs that can be run.
    pub fn programs(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let mut room = alloc_crate::vec![0; abi::MAX_MESSAGE_BYTES];
        loop {
            let start = names.len() as u32;
            let results = invoke_with::<list_params::Owned>(self.0.id(), 1, &mut room, |mut params| {
                params.set_start(start);
            })?;
            let has_more = read::<_, process_spawner_programs_results::Owned>(results.bytes, |results| {
                for name in results.get_names().ok()? {
                    names.push(name.ok()?.to_str().ok()?.to_string());
                }
                Some(results.get_more())
            })?;
            if !has_more {
                return Ok(names);
            }
            if names.len() as u32 == start {
                return Err(Error::BadReply);
            }
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exit {
    /// Its exit code.
    pub code: i64,
    /// Why it ended.
    pub reason: ExitReason,
}

impl Exit {
    /// Whether it ended by itself, with code 0.
    pub fn is_success(&self) -> bool {
        self.code == 0 && self.reason == ExitReason::Exited
    }
}

impl core::fmt::Display for Exit {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.reason {
            ExitReason::Exited => write!(f, "exit code {}", self.code),
            ExitReason::Killed => f.write_str("killed"),
            ExitReason::Faulted => write!(f, "faulted (code {})", self.code),
        }
    }
}

/// A process as it is now.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Its number.
    pub pid: u32,
    /// How often its number was used.
    pub generation: u32,
    /// The process that started it.
    pub parent: u32,
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: ProcessState,
    /// Threads that it has.
    pub threads: u32,
    /// Time on CPUs.
    pub runtime_ns: u64,
    /// Frames of memory.
    pub frames: u64,
    /// Capabilities.
    pub caps: u32,
    /// The session that it belongs to; 0 is none.
    pub session: u64,
}

impl ProcessInfo {
    pub(super) fn of(info: process_info::Reader<'_>) -> Option<ProcessInfo> {
        Some(ProcessInfo {
            pid: info.get_pid(),
            generation: info.get_generation(),
            parent: info.get_parent(),
            name: info.get_name().ok()?.to_str().ok()?.into(),
            state: info.get_state().ok()?,
            threads: info.get_threads(),
            runtime_ns: info.get_runtime_ns(),
            frames: info.get_frames(),
            caps: info.get_caps(),
            session: info.get_session(),
        })
    }
}

impl ProcessHandle {
    /// Waits until it has ended.
    pub fn wait(&self) -> Result<Exit> {
        let mut room = [0; RESULTS_BYTES];
        exit_of(&invoke(self.0.id(), 0, &mut room)?.words)
    }

    /// Starts to wait until it has ended.
    pub fn wait_start(&self) -> Result<Pending<Exit>> {
        let sqe = Sqe { method: 0, ..entry(Op::Call, self.0.id()) };
        Pending::start(sqe, Vec::new(), alloc_crate::vec![0; RESULTS_BYTES], |cqe, _| exit_of(&cqe.w))
    }

    /// Ends it.
    pub fn kill(&self) -> Result<()> {
        let mut room = [0; RESULTS_BYTES];
        invoke(self.0.id(), 1, &mut room)?;
        Ok(())
    }

    /// What it is doing.
    pub fn info(&self) -> Result<ProcessInfo> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 2, &mut room)?;
        read::<_, process_handle_info_results::Owned>(results.bytes, |results| {
            ProcessInfo::of(results.get_info().ok()?)
        })
    }

    /// How it ended, if it has.
    pub fn exit(&self) -> Result<Option<Exit>> {
        let mut room = [0; RESULTS_BYTES];
        let results = invoke(self.0.id(), 3, &mut room)?;
        read::<_, process_handle_exit_code_results::Owned>(results.bytes, |results| {
            let exit = Exit { code: results.get_exit_code(), reason: results.get_reason().ok()? };
            Some(results.get_exited().then_some(exit))
        })
    }
}

/// Ends this process, all threads, with `code`; returns only if the kernel refuses.
pub(crate) fn exit_process(code: i64) -> Result<core::convert::Infallible> {
    const EXIT: u32 = schema::methods::process_handle::EXIT;
    let this: ProcessHandle = crate::caps::get("self")?;
    let mut room = [0; RESULTS_BYTES];
    invoke_with::<thread_control_exit_thread_params::Owned>(this.0.id(), EXIT, &mut room, |mut params| {
        params.set_code(code);
    })?;
    Err(Error::BadReply)
}

/// The answer to a wait comes in the completion itself: code and reason.
fn exit_of(words: &[u64; 2]) -> Result<Exit> {
    let reason = ExitReason::try_from(words[1] as u16).map_err(|_| Error::BadReply)?;
    Ok(Exit { code: words[0] as i64, reason })
}
