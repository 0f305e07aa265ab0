//! Tests of `backend/reference/pool.rs`.

use super::*;

#[test]
fn each_pool_row_adds_up_its_own_rows() {
    let x = [1.0, 2.0, 10.0, 20.0, 100.0, 200.0, 1000.0, 2000.0];
    let rows = [(1, 2), (3, 1), (0, 4)].map(|(row_start, row_count)| PoolRow {
        row_start,
        row_count,
    });
    assert_eq!(
        pool(&x, 2, &rows),
        [[110.0, 220.0], [1000.0, 2000.0], [1111.0, 2222.0]]
    );
    assert_eq!(
        pool(
            &[1e8, 1.0, -1e8],
            1,
            &[PoolRow {
                row_start: 0,
                row_count: 3
            }]
        ),
        [[1.0]],
        "f64 inside"
    );
}
