//! Paged attention.
//!
//! The context of a sequence is cut at multiples of 256 positions. Each part gives, per query and head, the largest
//! score m, l = Σ exp(s − m) and o = Σ exp(s − m) · v; the parts are merged in order. Where the cuts are depends on
//! positions alone, so a result depends neither on the batch nor on the number of threads, and the parts of one long
//! context can be computed by different threads.

use super::context::{Ahead, Context, EIGHT};
use super::kv::KvStore;
use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::product::{Rows, prepare, product};
use super::scratch::{HIDDEN, Partial, ThreadScratch};
use super::simd::{Kernel, LANES, Lanes, Level, Simd, with_simd};
use super::team::Team;
use crate::backend::KvHalf;
use crate::plan::inputs::BatchInputs;
use crate::plan::{AttendPaged, Storage, Window};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;
use std::ops::Range;

/// Positions of a part; a block of columns of the product with the values.
const PART: usize = super::product::BLOCK;
/// Query rows, times heads per KV head, that share what is decoded.
const QUERIES: usize = 64;
/// Attention of a few rows of one sequence, for one KV head.
struct Item {
    sequence: usize,
    rows: Range<usize>,
    head: usize,
    parts: Range<usize>,
}

/// One part of an item.
struct ItemPart<'a> {
    item: &'a Item,
    /// Positions of its keys, and their vectors.
    positions: Range<usize>,
    panels: Range<usize>,
    /// End of the positions that any row of the item sees.
    context_end: usize,
    /// Number of queries: rows, times heads per KV head.
    queries: usize,
}

/// A step and what it reads.
struct Attention<'a> {
    step: AttendPaged,
    level: Level,
    keys: &'a KvStore,
    values: &'a KvStore,
    inputs: &'a BatchInputs,
    group: usize,
    heads: usize,
    head_dim: usize,
    window: Option<Window>,
    alibi: Option<&'a [f32]>,
    sinks: Option<&'a [f32]>,
    q: &'a [f32],
    storage: Storage,
}

/// Runs the step.
pub(super) fn run(
    step: &AttendPaged,
    loaded: &mut Loaded,
    team: &mut Team,
    arena: &Bump,
    inputs: &BatchInputs,
) {
    let layer = loaded.plan.kv_layers[step.layer as usize];
    let mut partials = std::mem::take(&mut loaded.partials);
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let [keys, values] = &loaded.pool[step.layer as usize];
        let values = if layer.latent { keys } else { values };
        let attention = Attention {
            step: *step,
            level: loaded.level,
            keys,
            values,
            inputs,
            group: layer.group as usize,
            heads: layer.heads as usize,
            head_dim: layer.head_dim as usize,
            window: loaded.plan.kv_groups[layer.group as usize].window,
            alibi: step.alibi.map(|id| loaded.vector(id)),
            sinks: step.sinks.map(|id| loaded.vector(id)),
            q: loaded.rows(step.q, inputs),
            storage,
        };
        attention.run(&mut partials, team, arena, out);
    });
    loaded.partials = partials;
}

