//! The slots of running sequences: where the last sampled id is on the device, and the adapter.

use super::queues::Queues;
use crate::engine::sequence::SequenceId;
use crate::plan::inputs::NONE;

impl Queues {
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

    /// Whether there is room for the adapter of a sequence, if it has one.
    pub(super) fn has_adapter_slot(&self, id: SequenceId) -> bool {
        let adapter = self.sequences[id].request.adapter.as_ref();
        adapter.is_none_or(|content| self.adapters.has_room(content))
    }

    /// Gives a sequence that starts running the slot of its adapter.
    pub(super) fn take_adapter_slot(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        if let Some(content) = &sequence.request.adapter {
            sequence.adapter_slot = self.adapters.take(content);
        }
    }

    pub(super) fn release_adapter_slot(&mut self, id: SequenceId) {
        let slot = std::mem::take(&mut self.sequences[id].adapter_slot);
        if slot != 0 {
            self.adapters.release(slot);
        }
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
        self.adapters.reset();
        self.images.reset();
    }

    /// Asserts that every feed slot is free or has one owner, and that running sequences have their states.
    pub(super) fn check_slots(&self) {
        self.check_images();
        let adapted = self.sequences.iter().map(|sequence| sequence.adapter_slot);
        self.adapters.check(adapted.filter(|&slot| slot != 0));
        let mut feeds = self.feed_slots.clone();
        for sequence in self.sequences.iter() {
            feeds.extend((sequence.feed_slot != NONE).then_some(sequence.feed_slot));
            let has_state = sequence.holding.states.live != NONE;
            let running =
                sequence.feed_slot != NONE && sequence.exit.is_none() && self.memory.keeps_states();
            assert!(
                !running || has_state == (sequence.holding.computed > 0),
                "computed tokens have a state"
            );
        }
        feeds.sort_unstable();
        assert!(
            feeds.into_iter().eq(0..self.limits.feed_slots),
            "every feed slot is free or has one owner"
        );
    }
}
