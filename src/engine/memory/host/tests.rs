//! Tests of `engine/memory/host.rs`.

use super::*;

fn hash(index: u32) -> BlockHash {
    BlockHash::root(&[7; 32], None, None, None).next(&[7; 32], &[index])
}

fn tier(blocks: u64) -> HostTier {
    HostTier::new(blocks * 10, vec![10])
}

#[test]
fn a_block_is_found_once_its_copy_is_complete() {
    let mut host = tier(2);
    let slot = host
        .reserve(0, hash(1), Fill::Leaving)
        .expect("there is room");
    assert!(
        host.has(0, &hash(1)) && host.lookup(0, &hash(1)).is_none(),
        "leaving"
    );
    assert!(host.complete(slot));
    assert_eq!(host.lookup(0, &hash(1)), Some(slot));
    host.check(0, 0);
}

#[test]
fn the_least_recently_used_block_goes_unless_a_copy_needs_it() {
    let mut host = tier(3);
    let slots: Vec<_> = (0..3)
        .map(|index| {
            host.reserve(0, hash(index), Fill::Leaving)
                .expect("there is room")
        })
        .collect();
    assert_eq!(
        host.reserve(0, hash(3), Fill::Leaving),
        None,
        "all copies are in flight"
    );
    slots.iter().for_each(|&slot| assert!(host.complete(slot)));
    host.pin(slots[0]);
    host.pin(slots[1]);
    host.unpin(slots[1]);
    assert_eq!(
        host.reserve(0, hash(3), Fill::Leaving),
        Some(slots[2]),
        "the others were used later"
    );
    assert_eq!(
        host.reserve(0, hash(4), Fill::Leaving),
        Some(slots[1]),
        "the oldest is pinned"
    );
    assert_eq!(host.reserve(0, hash(5), Fill::Leaving), None);
    host.check(1, 0);
}

#[test]
fn nothing_makes_room_for_what_is_larger_than_all() {
    let mut host = HostTier::new(25, vec![10, 26]);
    let slot = host
        .reserve(0, hash(0), Fill::Leaving)
        .expect("there is room");
    assert!(host.complete(slot));
    assert_eq!(host.reserve(1, hash(1), Fill::Leaving), None);
    assert_eq!(host.lookup(0, &hash(0)), Some(slot));
}

#[test]
fn withdrawn_blocks_vanish_when_their_copies_are_done() {
    let mut host = tier(3);
    let slots: Vec<_> = (0..3)
        .map(|index| {
            host.reserve(0, hash(index), Fill::Leaving)
                .expect("there is room")
        })
        .collect();
    assert!(host.complete(slots[0]) && host.complete(slots[1]));
    host.pin(slots[1]);
    (0..3).for_each(|index| host.withdraw(0, &hash(index)));
    assert_eq!(host.bytes(), 20, "two are still in use");
    host.check(1, 0);
    assert!(!host.complete(slots[2]), "its bytes are not wanted");
    host.unpin(slots[1]);
    assert_eq!(host.bytes(), 0);
    host.check(0, 0);
}

#[test]
fn what_a_waiting_sequence_needs_stays() {
    let mut host = tier(2);
    let slots = [0, 1].map(|index| {
        host.reserve(0, hash(index), Fill::Arriving)
            .expect("there is room")
    });
    assert_eq!(
        (host.arriving(0, &hash(0)), host.lookup(0, &hash(0))),
        (Some(slots[0]), None)
    );
    host.restart();
    assert!(
        host.complete(slots[0]),
        "its file does not depend on the device"
    );
    host.keep(slots[0]);
    host.abandon(slots[1]);
    assert_eq!(host.reserve(0, hash(2), Fill::Leaving), Some(slots[1]));
    assert_eq!(
        host.reserve(0, hash(3), Fill::Leaving),
        None,
        "one is kept, one is leaving"
    );
    host.withdraw(0, &hash(0));
    host.check(0, 1);
    host.release(slots[0]);
    assert_eq!(host.reserve(0, hash(3), Fill::Leaving), Some(slots[0]));
    host.check(0, 0);
}

#[test]
fn a_lost_device_loses_what_was_leaving_it() {
    let mut host = tier(3);
    let held = host
        .reserve(0, hash(0), Fill::Leaving)
        .expect("there is room");
    host.complete(held);
    host.pin(held);
    host.reserve(0, hash(1), Fill::Leaving)
        .expect("there is room");
    host.restart();
    assert_eq!(
        (host.lookup(0, &hash(0)), host.has(0, &hash(1))),
        (Some(held), false)
    );
    host.check(0, 0);
}
