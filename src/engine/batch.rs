//! What one step computes, and how it is flattened into arrays.
//!
//! A [`Batch`] names sequences and counts; [`Batch::flatten`] turns it into the arrays that every backend reads. It is
//! called right after scheduling: the arrays do not change afterwards, while the sequences keep changing.

use super::adapters::AdapterLoad;
use super::beams;
use super::images::TileLoad;
use super::memory::{BlockId, BlockPool, Moves};
use super::request::{EOS_TOKEN_IDS_MAX, SamplingParams};
use super::sequence::{Sequence, SequenceId, Sequences, StreamId};
use super::speculation::UNKNOWN;
use crate::plan::Tail;
use crate::plan::inputs::{
    BatchInputs, BiasEntry, FEED, GroupInputs, IMAGE_ROW, NONE, PoolRow, Range, SampleRow,
    SequenceRows, StateRows,
};
use std::collections::BTreeSet;

/// Bias of a forbidden token: below every logit, and still finite when divided by the lowest temperature.
const HELD_BACK: f32 = -1e30;

/// Tokens of one sequence that a step computes, in order.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) sequence: SequenceId,
    /// Position of the first row.
    pub(super) start: u32,
    pub(super) count: u32,
    /// Guesses of the tokens that follow, which the step verifies. Each is computed like the row of another sequence,
    /// so that it has the numerics of a row alone; or after the row's tokens, if the sequence keeps a state.
    pub(super) drafts: Vec<u32>,
    /// The state slots that the row reads and writes, if the model keeps states.
    pub(super) states: Option<StateRows>,
}

/// One token to draw, and one after each draft of the row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw {
    pub(super) sequence: SequenceId,
    /// Index of the row whose last token precedes the drawn one. A fork has no row of its own and uses its parent's.
    pub(super) row: u32,
    /// Whether the token drawn by the previous step has not been read yet. It then has no drafts.
    pub(super) pending: bool,
}

/// Prompt tokens whose logprobs a row reports: those that follow its tokens, starting at position `first`.
#[derive(Clone, Debug)]
pub(super) struct Score {
    pub(super) sequence: SequenceId,
    /// Index of the row.
    pub(super) row: u32,
    /// Position just before the first scored token.
    pub(super) first: u32,
    pub(super) count: u32,
    /// Streams of all choices of the prompt. By the time the row is read, each may be a separate sequence.
    pub(super) streams: Vec<StreamId>,
}

/// The hidden states of tokens of a row, which are summed for an embedding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pool {
    pub(super) sequence: SequenceId,
    /// Index of the row.
    pub(super) row: u32,
    /// The first of them, counted from the row's first token.
    pub(super) first: u32,
    pub(super) count: u32,
    /// Whether this is the prompt's last row.
    pub(super) last: bool,
}

/// The work of one step, in row order.
#[derive(Clone, Debug)]
pub struct Batch {
    /// Number of the step.
    pub(super) step: u64,
    pub(super) rows: Vec<Row>,
    /// Sorted by row.
    pub(super) draws: Vec<Draw>,
    /// Sorted by row, at most one each. A row's scores come before its draws.
    pub(super) scores: Vec<Score>,
    /// Sorted by row.
    pub(super) pools: Vec<Pool>,
    /// Blocks to copy before the rows run.
    pub(super) moves: Moves,
    /// Adapters to write before the rows run.
    pub(super) adapters: Vec<AdapterLoad>,
    /// Parts of images whose rows are to be computed and written before the rows run.
    pub(super) tiles: Vec<TileLoad>,
}

/// Position of a token to draw, the offset of its mask, and the drafts before it.
#[derive(Clone, Copy)]
struct Place<'a> {
    position: u32,
    mask_start: u32,
    accepted: &'a [u32],
}

impl Row {
    /// Number of drafts.
    pub(super) fn drafted(&self) -> u32 {
        index(self.drafts.len())
    }

