//! The only forward pass.
//!
//! Records the steps of a decoder for the rows of one batch; [`ModelSpec`] describes the decoder. The residual stream
//! `x` stays f32 and is updated in place: attention and MLP, the two branches of a layer, add their output to it.

use super::spec::{HeadNorms, LayerSpec, ModelSpec};
use super::weights::WeightTable;
use crate::plan::{
    AttendPaged, BufferId, CopyBlocks, Embed, GatedActivation, GatherRows, HeadNorm, KvGroup, KvLayer, MatMul,
    MatMulExperts, Plan, Pool, RmsNorm, Rope, RopeStoreKv, RouteExperts, Rows, Sample, ScaleLogits, Step, Storage,
    Tail, WeightId,
};

/// The row buffers of a plan, shared by all layers.
struct Buffers {
    /// Residual stream.
    x: BufferId,
    normed: BufferId,
    qkv: BufferId,
    q: BufferId,
    attended: BufferId,
    /// Buffers of layers with one MLP.
    dense: Option<MlpBuffers>,
    /// Buffers of layers with experts.
    experts: Option<ExpertBuffers>,
    /// A branch's output before its norm; `None`: it is added to `x` at once.
    branch: Option<BufferId>,
    /// The rows of `x` to sample from.
    sampled: BufferId,
    sampled_normed: BufferId,
    logits: BufferId,
}

#[derive(Clone, Copy)]
struct MlpBuffers {
    gate_up: BufferId,
    activated: BufferId,
}

#[derive(Clone, Copy)]
struct ExpertBuffers {
    /// One logit per expert.
    router: BufferId,
    routes: BufferId,
    /// One row per route.
    mlp: MlpBuffers,
}

impl MlpBuffers {
    fn new(plan: &mut Plan, names: [&'static str; 2], rows: Rows, mlp: u32, activations: Storage) -> Self {
        let gate_up = plan.buffer(names[0], rows, 2 * mlp, activations);
        Self { gate_up, activated: plan.buffer(names[1], rows, mlp, activations) }
    }
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
            dense: spec
                .layers
                .iter()
                .any(|layer| !layer.experts)
                .then(|| MlpBuffers::new(plan, ["gate_up", "activated"], Rows::Tokens, spec.mlp, activations)),
            experts: spec.experts.map(|experts| {
                let rows = Rows::Routes(experts.per_token);
                ExpertBuffers {
                    router: plan.buffer("router", Rows::Tokens, experts.count, Storage::F32),
                    routes: plan.buffer("routes", rows, 2, Storage::F32),
                    mlp: MlpBuffers::new(plan, ["expert_gate_up", "expert_activated"], rows, experts.mlp, activations),
                }
            }),
            branch: spec.norm.place.after().then(|| plan.buffer("branch", Rows::Tokens, spec.hidden, activations)),
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
    let mut body =
        vec![Step::CopyBlocks(CopyBlocks), Step::Embed(Embed { table, scale: spec.embedding_scale, out: buffers.x })];
    for (index, layer) in spec.layers.iter().enumerate() {
        recorder.attention(&mut body, &buffers, index, layer);
        match buffers.experts.filter(|_| layer.experts) {
            Some(experts) => recorder.experts(&mut body, &buffers, experts, index),
            None => recorder.mlp(&mut body, &buffers, index),
        }
    }
    let final_norm = recorder.weight("final_norm");
    let sample = recorder.sample(&buffers, table, final_norm);
    let pool =
        vec![recorder.norm(buffers.x, final_norm, false, buffers.normed), Step::Pool(Pool { x: buffers.normed })];
    recorder.plan.body = body;
    recorder.plan.tails = vec![(Tail::Sample, sample), (Tail::Pool, pool)];
    recorder.plan
}

impl Recorder<'_> {
    /// Declares a weight of the model's table in the plan.
    fn weight(&mut self, name: &str) -> WeightId {
        let weight = self.weights.get(name);
        let id = self.plan.weight_in_sections(name, weight.columns, &weight.sections);
        self.plan.stack_experts(id, weight.experts);
        id
    }

    fn layer_weight(&mut self, layer: usize, name: &str) -> WeightId {
        self.weight(&format!("layers.{layer}.{name}"))
    }

