//! The CPU reference: plain loops that define the result of every step.
//!
//! Each [`Step`] has a file with its arithmetic on slices and a function `run` that passes the step's operands to it;
//! [`run`] here executes the plan. [`loaded`] and [`memory`] hold buffers, weights and KV pool. Row buffers are f32
//! values already rounded to their storage. A batch runs inside `submit`, so a ticket is the result itself. Results do
//! not depend on the number of threads or on the rest of the batch.

mod attend_paged;
mod attend_rows;
mod copy_blocks;
mod dot;
mod embed;
mod gated_activation;
mod gated_norm;
mod gather_rows;
pub(crate) mod int8;
mod join_rows;
mod loaded;
mod matmul;
mod matmul_experts;
mod memory;
mod pool;
mod rms_norm;
mod rope_store_kv;
mod rope_store_latent;
mod rotate_rows;
mod route_adapters;
mod route_experts;
pub mod sample;
mod scale_logits;
mod short_convolution;
mod state_scan;

use super::host::{overwrite_feed, overwrite_rows, overwrite_states};
use super::{
    Allocation, Backend, BackendError, BlockRef, Capacity, Caps, DeviceKind, Inspect, KvHalf,
    MACHINE_MEMORY,
};
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{BufferId, Plan, Step, Storage, WeightId};
use crate::platform;
use bytes::Bytes;
use loaded::LoadedPlan;
use std::sync::Arc;

/// The reference backend.
pub struct ReferenceBackend {
    caps: Caps,
    loaded: Option<LoadedPlan>,
}

impl ReferenceBackend {
    /// A backend without plan, weights or pool.
    pub fn new() -> Self {
        Self::with_int8_activations(false)
    }

    /// Like [`Self::new`]; optionally, the product of a single row with a quantized weight rounds the row to bytes, as
    /// [`Caps::int8_activations`] says.
    pub fn with_int8_activations(int8_activations: bool) -> Self {
        let memory_bytes = platform::memory_available();
        let caps = Caps {
            name: "reference".into(),
            api: "cpu",
            kind: DeviceKind::Software,
            tier: "f64, one step after the other".into(),
            activations: Storage::F32,
            int8_activations,
            half_products: false,
            binding_bytes_max: u64::MAX,
            memory_bytes,
            memory_source: MACHINE_MEMORY,
            machine_bytes: memory_bytes,
            allocation: Allocation::default(),
        };
        Self { caps, loaded: None }
    }

    fn loaded(&mut self) -> Result<&mut LoadedPlan, BackendError> {
        self.loaded.as_mut().ok_or_else(BackendError::not_loaded)
    }
}

