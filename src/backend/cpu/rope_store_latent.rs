//! Norm and rotation of latents and their queries, and the store of latents.

use super::loaded::Loaded;
use super::rope_store_kv::{OutRows, Transform, each_row_of};
use super::rows::normalize;
use super::team::Team;
use crate::plan::RopeStoreLatent;
use crate::plan::inputs::{BatchInputs, NONE};

/// Runs the step.
pub(super) fn run(
    step: &RopeStoreLatent,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) {
    let dim = loaded.plan.kv_layers[step.layer as usize].head_dim as usize;
    let mut rotations = std::mem::take(&mut loaded.rotations);
    let frequencies = loaded.vector(step.rope.frequencies);
    let set = rotations.prepare(&step.rope, frequencies, inputs);
    let mut keys = std::mem::take(&mut loaded.rotated_keys);
    keys.resize(inputs.positions.len() * dim, 0.0);
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let latents = Latents::new(step, loaded, inputs, rotations.rows(set));
        let q = OutRows {
            values: q,
            columns: latents.heads * dim,
        };
        let keys = OutRows {
            values: &mut keys,
            columns: dim,
        };
        each_row_of(team, inputs.positions.len(), q, keys, |row, q, key| {
            latents.write_key(row, key);
            latents.write_queries(row, q);
            for value in q {
                *value = storage.round(*value);
            }
        });
    });
    store(step, loaded, team, inputs, &keys);
    loaded.rotated_keys = keys;
    loaded.rotations = rotations;
}

/// What a step reads of latents and their queries.
struct Latents<'a> {
    step: &'a RopeStoreLatent,
    inputs: &'a BatchInputs,
    /// For the last elements of a latent and of a query.
    rotation: Transform<'a>,
    norm: &'a [f32],
    latent: &'a [f32],
    absorbed: &'a [f32],
    query: &'a [f32],
    heads: usize,
    /// Elements of a latent, and how many of them are not rotated.
    dim: usize,
    rank: usize,
    /// Elements of a query head.
    each: usize,
}

impl<'a> Latents<'a> {
    fn new(
        step: &'a RopeStoreLatent,
        loaded: &'a Loaded,
        inputs: &'a BatchInputs,
        rotations: &'a [[f32; 2]],
    ) -> Self {
        let dim = loaded.plan.kv_layers[step.layer as usize].head_dim as usize;
        let rotary = step.rope.rotary_dim as usize;
        let heads = step.query_heads as usize;
        Self {
            step,
            inputs,
            rotation: Transform {
                level: loaded.level,
                head_dim: rotary,
                norm: None,
                rope: Some((step.rope, rotations)),
                growth: None,
            },
            norm: loaded.vector(step.norm),
            latent: loaded.rows(step.latent, inputs),
            absorbed: loaded.rows(step.absorbed, inputs),
            query: loaded.rows(step.query, inputs),
            heads,
            dim,
            rank: dim - rotary,
            each: loaded.columns(step.query) / heads,
        }
    }

    fn write_key(&self, row: usize, key: &mut [f32]) {
        let (plain, turned) = self.latent[row * self.dim..][..self.dim].split_at(self.rank);
        let (plain_key, turned_key) = key.split_at_mut(self.rank);
        let (level, epsilon) = (self.rotation.level, self.step.epsilon);
        normalize(level, plain, self.norm, epsilon, false, plain_key);
        let position = self.inputs.positions[row];
        self.rotation.apply(row, position, turned, turned_key);
    }

    /// Each query is what its head has absorbed, and its last elements.
    fn write_queries(&self, row: usize, q: &mut [f32]) {
        let (rotary, position) = (self.dim - self.rank, self.inputs.positions[row]);
        let growth = self.step.query_growth;
        let factor = growth.map_or(1.0, |growth| growth.factor(position) as f32);
        for (head, q) in q.chunks_exact_mut(self.dim).enumerate() {
            let head = row * self.heads + head;
            let (plain, turned) = q.split_at_mut(self.rank);
            plain.copy_from_slice(&self.absorbed[head * self.rank..][..self.rank]);
            let query = &self.query[(head + 1) * self.each - rotary..][..rotary];
            self.rotation.apply(row, position, query, turned);
            if growth.is_some() {
                q.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }
}

/// Writes latents to the pool.
fn store(
    step: &RopeStoreLatent,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
    keys: &[f32],
) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let (dim, block_size) = (layer.head_dim as usize, loaded.capacity.block_size as usize);
    let store = &mut loaded.pool[step.layer as usize][0];
    let (layout, packed) = (store.layout, &mut team.own().words);
    let slots = &inputs.groups[layer.group as usize].slot_mapping;
    for (key, &slot) in keys
        .chunks_exact(dim)
        .zip(slots)
        .filter(|(_, slot)| **slot != NONE)
    {
        let (block, slot) = (slot as usize / block_size, slot as usize % block_size);
        let tile = &mut store.words_mut()[block * layout.words()..][..layout.words()];
        layout.write(tile, slot, key, packed);
    }
}
