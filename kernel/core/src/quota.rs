//! Quotas: what a session may use of the machine, and what it uses (K-29).
//!
//! Sessions are a tree. What a process uses is charged to its session and to every session above it, so a session that creates another gives of
//! what it has: creating more sessions yields no more.

use core::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Bytes of memory: pages, page tables, kernel stacks, rings, queues of endpoints.
    Memory,
    /// Threads.
    Threads,
    /// Processes.
    Processes,
    /// Endpoints.
    Endpoints,
    /// Scheduling contexts with time.
    Contexts,
    /// Their time: millionths of a CPU.
    Bandwidth,
}

/// How many kinds there are.
pub const KINDS: usize = 6;

impl Kind {
    /// All of them.
    pub const ALL: [Kind; KINDS] =
        [Kind::Memory, Kind::Threads, Kind::Processes, Kind::Endpoints, Kind::Contexts, Kind::Bandwidth];

    /// What is counted, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Memory => "bytes of memory",
            Kind::Threads => "threads",
            Kind::Processes => "processes",
            Kind::Endpoints => "endpoints",
            Kind::Contexts => "scheduling contexts",
            Kind::Bandwidth => "ppm of a CPU",
        }
    }

    /// The part of what a session has that one of the sessions in it may use. None may have all, so that something is left for its neighbours.
    const fn part(self) -> (u64, u64) {
        match self {
            Kind::Contexts => (1, 2),
            Kind::Bandwidth => (3, 4),
            _ => (7, 8),
        }
    }
}

/// One part in so many of what a session has is kept for its own processes and for operators in it: guests do not get it.
const OWN_PART: u64 = 16;

/// What one session may use and what it uses.
#[derive(Debug)]
pub struct Account {
    used: [AtomicU64; KINDS],
    limits: [u64; KINDS],
}

impl Account {
    /// An account with nothing used of `limits`, which are in the order of [`Kind::ALL`].
    pub const fn new(limits: [u64; KINDS]) -> Account {
        Account { used: [const { AtomicU64::new(0) }; KINDS], limits }
    }

    /// An account for a session that is created in this one, with at most `asked` of each kind; 0 asks for the most that there is.
    pub fn inner(&self, asked: [u64; KINDS]) -> Account {
        Account::new(Kind::ALL.map(|kind| {
            let (part, of) = kind.part();
            let most = self.limit(kind) / of * part;
            match asked[kind as usize] {
                0 => most,
                asked => asked.min(most),
            }
        }))
    }

    /// What it uses.
    pub fn used(&self, kind: Kind) -> u64 {
        self.used[kind as usize].load(Ordering::Relaxed)
    }

    /// What it may use.
    pub fn limit(&self, kind: Kind) -> u64 {
        self.limits[kind as usize]
    }

    /// What guests inside it may use together, so that something is left for its own processes and for operators.
    fn shared(&self, kind: Kind) -> u64 {
        let limit = self.limit(kind);
        limit - limit / OWN_PART
    }

