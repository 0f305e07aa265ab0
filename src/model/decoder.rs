//! The only forward pass.
//!
//! Records the steps of a decoder for the rows of one batch; [`ModelSpec`] describes the decoder. The residual stream
//! `x` stays f32 and is updated in place: the branches of a layer (attention or what it has instead, and the MLP) add
//! their output to it.

mod buffers;
mod latent;
mod mlp;
mod rows;
mod state;
mod tower;

use super::layer_weight::LayerWeight;
use super::spec::{HeadNorms, LayerKind, LayerSpec, ModelSpec, OutputGate};
use super::weights::WeightTable;
use crate::plan::{
    Activation, AttendPaged, BufferId, ConvolutionForm, CopyBlocks, Embed, GatedActivation, Gates,
    GatherRows, HeadNorm, KvGroup, KvLayer, MatMul, NormOptions, Plan, Pool, RmsNorm, Rope,
    RopeStoreKv, RowId, Sample, ScaleLogits, ShortConvolution, StateLayer, Step, Storage,
    StoreOptions, Tail, Up, WeightId,
};
use buffers::{Buffers, HeadBuffers, TowerBuffers};

/// The weight of a decoder whose rows are those of images.
pub(super) const IMAGE_ROWS: &str = "image_rows";

struct Recorder<'a> {
    spec: &'a ModelSpec,
    weights: &'a WeightTable,
    plan: Plan,
    ropes: Vec<Rope>,
    /// Slopes by which scores fall with the distance, if they do.
    slopes: Option<WeightId>,
    /// The KV layer of each layer so far; `None` for one without attention.
    kv_layers: Vec<Option<u32>>,
}

/// Records the plan of a model.
pub(super) fn record(spec: &ModelSpec, weights: &WeightTable, activations: Storage) -> Plan {
    let mut plan = Plan {
        vocab: spec.vocab,
        positions_max: spec.positions_max,
        ..Plan::default()
    };
    let buffers = Buffers::new(&mut plan, spec, activations);
    let mut recorder = Recorder {
        spec,
        weights,
        plan,
        ropes: Vec::new(),
        slopes: None,
        kv_layers: Vec::new(),
    };
    recorder.record_ropes();
    recorder.slopes = spec.attention.alibi.then(|| recorder.weight("slopes"));

    let mut body = Vec::new();
    if !spec.is_encoder() {
        body.push(Step::CopyBlocks(CopyBlocks));
    }
    let table = recorder.embed(&mut body, &buffers);
    recorder.layer_embeddings(&mut body, &buffers);
    for (index, layer) in spec.layers.iter().enumerate() {
        recorder.mix(&mut body, &buffers, index, layer);
        if layer.has_feed_forward() {
            recorder.feed_forward(&mut body, &buffers, index, layer);
        }
        recorder.add_layer_embedding(&mut body, &buffers, index);
    }
    recorder.plan.body = body;
    match buffers.tower {
        Some(tower) => recorder.merge(&buffers, tower),
        None => recorder.tails(&buffers, table),
    }
    recorder.plan
}

