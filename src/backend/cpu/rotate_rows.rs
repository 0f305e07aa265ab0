//! Norm and rotation of q and k in rows.

use super::loaded::Loaded;
use super::rope_store_kv::Transform;
use super::rows::each_row;
use super::team::Team;
use crate::plan::RotateRows;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &RotateRows, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let mut rotations = std::mem::take(&mut loaded.rotations);
    let frequencies = loaded.vector(step.rope.frequencies);
    let set = rotations.prepare(&step.rope, frequencies, inputs);
    let rope = Some((step.rope, rotations.rows(set)));
    let queries = (step.query_heads * step.head_dim) as usize;
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let [q, k] = [0, 1].map(|at| Transform {
            level: loaded.level,
            head_dim: step.head_dim as usize,
            norm: step
                .norms
                .map(|norms| (norms[at], loaded.vector(norms[at].weight))),
            rope,
            growth: None,
        });
        let (columns, out_columns) = (loaded.columns(step.qkv), loaded.columns(step.out));
        let qkv = loaded.rows(step.qkv, inputs);
        each_row(team, out, out_columns, |row, out| {
            let (position, from) = (inputs.positions[row], &qkv[row * columns..][..out_columns]);
            q.apply(row, position, &from[..queries], &mut out[..queries]);
            k.apply(row, position, &from[queries..], &mut out[queries..]);
            out.iter_mut()
                .for_each(|value| *value = storage.round(*value));
        });
    });
    loaded.rotations = rotations;
}
