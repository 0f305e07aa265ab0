//! Which weights a layer has, and the shapes of their sections: a row for each weight.

use super::part::Change;
use crate::model::layer_weight::LayerWeight::{self, *};
use crate::model::spec::{
    AttentionSpec, ConvolutionSpec, ExpertsSpec, HeadNorms, LatentSpec, LayerKind, LayerSpec,
    MlpSpec, ModelSpec, NormPlace, OutputGate, StateRule, StateSpec,
};

/// The shapes of the sections that are stacked to form a weight.
pub(super) type Sections = Vec<Vec<u64>>;

/// A layer of a model.
pub(super) struct Layer<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) index: usize,
}

/// The weights that a part of a layer may have, and the sections of each; `None` if this part does not have it.
type Rows<P> = &'static [(LayerWeight, fn(&Layer<'_>, &P) -> Option<Sections>)];

/// Around attention, or what a layer has instead.
const MIXER_NORMS: Rows<NormPlace> = &[
    (AttentionNorm, |layer, place| {
        place.before_mixer().then(|| layer.stream_vector())
    }),
    (AttentionNormBias, |layer, place| {
        layer.norm_bias(place.before_mixer())
    }),
    (AttentionPostNorm, |layer, place| {
        place.after().then(|| layer.stream_vector())
    }),
    (AttentionPostNormBias, |layer, place| {
        layer.norm_bias(place.after())
    }),
];

/// Around MLP and experts.
const MLP_NORMS: Rows<NormPlace> = &[
    (MlpNorm, |layer, place| {
        let is_own = place.before_mlp() && *place != NormPlace::BeforeBoth;
        is_own.then(|| layer.stream_vector())
    }),
    (MlpNormBias, |layer, place| {
        layer.norm_bias(place.before_mlp() && *place != NormPlace::BeforeBoth)
    }),
    (MlpPostNorm, |layer, place| {
        place.after().then(|| layer.stream_vector())
    }),
    (MlpPostNormBias, |layer, place| {
        layer.norm_bias(place.after())
    }),
];

const ATTENTION: Rows<AttentionSpec> = &[
    (Qkv, |layer, _| {
        Some(matrices(&layer.qkv_rows(), layer.spec.hidden))
    }),
    (QkvBias, |layer, attention| {
        attention.qkv_bias.then(|| vectors(&layer.qkv_rows()))
    }),
    (QNorm, |layer, _| {
        layer.head_norm(layer.spec.query_columns(layer.own()))
    }),
    (KNorm, |layer, _| match layer.own().kv_from {
        Some(_) => None,
        None => layer.head_norm(layer.own().kv_columns()),
    }),
    (Sinks, |layer, attention| {
        attention.sinks.then(|| vector(layer.own().query_heads))
    }),
    (Output, |layer, _| {
        Some(layer.onto_stream(layer.spec.output_columns(layer.own())))
    }),
    (OutputBias, |layer, attention| {
        attention.output_bias.then(|| layer.stream_vector())
    }),
];

const LATENT: Rows<LatentSpec> = &[
    (Query, |layer, latent| match latent.query_rank {
        Some(_) => None,
        None => Some(layer.of_stream(layer.latent_query_rows(latent))),
    }),
    (QueryLatent, |layer, latent| {
        Some(layer.of_stream(latent.query_rank?))
    }),
    (QueryLatentNorm, |_, latent| {
        Some(vector(latent.query_rank?))
    }),
    (QueryUp, |layer, latent| {
        Some(matrix(layer.latent_query_rows(latent), latent.query_rank?))
    }),
    (Latent, |layer, latent| {
        Some(layer.of_stream(latent.rank + latent.rotated))
    }),
    (LatentNorm, |_, latent| Some(vector(latent.rank))),
    (LatentKeys, |_, latent| {
        Some(matrix(latent.rank, latent.plain))
    }),
    (LatentValues, |_, latent| {
        Some(matrix(latent.value, latent.rank))
    }),
];