    fn take(&self, kind: Kind, amount: u64, limit: u64) -> bool {
        let fits = |used: u64| used.checked_add(amount).filter(|sum| *sum <= limit);
        self.used[kind as usize].try_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn release(&self, kind: Kind, amount: u64) {
        let before = self.used[kind as usize].fetch_sub(amount, Ordering::Relaxed);
        debug_assert!(before >= amount, "more is given back than was taken");
    }
}

/// Something with an account, perhaps inside another.
pub trait Member {
    /// Its own account.
    fn account(&self) -> &Account;
    /// The member that it is in.
    fn outer(&self) -> Option<&Self>;
    /// Whether it gets nothing of the part that those around it keep for themselves.
    fn is_guest(&self) -> bool;
}

/// Charges `member` and all around it, or none of them: then the one whose limit would be exceeded is returned.
pub fn take<M: Member>(member: &M, kind: Kind, amount: u64) -> Result<(), &M> {
    let mut at = Some(member);
    while let Some(one) = at {
        let account = one.account();
        let is_outer = !core::ptr::eq(one, member);
        let limit = if is_outer && member.is_guest() { account.shared(kind) } else { account.limit(kind) };
        if !account.take(kind, amount, limit) {
            release_until(member, Some(one), kind, amount);
            return Err(one);
        }
        at = one.outer();
    }
    Ok(())
}

/// Gives back what was taken for `member`.
pub fn release<M: Member>(member: &M, kind: Kind, amount: u64) {
    release_until(member, None, kind, amount);
}

fn release_until<M: Member>(member: &M, end: Option<&M>, kind: Kind, amount: u64) {
    let mut at = Some(member);
    while let Some(one) = at {
        if end.is_some_and(|end| core::ptr::eq(one, end)) {
            return;
        }
        one.account().release(kind, amount);
        at = one.outer();
    }
}

/// A share of a quota that is about to change its size: it counts as the larger of the two until it is known whether the change comes about.
#[must_use = "it is as large as the larger one until it is settled"]
#[derive(Debug)]
pub struct Growth {
    kind: Kind,
    before: u64,
    wanted: u64,
}

impl Growth {
    /// Begins the change of a share of `before` that `member` has, to `wanted`: the excess is charged now.
    pub fn begin<M: Member>(member: &M, kind: Kind, before: u64, wanted: u64) -> Result<Growth, &M> {
        take(member, kind, wanted.saturating_sub(before))?;
        Ok(Growth { kind, before, wanted })
    }

    /// Ends the change, which came about or was refused: what was charged for the other case is given back. Returns the size of the share now.
    pub fn settle<M: Member>(self, member: &M, is_changed: bool) -> u64 {
        let now = if is_changed { self.wanted } else { self.before };
        release(member, self.kind, self.before.max(self.wanted) - now);
        core::mem::forget(self);
        now
    }
}

impl Drop for Growth {
    fn drop(&mut self) {
        // What was charged would stay charged for good.
        debug_assert!(false, "a change that began is settled: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Session<'a> {
        account: Account,
        is_guest: bool,
        outer: Option<&'a Session<'a>>,
    }

    impl Member for Session<'_> {
        fn account(&self) -> &Account {
            &self.account
        }
        fn outer(&self) -> Option<&Self> {
            // The same session, seen for as long as this one.
            self.outer
        }
        fn is_guest(&self) -> bool {
            self.is_guest
        }
    }

    fn inside<'a>(outer: &'a Session<'a>, is_guest: bool) -> Session<'a> {
        Session { account: outer.account.inner([0; KINDS]), is_guest, outer: Some(outer) }
    }

    fn machine() -> Session<'static> {
        Session { account: Account::new([8000, 64, 64, 64, 128, 4_000_000]), is_guest: false, outer: None }
    }

    /// K-29: a charge counts in every session around, and a refused one in none.
    #[test]
    fn charges_count_all_the_way_up_or_not_at_all() {
        let machine = machine();
        let operator = inside(&machine, false);
        let guest = inside(&operator, true);
        assert_eq!([&machine, &operator, &guest].map(|s| s.account.limit(Kind::Threads)), [64, 56, 49]);
        assert!(take(&guest, Kind::Threads, 49).is_ok());
        assert_eq!([&machine, &operator, &guest].map(|s| s.account.used(Kind::Threads)), [49, 49, 49]);
        let refused = take(&guest, Kind::Threads, 1).err();
        assert!(refused.is_some_and(|refused| core::ptr::eq(refused, &guest)));
        // Another guest in the same session finds the rest, and is told whose limit it is.
        let other = inside(&operator, true);
        assert!(take(&other, Kind::Threads, 4).is_ok());
        let refused = take(&other, Kind::Threads, 1).err();
        assert!(refused.is_some_and(|refused| core::ptr::eq(refused, &operator)));
        assert_eq!([&machine, &operator, &other].map(|s| s.account.used(Kind::Threads)), [53, 53, 4]);
        // What is left is for the session's own processes.
        assert!(take(&operator, Kind::Threads, 3).is_ok());
        assert!(take(&operator, Kind::Threads, 1).is_err());
        release(&operator, Kind::Threads, 3);
        release(&guest, Kind::Threads, 49);
        release(&other, Kind::Threads, 4);
        assert_eq!([&machine, &operator, &guest, &other].map(|s| s.account.used(Kind::Threads)), [0; 4]);
    }

