//! Rotation and store of a latent, reference. Twin of `shaders/rope_store_latent.wgsl`.
//!
//! With c = head_dim − r, per token: the stored row is the RMS norm of the first c elements of `latent`, then its last
//! r elements rotated; head h of q is the c elements of `absorbed`, then the last r elements of the head in `query`
//! rotated, times its growth. The rotation is that of `rope_store_kv`. Slot `NONE` stores nothing.
//!
//! Everything is computed in f64 and rounded once, when written.

use super::loaded::LoadedPlan;
use super::rms_norm::Norm;
use super::rope_store_kv::{Rotation, normed, turn_head};
use crate::plan::inputs::{AXES, BatchInputs, NONE};
use crate::plan::{RopeStoreLatent, Storage};

/// Runs the step.
pub(super) fn run(step: &RopeStoreLatent, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let frequencies = loaded.weight(step.rope.frequencies).vector();
    let rotation = Rotation {
        frequencies,
        axes: Vec::new(),
        interleaved: step.rope.interleaved,
        scale: step.rope.scale,
    };
    let norm = Norm {
        weight: loaded.weight(step.norm).vector(),
        epsilon: step.epsilon,
        one_plus: false,
    };
    let (dim, block_size) = (layer.head_dim as usize, loaded.capacity.block_size as usize);
    let slots = &inputs.groups[layer.group as usize].slot_mapping;
    loaded.write_layer(step.layer, |loaded, [keys, _]| {
        let rows = loaded.rows(step.latent, inputs).chunks_exact(dim);
        for ((row, &slot), &position) in rows.zip(slots).zip(&inputs.positions) {
            if slot != NONE {
                // A tile has the slots of a block, so that slots are rows of the only head.
                debug_assert_eq!(
                    keys.elements() % (block_size * dim),
                    0,
                    "whole blocks of one head"
                );
                keys.write(slot as usize, &key(row, &norm, &rotation, position));
            }
        }
    });
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let heads = step.query_heads as usize;
        let (query, absorbed) = (
            loaded.rows(step.query, inputs),
            loaded.rows(step.absorbed, inputs),
        );
        let query = query.chunks_exact(loaded.columns(step.query) / heads);
        let absorbed = absorbed.chunks_exact(loaded.columns(step.absorbed) / heads);
        for (head, (q, (query, absorbed))) in
            q.chunks_exact_mut(dim).zip(query.zip(absorbed)).enumerate()
        {
            let position = inputs.positions[head / heads];
            let growth = step
                .query_growth
                .map_or(1.0, |growth| growth.factor(position));
            write_query(query, absorbed, &rotation, (position, growth), (q, storage));
        }
    });
}

/// The rotated last elements of a row.
fn turned(row: &[f32], rotation: &Rotation, position: u32) -> Vec<f64> {
    let rotated = &row[row.len() - 2 * rotation.frequencies.len()..];
    let mut rotated: Vec<f64> = rotated.iter().map(|&value| f64::from(value)).collect();
    turn_head(&mut rotated, rotation, &rotation.turns([position; AXES]));
    rotated
}

/// The row that is stored.
fn key(row: &[f32], norm: &Norm, rotation: &Rotation, position: u32) -> Vec<f32> {
    let latent: Vec<f64> = row[..norm.weight.len()]
        .iter()
        .map(|&value| f64::from(value))
        .collect();
    let elements = normed(&latent, norm)
        .into_iter()
        .chain(turned(row, rotation, position));
    elements.map(|value| value as f32).collect()
}

/// Writes a head of q.
fn write_query(
    query: &[f32],
    absorbed: &[f32],
    rotation: &Rotation,
    (position, growth): (u32, f64),
    (q, storage): (&mut [f32], Storage),
) {
    let elements = absorbed
        .iter()
        .map(|&value| f64::from(value))
        .chain(turned(query, rotation, position));
    for (out, value) in q.iter_mut().zip(elements) {
        *out = storage.round((value * growth) as f32);
    }
}

#[cfg(test)]
mod tests;
