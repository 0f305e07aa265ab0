//! Which rows get drafts, and how many.
//!
//! Drafts need the ids of all tokens before them. A sequence whose guesses pay waits for its token, as one with a
//! grammar does; the others run ahead without drafts, and their guesses are only compared with what is drawn.
//!
//! Drafts take blocks that are free, and never preempt. [`super::verify`] says which are accepted.

use super::side_arrays::side_entries;
use super::{BatchBuilder, Scheduler};
use crate::config::Speculation;
use crate::engine::batch::Batch;
use crate::engine::request::DraftSkip;
use crate::engine::sequence::{Sequence, SequenceId};
use crate::engine::speculation::pace::{Yield, accepted};
use crate::engine::speculation::{Drafter, UNKNOWN};
use crate::plan::inputs::BatchInputs;
use std::time::Duration;

/// From this number of running sequences on, one that waits for its token may skip every other step. It has to expect
/// as many tokens from a step as it loses by that.
const SEQUENCES_MANY: usize = 4;
const TOKENS_MIN_AMONG_MANY: f64 = 2.0;

impl Scheduler {
    /// Takes note of what a step took, read to read.
    pub fn note_step(&mut self, batch: &Batch, time: Duration) {
        if let Some((rows, drafts)) = batch.single_rows()
            && self.queues.limits.speculation.is_some()
        {
            self.pace.note(rows, drafts, time.as_secs_f64());
        }
    }

    /// The settings, while drafts are verified: not with more running sequences than they allow.
    fn speculation(&self) -> Option<Speculation> {
        self.queues.limits.speculation.filter(|settings| {
            self.queues.running.len()
                <= settings.sequences_max(self.queues.limits.max_num_seqs) as usize
        })
    }

    /// Maximum drafts of a step. Rows are kept for every sequence that the step may draw for, tokens for all that
    /// answers miss, and half of the others for prompts.
    pub(super) fn drafts_max(&self, tokens_max: u32) -> u32 {
        let running = self
            .queues
            .running
            .iter()
            .map(|id| &self.queues.sequences[*id]);
        let steady = self.queues.waiting.is_empty()
            && self.beams.is_empty()
            && running.clone().all(Sequence::is_answering);
        let drawing = if steady {
            u32::try_from(self.queues.running.len()).expect("running sequences are few")
        } else {
            self.queues.limits.max_num_seqs
        };
        let known = running.map(|sequence| {
            if sequence.is_answering() {
                sequence.missing().max(1)
            } else {
                1
            }
        });
        let left = tokens_max.saturating_sub(known.fold(0, u32::saturating_add));
        let tokens = left / if steady { 1 } else { 2 };
        self.queues
            .limits
            .sequences_max
            .saturating_sub(drawing)
            .min(tokens)
    }

    /// Guesses of the tokens after the next `count` tokens of a sequence, which are to be verified with them.
    pub(super) fn drafts(
        &self,
        id: SequenceId,
        count: u32,
        builder: &mut BatchBuilder,
    ) -> Vec<u32> {
        let sequence = &self.queues.sequences[id];
        let Some(drafter) = sequence.drafter.as_ref() else {
            return Vec::new();
        };
        if !sequence.is_answering() || sequence.missing() != count || sequence.pending > 0 {
            return Vec::new();
        }
        // What was computed with drafts that were not all accepted is computed again; without drafts, for good.
        let again = self
            .queues
            .limits
            .speculation
            .map_or(0, |settings| settings.num_speculative_tokens);
        if self.queues.memory.keeps_states() && count > again {
            return Vec::new();
        }
        let most = self.drafts_that_fit(id, count, builder);
        let forced = sequence.forced_drafts();
        let (rate, mut drafts) = match (forced.is_empty(), drafter.rate()) {
            (false, _) => (1.0, forced),
            (true, Some(rate)) => (rate, drafter.drafts(most)),
            (true, None) => return Vec::new(),
        };
        let most = most.min(u32::try_from(drafts.len()).unwrap_or(u32::MAX));
        let best = self.pace.best(builder.drawn, most, rate);
        drafts.truncate(best as usize);
        let drafts = self.without_ends(sequence, drafts);
        builder.drawn = builder
            .drawn
            .with(u32::try_from(drafts.len()).expect("drafts are few"), rate);
        drafts
    }

    /// The leading drafts after which more may follow, or that are not known yet.
    fn without_ends(&self, sequence: &Sequence, mut drafts: Vec<u32>) -> Vec<u32> {
        if let Some(end) = drafts.iter().position(|id| {
            self.queues.limits.eos_token_ids.contains(id)
                || sequence.params().stop_token_ids.contains(id)
        }) {
            drafts.truncate(end);
        }
        let known = drafts.iter().take_while(|&&id| id != UNKNOWN).count();
        let unknown = drafts.split_off(known);
        let mut drafts = sequence.allowed(drafts);
        if drafts.len() == known {
            drafts.extend(unknown);
        }
        drafts
    }

