//! RMS norm with a gate, reference. Twin of `shaders/gated_norm.wgsl` and `cuda/gated_norm.cu`.
//!
//! For each group of columns: y = x, or x · silu(z) with the gate first; normed = y / sqrt(mean(y²) + epsilon) · w;
//! out = normed · silu(z), or normed with the gate first.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{GatedNorm, Storage};

/// Runs the step.
pub(super) fn run(step: &GatedNorm, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, columns) = (loaded.rows(step.x, inputs), loaded.columns(step.x));
        let mixed = loaded
            .rows(step.mixed, inputs)
            .chunks_exact(loaded.columns(step.mixed));
        let (weight, group) = (loaded.weight(step.weight).vector(), step.group as usize);
        for ((x, mixed), out) in x
            .chunks_exact(columns)
            .zip(mixed)
            .zip(out.chunks_exact_mut(columns))
        {
            for first in (0..columns).step_by(group) {
                let x = &x[first..first + group];
                let gates = &mixed[step.gates as usize + first..][..group];
                let weight = &weight[first % weight.len()..][..group];
                let norm = (step.epsilon, step.gate_first);
                gated_norm(
                    x,
                    gates,
                    weight,
                    norm,
                    &mut out[first..first + group],
                    storage,
                );
            }
        }
    });
}

/// Computes one group, in f64.
pub(super) fn gated_norm(
    x: &[f32],
    gates: &[f32],
    weight: &[f32],
    (epsilon, gate_first): (f32, bool),
    out: &mut [f32],
    storage: Storage,
) {
    assert!(
        gates.len() == x.len() && weight.len() == x.len() && out.len() == x.len(),
        "one of each per element"
    );
    let gated = x
        .iter()
        .zip(gates)
        .map(|(x, z)| f64::from(*x) * if gate_first { silu(*z) } else { 1.0 });
    let gated: Vec<f64> = gated.collect();
    let squares: f64 = gated.iter().map(|value| value * value).sum();
    let scale = 1.0 / (squares / x.len() as f64 + f64::from(epsilon)).sqrt();
    for (((out, value), weight), z) in out.iter_mut().zip(gated).zip(weight).zip(gates) {
        let after = if gate_first { 1.0 } else { silu(*z) };
        *out = storage.round((value * scale * f64::from(*weight) * after) as f32);
    }
}

fn silu(z: f32) -> f64 {
    f64::from(z) / (1.0 + (-f64::from(z)).exp())
}

#[cfg(test)]
mod tests;
