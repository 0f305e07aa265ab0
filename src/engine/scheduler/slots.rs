//! The feed slots: where the last sampled id of each running sequence is on the device.

use super::Scheduler;
use crate::engine::block_pool::Group;
use crate::engine::sequence::SequenceId;
use crate::plan::inputs::NONE;

impl Scheduler {
    /// Gives a sequence that starts running its slot. What it holds is of another sequence.
    pub(super) fn take_feed_slot(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        debug_assert!(
            sequence.feed_slot == NONE,
            "a sequence starts running only once"
        );
        sequence.feed_slot = self
            .feed_slots
            .pop()
            .expect("a running sequence has a feed slot");
    }

    pub(super) fn release_feed_slot(&mut self, id: SequenceId) {
        let slot = std::mem::replace(&mut self.sequences[id].feed_slot, NONE);
        if slot != NONE {
            debug_assert!(
                slot < self.limits.feed_slots,
                "a feed slot's index is within the limit"
            );
            debug_assert!(
                !self.feed_slots.contains(&slot),
                "a feed slot is released once"
            );
            self.feed_slots.push(slot);
        }
    }

    /// Takes back all slots, whose content is lost.
    pub(super) fn reset_slots(&mut self) {
        self.feed_slots = (0..self.limits.feed_slots).rev().collect();
        self.states = Group::new(None, self.limits.state_slots, self.faults);
        self.state_writes.fill(0);
    }

    /// Asserts that every feed slot is free or has one owner, and that the holders of state slots are counted.
    pub(super) fn check_slots(&self) {
        let mut feeds = self.feed_slots.clone();
        let mut occurrences = vec![0; self.limits.state_slots as usize];
        for sequence in self.sequences.iter() {
            feeds.extend((sequence.feed_slot != NONE).then_some(sequence.feed_slot));
            sequence
                .states
                .held()
                .for_each(|slot| occurrences[slot as usize] += 1);
            let has_state = sequence.states.live != NONE;
            let running =
                sequence.feed_slot != NONE && sequence.exit.is_none() && self.keeps_states();
            assert!(
                !running || has_state == (sequence.computed > 0),
                "computed tokens have a state"
            );
        }
        feeds.sort_unstable();
        assert!(
            feeds.into_iter().eq(0..self.limits.feed_slots),
            "every feed slot is free or has one owner"
        );
        self.states.check(&occurrences);
        let idle = self.steps_in_flight == 0;
        assert!(
            !idle || self.state_writes.iter().all(|&writes| writes == 0),
            "only steps in flight write states"
        );
    }
}
