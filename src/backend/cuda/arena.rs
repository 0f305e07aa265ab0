//! Everything on the device, allocated at start: weights, row buffers, KV pool, state slots, feed slots, metadata,
//! scratch.
//!
//! [`layout`](crate::backend::layout) determines all sizes. A weight is one allocation; its sections start at multiples
//! of [`GRANULE`], in order. Vectors (one row) are widened to f32 when written: this is exact, and kernels need no
//! variant for their format.

use super::super::BackendError;
use super::super::layout::{Layout, PoolLayout, WeightShard};
use super::driver::Driver;
use crate::plan::{BufferId, Plan, Storage, WeightFormat, WeightId, WeightSpec};

/// Consecutive rows of a weight, in one format.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSection {
    pub(super) row_start: u32,
    pub(super) rows: u32,
    /// F32 for vectors, whatever the checkpoint's format.
    pub(super) format: WeightFormat,
    pub(super) address: u64,
}

/// A weight as the device holds it.
pub(super) struct DeviceWeight {
    pub(super) columns: u32,
    pub(super) sections: Vec<DeviceSection>,
}

/// Sizes of all buffers other than weights, rows and pool.
pub(super) struct SideBytes {
    pub(super) feed: u64,
    pub(super) metadata: u64,
    pub(super) results: u64,
    pub(super) pooled: u64,
    pub(super) attend_scratch: u64,
    pub(super) attend_counters: u64,
    pub(super) sample_scratch: u64,
    pub(super) expert_scratch: u64,
    pub(super) tile_scratch: u64,
    pub(super) tile_counters: u64,
    pub(super) kv_table: u64,
}

/// The memory of one loaded plan.
#[derive(Default)]
pub(super) struct Arena {
    /// Addresses to free.
    owned: Vec<u64>,
    weights: Vec<DeviceWeight>,
    rows: Vec<u64>,
    /// Addresses of the states of each state layer.
    pub(super) states: Vec<u64>,
    kv: Vec<[u64; 2]>,
    /// Blocks of each KV group; empty before the pool is allocated.
    pub(super) blocks: Vec<u32>,
    /// `{key, value}` addresses of each layer's pool.
    pub(super) kv_table: u64,
    pub(super) feed: u64,
    pub(super) metadata: u64,
    pub(super) results: u64,
    pub(super) pooled: u64,
    pub(super) attend_scratch: u64,
    /// u32s that are zero between kernels.
    pub(super) attend_counters: u64,
    pub(super) sample_scratch: u64,
    pub(super) expert_scratch: u64,
    pub(super) tile_scratch: u64,
    /// u32s that are zero between kernels.
    pub(super) tile_counters: u64,
}

/// Alignment of allocations and of the sections of a weight.
pub(super) const GRANULE: u64 = 256;

impl Arena {
    /// Allocates everything except the pool; on an error, what was already allocated is freed.
    pub(super) fn new(
        driver: &mut dyn Driver,
        plan: &Plan,
        layout: &Layout,
        side: &SideBytes,
    ) -> Result<Self, BackendError> {
        let mut arena = Self::default();
        match arena.fill(driver, plan, layout, side) {
            Ok(()) => Ok(arena),
            Err(error) => {
                arena.free(driver);
                Err(error)
            }
        }
    }

    fn fill(
        &mut self,
        driver: &mut dyn Driver,
        plan: &Plan,
        layout: &Layout,
        side: &SideBytes,
    ) -> Result<(), BackendError> {
        for (spec, shards) in plan.weights.iter().zip(&layout.weights) {
            let weight = self.make_weight(driver, spec, shards)?;
            self.weights.push(weight);
        }
        for (spec, &bytes) in plan.buffers.iter().zip(&layout.rows) {
            if spec.storage == Storage::F16 {
                return Err(BackendError::storage(spec, "bf16 or f32"));
            }
            let address = self.make(driver, spec.name, bytes)?;
            self.rows.push(address);
        }
        for (layer, &bytes) in layout.states.iter().enumerate() {
            let address = self.make(driver, &format!("state.{layer}"), bytes)?;
            self.states.push(address);
        }
        self.feed = self.make(driver, "feed", side.feed)?;
        self.metadata = self.make(driver, "metadata", side.metadata)?;
        self.results = self.make(driver, "results", side.results)?;
        self.pooled = self.make(driver, "pooled rows", side.pooled)?;
        self.attend_scratch = self.make(driver, "attend scratch", side.attend_scratch)?;
        self.attend_counters = self.make(driver, "attend counters", side.attend_counters)?;
        self.sample_scratch = self.make(driver, "sample scratch", side.sample_scratch)?;
        self.expert_scratch = self.make(driver, "expert scratch", side.expert_scratch)?;
        self.tile_scratch = self.make(driver, "tile scratch", side.tile_scratch)?;
        self.tile_counters = self.make(driver, "tile counters", side.tile_counters)?;
        self.kv_table = self.make(driver, "kv table", side.kv_table)?;
        Ok(())
    }