impl Attention<'_> {
    fn run(&self, partials: &mut Vec<Partial>, team: &mut Team, arena: &Bump, out: &mut [f32]) {
        let items = self.items(arena);
        let threads = team.threads();
        let out = SharedSlice::new(out);
        let parts = items.iter().map(|item| item.parts.len()).max().unwrap_or(0);
        if items.len() >= threads || parts <= 1 {
            return team.run(items.len(), 1, |parts, scratch| {
                for item in parts.flat_map(|part| &items[part]) {
                    with_simd!(self.level, s => self.attend(s, item, scratch, &out));
                }
            });
        }
        // Few queries over long contexts: threads share the parts of each.
        let units = items
            .iter()
            .flat_map(|item| item.parts.clone().map(move |part| (item, part)));
        let units = ArenaVec::from_iter_in(units, arena).into_bump_slice();
        partials.resize_with(units.len().max(partials.len()), Partial::default);
        let shared = SharedSlice::new(partials);
        team.run(units.len(), 1, |parts, scratch| {
            for unit in parts.flatten() {
                let (item, part) = units[unit];
                with_simd!(self.level, s => self.attend_part(s, item, part, scratch));
                #[allow(unsafe_code, reason = "each unit is in one part")]
                // SAFETY: each unit is in one part of one thread.
                let partial = unsafe { &mut shared.part(unit..unit + 1)[0] };
                std::mem::swap(partial, &mut scratch.part);
            }
        });
        let (total, mut partials) = (&mut team.own().total, partials.iter());
        for item in items {
            with_simd!(self.level, s => {
                total.clear(item.rows.len() * self.group_size(), self.vectors());
                for part in partials.by_ref().take(item.parts.len()) {
                    s.vectorize(Merge { total, part });
                }
                self.finish(item, total, &out);
            });
        }
    }

    /// Heads of queries per KV head.
    fn group_size(&self) -> usize {
        self.step.query_heads as usize / self.heads
    }

    /// Vectors of a head.
    fn vectors(&self) -> usize {
        self.head_dim.div_ceil(LANES)
    }

    /// What there is to do, longest contexts first.
    fn items<'a>(&self, arena: &'a Bump) -> &'a [Item] {
        let rows_max = (QUERIES / self.group_size()).max(1);
        let mut items = ArenaVec::new_in(arena);
        for (sequence, rows) in self.inputs.sequences.iter().enumerate() {
            let (start, end) = (
                rows.row_start as usize,
                (rows.row_start + rows.row_count) as usize,
            );
            for first in (start..end).step_by(rows_max) {
                let rows = first..(first + rows_max).min(end);
                let positions = &self.inputs.positions[rows.clone()];
                let first = positions
                    .iter()
                    .map(|&position| self.first_visible(position))
                    .min()
                    .unwrap_or(0);
                let last = positions.iter().copied().max().unwrap_or(0) as usize;
                let parts = first / PART..last / PART + 1;
                items.extend((0..self.heads).map(|head| Item {
                    sequence,
                    rows: rows.clone(),
                    head,
                    parts: parts.clone(),
                }));
            }
        }
        items.sort_unstable_by_key(|item: &Item| {
            let work = item.parts.len() * item.rows.len();
            (std::cmp::Reverse(work), item.rows.start, item.head)
        });
        items.into_bump_slice()
    }

    fn first_visible(&self, position: u32) -> usize {
        self.window
            .map_or(0, |window| window.first_visible(position)) as usize
    }

    /// All parts of an item.
    #[inline(always)]
    fn attend<S: Simd>(
        &self,
        s: S,
        item: &Item,
        scratch: &mut ThreadScratch,
        out: &SharedSlice<'_, f32>,
    ) {
        let mut total = std::mem::take(&mut scratch.total);
        total.clear(item.rows.len() * self.group_size(), self.vectors());
        for part in item.parts.clone() {
            self.attend_part(s, item, part, scratch);
            s.vectorize(Merge {
                total: &mut total,
                part: &scratch.part,
            });
        }
        self.finish(item, &total, out);
        scratch.total = total;
    }

    fn context<'a>(&'a self, item: &Item, store: &'a KvStore, half: KvHalf) -> Context<'a> {
        let group = &self.inputs.groups[self.group];
        let table = &group.block_tables[group.table_starts[item.sequence] as usize..];
        Context {
            store,
            half,
            table,
            heads: self.heads,
            head: item.head,
            ahead: None,
        }
    }

    /// Leaves the results of one part in `scratch.part`.
    #[inline(always)]
    fn attend_part<S: Simd>(&self, s: S, item: &Item, part: usize, scratch: &mut ThreadScratch) {
        let part = self.part(item, part);
        self.score(s, &part, scratch);
        self.soften(s, &part, scratch);
        self.weigh(s, &part, scratch);
    }

    #[inline(always)]
    fn part<'a>(&self, item: &'a Item, part: usize) -> ItemPart<'a> {
        let positions = self.inputs.positions[item.rows.clone()].iter().copied();
        let context_end = positions.max().unwrap_or(0) as usize + 1;
        let positions = part * PART..((part + 1) * PART).min(context_end);
        ItemPart {
            item,
            panels: positions.start / LANES..positions.end.div_ceil(LANES),
            positions,
            context_end,
            queries: item.rows.len() * self.group_size(),
        }
    }

    /// Leaves the scores of every query in `scratch.scores`: the product of scaled queries with keys.
    #[inline(always)]
    fn score<S: Simd>(&self, s: S, part: &ItemPart<'_>, scratch: &mut ThreadScratch) {
        let (item, dim, panels) = (part.item, self.head_dim, &part.panels);
        scratch.queries.clear();
        for row in item.rows.clone() {
            let head = row * self.step.query_heads as usize + item.head * self.group_size();
            let queries = &self.q[head * dim..][..self.group_size() * dim];
            let scaled = queries.iter().map(|value| value * self.step.scale);
            scratch.queries.extend(scaled);
        }
        scratch.scores.resize(part.queries * PART, 0.0);
        let queries = Rows {
            values: &scratch.queries,
            stride: dim,
            count: part.queries,
            list: None,
        };
        // The values are fetched meanwhile.
        let ahead = Ahead::new(
            self.context(item, self.values, KvHalf::Value),
            part.positions.clone(),
            panels.len() * dim.div_ceil(EIGHT),
        );
        let keys = Context {
            ahead: Some(&ahead),
            ..self.context(item, self.keys, KvHalf::Key)
        };
        let (scores, scratch) = (&mut scratch.scores, &mut scratch.product);
        prepare(s, queries, &keys, dim, scratch);
        product(
            s,
            queries,
            &keys,
            panels.clone(),
            0..dim,
            scratch,
            |query, panel, lanes| {
                scores[query * PART + (panel - panels.start) * LANES..][..LANES]
                    .copy_from_slice(lanes);
            },
        );
    }

    /// Turns scores into exponentials, and leaves the largest score and the sum of each query in `scratch.part`.
    #[inline(always)]
    fn soften<S: Simd>(&self, s: S, part: &ItemPart<'_>, scratch: &mut ThreadScratch) {
        let (item, size, start) = (part.item, self.group_size(), part.positions.start);
        scratch.part.clear(part.queries, self.vectors());
        let keys = self.context(item, self.keys, KvHalf::Key);
        let mut hidden = [false; PART / LANES];
        for (panel, hidden) in part.panels.clone().zip(&mut hidden) {
            *hidden = !keys.is_visible(panel * LANES);
        }
        let all = scratch.scores.chunks_exact_mut(PART).take(part.queries);
        for (query, scores) in all.enumerate() {
            let position = self.inputs.positions[item.rows.start + query / size];
            let place = |at: usize| at.saturating_sub(start).min(PART);
            let head = item.head * size + query % size;
            let softmax = Softmax {
                scores: &mut scores[..part.panels.len() * LANES],
                seen: place(self.first_visible(position))..place(position as usize + 1),
                hidden,
                softcap: self.step.softcap,
                slope: self.alibi.map(|slopes| slopes[head]),
                first_distance: start as f32 - position as f32,
            };
            (scratch.part.largest[query], scratch.part.sums[query]) = s.vectorize(softmax);
        }
    }

    /// Leaves the sums of values, weighted by the exponentials, in `scratch.part`.
    #[inline(always)]
    fn weigh<S: Simd>(&self, s: S, part: &ItemPart<'_>, scratch: &mut ThreadScratch) {
        let (item, positions, vectors) = (part.item, part.positions.clone(), self.vectors());
        let weights = Rows {
            values: &scratch.scores,
            stride: PART,
            count: part.queries,
            list: None,
        };
        // The next keys are fetched meanwhile.
        let (next_keys, next) = self.next(item, positions.end, part.context_end);
        let ahead = Ahead::new(next_keys, next, vectors * positions.len().div_ceil(EIGHT));
        let values = Context {
            ahead: Some(&ahead),
            ..self.context(item, self.values, KvHalf::Value)
        };
        let (outputs, scratch) = (&mut scratch.part.outputs, &mut scratch.product);
        prepare(s, weights, &values, positions.len(), scratch);
        product(
            s,
            weights,
            &values,
            0..vectors,
            positions,
            scratch,
            |query, panel, lanes| {
                outputs[query * vectors + panel] = *lanes;
            },
        );
    }

    /// The keys that are probably multiplied after those before `end`: of the next part, or of the next head's first.
    fn next<'a>(
        &'a self,
        item: &Item,
        end: usize,
        context_end: usize,
    ) -> (Context<'a>, Range<usize>) {
        let keys = self.context(item, self.keys, KvHalf::Key);
        if end < context_end {
            return (keys, end..(end + PART).min(context_end));
        }
        let first = item.parts.start * PART;
        let is_last = item.head + 1 == self.heads;
        let end = if is_last {
            first
        } else {
            (first + PART).min(context_end)
        };
        (
            Context {
                head: item.head + 1,
                ..keys
            },
            first..end,
        )
    }

    /// Adds the sinks, divides, and writes the rows.
    fn finish(&self, item: &Item, total: &Partial, out: &SharedSlice<'_, f32>) {
        let (size, dim) = (self.group_size(), self.head_dim);
        for (query, outputs) in total.outputs.chunks_exact(self.vectors()).enumerate() {
            let (row, head) = (
                item.rows.start + query / size,
                item.head * size + query % size,
            );
            let from = (row * self.step.query_heads as usize + head) * dim;
            #[allow(unsafe_code, reason = "rows and heads of items are disjoint")]
            // SAFETY: one item has this row and head, and one thread has the item.
            let out = unsafe { out.part(from..from + dim) };
            let (mut largest, mut sum, mut factor) = (total.largest[query], total.sums[query], 1.0);
            if let Some(sinks) = self.sinks {
                let sink = sinks[head];
                factor = (largest - largest.max(sink)).exp();
                largest = largest.max(sink);
                sum = sum * factor + (sink - largest).exp();
            }
            let scale = if sum == 0.0 { 0.0 } else { factor / sum };
            for (out, value) in out.iter_mut().zip(outputs.as_flattened()) {
                *out = self.storage.round(value * scale);
            }
        }
    }
}

