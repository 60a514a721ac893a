//! The book of leases (I-02, I-06 to I-08, I-12, M-04): which CPUs are lent to whom, until when, out of which pool and through which grant.
//!
//! A lease is a place and no time: its CPUs are kept for its holder. The book has no locks, sends no interrupt and knows no thread: a driver does
//! that. A method is an event: it checks everything and changes the book, or refuses by name and changes nothing. The kernel calls every method under
//! one lock, so that creating a lease and revoking the grant that it is made through are one step each, and no lease outlives its grant (I-12).
//! Where a method ends leases it tells the driver of each: the driver gives the CPUs back, and the book has done so already.
//!
//! # Invariants
//! * I-L1: no CPU is in two live leases, and `leased` is the union of their CPUs.
//! * I-L2: the CPUs of a live lease were online when it was made, and are CPUs of its pool.
//! * I-L3: at least one online CPU is in no live lease: a housekeeper remains.
//! * I-L4: a pool has no more live leases, and no more of one account, than it allows.
//! * I-L5: a live lease that was made through a grant names a grant that is live, and has its account and pool.
//! * I-L6: a number of a lease or of a grant is never used twice.

use sched::{CpuId, CpuMask};

mod tables;

pub use tables::{BadTables, Grant, Pool, PoolId, Tables};

/// Leases that can be live at once. Each has a CPU of its own, so no machine of up to so many CPUs and one more is ever refused for this.
pub const MAX_LEASES: usize = 63;
/// The longest lifetime that a lease can ask for, and that a renewal gives.
pub const MAX_LIFETIME_NS: u64 = 3_600_000_000_000;
/// The longest revocation latency that a lease can ask for. A longer one would say that its holder may keep a CPU that was taken back.
pub const MAX_LATENCY_NS: u64 = 100_000_000;

/// The number of a lease; never used twice (I-L6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// The number of a grant; never used twice (I-L6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GrantId(pub u64);

/// Who owns a lease: it ends with either of the two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// The process: a number that no other process ever has. Numbers of processes are used again, so a driver joins number and generation.
    pub process: u64,
    /// The session, by its number, which is never used twice.
    pub session: u64,
}

/// Through which authority a lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Through {
    /// The caller may create leases as such, and says itself for which account and out of which pool.
    Creator {
        /// The account that the lease counts for; 0 counts for none.
        account: u64,
        /// The pool that the lease comes out of.
        pool: PoolId,
    },
    /// A grant, which decides both.
    Grant(GrantId),
}

/// What somebody asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The authority.
    pub through: Through,
    /// The CPUs.
    pub cpus: CpuMask,
    /// For whom.
    pub owner: Owner,
    /// A CPU that is taken back must be free after this time.
    pub latency_ns: u64,
    /// The lease ends after this time unless it is renewed; 0 if it has no end of its own.
    pub lifetime_ns: u64,
}

/// What the book cannot know of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// The CPUs that are online. They only become more.
    pub online: CpuMask,
    /// The CPUs that are the home of contexts which the asker does not hold: others were promised time there.
    pub homes: CpuMask,
}

/// Why an event does not happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refused {
    /// The mask names no CPU.
    NoCpu,
    /// The mask names a CPU that is not online.
    Offline,
    /// The revocation latency is 0, or longer than [`MAX_LATENCY_NS`].
    Latency,
    /// The lifetime is longer than [`MAX_LIFETIME_NS`].
    Lifetime,
    /// There is no such pool.
    UnknownPool,
    /// The mask names a CPU that is not in the pool.
    OutsidePool,
    /// The lease, or the grant, is no more.
    Stale,
    /// A CPU is in another live lease.
    Overlap,
    /// No CPU would be left outside of leases.
    NoHousekeeping,
    /// A CPU is the home of somebody else's context.
    AdmittedTime,
    /// The pool has as many leases as it may have.
    PoolFull,
    /// The account has as many leases out of this pool as it may have.
    AccountFull,
    /// The book has no room for one more lease or grant.
    TableFull,
    /// The lease has no lifetime, so there is nothing to renew.
    NotRenewable,
    /// The minter may not mint this pair of account and pool.
    Unauthorized,
    /// The grant was revoked before.
    AlreadyRevoked,
    /// There never was such a grant.
    UnknownGrant,
    /// The grant comes from the manifest, which no minter revokes.
    Seeded,
}

/// Why a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Its holder, or whoever has the right to, took it back.
    Revoked,
    /// Its lifetime is over.
    Expired,
    /// Its process ended, or was replaced.
    OwnerEnded,
    /// Its session logged out.
    LoggedOut,
    /// The grant that it was made through was revoked.
    GrantRevoked,
    /// A thread of at least the holder's rank can run nowhere else.
    FairnessPreempted,
}

