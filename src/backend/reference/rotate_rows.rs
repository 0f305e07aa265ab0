//! Rotation of q and k in rows, reference. Twin of `shaders/rotate_rows.wgsl`.
//!
//! Norm and rotation are those of `rope_store_kv`, by a position or by axis, computed in f64 and rounded once, to the
//! storage of `out`.

use super::loaded::LoadedPlan;
use super::rope_store_kv::Transform;
use crate::plan::RotateRows;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &RotateRows, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let norms = step.norms.map_or([None; 2], |norms| norms.map(Some));
    let transform = Transform::new(norms, Some(step.rope), loaded);
    let dim = step.head_dim as usize;
    let queries = step.query_heads as usize * dim;
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let rows = loaded.rows(step.qkv, inputs);
        let rows = rows.chunks_exact(loaded.columns(step.qkv));
        let outs = out.chunks_exact_mut(loaded.columns(step.out));
        for (index, (row, out)) in rows.zip(outs).enumerate() {
            let place = inputs.place(index);
            let (q, k) = row[..out.len()].split_at(queries);
            let q = transform.turn(q, &transform.q_norm, place, dim);
            let k = transform.turn(k, &transform.k_norm, place, dim);
            for (out, value) in out.iter_mut().zip(q.into_iter().chain(k)) {
                *out = storage.round(value as f32);
            }
        }
    });
}

#[cfg(test)]
mod tests;
