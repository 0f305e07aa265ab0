//! Tests of `backend/reference/gated_activation.rs`.

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
