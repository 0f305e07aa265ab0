//! Files are written behind: blocks and snapshots of states that will not change any more are copied beside a later
//! step, or while the engine is idle.

use super::Memory;
use super::file_index::Origin;
use super::holding::Holding;
use super::moves::Save;
use super::pool::{BlockId, BlockKey};
use std::sync::Arc;

/// Finished blocks that a step copies besides what it evicts, so that it takes hardly longer.
const SAVES_PER_STEP: usize = 4;
/// Finished blocks that an idle engine copies at a time.
pub(crate) const SAVES_WHILE_IDLE: usize = 16;

impl Memory {
    /// A block was copied. Returns whether this copy is still to be written.
    pub(crate) fn hand_over(&mut self, origin: &Arc<Origin>) -> bool {
        self.files.hand_over(origin)
    }

    /// A file was written, or could not be.
    pub(crate) fn wrote_file(&mut self, key: BlockKey, written: bool) {
        self.files.end_write(&key);
        if written {
            self.files.add(key);
        }
    }

    /// What a block of a sequence holds.
    pub(super) fn origin(
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
    pub(crate) fn finish_row(&mut self, holding: &Holding, tokens: &[u32], end: u32) {
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
        // A file says which tokens its block has, not which images.
        if holding.sees_image(index, self.limits.block_size) {
            return;
        }
        let is_cached = self.group(group).lookup(&hash) == Some(block);
        let is_new = self.files.wants(&(group, hash)) && !holding.is_salted;
        if is_cached && is_new && self.is_worth_reading(group, self.spared_max(group)) {
            let origin = self.origin(holding, tokens, (group, index));
            self.files.finish(block, origin);
        }
    }

    /// Copies of finished blocks to make beside a step.
    pub(crate) fn save_some_finished(&mut self) -> Vec<Save> {
        self.save_finished(SAVES_PER_STEP)
    }

    /// Copies of finished blocks to make before anything else runs; at most `count`.
    pub(crate) fn save_finished(&mut self, count: usize) -> Vec<Save> {
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

    /// Whether the content of a block that is evicted, `key`, is to be written, and is what waited for that.
    pub(super) fn evict_to_file(&mut self, origin: &Arc<Origin>, key: BlockKey) -> bool {
        origin.key == key && self.files.wants(&key) && self.files.start_write(origin)
    }
}
