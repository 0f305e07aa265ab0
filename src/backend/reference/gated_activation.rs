//! Gated activation, reference. Twin of `shaders/gated_activation.wgsl`.
//!
//! out[r][c] = act(gate[r][c]) · up[r][c]. An input row has all gates first, then all ups; or up is 1, or in columns of
//! another buffer. Gates may follow other columns of the row, and be shared by consecutive columns.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{Activation, GatedActivation, Gates, Storage, Up};

/// One output element, computed in f64.
fn gated(activation: Activation, numbers: &[f32], gate: f64, up: f64) -> f64 {
    match activation {
        Activation::Silu => gate / (1.0 + (-gate).exp()) * up,
        Activation::GeluTanh => {
            let inner =
                (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044_715 * gate * gate * gate);
            0.5 * gate * (1.0 + inner.tanh()) * up
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            let (alpha, limit) = (f64::from(alpha), f64::from(limit));
            let (gate, up) = (gate.min(limit), up.clamp(-limit, limit));
            gate / (1.0 + (-alpha * gate).exp()) * (up + 1.0)
        }
        Activation::Relu2 => gate.max(0.0).powi(2) * up,
        Activation::Sigmoid => up / (1.0 + (-gate).exp()),
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
            let gates: Vec<f32> = (0..columns)
                .map(|column| gate_up[first as usize + column / shared_by as usize])
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
mod tests {
    use super::*;

    fn run(activation: Activation, gate: f32, up: f32) -> f32 {
        let mut out = [f32::NAN];
        gated_activation(&[gate], &[up], (activation, &[]), &mut out, Storage::F32);
        out[0]
    }

    #[test]
    fn known_values() {
        // torch.nn.functional: silu(1) = 0.7310586, gelu(1, approximate="tanh") = 0.8411920
        assert_eq!(run(Activation::Silu, 1.0, 2.0), 2.0 * 0.731_058_6);
        assert!((run(Activation::GeluTanh, 1.0, 3.0) - 3.0 * 0.841_192).abs() < 1e-6);
        assert_eq!(run(Activation::Sigmoid, 1.0, 2.0), 2.0 * 0.731_058_6);
        assert_eq!(run(Activation::Silu, 0.0, 5.0), 0.0);
        assert_eq!(
            run(Activation::Silu, -1e4, 5.0),
            0.0,
            "large gates neither overflow nor give NaN"
        );
        assert_eq!(run(Activation::GeluTanh, 1e4, 1.0), 1e4);
    }

    #[test]
    fn clamped_swiglu_is_its_formula() {
        let activation = Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        };
        for (gate, up) in [
            (0.5, 0.25),
            (9.0, 1.0),
            (-9.0, 1.0),
            (2.0, 8.0),
            (2.0, -8.0),
        ] {
            let (g, u) = (f64::min(gate, 7.0), f64::clamp(up, -7.0, 7.0));
            let expected = g * (1.0 / (1.0 + (-f64::from(1.702f32) * g).exp())) * (u + 1.0);
            let value = f64::from(run(activation, gate as f32, up as f32));
            assert!(
                (value - expected).abs() <= 1e-6 * expected.abs(),
                "gate {gate}, up {up}: {value}, {expected}"
            );
        }
    }

    #[test]
    fn activations_without_a_sigmoid_are_their_formulas() {
        assert_eq!(
            [
                run(Activation::Relu2, 3.0, 2.0),
                run(Activation::Relu2, -3.0, 2.0)
            ],
            [18.0, 0.0]
        );
        let xielu = |gate: f32| {
            let mut out = [f32::NAN];
            let activation = (Activation::Xielu, &[0.0, 1.0, 0.5, -1e-6][..]);
            gated_activation(&[gate], &[2.0], activation, &mut out, Storage::F32);
            f64::from(out[0])
        };
        // softplus(0) = ln 2, softplus(1) = 1.3132617
        assert!((xielu(2.0) - 2.0 * (4.0 * 2f64.ln() + 1.0)).abs() < 1e-5);
        let negative = ((-2f64).exp() - 1.0 + 2.0) * 1.813_261_7 - 1.0;
        assert!((xielu(-2.0) - 2.0 * negative).abs() < 1e-5);
    }
}
