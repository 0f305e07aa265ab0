//! Which blocks move between device and host memory: evicted ones leave, those that a prompt can reuse come back.

use super::{Draft, Scheduler};
use crate::engine::batch::Batch;
use crate::engine::block_pool::{BlockHash, BlockId};
use crate::engine::sequence::SequenceId;
use crate::engine::tiers::{HostSlot, Rates, Restore, Save};

impl Scheduler {
    /// Sets the measured times that decide whether blocks move.
    pub fn set_rates(&mut self, rates: Rates) {
        self.rates = rates;
    }

    /// Whether moving a block of this group is predicted to be cheaper than computing it again.
    fn is_worth_moving(&self, group: usize) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_moving(bytes, self.limits.block_size.into()))
    }

    /// The slot of host memory from which a block can be restored, if that is worthwhile.
    pub(super) fn in_host(&self, group: usize, hash: &BlockHash) -> Option<HostSlot> {
        self.host.lookup(group, hash).filter(|_| self.is_worth_moving(group))
    }

    /// Takes a block from the pool. What the cache kept in it moves to host memory if that is worthwhile.
    pub(super) fn allocate(&mut self, group: usize, draft: &mut Draft) -> Option<BlockId> {
        let (block, evicted) = self.pool.group_mut(group).allocate()?;
        let Some(hash) = evicted.filter(|_| !self.host.is_off() && self.is_worth_moving(group)) else {
            return Some(block);
        };
        if !self.host.has(group, &hash)
            && let Some(slot) = self.host.reserve(group, hash)
        {
            draft.batch.saves.push(Save { group, block, slot });
        }
        Some(block)
    }

    /// Allocates a block for a sequence that is being admitted, to be filled from a pinned slot of host memory before
    /// the step runs. From now on it is cached like a block that the step computes.
    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        (group, hash): (usize, BlockHash),
        slot: HostSlot,
        draft: &mut Draft,
    ) -> BlockId {
        let block = self.allocate(group, draft).expect("an admitted sequence has the blocks it needs");
        self.pool.group_mut(group).register(block, hash);
        draft.batch.restores.push(Restore { sequence, group, block, slot });
        self.sequences[sequence].in_flight += 1;
        self.restores_in_flight += 1;
        block
    }

    /// Takes note that the copies of a batch have completed; if the batch failed, they may not have happened.
    pub(super) fn land_copies(&mut self, batch: &Batch, failed: bool) {
        for save in &batch.saves {
            if failed {
                self.host.abandon(save.slot);
            } else {
                self.counts.blocks_saved += u64::from(self.host.complete(save.slot));
            }
        }
        for restore in &batch.restores {
            self.host.unpin(restore.slot);
            self.restores_in_flight -= 1;
            self.sequences[restore.sequence].in_flight -= 1;
            self.counts.blocks_restored += u64::from(!failed);
        }
    }

    /// Removes all blocks of a sequence from every tier, because their content is not valid.
    pub(super) fn withdraw_everywhere(&mut self, id: SequenceId) {
        self.withdraw_all(id);
        for hash in &self.sequences[id].hashes {
            (0..self.limits.windows.len()).for_each(|group| self.host.withdraw(group, hash));
        }
    }
}
