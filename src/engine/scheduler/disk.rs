//! Which blocks and snapshots of states move between host memory and disk: those of sequences that have ended are
//! written, those that a waiting sequence can reuse are read.

use super::Scheduler;
use crate::engine::batch::Batch;
use crate::engine::block_pool::{BlockHash, BlockId, BlockKey};
use crate::engine::faults::InjectedFault;
use crate::engine::sequence::SequenceId;
use crate::engine::tiers::host::Fill;
use crate::engine::tiers::{DiskJob, DiskTier, HostSlot, Origin, Save};
use std::sync::Arc;

/// Finished blocks that a step copies besides what it evicts, so that it takes hardly longer.
const SAVES_PER_STEP: usize = 4;
/// Sequences at the head of the queue whose files are read before they can be admitted.
const READ_AHEAD: usize = 4;
/// Finished blocks that an idle engine copies at a time.
pub(crate) const SAVES_WHILE_IDLE: usize = 16;

impl Scheduler {
    /// The index of the disk.
    pub fn disk(&self) -> &DiskTier {
        &self.disk
    }

    /// What the engine must ask of the disk now.
    pub(crate) fn take_disk_jobs(&mut self) -> Vec<DiskJob> {
        self.disk.take_jobs()
    }

    /// Files of these blocks were found, written by this process or another.
    pub(crate) fn found_on_disk(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        keys.into_iter()
            .filter(|(group, _)| *group < self.limits.tiers.block_bytes.len())
            .for_each(|key| self.disk.add(key));
    }

    /// Files of these blocks are gone.
    pub(crate) fn lost_on_disk(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        keys.into_iter().for_each(|key| self.disk.remove(&key));
    }

    /// There are no files any more.
    pub(crate) fn lost_all_on_disk(&mut self) {
        self.disk.clear();
    }

    /// So many files were not what they should be.
    pub(crate) fn refused_on_disk(&mut self, files: u64) {
        self.counts.files_refused += files;
    }

    /// Files can be read and written, or cannot.
    pub(crate) fn set_disk_usable(&mut self, is_usable: bool) {
        self.disk.set_usable(is_usable);
    }

    /// A block was copied. Returns whether this copy is still to be written.
    pub(crate) fn hand_over(&mut self, origin: &Arc<Origin>) -> bool {
        self.disk.hand_over(origin)
    }

    /// Whether no more blocks can be copied before some are written.
    pub(crate) fn is_disk_busy(&self) -> bool {
        self.disk.is_busy()
    }

    /// A file was written, or could not be.
    pub(crate) fn wrote(&mut self, key: BlockKey, written: bool) {
        self.disk.end_write(&key);
        if written {
            self.disk.add(key);
            self.counts.files_written += 1;
        }
    }

    /// The file for this slot was read, if `sound`; if not, there is no such file any more. Returns whether its bytes
    /// are wanted.
    pub(crate) fn read_file(&mut self, slot: HostSlot, sound: bool) -> bool {
        let Some(reading) = self.disk.reading.remove(&slot) else {
            return false;
        };
        let sound = sound || self.faults.has(InjectedFault::MissingFileRead);
        let wanted = if sound {
            self.counts.files_read += 1;
            self.host.complete(slot)
        } else {
            self.disk.remove(&reading.key);
            self.host.abandon(slot);
            false
        };
        for id in reading.waiters {
            let wait = &mut self.sequences[id].disk;
            wait.unread -= 1;
            if wanted {
                wait.arrived.push(slot);
                self.host.keep(slot);
            }
        }
        wanted
    }

    /// Whether a waiting sequence waits for files. When it is first asked, they are asked for.
    pub(super) fn waits_for_disk(&mut self, id: SequenceId) -> bool {
        if self.sequences[id].disk.promised.is_none() {
            self.ask_disk(id);
        }
        self.sequences[id].disk.unread > 0
    }

    /// Whether a sequence that could be admitted with `matched` cached blocks waits for files after all: blocks that
    /// were cached when it asked have been evicted since.
    pub(super) fn waits_for_evicted(&mut self, id: SequenceId, matched: u32) -> bool {
        if self.sequences[id]
            .disk
            .promised
            .is_some_and(|promised| matched < promised)
        {
            self.ask_disk(id);
        }
        self.sequences[id].disk.unread > 0
    }

