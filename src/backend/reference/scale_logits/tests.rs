//! Tests of `backend/reference/scale_logits.rs`.

use super::*;

#[test]
fn a_cap_bounds_and_keeps_small_values() {
    let mut logits = [0.0, 1e-3, -4.0, 1e9, f32::NEG_INFINITY, f32::NAN];
    scale_logits(0.5, Some(30.0), &mut logits, Storage::F32);
    assert_eq!(logits[..2], [0.0, 5e-4]);
    assert_eq!(logits[2], (30.0 * (-2.0f64 / 30.0).tanh()) as f32);
    assert_eq!(logits[3], 30.0);
    assert!(
        logits[4] == f32::NEG_INFINITY && logits[5].is_nan(),
        "a failed row stays detectable"
    );
}

#[test]
fn without_a_cap_logits_are_multiplied() {
    let mut logits = [8.0, -3.0];
    scale_logits(0.125, None, &mut logits, Storage::F32);
    assert_eq!(logits, [1.0, -0.375]);
}
