//! Gated activation, reference. Twin of `shaders/gated_activation.wgsl`.
//!
//! out[r][c] = act(gate[r][c]) · up[r][c]. An input row has all gates first, then all ups; or up is 1, or in columns of
//! another buffer. Gates may follow other columns of the row, and be shared by consecutive columns; or be multiplied by
//! the weight of their row's route, in f32.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{Activation, GatedActivation, Gates, Storage, Up, erf};

/// One output element, computed in f64.
fn gated(activation: Activation, numbers: &[f32], gate: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::GeluTanh => {
            let inner =
                (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::Gelu => 0.5 * gate * (1.0 + erf(gate * std::f64::consts::FRAC_1_SQRT_2)) * up,
        Activation::Relu => gate.max(0.0) * up,
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
        Activation::ClampedSilu { limit } => {
            let limit = f64::from(limit);
            (gate / (1.0 + (-gate).exp())).min(limit) * up.clamp(-limit, limit)
        }
        Activation::Relu2 => gate.max(0.0).powi(2) * up,
        Activation::Sigmoid => up / (1.0 + (-gate).exp()),
        Activation::Softplus => softplus(gate) * up,
        Activation::Xielu => {
            let number = |index: usize| f64::from(numbers[index]);
            let (beta, epsilon) = (number(2), number(3));
            let curved = if gate > 0.0 {
                softplus(number(0)) * gate * gate
            } else {
                (gate.min(epsilon).exp_m1() - gate) * (beta + softplus(number(1)))
            };
            (curved + beta * gate) * up
        }
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Runs the step.
pub(super) fn run(step: &GatedActivation, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (gate_up, columns) = (loaded.rows(step.gate_up, inputs), loaded.columns(step.out));
        let numbers = step
            .numbers
            .map(|numbers| loaded.weight(numbers).vector())
            .unwrap_or_default();
        let (ones, width) = (vec![1.0; columns], loaded.columns(step.gate_up));
        let Gates { first, shared_by } = step.gates;
        for ((row, gate_up), out) in gate_up
            .chunks_exact(width)
            .enumerate()
            .zip(out.chunks_exact_mut(columns))
        {
            let ups = match step.up {
                Up::SecondHalf => &gate_up[columns..],
                Up::One => &ones,
                Up::Of(buffer, first) => &loaded.rows(buffer, inputs)
                    [row * loaded.columns(buffer) + first as usize..][..columns],
            };
            let weight = step
                .routes
                .map_or(1.0, |routes| loaded.rows(routes, inputs)[2 * row + 1]);
            let gates: Vec<f32> = (0..columns)
                .map(|column| gate_up[first as usize + column / shared_by as usize] * weight)
                .collect();
            gated_activation(&gates, ups, (step.activation, &numbers), out, storage);
        }
    });
}

/// Computes one row; `numbers` are those of xIELU.
pub(super) fn gated_activation(
    gates: &[f32],
    ups: &[f32],
    (activation, numbers): (Activation, &[f32]),
    out: &mut [f32],
    storage: Storage,
) {
    assert!(
        gates.len() == out.len() && ups.len() == out.len(),
        "a gate and an up per output"
    );
    for ((out, &gate), &up) in out.iter_mut().zip(gates).zip(ups) {
        *out = storage.round(gated(activation, numbers, f64::from(gate), f64::from(up)) as f32);
    }
}

#[cfg(test)]
mod tests;