    /// Whether the row counts only if all its drafts are accepted, because there is no state after some of them.
    pub(super) fn is_tentative(&self) -> bool {
        self.states.is_some() && !self.drafts.is_empty()
    }

    /// The token rows without those of drafts.
    fn without_drafts(&self, row_start: u32) -> SequenceRows {
        SequenceRows {
            row_start,
            row_count: self.count,
            context_len: self.start + self.count,
        }
    }

    /// Number of leading drafts that are known. A draft model guesses the others, one after the other.
    pub(super) fn drafts_known(&self) -> usize {
        self.drafts
            .iter()
            .take_while(|&&draft| draft != UNKNOWN)
            .count()
    }

    /// Whether a draft model has to guess its next draft.
    pub(super) fn awaits_guess(&self) -> bool {
        self.drafts_known() < self.drafts.len()
    }
}

/// Rows of a sequence from which a step counts as a prefill when its time is measured.
const PREFILL_ROWS_MIN: u32 = 16;

impl Batch {
    /// Number of tokens of prompts, if they are most of the step's work; else 0.
    pub(super) fn prefill_tokens(&self) -> u64 {
        let counts = || self.rows.iter().map(|row| row.count);
        let prefill: u32 = counts().filter(|&count| count >= PREFILL_ROWS_MIN).sum();
        if prefill * 2 > counts().sum() {
            prefill.into()
        } else {
            0
        }
    }

    /// Number of token rows, and how many of them are drafts, if every sequence computes only one token and its drafts.
    pub(super) fn single_rows(&self) -> Option<(u32, u32)> {
        let drafts = self.rows.iter().map(Row::drafted).sum();
        self.rows
            .iter()
            .all(|row| row.count == 1)
            .then(|| (index(self.rows.len()) + drafts, drafts))
    }

    /// Number of results that a draw has.
    pub(super) fn results_of(&self, draw: &Draw) -> usize {
        1 + self.rows[draw.row as usize].drafts.len()
    }

    /// The flat arrays of this batch. `sequences` and `pool` must be unchanged since scheduling; `eos` lists the
    /// model's end tokens. A mask has one bit for each of `vocab` ids.
    pub(super) fn flatten(
        &self,
        sequences: &mut Sequences,
        pool: &BlockPool,
        eos: &[u32],
        vocab: u32,
    ) -> BatchInputs {
        let mut inputs = self.no_rows();
        let mut firsts = Vec::with_capacity(self.rows.len());
        for row in &self.rows {
            firsts.push(inputs.sequences.len());
            self.flatten_row(row, &sequences[row.sequence], pool, &mut inputs);
            if row.states.is_none() {
                self.flatten_drafts(row, &sequences[row.sequence], pool, &mut inputs);
            }
        }
        let mut draws = self.draws.iter().peekable();
        let mut scores = self.scores.iter().peekable();
        for (row_index, (row, &first)) in (0..).zip(self.rows.iter().zip(&firsts)) {
            let rows = row.without_drafts(inputs.sequences[first].row_start);
            if let Some(score) = scores.next_if(|score| score.row == row_index) {
                let sequence = &sequences[score.sequence];
                self.flatten_score(score, sequence, rows.row_start, &mut inputs);
            }
            if draws.peek().is_some_and(|draw| draw.row == row_index) {
                inputs.logits_rows.push(rows.row_start + rows.row_count - 1);
            }
            while let Some(draw) = draws.next_if(|draw| draw.row == row_index) {
                let sequence = &mut sequences[draw.sequence];
                self.flatten_draws(draw, sequence, rows, (eos, vocab), &mut inputs);
            }
        }
        assert!(
            draws.next().is_none() && scores.next().is_none(),
            "draws and scores are sorted by row"
        );
        assert_eq!(
            inputs.token_ids.len(),
            inputs.positions.len(),
            "every token row has a position"
        );
        if inputs.adapters.iter().all(|&slot| slot == 0) {
            inputs.adapters.clear();
        }
        self.flatten_pools(&firsts, &mut inputs);
        if !inputs.samples.is_empty() {
            inputs.tails.push(Tail::Sample);
        }
        if !inputs.pools.is_empty() {
            inputs.tails.push(Tail::Pool);
        }
        inputs
    }

