//! Tests of the pool of image rows.

use super::*;

fn tile(name: u8, rows: u32) -> Tile {
    Tile {
        start: 0,
        rows,
        run: rows,
        digest: [name; 32],
        patches: Arc::default(),
        positions: Arc::default(),
        across: 1,
    }
}

/// Names of the tiles to be computed.
fn loads(pool: &mut ImagePool) -> Vec<u8> {
    let loads = pool.take_loads();
    loads.iter().map(|load| load.tile.digest[0]).collect()
}

#[test]
fn rows_stay_until_others_need_them_and_those_unused_longest_go_first() {
    let mut pool = ImagePool::new(10);
    let [a, b, c] = [(1, 4), (2, 4), (3, 5)].map(|(name, rows)| tile(name, rows));
    for tile in [&a, &b] {
        assert!(pool.has_room([tile].into_iter()));
        pool.take([tile].into_iter());
        assert!(pool.is_unwritten(tile));
        pool.write(tile);
        pool.write(tile);
    }
    assert_eq!(loads(&mut pool), [1, 2]);
    assert!(!pool.has_room([&c].into_iter()), "both are in use");
    pool.release(&b);
    assert!(pool.has_room([&c].into_iter()));
    assert!(
        !pool.has_room([&b, &c].into_iter()),
        "what is needed makes no room"
    );
    pool.release(&a);
    let rows = pool.take([&a, &c].into_iter());
    assert_eq!(
        rows.iter().map(|rows| rows.len()).collect::<Vec<_>>(),
        [4, 5]
    );
    pool.write(&a);
    pool.write(&c);
    assert_eq!(loads(&mut pool), [3], "the first is still there");
    pool.check([&a, &c].into_iter());
}

#[test]
fn a_tile_that_occurs_twice_has_its_rows_once() {
    let mut pool = ImagePool::new(4);
    let a = tile(1, 4);
    assert!(pool.has_room([&a, &a].into_iter()));
    let rows = pool.take([&a, &a].into_iter());
    assert_eq!(rows[0], rows[1]);
    pool.check([&a, &a].into_iter());
    pool.release(&a);
    assert!(!pool.has_room([&tile(2, 1)].into_iter()));
    pool.release(&a);
    assert!(pool.has_room([&tile(2, 1)].into_iter()));
}

#[test]
fn rows_that_were_not_written_are_computed_again() {
    let mut pool = ImagePool::new(4);
    let a = tile(1, 2);
    pool.take([&a].into_iter());
    pool.write(&a);
    let failed = pool.take_loads();
    pool.drop_loads(&failed);
    pool.write(&a);
    assert_eq!(loads(&mut pool), [1]);
    pool.reset();
    assert!(pool.is_unwritten(&a));
    pool.check(std::iter::empty());
}
