//! The rows of images: when sequences take and leave them, and which are computed before a step.

use super::queues::Queues;
use super::{BatchBuilder, Scheduler};
use crate::engine::request::Tile;
use crate::engine::sequence::{Sequence, SequenceId};
use std::ops::Range;

impl Queues {
    /// Whether there is room for the rows of the images of a sequence, of whose tokens so many are computed.
    pub(super) fn has_image_rows(&self, id: SequenceId, computed: u32) -> bool {
        let tiles = tiles_after(&self.sequences[id], computed);
        self.images.has_room(tiles.map(|(_, tile)| tile))
    }

    /// Gives a sequence that starts running the rows of its images whose tokens are not computed.
    pub(super) fn take_image_rows(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        if sequence.request.tiles.is_empty() {
            return;
        }
        let request = sequence.request.clone();
        let after: Vec<_> = tiles_after(sequence, sequence.holding.computed)
            .map(|(index, _)| index)
            .collect();
        let rows = self
            .images
            .take(after.iter().map(|&index| &request.tiles[index]));
        sequence.image_rows = vec![None; request.tiles.len()];
        for (index, rows) in after.into_iter().zip(rows) {
            sequence.image_rows[index] = Some(rows);
        }
    }

    /// Takes all rows back from a sequence that stops running.
    pub(super) fn release_image_rows(&mut self, id: SequenceId) {
        let sequence = &mut self.sequences[id];
        for (tile, _) in sequence.tiles_in_use() {
            self.images.release(tile);
        }
        sequence.image_rows.clear();
    }

    /// Takes back the rows of images whose tokens the steps so far have computed. The last of these steps is submitted,
    /// so that it reads the rows before others are written there.
    pub(super) fn release_computed_images(&mut self) {
        for &id in &self.running {
            let sequence = &mut self.sequences[id];
            let computed = sequence.holding.computed;
            for (tile, rows) in sequence.request.tiles.iter().zip(&mut sequence.image_rows) {
                if tile.end() <= computed && rows.take().is_some() {
                    self.images.release(tile);
                }
            }
        }
    }

    /// Asserts that running sequences have the rows of the images that they have not computed.
    pub(super) fn check_images(&self) {
        let sequences = self.sequences.iter();
        let used = sequences.flat_map(Sequence::tiles_in_use);
        self.images.check(used.map(|(tile, _)| tile));
    }
}

impl Scheduler {
    /// Number of tokens of a sequence that come before images for which this step has no time left. The first image of
    /// a step is always computed, however large it is.
    pub(super) fn tokens_before_images(&self, sequence: &Sequence, builder: &BatchBuilder) -> u32 {
        let computed = sequence.holding.computed;
        let mut left = builder.patches_left;
        for (tile, _) in sequence.tiles_in_use() {
            if tile.end() <= computed || !self.queues.images.is_unwritten(tile) {
                continue;
            }
            let count = tile.patch_count();
            if count > left && left < self.queues.limits.patches_max {
                return tile.start.saturating_sub(computed);
            }
            left = left.saturating_sub(count);
        }
        u32::MAX
    }

    /// Has the images of these tokens computed before the step, unless they are.
    pub(super) fn compute_images(
        &mut self,
        id: SequenceId,
        tokens: Range<u32>,
        builder: &mut BatchBuilder,
    ) {
        for (tile, _) in self.queues.sequences[id].tiles_in_use() {
            let is_read = tile.start < tokens.end && tokens.start < tile.end();
            if is_read && self.queues.images.is_unwritten(tile) {
                builder.patches_left = builder.patches_left.saturating_sub(tile.patch_count());
                self.queues.images.write(tile);
            }
        }
    }
}

/// The tiles of a sequence with tokens that are not computed, if so many leading ones are, and their indices.
fn tiles_after(sequence: &Sequence, computed: u32) -> impl Iterator<Item = (usize, &Tile)> {
    let tiles = sequence.request.tiles.iter().enumerate();
    tiles.filter(move |(_, tile)| tile.end() > computed)
}
