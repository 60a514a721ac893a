//! The first process: starts the processes of the boot manifest, in its order, and powers off when a critical process ends.
//!
//! Endpoints, memory objects and scheduling contexts that grants name are created here, once for each name; sessions, too. Every other
//! granted capability init holds itself and passes on. If no process is critical, init powers off when all have ended.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;

use image::{Manifest, Process};
use rt::abi::Interface;
use rt::{
    BootManifest, Cap, Child, Client, Command, Endpoint, Error, Exit, Factory, LatencyClass, MemoryObject,
    OperationResult, Overrun, Pending, Power, ProcessSpawner, Result, SchedulingContext, Spec, UserSession,
    caps, println,
};

rt::main!(run);

/// Status of a machine whose init failed.
const STATUS_INIT_FAILED: u8 = 70;

fn run() -> i64 {
    let status = match boot() {
        Ok(status) => status,
        Err(error) => {
            println!("init: {error}");
            STATUS_INIT_FAILED
        }
    };
    match caps::any::<Power>().and_then(|power| power.off(status)) {
        Err(error) => println!("init: cannot power off: {error}"),
        Ok(never) => match never {},
    }
    status.into()
}

fn boot() -> Result<u8> {
    let bytes = caps::any::<BootManifest>()?.read()?;
    let manifest = match Manifest::parse(&bytes) {
        Ok(manifest) => manifest,
        Err(error) => {
            println!("init: {error}");
            return Ok(STATUS_INIT_FAILED);
        }
    };
    println!("init: {} ({})", manifest.name(), manifest.source());
    let share = manifest.processes().next().map(|init| init.share()).unwrap_or_default();
    let mut init = Init { manifest, objects: Vec::new(), running: Vec::new(), share };
    // The first process is init itself.
    for process in init.manifest.processes().skip(1) {
        while process.after().any(|name| init.is_running(name)) {
            if let Some(status) = init.wait()? {
                return Ok(status);
            }
        }
        init.start(&process).inspect_err(|_| println!("init: cannot start \"{}\"", process.name))?;
    }
    while !init.running.is_empty() {
        if let Some(status) = init.wait()? {
            return Ok(status);
        }
    }
    Ok(0)
}

struct Init<'a> {
    manifest: Manifest<'a>,
    /// Objects that were created for grants: kind and name, and the capability with all rights.
    objects: Vec<(Interface, &'a str, Cap)>,
    running: Vec<Running<'a>>,
    /// The weight and class of init itself, which processes get that ask for nothing else.
    share: (u16, LatencyClass),
}

struct Running<'a> {
    process: Process<'a>,
    child: Child,
    end: Pending<Exit>,
}

impl<'a> Init<'a> {
    fn is_running(&self, name: &str) -> bool {
        self.running.iter().any(|running| running.process.name == name)
    }

    fn start(&mut self, process: &Process<'a>) -> Result<()> {
        for grant in process.grants() {
            self.make(grant.interface, object_of(process, &grant))?;
        }
        let mut command = Command::new(process.program).name(process.name);
        for arg in process.args() {
            command = command.arg(arg);
        }
        for grant in process.grants() {
            let object = object_of(process, &grant);
            command = if let Some(cap) = self.find(grant.interface, object) {
                command.grant(grant.name, cap, grant.rights, grant.badge)
            } else if grant.is_own() {
                command.grant_own(grant.name, grant.interface, grant.rights)
            } else {
                let held = caps::granted().iter().find(|entry| entry.interface == grant.interface as u16);
                let held = held.ok_or(Error::NoCapability(grant.interface.name()))?;
                command.grant(grant.name, &Cap::borrowed(held.cap), grant.rights, grant.badge)
            };
        }
        if process.share() != self.share {
            let (weight, class) = process.share();
            command = command.weight(weight).class(class);
        }
        if let Some((budget_ns, period_ns)) = process.template() {
            command = command.template(Spec::new(budget_ns, period_ns), &caps::any()?);
        }
        let child = command.spawn(&caps::any::<ProcessSpawner>()?)?;
        let end = child.handle.wait_start()?;
        self.running.push(Running { process: *process, child, end });
        Ok(())
    }

