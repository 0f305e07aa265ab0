//! One sequence: its tokens, its block tables and what is in flight for it.
//!
//! A choice of a request becomes a sequence; choices that have not been forked yet are listed in the sequence that
//! computes the prompt for all of them. [`Sequences`] stores them by number, from submission until their last step in
//! flight has completed. This module only stores state; the scheduler makes the decisions.

use super::memory::Holding;
pub use super::memory::SequenceId;
use super::request::{
    Cached, ConstraintState, DraftReport, DraftSkip, Pooling, PrefixReport, Request,
    SamplingParams, Tile, Token, Unsatisfiable, Usage,
};
use super::speculation::Drafter;
use crate::plan::inputs::{HistoryEntry, NONE};
use std::collections::HashMap;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// The receiver that a choice's events go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

/// The beams of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupId(pub(super) u64);

/// The part of a sequence in a beam search.
#[derive(Clone, Debug)]
pub(super) struct Beam {
    pub(super) group: GroupId,
    /// Sum of the logprobs of its generated tokens.
    pub(super) score: f64,
    /// Its generated tokens.
    pub(super) answer: Vec<Token>,
    /// Its best continuations with their logprobs, best first, once they are read. Until its group advances, its next
    /// token is pending.
    pub(super) candidates: Option<Vec<(u32, f32)>>,
}

impl Beam {
    pub(super) fn new(group: GroupId) -> Self {
        Self {
            group,
            score: 0.0,
            answer: Vec::new(),
            candidates: None,
        }
    }
}

/// Scheduling order: lower is earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order {
    pub(super) priority: i32,
    /// Round-robin round of the client: see [`super::scheduler`].
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

/// Why a sequence leaves the batch. It leaves once no step in flight uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// It returns to the waiting queue and keeps its tokens.
    Preempted,
    /// It has ended.
    Ended,
}

/// Distinct past tokens of a sequence that penalties count, kept up to date so that a step only copies them.
#[derive(Clone, Debug)]
pub(super) struct History {
    entries: Vec<HistoryEntry>,
    by_token: HashMap<u32, usize>,
}

impl History {
    fn count(&mut self, token_id: u32, generated: u32) {
        let index = *self.by_token.entry(token_id).or_insert(self.entries.len());
        if index == self.entries.len() {
            self.entries.push(HistoryEntry {
                token_id,
                generated,
            });
        } else {
            self.entries[index].generated += generated;
        }
    }

    /// Counts a token of a window once less, and forgets it if that was the last time.
    fn uncount(&mut self, token_id: u32) {
        let Some(&index) = self.by_token.get(&token_id) else {
            return;
        };
        self.entries[index].generated -= 1;
        if self.entries[index].generated == 0 {
            self.by_token.remove(&token_id);
            self.entries.swap_remove(index);
            if let Some(moved) = self.entries.get(index) {
                self.by_token.insert(moved.token_id, index);
            }
        }
    }
}

/// Constraint state of a sequence.
#[derive(Debug)]
struct Guide {
    state: Box<dyn ConstraintState>,
    /// Whether the last mask allowed no token.
    stuck: bool,
}

impl Clone for Guide {
    fn clone(&self) -> Self {
        Self {
            state: self.state.fork(),
            stuck: self.stuck,
        }
    }
}

/// One choice that is being computed.
#[derive(Clone, Debug)]
pub(super) struct Sequence {
    pub(super) request: Arc<Request>,
    pub(super) choice: Choice,
    pub(super) seed: u64,
    pub(super) order: Order,
    /// Ids of the prompt, then of every generated token that has been read.
    pub(super) tokens: Vec<u32>,
    /// Number of tokens sampled by submitted steps and not read yet: at most one when a step is scheduled.
    pub(super) pending: u32,
    /// Maximum length of this sequence, in tokens.
    pub(super) tokens_limit: u32,
    /// Its blocks and states.
    pub(super) holding: Holding,
    /// Feed slot where the device stores the last sampled id; [`NONE`] while waiting.
    pub(super) feed_slot: u32,
    /// Slot of its adapter while it runs; 0 without adapter.
    pub(super) adapter_slot: u32,
    /// While it runs: where the rows of each of its request's tiles are on the device, until their tokens are computed.
    pub(super) image_rows: Vec<Option<Arc<[u32]>>>,
    /// Number of rows and draws of submitted steps that use this sequence.
    pub(super) in_flight: u32,
    pub(super) exit: Option<Exit>,
    /// Results of steps before this one are dropped, because they were computed from invalid tokens or blocks.
    pub(super) valid_from_step: u64,
    /// Choices that will fork from this sequence when its prompt is computed.
    pub(super) forks: Vec<Choice>,
    /// Number of leading tokens whose states were requested from steps (for prompt logprobs or the embedding), and how
    /// many of them were reported.
    pub(super) outputs_requested: u32,
    pub(super) outputs_reported: u32,
    /// Sum of the reported states.
    pub(super) pooled: Vec<f64>,
    /// Number of prompt tokens that were last reported as computed.
    pub(super) progress_reported: u32,
    /// Sent to the client before its first token, if requested.
    pub(super) prefix_report: Option<PrefixReport>,
    pub(super) preemptions: u32,
    /// Whether it resumed from preemption since the last preemption of any sequence.
    pub(super) resumed: bool,
    /// Whether it could have run in the last step, but was skipped.
    pub(super) skipped: bool,
    /// Number of the last step with a row for it.
    pub(super) last_step: u64,
    /// Whether the host has work between two tokens (a grammar, a beam). It gets no row while a token is pending.
    pub(super) waits_for_host: bool,
    /// Guesses its next tokens, once its prompt is computed.
    pub(super) drafter: Option<Box<Drafter>>,
    /// Whether its guesses are good enough to wait for a token before the next row, which then verifies them.
    pub(super) draft_skip: Option<DraftSkip>,
    pub(super) draft_report: DraftReport,
    /// Whether its last draw verifies drafts, so that the number of its tokens is not known yet.
    pub(super) verifies: bool,
    pub(super) beam: Option<Box<Beam>>,
    history: Option<History>,
    guide: Option<Guide>,
}

