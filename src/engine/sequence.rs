//! One sequence: its tokens, its block tables and what is in flight for it.
//!
//! A choice of a request becomes a sequence; choices that have not been forked yet wait in the one that computes the
//! prompt for all of them. [`Sequences`] is where they live, by number, from submission to their last step in flight.
//! Nothing here decides anything: that is the scheduler's.

use super::block_pool::{BlockHash, BlockId};
use super::request::{ConstraintState, Pooling, PrefixReport, Request, SamplingParams, Unsatisfiable, Usage};
use crate::plan::inputs::{HistoryEntry, NONE};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// Where a sequence lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(u32);

/// The receiver that a choice's events go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// Who goes first: lower is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) priority: i32,
    /// Clients are served round-robin: see [`super::scheduler`].
    pub(super) round: u64,
    pub(super) arrival: u64,
    pub(super) choice: u32,
}

/// One choice of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) index: u32,
    pub(super) stream: StreamId,
}

/// A sequence that is leaving the batch, once no step in flight names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// Back to the waiting queue, with its tokens.
    Preempted,
    /// For good.
    Ended,
}

/// The blocks of one sequence in one KV group.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    /// Block of positions `[i · block_size, (i + 1) · block_size)`; [`NONE`] where a window has passed.
    pub(super) blocks: Vec<BlockId>,
    /// Leading entries that a window has passed.
    pub(super) passed: u32,
    /// Free blocks that the pool keeps for this table.
    pub(super) reserved: u32,
}

impl Table {
    /// The blocks held, from the shallow end.
    pub(super) fn held(&self) -> impl DoubleEndedIterator<Item = BlockId> + '_ {
        self.blocks[self.passed as usize..].iter().copied()
    }
}

/// Distinct tokens of a sequence's past, kept up to date so that a step only copies them.
#[derive(Clone, Debug)]
pub(super) struct History {
    entries: Vec<HistoryEntry>,
    by_token: HashMap<u32, usize>,
}

impl History {
    fn count(&mut self, token_id: u32, generated: u32) {
        let index = *self.by_token.entry(token_id).or_insert(self.entries.len());
        if index == self.entries.len() {
            self.entries.push(HistoryEntry { token_id, generated });
        } else {
            self.entries[index].generated += generated;
        }
    }
}

/// A sequence's place within its constraint.
#[derive(Debug)]
struct Guide {
    state: Box<dyn ConstraintState>,
    /// The last mask allowed nothing.
    stuck: bool,
}

impl Clone for Guide {
    fn clone(&self) -> Self {
        Self { state: self.state.fork(), stuck: self.stuck }
    }
}

/// One choice on its way.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) request: Arc<Request>,
    pub(super) choice: Choice,
    pub(super) seed: u64,
    pub(super) order: Order,
    /// Prompt, then every generated token whose id is known.
    pub(super) tokens: Vec<u32>,
    /// Tokens sampled by submitted steps and not read yet: at most one when a step is scheduled.
    pub(super) pending: u32,
    /// Leading tokens whose keys and values are in the pool once all submitted steps have run.
    pub(super) computed: u32,
    /// Most tokens this sequence may have.
    pub(super) tokens_limit: u32,
    /// One per KV group.
    pub(super) tables: Vec<Table>,
    /// Hashes of the leading full blocks whose ids are known.
    pub(super) hashes: Vec<BlockHash>,
    /// Leading blocks that have been offered to the prefix cache.
    pub(super) registered: u32,
    /// Where the device keeps the last sampled id; [`NONE`] while waiting.
    pub(super) feed_slot: u32,
    /// Rows and draws of submitted steps that name this sequence.
    pub(super) in_flight: u32,
    pub(super) exit: Option<Exit>,
    /// Results of earlier steps are dropped: they were computed from a past that proved wrong.
    pub(super) valid_from_step: u64,
    /// Choices that will fork from this sequence when its prompt is computed.
    pub(super) forks: Vec<Choice>,
    /// Tokens found in the cache on first admission; `None` before it.
    pub(super) cached_tokens: Option<u32>,
    /// Leading tokens whose states a step was to report (for prompt logprobs, or for the embedding), and those of them
    /// that were reported.
    pub(super) outputs_requested: u32,
    pub(super) outputs_reported: u32,
    /// Sum of the states reported.
    pub(super) pooled: Vec<f64>,
    /// To be sent to the client with its first token, if it has asked.
    pub(super) prefix_report: Option<PrefixReport>,
    pub(super) preemptions: u32,
    /// Came back from preemption since somebody was last preempted.
    pub(super) resumed: bool,
    /// Holds reservations for all it may need: never preempted again.
    pub(super) guarded: bool,
    /// Could have run in the last step, but sat it out.
    pub(super) skipped: bool,
    /// Number of the last step with a row for it.
    pub(super) last_step: u64,
    /// The host has work between two tokens (a grammar, a beam): no row while one is pending.
    pub(super) waits_for_host: bool,
    history: Option<History>,
    guide: Option<Guide>,
}

