//! The slots of the fake device's pool: a token and a state each, and what a row sees of them through its block tables.

use super::tokens::{first_visible, see};
use super::{FakeBackend, INVALID, POISON};
use crate::plan::inputs::{BatchInputs, NONE};

/// Content of a slot of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) token_id: u32,
    /// State of the row that wrote the slot.
    pub(super) state: u64,
}

/// A slot before it is written.
pub(super) const BLANK: Slot = Slot {
    token_id: POISON,
    state: 0,
};

/// The states that a row sees in one KV group, summed up: a row that becomes visible or leaves the window costs little.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct View {
    pub(super) sum: u64,
    pub(super) invalid: u32,
}

impl View {
    pub(super) fn add(&mut self, position: u32, state: u64) {
        self.sum = self.sum.wrapping_add(see(position, state));
        self.invalid = self.invalid.wrapping_add(u32::from(state == INVALID));
    }

    pub(super) fn remove(&mut self, position: u32, state: u64) {
        self.sum = self.sum.wrapping_sub(see(position, state));
        self.invalid = self.invalid.wrapping_sub(u32::from(state == INVALID));
    }
}

impl FakeBackend {
    /// Positions of a KV block.
    pub(super) fn block_size(&self) -> u32 {
        self.capacity
            .as_ref()
            .expect("a loaded device has a capacity")
            .block_size
    }

    /// Removes what leaves the windows after a row from what it sees.
    pub(super) fn pass_windows(
        &self,
        views: &mut [View],
        index: usize,
        position: u32,
        inputs: &BatchInputs,
    ) {
        for (group, view) in views.iter_mut().enumerate() {
            let window = self.plan.kv_groups[group].window;
            for passed in first_visible(position, window)..first_visible(position + 1, window) {
                view.remove(passed, self.slot(group, index, passed, inputs).state);
            }
        }
    }

    /// What a sequence's row at `position` sees of earlier rows, in each KV group.
    pub(super) fn views(&self, index: usize, position: u32, inputs: &BatchInputs) -> Vec<View> {
        let mut views = Vec::new();
        for (group, spec) in self.plan.kv_groups.iter().enumerate() {
            let mut view = View::default();
            for seen in first_visible(position, spec.window)..position {
                view.add(seen, self.slot(group, index, seen, inputs).state);
            }
            views.push(view);
        }
        views
    }

    /// A slot of a sequence's block table.
    pub(super) fn slot(
        &self,
        group: usize,
        index: usize,
        position: u32,
        inputs: &BatchInputs,
    ) -> Slot {
        let (arrays, size) = (&inputs.groups[group], self.block_size());
        let block = arrays.block_tables[(arrays.table_starts[index] + position / size) as usize];
        if block == NONE {
            BLANK
        } else {
            self.pool[group][(block * size + position % size) as usize]
        }
    }
}

/// Bytes of a slot in a copy of a block.
pub(super) const SLOT_BYTES: usize = 12;

/// A copy of a block: the token and the state of each slot, little-endian.
pub(super) fn slots_to_bytes(slots: &[Slot]) -> Vec<u8> {
    slots
        .iter()
        .flat_map(|slot| [&slot.token_id.to_le_bytes()[..], &slot.state.to_le_bytes()].concat())
        .collect()
}

/// Overwrites a block with a copy. What a short copy lacks becomes unreadable.
pub(super) fn bytes_to_slots(bytes: &[u8], slots: &mut [Slot]) {
    slots.fill(BLANK);
    for (slot, bytes) in slots.iter_mut().zip(bytes.as_chunks::<SLOT_BYTES>().0) {
        let (token_id, state) = bytes.split_at(4);
        slot.token_id = u32::from_le_bytes(token_id.try_into().expect("a token id has four bytes"));
        slot.state = u64::from_le_bytes(state.try_into().expect("a state has eight bytes"));
    }
}
