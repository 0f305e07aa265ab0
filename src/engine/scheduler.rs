//! Queues → [`Batch`]; batch and sampled tokens → events.
//!
//! One rule, no phases: a sequence has a number of tokens, some of them computed. A step computes some of the missing
//! ones; when none is missing, it draws the next token. Prefill, chunked prefill, prefix hits and decode are all this
//! rule. [`Scheduler::schedule`] is here; `chunks` says how many tokens of a sequence a step computes, `admit` brings
//! waiting sequences in, `preempt` sends running ones back when blocks run out, `verify` adds drafts to rows and
//! accepts them, `commit` takes results. [`Memory`] owns what sequences occupy.
//!
//! Nothing that a step in flight uses is released: a sequence that ends or is preempted leaves after its last step has
//! completed. Pure: no device, clock, thread or randomness, and no knowledge of what the tokens mean.

mod admit;
mod beams;
mod builder;
mod chunks;
mod commit;
mod counts;
mod files;
mod images;
mod preempt;
mod prefix;
mod prompt_outputs;
mod round_robin;
mod side_arrays;
mod slots;
#[cfg(test)]
mod tests;
mod verify;

pub use commit::Events;

use super::adapters::AdapterPool;
use super::batch::{Batch, Draw, Row};
use super::images::ImagePool;
use super::memory::{BlockPool, Claim, Demand, Group, Memory, MemoryLimits, Rates};
use super::request::{PromptEvent, Request};
use super::sequence::{Choice, Exit, Order, Sequence, SequenceId, Sequences, StreamId};
use super::speculation::Answers;
use super::speculation::pace::{Pace, Yield};
use super::stats::Counts;
use crate::config::Speculation;
use crate::plan::inputs::{BatchInputs, NONE};
use beams::BeamGroups;
use builder::BatchBuilder;
use prefix::Past;
use round_robin::RoundRobin;
use side_arrays::side_entries;
use std::collections::{BTreeMap, HashMap};
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

    /// Blocks of each KV group that the longest sequence has.
    pub(super) fn blocks_of_longest(&self) -> Vec<u32> {
        let blocks = self.max_model_len.div_ceil(self.memory.block_size);
        vec![blocks; self.memory.windows.len()]
    }
}

