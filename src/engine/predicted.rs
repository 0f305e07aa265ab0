//! The batches of a predictor: the rows of a step with the tokens after them, and drafts one after the other.
//!
//! Row i of a predictor needs the model's row i and token i + 1. Of a step's last row that token is the one it draws,
//! which is in a feed slot, or read back where the step verifies drafts. So a step's rows can follow it at once, and
//! the keys and values of a block are those of its own tokens but for the last: a block that another sequence shares
//! has there what followed in the sequence that filled it. That costs a draft at most, never an answer.
//!
//! The first draft is drawn after the row of the last token but one. Where drafts were refused, the tokens after their
//! rows are wrong too; such rows are computed again before a row sees them.

use super::batch::{Batch, index};
use super::memory::BlockPool;
use super::sequence::{SequenceId, Sequences};
use crate::plan::Tail;
use crate::plan::inputs::{BatchInputs, FEED, GroupInputs, NONE, Sampled};

/// The rows of a step that the predictor has not computed yet, each with the token after it.
#[derive(Clone, Debug)]
pub(super) struct Followers {
    inputs: BatchInputs,
    rows: Vec<FollowedRow>,
}

/// The rows of one sequence.
#[derive(Clone, Copy, Debug)]
struct FollowedRow {
    sequence: SequenceId,
    /// Position of the first of them.
    start: u32,
    /// Index of the first of them.
    first: u32,
    /// With those of drafts.
    count: u32,
    /// The first of the step's results that are the tokens after the last rows, and their number, if they are read
    /// back.
    results: Option<(usize, u32)>,
}

/// A row of a batch that waits for a draft, and the row of the predictor's batch before that it continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Continued {
    /// Index of the row.
    row: usize,
    carried: u32,
}

impl Followers {
    /// Takes the tokens that a step drew after drafts. A token that is none stands for a row that failed.
    pub(super) fn take_results(&mut self, sampled: &[Sampled], vocab: u32) {
        for row in &self.rows {
            let Some((first, count)) = row.results else {
                continue;
            };
            let last = (row.first + row.count) as usize;
            let ids = &mut self.inputs.token_ids[last - count as usize..last];
            for (id, sampled) in ids.iter_mut().zip(&sampled[first..]) {
                *id = sampled.token_id;
                if *id >= vocab {
                    *id = 0;
                }
            }
        }
    }

    /// The rows alone: nothing is drawn.
    pub(super) fn into_inputs(self) -> BatchInputs {
        self.inputs
    }

    /// The row of a sequence at a position.
    fn row_at(&self, sequence: SequenceId, position: u32) -> Option<u32> {
        let row = self.rows.iter().find(|row| row.sequence == sequence)?;
        let offset = position.checked_sub(row.start)?;
        (offset < row.count).then_some(row.first + offset)
    }
}

impl Batch {
    /// The rows of this batch, of which `inputs` are the arrays, for the predictor.
    pub(super) fn followers(&self, inputs: &BatchInputs, sequences: &Sequences) -> Followers {
        let mut token_ids = Vec::with_capacity(inputs.token_ids.len());
        let mut rows = Vec::with_capacity(self.rows.len());
        for (row, result) in self.rows.iter().zip(self.first_results()) {
            let (first, count) = (index(token_ids.len()), row.count + row.drafted());
            let later = first as usize + 1..(first + count) as usize;
            token_ids.extend_from_slice(&inputs.token_ids[later]);
            let known = sequences[row.sequence]
                .tokens
                .get((row.start + row.count) as usize);
            token_ids.push(
                match result.map(|result| inputs.samples[result].feed_slot) {
                    None => known.copied().unwrap_or(0),
                    // It is read back.
                    Some(NONE) => 0,
                    Some(slot) => FEED | slot,
                },
            );
            rows.push(FollowedRow {
                sequence: row.sequence,
                start: row.start,
                first,
                count,
                results: match result {
                    Some(result) if row.drafted() > 0 => Some((result, 1 + row.drafted())),
                    _ => None,
                },
            });
        }
        let groups = inputs.groups.iter().map(|group| GroupInputs {
            copies: Vec::new(),
            ..group.clone()
        });
        let inputs = BatchInputs {
            carried: (0..index(token_ids.len())).collect(),
            token_ids,
            positions: inputs.positions.clone(),
            sequences: inputs.sequences.clone(),
            groups: groups.collect(),
            ..BatchInputs::default()
        };
        Followers { inputs, rows }
    }

