//! The native CPU device.
//!
//! Weights stay packed, in panels of sixteen rows ([`weight`]); rows are f32. [`product`] multiplies rows with panels,
//! decoding them on the way ([`decode`]); attention consists of two such products over the KV pool ([`kv`]). Kernels
//! are written once over [`simd`], whose instruction set is detected at start. The threads of a [`team`] divide each
//! step. A batch runs inside `submit`, so a ticket is the result itself.
//!
//! Every result has the same bits for any number of threads and any company in the batch: a sum is always taken in the
//! same order.

mod attend_paged;
mod attend_rows;
mod context;
mod copy_blocks;
mod decode;
mod embed;
mod gated_activation;
mod gated_norm;
mod gather_rows;
mod group;
mod join_rows;
mod kv;
mod loaded;
mod matmul;
mod matmul_experts;
mod memory;
mod peaks;
mod pool;
mod product;
mod rms_norm;
mod rope_store_kv;
mod rope_store_latent;
mod rotate_rows;
mod rotations;
mod route_adapters;
mod route_experts;
mod rows;
mod sample;
mod scale_logits;
mod scratch;
mod short_convolution;
mod simd;
mod state_scan;
mod team;
mod weight;

pub use simd::Level;

use super::host::{check_batch, overwrite_feed, overwrite_rows, overwrite_states};
use super::{
    Allocation, Backend, BackendError, BlockRef, Capacity, Caps, DeviceKind, Inspect, KvHalf,
    MACHINE_MEMORY,
};
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{BufferId, Plan, Step, Storage, WeightId};
use crate::platform;
use bumpalo::Bump;
use bytes::Bytes;
use loaded::Loaded;
use simd::LANES;
use std::sync::Arc;
use team::Team;

/// How the CPU computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuOptions {
    /// Number of threads; by default one per physical core.
    pub threads: Option<usize>,
    /// Instruction set; by default the best one of this processor.
    pub level: Option<Level>,
}

/// The native CPU backend.
pub struct CpuBackend {
    caps: Caps,
    level: Level,
    team: Team,
    /// For lists that a step makes before its threads start. Its memory is reused by every step.
    arena: Bump,
    loaded: Option<Loaded>,
}

impl CpuBackend {
    /// A device without plan, weights or pool.
    pub fn new(options: &CpuOptions) -> Self {
        let best = *Level::available()
            .last()
            .expect("every processor has its baseline");
        let level = options.level.unwrap_or(best);
        let team = Team::new(
            options
                .threads
                .unwrap_or_else(platform::physical_cores)
                .max(1),
        );
        let memory_bytes = platform::memory_available();
        let caps = Caps {
            name: "cpu".into(),
            api: "cpu",
            kind: DeviceKind::Processor,
            tier: format!("{level}, {} threads", team.threads()),
            activations: Storage::F32,
            int8_activations: false,
            half_products: false,
            binding_bytes_max: u64::MAX,
            memory_bytes,
            memory_source: MACHINE_MEMORY,
            machine_bytes: memory_bytes,
            allocation: Allocation {
                wide_vectors: true,
                ..Allocation::default()
            },
        };
        Self {
            caps,
            level,
            team,
            arena: Bump::new(),
            loaded: None,
        }
    }

    fn loaded(&mut self) -> Result<&mut Loaded, BackendError> {
        self.loaded.as_mut().ok_or_else(BackendError::not_loaded)
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new(&CpuOptions::default())
    }
}

