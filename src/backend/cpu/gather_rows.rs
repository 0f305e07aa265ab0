//! The rows that are sampled, or merged.

use super::loaded::Loaded;
use crate::plan::GatherRows;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &GatherRows, loaded: &mut Loaded, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let x = loaded.rows(step.x, inputs);
        let [from, columns] = [step.x, step.out].map(|id| loaded.columns(id));
        for (&row, out) in inputs.logits_rows.iter().zip(out.chunks_exact_mut(columns)) {
            for (out, value) in out.iter_mut().zip(&x[row as usize * from..]) {
                *out = storage.round(*value);
            }
        }
    });
}
