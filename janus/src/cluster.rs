//! Actors and supervisors: SPEC-021 [SCHED:10.2.3] ":cluster". An actor is a function with a mailbox; a [`Plan`] says
//! which actors there are and what happens when one ends; running the plan supervises them.
//!
//! ```
//! use janus::cluster::{Child, Inbox, Plan, Reply, Strategy};
//! use janus::{Cancelled, Config, Profile, Runtime};
//! use std::time::Duration;
//!
//! enum Ask { Add(u64), Total(Reply<u64>), Crash }
//!
//! let second = Duration::from_secs(1);
//! let runtime = unsafe { Runtime::new(Config::new().profile(Profile::Cluster)) }.unwrap();
//! # std::panic::set_hook(Box::new(|_| {}));
//! let total = runtime.run(|cx| {
//!     let mut plan = Plan::new(Strategy::OneForOne).intensity(3, second);
//!     let counter = plan.actor(Child::new("counter"), |cx, inbox: &Inbox<Ask>| -> Result<(), Cancelled> {
//!         let mut total = 0;
//!         loop {
//!             match inbox.recv(cx)? {
//!                 Ask::Add(n) => total += n,
//!                 Ask::Total(reply) => reply.send(cx, total),
//!                 Ask::Crash => panic!("as you wish"),
//!             }
//!         }
//!     });
//!     cx.nursery(|nursery| {
//!         let tree = plan.start(cx, nursery);
//!         counter.cast(cx, Ask::Crash).unwrap();
//!         counter.cast(cx, Ask::Add(2)).unwrap();     // waits in the mailbox for the next incarnation
//!         let total = counter.call(cx, second, Ask::Total);
//!         tree.cancel();
//!         Ok(total)
//!     })
//! }).unwrap().unwrap().unwrap();
//! assert_eq!(total, 2);
//! ```
//! Everything is structured: a plan runs in one task, its children are in that task's nursery, and no actor outlives
//! it. There is no registry: a task that is to talk to an actor is given its [`Address`]. `docs/janus-cluster.md` is
//! the design.

mod actor;
mod exit;
mod life;
mod plan;
mod supervise;

pub use actor::{Address, CallError, Inbox, LinkError, Monitor, Reply};
pub use exit::{Exit, GaveUp};
pub use plan::{Child, Plan, Restart, Strategy};
pub use supervise::{End, Notice, What};
