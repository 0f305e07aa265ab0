//! Norm and rotation of queries and keys, and the KV store.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::rows::{normalize, normalize_in_place, scale_to_unit};
use super::scratch::ThreadScratch;
use super::simd::Level;
use super::team::Team;
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{HeadNorm, QueryGrowth, Rope, RopeStoreKv};
use std::ops::Range;

/// With fewer rows, one thread is faster than several.
const SHARED_ROWS_MIN: usize = 8;

/// What is done to the heads of q or k.
pub(super) struct Transform<'a> {
    pub(super) level: Level,
    pub(super) head_dim: usize,
    pub(super) norm: Option<(HeadNorm, &'a [f32])>,
    pub(super) rope: Option<(Rope, &'a [[f32; 2]])>,
    pub(super) growth: Option<QueryGrowth>,
}

impl Transform<'_> {
    /// Writes the heads of row `row` to `out`.
    pub(super) fn apply(&self, row: usize, position: u32, heads: &[f32], out: &mut [f32]) {
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
        if let Some(growth) = self.growth {
            let factor = growth.factor(position) as f32;
            out.iter_mut().for_each(|value| *value *= factor);
        }
    }

    /// Rotates the heads of row `row`.
    fn rotate(&self, row: usize, out: &mut [f32]) {
        let Some((rope, rotations)) = &self.rope else {
            return;
        };
        let pairs = rope.rotary_dim as usize / 2;
        let rotations = &rotations[row * pairs..][..pairs];
        for head in out.chunks_exact_mut(self.head_dim) {
            let rotated = &mut head[..2 * pairs];
            if rope.interleaved {
                for (pair, rotation) in rotated.as_chunks_mut().0.iter_mut().zip(rotations) {
                    *pair = rotate(*pair, *rotation);
                }
                continue;
            }
            let (first, second) = rotated.split_at_mut(pairs);
            for ((a, b), rotation) in first.iter_mut().zip(second).zip(rotations) {
                [*a, *b] = rotate([*a, *b], *rotation);
            }
        }
    }
}

fn rotate([a, b]: [f32; 2], [cos, sin]: [f32; 2]) -> [f32; 2] {
    [a * cos - b * sin, b * cos + a * sin]
}

/// Rows that are written, with their columns.
pub(super) struct OutRows<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) columns: usize,
}

/// Calls `work(row, q, key)` for each of `rows` rows, on several threads if there are many.
pub(super) fn each_row_of(
    team: &mut Team,
    rows: usize,
    q: OutRows<'_>,
    keys: OutRows<'_>,
    work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let OutRows {
        values: q,
        columns: q_columns,
    } = q;
    let OutRows {
        values: keys,
        columns: key_columns,
    } = keys;
    let (q, keys) = (SharedSlice::new(q), SharedSlice::new(keys));
    let work = |rows: Range<usize>| {
        for row in rows {
            #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
            // SAFETY: each row is in one part of one thread.
            let (q, keys) = unsafe {
                (
                    q.part(row * q_columns..(row + 1) * q_columns),
                    keys.part(row * key_columns..(row + 1) * key_columns),
                )
            };
            work(row, q, keys);
        }
    };
    if rows < SHARED_ROWS_MIN {
        work(0..rows);
    } else {
        team.run(rows, 1, |parts, _| parts.for_each(&work));
    }
}

/// Runs the step.
pub(super) fn run(step: &RopeStoreKv, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let kv_columns = if step.options.q_only {
        0
    } else {
        (layer.heads * layer.head_dim) as usize
    };
    let mut rotations = std::mem::take(&mut loaded.rotations);
    let rope = step.rope.map(|rope| {
        let set = rotations.prepare(&rope, loaded.vector(rope.frequencies), inputs);
        (rope, set)
    });
    let rope = rope.map(|(rope, set)| (rope, rotations.rows(set)));
    let mut keys = std::mem::take(&mut loaded.rotated_keys);
    keys.resize(inputs.positions.len() * kv_columns, 0.0);
    loaded.write(step.q, inputs, |loaded, q, storage| {
        let projected = Projected::new(step, loaded, inputs, rope);
        let q = OutRows {
            values: q,
            columns: projected.q_columns,
        };
        let keys = OutRows {
            values: &mut keys,
            columns: kv_columns,
        };
        each_row_of(team, inputs.positions.len(), q, keys, |row, q, keys| {
            projected.write(row, q, keys);
            for value in q {
                *value = storage.round(*value);
            }
        });
    });
    if !step.options.q_only {
        store(step, loaded, team, inputs, &keys);
    }
    loaded.rotated_keys = keys;
    loaded.rotations = rotations;
}

/// Queries and keys before their norm and rotation.
struct Projected<'a> {
    positions: &'a [u32],
    qkv: &'a [f32],
    /// Columns of `qkv`, and how many of them are queries.
    columns: usize,
    q_columns: usize,
    q: Transform<'a>,
    k: Transform<'a>,
}