    /// For each row, the index of the result of its own sequence's first draw, if it has one.
    fn first_results(&self) -> Vec<Option<usize>> {
        let mut firsts = vec![None; self.rows.len()];
        let mut scores = self.scores.iter().peekable();
        let mut next = 0;
        for draw in &self.draws {
            while let Some(score) = scores.next_if(|score| score.row <= draw.row) {
                next += score.count as usize;
            }
            let row = draw.row as usize;
            if draw.sequence == self.rows[row].sequence {
                firsts[row].get_or_insert(next);
            }
            next += self.results_of(draw);
        }
        firsts
    }

    /// The rows of the step before, with which the predictor guesses the first draft of each row that waits for one. A
    /// row of a sequence that was not in that step gets none.
    pub(super) fn flatten_first_guesses(
        &mut self,
        followers: Followers,
        sequences: &Sequences,
        eos: &[u32],
    ) -> (BatchInputs, Vec<Continued>) {
        let mut continued = Vec::new();
        for (index, row) in self.rows.iter_mut().enumerate() {
            if !row.awaits_guess() {
                continue;
            }
            // The last token but one; the row computes known tokens.
            let position = (row.start + row.count).checked_sub(2);
            match position.and_then(|position| followers.row_at(row.sequence, position)) {
                Some(carried) => continued.push(Continued {
                    row: index,
                    carried,
                }),
                None => row.drafts.truncate(row.drafts_known()),
            }
        }
        let mut inputs = followers.into_inputs();
        for one in &continued {
            inputs.logits_rows.push(one.carried);
            self.flatten_predicted(one.row, sequences, eos, &mut inputs);
        }
        (inputs, continued)
    }

    /// The rows with which the predictor guesses further drafts, each after the one before: `continued` are those that
    /// got a guess last. `copies`: blocks are copied first, as before the step itself.
    pub(super) fn flatten_further_guesses(
        &self,
        continued: &[Continued],
        copies: bool,
        sequences: &Sequences,
        pool: &BlockPool,
        eos: &[u32],
    ) -> (BatchInputs, Vec<Continued>) {
        let mut inputs = self.no_rows();
        if !copies {
            inputs
                .groups
                .iter_mut()
                .for_each(|group| group.copies.clear());
        }
        let mut next = Vec::new();
        for one in continued {
            let row = &self.rows[one.row];
            if !row.awaits_guess() {
                continue;
            }
            let known = row.drafts_known();
            let position = row.start + row.count + index(known) - 2;
            next.push(Continued {
                row: one.row,
                carried: index(inputs.positions.len()),
            });
            inputs.logits_rows.push(index(inputs.positions.len()));
            self.flatten_draft(
                position,
                row.drafts[known - 1],
                &sequences[row.sequence],
                pool,
                &mut inputs,
            );
            inputs.carried.push(one.carried);
            self.flatten_predicted(one.row, sequences, eos, &mut inputs);
        }
        inputs.adapters.clear();
        (inputs, next)
    }

    /// Adds the draw of a row's next draft, as [`Self::flatten_guess`] does.
    fn flatten_predicted(
        &self,
        row: usize,
        sequences: &Sequences,
        eos: &[u32],
        inputs: &mut BatchInputs,
    ) {
        self.flatten_guess(index(row), &sequences[self.rows[row].sequence], eos, inputs);
        inputs.tails = vec![Tail::Sample];
    }
}
