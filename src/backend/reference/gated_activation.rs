//! Gated activation, reference. Twin of `shaders/gated_activation.wgsl`.
//!
//! out[r][c] = act(gate[r][c]) · up[r][c]. An input row has all gates first, then all ups.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{Activation, GatedActivation, Storage};

/// One output element, computed in f64.
fn gated(activation: Activation, gate: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
    }
}

/// Runs the step.
pub(super) fn run(step: &GatedActivation, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (gate_up, columns) = (loaded.rows(step.gate_up, inputs), loaded.columns(step.out));
        gated_activation(gate_up, step.activation, columns, out, storage);
    });
}

/// Computes rows of `columns` elements from rows of `2 · columns`.
pub(super) fn gated_activation(
    gate_up: &[f32],
    activation: Activation,
    columns: usize,
    out: &mut [f32],
    storage: Storage,
) {
    assert_eq!(gate_up.len(), 2 * out.len(), "a gate and an up per output");
    for (row, out) in gate_up.chunks_exact(2 * columns).zip(out.chunks_exact_mut(columns)) {
        let (gates, ups) = row.split_at(columns);
        for ((out, &gate), &up) in out.iter_mut().zip(gates).zip(ups) {
            *out = storage.round(gated(activation, f64::from(gate), f64::from(up)) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(activation: Activation, gate: f32, up: f32) -> f32 {
        let mut out = [f32::NAN];
        gated_activation(&[gate, up], activation, 1, &mut out, Storage::F32);
        out[0]
    }

    #[test]
    fn known_values() {
        // torch.nn.functional: silu(1) = 0.7310586, gelu(1, approximate="tanh") = 0.8411920
        assert_eq!(run(Activation::Silu, 1.0, 2.0), 2.0 * 0.731_058_6);
        assert!((run(Activation::GeluTanh, 1.0, 3.0) - 3.0 * 0.841_192).abs() < 1e-6);
        assert_eq!(run(Activation::Silu, 0.0, 5.0), 0.0);
        assert_eq!(run(Activation::Silu, -1e4, 5.0), 0.0, "large gates neither overflow nor give NaN");
        assert_eq!(run(Activation::GeluTanh, 1e4, 1.0), 1e4);
    }

    #[test]
    fn clamped_swiglu_is_its_formula() {
        let activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 7.0 };
        for (gate, up) in [(0.5, 0.25), (9.0, 1.0), (-9.0, 1.0), (2.0, 8.0), (2.0, -8.0)] {
            let (g, u) = (f64::min(gate, 7.0), f64::clamp(up, -7.0, 7.0));
            let expected = g * (1.0 / (1.0 + (-f64::from(1.702f32) * g).exp())) * (u + 1.0);
            let value = f64::from(run(activation, gate as f32, up as f32));
            assert!((value - expected).abs() <= 1e-6 * expected.abs(), "gate {gate}, up {up}: {value}, {expected}");
        }
    }

    #[test]
    fn rows_are_gates_then_ups() {
        let mut out = [f32::NAN; 4];
        let gate_up = [100.0, 200.0, 1.0, 2.0, 300.0, 400.0, 3.0, 4.0];
        gated_activation(&gate_up, Activation::Silu, 2, &mut out, Storage::F32);
        assert_eq!(out, [100.0, 400.0, 900.0, 1600.0]);
    }
}
