//! Attention of rows to each other.
//!
//! An item is one query head of up to 64 rows of a sequence. Its keys are taken in tiles, which are transposed, so that
//! a vector has the scores of sixteen keys; the sums of earlier tiles shrink as larger scores come. Rows and tiles are
//! counted from the start of the sequence, so a result depends neither on the batch nor on the number of threads.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::scratch::HIDDEN;
use super::simd::{Kernel, LANES, Lanes, Level, Simd, with_simd};
use super::team::Team;
use crate::plan::inputs::BatchInputs;
use crate::plan::{AttendRows, Storage};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use std::ops::Range;

/// Rows of an item.
const ROWS: usize = 64;
/// Keys of a tile, and vectors of their scores.
const KEYS: usize = VECTORS * LANES;
const VECTORS: usize = 4;

/// One query head of some rows of a sequence.
struct Item {
    rows: Range<usize>,
    /// Rows of the sequence that any of them sees.
    seen: Range<usize>,
    head: usize,
}

/// A step and what it reads.
struct Attention<'a> {
    step: AttendRows,
    qk: &'a [f32],
    qk_columns: usize,
    v: &'a [f32],
    v_columns: usize,
    slopes: Option<&'a [f32]>,
    storage: Storage,
    level: Level,
}

/// Runs the step.
pub(super) fn run(
    step: &AttendRows,
    loaded: &mut Loaded,
    team: &mut Team,
    arena: &Bump,
    inputs: &BatchInputs,
) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let attention = Attention {
            step: *step,
            qk: loaded.rows(step.qk, inputs),
            qk_columns: loaded.columns(step.qk),
            v: loaded.rows(step.v, inputs),
            v_columns: loaded.columns(step.v),
            slopes: step.alibi.map(|id| loaded.vector(id)),
            storage,
            level: loaded.level,
        };
        let items = attention.items(inputs, arena);
        let out = SharedSlice::new(out);
        team.run(items.len(), 1, |parts, scratch| {
            for item in parts.flat_map(|part| &items[part]) {
                scratch.arena.reset();
                attention.attend(item, &scratch.arena, &out);
            }
        });
    });
}

impl Attention<'_> {
    /// Distance up to which a row sees others.
    fn radius(&self) -> usize {
        self.step
            .radius
            .map_or(usize::MAX >> 1, |radius| radius as usize)
    }

    fn items<'a>(&self, inputs: &BatchInputs, arena: &'a Bump) -> &'a [Item] {
        let mut items = ArenaVec::new_in(arena);
        for sequence in &inputs.sequences {
            let start = sequence.row_start as usize;
            let end = start + sequence.row_count as usize;
            for first in (start..end).step_by(ROWS) {
                let rows = first..(first + ROWS).min(end);
                let seen = start.max(first.saturating_sub(self.radius()))
                    ..end.min(rows.end + self.radius());
                items.extend((0..self.step.query_heads as usize).map(|head| Item {
                    rows: rows.clone(),
                    seen: seen.clone(),
                    head,
                }));
            }
        }
        items.into_bump_slice()
    }

    fn attend(&self, item: &Item, arena: &Bump, out: &SharedSlice<'_, f32>) {
        let (dim, heads) = (self.step.head_dim as usize, self.step.query_heads as usize);
        let kv_heads = self.step.kv_heads as usize;
        let key_head = heads + item.head / (heads / kv_heads);
        // Pairs of vectors, so that two sums grow at once.
        let vectors = dim.div_ceil(2 * LANES) * 2;
        let zeros = |count| arena.alloc_slice_fill_copy(count, [0.0; LANES]);
        let mut tile = Tile {
            attention: self,
            item,
            keys: zeros(dim * VECTORS),
            values: zeros(KEYS * vectors),
            sums: zeros(item.rows.len() * vectors),
            largest: arena.alloc_slice_fill_copy(item.rows.len(), HIDDEN),
            totals: arena.alloc_slice_fill_copy(item.rows.len(), 0.0),
            first: 0,
            count: 0,
            vectors,
        };
        for first in item.seen.clone().step_by(KEYS) {
            (tile.first, tile.count) = (first, KEYS.min(item.seen.end - first));
            tile.load(key_head, key_head + kv_heads);
            with_simd!(self.level, s => s.vectorize(&mut tile));
        }
        for (index, row) in item.rows.clone().enumerate() {
            let from = (row * heads + item.head) * dim;
            #[allow(unsafe_code, reason = "rows and heads of items are disjoint")]
            // SAFETY: one item has this row and head, and one thread has the item.
            let out = unsafe { out.part(from..from + dim) };
            let sums = tile.sums[index * vectors..][..vectors].as_flattened();
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = self.storage.round(sum / tile.totals[index]);
            }
        }
    }
}

