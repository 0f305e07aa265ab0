//! Files that a waiting sequence can reuse: they are read into host memory before it is admitted.

use super::Memory;
use super::file_index::DiskJob;
use super::holding::{Holding, SequenceId};
use super::host::{Fill, HostSlot};
use super::pool::BlockKey;
use super::search::Reach;

/// What a file that was read is good for.
#[derive(Debug)]
pub(crate) struct FileRead {
    /// Whether its bytes are wanted.
    pub(crate) is_wanted: bool,
    /// The sequences that waited for it.
    pub(crate) waiters: Vec<SequenceId>,
}

impl Memory {
    /// Files of these blocks were found, written by this process or another.
    pub(crate) fn found_files(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        let groups = self.limits.tiers.block_bytes.len();
        for key in keys.into_iter().filter(|(group, _)| *group < groups) {
            self.files.add(key);
        }
    }

    /// Files of these blocks are gone.
    pub(crate) fn lost_files(&mut self, keys: impl IntoIterator<Item = BlockKey>) {
        keys.into_iter().for_each(|key| self.files.remove(&key));
    }

    /// There are no files any more.
    pub(crate) fn lost_all_files(&mut self) {
        self.files.clear();
    }

    /// Files can be read and written, or cannot.
    pub(crate) fn set_disk_usable(&mut self, is_usable: bool) {
        self.files.set_usable(is_usable);
    }

    /// What the engine must ask of the disk now.
    pub(crate) fn take_disk_jobs(&mut self) -> Vec<DiskJob> {
        self.files.take_jobs()
    }

    /// The file for this slot was read, if `is_sound`; if not, there is no such file any more. Each sequence that
    /// waited for it must be told: [`Self::note_file`]. `None` if it was not being read.
    pub(crate) fn read_file(&mut self, slot: HostSlot, is_sound: bool) -> Option<FileRead> {
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
    pub(crate) fn note_file(&mut self, holding: &mut Holding, slot: HostSlot, is_wanted: bool) {
        holding.wait.unread -= 1;
        if is_wanted {
            holding.wait.arrived.push(slot);
            self.host.keep(slot);
        }
    }

    /// Whether a waiting sequence waits for files. When it is first asked, they are asked for.
    pub(crate) fn waits_for_files(
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
    pub(crate) fn waits_for_evicted(
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
}

/// Whether a slot's block was read from a file for this sequence.
pub(super) fn came_from_file(holding: &Holding, slot: HostSlot) -> bool {
    holding.wait.arrived.contains(&slot)
}
