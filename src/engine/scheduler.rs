//! Queues → [`Batch`]; batch and sampled tokens → events.
//!
//! One rule, no phases: a sequence has a number of tokens, some of them computed. A step computes some of the missing
//! ones; when none is missing, it draws the next token. Prefill, chunked prefill, prefix hits and decode are all this
//! rule. [`Scheduler::schedule`] is here; `chunks` says how many tokens of a sequence a step computes, `admit` brings
//! waiting sequences in, `preempt` sends running ones back when blocks run out, `tiers` moves blocks between device and
//! host memory, `disk` between host memory and files, `states` says which states a row reads and writes, `verify` adds
//! drafts to rows and accepts them, `commit` takes results.
//!
//! Nothing that a step in flight uses is released: a sequence that ends or is preempted leaves after its last step has
//! completed. Pure: no device, clock, thread or randomness, and no knowledge of what the tokens mean.

mod admit;
mod beams;
mod blocks;
mod chunks;
mod commit;
mod counts;
pub(super) mod disk;
mod preempt;
mod prefix;
mod prompt_outputs;
mod round_robin;
mod side_arrays;
mod slots;
mod states;
#[cfg(test)]
mod tests;
mod tiers;
mod verify;

pub use commit::Events;

use super::batch::{Batch, Draw, Row};
use super::block_pool::{BlockPool, Group};
use super::faults::{InjectedFault, InjectedFaults};
use super::request::Request;
use super::sequence::{
    Choice, Exit, HeldStates, Order, Sequence, SequenceId, Sequences, StreamId, Table,
};
use super::speculation::Answers;
use super::speculation::pace::{Pace, Yield};
use super::stats::Counts;
use super::tiers::{DiskTier, HostTier, Rates, TierLimits};
use crate::config::Speculation;
use crate::plan::inputs::{BatchInputs, NONE};
use beams::BeamGroups;
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
    /// Maximum rows per batch that draw a token: those of sequences, and drafts.
    pub draws_max: u32,
    /// Number of feed slots, where the device stores sampled ids. Twice `max_num_seqs`, because a leaving sequence
    /// keeps its slot for a step.
    pub feed_slots: u32,
    /// Number of state slots; 0 if the model keeps no state. At least one for each of `max_num_seqs`; the others are
    /// for snapshots.
    pub state_slots: u32,
    /// Maximum block-table entries per batch and KV group.
    pub table_entries_max: u32,
    /// Maximum penalty history entries per batch.
    pub history_max: u32,
    /// Maximum logit bias entries per batch.
    pub bias_max: u32,
    /// Maximum prompt tokens per batch whose logprobs are computed.
    pub scores_max: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// Maximum tokens of prompt and answer together.
    pub max_model_len: u32,
    /// Vocabulary size: every token id is below it.
    pub vocab: u32,
    /// Attention window of each KV group, in tokens; `None` for full attention.
    pub windows: Vec<Option<u32>>,
    /// Number of blocks of each KV group.
    pub blocks: Vec<u32>,
    /// Whether requests with equal prefixes share blocks.
    pub prefix_caching: bool,
    /// Whether a sequence is always computed in the same chunks, whatever else runs.
    pub deterministic: bool,
    /// How the next tokens are guessed; `None`: they are not.
    pub speculation: Option<Speculation>,
    /// Token ids that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Key of the hashes of blocks with a salt.
    pub hash_key: [u8; 32],
    /// Key of the hashes of other blocks. With a disk, it is the same in every process that can use the same files.
    pub shared_key: [u8; 32],
    /// Sizes of the colder tiers.
    pub tiers: TierLimits,
}

impl Limits {
    /// Blocks of each KV group that the longest sequence has.
    pub(super) fn blocks_of_longest(&self) -> Vec<u32> {
        vec![self.max_model_len.div_ceil(self.block_size); self.windows.len()]
    }
}

