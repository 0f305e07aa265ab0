//! Paged attention, reference. Twin of `shaders/attend_paged_*.wgsl`.
//!
//! A query at position p sees the keys at positions j ≤ p (and j > p − window, or those of its own chunk) whose block
//! is in the table; a table entry `NONE` hides its positions. Per head, all in f64:
//!
//! s[j] = q · k[j] · scale;  s[j] ← c · tanh(s[j] / c) with softcap c;  s[j] ← s[j] + slope · (j − p) with ALiBi;
//! m = max(s, sink);  out = Σ_j exp(s[j] − m) · v[j] / (Σ_j exp(s[j] − m) + exp(sink − m))
//!
//! A query without visible keys gives zeros. Keys are visited in order of position, one head group at a time, so a
//! result depends only on its own sequence. The values of a latent are its keys.

use super::dot::{Kernel, PartialSums, dispatch, dot};
use super::loaded::LoadedPlan;
use super::memory::KvStore;
use crate::plan::inputs::{BatchInputs, GroupInputs, NONE};
use crate::plan::{AttendPaged, KvLayer, Storage, Window};
use crate::platform::for_each_chunk;

/// Runs the step.
pub(super) fn run(step: &AttendPaged, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let layer = loaded.plan.kv_layers[step.layer as usize];
        let attention = Attention {
            step: *step,
            layer,
            block_size: loaded.capacity.block_size as usize,
            alibi: loaded.vector(step.alibi),
            sinks: loaded.vector(step.sinks),
            window: loaded.plan.kv_groups[layer.group as usize].window,
        };
        let [keys, values] = &loaded.pool[step.layer as usize];
        let values = if layer.latent { keys } else { values };
        let (q, group) = (
            loaded.rows(step.q, inputs),
            &inputs.groups[layer.group as usize],
        );
        attend_paged(
            &attention,
            q,
            Pool { keys, values },
            inputs,
            group,
            (out, storage),
        );
    });
}

/// A step with its layer's shape and its decoded weights.
pub(super) struct Attention {
    /// Options of the step; its ids are not used.
    pub(super) step: AttendPaged,
    /// Number and size of KV heads.
    pub(super) layer: KvLayer,
    /// Tokens per block.
    pub(super) block_size: usize,
    /// ALiBi slope per query head.
    pub(super) alibi: Option<Vec<f32>>,
    /// Sink per query head: the logit of a key without value.
    pub(super) sinks: Option<Vec<f32>>,
    /// Which keys are visible; `None`: all up to the query's own.
    pub(super) window: Option<Window>,
}

impl Attention {
    fn kv_heads(&self) -> usize {
        self.layer.heads as usize
    }

    /// Number of query heads per KV head.
    fn group_size(&self) -> usize {
        self.step.query_heads as usize / self.kv_heads()
    }

    fn head_dim(&self) -> usize {
        self.layer.head_dim as usize
    }
}

/// Keys and values of the layer in the pool.
#[derive(Clone, Copy)]
pub(super) struct Pool<'a> {
    /// `[block][kv_head][slot][head_dim]`.
    pub(super) keys: &'a KvStore,
    /// Same layout as `keys`.
    pub(super) values: &'a KvStore,
}

/// Fills one row of `out` per row of `q`.
pub(super) fn attend_paged(
    attention: &Attention,
    q: &[f32],
    pool: Pool<'_>,
    inputs: &BatchInputs,
    group: &GroupInputs,
    (out, storage): (&mut [f32], Storage),
) {
    let (kv_heads, chunk) = (
        attention.kv_heads(),
        attention.group_size() * attention.head_dim(),
    );
    assert_eq!(
        attention.step.query_heads % attention.layer.heads,
        0,
        "query heads share key heads evenly"
    );
    assert_eq!(
        q.len(),
        inputs.positions.len() * kv_heads * chunk,
        "one query row per token"
    );
    assert_eq!(q.len(), out.len(), "one output per query element");
    let table_starts = table_starts(inputs, group);
    for_each_chunk(out, chunk, |index, out| {
        let row = index / kv_heads;
        let table = &group.block_tables[table_starts[row]..];
        let kv_head = index % kv_heads;
        let q = &q[index * chunk..][..chunk];
        let spans = visible_spans(attention, table, inputs.positions[row] as usize, kv_head);
        dispatch(HeadGroup {
            attention,
            q,
            pool,
            position: inputs.positions[row],
            kv_head,
            spans: &spans,
            out,
            storage,
        });
    });
}

