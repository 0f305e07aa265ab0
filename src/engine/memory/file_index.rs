//! Which blocks files hold, which are on their way there, and which are being read. Pure: the files are the engine's.
//!
//! Only blocks without a salt are ever here: the key of their hashes is the same in other processes.

use super::holding::SequenceId;
use super::host::HostSlot;
use super::pool::{BlockHash, BlockId, BlockKey};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

/// Bytes that may wait to be written at most, besides one block. What leaves the device meanwhile is not written.
const WRITING_BYTES_MAX: u64 = 64 << 20;

/// Whether there is a disk, and what for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskUse {
    /// There is none.
    #[default]
    Off,
    /// Files are read; others write them.
    Read,
    /// Files are read and written.
    ReadAndWrite,
}

/// What a block holds, apart from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its group and chain hash.
    pub key: BlockKey,
    /// Chain hash of the block before it, or the chain's root.
    pub parent: BlockHash,
    /// Its token ids.
    pub token_ids: Box<[u32]>,
}

/// What memory asks of the disk.
#[derive(Clone, Debug)]
pub enum DiskJob {
    /// Read this block, for this slot of host memory.
    Read(HostSlot, Arc<Origin>),
    /// Remove the file of this block, if there is one.
    Remove(BlockKey),
}

/// A block that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) key: BlockKey,
    pub(crate) waiters: Vec<SequenceId>,
}

/// The index of the files on a disk.
#[derive(Clone, Debug, Default)]
pub struct FileIndex {
    block_bytes: Vec<u64>,
    use_of: DiskUse,
    is_failing: bool,
    held: HashSet<BlockKey>,
    /// Blocks that are being copied from the device or written, and whether the disk has them. A block that was
    /// withdrawn meanwhile may be copied again before its first copy has ended: each copy has an origin of its own.
    writing: HashMap<BlockKey, (Arc<Origin>, bool)>,
    writing_bytes: u64,
    /// Blocks of ended and preempted sequences, to be copied and written unless they are overwritten before.
    finished: HashMap<(usize, BlockId), Arc<Origin>>,
    finished_order: VecDeque<(usize, BlockId)>,
    pub(crate) reading: BTreeMap<HostSlot, Reading>,
    jobs: Vec<DiskJob>,
}

impl FileIndex {
    /// An empty index. A block of group `g` takes `block_bytes[g]`.
    pub fn new(use_of: DiskUse, block_bytes: Vec<u64>) -> Self {
        Self {
            block_bytes,
            use_of,
            ..Self::default()
        }
    }

    /// Whether there is no disk.
    pub fn is_off(&self) -> bool {
        self.use_of == DiskUse::Off
    }

    /// Whether blocks are written.
    pub fn is_written(&self) -> bool {
        self.use_of == DiskUse::ReadAndWrite
    }

    /// Number of blocks in files.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no file holds a block.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether a file holds this block.
    pub fn holds(&self, key: &BlockKey) -> bool {
        self.held.contains(key)
    }

    /// A file holds this block now.
    pub(crate) fn add(&mut self, key: BlockKey) {
        self.held.insert(key);
    }

    /// No file holds this block any more.
    pub(crate) fn remove(&mut self, key: &BlockKey) {
        self.held.remove(key);
    }

    /// Whether files can be neither read nor written.
    pub fn is_failing(&self) -> bool {
        self.is_failing
    }

    pub(crate) fn set_usable(&mut self, is_usable: bool) {
        self.is_failing = !is_usable;
    }

    /// No file holds any block any more.
    pub(crate) fn clear(&mut self) {
        self.held.clear();
    }

    /// Removes the file of a block whose content turned out to be wrong.
    pub(crate) fn withdraw(&mut self, key: BlockKey) {
        if self.held.remove(&key) || self.writing.contains_key(&key) {
            self.end_write(&key);
            self.jobs.push(DiskJob::Remove(key));
        }
    }

