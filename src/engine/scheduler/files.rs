//! Files that waiting sequences can reuse: they are read before a sequence can be admitted.

use super::{Scheduler, Sequence};
use crate::engine::memory::{BlockKey, HostSlot, Save};
use crate::engine::sequence::SequenceId;

/// Sequences at the head of the queue whose files are read before they can be admitted.
const READ_AHEAD: usize = 4;

impl Scheduler {
    /// So many files were not what they should be.
    pub(crate) fn refused_files(&mut self, files: u64) {
        self.queues.counts.files_refused += files;
    }

    /// A file was written, or could not be.
    pub(crate) fn wrote_file(&mut self, key: BlockKey, written: bool) {
        self.queues.memory.wrote_file(key, written);
        self.queues.counts.files_written += u64::from(written);
    }

    /// The file for this slot was read, if `is_sound`; if not, there is no such file any more. Returns whether its
    /// bytes are wanted.
    pub(crate) fn read_file(&mut self, slot: HostSlot, is_sound: bool) -> bool {
        let Some(read) = self.queues.memory.read_file(slot, is_sound) else {
            return false;
        };
        self.queues.counts.files_read += u64::from(is_sound);
        for id in read.waiters {
            let holding = &mut self.queues.sequences[id].holding;
            self.queues.memory.note_file(holding, slot, read.is_wanted);
        }
        read.is_wanted
    }

    /// Copies have completed, unless they failed.
    pub(crate) fn land_saves(&mut self, saves: &[Save], failed: bool) {
        self.queues.counts.blocks_saved += self.queues.memory.land_saves(saves, failed);
    }

    /// Whether a waiting sequence waits for files. When it is first asked, they are asked for.
    pub(super) fn waits_for_files(&mut self, id: SequenceId) -> bool {
        let reusable = self.queues.sequences[id].reusable();
        let Sequence {
            holding, tokens, ..
        } = &mut self.queues.sequences[id];
        self.queues
            .memory
            .waits_for_files(id, holding, tokens, reusable)
    }

    /// Whether a sequence that could be admitted with `matched` cached blocks waits for files after all: blocks that
    /// were cached when it asked have been evicted since.
    pub(super) fn waits_for_evicted(&mut self, id: SequenceId, matched: u32) -> bool {
        let reusable = self.queues.sequences[id].reusable();
        let Sequence {
            holding, tokens, ..
        } = &mut self.queues.sequences[id];
        self.queues
            .memory
            .waits_for_evicted(id, holding, tokens, reusable, matched)
    }

    /// Asks for the files of those that will be admitted next, so that they do not wait for them then.
    pub(super) fn read_ahead(&mut self) {
        if self.queues.memory.files().is_off() {
            return;
        }
        let next: Vec<_> = self
            .queues
            .waiting
            .values()
            .copied()
            .take(READ_AHEAD)
            .collect();
        for id in next {
            self.waits_for_files(id);
        }
    }
}
