//! The plan of a tower, and how much of it a step computes.

use super::request::ImageRoom;
use crate::backend::Capacity;
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
}

impl TowerPlan {
    /// Number of patches of a step, for tiles of at most so many.
    pub fn patches(tile: u32) -> u32 {
        (PATCHES / tile.max(1)).max(1).saturating_mul(tile)
    }

    /// The plan of a tower that has room for [`Self::patches`].
    pub fn new(plan: impl Into<Arc<Plan>>, tile: u32) -> Self {
        let plan = plan.into();
        let patches = Self::patches(tile);
        let capacity = Capacity {
            tokens_max: patches,
            sequences_max: TILES_MAX.min(patches),
            samples_max: patches / plan.gathered_run().max(1),
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
        }
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
