//! The book of leases: every named case of issue "a CPU of one's own" that needs no machine, histories beside an oracle, and planted bugs.

use kcore::leases::{
    Arrival, BadTables, Book, Ended, Flaw, GrantId, LeaseId, MAX_LATENCY_NS, MAX_LIFETIME_NS, Machine, Owner,
    Pool, PoolId, Reason, Refused, Request, Rules, Sound, Tables, Through,
};
use proptest::prelude::*;
use sched::{CpuId, CpuMask};

const MS: u64 = 1_000_000;
const OWNER: Owner = Owner { process: 3, session: 1 };

fn cpus(numbers: &[usize]) -> CpuMask {
    let mut mask = CpuMask::EMPTY;
    numbers.iter().for_each(|&number| mask.insert(CpuId::new(number).expect("a CPU")));
    mask
}

fn machine(count: usize) -> Machine {
    Machine { online: CpuMask::first_n(count), homes: CpuMask::EMPTY }
}

/// As the manifest of the proof has them: pool 1 is CPU 1, pool 2 is the rest with two leases, one of each account.
fn tables() -> Tables {
    let pools = [
        Pool { id: PoolId(1), cpus: cpus(&[1]), max_leases: 0, max_leases_per_account: 0 },
        Pool { id: PoolId(2), cpus: cpus(&[1, 2, 3]), max_leases: 2, max_leases_per_account: 1 },
    ];
    Tables::new(&pools, &[(5, PoolId(1)), (8, PoolId(2))], &[(6, PoolId(2))]).expect("good tables")
}

fn ask(cpus: CpuMask) -> Request {
    let through = Through::Creator { account: 0, pool: PoolId::DEFAULT };
    Request { through, cpus, owner: OWNER, latency_ns: MS, lifetime_ns: 0 }
}

fn out_of(pool: u16, account: u64, cpus: CpuMask) -> Request {
    Request { through: Through::Creator { account, pool: PoolId(pool) }, ..ask(cpus) }
}

fn by_grant(grant: GrantId, cpus: CpuMask) -> Request {
    Request { through: Through::Grant(grant), ..ask(cpus) }
}

/// Creates on a machine of four CPUs at time 0, and sees that a refusal changes nothing and that the invariants hold.
fn create(book: &mut Book, request: &Request) -> Result<LeaseId, Refused> {
    let before = book.clone();
    let made = book.create(request, &machine(4), 0);
    if made.is_err() {
        assert_eq!(*book, before, "a refusal changes nothing");
    }
    book.check(&CpuMask::first_n(4)).expect("the invariants");
    made
}

#[test]
fn lease_create() {
    let mut book = Book::new(tables());
    let id = create(&mut book, &ask(cpus(&[1]))).expect("a lease");
    let lease = book.get(id).expect("it is live");
    assert_eq!((lease.cpus, lease.owner, lease.pool, lease.account), (cpus(&[1]), OWNER, PoolId::DEFAULT, 0));
    assert_eq!((lease.expires_ns, lease.grant), (u64::MAX, None));
    assert_eq!(book.of_cpu(CpuId::new(1).unwrap()).map(|lease| lease.id), Some(id));
    assert_eq!(book.of_cpu(CpuId::new(2).unwrap()), None);
}

#[test]
fn lease_mask_empty_offline_latency_lifetime() {
    let mut book = Book::new(tables());
    assert_eq!(create(&mut book, &ask(CpuMask::EMPTY)), Err(Refused::NoCpu));
    assert_eq!(create(&mut book, &ask(cpus(&[9]))), Err(Refused::Offline));
    assert_eq!(create(&mut book, &ask(cpus(&[1, 9]))), Err(Refused::Offline));
    let at = |latency_ns: u64| Request { latency_ns, ..ask(cpus(&[1])) };
    assert_eq!(create(&mut book, &at(0)), Err(Refused::Latency));
    assert_eq!(create(&mut book, &at(MAX_LATENCY_NS + 1)), Err(Refused::Latency));
    let lasting = |lifetime_ns: u64| Request { lifetime_ns, ..ask(cpus(&[1])) };
    assert_eq!(create(&mut book, &lasting(MAX_LIFETIME_NS + 1)), Err(Refused::Lifetime));
    assert!(create(&mut book, &at(MAX_LATENCY_NS)).is_ok(), "the longest is allowed");
    assert!(create(&mut book, &Request { cpus: cpus(&[2]), ..lasting(MAX_LIFETIME_NS) }).is_ok());
}