    /// Adds the rows to pool. `firsts` has the index of each row's first sequence.
    fn flatten_pools(&self, firsts: &[usize], inputs: &mut BatchInputs) {
        debug_assert!(
            self.pools.is_sorted_by_key(|pool| pool.row),
            "pools are sorted by row"
        );
        for pool in &self.pools {
            let rows = inputs.sequences[firsts[pool.row as usize]];
            debug_assert!(
                pool.count > 0 && pool.first + pool.count <= rows.row_count,
                "only states of the row itself are pooled"
            );
            inputs.pools.push(PoolRow {
                row_start: rows.row_start + pool.first,
                row_count: pool.count,
            });
        }
    }

    /// Adds the draw after a row's tokens, and those after its drafts.
    fn flatten_draws(
        &self,
        draw: &Draw,
        sequence: &mut Sequence,
        rows: SequenceRows,
        (eos, vocab): (&[u32], u32),
        inputs: &mut BatchInputs,
    ) {
        let mut mask_start = sequence.push_mask(&mut inputs.masks, vocab.div_ceil(32) as usize);
        if sequence.beam.is_some() {
            let generated = rows.context_len - sequence.prompt_len();
            let held_back = held_back(sequence.params(), generated, eos);
            if !held_back.is_empty() {
                mask_start = mask_out(&mut inputs.masks, mask_start, &held_back, vocab);
            }
        }
        let place = Place {
            position: rows.context_len,
            mask_start,
            accepted: &[],
        };
        self.flatten_draw(draw, sequence, place, eos, inputs);
        self.flatten_draft_draws(draw, sequence, rows, (eos, vocab), inputs);
    }

    /// The arrays without rows: only the copies of blocks.
    pub(super) fn no_rows(&self) -> BatchInputs {
        let groups = self.moves.copies.iter().map(|copies| GroupInputs {
            copies: copies.clone(),
            ..Default::default()
        });
        BatchInputs {
            groups: groups.collect(),
            ..Default::default()
        }
    }

