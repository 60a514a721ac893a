//! `kcore::buddy` against a set of frames, and its refusals.

use std::collections::BTreeSet;

use kcore::buddy::{ASIDE_MAX, Buddy, FrameMeta, ORDER_MAX};
use proptest::prelude::*;

#[test]
fn splits_and_joins() {
    let mut meta = vec![FrameMeta::default(); 64];
    let mut buddy = Buddy::new(&mut meta, 0);
    assert_eq!(buddy.alloc(0), None);
    buddy.add(0..64);
    assert_eq!((buddy.free_frames(), buddy.total_frames()), (64, 64));
    assert_eq!(buddy.free_blocks()[6], 1);
    assert_eq!(buddy.alloc(7), None);
    assert_eq!(buddy.alloc(ORDER_MAX + 1), None);
    let one = buddy.alloc(0).unwrap();
    let four = buddy.alloc(2).unwrap();
    assert_eq!((one, four), (0, 4));
    assert_eq!(buddy.free_frames(), 59);
    buddy.free(one, 0);
    buddy.free(four, 2);
    assert_eq!(buddy.free_blocks()[6], 1);
    assert_eq!(buddy.alloc(6), Some(0));
    assert_eq!(buddy.alloc(0), None);
}

#[test]
fn alignment_is_that_of_the_frame_number_and_holes_stay() {
    let mut meta = vec![FrameMeta::default(); 100];
    let mut buddy = Buddy::new(&mut meta, 0x9_f003);
    buddy.add(0x9_f005..0x9_f010);
    buddy.add(0x9_f018..0x9_f03b);
    let mut seen = BTreeSet::new();
    while let Some(frame) = buddy.alloc(1) {
        assert_eq!(frame % 2, 0);
        assert!(seen.insert(frame) && (!(0x9_f010..0x9_f018).contains(&frame)));
    }
    assert_eq!(buddy.free_frames(), 2);
    assert_eq!(seen.len(), 22);
}

/// The block around frame 0 does not end at the largest order by accident.
#[test]
fn no_block_is_larger_than_the_largest_order() {
    let mut meta = vec![FrameMeta::default(); 4096];
    let mut buddy = Buddy::new(&mut meta, 0);
    buddy.add(0..4096);
    assert_eq!(buddy.free_blocks()[ORDER_MAX], 4);
    assert_eq!((0..4).map(|_| buddy.alloc(ORDER_MAX)).filter(Option::is_some).count(), 4);
    assert_eq!(buddy.alloc(0), None);
}