#[test]
fn lease_overlap_leaves_the_holder_alone() {
    let mut book = Book::new(tables());
    let id = create(&mut book, &ask(cpus(&[1]))).expect("a lease");
    let before = *book.get(id).unwrap();
    assert_eq!(create(&mut book, &ask(cpus(&[1, 2]))), Err(Refused::Overlap));
    assert_eq!(book.get(id), Some(&before));
}

#[test]
fn lease_last_housekeeper() {
    let mut book = Book::new(tables());
    create(&mut book, &ask(cpus(&[1, 2, 3]))).expect("a lease");
    assert_eq!(create(&mut book, &ask(cpus(&[0]))), Err(Refused::NoHousekeeping));
    let mut all = Book::new(tables());
    assert_eq!(create(&mut all, &ask(cpus(&[0, 1, 2, 3]))), Err(Refused::NoHousekeeping));
}

#[test]
fn lease_union_housekeeper() {
    let mut book = Book::new(Tables::minimal());
    book.create(&ask(cpus(&[0])), &machine(2), 0).expect("either of the two");
    assert_eq!(book.create(&ask(cpus(&[1])), &machine(2), 0), Err(Refused::NoHousekeeping));
}

#[test]
fn lease_context_home() {
    let mut book = Book::new(tables());
    let others = Machine { homes: cpus(&[1]), ..machine(4) };
    assert_eq!(book.create(&ask(cpus(&[1])), &others, 0), Err(Refused::AdmittedTime));
    assert!(book.create(&ask(cpus(&[2])), &others, 0).is_ok());
}

#[test]
fn lease_revoke_gives_the_cpus_back_once() {
    let mut book = Book::new(tables());
    let id = create(&mut book, &ask(cpus(&[1]))).expect("a lease");
    assert_eq!(book.end(id, Reason::Revoked), Ok(Ended { id, cpus: cpus(&[1]), reason: Reason::Revoked }));
    assert_eq!(book.end(id, Reason::Revoked), Err(Refused::Stale));
    assert!(book.leased().is_empty() && book.get(id).is_none());
    let next = create(&mut book, &ask(cpus(&[1]))).expect("the CPU is free");
    assert_ne!(next, id, "a number is never used twice");
    assert_eq!(book.end(id, Reason::Revoked), Err(Refused::Stale), "an old number reaches nobody");
}

#[test]
fn lease_owner_exit_and_logout() {
    let mut book = Book::new(tables());
    let mine = create(&mut book, &ask(cpus(&[1]))).expect("a lease");
    let other = Owner { process: 4, session: 1 };
    let theirs = create(&mut book, &Request { owner: other, ..ask(cpus(&[2])) }).expect("a lease");
    let mut ended = Vec::new();
    book.process_ends(3, |one| ended.push((one.id, one.reason)));
    assert_eq!(ended, [(mine, Reason::OwnerEnded)]);
    book.session_ends(2, |_| panic!("nobody's"));
    book.session_ends(1, |one| ended.push((one.id, one.reason)));
    assert_eq!(ended[1..], [(theirs, Reason::LoggedOut)]);
    assert!(book.leased().is_empty());
}

#[test]
fn lease_expire_and_renew() {
    let mut book = Book::new(tables());
    let id = create(&mut book, &Request { lifetime_ns: 10 * MS, ..ask(cpus(&[1])) }).expect("a lease");
    assert_eq!(book.next_expiry_ns(), 10 * MS);
    book.expire(10 * MS - 1, |_| panic!("too early"));
    assert_eq!(book.renew(id, 9 * MS), Ok(19 * MS), "the same lease");
    assert_eq!(book.renew(id, 8 * MS), Ok(19 * MS), "a clock that was read earlier does not shorten it");
    book.expire(10 * MS, |_| panic!("the old end is no end any more"));
    assert_eq!(
        book.renew(id, 19 * MS),
        Err(Refused::Stale),
        "its end has come, whether or not somebody has seen to it"
    );
    let mut ended = Vec::new();
    book.expire(19 * MS, |one| ended.push(one.reason.label()));
    assert_eq!(ended, ["lease-expired"]);
    assert_eq!(book.renew(id, 19 * MS), Err(Refused::Stale));
    assert_eq!(book.next_expiry_ns(), u64::MAX);
}

