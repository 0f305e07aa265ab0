//! Tests of `backend/reference/attend_rows.rs`.

use super::*;

fn attention<'a>(radius: Option<u32>, slopes: Option<Vec<f32>>, rows: &'a [f32]) -> Attention<'a> {
    let id = crate::plan::BufferId(0);
    Attention {
        step: AttendRows {
            qk: id,
            v: id,
            query_heads: 1,
            kv_heads: 1,
            head_dim: 8,
            scale: 1.0,
            radius,
            alibi: None,
            out: id,
        },
        qk: rows,
        qk_columns: 24,
        v: rows,
        v_columns: 24,
        slopes,
    }
}

/// Rows whose queries and keys are zero, so that all keys have the same score; the values of row r are r.
fn rows(count: usize) -> Vec<f32> {
    let row = |row: usize| [vec![0.0; 16], vec![row as f32; 8]].concat();
    (0..count).flat_map(row).collect()
}

#[test]
fn a_row_sees_both_sides_of_its_sequence_up_to_the_radius() {
    let rows = rows(10);
    let table = [
        (None, 0, 0..10, 4.5),
        (None, 3, 2..7, 4.0),
        (Some(1), 4, 0..10, 4.0),
        (Some(2), 0, 0..10, 1.0),
        (Some(2), 9, 0..10, 8.0),
    ];
    for (radius, row, of, expected) in table {
        let mean = attention(radius, None, &rows).attend(row, 0, of)[0];
        assert!((mean - expected).abs() < 1e-12, "row {row}: {mean}");
    }
}

#[test]
fn scores_fall_with_the_distance_in_both_directions() {
    let rows = rows(3);
    let found = attention(None, Some(vec![2.0]), &rows).attend(0, 0, 0..3)[0];
    let [near, far] = [(-2.0_f64).exp(), (-4.0_f64).exp()];
    assert!((found - (near + 2.0 * far) / (1.0 + near + far)).abs() < 1e-12);
    let middle = attention(None, Some(vec![2.0]), &rows).attend(1, 0, 0..3)[0];
    assert!((middle - 1.0).abs() < 1e-12);
}
