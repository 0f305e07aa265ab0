//! Verification: which drafts of a row are accepted.
//!
//! A row with k drafts is computed as k + 1 rows with a draw each. Row j's draw has the noise of its own position and
//! sees the drafts before it in penalties, `min_tokens` and grammar, so it is what the model would draw if they were
//! its own tokens. Drafts are accepted up to the first that differs from the draw at its place; that draw replaces it,
//! and what follows is dropped. `computed` and the hashes of blocks cover accepted tokens only; the slots of the others
//! are written again.
//!
//! With a recurrent state, all drafts of a row count or none: see `states`.

use super::Scheduler;
use super::answer::Events;
use crate::engine::batch::Row;
use crate::engine::request::DraftSkip;
use crate::engine::sequence::SequenceId;
use crate::plan::inputs::Sampled;

impl Scheduler {
    /// Appends the draws of a row: the first, and each after a draft that equals the draw before it.
    pub(super) fn verify(
        &mut self,
        id: SequenceId,
        drafts: &[u32],
        mut drawn: Vec<Sampled>,
        events: &mut Events,
    ) {
        self.count_drafts(id, drafts.len());
        let accepted = self.accept_drafts(id, drafts, &mut drawn, events);
        if drafts.is_empty() {
            return;
        }
        self.queues.counts.drafts += 1;
        self.queues.counts.draft_tokens += drafts.len() as u64;
        self.queues.counts.accepted_at[..accepted]
            .iter_mut()
            .for_each(|count| *count += 1);
        if let Some(drafter) = &mut self.queues.sequences[id].drafter {
            drafter.note_verified(accepted, drafts.len());
        }
    }

    /// Counts the drafts of a draw, or why there are none.
    fn count_drafts(&mut self, id: SequenceId, count: usize) {
        let sequence = &mut self.queues.sequences[id];
        if self.queues.limits.speculation.is_none() || sequence.beam.is_some() {
            return;
        }
        let report = &mut sequence.draft_report;
        if count > 0 {
            report.drafted += u32::try_from(count).expect("drafts are few");
            return;
        }
        // A sequence that waited for its token to draft got none when its step was scheduled.
        let skip = sequence.draft_skip.unwrap_or(DraftSkip::NoRoom);
        report.skips[skip as usize] += 1;
        self.queues.counts.draft_skips[skip as usize] += 1;
    }

    /// Returns the number of accepted drafts.
    fn accept_drafts(
        &mut self,
        id: SequenceId,
        drafts: &[u32],
        drawn: &mut [Sampled],
        events: &mut Events,
    ) -> usize {
        let mut accepted = 0;
        // Ends at the latest after the last draw, which no draft can equal.
        loop {
            let known = self.queues.sequences[id].tokens.len();
            let sampled = std::mem::take(&mut drawn[accepted]);
            // Never the first one: `accept` has looked at that.
            if sampled.token_id >= self.queues.limits.vocab {
                // The next step computes the last draft again, alone, and finds out why nothing can be drawn after it.
                self.queues.sequences[id].holding.computed -= 1;
                break;
            }
            let is_draft = drafts.get(accepted) == Some(&sampled.token_id);
            self.queues.sequences[id].draft_report.accepted += u32::from(is_draft);
            let ended = self.append_drawn(id, sampled, events);
            let sequence = &mut self.queues.sequences[id];
            // With tokens that a constraint forces after the drawn one, which may be drafts as well.
            let new = &sequence.tokens[known..];
            let equal = new
                .iter()
                .zip(&drafts[accepted..])
                .take_while(|(token, draft)| token == draft)
                .count();
            let all_equal = equal == new.len() && !new.is_empty();
            sequence.holding.computed += u32::try_from(equal).expect("drafts are few");
            accepted += equal;
            if ended || !all_equal {
                break;
            }
        }
        accepted
    }

    /// Keeps the state after a row whose drafts were all accepted; otherwise goes back to the state before it.
    pub(super) fn settle_drafts(&mut self, row: &Row) {
        let holding = &mut self.queues.sequences[row.sequence].holding;
        let all = holding.computed == row.start + row.count + row.drafted();
        if self.queues.memory.settle_drafts(holding, row.start, all) {
            self.queues.register_computed(row.sequence);
        }
    }
}
