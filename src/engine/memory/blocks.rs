//! The blocks that a sequence holds: it extends them, copies what it shares with a fork before it writes there, passes
//! those that its window has left behind, and releases all.

use super::Memory;
use super::holding::{Holding, SequenceId, Table};
use super::moves::Moves;
use super::pool::BlockId;
use crate::plan::inputs::NONE;

/// Maximum blocks that a sequence holds at once in a group whose window covers `window` blocks, if a step computes at
/// most `tokens` of its tokens.
pub(crate) fn blocks_live_max(window: u32, tokens: u32, block_size: u32) -> u32 {
    window + tokens.div_ceil(block_size) + 2
}

impl Memory {
    /// Number of blocks that `tokens` tokens need.
    pub(crate) fn blocks_for(&self, tokens: u32) -> u32 {
        self.pool.blocks_for(tokens)
    }

    /// Maximum blocks of a group that a sequence holds at once.
    pub(crate) fn blocks_live_max(&self, group: usize) -> u32 {
        let Some(window) = self.pool.groups()[group].window() else {
            return u32::MAX;
        };
        let window = self.blocks_for(window.tokens());
        blocks_live_max(window, self.demand.step_tokens_max, self.limits.block_size)
    }

    /// Number of further tokens that fit the sequence's own blocks and the available ones, in the group with the least
    /// room.
    pub(crate) fn tokens_that_fit(&self, holding: &Holding) -> u32 {
        (0..self.kv_groups())
            .map(|group| self.tokens_that_fit_group(holding, group))
            .min()
            .unwrap_or(u32::MAX)
    }

    fn tokens_that_fit_group(&self, holding: &Holding, group: usize) -> u32 {
        let copied = u32::from(self.must_copy(holding, group));
        let Some(fresh) = self.usable(holding, group).checked_sub(copied) else {
            return 0;
        };
        let held = holding.tables[group].len();
        debug_assert!(
            holding.computed <= held.saturating_mul(self.limits.block_size),
            "computed tokens have blocks"
        );
        (held + fresh).saturating_mul(self.limits.block_size) - holding.computed
    }

    /// Blocks that a sequence can take now: available ones, and those reserved for it.
    fn usable(&self, holding: &Holding, group: usize) -> u32 {
        self.pool.groups()[group].available() + holding.tables[group].reserved
    }

    /// Number of blocks that a sequence lacks to compute `tokens` tokens.
    pub(crate) fn blocks_short(&self, holding: &Holding, group: usize, tokens: u32) -> u32 {
        let end = holding.computed + tokens;
        self.blocks_missing(holding, group, end)
            .saturating_sub(self.usable(holding, group))
    }

    /// Number of blocks that a sequence takes until it has `tokens` tokens, if no window passes any.
    fn blocks_missing(&self, holding: &Holding, group: usize, tokens: u32) -> u32 {
        let held = holding.tables[group].len();
        self.blocks_for(tokens).saturating_sub(held) + u32::from(self.must_copy(holding, group))
    }

    /// Whether the block that the next token goes to is partly filled and shared with a fork.
    fn must_copy(&self, holding: &Holding, group: usize) -> bool {
        let index = holding.computed / self.limits.block_size;
        let offset = holding.computed % self.limits.block_size;
        offset != 0 && {
            let block = holding.tables[group].blocks[index as usize];
            self.pool.groups()[group].references(block) > 1
        }
    }

    /// Takes the blocks for the next `count` tokens. A shared block that they would write into is copied first.
    pub(crate) fn extend(&mut self, holding: &mut Holding, count: u32, moves: &mut Moves) {
        debug_assert!(
            count > 0 && count <= self.tokens_that_fit(holding),
            "there are enough blocks for the row"
        );
        let length = self.blocks_for(holding.computed + count);
        for group in 0..self.kv_groups() {
            if self.must_copy(holding, group) {
                self.copy_for_writing(holding, group, moves);
            }
            while holding.tables[group].len() < length {
                let block = self.take_block(&mut holding.tables[group], group, moves);
                holding.tables[group].blocks.push(block);
            }
        }
    }

