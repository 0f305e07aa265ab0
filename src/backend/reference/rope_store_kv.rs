//! Rotation and KV store, reference. Twin of `shaders/rope_store_kv.wgsl`.
//!
//! A row of `qkv` is query heads, then key heads, then value heads. Per head of q and k: RMS norm (optional, over the
//! head or over all heads of the row), then for every pair (a, b) of its first `rotary_dim` elements, with
//! angle = position · frequency, with the position along the frequency's axis if each has one:
//! (a, b) ← (a·cos − b·sin, b·cos + a·sin) · scale. Pairs are (i, i + rotary_dim / 2), or (2i, 2i + 1) interleaved.
//! A norm may also follow the rotation, v may be normalized without a weight, and q may grow with its position.
//! q is written to a row buffer, k and v to the slot of the token; slot `NONE` writes neither k nor v.
//!
//! Norm and rotation are computed in f64 and rounded once, when written; for q8 they are rounded to f32, which
//! `plan::format::KvTile` quantizes to codes and a scale. The angle is the exact product.

use super::loaded::LoadedPlan;
use super::memory::KvStore;
use super::rms_norm::{Norm, factor, inverse_rms};
use crate::plan::inputs::{AXES, BatchInputs, NONE};
use crate::plan::{HeadNorm, Rope, RopeStoreKv, Storage, StoreOptions};

/// Runs the step.
pub(super) fn run(step: &RopeStoreKv, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let heads = Heads {
        query: step.query_heads as usize,
        kv: layer.heads as usize,
        dim: layer.head_dim as usize,
    };
    let transform = Transform::of(step, loaded);
    if step.options.q_only {
        return run_queries(step, loaded, inputs, heads, &transform);
    }
    loaded.write_layer(step.layer, |loaded, [keys, values]| {
        loaded.write(step.q, inputs, |loaded, q, storage| {
            let mut target = Target {
                keys,
                values,
                block_size: loaded.capacity.block_size as usize,
                slots: &inputs.groups[layer.group as usize].slot_mapping,
            };
            let columns = (heads.query + 2 * heads.kv) * heads.dim;
            let rows = loaded.rows(step.qkv, inputs);
            let rows = rows.chunks_exact(loaded.columns(step.qkv));
            let qkv: Vec<f32> = rows.flat_map(|row| &row[..columns]).copied().collect();
            rope_store_kv(
                &qkv,
                &inputs.positions,
                heads,
                &transform,
                &mut target,
                (q, storage),
            );
        });
    });
}

/// Runs a step whose rows have queries only.
fn run_queries(
    step: &RopeStoreKv,
    loaded: &mut LoadedPlan,
    inputs: &BatchInputs,
    heads: Heads,
    transform: &Transform,
) {
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let columns = heads.query * heads.dim;
        let rows = loaded
            .rows(step.qkv, inputs)
            .chunks_exact(loaded.columns(step.qkv));
        let rows = rows.zip(q.chunks_exact_mut(columns));
        for ((qkv, q), position) in rows.zip(&inputs.positions) {
            transform.query(&qkv[..columns], *position, heads.dim, q, storage);
        }
    });
}

/// Rotation of one step, with decoded frequencies.
pub(super) struct Rotation {
    /// Radians per position, one per pair.
    pub(super) frequencies: Vec<f32>,
    /// Axis of each pair's position; empty: all have the same position.
    pub(super) axes: Vec<usize>,
    /// Whether pairs are (2i, 2i + 1) instead of (i, i + rotary_dim / 2).
    pub(super) interleaved: bool,
    /// Factor of cos and sin.
    pub(super) scale: f32,
}

/// Numbers of heads and head size of a layer.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    /// Number of query heads.
    pub(super) query: usize,
    /// Number of KV heads.
    pub(super) kv: usize,
    /// Elements per head.
    pub(super) dim: usize,
}

/// Norms and rotation of q and k.
pub(super) struct Transform {
    /// Norm of q, and whether it follows the rotation: over the whole row if it has a weight per column of the row,
    /// otherwise over each head.
    pub(super) q_norm: Option<(Norm, bool)>,
    /// Norm of k, like `q_norm`.
    pub(super) k_norm: Option<(Norm, bool)>,
    /// Rotation, or `None`.
    pub(super) rotation: Option<Rotation>,
    /// What else is done.
    pub(super) options: StoreOptions,
}

impl Transform {
    /// Norms and rotation of a step, with decoded weights.
    fn of(step: &RopeStoreKv, loaded: &LoadedPlan) -> Self {
        let options = step.options;
        Self {
            options,
            ..Self::new([step.q_norm, step.k_norm], step.rope, loaded)
        }
    }

    /// Norms of q and k and their rotation, with decoded weights.
    pub(super) fn new(
        norms: [Option<HeadNorm>; 2],
        rope: Option<Rope>,
        loaded: &LoadedPlan,
    ) -> Self {
        let norm = |norm: HeadNorm| {
            let weights = Norm {
                weight: loaded.weight(norm.weight).vector(),
                epsilon: norm.epsilon,
                one_plus: norm.one_plus,
            };
            (weights, norm.after_rotation)
        };
        let rotation = rope.map(|rope| {
            let mut frequencies = loaded.weight(rope.frequencies).vector();
            let axes = if rope.by_axis {
                frequencies.split_off(rope.rotary_dim as usize / 2)
            } else {
                Vec::new()
            };
            assert_eq!(
                frequencies.len() * 2,
                rope.rotary_dim as usize,
                "one frequency per rotated pair"
            );
            Rotation {
                frequencies,
                axes: axes.into_iter().map(|axis| axis as usize).collect(),
                interleaved: rope.interleaved,
                scale: rope.scale,
            }
        });
        let [q_norm, k_norm] = norms.map(|of| of.map(norm));
        Self {
            q_norm,
            k_norm,
            rotation,
            options: StoreOptions::default(),
        }
    }

