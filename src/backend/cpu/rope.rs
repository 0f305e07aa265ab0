//! Norm and rotation of queries and keys, and the KV store.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::rows::{normalize, normalize_in_place, scale_to_unit};
use super::scratch::ThreadScratch;
use super::simd::Level;
use super::team::Team;
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{HeadNorm, KvLayer, QueryGrowth, Rope, RopeStoreKv, RopeStoreLatent};
use std::ops::Range;

/// What is done to the heads of q or k.
struct Transform<'a> {
    level: Level,
    head_dim: usize,
    norm: Option<(HeadNorm, &'a [f32])>,
    rope: Option<(Rope, &'a [[f32; 2]])>,
    growth: Option<QueryGrowth>,
}

impl Transform<'_> {
    /// Writes the heads of row `row` to `out`.
    fn apply(&self, row: usize, position: u32, heads: &[f32], out: &mut [f32]) {
        match &self.norm {
            Some((norm, weight)) if !norm.after_rotation => {
                for (x, out) in heads
                    .chunks_exact(weight.len())
                    .zip(out.chunks_exact_mut(weight.len()))
                {
                    normalize(self.level, x, weight, norm.epsilon, norm.one_plus, out);
                }
            }
            _ => out.copy_from_slice(heads),
        }
        self.rotate(row, out);
        if let Some((norm, weight)) = self.norm.filter(|(norm, _)| norm.after_rotation) {
            for head in out.chunks_exact_mut(weight.len()) {
                normalize_in_place(self.level, head, weight, norm.epsilon, norm.one_plus);
            }
        }
        if let Some(QueryGrowth { slope, positions }) = self.growth {
            let factor = 1.0 + f64::from(slope) * f64::from(position / positions).ln_1p();
            out.iter_mut().for_each(|value| *value *= factor as f32);
        }
    }

    /// Rotates the heads of row `row`.
    fn rotate(&self, row: usize, out: &mut [f32]) {
        let Some((rope, turns)) = &self.rope else {
            return;
        };
        let pairs = rope.rotary_dim as usize / 2;
        let turns = &turns[row * pairs..][..pairs];
        for head in out.chunks_exact_mut(self.head_dim) {
            let rotated = &mut head[..2 * pairs];
            if rope.interleaved {
                for (pair, turn) in rotated.as_chunks_mut().0.iter_mut().zip(turns) {
                    *pair = rotate(*pair, *turn);
                }
                continue;
            }
            let (first, second) = rotated.split_at_mut(pairs);
            for ((a, b), turn) in first.iter_mut().zip(second).zip(turns) {
                [*a, *b] = rotate([*a, *b], *turn);
            }
        }
    }
}

fn rotate([a, b]: [f32; 2], [cos, sin]: [f32; 2]) -> [f32; 2] {
    [a * cos - b * sin, b * cos + a * sin]
}

/// Runs the step.
pub(super) fn run(step: &RopeStoreKv, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let mut turns = std::mem::take(&mut loaded.turns);
    let set = step
        .rope
        .map(|rope| turns.prepare(&rope, loaded.vector(rope.frequencies), &inputs.positions));
    let rope = step
        .rope
        .zip(set)
        .map(|(rope, set)| (rope, turns.rows(set)));
    let kv_columns = if step.options.q_only {
        0
    } else {
        (layer.heads * layer.head_dim) as usize
    };
    let mut keys = std::mem::take(&mut loaded.rotated_keys);
    keys.resize(inputs.positions.len() * kv_columns, 0.0);
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let transform = |norm: Option<HeadNorm>, growth: Option<QueryGrowth>| Transform {
            level: loaded.level,
            head_dim: layer.head_dim as usize,
            norm: norm.map(|norm| (norm, loaded.vector(norm.weight))),
            rope,
            growth,
        };
        let q_transform = transform(step.q_norm, step.options.query_growth);
        let k_transform = transform(step.k_norm, None);
        let (qkv, qkv_columns) = (loaded.rows(step.qkv, inputs), loaded.columns(step.qkv));
        let (q_columns, rows) = (loaded.columns(step.q), inputs.positions.len());
        let (q, keys) = (SharedSlice::new(q), SharedSlice::new(&mut keys));
        let work = |rows: Range<usize>| {
            for row in rows {
                let qkv = &qkv[row * qkv_columns..][..qkv_columns];
                #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
                // SAFETY: each row is in one part of one thread.
                let (q, keys) = unsafe {
                    (
                        q.part(row * q_columns..(row + 1) * q_columns),
                        keys.part(row * kv_columns..(row + 1) * kv_columns),
                    )
                };
                let position = inputs.positions[row];
                q_transform.apply(row, position, &qkv[..q_columns], q);
                q.iter_mut()
                    .for_each(|value| *value = storage.round(*value));
                k_transform.apply(row, position, &qkv[q_columns..][..kv_columns], keys);
            }
        };
        if rows < 8 {
            work(0..rows);
        } else {
            team.run(rows, 1, |parts, _| parts.for_each(&work));
        }
    });
    if !step.options.q_only {
        store(step, layer, loaded, team, inputs, &keys);
    }
    loaded.rotated_keys = keys;
    loaded.turns = turns;
}

