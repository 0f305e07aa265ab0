//! What one step computes, and its flat form.
//!
//! A [`Batch`] names sequences and counts; [`Batch::flatten`] turns it into the arrays that every backend reads. It is
//! flattened right after it was scheduled: the arrays are immutable from then on, while the sequences go on changing.

use super::block_pool::{BlockId, BlockPool};
use super::faults::{Fault, Faults};
use super::sequence::{Sequence, SequenceId, Sequences};
use crate::plan::Tail;
use crate::plan::inputs::{BatchInputs, BiasEntry, FEED, GroupInputs, NONE, Range, SampleRow, SequenceRows};

/// Token rows of one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) sequence: SequenceId,
    /// Position of the first row.
    pub(super) start: u32,
    pub(super) count: u32,
}

/// One token to draw.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) sequence: SequenceId,
    /// The row whose last token it follows. A fork has none of its own and draws from its parent's.
    pub(super) row: u32,
    /// A token drawn by the step before has not been read yet.
    pub(super) pending: bool,
}

/// One step's work, in the order of its rows.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Number of the step.
    pub(super) step: u64,
    pub(super) rows: Vec<Row>,
    /// Sorted by row.
    pub(super) draws: Vec<Draw>,
    /// Copy-on-write copies (source, target), per KV group.
    pub(super) copies: Vec<Vec<(BlockId, BlockId)>>,
    pub(super) faults: Faults,
}

impl Batch {
    /// The flat arrays of this batch. `sequences` and `pool` are as the scheduler left them.
    /// Masks have a bit for each of `vocab` ids.
    pub(super) fn flatten(&self, sequences: &mut Sequences, pool: &BlockPool, vocab: u32) -> BatchInputs {
        let groups = self.copies.iter().map(|copies| GroupInputs { copies: copies.clone(), ..Default::default() });
        let tails = if self.draws.is_empty() { Vec::new() } else { vec![Tail::Sample] };
        let mut inputs = BatchInputs { groups: groups.collect(), tails, ..Default::default() };
        for row in &self.rows {
            self.flatten_row(row, &sequences[row.sequence], pool, &mut inputs);
        }
        let mut drawn_row = None;
        for draw in &self.draws {
            if drawn_row.replace(draw.row) != Some(draw.row) {
                let rows = inputs.sequences[draw.row as usize];
                inputs.logits_rows.push(rows.row_start + rows.row_count - 1);
            }
            let context_len = inputs.sequences[draw.row as usize].context_len;
            let mask_start = sequences[draw.sequence].push_mask(&mut inputs.masks, vocab.div_ceil(32) as usize);
            self.flatten_draw(draw, &sequences[draw.sequence], context_len, mask_start, &mut inputs);
        }
        inputs
    }

    fn flatten_row(&self, row: &Row, sequence: &Sequence, pool: &BlockPool, inputs: &mut BatchInputs) {
        let end = row.start + row.count;
        assert!(end <= sequence.tokens_known() + 1, "a row computes known tokens, or exactly the pending one");
        let row_start = index(inputs.positions.len());
        inputs.sequences.push(SequenceRows { row_start, row_count: row.count, context_len: end });
        inputs.positions.extend(row.start..end);
        let known = sequence.tokens.get(row.start as usize..end.min(sequence.tokens_known()) as usize);
        inputs.token_ids.extend_from_slice(known.unwrap_or_default());
        if end > sequence.tokens_known() {
            inputs.token_ids.push(FEED | sequence.feed_slot);
        }
        for (group, arrays) in inputs.groups.iter_mut().enumerate() {
            let first = pool.first_visible(group, row.start).min(pool.blocks_for(end) - 1);
            self.flatten_table(&sequence.tables[group].blocks, first, row, pool, arrays);
        }
    }

    /// Blocks that no row sees are not named, so that they are free to be reused while this step is in flight.
    fn flatten_table(&self, blocks: &[BlockId], first: u32, row: &Row, pool: &BlockPool, arrays: &mut GroupInputs) {
        let block_size = pool.block_size();
        let end = row.start + row.count;
        let length = pool.blocks_for(end) as usize;
        assert!(length <= blocks.len(), "a table reaches as far as its rows");
        arrays.table_starts.push(index(arrays.block_tables.len()));
        arrays.block_tables.extend(std::iter::repeat_n(NONE, first as usize));
        arrays.block_tables.extend_from_slice(&blocks[first as usize..length]);
        let off_by_one = self.faults.has(Fault::SlotOffByOne);
        arrays.slot_mapping.extend((row.start..end).map(|position| {
            let (block, offset) = (blocks[(position / block_size) as usize], position % block_size);
            block * block_size + if off_by_one && offset == 0 { 1 } else { offset }
        }));
    }

    fn flatten_draw(&self, draw: &Draw, sequence: &Sequence, position: u32, mask_start: u32, inputs: &mut BatchInputs) {
        let params = sequence.params();
        let start = inputs.history.len();
        inputs.history.extend_from_slice(sequence.history());
        let history = Range { start: index(start), len: index(inputs.history.len() - start) };
        let start = inputs.bias.len();
        let bias = params.logit_bias.iter().map(|(&token_id, &bias)| BiasEntry { token_id, bias });
        inputs.bias.extend(bias);
        let bias = Range { start: index(start), len: index(inputs.bias.len() - start) };
        let unread = draw.pending && params.has_penalties() && !self.faults.has(Fault::PenaltyWithoutPending);
        inputs.samples.push(SampleRow {
            logits_row: index(inputs.logits_rows.len() - 1),
            feed_slot: sequence.feed_slot,
            seed: sequence.seed,
            choice: sequence.choice.index,
            position,
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            repetition_penalty: params.repetition_penalty,
            presence_penalty: params.presence_penalty,
            frequency_penalty: params.frequency_penalty,
            history,
            pending_slot: if unread { sequence.feed_slot } else { NONE },
            bias,
            mask_start,
            logprob: params.logprobs.is_some(),
            top_logprobs: params.logprobs.unwrap_or(0),
        });
    }
}

fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a batch's arrays are within their capacity")
}
