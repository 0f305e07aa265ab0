//! What the fake device computes: hashes of what it can see, and the tokens that follow from them.

use super::{HELD_BACK, POOLED_COLUMNS};
use crate::plan::Window;
use crate::plan::inputs::{BiasEntry, HistoryEntry, SampleRow};
use std::collections::BTreeMap;

/// First position visible to a query.
pub(super) fn first_visible(position: u32, window: Option<Window>) -> u32 {
    window.map_or(0, |window| window.first_visible(position))
}

/// What a row contributes to the sums of the rows that see it.
pub(super) fn see(position: u32, state: u64) -> u64 {
    mix(mix(0, position.into()), state)
}

/// The state of a row, which is stored in its slot of every KV group; `sums` has what it sees of earlier rows in each.
pub(super) fn row_state(position: u32, token_id: u32, sums: impl Iterator<Item = u64>) -> u64 {
    sums.fold(mix(u64::from(position) << 32, token_id.into()), mix)
}

/// The hash of what a row sees, itself included; `sums` has one sum per KV group.
pub(super) fn history(sums: impl Iterator<Item = u64>) -> u64 {
    sums.fold(0, mix)
}

/// The token that follows a history, given the row's parameters and its earlier tokens for penalties: `past` has
/// distinct tokens with counts, `pending` is one more generated token, `mask` has a bit for each allowed id. Options
/// that are off have no effect, and neither has the order of `bias`. `None`: no token is allowed.
pub fn next_token(
    history: u64,
    sample: &SampleRow,
    past: &[HistoryEntry],
    pending: Option<u32>,
    bias: &[BiasEntry],
    mask: Option<&[u32]>,
    vocab: u32,
) -> Option<u32> {
    let mut hash = history;
    if sample.draw.temperature > 0.0 {
        let place = u64::from(sample.choice) << 32 | u64::from(sample.position);
        hash = mix(mix(hash, sample.seed), place);
    }
    if sample.draw.has_penalties() {
        hash = with_counts(hash, past, pending);
    }
    let mut biases = BTreeMap::new();
    for entry in bias {
        *biases.entry(entry.token_id).or_insert(0.0) += entry.bias;
    }
    let (held_back, biases): (BTreeMap<_, _>, BTreeMap<_, _>) =
        biases.into_iter().partition(|&(_, bias)| bias < HELD_BACK);
    let hash = biases.iter().fold(hash, |hash, (&id, bias)| {
        mix(hash, u64::from(id) << 32 | u64::from(bias.to_bits()))
    });
    if mask.is_none() && held_back.is_empty() {
        return u32::try_from(hash % u64::from(vocab)).ok();
    }
    let allowed: Vec<u32> = (0..vocab)
        .filter(|&id| mask.is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1))
        .collect();
    let mut ids = allowed.clone();
    ids.retain(|id| !held_back.contains_key(id));
    if ids.is_empty() {
        // A bias makes a token unlikely, not impossible.
        ids = allowed;
    }
    let count = ids.len() as u64;
    (count > 0).then(|| ids[(hash % count) as usize])
}

/// `hash` with the number of times that each token was generated.
fn with_counts(hash: u64, past: &[HistoryEntry], pending: Option<u32>) -> u64 {
    let mut counts: BTreeMap<_, _> = past
        .iter()
        .map(|entry| (entry.token_id, entry.generated))
        .collect();
    if let Some(token_id) = pending {
        *counts.entry(token_id).or_insert(0) += 1;
    }
    counts.into_iter().fold(hash, |hash, (id, count)| {
        mix(hash, u64::from(id) << 32 | u64::from(count))
    })
}

/// The `count` most likely tokens with their logprobs, where `token_id` is the first of them. They depend on history
/// and token, so that tests can detect those of another row.
pub fn likely(history: u64, token_id: u32, count: u32, vocab: u32) -> Vec<(u32, f32)> {
    let rank = scored_rank(history, token_id);
    (0..count.min(vocab))
        .map(|index| ((token_id + index) % vocab, logprob(rank + index)))
        .collect()
}

/// The `count` most likely of the tokens that `mask` allows, with their logprobs.
pub fn continuations(
    history: u64,
    count: u32,
    mask: Option<&[u32]>,
    vocab: u32,
) -> Vec<(u32, f32)> {
    let mut ranked: Vec<_> = (0..vocab)
        .filter(|&id| mask.is_none_or(|mask| mask[id as usize / 32] >> (id % 32) & 1 == 1))
        .map(|id| (mix(!history, u64::from(id)) % 4096, id))
        .collect();
    ranked.sort_unstable();
    ranked.truncate(count as usize);
    #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
    ranked
        .into_iter()
        .map(|(rank, id)| (id, -0.125 - rank as f32 / 512.0))
        .collect()
}

/// How unlikely a token is after a history, on this device.
pub fn scored_rank(history: u64, token_id: u32) -> u32 {
    u32::try_from(mix(history, u64::from(token_id)) % 1000).expect("it is below 1000")
}

/// The fake hidden state of a row with this history.
pub fn hidden(history: u64) -> Vec<f32> {
    (0..POOLED_COLUMNS)
        .map(|column| (mix(history, column as u64) % 512) as f32 - 256.0)
        .collect()
}

/// The sum of the hidden states of rows with these histories; NaN if one is invalid.
pub(super) fn sum_of_states(histories: &[Option<u64>]) -> Vec<f32> {
    let mut sums = vec![0.0; POOLED_COLUMNS];
    for history in histories {
        let state = history.map_or(vec![f32::NAN; POOLED_COLUMNS], hidden);
        sums.iter_mut()
            .zip(state)
            .for_each(|(sum, value)| *sum += value);
    }
    sums
}

#[expect(clippy::cast_precision_loss, reason = "ranks are small")]
pub(super) fn logprob(rank: u32) -> f32 {
    -0.5 - rank as f32
}

/// Mixes two words (the finalizer of SplitMix64).
pub fn mix(hash: u64, value: u64) -> u64 {
    let mixed = (hash ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
