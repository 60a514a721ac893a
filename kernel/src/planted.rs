//! Bugs that one kernel carries on purpose, to show that the proofs find them: `planted=NAME` on the boot line chooses which of them acts.
//!
//! Only a kernel with the feature `planted` has them. One such kernel has all of them, so that one more bug costs no build: the suite names some
//! twenty. In every other kernel [`is`] is `false` at compile time, and nothing of this is left.

use core::sync::atomic::{AtomicU8, Ordering};

/// Declares the bugs, each with its name on the boot line.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident = $name:literal,)+) => {
        /// A planted bug.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub enum Bug {
            /// None.
            None,
            $($(#[$doc])* $bug,)+
        }

        /// The bug of this name.
        pub fn named(name: &str) -> Option<Bug> {
            match name {
                $($name => Some(Bug::$bug),)+
                _ => None,
            }
        }
    };
}

bugs! {
    /// Other CPUs are not told to flush translations that are gone (K-02).
    TlbNoIpi = "tlb-no-ipi",
    /// Memory is allocated under a CPU's lock (K-18).
    AllocUnderLock = "alloc-under-lock",
    /// Completions go to whichever thread has the record now (K-05).
    NoGenerationCheck = "no-generation-check",
    /// The core is asked for two decisions, and the trace has only one of them.
    SecondChoice = "second-choice",
    /// No CPU takes threads from a busier one (F-16).
    NoBalance = "no-balance",
    /// An exception does not bring a loan back (S-06).
    ExceptionKeepsLoan = "exception-keeps-loan",
    /// A lender keeps the context that it has lent (S-06).
    WrongContext = "wrong-context",
    /// Any capability allows any band (S-17).
    AnyBand = "any-band",
    /// The time that contexts used is free as soon as they leave (S-13).
    ForgetsLeaving = "forgets-leaving",
    /// The next context of a template is judged as if it had no predecessor (S-13).
    SuccessorOfNobody = "successor-of-nobody",
    /// A consumer that has lost the lease of a ring goes on taking entries (K-12).
    StaleConsumer = "stale-consumer",
    /// The way out of an interrupt is charged to nobody (S-16).
    NoWayBack = "no-way-back",
    /// The ways in and out of interrupts are charged to nobody (S-16).
    WaysUnpaid = "ways-unpaid",
    /// Refills are charged to nobody (S-16).
    RefillUnpaid = "refill-unpaid",
    /// Notifications are charged to nobody (S-16).
    NewsUnpaid = "news-unpaid",
    /// A stale capability to a context is still obeyed (S-02).
    StaleContext = "stale-context",
    /// A thread ends while it is in a queue (K-17).
    EndsInQueue = "ends-in-queue",
    /// Two CPUs' locks are taken in the wrong order (S-09).
    CpuOrder = "cpu-order",
    /// A thread that is ending gets a context (K-31).
    BindsTheEnding = "binds-the-ending",
    /// A thread that is ending is stopped for want of a context (K-31).
    StopsTheEnding = "stops-the-ending",
}

static ACTS: AtomicU8 = AtomicU8::new(Bug::None as u8);

/// From here on this bug acts.
pub fn plant(bug: Bug) {
    ACTS.store(bug as u8, Ordering::Relaxed);
}

/// Whether this bug acts.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    cfg!(feature = "planted") && ACTS.load(Ordering::Relaxed) == bug as u8
}