impl Reason {
    /// The word for it, in the log and in `info`.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::Revoked => "revoked",
            Reason::Expired => "lease-expired",
            Reason::OwnerEnded => "owner-ended",
            Reason::LoggedOut => "logged-out",
            Reason::GrantRevoked => "grant-revoked",
            Reason::FairnessPreempted => "fairness-preempted",
        }
    }
}

/// A lease that has ended: its CPUs are to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The lease.
    pub id: LeaseId,
    /// Its CPUs.
    pub cpus: CpuMask,
    /// Why it ended.
    pub reason: Reason,
}

/// A live lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Lease {
    /// Its number.
    pub id: LeaseId,
    /// Its CPUs.
    pub cpus: CpuMask,
    /// Whose it is.
    pub owner: Owner,
    /// The pool that it came out of.
    pub pool: PoolId,
    /// The account that it counts for; 0 for none.
    pub account: u64,
    /// The grant that it was made through.
    pub grant: Option<GrantId>,
    /// A CPU that is taken back must be free after this time.
    pub latency_ns: u64,
    /// What a renewal gives; 0 if the lease has no end of its own.
    pub lifetime_ns: u64,
    /// When it ends by itself; `u64::MAX` if it does not.
    pub expires_ns: u64,
}

/// What an arriving thread, which may run on no CPU but a leased one, does to the lease (I-06).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// The lease ends.
    EndsLease,
    /// The lease is in force no more until the arrival has gone.
    EndsQuiet,
}

/// The rules, or the rules with a bug planted.
pub trait Rules: Clone {
    /// Whether the book has this bug.
    #[inline(always)]
    fn has(&self, flaw: Flaw) -> bool {
        let _ = flaw;
        false
    }
}

/// The rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sound;

impl Rules for Sound {}

/// A bug of the book that a test can plant, to see that the test finds it. In a kernel the branches are compiled away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flaw {
    /// A CPU that is leased is leased again.
    OverlapIgnored,
    /// The last housekeeper can be leased.
    HousekeeperIgnored,
    /// An ended lease goes on counting for its pool and account.
    CapacityKept,
    /// Revoking a grant leaves its leases alone.
    NoCascade,
    /// A lease is made through a grant that was revoked.
    StaleGrantObeyed,
    /// The account that the caller names counts, and not that of its grant.
    AccountAsserted,
    /// A lease can be renewed after its end.
    LateRenewal,
}

impl Rules for Flaw {
    fn has(&self, flaw: Flaw) -> bool {
        *self == flaw
    }
}

/// Pools, grants and leases.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Book<R = Sound> {
    tables: Tables,
    leases: [Option<Lease>; MAX_LEASES],
    /// The CPUs of all live leases (I-L1).
    leased: CpuMask,
    /// How many leases there have been.
    made: u64,
    /// With [`Flaw::CapacityKept`], leases that count though they have ended.
    ghosts: u64,
    rules: R,
}

impl Book {
    /// A book without leases.
    pub const fn new(tables: Tables) -> Book {
        Book::with_rules(tables, Sound)
    }
}

impl<R> Book<R> {
    /// The same, perhaps with a bug planted.
    pub const fn with_rules(tables: Tables, rules: R) -> Book<R> {
        let leases = [const { None }; MAX_LEASES];
        Book { tables, leases, leased: CpuMask::EMPTY, made: 0, ghosts: 0, rules }
    }

    /// The pools and grants.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The CPUs of all live leases.
    pub fn leased(&self) -> &CpuMask {
        &self.leased
    }

    /// The live leases.
    pub fn live(&self) -> impl Iterator<Item = &Lease> {
        self.leases.iter().flatten()
    }

    /// A lease, if it is live.
    pub fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.live().find(|lease| lease.id == id)
    }

    /// The live lease that has this CPU.
    pub fn of_cpu(&self, cpu: CpuId) -> Option<&Lease> {
        self.live().find(|lease| lease.cpus.contains(cpu))
    }

    /// When the next lease ends by itself; `u64::MAX` if none does.
    pub fn next_expiry_ns(&self) -> u64 {
        self.live().map(|lease| lease.expires_ns).min().unwrap_or(u64::MAX)
    }
}

impl<R: Rules> Book<R> {
    /// Live leases of a pool, those of one account only if there is one.
    pub fn count(&self, pool: PoolId, account: Option<u64>) -> u64 {
        let counts =
            |lease: &&Lease| lease.pool == pool && account.is_none_or(|account| lease.account == account);
        self.live().filter(counts).count() as u64 + self.ghosts
    }

