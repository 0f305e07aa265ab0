//! The parts of a layer that follow attention: MLP, experts, and the layer's own embedding.

use super::buffers::{Buffers, ExpertBuffers, MlpBuffers};
use super::recorder::Recorder;
use crate::model::layer_weight::LayerWeight;
use crate::model::spec::{ExpertsSpec, LayerSpec, NormPlace};
use crate::plan::{
    Activation, BufferId, Embed, ExpertGroups, GatedActivation, Gates, MatMul, MatMulExperts,
    RmsNorm, RouteExperts, Routing, RowId, Step, Up,
};

impl Recorder<'_> {
    /// Records MLP or experts, or both: `x += f(x)`, with the model's norms.
    pub(super) fn feed_forward(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
        layer: &LayerSpec,
    ) {
        let is_last = buffers.layer_embedding.is_none();
        let x = match layer.norms {
            NormPlace::BeforeBoth => buffers.normed,
            _ => self.enter(steps, buffers, index, LayerWeight::MlpNorm),
        };
        let experts = if layer.experts { buffers.experts } else { None };
        if let Some(stream) = self.other_stream(buffers, index) {
            self.mlp(
                steps,
                buffers.dense[&layer.mlp],
                index,
                stream,
                (true, stream),
            );
            let name = LayerWeight::MlpPostNorm.of_layer(index);
            let norm = self.norm(stream, &name, false, buffers.x);
            return steps.push(Step::RmsNorm(norm));
        }
        let branch = if layer.norms.after() {
            buffers.branch
        } else {
            None
        };
        let Some(branch) = branch else {
            return match experts {
                Some(experts) => self.experts(steps, experts, index, [x, x], (true, buffers.x)),
                None => self.mlp(
                    steps,
                    buffers.dense[&layer.mlp],
                    index,
                    x,
                    (true, buffers.x),
                ),
            };
        };
        match (experts, buffers.combined) {
            (None, _) => self.mlp(steps, buffers.dense[&layer.mlp], index, x, (false, branch)),
            (Some(experts), None) => self.experts(steps, experts, index, [x, x], (false, branch)),
            (Some(experts), Some(combined)) => {
                self.mlp(steps, buffers.dense[&layer.mlp], index, x, (false, branch));
                self.beside(steps, buffers, experts, index, combined);
                let step =
                    self.norm_onto_x(buffers, combined, index, LayerWeight::MlpPostNorm, is_last);
                return steps.push(step);
            }
        }
        let step = self.norm_onto_x(buffers, branch, index, LayerWeight::MlpPostNorm, is_last);
        steps.push(step);
    }

    /// Records experts beside an MLP, whose output is in the branch: `combined = norm(branch) + norm(experts(x))`.
    fn beside(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        experts: ExpertBuffers,
        index: usize,
        combined: BufferId,
    ) {
        let branch = buffers
            .branch
            .expect("such a model has norms after its branches");
        steps.push(Step::RmsNorm(self.norm(
            branch,
            &LayerWeight::DensePostNorm.of_layer(index),
            false,
            combined,
        )));
        // The router has a norm of its own. Its logits are computed before the experts' norm replaces it.
        steps.push(Step::RmsNorm(self.norm(
            buffers.x,
            &LayerWeight::RouterNorm.of_layer(index),
            false,
            buffers.normed,
        )));
        self.route(steps, experts, index, buffers.normed);
        steps.push(Step::RmsNorm(self.norm(
            buffers.x,
            &LayerWeight::ExpertNorm.of_layer(index),
            false,
            buffers.normed,
        )));
        self.chosen(steps, experts, index, buffers.normed, (false, branch));
        steps.push(Step::RmsNorm(self.norm(
            branch,
            &LayerWeight::ExpertPostNorm.of_layer(index),
            true,
            combined,
        )));
    }

    /// Records an MLP: `out (=, +=) down(act(gate(x)) · up(x))`.
    fn mlp(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: MlpBuffers,
        index: usize,
        x: BufferId,
        (accumulate, out): (bool, BufferId),
    ) {
        let MlpBuffers { gate_up, activated } = buffers;
        let mlp = self.spec.mlp;
        let weight = self.layer_weight(index, LayerWeight::GateUp);
        let bias = mlp
            .bias
            .then(|| self.layer_weight(index, LayerWeight::GateUpBias));
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias,
            accumulate: false,
            out: gate_up,
        }));
        let numbers = (mlp.activation == Activation::Xielu)
            .then(|| self.layer_weight(index, LayerWeight::Xielu));
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up,
            gates: Gates::default(),
            up: self.up(),
            activation: self.activation(index, false),
            numbers,
            routes: None,
            out: activated,
        }));
        let weight = self.layer_weight(index, LayerWeight::Down);
        let bias = mlp
            .down_bias
            .then(|| self.layer_weight(index, LayerWeight::DownBias));
        steps.push(Step::MatMul(MatMul {
            x: activated,
            weight,
            bias,
            accumulate,
            out,
        }));
    }

    /// Records the experts that the router chooses for each token, and those that every token passes. `[routed, x]` are
    /// the inputs of the router and of the experts.
    fn experts(
        &mut self,
        steps: &mut Vec<Step>,
        experts: ExpertBuffers,
        index: usize,
        [routed, x]: [BufferId; 2],
        (accumulate, out): (bool, BufferId),
    ) {
        self.route(steps, experts, index, routed);
        match experts.latent {
            None => self.chosen(steps, experts, index, x, (accumulate, out)),
            Some([input, output]) => {
                let product = |x, weight, accumulate, out| MatMul {
                    x,
                    weight,
                    bias: None,
                    accumulate,
                    out,
                };
                let weight = self.layer_weight(index, LayerWeight::ExpertInput);
                steps.push(Step::MatMul(product(x, weight, false, input)));
                self.chosen(steps, experts, index, input, (false, output));
                let weight = self.layer_weight(index, LayerWeight::ExpertOutput);
                steps.push(Step::MatMul(product(output, weight, accumulate, out)));
            }
        }
        if let Some(shared) = experts.shared {
            self.shared(steps, experts, shared, index, x, out);
        }
    }

    fn experts_spec(&self) -> ExpertsSpec {
        self.spec
            .experts
            .expect("a layer has the experts of its model")
    }

    /// Records the router.
    fn route(&mut self, steps: &mut Vec<Step>, experts: ExpertBuffers, index: usize, x: BufferId) {
        let ExpertBuffers { router, routes, .. } = experts;
        let spec = self.experts_spec();
        let weight = self.layer_weight(index, LayerWeight::Router);
        let bias = spec
            .bias
            .then(|| self.layer_weight(index, LayerWeight::RouterBias));
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias,
            accumulate: false,
            out: router,
        }));
        let routing = Routing {
            sigmoid: spec.router.sigmoid,
            renormalize: spec.router.renormalize,
            bias: spec
                .router
                .choice_bias
                .then(|| self.layer_weight(index, LayerWeight::RouterChoiceBias)),
            groups: spec
                .router
                .groups
                .filter(|ExpertGroups { count, kept }| kept < count),
            factor: spec.router.factor,
            softcap: spec.router.softcap,
            mixer: spec.router.mixer,
            expert_scale: spec
                .beside
                .then(|| self.layer_weight(index, LayerWeight::RouterScales)),
        };
        steps.push(Step::RouteExperts(RouteExperts {
            logits: router,
            routing,
            routes,
        }));
    }

    /// Records the chosen experts: `out (=, +=) Σ weight · down(act(gate(x)) · up(x))`. If weights multiply the input,
    /// they multiply gate and up; the latter as well after the product.
    fn chosen(
        &mut self,
        steps: &mut Vec<Step>,
        experts: ExpertBuffers,
        index: usize,
        x: BufferId,
        (accumulate, out): (bool, BufferId),
    ) {
        let ExpertBuffers {
            routes,
            mlp: MlpBuffers { gate_up, activated },
            ..
        } = experts;
        let spec = self.experts_spec();
        let weight = self.layer_weight(index, LayerWeight::ExpertGateUp);
        let bias = spec
            .bias
            .then(|| self.layer_weight(index, LayerWeight::ExpertGateUpBias));
        steps.push(Step::MatMulExperts(MatMulExperts {
            x,
            routes: Some(routes),
            weight,
            bias,
            accumulate: false,
            out: gate_up,
        }));
        let weighed = spec.weighs_input.then_some(routes);
        let activation = self.activation(index, true);
        steps.push(self.gate(gate_up, activation, weighed, activated));
        let weight = self.layer_weight(index, LayerWeight::ExpertDown);
        let bias = spec
            .bias
            .then(|| self.layer_weight(index, LayerWeight::ExpertDownBias));
        steps.push(Step::MatMulExperts(MatMulExperts {
            x: activated,
            routes: Some(routes),
            weight,
            bias,
            accumulate,
            out,
        }));
    }

    /// Records the MLP that every token passes besides the chosen experts: `out += σ(gate · x) · mlp(x)`, or
    /// `out += mlp(x)`. With a gate, it is a mixture of one expert whose weight is the sigmoid of its logit.
    fn shared(
        &mut self,
        steps: &mut Vec<Step>,
        experts: ExpertBuffers,
        MlpBuffers { gate_up, activated }: MlpBuffers,
        index: usize,
        x: BufferId,
        out: BufferId,
    ) {
        let weight = self.layer_weight(index, LayerWeight::SharedGateUp);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out: gate_up,
        }));
        let activation = self.activation(index, false);
        steps.push(self.gate(gate_up, activation, None, activated));
        let Some([logits, routes]) = experts.shared_gate else {
            let weight = self.layer_weight(index, LayerWeight::SharedDown);
            return steps.push(Step::MatMul(MatMul {
                x: activated,
                weight,
                bias: None,
                accumulate: true,
                out,
            }));
        };
        let weight = self.layer_weight(index, LayerWeight::SharedGate);
        steps.push(Step::MatMul(MatMul {
            x,
            weight,
            bias: None,
            accumulate: false,
            out: logits,
        }));
        let routing = Routing {
            sigmoid: true,
            ..Routing::softmax(false)
        };
        steps.push(Step::RouteExperts(RouteExperts {
            logits,
            routing,
            routes,
        }));
        let (weight, bias) = (self.layer_weight(index, LayerWeight::SharedDown), None);
        steps.push(Step::MatMulExperts(MatMulExperts {
            x: activated,
            routes: Some(routes),
            weight,
            bias,
            accumulate: true,
            out,
        }));
    }

    fn up(&self) -> Up {
        if self.spec.mlp.gated {
            Up::SecondHalf
        } else {
            Up::One
        }
    }

    /// The activation of an MLP of a layer: its experts', or another one.
    fn activation(&self, index: usize, of_experts: bool) -> Activation {
        let [experts, others] = self.spec.layers[index].clamps;
        match if of_experts { experts } else { others } {
            Some(limit) => Activation::ClampedSilu { limit },
            None => self.spec.mlp.activation,
        }
    }

    /// Records an activation whose gates may be multiplied by the weights of routes.
    fn gate(
        &self,
        gate_up: BufferId,
        activation: Activation,
        routes: Option<BufferId>,
        out: BufferId,
    ) -> Step {
        let (up, gates) = (self.up(), Gates::default());
        Step::GatedActivation(GatedActivation {
            gate_up,
            gates,
            up,
            activation,
            numbers: None,
            routes,
            out,
        })
    }

    /// Records the embeddings that layers have of their own, P elements each:
    /// `(√P · row + norm(projection(x) / √hidden)) / √2`, normalized for each layer by itself.
    pub(super) fn layer_embeddings(&mut self, steps: &mut Vec<Step>, buffers: &Buffers) {
        let (Some(own), Some(columns)) = (buffers.layer_embedding, self.spec.layer_embedding)
        else {
            return;
        };
        let table = self.weight("layer_embedding");
        let scale = (f64::from(columns) / 2.0).sqrt() as f32;
        steps.push(Step::Embed(Embed {
            table,
            id: RowId::Token,
            accumulate: false,
            scale,
            out: own.all,
        }));
        let weight = self.weight("layer_projection");
        steps.push(Step::MatMul(MatMul {
            x: buffers.x,
            weight,
            bias: None,
            accumulate: false,
            out: own.projected,
        }));
        // Dividing a row by √hidden before its norm is the same as multiplying epsilon by hidden; the norm's weights
        // are loaded divided by √2.
        let norm = self.norm(own.projected, "layer_projection_norm", true, own.all);
        steps.push(Step::RmsNorm(RmsNorm {
            epsilon: norm.epsilon * self.spec.hidden as f32,
            ..norm
        }));
    }

    /// Records what a layer adds of its own embedding e: `x += norm(projection(act(gate(x)) · e))`.
    pub(super) fn add_layer_embedding(
        &mut self,
        steps: &mut Vec<Step>,
        buffers: &Buffers,
        index: usize,
    ) {
        let (Some(own), Some(columns)) = (buffers.layer_embedding, self.spec.layer_embedding)
        else {
            return;
        };
        let branch = buffers
            .branch
            .expect("such a model has norms after its branches");
        let weight = self.layer_weight(index, LayerWeight::LayerGate);
        steps.push(Step::MatMul(MatMul {
            x: buffers.x,
            weight,
            bias: None,
            accumulate: false,
            out: own.gate,
        }));
        steps.push(Step::GatedActivation(GatedActivation {
            gate_up: own.gate,
            gates: Gates::default(),
            up: Up::Of(
                own.all,
                columns * u32::try_from(index).expect("a model has few layers"),
            ),
            activation: self.spec.mlp.activation,
            numbers: None,
            routes: None,
            out: own.activated,
        }));
        let weight = self.layer_weight(index, LayerWeight::LayerOutput);
        steps.push(Step::MatMul(MatMul {
            x: own.activated,
            weight,
            bias: None,
            accumulate: false,
            out: branch,
        }));
        let step = self.norm_onto_x(buffers, branch, index, LayerWeight::LayerOutputNorm, true);
        steps.push(step);
    }
}