impl Sequence {
    pub(super) fn new(
        request: Arc<Request>,
        choices: &[Choice],
        seed: u64,
        order: Order,
        holding: Holding,
    ) -> Self {
        let (&choice, forks) = choices.split_first().expect("a request has a choice");
        let mut sequence = Self {
            choice,
            seed,
            order: Order {
                choice: choice.index,
                ..order
            },
            tokens: request.marked_prompt(),
            pending: 0,
            tokens_limit: 0,
            holding,
            feed_slot: NONE,
            adapter_slot: 0,
            image_rows: Vec::new(),
            in_flight: 0,
            exit: None,
            valid_from_step: 0,
            forks: forks.to_vec(),
            outputs_requested: 0,
            outputs_reported: 0,
            progress_reported: 0,
            pooled: Vec::new(),
            prefix_report: None,
            preemptions: 0,
            resumed: false,
            skipped: false,
            last_step: 0,
            waits_for_host: false,
            drafter: None,
            draft_skip: Some(DraftSkip::NothingFound),
            draft_report: DraftReport::default(),
            verifies: false,
            beam: None,
            history: None,
            guide: None,
            request,
        };
        let constraint = sequence.request.params.constraint.as_ref();
        sequence.guide = constraint.map(|constraint| Guide {
            state: constraint.0.start(),
            stuck: false,
        });
        sequence.start_history();
        sequence
    }

    /// The group of a beam.
    pub(super) fn group(&self) -> Option<GroupId> {
        self.beam.as_ref().map(|beam| beam.group)
    }

    /// Whether it has a seat, and keeps it.
    pub(super) fn is_running(&self) -> bool {
        self.feed_slot != NONE && self.exit.is_none()
    }

    /// The sequence of another choice with the same tokens, which holds `holding`.
    pub(super) fn fork(&self, choice: Choice, holding: Holding) -> Self {
        let mut fork = Self {
            choice,
            holding,
            forks: Vec::new(),
            prefix_report: None,
            feed_slot: NONE,
            adapter_slot: 0,
            image_rows: Vec::new(),
            in_flight: 0,
            pending: 0,
            preemptions: 0,
            resumed: false,
            skipped: false,
            ..self.clone()
        };
        fork.order.choice = choice.index;
        fork
    }

    pub(super) fn params(&self) -> &SamplingParams {
        &self.request.params
    }

    pub(super) fn prompt_len(&self) -> u32 {
        u32::try_from(self.request.prompt.len()).expect("a prompt fits the context")
    }

    /// Number of leading tokens whose states the answer needs individually. They cannot come from the prefix cache.
    pub(super) fn states_needed(&self) -> u32 {
        match self.request.pooling {
            Some(Pooling::Mean | Pooling::All) => self.prompt_len(),
            Some(Pooling::First | Pooling::Last) => 0,
            None if self.params().prompt_logprobs.is_some() => self.prompt_len() - 1,
            None => 0,
        }
    }

    /// Number of its leading tokens that need not be computed if they are cached. The last token always is, because its
    /// logits are needed, and so are those whose states are still to be reported.
    pub(super) fn reusable(&self) -> u32 {
        let before_last = self.tokens_known() - 1;
        if self.states_needed() > self.outputs_requested {
            before_last.min(self.outputs_requested)
        } else {
            before_last
        }
    }

