//! A loaded plan with everything allocated for it.

use super::kv::KvStore;
use super::rotations::Rotations;
use super::scratch::Partial;
use super::simd::Level;
use super::team::Team;
use super::weight::{Matrix, decode};
use crate::backend::host::{check_block, half_of, restore_state, save_state};
use crate::backend::{BackendError, BlockRef, Capacity, KvHalf};
use crate::plan::inputs::BatchInputs;
use crate::plan::{BufferId, KvLayer, Plan, StateLayer, Step, Storage, WeightId, WeightSpec};
use bytes::Bytes;
use std::sync::Arc;

/// A weight in the form that its steps read.
enum Weight {
    /// Read by products and look-ups.
    Matrix(Matrix),
    /// Read as a whole: norms, biases, frequencies.
    Vector {
        spec: WeightSpec,
        values: Option<Vec<f32>>,
    },
}

/// A plan and everything allocated for it.
pub(super) struct Loaded {
    pub(super) plan: Arc<Plan>,
    pub(super) capacity: Capacity,
    pub(super) level: Level,
    weights: Vec<Weight>,
    /// Row buffers, indexed by [`BufferId`]: the maximum number of rows, rounded to the buffer's storage.
    pub(super) buffers: Vec<Vec<f32>>,
    /// Number of blocks per KV group; empty before the pool is allocated.
    pub(super) blocks: Vec<u32>,
    /// Keys and values per layer; empty before the pool is allocated. A latent has no values of its own.
    pub(super) pool: Vec<[KvStore; 2]>,
    /// The states of each state layer, slot by slot.
    pub(super) states: Vec<Vec<f32>>,
    /// The token in each feed slot.
    pub(super) feed: Vec<u32>,
    /// Results of attention for parts of long contexts, kept for their memory.
    pub(super) partials: Vec<Partial>,
    /// Rotations of the current batch.
    pub(super) rotations: Rotations,
    /// Rotated keys of the current step.
    pub(super) rotated_keys: Vec<f32>,
    weights_whole: bool,
}

impl Loaded {
    /// Allocates weights, row buffers, state slots and feed slots; the pool follows.
    pub(super) fn new(
        plan: Arc<Plan>,
        capacity: Capacity,
        level: Level,
    ) -> Result<Self, BackendError> {
        let mut is_matrix = vec![false; plan.weights.len()];
        for step in plan.steps() {
            let matrix = match step {
                Step::MatMul(step) => step.weight,
                Step::MatMulExperts(step) => step.weight,
                Step::Embed(step) => step.table,
                _ => continue,
            };
            is_matrix[matrix.0 as usize] = true;
        }
        let weights = plan
            .weights
            .iter()
            .zip(&is_matrix)
            .map(|(spec, is_matrix)| match is_matrix {
                true => Ok(Weight::Matrix(Matrix::new(spec)?)),
                false => Ok(Weight::Vector {
                    spec: spec.clone(),
                    values: None,
                }),
            })
            .collect::<Result<_, BackendError>>()?;
        let states =
            |layer: &StateLayer| vec![0.0; capacity.state_slots as usize * layer.elements as usize];
        Ok(Self {
            weights,
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
            partials: Vec::new(),
            rotations: Rotations::default(),
            rotated_keys: Vec::new(),
            weights_whole: false,
            level,
            capacity,
            plan,
        })
    }

    /// Writes whole rows of a weight.
    pub(super) fn write_weight(
        &mut self,
        id: WeightId,
        first_row: u32,
        bytes: &[u8],
        team: &mut Team,
    ) -> Result<(), BackendError> {
        match self
            .weights
            .get_mut(id.0 as usize)
            .ok_or_else(|| BackendError::no_weight(id))?
        {
            Weight::Matrix(matrix) => matrix.write(first_row, bytes, team),
            Weight::Vector { spec, values } => {
                if spec.rows != 1
                    || spec.whole_rows(first_row, bytes.len() as u64).is_none()
                    || values.is_some()
                {
                    return Err(BackendError::not_whole_rows(
                        &spec.name,
                        first_row,
                        bytes.len(),
                    ));
                }
                let mut decoded = vec![0.0; spec.columns as usize];
                decode(spec.format_of(0), bytes, &mut decoded);
                *values = Some(decoded);
                Ok(())
            }
        }
    }

