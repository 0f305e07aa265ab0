//! Sampling, reference. Twin of `shaders/sample.wgsl`.
//!
//! One [`SampleRow`] draws one token from `l`, a row of `vocab` f32 logits. This text specifies the details that its
//! doc comment leaves open. A kernel that follows it draws the same token unless the decision is a near-tie. The
//! reference computes in f64 from f32 inputs; a kernel may use f32 (see *Accuracy*).
//!
//! **1. Bad rows.** By bits, as integers: a logit is bad when it is NaN or +∞, that is `(bits & 0x7fff_ffff) >=
//! 0x7f80_0000` and `bits != 0xff80_0000`. One bad logit, or no logit other than −∞, gives
//! `NUMERICAL_ERROR`, logprob 0 and an empty top list. So does a row where bias, penalties and mask leave no value
//! above −∞, or where a value overflows to +∞.
//!
//! **2. Adjusted logits `y`**, f32, one rounding per operation: `y = l`; `y += bias` if the row's bias names the token;
//! if history or the pending token names it: `y = y > 0 ? y / repetition : y · repetition`; with `count` = generated
//! (+ 1 for the pending token) `> 0`: `y -= count · frequency`, then `y -= presence`; mask bit clear: `y = −∞`. A `y`
//! whose exponent field is 0 (zeros of either sign, subnormals) is `+0`. The pending token is `feed[pending_slot]`,
//! read before any row of the batch writes its feed slot. Ids in bias and history are below `vocab`;
//! a batch with other ids is rejected. A pending id outside the vocabulary is ignored.
//! Candidates are the tokens with `y > −∞`; the others are never drawn.
//!
//! **3. Order.** Values compare by key: `key(y) = bits ^ (bits >> 31 ? 0xffff_ffff : 0x8000_0000)`, a u32 that orders
//! as the values do. `y_max` is the largest. Temperature 0: the result is the lowest id with `key = key(y_max)`;
//! min-p, top-k and top-p are ignored. Otherwise, for every candidate, `d = (y − y_max) / temperature` ≤ 0.
//!
//! **4. Kept set**, a threshold on the key, raised by each rule in turn:
//! - min-p (`min_p > 0`): keep `d ≥ ln(min_p)`.
//! - top-k (`0 < top_k`): of the remaining tokens, keep keys not below the `top_k`-th largest, ties counted one by one;
//!   if fewer than `top_k` remain, keep them all.
//! - top-p (`top_p < 1`): of the remaining tokens, weights are integers `w = round(exp(d) · 2²⁴)`, `total = Σ w` (u64),
//!   `P = round(top_p · 2²⁰)` (computed on the host, 0..=2²⁰; `P = 2²⁰` keeps all, as does `top_p ≥ 1`). With
//!   `S(t) = Σ w over keys ≥ t`, keep keys `≥ t*`, the largest key of the row with `S(t*) · 2²⁰ ≥ P · total`, in u64.
//!   The largest value always stays. Vocabularies are below 2¹⁹, so nothing overflows.
//!
//! **5. Draw.** For token `id`: `x` = word `id mod 4` of Philox4x32-10 with key `(seed low word, choice)` and counter
//! `(position, id / 4, seed high word, 0)`; `u = ((x >> 8) + ½) · 2⁻²⁴` (exactly: never 0 or 1);
//! `score = d − ln(−ln u)`. The largest score of the kept set wins, ties to the lowest id.
//!
//! **Scored.** A row with a scored token skips 2 to 5: unless the row is bad, its result is that token.
//!
//! **6. Results.** `feed[feed_slot]` = the token id, or 0 for a `NUMERICAL_ERROR` row, so that a row already in flight
//! reads a valid id. No row of a batch writes a slot that another row of the batch reads or writes.
//! `logprob(id) = l[id] − l_max − ln Σ exp(l − l_max)` over the raw row, reported for the drawn token if `logprob` is
//! set, else 0; with it, its rank, one more than the number of keys above its own. The top list holds the
//! `top_logprobs` largest raw logits by key (zeros and subnormals as +0), ties by lowest id; tokens with logit −∞ are
//! left out, so the list may be shorter than requested. With `top_allowed`, only the tokens that the mask allows are
//! listed.
//!
//! *Accuracy.* In f32, `½ + (x >> 8)` does not fit when `x >= 2³¹`, and WGSL's `log` is only good to 2⁻²¹ absolute near
//! 1, where the winning draws lie. So with `k = x >> 8`: `k < 2²³`: `e = −ln((k + ½) · 2⁻²⁴)`; else
//! `v = (2²⁴ − 1 − k + ½) · 2⁻²⁴` (exact, ≤ ½), `s = v / (2 − v)`, `z = s²`,
//! `e = 2s · (1 + z/3 + z²/5 + z³/7 + z⁴/9 + z⁵/11 + z⁶/13)` (that is `−ln(1 − v)`); `score = d − ln e`, good to 2e-5.
//! Weights: `round()`, not `floor(w + 0.5)`, which fails near 2²⁴.

