//! Tests of `model/gguf/mod.rs`.

use super::*;

#[test]
fn heads_are_untangled() {
    let rows: Vec<usize> = (0..16).map(|row| interleaved_row(row, 8)).collect();
    assert_eq!(rows, [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
}