#[test]
fn lease_renew_unbounded_and_overflow() {
    let mut book = Book::new(tables());
    let id = create(&mut book, &ask(cpus(&[1]))).expect("a lease");
    assert_eq!(book.renew(id, 5), Err(Refused::NotRenewable));
    let request = Request { lifetime_ns: MAX_LIFETIME_NS, ..ask(cpus(&[2])) };
    let late = book.create(&request, &machine(4), u64::MAX - 1).expect("at the end of time");
    assert_eq!(book.get(late).map(|lease| lease.expires_ns), Some(u64::MAX));
}

#[test]
fn lease_fairness() {
    let mut book = Book::new(tables());
    let one = CpuId::new(1).unwrap();
    let id = create(&mut book, &out_of(2, 0, cpus(&[1, 2]))).expect("a lease");
    let nobody = CpuMask::EMPTY;
    assert_eq!(book.arrives(id, one, true, &nobody), Ok(Arrival::EndsLease));
    assert_eq!(book.arrives(id, one, false, &nobody), Ok(Arrival::EndsQuiet), "a lower one");
    assert_eq!(book.arrives(id, one, true, &cpus(&[2])), Ok(Arrival::EndsQuiet), "a sibling is free");
    assert_eq!(
        book.arrives(id, one, true, &cpus(&[1])),
        Ok(Arrival::EndsLease),
        "the CPU itself is no sibling"
    );
    assert_eq!(
        book.arrives(id, one, true, &cpus(&[3])),
        Ok(Arrival::EndsLease),
        "in the pool, and not in the mask"
    );
    assert_eq!(book.arrives(LeaseId(99), one, true, &nobody), Err(Refused::Stale));
    assert_eq!(book.arrives(id, CpuId::new(3).unwrap(), true, &nobody), Err(Refused::Stale), "not its CPU");
}

#[test]
fn pool_undeclared_mask_capacity_reclaim() {
    let mut book = Book::new(tables());
    assert_eq!(create(&mut book, &out_of(9, 0, cpus(&[1]))), Err(Refused::UnknownPool));
    assert_eq!(create(&mut book, &out_of(1, 0, cpus(&[1, 2]))), Err(Refused::OutsidePool));
    let first = create(&mut book, &out_of(2, 0, cpus(&[1]))).expect("1 of 2");
    create(&mut book, &out_of(2, 0, cpus(&[2]))).expect("2 of 2");
    assert_eq!(create(&mut book, &out_of(2, 0, cpus(&[3]))), Err(Refused::PoolFull));
    book.end(first, Reason::Revoked).expect("it was live");
    create(&mut book, &out_of(2, 0, cpus(&[3]))).expect("a live count, and no count of all");
}

#[test]
fn account_capacity_other_account_reclaim() {
    let mut book = Book::new(tables());
    let seven = create(&mut book, &out_of(2, 7, cpus(&[1]))).expect("account 7: 1 of 1");
    assert_eq!(create(&mut book, &out_of(2, 7, cpus(&[2]))), Err(Refused::AccountFull));
    let nine = create(&mut book, &out_of(2, 9, cpus(&[2]))).expect("another account");
    book.end(seven, Reason::Revoked).expect("it was live");
    create(&mut book, &out_of(2, 7, cpus(&[3]))).expect("again");
    book.end(nine, Reason::Revoked).expect("it was live");
}

#[test]
fn pool_manifest_bad() {
    let pool =
        |id: u16, cpus: CpuMask| Pool { id: PoolId(id), cpus, max_leases: 0, max_leases_per_account: 0 };
    let one = pool(1, cpus(&[1]));
    assert_eq!(Tables::new(&[one, one], &[], &[]).err(), Some(BadTables::Twice(PoolId(1))));
    assert_eq!(Tables::new(&[pool(3, CpuMask::EMPTY)], &[], &[]).err(), Some(BadTables::Empty(PoolId(3))));
    assert_eq!(Tables::new(&[one], &[(5, PoolId(2))], &[]).err(), Some(BadTables::Unknown(PoolId(2))));
    assert_eq!(Tables::new(&[one], &[], &[(5, PoolId(4))]).err(), Some(BadTables::Unknown(PoolId(4))));
    let many: Vec<_> = (0..17).map(|id| pool(id, cpus(&[1]))).collect();
    assert_eq!(Tables::new(&many, &[], &[]).err(), Some(BadTables::TooMany));
    let minimal = Tables::minimal();
    assert_eq!(minimal.pools().map(|pool| pool.id).collect::<Vec<_>>(), [PoolId::DEFAULT]);
}

