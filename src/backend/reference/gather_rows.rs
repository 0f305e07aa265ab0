//! Row gathering, reference. Twin of `shaders/gather_rows.wgsl`.
//!
//! out[s] = x[rows[s]], x[rows[s] + 1], … as far as a row of out reaches, rounded to out's storage.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{GatherRows, Storage};

/// Runs the step.
pub(super) fn run(step: &GatherRows, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let x = loaded.rows(step.x, inputs);
        let columns = [step.x, step.out].map(|id| loaded.columns(id));
        gather_rows(x, &inputs.logits_rows, columns, out, storage);
    });
}

/// Copies runs of elements of the width of output rows, which begin where the given rows of `x` do.
pub(super) fn gather_rows(
    x: &[f32],
    rows: &[u32],
    [from, columns]: [usize; 2],
    out: &mut [f32],
    storage: Storage,
) {
    assert_eq!(out.len(), rows.len() * columns, "one output row per index");
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(columns)) {
        for (out, &value) in out.iter_mut().zip(&x[row as usize * from..]) {
            *out = storage.round(value);
        }
    }
}

#[cfg(test)]
mod tests;
