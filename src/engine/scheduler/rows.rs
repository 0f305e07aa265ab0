//! Rows of a batch: tokens of one sequence to compute, and the draw of the next one.

use super::side_arrays::side_entries;
use super::{BatchBuilder, Scheduler};
use crate::engine::batch::{Draw, Row};
use crate::engine::sequence::{Sequence, SequenceId};
use crate::plan::inputs::NONE;

impl Scheduler {
    /// Schedules as many tokens of a running sequence as budget and blocks allow, and a draw if none is missing
    /// afterwards.
    pub(super) fn schedule_row(&mut self, id: SequenceId, builder: &mut BatchBuilder) {
        // An earlier sequence in this step may have preempted it.
        if self.queues.sequences[id].exit.is_some() || self.queues.sequences[id].feed_slot == NONE {
            return;
        }
        debug_assert!(
            !self.queues.leaving.contains(&id),
            "a leaving sequence gets no row"
        );
        let wanted = self.chunk(&self.queues.sequences[id], builder);
        if wanted == 0 || !self.has_room_for(&self.queues.sequences[id], wanted, builder) {
            return;
        }
        let holding = &mut self.queues.sequences[id].holding;
        if !self
            .queues
            .memory
            .has_state_for(holding, &builder.batch.moves)
        {
            return;
        }
        let enough = if self.queues.limits.deterministic {
            wanted
        } else {
            1
        };
        if self.queues.tokens_that_fit(id) < enough {
            self.make_room(id, enough, builder);
        }
        let count = wanted.min(self.queues.tokens_that_fit(id));
        if self.queues.sequences[id].exit.is_some()
            || self.queues.sequences[id].feed_slot == NONE
            || count < enough
        {
            return;
        }
        let mut drafts = self.drafts(id, count, builder);
        let holding = &mut self.queues.sequences[id].holding;
        let moves = &mut builder.batch.moves;
        let states = self.queues.memory.take_state(holding, &mut drafts, moves);
        let start = holding.computed;
        self.compute_images(id, start..start + count, builder);
        let holding = &mut self.queues.sequences[id].holding;
        let moves = &mut builder.batch.moves;
        let drafted = u32::try_from(drafts.len()).expect("drafts are few");
        self.queues.memory.extend(holding, count + drafted, moves);
        let row = Row {
            sequence: id,
            start: holding.computed,
            count,
            drafts,
            states,
        };
        self.push_row(row, builder);
    }

    fn has_room_for(&self, sequence: &Sequence, count: u32, builder: &BatchBuilder) -> bool {
        let entries = self
            .queues
            .memory
            .blocks_for(sequence.holding.computed + count);
        entries <= builder.table_entries_left
            && builder.has_room_to_draw(sequence, self.queues.limits.eos_token_ids.len())
    }

    pub(super) fn push_row(&mut self, row: Row, builder: &mut BatchBuilder) {
        let (id, count) = (row.sequence, row.count);
        debug_assert!(
            count > 0 && count <= builder.tokens_left,
            "a row is within the step's budget"
        );
        let sequence = &mut self.queues.sequences[id];
        debug_assert!(
            count <= sequence.missing(),
            "a row computes only existing tokens"
        );
        // Drafts are computed too, but count only once they are accepted.
        sequence.holding.computed += count;
        sequence.in_flight += 1;
        sequence.skipped = false;
        sequence.last_step = builder.batch.step;
        let tables = 1 + if row.states.is_some() {
            0
        } else {
            row.drafted()
        };
        builder.tokens_left -= count + row.drafted();
        builder.drafts_left -= row.drafted();
        builder.table_entries_left -= tables
            * self
                .queues
                .memory
                .blocks_for(sequence.holding.computed + row.drafted());
        let complete = sequence.missing() == 0;
        if !row.is_tentative() {
            self.queues.register_computed(id);
        }
        builder.batch.rows.push(row);
        self.request_prompt_outputs(id, builder);
        if complete && self.queues.sequences[id].request.pooling.is_none() {
            let row = u32::try_from(builder.batch.rows.len() - 1).expect("a batch has few rows");
            self.draw_or_unfold(id, row, builder);
        }
    }

    fn push_draw(&mut self, id: SequenceId, row: u32, builder: &mut BatchBuilder) {
        let sequence = &mut self.queues.sequences[id];
        debug_assert!(
            (row as usize) < builder.batch.rows.len(),
            "a draw follows a row"
        );
        let drafted = builder.batch.rows[row as usize].drafted();
        debug_assert!(
            drafted == 0 || sequence.pending == 0,
            "a draft follows known tokens"
        );
        debug_assert!(
            sequence.feed_slot != NONE && sequence.pending <= 1,
            "a running sequence draws its next token"
        );
        let (history, bias) =
            side_entries(sequence, self.queues.limits.eos_token_ids.len(), drafted);
        builder.history_left -= history;
        builder.bias_left -= bias;
        sequence.verifies = drafted > 0;
        builder.batch.draws.push(Draw {
            sequence: id,
            row,
            pending: sequence.pending > 0,
        });
        sequence.pending += 1;
        sequence.in_flight += 1;
    }

    /// Forks the other choices of a prompt that is now computed: they draw from the same row of logits and share its
    /// blocks. Choices that do not fit `max_num_seqs` wait like separate requests.
    fn fork(&mut self, parent: SequenceId, row: u32, builder: &mut BatchBuilder) {
        let forks = std::mem::take(&mut self.queues.sequences[parent].forks);
        let computed = self.queues.sequences[parent].holding.computed;
        debug_assert!(
            forks.is_empty() || computed == self.queues.sequences[parent].prompt_len(),
            "forks share the prompt"
        );
        for choice in forks {
            let ends = self.queues.limits.eos_token_ids.len();
            let source = &self.queues.sequences[parent];
            let runs = self.has_seat() && builder.has_room_to_draw(source, ends);
            let holding = if runs {
                self.queues.memory.fork(&source.holding)
            } else {
                source.holding.unheld()
            };
            let child = source.fork(choice, holding);
            let order = child.order;
            let id = self.queues.sequences.insert(child);
            self.queues.by_stream.insert(choice.stream, id);
            if runs {
                self.queues.seat(id);
                self.push_draw(id, row, builder);
            } else {
                self.queues.waiting.insert(order, id);
            }
        }
    }

    /// Draws the next token of a sequence whose tokens are all computed, or unfolds its group.
    fn draw_or_unfold(&mut self, id: SequenceId, row: u32, builder: &mut BatchBuilder) {
        if !self.beams.unfold(&mut self.queues, id) {
            self.start_drafts(id);
            self.push_draw(id, row, builder);
            self.fork(id, row, builder);
        }
    }
}