impl<'a> Projected<'a> {
    fn new(
        step: &RopeStoreKv,
        loaded: &'a Loaded,
        inputs: &'a BatchInputs,
        rope: Option<(Rope, &'a [[f32; 2]])>,
    ) -> Self {
        let head_dim = loaded.plan.kv_layers[step.layer as usize].head_dim as usize;
        let transform = |norm: Option<HeadNorm>, growth| Transform {
            level: loaded.level,
            head_dim,
            norm: norm.map(|norm| (norm, loaded.vector(norm.weight))),
            rope,
            growth,
        };
        Self {
            positions: &inputs.positions,
            qkv: loaded.rows(step.qkv, inputs),
            columns: loaded.columns(step.qkv),
            q_columns: loaded.columns(step.q),
            q: transform(step.q_norm, step.options.query_growth),
            k: transform(step.k_norm, None),
        }
    }

    /// Writes the queries and keys of a row.
    fn write(&self, row: usize, q: &mut [f32], keys: &mut [f32]) {
        let qkv = &self.qkv[row * self.columns..][..self.columns];
        let (queries, others) = qkv.split_at(self.q_columns);
        let position = self.positions[row];
        self.q.apply(row, position, queries, q);
        self.k.apply(row, position, &others[..keys.len()], keys);
    }
}

/// Keys and values on their way to the pool.
struct Stored<'a> {
    level: Level,
    /// KV heads and elements of a head.
    heads: usize,
    dim: usize,
    block_size: usize,
    /// Slot of each row.
    slots: &'a [u32],
    /// `[row][head][element]`, rotated.
    keys: &'a [f32],
    qkv: &'a [f32],
    qkv_columns: usize,
    /// First column of the values.
    values_at: usize,
    /// Epsilon of the values' norm.
    v_epsilon: Option<f32>,
}

/// Writes keys and values to the pool. A head's tiles belong to one thread.
fn store(
    step: &RopeStoreKv,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
    keys: &[f32],
) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let mut pool = std::mem::take(&mut loaded.pool);
    let halves = &mut pool[step.layer as usize];
    let (heads, dim) = (layer.heads as usize, layer.head_dim as usize);
    let stored = Stored {
        level: loaded.level,
        heads,
        dim,
        block_size: loaded.capacity.block_size as usize,
        slots: &inputs.groups[layer.group as usize].slot_mapping,
        keys,
        qkv: loaded.rows(step.qkv, inputs),
        qkv_columns: loaded.columns(step.qkv),
        values_at: loaded.columns(step.q) + heads * dim,
        v_epsilon: step.options.v_epsilon,
    };
    let layouts = [halves[0].layout, halves[1].layout];
    let words = halves
        .each_mut()
        .map(|half| SharedSlice::new(half.words_mut()));
    let work = |items: Range<usize>, scratch: &mut ThreadScratch| {
        let normed = scratch.arena.alloc_slice_fill_copy(dim, 0.0);
        for (half, head) in items.map(|item| (item % 2, item / 2)) {
            let size = layouts[half].words();
            stored.each_slot(|row, block, slot| {
                let tile = (block * heads + head) * size;
                #[allow(unsafe_code, reason = "tiles of different threads are disjoint")]
                // SAFETY: a half's head is in one part of one thread.
                let tile = unsafe { words[half].part(tile..tile + size) };
                let from = match half {
                    0 => stored.key(row, head),
                    _ => stored.value(row, head, normed),
                };
                layouts[half].write(tile, slot, from, &mut scratch.words);
            });
        }
    };
    if stored.slots.len() < SHARED_ROWS_MIN {
        work(0..2 * heads, team.own());
    } else {
        team.run(2 * heads, 1, |parts, scratch| {
            parts.for_each(|part| work(part, scratch));
        });
    }
    loaded.pool = pool;
}

impl Stored<'_> {
    /// Calls `each(row, block, slot of the block)` for every row that has a slot.
    fn each_slot(&self, mut each: impl FnMut(usize, usize, usize)) {
        for (row, &slot) in self.slots.iter().enumerate() {
            if slot != NONE {
                let slot = slot as usize;
                each(row, slot / self.block_size, slot % self.block_size);
            }
        }
    }

    fn key(&self, row: usize, head: usize) -> &[f32] {
        &self.keys[(row * self.heads + head) * self.dim..][..self.dim]
    }

    /// A value, which is normalized in `normed` if the step says so.
    fn value<'b>(&'b self, row: usize, head: usize, normed: &'b mut [f32]) -> &'b [f32] {
        let at = row * self.qkv_columns + self.values_at + head * self.dim;
        let value = &self.qkv[at..][..self.dim];
        match self.v_epsilon {
            Some(epsilon) => {
                normed.copy_from_slice(value);
                scale_to_unit(self.level, normed, epsilon);
                normed
            }
            None => value,
        }
    }
}
