//! `kcore::captable`: stale numbers never resolve, limits hold, reservations cost nothing when they are given up.

use std::collections::HashMap;

use abi::CapId;
use kcore::captable::{CapTable, Full};
use proptest::prelude::*;

fn put(table: &mut CapTable<u32>, object: u32) -> Result<CapId, Full> {
    let slot = table.reserve()?;
    Ok(table.commit(slot, object))
}

#[test]
fn a_slot_is_used_again_with_another_number() {
    let mut table = CapTable::new(2);
    assert_eq!((table.capacity(), table.limit()), (0, 2));
    let first = put(&mut table, 10).unwrap();
    let second = put(&mut table, 20).unwrap();
    assert_eq!(put(&mut table, 30), Err(Full));
    assert_eq!((table.get(first), table.len()), (Some(&10), 2));
    *table.get_mut(second).unwrap() += 1;
    assert_eq!(table.remove(first), Some(10));
    let third = put(&mut table, 30).unwrap();
    assert_eq!((third.index(), third.generation()), (first.index(), first.generation() + 1));
    assert!(table.get(first).is_none() && table.get_mut(first).is_none() && table.remove(first).is_none());
    assert_eq!(table.iter().collect::<Vec<_>>(), [(third, &30), (second, &21)]);
    assert_eq!(table.iter_between(0, 1).collect::<Vec<_>>(), [(third, &30)]);
    assert_eq!(table.iter_between(1, 9).collect::<Vec<_>>(), [(second, &21)]);
    assert_eq!((table.slots(), table.iter_between(2, 9).count()), (2, 0));
    assert_eq!(table.get(CapId::NONE), None);
    assert_eq!(table.remove(third), Some(30));
    assert!(table.get(third).is_none() && table.len() == 1);
    // K-26: one slot at a time, from the last, also those that hold nothing.
    assert_eq!(table.into_objects().collect::<Vec<_>>(), [Some(21), None]);
}

#[test]
fn a_reservation_counts_but_names_nothing() {
    let mut table = CapTable::new(1);
    let slot = table.reserve().unwrap();
    assert_eq!(table.reserve(), Err(Full));
    assert!(table.is_empty() && table.get(CapId::new(0, 1)).is_none());
    assert_eq!(table.remove(CapId::new(0, 1)), None);
    assert_eq!(table.iter().count(), 0);
    table.abort(slot);
    assert_eq!(put(&mut table, 5), Ok(CapId::new(0, 1)));
}

#[test]
#[should_panic(expected = "not reserved in this table")]
fn a_reservation_is_for_one_table() {
    let mut table = CapTable::<u32>::new(1);
    let mut other = CapTable::new(1);
    let cap = put(&mut other, 1).unwrap();
    let slot = table.reserve().unwrap();
    assert_eq!(cap.index(), 0);
    other.commit(slot, 2);
}

/// After its last generation a slot is retired, and the next one takes over; the limit still means what it says.
#[test]
fn generations_never_come_again() {
    let mut table = CapTable::new(1);
    let mut last = put(&mut table, 0).unwrap();
    for _ in 1..u16::MAX {
        table.remove(last).unwrap();
        let next = put(&mut table, 0).unwrap();
        assert_eq!((next.index(), next.generation()), (0, last.generation() + 1));
        last = next;
    }
    assert_eq!(last.generation(), u16::MAX);
    table.remove(last).unwrap();
    assert!(table.get(last).is_none() && table.remove(last).is_none());
    assert_eq!(put(&mut table, 1), Ok(CapId::new(1, 1)));
    assert_eq!(put(&mut table, 1), Err(Full));
}

#[test]
fn a_table_has_at_most_65536_slots() {
    let mut table = CapTable::new(usize::MAX);
    for object in 0..65536 {
        put(&mut table, object).unwrap();
    }
    assert_eq!((put(&mut table, 0), table.capacity()), (Err(Full), 65536));
}

proptest! {
    #[test]
    fn stale_numbers_never_resolve(
        limit in 0usize..20,
        steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut table = CapTable::new(limit);
        let mut live: HashMap<u32, u32> = HashMap::new();
        let mut known: Vec<CapId> = vec![CapId::NONE];
        let mut pending = Vec::new();
        for (object, (kind, pick)) in (0u32..).zip(steps) {
            match kind {
                0 => match table.reserve() {
                    Ok(slot) => pending.push(slot),
                    Err(Full) => prop_assert_eq!(live.len() + pending.len(), limit),
                },
                1 if !pending.is_empty() => {
                    let slot = pending.swap_remove(pick.index(pending.len()));
                    let cap = table.commit(slot, object);
                    prop_assert!(cap.generation() != 0 && !known.contains(&cap));
                    known.push(cap);
                    live.insert(cap.0, object);
                }
                2 if !pending.is_empty() => table.abort(pending.swap_remove(pick.index(pending.len()))),
                _ => {
                    let cap = known[pick.index(known.len())];
                    prop_assert_eq!(table.remove(cap), live.remove(&cap.0));
                }
            }
            for cap in &known {
                prop_assert_eq!(table.get(*cap), live.get(&cap.0));
            }
            prop_assert_eq!(table.len(), live.len());
            prop_assert_eq!(table.iter().count(), live.len());
        }
    }
}
