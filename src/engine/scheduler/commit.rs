//! Handling a step's results: tokens, ends, failures, and the loss of the device.

use super::Scheduler;
use super::answer::{Events, token};
use crate::engine::batch::{Batch, Draw, Pool, Row, Score};
use crate::engine::memory::Spoilt;
use crate::engine::request::{
    Event, FinishReason, Pooling, Progress, PromptEvent, RequestError, Token,
};
use crate::engine::sequence::{Exit, Sequence, SequenceId, StreamId};
use crate::plan::inputs::{NONE, Results, Sampled};
use std::sync::Arc;

impl Scheduler {
    /// Takes a step's results, one entry for each draw, score and pool, and releases what no step in flight uses any
    /// more.
    pub fn commit(&mut self, batch: &Batch, results: Results) -> Events {
        let scored: usize = batch.scores.iter().map(|score| score.count as usize).sum();
        let drawn: usize = batch.draws.iter().map(|draw| batch.results_of(draw)).sum();
        assert_eq!(
            results.sampled.len(),
            drawn + scored,
            "a batch has one result per draw, draft and score"
        );
        assert_eq!(
            results.pooled.len(),
            batch.pools.len(),
            "a batch has one result per pool"
        );
        let mut events = Vec::with_capacity(batch.draws.len());
        for row in &batch.rows {
            self.pass_windows(row);
            self.report_progress(row, batch.step, &mut events);
        }
        let mut sampled = results.sampled.into_iter();
        let mut scores = batch.scores.iter().peekable();
        for draw in &batch.draws {
            while let Some(score) = scores.next_if(|score| score.row <= draw.row) {
                self.accept_scores(
                    score,
                    sampled.by_ref().take(score.count as usize).collect(),
                    batch.step,
                    &mut events,
                );
            }
            let drawn = sampled.by_ref().take(batch.results_of(draw)).collect();
            self.accept(
                draw,
                &batch.rows[draw.row as usize],
                drawn,
                batch.step,
                &mut events,
            );
        }
        for score in scores {
            self.accept_scores(
                score,
                sampled.by_ref().take(score.count as usize).collect(),
                batch.step,
                &mut events,
            );
        }
        assert!(
            sampled.next().is_none(),
            "draws and scores are sorted by row"
        );
        for (pool, states) in batch.pools.iter().zip(results.pooled) {
            self.accept_states(pool, &states, batch.step, &mut events);
        }
        self.land(batch, false);
        self.beams.advance(&mut self.queues, &mut events);
        events
    }

    /// Handles a batch that the device failed to compute: its requests end, and sequences that share a block it should
    /// have filled start over.
    pub fn fail(&mut self, batch: &Batch, error: RequestError) -> Events {
        assert!(
            self.queues.steps_in_flight > 0,
            "a batch that failed was scheduled"
        );
        let mut events = Vec::new();
        let spoilt = self.withdraw_filled_by(batch);
        let named = batch
            .rows
            .iter()
            .map(|row| row.sequence)
            .chain(batch.draws.iter().map(|draw| draw.sequence));
        for id in named {
            if self.queues.sequences[id].wants_result_of(batch.step) {
                self.end(id, &Event::Failed(error), &mut events);
            }
            // A later step in flight builds on tokens that were never computed.
            self.queues.sequences[id].valid_from_step = self.queues.counts.steps;
        }
        self.roll_back_sharers(spoilt);
        batch.scores.iter().for_each(|score| self.ask_again(score));
        self.land(batch, true);
        self.beams.fold_settled(&mut self.queues);
        events
    }

    /// Handles a device loss, in which pool, feed slots and state slots are lost: every live sequence returns to the
    /// queue with the tokens that were read.
    pub fn restart(&mut self) {
        self.queues.memory.restart();
        self.queues.running.clear();
        self.queues.waiting.clear();
        self.queues.leaving.clear();
        self.queues.reset_slots();
        self.queues.steps_in_flight = 0;
        for id in self.queues.sequences.ids().collect::<Vec<_>>() {
            let sequence = &mut self.queues.sequences[id];
            if sequence.exit.take() == Some(Exit::Ended) {
                self.queues.sequences.remove(id);
                continue;
            }
            sequence.holding.drop_lost();
            (sequence.pending, sequence.in_flight) = (0, 0);
            sequence.feed_slot = NONE;
            sequence.adapter_slot = 0;
            sequence.image_rows.clear();
            sequence.outputs_requested = sequence.outputs_reported;
            if sequence.beam.is_none() {
                let order = sequence.order;
                self.queues.waiting.insert(order, id);
            }
        }
        self.beams.restart(&mut self.queues);
    }

