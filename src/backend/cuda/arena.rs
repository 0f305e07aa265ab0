//! Everything on the device, allocated at start: weights, row buffers, KV pool, feed slots, metadata, scratch.
//!
//! A weight is one allocation, its sections one below the other at multiples of 256 bytes. Vectors (one row) are
//! widened to f32 when written: exact, and a kernel needs no variant for their format.

use super::super::{BackendError, Capacity};
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

/// Bytes of the buffers that do not follow from plan and capacity alone.
pub(super) struct SideBytes {
    pub(super) metadata: u64,
    pub(super) results: u64,
    pub(super) pooled: u64,
    pub(super) attend_scratch: u64,
    pub(super) attend_counters: u64,
    pub(super) sample_scratch: u64,
    pub(super) expert_scratch: u64,
    pub(super) tile_scratch: u64,
    pub(super) tile_counters: u64,
}

/// The memory of one loaded plan.
#[derive(Default)]
pub(super) struct Arena {
    /// What to give back.
    owned: Vec<u64>,
    weights: Vec<DeviceWeight>,
    rows: Vec<u64>,
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

const SECTION_ALIGNMENT: u64 = 256;

impl Arena {
    /// Allocates everything but the pool; what an error leaves behind is given back.
    pub(super) fn new(
        driver: &mut dyn Driver,
        plan: &Plan,
        capacity: &Capacity,
        side: &SideBytes,
    ) -> Result<Self, BackendError> {
        let mut arena = Self::default();
        match arena.fill(driver, plan, capacity, side) {
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
        capacity: &Capacity,
        side: &SideBytes,
    ) -> Result<(), BackendError> {
        for spec in &plan.weights {
            let weight = self.make_weight(driver, spec)?;
            self.weights.push(weight);
        }
        for spec in &plan.buffers {
            if spec.storage == Storage::F16 {
                let what = format!("buffer {} of f16", spec.name);
                let message = "the CUDA kernels keep rows in bf16 or f32".into();
                return Err(BackendError::Unsupported { what, message });
            }
            let rows = spec.rows.count(capacity.tokens_max, capacity.samples_max);
            let bytes = u64::from(rows) * u64::from(spec.columns) * u64::from(spec.storage.bytes());
            let address = self.make(driver, spec.name, bytes)?;
            self.rows.push(address);
        }
        self.feed = self.make(driver, "feed", u64::from(capacity.feed_slots.max(1)) * 4)?;
        self.metadata = self.make(driver, "metadata", side.metadata)?;
        self.results = self.make(driver, "results", side.results)?;
        self.pooled = self.make(driver, "pooled rows", side.pooled)?;
        self.attend_scratch = self.make(driver, "attend scratch", side.attend_scratch)?;
        self.attend_counters = self.make(driver, "attend counters", side.attend_counters)?;
        self.sample_scratch = self.make(driver, "sample scratch", side.sample_scratch)?;
        self.expert_scratch = self.make(driver, "expert scratch", side.expert_scratch)?;
        self.tile_scratch = self.make(driver, "tile scratch", side.tile_scratch)?;
        self.tile_counters = self.make(driver, "tile counters", side.tile_counters)?;
        self.kv_table = self.make(driver, "kv table", plan.kv_layers.len() as u64 * 16)?;
        Ok(())
    }

    fn make(&mut self, driver: &mut dyn Driver, what: &str, bytes: u64) -> Result<u64, BackendError> {
        let address = driver.allocate(what, bytes)?;
        self.owned.push(address);
        Ok(address)
    }

    fn make_weight(&mut self, driver: &mut dyn Driver, spec: &WeightSpec) -> Result<DeviceWeight, BackendError> {
        let columns = spec.columns;
        if spec.rows == 1 {
            let address = self.make(driver, &spec.name, u64::from(columns) * 4)?;
            let section = DeviceSection { row_start: 0, rows: 1, format: WeightFormat::F32, address };
            return Ok(DeviceWeight { columns, sections: vec![section] });
        }
        let (mut sections, mut bytes, mut row_start) = (Vec::new(), 0u64, 0);
        for section in &spec.sections {
            sections.push(DeviceSection { row_start, rows: section.rows, format: section.format, address: bytes });
            row_start += section.rows;
            bytes += u64::from(section.rows) * section.format.row_bytes(columns);
            bytes = bytes.next_multiple_of(SECTION_ALIGNMENT);
        }
        let base = self.make(driver, &spec.name, bytes)?;
        sections.iter_mut().for_each(|section| section.address += base);
        Ok(DeviceWeight { columns, sections })
    }

    /// Gives all memory back.
    pub(super) fn free(&mut self, driver: &mut dyn Driver) {
        self.owned.drain(..).for_each(|address| driver.free(address));
        self.free_pool(driver);
    }

    fn free_pool(&mut self, driver: &mut dyn Driver) {
        self.kv.drain(..).flatten().filter(|address| *address != 0).for_each(|address| driver.free(address));
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
            let given = format!("{} bytes at row {first_row}", rows.len());
            return Err(BackendError::Validation(format!("weight {}: {given} are not rows of it", spec.name)));
        }
        let weight = &self.weights[id.0 as usize];
        if spec.rows == 1 {
            let (format, columns) = (spec.format_of(0), spec.columns as usize);
            let wide: Vec<f32> = (0..columns).map(|index| format.decode(rows, columns, index)).collect();
            return driver.write(weight.sections[0].address, bytemuck::cast_slice(&wide));
        }
        let section = weight.sections.iter().rfind(|section| section.row_start <= first_row);
        let section = section.ok_or_else(|| BackendError::Validation(format!("weight {} has no rows", spec.name)))?;
        let before = u64::from(first_row - section.row_start) * section.format.row_bytes(spec.columns);
        driver.write(section.address + before, rows)
    }

    /// Allocates the zeroed pool; on an error nothing of it is kept.
    pub(super) fn allocate_pool(
        &mut self,
        driver: &mut dyn Driver,
        plan: &Plan,
        capacity: &Capacity,
        blocks: &[u32],
    ) -> Result<(), BackendError> {
        self.free_pool(driver);
        for (index, layer) in plan.kv_layers.iter().enumerate() {
            let slots = u64::from(blocks[layer.group as usize]) * u64::from(capacity.block_size);
            let bytes = slots * u64::from(layer.heads) * capacity.kv_format.row_bytes(layer.head_dim);
            let mut halves = [0; 2];
            for (half, name) in halves.iter_mut().zip(["key", "value"]) {
                match driver.allocate(&format!("{name}.{index}"), bytes) {
                    Ok(address) => *half = address,
                    Err(error) => {
                        self.kv.push(halves);
                        self.free_pool(driver);
                        return Err(error);
                    }
                }
            }
            self.kv.push(halves);
        }
        self.blocks = blocks.to_vec();
        driver.write(self.kv_table, bytemuck::cast_slice(&self.kv))
    }

    /// The device's form of a weight.
    pub(super) fn weight(&self, id: WeightId) -> &DeviceWeight {
        &self.weights[id.0 as usize]
    }

    /// A row buffer.
    pub(super) fn row_buffer(&self, id: BufferId) -> u64 {
        self.rows[id.0 as usize]
    }

    /// Keys and values of a layer.
    pub(super) fn kv(&self, layer: u32) -> [u64; 2] {
        self.kv[layer as usize]
    }

    /// Whether the pool is there.
    pub(super) fn has_pool(&self, plan: &Plan) -> bool {
        self.kv.len() == plan.kv_layers.len()
    }
}
