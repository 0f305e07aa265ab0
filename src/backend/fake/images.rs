//! Rows of images: the content of a row takes the place of the token that stands for it.
//!
//! A content is the bits of a row's first number. A tower does no arithmetic: the rows that it merges become the first
//! of them.

use super::{FakeBackend, POOLED_COLUMNS};
use crate::plan::inputs::{BatchInputs, FEED, IMAGE_ROW, Results};
use crate::plan::{Plan, WeightId};

/// Number of contents that a device with this plan keeps: of rows of images, or of the patches of a tower.
pub(super) fn count(plan: &Plan) -> u32 {
    if plan.pools_merged_rows() {
        plan.vocab
    } else {
        plan.image_row_count()
    }
}

/// The contents of rows of so many bytes.
pub(super) fn contents(rows: &[u8], row_bytes: u64) -> Vec<u32> {
    let first_number = |row: &[u8]| row.first_chunk().copied().unwrap_or_default();
    let rows = rows.chunks_exact(row_bytes as usize).map(first_number);
    rows.map(u32::from_le_bytes).collect()
}

impl FakeBackend {
    /// Whether a weight has rows of images, or patches.
    pub(super) fn has_images_in(&self, weight: WeightId) -> bool {
        let table = if self.plan.pools_merged_rows() {
            self.plan.token_table()
        } else {
            self.plan.image_rows()
        };
        table == Some(weight)
    }

    /// The tokens of a batch, with those in feed slots, and contents in place of those that stand for images.
    pub(super) fn tokens_seen(&self, inputs: &BatchInputs) -> Vec<u32> {
        let ids = inputs.token_ids.iter();
        ids.map(|&id| match id {
            id if id & FEED != 0 => self.feed[(id & !FEED) as usize],
            id if id & IMAGE_ROW != 0 => self.images[(id & !IMAGE_ROW) as usize],
            id => id,
        })
        .collect()
    }

    /// The rows of a tower: each is the first patch of its run.
    pub(super) fn merge(&self, inputs: &BatchInputs) -> Results {
        let rows = inputs.pools.iter().map(|pool| {
            let first = inputs.logits_rows[pool.row_start as usize];
            let patch = inputs.token_ids[first as usize];
            vec![f32::from_bits(self.images[patch as usize]); POOLED_COLUMNS]
        });
        Results {
            pooled: rows.collect(),
            ..Results::default()
        }
    }
}
