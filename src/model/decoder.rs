//! The only forward pass.
//!
//! Records what a decoder does to the rows of one batch; which decoder is data ([`ModelSpec`]). The residual stream `x`
//! stays f32 and grows in place: attention and MLP add their output to it.

use super::spec::{LayerSpec, ModelSpec};
use super::weights::WeightTable;
use crate::plan::{BufferId, HeadNorm, KvGroup, KvLayer, Plan, Rope, Rows, Step, Storage, Tail, WeightId};

/// The row buffers of a plan. Layers use them in turn.
struct Buffers {
    /// Residual stream.
    x: BufferId,
    normed: BufferId,
    qkv: BufferId,
    q: BufferId,
    attended: BufferId,
    gate_up: BufferId,
    activated: BufferId,
    /// Rows of `x` to sample.
    sampled: BufferId,
    sampled_normed: BufferId,
    logits: BufferId,
}

impl Buffers {
    fn new(plan: &mut Plan, spec: &ModelSpec, activations: Storage) -> Self {
        let query = spec.query_columns();
        let qkv = query + 2 * spec.kv_columns();
        Self {
            x: plan.buffer("x", Rows::Tokens, spec.hidden, Storage::F32),
            normed: plan.buffer("normed", Rows::Tokens, spec.hidden, activations),
            qkv: plan.buffer("qkv", Rows::Tokens, qkv, activations),
            q: plan.buffer("q", Rows::Tokens, query, activations),
            attended: plan.buffer("attended", Rows::Tokens, query, activations),
            gate_up: plan.buffer("gate_up", Rows::Tokens, 2 * spec.mlp, activations),
            activated: plan.buffer("activated", Rows::Tokens, spec.mlp, activations),
            sampled: plan.buffer("sampled", Rows::Samples, spec.hidden, Storage::F32),
            sampled_normed: plan.buffer("sampled_normed", Rows::Samples, spec.hidden, activations),
            logits: plan.buffer("logits", Rows::Samples, spec.vocab, Storage::F32),
        }
    }
}

struct Recorder<'a> {
    spec: &'a ModelSpec,
    weights: &'a WeightTable,
    plan: Plan,
    ropes: Vec<Rope>,
}

/// Records the plan of a model.
pub(super) fn record(spec: &ModelSpec, weights: &WeightTable, activations: Storage) -> Plan {
    let mut plan = Plan { vocab: spec.vocab, positions_max: spec.positions_max, ..Plan::default() };
    let buffers = Buffers::new(&mut plan, spec, activations);
    let mut recorder = Recorder { spec, weights, plan, ropes: Vec::new() };
    recorder.record_ropes();

    let table = recorder.weight("embedding");
    let mut body = vec![Step::CopyBlocks, Step::Embed { table, scale: spec.embedding_scale, out: buffers.x }];
    for (index, layer) in spec.layers.iter().enumerate() {
        recorder.attention(&mut body, &buffers, index, layer);
        recorder.mlp(&mut body, &buffers, index);
    }
    let tail = recorder.sample(&buffers, table);
    recorder.plan.body = body;
    recorder.plan.tails = vec![(Tail::Sample, tail)];
    recorder.plan
}