    /// Asks for the files of those that will be admitted next, so that they do not wait for them then.
    pub(super) fn read_ahead(&mut self) {
        if self.disk.is_off() {
            return;
        }
        let next: Vec<_> = self.waiting.values().copied().take(READ_AHEAD).collect();
        next.into_iter().for_each(|id| _ = self.waits_for_disk(id));
    }

    /// Asks for the files that would make a sequence's cached prefix longer, as far as host memory has room.
    fn ask_disk(&mut self, id: SequenceId) {
        if self.disk.is_off() || self.sequences[id].request.cache_salt.is_some() {
            return;
        }
        let near = self.match_prefix(id, Self::in_host);
        let far = self.match_prefix(id, Self::in_host_or_on_disk);
        let is_whole = far > near && self.fetch_chain(id, far);
        self.sequences[id].disk.promised = Some(if is_whole { far } else { near });
    }

    /// Keeps the leading `far` blocks of a sequence in host memory or asks for their files, unless they are on the
    /// device. Returns whether all will be there.
    fn fetch_chain(&mut self, id: SequenceId, far: u32) -> bool {
        // Without the state after them, blocks are of no use.
        if self.keeps_states() && !self.fetch(id, self.state_group(), far - 1) {
            return false;
        }
        let groups = 0..self.limits.windows.len();
        let firsts: Vec<_> = groups
            .clone()
            .map(|group| {
                self.pool
                    .first_visible(group, far * self.limits.block_size)
                    .min(far)
            })
            .collect();
        (0..far).all(|index| {
            groups
                .clone()
                .filter(|&group| index >= firsts[group])
                .all(|group| self.fetch(id, group, index))
        })
    }

    /// Keeps a block of a chain, or the state after it, in host memory or asks for its file, unless it is on the
    /// device. Returns whether the blocks after it are of use.
    fn fetch(&mut self, id: SequenceId, group: usize, index: u32) -> bool {
        let hash = self.sequences[id].hashes[index as usize];
        if self.group(group).lookup(&hash).is_some() {
            return true;
        }
        if let Some(slot) = self.host.lookup(group, &hash) {
            self.host.keep(slot);
            self.sequences[id].disk.kept.push(slot);
            return true;
        }
        if let Some(slot) = self.host.arriving(group, &hash) {
            if let Some(reading) = self.disk.reading.get_mut(&slot) {
                reading.waiters.push(id);
                self.sequences[id].disk.unread += 1;
            }
            return true;
        }
        if self.host.has(group, &hash) {
            return false;
        }
        let Some(slot) = self.host.reserve(group, hash, Fill::Arriving) else {
            return false;
        };
        let origin = self.origin(id, group, index as usize);
        self.disk.read(slot, origin, id);
        self.sequences[id].disk.unread += 1;
        true
    }

    fn in_host_or_on_disk(&self, group: usize, hash: &BlockHash, tokens: u32) -> bool {
        self.in_host(group, hash, tokens)
            || self.disk.holds(&(group, *hash)) && self.is_worth_reading(group, tokens)
    }

    /// Whether reading a block of this group from a file is predicted to be cheaper than computing `tokens` tokens.
    fn is_worth_reading(&self, group: usize, tokens: u32) -> bool {
        let bytes = self.limits.tiers.block_bytes.get(group).copied();
        bytes.is_some_and(|bytes| self.rates.favor_reading(bytes, tokens.into()))
    }

    /// Whether a slot's block was read from a file for this sequence.
    pub(super) fn came_from_disk(&self, id: SequenceId, slot: HostSlot) -> bool {
        self.sequences[id].disk.arrived.contains(&slot)
    }

    /// A sequence does not wait for files any more: it is admitted, or it ends.
    pub(super) fn end_disk_wait(&mut self, id: SequenceId) {
        let wait = std::mem::take(&mut self.sequences[id].disk);
        wait.arrived
            .iter()
            .chain(&wait.kept)
            .for_each(|&slot| self.host.release(slot));
        if wait.unread > 0 {
            self.disk
                .reading
                .values_mut()
                .for_each(|reading| reading.waiters.retain(|&waiter| waiter != id));
        }
    }