    /// A block was copied. Returns whether this copy is still to be written.
    pub(crate) fn hand_over(&mut self, origin: &Arc<Origin>) -> bool {
        let writing = self
            .writing
            .get_mut(&origin.key)
            .filter(|(own, _)| Arc::ptr_eq(own, origin));
        writing.map(|(_, handed)| *handed = true).is_some()
    }

    /// A block was not copied.
    pub(crate) fn abandon(&mut self, origin: &Arc<Origin>) {
        if self
            .writing
            .get(&origin.key)
            .is_some_and(|(own, _)| Arc::ptr_eq(own, origin))
        {
            self.end_write(&origin.key);
        }
    }

    /// Whether a block that leaves the device should be written.
    pub(crate) fn wants(&self, key: &BlockKey) -> bool {
        self.is_written() && !self.held.contains(key) && !self.writing.contains_key(key)
    }

    /// A block is about to be copied and written. Returns whether there is room for it on the way.
    pub(crate) fn start_write(&mut self, origin: &Arc<Origin>) -> bool {
        let key = origin.key;
        debug_assert!(self.wants(&key), "a block is written once");
        if self.is_busy() {
            return false;
        }
        self.writing.insert(key, (origin.clone(), false));
        self.writing_bytes += self.block_bytes[key.0];
        true
    }

    /// A block was written, or cannot be.
    pub(crate) fn end_write(&mut self, key: &BlockKey) {
        if self.writing.remove(key).is_some() {
            self.writing_bytes -= self.block_bytes[key.0];
        }
    }

    /// Whether as many blocks as allowed are on their way to files.
    pub(crate) fn is_busy(&self) -> bool {
        self.writing_bytes >= WRITING_BYTES_MAX
    }

    /// This block of the pool holds what `origin` says, and will be written.
    pub(crate) fn finish(&mut self, block: BlockId, origin: Arc<Origin>) {
        let at = (origin.key.0, block);
        if self.finished.insert(at, origin).is_none() {
            self.finished_order.push_back(at);
        }
    }

    /// Whether blocks wait to be written.
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// The block of the pool that waits longest.
    pub(crate) fn next_finished(&mut self) -> Option<(BlockId, Arc<Origin>)> {
        while let Some(at) = self.finished_order.pop_front() {
            if let Some(origin) = self.finished.remove(&at) {
                return Some((at.1, origin));
            }
        }
        None
    }

    /// What a block of the pool held, if it waits to be written: it gets a new owner.
    pub(crate) fn take_finished(&mut self, group: usize, block: BlockId) -> Option<Arc<Origin>> {
        let origin = self.finished.remove(&(group, block))?;
        // The order is short of stale entries: each is dropped when its turn comes, or here.
        if self.finished_order.len() > 2 * self.finished.len() + 64 {
            self.finished_order
                .retain(|at| self.finished.contains_key(at));
        }
        Some(origin)
    }

    /// Whether files are being read.
    pub(crate) fn is_reading(&self) -> bool {
        !self.reading.is_empty()
    }

    /// Asks for a block.
    pub(crate) fn read(&mut self, slot: HostSlot, origin: Arc<Origin>, waiter: SequenceId) {
        let before = self.reading.insert(
            slot,
            Reading {
                key: origin.key,
                waiters: vec![waiter],
            },
        );
        debug_assert!(before.is_none(), "a slot is read into once at a time");
        self.jobs.push(DiskJob::Read(slot, origin));
    }

    /// What the engine must ask of the disk.
    pub(crate) fn take_jobs(&mut self) -> Vec<DiskJob> {
        std::mem::take(&mut self.jobs)
    }

    /// After the device was lost: what was to be copied from it is gone.
    pub(crate) fn restart(&mut self) {
        let copying: Vec<_> = self
            .writing
            .values()
            .filter(|(_, handed)| !handed)
            .map(|(own, _)| own.key)
            .collect();
        copying.iter().for_each(|key| self.end_write(key));
        self.finished.clear();
        self.finished_order.clear();
    }
}

#[cfg(test)]
mod tests;
