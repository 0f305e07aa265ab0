//! The queues: every live sequence, where it is (running, waiting or leaving), and what it holds there.
//!
//! A sequence that runs has a seat: a feed slot, the slot of its adapter, rows of its images, and memory.
//! [`Queues::leave`] and [`Queues::settle`] are the only ways out. Nothing here knows of batches under construction,
//! beams or results: those who decide what runs call the queues, and are not called by them.

use super::prefix::Past;
use super::{AdapterPool, ImagePool, Limits};
use crate::engine::batch::Batch;
use crate::engine::memory::Memory;
use crate::engine::sequence::{Exit, Order, Sequence, SequenceId, Sequences, StreamId};
use crate::engine::speculation::Answers;
use crate::engine::stats::Counts;
use crate::plan::inputs::NONE;
use std::collections::{BTreeMap, HashMap};

/// The live sequences, and what is remembered of those that ended.
#[derive(Debug)]
pub(super) struct Queues {
    pub(super) limits: Limits,
    pub(super) memory: Memory,
    pub(super) sequences: Sequences,
    /// The sequence that computes for a stream.
    pub(super) by_stream: HashMap<StreamId, SequenceId>,
    /// Running sequences in scheduling order, without those that are leaving.
    pub(super) running: Vec<SequenceId>,
    pub(super) waiting: BTreeMap<Order, SequenceId>,
    /// Sequences that have ended or been preempted, but are still used by a step in flight.
    pub(super) leaving: Vec<SequenceId>,
    pub(super) feed_slots: Vec<u32>,
    pub(super) adapters: AdapterPool,
    pub(super) images: ImagePool,
    pub(super) past: Past,
    pub(super) answers: Answers,
    pub(super) steps_in_flight: u32,
    pub(super) counts: Counts,
}

impl Queues {
    /// Empty queues over an empty pool.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            memory: Memory::new(limits.memory.clone(), limits.demand()),
            sequences: Sequences::default(),
            by_stream: HashMap::new(),
            running: Vec::new(),
            waiting: BTreeMap::new(),
            leaving: Vec::new(),
            feed_slots: (0..limits.feed_slots).rev().collect(),
            adapters: AdapterPool::new(limits.adapter_slots),
            images: ImagePool::new(limits.image_rows),
            past: Past::default(),
            answers: Answers::default(),
            steps_in_flight: 0,
            counts: Counts::default(),
            limits,
        }
    }

    /// Moves a sequence to the running ones.
    pub(super) fn seat(&mut self, id: SequenceId) {
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
    pub(super) fn register_full_blocks(&mut self, id: SequenceId) {
        let Sequence {
            holding, tokens, ..
        } = &mut self.sequences[id];
        self.memory.register_full_blocks(holding, tokens);
    }

    /// [`Self::register_full_blocks`], and keeps the state after its computed tokens if it should become a snapshot.
    pub(super) fn register_computed(&mut self, id: SequenceId) {
        self.register_full_blocks(id);
        let sequence = &mut self.sequences[id];
        let is_beam = sequence.beam.is_some();
        let running = self.running.len();
        self.memory
            .keep_state(&mut sequence.holding, running, is_beam);
    }

    /// Makes snapshots of what the rows of a batch leave at the ends of their blocks. The next step can find them.
    pub(super) fn register_snapshots(&mut self, batch: &Batch) {
        for row in &batch.rows {
            self.register_snapshot(row.sequence);
        }
    }

    pub(super) fn register_snapshot(&mut self, id: SequenceId) {
        let known = self.sequences[id].tokens_known();
        let holding = &mut self.sequences[id].holding;
        self.memory.register_snapshot(holding, known);
    }

    /// Removes a sequence from the running ones or the queue: now, or once no step in flight uses it.
    pub(super) fn leave(&mut self, id: SequenceId, exit: Exit) {
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
    pub(super) fn settle(&mut self, id: SequenceId) {
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

    /// Discards what a sequence has computed and has in flight, and removes it from the prefix cache.
    pub(super) fn discard_computed(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        self.memory.withdraw(&mut sequence.holding);
        sequence.holding.restart();
        sequence.valid_from_step = self.counts.steps;
        sequence.pending = 0;
        sequence.outputs_requested = sequence.outputs_reported;
    }

    /// Keeps the answer of a sequence that has ended, for drafts of similar requests.
    fn remember_answer(&mut self, sequence: &mut Sequence) {
        let answer = sequence
            .drafter
            .take()
            .and_then(|drafter| drafter.into_answer());
        if let Some(answer) = answer {
            self.answers.remember(&sequence.request, answer);
        }
    }

    /// Number of further tokens of a sequence that blocks are there for.
    pub(super) fn tokens_that_fit(&self, id: SequenceId) -> u32 {
        self.memory.tokens_that_fit(&self.sequences[id].holding)
    }

    /// Whether a beam is folded into another one, or about to be: it is neither running, waiting nor leaving.
    pub(super) fn is_folded(&self, id: SequenceId) -> bool {
        let sequence = &self.sequences[id];
        let waits = self.waiting.get(&sequence.order) == Some(&id);
        sequence.beam.is_some() && sequence.feed_slot == NONE && sequence.exit.is_none() && !waits
    }

    /// Number of beams that are in no queue.
    pub(super) fn folded_len(&self) -> usize {
        self.sequences
            .ids()
            .filter(|&id| self.is_folded(id))
            .count()
    }

    /// Asserts the invariants that hold between two steps.
    pub(super) fn check(&self) {
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