#[test]
fn grant_stamps_and_default() {
    let mut book = Book::new(tables());
    let (first, second) = (GrantId(1), GrantId(2));
    let id = create(&mut book, &by_grant(first, cpus(&[1]))).expect("a lease");
    assert_eq!(book.get(id).map(|lease| (lease.account, lease.pool)), Some((5, PoolId(1))));
    assert_eq!(
        create(&mut book, &by_grant(first, cpus(&[2]))),
        Err(Refused::OutsidePool),
        "the grant's pool"
    );
    create(&mut book, &by_grant(second, cpus(&[2]))).expect("account 8: 1 of 1");
    assert_eq!(create(&mut book, &by_grant(second, cpus(&[3]))), Err(Refused::AccountFull));
    let of = |tables: &Tables| tables.grants().map(|grant| (grant.account, grant.pool)).collect::<Vec<_>>();
    assert_eq!(of(&Tables::minimal()), [(7, PoolId(0))], "grant-default");
    let one = Pool { id: PoolId(1), cpus: cpus(&[1]), max_leases: 0, max_leases_per_account: 0 };
    assert_eq!(of(&Tables::new(&[one], &[], &[]).unwrap()), [(7, PoolId(1))], "it prefers pool 1");
}

#[test]
fn mint_denied_grant_cascade_stale_twice_unknown_seeded() {
    let mut book = Book::new(tables());
    assert_eq!(book.mint(6, PoolId(1)), Err(Refused::Unauthorized));
    assert_eq!(book.mint(5, PoolId(2)), Err(Refused::Unauthorized));
    let grant = book.mint(6, PoolId(2)).expect("it is on the list");
    let lease = create(&mut book, &by_grant(grant, cpus(&[1]))).expect("a lease");
    create(&mut book, &out_of(2, 9, cpus(&[2]))).expect("another's");
    assert_eq!(create(&mut book, &by_grant(grant, cpus(&[3]))), Err(Refused::PoolFull));
    let mut ended = Vec::new();
    book.revoke_grant(grant, |one| ended.push((one.id, one.reason.label()))).expect("it was live");
    assert_eq!(ended, [(lease, "grant-revoked")]);
    assert_eq!(create(&mut book, &by_grant(grant, cpus(&[3]))), Err(Refused::Stale), "and nothing is made");
    assert_eq!(book.revoke_grant(grant, |_| panic!("once")), Err(Refused::AlreadyRevoked));
    assert_eq!(book.revoke_grant(GrantId(99), |_| panic!("nobody's")), Err(Refused::UnknownGrant));
    assert_eq!(book.revoke_grant(GrantId(0), |_| panic!("nobody's")), Err(Refused::UnknownGrant));
    assert_eq!(book.revoke_grant(GrantId(1), |_| panic!("the manifest's")), Err(Refused::Seeded));
    let again = book.mint(6, PoolId(2)).expect("another one");
    assert_ne!(again, grant);
    assert_eq!(
        book.revoke_grant(grant, |_| panic!("once")),
        Err(Refused::AlreadyRevoked),
        "its place is another's"
    );
    create(&mut book, &by_grant(again, cpus(&[3]))).expect("capacity is back at once");
}

#[test]
fn tables_are_bounded() {
    let mut book = Book::new(tables());
    let minted = (0..1000).take_while(|_| book.mint(6, PoolId(2)).is_ok()).count();
    assert_eq!(minted, 62, "64 places, two of them the manifest's");
    assert_eq!(book.mint(6, PoolId(2)), Err(Refused::TableFull));
    book.revoke_grant(GrantId(3), |_| ()).expect("it was minted");
    assert!(book.mint(6, PoolId(2)).is_ok());
    let mut large = Book::new(Tables::minimal());
    let made = (1..100).take_while(|&cpu| large.create(&ask(cpus(&[cpu])), &machine(100), 0).is_ok()).count();
    assert_eq!(made, 63);
    assert_eq!(large.create(&ask(cpus(&[64])), &machine(100), 0), Err(Refused::TableFull));
}

