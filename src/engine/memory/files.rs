//! Which blocks and snapshots of states move between host memory and files: those of sequences that have ended are
//! written, those that a waiting sequence can reuse are read.

use super::Memory;
use super::file_index::{DiskJob, Origin};
use super::holding::{Holding, SequenceId};
use super::host::{Fill, HostSlot};
use super::moves::Save;
use super::pool::{BlockId, BlockKey};
use super::prefix::Reach;
use std::sync::Arc;

/// Finished blocks that a step copies besides what it evicts, so that it takes hardly longer.
const SAVES_PER_STEP: usize = 4;
/// Finished blocks that an idle engine copies at a time.
pub(crate) const SAVES_WHILE_IDLE: usize = 16;

/// What a file that was read is good for.
#[derive(Debug)]
pub(in crate::engine) struct FileRead {
    /// Whether its bytes are wanted.
    pub(in crate::engine) is_wanted: bool,
    /// The sequences that waited for it.
    pub(in crate::engine) waiters: Vec<SequenceId>,
}

impl Memory {
    /// What the engine must ask of the disk now.
    pub(in crate::engine) fn take_disk_jobs(&mut self) -> Vec<DiskJob> {
        self.files.take_jobs()
    }

    /// Files of these blocks were found, written by this process or another.
    pub(in crate::engine) fn found_files(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        let groups = self.limits.tiers.block_bytes.len();
        for key in keys.into_iter().filter(|(group, _)| *group < groups) {
            self.files.add(key);
        }
    }

    /// Files of these blocks are gone.
    pub(in crate::engine) fn lost_files(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        keys.into_iter().for_each(|key| self.files.remove(&key));
    }

    /// There are no files any more.
    pub(in crate::engine) fn lost_all_files(&mut self) {
        self.files.clear();
    }

    /// Files can be read and written, or cannot.
    pub(in crate::engine) fn set_disk_usable(&mut self, is_usable: bool) {
        self.files.set_usable(is_usable);
    }

    /// A block was copied. Returns whether this copy is still to be written.
    pub(in crate::engine) fn hand_over(&mut self, origin: &Arc<Origin>) -> bool {
        self.files.hand_over(origin)
    }

    /// A file was written, or could not be.
    pub(in crate::engine) fn wrote_file(&mut self, key: BlockKey, written: bool) {
        self.files.end_write(&key);
        if written {
            self.files.add(key);
        }
    }

    /// The file for this slot was read, if `is_sound`; if not, there is no such file any more. Each sequence that
    /// waited for it must be told: [`Self::note_file`]. `None` if it was not being read.
    pub(in crate::engine) fn read_file(
        &mut self,
        slot: HostSlot,
        is_sound: bool,
    ) -> Option<FileRead> {
        let reading = self.files.reading.remove(&slot)?;
        let is_wanted = is_sound && self.host.complete(slot);
        if !is_sound {
            self.files.remove(&reading.key);
            self.host.abandon(slot);
        }
        Some(FileRead {
            is_wanted,
            waiters: reading.waiters,
        })
    }

    /// A file that a sequence waited for was read. If its bytes are wanted, the sequence keeps them in host memory.
    pub(in crate::engine) fn note_file(
        &mut self,
        holding: &mut Holding,
        slot: HostSlot,
        is_wanted: bool,
    ) {
        holding.wait.unread -= 1;
        if is_wanted {
            holding.wait.arrived.push(slot);
            self.host.keep(slot);
        }
    }

    /// Whether a waiting sequence waits for files. When it is first asked, they are asked for.
    pub(in crate::engine) fn waits_for_files(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
    ) -> bool {
        if holding.wait.promised.is_none() {
            self.ask_for_files(id, holding, tokens, reusable);
        }
        holding.wait.unread > 0
    }

