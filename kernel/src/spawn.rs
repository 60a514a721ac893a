//! Creating a process: its program, its stack, its boot information, and the capabilities that it is granted.

use crate::context;
use crate::methods::policy;
use crate::methods::{MethodCall, Outcome, Refusal};
use crate::mm::frames::{self, FRAME_BYTES, Frame};
use crate::mm::space::{Access, Backing};
use crate::object::{Cap, Object};
use crate::ops::Reply;
use crate::policy::{Gate, Share};
use crate::preempt::{self, Pacer};
use crate::process::records::Start;
use crate::process::{MakeError, Name, NewThread, Process};
use crate::ring::Completion;
use crate::session::Session;
use crate::thread;
use abi::{
    BOOTINFO_MAGIC, BOOTINFO_VADDR, CAPSET_MAGIC, CAPSET_MAX, CAPSET_VADDR, CapId, CapSetEntry, CapSetHeader,
    Exception, Interface, MAX_ARGS_BYTES, RuntimeBootInfo, STACK_BYTES, STACK_TOP_VADDR, rights,
};
use alloc::sync::Arc;
use alloc::vec::Vec;
use kcore::elf::Program;
use sched::{LatencyClass, Spec, Weight};
use schema::messages_capnp as m;

/// How many bytes of a program are copied between two preemption points.
const FILL_BYTES: usize = 32 << 10;

/// A capability that is granted to a new process, with its name.
pub struct Gift {
    /// The name.
    pub name: Name,
    /// The capability.
    pub cap: Cap,
}

/// ProcessSpawner.spawn.
pub fn spawn(c: &MethodCall<'_>, params: &[u8]) -> Outcome {
    let message = schema::decode(params)?;
    let p = message.root::<m::process_spawner_spawn_params::Reader<'_>>()?;
    let program = p.get_program()?.to_str()?;
    let name = p.get_name()?.to_str()?;
    let name = Name::new(if name.is_empty() { program } else { name })
        .ok_or((Exception::InvalidArgument, "a process has a name of 1 to 24 printable bytes"))?;
    let args = p.get_args()?;
    if args.len() > MAX_ARGS_BYTES || args.last().is_some_and(|last| *last != 0) {
        return Err(
            (Exception::InvalidArgument, "arguments are at most 2048 bytes, each ended by a NUL").into()
        );
    }
    let grants = p.get_grants()?;
    let mut gifts = Vec::new();
    // One more, for the process's own handle.
    gifts.try_reserve(grants.len() as usize + 1).map_err(|_| MakeError::Memory)?;
    let mut session = c.process.session.clone();
    let mut pacer = Pacer::of_wakes();
    for grant in grants {
        let name = Name::new(grant.get_name()?.to_str()?)
            .ok_or((Exception::InvalidArgument, "a grant has a name of 1 to 24 printable bytes"))?;
        let cap = grantable(c, grant.get_cap(), grant.get_rights(), grant.get_badge())?;
        if let Ok(Object::UserSession(own)) = cap.object() {
            session = own.clone();
        }
        gifts.push(Gift { name, cap });
        pacer.step();
    }
    let share = match policy::chosen(c, &p) {
        Ok(share) => share,
        Err(answer) => return answer,
    };
    let template = match template(c, &p) {
        Ok(template) => template,
        Err(answer) => return answer,
    };
    // The result's buffer and the slot for the handle first: nothing is created that could not be handed to the caller.
    c.expects::<m::process_spawner_spawn_results::Owned>()?;
    let slot = c.process.reserve_cap()?;
    let birth = Birth { name, parent: c.process.pid, session, share, template };
    let made = make(program, birth, args, gifts);
    match made {
        Ok(process) => {
            let handle = Cap::new(Object::ProcessHandle(process.clone()), rights::ALL, 0);
            let id = c.process.caps.lock().commit(slot, handle);
            let reply = c.reply::<m::process_spawner_spawn_results::Owned>(0, |mut r| r.set_pid(process.pid));
            match reply {
                Ok(Reply::Now(completion)) => Ok(Completion { cap: id.0, ..completion }.into()),
                other => other,
            }
        }
        Err(refusal) => {
            c.process.caps.lock().abort(slot);
            Err(refusal)
        }
    }
}

/// The specification of the context that every thread of the child is to have. An `Err` is the answer to the caller.
fn template(
    c: &MethodCall<'_>,
    p: &m::process_spawner_spawn_params::Reader<'_>,
) -> Result<Option<Spec>, Outcome> {
    let spec = match p.get_template() {
        Ok(spec) => spec,
        Err(error) => return Err(Err(error.into())),
    };
    if spec.get_budget_ns() == 0 && spec.get_period_ns() == 0 {
        return Ok(None);
    }
    if let Err(refused) = crate::methods::context::may_create(c, p.get_context(), spec.get_criticality()) {
        return Err(Err(refused.into()));
    }
    let (spec, timeout) = crate::methods::context::spec_of(c, &spec)?;
    if timeout.is_some() {
        return Err(Err((Exception::InvalidArgument, "threads of a template cannot fault").into()));
    }
    Ok(Some(spec))
}

