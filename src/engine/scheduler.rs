//! Queues → [`Batch`]; batch and sampled tokens → events.
//!
//! One rule, no phases: a sequence has a number of tokens, some of them computed. A step computes some of the missing
//! ones; when none is missing, it draws the next token. Prefill, chunked prefill, prefix hits and decode are all this
//! rule.
//!
//! Calls go in one direction. [`Scheduler::schedule`] is here, and calls `admit`, which brings waiting sequences in;
//! both call `rows`, which asks `chunks` how many tokens of a sequence a step computes, `drafts` for guesses to verify
//! with them, and `preempt` for room, which sends running sequences back. [`Scheduler::commit`] takes results: `verify`
//! accepts drafts, and `answer` appends tokens and ends choices. Below all of them are two types of their own:
//! [`beams`], the sequences that search together, and [`queues`], where every sequence is and what it holds.
//! [`super::memory::Memory`] owns what sequences occupy.
//!
//! Nothing that a step in flight uses is released: a sequence that ends or is preempted leaves after its last step has
//! completed. Pure: no device, clock, thread or randomness, and no knowledge of what the tokens mean.

mod admit;
mod answer;
mod beams;
mod builder;
mod chunks;
mod commit;
mod counts;
mod drafts;
mod files;
mod images;
mod preempt;
mod prefix;
mod prompt_outputs;
mod queues;
mod round_robin;
mod rows;
mod seats;
mod side_arrays;
mod slots;
#[cfg(test)]
mod tests;
mod verify;

pub use answer::Events;

use super::adapters::AdapterPool;
use super::batch::Batch;
use super::images::ImagePool;
use super::memory::{BlockPool, Claim, Demand, Group, Memory, MemoryLimits, Rates};
use super::predicted::{Continued, Followers};
use super::request::{PromptEvent, Request};
use super::sequence::{Choice, Exit, Order, Sequence, SequenceId, StreamId};
use super::speculation::pace::{Pace, Yield};
use super::stats::Counts;
use crate::config::Speculation;
use crate::plan::inputs::{BatchInputs, NONE};
use beams::Beams;
use builder::BatchBuilder;
use queues::Queues;
use round_robin::RoundRobin;
use std::sync::Arc;

/// After this many preemptions, a sequence is readmitted only with all blocks reserved that it may still need.
const PREEMPTIONS_MAX: u32 = 4;

/// Limits of a scheduler.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum token rows per batch.
    pub tokens_max: u32,
    /// Maximum sequences that run at once.
    pub max_num_seqs: u32,
    /// Maximum sequences per batch: those that run, and drafts, each a row like that of another sequence.
    pub sequences_max: u32,
    /// Number of feed slots, where the device stores sampled ids. Twice `max_num_seqs`, because a leaving sequence
    /// keeps its slot for a step.
    pub feed_slots: u32,
    /// Adapters that may be used at once; 0 if the plan has no slots for them.
    pub adapter_slots: u32,
    /// Rows of images that are held at once; 0 if the model reads none.
    pub image_rows: u32,
    /// Patches of images that are computed before a step: more are left to later steps.
    pub patches_max: u32,
    /// Maximum block-table entries per batch and KV group.
    pub table_entries_max: u32,
    /// Maximum penalty history entries per batch.
    pub history_max: u32,
    /// Maximum logit bias entries per batch.
    pub bias_max: u32,
    /// Maximum prompt tokens per batch whose logprobs are computed.
    pub scores_max: u32,
    /// Maximum tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Vocabulary size: every token id is below it.
    pub vocab: u32,
    /// Whether a sequence is always computed in the same chunks, whatever else runs.
    pub deterministic: bool,
    /// How the next tokens are guessed; `None`: they are not.
    pub speculation: Option<Speculation>,
    /// Token ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Of what sequences occupy.
    pub memory: MemoryLimits,
}

impl Limits {
    /// Whether a step computes whole sequences: nothing is kept of one.
    pub(super) fn is_whole(&self) -> bool {
        self.memory.windows.is_empty() && self.memory.state_slots == 0
    }

    /// How long a sequence may become.
    fn tokens_limit(&self, sequence: &Sequence) -> u32 {
        let (prompt_len, params) = (sequence.prompt_len(), sequence.params());
        let answer_max = if sequence.request.pooling.is_some() {
            1
        } else {
            params.max_tokens.unwrap_or(u32::MAX)
        };
        // After a prompt that fills the context, the one token that is not wanted.
        let most = self.max_model_len.max(prompt_len + 1);
        let limit = prompt_len.saturating_add(answer_max).min(most);
        match params.beams {
            Some(beams) => limit.min(self.beam_room().tokens_max(prompt_len, beams.width)),
            None => limit,
        }
    }