impl Default for ReferenceBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for ReferenceBackend {
    type Ticket = Results;
    type Saves = Vec<Bytes>;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.loaded = Some(LoadedPlan::new(
            plan,
            capacity.clone(),
            self.caps.int8_activations,
        ));
        Ok(())
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let known = loaded.weights.get_mut(weight.0 as usize);
        known
            .ok_or_else(|| BackendError::no_weight(weight))?
            .insert(first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.loaded()?.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Self::Ticket, BackendError> {
        let loaded = self.loaded()?;
        loaded.check(inputs).map_err(BackendError::Validation)?;
        let results = run(loaded, inputs);
        if platform::a_mapped_file_is_damaged() {
            return Err(BackendError::Lost(
                "a mapped model file was truncated".into(),
            ));
        }
        Ok(results)
    }

    async fn read(&mut self, ticket: Self::Ticket) -> Result<Results, BackendError> {
        Ok(ticket)
    }

    fn save_blocks(&mut self, blocks: &[BlockRef]) -> Result<Vec<Bytes>, BackendError> {
        let loaded = self.loaded()?;
        blocks
            .iter()
            .map(|&block| loaded.save_block(block))
            .collect()
    }

    async fn saved_blocks(&mut self, saves: Vec<Bytes>) -> Result<Vec<Bytes>, BackendError> {
        Ok(saves)
    }

    fn restore_blocks(&mut self, blocks: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        blocks
            .iter()
            .try_for_each(|(block, bytes)| loaded.restore_block(*block, bytes))
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.loaded = None;
        Ok(())
    }
}

impl Inspect for ReferenceBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded.plan.buffer_spec(buffer).clone();
        overwrite_rows(&spec, &mut loaded.buffers[buffer.0 as usize], values)
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let elements = rows as usize * loaded.plan.buffer_spec(buffer).columns as usize;
        let values = loaded.buffers[buffer.0 as usize].get(..elements);
        values
            .map(<[f32]>::to_vec)
            .ok_or_else(|| BackendError::Validation(format!("a buffer has under {rows} rows")))
    }

    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError> {
        let store = self.loaded()?.half(layer, half)?;
        if values.len() != store.elements() {
            return Err(BackendError::values(
                values.len(),
                "a half",
                store.elements(),
            ));
        }
        store.write(0, values);
        Ok(())
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        let store = self.loaded()?.half(layer, half)?;
        let mut values = vec![0.0; store.elements()];
        store.read(0, &mut values);
        Ok(values)
    }

    fn write_state(&mut self, layer: u32, values: &[f32]) -> Result<(), BackendError> {
        overwrite_states(self.loaded()?.states(layer)?, values)
    }

    async fn read_state(&mut self, layer: u32) -> Result<Vec<f32>, BackendError> {
        Ok(self.loaded()?.states(layer)?.clone())
    }

    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError> {
        overwrite_feed(&mut self.loaded()?.feed, token_ids)
    }

    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError> {
        let feed = &self.loaded()?.feed;
        let part = feed.get(..slots as usize);
        part.map(<[u32]>::to_vec)
            .ok_or_else(|| BackendError::Validation(format!("fewer than {slots} feed slots")))
    }
}

/// Runs body and tails of a batch that has been validated.
fn run(loaded: &mut LoadedPlan, inputs: &BatchInputs) -> Results {
    let plan = Arc::clone(&loaded.plan);
    let plan = plan.for_batch(inputs);
    let tails = inputs.tails.iter().flat_map(|tail| plan.tail(*tail));
    let mut results = Results::default();
    for step in plan.body.iter().chain(tails) {
        loaded.begin(step);
        run_step(step, loaded, inputs, &mut results);
    }
    results
}

fn run_step(step: &Step, loaded: &mut LoadedPlan, inputs: &BatchInputs, results: &mut Results) {
    match step {
        Step::CopyBlocks(_) => copy_blocks::run(loaded, inputs),
        Step::Embed(step) => embed::run(step, loaded, inputs),
        Step::RmsNorm(step) => rms_norm::run(step, loaded, inputs),
        Step::MatMul(step) => matmul::run(step, loaded, inputs),
        Step::RopeStoreKv(step) => rope_store_kv::run(step, loaded, inputs),
        Step::RopeStoreLatent(step) => rope_store_latent::run(step, loaded, inputs),
        Step::AttendPaged(step) => attend_paged::run(step, loaded, inputs),
        Step::RotateRows(step) => rotate_rows::run(step, loaded, inputs),
        Step::AttendRows(step) => attend_rows::run(step, loaded, inputs),
        Step::ShortConvolution(step) => short_convolution::run(step, loaded, inputs),
        Step::StateScan(step) => state_scan::run(step, loaded, inputs),
        Step::GatedNorm(step) => gated_norm::run(step, loaded, inputs),
        Step::GatedActivation(step) => gated_activation::run(step, loaded, inputs),
        Step::RouteExperts(step) => route_experts::run(step, loaded, inputs),
        Step::RouteAdapters(step) => route_adapters::run(step, loaded, inputs),
        Step::MatMulExperts(step) => matmul_experts::run(step, loaded, inputs),
        Step::GatherRows(step) => gather_rows::run(step, loaded, inputs),
        Step::ScaleLogits(step) => scale_logits::run(step, loaded, inputs),
        Step::Sample(step) => results.sampled = sample::run(step, loaded, inputs),
        Step::Pool(step) => results.pooled = pool::run(step, loaded, inputs),
        Step::JoinRows(step) => join_rows::run(step, loaded, inputs),
    }
}

#[cfg(test)]
mod tests;
