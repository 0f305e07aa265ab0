//! A loaded plan with everything allocated for it. Steps access it here: they read rows and weights, and write the rows
//! of one buffer at a time.

use super::memory::{KvStore, Weight};
use crate::backend::host::{check_batch, check_block, half_of, restore_state, save_state};
use crate::backend::{BackendError, BlockRef, Capacity, KvHalf};
use crate::plan::inputs::BatchInputs;
use crate::plan::{BufferId, KvLayer, Plan, StateLayer, Step, Storage, WeightId};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// A plan and everything allocated for it.
pub(super) struct LoadedPlan {
    pub(super) plan: Arc<Plan>,
    pub(super) capacity: Capacity,
    pub(super) weights: Vec<Weight>,
    /// Row buffers, indexed by [`BufferId`]: the maximum number of rows, as f32 rounded to the buffer's storage.
    pub(super) buffers: Vec<Vec<f32>>,
    /// Number of blocks per KV group; empty before the pool is allocated.
    pub(super) blocks: Vec<u32>,
    /// Keys and values per layer; empty before the pool is allocated. A latent has no values of its own.
    pub(super) pool: Vec<[KvStore; 2]>,
    /// The states of each state layer, slot by slot.
    pub(super) states: Vec<Vec<f32>>,
    /// The token in each feed slot.
    pub(super) feed: Vec<u32>,
    /// Whether products of a single row round it to bytes.
    pub(super) int8_activations: bool,
    /// Whether all weights were found complete. Rows are never removed, so this is checked once.
    pub(super) weights_whole: bool,
    /// The running step. It may access only the operands that it declares.
    running: Option<Step>,
}

impl LoadedPlan {
    /// Allocates row buffers, state slots and feed slots; weights and pool follow.
    pub(super) fn new(plan: Arc<Plan>, capacity: Capacity, int8_activations: bool) -> Self {
        let states =
            |layer: &StateLayer| vec![0.0; capacity.state_slots as usize * layer.elements as usize];
        Self {
            weights: plan.weights.iter().cloned().map(Weight::new).collect(),
            buffers: plan
                .buffers
                .iter()
                .map(|spec| {
                    vec![
                        0.0;
                        (spec.rows.count(capacity.tokens_max, capacity.samples_max) as usize)
                            * spec.columns as usize
                    ]
                })
                .collect(),
            blocks: Vec::new(),
            pool: Vec::new(),
            states: plan.state_layers.iter().map(states).collect(),
            feed: vec![0; capacity.feed_slots as usize],
            int8_activations,
            weights_whole: false,
            running: None,
            capacity,
            plan,
        }
    }