    /// The name of a weight that is not complete, if there is one.
    pub(super) fn missing_weight(&mut self) -> Option<&str> {
        if self.weights_whole {
            return None;
        }
        let missing = self.weights.iter().find_map(|weight| match weight {
            Weight::Matrix(matrix) => (!matrix.is_whole()).then(|| matrix.spec().name.as_str()),
            Weight::Vector { spec, values } => values.is_none().then_some(spec.name.as_str()),
        });
        self.weights_whole = missing.is_none();
        missing
    }

    /// Creates the pool, zeroed.
    pub(super) fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        let groups = self.plan.kv_groups.len();
        if blocks.len() != groups {
            return Err(BackendError::pool_sizes(blocks.len(), groups));
        }
        let store = |layer: &KvLayer, half| {
            let tiles =
                (blocks[layer.group as usize] as usize).saturating_mul(layer.heads as usize);
            let tiles = if half == KvHalf::Key || !layer.latent {
                tiles
            } else {
                0
            };
            KvStore::new(self.capacity.kv_tile(layer.head_dim), half, tiles)
        };
        let halves =
            |layer: &KvLayer| Ok([store(layer, KvHalf::Key)?, store(layer, KvHalf::Value)?]);
        self.pool = self
            .plan
            .kv_layers
            .iter()
            .map(halves)
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
                halves.for_each(|half| half.save(first, count, &mut copy));
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
                    let (own, rest) = copy.split_at(count * half.layout.tile.words() * 4);
                    half.restore(first, own);
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

    /// Number of rows of `buffer` in this batch.
    pub(super) fn row_count(&self, buffer: BufferId, inputs: &BatchInputs) -> usize {
        let (tokens, samples) = (
            inputs.token_ids.len() as u32,
            inputs.logits_rows.len() as u32,
        );
        self.plan.buffer_spec(buffer).rows.count(tokens, samples) as usize
    }

    /// Columns of `buffer`.
    pub(super) fn columns(&self, buffer: BufferId) -> usize {
        self.plan.buffer_spec(buffer).columns as usize
    }

    /// Routes per token in a buffer of routes.
    pub(super) fn per_token(&self, routes: BufferId) -> usize {
        self.plan.buffer_spec(routes).rows.count(1, 0) as usize
    }

    /// This batch's rows of a buffer.
    pub(super) fn rows(&self, buffer: BufferId, inputs: &BatchInputs) -> &[f32] {
        &self.buffers[buffer.0 as usize][..self.row_count(buffer, inputs) * self.columns(buffer)]
    }

    /// All rows of a buffer, among them those that an earlier batch left.
    pub(super) fn all_rows(&self, buffer: BufferId) -> &[f32] {
        &self.buffers[buffer.0 as usize]
    }

    /// Calls `work` with this batch's rows of a buffer to write and everything else to read.
    pub(super) fn write(
        &mut self,
        buffer: BufferId,
        inputs: &BatchInputs,
        work: impl FnOnce(&Self, &mut [f32], Storage),
    ) {
        let storage = self.plan.buffer_spec(buffer).storage;
        let elements = self.row_count(buffer, inputs) * self.columns(buffer);
        let mut values = std::mem::take(&mut self.buffers[buffer.0 as usize]);
        work(self, &mut values[..elements], storage);
        self.buffers[buffer.0 as usize] = values;
    }

    /// A weight that a product or a look-up reads.
    pub(super) fn matrix(&self, id: WeightId) -> &Matrix {
        match &self.weights[id.0 as usize] {
            Weight::Matrix(matrix) => matrix,
            Weight::Vector { spec, .. } => unreachable!("{} is read by no product", spec.name),
        }
    }

    /// The values of a vector.
    pub(super) fn vector(&self, id: WeightId) -> &[f32] {
        match &self.weights[id.0 as usize] {
            Weight::Vector {
                values: Some(values),
                ..
            } => values,
            Weight::Vector { spec, .. } => {
                unreachable!("{} was written, as every weight", spec.name)
            }
            Weight::Matrix(matrix) => unreachable!("{} is a matrix", matrix.spec().name),
        }
    }
}