use super::loaded::LoadedPlan;
use crate::plan::Sample;
use crate::plan::inputs::{BatchInputs, NONE, NUMERICAL_ERROR, Range, SampleRow, Sampled};
use crate::plan::philox::philox4x32_10;
use crate::platform::for_each_chunk;
use std::collections::HashMap;

/// Weight of the most likely token in top-p's sums.
const WEIGHT_ONE: f64 = (1u32 << 24) as f64;
/// Denominator of top-p as an integer.
const SHARE_ONE: u64 = 1 << 20;

/// Runs the step: draws all rows, then fills the feed slots.
pub(super) fn run(step: &Sample, loaded: &mut LoadedPlan, inputs: &BatchInputs) -> Vec<Sampled> {
    let vocab = loaded.columns(step.logits);
    let values = loaded.rows(step.logits, inputs);
    let mut sampled = vec![Sampled::default(); inputs.samples.len()];
    for_each_chunk(&mut sampled, 1, |index, out| {
        let row = &inputs.samples[index];
        let pending = (row.pending_slot != NONE).then(|| loaded.feed[row.pending_slot as usize]);
        out[0] = sample_row(
            &values[row.logits_row as usize * vocab..][..vocab],
            row,
            inputs,
            pending,
        );
    });
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

/// Draws one token from `logits`; `pending` is the token in the row's pending feed slot.
pub fn sample_row(
    logits: &[f32],
    row: &SampleRow,
    inputs: &BatchInputs,
    pending: Option<u32>,
) -> Sampled {
    let allowed = candidates(logits, row, inputs, pending);
    let winner = if row.scored_token == NONE {
        let drawn = allowed.clone().and_then(|allowed| draw(allowed, row, 0.0));
        drawn.map(|draw| draw.winner)
    } else {
        scored(logits, row)
    };
    let Some(winner) = winner else {
        return Sampled {
            token_id: NUMERICAL_ERROR,
            ..Sampled::default()
        };
    };
    let mut sampled = Sampled {
        token_id: winner,
        ..Sampled::default()
    };
    if row.logprob || row.top_logprobs > 0 {
        let log_total = log_total(logits);
        if row.logprob {
            sampled.logprob = (f64::from(logits[winner as usize]) - log_total) as f32;
            sampled.rank = rank(logits, winner);
        }
        let top = if row.top_allowed {
            let mut allowed = allowed.unwrap_or_default();
            allowed.sort_by_key(|token| !key(token.value));
            allowed
                .into_iter()
                .take(row.top_logprobs as usize)
                .map(|token| token.id)
                .collect()
        } else {
            top_ids(logits, row.top_logprobs as usize)
        };
        let top = top.into_iter();
        sampled.top = top
            .map(|id| (id, (f64::from(logits[id as usize]) - log_total) as f32))
            .collect();
    }
    sampled
}

/// One more than the number of larger logits, by key.
fn rank(logits: &[f32], id: u32) -> u32 {
    let own = key(logits[id as usize]);
    1 + logits.iter().filter(|logit| key(**logit) > own).count() as u32
}

/// The result of a row with a scored token: that token, unless the row is bad.
fn scored(logits: &[f32], row: &SampleRow) -> Option<u32> {
    let sound = !logits.iter().any(|logit| is_bad(*logit))
        && logits.iter().any(|logit| *logit > f32::NEG_INFINITY);
    sound.then_some(row.scored_token)
}

/// Whether the drawn token stays the same when scores move by `tolerance`, min-p's bound by `tolerance`, the k-th
/// value by `tolerance` if penalties were computed, and top-p's share by a factor `1 ± tolerance`. Only then must a
/// device draw the same token as the reference.
pub fn is_certain(
    logits: &[f32],
    row: &SampleRow,
    inputs: &BatchInputs,
    pending: Option<u32>,
    tolerance: f64,
) -> bool {
    if row.scored_token != NONE {
        return true;
    }
    let Some(candidates) = candidates(logits, row, inputs, pending) else {
        return true;
    };
    let exact = draw(candidates.clone(), row, 0.0).map(|draw| draw.winner);
    let tight = draw(candidates.clone(), row, -tolerance).map(|draw| draw.winner);
    let Some(loose) = draw(candidates, row, tolerance) else {
        return true;
    };
    exact == tight && exact == Some(loose.winner) && loose.gap > tolerance
}

/// A candidate token.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    /// Adjusted logit.
    value: f32,
}