    /// Reports the logprobs of prompt tokens to all choices of the prompt that still have a receiver. By now they may
    /// be separate sequences.
    fn accept_scores(
        &mut self,
        score: &Score,
        sampled: Vec<Sampled>,
        step: u64,
        events: &mut Events,
    ) {
        assert_eq!(
            sampled.len(),
            score.count as usize,
            "a score has one result per token"
        );
        let sequence = &self.queues.sequences[score.sequence];
        if step < sequence.valid_from_step {
            self.ask_again(score);
            return;
        }
        let usage = sequence.usage();
        let live = self.readers_of(score);
        if sampled
            .iter()
            .any(|sampled| sampled.token_id >= self.queues.limits.vocab)
        {
            for (_, id) in live {
                if self.queues.sequences[id].wants_result_of(step) {
                    self.end_corrupted(id, events);
                }
            }
            return;
        }
        let tokens: Arc<[Token]> = sampled
            .into_iter()
            .map(|sampled| token(sampled, true, usage))
            .collect();
        for (stream, id) in live {
            self.queues.sequences[id].outputs_reported = score.first + score.count;
            events.push((stream, Event::Prompt(PromptEvent::Logprobs(tokens.clone()))));
        }
    }

    /// The choices that still have a receiver, with their current sequences.
    fn readers_of(&self, score: &Score) -> Vec<(StreamId, SequenceId)> {
        score
            .streams
            .iter()
            .filter_map(|stream| Some((*stream, *self.queues.by_stream.get(stream)?)))
            .collect()
    }

    /// Requests again what a failed step should have reported. This concerns a fork that was waiting to run: it was not
    /// part of that step, so it continues.
    fn ask_again(&mut self, score: &Score) {
        for (_, id) in self.readers_of(score) {
            let sequence = &mut self.queues.sequences[id];
            debug_assert!(
                score.first + score.count <= sequence.states_needed(),
                "only prompt tokens are scored"
            );
            sequence.outputs_requested = sequence.outputs_requested.min(score.first);
            if sequence.holding.computed > score.first && sequence.exit.is_none() {
                self.roll_back(id);
            }
        }
    }