    /// The streams of its own choice and of the choices that will fork from it.
    pub(super) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        std::iter::once(&self.choice)
            .chain(&self.forks)
            .map(|choice| choice.stream)
    }

    /// Its request's tiles whose rows it uses, with where these are.
    pub(super) fn tiles_in_use(&self) -> impl Iterator<Item = (&Tile, &Arc<[u32]>)> {
        let tiles = self.request.tiles.iter().zip(&self.image_rows);
        tiles.filter_map(|(tile, rows)| Some((tile, rows.as_ref()?)))
    }

    /// Number of tokens whose ids are known.
    pub(super) fn tokens_known(&self) -> u32 {
        u32::try_from(self.tokens.len()).expect("a sequence fits the context")
    }

    /// Number of tokens, including pending ones.
    pub(super) fn tokens_total(&self) -> u32 {
        self.tokens_known() + self.pending
    }

    /// Number of tokens that are not computed yet.
    pub(super) fn missing(&self) -> u32 {
        self.tokens_total() - self.holding.computed
    }

    /// Whether a step may have a row for it, if some token is missing: its result is wanted, and no pending token must
    /// be read first.
    pub(super) fn is_schedulable(&self) -> bool {
        self.exit.is_none() && self.tokens_total() < self.tokens_limit && !self.awaits_token()
    }

    /// Whether its pending token must be read before it gets a row.
    pub(super) fn awaits_token(&self) -> bool {
        self.pending > 0 && (self.waits_for_host || self.draft_skip.is_none() || self.verifies)
    }

    /// Whether its results of `step` are valid and wanted.
    pub(super) fn wants_result_of(&self, step: u64) -> bool {
        step >= self.valid_from_step && self.exit != Some(Exit::Ended)
    }

    /// Whether its prompt is computed, so that only tokens of the answer are missing.
    pub(super) fn is_answering(&self) -> bool {
        self.holding.computed >= self.prompt_len()
    }

    /// Whether a constraint applies to what it generates.
    pub(super) fn is_constrained(&self) -> bool {
        self.guide.is_some()
    }

    /// Appends the mask for its next token, `words` words, to `masks`. Returns the mask's offset, or [`NONE`] if any
    /// token is allowed. For a mask that allows no token, the device draws nothing.
    pub(super) fn push_mask(&mut self, masks: &mut Vec<u32>, words: usize) -> u32 {
        let Some(guide) = &mut self.guide else {
            return NONE;
        };
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

    /// Appends the masks for the tokens after each of these drafts, which the constraint allows. Returns their offsets.
    pub(super) fn push_draft_masks(
        &self,
        drafts: &[u32],
        masks: &mut Vec<u32>,
        words: usize,
    ) -> Vec<u32> {
        let Some(guide) = self.guide.as_ref() else {
            return vec![NONE; drafts.len()];
        };
        if drafts.is_empty() {
            return Vec::new();
        }
        let mut state = guide.state.fork();
        let mut push = |&draft: &u32| {
            let start = masks.len();
            masks.resize(start + words, 0);
            match state
                .accept(draft)
                .and_then(|_| state.fill_mask(&mut masks[start..]))
            {
                Ok(true) => {}
                Ok(false) => {
                    masks.truncate(start);
                    return NONE;
                }
                // Nothing is drawn, so the draft is the last one accepted; the next step finds out why.
                Err(Unsatisfiable) => masks[start..].fill(0),
            }
            u32::try_from(start).expect("a batch's arrays are within their capacity")
        };
        drafts.iter().map(&mut push).collect()
    }

    /// The leading drafts that the constraint allows, without one after which nothing may follow.
    pub(super) fn allowed(&self, mut drafts: Vec<u32>) -> Vec<u32> {
        if let Some(guide) = self.guide.as_ref()
            && !drafts.is_empty()
        {
            let mut state = guide.state.fork();
            let allowed = drafts
                .iter()
                .take_while(|&&draft| state.accept(draft) == Ok(false))
                .count();
            drafts.truncate(allowed);
        }
        drafts
    }

    /// Tokens that must follow, for a sequence that draws them because of their logprobs.
    pub(super) fn forced_drafts(&self) -> Vec<u32> {
        match &self.guide {
            Some(guide) if self.params().logprobs.is_some() => guide.state.fork().forced(),
            _ => Vec::new(),
        }
    }

    /// Whether its last mask allowed no token.
    pub(super) fn is_stuck(&self) -> bool {
        self.guide.as_ref().is_some_and(|guide| guide.stuck)
    }

    /// Whether nothing may follow this token, as far as the constraint is concerned.
    pub(super) fn would_end_with(&self, token_id: u32) -> Result<bool, Unsatisfiable> {
        self.guide
            .as_ref()
            .map_or(Ok(false), |guide| guide.state.fork().accept(token_id))
    }

    /// Passes a token whose id has become known to the constraint. Returns `true` if nothing may follow it.
    pub(super) fn guide(&mut self, token_id: u32) -> Result<bool, Unsatisfiable> {
        self.guide
            .as_mut()
            .map_or(Ok(false), |guide| guide.state.accept(token_id))
    }

    /// Tokens that must follow. Empty if logprobs were requested, because only drawing computes them.
    pub(super) fn forced(&mut self) -> Vec<u32> {
        if self.params().logprobs.is_some() {
            return Vec::new();
        }
        self.guide
            .as_mut()
            .map_or_else(Vec::new, |guide| guide.state.forced())
    }

    /// Adds a generated token.
    pub(super) fn push(&mut self, token_id: u32) {
        let leaving = self.leaving(1, &[]);
        self.tokens.push(token_id);
        if let Some(history) = &mut self.history {
            history.count(token_id, 1);
            leaving.into_iter().for_each(|left| history.uncount(left));
        }
        if let Some(drafter) = &mut self.drafter {
            drafter.push(token_id);
        }
    }

    /// [`Self::history`] as it will be once these drafts are accepted. With `pending`, without the token that makes
    /// room in the window for one more, which the device adds.
    pub(super) fn history_with(&self, drafts: &[u32], pending: bool) -> Vec<HistoryEntry> {
        let Some(history) = &self.history else {
            return Vec::new();
        };
        let mut entries = history.entries.clone();
        for &draft in drafts {
            match index_in(&entries, history, draft) {
                Some(index) => entries[index].generated += 1,
                None => entries.push(HistoryEntry {
                    token_id: draft,
                    generated: 1,
                }),
            }
        }
        if self.params().penalty_window.is_some() {
            for left in self.leaving(drafts.len() + usize::from(pending), drafts) {
                if let Some(index) = index_in(&entries, history, left) {
                    entries[index].generated -= 1;
                }
            }
            entries.retain(|entry| entry.generated > 0);
        }
        entries
    }

    /// The tokens that leave the window of the penalties when there are this many more, the first of them `drafts`.
    fn leaving(&self, more: usize, drafts: &[u32]) -> Vec<u32> {
        let (Some(window), true) = (self.params().penalty_window, self.history.is_some()) else {
            return Vec::new();
        };
        let begin = |len: usize| len.saturating_sub(window as usize);
        let known = self.tokens.len();
        (begin(known)..begin(known + more))
            .filter_map(|at| self.tokens.get(at).or_else(|| drafts.get(at - known)))
            .copied()
            .collect()
    }

    /// Distinct past tokens; empty if no penalty needs them.
    pub(super) fn history(&self) -> &[HistoryEntry] {
        self.history
            .as_ref()
            .map_or(&[], |history| &history.entries)
    }

    /// Its prompt tokens that were found in the prefix cache.
    pub(super) fn cached(&self) -> Cached {
        self.holding.cached.unwrap_or_default()
    }

    pub(super) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len(),
            cached: self.cached(),
            completion_tokens: self.tokens_known() - self.prompt_len(),
        }
    }

    /// Starts the history. A window includes the end of the prompt; without one, only a repetition penalty includes the
    /// prompt.
    fn start_history(&mut self) {
        if !self.params().draw.has_penalties() {
            return;
        }
        let mut history = History {
            entries: Vec::new(),
            by_token: HashMap::new(),
        };
        let prompt = &self.request.prompt;
        if let Some(window) = self.params().penalty_window {
            let begin = prompt.len().saturating_sub(window as usize);
            prompt[begin..]
                .iter()
                .for_each(|&token_id| history.count(token_id, 1));
        } else if self.params().draw.repetition_penalty != 1.0 {
            prompt
                .iter()
                .for_each(|&token_id| history.count(token_id, 0));
        }
        self.history = Some(history);
    }
}

/// Where a token is in a copy of a history that drafts were appended to.
fn index_in(entries: &[HistoryEntry], history: &History, token_id: u32) -> Option<usize> {
    let known = history.by_token.get(&token_id).copied();
    known.or_else(|| {
        let added = history.entries.len();
        let found = entries[added..]
            .iter()
            .position(|entry| entry.token_id == token_id);
        found.map(|index| added + index)
    })
}

/// All live sequences. A number is reused only after no step uses its old sequence.
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
        self.cells[id.0 as usize]
            .take()
            .expect("a removed sequence was live")
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let live = self
            .cells
            .iter()
            .enumerate()
            .filter(|(_, cell)| cell.is_some());
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
        self.cells[id.0 as usize]
            .as_ref()
            .expect("a named sequence is live")
    }
}

impl IndexMut<SequenceId> for Sequences {
    fn index_mut(&mut self, id: SequenceId) -> &mut Sequence {
        self.cells[id.0 as usize]
            .as_mut()
            .expect("a named sequence is live")
    }
}

#[cfg(test)]
mod tests;
