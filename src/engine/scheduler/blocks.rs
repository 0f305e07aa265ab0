//! The blocks that a row takes: fresh ones, and copies of those that it shares with a fork and writes to.

use super::{Draft, Scheduler};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::{Sequence, SequenceId};

impl Scheduler {
    /// Number of further tokens that fit the sequence's own blocks and the available ones, in the group with the least
    /// room.
    pub(super) fn tokens_that_fit(&self, id: SequenceId) -> u32 {
        let sequence = &self.sequences[id];
        self.pool
            .groups()
            .iter()
            .enumerate()
            .map(|(index, group)| {
                let table = &sequence.tables[index];
                let usable = group.available() + table.reserved;
                let Some(fresh) = usable.checked_sub(u32::from(self.must_copy(sequence, index)))
                else {
                    return 0;
                };
                let held = u32::try_from(table.blocks.len()).expect("a table is short");
                debug_assert!(
                    sequence.computed <= held.saturating_mul(self.limits.block_size),
                    "computed tokens have blocks"
                );
                let blocks = held + fresh;
                blocks.saturating_mul(self.limits.block_size) - sequence.computed
            })
            .min()
            .unwrap_or(u32::MAX)
    }

    /// Whether the block that the next token goes to is partly filled and shared with a fork.
    pub(super) fn must_copy(&self, sequence: &Sequence, group: usize) -> bool {
        let (index, offset) = (
            sequence.computed / self.limits.block_size,
            sequence.computed % self.limits.block_size,
        );
        offset != 0
            && !self.faults.has(InjectedFault::MissingCopyOnWrite)
            && self.pool.groups()[group].references(sequence.tables[group].blocks[index as usize])
                > 1
    }

    /// Allocates the blocks for the next `count` tokens. A shared block that they would write into is copied first.
    pub(super) fn take_blocks(&mut self, id: SequenceId, count: u32, draft: &mut Draft) {
        debug_assert!(
            count > 0 && count <= self.tokens_that_fit(id),
            "there are enough blocks for the row"
        );
        for group in 0..self.limits.windows.len() {
            if self.must_copy(&self.sequences[id], group) {
                let index = (self.sequences[id].computed / self.limits.block_size) as usize;
                let target = self.take_block(id, group, draft);
                let source =
                    std::mem::replace(&mut self.sequences[id].tables[group].blocks[index], target);
                self.pool.group_mut(group).pin(source);
                self.pool.group_mut(group).release(source);
                draft.batch.copies[group].push((source, target));
            }
            let length = self.pool.blocks_for(self.sequences[id].computed + count) as usize;
            while self.sequences[id].tables[group].blocks.len() < length {
                let block = self.take_block(id, group, draft);
                self.sequences[id].tables[group].blocks.push(block);
            }
        }
    }

    fn take_block(&mut self, id: SequenceId, group: usize, draft: &mut Draft) -> u32 {
        let table = &mut self.sequences[id].tables[group];
        if table.reserved > 0 {
            table.reserved -= 1;
            self.pool.group_mut(group).unreserve(1);
        }
        let block = self
            .allocate(group, draft)
            .expect("there are enough blocks for the row");
        debug_assert_eq!(
            self.pool.groups()[group].references(block),
            1,
            "a fresh block has one holder"
        );
        block
    }
}