    /// Sums hidden states. The last ones end the sequence with its embedding.
    fn accept_states(&mut self, pool: &Pool, states: &[f32], step: u64, events: &mut Events) {
        let sequence = &mut self.queues.sequences[pool.sequence];
        if !sequence.wants_result_of(step) {
            return;
        }
        if !states.iter().all(|state| state.is_finite()) {
            self.end_corrupted(pool.sequence, events);
            return;
        }
        sequence.outputs_reported += pool.count;
        debug_assert!(
            sequence.outputs_reported <= sequence.prompt_len(),
            "a state is summed once"
        );
        let keeps_all = sequence.request.pooling == Some(Pooling::All);
        if keeps_all {
            let states = states.iter().map(|state| f64::from(*state));
            sequence.pooled.extend(states);
        } else {
            debug_assert!(
                [0, states.len()].contains(&sequence.pooled.len()),
                "all states have the same length"
            );
            sequence.pooled.resize(states.len(), 0.0);
            let sums = sequence.pooled.iter_mut().zip(states);
            sums.for_each(|(sum, state)| *sum += f64::from(*state));
        }
        if !pool.last {
            return;
        }
        let tokens = if keeps_all {
            1.0
        } else {
            f64::from(sequence.outputs_reported)
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a mean of f32 values is one"
        )]
        let embedding = sequence
            .pooled
            .iter()
            .map(|sum| (sum / tokens) as f32)
            .collect();
        let (stream, usage) = (sequence.choice.stream, sequence.usage());
        if let Some(report) = sequence.prefix_report.take() {
            events.push((stream, Event::Prompt(PromptEvent::Prefix(report))));
        }
        let event = Event::Prompt(PromptEvent::Embedding(embedding));
        events.extend(sequence.streams().map(|stream| (stream, event.clone())));
        self.end(
            pool.sequence,
            &Event::Finished {
                reason: FinishReason::Stop,
                usage,
            },
            events,
        );
    }

    /// Takes the best continuations of a beam. None: its grammar allows no token.
    fn accept_candidates(&mut self, id: SequenceId, sampled: Sampled, events: &mut Events) {
        let sequence = &mut self.queues.sequences[id];
        if sampled.token_id >= self.queues.limits.vocab && !sequence.is_stuck() {
            self.end_corrupted(id, events);
        } else if let Some(beam) = &mut sequence.beam {
            beam.candidates = Some(sampled.top);
        }
    }

    /// Appends a drawn token, and the drafts that the draws agree with. Ends the sequence if one of them is its last.
    fn accept(
        &mut self,
        draw: &Draw,
        row: &Row,
        drawn: Vec<Sampled>,
        step: u64,
        events: &mut Events,
    ) {
        let id = draw.sequence;
        let sequence = &mut self.queues.sequences[id];
        if !sequence.wants_result_of(step) {
            return;
        }
        debug_assert!(sequence.pending > 0, "a drawn token was pending");
        if sequence.beam.is_some() {
            return drawn
                .into_iter()
                .for_each(|sampled| self.accept_candidates(id, sampled, events));
        }
        sequence.pending -= 1;
        if drawn[0].token_id >= self.queues.limits.vocab {
            // The constraint allowed no token, so the logits may be valid.
            if sequence.is_stuck() {
                self.end(id, &Event::Failed(RequestError::Grammar), events);
            } else {
                self.end_corrupted(id, events);
            }
            return;
        }
        self.verify(id, &row.drafts, drawn, events);
        if id == row.sequence {
            self.settle_drafts(row);
        }
        if self.queues.sequences[id].exit != Some(Exit::Ended) {
            self.queues.register_full_blocks(id);
            self.queues.register_snapshot(id);
            self.plan_to_draft(id);
        }
    }

    /// Releases the blocks that neither the next row nor a step in flight attends to.
    fn pass_windows(&mut self, row: &Row) {
        // Without its drafts, a tentative row may be computed again.
        let next = row.start + if row.is_tentative() { 0 } else { row.count };
        let Sequence {
            holding, tokens, ..
        } = &mut self.queues.sequences[row.sequence];
        self.queues.memory.pass_windows(holding, tokens, next);
    }

    /// Tells how much of a prompt is computed before its first token, if its request asked for it. A prompt that is
    /// computed again is reported where it goes on.
    fn report_progress(&mut self, row: &Row, step: u64, events: &mut Events) {
        let sequence = &mut self.queues.sequences[row.sequence];
        let processed = row.start + row.count;
        if !sequence.request.report_progress
            || !(sequence.progress_reported + 1..=sequence.prompt_len()).contains(&processed)
            || sequence.tokens_known() > sequence.prompt_len()
            || !sequence.wants_result_of(step)
        {
            return;
        }
        sequence.progress_reported = processed;
        let progress = Progress {
            cached: sequence.cached().all,
            processed,
        };
        let event = Event::Prompt(PromptEvent::Progress(progress));
        events.push((sequence.choice.stream, event));
    }

    /// What completed rows have computed of prompts can be written to files.
    fn finish_rows(&mut self, batch: &Batch) {
        for row in &batch.rows {
            let sequence = &self.queues.sequences[row.sequence];
            let end = row.start + row.count;
            self.queues
                .memory
                .finish_row(&sequence.holding, &sequence.tokens, end);
        }
    }

    /// Handles a completed step: sequences that were only waiting for it leave.
    fn land(&mut self, batch: &Batch, failed: bool) {
        assert!(
            self.queues.steps_in_flight > 0,
            "a step that completes was scheduled"
        );
        self.queues.steps_in_flight -= 1;
        let rows = batch.rows.iter().map(|row| row.sequence);
        let draws = batch.draws.iter().map(|draw| draw.sequence);
        let restores = &batch.moves.restores;
        let restored = restores.iter().map(|restore| restore.sequence);
        for id in rows.chain(draws).chain(restored) {
            self.queues.sequences[id].in_flight -= 1;
        }
        self.queues.counts.blocks_saved += self.queues.memory.land_moves(&batch.moves, failed);
        self.queues.counts.blocks_restored += if failed { 0 } else { restores.len() as u64 };
        let states = batch.rows.iter().filter_map(|row| row.states);
        self.queues.memory.land_states(states);
        if !failed {
            self.finish_rows(batch);
        }
        let (landed, leaving) = self
            .queues
            .leaving
            .iter()
            .partition(|&&id| self.queues.sequences[id].in_flight == 0);
        self.queues.leaving = leaving;
        let landed: Vec<_> = landed;
        landed.into_iter().for_each(|id| self.queues.settle(id));
    }

    /// Removes what a failed batch should have filled or restored from the prefix cache, with what a step in flight
    /// fills on top of it, and returns it.
    fn withdraw_filled_by(&mut self, batch: &Batch) -> Spoilt {
        let mut spoilt = Spoilt::default();
        self.queues
            .memory
            .withdraw_restored(&batch.moves, &mut spoilt);
        for row in &batch.rows {
            let holding = &mut self.queues.sequences[row.sequence].holding;
            self.queues
                .memory
                .withdraw_row(holding, row.start, row.states, &mut spoilt);
        }
        spoilt
    }

    /// Rolls back the sequences that compute, in a step in flight, on top of blocks that were never filled or states
    /// that were never written. What they have filled since is wrong too, so sequences that share those blocks are also
    /// rolled back.
    fn roll_back_sharers(&mut self, mut spoilt: Spoilt) {
        while let Some(id) = self.sharer_of(&spoilt) {
            let sequence = &self.queues.sequences[id];
            spoilt.follow(&sequence.holding, sequence.in_flight > 0);
            self.roll_back(id);
        }
    }

    /// A live sequence that builds on what is spoilt and is not rolled back yet.
    fn sharer_of(&self, spoilt: &Spoilt) -> Option<SequenceId> {
        self.queues.sequences.ids().find(|&id| {
            let sequence = &self.queues.sequences[id];
            sequence.wants_result_of(self.queues.counts.steps - 1)
                && spoilt.concerns(&sequence.holding, sequence.in_flight > 0)
        })
    }

    /// Returns a sequence to the queue and discards what the steps in flight compute for it.
    fn roll_back(&mut self, id: SequenceId) {
        if let Some(group) = self.queues.sequences[id].group() {
            return self.beams.roll_back(&mut self.queues, group);
        }
        debug_assert!(
            self.queues.sequences[id].exit != Some(Exit::Ended),
            "a sequence that has ended does not return to the queue"
        );
        self.queues.discard_computed(id);
        self.queues.leave(id, Exit::Preempted);
    }
}