    /// Blocks of each KV group that the longest sequence has.
    pub(super) fn blocks_of_longest(&self) -> Vec<u32> {
        let blocks = self.max_model_len.div_ceil(self.memory.block_size);
        vec![blocks; self.memory.windows.len()]
    }
}

/// Decides what each step computes.
#[derive(Debug)]
pub struct Scheduler {
    queues: Queues,
    beams: Beams,
    round_robin: RoundRobin,
    pace: Pace,
    arrivals: u64,
    /// First choices of requests that were admitted since [`Self::take_admitted`].
    admitted: Vec<(StreamId, PromptEvent)>,
}

/// Phase of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Waiting, new or preempted.
    Queued,
    /// Its prompt is being computed.
    Prefill,
    /// Generating; no step in flight uses it.
    Decode,
    /// Generating, and a step in flight uses it.
    DecodeInFlight,
}

impl Scheduler {
    /// A scheduler over an empty pool.
    pub fn new(limits: Limits) -> Self {
        assert!(
            limits.tokens_max > 0 && limits.max_num_seqs > 0,
            "a step has room for a row"
        );
        assert!(
            !limits.deterministic || limits.tokens_max >= limits.memory.block_size,
            "a step has room for a fixed chunk"
        );
        Self {
            queues: Queues::new(limits),
            beams: Beams::default(),
            round_robin: RoundRobin::default(),
            pace: Pace::default(),
            arrivals: 0,
            admitted: Vec::new(),
        }
    }

    /// The same scheduler with measured times that decide whether blocks move.
    pub(super) fn with_rates(mut self, rates: Rates) -> Self {
        self.queues.memory.set_rates(rates);
        self
    }

    /// Queues a request; `streams` has one entry per choice. With `waits_for_host`, it gets no row while the id of its
    /// last token is unknown. This is always so under a constraint and for beams.
    pub fn add(
        &mut self,
        request: Arc<Request>,
        streams: &[StreamId],
        seed: u64,
        waits_for_host: bool,
    ) {
        assert!(!streams.is_empty(), "a request has a choice");
        debug_assert!(
            streams
                .iter()
                .all(|stream| !self.queues.by_stream.contains_key(stream)),
            "a stream is used once"
        );
        let choices: Vec<_> = streams
            .iter()
            .zip(0..)
            .map(|(&stream, index)| Choice { index, stream })
            .collect();
        let (round, arrival) = (self.round_robin.next(request.client), self.arrivals);
        let order = Order {
            priority: request.priority,
            round,
            arrival,
            choice: 0,
        };
        let beams = request.params.beams;
        let own = if beams.is_some() {
            &choices[..1]
        } else {
            &choices
        };
        let holding = self
            .queues
            .memory
            .holding(&self.queues.limits.claim(&request));
        let mut sequence = Sequence::new(request, own, seed, order, holding);
        sequence.tokens_limit = self.queues.limits.tokens_limit(&sequence);
        let constrained = sequence.is_constrained();
        sequence.waits_for_host = waits_for_host || constrained || beams.is_some();
        assert!(
            sequence.prompt_len() < sequence.tokens_limit,
            "a queued prompt leaves room for a token"
        );
        self.arrivals += 1;
        let order = sequence.order;
        let id = self.queues.sequences.insert(sequence);
        self.queues.waiting.insert(order, id);
        self.queues
            .by_stream
            .extend(streams.iter().map(|&stream| (stream, id)));
        if let Some(beams) = beams {
            self.beams.start(&mut self.queues, id, beams, choices);
        }
    }

    /// Ends a choice whose client has gone. Its blocks are freed once no step in flight uses them.
    pub fn abort(&mut self, stream: StreamId) {
        if let Some(id) = self.queues.by_stream.remove(&stream) {
            self.queues.counts.finished_abort += 1;
            self.end_choice(id, stream);
        }
    }

    /// Ends a choice whose client has all that it wants, as [`Self::abort`] does.
    pub fn stop(&mut self, stream: StreamId) {
        if let Some(id) = self.queues.by_stream.remove(&stream) {
            self.queues.counts.finished_stop += 1;
            self.end_choice(id, stream);
        }
    }