/// Decides what each step computes.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: BlockPool,
    host: HostTier,
    disk: DiskTier,
    rates: Rates,
    /// Uploads from host memory by the steps in flight.
    restores_in_flight: u32,
    sequences: Sequences,
    by_stream: HashMap<StreamId, SequenceId>,
    groups: BeamGroups,
    /// Running sequences in scheduling order, without those that are leaving.
    running: Vec<SequenceId>,
    waiting: BTreeMap<Order, SequenceId>,
    /// Sequences that have ended or been preempted, but are still used by a step in flight.
    leaving: Vec<SequenceId>,
    feed_slots: Vec<u32>,
    /// The state slots, held and cached like blocks: see [`states`].
    states: Group,
    /// Number of steps in flight that write each state slot.
    state_writes: Vec<u32>,
    round_robin: RoundRobin,
    past: Past,
    answers: Answers,
    pace: Pace,
    arrivals: u64,
    steps_in_flight: u32,
    counts: Counts,
    /// First choices of requests that were admitted since [`Self::take_admitted`].
    admitted: Vec<StreamId>,
    faults: InjectedFaults,
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

/// A batch under construction, with what is left of its limits.
struct Draft {
    batch: Batch,
    tokens_left: u32,
    table_entries_left: u32,
    history_left: u32,
    bias_left: u32,
    scores_left: u32,
    drafts_left: u32,
    /// What the rows that draw a token yield so far.
    drawn: Yield,
    preempted: bool,
    /// Per KV group: number of blocks held by leaving sequences that skipped sequences are waiting for.
    blocks_awaited: Vec<u32>,
}

impl Scheduler {
    /// A scheduler over an empty pool.
    pub fn new(limits: Limits, faults: InjectedFaults) -> Self {
        assert!(
            limits.tokens_max > 0 && limits.max_num_seqs > 0,
            "a step has room for a row"
        );
        assert!(
            !limits.deterministic || limits.tokens_max >= limits.block_size,
            "a step has room for a fixed chunk"
        );
        Self {
            pool: BlockPool::new(limits.block_size, &limits.windows, &limits.blocks, faults),
            host: HostTier::new(
                limits.tiers.host_bytes,
                limits.tiers.block_bytes.clone(),
                faults,
            ),
            disk: DiskTier::new(limits.tiers.disk, limits.tiers.block_bytes.clone()),
            rates: Rates::default(),
            restores_in_flight: 0,
            sequences: Sequences::default(),
            by_stream: HashMap::new(),
            groups: BeamGroups::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            leaving: Vec::new(),
            feed_slots: (0..limits.feed_slots).rev().collect(),
            states: Group::new(None, limits.state_slots, faults),
            state_writes: vec![0; limits.state_slots as usize],
            round_robin: RoundRobin::default(),
            past: Past::default(),
            answers: Answers::default(),
            pace: Pace::default(),
            arrivals: 0,
            steps_in_flight: 0,
            counts: Counts::default(),
            admitted: Vec::new(),
            limits,
            faults,
        }
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
        let mut sequence = Sequence::new(request, own, seed, order, self.limits.windows.len());
        let answer_max = if sequence.request.pooling.is_some() {
            Some(1)
        } else {
            sequence.params().max_tokens
        };
        let answer_max = answer_max.unwrap_or(u32::MAX);
        // After a prompt that fills the context, the one token that is not wanted.
        let most = self.limits.max_model_len.max(sequence.prompt_len() + 1);
        sequence.tokens_limit = sequence.prompt_len().saturating_add(answer_max).min(most);
        let constrained =
            sequence.is_constrained() && !self.faults.has(InjectedFault::MaskBeforeToken);
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
        let mut draft = self.draft(tokens_max.clamp(1, self.limits.tokens_max));
        let others = self.schedule_decodes(&mut draft);
        self.schedule_prefills(others, &mut draft);
        if !draft.preempted && draft.blocks_awaited.iter().all(|&count| count == 0) {
            self.admit(&mut draft);
        }
        if draft.batch.rows.is_empty() {
            debug_assert!(
                draft.batch.saves.is_empty() && draft.batch.restores.is_empty(),
                "only rows take blocks"
            );
            let idle =
                self.running.is_empty() && self.waiting.is_empty() || !self.disk.reading.is_empty();
            assert!(
                idle || self.steps_in_flight > 0,
                "with no step in flight, some sequence can always continue"
            );
            return None;
        }
        self.save_some_finished(&mut draft.batch.saves);
        self.register_snapshots(&draft.batch);
        self.counts.steps += 1;
        self.steps_in_flight += 1;
        Some(draft.batch)
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
            &self.pool,
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
        &self.pool
    }