    /// Norm and rotation of a row of q or k.
    pub(super) fn turn(
        &self,
        row: &[f32],
        norm: &Option<(Norm, bool)>,
        place: [u32; AXES],
        dim: usize,
    ) -> Vec<f64> {
        let row: Vec<f64> = row.iter().map(|&value| f64::from(value)).collect();
        let mut row = match norm {
            Some((norm, false)) => normed(&row, norm),
            _ => row,
        };
        if let Some(rotation) = &self.rotation {
            let turns = rotation.turns(place);
            row.chunks_exact_mut(dim)
                .for_each(|head| turn_head(head, rotation, &turns));
        }
        match norm {
            Some((norm, true)) => normed(&row, norm),
            _ => row,
        }
    }

    /// Writes a row of q.
    fn query(&self, row: &[f32], position: u32, dim: usize, q: &mut [f32], storage: Storage) {
        let growth = self
            .options
            .query_growth
            .map_or(1.0, |growth| growth.factor(position));
        let turned = self.turn(row, &self.q_norm, [position; AXES], dim);
        for (out, value) in q.iter_mut().zip(turned) {
            *out = storage.round((value * growth) as f32);
        }
    }

    /// A head of v as it is stored.
    fn value(&self, head: &[f32]) -> Vec<f32> {
        let scale = self
            .options
            .v_epsilon
            .map_or(1.0, |epsilon| inverse_rms(head, epsilon));
        head.iter()
            .map(|&value| (f64::from(value) * scale) as f32)
            .collect()
    }
}

/// Destination of a layer's keys and values.
pub(super) struct Target<'a> {
    /// `[block][kv_head][slot][dim]`.
    pub(super) keys: &'a mut KvStore,
    /// Same layout as `keys`.
    pub(super) values: &'a mut KvStore,
    /// Tokens per block.
    pub(super) block_size: usize,
    /// Slot of each row.
    pub(super) slots: &'a [u32],
}

impl Target<'_> {
    /// Pool row of a head in a slot.
    fn row(&self, heads: Heads, slot: usize, head: usize) -> usize {
        let (block, offset) = (slot / self.block_size, slot % self.block_size);
        (block * heads.kv + head) * self.block_size + offset
    }
}

/// Processes one row per position: writes q to `q`, and k and v to the pool.
pub(super) fn rope_store_kv(
    qkv: &[f32],
    positions: &[u32],
    heads: Heads,
    transform: &Transform,
    target: &mut Target<'_>,
    (q, q_storage): (&mut [f32], Storage),
) {
    let (q_columns, kv_columns) = (heads.query * heads.dim, heads.kv * heads.dim);
    assert_eq!(
        qkv.len(),
        positions.len() * (q_columns + 2 * kv_columns),
        "a row is q, k and v"
    );
    assert_eq!(target.slots.len(), positions.len(), "one slot per row");
    let rows = qkv
        .chunks_exact(q_columns + 2 * kv_columns)
        .zip(q.chunks_exact_mut(q_columns));
    for (row, (qkv, q)) in rows.enumerate() {
        transform.query(&qkv[..q_columns], positions[row], heads.dim, q, q_storage);
        if target.slots[row] == NONE {
            continue;
        }
        let (keys, values) = qkv[q_columns..].split_at(kv_columns);
        let place = [positions[row]; AXES];
        let keys = transform.turn(keys, &transform.k_norm, place, heads.dim);
        let keys: Vec<f32> = keys.into_iter().map(|value| value as f32).collect();
        for head in 0..heads.kv {
            let to = target.row(heads, target.slots[row] as usize, head);
            let elements = head * heads.dim..(head + 1) * heads.dim;
            target.keys.write(to, &keys[elements.clone()]);
            target.values.write(to, &transform.value(&values[elements]));
        }
    }
}

impl Rotation {
    /// (cos, sin) of every pair at a place, scaled.
    pub(super) fn turns(&self, place: [u32; AXES]) -> Vec<(f64, f64)> {
        let scale = f64::from(self.scale);
        let axes = self.axes.iter().copied().chain(std::iter::repeat(0));
        let angles = self
            .frequencies
            .iter()
            .zip(axes)
            .map(|(&frequency, axis)| f64::from(place[axis]) * f64::from(frequency));
        angles
            .map(|angle| (angle.cos() * scale, angle.sin() * scale))
            .collect()
    }

    /// The two elements of pair `index`.
    fn pair(&self, index: usize) -> (usize, usize) {
        if self.interleaved {
            (2 * index, 2 * index + 1)
        } else {
            (index, index + self.frequencies.len())
        }
    }
}

/// Normalizes a row of q or k in runs as long as the norm's weight.
pub(super) fn normed(row: &[f64], norm: &Norm) -> Vec<f64> {
    let mut out = row.to_vec();
    let columns = norm.weight.len();
    assert_eq!(row.len() % columns, 0, "a row is whole runs of {columns}");
    for (input, out) in row.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let mean = input.iter().map(|value| value * value).sum::<f64>() / columns as f64;
        let scale = 1.0 / (mean + f64::from(norm.epsilon)).sqrt();
        for (value, &weight) in out.iter_mut().zip(&norm.weight) {
            *value *= scale * factor(weight, norm.one_plus);
        }
    }
    out
}

/// Rotates one head of q or k in place.
pub(super) fn turn_head(head: &mut [f64], rotation: &Rotation, turns: &[(f64, f64)]) {
    for (index, (cos, sin)) in turns.iter().enumerate() {
        let (first, second) = rotation.pair(index);
        let (a, b) = (head[first], head[second]);
        (head[first], head[second]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

#[cfg(test)]
mod tests;
