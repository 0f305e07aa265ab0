//! What all parts of a layer record with: weights and layers of the plan, norms, and the two ends of a branch.

use super::buffers::Buffers;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::{HeadNorms, LayerSpec, ModelSpec, NormPlace};
use crate::model::weights::WeightTable;
use crate::plan::{
    BufferId, HeadNorm, KvGroup, KvLayer, MatMul, NormOptions, Plan, RmsNorm, Rope, StateLayer,
    Step, WeightId,
};

/// A plan under construction.
pub(super) struct Recorder<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) weights: &'a WeightTable,
    pub(super) plan: Plan,
    pub(super) ropes: Vec<Rope>,
    /// Slopes by which scores fall with the distance, if they do.
    pub(super) slopes: Option<WeightId>,
    /// The KV layer of each layer so far; `None` for one without attention.
    pub(super) kv_layers: Vec<Option<u32>>,
}

impl Recorder<'_> {
    /// Declares a weight of the model's table in the plan.
    pub(super) fn weight(&mut self, name: &str) -> WeightId {
        let weight = self.weights.get(name);
        let id = self
            .plan
            .weight_in_sections(name, weight.columns, &weight.sections);
        self.plan.stack_experts(id, weight.experts);
        id
    }

    pub(super) fn layer_weight(&mut self, layer: usize, weight: LayerWeight) -> WeightId {
        self.weight(&weight.of_layer(layer))
    }

    /// Declares a state of so many elements.
    pub(super) fn state_layer(&mut self, elements: u32) -> u32 {
        let layer = u32::try_from(self.plan.state_layers.len()).expect("a model has few layers");
        self.plan.state_layers.push(StateLayer { elements });
        layer
    }

    /// The KV layer of a layer. Layers with equal windows share block ids.
    pub(super) fn kv_layer(&mut self, layer: &LayerSpec) -> u32 {
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
    pub(super) fn norm(
        &mut self,
        x: BufferId,
        name: &str,
        accumulate: bool,
        out: BufferId,
    ) -> RmsNorm {
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
    pub(super) fn norm_onto_x(
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

    pub(super) fn head_norm(&mut self, layer: usize, weight: LayerWeight) -> Option<HeadNorm> {
        let (norm, kind) = (self.spec.norm, self.spec.attention.head_norms);
        let is_there = kind != HeadNorms::None && self.spec.layers[layer].head_norms;
        is_there.then(|| HeadNorm {
            weight: self.layer_weight(layer, weight),
            epsilon: norm.epsilon,
            one_plus: norm.one_plus && kind != HeadNorms::Unweighted,
            whole_row: kind == HeadNorms::WholeRow,
            after_rotation: kind == HeadNorms::EachHeadRotated,
        })
    }

    /// Starts a branch: returns `x`, or its norm.
    pub(super) fn enter(
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

    /// Ends the first branch of a layer: adds the product of `x` to the stream, or its norm.
    pub(super) fn leave(
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

    /// The buffer that has the stream between attention and MLP, if it is another one: where the normed sum is the
    /// stream, a norm reads one buffer and writes the other.
    pub(super) fn other_stream(&self, buffers: &Buffers, index: usize) -> Option<BufferId> {
        let is_other = self.spec.layers[index].norms == NormPlace::AfterSum;
        if is_other { buffers.other } else { None }
    }
}