    /// What a block of a sequence holds.
    fn origin(&self, id: SequenceId, group: usize, index: usize) -> Arc<Origin> {
        let sequence = &self.sequences[id];
        debug_assert!(
            sequence.request.cache_salt.is_none(),
            "only blocks without a salt are written"
        );
        let size = self.limits.block_size as usize;
        let parent = match index {
            0 => BlockHash::root(
                &self.limits.shared_key,
                sequence.request.cache_owner.as_ref(),
                None,
            ),
            _ => sequence.hashes[index - 1],
        };
        let token_ids = sequence.tokens[index * size..(index + 1) * size].into();
        Arc::new(Origin {
            key: (group, sequence.hashes[index]),
            parent,
            token_ids,
        })
    }

    /// The blocks of a sequence that leaves are written soon.
    pub(super) fn finish_blocks(&mut self, id: SequenceId) {
        if !self.disk.is_written() {
            return;
        }
        for group in 0..self.limits.windows.len() {
            let table = &self.sequences[id].tables[group];
            let (first, blocks) = (table.passed as usize, table.held().collect::<Vec<_>>());
            (first..)
                .zip(blocks)
                .for_each(|(index, block)| self.finish_block(id, group, index, block));
        }
        for index in 0..self.sequences[id].hashes.len() {
            self.finish_snapshot(id, index);
        }
    }

    /// The snapshots of prompts that a completed batch has computed are written soon. Those after blocks of an answer
    /// follow one another, so only the last is written, when the sequence leaves.
    pub(super) fn finish_snapshots(&mut self, batch: &Batch) {
        if !self.keeps_states() || !self.disk.is_written() {
            return;
        }
        for row in &batch.rows {
            let (end, size) = (row.start + row.count, self.limits.block_size);
            if end <= self.sequences[row.sequence].prompt_len() && end.is_multiple_of(size) {
                self.finish_snapshot(row.sequence, (end / size - 1) as usize);
            }
        }
    }

    /// The snapshot after a block of a sequence is written soon, if there is one and it is complete.
    fn finish_snapshot(&mut self, id: SequenceId, index: usize) {
        if !self.keeps_states() {
            return;
        }
        let Some(hash) = self.sequences[id].hashes.get(index) else {
            return;
        };
        if let Some(slot) = self.states.lookup(hash)
            && !self.is_written(slot)
        {
            self.finish_block(id, self.state_group(), index, slot);
        }
    }

    /// A block of a sequence, or the state after it, will not change any more; if it can be shared, it is written soon.
    pub(super) fn finish_block(
        &mut self,
        id: SequenceId,
        group: usize,
        index: usize,
        block: BlockId,
    ) {
        let sequence = &self.sequences[id];
        if !self.disk.is_written() {
            return;
        }
        let Some(&hash) = sequence.hashes.get(index) else {
            return;
        };
        let is_cached = self.group(group).lookup(&hash) == Some(block);
        let spared = self.spared_max(group);
        let is_new = self.disk.wants(&(group, hash)) && sequence.request.cache_salt.is_none();
        if is_cached && is_new && self.is_worth_reading(group, spared) {
            self.disk.finish(block, self.origin(id, group, index));
        }
    }

    /// Adds copies of finished blocks to a step.
    pub(super) fn save_some_finished(&mut self, saves: &mut Vec<Save>) {
        saves.extend(self.save_finished(SAVES_PER_STEP));
    }

    /// Whether finished blocks wait to be copied.
    pub(crate) fn has_finished_blocks(&self) -> bool {
        self.disk.has_finished()
    }

    /// Copies of finished blocks to make before anything else runs; at most `count`.
    pub(crate) fn save_finished(&mut self, count: usize) -> Vec<Save> {
        let mut saves = Vec::new();
        while saves.len() < count && !self.disk.is_busy() {
            let Some((block, origin)) = self.disk.next_finished() else {
                break;
            };
            let (group, hash) = origin.key;
            let is_whole =
                self.group(group).lookup(&hash) == Some(block) && self.is_complete(group, block);
            if is_whole && self.disk.wants(&origin.key) && self.disk.start_write(&origin) {
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
        let early = self.faults.has(InjectedFault::SnapshotWrittenEarly);
        group != self.state_group() || early || !self.is_written(block)
    }

    /// Whether the content of a block that is evicted, `key`, is to be written, and is what waited for that.
    pub(super) fn evict_to_disk(&mut self, origin: &Arc<Origin>, key: BlockKey) -> bool {
        origin.key == key && self.disk.wants(&key) && self.disk.start_write(origin)
    }
}
