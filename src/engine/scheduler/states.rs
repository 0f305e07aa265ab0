//! The states of sequences: which slot a row reads and which it writes, snapshots, and what becomes of them.
//!
//! Slots are a [`Group`](crate::engine::block_pool::Group) like blocks: a slot counts its holders, and one without
//! holders is free. A *snapshot* is a slot that is cached under the hash of a chain of blocks: its state is that after
//! exactly these tokens. A free snapshot stays until it is evicted, least recently used first.
//!
//! - A row overwrites its sequence's state only if nobody else holds it and it is no snapshot. Otherwise it writes a
//!   fresh slot. So a snapshot, a prefix hit and a fork cost no copy: both go on from the same slot.
//! - A snapshot can be found from the next step on, because no row may read what another one of its step writes.
//! - A row that verifies drafts writes a fresh slot. If all are accepted, that is the new state. Otherwise the state
//!   before the row stays, and the next row computes the accepted tokens again, with the same keys and values. Until
//!   then the blocks that the row fills cannot be found.
//! - Snapshots are taken where a prompt ends in whole blocks, at multiples of a stride, where a prompt differs from
//!   what is cached, and after the last whole block of an answer while there are few of them. Chunks end there.
//!
//! - A snapshot that is evicted moves to host memory, and comes back like a block: it is restored to a slot before the
//!   step that reads it. With a disk, snapshots of prompts are written when the step that computes them has completed,
//!   and that after an answer when it has ended.
//!
//! With no step in flight, a sequence holds at most one slot, so that some row always finds one.

use super::admit::Found;
use super::{Draft, Scheduler};
use crate::engine::batch::{Batch, Row};
use crate::engine::block_pool::BlockHash;
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::{HeldStates, Sequence, SequenceId};
use crate::plan::inputs::{NONE, StateRows};
use std::collections::HashSet;

/// A long prompt has a snapshot after every so many blocks.
const STRIDE_BLOCKS: u32 = 32;
/// A prompt has at most so many of them.
const STRIDES_MAX: u32 = 4;

impl Scheduler {
    /// Whether sequences keep states.
    pub(super) fn keeps_states(&self) -> bool {
        self.limits.state_slots > 0
    }

    /// Number of slots beside those of running sequences, if snapshots are taken.
    fn snapshots_max(&self) -> u32 {
        let spare = self
            .limits
            .state_slots
            .saturating_sub(self.limits.max_num_seqs);
        if self.limits.prefix_caching { spare } else { 0 }
    }

    /// Whether so many more sequences can have state slots.
    pub(super) fn has_state_slots(&self, count: usize) -> bool {
        !self.keeps_states() || count <= self.states.free() as usize
    }

    /// Whether the next row of a sequence finds a slot to write, if need be by giving up a snapshot.
    pub(super) fn has_state_for(&mut self, id: SequenceId, draft: &Draft) -> bool {
        if !self.keeps_states() || self.states.free() > 0 || self.is_own_state(id, draft) {
            return true;
        }
        let states = &mut self.sequences[id].states;
        if let Some((_, slot)) = states.kept.take() {
            self.states.release(slot);
        }
        let live = self.sequences[id].states.live;
        if live != NONE {
            self.states.withdraw(live);
        }
        self.states.free() > 0 || self.is_own_state(id, draft)
    }

    /// Whether the state of a sequence may be overwritten: no other sequence holds it, no row of this step reads it,
    /// and it is no snapshot.
    fn is_own_state(&self, id: SequenceId, draft: &Draft) -> bool {
        let live = self.sequences[id].states.live;
        live != NONE
            && !self.states.is_cached(live)
            && (self.faults.has(InjectedFault::ForkedStateShared) || !self.is_shared(live, draft))
    }

    /// Whether another sequence holds the state in this slot, or a row of this step reads it.
    fn is_shared(&self, slot: u32, draft: &Draft) -> bool {
        self.states.references(slot) > 1
            || draft
                .batch
                .rows
                .iter()
                .any(|row| row.states.is_some_and(|states| states.from == slot))
    }

