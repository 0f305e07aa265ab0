//! The CPU reference: plain loops that define what every step means, and the backend for machines without a GPU.
//!
//! One file per [`Step`] holds the arithmetic on slices; [`memory`] keeps weights and KV pool, and [`executor`] walks the plan. Row buffers are kept as f32 values already rounded to their storage. A batch
//! runs inside `submit`, so a ticket is the result itself. What comes out does not depend on the number of threads or
//! on what else is in the batch.

mod attend_paged;
mod copy_blocks;
mod dot;
mod embed;
mod executor;
mod gated_activation;
mod gather_rows;
mod matmul;
mod memory;
pub mod peaks;
mod rms_norm;
mod rope_store_kv;
pub mod sample;
mod validate;

use super::{Backend, BackendError, Capacity, Caps, DeviceKind, Inspect, KvHalf};
use crate::plan::inputs::{BatchInputs, Sampled};
use crate::plan::{BufferId, Plan, Storage, WeightId};
use bytes::Bytes;
use executor::Loaded;
use std::sync::Arc;

/// The reference backend.
pub struct CpuBackend {
    caps: Caps,
    loaded: Option<Loaded>,
}

impl CpuBackend {
    /// The backend, without plan, weights or pool.
    pub fn new() -> Self {
        let caps = Caps {
            name: "cpu".into(),
            api: "cpu",
            kind: DeviceKind::Software,
            tier: "reference".into(),
            activations: Storage::F32,
            binding_bytes_max: u64::MAX,
            memory_bytes: None,
        };
        Self { caps, loaded: None }
    }

    fn loaded(&mut self) -> Result<&mut Loaded, BackendError> {
        self.loaded.as_mut().ok_or_else(|| BackendError::Validation("no plan is loaded".into()))
    }
}

impl Default for CpuBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for CpuBackend {
    type Ticket = Vec<Sampled>;

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn load(&mut self, plan: Arc<Plan>, capacity: &Capacity) -> Result<(), BackendError> {
        self.loaded = Some(Loaded::new(plan, capacity.clone()));
        Ok(())
    }

    fn write_weight(&mut self, weight: WeightId, first_row: u32, rows: Bytes) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let known = loaded.weights.get_mut(weight.0 as usize);
        known.ok_or_else(|| BackendError::Validation(format!("the plan has no {weight:?}")))?.insert(first_row, rows)
    }

    fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.loaded()?.allocate_pool(blocks)
    }

    fn submit(&mut self, inputs: &BatchInputs) -> Result<Self::Ticket, BackendError> {
        let loaded = self.loaded()?;
        loaded.check(inputs).map_err(BackendError::Validation)?;
        Ok(loaded.run(inputs))
    }

    async fn read(&mut self, ticket: Self::Ticket) -> Result<Vec<Sampled>, BackendError> {
        Ok(ticket)
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        self.loaded = None;
        Ok(())
    }
}

impl Inspect for CpuBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded()?;
        let storage = loaded.plan.buffer_spec(buffer).storage;
        let elements = &mut loaded.buffers[buffer.0 as usize];
        if values.len() > elements.len() {
            let message = format!("{} values for a buffer of {}", values.len(), elements.len());
            return Err(BackendError::Validation(message));
        }
        for (element, value) in elements.iter_mut().zip(values) {
            *element = storage.round(*value);
        }
        Ok(())
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded()?;
        let elements = rows as usize * loaded.plan.buffer_spec(buffer).columns as usize;
        let values = loaded.buffers[buffer.0 as usize].get(..elements);
        values.map(<[f32]>::to_vec).ok_or_else(|| BackendError::Validation(format!("a buffer has no {rows} rows")))
    }

    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError> {
        let store = self.loaded()?.half(layer, half)?;
        if values.len() != store.len() {
            let message = format!("{} values for a half of {}", values.len(), store.len());
            return Err(BackendError::Validation(message));
        }
        store.write(0, values);
        Ok(())
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        let store = self.loaded()?.half(layer, half)?;
        let mut values = vec![0.0; store.len()];
        store.read(0, &mut values);
        Ok(values)
    }

    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError> {
        let feed = &mut self.loaded()?.feed;
        let slots = feed.len();
        let message = || format!("{} token ids for {slots} feed slots", token_ids.len());
        let part = feed.get_mut(..token_ids.len()).ok_or_else(|| BackendError::Validation(message()))?;
        part.copy_from_slice(token_ids);
        Ok(())
    }

    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError> {
        let feed = &self.loaded()?.feed;
        let part = feed.get(..slots as usize);
        part.map(<[u32]>::to_vec).ok_or_else(|| BackendError::Validation(format!("there are no {slots} feed slots")))
    }
}
