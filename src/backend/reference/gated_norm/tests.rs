//! Tests of `backend/reference/gated_norm.rs`.

use super::*;

fn norm(x: [f32; 2], gates: [f32; 2], gate_first: bool) -> [f32; 2] {
    let mut out = [f32::NAN; 2];
    gated_norm(
        &x,
        &gates,
        &[2.0, 10.0],
        (1.0, gate_first),
        &mut out,
        Storage::F32,
    );
    out
}

/// silu(1) = 0.7310586, and silu(0) = 0.
#[test]
fn the_order_of_gate_and_norm_is_their_formula() {
    let silu = 1.0 / (1.0 + (-1f64).exp());
    let after = 1.0 / (12.5f64 + 1.0).sqrt();
    let expected = [3.0 * after * 2.0 * silu, 4.0 * after * 10.0 * silu];
    assert_eq!(
        norm([3.0, 4.0], [1.0, 1.0], false),
        expected.map(|value| value as f32)
    );
    let before = 1.0 / ((3.0 * silu).powi(2) / 2.0 + 1.0).sqrt();
    assert_eq!(
        norm([3.0, 4.0], [1.0, 0.0], true),
        [(3.0 * silu * before * 2.0) as f32, 0.0]
    );
}