    fn find(&self, interface: Interface, name: &str) -> Option<&Cap> {
        self.objects.iter().find(|(kind, known, _)| *kind == interface && *known == name).map(|(.., cap)| cap)
    }

    /// Creates the object that a grant names, unless it exists already or the interface has no object to create.
    fn make(&mut self, interface: Interface, name: &'a str) -> Result<()> {
        if self.find(interface, name).is_some() {
            return Ok(());
        }
        let factory = || caps::any::<Factory>();
        let cap = match interface {
            Interface::Endpoint => Endpoint::into_cap(factory()?.endpoint()?),
            Interface::MemoryObject => {
                let bytes = self
                    .manifest
                    .memories()
                    .find(|memory| memory.name == name)
                    .map_or(0, |memory| memory.bytes);
                MemoryObject::into_cap(factory()?.memory_object(bytes)?)
            }
            Interface::UserSession => UserSession::into_cap(factory()?.session(name)?),
            Interface::SchedulingContext if !name.is_empty() => self.context(name)?,
            _ => return Ok(()),
        };
        self.objects.push((interface, name, cap));
        Ok(())
    }

    /// Creates a context of the manifest; a refusal says which one, because the process that is granted it is named anyway.
    fn context(&mut self, name: &str) -> Result<Cap> {
        let asked = self.manifest.contexts().find(|context| context.name == name);
        let asked = asked.ok_or(Error::NoCapability("scheduling_context"))?;
        let mut spec = Spec::new(asked.budget_ns, asked.period_ns)
            .deadline(asked.deadline_ns.unwrap_or(0))
            .cpus(asked.cpus.iter())
            .criticality(asked.criticality)
            .refills(asked.refills.unwrap_or(0));
        // The kernel keeps the endpoint alive, so this capability may be dropped.
        let told;
        if let Some((endpoint, badge)) = asked.timeout {
            self.make(Interface::Endpoint, endpoint)?;
            let made = self.find(Interface::Endpoint, endpoint).ok_or(Error::NoCapability("endpoint"))?;
            told = Endpoint::of(Cap::borrowed(made.id())).caller(badge)?;
            spec = spec.fault(&told);
        } else if asked.overrun == Overrun::Demote {
            spec = spec.demote();
        }
        let made = caps::any::<SchedulingContext>()?.create(&spec).and_then(|outcome| {
            if outcome.result == OperationResult::ResourceExhausted {
                println!("init: the CPU that has most left can promise {} ppm", outcome.value.free_ppm);
                if let Some(why) = &outcome.value.witness {
                    println!("init: {why}");
                }
            }
            outcome.context()
        });
        made.map(SchedulingContext::into_cap).inspect_err(|_| {
            println!("init: {}:{}: cannot make context \"{name}\"", self.manifest.source(), asked.line)
        })
    }

    /// Waits until a process ends; returns the machine's status if it was a critical one.
    fn wait(&mut self) -> Result<Option<u8>> {
        loop {
            for index in 0..self.running.len() {
                if let Some(exit) = self.running[index].end.poll() {
                    let running = self.running.swap_remove(index);
                    return Ok(ended(&running, exit?));
                }
            }
            rt::ring::wait_any();
        }
    }
}

/// The name of the object that a grant is for: a session is named by the process, other objects by the grant.
fn object_of<'a>(process: &Process<'a>, grant: &image::Grant<'a>) -> &'a str {
    if grant.interface == Interface::UserSession {
        process.session.unwrap_or(process.name)
    } else {
        grant.object
    }
}

/// Prints how a process ended if it failed or was critical; returns the machine's status if it was critical.
fn ended(running: &Running<'_>, exit: Exit) -> Option<u8> {
    let Running { process, child, .. } = running;
    if !exit.is_success() || process.critical {
        println!("init: {} (pid {}) ended: {exit}", process.name, child.pid);
    }
    process.critical.then(|| if exit.is_success() { 0 } else { u8::try_from(exit.code).unwrap_or(1).max(1) })
}