/// Something that happens.
#[derive(Clone, Copy, Debug)]
enum Step {
    Create { cpus: u8, through: u8, process: u8, lifetime: u8 },
    End(u8),
    Renew(u8),
    Wait(u8),
    ProcessEnds(u8),
    SessionEnds(u8),
    Mint,
    RevokeGrant(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..16_u8, 0..8_u8, 0..3_u8, 0..4_u8)
            .prop_map(|(cpus, through, process, lifetime)| Step::Create { cpus, through, process, lifetime }),
        2 => any::<u8>().prop_map(Step::End),
        2 => any::<u8>().prop_map(Step::Renew),
        2 => (0..20_u8).prop_map(Step::Wait),
        1 => (0..3_u8).prop_map(Step::ProcessEnds),
        1 => (0..3_u8).prop_map(Step::SessionEnds),
        2 => Just(Step::Mint),
        2 => (0..10_u8).prop_map(Step::RevokeGrant),
    ]
}

/// One live lease, as an oracle keeps it: without tables, masks as sets of bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    id: LeaseId,
    cpus: u8,
    process: u64,
    account: u64,
    pool: u16,
    grant: Option<GrantId>,
    expires_ns: u64,
    lifetime_ns: u64,
}

#[derive(Default)]
struct Oracle {
    live: Vec<Known>,
    revoked: Vec<GrantId>,
    minted: Vec<GrantId>,
    /// Leases so far.
    made: u64,
}

impl Oracle {
    /// One of the authorities that there are: with its account, pool and grant.
    fn authority(&self, number: u8) -> Option<(Through, u64, u16, Option<GrantId>)> {
        Some(match number {
            0..4 => {
                let (account, pool) = (u64::from(number % 2) * 7, u16::from(number / 2) * 2);
                (Through::Creator { account, pool: PoolId(pool) }, account, pool, None)
            }
            4 => (Through::Grant(GrantId(1)), 5, 1, Some(GrantId(1))),
            5 => (Through::Grant(GrantId(2)), 8, 2, Some(GrantId(2))),
            _ => {
                let id = self.minted[self.minted.len().checked_sub(usize::from(number - 5))?];
                (Through::Grant(id), 6, 2, Some(id))
            }
        })
    }

    fn may_create(&self, cpus: u8, account: u64, pool: u16, grant: Option<GrantId>) -> bool {
        let taken = self.live.iter().fold(0, |taken, it| taken | it.cpus);
        let pool_cpus = [0xf, 0b10, 0b1110][usize::from(pool)];
        let in_pool = self.live.iter().filter(|it| it.pool == pool).count();
        let of_account = self.live.iter().filter(|it| it.pool == pool && it.account == account).count();
        grant.is_none_or(|grant| !self.revoked.contains(&grant))
            && cpus & !pool_cpus == 0
            && cpus & taken == 0
            && cpus | taken != 0xf
            && (pool != 2 || in_pool < 2 && (account == 0 || of_account < 1))
    }
}

