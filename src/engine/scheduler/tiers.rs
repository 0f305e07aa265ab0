//! Which blocks and snapshots of states move between device and host memory: evicted ones leave, those that a prompt
//! can reuse come back.

use super::{Draft, Scheduler};
use crate::engine::batch::Batch;
use crate::engine::block_pool::{BlockHash, BlockId, Group};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::SequenceId;
use crate::engine::tiers::host::Fill;
use crate::engine::tiers::{HostSlot, Rates, Restore, Save};

impl Scheduler {
    /// Sets the measured times that decide whether blocks move.
    pub fn set_rates(&mut self, rates: Rates) {
        self.rates = rates;
    }

    /// Index of the group of the state slots, after the KV groups.
    pub(super) fn state_group(&self) -> usize {
        self.limits.windows.len()
    }

    /// A KV group's blocks, or the state slots.
    pub(super) fn group(&self, group: usize) -> &Group {
        if group == self.state_group() {
            &self.states
        } else {
            &self.pool.groups()[group]
        }
    }

    /// [`Self::group`], to be changed.
    pub(super) fn group_mut(&mut self, group: usize) -> &mut Group {
        if group == self.state_group() {
            &mut self.states
        } else {
            self.pool.group_mut(group)
        }
    }

    /// Whether moving a block of this group is predicted to be cheaper than computing `tokens` tokens.
    fn is_worth_moving(&self, group: usize, tokens: u32) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_moving(bytes, tokens.into()))
    }

    /// Whether a block can be restored from host memory, and that is worthwhile if it spares `tokens` tokens.
    pub(super) fn in_host(&self, group: usize, hash: &BlockHash, tokens: u32) -> bool {
        self.host.lookup(group, hash).is_some() && self.is_worth_moving(group, tokens)
    }

    /// Tokens that a block of this group spares at most: its own, or those of a whole sequence before a snapshot.
    pub(super) fn spared_max(&self, group: usize) -> u32 {
        if group == self.state_group() {
            self.limits.max_model_len
        } else {
            self.limits.block_size
        }
    }

    /// Takes a block from the pool, or a state slot. What the cache kept in it moves to host memory if that is
    /// worthwhile.
    pub(super) fn allocate(&mut self, group: usize, draft: &mut Draft) -> Option<BlockId> {
        let (block, evicted) = self.group_mut(group).allocate()?;
        // What waits to be written of it leaves now, or never: the same text may get this block again, whose content is
        // another until its step has run.
        let origin = self.disk.take_finished(group, block);
        let is_worth_it =
            !self.host.is_off() && self.is_worth_moving(group, self.spared_max(group));
        // If the step after the one that writes a state was refused, the state is free before it is written.
        let is_worth_it = is_worth_it && self.is_complete(group, block);
        let Some(hash) = evicted else {
            return Some(block);
        };
        if !is_worth_it {
            return Some(block);
        }
        let origin = origin.filter(|origin| self.evict_to_disk(origin, (group, hash)));
        let is_new = !self.host.has(group, &hash);
        let slot = is_new
            .then(|| self.host.reserve(group, hash, Fill::Leaving))
            .flatten();
        if slot.is_some() || origin.is_some() {
            draft.batch.saves.push(Save {
                group,
                block,
                slot,
                origin,
            });
        }
        Some(block)
    }

    /// Allocates a block or state slot for a sequence that is being admitted, to be filled from a pinned slot of host
    /// memory before the step runs. From now on it is cached like a block that the step computes.
    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        (group, hash): (usize, BlockHash),
        slot: HostSlot,
        draft: &mut Draft,
    ) -> BlockId {
        let block = self
            .allocate(group, draft)
            .expect("an admitted sequence has the blocks it needs");
        self.group_mut(group).register(block, hash);
        if group == self.state_group() && self.faults.has(InjectedFault::StateNotRestored) {
            self.host.unpin(slot);
            return block;
        }
        draft.batch.restores.push(Restore {
            sequence,
            group,
            block,
            slot,
        });
        self.sequences[sequence].in_flight += 1;
        self.restores_in_flight += 1;
        block
    }

    /// Takes note that the copies of a batch have completed; if the batch failed, they may not have happened.
    pub(super) fn land_copies(&mut self, batch: &Batch, failed: bool) {
        self.land_saves(&batch.saves, failed);
        for restore in &batch.restores {
            self.host.unpin(restore.slot);
            self.restores_in_flight -= 1;
            self.sequences[restore.sequence].in_flight -= 1;
            self.counts.blocks_restored += u64::from(!failed);
        }
    }

    /// Takes note that copies have completed, unless they failed.
    pub(crate) fn land_saves(&mut self, saves: &[Save], failed: bool) {
        for save in saves {
            match (save.slot, failed) {
                (Some(slot), false) => {
                    self.counts.blocks_saved += u64::from(self.host.complete(slot));
                }
                (Some(slot), true) => self.host.abandon(slot),
                (None, _) => {}
            }
            if let Some(origin) = save.origin.as_ref()
                && failed
            {
                self.disk.abandon(origin);
            }
        }
    }

    /// Removes all blocks of a sequence from every tier, because their content is not valid.
    pub(super) fn withdraw_everywhere(&mut self, id: SequenceId) {
        self.withdraw_all(id);
        for &hash in &self.sequences[id].hashes {
            for group in 0..self.limits.windows.len() {
                // A window has passed the blocks that the sequence does not hold any more.
                if let Some(block) = self.pool.groups()[group].lookup(&hash) {
                    self.pool.group_mut(group).withdraw(block);
                }
                self.host.withdraw(group, &hash);
                self.disk.withdraw((group, hash));
            }
            let group = self.state_group();
            if let Some(slot) = self.states.lookup(&hash) {
                self.states.withdraw(slot);
            }
            self.host.withdraw(group, &hash);
            self.disk.withdraw((group, hash));
        }
    }
}
