//! The plan of a decoder: its computation as a list of steps.
//!
//! Model code records a [`Plan`] once per loaded model; a backend runs it once per batch. A [`Step`] says *what* is
//! computed, never how: kernels, tiles and grids belong to the backend. Row counts are symbolic ([`Rows`]); each batch
//! gives the actual counts in [`inputs::BatchInputs`].
//!
//! A plan has a body, which runs for every batch, and tails, which run when the batch requests them. Buffers and
//! weights are ids with a shape and a storage type. Nothing here depends on a device, a checkpoint or a scheduler.

pub mod check;
pub mod error;
pub mod figures;
pub mod format;
pub mod fuse;
pub mod inputs;
pub mod operands;
pub mod philox;
pub mod print;
pub mod step;
pub mod work;

pub use format::{KvFormat, Layout, Storage, WeightFormat};
pub use operands::{
    BufferId, BufferSpec, KvGroup, KvLayer, Operands, Rows, Section, StateLayer, WeightId,
    WeightSpec, Window,
};
pub use step::*;

use std::sync::Arc;

/// An optional part of the plan, which runs only if the batch requests it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tail {
    /// Final norm, LM head and sampling of the gathered rows. A row with a scored token only computes logprobs.
    Sample,
    /// Final norm of all token rows, and sums of these rows: embeddings.
    Pool,
}

/// Which part of what a model computes a batch runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// The model.
    #[default]
    Model,
    /// The model, with the steps for adapters.
    Adapted,
    /// The layers that predict further tokens.
    Predictor,
}

/// The recorded computation of one loaded model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Indexed by [`BufferId`].
    pub buffers: Vec<BufferSpec>,
    /// Indexed by [`WeightId`].
    pub weights: Vec<WeightSpec>,
    /// KV groups; a batch has block tables, slots and copies for each.
    pub kv_groups: Vec<KvGroup>,
    /// One entry per decoder layer that keeps keys and values.
    pub kv_layers: Vec<KvLayer>,
    /// One entry per decoder layer that keeps a state. A state slot holds one state of each.
    pub state_layers: Vec<StateLayer>,
    /// Steps that run for every batch, in order.
    pub body: Vec<Step>,
    /// The tails and their steps, in order.
    pub tails: Vec<(Tail, Vec<Step>)>,
    /// Vocabulary size: token ids are below this.
    pub vocab: u32,
    /// Maximum number of positions: positions are below this.
    pub positions_max: u32,
    /// Slots for LoRA adapters, if the plan has steps for them.
    pub adapters: Option<AdapterSlots>,
    /// The plan of the layers that predict further tokens, with the same buffers, weights and KV layers, and without
    /// states. Its batches follow those of the model, and read rows that the batch before left: see
    /// [`inputs::BatchInputs::carried`].
    pub predictor: Option<Arc<Plan>>,
}

/// Slots for LoRA adapters: experts of the plan's products with adapters, which requests choose.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterSlots {
    /// Number of slots. Slot 0 is that of sequences without adapter, and holds zeros.
    pub count: u32,
    /// The plan of batches in which no sequence has an adapter: with the same buffers and weights, without the steps
    /// for adapters.
    pub unused: Arc<Plan>,
}

impl Plan {
    /// Adds a buffer.
    pub fn buffer(
        &mut self,
        name: &'static str,
        rows: Rows,
        columns: u32,
        storage: Storage,
    ) -> BufferId {
        let id = BufferId(u32::try_from(self.buffers.len()).expect("a plan has few buffers"));
        self.buffers.push(BufferSpec {
            name,
            rows,
            columns,
            storage,
        });
        id
    }

    /// Adds a weight of one format.
    pub fn weight(
        &mut self,
        name: impl Into<String>,
        rows: u32,
        columns: u32,
        format: WeightFormat,
    ) -> WeightId {
        self.weight_in_sections(name, columns, &[Section { rows, format }])
    }

    /// Adds a weight whose rows may have different formats.
    pub fn weight_in_sections(
        &mut self,
        name: impl Into<String>,
        columns: u32,
        parts: &[Section],
    ) -> WeightId {
        let id = WeightId(u32::try_from(self.weights.len()).expect("a plan has few weights"));
        let mut sections: Vec<Section> = Vec::with_capacity(parts.len());
        for part in parts {
            match sections.last_mut() {
                Some(last) if last.format == part.format => last.rows += part.rows,
                _ => sections.push(*part),
            }
        }
        let rows = sections.iter().map(|section| section.rows).sum();
        self.weights.push(WeightSpec {
            name: name.into(),
            rows,
            columns,
            sections,
            experts: 1,
        });
        id
    }