    /// The slots that the next row of a sequence reads and writes, if the model keeps states. Without a slot for the
    /// state after drafts, the row goes without them.
    pub(super) fn take_state(
        &mut self,
        id: SequenceId,
        drafts: &mut Vec<u32>,
        draft: &mut Draft,
    ) -> Option<StateRows> {
        if !self.keeps_states() {
            return None;
        }
        if self.states.free() == 0 {
            drafts.clear();
        }
        let (live, start) = (self.sequences[id].states.live, self.sequences[id].computed);
        debug_assert_eq!(
            live == NONE,
            start == 0,
            "a sequence with computed tokens has a state"
        );
        let is_stale = self.faults.has(InjectedFault::StateKeptInPreemption)
            && self.sequences[id].preemptions > 0;
        let is_stale = is_stale && (start == 0 || self.states.is_cached(live));
        if drafts.is_empty() && self.is_own_state(id, draft) {
            self.sequences[id].states.read = live;
            self.state_writes[live as usize] += 1;
            return Some(StateRows {
                from: live,
                to: live,
            });
        }
        let to = self.fresh_slot(id, draft);
        self.state_writes[to as usize] += 1;
        let states = &mut self.sequences[id].states;
        (states.live, states.read) = (to, live);
        if !drafts.is_empty() {
            states.before = live;
        }
        if live != NONE {
            self.leave_state(live, !is_stale, drafts.is_empty());
        }
        Some(StateRows {
            from: if is_stale { to } else { live },
            to,
        })
    }

    fn fresh_slot(&mut self, id: SequenceId, draft: &mut Draft) -> u32 {
        let other = |&other: &SequenceId| other != id && self.sequences[other].states.live != NONE;
        let other = self.running.iter().copied().find(other);
        if let Some(other) = other
            && self.faults.has(InjectedFault::StateSlotShared)
        {
            let slot = self.sequences[other].states.live;
            self.states.share(slot);
            return slot;
        }
        self.allocate(self.state_group(), draft)
            .expect("a row that is scheduled finds a slot")
    }

    /// Keeps a slot until the row that reads it has run. Its sequence lets go of it, unless it may go back.
    fn leave_state(&mut self, slot: u32, is_read: bool, is_final: bool) {
        if is_read && !self.faults.has(InjectedFault::SnapshotEvictedEarly) {
            self.states.pin(slot);
        }
        if is_final {
            self.states.release(slot);
        }
    }

    /// Whether a step in flight writes a state slot.
    pub(super) fn is_written(&self, slot: u32) -> bool {
        self.state_writes[slot as usize] > 0
    }

    /// Takes note that the rows of a batch have read their states and written others.
    pub(super) fn land_states(&mut self, batch: &Batch) {
        let written = batch.rows.iter().filter_map(|row| row.states);
        written.for_each(|states| self.state_writes[states.to as usize] -= 1);
        let read = batch
            .rows
            .iter()
            .filter_map(|row| row.states)
            .filter(|states| states.from != states.to);
        let read = read.filter(|states| {
            states.from != NONE && !self.faults.has(InjectedFault::SnapshotEvictedEarly)
        });
        read.for_each(|states| self.states.unpin(states.from));
    }

    /// Number of tokens up to the next place of a prompt where a snapshot is wanted.
    pub(super) fn tokens_to_snapshot(&self, sequence: &Sequence) -> u32 {
        let next = self
            .snapshot_places(sequence)
            .into_iter()
            .filter(|&place| place > sequence.computed)
            .min();
        next.map_or(u32::MAX, |next| next - sequence.computed)
    }

    /// Where the next snapshots of a prompt are wanted after its computed tokens, or right there.
    fn snapshot_places(&self, sequence: &Sequence) -> Vec<u32> {
        if self.snapshots_max() == 0 || sequence.request.pooling.is_some() {
            return Vec::new();
        }
        let unit = self.sharing_unit();
        let last = (sequence.prompt_len() - 1).min(self.shareable(sequence)) / unit * unit;
        let stride = (STRIDE_BLOCKS * self.limits.block_size)
            .max(sequence.prompt_len().div_ceil(STRIDES_MAX));
        let stride = stride.next_multiple_of(unit);
        let here = sequence.computed / stride * stride;
        let places = [
            here.min(last),
            last.min(here + stride),
            sequence.states.branch,
        ];
        places.into_iter().filter(|&place| place > 0).collect()
    }

