//! The layers that predict further tokens, on the fake device. They are as good as such layers can be: a guess is the
//! token that the model will draw, as far as it follows from what the row reads.
//!
//! A row of the model leaves what it sees ([`Carried`]). The predictor's row that reads it adds the token after it, as
//! the model's next row will, and draws. It also looks at its own keys and values: where they are not those of the
//! tokens that the model has, because a row is missing or was left by a refused draft, it guesses wrong.

use super::slots::{Slot, View};
use super::states;
use super::tokens::{first_visible, history, mix, row_state};
use super::{FakeBackend, INVALID, POISON};
use crate::backend::BlockRef;
use crate::plan::inputs::{BatchInputs, Results};

/// Changes the guess of a row that sees wrong keys and values.
const WRONG: u64 = 0xbad;

/// What a row sees, the row itself included, when the row after it is computed.
#[derive(Clone, Debug)]
pub(super) struct Carried {
    pub(super) views: Vec<View>,
    pub(super) kept: Option<u64>,
    pub(super) adapter: Option<u64>,
    /// Position of the last row of the model among them.
    pub(super) known: u32,
    /// States of the rows that follow it, which the model has not computed yet.
    pub(super) ahead: Vec<u64>,
}

/// Keys and values of the predictor, and what its next batch reads.
#[derive(Default)]
pub(super) struct Predictor {
    /// Per KV group, `[block][slot]`: the token with which the row was computed. None without a predictor.
    pub(super) pool: Vec<Vec<u32>>,
    /// Per row of the batch before.
    pub(super) carried: Vec<Carried>,
}

impl Predictor {
    /// As many slots as the model has.
    pub(super) fn allocate(&mut self, pool: &[Vec<Slot>]) {
        self.pool = pool.iter().map(|slots| vec![POISON; slots.len()]).collect();
    }

    fn block(&mut self, BlockRef { group, block }: BlockRef, size: usize) -> &mut [u32] {
        let slots = self.pool.get_mut(group);
        slots.map_or(&mut [], |slots| &mut slots[block as usize * size..][..size])
    }

    /// Copies blocks of the model's pool, with what the predictor has in them.
    pub(super) fn copy_blocks(
        &mut self,
        pool: &mut [Vec<Slot>],
        inputs: &BatchInputs,
        size: usize,
    ) {
        copy_blocks(pool, inputs, size);
        copy_blocks(&mut self.pool, inputs, size);
    }

    /// Destroys what it has in a block.
    pub(super) fn poison(&mut self, group: usize, block: u32, size: usize) {
        self.block(BlockRef { group, block }, size).fill(POISON);
    }

    /// Destroys what a batch should have written.
    pub(super) fn spoil(&mut self, inputs: &BatchInputs) -> Results {
        for (pool, group) in self.pool.iter_mut().zip(&inputs.groups) {
            for &slot in &group.slot_mapping {
                pool[slot as usize] = POISON;
            }
        }
        self.carried.clear();
        Results::default()
    }

    /// A copy of what it has in a block: nothing without a predictor.
    pub(super) fn copy_of(&mut self, block: BlockRef, size: usize) -> Vec<u8> {
        let tokens = self.block(block, size).iter();
        tokens.flat_map(|token| token.to_le_bytes()).collect()
    }

    /// Overwrites what it has in a block. What a short copy lacks becomes unreadable.
    pub(super) fn overwrite(&mut self, block: BlockRef, size: usize, copy: &[u8]) {
        let slots = self.block(block, size);
        slots.fill(POISON);
        for (slot, bytes) in slots.iter_mut().zip(copy.as_chunks().0) {
            *slot = u32::from_le_bytes(*bytes);
        }
    }

    /// Asserts what a batch must keep to.
    pub(super) fn check(&self, inputs: &BatchInputs) {
        assert!(!self.pool.is_empty(), "only a predictor reads rows");
        assert_eq!(
            inputs.carried.len(),
            inputs.token_ids.len(),
            "every row reads one of the batch before"
        );
        assert!(
            inputs.states.is_empty() && inputs.adapters.is_empty() && inputs.pools.is_empty(),
            "a predictor has no states, adapters and pools"
        );
    }
}

