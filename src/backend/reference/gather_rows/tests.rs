//! Tests of `backend/reference/gather_rows.rs`.

use super::*;

#[test]
fn rows_are_copied_in_the_order_asked_for() {
    let mut out = [f32::NAN; 6];
    gather_rows(
        &[1.0, 2.0, 3.0, 4.0, 5.0, 6.1],
        &[2, 0, 2],
        [2, 2],
        &mut out,
        Storage::Bf16,
    );
    assert_eq!(out, [5.0, 6.09375, 1.0, 2.0, 5.0, 6.09375]);
    let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let mut merged = [0.0; 8];
    gather_rows(&x, &[1, 0], [2, 4], &mut merged, Storage::F32);
    assert_eq!(merged, [3.0, 4.0, 5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
}