    /// Whether the state after the computed tokens of a sequence should become a snapshot.
    fn wants_snapshot(&self, sequence: &Sequence) -> bool {
        let (computed, size) = (sequence.computed, self.limits.block_size);
        if computed == 0 || !computed.is_multiple_of(size) || self.snapshots_max() == 0 {
            return false;
        }
        let known = sequence.hashes.get((computed / size - 1) as usize);
        if known.is_some_and(|hash| self.states.lookup(hash).is_some()) {
            return false;
        }
        let few = 2 * self.running.len() <= self.snapshots_max() as usize;
        let of_answer = computed >= sequence.prompt_len() && few && sequence.beam.is_none();
        let of_answer = of_answer && computed <= self.shareable(sequence);
        of_answer || self.snapshot_places(sequence).contains(&computed)
    }

    /// Keeps the state after a sequence's computed tokens, if it should become a snapshot.
    pub(super) fn keep_state(&mut self, id: SequenceId) {
        if !self.keeps_states() || !self.wants_snapshot(&self.sequences[id]) {
            return;
        }
        let sequence = &mut self.sequences[id];
        let slot = sequence.states.live;
        self.states.share(slot);
        if let Some((_, before)) = sequence.states.kept.replace((sequence.computed, slot)) {
            self.states.release(before);
        }
    }

    /// Makes snapshots of what the rows of a batch leave at the ends of their blocks. The next step can find them.
    pub(super) fn register_snapshots(&mut self, batch: &Batch) {
        batch
            .rows
            .iter()
            .for_each(|row| self.register_snapshot(row.sequence));
    }

    /// Makes a snapshot of the state that a sequence keeps, once the ids of all tokens before it are known.
    pub(super) fn register_snapshot(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        let known = sequence.tokens_known();
        let Some((tokens, slot)) = sequence.states.kept.take_if(|(tokens, _)| *tokens <= known)
        else {
            return;
        };
        let index = tokens / self.limits.block_size - 1;
        let wrong = u32::from(self.faults.has(InjectedFault::SnapshotOfOtherBlock) && index > 0);
        let hash = self.sequences[id].hashes[(index - wrong) as usize];
        self.states.register(slot, hash);
        if self.faults.has(InjectedFault::SnapshotWrittenEarly) {
            self.finish_block(id, self.state_group(), index as usize, slot);
        }
        self.states.release(slot);
        if tokens >= self.sequences[id].prompt_len() {
            let last = self.sequences[id].states.last.replace((slot, hash));
            self.discard_snapshot(last);
        }
    }

    /// Forgets the snapshot after an earlier block of an answer, if nobody uses it.
    fn discard_snapshot(&mut self, snapshot: Option<(u32, BlockHash)>) {
        let Some((slot, hash)) = snapshot else { return };
        if self.states.lookup(&hash) == Some(slot) && self.states.is_free(slot) {
            self.states.discard(slot);
        }
    }

    /// Number of leading blocks of a chain up to its longest snapshot, in whole units of `unit` blocks. `elsewhere`
    /// says whether a colder tier holds a snapshot, and whether it is worth moving for the tokens that it spares beyond
    /// the longest one on the device.
    pub(super) fn blocks_to_snapshot(
        &self,
        chain: &[BlockHash],
        unit: u32,
        elsewhere: impl Fn(usize, &BlockHash, u32) -> bool,
    ) -> u32 {
        let whole = u32::try_from(chain.len()).expect("a chain has few blocks") / unit;
        if !self.keeps_states() {
            return whole * unit;
        }
        let hash = |units: u32| &chain[(units * unit - 1) as usize];
        let near = (1..=whole)
            .rev()
            .find(|&units| self.states.lookup(hash(units)).is_some())
            .unwrap_or(0);
        (near + 1..=whole)
            .rev()
            .find(|&units| {
                elsewhere(
                    self.state_group(),
                    hash(units),
                    (units - near) * unit * self.limits.block_size,
                )
            })
            .unwrap_or(near)
            * unit
    }

    /// Finds the state after a matched chain, and keeps it from being evicted.
    pub(super) fn keep_snapshot(&mut self, chain: &[BlockHash]) -> Option<Found> {
        if !self.keeps_states() {
            return None;
        }
        let hash = chain.last()?;
        if let Some(slot) = self.states.lookup(hash) {
            self.states.share(slot);
            return Some(Found::Device(slot));
        }
        let in_host = |hash: &BlockHash| self.host.lookup(self.state_group(), hash);
        let other = || chain[..chain.len() - 1].iter().rev().find_map(in_host);
        let other = self
            .faults
            .has(InjectedFault::StateOfOtherBlockRestored)
            .then(other)
            .flatten();
        let slot = other
            .or_else(|| in_host(hash))
            .expect("the state after a matched chain is in some tier");
        self.host.pin(slot);
        Some(Found::Host(slot))
    }