    /// Makes a lease. A revoked grant is refused first, since it decides the pool; otherwise the refusals come in the order of [`Refused`]: what is
    /// wrong with the request before what stands in its way. The driver has called [`Book::expire`] for the same `now`: a lease that is over stands in nobody's
    /// way.
    pub fn create(&mut self, request: &Request, machine: &Machine, now: u64) -> Result<LeaseId, Refused> {
        debug_assert!(self.next_expiry_ns() > now, "leases that are over by {now} were not ended");
        let lease = self.judge(request, machine, now)?;
        let free = self.leases.iter_mut().find(|slot| slot.is_none()).ok_or(Refused::TableFull)?;
        *free = Some(lease);
        self.leased = self.leased.or(&lease.cpus);
        self.made += 1;
        Ok(lease.id)
    }

    /// The lease that a request would become. Changes nothing.
    fn judge(&self, request: &Request, machine: &Machine, now: u64) -> Result<Lease, Refused> {
        let Request { through, cpus, owner, latency_ns, lifetime_ns } = *request;
        let (account, pool, grant) = match through {
            Through::Creator { account, pool } => (account, pool, None),
            Through::Grant(id) => {
                let grant = self
                    .tables
                    .grant(id)
                    .filter(|grant| grant.is_live || self.rules.has(Flaw::StaleGrantObeyed));
                let grant = grant.ok_or(Refused::Stale)?;
                let asserted = if self.rules.has(Flaw::AccountAsserted) { 0 } else { grant.account };
                (asserted, grant.pool, Some(id))
            }
        };
        if cpus.is_empty() {
            return Err(Refused::NoCpu);
        }
        if !cpus.without(&machine.online).is_empty() {
            return Err(Refused::Offline);
        }
        if latency_ns == 0 || latency_ns > MAX_LATENCY_NS {
            return Err(Refused::Latency);
        }
        if lifetime_ns > MAX_LIFETIME_NS {
            return Err(Refused::Lifetime);
        }
        let limits = self.tables.pool(pool).ok_or(Refused::UnknownPool)?;
        if !cpus.without(&limits.cpus).is_empty() {
            return Err(Refused::OutsidePool);
        }
        if !cpus.and(&self.leased).is_empty() && !self.rules.has(Flaw::OverlapIgnored) {
            return Err(Refused::Overlap);
        }
        let housekeepers = machine.online.without(&self.leased).without(&cpus);
        if housekeepers.is_empty() && !self.rules.has(Flaw::HousekeeperIgnored) {
            return Err(Refused::NoHousekeeping);
        }
        if !cpus.and(&machine.homes).is_empty() {
            return Err(Refused::AdmittedTime);
        }
        let is_full = |most: u32, count: u64| most != 0 && count >= u64::from(most);
        if is_full(limits.max_leases, self.count(pool, None)) {
            return Err(Refused::PoolFull);
        }
        if account != 0 && is_full(limits.max_leases_per_account, self.count(pool, Some(account))) {
            return Err(Refused::AccountFull);
        }
        let expires_ns = if lifetime_ns == 0 { u64::MAX } else { now.saturating_add(lifetime_ns) };
        let id = LeaseId(self.made + 1);
        Ok(Lease { id, cpus, owner, pool, account, grant, latency_ns, lifetime_ns, expires_ns })
    }

    /// The lease lasts for its lifetime from now on, as the same lease. Says until when. Only before its end: one that is over stays over,
    /// whether somebody has noticed that or not.
    pub fn renew(&mut self, id: LeaseId, now: u64) -> Result<u64, Refused> {
        let may_be_late = self.rules.has(Flaw::LateRenewal);
        let lease = self.leases.iter_mut().flatten().find(|lease| lease.id == id).ok_or(Refused::Stale)?;
        if lease.lifetime_ns == 0 {
            return Err(Refused::NotRenewable);
        }
        if now >= lease.expires_ns && !may_be_late {
            return Err(Refused::Stale);
        }
        // Never back: somebody who read the clock before another one may come after that one.
        lease.expires_ns = lease.expires_ns.max(now.saturating_add(lease.lifetime_ns.min(MAX_LIFETIME_NS)));
        Ok(lease.expires_ns)
    }

    /// Ends one lease, which somebody takes back or fairness ends.
    pub fn end(&mut self, id: LeaseId, reason: Reason) -> Result<Ended, Refused> {
        let mut found = Err(Refused::Stale);
        self.end_all(reason, |lease| lease.id == id, |ended| found = Ok(ended));
        found
    }

