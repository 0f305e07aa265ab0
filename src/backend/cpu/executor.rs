//! A loaded plan and the walk over its steps: which rows, weights and slots each step's arithmetic gets.

use super::memory::{KvStore, Weight};
use super::sample::sample_row;
use super::{attend_paged, copy_blocks, embed, gated_activation, gather_rows, matmul, matmul_experts, rms_norm};
use super::{pool, rope_store_kv, route_experts, scale_logits};
use crate::backend::{BackendError, Capacity, KvHalf};
use crate::plan::inputs::{BatchInputs, NONE, NUMERICAL_ERROR, Results, Sampled};
use crate::plan::{BufferId, BufferSpec, HeadNorm, KvLayer, Plan, Rope, Rows, Step, Storage, WeightId};
use crate::platform::for_each_chunk;
use std::sync::Arc;

/// A plan and everything allocated for it.
pub(super) struct Loaded {
    pub(super) plan: Arc<Plan>,
    pub(super) capacity: Capacity,
    pub(super) weights: Vec<Weight>,
    /// Indexed by [`BufferId`]; as many rows as the capacity allows, as f32 rounded to the buffer's storage.
    pub(super) buffers: Vec<Vec<f32>>,
    /// Blocks per KV group; empty before the pool is allocated.
    pub(super) blocks: Vec<u32>,
    /// Keys and values per layer; empty before the pool is allocated.
    pub(super) pool: Vec<[KvStore; 2]>,
    /// The last token drawn into each feed slot.
    pub(super) feed: Vec<u32>,
    /// All weights have been found whole; they cannot become less.
    pub(super) weights_whole: bool,
}

impl Loaded {
    /// Row buffers and feed slots; weights and pool follow.
    pub(super) fn new(plan: Arc<Plan>, capacity: Capacity) -> Self {
        let rows_max = |rows: Rows| rows.count(capacity.tokens_max, capacity.samples_max) as usize;
        let buffer = |spec: &BufferSpec| vec![0.0; rows_max(spec.rows) * spec.columns as usize];
        Self {
            weights: plan.weights.iter().cloned().map(Weight::new).collect(),
            buffers: plan.buffers.iter().map(buffer).collect(),
            blocks: Vec::new(),
            pool: Vec::new(),
            feed: vec![0; capacity.feed_slots as usize],
            weights_whole: false,
            capacity,
            plan,
        }
    }