    fn end_choice(&mut self, id: SequenceId, stream: StreamId) {
        if let Some(group) = self.queues.sequences[id].group() {
            return self.beams.abort(&mut self.queues, group, stream);
        }
        let sequence = &mut self.queues.sequences[id];
        debug_assert!(
            sequence.streams().any(|own| own == stream),
            "a stream names the sequence that computes for it"
        );
        if sequence.choice.stream != stream {
            sequence.forks.retain(|choice| choice.stream != stream);
        } else if sequence.forks.is_empty() {
            self.queues.leave(id, Exit::Ended);
        } else {
            // Other choices still need the prompt: the next one takes it over.
            sequence.choice = sequence.forks.remove(0);
        }
    }

    /// The next step's batch, with at most `tokens_max` token rows; `None` if nothing can be computed now. At most one
    /// step may be in flight.
    pub fn schedule(&mut self, tokens_max: u32) -> Option<Batch> {
        assert!(
            self.queues.steps_in_flight <= 1,
            "a sequence has at most one pending token"
        );
        let tokens_max = if self.queues.limits.is_whole() {
            self.queues.limits.tokens_max
        } else {
            tokens_max.clamp(1, self.queues.limits.tokens_max)
        };
        self.queues.release_computed_images();
        let mut builder = self.builder(tokens_max);
        let others = self.schedule_decodes(&mut builder);
        self.schedule_prefills(others, &mut builder);
        if !builder.preempted && builder.blocks_awaited.iter().all(|&count| count == 0) {
            self.admit(&mut builder);
        }
        if builder.batch.rows.is_empty() {
            debug_assert!(builder.batch.moves.is_empty(), "only rows take blocks");
            let idle = self.queues.running.is_empty() && self.queues.waiting.is_empty();
            let is_reading = self.queues.memory.files().is_reading();
            assert!(
                idle || is_reading || self.queues.steps_in_flight > 0,
                "with no step in flight, some sequence can always continue"
            );
            return None;
        }
        let saves = self.queues.memory.save_some_finished();
        builder.batch.moves.saves.extend(saves);
        builder.batch.adapters = self.queues.adapters.take_loads();
        builder.batch.tiles = self.queues.images.take_loads();
        self.queues.register_snapshots(&builder.batch);
        self.queues.counts.steps += 1;
        self.queues
            .counts
            .step_tokens
            .count(builder.batch.rows.len());
        self.queues.steps_in_flight += 1;
        Some(builder.batch)
    }

    /// The flat arrays of a batch that was just scheduled. Masks are computed here, while the previous step runs.
    pub fn flatten(&mut self, batch: &Batch) -> BatchInputs {
        assert_eq!(
            batch.step + 1,
            self.queues.counts.steps,
            "only the batch scheduled last is flattened"
        );
        batch.flatten(
            &mut self.queues.sequences,
            self.queues.memory.pool(),
            &self.queues.limits.eos_token_ids,
            self.queues.limits.vocab,
        )
    }

    /// The rows of a batch, of which `inputs` are the arrays, for the model's predictor.
    pub(super) fn followers(&self, batch: &Batch, inputs: &BatchInputs) -> Followers {
        batch.followers(inputs, &self.queues.sequences)
    }

    /// The arrays of the rows that follow the step before, with the predictor's first guess for each row that waits for
    /// one.
    pub(super) fn flatten_first_guesses(
        &self,
        batch: &mut Batch,
        followers: Followers,
    ) -> (BatchInputs, Vec<Continued>) {
        batch.flatten_first_guesses(
            followers,
            &self.queues.sequences,
            &self.queues.limits.eos_token_ids,
        )
    }

    /// The arrays for the predictor's next guess of each row that waits for one; `None` if there is no such row.
    pub(super) fn flatten_further_guesses(
        &self,
        batch: &Batch,
        continued: &[Continued],
        copies: bool,
    ) -> Option<(BatchInputs, Vec<Continued>)> {
        let (pool, eos) = (self.queues.memory.pool(), &self.queues.limits.eos_token_ids);
        let guesses =
            batch.flatten_further_guesses(continued, copies, &self.queues.sequences, pool, eos);
        (!guesses.1.is_empty()).then_some(guesses)
    }

    /// Whether the next step may be submitted before the tokens of the step in flight are read. Rows that need the host
    /// skip such a step. It is not worthwhile with too many of them, and no row may skip two steps in a row.
    pub fn may_look_ahead(&self) -> bool {
        let waits = |id: &&SequenceId| self.queues.sequences[**id].awaits_token();
        let waiting = self.queues.running.iter().filter(waits).count();
        let skipped_before = self
            .queues
            .running
            .iter()
            .filter(waits)
            .any(|&id| self.queues.sequences[id].skipped);
        !skipped_before && waiting * 4 < self.queues.running.len().max(1)
    }

