//! Which blocks and snapshots of states move between device and host memory: evicted ones leave, those that a prompt
//! can reuse come back.

use super::Memory;
use super::holding::SequenceId;
use super::host::{Fill, HostSlot};
use super::moves::{Moves, Restore, Save};
use super::pool::{BlockHash, BlockId};

impl Memory {
    /// Takes a block from the pool, or a state slot. What the cache kept in it moves to host memory if that is
    /// worthwhile.
    pub(super) fn allocate(&mut self, group: usize, moves: &mut Moves) -> Option<BlockId> {
        let (block, evicted) = self.group_mut(group).allocate()?;
        // What waits to be written of it leaves now, or never: the same text may get this block again, whose content is
        // another until its step has run.
        let origin = self.files.take_finished(group, block);
        let Some(hash) = evicted else {
            return Some(block);
        };
        // If the step after the one that writes a state was refused, the state is free before it is written.
        if !self.is_worth_evicting(group) || !self.is_complete(group, block) {
            return Some(block);
        }
        let origin = origin.filter(|origin| self.evict_to_file(origin, (group, hash)));
        let is_new = !self.host.has(group, &hash);
        let slot = is_new
            .then(|| self.host.reserve(group, hash, Fill::Leaving))
            .flatten();
        if slot.is_some() || origin.is_some() {
            moves.saves.push(Save {
                group,
                block,
                slot,
                origin,
            });
        }
        Some(block)
    }

    /// The copies of a step have completed; if the step failed, they may not have happened. Returns the number of
    /// blocks that arrived in host memory.
    pub(crate) fn land_moves(&mut self, moves: &Moves, failed: bool) -> u64 {
        let saved = self.land_saves(&moves.saves, failed);
        for restore in &moves.restores {
            self.host.unpin(restore.slot);
            self.restores_in_flight -= 1;
        }
        for (group, copies) in moves.copies.iter().enumerate() {
            for &(source, _) in copies {
                self.pool.group_mut(group).unpin(source);
            }
        }
        saved
    }

    /// Copies have completed, unless they failed. Returns the number of blocks that arrived in host memory.
    pub(crate) fn land_saves(&mut self, saves: &[Save], failed: bool) -> u64 {
        let mut arrived = 0;
        for save in saves {
            match save.slot {
                Some(slot) if failed => self.host.abandon(slot),
                Some(slot) => arrived += u64::from(self.host.complete(slot)),
                None => {}
            }
            if let Some(origin) = &save.origin
                && failed
            {
                self.files.abandon(origin);
            }
        }
        arrived
    }

    /// Allocates a block or state slot for a sequence that is being admitted, to be filled from a pinned slot of host
    /// memory before the step runs. From now on it is cached like a block that the step computes.
    pub(super) fn restore(
        &mut self,
        sequence: SequenceId,
        (group, hash): (usize, BlockHash),
        slot: HostSlot,
        moves: &mut Moves,
    ) -> BlockId {
        let block = self
            .allocate(group, moves)
            .expect("an admitted sequence has the blocks it needs");
        self.group_mut(group).register(block, hash);
        moves.restores.push(Restore {
            sequence,
            group,
            block,
            slot,
        });
        self.restores_in_flight += 1;
        block
    }
}
