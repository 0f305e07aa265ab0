//! Tests of `engine/memory/pool.rs`.

use super::*;
use crate::engine::panic_message;

const KEY: [u8; 32] = [7; 32];

fn pool(blocks: u32, window: Option<Window>) -> BlockPool {
    BlockPool::new(4, &[window], &[blocks])
}

fn chain(count: u32) -> Vec<BlockHash> {
    let root = BlockHash::root(&KEY, None, None, None);
    let next = |hash: &mut BlockHash, block: u32| {
        *hash = hash.next(&KEY, &[block; 4]);
        Some(*hash)
    };
    (0..count).scan(root, next).collect()
}

fn prefix(pool: &BlockPool, hashes: &[BlockHash]) -> u32 {
    pool.longest_prefix(hashes, |_, _| false)
}

#[test]
fn blank_blocks_go_before_cached_ones_and_the_deepest_cached_block_before_its_parents() {
    let mut pool = pool(4, None);
    let group = pool.group_mut(0);
    let ids: Vec<_> = (0..3)
        .map(|_| group.allocate().expect("the case is valid").0)
        .collect();
    for (&id, hash) in ids.iter().zip(chain(2)) {
        group.register(id, hash);
    }
    ids.iter().rev().for_each(|&id| group.release(id));
    let order: Vec<_> = (0..4)
        .map(|_| group.allocate().expect("the case is valid").0)
        .collect();
    assert_eq!(
        order,
        [ids[2], 3, ids[1], ids[0]],
        "blocks without a hash first, then the deepest of the chain"
    );
    assert_eq!(
        group.allocate(),
        None,
        "nothing can be allocated from an empty pool"
    );
}

#[test]
fn a_discarded_block_is_reused_before_all_others() {
    let mut pool = pool(3, None);
    let group = pool.group_mut(0);
    let ids: Vec<_> = (0..3)
        .map(|_| group.allocate().expect("the case is valid").0)
        .collect();
    for (&id, hash) in ids.iter().zip(chain(3)) {
        group.register(id, hash);
    }
    group.discard(ids[2]);
    assert!(
        !group.is_cached(ids[2]) && !group.is_free(ids[2]),
        "a held block stays with its holder"
    );
    ids.iter().for_each(|&id| group.release(id));
    group.discard(ids[1]);
    assert_eq!(group.allocate(), Some((ids[1], None)));
    pool.check(&[vec![0, 1, 0]]);
}

#[test]
fn a_cached_block_is_taken_back_from_the_middle_of_the_queue() {
    let mut pool = pool(3, None);
    let ids: Vec<_> = (0..3)
        .map(|_| pool.group_mut(0).allocate().expect("the case is valid").0)
        .collect();
    for (&id, hash) in ids.iter().zip(chain(3)) {
        pool.group_mut(0).register(id, hash);
        pool.group_mut(0).release(id);
    }
    pool.group_mut(0).share(ids[1]);
    assert_eq!(pool.groups()[0].free(), 2);
    pool.check(&[vec![0, 1, 0]]);
    assert_eq!(
        prefix(&pool, &chain(3)),
        3,
        "taking a block changes no match"
    );
    assert_eq!(
        pool.group_mut(0).allocate(),
        Some((ids[0], Some(chain(1)[0]))),
        "the oldest remaining block is evicted"
    );
    assert_eq!(
        prefix(&pool, &chain(3)),
        0,
        "a chain without its first block matches nothing"
    );
}

#[test]
fn a_block_is_queued_while_nobody_holds_it() {
    let mut pool = pool(3, None);
    let group = pool.group_mut(0);
    let queued = |group: &Group| [0, 1, 2].map(|id| group.is_queued(id));
    assert_eq!(queued(group), [true; 3]);
    let oldest = group.allocate().map(|(id, _)| id);
    assert_eq!((oldest, queued(group)), (Some(0), [false, true, true]));
    let others = [group.allocate(), group.allocate()].map(|taken| taken.map(|(id, _)| id));
    assert_eq!((others, queued(group)), ([Some(1), Some(2)], [false; 3]));
    group.release(1);
    assert_eq!(queued(group), [false, true, false], "it is the only one");
}