    fn make(
        &mut self,
        driver: &mut dyn Driver,
        what: &str,
        bytes: u64,
    ) -> Result<u64, BackendError> {
        let address = driver.allocate(what, bytes)?;
        self.owned.push(address);
        Ok(address)
    }

    fn make_weight(
        &mut self,
        driver: &mut dyn Driver,
        spec: &WeightSpec,
        shards: &[WeightShard],
    ) -> Result<DeviceWeight, BackendError> {
        let mut address = self.make(
            driver,
            &spec.name,
            shards.iter().map(|shard| shard.bytes).sum(),
        )?;
        Ok(DeviceWeight {
            columns: spec.columns,
            sections: shards
                .iter()
                .map(
                    |&WeightShard {
                         row_start,
                         rows,
                         format,
                         bytes,
                     }| {
                        let section = DeviceSection {
                            row_start,
                            rows,
                            format,
                            address,
                        };
                        address += bytes;
                        section
                    },
                )
                .collect(),
        })
    }

    /// Frees all memory.
    pub(super) fn free(&mut self, driver: &mut dyn Driver) {
        self.owned
            .drain(..)
            .for_each(|address| driver.free(address));
        self.free_pool(driver);
    }

    fn free_pool(&mut self, driver: &mut dyn Driver) {
        for [key, value] in self.kv.drain(..) {
            let own = [key, if value == key { 0 } else { value }];
            own.into_iter()
                .filter(|address| *address != 0)
                .for_each(|address| driver.free(address));
        }
        self.blocks.clear();
    }

    /// Uploads whole rows of a weight.
    pub(super) fn write_weight(
        &mut self,
        driver: &mut dyn Driver,
        spec: &WeightSpec,
        id: WeightId,
        first_row: u32,
        rows: &[u8],
    ) -> Result<(), BackendError> {
        if spec.whole_rows(first_row, rows.len() as u64).is_none() {
            return Err(BackendError::not_whole_rows(
                &spec.name,
                first_row,
                rows.len(),
            ));
        }
        let weight = &self.weights[id.0 as usize];
        if spec.rows == 1 {
            let (format, columns) = (spec.format_of(0), spec.columns as usize);
            let wide: Vec<f32> = (0..columns)
                .map(|index| format.decode(rows, columns, index))
                .collect();
            return driver.write(weight.sections[0].address, bytemuck::cast_slice(&wide));
        }
        let section = weight
            .sections
            .iter()
            .rfind(|section| section.row_start <= first_row);
        let section = section
            .ok_or_else(|| BackendError::Validation(format!("weight {} has no rows", spec.name)))?;
        let before =
            u64::from(first_row - section.row_start) * section.format.row_bytes(spec.columns);
        driver.write(section.address + before, rows)
    }

    /// Allocates the zeroed pool; on an error, what was already allocated is freed.
    pub(super) fn allocate_pool(
        &mut self,
        driver: &mut dyn Driver,
        layout: &PoolLayout,
        blocks: &[u32],
    ) -> Result<(), BackendError> {
        self.free_pool(driver);
        for (index, shards) in layout.layers.iter().enumerate() {
            let bytes = shards.iter().map(|shard| shard.bytes).sum();
            let mut halves = [0; 2];
            let own = shards.iter().map(|shard| shard.halves).max().unwrap_or(2) as usize;
            for (half, name) in halves.iter_mut().zip(["key", "value"]).take(own) {
                match driver.allocate(&format!("{name}.{index}"), bytes) {
                    Ok(address) => *half = address,
                    Err(error) => {
                        self.kv.push(halves);
                        self.free_pool(driver);
                        return Err(error);
                    }
                }
            }
            // The values of a latent are its keys: a copy of a block's values copies the same bytes again.
            halves[1] = if own == 1 { halves[0] } else { halves[1] };
            self.kv.push(halves);
        }
        self.blocks = blocks.to_vec();
        driver.write(self.kv_table, bytemuck::cast_slice(&self.kv))
    }

    /// A weight as stored on the device.
    pub(super) fn weight(&self, id: WeightId) -> &DeviceWeight {
        &self.weights[id.0 as usize]
    }

    /// Address of a row buffer.
    pub(super) fn row_buffer(&self, id: BufferId) -> u64 {
        self.rows[id.0 as usize]
    }

    /// Addresses of a layer's keys and values.
    pub(super) fn kv(&self, layer: u32) -> [u64; 2] {
        self.kv[layer as usize]
    }

    /// Whether the pool is allocated.
    pub(super) fn has_pool(&self, plan: &Plan) -> bool {
        self.kv.len() == plan.kv_layers.len()
    }
}