    /// The state slots; none if the model keeps no state.
    pub fn states(&self) -> &Group {
        &self.states
    }

    /// The blocks in host memory.
    pub fn host(&self) -> &HostTier {
        &self.host
    }

    /// The scheduler's limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn draft(&self, tokens_max: u32) -> Draft {
        let groups = self.limits.windows.len();
        let copies = vec![Vec::new(); groups];
        let (rows, draws) = (
            Vec::with_capacity(self.running.len()),
            Vec::with_capacity(self.running.len()),
        );
        let (scores, pools) = (Vec::new(), Vec::new());
        Draft {
            batch: Batch {
                step: self.counts.steps,
                rows,
                draws,
                scores,
                pools,
                copies,
                saves: Vec::new(),
                restores: Vec::new(),
                faults: self.faults,
            },
            tokens_left: tokens_max,
            table_entries_left: self.limits.table_entries_max,
            history_left: self.limits.history_max,
            bias_left: self.limits.bias_max,
            scores_left: self.limits.scores_max,
            drafts_left: self.drafts_max(tokens_max),
            drawn: Yield::default(),
            preempted: false,
            blocks_awaited: vec![0; groups],
        }
    }

    /// Schedules one row for each sequence that misses one token. While there is prefill to do, a quarter of the step
    /// is kept for it. The sequence that has waited longest goes first, so that small steps serve all sequences in
    /// turn. Returns the other running sequences, in order.
    fn schedule_decodes(&mut self, draft: &mut Draft) -> Vec<SequenceId> {
        let decodes = |id: &SequenceId| {
            self.sequences[*id].is_schedulable() && self.sequences[*id].missing() == 1
        };
        let (mut ids, others): (Vec<_>, Vec<_>) = self.running.iter().copied().partition(decodes);
        ids.sort_by_key(|&id| self.sequences[id].last_step);
        let prefills =
            (!self.waiting.is_empty() && self.has_seat()) || ids.len() < self.running.len();
        let kept = if prefills { draft.tokens_left / 4 } else { 0 };
        draft.drawn = Yield::plain(ids.len());
        for id in ids {
            self.sequences[id].skipped = true;
            if draft.tokens_left > kept {
                self.schedule_row(id, draft);
            }
        }
        others
    }

    /// Schedules chunks of running sequences that miss more than one token, in order. Tokens forced by constraints come
    /// first, because they are few and their clients are waiting; they get at most half of the room. Prompts follow.
    fn schedule_prefills(&mut self, running: Vec<SequenceId>, draft: &mut Draft) {
        let (answers, prompts): (Vec<_>, Vec<_>) = running
            .into_iter()
            .partition(|&id| self.sequences[id].is_answering());
        let kept = if prompts.is_empty() && self.waiting.is_empty() {
            0
        } else {
            draft.tokens_left / 2
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
                && draft.tokens_left > kept
            {
                self.schedule_row(id, draft);
            }
        }
    }

    /// Schedules as many tokens of a running sequence as budget and blocks allow, and a draw if none is missing
    /// afterwards.
    fn schedule_row(&mut self, id: SequenceId, draft: &mut Draft) {
        // An earlier sequence in this step may have preempted it.
        if self.sequences[id].exit.is_some() || self.sequences[id].feed_slot == NONE {
            return;
        }
        debug_assert!(
            !self.leaving.contains(&id),
            "a leaving sequence gets no row"
        );
        let wanted = self.chunk(&self.sequences[id], draft);
        if wanted == 0
            || !self.has_room_for(&self.sequences[id], wanted, draft)
            || !self.has_state_for(id, draft)
        {
            return;
        }
        let enough = if self.limits.deterministic { wanted } else { 1 };
        if self.tokens_that_fit(id) < enough {
            self.make_room(id, enough, draft);
        }
        let count = wanted.min(self.tokens_that_fit(id));
        if self.sequences[id].exit.is_some()
            || self.sequences[id].feed_slot == NONE
            || count < enough
        {
            return;
        }
        let mut drafts = self.drafts(id, count, draft);
        let states = self.take_state(id, &mut drafts, draft);
        let drafted = u32::try_from(drafts.len()).expect("drafts are few");
        self.take_blocks(id, count + drafted, draft);
        self.push_row(
            Row {
                sequence: id,
                start: self.sequences[id].computed,
                count,
                drafts,
                states,
            },
            draft,
        );
    }

    fn has_room_for(&self, sequence: &Sequence, count: u32, draft: &Draft) -> bool {
        let entries = self.pool.blocks_for(sequence.computed + count);
        entries <= draft.table_entries_left
            && draft.has_room_to_draw(sequence, self.limits.eos_token_ids.len())
    }

    fn push_row(&mut self, row: Row, draft: &mut Draft) {
        let (id, count) = (row.sequence, row.count);
        debug_assert!(
            count > 0 && count <= draft.tokens_left,
            "a row is within the step's budget"
        );
        let sequence = &mut self.sequences[id];
        debug_assert!(
            count <= sequence.missing(),
            "a row computes only existing tokens"
        );
        // Drafts are computed too, but count only once they are accepted.
        sequence.computed += count;
        sequence.in_flight += 1;
        sequence.skipped = false;
        sequence.last_step = draft.batch.step;
        let tables = 1 + if row.states.is_some() {
            0
        } else {
            row.drafted()
        };
        draft.tokens_left -= count + row.drafted();
        draft.drafts_left -= row.drafted();
        draft.table_entries_left -=
            tables * self.pool.blocks_for(sequence.computed + row.drafted());
        let complete = sequence.missing() == 0;
        if !row.is_tentative() {
            self.register_full_blocks(id);
            self.keep_state(id);
        }
        if self.faults.has(InjectedFault::DraftsHashed) {
            self.register_drafts(id, &row.drafts);
        }
        draft.batch.rows.push(row);
        self.request_prompt_outputs(id, draft);
        if complete && self.sequences[id].request.pooling.is_none() {
            let row = u32::try_from(draft.batch.rows.len() - 1).expect("a batch has few rows");
            self.draw_or_unfold(id, row, draft);
        }
    }

    fn push_draw(&mut self, id: SequenceId, row: u32, draft: &mut Draft) {
        let sequence = &mut self.sequences[id];
        debug_assert!(
            (row as usize) < draft.batch.rows.len(),
            "a draw follows a row"
        );
        let drafted = draft.batch.rows[row as usize].drafted();
        debug_assert!(
            drafted == 0 || sequence.pending == 0,
            "a draft follows known tokens"
        );
        debug_assert!(
            sequence.feed_slot != NONE && sequence.pending <= 1,
            "a running sequence draws its next token"
        );
        let (history, bias) = side_entries(sequence, self.limits.eos_token_ids.len(), drafted);
        draft.history_left -= history;
        draft.bias_left -= bias;
        sequence.verifies = drafted > 0;
        draft.batch.draws.push(Draw {
            sequence: id,
            row,
            pending: sequence.pending > 0,
        });
        sequence.pending += 1;
        sequence.in_flight += 1;
    }

    /// Forks the other choices of a prompt that is now computed: they draw from the same row of logits and share its
    /// blocks. Choices that do not fit `max_num_seqs` wait like separate requests.
    fn fork(&mut self, parent: SequenceId, row: u32, draft: &mut Draft) {
        let forks = std::mem::take(&mut self.sequences[parent].forks);
        let computed = self.sequences[parent].computed;
        debug_assert!(
            forks.is_empty() || computed == self.sequences[parent].prompt_len(),
            "forks share the prompt"
        );
        for choice in forks {
            let mut child = self.sequences[parent].fork(choice);
            let order = child.order;
            if !self.has_seat() || !draft.has_room_to_draw(&child, self.limits.eos_token_ids.len())
            {
                child.drop_tables();
                child.states = HeldStates::default();
                let id = self.sequences.insert(child);
                self.waiting.insert(order, id);
                self.by_stream.insert(choice.stream, id);
                continue;
            }
            self.hold(&child.tables, &child.states);
            let id = self.sequences.insert(child);
            self.by_stream.insert(choice.stream, id);
            self.seat(id);
            self.push_draw(id, row, draft);
        }
    }

    /// Becomes a holder of a fork's blocks and of its state.
    fn hold(&mut self, tables: &[Table], states: &HeldStates) {
        for (group, table) in tables.iter().enumerate() {
            table
                .held()
                .for_each(|block| self.pool.group_mut(group).share(block));
        }
        states.held().for_each(|slot| self.states.share(slot));
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
    }

    /// Registers the full blocks whose token ids are known in the prefix cache. Keys and values are written before
    /// anything reads them, so a block counts as full as soon as the step that fills it is scheduled.
    fn register_full_blocks(&mut self, id: SequenceId) {
        if !self.limits.prefix_caching {
            return;
        }
        let sequence = &self.sequences[id];
        let known = sequence.tokens_known();
        let computed = if self.faults.has(InjectedFault::HashOfPartBlock) {
            known
        } else {
            sequence.computed
        };
        let full = computed.min(known).min(self.shareable(sequence)) / self.limits.block_size;
        self.extend_hashes(id, full);
        let sequence = &mut self.sequences[id];
        debug_assert!(
            full as usize <= sequence.hashes.len(),
            "a registered block has a hash"
        );
        for index in sequence.registered..full {
            for (group, table) in sequence
                .tables
                .iter()
                .enumerate()
                .filter(|(_, table)| index >= table.passed)
            {
                if let Some(&block) = table.blocks.get(index as usize) {
                    self.pool
                        .group_mut(group)
                        .register(block, sequence.hashes[index as usize]);
                }
            }
        }
        sequence.registered = sequence.registered.max(full);
    }

    /// Removes a sequence from the running ones or the queue: now, or once no step in flight uses it.
    fn leave(&mut self, id: SequenceId, exit: Exit) {
        let sequence = &mut self.sequences[id];
        let was_leaving = sequence.exit.replace(exit).is_some();
        if exit == Exit::Ended {
            let lost = self.faults.has(InjectedFault::QueuedAbortCountLost);
            self.counts.requests_dequeued += u64::from(sequence.cached_tokens.is_none() && !lost);
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
        if exit == Exit::Ended && self.faults.has(InjectedFault::EarlyRelease) {
            self.release_blocks(id);
        }
        if exit == Exit::Ended && self.faults.has(InjectedFault::FeedSlotReusedEarly) {
            self.release_feed_slot(id);
        }
    }

    /// Releases everything that a sequence holds. A preempted one returns to the queue with its tokens, at its old
    /// place.
    fn settle(&mut self, id: SequenceId) {
        assert_eq!(
            self.sequences[id].in_flight, 0,
            "nothing that a step in flight uses is released"
        );
        self.end_disk_wait(id);
        self.finish_blocks(id);
        self.release_blocks(id);
        self.release_feed_slot(id);
        self.release_states(id);
        let sequence = &mut self.sequences[id];
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
                let shareable = self.shareable(&sequence);
                self.remember_answer(&mut sequence);
                self.past.remember(sequence, shareable);
            }
        }
    }

    fn release_blocks(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        debug_assert!(
            sequence.exit.is_some(),
            "only a leaving sequence releases its blocks"
        );
        for (group, table) in sequence.tables.iter().enumerate() {
            self.pool.group_mut(group).unreserve(table.reserved);
            let release = |block| self.pool.group_mut(group).release(block);
            if self.faults.has(InjectedFault::HeadEvictedFirst) {
                table.held().for_each(release);
            } else {
                table.held().rev().for_each(release);
            }
        }
        sequence.drop_tables();
    }

    /// Asserts the invariants that hold between two steps.
    pub fn check(&self) {
        let mut occurrences: Vec<_> = self
            .limits
            .blocks
            .iter()
            .map(|&count| vec![0; count as usize])
            .collect();
        for sequence in self.sequences.iter() {
            for (table, occurrences) in sequence.tables.iter().zip(&mut occurrences) {
                table
                    .held()
                    .for_each(|block| occurrences[block as usize] += 1);
            }
            assert!(
                sequence.computed <= sequence.tokens_total(),
                "only existing tokens are computed"
            );
        }
        self.pool.check(&occurrences);
        self.host.check(
            self.restores_in_flight,
            self.sequences
                .iter()
                .map(|sequence| sequence.disk.arrived.len() + sequence.disk.kept.len())
                .sum(),
        );
        self.check_slots();
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