#[test]
fn every_holder_of_a_block_is_counted() {
    let mut pool = pool(3, None);
    let counts = |group: &Group| (group.referenced(), group.held());
    let group = pool.group_mut(0);
    let first = group.allocate().expect("the case is valid").0;
    let _ = group.allocate();
    group.share(first);
    assert_eq!(counts(group), (2, 3));
    group.release(first);
    assert_eq!(counts(group), (2, 2));
    pool.check(&[vec![1, 1, 0]]);
}

#[test]
fn a_block_whose_holders_are_miscounted_is_noticed() {
    let message = panic_message(|| pool(3, None).check(&[vec![0, 1, 0]]));
    assert!(message.contains("occurrences in live tables"), "{message}");
}

#[test]
fn the_first_visible_block_holds_the_oldest_key_of_the_window() {
    // Window 6, blocks of 4: a query at 9 attends to positions 4..=9.
    let windowed = pool(8, Some(Window::Last(6)));
    let first = |position| windowed.first_visible(0, position);
    assert_eq!([0, 5, 8, 9, 12, 13].map(first), [0, 0, 0, 1, 1, 2]);
    assert_eq!(
        pool(8, None).first_visible(0, 1000),
        0,
        "full attention attends to everything"
    );
}

#[test]
fn a_window_group_needs_only_what_the_next_query_sees() {
    // Window 6, blocks of 4: a query at 16 attends to positions 11..=16, so blocks 2 and 3.
    let mut pool = pool(8, Some(Window::Last(6)));
    let hashes = chain(4);
    for &hash in &hashes[2..] {
        let id = pool.group_mut(0).allocate().expect("the case is valid").0;
        pool.group_mut(0).register(id, hash);
    }
    assert_eq!(prefix(&pool, &hashes), 4);
    assert_eq!(
        prefix(&pool, &hashes[..3]),
        0,
        "a query at 12 attends to block 1, which was evicted"
    );
}

#[test]
fn salts_and_parents_change_a_hash() {
    let plain = BlockHash::root(&KEY, None, None, None);
    assert_ne!(
        plain,
        BlockHash::root(&KEY, None, Some(""), None),
        "an empty salt differs from no salt"
    );
    assert_ne!(
        BlockHash::root(&KEY, None, Some("a"), None),
        BlockHash::root(&KEY, None, Some("b"), None)
    );
    assert_ne!(
        plain,
        BlockHash::root(&[8; 32], None, None, None),
        "the hash depends on the key"
    );
    let [one, other] =
        [[1; 32], [2; 32]].map(|owner| BlockHash::root(&KEY, Some(&owner), None, None));
    assert!(plain != one && one != other, "and on the owner");
    assert_ne!(plain.next(&KEY, &[1, 2]), plain.next(&KEY, &[2, 1]));
    assert_ne!(
        plain.next(&KEY, &[1]).next(&KEY, &[1]),
        plain.next(&KEY, &[1])
    );
}

#[test]
fn a_chunk_needs_its_own_blocks_only() {
    // Blocks hold 4 tokens, chunks 6: every other chunk begins within a block.
    let chunked = pool(8, Some(Window::Chunk(6)));
    let first = [0, 5, 6, 7, 11, 12, 17, 18].map(|position| chunked.first_visible(0, position));
    assert_eq!(first, [0, 0, 1, 1, 1, 3, 3, 4]);
}

#[test]
fn where_no_group_needs_a_block_none_was_found() {
    // Blocks hold 4 tokens, chunks 8: a query at 8 or 16 sees nothing before it.
    let mut chunked = pool(8, Some(Window::Chunk(8)));
    let hashes = chain(4);
    assert_eq!(prefix(&chunked, &hashes[..2]), 0);
    let id = chunked.group_mut(0).allocate().expect("there is room").0;
    chunked.group_mut(0).register(id, hashes[2]);
    let found = [2, 3, 4].map(|blocks| prefix(&chunked, &hashes[..blocks]));
    assert_eq!(found, [0, 3, 3]);
}
