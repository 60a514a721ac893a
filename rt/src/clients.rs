//! A type for each interface of the schema, with the methods that a capability of that interface has.
//!
//! `x()` waits for the answer; `x_start()` returns a [`crate::Pending`] where waiting can take long.

mod call;
mod console;
mod context;
mod endpoint;
mod machine;
mod memory;
mod park;
mod policy;
mod process;
mod spec;
mod system;
mod thread;
mod timer;

pub use abi::{LatencyClass, Overrun};
pub use console::Console;
pub use context::{
    Consumed, ContextInfo, ContextListing, Created, Fallback, Notification, Notifications, Outcome,
    Reconfigured, SchedulingContext, Timeout, Witness,
};
pub use endpoint::{Answer, Endpoint, Give, Incoming, Message, Reply, message_buffer};
pub use machine::{BootManifest, Factory, Logout, Power, Quota, SessionInfo, UserSession};
pub use memory::{MemoryObject, Protection, VirtualMemory};
pub use park::{ParkSpace, Parked};
pub use policy::{SchedulingPolicy, Share};
pub use process::{Child, Command, Exit, ProcessHandle, ProcessInfo, ProcessSpawner};
pub use schema::messages_capnp::{
    AdmissionReason, DispatchEffect, ExitReason, NotificationKind, OperationResult, ProcessState, ThreadState,
};
pub use spec::{CpuMask, Spec};
pub use system::{Counter, CpuInfo, Machine, SystemInfo, ThreadInfo};
pub use thread::{ThreadControl, ThreadHandle, ThreadSpawner};
pub use timer::Timer;

pub(crate) use process::exit_process;
pub(crate) use thread::set_fs_base;

/// Declares the client of an interface.
macro_rules! client {
    ($name:ident, $doc:literal) => {
        #[doc = $doc]
        #[derive(Debug)]
        pub struct $name(pub(crate) crate::caps::Cap);

        impl crate::caps::Client for $name {
            const INTERFACE: abi::Interface = abi::Interface::$name;
            fn of(cap: crate::caps::Cap) -> Self {
                $name(cap)
            }
            fn cap(&self) -> &crate::caps::Cap {
                &self.0
            }
            fn into_cap(self) -> crate::caps::Cap {
                self.0
            }
        }
    };
}
use client;
