//! The plan of a tower, and how much of it a step computes.

use super::request::ImageRoom;
use crate::backend::{Capacity, Caps, layout};
use crate::plan::{KvFormat, Plan};
use std::sync::Arc;

/// Patches of a step of a tower, unless a single tile has more.
const PATCHES: u32 = 1024;
/// Tiles of a step of a tower.
const TILES_MAX: u32 = 64;

/// The plan of a tower, with the capacity of its steps.
#[derive(Clone, Debug)]
pub struct TowerPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) capacity: Capacity,
    /// Patches of a tile at most.
    tile: u32,
    /// The device has no room for larger tiles, which there are.
    is_limited: bool,
}

impl TowerPlan {
    /// Number of patches of a step, for tiles of at most so many.
    pub fn patches(tile: u32) -> u32 {
        (PATCHES / tile.max(1)).max(1).saturating_mul(tile)
    }

    /// The plan of a tower whose table has room for [`Self::patches`]. Larger tiles than fit a device's buffers are not
    /// computed.
    pub fn new(plan: impl Into<Arc<Plan>>, tile: u32, caps: &Caps) -> Self {
        let plan = plan.into();
        let run = plan.gathered_run().max(1);
        let bound = u32::try_from(layout::tokens_max(&plan, caps)).unwrap_or(u32::MAX);
        let bound = (bound / run).max(1) * run;
        let is_limited = tile > bound;
        let tile = tile.min(bound);
        let patches = Self::patches(tile).min(bound);
        let capacity = Capacity {
            tokens_max: patches,
            sequences_max: TILES_MAX.min(patches),
            samples_max: patches / run,
            feed_slots: 1,
            state_slots: 0,
            table_entries_max: patches,
            history_max: 1,
            bias_max: 1,
            mask_words_max: 1,
            copies_max: 1,
            // Nothing is kept of a tile.
            block_size: 16,
            kv_format: KvFormat::F32,
            // So that a tile has the same rows in whatever step it is computed.
            deterministic: true,
        };
        Self {
            plan,
            capacity,
            tile,
            is_limited,
        }
    }

    /// Rows of a tile at most, if the device has no room for larger ones that there are.
    pub(super) fn rows_limited(&self) -> Option<u32> {
        let rows = self.tile / self.plan.gathered_run().max(1);
        self.is_limited.then_some(rows)
    }

    /// What images a model reads that holds so many rows of them.
    pub(super) fn room(&self, rows: u32) -> ImageRoom {
        let table = self.plan.token_table();
        ImageRoom {
            rows,
            columns: table.map_or(0, |table| self.plan.weight_spec(table).columns),
            patches: self.tile,
            merged: self.plan.gathered_run(),
        }
    }
}

#[cfg(test)]
mod tests;