    /// The arrays for a draft model's next guess of each row that waits for one; `None` if there is no such row.
    pub fn flatten_guesses(&self, batch: &Batch) -> Option<BatchInputs> {
        let inputs = batch.flatten_guesses(
            &self.queues.sequences,
            self.queues.memory.pool(),
            &self.queues.limits.eos_token_ids,
        );
        (!inputs.samples.is_empty()).then_some(inputs)
    }

    /// Takes a draft model's guesses, one for each row that waits for one. After an invalid one, or one that may end
    /// the answer, the row gets no more.
    pub fn take_guesses(&self, batch: &mut Batch, guesses: &[u32]) {
        let mut guesses = guesses.iter();
        for row in batch.rows.iter_mut().filter(|row| row.awaits_guess()) {
            let guess = *guesses.next().expect("every row that waits gets a guess");
            let known = row.drafts_known();
            if guess < self.queues.limits.vocab {
                row.drafts[known] = guess;
                row.drafts = self.without_ends(
                    &self.queues.sequences[row.sequence],
                    std::mem::take(&mut row.drafts),
                );
            } else {
                row.drafts.truncate(known);
            }
        }
        assert!(guesses.next().is_none(), "only rows that wait get a guess");
    }

    /// Goes on without the drafts that a draft model has not guessed.
    pub fn drop_unguessed(&self, batch: &mut Batch) {
        for row in &mut batch.rows {
            row.drafts.truncate(row.drafts_known());
        }
    }

    /// Maximum drafts after the next `count` tokens of a sequence, as far as the step, the pool and its length allow.
    fn drafts_that_fit(&self, id: SequenceId, count: u32, builder: &BatchBuilder) -> u32 {
        let (sequence, ends) = (
            &self.queues.sequences[id],
            self.queues.limits.eos_token_ids.len(),
        );
        let settings = self
            .speculation()
            .map_or(0, |settings| settings.num_speculative_tokens);
        let length = sequence
            .tokens_limit
            .saturating_sub(sequence.tokens_known() + 1);
        let blocks = self.queues.tokens_that_fit(id).saturating_sub(count);
        let tokens = builder.tokens_left.saturating_sub(count);
        let most = settings
            .min(length)
            .min(blocks)
            .min(tokens)
            .min(builder.drafts_left);
        // The rows of other sequences need the side arrays too.
        (1..=most)
            .rev()
            .find(|drafts| {
                let tables = (1 + drafts)
                    * self
                        .queues
                        .memory
                        .blocks_for(sequence.holding.computed + count + drafts);
                let (history, bias) = side_entries(sequence, ends, *drafts);
                tables <= builder.table_entries_left / 2
                    && history <= builder.history_left / 2
                    && bias <= builder.bias_left / 2
            })
            .unwrap_or(0)
    }

    /// Decides whether a sequence waits for its next token, to verify drafts after it.
    pub(super) fn plan_to_draft(&mut self, id: SequenceId) {
        self.queues.sequences[id].draft_skip = self.draft_skip(id);
    }

    /// Why a sequence does not wait for its next token; `None` if it does.
    fn draft_skip(&self, id: SequenceId) -> Option<DraftSkip> {
        let sequence = &self.queues.sequences[id];
        let Some(settings) = self.speculation() else {
            return Some(DraftSkip::ManySequences);
        };
        let Some(rate) = sequence.drafter.as_ref().and_then(|drafter| drafter.rate()) else {
            return Some(DraftSkip::NothingFound);
        };
        let running = self.queues.running.len();
        let most = settings
            .num_speculative_tokens
            .min(sequence.tokens_limit - sequence.tokens_known());
        let most = most.min(
            self.queues
                .limits
                .sequences_max
                .saturating_sub(u32::try_from(running).unwrap_or(u32::MAX)),
        );
        let count = self.pace.best(Yield::plain(running.max(1)), most, rate);
        let enough =
            running < SEQUENCES_MANY || 1.0 + accepted(count, rate) >= TOKENS_MIN_AMONG_MANY;
        (count == 0 || !enough).then_some(DraftSkip::NotWorthwhile)
    }

    /// Gives a sequence whose prompt is computed a drafter.
    pub(super) fn start_drafts(&mut self, id: SequenceId) {
        let Some(settings) = self.speculation() else {
            return;
        };
        let sequence = &self.queues.sequences[id];
        if sequence.drafter.is_some() || sequence.beam.is_some() {
            return;
        }
        let others = self.queues.answers.similar(&sequence.request);
        let mut drafter = Drafter::new(settings, &sequence.request, others);
        // Others may have run beside it so far.
        sequence.tokens[sequence.request.prompt.len()..]
            .iter()
            .for_each(|&token_id| drafter.push(token_id));
        self.queues.sequences[id].drafter = Some(Box::new(drafter));
        self.plan_to_draft(id);
    }
}

#[cfg(test)]
mod tests;