impl Recorder<'_> {
    /// Declares a weight of the model's table.
    fn weight(&mut self, name: &str) -> WeightId {
        let weight = self.weights.get(name);
        self.plan.weight_in_sections(name, weight.columns, &weight.sections)
    }

    fn layer_weight(&mut self, layer: usize, name: &str) -> WeightId {
        self.weight(&format!("layers.{layer}.{name}"))
    }

    fn record_ropes(&mut self) {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let frequencies = self.weight(&format!("rope.{index}"));
            let (rotary_dim, interleaved) = (rope.rotary_dim, rope.interleaved);
            self.ropes.push(Rope { frequencies, rotary_dim, interleaved, scale: 1.0 });
        }
    }

    /// Layers with equal windows share block ids.
    fn kv_layer(&mut self, layer: &LayerSpec) -> u32 {
        let group = KvGroup { window: layer.window };
        let groups = &mut self.plan.kv_groups;
        let index = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
            groups.push(group);
            groups.len() - 1
        });
        let (heads, head_dim) = (self.spec.kv_heads, self.spec.head_dim);
        self.plan.kv_layers.push(KvLayer { group: index as u32, heads, head_dim });
        self.plan.kv_layers.len() as u32 - 1
    }

    fn norm(&mut self, x: BufferId, weight: WeightId, out: BufferId) -> Step {
        let norm = self.spec.norm;
        Step::RmsNorm { x, delta: None, weight, epsilon: norm.epsilon, one_plus: norm.one_plus, out }
    }

    fn head_norm(&mut self, layer: usize, name: &str) -> Option<HeadNorm> {
        let norm = self.spec.norm;
        self.spec.attention.head_norms.then(|| {
            let weight = self.layer_weight(layer, name);
            HeadNorm { weight, epsilon: norm.epsilon, one_plus: norm.one_plus }
        })
    }

    /// `x += output(attend(rope(qkv(norm(x)))))`.
    fn attention(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize, layer: &LayerSpec) {
        let Buffers { x, normed, qkv, q, attended, .. } = *buffers;
        let (attention, query_heads) = (self.spec.attention, self.spec.query_heads);
        let kv_layer = self.kv_layer(layer);

        let norm_weight = self.layer_weight(index, "attention_norm");
        steps.push(self.norm(x, norm_weight, normed));
        let weight = self.layer_weight(index, "qkv");
        let bias = attention.qkv_bias.then(|| self.layer_weight(index, "qkv_bias"));
        steps.push(Step::MatMul { x: normed, weight, bias, accumulate: false, out: qkv });
        let q_norm = self.head_norm(index, "q_norm");
        let k_norm = self.head_norm(index, "k_norm");
        let rope = layer.rope.map(|rope| self.ropes[rope]);
        steps.push(Step::RopeStoreKv { qkv, layer: kv_layer, query_heads, q_norm, k_norm, rope, q });
        steps.push(Step::AttendPaged {
            q,
            layer: kv_layer,
            query_heads,
            scale: attention.scale,
            softcap: attention.softcap,
            alibi: None,
            sinks: None,
            out: attended,
        });
        let weight = self.layer_weight(index, "output");
        let bias = attention.output_bias.then(|| self.layer_weight(index, "output_bias"));
        steps.push(Step::MatMul { x: attended, weight, bias, accumulate: true, out: x });
    }

    /// `x += down(act(gate) · up)`, gate and up from `norm(x)`.
    fn mlp(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize) {
        let Buffers { x, normed, gate_up, activated, .. } = *buffers;
        let norm_weight = self.layer_weight(index, "mlp_norm");
        steps.push(self.norm(x, norm_weight, normed));
        let weight = self.layer_weight(index, "gate_up");
        let bias = self.spec.mlp_bias.then(|| self.layer_weight(index, "gate_up_bias"));
        steps.push(Step::MatMul { x: normed, weight, bias, accumulate: false, out: gate_up });
        steps.push(Step::GatedActivation { gate_up, activation: self.spec.activation, out: activated });
        let weight = self.layer_weight(index, "down");
        let bias = self.spec.mlp_bias.then(|| self.layer_weight(index, "down_bias"));
        steps.push(Step::MatMul { x: activated, weight, bias, accumulate: true, out: x });
    }

    /// Final norm and LM head over the rows that need a token only.
    fn sample(&mut self, buffers: &Buffers, embedding: WeightId) -> Vec<Step> {
        let Buffers { x, sampled, sampled_normed, logits, .. } = *buffers;
        let norm_weight = self.weight("final_norm");
        let head = if self.spec.tied_embeddings { embedding } else { self.weight("head") };
        vec![
            Step::GatherRows { x, out: sampled },
            self.norm(sampled, norm_weight, sampled_normed),
            Step::MatMul { x: sampled_normed, weight: head, bias: None, accumulate: false, out: logits },
            Step::Sample { logits },
        ]
    }
}
