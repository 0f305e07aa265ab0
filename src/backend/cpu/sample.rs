//! Sampling, as `backend/reference/sample.rs` defines it.
//!
//! Only tokens near the largest value can win: the generator's 24 bits bound a Gumbel variate, so a token that is more
//! than [`REACH`] below the largest is never drawn. The row is read in vectors, and what follows treats the few that
//! are left one by one, in f64 as the definition does.

use super::loaded::Loaded;
use super::memory::SharedSlice;
use super::simd::{Kernel, LANES, Level, Simd, with_simd};
use super::team::Team;
use crate::plan::Sample;
use crate::plan::inputs::{BatchInputs, NONE, NUMERICAL_ERROR, Range, SampleRow, Sampled};
use crate::plan::philox::philox4x32_10;
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;

/// Weight of the most likely token in top-p's sums.
const WEIGHT_ONE: f64 = (1u32 << 24) as f64;
/// Denominator of top-p as an integer.
const SHARE_ONE: u64 = 1 << 20;
/// The largest Gumbel variate, −ln(−ln(1 − 2⁻²⁵)) ≈ 17.33, minus the smallest, −ln(−ln 2⁻²⁵) ≈ −2.85, rounded up.
/// Weights of top-p are 0 even before that.
const REACH: f32 = 20.5;
/// Logits whose largest one is remembered.
const SPAN: usize = 512;

/// Runs the step: draws all rows, then fills the feed slots.
pub(super) fn run(
    step: &Sample,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
) -> Vec<Sampled> {
    let (level, vocab) = (loaded.level, loaded.columns(step.logits));
    let values = loaded.rows(step.logits, inputs);
    let mut sampled = vec![Sampled::default(); inputs.samples.len()];
    let sample = |row: &SampleRow, arena: &Bump| {
        let pending = (row.pending_slot != NONE).then(|| loaded.feed[row.pending_slot as usize]);
        sample_row(
            level,
            &values[row.logits_row as usize * vocab..][..vocab],
            row,
            inputs,
            pending,
            arena,
        )
    };
    if let ([row], [out]) = (&inputs.samples[..], &mut sampled[..]) {
        *out = sample(row, &team.own().arena);
    } else {
        let shared = SharedSlice::new(&mut sampled);
        team.run(inputs.samples.len(), 1, |parts, scratch| {
            for index in parts.flatten() {
                #[allow(unsafe_code, reason = "rows of different threads are disjoint")]
                // SAFETY: each row is in one part of one thread.
                let out = unsafe { &mut shared.part(index..index + 1)[0] };
                *out = sample(&inputs.samples[index], &scratch.arena);
                scratch.arena.reset();
            }
        });
    }
    for (row, result) in inputs.samples.iter().zip(&sampled) {
        if row.feed_slot != NONE {
            let id = if result.token_id == NUMERICAL_ERROR {
                0
            } else {
                result.token_id
            };
            loaded.feed[row.feed_slot as usize] = id;
        }
    }
    sampled
}

/// The largest values of a row.
struct Scan<'a> {
    /// Of each span.
    spans: &'a [f32],
    largest: f32,
    /// Whether a value is NaN or +∞, or none is above −∞.
    bad: bool,
}

impl<'a> Scan<'a> {
    fn of(level: Level, values: &[f32], arena: &'a Bump) -> Self {
        let mut finite = true;
        let spans: &[f32] = arena.alloc_slice_fill_iter(values.chunks(SPAN).map(|span| {
            let (largest, is_finite) = with_simd!(level, s => s.vectorize(Largest(span)));
            finite &= is_finite;
            largest
        }));
        let largest = spans.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Self {
            spans,
            largest,
            bad: !finite || largest == f32::NEG_INFINITY,
        }
    }

    /// Calls `visit` with the tokens whose value is at least `least`, in order of id.
    fn each(&self, values: &[f32], least: f32, mut visit: impl FnMut(u32, f32)) {
        for (index, span) in values
            .chunks(SPAN)
            .enumerate()
            .filter(|(index, _)| self.spans[*index] >= least)
        {
            for (id, &value) in (index * SPAN..)
                .zip(span)
                .filter(|(_, value)| **value >= least)
            {
                visit(id as u32, value);
            }
        }
    }
}