    /// Replaces the block that the next token goes to by a copy of its own.
    fn copy_for_writing(&mut self, holding: &mut Holding, group: usize, moves: &mut Moves) {
        let index = (holding.computed / self.limits.block_size) as usize;
        let table = &mut holding.tables[group];
        let target = self.take_block(table, group, moves);
        let source = std::mem::replace(&mut table.blocks[index], target);
        let pool = self.pool.group_mut(group);
        pool.pin(source);
        pool.release(source);
        moves.copies[group].push((source, target));
    }

    fn take_block(&mut self, table: &mut Table, group: usize, moves: &mut Moves) -> BlockId {
        if table.reserved > 0 {
            table.reserved -= 1;
            self.pool.group_mut(group).unreserve(1);
        }
        let block = self
            .allocate(group, moves)
            .expect("there are enough blocks for the row");
        debug_assert_eq!(
            self.pool.groups()[group].references(block),
            1,
            "a fresh block has one holder"
        );
        block
    }

    /// A fork's holding: the same blocks and the same state, with one more holder each.
    pub(crate) fn fork(&mut self, parent: &Holding) -> Holding {
        let fork = parent.copy_for_fork();
        self.add_holder(&fork);
        fork
    }

    /// The holding of a sequence that held nothing, `own`, once it goes on from the blocks and the state of `source`.
    pub(crate) fn share(&mut self, source: &Holding, own: &Holding) -> Holding {
        debug_assert!(own.is_empty(), "it loses no block");
        Holding {
            is_guarded: source.is_guarded,
            hashes: own.hashes.clone(),
            cached: own.cached,
            ..self.fork(source)
        }
    }

    fn add_holder(&mut self, holding: &Holding) {
        for (group, table) in holding.tables.iter().enumerate() {
            let pool = self.pool.group_mut(group);
            table.held().for_each(|block| pool.share(block));
        }
        for slot in holding.states.held() {
            self.states.share(slot);
        }
    }

    /// Reserves `counts` free blocks per KV group for a sequence, which is then guarded: never out of blocks.
    pub(super) fn guard(&mut self, holding: &mut Holding, counts: &[u32]) {
        holding.is_guarded = true;
        for (group, (table, &count)) in holding.tables.iter_mut().zip(counts).enumerate() {
            self.pool.group_mut(group).reserve(count);
            table.reserved = count;
        }
    }

    /// Gives back what is reserved for a sequence in a group.
    pub(crate) fn unreserve(&mut self, holding: &mut Holding, group: usize) {
        let reserved = std::mem::take(&mut holding.tables[group].reserved);
        self.pool.group_mut(group).unreserve(reserved);
    }

    /// Reserves what a sequence may still need in a group until it has `tokens` tokens, as far as blocks are available.
    pub(crate) fn reserve_rest(&mut self, holding: &mut Holding, group: usize, tokens: u32) {
        let needed = self.blocks_to_come(holding, group, tokens);
        let count = needed.min(self.pool.groups()[group].available());
        self.pool.group_mut(group).reserve(count);
        holding.tables[group].reserved = count;
    }

    /// Maximum number of further blocks of a sequence in a group, until it has `tokens` tokens.
    pub(crate) fn blocks_to_come(&self, holding: &Holding, group: usize, tokens: u32) -> u32 {
        let table = &holding.tables[group];
        let held = table.len() - table.passed;
        let live = self.blocks_live_max(group).saturating_sub(held);
        self.blocks_missing(holding, group, tokens).min(live)
    }