    /// Gives a sequence the state after the matched blocks, from a slot that was kept for it, and notes up to where
    /// blocks are cached, with or without a state.
    pub(super) fn take_snapshot(
        &mut self,
        id: SequenceId,
        matched: u32,
        found: Option<Found>,
        draft: &mut Draft,
    ) {
        if !self.keeps_states() {
            return;
        }
        let sequence = &self.sequences[id];
        debug_assert!(
            sequence.states.held().next().is_none(),
            "a waiting sequence holds no state"
        );
        let (size, unit) = (
            self.limits.block_size,
            self.sharing_unit() / self.limits.block_size,
        );
        let reusable = (sequence.tokens_known() - 1).min(self.shareable(sequence)) / size;
        let chain = &sequence.hashes[..sequence.hashes.len().min(reusable as usize)];
        let cached = self
            .pool
            .longest_prefix(chain, |group, hash| self.in_host(group, hash, size))
            / unit
            * unit;
        assert_eq!(
            found.is_some(),
            matched > 0,
            "a matched chain has a snapshot"
        );
        let live = match found {
            None => NONE,
            Some(Found::Device(slot)) => slot,
            Some(Found::Host(slot)) => {
                let hash = chain[(matched - 1) as usize];
                self.restore(id, (self.state_group(), hash), slot, draft)
            }
        };
        self.sequences[id].states = HeldStates {
            live,
            branch: cached * size,
            ..HeldStates::default()
        };
    }

    /// Keeps the state after a row whose drafts were all accepted; otherwise goes back to the state before it. The next
    /// row then starts there.
    pub(super) fn settle_drafts(&mut self, row: &Row) {
        let sequence = &mut self.sequences[row.sequence];
        let before = std::mem::replace(&mut sequence.states.before, NONE);
        if before == NONE {
            return;
        }
        let all = sequence.computed == row.start + row.count + row.drafted();
        if all || self.faults.has(InjectedFault::RejectedStateKept) {
            self.states.release(before);
            self.register_full_blocks(row.sequence);
            self.keep_state(row.sequence);
        } else {
            sequence.computed = row.start;
            let after = std::mem::replace(&mut sequence.states.live, before);
            self.states.release(after);
        }
    }

    /// Releases the states of a sequence that leaves.
    pub(super) fn release_states(&mut self, id: SequenceId) {
        let states = std::mem::take(&mut self.sequences[id].states);
        states.held().for_each(|slot| self.states.release(slot));
    }

    /// Removes the states of a sequence from the prefix cache, and takes no snapshot of what it keeps.
    pub(super) fn withdraw_states(&mut self, id: SequenceId) {
        let states = &mut self.sequences[id].states;
        let kept = states.kept.take();
        for slot in states.held() {
            self.states.withdraw(slot);
        }
        if let Some((_, slot)) = kept {
            self.states.release(slot);
        }
    }

    /// Removes the states that a failed batch should have written or restored from the prefix cache, with those that a
    /// step in flight makes of them, and returns them.
    pub(super) fn withdraw_states_of(&mut self, batch: &Batch) -> HashSet<u32> {
        let restored = batch
            .restores
            .iter()
            .filter(|restore| restore.group == self.state_group());
        let restored = restored.map(|restore| restore.block);
        let mut spoilt: HashSet<_> = batch
            .rows
            .iter()
            .filter_map(|row| Some(row.states?.to))
            .chain(restored)
            .collect();
        if self.faults.has(InjectedFault::UnwrittenSnapshotKept) {
            return HashSet::new();
        }
        for &slot in &spoilt {
            self.states.withdraw(slot);
        }
        for row in &batch.rows {
            let live = self.sequences[row.sequence].states.live;
            spoilt.extend((live != NONE).then_some(live));
            self.withdraw_states(row.sequence);
        }
        spoilt
    }

    /// Whether a sequence goes on from one of these states.
    pub(super) fn goes_on_from(&self, sequence: &Sequence, spoilt: &HashSet<u32>) -> bool {
        let states = &sequence.states;
        let reads = sequence.in_flight > 0 && spoilt.contains(&states.read);
        reads || states.held().any(|slot| spoilt.contains(&slot))
    }
}

#[cfg(test)]
mod tests;