/// Plays a history on the book and beside the oracle; says what does not agree.
fn play<R: Rules + PartialEq>(rules: R, steps: &[Step]) -> Result<(), String> {
    let mut book = Book::with_rules(tables(), rules);
    let (mut oracle, mut now) = (Oracle::default(), 0_u64);
    for step in steps {
        let mut ended = Vec::new();
        match *step {
            Step::Create { cpus: bits, through, process, lifetime } => {
                let lifetime_ns = u64::from(lifetime) * 5;
                let numbers: Vec<_> = (0..4).filter(|bit| bits >> bit & 1 != 0).collect();
                let owner = Owner { process: u64::from(process), session: u64::from(process % 2) };
                // As a driver does: what is over is ended first.
                book.expire(now, |one| ended.push(one.id));
                oracle.live.retain(|it| it.expires_ns > now);
                let Some((through, account, pool, grant)) = oracle.authority(through) else { continue };
                let request = Request { through, cpus: cpus(&numbers), owner, latency_ns: MS, lifetime_ns };
                let may = oracle.may_create(bits, account, pool, grant);
                let before = book.clone();
                let made = book.create(&request, &machine(4), now);
                if made.is_err() && book != before {
                    return Err(format!("{step:?}: refused, and something changed"));
                }
                match made {
                    Ok(id) if may => {
                        oracle.made += 1;
                        let expires_ns = if lifetime == 0 { u64::MAX } else { now + lifetime_ns };
                        let process = u64::from(process);
                        oracle.live.push(Known {
                            id,
                            cpus: bits,
                            process,
                            account,
                            pool,
                            grant,
                            expires_ns,
                            lifetime_ns,
                        });
                    }
                    Err(_) if !may => {}
                    made => return Err(format!("{step:?}: {made:?}, and it may: {may}")),
                }
            }
            Step::End(which) => {
                let id = LeaseId(u64::from(which) % (oracle.made + 2));
                let is_live = oracle.live.iter().any(|it| it.id == id);
                match book.end(id, Reason::Revoked) {
                    Ok(one) if is_live => ended.push(one.id),
                    Err(Refused::Stale) if !is_live => {}
                    other => return Err(format!("{step:?}: {other:?}")),
                }
                oracle.live.retain(|it| it.id != id);
            }
            Step::Renew(which) => {
                let id = LeaseId(u64::from(which) % (oracle.made + 2));
                let known = oracle.live.iter_mut().find(|it| it.id == id);
                let want = match known {
                    None => Err(Refused::Stale),
                    Some(it) if it.lifetime_ns == 0 => Err(Refused::NotRenewable),
                    Some(it) if it.expires_ns <= now => Err(Refused::Stale),
                    Some(it) => {
                        it.expires_ns = now + it.lifetime_ns;
                        Ok(it.expires_ns)
                    }
                };
                let got = book.renew(id, now);
                if got != want {
                    return Err(format!("{step:?}: {got:?} and not {want:?}"));
                }
            }
            Step::Wait(ns) => {
                now += u64::from(ns);
                // An end may come before somebody sees to it: a renewal in between must not help.
                if ns % 2 == 0 {
                    book.expire(now, |one| ended.push(one.id));
                    oracle.live.retain(|it| it.expires_ns > now);
                }
            }
            Step::ProcessEnds(process) => {
                book.process_ends(u64::from(process), |one| ended.push(one.id));
                oracle.live.retain(|it| it.process != u64::from(process));
            }
            Step::SessionEnds(session) => {
                book.session_ends(u64::from(session), |one| ended.push(one.id));
                oracle.live.retain(|it| it.process % 2 != u64::from(session));
            }
            Step::Mint => oracle.minted.push(book.mint(6, PoolId(2)).map_err(|why| format!("{why:?}"))?),
            Step::RevokeGrant(which) => {
                let id = GrantId(u64::from(which));
                let want = match which {
                    1 | 2 => Err(Refused::Seeded),
                    _ if oracle.revoked.contains(&id) => Err(Refused::AlreadyRevoked),
                    _ if oracle.minted.contains(&id) => Ok(()),
                    _ => Err(Refused::UnknownGrant),
                };
                let got = book.revoke_grant(id, |one| ended.push(one.id));
                if got != want {
                    return Err(format!("{step:?}: {got:?} and not {want:?}"));
                }
                if got.is_ok() {
                    oracle.revoked.push(id);
                    oracle.live.retain(|it| it.grant != Some(id));
                }
            }
        }
        book.check(&CpuMask::first_n(4)).map_err(str::to_owned)?;
        let mut live: Vec<_> = book.live().map(|lease| (lease.id, lease.expires_ns, lease.account)).collect();
        live.sort_unstable();
        let mut known: Vec<_> = oracle.live.iter().map(|it| (it.id, it.expires_ns, it.account)).collect();
        known.sort_unstable();
        if live != known {
            return Err(format!("{step:?}: {live:?} are live, and should be {known:?}"));
        }
        if ended.iter().any(|id| book.get(*id).is_some()) {
            return Err(format!("{step:?}: told to be ended, and live"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]
    #[test]
    fn m_04_the_book_does_what_a_list_of_leases_does(steps in prop::collection::vec(step(), 1..60)) {
        if let Err(why) = play(Sound, &steps) {
            prop_assert!(false, "{}", why);
        }
    }
}

/// Each planted bug is found by a history, and the sound book agrees with the oracle on the same.
#[test]
fn m_04_planted_bugs_of_the_book_are_found() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let flaws = [
        Flaw::OverlapIgnored,
        Flaw::HousekeeperIgnored,
        Flaw::CapacityKept,
        Flaw::NoCascade,
        Flaw::StaleGrantObeyed,
        Flaw::AccountAsserted,
        Flaw::LateRenewal,
    ];
    let histories = prop::collection::vec(step(), 40..60);
    for flaw in flaws {
        let mut runner = TestRunner::deterministic();
        let found = (0..2000).find_map(|_| {
            let steps = histories.new_tree(&mut runner).expect("a history").current();
            play(flaw, &steps).err().map(|why| (steps, why))
        });
        let (steps, why) = found.unwrap_or_else(|| panic!("{flaw:?} survives"));
        play(Sound, &steps).expect("it is the bug that was found");
        println!("{flaw:?}: {why}");
    }
}