    /// Number of blocks of a group that become free when all of these sequences have left.
    pub(crate) fn blocks_freed_by<'a>(
        &self,
        holdings: impl Iterator<Item = &'a Holding>,
        group: usize,
    ) -> u32 {
        let tables = holdings.map(|holding| &holding.tables[group]);
        let mut blocks: Vec<_> = tables.flat_map(Table::held).collect();
        blocks.sort_unstable();
        let pool = &self.pool.groups()[group];
        let is_freed = |holders: &&[BlockId]| {
            let references = pool.references(holders[0]) as usize;
            debug_assert!(holders.len() <= references, "every holder is counted");
            references == holders.len()
        };
        let freed = blocks.chunk_by(u32::eq).filter(is_freed).count();
        u32::try_from(freed).expect("a pool's blocks are a u32")
    }

    /// Whether a block of a group becomes free when this sequence leaves.
    pub(crate) fn frees_a_block(&self, holding: &Holding, group: usize) -> bool {
        let pool = &self.pool.groups()[group];
        let mut held = holding.tables[group].held();
        held.any(|block| pool.references(block) == 1)
    }

    /// Releases the blocks that neither the next row, which starts at `next`, nor a step in flight attends to. `tokens`
    /// are the sequence's known ids.
    pub(crate) fn pass_windows(&mut self, holding: &mut Holding, tokens: &[u32], next: u32) {
        for group in 0..self.kv_groups() {
            let table = &holding.tables[group];
            let first = table.passed;
            let end = self.pool.first_visible(group, next).min(table.len());
            for index in first..end {
                let block = holding.tables[group].blocks[index as usize];
                self.finish_block(holding, tokens, (group, index), block);
                self.pass_block(holding, group, index);
            }
            let table = &mut holding.tables[group];
            table.passed = table.passed.max(end);
        }
    }

    fn pass_block(&mut self, holding: &mut Holding, group: usize, index: u32) {
        let table = &mut holding.tables[group];
        let block = std::mem::replace(&mut table.blocks[index as usize], NONE);
        debug_assert!(block != NONE, "a window passes a block once");
        let pool = self.pool.group_mut(group);
        pool.release(block);
        if holding.is_guarded && pool.available() > 0 {
            pool.reserve(1);
            table.reserved += 1;
        }
    }

    /// Releases everything that a sequence holds; files that can keep some of it are written soon. `tokens` are its
    /// known ids.
    pub(crate) fn release(&mut self, id: SequenceId, holding: &mut Holding, tokens: &[u32]) {
        self.end_wait(id, holding);
        self.finish_blocks(holding, tokens);
        for (group, table) in holding.tables.iter().enumerate() {
            let pool = self.pool.group_mut(group);
            pool.unreserve(table.reserved);
            // The deepest first: see `Group::release`.
            table.held().rev().for_each(|block| pool.release(block));
        }
        for slot in holding.states.held() {
            self.states.release(slot);
        }
        holding.drop_lost();
    }

    /// Number of tokens stored in held blocks, over all KV groups: the slots of those blocks minus the slots that
    /// nobody has filled yet. A shared block counts once.
    pub(crate) fn tokens_stored<'a>(&self, holdings: impl Iterator<Item = &'a Holding>) -> u64 {
        let size = self.limits.block_size;
        let groups = self.pool.groups().iter();
        let held: u64 = groups.map(|group| u64::from(group.referenced())).sum();
        let mut unfilled = Vec::new();
        for holding in holdings {
            let full = holding.computed / size;
            for (group, table) in holding.tables.iter().enumerate() {
                let first = full.max(table.passed);
                let rest = table.blocks.iter().skip(first as usize);
                unfilled.extend((first..).zip(rest).map(|(index, &block)| {
                    let filled = if index == full {
                        holding.computed % size
                    } else {
                        0
                    };
                    (group, block, size - filled)
                }));
            }
        }
        // Of sequences that share a block, the one that has filled most of it counts.
        unfilled.sort_unstable();
        unfilled.dedup_by_key(|(group, block, _)| (*group, *block));
        let unfilled = unfilled.into_iter().map(|(_, _, slots)| u64::from(slots));
        held * u64::from(size) - unfilled.sum::<u64>()
    }
}