    /// Declares that a weight contains the rows of `experts` experts, one after the other.
    pub fn stack_experts(&mut self, weight: WeightId, experts: u32) {
        let spec = &mut self.weights[weight.0 as usize];
        assert!(
            experts > 0 && spec.rows.is_multiple_of(experts),
            "all experts have the same number of rows"
        );
        spec.experts = experts;
    }

    /// The tables that the ids in steps refer to.
    pub fn operands(&self) -> Operands<'_> {
        let (buffers, weights) = (&self.buffers, &self.weights);
        let (kv_layers, state_layers) = (&self.kv_layers, &self.state_layers);
        Operands {
            buffers,
            weights,
            kv_layers,
            state_layers,
            vocab: self.vocab,
            positions_max: self.positions_max,
        }
    }

    /// All steps: the body's, those of each tail, then those of the predictor.
    pub fn steps(&self) -> impl Iterator<Item = &Step> {
        self.parts().flat_map(Self::own_steps)
    }

    /// The steps of body and tails.
    fn own_steps(&self) -> impl Iterator<Item = &Step> {
        self.body
            .iter()
            .chain(self.tails.iter().flat_map(|(_, steps)| steps))
    }

    /// The plan that a batch runs: without the steps for adapters if no sequence has one.
    pub fn for_batch(&self, inputs: &inputs::BatchInputs) -> &Self {
        self.part(inputs.part())
    }

    /// This plan, and that of its predictor.
    pub fn parts(&self) -> impl Iterator<Item = &Self> {
        [self].into_iter().chain(self.predictor.as_deref())
    }

    /// The plan of a part; of one that the model does not have, the model's.
    pub fn part(&self, part: Part) -> &Self {
        match (part, &self.predictor) {
            (Part::Predictor, Some(predictor)) => predictor,
            _ => self.with_adapters(part == Part::Adapted),
        }
    }

    /// The plan of batches with or without adapters.
    pub fn with_adapters(&self, used: bool) -> &Self {
        match &self.adapters {
            Some(slots) if !used => &slots.unused,
            _ => self,
        }
    }

    /// The spec of a buffer of this plan.
    pub fn buffer_spec(&self, id: BufferId) -> &BufferSpec {
        &self.buffers[id.0 as usize]
    }

    /// The spec of a weight of this plan.
    pub fn weight_spec(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0 as usize]
    }

    /// The steps of `tail`, empty when the plan has none.
    pub fn tail(&self, tail: Tail) -> &[Step] {
        self.tails
            .iter()
            .find(|(name, _)| *name == tail)
            .map_or(&[], |(_, steps)| steps)
    }

    /// Whether rows see those after them, so that a batch has all rows of each of its sequences, and nothing is kept of
    /// a sequence.
    pub fn computes_whole_sequences(&self) -> bool {
        self.body
            .iter()
            .any(|step| matches!(step, Step::AttendRows(_)))
    }

    /// Whether rows are rotated by their places along several axes.
    pub fn rotates_by_axis(&self) -> bool {
        self.body
            .iter()
            .any(|step| matches!(step, Step::RotateRows(rotate) if rotate.rope.by_axis))
    }

    /// Columns of the rows that the pool tail sums; 0 if the plan has no pool tail.
    pub fn pooled_columns(&self) -> u32 {
        let pooled = self.tail(Tail::Pool).iter().find_map(|step| match step {
            Step::Pool(pool) => Some(self.buffer_spec(pool.x).columns),
            _ => None,
        });
        pooled.unwrap_or(0)
    }

    /// The table that tokens are looked up in. A tower's has the patches of a batch, which the engine writes before it.
    pub fn token_table(&self) -> Option<WeightId> {
        self.body.iter().find_map(|step| match step {
            Step::Embed(Embed {
                table,
                id: RowId::Token,
                ..
            }) => Some(*table),
            _ => None,
        })
    }

    /// The pool of image rows, which the engine writes before the batch that has tokens of them; `None` if the plan
    /// places no images.
    pub fn image_rows(&self) -> Option<WeightId> {
        self.body.iter().find_map(|step| match step {
            Step::Embed(Embed {
                table,
                id: RowId::Image,
                ..
            }) => Some(*table),
            _ => None,
        })
    }

    /// Number of rows of the pool of image rows.
    pub fn image_row_count(&self) -> u32 {
        self.image_rows()
            .map_or(0, |table| self.weight_spec(table).rows)
    }

    /// Maximum number of consecutive token rows that begin at one of a batch's logits rows and are gathered together.
    pub fn gathered_run(&self) -> u32 {
        let runs = self.steps().filter_map(|step| match step {
            Step::GatherRows(GatherRows { x, out }) => {
                let [from, to] = [*x, *out].map(|id| self.buffer_spec(id).columns);
                Some(to / from.max(1))
            }
            _ => None,
        });
        runs.max().unwrap_or(1)
    }

    /// Whether the pool tail sums merged rows instead of token rows.
    pub fn pools_merged_rows(&self) -> bool {
        self.tail(Tail::Pool).iter().any(|step| match step {
            Step::Pool(pool) => self.buffer_spec(pool.x).rows == Rows::Samples,
            _ => false,
        })
    }

    /// Bytes of all weights as the device holds them.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(WeightSpec::bytes).sum()
    }

    /// Bytes of weights read per token when decoding a single sequence: every matrix once, one row of an embedding
    /// table, and of stacked experts only those that the token is routed to. Those of the predictor alone do not count.
    pub fn token_weight_bytes(&self) -> u64 {
        let mut bytes: Vec<u64> = self.weights.iter().map(WeightSpec::bytes).collect();
        let of_predictor = self.predictor.iter().flat_map(|plan| plan.own_steps());
        for weight in of_predictor.flat_map(Step::weights) {
            bytes[weight.0 as usize] = 0;
        }
        for weight in self.own_steps().flat_map(Step::weights) {
            bytes[weight.0 as usize] = self.weight_spec(weight).bytes();
        }
        for step in self.own_steps() {
            match step {
                Step::Embed(Embed { table, .. }) => {
                    bytes[table.0 as usize] = self.weight_spec(*table).row_bytes_max();
                }
                Step::MatMulExperts(step @ MatMulExperts { weight, .. }) => {
                    let spec = self.weight_spec(*weight);
                    let routed = step.shape(self).per_token.min(spec.experts);
                    bytes[weight.0 as usize] =
                        spec.bytes() / u64::from(spec.experts.max(1)) * u64::from(routed);
                }
                _ => {}
            }
        }
        // An embedding table may also be the LM head.
        for step in self.own_steps() {
            if let Step::MatMul(MatMul { weight, .. }) = step {
                bytes[weight.0 as usize] = self.weight_spec(*weight).bytes();
            }
        }
        bytes.iter().sum()
    }

    /// Bytes of K and V read per token when its sequence has `context` tokens, limited by attention windows.
    pub fn token_kv_bytes(&self, context: u32, format: KvFormat) -> u64 {
        self.kv_layers
            .iter()
            .map(|layer| {
                let window = self.kv_groups[layer.group as usize]
                    .window
                    .map_or(u32::MAX, Window::tokens);
                layer.token_bytes(format) * u64::from(context.min(window))
            })
            .sum()
    }

    /// Bytes of one state slot: the state of a sequence in all state layers; 0 if there are none.
    pub fn state_bytes(&self) -> u64 {
        self.state_layers.iter().map(StateLayer::bytes).sum()
    }

    /// Index of the group whose blocks are the state slots, after the KV groups; `None` if the plan has no state
    /// layers.
    pub fn state_group(&self) -> Option<usize> {
        (!self.state_layers.is_empty()).then_some(self.kv_groups.len())
    }

    /// Bytes of one block of group `group`: K and V of all its layers, or one state slot.
    pub fn block_bytes(&self, group: usize, block_size: u32, format: KvFormat) -> u64 {
        if self.state_group() == Some(group) {
            return self.state_bytes();
        }
        debug_assert!(group < self.kv_groups.len(), "a KV group of this plan");
        let layers = self
            .kv_layers
            .iter()
            .filter(|layer| layer.group as usize == group);
        layers
            .map(|layer| u64::from(block_size) * layer.token_bytes(format))
            .sum()
    }
}