/// The largest value, and whether none is NaN or +∞.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, bool) {
        let (vectors, rest) = self.0.as_chunks::<LANES>();
        let (mut largest, mut bad) = (s.splat(f32::NEG_INFINITY), s.splat(0.0));
        for vector in vectors {
            let value = s.load(vector);
            largest = s.max(value, largest);
            bad = s.if_less(value, s.splat(f32::INFINITY), bad, s.splat(1.0));
        }
        let largest = rest.iter().copied().fold(s.largest(largest), f32::max);
        (
            largest,
            s.largest(bad) == 0.0 && rest.iter().all(|value| *value < f32::INFINITY),
        )
    }
}

/// `Σ exp(value − largest)`.
struct Exponentials<'a> {
    values: &'a [f32],
    largest: f32,
}

impl Kernel for Exponentials<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (vectors, rest) = self.values.as_chunks::<LANES>();
        let mut sum = s.splat(0.0);
        for vector in vectors {
            sum = s.add(sum, s.exp(s.sub(s.load(vector), s.splat(self.largest))));
        }
        rest.iter()
            .fold(s.sum(sum), |sum, value| sum + (value - self.largest).exp())
    }
}

/// Draws one token from `logits`; `pending` is the token in the row's pending feed slot.
fn sample_row(
    level: Level,
    logits: &[f32],
    row: &SampleRow,
    inputs: &BatchInputs,
    pending: Option<u32>,
    arena: &Bump,
) -> Sampled {
    let error = || Sampled {
        token_id: NUMERICAL_ERROR,
        ..Sampled::default()
    };
    let raw = Scan::of(level, logits, arena);
    if raw.bad {
        return error();
    }
    let is_adjusted =
        row.bias.len > 0 || row.mask_start != NONE || row.history.len > 0 || pending.is_some();
    let mut allowed = None;
    let winner = if row.scored_token != NONE {
        Some(row.scored_token)
    } else if is_adjusted {
        adjusted(logits, row, inputs, pending, arena).and_then(|values| {
            let scan = Scan::of(level, values, arena);
            let winner = (!scan.bad).then(|| draw(values, &scan, row, arena));
            allowed = row.top_allowed.then_some((values, scan));
            winner
        })
    } else {
        Some(draw(logits, &raw, row, arena))
    };
    let Some(winner) = winner else { return error() };
    let mut sampled = Sampled {
        token_id: winner,
        ..Sampled::default()
    };
    if row.logprob || row.top_logprobs > 0 {
        let log_total = log_total(level, logits, raw.largest);
        let logprob = |id: u32| (f64::from(logits[id as usize]) - log_total) as f32;
        if row.logprob {
            sampled.logprob = logprob(winner);
            sampled.rank = rank(logits, winner);
        }
        let (values, scan) = allowed
            .as_ref()
            .map_or((logits, &raw), |(values, scan)| (*values, scan));
        let top = top_ids(values, scan, row.top_logprobs as usize, arena);
        sampled.top = top.iter().map(|&(_, id)| (id, logprob(id))).collect();
    }
    sampled
}

/// `largest + ln Σ exp(l − largest)`.
fn log_total(level: Level, logits: &[f32], largest: f32) -> f64 {
    let sum = |values| with_simd!(level, s => s.vectorize(Exponentials { values, largest }));
    let total: f64 = logits
        .chunks(SPAN)
        .map(|values| f64::from(sum(values)))
        .sum();
    f64::from(largest) + total.ln()
}

/// One more than the number of larger logits, by [`key`].
fn rank(logits: &[f32], id: u32) -> u32 {
    let own = key(logits[id as usize]);
    let above = logits.iter().filter(|logit| key(**logit) > own);
    1 + above.count() as u32
}

