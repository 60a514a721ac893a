//! Pools and grants: which CPUs may be leased at all, and by whom (I-07, I-08).

use super::{GrantId, Refused};
use sched::CpuMask;

/// Pools that a machine can have.
const MAX_POOLS: usize = 16;
/// Grants that can be live at once, those of the manifest included.
const MAX_GRANTS: usize = 64;
/// Pairs that a minter can be allowed.
const MAX_ALLOWED: usize = 32;
/// The account of the grant that there is where the manifest has none.
const DEFAULT_ACCOUNT: u64 = 7;

/// The number of a pool, as the manifest counts them; 0 is the one that there always is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u16);

impl PoolId {
    /// The pool that there always is: all CPUs, unless the manifest says otherwise.
    pub const DEFAULT: PoolId = PoolId(0);
}

/// CPUs that can be leased, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pool {
    /// Its number.
    pub id: PoolId,
    /// Its CPUs.
    pub cpus: CpuMask,
    /// Live leases that it may have; 0 for any number.
    pub max_leases: u32,
    /// Live leases that one account may have; 0 for any number.
    pub max_leases_per_account: u32,
}

/// The right to lease out of one pool, for one account.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    /// Its number.
    pub id: GrantId,
    /// The account that its leases count for.
    pub account: u64,
    /// The pool that its leases come out of.
    pub pool: PoolId,
    /// Whether it was minted, and can be revoked. Otherwise it is the manifest's.
    pub is_minted: bool,
    /// Whether leases can be made through it.
    pub is_live: bool,
}

/// What is wrong with pools, grants or the minter's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadTables {
    /// Two pools have this number.
    Twice(PoolId),
    /// This pool has no CPU.
    Empty(PoolId),
    /// There is no such pool.
    Unknown(PoolId),
    /// There are more than the table holds.
    TooMany,
}

/// Pools, grants, and what may be minted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tables {
    pools: [Option<Pool>; MAX_POOLS],
    allowed: [Option<(u64, PoolId)>; MAX_ALLOWED],
    grants: [Option<Grant>; MAX_GRANTS],
    /// How many grants there have been.
    granted: u64,
}

impl Tables {
    /// The tables of a manifest: pools, grants and the pairs that may be minted. Pool 0 is made if it is missing, and so is one grant if there is none.
    ///
    /// # Errors
    /// The first entry that is wrong. A kernel that is given such a manifest takes [`Tables::minimal`] instead: nothing is lent by mistake.
    pub fn new(
        pools: &[Pool],
        grants: &[(u64, PoolId)],
        allowed: &[(u64, PoolId)],
    ) -> Result<Tables, BadTables> {
        let mut tables = Tables {
            pools: [const { None }; MAX_POOLS],
            allowed: [const { None }; MAX_ALLOWED],
            grants: [const { None }; MAX_GRANTS],
            granted: 0,
        };
        for pool in pools {
            tables.add_pool(*pool)?;
        }
        if tables.pool(PoolId::DEFAULT).is_none() {
            let cpus = CpuMask::ALL;
            tables.add_pool(Pool { id: PoolId::DEFAULT, cpus, max_leases: 0, max_leases_per_account: 0 })?;
        }
        if allowed.len() > MAX_ALLOWED {
            return Err(BadTables::TooMany);
        }
        for (slot, pair) in tables.allowed.iter_mut().zip(allowed) {
            *slot = Some(*pair);
        }
        let preferred = tables.pool(PoolId(1)).map_or(PoolId::DEFAULT, |pool| pool.id);
        let fallback = [(DEFAULT_ACCOUNT, preferred)];
        for (account, pool) in if grants.is_empty() { &fallback } else { grants } {
            tables.add_grant(*account, *pool, false).map_err(|refused| match refused {
                Refused::TableFull => BadTables::TooMany,
                _ => BadTables::Unknown(*pool),
            })?;
        }
        match allowed.iter().find(|(_, pool)| tables.pool(*pool).is_none()) {
            Some((_, pool)) => Err(BadTables::Unknown(*pool)),
            None => Ok(tables),
        }
    }

    /// One pool of all CPUs, and one grant.
    pub fn minimal() -> Tables {
        Tables::new(&[], &[], &[]).expect("nothing in it is wrong")
    }

    fn add_pool(&mut self, pool: Pool) -> Result<(), BadTables> {
        if pool.cpus.is_empty() {
            return Err(BadTables::Empty(pool.id));
        }
        if self.pool(pool.id).is_some() {
            return Err(BadTables::Twice(pool.id));
        }
        *self.pools.iter_mut().find(|slot| slot.is_none()).ok_or(BadTables::TooMany)? = Some(pool);
        Ok(())
    }

    fn add_grant(&mut self, account: u64, pool: PoolId, is_minted: bool) -> Result<GrantId, Refused> {
        if self.pool(pool).is_none() {
            return Err(Refused::UnknownPool);
        }
        let id = GrantId(self.granted + 1);
        // A grant that was revoked leaves its place to the next one: its number says that it was there.
        let is_free = |slot: &&mut Option<Grant>| slot.is_none_or(|grant| !grant.is_live);
        let slot = self.grants.iter_mut().find(is_free).ok_or(Refused::TableFull)?;
        *slot = Some(Grant { id, account, pool, is_minted, is_live: true });
        self.granted += 1;
        Ok(id)
    }

    /// The pool with this number.
    pub fn pool(&self, id: PoolId) -> Option<&Pool> {
        self.pools.iter().flatten().find(|pool| pool.id == id)
    }

    /// All pools.
    pub fn pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().flatten()
    }

    /// The grant with this number, as long as its place is not another's; it may have been revoked.
    pub fn grant(&self, id: GrantId) -> Option<&Grant> {
        self.grants.iter().flatten().find(|grant| grant.id == id)
    }

    /// The grants that are live.
    pub fn grants(&self) -> impl Iterator<Item = &Grant> {
        self.grants.iter().flatten().filter(|grant| grant.is_live)
    }

    pub(super) fn mint(&mut self, account: u64, pool: PoolId) -> Result<GrantId, Refused> {
        if !self.allowed.contains(&Some((account, pool))) {
            return Err(Refused::Unauthorized);
        }
        self.add_grant(account, pool, true)
    }

    pub(super) fn revoke(&mut self, id: GrantId) -> Result<(), Refused> {
        if id.0 == 0 || id.0 > self.granted {
            return Err(Refused::UnknownGrant);
        }
        let live = self.grants.iter_mut().flatten().find(|grant| grant.id == id && grant.is_live);
        let grant = live.ok_or(Refused::AlreadyRevoked)?;
        if !grant.is_minted {
            return Err(Refused::Seeded);
        }
        grant.is_live = false;
        Ok(())
    }
}
