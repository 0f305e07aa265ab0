//! Tests of `backend/wgpu/encode/attend_paged/work.rs`.

use super::*;
use crate::plan::inputs::GroupInputs;

/// First row, rows, context and block table of a sequence.
type Given = (u32, u32, u32, &'static [u32]);

fn joined(all: &[Given], joins: bool) -> Vec<(u32, u32, u32, u32)> {
    let mut group = GroupInputs::default();
    let mut inputs = BatchInputs::default();
    for &(row_start, row_count, context_len, table) in all {
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len,
        });
        group
            .table_starts
            .push(u32::try_from(group.block_tables.len()).expect("a small batch"));
        group.block_tables.extend(table);
    }
    inputs.groups.push(group);
    let found = sequences(&inputs, 0, 16, joins);
    found
        .map(|(rows, start)| (rows.row_start, rows.row_count, rows.context_len, start))
        .collect()
}

#[test]
fn rows_of_one_sequence_are_joined_and_no_others() {
    let drafts: [Given; 3] = [(4, 1, 16, &[7]), (5, 1, 17, &[7, 2]), (6, 1, 18, &[7, 2])];
    assert_eq!(joined(&drafts, true), [(4, 3, 18, 3)]);
    assert_eq!(
        joined(&drafts, false),
        [(4, 1, 16, 0), (5, 1, 17, 1), (6, 1, 18, 3)]
    );
    let others: [[Given; 2]; 6] = [
        // Other blocks; a block that has left the window; a gap in positions; the same position; a gap in rows; a
        // chunk.
        [(0, 1, 16, &[7]), (1, 1, 17, &[3, 2])],
        [(0, 1, 17, &[7, 2]), (1, 1, 18, &[NONE, 2])],
        [(0, 1, 16, &[7]), (1, 1, 18, &[7, 2])],
        [(0, 1, 16, &[7]), (1, 1, 16, &[7])],
        [(0, 1, 16, &[7]), (2, 1, 17, &[7, 2])],
        [(0, 2, 16, &[7]), (2, 1, 17, &[7, 2])],
    ];
    for pair in others {
        assert_eq!(joined(&pair, true), joined(&pair, false), "{pair:?}");
    }
}