/// The `count` largest logits above −∞, ties by lowest id: [`key`] and id of each.
fn top_ids<'a>(logits: &[f32], scan: &Scan<'_>, count: usize, arena: &'a Bump) -> &'a [(u32, u32)] {
    if count == 0 {
        return &[];
    }
    let spans = arena.alloc_slice_copy(scan.spans);
    // The count-th largest span has a logit that large, and so do those before it.
    let least = if count < spans.len() {
        *spans
            .select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a))
            .1
    } else {
        f32::NEG_INFINITY
    };
    let mut tokens = ArenaVec::new_in(arena);
    // Zeros and subnormals count as the same value.
    let least = if flush(least) == 0.0 {
        -f32::MIN_POSITIVE
    } else {
        least
    };
    scan.each(logits, least, |id, value| {
        if value > f32::NEG_INFINITY {
            tokens.push((key(value), id));
        }
    });
    let order = |token: &(u32, u32)| (!token.0, token.1);
    if tokens.len() > count {
        tokens.select_nth_unstable_by_key(count - 1, order);
        tokens.truncate(count);
    }
    tokens.sort_unstable_by_key(order);
    tokens.into_bump_slice()
}

/// Maps a value to a u32 with the same order.
fn key(value: f32) -> u32 {
    let bits = flush(value).to_bits();
    bits ^ if bits >> 31 == 1 { u32::MAX } else { 1 << 31 }
}

/// Flushes zeros and subnormals to +0.
fn flush(value: f32) -> f32 {
    if value.to_bits() & 0x7f80_0000 == 0 {
        0.0
    } else {
        value
    }
}

/// The entries of a side array.
fn span(range: Range) -> std::ops::Range<usize> {
    range.start as usize..(range.start + range.len) as usize
}

/// The logits with bias and penalties, −∞ where the mask forbids a token. `None` if a value overflows.
fn adjusted<'a>(
    logits: &[f32],
    row: &SampleRow,
    inputs: &BatchInputs,
    pending: Option<u32>,
    arena: &'a Bump,
) -> Option<&'a [f32]> {
    let values = arena.alloc_slice_copy(logits);
    for entry in &inputs.bias[span(row.bias)] {
        values[entry.token_id as usize] += entry.bias;
    }
    let history = &inputs.history[span(row.history)];
    let known = history.iter().map(|entry| {
        (
            entry.token_id,
            entry.generated + (u32::from(pending == Some(entry.token_id))),
        )
    });
    let new = pending
        .filter(|id| history.iter().all(|entry| entry.token_id != *id))
        .map(|id| (id, 1));
    for (token_id, generated) in known.chain(new) {
        let Some(value) = values.get_mut(token_id as usize) else {
            continue;
        };
        *value = if *value > 0.0 {
            *value / row.draw.repetition_penalty
        } else {
            *value * row.draw.repetition_penalty
        };
        if generated > 0 {
            *value -= generated as f32 * row.draw.frequency_penalty;
            *value -= row.draw.presence_penalty;
        }
    }
    if row.mask_start != NONE {
        if !values.iter().all(|value| *value < f32::INFINITY) {
            return None;
        }
        for (values, word) in values
            .chunks_mut(32)
            .zip(&inputs.masks[row.mask_start as usize..])
        {
            for (bit, value) in values.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *value = f32::NEG_INFINITY;
                }
            }
        }
    }
    Some(values)
}

/// A token that may be drawn.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    value: f32,
    /// (value − largest value) / temperature
    distance: f64,
}

/// Draws a token from values of which at least one is above −∞ and none is bad.
fn draw(values: &[f32], scan: &Scan<'_>, row: &SampleRow, arena: &Bump) -> u32 {
    let largest = flush(scan.largest);
    // The least value that is the largest one: all zeros and subnormals are equal.
    let equal = if largest == 0.0 {
        -f32::MIN_POSITIVE
    } else {
        largest
    };
    if row.draw.temperature == 0.0 {
        return first_of(values, scan, largest, equal);
    }
    // One more rounding step down, for the rounding of this bound itself.
    let least = (largest - REACH * row.draw.temperature)
        .next_down()
        .min(equal);
    let mut candidates = candidates(values, scan, row, [largest, least], arena);
    keep_top_k(&mut candidates, row.draw.top_k as usize);
    keep_top_p(&mut candidates, row.draw.top_p);
    candidates.sort_unstable_by_key(|token| token.id);
    winner(&candidates, row).unwrap_or_else(|| first_of(values, scan, largest, equal))
}