    /// The arrays with which a draft model guesses the next draft of each row that waits for one: the row itself, then
    /// one draft after the other. A guess is drawn as the model draws at that place, with the same noise, so that it is
    /// more often right; though without a mask.
    pub(super) fn flatten_guesses(
        &self,
        sequences: &Sequences,
        pool: &BlockPool,
        eos: &[u32],
    ) -> BatchInputs {
        let mut inputs = self.no_rows();
        for (row_index, row) in self
            .rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.awaits_guess())
        {
            let (sequence, known) = (&sequences[row.sequence], row.drafts_known());
            let position = row.start + row.count + index(known);
            if known == 0 {
                self.flatten_row(row, sequence, pool, &mut inputs);
            } else {
                // The copies came with the first guess.
                inputs
                    .groups
                    .iter_mut()
                    .for_each(|group| group.copies.clear());
                self.flatten_draft(
                    position - 1,
                    row.drafts[known - 1],
                    sequence,
                    pool,
                    &mut inputs,
                );
            }
            inputs.logits_rows.push(index(inputs.positions.len()) - 1);
            self.flatten_guess(index(row_index), sequence, eos, &mut inputs);
        }
        // A draft model has no adapters: its guesses are those of the base.
        inputs.adapters.clear();
        inputs.tails.push(Tail::Sample);
        inputs
    }

    /// Adds the draw of a row's next draft, from the last logits row.
    pub(super) fn flatten_guess(
        &self,
        row_index: u32,
        sequence: &Sequence,
        eos: &[u32],
        inputs: &mut BatchInputs,
    ) {
        let row = &self.rows[row_index as usize];
        let known = row.drafts_known();
        let draw = Draw {
            sequence: row.sequence,
            row: row_index,
            pending: false,
        };
        let place = Place {
            position: row.start + row.count + index(known),
            mask_start: NONE,
            accepted: &row.drafts[..known],
        };
        self.flatten_draw(&draw, sequence, place, eos, inputs);
        if let Some(sample) = inputs.samples.last_mut() {
            (sample.logprob, sample.top_logprobs) = (false, 0);
        }
    }

    /// Adds one sample row per scored prompt token. The token is known, not drawn.
    fn flatten_score(
        &self,
        score: &Score,
        sequence: &Sequence,
        row_start: u32,
        inputs: &mut BatchInputs,
    ) {
        let row = &self.rows[score.row as usize];
        let scored = score.first..score.first + score.count;
        assert!(
            row.start <= scored.start && scored.end <= row.start + row.count,
            "a score lies within its row"
        );
        assert!(
            (scored.end as usize) < sequence.tokens.len(),
            "a scored token is known"
        );
        let row_start = row_start + score.first - row.start;
        for offset in 0..score.count {
            inputs.logits_rows.push(row_start + offset);
            let position = score.first + offset + 1;
            inputs.samples.push(SampleRow {
                scored_token: sequence.tokens[position as usize],
                logprob: true,
                top_logprobs: sequence.params().prompt_logprobs.unwrap_or(0),
                ..SampleRow::greedy(index(inputs.logits_rows.len() - 1), position)
            });
        }
    }

    fn flatten_row(
        &self,
        row: &Row,
        sequence: &Sequence,
        pool: &BlockPool,
        inputs: &mut BatchInputs,
    ) {
        let end = row.start + row.count;
        assert!(
            row.count > 0 && end <= sequence.holding.computed,
            "a row computes what was scheduled"
        );
        assert!(
            end <= sequence.tokens_known() + 1,
            "a row computes known tokens, or exactly the pending one"
        );
        let row_start = index(inputs.positions.len());
        let drafts = if row.states.is_some() {
            &row.drafts[..]
        } else {
            &[]
        };
        let rows = row.start..end + index(drafts.len());
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count: index(rows.len()),
            context_len: rows.end,
        });
        inputs.states.extend(row.states);
        inputs.adapters.push(sequence.adapter_slot);
        inputs.positions.extend(rows.clone());
        let known = sequence
            .tokens
            .get(row.start as usize..end.min(sequence.tokens_known()) as usize);
        inputs
            .token_ids
            .extend_from_slice(known.unwrap_or_default());
        if end > sequence.tokens_known() {
            assert!(
                sequence.feed_slot & FEED == 0,
                "a pending token is in a feed slot"
            );
            inputs.token_ids.push(FEED | sequence.feed_slot);
        }
        place_images(row, sequence, &mut inputs.token_ids[row_start as usize..]);
        inputs.token_ids.extend_from_slice(drafts);
        for (group, arrays) in inputs.groups.iter_mut().enumerate() {
            self.flatten_table(
                &sequence.holding.tables[group].blocks,
                group,
                rows.clone(),
                pool,
                arrays,
            );
        }
    }

    /// Adds each draft of a row as if it were the only row of another sequence with the same blocks. Keys and values
    /// are written before attention in every layer, so a draft sees those before it.
    fn flatten_drafts(
        &self,
        row: &Row,
        sequence: &Sequence,
        pool: &BlockPool,
        inputs: &mut BatchInputs,
    ) {
        for (position, &draft) in (row.start + row.count..).zip(&row.drafts) {
            self.flatten_draft(position, draft, sequence, pool, inputs);
        }
    }

    pub(super) fn flatten_draft(
        &self,
        position: u32,
        draft: u32,
        sequence: &Sequence,
        pool: &BlockPool,
        inputs: &mut BatchInputs,
    ) {
        assert!(draft != UNKNOWN, "a draft is known when it is computed");
        let row_start = index(inputs.positions.len());
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count: 1,
            context_len: position + 1,
        });
        inputs.adapters.push(sequence.adapter_slot);
        inputs.positions.push(position);
        inputs.token_ids.push(draft);
        for (group, arrays) in inputs.groups.iter_mut().enumerate() {
            let blocks = &sequence.holding.tables[group].blocks;
            self.flatten_table(blocks, group, position..position + 1, pool, arrays);
        }
    }

    /// Blocks that no row attends to are left out, so they can be reused while this step is in flight.
    fn flatten_table(
        &self,
        blocks: &[BlockId],
        group: usize,
        positions: std::ops::Range<u32>,
        pool: &BlockPool,
        arrays: &mut GroupInputs,
    ) {
        let block_size = pool.block_size();
        let length = pool.blocks_for(positions.end) as usize;
        let first = pool
            .first_visible(group, positions.start)
            .min(pool.blocks_for(positions.end) - 1);
        assert!(
            (first as usize) < length && length <= blocks.len(),
            "a block table covers the positions of its row"
        );
        arrays.table_starts.push(index(arrays.block_tables.len()));
        arrays
            .block_tables
            .extend(std::iter::repeat_n(NONE, first as usize));
        arrays
            .block_tables
            .extend_from_slice(&blocks[first as usize..length]);
        arrays.slot_mapping.extend(positions.map(|position| {
            let (block, offset) = (
                blocks[(position / block_size) as usize],
                position % block_size,
            );
            debug_assert!(
                block != NONE,
                "a row writes to blocks that its sequence holds"
            );
            block * block_size + offset
        }));
    }

    /// Adds the draws after the drafts of a row. Each sees the drafts before it as if they were accepted.
    fn flatten_draft_draws(
        &self,
        draw: &Draw,
        sequence: &Sequence,
        rows: SequenceRows,
        (eos, vocab): (&[u32], u32),
        inputs: &mut BatchInputs,
    ) {
        let drafts = &self.rows[draw.row as usize].drafts;
        assert!(
            drafts.is_empty() || !draw.pending,
            "a draft follows known tokens"
        );
        let masks =
            sequence.push_draft_masks(drafts, &mut inputs.masks, vocab.div_ceil(32) as usize);
        for (accepted, mask_start) in (1..=drafts.len()).zip(masks) {
            inputs
                .logits_rows
                .push(rows.row_start + rows.row_count - 1 + index(accepted));
            let (position, accepted) = (rows.context_len + index(accepted), &drafts[..accepted]);
            self.flatten_draw(
                draw,
                sequence,
                Place {
                    position,
                    mask_start,
                    accepted,
                },
                eos,
                inputs,
            );
        }
    }

    fn flatten_draw(
        &self,
        draw: &Draw,
        sequence: &Sequence,
        place: Place<'_>,
        eos: &[u32],
        inputs: &mut BatchInputs,
    ) {
        let params = sequence.params();
        assert!(
            place.position >= sequence.prompt_len(),
            "prompt tokens are never drawn"
        );
        assert!(sequence.feed_slot != NONE, "a drawn token has a feed slot");
        let unread = draw.pending && params.draw.has_penalties();
        let start = inputs.history.len();
        if place.accepted.is_empty() && !(unread && params.penalty_window.is_some()) {
            inputs.history.extend_from_slice(sequence.history());
        } else {
            inputs
                .history
                .extend(sequence.history_with(place.accepted, unread));
        }
        let history = Range {
            start: index(start),
            len: index(inputs.history.len() - start),
        };
        let start = inputs.bias.len();
        if sequence.beam.is_none() {
            push_bias(
                params,
                place.position - sequence.prompt_len(),
                eos,
                &mut inputs.bias,
            );
        }
        let bias = Range {
            start: index(start),
            len: index(inputs.bias.len() - start),
        };
        inputs.samples.push(SampleRow {
            logits_row: index(inputs.logits_rows.len() - 1),
            // What a step that verifies drafts draws is read before it is used.
            feed_slot: if self.rows[draw.row as usize].drafts.is_empty() {
                sequence.feed_slot
            } else {
                NONE
            },
            seed: sequence.seed,
            choice: sequence.choice.index,
            position: place.position,
            draw: params.draw,
            history,
            pending_slot: if unread { sequence.feed_slot } else { NONE },
            bias,
            mask_start: place.mask_start,
            scored_token: NONE,
            logprob: sequence.beam.is_none() && params.logprobs.is_some(),
            top_logprobs: params.beams.map_or(params.logprobs.unwrap_or(0), |beams| {
                beams::candidates(params, beams.width, eos.len())
            }),
            top_allowed: sequence.beam.is_some(),
        });
    }
}