    /// Creates the pool, zeroed.
    pub(super) fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        let groups = self.plan.kv_groups.len();
        if blocks.len() != groups {
            return Err(BackendError::pool_sizes(blocks.len(), groups));
        }
        let store = |layer: &KvLayer, half: u32| {
            let tiles = blocks[layer.group as usize] as usize * layer.heads as usize;
            KvStore::new(
                self.capacity.kv_tile(layer.head_dim),
                if half < layer.halves() { tiles } else { 0 },
            )
        };
        self.pool = self
            .plan
            .kv_layers
            .iter()
            .map(|layer| Ok([store(layer, 0)?, store(layer, 1)?]))
            .collect::<Result<_, BackendError>>()?;
        self.blocks = blocks.to_vec();
        Ok(())
    }

    /// A copy of a block or state slot.
    pub(super) fn save_block(&self, block: BlockRef) -> Result<Bytes, BackendError> {
        check_block(&self.plan, &self.capacity, &self.blocks, block, None)?;
        if self.plan.state_group() == Some(block.group) {
            return Ok(save_state(&self.plan, &self.states, block.block).into());
        }
        let mut copy = Vec::new();
        for (layer, halves) in self.plan.kv_layers.iter().zip(&self.pool) {
            if layer.group as usize == block.group {
                let (first, count) = ((block.block * layer.heads) as usize, layer.heads as usize);
                let halves = halves.iter().take(layer.halves() as usize);
                halves.for_each(|half| copy.extend_from_slice(half.bytes(first, count)));
            }
        }
        Ok(copy.into())
    }

    /// Overwrites a block or state slot with a copy.
    pub(super) fn restore_block(
        &mut self,
        block: BlockRef,
        mut copy: &[u8],
    ) -> Result<(), BackendError> {
        check_block(&self.plan, &self.capacity, &self.blocks, block, Some(copy))?;
        if self.plan.state_group() == Some(block.group) {
            restore_state(&self.plan, &mut self.states, block.block, copy);
            return Ok(());
        }
        for (layer, halves) in self.plan.kv_layers.iter().zip(&mut self.pool) {
            if layer.group as usize == block.group {
                let (first, count) = ((block.block * layer.heads) as usize, layer.heads as usize);
                for half in halves.iter_mut().take(layer.halves() as usize) {
                    let tiles = half.bytes_mut(first, count);
                    let (own, rest) = copy.split_at(tiles.len());
                    tiles.copy_from_slice(own);
                    copy = rest;
                }
            }
        }
        Ok(())
    }

    /// Keys or values of a layer.
    pub(super) fn half(&mut self, layer: u32, half: KvHalf) -> Result<&mut KvStore, BackendError> {
        half_of(&mut self.pool, &self.plan, layer, half)
    }

    /// The states of a layer in all slots.
    pub(super) fn states(&mut self, layer: u32) -> Result<&mut Vec<f32>, BackendError> {
        self.states
            .get_mut(layer as usize)
            .ok_or_else(|| BackendError::no_state_layer(layer))
    }

    /// Fails with a message that says what is missing, or what is wrong with a batch.
    pub(super) fn check(&mut self, inputs: &BatchInputs) -> Result<(), String> {
        if !self.weights_whole {
            if let Some(missing) = self.weights.iter().find(|weight| !weight.is_whole()) {
                return Err(format!("weight {} is incomplete", missing.spec().name));
            }
            self.weights_whole = true;
        }
        if self.pool.len() != self.plan.kv_layers.len() {
            return Err("the KV pool is not allocated".into());
        }
        check_batch(&self.plan, &self.capacity, &self.blocks, inputs)
    }

    /// Sets the running step.
    pub(super) fn begin(&mut self, step: &Step) {
        self.running = Some(*step);
    }

    /// Number of rows of `buffer` in this batch.
    fn row_count(&self, buffer: BufferId, inputs: &BatchInputs) -> usize {
        let (tokens, samples) = (
            inputs.token_ids.len() as u32,
            inputs.logits_rows.len() as u32,
        );
        self.plan.buffer_spec(buffer).rows.count(tokens, samples) as usize
    }

    /// This batch's rows of a buffer.
    pub(super) fn rows(&self, buffer: BufferId, inputs: &BatchInputs) -> &[f32] {
        debug_assert!(
            self.running
                .is_none_or(|step| step.reads().any(|read| read == buffer)),
            "a buffer it reads"
        );
        let columns = self.plan.buffer_spec(buffer).columns as usize;
        &self.buffers[buffer.0 as usize][..self.row_count(buffer, inputs) * columns]
    }

    /// All rows of a buffer, among them those that an earlier batch left.
    pub(super) fn all_rows(&self, buffer: BufferId) -> &[f32] {
        debug_assert!(
            self.running
                .is_none_or(|step| step.reads().any(|read| read == buffer)),
            "a buffer it reads"
        );
        &self.buffers[buffer.0 as usize]
    }

    /// Calls `work` with this batch's rows of a buffer to write and everything else to read.
    pub(super) fn write(
        &mut self,
        buffer: BufferId,
        inputs: &BatchInputs,
        work: impl FnOnce(&Self, &mut [f32], Storage),
    ) {
        debug_assert!(
            self.running
                .is_none_or(|step| step.writes().any(|write| write == buffer)),
            "a buffer it writes"
        );
        let spec = self.plan.buffer_spec(buffer);
        let (elements, storage) = (
            self.row_count(buffer, inputs) * spec.columns as usize,
            spec.storage,
        );
        let mut values = std::mem::take(&mut self.buffers[buffer.0 as usize]);
        work(self, &mut values[..elements], storage);
        self.buffers[buffer.0 as usize] = values;
    }

    /// A weight of the running step.
    pub(super) fn weight(&self, id: WeightId) -> &Weight {
        debug_assert!(
            self.running.is_none_or(|step| step.weights().contains(&id)),
            "a weight it reads"
        );
        &self.weights[id.0 as usize]
    }

    /// The values of an optional vector.
    pub(super) fn vector(&self, id: Option<WeightId>) -> Option<Vec<f32>> {
        id.map(|id| self.weight(id).vector())
    }

    /// Columns of `buffer`.
    pub(super) fn columns(&self, buffer: BufferId) -> usize {
        self.plan.buffer_spec(buffer).columns as usize
    }

    /// Routes per token in a buffer of routes.
    pub(super) fn per_token(&self, routes: BufferId) -> usize {
        self.plan.buffer_spec(routes).rows.count(1, 0) as usize
    }

    /// Calls `work` with a layer's keys and values to write; it may use everything else too.
    pub(super) fn write_layer(
        &mut self,
        layer: u32,
        work: impl FnOnce(&mut Self, &mut [KvStore; 2]),
    ) {
        let mut pool = std::mem::take(&mut self.pool);
        work(self, &mut pool[layer as usize]);
        self.pool = pool;
    }
}

/// Where a slot lies in the states of a layer, whose slots have `elements` each.
pub(super) fn slot_range(slot: u32, elements: usize) -> Range<usize> {
    let start = slot as usize * elements;
    start..start + elements
}
