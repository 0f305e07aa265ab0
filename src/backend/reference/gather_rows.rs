//! Row gathering, reference. Twin of `shaders/gather_rows.wgsl`.
//!
//! out[s] = x[rows[s]], rounded to out's storage.

use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{GatherRows, Storage};

/// Runs the step.
pub(super) fn run(step: &GatherRows, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, columns) = (loaded.rows(step.x, inputs), loaded.columns(step.out));
        gather_rows(x, &inputs.logits_rows, columns, out, storage);
    });
}

/// Copies whole rows of `columns` elements.
pub(super) fn gather_rows(
    x: &[f32],
    rows: &[u32],
    columns: usize,
    out: &mut [f32],
    storage: Storage,
) {
    assert_eq!(out.len(), rows.len() * columns, "one output row per index");
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(columns)) {
        for (out, &value) in out.iter_mut().zip(&x[row as usize * columns..]) {
            *out = storage.round(value);
        }
    }
}

#[cfg(test)]
mod tests;