/// Decides what each step computes.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    memory: Memory,
    sequences: Sequences,
    by_stream: HashMap<StreamId, SequenceId>,
    groups: BeamGroups,
    /// Running sequences in scheduling order, without those that are leaving.
    running: Vec<SequenceId>,
    waiting: BTreeMap<Order, SequenceId>,
    /// Sequences that have ended or been preempted, but are still used by a step in flight.
    leaving: Vec<SequenceId>,
    feed_slots: Vec<u32>,
    adapters: AdapterPool,
    images: ImagePool,
    round_robin: RoundRobin,
    past: Past,
    answers: Answers,
    pace: Pace,
    arrivals: u64,
    steps_in_flight: u32,
    counts: Counts,
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
            memory: Memory::new(limits.memory.clone(), limits.demand()),
            sequences: Sequences::default(),
            by_stream: HashMap::new(),
            groups: BeamGroups::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            leaving: Vec::new(),
            feed_slots: (0..limits.feed_slots).rev().collect(),
            adapters: AdapterPool::new(limits.adapter_slots),
            images: ImagePool::new(limits.image_rows),
            round_robin: RoundRobin::default(),
            past: Past::default(),
            answers: Answers::default(),
            pace: Pace::default(),
            arrivals: 0,
            steps_in_flight: 0,
            counts: Counts::default(),
            admitted: Vec::new(),
            limits,
        }
    }

    /// The same scheduler with measured times that decide whether blocks move.
    pub(super) fn with_rates(mut self, rates: Rates) -> Self {
        self.memory.set_rates(rates);
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
                .all(|stream| !self.by_stream.contains_key(stream)),
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
        let holding = self.memory.holding(&self.limits.claim(&request));
        let mut sequence = Sequence::new(request, own, seed, order, holding);
        let answer_max = if sequence.request.pooling.is_some() {
            Some(1)
        } else {
            sequence.params().max_tokens
        };
        let answer_max = answer_max.unwrap_or(u32::MAX);
        // After a prompt that fills the context, the one token that is not wanted.
        let most = self.limits.max_model_len.max(sequence.prompt_len() + 1);
        sequence.tokens_limit = sequence.prompt_len().saturating_add(answer_max).min(most);
        let constrained = sequence.is_constrained();
        sequence.waits_for_host = waits_for_host || constrained || beams.is_some();
        if let Some(beams) = beams {
            let room = self
                .limits
                .beam_room()
                .tokens_max(sequence.prompt_len(), beams.width);
            sequence.tokens_limit = sequence.tokens_limit.min(room);
        }
        assert!(
            sequence.prompt_len() < sequence.tokens_limit,
            "a queued prompt leaves room for a token"
        );
        self.arrivals += 1;
        let order = sequence.order;
        let id = self.sequences.insert(sequence);
        self.waiting.insert(order, id);
        self.by_stream
            .extend(streams.iter().map(|&stream| (stream, id)));
        if let Some(beams) = beams {
            self.start_beams(id, beams, choices);
        }
    }

    /// Ends a choice whose client has gone. Its blocks are freed once no step in flight uses them.
    pub fn abort(&mut self, stream: StreamId) {
        if let Some(id) = self.by_stream.remove(&stream) {
            self.counts.finished_abort += 1;
            self.end_choice(id, stream);
        }
    }

    /// Ends a choice whose client has all that it wants, as [`Self::abort`] does.
    pub fn stop(&mut self, stream: StreamId) {
        if let Some(id) = self.by_stream.remove(&stream) {
            self.counts.finished_stop += 1;
            self.end_choice(id, stream);
        }
    }

    fn end_choice(&mut self, id: SequenceId, stream: StreamId) {
        if let Some(group) = self.group_of(id) {
            return self.abort_beams(group, stream);
        }
        let sequence = &mut self.sequences[id];
        debug_assert!(
            sequence.streams().any(|own| own == stream),
            "a stream names the sequence that computes for it"
        );
        if sequence.choice.stream != stream {
            sequence.forks.retain(|choice| choice.stream != stream);
        } else if sequence.forks.is_empty() {
            self.leave(id, Exit::Ended);
        } else {
            // Other choices still need the prompt: the next one takes it over.
            sequence.choice = sequence.forks.remove(0);
        }
    }

    /// The next step's batch, with at most `tokens_max` token rows; `None` if nothing can be computed now. At most one
    /// step may be in flight.
    pub fn schedule(&mut self, tokens_max: u32) -> Option<Batch> {
        assert!(
            self.steps_in_flight <= 1,
            "a sequence has at most one pending token"
        );
        let tokens_max = if self.limits.is_whole() {
            self.limits.tokens_max
        } else {
            tokens_max.clamp(1, self.limits.tokens_max)
        };
        self.release_computed_images();
        let mut builder = self.builder(tokens_max);
        let others = self.schedule_decodes(&mut builder);
        self.schedule_prefills(others, &mut builder);
        if !builder.preempted && builder.blocks_awaited.iter().all(|&count| count == 0) {
            self.admit(&mut builder);
        }
        if builder.batch.rows.is_empty() {
            debug_assert!(builder.batch.moves.is_empty(), "only rows take blocks");
            let idle = self.running.is_empty() && self.waiting.is_empty();
            let is_reading = self.memory.files().is_reading();
            assert!(
                idle || is_reading || self.steps_in_flight > 0,
                "with no step in flight, some sequence can always continue"
            );
            return None;
        }
        let saves = self.memory.save_some_finished();
        builder.batch.moves.saves.extend(saves);
        builder.batch.adapters = self.adapters.take_loads();
        builder.batch.tiles = self.images.take_loads();
        self.register_snapshots(&builder.batch);
        self.counts.steps += 1;
        self.counts.step_tokens.count(builder.batch.rows.len());
        self.steps_in_flight += 1;
        Some(builder.batch)
    }

    /// The flat arrays of a batch that was just scheduled. Masks are computed here, while the previous step runs.
    pub fn flatten(&mut self, batch: &Batch) -> BatchInputs {
        assert_eq!(
            batch.step + 1,
            self.counts.steps,
            "only the batch scheduled last is flattened"
        );
        batch.flatten(
            &mut self.sequences,
            self.memory.pool(),
            &self.limits.eos_token_ids,
            self.limits.vocab,
        )
    }

    /// Whether the next step may be submitted before the tokens of the step in flight are read. Rows that need the host
    /// skip such a step. It is not worthwhile with too many of them, and no row may skip two steps in a row.
    pub fn may_look_ahead(&self) -> bool {
        let waits = |id: &&SequenceId| self.sequences[**id].awaits_token();
        let waiting = self.running.iter().filter(waits).count();
        let skipped_before = self
            .running
            .iter()
            .filter(waits)
            .any(|&id| self.sequences[id].skipped);
        !skipped_before && waiting * 4 < self.running.len().max(1)
    }

    /// Whether nothing is queued, running or in flight.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.steps_in_flight == 0
    }

    /// Unused feed slots.
    pub fn feed_slots_free(&self) -> &[u32] {
        &self.feed_slots
    }

    /// Phase of a live choice.
    pub fn phase(&self, stream: StreamId) -> Option<Phase> {
        let sequence = &self.sequences[*self.by_stream.get(&stream)?];
        Some(match sequence.in_flight {
            0 if sequence.feed_slot == NONE => Phase::Queued,
            _ if sequence.tokens_total() == sequence.prompt_len() => Phase::Prefill,
            0 => Phase::Decode,
            _ => Phase::DecodeInFlight,
        })
    }

    /// Number of running sequences.
    pub fn running_len(&self) -> usize {
        self.running.len()
    }

    /// Number of waiting sequences, new or preempted.
    pub fn waiting_len(&self) -> usize {
        self.waiting.len()
    }

    /// The counters since the start.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The block pool.
    pub fn pool(&self) -> &BlockPool {
        self.memory.pool()
    }

    /// The state slots; none if the model keeps no state.
    pub fn states(&self) -> &Group {
        self.memory.states()
    }

    /// What sequences occupy.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// [`Self::memory`], for the engine to say what became of files and copies.
    pub(super) fn memory_mut(&mut self) -> &mut Memory {
        &mut self.memory
    }

    /// The scheduler's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Schedules one row for each sequence that misses one token. While there is prefill to do, a quarter of the step
    /// is kept for it. The sequence that has waited longest goes first, so that small steps serve all sequences in
    /// turn. Returns the other running sequences, in order.
    fn schedule_decodes(&mut self, builder: &mut BatchBuilder) -> Vec<SequenceId> {
        let decodes = |id: &SequenceId| {
            self.sequences[*id].is_schedulable() && self.sequences[*id].missing() == 1
        };
        let (mut ids, others): (Vec<_>, Vec<_>) = self.running.iter().copied().partition(decodes);
        ids.sort_by_key(|&id| self.sequences[id].last_step);
        let prefills =
            (!self.waiting.is_empty() && self.has_seat()) || ids.len() < self.running.len();
        let kept = if prefills { builder.tokens_left / 4 } else { 0 };
        builder.drawn = Yield::plain(ids.len());
        for id in ids {
            self.sequences[id].skipped = true;
            if builder.tokens_left > kept {
                self.schedule_row(id, builder);
            }
        }
        others
    }

    /// Schedules chunks of running sequences that miss more than one token, in order. Tokens forced by constraints come
    /// first, because they are few and their clients are waiting; they get at most half of the room. Prompts follow.
    fn schedule_prefills(&mut self, running: Vec<SequenceId>, builder: &mut BatchBuilder) {
        let (answers, prompts): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|&id| self.sequences[id].is_answering());
        let kept = if prompts.is_empty() && self.waiting.is_empty() {
            0
        } else {
            builder.tokens_left / 2
        };
        for (id, kept) in answers
            .into_iter()
            .map(|id| (id, kept))
            .chain(prompts.into_iter().map(|id| (id, 0)))
        {
            let sequence = &mut self.sequences[id];
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

    /// Schedules as many tokens of a running sequence as budget and blocks allow, and a draw if none is missing
    /// afterwards.
    fn schedule_row(&mut self, id: SequenceId, builder: &mut BatchBuilder) {
        // An earlier sequence in this step may have preempted it.
        if self.sequences[id].exit.is_some() || self.sequences[id].feed_slot == NONE {
            return;
        }
        debug_assert!(
            !self.leaving.contains(&id),
            "a leaving sequence gets no row"
        );
        let wanted = self.chunk(&self.sequences[id], builder);
        if wanted == 0 || !self.has_room_for(&self.sequences[id], wanted, builder) {
            return;
        }
        let holding = &mut self.sequences[id].holding;
        if !self.memory.has_state_for(holding, &builder.batch.moves) {
            return;
        }
        let enough = if self.limits.deterministic { wanted } else { 1 };
        if self.tokens_that_fit(id) < enough {
            self.make_room(id, enough, builder);
        }
        let count = wanted.min(self.tokens_that_fit(id));
        if self.sequences[id].exit.is_some()
            || self.sequences[id].feed_slot == NONE
            || count < enough
        {
            return;
        }
        let mut drafts = self.drafts(id, count, builder);
        let holding = &mut self.sequences[id].holding;
        let moves = &mut builder.batch.moves;
        let states = self.memory.take_state(holding, &mut drafts, moves);
        let start = holding.computed;
        self.compute_images(id, start..start + count, builder);
        let holding = &mut self.sequences[id].holding;
        let moves = &mut builder.batch.moves;
        let drafted = u32::try_from(drafts.len()).expect("drafts are few");
        self.memory.extend(holding, count + drafted, moves);
        let row = Row {
            sequence: id,
            start: holding.computed,
            count,
            drafts,
            states,
        };
        self.push_row(row, builder);
    }

    /// Number of further tokens of a sequence that blocks are there for.
    fn tokens_that_fit(&self, id: SequenceId) -> u32 {
        self.memory.tokens_that_fit(&self.sequences[id].holding)
    }

    fn has_room_for(&self, sequence: &Sequence, count: u32, builder: &BatchBuilder) -> bool {
        let entries = self.memory.blocks_for(sequence.holding.computed + count);
        entries <= builder.table_entries_left
            && builder.has_room_to_draw(sequence, self.limits.eos_token_ids.len())
    }

    fn push_row(&mut self, row: Row, builder: &mut BatchBuilder) {
        let (id, count) = (row.sequence, row.count);
        debug_assert!(
            count > 0 && count <= builder.tokens_left,
            "a row is within the step's budget"
        );
        let sequence = &mut self.sequences[id];
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
                .memory
                .blocks_for(sequence.holding.computed + row.drafted());
        let complete = sequence.missing() == 0;
        if !row.is_tentative() {
            self.register_computed(id);
        }
        builder.batch.rows.push(row);
        self.request_prompt_outputs(id, builder);
        if complete && self.sequences[id].request.pooling.is_none() {
            let row = u32::try_from(builder.batch.rows.len() - 1).expect("a batch has few rows");
            self.draw_or_unfold(id, row, builder);
        }
    }

    fn push_draw(&mut self, id: SequenceId, row: u32, builder: &mut BatchBuilder) {
        let sequence = &mut self.sequences[id];
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
        let (history, bias) = side_entries(sequence, self.limits.eos_token_ids.len(), drafted);
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
        let forks = std::mem::take(&mut self.sequences[parent].forks);
        let computed = self.sequences[parent].holding.computed;
        debug_assert!(
            forks.is_empty() || computed == self.sequences[parent].prompt_len(),
            "forks share the prompt"
        );
        for choice in forks {
            let ends = self.limits.eos_token_ids.len();
            let source = &self.sequences[parent];
            let runs = self.has_seat() && builder.has_room_to_draw(source, ends);
            let holding = if runs {
                self.memory.fork(&source.holding)
            } else {
                source.holding.unheld()
            };
            let child = source.fork(choice, holding);
            let order = child.order;
            let id = self.sequences.insert(child);
            self.by_stream.insert(choice.stream, id);
            if runs {
                self.seat(id);
                self.push_draw(id, row, builder);
            } else {
                self.waiting.insert(order, id);
            }
        }
    }

    /// Moves a sequence to the running ones.
    fn seat(&mut self, id: SequenceId) {
        debug_assert!(
            self.sequences[id].feed_slot == NONE,
            "a sequence starts running only once"
        );
        let order = self.sequences[id].order;
        let place = self
            .running
            .binary_search_by_key(&order, |&other| self.sequences[other].order);
        self.running
            .insert(place.expect_err("every sequence has its own place"), id);
        self.take_feed_slot(id);
        self.take_adapter_slot(id);
        self.take_image_rows(id);
    }

    /// Lets other sequences find the full blocks of a sequence whose token ids are known.
    fn register_full_blocks(&mut self, id: SequenceId) {
        let Sequence {
            holding, tokens, ..
        } = &mut self.sequences[id];
        self.memory.register_full_blocks(holding, tokens);
    }

    /// [`Self::register_full_blocks`], and keeps the state after its computed tokens if it should become a snapshot.
    fn register_computed(&mut self, id: SequenceId) {
        self.register_full_blocks(id);
        let sequence = &mut self.sequences[id];
        let is_beam = sequence.beam.is_some();
        let running = self.running.len();
        self.memory
            .keep_state(&mut sequence.holding, running, is_beam);
    }

    /// Makes snapshots of what the rows of a batch leave at the ends of their blocks. The next step can find them.
    fn register_snapshots(&mut self, batch: &Batch) {
        for row in &batch.rows {
            self.register_snapshot(row.sequence);
        }
    }

    fn register_snapshot(&mut self, id: SequenceId) {
        let known = self.sequences[id].tokens_known();
        let holding = &mut self.sequences[id].holding;
        self.memory.register_snapshot(holding, known);
    }

    /// Removes a sequence from the running ones or the queue: now, or once no step in flight uses it.
    fn leave(&mut self, id: SequenceId, exit: Exit) {
        let sequence = &mut self.sequences[id];
        let was_leaving = sequence.exit.replace(exit).is_some();
        if exit == Exit::Ended {
            self.counts.requests_dequeued += u64::from(sequence.holding.cached.is_none());
        }
        if was_leaving {
            return;
        }
        let order = sequence.order;
        if self.waiting.remove(&order).is_none() {
            let running = self.running.len();
            self.running.retain(|&other| other != id);
            debug_assert_eq!(
                self.running.len() + 1,
                running,
                "a sequence that leaves was running or waiting"
            );
        }
        if self.sequences[id].in_flight == 0 {
            self.settle(id);
            return;
        }
        self.leaving.push(id);
    }

    /// Releases everything that a sequence holds. A preempted one returns to the queue with its tokens, at its old
    /// place.
    fn settle(&mut self, id: SequenceId) {
        assert_eq!(
            self.sequences[id].in_flight, 0,
            "nothing that a step in flight uses is released"
        );
        self.release_feed_slot(id);
        self.release_adapter_slot(id);
        self.release_image_rows(id);
        let sequence = &mut self.sequences[id];
        self.memory
            .release(id, &mut sequence.holding, &sequence.tokens);
        match sequence.exit.take() {
            // It is queued when all beams of its group have come so far.
            Some(Exit::Preempted) if sequence.beam.is_some() => {}
            Some(Exit::Preempted) => {
                assert_eq!(
                    sequence.pending, 0,
                    "a sequence waits with all its ids known"
                );
                let order = sequence.order;
                self.waiting.insert(order, id);
            }
            _ => {
                let mut sequence = self.sequences.remove(id);
                if sequence.beam.is_none() {
                    self.by_stream.remove(&sequence.choice.stream);
                }
                self.remember_answer(&mut sequence);
                self.past.remember(sequence);
            }
        }
    }

    /// Asserts the invariants that hold between two steps.
    pub fn check(&self) {
        for sequence in self.sequences.iter() {
            assert!(
                sequence.holding.computed <= sequence.tokens_total(),
                "only existing tokens are computed"
            );
        }
        self.check_slots();
        let holdings = self.sequences.iter().map(|sequence| &sequence.holding);
        self.memory.check(holdings, self.steps_in_flight == 0);
        let order = |id: &SequenceId| self.sequences[*id].order;
        assert!(
            self.running.is_sorted_by_key(order),
            "running sequences are in order"
        );
        let queued =
            self.running.len() + self.waiting.len() + self.leaving.len() + self.folded_len();
        assert_eq!(
            queued,
            self.sequences.ids().count(),
            "every sequence is running, waiting, leaving or folded"
        );
    }
}
