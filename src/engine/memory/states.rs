//! The states of sequences: which slot a row reads and which it writes, snapshots, and what becomes of them.
//!
//! Slots are a [`Group`](super::Group) like blocks: a slot counts its holders, and one without holders is free. A
//! *snapshot* is a slot that is cached under the hash of a chain of blocks: its state is that after exactly these
//! tokens. A free snapshot stays until it is evicted, least recently used first.
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

use super::Memory;
use super::holding::Holding;
use super::moves::Moves;
use super::pool::BlockHash;
use crate::plan::inputs::{NONE, StateRows};

/// A long prompt has a snapshot after every so many blocks.
const STRIDE_BLOCKS: u32 = 32;
/// A prompt has at most so many of them.
const STRIDES_MAX: u32 = 4;

impl Memory {
    /// Whether sequences keep states.
    pub(crate) fn keeps_states(&self) -> bool {
        self.limits.state_slots > 0
    }

    /// Number of slots beside those of running sequences, if snapshots are taken.
    fn snapshots_max(&self) -> u32 {
        if !self.limits.prefix_caching {
            return 0;
        }
        self.limits
            .state_slots
            .saturating_sub(self.demand.max_num_seqs)
    }

    /// Whether so many more sequences can have state slots.
    pub(crate) fn has_state_slots(&self, count: usize) -> bool {
        !self.keeps_states() || count <= self.states.free() as usize
    }

    /// Whether the next row of a sequence finds a slot to write, if need be by giving up a snapshot.
    pub(crate) fn has_state_for(&mut self, holding: &mut Holding, moves: &Moves) -> bool {
        if !self.keeps_states() || self.states.free() > 0 || self.is_own_state(holding, moves) {
            return true;
        }
        if let Some((_, slot)) = holding.states.kept.take() {
            self.states.release(slot);
        }
        if holding.states.live != NONE {
            self.states.withdraw(holding.states.live);
        }
        self.states.free() > 0 || self.is_own_state(holding, moves)
    }

    /// Whether the state of a sequence may be overwritten: no other sequence holds it, no row of this step reads it,
    /// and it is no snapshot.
    fn is_own_state(&self, holding: &Holding, moves: &Moves) -> bool {
        let live = holding.states.live;
        live != NONE && !self.states.is_cached(live) && !self.is_shared(live, moves)
    }

    /// Whether another sequence holds the state in this slot, or a row of this step reads it.
    fn is_shared(&self, slot: u32, moves: &Moves) -> bool {
        self.states.references(slot) > 1 || moves.states_read.contains(&slot)
    }

    /// The slots that the next row of a sequence reads and writes, if the model keeps states. Without a slot for the
    /// state after drafts, the row goes without them.
    pub(crate) fn take_state(
        &mut self,
        holding: &mut Holding,
        drafts: &mut Vec<u32>,
        moves: &mut Moves,
    ) -> Option<StateRows> {
        if !self.keeps_states() {
            return None;
        }
        if self.states.free() == 0 {
            drafts.clear();
        }
        let from = holding.states.live;
        debug_assert_eq!(
            from == NONE,
            holding.computed == 0,
            "a sequence with computed tokens has a state"
        );
        let to = if drafts.is_empty() && self.is_own_state(holding, moves) {
            from
        } else {
            self.allocate(self.state_group(), moves)
                .expect("a row that is scheduled finds a slot")
        };
        self.state_writes[to as usize] += 1;
        moves.states_read.push(from);
        holding.states.live = to;
        holding.states.read = from;
        if from != to && from != NONE {
            self.leave_state(holding, from, !drafts.is_empty());
        }
        Some(StateRows { from, to })
    }

    /// Keeps a slot until the row that reads it has run. Its sequence lets go of it, unless drafts may be rejected, so
    /// that it may go back.
    fn leave_state(&mut self, holding: &mut Holding, slot: u32, may_go_back: bool) {
        self.states.pin(slot);
        if may_go_back {
            holding.states.before = slot;
        } else {
            self.states.release(slot);
        }
    }

