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
mod tests;