    /// Whether nothing is queued, running or in flight.
    pub fn is_idle(&self) -> bool {
        self.queues.sequences.is_empty() && self.queues.steps_in_flight == 0
    }

    /// Unused feed slots.
    pub fn feed_slots_free(&self) -> &[u32] {
        &self.queues.feed_slots
    }

    /// Phase of a live choice.
    pub fn phase(&self, stream: StreamId) -> Option<Phase> {
        let sequence = &self.queues.sequences[*self.queues.by_stream.get(&stream)?];
        Some(match sequence.in_flight {
            0 if sequence.feed_slot == NONE => Phase::Queued,
            _ if sequence.tokens_total() == sequence.prompt_len() => Phase::Prefill,
            0 => Phase::Decode,
            _ => Phase::DecodeInFlight,
        })
    }

    /// Number of running sequences.
    pub fn running_len(&self) -> usize {
        self.queues.running.len()
    }

    /// Number of waiting sequences, new or preempted.
    pub fn waiting_len(&self) -> usize {
        self.queues.waiting.len()
    }

    /// The counters since the start.
    pub fn counts(&self) -> Counts {
        self.queues.counts
    }

    /// The block pool.
    pub fn pool(&self) -> &BlockPool {
        self.queues.memory.pool()
    }

    /// The state slots; none if the model keeps no state.
    pub fn states(&self) -> &Group {
        self.queues.memory.states()
    }

    /// What sequences occupy.
    pub fn memory(&self) -> &Memory {
        &self.queues.memory
    }

    /// [`Self::memory`], for the engine to say what became of files and copies.
    pub(super) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.queues.memory
    }

    /// The scheduler's limits.
    pub fn limits(&self) -> &Limits {
        &self.queues.limits
    }

    /// Schedules one row for each sequence that misses one token. While there is prefill to do, a quarter of the step
    /// is kept for it. The sequence that has waited longest goes first, so that small steps serve all sequences in
    /// turn. Returns the other running sequences, in order.
    fn schedule_decodes(&mut self, builder: &mut BatchBuilder) -> Vec<SequenceId> {
        let decodes = |id: &SequenceId| {
            self.queues.sequences[*id].is_schedulable() && self.queues.sequences[*id].missing() == 1
        };
        let (mut ids, others): (Vec<_>, Vec<_>) =
            self.queues.running.iter().copied().partition(decodes);
        ids.sort_by_key(|&id| self.queues.sequences[id].last_step);
        let prefills = self.may_admit() || ids.len() < self.queues.running.len();
        let kept = if prefills { builder.tokens_left / 4 } else { 0 };
        builder.drawn = Yield::plain(ids.len());
        for id in ids {
            self.queues.sequences[id].skipped = true;
            if builder.tokens_left > kept {
                self.schedule_row(id, builder);
            }
        }
        others
    }

    /// Schedules chunks of running sequences that miss more than one token. Tokens forced by constraints come first,
    /// because they are few and their clients are waiting; the sequence that has waited longest is the first of them.
    /// They get at most half of the room while there are prompts to compute, which follow in order.
    fn schedule_prefills(&mut self, running: Vec<SequenceId>, builder: &mut BatchBuilder) {
        let (mut answers, prompts): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|&id| self.queues.sequences[id].is_answering());
        answers.sort_by_key(|&id| self.queues.sequences[id].last_step);
        let has_prompts = !prompts.is_empty() || self.may_admit();
        let kept = if has_prompts {
            builder.tokens_left / 2
        } else {
            0
        };
        for (id, kept) in answers
            .into_iter()
            .map(|id| (id, kept))
            .chain(prompts.into_iter().map(|id| (id, 0)))
        {
            let sequence = &mut self.queues.sequences[id];
            if sequence.awaits_token() {
                sequence.skipped = true;
            } else if sequence.is_schedulable()
                && sequence.missing() > 1
                && builder.tokens_left > kept
            {
                self.schedule_row(id, builder);
            }
        }
    }

    /// The adapters of a batch were not written.
    pub fn drop_adapters(&mut self, batch: &Batch) {
        self.queues.adapters.drop_loads(&batch.adapters);
    }

    /// The rows of a batch's images were not written.
    pub fn drop_images(&mut self, batch: &Batch) {
        self.queues.images.drop_loads(&batch.tiles);
    }

    /// Asserts the invariants that hold between two steps.
    pub fn check(&self) {
        self.queues.check();
    }
}
