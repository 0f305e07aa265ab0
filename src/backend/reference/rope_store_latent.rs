//! Rotation and store of a latent, reference. Twin of `shaders/rope_store_latent.wgsl`.
//!
//! With c = head_dim − r, per token: the stored row is the RMS norm of the first c elements of `latent`, then its last
//! r elements rotated; head h of q is the c elements of `absorbed`, then the last r elements of the head in `query`
//! rotated. The rotation is that of `rope_store_kv`. Slot `NONE` stores nothing.
//!
//! Everything is computed in f64 and rounded once, when written.

use super::loaded::LoadedPlan;
use super::rms_norm::Norm;
use super::rope_store_kv::{Rotation, normed, turn_head};
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{RopeStoreLatent, Storage};

/// Runs the step.
pub(super) fn run(step: &RopeStoreLatent, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let frequencies = loaded.weight(step.rope.frequencies).vector();
    let rotation = Rotation {
        frequencies,
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
            write_query(
                query,
                absorbed,
                &rotation,
                inputs.positions[head / heads],
                (q, storage),
            );
        }
    });
}

/// The rotated last elements of a row.
fn turned(row: &[f32], rotation: &Rotation, position: u32) -> Vec<f64> {
    let rotated = &row[row.len() - 2 * rotation.frequencies.len()..];
    let mut rotated: Vec<f64> = rotated.iter().map(|&value| f64::from(value)).collect();
    turn_head(&mut rotated, rotation, &rotation.turns(position));
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
    position: u32,
    (q, storage): (&mut [f32], Storage),
) {
    let elements = absorbed
        .iter()
        .map(|&value| f64::from(value))
        .chain(turned(query, rotation, position));
    for (out, value) in q.iter_mut().zip(elements) {
        *out = storage.round(value as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter turn per position.
    fn quarter(interleaved: bool) -> Rotation {
        Rotation {
            frequencies: vec![std::f32::consts::FRAC_PI_2; 2],
            interleaved,
            scale: 2.0,
        }
    }

    #[test]
    fn a_latent_is_normed_and_what_follows_it_is_rotated() {
        let norm = Norm {
            weight: vec![1.0, 2.0],
            epsilon: 0.0,
            one_plus: false,
        };
        let row = [3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
        let close = |found: Vec<f32>, expected: [f64; 6]| {
            for (found, expected) in found.into_iter().zip(expected) {
                assert!(
                    (f64::from(found) - expected).abs() < 1e-5,
                    "{found} is not {expected}"
                );
            }
        };
        let rms = 12.5f64.sqrt();
        close(
            key(&row, &norm, &quarter(true), 1),
            [3.0 / rms, 8.0 / rms, -12.0, 10.0, -16.0, 14.0],
        );
        close(
            key(&row, &norm, &quarter(false), 1),
            [3.0 / rms, 8.0 / rms, -14.0, -16.0, 10.0, 12.0],
        );
        close(
            key(&row, &norm, &quarter(false), 0),
            [3.0 / rms, 8.0 / rms, 10.0, 12.0, 14.0, 16.0],
        );
    }

    #[test]
    fn a_query_keeps_what_was_absorbed_and_only_its_last_elements_are_rotated() {
        let mut q = [f32::NAN; 7];
        write_query(
            &[9.0, 5.0, 6.0, 7.0, 8.0],
            &[1.0, 2.0, 3.0],
            &quarter(true),
            1,
            (&mut q, Storage::F32),
        );
        for (found, expected) in q.into_iter().zip([1.0, 2.0, 3.0, -12.0, 10.0, -16.0, 14.0]) {
            assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
        }
    }
}
