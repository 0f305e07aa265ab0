//! The recurrence over tokens: the heads of all sequences are divided among the threads.
//!
//! A head takes a block of tokens at a time: their keys and queries first, then for every sixteen columns of the values
//! the tokens one after the other, while those columns of the state stay in the first-level cache. The state is f32
//! between any two tokens, and sums over keys are always taken in the same order, so that neither the blocks nor the
//! chunks of a sequence change a bit.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::rows::squares;
use super::scratch::ScanScratch;
use super::simd::{Kernel, LANES, Lanes, Level, Simd, with_simd};
use super::team::Team;
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{ScanRule, StateScan, Storage};
use std::ops::Range;

/// Tokens of a block: their keys and queries fit the second-level cache.
const BLOCK: usize = 64;
/// Added to the sum of squares of a query and of a key.
const UNIT_EPSILON: f32 = 1e-6;

/// A step and what it reads.
struct Scan<'a> {
    step: &'a StateScan,
    level: Level,
    convolved: &'a [f32],
    mixed: &'a [f32],
    mixed_columns: usize,
    decay: &'a [f32],
    bias: &'a [f32],
    skip: Option<&'a [f32]>,
    storage: Storage,
}

/// Runs the step.
pub(super) fn run(step: &StateScan, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let mut states = std::mem::take(&mut loaded.states[step.layer as usize]);
    let head_elements = (step.key_dim * step.value_dim) as usize;
    let heads = step.heads as usize;
    // The states move to where they belong first. No sequence reads a slot that another one writes.
    for state in &inputs.states {
        let slot = |slot: u32| {
            slot as usize * heads * head_elements..(slot as usize + 1) * heads * head_elements
        };
        match state.from {
            NONE => states[slot(state.to)].fill(0.0),
            from if from != state.to => states.copy_within(slot(from), slot(state.to).start),
            _ => {}
        }
    }
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let scan = Scan {
            step,
            level: loaded.level,
            convolved: loaded.rows(step.convolved, inputs),
            mixed: loaded.rows(step.mixed, inputs),
            mixed_columns: loaded.columns(step.mixed),
            decay: loaded.vector(step.decay),
            bias: loaded.vector(step.dt_bias),
            skip: step.skip.map(|skip| loaded.vector(skip)),
            storage,
        };
        let (states, out) = (SharedSlice::new(&mut states), SharedSlice::new(out));
        team.run(inputs.sequences.len() * heads, 1, |parts, scratch| {
            for (sequence, head) in parts.flatten().map(|item| (item / heads, item % heads)) {
                let rows = inputs.sequences[sequence];
                let first = (inputs.states[sequence].to as usize * heads + head) * head_elements;
                #[allow(unsafe_code, reason = "heads are disjoint")]
                // SAFETY: every item is in one part; slots that are written differ between sequences, and heads of a
                // slot do not overlap.
                let state = unsafe { states.part(first..first + head_elements) };
                let rows = rows.row_start as usize..(rows.row_start + rows.row_count) as usize;
                scan.head(head, rows, state, &mut scratch.block, &out);
            }
        });
    });
    loaded.states[step.layer as usize] = states;
}