const CONVOLUTION: Rows<ConvolutionSpec> = &[
    (ConvolutionInput, |layer, _| {
        Some(layer.of_stream(3 * layer.spec.hidden))
    }),
    (ConvolutionInputBias, |layer, convolution| {
        convolution.bias.then(|| vector(3 * layer.spec.hidden))
    }),
    (Convolution, |layer, convolution| {
        Some(taps(&[layer.spec.hidden], convolution.taps))
    }),
    (ConvolutionBias, |layer, convolution| {
        convolution.bias.then(|| layer.stream_vector())
    }),
    (ConvolutionOutput, |layer, _| {
        Some(layer.of_stream(layer.spec.hidden))
    }),
    (ConvolutionOutputBias, |layer, convolution| {
        convolution.bias.then(|| layer.stream_vector())
    }),
];

const STATE: Rows<StateSpec> = &[
    (StateInput, |layer, state| {
        Some(layer.of_stream(state.mixed()))
    }),
    (StateInputBias, |_, state| {
        state.bias.then(|| vector(state.mixed()))
    }),
    (StateConvolution, |_, state| {
        let channels = [state.keys(), state.keys(), state.values()];
        Some(taps(&channels, state.taps))
    }),
    (StateConvolutionBias, |_, state| {
        state.convolution_bias.then(|| vector(state.channels()))
    }),
    (StateDecay, |_, state| Some(vector(state.heads))),
    (StateDtBias, |_, state| Some(vector(state.heads))),
    (StateSkip, |_, state| {
        (state.rule == StateRule::Mamba2).then(|| vector(state.heads))
    }),
    (StateNorm, |_, state| {
        let elements = if state.norm.shared {
            state.norm.run
        } else {
            state.values()
        };
        state.norm.present.then(|| vector(elements))
    }),
    (StateOutput, |layer, state| {
        Some(layer.onto_stream(state.values()))
    }),
    (StateOutputBias, |layer, state| {
        state.bias.then(|| layer.stream_vector())
    }),
];

const MLP: Rows<MlpSpec> = &[
    (GateUp, |layer, _| {
        Some(layer.gate_and_up(layer.own().mlp, layer.spec.hidden))
    }),
    (GateUpBias, |layer, mlp| {
        let rows = layer.gated_rows(layer.own().mlp);
        mlp.bias.then(|| vectors(&rows))
    }),
    (Down, |layer, _| Some(layer.onto_stream(layer.own().mlp))),
    (DownBias, |layer, mlp| {
        mlp.down_bias.then(|| layer.stream_vector())
    }),
    // Two factors of one element each, and two numbers without dimension.
    (Xielu, |_, _| Some(vec![vec![1], vec![1], vec![], vec![]])),
];

const EXPERTS: Rows<ExpertsSpec> = &[
    (Router, |layer, experts| {
        Some(layer.of_stream(experts.count))
    }),
    (RouterBias, |_, experts| {
        experts.bias.then(|| vector(experts.count))
    }),
    (RouterChoiceBias, |_, experts| {
        experts.router.choice_bias.then(|| vector(experts.count))
    }),
    (RouterNorm, |layer, experts| {
        experts.beside.then(|| layer.stream_vector())
    }),
    (RouterScales, |_, experts| {
        experts.beside.then(|| vector(experts.count))
    }),
    (DensePostNorm, |layer, experts| {
        experts.beside.then(|| layer.stream_vector())
    }),
    (ExpertNorm, |layer, experts| {
        experts.beside.then(|| layer.stream_vector())
    }),
    (ExpertPostNorm, |layer, experts| {
        experts.beside.then(|| layer.stream_vector())
    }),
    (ExpertInput, |layer, experts| {
        Some(layer.of_stream(experts.latent?))
    }),
    (ExpertOutput, |layer, experts| {
        Some(layer.onto_stream(experts.latent?))
    }),
    (ExpertGateUp, |layer, experts| {
        Some(layer.gate_and_up(experts.mlp, layer.expert_columns(experts)))
    }),
    (ExpertGateUpBias, |_, experts| {
        experts.bias.then(|| vectors(&[experts.mlp; 2]))
    }),
    (ExpertDown, |layer, experts| {
        Some(matrix(layer.expert_columns(experts), experts.mlp))
    }),
    (ExpertDownBias, |layer, experts| {
        experts.bias.then(|| layer.stream_vector())
    }),
    (SharedGate, |layer, experts| {
        experts.shared?.gated.then(|| layer.of_stream(1))
    }),
    (SharedGateUp, |layer, experts| {
        Some(layer.gate_and_up(experts.shared?.mlp, layer.spec.hidden))
    }),
    (SharedDown, |layer, experts| {
        Some(layer.onto_stream(experts.shared?.mlp))
    }),
];

