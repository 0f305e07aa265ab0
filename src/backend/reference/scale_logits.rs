//! Scaled and capped logits, reference. Twin of `shaders/scale_logits.wgsl`.
//!
//! logits = cap · tanh(scale · logits / cap), or scale · logits without a cap; rounded once. Non-finite logits are
//! kept, so that the sampler can still detect a failed row.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{ScaleLogits, Storage};

/// Runs the step.
pub(super) fn run(step: &ScaleLogits, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.logits, inputs, |_, logits, storage| {
        scale_logits(step.scale, step.softcap, logits, storage);
    });
}

/// Scales and caps the logits in place.
pub(super) fn scale_logits(scale: f32, softcap: Option<f32>, logits: &mut [f32], storage: Storage) {
    for logit in logits.iter_mut().filter(|logit| logit.is_finite()) {
        let scaled = f64::from(scale) * f64::from(*logit);
        let capped = softcap
            .map(f64::from)
            .map_or(scaled, |cap| cap * (scaled / cap).tanh());
        *logit = storage.round(capped as f32);
    }
}

#[cfg(test)]
mod tests {
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
}