/// The caller's capability `raw` as it may be given to a child, with rights that it has. Capabilities that work only in their own process are made
/// anew.
fn grantable(c: &MethodCall<'_>, raw: u32, wanted: u16, badge: u32) -> Result<Cap, Refusal> {
    if let Some(cap) = own(raw, wanted) {
        return Ok(cap);
    }
    let caps = c.process.caps.lock();
    let cap =
        caps.get(CapId(raw)).ok_or((Exception::InvalidArgument, "a granted capability does not exist"))?;
    let object = cap.object().map_err(|_| (Exception::Disconnected, "a granted capability was revoked"))?;
    let own = matches!(object, Object::ThreadSpawner | Object::ThreadControl);
    if wanted & !cap.rights != 0 || !own && (cap.rights & rights::GRANT == 0 || !object.is_transferable()) {
        return Err((
            Exception::InvalidArgument,
            "a granted capability may not be passed on, or not with these rights",
        )
            .into());
    }
    if badge != 0 && cap.badge != 0 && badge != cap.badge {
        return Err((Exception::InvalidArgument, "a badged capability keeps its badge").into());
    }
    Ok(cap.derive(wanted, badge))
}

/// Objects that give a process power over nobody but itself, and are charged to itself, may be granted by any process: they are named by generation
/// 0 and the number of the interface. (No capability has generation 0.)
fn own(raw: u32, wanted: u16) -> Option<Cap> {
    let interface = Interface::from_raw(u16::try_from(raw).ok()?)?;
    let allowed =
        [Interface::ThreadSpawner, Interface::ThreadControl, Interface::ParkSpace, Interface::VirtualMemory];
    let object = Object::stateless(interface).filter(|_| allowed.contains(&interface))?;
    Some(Cap::new(object, wanted & (rights::CALL | rights::GRANT), 0))
}

/// What is fixed when a process is created.
pub struct Birth {
    /// Its name.
    pub name: Name,
    /// The process that starts it.
    pub parent: u32,
    /// The session that it belongs to.
    pub session: Arc<Session>,
    /// The share of its first thread.
    pub share: Share,
    /// The specification of the context that each of its threads gets.
    pub template: Option<Spec>,
}

/// Creates a process and starts its first thread.
pub fn make(program: &str, birth: Birth, args: &[u8], gifts: Vec<Gift>) -> Result<Arc<Process>, Refusal> {
    if gifts.len() >= CAPSET_MAX {
        return Err((Exception::InvalidArgument, "too many grants").into());
    }
    let (bytes, frame) = crate::image::program(program)
        .ok_or((Exception::Failed, "there is no such program; ProcessSpawner.programs lists them"))?;
    let elf =
        kcore::elf::parse(bytes).map_err(|_| (Exception::Failed, "the program is not a valid executable"))?;
    // Does nothing at boot, when there is no thread.
    preempt::point();
    // A guest gets none of the memory that is kept back for operators, whoever starts it.
    let _behalf = thread::on_behalf_of(birth.session.is_guest);
    let process = Process::new(birth.name, birth.parent, birth.session, birth.template)?;
    preempt::point();
    match furnish(&process, &elf, frame, args, gifts) {
        Ok(first) => first.start(birth.share),
        Err(refusal) => {
            process.abandon();
            return Err(refusal);
        }
    }
    Ok(process)
}

fn furnish(
    process: &Arc<Process>,
    elf: &Program<'_>,
    image: Frame,
    args: &[u8],
    gifts: Vec<Gift>,
) -> Result<NewThread, Refusal> {
    for segment in elf.segments() {
        load_segment(process, &segment, image)?;
        preempt::point();
    }
    let stack = STACK_TOP_VADDR - STACK_BYTES;
    process.space.map_fixed(stack, STACK_BYTES, Access::WRITE, Backing::Zero)?;
    preempt::point();
    put_boot_info(process, elf, args)?;
    put_capset(process, gifts)?;
    preempt::point();
    let start = Start { entry: elf.entry, stack: STACK_TOP_VADDR, argument: BOOTINFO_VADDR };
    Ok(process.make_thread(start, 0, Some(abi::RING_VADDR), true)?)
}

/// Loads a segment: read-only pages come straight from the boot image, writable ones are copies.
fn load_segment(process: &Process, segment: &kcore::elf::Segment<'_>, image: Frame) -> Result<(), Refusal> {
    let start = segment.vaddr & !(FRAME_BYTES - 1);
    let end = (segment.vaddr + segment.mem_bytes).next_multiple_of(FRAME_BYTES);
    let access = Access { writable: segment.writable, executable: segment.executable };
    let file_pages = (segment.vaddr - start + segment.file.len() as u64).div_ceil(FRAME_BYTES);
    if !segment.writable && file_pages * FRAME_BYTES == end - start {
        let first = image.0 + (segment.file_offset & !(FRAME_BYTES - 1));
        process.space.map_fixed(start, end - start, access, Backing::Image(Frame(first)))?;
        return Ok(());
    }
    process.space.map_fixed(start, end - start, access, Backing::Zero)?;
    for (i, piece) in segment.file.chunks(FILL_BYTES).enumerate() {
        process.space.fill(segment.vaddr + (i * FILL_BYTES) as u64, piece).map_err(|_| MakeError::Memory)?;
        preempt::point();
    }
    Ok(())
}