    /// K-29: however many sessions are created in a session, together they get no more than it has.
    #[test]
    fn sessions_in_a_session_share_what_it_has() {
        let machine = machine();
        let one = inside(&machine, false);
        let mut got = 0;
        for _ in 0..10 {
            let inner = inside(&one, true);
            while take(&inner, Kind::Contexts, 1).is_ok() {
                got += 1;
            }
        }
        assert_eq!((got, one.account.limit(Kind::Contexts)), (60, 64));
        assert!(take(&one, Kind::Contexts, 4).is_ok());
        // Its neighbours still find some.
        assert!(take(&inside(&machine, true), Kind::Contexts, 1).is_ok());
    }

    /// K-29: a change counts as it came out, and a refused one as if it had never been asked for.
    #[test]
    fn k_29_a_refused_change_keeps_nothing_of_what_it_asked_for() {
        let machine = machine();
        let one = inside(&machine, true);
        assert!(take(&one, Kind::Bandwidth, 100).is_ok());
        let used = || [&machine, &one].map(|s| s.account.used(Kind::Bandwidth));
        for wanted in [400, 100, 30] {
            let growth = Growth::begin(&one, Kind::Bandwidth, 100, wanted).ok().unwrap();
            assert_eq!(used(), [wanted.max(100); 2], "the larger of the two while nobody knows");
            assert_eq!((growth.settle(&one, false), used()), (100, [100; 2]), "to {wanted}, refused");
        }
        let mut share = 100;
        for wanted in [400, 400, 30] {
            let growth = Growth::begin(&one, Kind::Bandwidth, share, wanted).ok().unwrap();
            share = growth.settle(&one, true);
            assert_eq!((share, used()), (wanted, [wanted; 2]));
        }
        // More than there is: nothing has begun.
        assert!(Growth::begin(&one, Kind::Bandwidth, share, u64::MAX).is_err());
        assert_eq!(used(), [30; 2]);
    }

    /// K-29: a change that is dropped without being settled is a bug that is found.
    #[test]
    #[cfg(debug_assertions)]
    #[should_panic = "a change that began is settled"]
    fn k_29_a_change_that_nobody_settles() {
        let one = machine();
        if let Err(refused) = Growth::begin(&one, Kind::Bandwidth, 100, 400) {
            assert!(core::ptr::eq(refused, &one));
        }
    }

    #[test]
    fn amounts_that_wrap_are_refused() {
        let machine = machine();
        assert!(take(&machine, Kind::Memory, 1).is_ok());
        assert!(take(&machine, Kind::Memory, u64::MAX).is_err());
        assert_eq!(machine.account.used(Kind::Memory), 1);
    }

    /// K-29: the creator of a session may give it less than it would get, and never more.
    #[test]
    fn k_29_limits_that_are_asked_for_only_lower() {
        let outer = Account::new([800; KINDS]);
        let plain = outer.inner([0; KINDS]);
        let asked = outer.inner([1, 0, 10_000, 700, u64::MAX, 7]);
        let limits = Kind::ALL.map(|kind| asked.limit(kind));
        let most = Kind::ALL.map(|kind| plain.limit(kind));
        assert_eq!(limits, [1, most[1], most[2], 700, most[4], 7]);
    }
}
