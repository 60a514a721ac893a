//! janus: an M:N fiber runtime whose tasks have hard budgets, replay by seed, and cannot starve or crash their
//! neighbours.
//!
//! A *task* is a function with a stack of its own. Thousands or millions of tasks run on a few *workers*, which are OS
//! threads. A task that waits gives its worker to another task, so blocking code is written as blocking code: no
//! `async`, no function colours, no callbacks. What sets janus apart:
//!
//! - **Structure.** Every task belongs to a [nursery](Cx::nursery), which ends when its last child has ended. So
//!   children borrow from their parent's frame, no task is forgotten, and a failure reaches the parent.
//! - **Budgets.** Every task has a [`Budget`] of operations, memory, children, channel operations and system calls. A
//!   task that has spent a part of it stops until somebody with the right to do so recharges it.
//! - **Replay.** With a [seed](Config::seed), the same program runs in the same order, on as many (virtual) workers as
//!   you like. A failure that shows with one seed shows again with the same seed.
//! - **Survival.** A task that panics or overflows its stack harms only itself. A task that never yields is named, and
//!   a spare worker runs the tasks that it keeps waiting.
//!
//! It implements SPEC-021; `docs/janus-spec.md` maps each of its tags to code and tests. `docs/janus.md` is the design.
//!
//! # From nothing to a server
//! **Zero: a program that depends on it.** Linux on x86-64, Rust 1.95 or later, stable. The crate is not on
//! a registry: name a clone of its repository, or the repository itself, in `Cargo.toml`:
//! ```toml
//! [package]
//! name = "first"
//! edition = "2024"
//!
//! [dependencies]
//! janus = { path = "../capos/janus" }         # a clone beside your program, or:
//! # janus = { git = "ADDRESS-OF-THE-REPOSITORY", package = "janus" }
//! ```
//! Leave `panic = "unwind"` as it is in your profiles: with `"abort"` a panic of one task ends the whole program. Each
//! listing below is a program, or the part of it above `main`.
//!
//! **One: tasks.** `#[janus::main(..)]` makes a function the first task. A task gets a [`Cx`], its view of itself and
//! of its runtime: whatever a task may do, it does through its `Cx`. There is no global runtime and no ambient one.
//! What is `unsafe` about it is [one promise](#one-promise), made here by name: tasks take turns on threads, and keep
//! nothing of a thread across a wait.
//! ```
//! use janus::prelude::*;
//!
//! #[janus::main(unsafe(no_thread_state_across_waits))]
//! fn main(cx: &Cx) -> Result<(), TaskError> {
//!     let words = vec!["one", "two", "three"];
//!     let letters: usize = cx.nursery(|nursery| {
//!         // Each child borrows `words`: the nursery ends before they do.
//!         let children: Vec<_> = words.iter().map(|word| nursery.spawn(move |_cx| word.len())).collect();
//!         children.into_iter().map(|child| child.join(cx)).sum()
//!     })?;
//!     assert_eq!(letters, 11);
//!     Ok(())
//! }
//! ```
//! **Two: an echo server.** Sockets are those of `std` with a [`Cx`] parameter, and block the task, not its thread. The
//! end of one connection does not concern the others, so the nursery [keeps going](NurseryOptions::keep_going); each
//! connection owns what it uses, so it can [fail alone](Spawn::owned).
//! ```
//! use janus::net::{TcpListener, TcpStream};
//! use janus::prelude::*;
//!
//! fn echo(cx: &Cx, stream: &TcpStream) -> Result<(), TaskError> {
//!     let mut buffer = [0; 1024];
//!     loop {
//!         match stream.read(cx, &mut buffer)? {
//!             0 => return Ok(()),
//!             length => stream.write_all(cx, &buffer[..length])?,
//!         }
//!     }
//! }
//!
//! fn serve(cx: &Cx, listener: &TcpListener) -> Result<(), TaskError> {
//!     cx.nursery_with(NurseryOptions::new().keep_going(), |nursery| {
//!         loop {
//!             let (stream, _peer) = listener.accept(cx)?;
//!             nursery.task().owned().spawn_try(move |cx| echo(cx, &stream));
//!         }
//!     })
//! }
//! # #[janus::main(unsafe(no_thread_state_across_waits))]
//! # fn main(cx: &Cx) -> Result<(), TaskError> {
//! #     let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
//! #     cx.nursery(|n| {
//! #         let server = n.task().children(100).spawn_try(|cx| serve(cx, &listener));
//! #         let stream = TcpStream::connect(cx, listener.local_addr()?)?;
//! #         stream.write_all(cx, b"hello")?;
//! #         let mut heard = [0; 5];
//! #         stream.read_exact(cx, &mut heard)?;
//! #         assert_eq!(&heard, b"hello");
//! #         server.cancel();
//! #         assert!(server.join(cx).is_err());
//! #         Ok(())
//! #     })
//! # }
//! ```
//! **Three: budgets and a time-out.** A connection may make 1,000 calls; then it [ends](OnExhausted), and its client
//! learns of it. Half a minute of silence ends it too, after a last message for which a [shield](Cx::shield) gives it
//! time:
//! ```
//! use janus::net::TcpStream;
//! use janus::prelude::*;
//! use std::time::Duration;
//!
//! const CALLS: Budget = Budget { syscalls: 1_000, ..Budget::UNLIMITED };
//!
//! fn echo(cx: &Cx, stream: &TcpStream, patience: Duration) -> Result<(), TaskError> {
//!     let mut buffer = [0; 1024];
//!     loop {
//!         let length = match cx.timeout(patience, || Ok(stream.read(cx, &mut buffer)?)) {
//!             Ok(0) => return Ok(()),
//!             Ok(length) => length,
//!             Err(error) => {
//!                 // Late, or cancelled: this may still take a second.
//!                 cx.shield(Duration::from_secs(1), || stream.write_all(cx, b"bye"))?;
//!                 return Err(error);
//!             }
//!         };
//!         stream.write_all(cx, &buffer[..length])?;
//!     }
//! }
//!
//! fn take<'scope>(nursery: &'scope Scope<'scope, '_>, stream: TcpStream, patience: Duration) -> Handle<'scope, ()> {
//!     let task = nursery.task().name("echo").budget(CALLS).on_exhausted(OnExhausted::End);
//!     task.owned().spawn_try(move |cx| echo(cx, &stream, patience))
//! }
//! # #[janus::main(unsafe(no_thread_state_across_waits))]
//! # fn main(cx: &Cx) -> Result<(), TaskError> {
//! #     let listener = janus::net::TcpListener::bind(cx, "127.0.0.1:0")?;
//! #     let end = cx.nursery(|n| {
//! #         let near = TcpStream::connect(cx, listener.local_addr()?)?;
//! #         let silent = take(n, listener.accept(cx)?.0, Duration::from_millis(1));
//! #         let mut heard = Vec::new();
//! #         cx.shield(Duration::from_secs(60), || near.read_to_end(cx, &mut heard))?;
//! #         assert_eq!(heard, b"bye");
//! #         silent.join(cx)
//! #     });
//! #     assert!(matches!(end, Err(TaskError::TimedOut)), "{end:?}");
//! #     Ok(())
//! # }
//! ```
//! **Four: a graceful end.** One [select](Cx::select) waits for connections and for [signals](signal): after a signal,
//! stop accepting, give the open connections some time to finish, and cancel the rest.
//! ```
//! use janus::net::TcpListener;
//! use janus::prelude::*;
//! use janus::signal::Signals;
//! use std::time::Duration;
//!
//! fn serve(cx: &Cx, listener: TcpListener, signals: &Signals) -> Result<(), TaskError> {
//!     cx.nursery_with(NurseryOptions::new().keep_going(), |nursery| {
//!         while cx.select(&mut [&mut listener.arm(), &mut signals.arm()], None)? == Selected::Arm(0) {
//!             let (stream, peer) = listener.accept(cx)?;
//!             nursery.task().name(format!("echo to {peer}")).spawn(move |_cx| drop(stream));
//!         }
//!         signals.next();
//!         drop(listener);
//!         // All have ended, or somebody is in a hurry, or the time is over.
//!         let five = Some(Duration::from_secs(5));
//!         if cx.select(&mut [&mut nursery.arm(), &mut signals.arm()], five)? != Selected::Arm(0) {
//!             nursery.cancel();
//!         }
//!         Ok(())
//!     })
//! }
//! # #[janus::main(unsafe(no_thread_state_across_waits))]
//! # fn main(cx: &Cx) -> Result<(), TaskError> {
//! #     let signals = Signals::new(cx, &[janus::signal::Signal::Terminate])?;
//! #     let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
//! #     unsafe { libc::raise(libc::SIGTERM) };
//! #     serve(cx, listener, &signals)
//! # }
//! ```
//! `janus/examples/graceful.rs` has all of it in one file. If you come from tokio, Go or Trio, see
//! `docs/janus-coming-from.md`.
//!
//! Without the attribute, [`Runtime::new`] makes a runtime and [`Runtime::run`] its first task, for which the calling
//! thread waits.
//!
//! # Nurseries
//! [`Cx::nursery`] opens a [`Scope`]. [`Scope::spawn`] starts a child and returns a [`Handle`]; dropping the handle
//! leaves the child to the nursery. The nursery returns the body's value, or the first failure, which cancels the other
//! children and ends the body's waits ([`NurseryOptions::keep_going`] lets them go on):
//! ```
//! # use janus::{Config, Runtime, TaskError};
//! # std::panic::set_hook(Box::new(|_| {}));
//! # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let outcome = runtime.run(|cx| cx.nursery(|nursery| {
//!     nursery.spawn(|_cx| panic!("no cheese"));
//!     Ok(())
//! })).unwrap();
//! assert!(matches!(outcome, Err(TaskError::Panicked(message)) if message == "no cheese"));
//! ```
//! [`Scope::task`] prepares a spawn with a name, a stack, a priority, a budget or capabilities. [`Scope::spawn_try`]
//! starts a child whose `Err` is its failure. Children have no right to spawn unless [`Spawn::children`] gives it to
//! them:
//! ```
//! # use janus::{Config, Runtime, SpawnError, TaskError};
//! # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let grandchild = |cx: &janus::Cx| cx.nursery(|nursery| Ok(nursery.try_spawn(|_cx| ())?.join(cx)?));
//! let (without, with) = runtime.run(|cx| cx.nursery(|nursery| {
//!     let without = nursery.spawn(grandchild);
//!     let with = nursery.task().children(1).spawn(grandchild);
//!     Ok((without.join(cx)?, with.join(cx)?))
//! })).unwrap().unwrap();
//! assert!(matches!(without, Err(TaskError::Refused(SpawnError::SpawnBudgetExhausted))));
//! assert!(with.is_ok());
//! ```
//!
//! # Budgets
//! A child's budget comes out of its nursery's pool, and the pool is by default the parent's own budget: a subtree
//! never uses more than its root was given. [`Cx::check`] charges one operation, [`Cx::charge`] anything else,
//! [`Cx::ticker`] the iterations of a loop; channels and spawns charge themselves. A task whose operations are spent
//! stops at its next check. In the `:service` profile the pool recharges the task as long as the pool has something;
//! with [`Recharge::Manual`] somebody must do it:
//! ```
//! # use janus::{Budget, Config, NurseryOptions, Recharge, Resource, Runtime, TaskError};
//! # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let manual = NurseryOptions::new().recharge(Recharge::Manual);
//! let outcome = runtime.run(|cx| cx.nursery_with(manual, |nursery| {
//!     let hundred = Budget { ops: 100, ..Budget::ZERO };
//!     nursery.task().budget(hundred).spawn(|cx| while cx.check().is_ok() {});
//!     Ok(())
//! })).unwrap();
//! // The parent waits, nobody is left who could recharge: the child ends with the reason.
//! assert!(matches!(outcome, Err(TaskError::BudgetExceeded(Resource::Ops))));
//! ```
//! A task is recharged by its parent ([`Handle::recharge`]), by another task with a [`Supervisor`], or by itself with a
//! [`CapBudget`]. Exhausted operations, channel operations and system calls stop the task; exhausted memory and
//! children are an error to the caller, which can handle it.
//!
//! A budget that was asked for exactly ([`Spawn::budget`]) is a hard limit in every profile. Memory is charged for what
//! a task says it allocates or, with [`Charged`] as the program's allocator, for what it really allocates.
//!
//! Whatever its budget, a task yields to others after [`QUANTUM`] operations.
//!
//! The rule [`OnExhausted`] says what happens to a child that has spent its budget: it ends, it waits, or it waits as
//! long as somebody may be left to recharge it. If a budget ended a task, the parent learns that, whatever the task
//! returned.
//!
//! # Cancellation and scopes
//! [`Scope::cancel`] asks all children of a nursery to end, [`Handle::cancel`] a single one. A child that waits is
//! woken; every operation that can wait returns an error; the task passes it on with `?` and cleans up on the way.
//! Nothing is torn down from outside. If a cancelled child returns a value all the same, its handle gets that value.
//!
//! [`Cx::timeout`] and [`Cx::deadline`] do the same to a part of a task; [`Cx::shield`] holds cancellation off for
//! clean-up that has to wait. They nest. All of them, as well as joins and nurseries, return one error type,
//! [`TaskError`], so one `?` passes it on.
//!
//! # Channels, select, time
//! [`channel`] makes a rendezvous (capacity 0) or a bounded channel, for many senders and many receivers, first come
//! first served. [`Cx::select`] waits for the first of several operations, or for the end of a task, a time, a socket
//! or a signal; [`Cx::sleep`] waits for a time. All of them block the task, not the worker. Threads that are not
//! workers use [`Sender::send_blocking`] and [`Receiver::recv_blocking`].
//! ```
//! # use janus::{Config, Runtime, Selected, channel};
//! # use std::time::Duration;
//! # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let got = runtime.run(|cx| cx.nursery(|nursery| {
//!     let (to_us, numbers) = channel(0);
//!     let (_silent, never) = channel::<u32>(0);
//!     nursery.spawn(move |cx| to_us.send(cx, 42).is_ok());
//!     let (mut first, mut second) = (numbers.arm(), never.arm());
//!     let chosen = cx.select(&mut [&mut first, &mut second], Some(Duration::from_secs(5))).unwrap();
//!     assert_eq!(chosen, Selected::Arm(0));
//!     Ok(first.into_result()?)
//! })).unwrap().unwrap();
//! assert_eq!(got, 42);
//! ```
//!
//! # Locks
//! [`sync`] has a mutex, a condition variable, a semaphore, a once and a barrier for tasks, all first come first
//! served.
//!
//! # I/O
//! [`net`], [`fs`] and [`process`] mirror `std` with a [`Cx`] parameter: TCP, UDP and Unix sockets, files, child
//! processes; [`io`] has pipes, and describes what all of them have in common. They block the task and not its worker,
//! by io_uring, or by epoll where io_uring is refused ([`Config::io_backend`]). Each call costs one of `syscalls`, and
//! ends when the task is cancelled.
//! ```
//! # use janus::{Config, Runtime, net::{TcpListener, TcpStream}};
//! # let runtime = unsafe { Runtime::new(Config::new()) }.unwrap();
//! let heard = runtime.run(|cx| cx.nursery(|nursery| {
//!     let listener = TcpListener::bind(cx, "127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     nursery.spawn_try(move |cx| TcpStream::connect(cx, address)?.write_all(cx, b"ping"));
//!     let (stream, _peer) = listener.accept(cx)?;
//!     let mut heard = [0; 4];
//!     stream.read_exact(cx, &mut heard)?;
//!     Ok(heard)
//! })).unwrap().unwrap();
//! assert_eq!(&heard, b"ping");
//! ```
//!
//! # Functions that check by themselves
//! [`budgeted`] is an attribute: it inserts checks and charges into an ordinary function, so that an endless loop in it
//! starves no other task, spends its budget and can be cancelled.
//!
//! # Actors and supervisors
//! [`cluster`] has actors with mailboxes, and supervisors that restart and recharge them.
//!
//! # The same run again
//! With [`Config::seed`] the workers are virtual, time is virtual, and the seed decides which task runs when. The same
//! input, seed, worker count and budgets give the same order, of which [`Runtime::order`] is a hash. Trying many seeds
//! finds races; `janus/examples/replay.rs` does it.
//! ```
//! # use janus::{Config, Runtime};
//! let order = |seed| {
//!     let runtime = unsafe { Runtime::new(Config::new().workers(16).seed(seed)) }.unwrap();
//!     runtime.run(|cx| cx.nursery(|nursery| {
//!         for _ in 0..20 {
//!             nursery.spawn(|cx| (0..10).all(|_| cx.check().is_ok()));
//!         }
//!         Ok(())
//!     })).unwrap().unwrap();
//!     runtime.order().unwrap()
//! };
//! assert_eq!(order(7), order(7));
//! assert_ne!(order(7), order(8));
//! ```
//! What comes from outside (real time, threads, addresses in memory) is input: keep it out of the program, or keep it
//! the same. I/O is refused.
//!
//! # Looking in
//! [`Runtime::dump`] lists the tasks, with the state of each, what it waits for and where in the source.
//! [`Runtime::stats`] counts, [`Runtime::trace`] keeps events for Perfetto and Chrome. The watchdog finds a task that
//! runs for 100 ms without a check, [names it](Hog) and activates a spare worker; [`Config::watchdog`] and
//! [`Config::on_hog`] change that.
//!
//! # Stacks
//! A task has 64 KiB of stack unless [`Spawn::stack`] or [`Config::stack`] says otherwise; the first task has 1 MiB.
//! What common calls need, on x86-64 Linux: a first, lazily bound call into the C library 3.2 KB, `snprintf("%f")` 2.6
//! KB, a panic that is caught 5.4 KB, `getaddrinfo` 5 to 12 KB, a TLS handshake or formatting a backtrace 21 KB. Panics get a
//! reserve of 20 KiB on top. Stacks are reserved address space and not touched: a parked task takes one page of memory
//! whatever its class, and [`StackClass::Lean`], 8 KiB, saves addresses and page tables. Where frames are larger, so
//! are stacks: twice as large without optimisation, four times under a sanitizer.
//!
//! A task that finds its stack short when it checks ([`Cx::check`], [`budgeted`], [`Cx::ensure_stack`], any call of the
//! runtime) panics in an orderly way, and fails with [`TaskError::StackOverflow`]. A task that runs over its stack in
//! between cannot be unwound. It is given up where it stands, together with every task that lent it something, up to a
//! task that was spawned as [owned](Spawn::owned): the owned task fails with the same error, and all others go on. If
//! there is none, the process ends with a message. `docs/janus-soundness.md` says why, `docs/overflow.md` how.
//!
//! # One promise
//! Code that was written for threads may lend something to whatever runs on the same thread ("scoped" thread-locals),
//! or keep something of its thread, at a point where a task of this runtime would be suspended. No runtime with stacks
//! of its own can detect that. So making a runtime is `unsafe`: [`Runtime::new`] says what is promised, and
//! [`main`](macro@main) is given the promise by its name, `unsafe(no_thread_state_across_waits)`; a program under
//! `#![forbid(unsafe_code)]` can do neither. Nothing else here can break safe code, whatever overflows, exhausts its
//! memory, panics, is cancelled or leaks.
//!
//! For the same reason a task that cannot be unwound, and is given up, keeps its locks. If it holds standard output or
//! standard error, the process ends and names the task. Where there is a watchdog, the process also ends if a task of
//! the same family waits for a `std` lock that the given-up task holds (`docs/janus-soundness.md`).
//!
//! # What it is not
//! - Not preemptive: a task yields where it checks or waits. The watchdog finds tasks that do not; it does not stop
//!   them.
//! - Not a cure for blocking calls: a blocking call that is not of [`net`], [`fs`], [`process`] or [`io`] blocks its
//!   worker until the watchdog notices. [`io::unblock`] runs such a call on a thread of its own.
//! - Not a sandbox: budgets bind code that checks, or that [`budgeted`] makes check. Native code that does not check
//!   can take all the CPU time of its worker, and any memory that the process has.
//! - Not portable: Linux on x86-64.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!(
    "janus runs on Linux on x86_64: its context switch is written for that. See docs/context-switch.md."
);