/// Writes keys and values to the pool. A head's tiles belong to one thread.
fn store(
    step: &RopeStoreKv,
    layer: KvLayer,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
    keys: &[f32],
) {
    let mut pool = std::mem::take(&mut loaded.pool);
    let halves = &mut pool[step.layer as usize];
    let layouts = [halves[0].layout, halves[1].layout];
    let words = halves
        .each_mut()
        .map(|half| SharedSlice::new(half.words_mut()));
    let (slots, block_size) = (
        &inputs.groups[layer.group as usize].slot_mapping,
        loaded.capacity.block_size as usize,
    );
    let (heads, dim) = (layer.heads as usize, layer.head_dim as usize);
    let (qkv, qkv_columns) = (loaded.rows(step.qkv, inputs), loaded.columns(step.qkv));
    let values_at = loaded.columns(step.q) + heads * dim;
    let level = loaded.level;
    let work = |items: Range<usize>, scratch: &mut ThreadScratch| {
        let normed = scratch.arena.alloc_slice_fill_copy(dim, 0.0);
        for (half, head) in items.map(|item| (item % 2, item / 2)) {
            for (row, &slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != NONE) {
                let (block, slot) = (slot as usize / block_size, slot as usize % block_size);
                let (tile, size) = (block * heads + head, layouts[half].words());
                #[allow(unsafe_code, reason = "tiles of different threads are disjoint")]
                // SAFETY: a half's head is in one part of one thread.
                let tile = unsafe { words[half].part(tile * size..(tile + 1) * size) };
                let from = if half == 0 {
                    &keys[(row * heads + head) * dim..][..dim]
                } else {
                    let value = &qkv[row * qkv_columns + values_at + head * dim..][..dim];
                    match step.options.v_epsilon {
                        Some(epsilon) => {
                            normed.copy_from_slice(value);
                            scale_to_unit(level, normed, epsilon);
                            &*normed
                        }
                        None => value,
                    }
                };
                layouts[half].write(tile, slot, from, &mut scratch.words);
            }
        }
    };
    if slots.len() < 8 {
        work(0..2 * heads, team.own());
    } else {
        team.run(2 * heads, 1, |parts, scratch| {
            parts.for_each(|part| work(part, scratch));
        });
    }
    loaded.pool = pool;
}

/// Runs the step for latents.
pub(super) fn run_latent(
    step: &RopeStoreLatent,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) {
    let dim = loaded.plan.kv_layers[step.layer as usize].head_dim as usize;
    let mut turns = std::mem::take(&mut loaded.turns);
    let set = turns.prepare(
        &step.rope,
        loaded.vector(step.rope.frequencies),
        &inputs.positions,
    );
    let mut keys = std::mem::take(&mut loaded.rotated_keys);
    keys.resize(inputs.positions.len() * dim, 0.0);
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let (rope, level, rotary) = (
            Some((step.rope, turns.rows(set))),
            loaded.level,
            step.rope.rotary_dim as usize,
        );
        let turn = Transform {
            level,
            head_dim: rotary,
            norm: None,
            rope,
            growth: None,
        };
        let (norm, heads) = (loaded.vector(step.norm), step.query_heads as usize);
        let (rank, each) = (dim - rotary, loaded.columns(step.query) / heads);
        let [query, absorbed, latent] =
            [step.query, step.absorbed, step.latent].map(|id| loaded.rows(id, inputs));
        let (q, keys, rows) = (
            SharedSlice::new(q),
            SharedSlice::new(&mut keys),
            inputs.positions.len(),
        );
        let work = |rows: Range<usize>| {
            for row in rows {
                #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
                // SAFETY: each row is in one part of one thread.
                let (q, key) = unsafe {
                    (
                        q.part(row * heads * dim..(row + 1) * heads * dim),
                        keys.part(row * dim..(row + 1) * dim),
                    )
                };
                let (position, latent) = (inputs.positions[row], &latent[row * dim..][..dim]);
                normalize(
                    level,
                    &latent[..rank],
                    norm,
                    step.epsilon,
                    false,
                    &mut key[..rank],
                );
                turn.apply(row, position, &latent[rank..], &mut key[rank..]);
                for (head, q) in q.chunks_exact_mut(dim).enumerate() {
                    let head = row * heads + head;
                    q[..rank].copy_from_slice(&absorbed[head * rank..][..rank]);
                    turn.apply(
                        row,
                        position,
                        &query[(head + 1) * each - rotary..][..rotary],
                        &mut q[rank..],
                    );
                    q.iter_mut()
                        .for_each(|value| *value = storage.round(*value));
                }
            }
        };
        if rows < 8 {
            work(0..rows);
        } else {
            team.run(rows, 1, |parts, _| parts.for_each(&work));
        }
    });
    store_latent(step, loaded, team, inputs, &keys);
    loaded.rotated_keys = keys;
    loaded.turns = turns;
}

/// Writes latents to the pool.
fn store_latent(
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
