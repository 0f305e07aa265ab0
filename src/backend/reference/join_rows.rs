//! Joining of rows, reference. Twin of `shaders/join_rows.wgsl`.
//!
//! out[t] = [norm(x[t]) · w_x, norm(carried[rows[t]]) · w_carried], rounded to out's storage; the norms are those of
//! [`rms_norm`].

use super::loaded::LoadedPlan;
use super::rms_norm::{Finish, Norm, rms_norm};
use crate::plan::inputs::BatchInputs;
use crate::plan::{JoinRows, Storage};

/// Runs the step.
pub(super) fn run(step: &JoinRows, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let x = loaded.rows(step.x, inputs);
        let carried = loaded.all_rows(step.carried);
        let norms = [step.x_norm, step.carried_norm].map(|weight| Norm {
            weight: loaded.weight(weight).vector(),
            epsilon: step.epsilon,
            one_plus: step.one_plus,
        });
        join_rows(x, carried, &inputs.carried, &norms, out, storage);
    });
}

/// Joins whole rows, as wide as the weights of both norms.
pub(super) fn join_rows(
    x: &[f32],
    carried: &[f32],
    rows: &[u32],
    norms: &[Norm; 2],
    out: &mut [f32],
    storage: Storage,
) {
    let columns = norms[0].weight.len();
    assert_eq!(out.len(), 2 * x.len(), "an output row is two rows");
    assert_eq!(x.len(), rows.len() * columns, "one carried row per token");
    let finish = Finish {
        bias: None,
        scale: 1.0,
    };
    for ((x, &row), out) in x
        .chunks_exact(columns)
        .zip(rows)
        .zip(out.chunks_exact_mut(2 * columns))
    {
        let (first, second) = out.split_at_mut(columns);
        let carried = &carried[row as usize * columns..][..columns];
        rms_norm(x, &norms[0], &finish, false, first, storage);
        rms_norm(carried, &norms[1], &finish, false, second, storage);
    }
}

#[cfg(test)]
mod tests;
