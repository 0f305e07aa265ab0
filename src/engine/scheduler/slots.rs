//! The slots on the device that a running sequence owns beside its blocks: a feed slot, where its last sampled id is,
//! and a state slot, if the model keeps states.

use super::Scheduler;
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::SequenceId;
use crate::plan::inputs::NONE;

impl Scheduler {
    /// Whether so many more sequences can have state slots.
    pub(super) fn has_state_slots(&self, count: usize) -> bool {
        self.limits.state_slots == 0 || count <= self.state_slots.len()
    }

    /// Gives a sequence that starts running its slots. What they hold is of another sequence.
    pub(super) fn take_slots(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        debug_assert!(sequence.feed_slot == NONE && sequence.state_slot == NONE, "a sequence starts running only once");
        sequence.feed_slot = self.feed_slots.pop().expect("a running sequence has a feed slot");
        if self.limits.state_slots > 0 {
            let slot = self.state_slots.pop().expect("a running sequence has a state slot");
            sequence.state_slot = slot;
            if self.faults.has(InjectedFault::StateSlotShared) {
                self.state_slots.push(slot);
            }
        }
    }

    pub(super) fn release_feed_slot(&mut self, id: SequenceId) {
        let slot = std::mem::replace(&mut self.sequences[id].feed_slot, NONE);
        if slot != NONE {
            debug_assert!(slot < self.limits.feed_slots, "a feed slot's index is within the limit");
            debug_assert!(!self.feed_slots.contains(&slot), "a feed slot is released once");
            self.feed_slots.push(slot);
        }
    }

    pub(super) fn release_state_slot(&mut self, id: SequenceId) {
        let slot = std::mem::replace(&mut self.sequences[id].state_slot, NONE);
        if slot != NONE && !self.faults.has(InjectedFault::StateSlotShared) {
            debug_assert!(slot < self.limits.state_slots, "a state slot's index is within the limit");
            debug_assert!(!self.state_slots.contains(&slot), "a state slot is released once");
            self.state_slots.push(slot);
        }
    }

    /// Takes back all slots, whose content is lost.
    pub(super) fn reset_slots(&mut self) {
        self.feed_slots = (0..self.limits.feed_slots).rev().collect();
        self.state_slots = (0..self.limits.state_slots).rev().collect();
    }

    /// Asserts that every slot is free or has one owner.
    pub(super) fn check_slots(&self) {
        let (mut feeds, mut states) = (self.feed_slots.clone(), self.state_slots.clone());
        for sequence in self.sequences.iter() {
            feeds.extend((sequence.feed_slot != NONE).then_some(sequence.feed_slot));
            states.extend((sequence.state_slot != NONE).then_some(sequence.state_slot));
        }
        feeds.sort_unstable();
        states.sort_unstable();
        assert!(feeds.into_iter().eq(0..self.limits.feed_slots), "every feed slot is free or has one owner");
        // The device must notice the injected bug.
        let is_shared = self.faults.has(InjectedFault::StateSlotShared);
        assert!(is_shared || states.into_iter().eq(0..self.limits.state_slots), "every state slot has one owner");
    }
}
