//! The state slots of the fake device. A state is a hash of the states of all rows of its sequence, in order, so that a
//! wrong, stale or shared one changes the tokens of all later rows.

use super::{INVALID, mix};
use crate::backend::Capacity;
use crate::plan::Plan;
use crate::plan::inputs::{BatchInputs, NONE};
use std::collections::BTreeSet;

/// The state of a sequence without rows.
pub(super) const ZERO: u64 = 0;

/// A slot before it is written, and after a batch that failed.
const UNWRITTEN: u64 = 0x5ca1_ab1e;

/// The state after one more row, which is in state `row`.
pub(super) fn fold(state: u64, row: u64) -> u64 {
    if row == INVALID {
        INVALID
    } else {
        mix(state, row)
    }
}

/// One state per slot; none if the model keeps no states.
#[derive(Default)]
pub(super) struct States(Vec<u64>);

impl States {
    /// The slots that a plan needs.
    pub(super) fn new(plan: &Plan, capacity: &Capacity) -> Self {
        let slots = if plan.state_layers.is_empty() {
            0
        } else {
            capacity.state_slots
        };
        Self(vec![UNWRITTEN; slots as usize])
    }

    /// The state before the rows of a sequence, if the model keeps states.
    pub(super) fn before(&self, inputs: &BatchInputs, sequence: usize) -> Option<u64> {
        let from = inputs.states.get(sequence)?.from;
        Some(if from == NONE {
            ZERO
        } else {
            self.0[from as usize]
        })
    }

    /// Stores the state after the rows of a sequence.
    pub(super) fn store(&mut self, inputs: &BatchInputs, sequence: usize, state: Option<u64>) {
        if let Some((slots, state)) = inputs.states.get(sequence).zip(state) {
            self.0[slots.to as usize] = state;
        }
    }

    /// Destroys the states that a batch should have stored.
    pub(super) fn spoil(&mut self, inputs: &BatchInputs) {
        inputs
            .states
            .iter()
            .for_each(|slots| self.0[slots.to as usize] = UNWRITTEN);
    }

    /// Destroys a state that no batch may need any more.
    pub(super) fn poison(&mut self, slot: u32) {
        self.0[slot as usize] = UNWRITTEN;
    }

    /// A copy of a state.
    pub(super) fn copy_of(&self, slot: u32) -> Vec<u8> {
        self.0[slot as usize].to_le_bytes().into()
    }

    /// Overwrites a state with a copy.
    pub(super) fn overwrite(&mut self, slot: u32, copy: &[u8]) {
        let state = copy.first_chunk().expect("a copy of a state has its bytes");
        self.0[slot as usize] = u64::from_le_bytes(*state);
    }

    /// Asserts what a batch must keep to.
    pub(super) fn check(&self, inputs: &BatchInputs) {
        let sequences = if self.0.is_empty() {
            0
        } else {
            inputs.sequences.len()
        };
        assert_eq!(
            inputs.states.len(),
            sequences,
            "every sequence has its state"
        );
        assert!(
            inputs.states.iter().all(|slots| self.is_known(slots.to)
                && (slots.from == NONE || self.is_known(slots.from)))
        );
        let written: BTreeSet<_> = inputs.states.iter().map(|slots| slots.to).collect();
        assert_eq!(
            written.len(),
            sequences,
            "no state is written twice in a batch"
        );
        let read: BTreeSet<_> = inputs
            .states
            .iter()
            .filter(|slots| slots.from != slots.to)
            .map(|slots| slots.from)
            .collect();
        assert!(
            read.is_disjoint(&written),
            "no state is read by one sequence and written by another"
        );
    }

    fn is_known(&self, slot: u32) -> bool {
        (slot as usize) < self.0.len()
    }
}