    /// Ends the leases whose lifetime is over at `now`.
    pub fn expire(&mut self, now: u64, ended: impl FnMut(Ended)) {
        self.end_all(Reason::Expired, |lease| lease.expires_ns <= now, ended);
    }

    /// Ends the leases of a process that has ended.
    pub fn process_ends(&mut self, process: u64, ended: impl FnMut(Ended)) {
        self.end_all(Reason::OwnerEnded, |lease| lease.owner.process == process, ended);
    }

    /// Ends the leases of a session that logs out.
    pub fn session_ends(&mut self, session: u64, ended: impl FnMut(Ended)) {
        self.end_all(Reason::LoggedOut, |lease| lease.owner.session == session, ended);
    }

    /// Mints a grant of a pair that the minter may mint.
    pub fn mint(&mut self, account: u64, pool: PoolId) -> Result<GrantId, Refused> {
        self.tables.mint(account, pool)
    }

    /// Revokes a minted grant, and ends every lease that was made through it: in one step, so that none is made in between (I-12).
    pub fn revoke_grant(&mut self, id: GrantId, ended: impl FnMut(Ended)) -> Result<(), Refused> {
        self.tables.revoke(id)?;
        if !self.rules.has(Flaw::NoCascade) {
            self.end_all(Reason::GrantRevoked, |lease| lease.grant == Some(id), ended);
        }
        Ok(())
    }

    /// A thread that may run on no CPU but `cpu`, which this lease has, wants to. It ranks at least as high as the holder or it does not; the lease
    /// could go to a CPU of `free` instead, if one of them is in its pool and in its mask.
    pub fn arrives(
        &self,
        id: LeaseId,
        cpu: CpuId,
        ranks_as_high: bool,
        free: &CpuMask,
    ) -> Result<Arrival, Refused> {
        let lease = self.get(id).filter(|lease| lease.cpus.contains(cpu)).ok_or(Refused::Stale)?;
        let pool = self.tables.pool(lease.pool).ok_or(Refused::UnknownPool)?;
        let mut siblings = lease.cpus.and(&pool.cpus).and(free);
        siblings.remove(cpu);
        Ok(if ranks_as_high && siblings.is_empty() { Arrival::EndsLease } else { Arrival::EndsQuiet })
    }

    fn end_all(&mut self, reason: Reason, is_meant: impl Fn(&Lease) -> bool, mut ended: impl FnMut(Ended)) {
        for slot in &mut self.leases {
            if let Some(lease) = slot.take_if(|lease| is_meant(lease)) {
                self.leased = self.leased.without(&lease.cpus);
                self.ghosts += u64::from(self.rules.has(Flaw::CapacityKept));
                ended(Ended { id: lease.id, cpus: lease.cpus, reason });
            }
        }
    }

    /// Whether the invariants hold; of one that does not, its name.
    ///
    /// # Errors
    /// The first invariant that is broken.
    pub fn check(&self, online: &CpuMask) -> Result<(), &'static str> {
        let mut union = CpuMask::EMPTY;
        for lease in self.live() {
            if !union.and(&lease.cpus).is_empty() {
                return Err("I-L1: a CPU is in two leases");
            }
            union = union.or(&lease.cpus);
            let pool = self.tables.pool(lease.pool).ok_or("I-L2: a lease out of no pool")?;
            if lease.cpus.is_empty() || !lease.cpus.without(&pool.cpus.and(online)).is_empty() {
                return Err("I-L2: a lease of CPUs that its pool does not have");
            }
            let of = |account: Option<u64>| {
                self.live()
                    .filter(|it| it.pool == lease.pool && account.is_none_or(|a| it.account == a))
                    .count()
            };
            let (all, own) = (of(None), of(Some(lease.account)));
            let exceeds = |most: u32, count: usize| most != 0 && count > most as usize;
            if exceeds(pool.max_leases, all)
                || lease.account != 0 && exceeds(pool.max_leases_per_account, own)
            {
                return Err("I-L4: more leases than the pool allows");
            }
            if let Some(id) = lease.grant {
                let grant = self
                    .tables
                    .grant(id)
                    .filter(|grant| grant.is_live)
                    .ok_or("I-L5: a lease outlives its grant")?;
                if (grant.account, grant.pool) != (lease.account, lease.pool) {
                    return Err("I-L5: a lease is not its grant's");
                }
            }
        }
        if union != self.leased {
            return Err("I-L1: the union of leases is another one");
        }
        if !union.is_empty() && online.without(&union).is_empty() {
            return Err("I-L3: no housekeeper is left");
        }
        Ok(())
    }
}