impl Recorder<'_> {
    /// Declares a weight of the model's table in the plan.
    fn weight(&mut self, name: &str) -> WeightId {
        let weight = self.weights.get(name);
        let id = self
            .plan
            .weight_in_sections(name, weight.columns, &weight.sections);
        self.plan.stack_experts(id, weight.experts);
        id
    }

    fn layer_weight(&mut self, layer: usize, weight: LayerWeight) -> WeightId {
        self.weight(&weight.of_layer(layer))
    }

    /// Records the look-up of tokens, or the product of patches; and the look-up of rows of images, positions and types
    /// in models that have these. Returns the table of tokens or patches.
    fn embed(&mut self, steps: &mut Vec<Step>, buffers: &Buffers) -> WeightId {
        let spec = self.spec;
        let out = match buffers.other {
            Some(other) if spec.norm.embedding => other,
            _ => buffers.x,
        };
        let look_up = |table, id, accumulate| {
            let scale = spec.embedding_scale;
            Step::Embed(Embed {
                table,
                id,
                scale,
                accumulate,
                out,
            })
        };
        let table = match buffers.tower {
            Some(tower) => self.embed_patches(steps, tower, out),
            None => {
                let table = self.weight("embedding");
                steps.push(look_up(table, RowId::Token, false));
                table
            }
        };
        if self.weights.has(IMAGE_ROWS) {
            let table = self.weight(IMAGE_ROWS);
            steps.push(Step::Embed(Embed {
                table,
                id: RowId::Image,
                scale: 1.0,
                accumulate: false,
                out,
            }));
        }
        if let Some(first) = spec.first_position {
            let table = self.weight("positions");
            steps.push(look_up(table, RowId::Position(first), true));
        }
        if spec.texts > 0 {
            let table = self.weight("texts");
            steps.push(look_up(table, RowId::Text, true));
        }
        if spec.norm.embedding {
            steps.push(Step::RmsNorm(RmsNorm {
                one_plus: false,
                ..self.norm(out, "embedding_norm", false, buffers.x)
            }));
        }
        table
    }

    /// Records the product of the batch's patches, which the engine has written to a table.
    fn embed_patches(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: TowerBuffers,
        out: BufferId,
    ) -> WeightId {
        let table = self.weight("patches");
        let (weight, bias) = (self.weight("patch"), self.weight("patch_bias"));
        steps.push(Step::Embed(Embed {
            table,
            id: RowId::Token,
            scale: 1.0,
            accumulate: false,
            out: buffers.patches,
        }));
        steps.push(Step::MatMul(MatMul {
            x: buffers.patches,
            weight,
            bias: Some(bias),
            accumulate: false,
            out,
        }));
        table
    }

    /// Records what follows the last layer.
    fn tails(&mut self, buffers: &Buffers, embedding: WeightId) {
        if !self.spec.norm.last {
            let pool = vec![Step::Pool(Pool { x: buffers.x })];
            self.plan.tails = vec![(Tail::Pool, pool)];
            return;
        }
        let final_norm = RmsNorm {
            one_plus: self.spec.norm.final_one_plus,
            ..self.norm(buffers.x, "final_norm", false, buffers.normed)
        };
        if let Some(head) = buffers.head {
            let sample = self.sample(buffers.x, head, embedding, &final_norm);
            self.plan.tails.push((Tail::Sample, sample));
        }
        let pool = vec![
            Step::RmsNorm(final_norm),
            Step::Pool(Pool { x: buffers.normed }),
        ];
        self.plan.tails.push((Tail::Pool, pool));
    }

    fn record_ropes(&mut self) {
        for (index, rope) in self.spec.ropes.iter().enumerate() {
            let frequencies = self.weight(&format!("rope.{index}"));
            let (rotary_dim, interleaved) = (rope.rotary_dim, rope.interleaved);
            self.ropes.push(Rope {
                frequencies,
                rotary_dim,
                interleaved,
                scale: rope.scale(),
            });
        }
    }

    /// Declares a state of so many elements.
    fn state_layer(&mut self, elements: u32) -> u32 {
        let layer = u32::try_from(self.plan.state_layers.len()).expect("a model has few layers");
        self.plan.state_layers.push(StateLayer { elements });
        layer
    }

    /// The KV layer of a layer. Layers with equal windows share block ids.
    fn kv_layer(&mut self, layer: &LayerSpec) -> u32 {
        let group = KvGroup {
            window: layer.window,
        };
        let groups = &mut self.plan.kv_groups;
        let index = groups
            .iter()
            .position(|known| *known == group)
            .unwrap_or_else(|| {
                groups.push(group);
                groups.len() - 1
            });
        let own = self.plan.kv_layers.len() as u32;
        let kv_layer = layer
            .kv_from
            .and_then(|from| self.kv_layers[from])
            .unwrap_or(own);
        if kv_layer == own {
            let (heads, head_dim) = (layer.kv_heads, layer.head_dim);
            let latent = self.spec.latent.is_some();
            self.plan.kv_layers.push(KvLayer {
                group: index as u32,
                heads,
                head_dim,
                latent,
            });
        }
        self.kv_layers.push(Some(kv_layer));
        kv_layer
    }

    /// A norm with the weight `name`, and its bias `<name>_bias` if norms have biases.
    fn norm(&mut self, x: BufferId, name: &str, accumulate: bool, out: BufferId) -> RmsNorm {
        let norm = self.spec.norm;
        let (epsilon, one_plus, center) = (norm.epsilon, norm.one_plus, norm.center);
        let weight = self.weight(name);
        let bias = norm.bias.then(|| self.weight(&format!("{name}_bias")));
        let options = NormOptions {
            center,
            bias,
            scale: None,
        };
        RmsNorm {
            x,
            delta: None,
            weight,
            epsilon,
            one_plus,
            accumulate,
            options,
            out,
        }
    }

    /// The last norm of a layer: `x += norm(branch)`, times the layer's number if it has one.
    fn norm_onto_x(
        &mut self,
        buffers: &Buffers,
        branch: BufferId,
        layer: usize,
        weight: LayerWeight,
        is_last: bool,
    ) -> Step {
        let mut norm = self.norm(branch, &weight.of_layer(layer), true, buffers.x);
        norm.epsilon = self.spec.norm.epsilon_after;
        let has_scalar = is_last && self.spec.layer_scalar;
        norm.options.scale = has_scalar.then(|| self.layer_weight(layer, LayerWeight::Scalar));
        Step::RmsNorm(norm)
    }

    fn head_norm(&mut self, layer: usize, weight: LayerWeight) -> Option<HeadNorm> {
        let (norm, kind) = (self.spec.norm, self.spec.attention.head_norms);
        (kind != HeadNorms::None).then(|| HeadNorm {
            weight: self.layer_weight(layer, weight),
            epsilon: norm.epsilon,
            one_plus: norm.one_plus && kind != HeadNorms::Unweighted,
            whole_row: kind == HeadNorms::WholeRow,
            after_rotation: kind == HeadNorms::EachHeadRotated,
        })
    }

    /// Starts a branch: returns `x`, or its norm.
    fn enter(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        layer: usize,
        norm: LayerWeight,
    ) -> BufferId {
        let place = self.spec.layers[layer].norms;
        let is_normed = match norm {
            LayerWeight::MlpNorm => place.before_mlp(),
            _ => place.before_mixer(),
        };
        if !is_normed {
            return buffers.x;
        }
        steps.push(Step::RmsNorm(self.norm(
            buffers.x,
            &norm.of_layer(layer),
            false,
            buffers.normed,
        )));
        buffers.normed
    }

    /// Records what mixes the tokens of a layer, with the layer's norms.
    fn mix(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize, layer: &LayerSpec) {
        if !layer.kind.attends() {
            self.kv_layers.push(None);
        }
        if layer.kind == LayerKind::FeedForward {
            return;
        }
        let x = self.enter(steps, buffers, index, LayerWeight::AttentionNorm);
        if self.spec.latent.is_some() {
            self.latent_attention(steps, buffers, (index, layer), x);
        } else if self.spec.attention.both_ways {
            self.attention_of_rows(steps, buffers, (index, layer), x);
        } else if layer.kind.attends() {
            self.attention(steps, buffers, (index, layer), x);
        }
        if layer.kind.has_state() {
            self.state(steps, buffers, index, x);
        }
        if layer.kind == LayerKind::Convolution {
            self.convolution(steps, buffers, index, x);
        }
    }

    /// Records attention: `x += output(gate(x) · attend(rope(qkv(x))))`.
    fn attention(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) {
        let (attention, query_heads) = (self.spec.attention, self.spec.query_heads);
        let kv_layer = self.kv_layer(layer);
        let q_only = layer.kv_from.is_some();
        let query = self.spec.query_columns(layer);
        let (q, attended) = (buffers.q[&query], buffers.attended[&query]);
        let qkv = self.project(steps, buffers, (index, layer), x);
        let q_norm = self.head_norm(index, LayerWeight::QNorm);
        let k_norm = if q_only {
            None
        } else {
            self.head_norm(index, LayerWeight::KNorm)
        };
        let rope = layer.rope.map(|rope| self.ropes[rope]);
        let v_epsilon = (attention.value_norm && !q_only).then_some(self.spec.norm.epsilon);
        let options = StoreOptions {
            v_epsilon,
            query_growth: attention.query_growth,
            q_only,
        };
        steps.push(Step::RopeStoreKv(RopeStoreKv {
            qkv,
            layer: kv_layer,
            query_heads,
            q_norm,
            k_norm,
            rope,
            options,
            q,
        }));
        let sinks = attention
            .sinks
            .then(|| self.layer_weight(index, LayerWeight::Sinks));
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
        let attended = self.gate_output(steps, layer, (qkv, attended, q));
        self.leave_attention(steps, buffers, index, attended);
    }

    /// Records the product of `x` that gives q, k and v; returns their buffer.
    fn project(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        (index, layer): (usize, &LayerSpec),
        x: BufferId,
    ) -> BufferId {
        let out = buffers.qkv[&self.spec.qkv_columns(layer)];
        let weight = self.layer_weight(index, LayerWeight::Qkv);
        let has_bias = self.spec.attention.qkv_bias;
        let bias = has_bias.then(|| self.layer_weight(index, LayerWeight::QkvBias));
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias,
            accumulate: false,
            out,
        }));
        out
    }

    /// Ends attention with the product of what it returns.
    fn leave_attention(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        attended: BufferId,
    ) {
        let weight = self.layer_weight(index, LayerWeight::Output);
        let has_bias = self.spec.attention.output_bias;
        let bias = has_bias.then(|| self.layer_weight(index, LayerWeight::OutputBias));
        self.leave(steps, buffers, index, attended, (weight, bias));
    }

    /// Multiplies what attention returns by the sigmoid of its gates, which follow q, k and v. The result is in `free`.
    fn gate_output(
        &self,
        steps: &mut Vec<Step>,
        layer: &LayerSpec,
        (qkv, attended, free): (BufferId, BufferId, BufferId),
    ) -> BufferId {
        let shared_by = match self.spec.attention.gate {
            OutputGate::None => return attended,
            OutputGate::EachElement => 1,
            OutputGate::EachHead => layer.head_dim,
        };
        let first = self.spec.qkv_columns(layer) - self.spec.gate_columns(layer);
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up: qkv,
            gates: Gates { first, shared_by },
            up: Up::Of(attended, 0),
            activation: Activation::Sigmoid,
            numbers: None,
            out: free,
        }));
        free
    }

    /// Records a short convolution: `x += output(convolve(input(x)))`.
    fn convolution(&mut self, steps: &mut Vec<Step>, buffers: &Buffers, index: usize, x: BufferId) {
        let spec = self.spec.convolution.expect("the model has convolutions");
        let [gated, convolved] = buffers.convolution.expect("the model has convolutions");
        let layer = self.state_layer((spec.taps - 1) * self.spec.hidden);
        let bias =
            |recorder: &mut Self, weight| spec.bias.then(|| recorder.layer_weight(index, weight));
        let input_bias = bias(self, LayerWeight::ConvolutionInputBias);
        let weight = self.layer_weight(index, LayerWeight::ConvolutionInput);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: input_bias,
            accumulate: false,
            out: gated,
        }));
        let own_bias = bias(self, LayerWeight::ConvolutionBias);
        let weight = self.layer_weight(index, LayerWeight::Convolution);
        steps.push(Step::ShortConvolution(ShortConvolution {
            x: gated,
            form: ConvolutionForm::Gated,
            layer,
            taps: spec.taps,
            weight,
            bias: own_bias,
            out: convolved,
        }));
        let output_bias = bias(self, LayerWeight::ConvolutionOutputBias);
        let weight = self.layer_weight(index, LayerWeight::ConvolutionOutput);
        self.leave(steps, buffers, index, convolved, (weight, output_bias));
    }

    /// Ends the first branch of a layer: adds the product of `x` to the stream, or its norm.
    fn leave(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        x: BufferId,
        (weight, bias): (WeightId, Option<WeightId>),
    ) {
        let product = |accumulate, out| {
            Step::MatMul(MatMul {
                x,
                weight,
                bias,
                accumulate,
                out,
            })
        };
        if let Some(other) = self.other_stream(buffers, index) {
            steps.push(product(true, buffers.x));
            let name = LayerWeight::AttentionPostNorm.of_layer(index);
            let norm = self.norm(buffers.x, &name, false, other);
            return steps.push(Step::RmsNorm(norm));
        }
        match buffers.branch {
            Some(branch) if self.spec.layers[index].norms.after() => {
                steps.push(product(false, branch));
                steps.push(self.norm_onto_x(
                    buffers,
                    branch,
                    index,
                    LayerWeight::AttentionPostNorm,
                    false,
                ));
            }
            _ => steps.push(product(true, buffers.x)),
        }
    }

    /// Records final norm and LM head, only for the rows that are sampled.
    fn sample(
        &mut self,
        x: BufferId,
        buffers: HeadBuffers,
        embedding: WeightId,
        final_norm: &RmsNorm,
    ) -> Vec<Step> {
        let HeadBuffers {
            sampled,
            sampled_normed,
            logits,
        } = buffers;
        let head = if self.spec.tied_embeddings {
            embedding
        } else {
            self.weight("head")
        };
        let bias = self.spec.head_bias.then(|| self.weight("head_bias"));
        let mut steps = vec![
            Step::GatherRows(GatherRows { x, out: sampled }),
            Step::RmsNorm(RmsNorm {
                x: sampled,
                out: sampled_normed,
                ..*final_norm
            }),
            Step::MatMul(MatMul {
                x: sampled_normed,
                weight: head,
                bias,
                accumulate: false,
                out: logits,
            }),
        ];
        let (scale, softcap) = (self.spec.logits_scale, self.spec.logits_softcap);
        if scale != 1.0 || softcap.is_some() {
            steps.push(Step::ScaleLogits(ScaleLogits {
                logits,
                scale,
                softcap,
            }));
        }
        steps.push(Step::Sample(Sample { logits }));
        steps
    }
}