/// The winning token and its margin.
struct Draw {
    winner: u32,
    gap: f64,
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

/// Whether a logit is bad: NaN or +∞.
fn is_bad(value: f32) -> bool {
    let bits = value.to_bits();
    bits & 0x7fff_ffff >= 0x7f80_0000 && bits != f32::NEG_INFINITY.to_bits()
}

/// The tokens above −∞ with their adjusted logits, or `None` for a numerical error.
fn candidates(
    logits: &[f32],
    row: &SampleRow,
    inputs: &BatchInputs,
    pending: Option<u32>,
) -> Option<Vec<Candidate>> {
    if logits.iter().any(|logit| is_bad(*logit)) {
        return None;
    }
    let mut values = logits.to_vec();
    adjust(&mut values, row, inputs, pending);
    if values.iter().any(|value| is_bad(*value)) {
        return None;
    }
    let allowed = |id: u32| {
        row.mask_start == NONE
            || inputs.masks[(row.mask_start + id / 32) as usize] >> (id % 32) & 1 == 1
    };
    let tokens = (0..).zip(values).map(|(id, value)| Candidate {
        id,
        value: flush(value),
    });
    let candidates: Vec<_> = tokens
        .filter(|token| token.value > f32::NEG_INFINITY && allowed(token.id))
        .collect();
    (!candidates.is_empty()).then_some(candidates)
}

/// Applies bias, then penalties.
fn adjust(values: &mut [f32], row: &SampleRow, inputs: &BatchInputs, pending: Option<u32>) {
    let vocab = values.len();
    for entry in &inputs.bias[span(row.bias)] {
        if let Some(value) = values.get_mut(entry.token_id as usize) {
            *value += entry.bias;
        }
    }
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for entry in &inputs.history[span(row.history)] {
        seen.insert(entry.token_id, entry.generated);
    }
    if let Some(token_id) = pending {
        *seen.entry(token_id).or_default() += 1;
    }
    for (token_id, generated) in seen {
        if token_id as usize >= vocab {
            continue;
        }
        let value = &mut values[token_id as usize];
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
}

/// The entries of a side array.
fn span(range: Range) -> std::ops::Range<usize> {
    range.start as usize..(range.start + range.len) as usize
}

/// Draws from the candidates, with thresholds moved by `slack` (positive keeps more).
fn draw(mut candidates: Vec<Candidate>, row: &SampleRow, slack: f64) -> Option<Draw> {
    let max = candidates.iter().map(|token| key(token.value)).max()?;
    let top = candidates.iter().find(|token| key(token.value) == max)?;
    let (max_value, max_id) = (f64::from(top.value), top.id);
    if row.draw.temperature == 0.0 {
        let others = candidates.iter().filter(|token| token.id != max_id);
        let second = others
            .map(|token| f64::from(token.value))
            .fold(f64::NEG_INFINITY, f64::max);
        return Some(Draw {
            winner: max_id,
            gap: max_value - second,
        });
    }
    let distance =
        |token: &Candidate| (f64::from(token.value) - max_value) / f64::from(row.draw.temperature);
    if row.draw.min_p > 0.0 {
        let floor = f64::from(row.draw.min_p).ln() - slack;
        candidates.retain(|token| distance(token) >= floor);
    }
    keep_top_k(&mut candidates, row, slack);
    keep_top_p(&mut candidates, row, slack, distance);
    let (mut winner, mut best, mut second) = (max_id, f64::NEG_INFINITY, f64::NEG_INFINITY);
    // Ascending ids, so that the lowest wins a tie.
    candidates.sort_unstable_by_key(|token| token.id);
    for (token, noise) in candidates.iter().zip(gumbel_noise(row, &candidates)) {
        let score = distance(token) + noise;
        if score > best {
            (winner, best, second) = (token.id, score, best);
        } else {
            second = second.max(score);
        }
    }
    Some(Draw {
        winner,
        gap: best - second,
    })
}

/// Drops candidates below the `top_k`-th largest value.
fn keep_top_k(candidates: &mut Vec<Candidate>, row: &SampleRow, slack: f64) {
    let count = row.draw.top_k as usize;
    if count == 0 || count >= candidates.len() {
        return;
    }
    candidates.select_nth_unstable_by_key(count - 1, |token| !key(token.value));
    let kth = candidates[count - 1].value;
    let penalised = row.draw.has_penalties();
    if slack >= 0.0 || !penalised {
        let floor = f64::from(kth) - if penalised { slack } else { 0.0 };
        candidates.retain(|token| f64::from(token.value) >= floor);
    } else {
        let rest = candidates[count..]
            .iter()
            .map(|token| f64::from(token.value))
            .fold(f64::NEG_INFINITY, f64::max);
        let max = candidates.iter().map(|token| key(token.value)).max();
        candidates
            .retain(|token| f64::from(token.value) > rest - slack || Some(key(token.value)) == max);
    }
}

/// Drops candidates outside the smallest set of largest values whose share reaches `top_p`.
fn keep_top_p(
    candidates: &mut Vec<Candidate>,
    row: &SampleRow,
    slack: f64,
    distance: impl Fn(&Candidate) -> f64,
) {
    let share = (f64::from(row.draw.top_p) * SHARE_ONE as f64).round() as u64;
    if share >= SHARE_ONE {
        return;
    }
    let weight = |token: &Candidate| (distance(token).exp() * WEIGHT_ONE).round() as u64;
    // A token of zero weight is never needed: the total is reached before it.
    candidates.retain(|token| weight(token) > 0);
    candidates.sort_unstable_by_key(|token| !key(token.value));
    let total: u64 = candidates.iter().map(weight).sum();
    let reached = |sum: u64| {
        if slack == 0.0 {
            sum * SHARE_ONE >= share * total
        } else {
            sum as f64 * SHARE_ONE as f64
                >= (share as f64 * total as f64 * (1.0 + slack))
                    .min(total as f64 * SHARE_ONE as f64)
        }
    };
    let mut sum = 0;
    let mut kept = 0;
    while kept < candidates.len() {
        let value = key(candidates[kept].value);
        while kept < candidates.len() && key(candidates[kept].value) == value {
            sum += weight(&candidates[kept]);
            kept += 1;
        }
        if reached(sum) {
            break;
        }
    }
    candidates.truncate(kept);
}

/// One Gumbel variate per candidate, ids ascending; four ids share one call of the generator.
fn gumbel_noise(row: &SampleRow, candidates: &[Candidate]) -> impl Iterator<Item = f64> {
    let key = [row.seed as u32, row.choice];
    let (position, seed_high) = (row.position, (row.seed >> 32) as u32);
    let mut current = None;
    candidates.iter().map(move |token| {
        let group = token.id / 4;
        let words = match current {
            Some((held, words)) if held == group => words,
            _ => philox4x32_10([position, group, seed_high, 0], key),
        };
        current = Some((group, words));
        gumbel(words[(token.id % 4) as usize])
    })
}

/// A Gumbel variate from 32 random bits, of which it uses 24.
fn gumbel(bits: u32) -> f64 {
    let uniform = (f64::from(bits >> 8) + 0.5) / WEIGHT_ONE;
    -(-uniform.ln()).ln()
}

/// `max + ln Σ exp(l − max)` of the raw row.
fn log_total(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits
        .iter()
        .map(|&logit| (f64::from(logit) - max).exp())
        .sum::<f64>()
        .ln()
}

/// Ids of the `count` largest logits above −∞, ties by lowest id.
fn top_ids(logits: &[f32], count: usize) -> Vec<u32> {
    let mut top: Vec<(u32, u32)> = Vec::with_capacity(count + 1);
    for (id, &logit) in (0..).zip(logits) {
        let key = key(logit);
        let full = top.len() == count;
        if logit == f32::NEG_INFINITY || full && top.last().is_none_or(|(last, _)| key <= *last) {
            continue;
        }
        let at = top.partition_point(|(other, _)| *other >= key);
        top.insert(at, (key, id));
        top.truncate(count);
    }
    top.into_iter().map(|(_, id)| id).collect()
}

#[cfg(test)]
mod tests;