/// What is added at the end of a layer that has an embedding of its own, of so many elements.
const LAYER_EMBEDDING: Rows<u32> = &[
    (LayerGate, |layer, columns| Some(layer.of_stream(*columns))),
    (LayerOutput, |layer, columns| {
        Some(layer.onto_stream(*columns))
    }),
    (LayerOutputNorm, |layer, _| Some(layer.stream_vector())),
];

/// What every layer may have.
const ANY_LAYER: Rows<()> = &[(Scalar, |layer, ()| {
    layer.spec.layer_scalar.then(|| vector(1))
})];

impl<'a> Layer<'a> {
    /// Options of this layer alone.
    pub(super) fn own(&self) -> &'a LayerSpec {
        &self.spec.layers[self.index]
    }

    /// The name of one of its tensors, of which a table has the pattern.
    pub(super) fn tensor(&self, pattern: &str) -> String {
        pattern.replace("{}", &self.index.to_string())
    }

    /// The sections of a weight; `None` if this layer does not have it.
    pub(super) fn sections(&self, weight: LayerWeight) -> Option<Sections> {
        let (spec, own) = (self.spec, self.own());
        let mixes = own.kind != LayerKind::FeedForward;
        let convolves = own.kind == LayerKind::Convolution;
        let state = if own.kind.has_state() {
            spec.state
        } else {
            None
        };
        let experts = if own.experts { spec.experts } else { None };
        let found = [
            self.find(weight, MIXER_NORMS, mixes.then_some(own.norms)),
            self.find(
                weight,
                MLP_NORMS,
                own.has_feed_forward().then_some(own.norms),
            ),
            self.find(
                weight,
                ATTENTION,
                own.kind.attends().then_some(spec.attention),
            ),
            self.find(weight, LATENT, spec.latent),
            self.find(
                weight,
                CONVOLUTION,
                if convolves { spec.convolution } else { None },
            ),
            self.find(weight, STATE, state),
            self.find(weight, MLP, spec.is_dense(own).then_some(spec.mlp)),
            self.find(weight, EXPERTS, experts),
            self.find(weight, LAYER_EMBEDDING, spec.layer_embedding),
            self.find(weight, ANY_LAYER, Some(())),
        ];
        found.into_iter().flatten().next()
    }

    /// The sections of a weight that a part of this layer has, if the part is there.
    fn find<P>(&self, weight: LayerWeight, rows: Rows<P>, part: Option<P>) -> Option<Sections> {
        let (_, sections) = rows.iter().find(|(row, _)| *row == weight)?;
        sections(self, &part?)
    }

    /// How many matrices or vectors of these sections a weight stacks: one for each expert or head.
    pub(super) fn copies(&self, weight: LayerWeight) -> u32 {
        match weight {
            ExpertGateUp | ExpertGateUpBias | ExpertDown | ExpertDownBias => {
                self.spec.experts.map_or(1, |experts| experts.count)
            }
            LatentKeys | LatentValues => self.spec.query_heads,
            _ => 1,
        }
    }

    /// What becomes of all elements of a weight when it is loaded.
    pub(super) fn change(&self, weight: LayerWeight) -> Change {
        let factors = &self.spec.factors;
        match weight {
            AttentionNorm => Change::times(factors.mixer_norm),
            MlpNorm => Change::times(factors.mlp_norm),
            // The logits of a router with a norm of its own are divided by √hidden.
            RouterNorm => Change::times(f64::from(self.spec.hidden).sqrt().recip() as f32),
            StateDecay if self.spec.state.is_some_and(|state| state.log_decays) => {
                Change::NegativeExponential
            }
            StateNorm => Change::times(factors.state),
            SharedDown => {
                let shared = self.spec.experts.and_then(|experts| experts.shared);
                shared.map_or(Change::None, |shared| Change::times(shared.factor))
            }
            _ => Change::None,
        }
    }

    /// Rows of q, of k and v if the layer computes them, and of gates if they have a tensor of their own.
    fn qkv_rows(&self) -> Vec<u32> {
        let own = self.own();
        let mut rows = vec![self.spec.query_columns(own)];
        if own.kv_from.is_none() {
            rows.extend([own.kv_columns(); 2]);
        }
        if self.spec.attention.gate == OutputGate::EachHead {
            rows.push(own.query_heads);
        }
        rows
    }

    /// The norm of q or k, whose rows have so many elements.
    fn head_norm(&self, columns: u32) -> Option<Sections> {
        match self.spec.attention.head_norms {
            HeadNorms::None | HeadNorms::Unweighted => None,
            HeadNorms::EachHead | HeadNorms::EachHeadRotated => Some(vector(self.own().head_dim)),
            HeadNorms::WholeRow => Some(vector(columns)),
        }
    }

    fn latent_query_rows(&self, latent: &LatentSpec) -> u32 {
        self.spec.query_heads * (latent.plain + latent.rotated)
    }

    /// Columns that experts read and write.
    fn expert_columns(&self, experts: &ExpertsSpec) -> u32 {
        experts.latent.unwrap_or(self.spec.hidden)
    }

    /// Gate and up, or up alone.
    fn gate_and_up(&self, rows: u32, columns: u32) -> Sections {
        matrices(&self.gated_rows(rows), columns)
    }

    fn gated_rows(&self, rows: u32) -> Vec<u32> {
        vec![rows; if self.spec.mlp.gated { 2 } else { 1 }]
    }

    /// A matrix whose products are with rows of the stream.
    fn of_stream(&self, rows: u32) -> Sections {
        matrix(rows, self.spec.hidden)
    }

    /// A matrix whose product is added to the stream.
    fn onto_stream(&self, columns: u32) -> Sections {
        matrix(self.spec.hidden, columns)
    }

    /// The bias of a norm of the stream, if there is the norm.
    fn norm_bias(&self, is_there: bool) -> Option<Sections> {
        (is_there && self.spec.norm.bias).then(|| self.stream_vector())
    }

    /// A norm of the stream, or a bias of what is added to it.
    fn stream_vector(&self) -> Sections {
        vector(self.spec.hidden)
    }
}

fn vector(elements: u32) -> Sections {
    vectors(&[elements])
}

fn vectors(elements: &[u32]) -> Sections {
    elements
        .iter()
        .map(|&elements| vec![elements.into()])
        .collect()
}

fn matrix(rows: u32, columns: u32) -> Sections {
    matrices(&[rows], columns)
}

fn matrices(rows: &[u32], columns: u32) -> Sections {
    rows.iter()
        .map(|&rows| vec![rows.into(), columns.into()])
        .collect()
}

/// The taps of a convolution of each of these channels.
fn taps(channels: &[u32], taps: u32) -> Sections {
    channels
        .iter()
        .map(|&channels| vec![channels.into(), 1, taps.into()])
        .collect()
}

#[cfg(test)]
mod tests;
