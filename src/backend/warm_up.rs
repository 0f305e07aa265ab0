//! Typical batches, to compile kernels for and to measure before the first request. They write no keys and no feed
//! slots: all of their slots are [`NONE`].

use super::Capacity;
use crate::plan::Plan;
use crate::plan::inputs::{BatchInputs, DrawParams, GroupInputs, NONE, PoolRow, SampleRow, SequenceRows};

/// Rows of the larger batch that is measured at start.
const CALIBRATION_ROWS: u32 = 64;
/// Positions of the long context that a typical batch has: enough for attention to split it on most devices.
const LONG_CONTEXT: u32 = 2048;

/// The batches that are measured before the first request, so that the times of its batches can be predicted: one row,
/// and a chunk.
pub(crate) fn calibration(plan: &Plan, capacity: &Capacity, blocks: &[u32]) -> Vec<BatchInputs> {
    let plain = |tokens| typical(plan, capacity, blocks, tokens).into_iter().next();
    [1, CALIBRATION_ROWS.min(capacity.tokens_max)].into_iter().filter_map(plain).collect()
}

/// Typical batches of `tokens` rows: greedy decoding of up to 16 sequences, or one prompt; for one row also every kind
/// of sampling, pooling, a long context and copied blocks.
pub(crate) fn typical(plan: &Plan, capacity: &Capacity, blocks: &[u32], tokens: u32) -> Vec<BatchInputs> {
    let sequences = if tokens <= 16 { tokens } else { 1 };
    let rows = tokens / sequences;
    let entries = rows.div_ceil(capacity.block_size);
    let room = tokens <= capacity.tokens_max
        && sequences <= capacity.sequences_max.min(capacity.samples_max)
        && entries * sequences <= capacity.table_entries_max;
    if !room {
        return Vec::new();
    }
    let group = GroupInputs {
        block_tables: vec![NONE; (entries * sequences) as usize],
        table_starts: (0..sequences).map(|sequence| sequence * entries).collect(),
        slot_mapping: vec![NONE; tokens as usize],
        copies: Vec::new(),
    };
    let plain = BatchInputs {
        token_ids: vec![0; tokens as usize],
        positions: (0..sequences).flat_map(|_| 0..rows).collect(),
        sequences: (0..sequences)
            .map(|index| SequenceRows { row_start: index * rows, row_count: rows, context_len: rows })
            .collect(),
        groups: vec![group; plan.kv_groups.len()],
        logits_rows: (0..sequences).map(|index| (index + 1) * rows - 1).collect(),
        samples: (0..sequences).map(|index| SampleRow::greedy(index, rows)).collect(),
        tails: plan.tails.iter().map(|(tail, _)| *tail).collect(),
        ..BatchInputs::default()
    };
    let mut batches = vec![plain.clone()];
    if tokens == 1 {
        for (frequency_penalty, logprob) in [(0.0, false), (0.0, true), (1.0, false), (1.0, true)] {
            let mut drawn = plain.clone();
            let draw = DrawParams { frequency_penalty, ..DrawParams::default() };
            drawn.samples[0] = SampleRow { draw, logprob, ..drawn.samples[0] };
            batches.push(drawn);
        }
        batches.push(BatchInputs { pools: vec![PoolRow { row_start: 0, row_count: 1 }], ..plain.clone() });
        let mut long = plain;
        let entries = LONG_CONTEXT.div_ceil(capacity.block_size).min(capacity.table_entries_max);
        let context_len = (entries * capacity.block_size).min(plan.positions_max).max(1);
        long.positions = vec![context_len - 1];
        long.sequences[0].context_len = context_len;
        for (group, blocks) in long.groups.iter_mut().zip(blocks) {
            group.block_tables = vec![NONE; entries as usize];
            group.copies = if *blocks > 1 && capacity.copies_max > 0 { vec![(0, 1)] } else { Vec::new() };
        }
        batches.push(long);
    }
    batches
}