    /// Rows of a step have read their states and written others.
    pub(crate) fn land_states(&mut self, rows: impl Iterator<Item = StateRows>) {
        for StateRows { from, to } in rows {
            self.state_writes[to as usize] -= 1;
            if from != to && from != NONE {
                self.states.unpin(from);
            }
        }
    }

    /// Number of tokens up to the next place of a prompt where a snapshot is wanted.
    pub(crate) fn tokens_to_snapshot(&self, holding: &Holding) -> u32 {
        let places = self.snapshot_places(holding).into_iter();
        let next = places.filter(|&place| place > holding.computed).min();
        next.map_or(u32::MAX, |next| next - holding.computed)
    }

    /// Where the next snapshots of a prompt are wanted after its computed tokens, or right there.
    fn snapshot_places(&self, holding: &Holding) -> Vec<u32> {
        if self.snapshots_max() == 0 || !holding.takes_snapshots {
            return Vec::new();
        }
        let unit = self.demand.sharing_unit;
        let last = (holding.prompt_len - 1).min(holding.shareable) / unit * unit;
        let stride = (STRIDE_BLOCKS * self.limits.block_size)
            .max(holding.prompt_len.div_ceil(STRIDES_MAX))
            .next_multiple_of(unit);
        let here = holding.computed / stride * stride;
        let next = here + stride;
        let places = [here.min(last), next.min(last), holding.states.branch];
        places.into_iter().filter(|&place| place > 0).collect()
    }

    /// Whether the state after the computed tokens of a sequence should become a snapshot. `of_answer`: whether that
    /// may be one within its answer.
    fn wants_snapshot(&self, holding: &Holding, of_answer: bool) -> bool {
        let computed = holding.computed;
        let size = self.limits.block_size;
        if computed == 0 || !computed.is_multiple_of(size) || self.snapshots_max() == 0 {
            return false;
        }
        let known = holding.hashes.get((computed / size - 1) as usize);
        if known.is_some_and(|hash| self.states.lookup(hash).is_some()) {
            return false;
        }
        let is_answer = computed >= holding.prompt_len && computed <= holding.shareable;
        of_answer && is_answer || self.snapshot_places(holding).contains(&computed)
    }

    /// Keeps the state after a sequence's computed tokens, if it should become a snapshot: one within its answer only
    /// while few sequences run, `running` of them, and not for a beam.
    pub(crate) fn keep_state(&mut self, holding: &mut Holding, running: usize, is_beam: bool) {
        let of_answer = !is_beam && 2 * running <= self.snapshots_max() as usize;
        if !self.keeps_states() || !self.wants_snapshot(holding, of_answer) {
            return;
        }
        let slot = holding.states.live;
        self.states.share(slot);
        let kept = Some((holding.computed, slot));
        if let Some((_, before)) = std::mem::replace(&mut holding.states.kept, kept) {
            self.states.release(before);
        }
    }

    /// Makes a snapshot of the state that a sequence keeps, once the ids of all tokens before it are known; `known` are
    /// so many. The next step can find it.
    pub(crate) fn register_snapshot(&mut self, holding: &mut Holding, known: u32) {
        let kept = &mut holding.states.kept;
        let Some((tokens, slot)) = kept.take_if(|(tokens, _)| *tokens <= known) else {
            return;
        };
        let hash = holding.hashes[(tokens / self.limits.block_size - 1) as usize];
        self.states.register(slot, hash);
        self.states.release(slot);
        if tokens >= holding.prompt_len {
            let last = holding.states.last.replace((slot, hash));
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

    /// Keeps the state after a row whose drafts were all accepted: `all` says so. Otherwise goes back to the state
    /// before it, at `start`, where the next row then starts. Returns whether the row has become final: it had a state
    /// to go back to, and keeps the one after it.
    pub(crate) fn settle_drafts(&mut self, holding: &mut Holding, start: u32, all: bool) -> bool {
        let before = std::mem::replace(&mut holding.states.before, NONE);
        if before == NONE {
            return false;
        }
        if all {
            self.states.release(before);
        } else {
            holding.computed = start;
            let after = std::mem::replace(&mut holding.states.live, before);
            self.states.release(after);
        }
        all
    }
}

#[cfg(test)]
mod tests;
