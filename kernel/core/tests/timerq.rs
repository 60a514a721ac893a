//! `kcore::timerq` against a sorted map.

use std::collections::BTreeMap;

use kcore::timerq::{Node, Store, TimerQueue};
use proptest::prelude::*;

/// Counts how many nodes are touched.
struct Counting(Vec<Node>, u64);

impl Store for Counting {
    fn node(&mut self, id: u32) -> &mut Node {
        self.1 += 1;
        &mut self.0[id as usize]
    }
}

#[test]
fn ties_go_by_insertion_order() {
    let mut store = vec![Node::default(); 8];
    let store = store.as_mut_slice();
    let mut queue = TimerQueue::new();
    assert_eq!((queue.first(), queue.first_deadline()), (None, u64::MAX));
    for id in [5, 2, 7, 1] {
        queue.insert(store, id, 100);
    }
    queue.insert(store, 3, 99);
    assert_eq!((queue.first(), queue.len()), (Some((99, 3)), 5));
    assert_eq!(queue.pop_due(store, 98), None);
    assert!(queue.cancel(store, 2) && !queue.cancel(store, 2) && !queue.cancel(store, 0));
    let order: Vec<u32> = std::iter::from_fn(|| queue.pop_due(store, 100)).collect();
    assert_eq!(order, [3, 5, 7, 1]);
    assert!(queue.is_empty() && store.iter().all(|node| !node.is_queued()));
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "timer 1 is queued already")]
fn a_timer_is_queued_once() {
    let mut store = vec![Node::default(); 2];
    let mut queue = TimerQueue::new();
    queue.insert(store.as_mut_slice(), 1, 5);
    queue.insert(store.as_mut_slice(), 1, 6);
}

/// Ascending, descending and mixed insertions of many timers: no operation touches more than a multiple of log2 n.
#[test]
fn no_operation_is_longer_than_the_logarithm() {
    const N: u32 = 4096;
    let orders: [fn(u32) -> u64; 3] =
        [u64::from, |id| u64::from(N - id), |id| u64::from(id.wrapping_mul(2_654_435_761) >> 8)];
    for deadline in orders {
        let mut store = Counting(vec![Node::default(); N as usize], 0);
        let mut queue = TimerQueue::new();
        let mut worst = 0;
        let mut watch = |store: &mut Counting, act: &mut dyn FnMut(&mut Counting)| {
            store.1 = 0;
            act(store);
            worst = worst.max(store.1);
        };
        for id in 0..N {
            watch(&mut store, &mut |store| queue.insert(store, id, deadline(id)));
        }
        for id in (0..N).step_by(3) {
            watch(&mut store, &mut |store| assert!(queue.cancel(store, id)));
        }
        let mut last = 0;
        while let Some((deadline, id)) = queue.first() {
            assert!(deadline >= last);
            last = deadline;
            watch(&mut store, &mut |store| assert_eq!(queue.pop_due(store, u64::MAX), Some(id)));
        }
        assert!(worst <= 12 * 13, "{worst} nodes touched");
    }
}

proptest! {
    #[test]
    fn behaves_as_a_sorted_map(
        steps in prop::collection::vec((0u8..5, 0u32..40, 0u64..60), 1..300)
    ) {
        let mut nodes = vec![Node::default(); 40];
        let store = nodes.as_mut_slice();
        let mut queue = TimerQueue::new();
        let mut model: BTreeMap<(u64, u64), u32> = BTreeMap::new();
        let mut sequence = 0;
        for (kind, id, time) in steps {
            let queued = model.iter().find(|(_, other)| **other == id).map(|(key, _)| *key);
            prop_assert_eq!(store.node(id).is_queued(), queued.is_some());
            match kind {
                0..=2 if queued.is_none() => {
                    queue.insert(store, id, time);
                    model.insert((time, sequence), id);
                    sequence += 1;
                }
                3 => {
                    prop_assert_eq!(queue.cancel(store, id), queued.is_some());
                    queued.map(|key| model.remove(&key));
                }
                _ => {
                    let due = model.first_key_value().map(|(key, id)| (*key, *id)).filter(|((at, _), _)| *at <= time);
                    prop_assert_eq!(queue.pop_due(store, time), due.map(|(_, id)| id));
                    due.map(|(key, _)| model.remove(&key));
                }
            }
            prop_assert_eq!(queue.first(), model.first_key_value().map(|((at, _), id)| (*at, *id)));
            prop_assert_eq!(queue.len() as usize, model.len());
        }
    }
}
