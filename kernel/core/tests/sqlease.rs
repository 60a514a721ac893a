//! K-12 and Q-01: one consumer at a time, stale ones are told, modes change only as they may.

use kcore::sqlease::ModeEvent::*;
use kcore::sqlease::RingMode::*;
use kcore::sqlease::*;

#[test]
fn a_lease_is_taken_checked_and_given_back() {
    let ring = SqOwner::new();
    let lease = ring.acquire_syscall(42).unwrap();
    assert!(lease.owner() == 42 && ring.verify(&lease).is_ok());
    assert_ne!(lease.generation(), 0);
    assert_eq!(ring.acquire_syscall(43), Err(SqError::Busy));
    assert_eq!(ring.transition(Start), Err(SqError::Busy));
    let first = lease.generation();
    ring.release(lease);
    let again = ring.acquire_syscall(42).unwrap();
    assert_ne!(again.generation(), first);
    ring.release(again);
}

/// A lease of another generation is stale even if the owner is the same, and its release takes nothing from anybody.
#[test]
fn a_stale_lease_is_stale_for_ever() {
    let mut ring = SqOwner::new();
    let stale = ring.acquire_syscall(1).unwrap();
    ring.reset();
    assert_eq!(ring.verify(&stale), Err(StaleSqConsumer));
    let lease = ring.acquire_syscall(1).unwrap();
    assert_eq!(ring.verify(&stale), Err(StaleSqConsumer));
    ring.release(stale);
    assert!(ring.verify(&lease).is_ok());
    assert_eq!(ring.acquire_syscall(2), Err(SqError::Busy));
    ring.release(lease);
}

#[test]
fn teardown_waits_for_the_last_consumer() {
    let ring = SqOwner::new();
    assert_eq!(ring.reopen(), Err(SqError::NotClosed));
    let lease = ring.acquire_syscall(1).unwrap();
    assert!(ring.invalidate() && ring.invalidate());
    assert_eq!(ring.verify(&lease), Err(StaleSqConsumer));
    assert_eq!(ring.acquire_syscall(1), Err(SqError::Closed));
    assert_eq!(ring.transition(Start), Err(SqError::Closed));
    assert_eq!(ring.reopen(), Err(SqError::Busy));
    ring.release(lease);
    assert!(!ring.invalidate());
    assert_eq!(ring.reopen(), Ok(()));
    let lease = ring.acquire_syscall(1).unwrap();
    assert!(ring.verify(&lease).is_ok());
    ring.release(lease);
}

#[test]
fn only_the_consumer_of_the_mode_gets_a_lease() {
    let ring = SqOwner::new();
    assert_eq!(ring.acquire_poller(9), Err(SqError::WrongMode(Syscall)));
    assert_eq!(ring.transition(Start), Ok(SqpollStarting));
    assert_eq!(ring.acquire_syscall(1), Err(SqError::WrongMode(SqpollStarting)));
    assert_eq!(ring.acquire_poller(9), Err(SqError::WrongMode(SqpollStarting)));
    assert_eq!(ring.transition(Started), Ok(SqpollRunning));
    let lease = ring.acquire_poller(9).unwrap();
    assert_eq!(ring.transition(Sleep), Err(SqError::Busy));
    ring.release(lease);
    assert_eq!(ring.transition(Sleep), Ok(SqpollSleeping));
    assert_eq!(ring.acquire_poller(9), Err(SqError::WrongMode(SqpollSleeping)));
    assert_eq!(ring.transition(Stop), Ok(SqpollStopping));
    assert_eq!(ring.transition(Stopped), Ok(Syscall));
    ring.release(ring.acquire_syscall(1).unwrap());
}

/// a start that fails leaves the ring as it was.
#[test]
fn a_failed_start_is_rolled_back() {
    let ring = SqOwner::new();
    ring.transition(Start).unwrap();
    assert_eq!(ring.transition(StartFailed), Ok(Syscall));
    assert_eq!(ring.mode(), Syscall);
    ring.release(ring.acquire_syscall(1).unwrap());
}

/// all pairs; what is not listed is refused and changes nothing.
#[test]
fn only_the_listed_transitions_exist() {
    let legal = [
        (Syscall, Start, SqpollStarting),
        (SqpollStarting, Started, SqpollRunning),
        (SqpollStarting, StartFailed, Syscall),
        (SqpollStarting, Stop, SqpollStopping),
        (SqpollRunning, Sleep, SqpollSleeping),
        (SqpollRunning, Stop, SqpollStopping),
        (SqpollSleeping, Wake, SqpollRunning),
        (SqpollSleeping, Stop, SqpollStopping),
        (SqpollStopping, Stopped, Syscall),
    ];
    let mut found = 0;
    for mode in RingMode::ALL {
        for event in [Start, Started, StartFailed, Sleep, Wake, Stop, Stopped] {
            let expected = legal.iter().find(|(from, by, _)| (*from, *by) == (mode, event)).map(|row| row.2);
            assert_eq!(mode.after(event), expected, "{mode:?} {event:?}");
            found += usize::from(expected.is_some());
        }
    }
    assert_eq!(found, legal.len());
    let ring = SqOwner::new();
    assert_eq!(ring.transition(Stopped), Err(SqError::WrongMode(Syscall)));
    assert_eq!(ring.mode(), Syscall);
}