impl Scan<'_> {
    /// Folds the rows of a sequence into the state of a head.
    fn head(
        &self,
        head: usize,
        rows: Range<usize>,
        state: &mut [f32],
        block: &mut ScanScratch,
        out: &SharedSlice<'_, f32>,
    ) {
        let (value_dim, heads) = (self.step.value_dim as usize, self.step.heads as usize);
        for start in rows.clone().step_by(BLOCK) {
            let rows = start..rows.end.min(start + BLOCK);
            self.prepare(head, rows.clone(), block);
            for column in (0..value_dim).step_by(LANES) {
                let width = LANES.min(value_dim - column);
                self.tile(head, rows.clone(), column..column + width, state, block);
                for (row, values) in rows.clone().zip(&block.values) {
                    let first = (row * heads + head) * value_dim + column;
                    #[allow(unsafe_code, reason = "heads are disjoint")]
                    // SAFETY: these columns of a row belong to one head, and each head to one thread.
                    let out = unsafe { out.part(first..first + width) };
                    out.iter_mut()
                        .zip(values)
                        .for_each(|(out, value)| *out = self.storage.round(*value));
                }
            }
        }
    }

    /// Runs the tokens of a block through some columns of the state; `block.values` become the outputs.
    fn tile(
        &self,
        head: usize,
        rows: Range<usize>,
        columns: Range<usize>,
        state: &mut [f32],
        block: &mut ScanScratch,
    ) {
        let (value_dim, width) = (self.step.value_dim as usize, columns.len());
        let copy = |from: &[f32]| {
            let mut lanes = [0.0; LANES];
            lanes[..width].copy_from_slice(&from[..width]);
            lanes
        };
        block.tile.clear();
        block.tile.extend(
            state
                .chunks_exact(value_dim)
                .map(|row| copy(&row[columns.clone()])),
        );
        block.values.clear();
        let [_, _, values] = self.step.starts();
        let first = values as usize + head * value_dim + columns.start;
        block.values.extend(
            rows.map(|row| copy(&self.convolved[row * self.channels() + first..][..width])),
        );
        let tokens = Tokens {
            state: &mut block.tile,
            queries: &block.queries,
            keys: &block.keys,
            factors: &block.factors,
            values: &mut block.values,
            corrects: self.step.rule.is_delta(),
            skip: self.skip.map_or(0.0, |skip| skip[head]),
        };
        with_simd!(self.level, s => s.vectorize(tokens));
        for (row, lanes) in state.chunks_exact_mut(value_dim).zip(&block.tile) {
            row[columns.clone()].copy_from_slice(&lanes[..width]);
        }
    }

    fn channels(&self) -> usize {
        self.step.channels() as usize
    }

    /// Queries, keys and factors of a block for a head.
    fn prepare(&self, head: usize, rows: Range<usize>, block: &mut ScanScratch) {
        let StateScan {
            heads,
            key_heads,
            key_dim,
            rule,
            gates,
            ..
        } = *self.step;
        let (heads, dim) = (heads as usize, key_dim as usize);
        let key_head = head / self.step.shared_by() as usize % key_heads as usize * dim;
        let [query_part, key_part, _] = self.step.starts().map(|start| start as usize);
        let (decay, bias) = (f64::from(self.decay[head]), f64::from(self.bias[head]));
        let (queries, keys) = (&mut block.queries, &mut block.keys);
        queries.clear();
        keys.clear();
        block.factors.clear();
        for row in rows {
            let channels = &self.convolved[row * self.channels()..][..self.channels()];
            let (query, key) = (
                &channels[query_part + key_head..][..dim],
                &channels[key_part + key_head..][..dim],
            );
            let gate = |index: usize| {
                f64::from(
                    self.mixed[row * self.mixed_columns + gates as usize + index * heads + head],
                )
            };
            match rule {
                ScanRule::Delta { beta_scale } => {
                    let unit =
                        |values: &[f32]| 1.0 / (squares(self.level, values) + UNIT_EPSILON).sqrt();
                    let (of_query, of_key) = (unit(query) / (dim as f32).sqrt(), unit(key));
                    queries.extend(query.iter().map(|value| value * of_query));
                    keys.extend(key.iter().map(|value| value * of_key));
                    let rate = f64::from(beta_scale) / (1.0 + (-gate(0)).exp());
                    block
                        .factors
                        .push([(decay * softplus(gate(1) + bias)).exp() as f32, rate as f32]);
                }
                ScanRule::Mamba2 => {
                    queries.extend(query);
                    keys.extend(key);
                    let rate = softplus(gate(0) + bias);
                    block
                        .factors
                        .push([(decay * rate).exp() as f32, rate as f32]);
                }
            }
        }
    }
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Tokens that change sixteen columns of a head's state one after the other.
struct Tokens<'a> {
    state: &'a mut [Lanes],
    queries: &'a [f32],
    keys: &'a [f32],
    factors: &'a [[f32; 2]],
    /// Values, which are replaced by the outputs.
    values: &'a mut [Lanes],
    /// Whether what the state knows of a key is subtracted from its value.
    corrects: bool,
    skip: f32,
}

impl Kernel for Tokens<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let dim = self.state.len();
        let tokens = self
            .queries
            .chunks_exact(dim)
            .zip(self.keys.chunks_exact(dim))
            .zip(self.factors);
        let (state, _) = self.state.as_chunks_mut::<4>();
        // Four sums, so that additions do not wait for each other.
        for (((query, key), [keep, rate]), value) in tokens.zip(self.values) {
            let (queries, keys) = (query.as_chunks::<4>().0, key.as_chunks::<4>().0);
            let (keep, v) = (s.splat(*keep), s.load(value));
            let mut change = v;
            if self.corrects {
                let mut known = [s.splat(0.0); 4];
                for (rows, keys) in state.iter().zip(keys) {
                    for i in 0..4 {
                        known[i] = s.mul_add(s.load(&rows[i]), s.splat(keys[i]), known[i]);
                    }
                }
                let known = s.add(s.add(known[0], known[1]), s.add(known[2], known[3]));
                change = s.sub(v, s.mul(keep, known));
            }
            let change = s.mul(s.splat(*rate), change);
            let mut sums = [s.splat(0.0); 4];
            for ((rows, keys), queries) in state.iter_mut().zip(keys).zip(queries) {
                for i in 0..4 {
                    let next = s.mul_add(s.splat(keys[i]), change, s.mul(keep, s.load(&rows[i])));
                    s.store(next, &mut rows[i]);
                    sums[i] = s.mul_add(next, s.splat(queries[i]), sums[i]);
                }
            }
            let sum = s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3]));
            s.store(s.mul_add(s.splat(self.skip), v, sum), value);
        }
    }
}