impl Backend for CpuBackend {
    type Ticket = Results;
    type Saves = Vec<Bytes>;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        if !(capacity.block_size as usize).is_multiple_of(LANES) {
            let what = format!("a block size of {}", capacity.block_size);
            return Err(BackendError::Unsupported {
                what,
                message: format!("it must be a multiple of {LANES}"),
            });
        }
        self.loaded = Some(Loaded::new(plan, capacity.clone(), self.level)?);
        Ok(())
    }

    fn write_weight(
        &mut self,
        weight: WeightId,
        first_row: u32,
        rows: Bytes,
    ) -> Result<(), BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        loaded.write_weight(weight, first_row, &rows, &mut self.team)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.loaded()?.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Self::Ticket, BackendError> {
        let loaded = self.loaded.as_mut().ok_or_else(BackendError::not_loaded)?;
        if let Some(name) = loaded.missing_weight() {
            return Err(BackendError::Validation(format!(
                "weight {name} is incomplete"
            )));
        }
        if loaded.pool.len() != loaded.plan.kv_layers.len() {
            return Err(BackendError::no_pool());
        }
        check_batch(&loaded.plan, &loaded.capacity, &loaded.blocks, inputs)
            .map_err(BackendError::Validation)?;
        Ok(run(loaded, &mut self.team, &mut self.arena, inputs))
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

/// Runs body and tails of a batch that has been validated.
fn run(loaded: &mut Loaded, team: &mut Team, arena: &mut Bump, inputs: &BatchInputs) -> Results {
    let plan = Arc::clone(&loaded.plan);
    let plan = plan.for_batch(inputs);
    let tails = inputs.tails.iter().flat_map(|tail| plan.tail(*tail));
    let mut results = Results::default();
    loaded.rotations.clear();
    for step in plan.body.iter().chain(tails) {
        arena.reset();
        run_step(step, loaded, team, arena, inputs, &mut results);
    }
    results
}

fn run_step(
    step: &Step,
    loaded: &mut Loaded,
    team: &mut Team,
    arena: &Bump,
    inputs: &BatchInputs,
    results: &mut Results,
) {
    match step {
        Step::CopyBlocks(_) => copy_blocks::run(loaded, inputs),
        Step::Embed(step) => embed::run(step, loaded, team, inputs),
        Step::RmsNorm(step) => rms_norm::run(step, loaded, team, inputs),
        Step::MatMul(step) => matmul::run(step, loaded, team, inputs),
        Step::RopeStoreKv(step) => rope_store_kv::run(step, loaded, team, inputs),
        Step::RopeStoreLatent(step) => rope_store_latent::run(step, loaded, team, inputs),
        Step::AttendPaged(step) => attend_paged::run(step, loaded, team, arena, inputs),
        Step::RotateRows(step) => rotate_rows::run(step, loaded, team, inputs),
        Step::AttendRows(step) => attend_rows::run(step, loaded, team, arena, inputs),
        Step::ShortConvolution(step) => short_convolution::run(step, loaded, team, arena, inputs),
        Step::StateScan(step) => state_scan::run(step, loaded, team, inputs),
        Step::GatedNorm(step) => gated_norm::run(step, loaded, team, inputs),
        Step::GatedActivation(step) => gated_activation::run(step, loaded, team, inputs),
        Step::RouteExperts(step) => route_experts::run(step, loaded, arena, inputs),
        Step::RouteAdapters(step) => route_adapters::run(step, loaded, inputs),
        Step::MatMulExperts(step) => matmul_experts::run(step, loaded, team, arena, inputs),
        Step::JoinRows(step) => join_rows::run(step, loaded, team, inputs),
        Step::GatherRows(_) | Step::ScaleLogits(_) | Step::Sample(_) | Step::Pool(_) => {
            run_step_of_tail(step, loaded, team, inputs, results);
        }
    }
}

fn run_step_of_tail(
    step: &Step,
    loaded: &mut Loaded,
    team: &mut Team,
    inputs: &BatchInputs,
    results: &mut Results,
) {
    match step {
        Step::GatherRows(step) => gather_rows::run(step, loaded, inputs),
        Step::ScaleLogits(step) => scale_logits::run(step, loaded, team, inputs),
        Step::Sample(step) => results.sampled = sample::run(step, loaded, team, inputs),
        Step::Pool(step) => results.pooled = pool::run(step, loaded, inputs),
        _ => unreachable!("{} is no step of a tail alone", step.stem()),
    }
}

impl Inspect for CpuBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded.plan.buffer_spec(buffer).clone();
        overwrite_rows(&spec, &mut loaded.buffers[buffer.0 as usize], values)
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let elements = rows as usize * loaded.columns(buffer);
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
        store.write_all(values);
        Ok(())
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        Ok(self.loaded()?.half(layer, half)?.read_all())
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
        let feed = self.loaded()?.feed.get(..slots as usize);
        feed.map(<[u32]>::to_vec)
            .ok_or_else(|| BackendError::Validation(format!("fewer than {slots} feed slots")))
    }
}