    /// Creates the pool, zeroed.
    pub(super) fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        let groups = self.plan.kv_groups.len();
        if blocks.len() != groups {
            return Err(BackendError::Validation(format!("{} block counts for {groups} KV groups", blocks.len())));
        }
        let store = |layer: &KvLayer| {
            let tiles = blocks[layer.group as usize] as usize * layer.heads as usize;
            KvStore::new(self.capacity.kv_tile(layer.head_dim), tiles)
        };
        let halves = |layer: &KvLayer| Ok([store(layer)?, store(layer)?]);
        self.pool = self.plan.kv_layers.iter().map(halves).collect::<Result<_, BackendError>>()?;
        self.blocks = blocks.to_vec();
        Ok(())
    }

    /// One half of a layer's pool.
    pub(super) fn half(&mut self, layer: u32, half: KvHalf) -> Result<&mut KvStore, BackendError> {
        let halves = self.pool.get_mut(layer as usize);
        let halves = halves.ok_or_else(|| BackendError::Validation(format!("there is no pool for layer {layer}")))?;
        Ok(&mut halves[usize::from(half == KvHalf::Value)])
    }

    /// Runs body and tails; the batch has been checked.
    pub(super) fn run(&mut self, inputs: &BatchInputs) -> Results {
        let plan = Arc::clone(&self.plan);
        let mut results = Results::default();
        for step in plan.body.iter().chain(inputs.tails.iter().flat_map(|tail| plan.tail(*tail))) {
            match step {
                Step::Sample { logits } => results.sampled = self.sample(*logits, inputs),
                Step::Pool { x } => {
                    let columns = self.plan.buffer_spec(*x).columns as usize;
                    results.pooled = pool::pool(self.rows(*x, inputs), columns, &inputs.pools);
                }
                Step::CopyBlocks => self.copy_blocks(inputs),
                Step::RopeStoreKv { .. } => self.rope_store_kv(step, inputs),
                Step::RmsNorm { x, delta: Some(delta), .. } => {
                    self.write(*x, inputs, |this, values, storage| {
                        rms_norm::add(values, this.rows(*delta, inputs), storage);
                    });
                    self.run_rows(step, inputs);
                }
                _ => self.run_rows(step, inputs),
            }
        }
        results
    }

    /// A step that writes one row buffer from others.
    fn run_rows(&mut self, step: &Step, inputs: &BatchInputs) {
        let out = match step {
            Step::Embed { out, .. }
            | Step::RmsNorm { out, .. }
            | Step::MatMul { out, .. }
            | Step::AttendPaged { out, .. }
            | Step::GatedActivation { out, .. }
            | Step::MatMulExperts { out, .. }
            | Step::GatherRows { out, .. }
            | Step::RouteExperts { routes: out, .. }
            | Step::ScaleLogits { logits: out, .. } => *out,
            Step::CopyBlocks | Step::RopeStoreKv { .. } | Step::Sample { .. } | Step::Pool { .. } => {
                unreachable!("these steps write more than rows")
            }
        };
        let columns = self.plan.buffer_spec(out).columns as usize;
        self.write(out, inputs, |this, values, storage| match step {
            Step::Embed { table, scale, .. } => {
                embed::embed(this.weight(*table), &inputs.token_ids, &this.feed, *scale, values, storage);
            }
            Step::RmsNorm { x, weight, epsilon, one_plus, accumulate, .. } => {
                let weight = this.weight(*weight).vector();
                let norm = rms_norm::Norm { weight, epsilon: *epsilon, one_plus: *one_plus };
                rms_norm::rms_norm(this.rows(*x, inputs), &norm, *accumulate, values, storage);
            }
            Step::MatMul { x, weight, bias, accumulate, .. } => {
                let bias = bias.map(|bias| this.weight(bias).vector());
                let output = matmul::Output { bias, accumulate: *accumulate, values, storage };
                matmul::matmul(this.rows(*x, inputs), this.weight(*weight), output);
            }
            Step::AttendPaged { q, layer, .. } => {
                let (attention, group) = this.attention(step);
                let [keys, half_values] = &this.pool[*layer as usize];
                let pool = attend_paged::Pool { keys, values: half_values };
                let q = this.rows(*q, inputs);
                attend_paged::attend_paged(&attention, q, pool, inputs, &inputs.groups[group], (values, storage));
            }
            Step::GatedActivation { gate_up, activation, .. } => {
                let gate_up = this.rows(*gate_up, inputs);
                gated_activation::gated_activation(gate_up, *activation, columns, values, storage);
            }
            Step::RouteExperts { logits, renormalize, routes } => {
                let experts = this.plan.buffer_spec(*logits).columns as usize;
                let per_token = this.plan.buffer_spec(*routes).rows.count(1, 0) as usize;
                route_experts::route_experts(this.rows(*logits, inputs), experts, per_token, *renormalize, values);
            }
            Step::MatMulExperts { x, routes, weight, bias, accumulate, out } => {
                let (plan, bias) = (&this.plan, bias.map(|bias| this.weight(bias).vector()));
                let product = matmul_experts::Product {
                    weight: this.weight(*weight),
                    bias,
                    routes: this.rows(*routes, inputs),
                    per_token: plan.buffer_spec(*routes).rows.count(1, 0) as usize,
                    shared: plan.buffer_spec(*x).rows == Rows::Tokens,
                };
                let output = matmul_experts::Output { accumulate: *accumulate, values, storage };
                match plan.buffer_spec(*out).rows {
                    Rows::Tokens => product.combine(this.rows(*x, inputs), output),
                    _ => product.spread(this.rows(*x, inputs), output),
                }
            }
            Step::GatherRows { x, .. } => {
                gather_rows::gather_rows(this.rows(*x, inputs), &inputs.logits_rows, columns, values, storage);
            }
            Step::ScaleLogits { scale, softcap, .. } => scale_logits::scale_logits(*scale, *softcap, values, storage),
            Step::CopyBlocks | Step::RopeStoreKv { .. } | Step::Sample { .. } | Step::Pool { .. } => {}
        });
    }

    /// Rows that `buffer` has in this batch.
    fn row_count(&self, buffer: BufferId, inputs: &BatchInputs) -> usize {
        let (tokens, samples) = (inputs.token_ids.len() as u32, inputs.logits_rows.len() as u32);
        self.plan.buffer_spec(buffer).rows.count(tokens, samples) as usize
    }

    /// This batch's rows of a buffer.
    fn rows(&self, buffer: BufferId, inputs: &BatchInputs) -> &[f32] {
        let columns = self.plan.buffer_spec(buffer).columns as usize;
        &self.buffers[buffer.0 as usize][..self.row_count(buffer, inputs) * columns]
    }

    /// Lets `work` write this batch's rows of a buffer while it reads everything else.
    fn write(&mut self, buffer: BufferId, inputs: &BatchInputs, work: impl FnOnce(&Self, &mut [f32], Storage)) {
        let spec = self.plan.buffer_spec(buffer);
        let (elements, storage) = (self.row_count(buffer, inputs) * spec.columns as usize, spec.storage);
        let mut values = std::mem::take(&mut self.buffers[buffer.0 as usize]);
        work(self, &mut values[..elements], storage);
        self.buffers[buffer.0 as usize] = values;
    }

    fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    fn copy_blocks(&mut self, inputs: &BatchInputs) {
        let mut pool = std::mem::take(&mut self.pool);
        for (layer, halves) in self.plan.kv_layers.iter().zip(&mut pool) {
            for half in halves {
                let copies = &inputs.groups[layer.group as usize].copies;
                copy_blocks::copy_blocks(half, layer.heads as usize, copies);
            }
        }
        self.pool = pool;
    }

    fn rope_store_kv(&mut self, step: &Step, inputs: &BatchInputs) {
        let Step::RopeStoreKv { qkv, layer, query_heads, q_norm, k_norm, rope, q } = step else {
            unreachable!("the caller matched the step");
        };
        let KvLayer { group, heads, head_dim } = self.plan.kv_layers[*layer as usize];
        let heads = rope_store_kv::Heads { query: *query_heads as usize, kv: heads as usize, dim: head_dim as usize };
        let transform = rope_store_kv::Transform {
            q_norm: q_norm.map(|norm| self.head_norm(norm)),
            k_norm: k_norm.map(|norm| self.head_norm(norm)),
            rotation: rope.map(|rope| self.rotation(rope)),
        };
        let mut pool = std::mem::take(&mut self.pool);
        let [keys, values] = &mut pool[*layer as usize];
        self.write(*q, inputs, |this, q_values, storage| {
            let slots = &inputs.groups[group as usize].slot_mapping;
            let block_size = this.capacity.block_size as usize;
            let mut target = rope_store_kv::Target { keys, values, block_size, slots };
            let (qkv, q) = (this.rows(*qkv, inputs), (q_values, storage));
            rope_store_kv::rope_store_kv(qkv, &inputs.positions, heads, &transform, &mut target, q);
        });
        self.pool = pool;
    }

    fn head_norm(&self, norm: HeadNorm) -> rms_norm::Norm {
        let weight = self.weight(norm.weight).vector();
        rms_norm::Norm { weight, epsilon: norm.epsilon, one_plus: norm.one_plus }
    }

    fn rotation(&self, rope: Rope) -> rope_store_kv::Rotation {
        let frequencies = self.weight(rope.frequencies).vector();
        assert_eq!(frequencies.len() * 2, rope.rotary_dim as usize, "one frequency per rotated pair");
        rope_store_kv::Rotation { frequencies, interleaved: rope.interleaved, scale: rope.scale }
    }

    /// Shapes and options of an `AttendPaged` step, and its KV group.
    fn attention(&self, step: &Step) -> (attend_paged::Attention, usize) {
        let Step::AttendPaged { layer, query_heads, scale, softcap, alibi, sinks, .. } = step else {
            unreachable!("the caller matched the step");
        };
        let KvLayer { group, heads, head_dim } = self.plan.kv_layers[*layer as usize];
        let attention = attend_paged::Attention {
            query_heads: *query_heads as usize,
            kv_heads: heads as usize,
            head_dim: head_dim as usize,
            block_size: self.capacity.block_size as usize,
            scale: *scale,
            softcap: *softcap,
            alibi: alibi.map(|slopes| self.weight(slopes).vector()),
            sinks: sinks.map(|sinks| self.weight(sinks).vector()),
            window: self.plan.kv_groups[group as usize].window,
        };
        (attention, group as usize)
    }

    /// Draws all rows, then fills the feed slots.
    fn sample(&mut self, logits: BufferId, inputs: &BatchInputs) -> Vec<Sampled> {
        let vocab = self.plan.buffer_spec(logits).columns as usize;
        let values = self.rows(logits, inputs);
        let mut sampled = vec![Sampled::default(); inputs.samples.len()];
        for_each_chunk(&mut sampled, 1, |index, out| {
            let row = &inputs.samples[index];
            let pending = (row.pending_slot != NONE).then(|| self.feed[row.pending_slot as usize]);
            out[0] = sample_row(&values[row.logits_row as usize * vocab..][..vocab], row, inputs, pending);
        });
        for (row, result) in inputs.samples.iter().zip(&sampled) {
            if row.feed_slot != NONE {
                let id = if result.token_id == NUMERICAL_ERROR { 0 } else { result.token_id };
                self.feed[row.feed_slot as usize] = id;
            }
        }
        sampled
    }
}