impl FakeBackend {
    /// Runs a batch of the predictor.
    pub(super) fn predict(&mut self, inputs: &BatchInputs) -> Results {
        let size = self.block_size() as usize;
        self.predictor.copy_blocks(&mut self.pool, inputs, size);
        let token_ids = self.tokens_seen(inputs);
        for (pool, group) in self.predictor.pool.iter_mut().zip(&inputs.groups) {
            for (&slot, &token_id) in group.slot_mapping.iter().zip(&token_ids) {
                pool[slot as usize] = token_id;
            }
        }
        let (mut left, mut hashes) = (Vec::new(), Vec::new());
        for (index, rows) in inputs.sequences.iter().enumerate() {
            for row in (rows.row_start..rows.row_start + rows.row_count).map(|row| row as usize) {
                let source = self.predictor.carried[inputs.carried[row] as usize].clone();
                let (carried, hash) = self.continued(source, index, (row, token_ids[row]), inputs);
                left.push(carried);
                hashes.push(hash);
            }
        }
        self.predictor.carried = left;
        let sampled = self.sample(inputs, &hashes);
        Results {
            sampled,
            ..Results::default()
        }
    }

    /// What the model's next row will see after its token, and the hash of it; `None` if it is invalid.
    fn continued(
        &self,
        mut carried: Carried,
        index: usize,
        (row, token_id): (usize, u32),
        inputs: &BatchInputs,
    ) -> (Carried, Option<u64>) {
        let next = inputs.positions[row] + 1;
        let is_invalid = self.script.nan == Some(token_id)
            || carried.kept == Some(INVALID)
            || carried.views.iter().any(|view| view.invalid > 0);
        let sums = carried.views.iter().map(|view| view.sum);
        let state = if is_invalid {
            INVALID
        } else {
            row_state(
                next,
                token_id,
                sums.chain(carried.kept).chain(carried.adapter),
            )
        };
        carried.ahead.push(state);
        carried.kept = carried.kept.map(|kept| states::fold(kept, state));
        carried
            .views
            .iter_mut()
            .for_each(|view| view.add(next, state));
        let hash = history(carried.views.iter().map(|view| view.sum));
        for (group, view) in carried.views.iter_mut().enumerate() {
            let window = self.plan.kv_groups[group].window;
            for passed in first_visible(next, window)..first_visible(next + 1, window) {
                let state = match passed.checked_sub(carried.known + 1) {
                    None => self.slot(group, index, passed, inputs).state,
                    Some(place) => carried.ahead[place as usize],
                };
                view.remove(passed, state);
            }
        }
        let hash = if self.sees_its_own_rows(&carried, index, next - 1, inputs) {
            hash
        } else {
            mix(hash, WRONG)
        };
        (carried, (!is_invalid).then_some(hash))
    }

    /// Whether the keys and values that a row sees are those of the model's tokens.
    fn sees_its_own_rows(
        &self,
        carried: &Carried,
        index: usize,
        position: u32,
        inputs: &BatchInputs,
    ) -> bool {
        let size = self.block_size();
        self.plan.kv_groups.iter().enumerate().all(|(group, spec)| {
            let arrays = &inputs.groups[group];
            let mut seen = first_visible(position, spec.window)..position.min(carried.known);
            seen.all(|seen| {
                let entry = arrays.table_starts[index] + seen / size;
                let block = arrays.block_tables[entry as usize];
                let slot = (block * size + seen % size) as usize;
                self.predictor.pool[group][slot]
                    == self.slot(group, index, seen + 1, inputs).token_id
            })
        })
    }
}

/// Copies the blocks of a batch, of `size` slots each.
fn copy_blocks<T: Copy>(pools: &mut [Vec<T>], inputs: &BatchInputs, size: usize) {
    for (pool, group) in pools.iter_mut().zip(&inputs.groups) {
        for &(source, target) in &group.copies {
            let source = source as usize * size;
            pool.copy_within(source..source + size, target as usize * size);
        }
    }
}