/// Replaces the tokens of a row that stand for images by rows of these.
fn place_images(row: &Row, sequence: &Sequence, token_ids: &mut [u32]) {
    let end = row.start + row.count;
    for (index, tile) in sequence.request.tiles.iter().enumerate() {
        if tile.start >= end || tile.end() <= row.start {
            continue;
        }
        let rows = sequence.image_rows.get(index).and_then(Option::as_ref);
        let rows = rows.expect("the rows of an image live until its tokens are computed");
        for (image_row, of_tile) in rows.iter().zip(0..) {
            let position = tile.position(of_tile);
            if (row.start..end).contains(&position) {
                token_ids[(position - row.start) as usize] = IMAGE_ROW | image_row;
            }
        }
    }
}

/// Adds the request's logit bias. While `generated` is below `min_tokens`, also forbids end and stop tokens.
fn push_bias(params: &SamplingParams, generated: u32, eos: &[u32], entries: &mut Vec<BiasEntry>) {
    let bias = params
        .logit_bias
        .iter()
        .map(|(&token_id, &bias)| BiasEntry { token_id, bias });
    let held_back = held_back(params, generated, eos);
    entries.extend(bias.filter(|entry| !held_back.contains(&entry.token_id)));
    entries.extend(held_back.into_iter().map(|token_id| BiasEntry {
        token_id,
        bias: HELD_BACK,
    }));
}