impl Sequence {
    pub(super) fn new(request: Arc<Request>, choices: &[Choice], seed: u64, order: Order, groups: usize) -> Self {
        let (&choice, forks) = choices.split_first().expect("a request has a choice");
        let mut sequence = Self {
            choice,
            seed,
            order: Order { choice: choice.index, ..order },
            tokens: request.prompt.to_vec(),
            pending: 0,
            computed: 0,
            tokens_limit: 0,
            tables: vec![Table::default(); groups],
            hashes: Vec::new(),
            registered: 0,
            feed_slot: NONE,
            in_flight: 0,
            exit: None,
            valid_from_step: 0,
            forks: forks.to_vec(),
            cached_tokens: None,
            outputs_requested: 0,
            outputs_reported: 0,
            pooled: Vec::new(),
            prefix_report: None,
            preemptions: 0,
            resumed: false,
            guarded: false,
            skipped: false,
            last_step: 0,
            waits_for_host: false,
            history: None,
            guide: None,
            request,
        };
        let constraint = sequence.request.params.constraint.as_ref();
        sequence.guide = constraint.map(|constraint| Guide { state: constraint.0.start(), stuck: false });
        sequence.start_history();
        sequence
    }

    /// The sequence of another choice, from the same prompt and the same blocks. Its holder shares the blocks.
    pub(super) fn fork(&self, choice: Choice) -> Self {
        let mut fork = self.clone();
        fork.choice = choice;
        fork.order.choice = choice.index;
        fork.forks.clear();
        fork.prefix_report = None;
        (fork.feed_slot, fork.in_flight, fork.pending) = (NONE, 0, 0);
        (fork.preemptions, fork.resumed, fork.guarded, fork.skipped) = (0, false, false, false);
        fork.tables.iter_mut().for_each(|table| table.reserved = 0);
        fork
    }

    /// Forgets its blocks, which its holder has given back or lost: all of it has to be computed again.
    pub(super) fn drop_tables(&mut self) {
        self.tables.iter_mut().for_each(|table| *table = Table::default());
        (self.computed, self.registered, self.guarded) = (0, 0, false);
    }

    pub(super) fn params(&self) -> &SamplingParams {
        &self.request.params
    }

    pub(super) fn prompt_len(&self) -> u32 {
        u32::try_from(self.request.prompt.len()).expect("a prompt fits the context")
    }

    /// Leading tokens whose states the answer needs, one by one; those of a cached prefix would be missing.
    pub(super) fn states_needed(&self) -> u32 {
        match self.request.pooling {
            Some(Pooling::Mean) => self.prompt_len(),
            Some(Pooling::Last) => 0,
            None if self.params().prompt_logprobs.is_some() => self.prompt_len() - 1,
            None => 0,
        }
    }