mod account;
mod alloc;
mod atomics;
mod blocks;
pub mod budget;
mod cancel;
mod caps;
mod chan;
pub mod cluster;
mod common;
mod config;
pub mod context;
mod counted;
mod cx;
mod deque;
mod det;
mod earliest;
mod error;
mod events;
mod family;
pub mod fs;
mod idle;
pub mod io;
mod job;
mod join;
mod lock;
mod monitor;
mod names;
pub mod net;
mod nursery;
mod observe;
mod output;
mod overflow;
mod overflow_hooks;
mod panics;
#[doc(hidden)]
pub mod points;
pub mod prelude;
pub mod process;
#[doc(hidden)]
pub mod raw;
mod ring;
mod runtime;
mod scope;
mod search;
pub mod signal;
mod stack;
#[doc(hidden)]
pub mod start;
mod state;
mod stats;
pub mod sync;

mod task;
mod thread_cpu;
mod timers;
mod unwind;
mod waiter;
mod waiters;
mod wake;
mod worker;

pub use alloc::Charged;
pub use counted::{Counted, Live};
/// Inserts yield checks and charges into an ordinary function, where a compiler would [SCHED:4.1.1].
///
/// ```
/// use janus::{Budget, Config, Cx, Resource, Runtime, TaskError, budgeted};
///
/// /// Ends for 1, 2 and 4; for 3 nobody knows a reason why it should not run for ever.
/// #[budgeted]
/// fn puzzle(cx: &Cx, mut number: u64) -> u64 {
///     while number != 1 {
///         number = if number % 2 == 0 { number / 2 } else { number };
///     }
///     number
/// }
///
/// let runtime = unsafe { Runtime::new(Config::new().workers(1)) }.unwrap();
/// let budget = Budget { ops: 10_000, ..Budget::ZERO };
/// let solve = |number| runtime.run(|cx| cx.nursery(|nursery| {
///     nursery.task().budget(budget).spawn(move |cx| puzzle(cx, number)).join(cx)
/// })).unwrap();
/// assert_eq!(solve(4).unwrap(), 1);
/// assert!(matches!(solve(3), Err(TaskError::BudgetExceeded(Resource::Ops))));
/// ```
/// The function has its task's `&Cx` as a parameter, or the attribute says where it is: `#[budgeted(cx = self.cx)]`.
///
/// | where | what is inserted | charged |
/// |---|---|---|
/// | the function, and each closure in it, begins | a check | its own call: 1 operation |
/// | each round of a `loop`, `while` or `for` | a tick of a [`Ticker`] | 1 operation, every [`Config::yield_interval`] rounds at once |
/// | before a statement | a check for the calls in it | 1 operation a call |
/// | after `Box::new`, `with_capacity`, `vec!`, `format!`, `to_string` and the like | a check | 1 operation; bytes are [`Charged`]'s |
/// | calls that are given the `&Cx`, methods of the `Cx`, spawns | nothing | they charge themselves: a channel operation once, `yield_now` nothing |
///
/// A check that finds the budget spent stops the task until it is recharged. A check that finds the task cancelled (or
/// its budget spent for good) ends the function: by `?` if the function visibly returns a `Result`, whose error then
/// needs `From<Cancelled>`; otherwise by unwinding, without a message, to the end of the task. `#[budgeted(unwind)]`
/// and `#[budgeted(propagate)]` choose one of the two.
///
/// The attribute does not see functions without it, loops that a macro makes, and overloaded operators. It refuses
/// `async`, `const`, `extern "C"` (but not `"C-unwind"`), and loops in `unsafe` blocks and in the arguments of macros.
/// `docs/janus-macro.md` says why.
pub use janus_macros::budgeted;
/// Makes a function the first task of a program: it gets the task's [`Cx`], and its result is the result of `main`.
///
/// ```
/// use janus::Cx;
///
/// #[janus::main(unsafe(no_thread_state_across_waits))]
/// fn main(cx: &Cx) {
///     let sum = cx.nursery(|nursery| {
///         let child = nursery.spawn(|_cx| 40);
///         Ok(2 + child.join(cx)?)
///     });
///     assert_eq!(sum.unwrap(), 42);
/// }
/// ```
/// The runtime is configured by [`Config::new`], or by an expression: `#[janus::main(unsafe(..), config = ..)]`. If the
/// task fails (a panic, a stack overflow), the program ends with the error's message and code 101.
///
/// # Safety
/// Writing `unsafe(no_thread_state_across_waits)` promises what [`Runtime::new`] asks for: no task of this program
/// keeps across a suspension anything that is bound to its thread (a reference into a `thread_local!`, an `Rc` that was
/// cloned out of one, as `rand::rng()` is, a guard of a `std` lock), nor suspends inside a scoped thread-local of
/// another crate. Without the promise the attribute does not compile, and with it not under `#![forbid(unsafe_code)]`.
/// Nothing else in this crate can reach undefined behaviour from safe code.
pub use janus_macros::main;

/// The vocabulary of [`Runtime::trace`], with exporters for Perfetto and Chrome.
pub use trace;

pub use budget::{Budget, Operation, Resource};
pub use caps::{CapBudget, CapSpawn};
pub use chan::{
    Arm, Receiver, RecvArm, RecvError, Selected, SendArm, SendError, Sender, TimeArm, channel, unbounded,
};
pub use config::{Config, MAX_WORKERS, Profile, QUANTUM, Strategy};
pub use cx::{ChargeError, Cx, Held, TaskId, Ticker};
pub use error::{Cancelled, RechargeError, RuntimeError, SpawnError, TaskError};
pub use monitor::Hog;
pub use names::Name;
pub use nursery::{OnExhausted, Recharge};
pub use observe::{Dump, Stats, TaskDump};
pub use runtime::Runtime;
pub use scope::{DrainArm, Handle, JoinArm, NurseryOptions, Scope, Spawn, Supervisor};
pub use stack::StackClass;
pub use state::{Event, TaskState};
pub use stats::WorkerStats;
pub use task::{Priority, Wait};