/// The end and stop tokens that may not be drawn yet, while `generated` is below `min_tokens`.
fn held_back(params: &SamplingParams, generated: u32, eos: &[u32]) -> BTreeSet<u32> {
    if generated >= params.min_tokens {
        return BTreeSet::new();
    }
    let eos = eos.iter().take(if params.ignore_eos {
        0
    } else {
        EOS_TOKEN_IDS_MAX
    });
    params.stop_token_ids.iter().chain(eos).copied().collect()
}

/// Clears the bits of `ids` in the mask at `start`, the last one, unless nothing would be left. [`NONE`]: in a new mask
/// that allows all other tokens. Returns the mask's offset.
fn mask_out(masks: &mut Vec<u32>, start: u32, ids: &BTreeSet<u32>, vocab: u32) -> u32 {
    let start = if start == NONE {
        let start = index(masks.len());
        masks.extend((0..vocab.div_ceil(32)).map(|word| {
            if vocab - 32 * word >= 32 {
                u32::MAX
            } else {
                (1 << (vocab - 32 * word)) - 1
            }
        }));
        start
    } else {
        start
    };
    let mut mask = masks[start as usize..].to_vec();
    ids.iter()
        .for_each(|id| mask[*id as usize / 32] &= !(1 << (id % 32)));
    if mask.iter().any(|&word| word != 0) {
        masks[start as usize..].copy_from_slice(&mask);
    }
    start
}

pub(super) fn index(value: usize) -> u32 {
    u32::try_from(value).expect("a batch's arrays are within their capacity")
}