    /// The streams of its choice and of those that will fork from it.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        std::iter::once(&self.choice).chain(&self.forks).map(|choice| choice.stream)
    }

    /// Tokens whose ids are known.
    pub(super) fn tokens_known(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("a sequence fits the context")
    }

    /// All tokens, the pending ones included.
    pub(super) fn tokens_total(&self) -> u32 {
        self.tokens_known() + self.pending
    }

    /// Tokens that the next steps have to compute.
    pub(super) fn missing(&self) -> u32 {
        self.tokens_total() - self.computed
    }

    /// Whether a step may have a row for it: something is missing, its result is wanted, and nothing has to be read
    /// first.
    pub(super) fn is_schedulable(&self) -> bool {
        let host = self.waits_for_host && self.pending > 0;
        self.exit.is_none() && self.missing() > 0 && self.tokens_total() < self.tokens_limit && !host
    }

    /// Whether its results of `step` count.
    pub(super) fn wants_result_of(&self, step: u64) -> bool {
        step >= self.valid_from_step && self.exit != Some(Exit::Ended)
    }

    /// Its prompt is computed: what is missing are tokens of its answer.
    pub(super) fn is_answering(&self) -> bool {
        self.computed >= self.prompt_len()
    }

    /// Whether a constraint holds for what it generates.
    pub(super) fn is_constrained(&self) -> bool {
        self.guide.is_some()
    }

    /// Appends the mask for its next token, `words` words, to `masks`: its start, or [`NONE`] if any token may come. A
    /// mask that allows nothing is the device's sign to draw nothing.
    pub(super) fn push_mask(&mut self, masks: &mut Vec<u32>, words: usize) -> u32 {
        let Some(guide) = &mut self.guide else { return NONE };
        let start = masks.len();
        masks.resize(start + words, 0);
        match guide.state.fill_mask(&mut masks[start..]) {
            Ok(false) => {
                masks.truncate(start);
                return NONE;
            }
            Ok(true) => guide.stuck = masks[start..].iter().all(|&word| word == 0),
            Err(Unsatisfiable) => {
                masks[start..].fill(0);
                guide.stuck = true;
            }
        }
        u32::try_from(start).expect("a batch's arrays are within their capacity")
    }

    /// Whether its last mask allowed nothing.
    pub(super) fn is_stuck(&self) -> bool {
        self.guide.as_ref().is_some_and(|guide| guide.stuck)
    }

    /// Tells the constraint a token whose id is known now; `true` if it is the last one.
    pub(super) fn guide(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        self.guide.as_mut().map_or(Ok(false), |guide| guide.state.accept(token_id))
    }

    /// Tokens that must follow. None where their logprobs are wanted, as those come from drawing.
    pub(super) fn forced(&mut self) -> Vec<u32> {
        let drawn = self.params().logprobs.is_some();
        self.guide.as_mut().filter(|_| !drawn).map_or_else(Vec::new, |guide| guide.state.forced())
    }

    /// Adds a generated token.
    pub(super) fn push(&mut self, token_id: u32) {
        self.tokens.push(token_id);
        if let Some(history) = &mut self.history {
            history.count(token_id, 1);
        }
    }

    /// Distinct tokens of the past, empty when no penalty asks for them.
    pub(super) fn history(&self) -> &[HistoryEntry] {
        self.history.as_ref().map_or(&[], |history| &history.entries)
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len(),
            cached_tokens: self.cached_tokens.unwrap_or(0),
            completion_tokens: self.tokens_known() - self.prompt_len(),
        }
    }

    /// Only a repetition penalty looks at the prompt.
    fn start_history(&mut self) {
        if !self.params().draw.has_penalties() {
            return;
        }
        let mut history = History { entries: Vec::new(), by_token: HashMap::new() };
        if self.params().draw.repetition_penalty != 1.0 {
            self.request.prompt.iter().for_each(|&token_id| history.count(token_id, 0));
        }
        self.history = Some(history);
    }
}

/// All live sequences. A number is used again only when its sequence is gone from every step.
#[derive(Debug, Default)]
pub(super) struct Sequences {
    cells: Vec<Option<Sequence>>,
    vacant: Vec<SequenceId>,
}

impl Sequences {
    pub(super) fn insert(&mut self, sequence: Sequence) -> SequenceId {
        if let Some(id) = self.vacant.pop() {
            self.cells[id.0 as usize] = Some(sequence);
            return id;
        }
        self.cells.push(Some(sequence));
        SequenceId(u32::try_from(self.cells.len() - 1).expect("live sequences are few"))
    }

    pub(super) fn remove(&mut self, id: SequenceId) -> Sequence {
        self.vacant.push(id);
        self.cells[id.0 as usize].take().expect("a removed sequence was live")
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let live = self.cells.iter().enumerate().filter(|(_, cell)| cell.is_some());
        live.map(|(index, _)| SequenceId(u32::try_from(index).expect("live sequences are few")))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.cells.iter().flatten()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.cells.len() == self.vacant.len()
    }
}

impl Index<SequenceId> for Sequences {
    type Output = Sequence;

    fn index(&self, id: SequenceId) -> &Sequence {
        self.cells[id.0 as usize].as_ref().expect("a named sequence is live")
    }
}

impl IndexMut<SequenceId> for Sequences {
    fn index_mut(&mut self, id: SequenceId) -> &mut Sequence {
        self.cells[id.0 as usize].as_mut().expect("a named sequence is live")
    }
}