/// Turns the scores of a query into exponentials, relative to the largest one; returns that, and their sum.
struct Softmax<'a> {
    scores: &'a mut [f32],
    /// Keys that the query sees, as places in `scores`.
    seen: Range<usize>,
    /// Vectors of scores whose block is not there.
    hidden: [bool; PART / LANES],
    softcap: Option<f32>,
    slope: Option<f32>,
    /// Position of the first key minus that of the query.
    first_distance: f32,
}

impl Kernel for Softmax<'_> {
    type Output = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f32) {
        let vectors = self.scores.as_chunks_mut::<LANES>().0;
        let mut largest = s.splat(HIDDEN);
        let (first, end) = (
            s.splat(self.seen.start as f32),
            s.splat(self.seen.end as f32),
        );
        let mut any = false;
        for (index, scores) in vectors.iter_mut().enumerate() {
            let range = index * LANES..(index + 1) * LANES;
            if self.hidden[index] || range.end <= self.seen.start || range.start >= self.seen.end {
                *scores = [HIDDEN; LANES];
                continue;
            }
            any = true;
            let place = s.add(s.splat(range.start as f32), s.load(&NUMBERS));
            let mut score = s.load(scores);
            if let Some(cap) = self.softcap {
                score = s.mul(s.splat(cap), s.tanh(s.div(score, s.splat(cap))));
            }
            if let Some(slope) = self.slope {
                score = s.mul_add(
                    s.splat(slope),
                    s.add(place, s.splat(self.first_distance)),
                    score,
                );
            }
            if range.start < self.seen.start || range.end > self.seen.end {
                score = s.if_less(place, first, s.splat(HIDDEN), score);
                score = s.if_less(place, end, score, s.splat(HIDDEN));
            }
            largest = s.max(score, largest);
            s.store(score, scores);
        }
        if !any {
            self.scores.fill(0.0);
            return (HIDDEN, 0.0);
        }
        let largest = s.largest(largest);
        let mut sum = s.splat(0.0);
        for scores in vectors {
            let weight = s.exp(s.sub(s.load(scores), s.splat(largest)));
            sum = s.add(sum, weight);
            s.store(weight, scores);
        }
        (largest, s.sum(sum))
    }
}

const NUMBERS: Lanes = [
    0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
];

/// Adds the result of a part to that of the parts before it.
struct Merge<'a> {
    total: &'a mut Partial,
    part: &'a Partial,
}

impl Kernel for Merge<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { total, part } = self;
        let vectors = part.outputs.len() / part.sums.len();
        for query in 0..part.sums.len() {
            let largest = total.largest[query].max(part.largest[query]);
            let (old, new) = (
                (total.largest[query] - largest).exp(),
                (part.largest[query] - largest).exp(),
            );
            total.largest[query] = largest;
            total.sums[query] = total.sums[query] * old + part.sums[query] * new;
            let outputs = query * vectors..(query + 1) * vectors;
            for (total, part) in total.outputs[outputs.clone()]
                .iter_mut()
                .zip(&part.outputs[outputs])
            {
                s.store(
                    s.mul_add(
                        s.load(total),
                        s.splat(old),
                        s.mul(s.load(part), s.splat(new)),
                    ),
                    total,
                );
            }
        }
    }
}
