//! Tests of the steps of towers.

use super::*;

fn tile(patches: u32) -> Tile {
    Tile {
        start: 0,
        rows: patches / 4,
        run: patches / 4,
        digest: [0; 32],
        patches: vec![0.0; 8 * patches as usize].into(),
        positions: (0..patches).rev().collect(),
        across: 4,
    }
}

#[test]
fn a_step_has_the_patches_of_its_tiles_and_a_row_for_each_run() {
    let inputs = batch(&[&tile(8), &tile(4)], 4);
    assert_eq!(inputs.token_ids, (0..12).collect::<Vec<_>>());
    assert_eq!(inputs.positions, [7, 6, 5, 4, 3, 2, 1, 0, 3, 2, 1, 0]);
    assert_eq!(inputs.places[..3], [[0, 1, 3], [0, 1, 2], [0, 1, 1]]);
    assert_eq!(inputs.places[11], [0, 0, 0]);
    assert_eq!(inputs.logits_rows, [0, 4, 8]);
    let rows: Vec<_> = inputs
        .pools
        .iter()
        .map(|row| (row.row_start, row.row_count))
        .collect();
    assert_eq!(rows, [(0, 1), (1, 1), (2, 1)]);
    let sequences = inputs.sequences.iter();
    let sequences: Vec<_> = sequences
        .map(|rows| (rows.row_start, rows.context_len))
        .collect();
    assert_eq!(sequences, [(0, 8), (8, 4)]);
}
