//! The adapter slots of the device: which adapter is in which, and who uses it.
//!
//! An adapter stays in its slot until another one needs it, so that it is not written again for the next request. The
//! slot that has been unused longest is taken first. Writes are ordered with steps on the device: what a step in flight
//! reads is not replaced before it.

use super::request::SlotContent;
use std::sync::Arc;

/// A content to be written to a slot before the next step.
#[derive(Clone, Debug)]
pub(super) struct AdapterLoad {
    /// The slot of the plan, from 1.
    pub(super) slot: u32,
    pub(super) content: Arc<SlotContent>,
}

/// The slots that adapters may have.
#[derive(Debug)]
pub(super) struct AdapterPool {
    slots: Vec<Slot>,
    /// Number of times that a slot was left.
    clock: u64,
    /// Contents to be written before the next step.
    loads: Vec<AdapterLoad>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    content: Option<Arc<SlotContent>>,
    /// Running sequences that use it.
    users: u32,
    /// When it was left last.
    left: u64,
}

impl AdapterPool {
    pub(super) fn new(slots: u32) -> Self {
        Self {
            slots: vec![Slot::default(); slots as usize],
            clock: 0,
            loads: Vec::new(),
        }
    }

    /// Whether a sequence with this adapter may start to run.
    pub(super) fn has_room(&self, content: &SlotContent) -> bool {
        self.slots
            .iter()
            .any(|slot| slot.users == 0 || slot.holds(content))
    }

    /// Gives a sequence that starts to run the slot of its adapter.
    pub(super) fn take(&mut self, content: &Arc<SlotContent>) -> u32 {
        let known = self.slots.iter().position(|slot| slot.holds(content));
        let index = known.unwrap_or_else(|| {
            let unused = self.slots.iter().enumerate();
            let unused = unused.filter(|(_, slot)| slot.users == 0);
            let (index, _) = unused
                .min_by_key(|(_, slot)| (slot.content.is_some(), slot.left))
                .expect("a sequence runs only if there is room for its adapter");
            self.slots[index].content = Some(content.clone());
            self.loads.push(AdapterLoad {
                slot: number(index),
                content: content.clone(),
            });
            index
        });
        self.slots[index].users += 1;
        number(index)
    }

    /// Takes the slot back from a sequence that does not run any more.
    pub(super) fn release(&mut self, slot: u32) {
        self.clock += 1;
        let slot = &mut self.slots[slot as usize - 1];
        slot.users = slot.users.checked_sub(1).expect("a slot is released once");
        slot.left = self.clock;
    }

    /// The contents to be written before the next step.
    pub(super) fn take_loads(&mut self) -> Vec<AdapterLoad> {
        std::mem::take(&mut self.loads)
    }

    /// These contents were not written.
    pub(super) fn drop_loads(&mut self, loads: &[AdapterLoad]) {
        for load in loads {
            self.slots[load.slot as usize - 1].content = None;
        }
    }

    /// All contents are lost, and no sequence runs.
    pub(super) fn reset(&mut self) {
        *self = Self::new(self.slots.len() as u32);
    }

    /// Asserts that the running sequences use these slots.
    pub(super) fn check(&self, used: impl Iterator<Item = u32>) {
        let mut users = vec![0; self.slots.len()];
        for slot in used {
            users[slot as usize - 1] += 1;
        }
        let counted = self.slots.iter().map(|slot| slot.users);
        assert!(
            counted.eq(users),
            "every user of an adapter slot is counted"
        );
    }
}

impl Slot {
    fn holds(&self, content: &SlotContent) -> bool {
        let own = self.content.as_ref();
        own.is_some_and(|own| own.digest == content.digest)
    }
}

/// The number of a slot in the plan, where 0 is that of sequences without adapter.
fn number(index: usize) -> u32 {
    index as u32 + 1
}

#[cfg(test)]
mod tests;