/// Keys and values of an item, and what its rows have of those so far.
struct Tile<'a> {
    attention: &'a Attention<'a>,
    item: &'a Item,
    /// `[element][vector]` of keys.
    keys: &'a mut [Lanes],
    /// `[key][vector]` of elements.
    values: &'a mut [Lanes],
    /// `[row][vector]` of elements: sums of values, by the weights of their keys.
    sums: &'a mut [Lanes],
    /// Largest score of each row.
    largest: &'a mut [f32],
    /// Sum of each row's weights.
    totals: &'a mut [f32],
    /// The first key, and how many there are.
    first: usize,
    count: usize,
    /// Vectors of a value.
    vectors: usize,
}

impl Tile<'_> {
    /// Reads keys and values of these heads. Those beyond the last keep what they had: no row sees them.
    fn load(&mut self, key_head: usize, value_head: usize) {
        let Attention {
            step,
            qk,
            qk_columns,
            v,
            v_columns,
            ..
        } = *self.attention;
        let dim = step.head_dim as usize;
        let keys = self.keys.as_flattened_mut();
        for index in 0..self.count {
            let row = self.first + index;
            let key = &qk[row * qk_columns + key_head * dim..][..dim];
            for (element, value) in key.iter().enumerate() {
                keys[element * KEYS + index] = *value;
            }
            let value = &v[row * v_columns + value_head * dim..][..dim];
            let to = &mut self.values[index * self.vectors..][..self.vectors];
            to.as_flattened_mut()[..dim].copy_from_slice(value);
        }
    }

    /// The scores of a row; [`HIDDEN`] for keys that it does not see.
    #[inline(always)]
    fn scores<S: Simd>(&self, s: S, row: usize) -> [S::F; VECTORS] {
        let attention = self.attention;
        let dim = attention.step.head_dim as usize;
        let query = &attention.qk[row * attention.qk_columns + self.item.head * dim..][..dim];
        let mut scores = [s.splat(0.0); VECTORS];
        for (element, keys) in query.iter().zip(self.keys.as_chunks::<VECTORS>().0) {
            let element = s.splat(element * attention.step.scale);
            for (score, keys) in scores.iter_mut().zip(keys) {
                *score = s.mul_add(element, s.load(keys), *score);
            }
        }
        let slope = attention
            .slopes
            .map_or(0.0, |slopes| slopes[self.item.head]);
        let (hidden, count) = (s.splat(HIDDEN), s.splat(self.count as f32));
        // Half a row more, so that the comparison of whole numbers is certain.
        let radius = s.splat(attention.radius() as f32 + 0.5);
        let own = s.splat(row as f32 - self.first as f32);
        for (index, score) in scores.iter_mut().enumerate() {
            let place = s.add(s.splat((index * LANES) as f32), s.load(&NUMBERS));
            let distance = s.max(s.sub(place, own), s.sub(own, place));
            *score = s.mul_add(s.splat(-slope), distance, *score);
            *score = s.if_less(distance, radius, *score, hidden);
            *score = s.if_less(place, count, *score, hidden);
        }
        scores
    }
}

impl Kernel for &mut Tile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (index, row) in self.item.rows.clone().enumerate() {
            let scores = self.scores(s, row);
            let [a, b, c, d] = scores;
            let old = self.largest[index];
            let largest = old.max(s.largest(s.max(s.max(a, b), s.max(c, d))));
            if largest <= HIDDEN {
                continue;
            }
            let shrink = (old - largest).exp();
            let mut weights = [[0.0; LANES]; VECTORS];
            let mut total = s.splat(0.0);
            for (score, weights) in scores.iter().zip(&mut weights) {
                let weight = s.exp(s.sub(*score, s.splat(largest)));
                total = s.add(total, weight);
                s.store(weight, weights);
            }
            self.largest[index] = largest;
            self.totals[index] = self.totals[index] * shrink + s.sum(total);
            let weights = &weights.as_flattened()[..self.count];
            let sums = &mut self.sums[index * self.vectors..][..self.vectors];
            for (pair, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let mut new = [
                    s.mul(s.load(&sums[0]), s.splat(shrink)),
                    s.mul(s.load(&sums[1]), s.splat(shrink)),
                ];
                for (key, weight) in weights.iter().enumerate() {
                    let values = &self.values[key * self.vectors + 2 * pair..][..2];
                    new = [
                        s.mul_add(s.splat(*weight), s.load(&values[0]), new[0]),
                        s.mul_add(s.splat(*weight), s.load(&values[1]), new[1]),
                    ];
                }
                s.store(new[0], &mut sums[0]);
                s.store(new[1], &mut sums[1]);
            }
        }
    }
}

const NUMBERS: Lanes = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];
