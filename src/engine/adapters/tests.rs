//! Tests of `engine/adapters.rs`.

use super::*;

fn content(name: u8) -> Arc<SlotContent> {
    Arc::new(SlotContent::given([name; 32], Vec::new()))
}

fn loaded(pool: &mut AdapterPool) -> Vec<(u32, u8)> {
    let loads = pool.take_loads().into_iter();
    loads
        .map(|load| (load.slot, load.content.digest[0]))
        .collect()
}

#[test]
fn an_adapter_is_written_once_for_all_its_sequences() {
    let mut pool = AdapterPool::new(2);
    assert_eq!([1, 1, 2].map(|name| pool.take(&content(name))), [1, 1, 2]);
    assert_eq!(loaded(&mut pool), [(1, 1), (2, 2)]);
    pool.release(1);
    pool.release(1);
    assert_eq!(pool.take(&content(1)), 1, "it is still there");
    assert_eq!(loaded(&mut pool), []);
}

#[test]
fn the_slot_unused_longest_is_taken_and_no_other() {
    let mut pool = AdapterPool::new(3);
    let slots = [1, 2, 3].map(|name| pool.take(&content(name)));
    assert!(!pool.has_room(&content(4)), "all are in use");
    assert!(pool.has_room(&content(2)), "but it may be shared");
    pool.release(slots[1]);
    pool.release(slots[0]);
    assert_eq!(pool.take(&content(4)), slots[1]);
    assert_eq!(pool.take(&content(5)), slots[0]);
    assert!(!pool.has_room(&content(1)));
}

#[test]
fn what_was_not_written_is_written_for_the_next_sequence() {
    let mut pool = AdapterPool::new(1);
    pool.take(&content(1));
    let loads = pool.take_loads();
    pool.drop_loads(&loads);
    pool.release(1);
    pool.take(&content(1));
    assert_eq!(loaded(&mut pool), [(1, 1)]);
}