    /// Whether a sequence that could be admitted with `matched` cached blocks waits for files after all: blocks that
    /// were cached when it asked have been evicted since.
    pub(in crate::engine) fn waits_for_evicted(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
        matched: u32,
    ) -> bool {
        let promised = holding.wait.promised;
        if promised.is_some_and(|promised| matched < promised) {
            self.ask_for_files(id, holding, tokens, reusable);
        }
        holding.wait.unread > 0
    }

    /// Asks for the files that are worth reading for a waiting sequence, if all that it needs beside them will be
    /// there.
    fn ask_for_files(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        tokens: &[u32],
        reusable: u32,
    ) {
        if self.files.is_off() || holding.is_salted {
            return;
        }
        let near = self.match_within(Reach::Host, holding, tokens, reusable);
        let far = self.match_within(Reach::Files, holding, tokens, reusable);
        let is_whole = far > near && self.fetch_chain(id, holding, tokens, far);
        holding.wait.promised = Some(if is_whole { far } else { near });
    }

    /// Keeps the leading `far` blocks of a sequence in host memory or asks for their files, unless they are on the
    /// device. Returns whether all will be there.
    fn fetch_chain(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        tokens: &[u32],
        far: u32,
    ) -> bool {
        // Without the state after them, blocks are of no use.
        let state = (self.state_group(), far as usize - 1);
        if self.keeps_states() && !self.fetch(id, holding, tokens, state) {
            return false;
        }
        let groups = 0..self.kv_groups();
        let chain = &holding.hashes[..far as usize];
        let firsts: Vec<_> = groups
            .map(|group| self.first_needed(group, chain))
            .collect();
        (0..far as usize).all(|index| {
            let mut needed = (0..firsts.len()).filter(|&group| index >= firsts[group]);
            needed.all(|group| self.fetch(id, holding, tokens, (group, index)))
        })
    }

    /// Keeps a block of a chain, or the state after it, in host memory or asks for its file, unless it is on the
    /// device. Returns whether the blocks after it are of use.
    fn fetch(
        &mut self,
        id: SequenceId,
        holding: &mut Holding,
        tokens: &[u32],
        (group, index): (usize, usize),
    ) -> bool {
        let hash = holding.hashes[index];
        if self.group(group).lookup(&hash).is_some() {
            return true;
        }
        if let Some(slot) = self.host.lookup(group, &hash) {
            self.host.keep(slot);
            holding.wait.kept.push(slot);
            return true;
        }
        if let Some(slot) = self.host.arriving(group, &hash) {
            if let Some(reading) = self.files.reading.get_mut(&slot) {
                reading.waiters.push(id);
                holding.wait.unread += 1;
            }
            return true;
        }
        if self.host.has(group, &hash) {
            return false;
        }
        let Some(slot) = self.host.reserve(group, hash, Fill::Arriving) else {
            return false;
        };
        let origin = self.origin(holding, tokens, (group, index));
        self.files.read(slot, origin, id);
        holding.wait.unread += 1;
        true
    }

