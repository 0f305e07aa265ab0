//! Tests of `backend/cpu/team.rs`.

use super::*;
use std::sync::atomic::AtomicUsize;

#[test]
fn every_item_is_computed_once_with_threads_awake_or_asleep() {
    for threads in [1, 2, 5] {
        let mut team = Team::new(threads);
        for round in 1..200 {
            let (items, least) = ([0, 1, 4, 7, 300][round % 5], 1 + round % 3);
            let calls: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            team.run(items, least, |parts, _| {
                for part in parts {
                    assert!(!part.is_empty());
                    part.for_each(|item| _ = calls[item].fetch_add(round, Ordering::Relaxed));
                }
            });
            assert!(
                calls
                    .iter()
                    .all(|calls| calls.load(Ordering::Relaxed) == round)
            );
            if round % 50 == 0 {
                thread::sleep(2 * AWAKE);
            }
        }
    }
}

#[test]
fn the_share_of_a_slow_thread_is_computed_by_the_others() {
    const ITEMS: usize = 1000;
    for threads in [2, 3] {
        let mut team = Team::new(threads);
        let (done, slow) = (AtomicUsize::new(0), AtomicUsize::new(usize::MAX));
        // Whoever takes the first item keeps its part until everything else is done.
        team.run(ITEMS, 1, |parts, _| {
            for part in parts {
                if part.start == 0 {
                    slow.store(part.len(), Ordering::Relaxed);
                    while done.load(Ordering::Relaxed) < ITEMS - part.len() {
                        thread::yield_now();
                    }
                }
                done.fetch_add(part.len(), Ordering::Relaxed);
            }
        });
        assert_eq!(done.into_inner(), ITEMS);
        assert!(
            slow.into_inner() <= ITEMS / threads / PARTS,
            "{threads} threads"
        );
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_team_still_works() {
    let mut team = Team::new(3);
    for bad in [0, 150, 299] {
        let failed = catch_unwind(AssertUnwindSafe(|| {
            team.run(300, 1, |mut parts, _| {
                assert!(!parts.any(|part| part.contains(&bad)));
            });
        }));
        assert!(failed.is_err(), "item {bad}");
    }
    let sum = AtomicUsize::new(0);
    team.run(3, 1, |parts, _| {
        parts
            .flatten()
            .for_each(|item| _ = sum.fetch_add(item, Ordering::Relaxed));
    });
    assert_eq!(sum.into_inner(), 3);
}

#[test]
fn shares_cover_all_items_once() {
    for (items, count) in [(0, 3), (1, 3), (7, 3), (64, 5)] {
        let shares: Vec<_> = (0..count)
            .flat_map(|index| share(items, index, count))
            .collect();
        assert_eq!(shares, (0..items).collect::<Vec<_>>());
    }
}
