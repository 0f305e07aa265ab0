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
//! set, else 0. The top list holds the `top_logprobs` largest raw logits by key (zeros and subnormals as +0), ties by
//! lowest id; tokens with logit −∞ are left out, so the list may be shorter than requested. With `top_allowed`, only
//! the tokens that the mask allows are listed.
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
mod tests {
    use super::*;
    use crate::plan::inputs::{BiasEntry, DrawParams, HistoryEntry};

    fn random(position: u32) -> SampleRow {
        let draw = DrawParams::default();
        SampleRow {
            draw,
            seed: 0x1234_5678_9abc_def0,
            ..SampleRow::greedy(0, position)
        }
    }

    fn random_with(draw: DrawParams) -> SampleRow {
        SampleRow { draw, ..random(0) }
    }

    fn draw_one(logits: &[f32], row: &SampleRow) -> u32 {
        sample_row(logits, row, &BatchInputs::default(), None).token_id
    }

    /// The distinct tokens of 2,000 draws.
    fn support(logits: &[f32], row: &SampleRow) -> Vec<u32> {
        let mut ids: Vec<_> = (0..2000)
            .map(|position| draw_one(logits, &SampleRow { position, ..*row }))
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// 10⁶ draws over 16 tokens: χ² with 15 degrees of freedom stays below its 99.9 % quantile, 37.7.
    #[test]
    fn frequencies_follow_the_distribution() {
        let logits: Vec<f32> = (0..16).map(|id| (id as f32 * 1.7).sin() * 1.5).collect();
        let total: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let draws = 1_000_000u32;
        let mut counts = [0u32; 16];
        for position in 0..draws {
            counts[draw_one(&logits, &random(position)) as usize] += 1;
        }
        let terms = counts.iter().zip(&logits).map(|(count, logit)| {
            let expected = f64::from(*logit).exp() / total * f64::from(draws);
            (f64::from(*count) - expected).powi(2) / expected
        });
        let chi_squared: f64 = terms.sum();
        assert!(chi_squared < 37.7, "χ² = {chi_squared}");
        assert!(
            chi_squared > 2.0,
            "χ² = {chi_squared}: too good to be random"
        );
    }

    #[test]
    fn temperature_sharpens_and_flattens() {
        let logits = [0.0, 1.0];
        let share = |temperature| {
            let draw = DrawParams {
                temperature,
                ..DrawParams::default()
            };
            let row = |position| SampleRow {
                draw,
                ..random(position)
            };
            (0..20_000)
                .filter(|position| draw_one(&logits, &row(*position)) == 1)
                .count() as f64
                / 20_000.0
        };
        for temperature in [0.25f32, 1.0, 4.0] {
            let expected = 1.0 / (1.0 + (-1.0 / f64::from(temperature)).exp());
            assert!(
                (share(temperature) - expected).abs() < 0.015,
                "temperature {temperature}"
            );
        }
    }

    #[test]
    fn each_part_of_the_key_matters_and_nothing_else() {
        let logits = vec![0.0; 64];
        let tokens = |row: &SampleRow| -> Vec<u32> {
            (0..32)
                .map(|position| draw_one(&logits, &SampleRow { position, ..*row }))
                .collect()
        };
        let row = random(0);
        let base = tokens(&row);
        assert_eq!(
            base,
            tokens(&SampleRow {
                feed_slot: 3,
                logprob: true,
                top_logprobs: 4,
                ..row
            })
        );
        assert_ne!(
            base,
            tokens(&SampleRow {
                seed: row.seed ^ 1,
                ..row
            }),
            "low seed word"
        );
        assert_ne!(
            base,
            tokens(&SampleRow {
                seed: row.seed ^ 1 << 40,
                ..row
            }),
            "high seed word"
        );
        assert_ne!(base, tokens(&SampleRow { choice: 1, ..row }), "choice");
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_a_tie() {
        assert_eq!(draw_one(&[1.0, 3.0, 3.0, 2.0], &SampleRow::greedy(0, 0)), 1);
        assert_eq!(
            draw_one(&[-0.0, 0.0, 1e-42], &SampleRow::greedy(0, 0)),
            0,
            "zeros and subnormals are equal"
        );
        assert_eq!(draw_one(&[-5.0, -4.0], &SampleRow::greedy(0, 0)), 1);
    }

    #[test]
    fn bad_rows_are_errors() {
        let infinity = f32::INFINITY;
        for temperature in [0.0, 1.0] {
            let row = random_with(DrawParams {
                temperature,
                ..DrawParams::default()
            });
            let row = SampleRow {
                logprob: true,
                top_logprobs: 2,
                ..row
            };
            for logits in [
                [1.0, f32::NAN],
                [1.0, -f32::NAN],
                [1.0, infinity],
                [-infinity, -infinity],
            ] {
                let sampled = sample_row(&logits, &row, &BatchInputs::default(), None);
                let expected = Sampled {
                    token_id: NUMERICAL_ERROR,
                    ..Sampled::default()
                };
                assert_eq!(sampled, expected, "{logits:?}");
            }
            assert_eq!(draw_one(&[-infinity, 1.0], &row), 1, "one −∞ is no error");
        }
    }

    #[test]
    fn an_empty_mask_is_an_error_and_a_mask_is_obeyed() {
        let inputs = BatchInputs {
            masks: vec![0, 0, 0b1010, 1, 0],
            ..BatchInputs::default()
        };
        let logits: Vec<f32> = (0..33).map(|id| id as f32).collect();
        let drawn = |mask_start, temperature| {
            let draw = DrawParams {
                temperature,
                ..DrawParams::default()
            };
            let row = SampleRow {
                mask_start,
                draw,
                ..random(7)
            };
            sample_row(&logits, &row, &inputs, None).token_id
        };
        assert_eq!(drawn(0, 1.0), NUMERICAL_ERROR);
        assert_eq!(
            drawn(1, 1.0),
            NUMERICAL_ERROR,
            "bits past the vocabulary allow nothing"
        );
        assert_eq!(drawn(2, 0.0), 32, "the second word begins with id 32");
        assert_eq!(drawn(3, 1.0), 0);
    }

    #[test]
    fn top_k_keeps_ties() {
        let logits = [1.0, 2.0, 2.0, 0.5, 2.0];
        let kept = |top_k| {
            support(
                &logits,
                &random_with(DrawParams {
                    top_k,
                    ..DrawParams::default()
                }),
            )
        };
        assert_eq!(kept(1), [1, 2, 4]);
        assert_eq!(kept(3), [1, 2, 4]);
        assert_eq!(kept(4), [0, 1, 2, 4]);
        assert_eq!(kept(0), [0, 1, 2, 3, 4]);
        assert_eq!(kept(50), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn min_p_is_relative_to_the_most_likely() {
        let logits = [0.0, 0.5f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let kept = |min_p| {
            support(
                &logits,
                &random_with(DrawParams {
                    min_p,
                    ..DrawParams::default()
                }),
            )
        };
        assert_eq!(kept(0.51), [0]);
        assert_eq!(kept(0.49), [0, 1]);
        assert_eq!(kept(0.15), [0, 1, 2]);
        assert_eq!(kept(0.0), [0, 1, 2, 3]);
    }

    #[test]
    fn top_p_keeps_the_smallest_set_with_ties() {
        // Shares ½, ⅙, ⅙, ⅙.
        let logits = [0.0, 3.0f32.ln(), 0.0, 0.0];
        let kept = |top_p| {
            support(
                &logits,
                &random_with(DrawParams {
                    top_p,
                    ..DrawParams::default()
                }),
            )
        };
        assert_eq!(kept(0.0), [1], "the largest value always stays");
        assert_eq!(kept(0.49), [1]);
        assert_eq!(kept(0.51), [0, 1, 2, 3]);
        assert_eq!(kept(1.0), [0, 1, 2, 3]);
    }

    #[test]
    fn top_p_counts_what_top_k_left() {
        // Shares 0.4, 0.3, 0.2, 0.1; of the first two, 0.57 and 0.43.
        let logits = [0.4f32.ln(), 0.3f32.ln(), 0.2f32.ln(), 0.1f32.ln()];
        let kept = |top_k, top_p| {
            support(
                &logits,
                &random_with(DrawParams {
                    top_k,
                    top_p,
                    ..DrawParams::default()
                }),
            )
        };
        assert_eq!(kept(2, 0.55), [0]);
        assert_eq!(kept(0, 0.55), [0, 1]);
        assert_eq!(kept(0, 0.75), [0, 1, 2]);
    }

    fn penalised(
        logits: &[f32],
        row: SampleRow,
        history: &[(u32, u32)],
        pending: Option<u32>,
    ) -> Vec<f32> {
        let entry = |&(token_id, generated)| HistoryEntry {
            token_id,
            generated,
        };
        let history: Vec<_> = history.iter().map(entry).collect();
        let row = SampleRow {
            history: Range {
                start: 0,
                len: history.len() as u32,
            },
            ..row
        };
        let inputs = BatchInputs {
            history,
            ..BatchInputs::default()
        };
        let mut values = logits.to_vec();
        adjust(&mut values, &row, &inputs, pending);
        values
    }

    #[test]
    fn repetition_counts_prompt_and_output() {
        let row = random_with(DrawParams {
            repetition_penalty: 2.0,
            ..DrawParams::default()
        });
        let values = penalised(
            &[4.0, -4.0, 4.0, -4.0, 4.0],
            row,
            &[(0, 0), (1, 3), (99, 1)],
            Some(4),
        );
        assert_eq!(values, [2.0, -8.0, 4.0, -4.0, 2.0]);
    }

    #[test]
    fn frequency_and_presence_count_output_alone() {
        let penalties = DrawParams {
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            ..DrawParams::default()
        };
        let row = random_with(penalties);
        let history = [(0, 0), (1, 3)];
        assert_eq!(
            penalised(&[4.0; 4], row, &history, None),
            [4.0, 2.25, 4.0, 4.0]
        );
        assert_eq!(
            penalised(&[4.0; 4], row, &history, Some(1)),
            [4.0, 1.75, 4.0, 4.0],
            "known and pending"
        );
        assert_eq!(
            penalised(&[4.0; 4], row, &history, Some(3)),
            [4.0, 2.25, 4.0, 3.25],
            "pending alone"
        );
        assert_eq!(
            penalised(&[4.0; 4], row, &history, Some(0)),
            [3.25, 2.25, 4.0, 4.0],
            "prompt and pending"
        );
    }

    #[test]
    fn bias_comes_before_penalties() {
        let bias = vec![
            BiasEntry {
                token_id: 1,
                bias: -6.0,
            },
            BiasEntry {
                token_id: 7,
                bias: 1.0,
            },
        ];
        let history = vec![HistoryEntry {
            token_id: 1,
            generated: 1,
        }];
        let range = |len| Range { start: 0, len };
        let row = random_with(DrawParams {
            repetition_penalty: 2.0,
            ..DrawParams::default()
        });
        let row = SampleRow {
            bias: range(2),
            history: range(1),
            ..row
        };
        let mut values = [4.0, 4.0];
        adjust(
            &mut values,
            &row,
            &BatchInputs {
                bias,
                history,
                ..BatchInputs::default()
            },
            None,
        );
        assert_eq!(values, [4.0, -4.0], "(4 − 6) · 2");
    }

    #[test]
    fn a_given_token_is_not_drawn() {
        let logits = [0.5f32.ln(), 0.25f32.ln(), 0.25f32.ln(), f32::NEG_INFINITY];
        let row = SampleRow {
            scored_token: 2,
            logprob: true,
            top_logprobs: 2,
            ..random(0)
        };
        let inputs = BatchInputs::default();
        let sampled = sample_row(&logits, &row, &inputs, None);
        assert_eq!(
            (sampled.token_id, sampled.top[0].0, sampled.top[1].0),
            (2, 0, 1)
        );
        assert!((sampled.logprob - 0.25f32.ln()).abs() < 1e-6);
        let never = sample_row(
            &logits,
            &SampleRow {
                scored_token: 3,
                ..row
            },
            &inputs,
            None,
        );
        assert_eq!((never.token_id, never.logprob), (3, f32::NEG_INFINITY));
        for bad in [[f32::NAN, 0.0, 0.0, 0.0], [f32::NEG_INFINITY; 4]] {
            assert_eq!(
                sample_row(&bad, &row, &inputs, None).token_id,
                NUMERICAL_ERROR
            );
        }
    }

    #[test]
    fn logprobs_are_those_of_the_raw_logits() {
        let logits = [
            0.1f32.ln(),
            0.5f32.ln(),
            0.2f32.ln(),
            f32::NEG_INFINITY,
            0.2f32.ln(),
        ];
        let inputs = BatchInputs {
            bias: vec![BiasEntry {
                token_id: 0,
                bias: 100.0,
            }],
            ..BatchInputs::default()
        };
        let bias = Range { start: 0, len: 1 };
        let row = SampleRow {
            bias,
            logprob: true,
            top_logprobs: 5,
            ..SampleRow::greedy(0, 0)
        };
        let sampled = sample_row(&logits, &row, &inputs, None);
        assert_eq!(sampled.token_id, 0);
        assert!((sampled.logprob - 0.1f32.ln()).abs() < 1e-6);
        let ids: Vec<u32> = sampled.top.iter().map(|(id, _)| *id).collect();
        assert_eq!(
            ids,
            [1, 2, 4, 0],
            "most likely first, ties by lowest id, −∞ left out"
        );
        assert!(
            sampled
                .top
                .iter()
                .all(|(id, logprob)| (logprob - logits[*id as usize]).abs() < 1e-6)
        );
        let row = SampleRow {
            top_logprobs: 2,
            logprob: false,
            ..row
        };
        let sampled = sample_row(&logits, &row, &inputs, None);
        assert_eq!((sampled.logprob, sampled.top.len()), (0.0, 2));
    }

    #[test]
    fn certainty_knows_near_ties_and_near_thresholds() {
        let certain =
            |logits: &[f32], row| is_certain(logits, &row, &BatchInputs::default(), None, 1e-4);
        let greedy = SampleRow::greedy(0, 0);
        assert!(certain(&[1.0, 1.1], greedy));
        assert!(!certain(&[1.0, 1.000_05], greedy));
        let boundary = random_with(DrawParams {
            top_p: 0.5,
            ..DrawParams::default()
        });
        let by_token = |logits: [f32; 2]| {
            (0..200)
                .filter(|position| {
                    !certain(
                        &logits,
                        SampleRow {
                            position: *position,
                            ..boundary
                        },
                    )
                })
                .count()
        };
        assert!(
            by_token([0.000_05, 0.0]) > 50,
            "half of the draws need the token at the boundary"
        );
        assert!(
            by_token([1.0, 0.0]) == 0,
            "far from the boundary one token is left"
        );
        let certain_draws = (0..200)
            .filter(|position| certain(&[1.0, 0.0], random(*position)))
            .count();
        assert!(
            certain_draws >= 198,
            "without thresholds only near-ties are uncertain"
        );
    }

    /// The f32 form that kernels use (see *Accuracy* above) agrees with the definition over the whole range.
    #[test]
    fn the_kernel_form_of_the_gumbel_variate_is_accurate() {
        let kernel = |bits: u32| {
            let k = bits >> 8;
            let exponential = if k < 1 << 23 {
                -((k as f32 + 0.5) / 16_777_216.0).ln()
            } else {
                let v = (((1 << 24) - 1 - k) as f32 + 0.5) / 16_777_216.0;
                let (s, z) = (v / (2.0 - v), (v / (2.0 - v)) * (v / (2.0 - v)));
                let series = [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0]
                    .iter()
                    .fold(0.0, |sum, n| sum * z + 1.0 / n);
                2.0 * s * series
            };
            -exponential.ln()
        };
        let near_ends = (0..4096u32).flat_map(|k| [k << 8, u32::MAX - (k << 8)]);
        for bits in near_ends.chain((0..1 << 16).map(|k| k << 16)) {
            let difference = (f64::from(kernel(bits)) - gumbel(bits)).abs();
            assert!(difference < 5e-6, "bits {bits:#010x}: off by {difference}");
        }
    }
}