/// Maps a page that the kernel fills and the process can only read.
fn put_page(process: &Process, address: u64, parts: &[(usize, &[u8])]) -> Result<(), Refusal> {
    process.space.map_fixed(address, FRAME_BYTES, Access::READ, Backing::Zero)?;
    for (offset, bytes) in parts {
        process.space.fill(address + *offset as u64, bytes).map_err(|_| MakeError::Memory)?;
    }
    Ok(())
}

fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the structures of the ABI have no padding: their fields are numbers that fill them.
    unsafe { core::slice::from_raw_parts((value as *const T).cast(), size_of::<T>()) }
}

fn put_boot_info(process: &Process, elf: &Program<'_>, args: &[u8]) -> Result<(), Refusal> {
    let tls = elf.tls;
    let info = RuntimeBootInfo {
        magic: BOOTINFO_MAGIC,
        ring_addr: abi::RING_VADDR,
        ring_abi_version: abi::RING_ABI_VERSION,
        sqe_size: size_of::<abi::Sqe>() as u32,
        cqe_size: size_of::<abi::Cqe>() as u32,
        args_len: args.len() as u32,
        tls_image: tls.map_or(0, |tls| tls.vaddr),
        tls_file_bytes: tls.map_or(0, |tls| tls.file_bytes),
        tls_bytes: tls.map_or(0, |tls| tls.mem_bytes),
        tls_align: tls.map_or(1, |tls| tls.align),
        cpus: crate::dispatch::percpu::count() as u32,
        pid: process.pid,
        name: process.name.0,
    };
    put_page(process, BOOTINFO_VADDR, &[(0, bytes_of(&info)), (size_of::<RuntimeBootInfo>(), args)])
}

fn put_capset(process: &Arc<Process>, mut gifts: Vec<Gift>) -> Result<(), Refusal> {
    // A handle to itself, so that a panic in one thread can end all threads. It is dropped with the other capabilities when the process ends.
    let this = Cap::new(Object::ProcessHandle(process.clone()), rights::CALL, 0);
    // K-30: the callers of `make` left room for it.
    gifts.push(Gift { name: Name::new("self").ok_or(MakeError::Memory)?, cap: this });
    let header = CapSetHeader { magic: CAPSET_MAGIC, count: gifts.len() as u32, reserved: 0 };
    put_page(process, CAPSET_VADDR, &[(0, bytes_of(&header))])?;
    let mut pacer = Pacer::of_wakes();
    for (i, Gift { name, cap }) in gifts.into_iter().enumerate() {
        let (interface, rights) = (cap.interface(), cap.rights);
        let id = process.insert_cap(cap).map_err(|(error, _)| error)?;
        let entry = CapSetEntry { name: name.0, cap: id, interface: interface as u16, rights };
        let at = CAPSET_VADDR + (size_of::<CapSetHeader>() + i * size_of::<CapSetEntry>()) as u64;
        process.space.fill(at, bytes_of(&entry)).map_err(|_| MakeError::Memory)?;
        pacer.step();
    }
    Ok(())
}

/// Starts `init` with what the manifest grants it. At boot, before anything else uses memory (K-30).
pub fn boot(manifest: &image::Manifest<'_>) -> Result<Arc<Process>, &'static str> {
    let init = manifest.processes().next().ok_or("the manifest has no process")?;
    let name = Name::new(init.name).ok_or("init's name is too long")?;
    let session_name = Name::new(init.session.unwrap_or("system")).ok_or("the session's name is too long")?;
    let session = Arc::new(Session::of_machine(session_name));
    frames::keep_back();
    let gate = Arc::new(Gate::new());
    let mut gifts = Vec::new();
    for grant in init.grants() {
        let object = match grant.interface {
            Interface::UserSession => Object::UserSession(session.clone()),
            Interface::SchedulingPolicy => Object::SchedulingPolicy(gate.clone()),
            Interface::SchedulingContext => {
                Object::SchedulingContext(context::root(&session).ok_or("no memory for the first context")?)
            }
            interface => {
                Object::stateless(interface).ok_or("init is granted an object that does not exist yet")?
            }
        };
        let name = Name::new(grant.name).ok_or("a grant's name is too long")?;
        gifts.push(Gift { name, cap: Cap::new(object, grant.rights, grant.badge) });
    }
    let mut args = Vec::new();
    for arg in init.args() {
        args.extend_from_slice(arg.as_bytes());
        args.push(0);
    }
    let (weight, class) = init.share();
    let weight = Weight::new(weight).map_err(|_| "init's weight is out of range")?;
    let share = Share { weight: Some(weight), class: LatencyClass::ALL.get(class as usize).copied() };
    let birth = Birth { name, parent: 0, session, share, template: None };
    make(init.program, birth, &args, gifts).map_err(|refusal| match refusal {
        Refusal::Exception(_, why) => why,
        Refusal::Transport(_) | Refusal::Quota(_) => "init does not start",
    })
}