    fn record_ropes(&mut self) {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let frequencies = self.weight(&format!("rope.{index}"));
            let (rotary_dim, interleaved) = (rope.rotary_dim, rope.interleaved);
            self.ropes.push(Rope { frequencies, rotary_dim, interleaved, scale: rope.scale() });
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

    fn norm(&mut self, x: BufferId, weight: WeightId, accumulate: bool, out: BufferId) -> Step {
        let norm = self.spec.norm;
        let (epsilon, one_plus) = (norm.epsilon, norm.one_plus);
        Step::RmsNorm(RmsNorm { x, delta: None, weight, epsilon, one_plus, accumulate, out })
    }

    fn head_norm(&mut self, layer: usize, name: &str) -> Option<HeadNorm> {
        let (norm, kind) = (self.spec.norm, self.spec.attention.head_norms);
        (kind != HeadNorms::None).then(|| {
            let weight = self.layer_weight(layer, name);
            let whole_row = kind == HeadNorms::WholeRow;
            HeadNorm { weight, epsilon: norm.epsilon, one_plus: norm.one_plus, whole_row }
        })
    }

    /// Starts a branch: returns `x`, or its norm.
    fn enter(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, layer: usize, norm: &str) -> BufferId {
        if !self.spec.norm.place.before() {
            return buffers.x;
        }
        let weight = self.layer_weight(layer, norm);
        steps.push(self.norm(buffers.x, weight, false, buffers.normed));
        buffers.normed
    }

    /// Ends a branch: `x +=` the product, or its norm.
    fn leave(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        layer: usize,
        norm: &str,
        product: impl FnOnce(bool, BufferId) -> Step,
    ) {
        let Some(branch) = buffers.branch else { return steps.push(product(true, buffers.x)) };
        steps.push(product(false, branch));
        let weight = self.layer_weight(layer, norm);
        steps.push(self.norm(branch, weight, true, buffers.x));
    }

    /// Records attention: `x += output(attend(rope(qkv(x))))`, with the model's norms.
    fn attention(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize, layer: &LayerSpec) {
        let Buffers { qkv, q, attended, .. } = *buffers;
        let (attention, query_heads) = (self.spec.attention, self.spec.query_heads);
        let kv_layer = self.kv_layer(layer);

        let x = self.enter(steps, buffers, index, "attention_norm");
        let weight = self.layer_weight(index, "qkv");
        let bias = attention.qkv_bias.then(|| self.layer_weight(index, "qkv_bias"));
        steps.push(Step::MatMul(MatMul { x, weight, bias, accumulate: false, out: qkv }));
        let q_norm = self.head_norm(index, "q_norm");
        let k_norm = self.head_norm(index, "k_norm");
        let rope = layer.rope.map(|rope| self.ropes[rope]);
        steps.push(Step::RopeStoreKv(RopeStoreKv { qkv, layer: kv_layer, query_heads, q_norm, k_norm, rope, q }));
        let sinks = attention.sinks.then(|| self.layer_weight(index, "sinks"));
        steps.push(Step::AttendPaged(AttendPaged {
            q,
            layer: kv_layer,
            query_heads,
            scale: attention.scale,
            softcap: attention.softcap,
            alibi: None,
            sinks,
            out: attended,
        }));
        let weight = self.layer_weight(index, "output");
        let bias = attention.output_bias.then(|| self.layer_weight(index, "output_bias"));
        let product = |accumulate, out| Step::MatMul(MatMul { x: attended, weight, bias, accumulate, out });
        self.leave(steps, buffers, index, "attention_post_norm", product);
    }

    /// Records the MLP: `x += down(act(gate) · up)`, gate and up computed from `x`, with the model's norms.
    fn mlp(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize) {
        let MlpBuffers { gate_up, activated } = buffers.dense.expect("a layer without experts has an MLP");
        let x = self.enter(steps, buffers, index, "mlp_norm");
        let weight = self.layer_weight(index, "gate_up");
        let bias = self.spec.mlp_bias.then(|| self.layer_weight(index, "gate_up_bias"));
        steps.push(Step::MatMul(MatMul { x, weight, bias, accumulate: false, out: gate_up }));
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up,
            activation: self.spec.activation,
            out: activated,
        }));
        let weight = self.layer_weight(index, "down");
        let bias = self.spec.mlp_bias.then(|| self.layer_weight(index, "down_bias"));
        let product = |accumulate, out| Step::MatMul(MatMul { x: activated, weight, bias, accumulate, out });
        self.leave(steps, buffers, index, "mlp_post_norm", product);
    }

    /// Records the MLP of a layer with experts: like [`Self::mlp`], with the experts that the router chooses per token.
    fn experts(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, experts: ExpertBuffers, index: usize) {
        let ExpertBuffers { router, routes, mlp: MlpBuffers { gate_up, activated } } = experts;
        let spec = self.spec.experts.expect("a layer has the experts of its model");
        let x = self.enter(steps, buffers, index, "mlp_norm");
        let weight = self.layer_weight(index, "router");
        let bias = spec.bias.then(|| self.layer_weight(index, "router_bias"));
        steps.push(Step::MatMul(MatMul { x, weight, bias, accumulate: false, out: router }));
        steps.push(Step::RouteExperts(RouteExperts { logits: router, renormalize: spec.renormalize, routes }));
        let weight = self.layer_weight(index, "expert_gate_up");
        let bias = spec.bias.then(|| self.layer_weight(index, "expert_gate_up_bias"));
        steps.push(Step::MatMulExperts(MatMulExperts { x, routes, weight, bias, accumulate: false, out: gate_up }));
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up,
            activation: self.spec.activation,
            out: activated,
        }));
        let weight = self.layer_weight(index, "expert_down");
        let bias = spec.bias.then(|| self.layer_weight(index, "expert_down_bias"));
        let product = |accumulate, out| {
            Step::MatMulExperts(MatMulExperts { x: activated, routes, weight, bias, accumulate, out })
        };
        self.leave(steps, buffers, index, "mlp_post_norm", product);
    }

    /// Records final norm and LM head, only for the rows that are sampled.
    fn sample(&mut self, buffers: &Buffers, embedding: WeightId, norm_weight: WeightId) -> Vec<Step> {
        let Buffers { x, sampled, sampled_normed, logits, .. } = *buffers;
        let head = if self.spec.tied_embeddings { embedding } else { self.weight("head") };
        let mut steps = vec![
            Step::GatherRows(GatherRows { x, out: sampled }),
            self.norm(sampled, norm_weight, false, sampled_normed),
            Step::MatMul(MatMul { x: sampled_normed, weight: head, bias: None, accumulate: false, out: logits }),
        ];
        let (scale, softcap) = (self.spec.logits_scale, self.spec.logits_softcap);
        if scale != 1.0 || softcap.is_some() {
            steps.push(Step::ScaleLogits(ScaleLogits { logits, scale, softcap }));
        }
        steps.push(Step::Sample(Sample { logits }));
        steps
    }
}
