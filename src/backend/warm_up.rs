//! Typical batches, to compile kernels for and to measure before the first request. They write no keys and no feed
//! slots: all of their slots are [`NONE`]. The states that they leave behind are never read: every sequence starts from
//! zero.

use super::Capacity;
use crate::plan::Plan;
use crate::plan::inputs::{
    BatchInputs, DrawParams, GroupInputs, NONE, PoolRow, SampleRow, SequenceRows, StateRows,
};

/// Rows of the larger batch that is measured at start.
const CALIBRATION_ROWS: u32 = 64;
/// Positions of the long context that a typical batch has: enough for attention to split it on most devices.
const LONG_CONTEXT: u32 = 2048;
/// Up to this many rows or sequences, any number may have kernels of its own; beyond, only powers of two.
const FEW_ROWS: u32 = 16;

/// The batches that are measured before the first request, so that the times of its batches can be predicted: one row,
/// and a chunk.
pub(crate) fn calibration(plan: &Plan, capacity: &Capacity) -> Vec<BatchInputs> {
    if plan.pools_merged_rows() {
        let all = capacity.tokens_max / plan.gathered_run();
        let runs = [1, all].into_iter();
        return runs
            .filter_map(|runs| merging(plan, capacity, runs))
            .collect();
    }
    let chunk = CALIBRATION_ROWS
        .min(capacity.tokens_max)
        .min(plan.positions_max.max(1));
    [1, chunk]
        .into_iter()
        .filter_map(|rows| batch(plan, capacity, 1, rows))
        .collect()
}

/// Greedy decoding of this many sequences with short contexts; `None` if the capacity has no room for it.
pub(crate) fn decoding(plan: &Plan, capacity: &Capacity, sequences: u32) -> Option<BatchInputs> {
    batch(plan, capacity, sequences, 1)
}

/// Batches that together need the kernels of most requests: decoding, prompts, plain sampling, a long context and
/// copied blocks. `blocks` are the pool's, of each KV group.
pub(crate) fn usual_kinds(plan: &Plan, capacity: &Capacity, blocks: &[u32]) -> Vec<BatchInputs> {
    if plan.pools_merged_rows() {
        let runs = counts(capacity.tokens_max / plan.gathered_run());
        return runs
            .filter_map(|runs| merging(plan, capacity, runs))
            .collect();
    }
    let decoding =
        counts(capacity.sequences_max).filter_map(|sequences| decoding(plan, capacity, sequences));
    let prompts = counts(capacity.tokens_max).filter_map(|tokens| {
        let sequences = tokens.div_ceil(plan.positions_max.max(1));
        batch(plan, capacity, sequences, tokens / sequences)
    });
    let special = batch(plan, capacity, 1, 1).map(|plain| {
        let mut long = stretched(plan, capacity, &plain);
        for (group, blocks) in long.groups.iter_mut().zip(blocks) {
            group.copies = if *blocks > 1 && capacity.copies_max > 0 {
                vec![(0, 1)]
            } else {
                Vec::new()
            };
        }
        [drawn(&plain, 0.0, false), long]
    });
    let mut kinds: Vec<BatchInputs> = decoding
        .chain(prompts)
        .chain(special.into_iter().flatten())
        .collect();
    if plan.adapters.is_some() {
        let adapted: Vec<_> = kinds.iter().map(adapted).collect();
        kinds.extend(adapted);
    }
    if plan.predictor.is_some() {
        let following: Vec<_> = kinds.iter().filter_map(following).collect();
        kinds.extend(following);
    }
    kinds
}

/// The batch of the predictor that follows a batch of the model without adapters.
fn following(plain: &BatchInputs) -> Option<BatchInputs> {
    let rows = u32::try_from(plain.token_ids.len()).expect("a batch has few rows");
    plain.adapters.is_empty().then(|| BatchInputs {
        carried: (0..rows).collect(),
        states: Vec::new(),
        ..plain.clone()
    })
}

/// The same batch with an adapter for each sequence.
fn adapted(plain: &BatchInputs) -> BatchInputs {
    BatchInputs {
        adapters: vec![0; plain.sequences.len()],
        ..plain.clone()
    }
}

fn counts(max: u32) -> impl Iterator<Item = u32> {
    let powers = (FEW_ROWS.ilog2() + 1..u32::BITS).map(|power| 1 << power);
    (1..=FEW_ROWS)
        .chain(powers)
        .take_while(move |count| *count < max)
        .chain([max])
}