    /// Whether reading a block of this group from a file is predicted to be cheaper than computing `tokens` tokens.
    pub(super) fn is_worth_reading(&self, group: usize, tokens: u32) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_reading(bytes, tokens.into()))
    }

    /// A sequence does not wait for files any more: it is admitted, or it ends.
    pub(super) fn end_wait(&mut self, id: SequenceId, holding: &mut Holding) {
        let wait = std::mem::take(&mut holding.wait);
        for &slot in wait.arrived.iter().chain(&wait.kept) {
            self.host.release(slot);
        }
        if wait.unread > 0 {
            for reading in self.files.reading.values_mut() {
                reading.waiters.retain(|&waiter| waiter != id);
            }
        }
    }

    /// What a block of a sequence holds.
    fn origin(
        &self,
        holding: &Holding,
        tokens: &[u32],
        (group, index): (usize, usize),
    ) -> Arc<Origin> {
        debug_assert!(!holding.is_salted, "only blocks without a salt are written");
        let size = self.limits.block_size as usize;
        let before = index.checked_sub(1).map(|before| holding.hashes[before]);
        Arc::new(Origin {
            key: (group, holding.hashes[index]),
            parent: before.unwrap_or(holding.root),
            token_ids: tokens[index * size..(index + 1) * size].into(),
        })
    }

    /// The blocks of a sequence that leaves are written soon.
    pub(super) fn finish_blocks(&mut self, holding: &Holding, tokens: &[u32]) {
        if !self.files.is_written() {
            return;
        }
        for (group, table) in holding.tables.iter().enumerate() {
            for (index, block) in (table.passed..).zip(table.held()) {
                self.finish_block(holding, tokens, (group, index), block);
            }
        }
        for index in 0..holding.hashes.len() {
            self.finish_snapshot(holding, tokens, index);
        }
    }

    /// A completed row has computed a sequence's tokens up to `end`. If they are of its prompt, the snapshot after them
    /// is written soon. Those after blocks of an answer follow one another, so only the last is written, when the
    /// sequence leaves.
    pub(in crate::engine) fn finish_row(&mut self, holding: &Holding, tokens: &[u32], end: u32) {
        let size = self.limits.block_size;
        if self.files.is_written() && end <= holding.prompt_len && end.is_multiple_of(size) {
            self.finish_snapshot(holding, tokens, (end / size - 1) as usize);
        }
    }

    /// The snapshot after a block of a sequence is written soon, if there is one and it is complete.
    fn finish_snapshot(&mut self, holding: &Holding, tokens: &[u32], index: usize) {
        let Some(hash) = holding.hashes.get(index) else {
            return;
        };
        let group = self.state_group();
        if let Some(slot) = self.states.lookup(hash)
            && self.is_complete(group, slot)
        {
            let index = u32::try_from(index).expect("a chain has few blocks");
            self.finish_block(holding, tokens, (group, index), slot);
        }
    }

    /// A block of a sequence, or the state after it, will not change any more; if it can be shared, it is written soon.
    pub(super) fn finish_block(
        &mut self,
        holding: &Holding,
        tokens: &[u32],
        (group, index): (usize, u32),
        block: BlockId,
    ) {
        let index = index as usize;
        let Some(&hash) = holding.hashes.get(index) else {
            return;
        };
        let is_cached = self.group(group).lookup(&hash) == Some(block);
        let is_new = self.files.wants(&(group, hash)) && !holding.is_salted;
        if is_cached && is_new && self.is_worth_reading(group, self.spared_max(group)) {
            let origin = self.origin(holding, tokens, (group, index));
            self.files.finish(block, origin);
        }
    }

    /// Copies of finished blocks to make beside a step.
    pub(in crate::engine) fn save_some_finished(&mut self) -> Vec<Save> {
        self.save_finished(SAVES_PER_STEP)
    }

    /// Copies of finished blocks to make before anything else runs; at most `count`.
    pub(in crate::engine) fn save_finished(&mut self, count: usize) -> Vec<Save> {
        let mut saves = Vec::new();
        while saves.len() < count && !self.files.is_busy() {
            let Some((block, origin)) = self.files.next_finished() else {
                break;
            };
            let (group, hash) = origin.key;
            let is_cached = self.group(group).lookup(&hash) == Some(block);
            let is_whole = is_cached && self.is_complete(group, block);
            if is_whole && self.files.wants(&origin.key) && self.files.start_write(&origin) {
                saves.push(Save {
                    group,
                    block,
                    slot: None,
                    origin: Some(origin),
                });
            }
        }
        saves
    }

    /// Whether no step in flight writes a state slot; a block that is finished is not written any more.
    pub(super) fn is_complete(&self, group: usize, block: BlockId) -> bool {
        group != self.state_group() || self.state_writes[block as usize] == 0
    }

    /// Whether the content of a block that is evicted, `key`, is to be written, and is what waited for that.
    pub(super) fn evict_to_file(&mut self, origin: &Arc<Origin>, key: BlockKey) -> bool {
        origin.key == key && self.files.wants(&key) && self.files.start_write(origin)
    }
}