fn with_block(act: impl FnOnce(&mut Buddy<'_>, u64)) {
    let mut meta = vec![FrameMeta::default(); 16];
    let mut buddy = Buddy::new(&mut meta, 32);
    buddy.add(32..47);
    let block = buddy.alloc(1).unwrap();
    act(&mut buddy, block);
}

#[test]
#[should_panic(expected = "free already")]
fn a_double_free_panics() {
    with_block(|buddy, block| {
        buddy.free(block, 1);
        buddy.free(block, 1);
    });
}

#[test]
#[should_panic(expected = "inside of another block")]
fn a_double_free_of_a_joined_block_panics() {
    with_block(|buddy, _| {
        let (lower, upper) = (buddy.alloc(1).unwrap(), buddy.alloc(1).unwrap());
        assert_eq!((lower, upper), (40, 42));
        buddy.free(upper, 1);
        buddy.free(lower, 1);
        buddy.free(upper, 1);
    });
}

#[test]
#[should_panic(expected = "in use with order 1")]
fn a_wrong_order_panics() {
    with_block(|buddy, block| buddy.free(block, 0));
}

#[test]
#[should_panic(expected = "inside of another block")]
fn a_frame_within_a_block_panics() {
    with_block(|buddy, block| buddy.free(block + 1, 0));
}

#[test]
#[should_panic(expected = "is not one of")]
fn a_foreign_frame_panics() {
    with_block(|buddy, _| buddy.free(31, 0));
}

#[test]
#[should_panic(expected = "reserved")]
fn a_reserved_frame_panics() {
    with_block(|buddy, _| buddy.free(47, 0));
}

#[test]
#[should_panic(expected = "was added before")]
fn adding_twice_panics() {
    with_block(|buddy, block| buddy.add(block..block + 1));
}

#[test]
#[should_panic(expected = "free already, and set aside")]
fn a_frame_that_is_set_aside_is_not_freed_again() {
    with_block(|buddy, _| {
        buddy.set_aside(ASIDE_MAX);
        let frame = buddy.alloc(0).unwrap();
        buddy.free(frame, 0);
        buddy.free(frame, 0);
    });
}

/// The last one that was freed is the next one, and all of them together are one block again when somebody needs that.
#[test]
fn what_is_set_aside_comes_back_and_is_joined_when_needed() {
    let mut meta = [FrameMeta::default(); 8];
    let mut buddy = Buddy::new(&mut meta, 0);
    buddy.add(0..8);
    buddy.set_aside(4);
    let frames: Vec<u64> = (0..8).map(|_| buddy.alloc(0).unwrap()).collect();
    frames.iter().for_each(|frame| buddy.free(*frame, 0));
    assert_eq!((buddy.free_frames(), buddy.free_blocks()[..3].to_vec()), (8, vec![0, 0, 1]));
    assert_eq!(buddy.alloc(0), Some(frames[3]));
    assert_eq!(buddy.alloc(3), None, "one is in use");
    buddy.free(frames[3], 0);
    assert_eq!(buddy.alloc(3), Some(0));
}

proptest! {
    #[test]
    fn behaves_as_a_set_of_frames(
        first in 0u64..2000,
        length in 1u64..3000,
        hole in (0u64..3000, 0u64..64),
        aside in 0usize..=ASIDE_MAX + 8,
        // Half of them single frames, if there is no limit.
        steps in prop::collection::vec((any::<bool>(), 0usize..=2 * ORDER_MAX, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut meta = vec![FrameMeta::default(); length as usize];
        let mut buddy = Buddy::new(&mut meta, first);
        let hole = (first + hole.0.min(length), first + (hole.0 + hole.1).min(length));
        buddy.add(first..hole.0);
        buddy.add(hole.1..first + length);
        let start = (buddy.free_blocks(), buddy.free_frames());
        buddy.set_aside(aside);
        let mut free: BTreeSet<u64> = (first..hole.0).chain(hole.1..first + length).collect();
        prop_assert_eq!(start.1, free.len() as u64);

        let mut used: Vec<(u64, usize)> = Vec::new();
        for (allocates, order, pick) in steps {
            let order = order.saturating_sub(ORDER_MAX);
            if allocates || used.is_empty() {
                let size = 1u64 << order;
                let Some(frame) = buddy.alloc(order) else {
                    // Only if no aligned block is free as a whole.
                    let mut at = first.next_multiple_of(size);
                    while at + size <= first + length {
                        prop_assert!((at..at + size).any(|frame| !free.contains(&frame)));
                        at += size;
                    }
                    continue;
                };
                prop_assert_eq!(frame % size, 0);
                for frame in frame..frame + size {
                    prop_assert!(free.remove(&frame));
                }
                used.push((frame, order));
            } else {
                let (frame, order) = used.swap_remove(pick.index(used.len()));
                buddy.free(frame, order);
                free.extend(frame..frame + (1 << order));
            }
            prop_assert_eq!(buddy.free_frames(), free.len() as u64);
        }
        for (frame, order) in used {
            buddy.free(frame, order);
        }
        prop_assert_eq!(buddy.free_frames(), start.1);
        buddy.set_aside(0);
        prop_assert_eq!((buddy.free_blocks(), buddy.free_frames()), start);
    }
}