/// Start of the block table of each row's sequence.
fn table_starts(inputs: &BatchInputs, group: &GroupInputs) -> Vec<usize> {
    let mut starts = vec![0; inputs.positions.len()];
    for (sequence, &start) in inputs.sequences.iter().zip(&group.table_starts) {
        starts[sequence.row_start as usize..][..sequence.row_count as usize].fill(start as usize);
    }
    starts
}

/// Consecutive visible keys that are contiguous in the pool.
struct Span {
    /// Position of the first key.
    position: usize,
    /// Number of keys.
    count: usize,
    /// Row of the first key in the pool.
    start: usize,
}

/// The keys visible to a query at `position`, in order.
fn visible_spans(
    attention: &Attention,
    table: &[u32],
    position: usize,
    kv_head: usize,
) -> Vec<Span> {
    let size = attention.block_size;
    let first = attention
        .window
        .map_or(0, |window| window.first_visible(position as u32)) as usize;
    let spans = (first / size..=position / size).filter_map(|entry| {
        let block = table[entry];
        let from = first.max(entry * size);
        let count = (position + 1).min((entry + 1) * size) - from;
        let row = (block as usize * attention.kv_heads() + kv_head) * size + from % size;
        (block != NONE).then_some(Span {
            position: from,
            count,
            start: row,
        })
    });
    spans.collect()
}

/// Attention of all query heads that share one KV head, for one query row.
struct HeadGroup<'a> {
    attention: &'a Attention,
    q: &'a [f32],
    pool: Pool<'a>,
    position: u32,
    kv_head: usize,
    spans: &'a [Span],
    out: &'a mut [f32],
    storage: Storage,
}

impl Kernel for HeadGroup<'_> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        let dim = self.attention.head_dim();
        let heads = self.q.len() / dim;
        let keys: usize = self.spans.iter().map(|span| span.count).sum();
        let mut tile = vec![0.0f32; self.attention.block_size * dim];
        let mut weights = vec![0.0f64; heads * keys];
        let mut at = 0;
        for span in self.spans {
            let tile = &mut tile[..span.count * dim];
            self.pool.keys.read(span.start, tile);
            for (offset, key) in tile.chunks_exact(dim).enumerate() {
                for (head, q) in self.q.chunks_exact(dim).enumerate() {
                    let product = dot::<S>(q, key);
                    weights[head * keys + at] = self.score(head, product, span.position + offset);
                    at += usize::from(head + 1 == heads);
                }
            }
        }
        for (head, weights) in weights.chunks_exact_mut(keys.max(1)).enumerate() {
            let sinks = self.attention.sinks.as_ref();
            softmax(
                weights,
                sinks.map(|sinks| sinks[self.kv_head * heads + head]),
            );
        }
        let mut sums = vec![0.0f64; heads * dim];
        at = 0;
        for span in self.spans {
            let tile = &mut tile[..span.count * dim];
            self.pool.values.read(span.start, tile);
            for value in tile.chunks_exact(dim) {
                for (head, sums) in sums.chunks_exact_mut(dim).enumerate() {
                    add_scaled(sums, weights[head * keys + at], value);
                }
                at += 1;
            }
        }
        for (out, sum) in self.out.iter_mut().zip(&sums) {
            *out = self.storage.round(*sum as f32);
        }
    }
}

impl HeadGroup<'_> {
    /// The score of one key, where `product` is q · k.
    #[inline(always)]
    fn score(&self, head: usize, product: f64, key_position: usize) -> f64 {
        let mut score = product * f64::from(self.attention.step.scale);
        if let Some(softcap) = self.attention.step.softcap {
            let softcap = f64::from(softcap);
            score = softcap * (score / softcap).tanh();
        }
        if let Some(slopes) = &self.attention.alibi {
            let heads = self.attention.group_size();
            let distance = key_position as f64 - f64::from(self.position);
            score += f64::from(slopes[self.kv_head * heads + head]) * distance;
        }
        score
    }
}

/// Turns scores into probabilities; a sink takes part of the total.
fn softmax(scores: &mut [f64], sink: Option<f32>) {
    let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
    let max = scores.iter().copied().fold(sink, f64::max);
    if max == f64::NEG_INFINITY {
        return;
    }
    let mut total = (sink - max).exp();
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
        total += *score;
    }
    for score in scores {
        *score /= total;
    }
}

/// `sums += weight · value`. Not fused: `weight` has 53 bits, so a fused form would round differently.
#[inline(always)]
fn add_scaled(sums: &mut [f64], weight: f64, value: &[f32]) {
    for (sum, &value) in sums.iter_mut().zip(value) {
        *sum += weight * f64::from(value);
    }
}

#[cfg(test)]
mod tests;