/// The first token whose value is the largest one, which is at least `equal`.
fn first_of(values: &[f32], scan: &Scan<'_>, largest: f32, equal: f32) -> u32 {
    let mut first = None;
    scan.each(values, equal, |id, value| {
        if first.is_none() && flush(value) == largest {
            first = Some(id);
        }
    });
    first.unwrap_or(0)
}

/// The tokens that may be drawn: those with at least the value `least`, and the share that min-p asks for.
fn candidates<'a>(
    values: &[f32],
    scan: &Scan<'_>,
    row: &SampleRow,
    [largest, least]: [f32; 2],
    arena: &'a Bump,
) -> ArenaVec<'a, Candidate> {
    let temperature = f64::from(row.draw.temperature);
    let floor = if row.draw.min_p > 0.0 {
        f64::from(row.draw.min_p).ln()
    } else {
        f64::NEG_INFINITY
    };
    let mut candidates = ArenaVec::new_in(arena);
    scan.each(values, least, |id, value| {
        let value = flush(value);
        let candidate = Candidate {
            id,
            value,
            distance: (f64::from(value) - f64::from(largest)) / temperature,
        };
        if candidate.distance >= floor && value > f32::NEG_INFINITY {
            candidates.push(candidate);
        }
    });
    candidates
}

/// The token with the largest sum of its distance and a Gumbel variate (Gumbel-max), which draws each by its share.
fn winner(candidates: &[Candidate], row: &SampleRow) -> Option<u32> {
    let (key, mut group, mut words) = ([row.seed as u32, row.choice], u32::MAX, [0; 4]);
    let (mut winner, mut best) = (None, f64::NEG_INFINITY);
    for token in candidates {
        // Not even the largest variate can help.
        if token.distance + f64::from(REACH) < best {
            continue;
        }
        if token.id / 4 != group {
            group = token.id / 4;
            words = philox4x32_10([row.position, group, (row.seed >> 32) as u32, 0], key);
        }
        let uniform = (f64::from(words[(token.id % 4) as usize] >> 8) + 0.5) / WEIGHT_ONE;
        let score = token.distance - (-uniform.ln()).ln();
        if score > best {
            (winner, best) = (Some(token.id), score);
        }
    }
    winner
}

/// Drops candidates below the `count`-th largest value; 0 keeps all.
fn keep_top_k(candidates: &mut ArenaVec<'_, Candidate>, count: usize) {
    if count == 0 || count >= candidates.len() {
        return;
    }
    let (_, kth, _) = candidates.select_nth_unstable_by_key(count - 1, |token| !key(token.value));
    let kth = kth.value;
    candidates.retain(|token| token.value >= kth);
}

/// Drops candidates outside the smallest set of largest values whose share reaches `top_p`.
fn keep_top_p(candidates: &mut ArenaVec<'_, Candidate>, top_p: f32) {
    let share = (f64::from(top_p) * SHARE_ONE as f64).round() as u64;
    if share >= SHARE_ONE {
        return;
    }
    let weight = |token: &Candidate| (token.distance.exp() * WEIGHT_ONE).round() as u64;
    candidates.retain(|token| weight(token) > 0);
    candidates.sort_unstable_by_key(|token| !key(token.value));
    let total: u64 = candidates.iter().map(weight).sum();
    let (mut sum, mut kept) = (0, 0);
    while kept < candidates.len() {
        let value = candidates[kept].value;
        while kept < candidates.len() && candidates[kept].value == value {
            sum += weight(&candidates[kept]);
            kept += 1;
        }
        if sum * SHARE_ONE >= share * total {
            break;
        }
    }
    candidates.truncate(kept);
}
