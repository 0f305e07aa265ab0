//! What the prefix cache must forget: blocks and states that a failed step never computed, and results that turned out
//! to be wrong.

use super::Memory;
use super::holding::{Holding, Table};
use super::moves::Moves;
use crate::plan::inputs::{NONE, StateRows};
use std::collections::HashSet;

/// Blocks and states whose content a failed step should have written, and what was computed on top of them.
#[derive(Debug, Default)]
pub(crate) struct Spoilt {
    /// KV group and block.
    blocks: HashSet<(usize, u32)>,
    states: HashSet<u32>,
}

impl Spoilt {
    /// Whether a sequence holds a spoilt block, or goes on from a spoilt state; `is_used`: a step in flight uses it.
    pub(crate) fn concerns(&self, holding: &Holding, is_used: bool) -> bool {
        let holds = |(group, table): (usize, &Table)| {
            table
                .held()
                .any(|block| self.blocks.contains(&(group, block)))
        };
        holding.tables.iter().enumerate().any(holds) || self.has_state_of(holding, is_used)
    }

    fn has_state_of(&self, holding: &Holding, is_used: bool) -> bool {
        let states = &holding.states;
        is_used && self.states.contains(&states.read)
            || states.held().any(|slot| self.states.contains(&slot))
    }

    /// Adds what a sequence computed from spoilt blocks. After a wrong state, any of its blocks may be wrong.
    pub(crate) fn follow(&mut self, holding: &Holding, is_used: bool) {
        let has_state = !self.has_state_of(holding, is_used);
        for (group, table) in holding.tables.iter().enumerate() {
            let is_sound = |block: &u32| has_state && !self.blocks.contains(&(group, *block));
            let sound = table.held().take_while(is_sound).count();
            let spoilt = table.held().skip(sound);
            self.blocks.extend(spoilt.map(|block| (group, block)));
        }
    }
}

impl Memory {
    /// Removes from the prefix cache what a failed step should have restored, and adds it to `spoilt`.
    pub(crate) fn withdraw_restored(&mut self, moves: &Moves, spoilt: &mut Spoilt) {
        for restore in &moves.restores {
            self.group_mut(restore.group).withdraw(restore.block);
            if restore.group == self.state_group() {
                spoilt.states.insert(restore.block);
            } else {
                spoilt.blocks.insert((restore.group, restore.block));
            }
        }
    }

    /// Removes from the prefix cache what a row of a failed step should have filled from token `start` on, with what a
    /// step in flight fills on top of it, and adds it to `spoilt`.
    pub(crate) fn withdraw_row(
        &mut self,
        holding: &mut Holding,
        start: u32,
        states: Option<StateRows>,
        spoilt: &mut Spoilt,
    ) {
        let first = start / self.limits.block_size;
        for (group, table) in holding.tables.iter().enumerate() {
            let filled = table.blocks.iter().skip(first.max(table.passed) as usize);
            for &block in filled {
                self.pool.group_mut(group).withdraw(block);
                spoilt.blocks.insert((group, block));
            }
        }
        if let Some(StateRows { to, .. }) = states {
            self.states.withdraw(to);
            spoilt.states.insert(to);
        }
        let live = holding.states.live;
        spoilt.states.extend((live != NONE).then_some(live));
        self.withdraw_states(holding);
    }

    /// Removes all blocks and states of a sequence from the prefix cache.
    pub(crate) fn withdraw(&mut self, holding: &mut Holding) {
        self.withdraw_states(holding);
        for (group, table) in holding.tables.iter().enumerate() {
            for block in table.held() {
                self.pool.group_mut(group).withdraw(block);
            }
        }
    }

    /// Removes the states of a sequence from the prefix cache, and takes no snapshot of what it keeps.
    fn withdraw_states(&mut self, holding: &mut Holding) {
        let kept = holding.states.kept.take();
        for slot in holding.states.held() {
            self.states.withdraw(slot);
        }
        if let Some((_, slot)) = kept {
            self.states.release(slot);
        }
    }

    /// Removes all blocks and states of a sequence from every tier, because their content is not valid.
    pub(crate) fn withdraw_everywhere(&mut self, holding: &mut Holding) {
        self.withdraw(holding);
        for &hash in &holding.hashes {
            for group in 0..=self.state_group() {
                // A window has passed the blocks that the sequence does not hold any more.
                let pool = self.group_mut(group);
                if let Some(block) = pool.lookup(&hash) {
                    pool.withdraw(block);
                }
                self.host.withdraw(group, &hash);
                self.files.withdraw((group, hash));
            }
        }
    }
}