/// Batches that need all other kernels: penalties, logprobs, pooling.
pub(crate) fn rare_kinds(plan: &Plan, capacity: &Capacity) -> Vec<BatchInputs> {
    if plan.pools_merged_rows() {
        return Vec::new();
    }
    let Some(plain) = batch(plan, capacity, 1, 1) else {
        return Vec::new();
    };
    let pooled = BatchInputs {
        pools: vec![PoolRow {
            row_start: 0,
            row_count: 1,
        }],
        ..plain.clone()
    };
    let drawn = [(0.0, true), (1.0, false), (1.0, true)]
        .map(|(penalty, logprob)| drawn(&plain, penalty, logprob));
    drawn.into_iter().chain([pooled]).collect()
}

/// A batch of a tower: a tile of so many runs of patches, each of which is merged. `None` if the capacity has no room
/// for it.
fn merging(plan: &Plan, capacity: &Capacity, runs: u32) -> Option<BatchInputs> {
    let run = plan.gathered_run();
    let tile = batch(plan, capacity, 1, runs * run)?;
    let pool = |row_start| PoolRow {
        row_start,
        row_count: 1,
    };
    (runs <= capacity.samples_max).then(|| BatchInputs {
        logits_rows: (0..runs).map(|index| index * run).collect(),
        samples: Vec::new(),
        pools: (0..runs).map(pool).collect(),
        ..tile
    })
}

/// A batch of one row, drawn in this way.
fn drawn(plain: &BatchInputs, frequency_penalty: f32, logprob: bool) -> BatchInputs {
    let mut drawn = plain.clone();
    let draw = DrawParams {
        frequency_penalty,
        ..DrawParams::default()
    };
    drawn.samples[0] = SampleRow {
        draw,
        logprob,
        ..drawn.samples[0]
    };
    drawn
}

/// A batch of one row with a long context.
pub(crate) fn stretched(plan: &Plan, capacity: &Capacity, plain: &BatchInputs) -> BatchInputs {
    let mut long = plain.clone();
    let entries = LONG_CONTEXT
        .div_ceil(capacity.block_size)
        .min(capacity.table_entries_max);
    let context_len = (entries * capacity.block_size)
        .min(plan.positions_max)
        .max(1);
    long.positions = vec![context_len - 1];
    long.sequences[0].context_len = context_len;
    long.groups
        .iter_mut()
        .for_each(|group| group.block_tables = vec![NONE; entries as usize]);
    long
}

/// A batch of greedy sequences of `rows` token rows each; `None` if the capacity has no room for it.
pub(crate) fn batch(
    plan: &Plan,
    capacity: &Capacity,
    sequences: u32,
    rows: u32,
) -> Option<BatchInputs> {
    let (tokens, entries) = (sequences * rows, rows.div_ceil(capacity.block_size));
    let has_room = tokens <= capacity.tokens_max
        && sequences <= capacity.sequences_max.min(capacity.samples_max)
        && entries * sequences <= capacity.table_entries_max;
    // A tower samples nothing, and merges whole runs of rows.
    let sampled = if plan.pools_merged_rows() {
        0
    } else {
        sequences
    };
    let states = if plan.state_layers.is_empty() {
        0
    } else {
        sequences
    };
    if !has_room || tokens == 0 || states > capacity.state_slots {
        return None;
    }
    let group = GroupInputs {
        block_tables: vec![NONE; (entries * sequences) as usize],
        table_starts: (0..sequences).map(|sequence| sequence * entries).collect(),
        slot_mapping: vec![NONE; tokens as usize],
        copies: Vec::new(),
    };
    Some(BatchInputs {
        token_ids: vec![0; tokens as usize],
        positions: (0..sequences).flat_map(|_| 0..rows).collect(),
        sequences: (0..sequences)
            .map(|index| SequenceRows {
                row_start: index * rows,
                row_count: rows,
                context_len: rows,
            })
            .collect(),
        states: (0..states)
            .map(|slot| StateRows {
                from: NONE,
                to: slot,
            })
            .collect(),
        groups: vec![group; plan.kv_groups.len()],
        logits_rows: (0..sampled).map(|index| (index + 1) * rows - 1).collect(),
        samples: (0..sampled)
            .map(|index| SampleRow::greedy(index, rows))
            .collect(),
        tails: plan.tails.iter().map(|(tail, _)| *tail).collect(),
        ..BatchInputs::default()
    })
}
