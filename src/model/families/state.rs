//! The rows of decoders with layers that keep a state: short convolutions, gated delta rule, Mamba 2.

use super::attention::{GRANITE, LLAMA, QWEN3, UNBIASED, UNBIASED_MLP};
use super::{
    ActivationField, AttentionRow, ExpertsRow, Family, Flag, Mixers, MlpRow, MlpSize, NormsRow,
    RopeRow, Ropes, RouterRow, Rule, Scales, Shared, Sparse, Windows,
};
use crate::model::rope::RopeOptions;
use crate::model::spec::{HeadNorms, NormPlace, OutputGate};
use crate::model::tensor_names;
use crate::plan::Activation;

pub(in crate::model) const LFM2: Family = Family {
    architecture: "Lfm2ForCausalLM",
    model_type: "lfm2",
    norms: NormsRow {
        epsilon: "norm_eps",
        ..LLAMA.norms
    },
    mixers: Mixers::AttentionOrConvolution { sliding: false },
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        ..UNBIASED
    },
    rope: RopeRow {
        options: RopeOptions {
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    mlp: MlpRow {
        size: MlpSize::Adjusted,
        ..UNBIASED_MLP
    },
    tied_default: true,
    tensors: &tensor_names::LFM2,
    ..LLAMA
};

/// The weights of a token's experts are divided by their sum; what transformers adds to it, 1e-6, is left out.
pub(in crate::model) const LFM2_MOE: Family = Family {
    architecture: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    mlp: UNBIASED_MLP,
    experts: ExpertsRow {
        layers: Sparse::AfterDense("num_dense_layers", 2),
        count: &["num_experts"],
        router: RouterRow {
            choice_bias: Flag::UnlessField("use_expert_bias"),
            ..ExpertsRow::AFTER_DENSE.router
        },
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::LFM2_MOE,
    ..LFM2
};

pub(in crate::model) const LFM3: Family = Family {
    architecture: "Lfm3ForCausalLM",
    model_type: "lfm3",
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        after_if: Some("use_sandwich_norm"),
        ..LFM2.norms
    },
    mixers: Mixers::AttentionOrConvolution { sliding: true },
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        windows: Windows::Words,
        gate: OutputGate::EachHead,
        gate_if: Some("use_attention_gate"),
        ..UNBIASED
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LFM2.rope
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::LFM3,
    ..LFM2
};

/// Half of what `q_proj` gives are gates of the output.
pub(in crate::model) const QWEN3_5: Family = Family {
    architecture: "Qwen3_5ForCausalLM",
    model_type: "qwen3_5_text",
    norms: NormsRow {
        one_plus: true,
        final_one_plus: true,
        ..LLAMA.norms
    },
    mixers: Mixers::AttentionOrState(Rule::Delta),
    attention: AttentionRow {
        gate: OutputGate::EachElement,
        windows: Windows::Never,
        ..QWEN3.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            partial_rotary_factor: 0.25,
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::QWEN3_5,
    ..LLAMA
};

pub(in crate::model) const QWEN3_5_MOE: Family = Family {
    architecture: "Qwen3_5MoeForCausalLM",
    model_type: "qwen3_5_moe_text",
    experts: ExpertsRow {
        layers: Sparse::EveryLayer,
        shared: Shared::Gated("shared_expert_intermediate_size"),
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::QWEN3_5_MOE,
    ..QWEN3_5
};

pub(in crate::model) const QWEN3_NEXT: Family = Family {
    architecture: "Qwen3NextForCausalLM",
    model_type: "qwen3_next",
    experts: ExpertsRow {
        router: RouterRow {
            normalizes: Flag::UnlessField("norm_topk_prob"),
            ..ExpertsRow::EVERY_NTH.router
        },
        shared: Shared::Gated("shared_expert_intermediate_size"),
        ..ExpertsRow::EVERY_NTH
    },
    tensors: &tensor_names::QWEN3_NEXT,
    ..QWEN3_5
};

/// Layers with attention have the norms of OLMo 2, those with a state norms before.
pub(in crate::model) const OLMO_HYBRID: Family = Family {
    architecture: "OlmoHybridForCausalLM",
    model_type: "olmo_hybrid",
    norms: NormsRow {
        place: NormPlace::After,
        ..LLAMA.norms
    },
    mixers: Mixers::AttentionOrState(Rule::NegativeDelta),
    attention: AttentionRow {
        head_norms: HeadNorms::WholeRow,
        ..LLAMA.attention
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::OLMO_HYBRID,
    ..LLAMA
};

pub(in crate::model) const GRANITE_HYBRID: Family = Family {
    architecture: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    mixers: Mixers::AttentionOrState(Rule::Mamba2),
    rope: RopeRow {
        layers: Ropes::PositionEmbeddingType { default: false },
        ..LLAMA.rope
    },
    mlp: MlpRow {
        size: MlpSize::Field("shared_intermediate_size"),
        ..UNBIASED_MLP
    },
    experts: ExpertsRow {
        layers: Sparse::EveryLayerIfAny,
        shared: Shared::Sized("shared_intermediate_size"),
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::GRANITE_HYBRID,
    ..GRANITE
};

/// A layer is a state, attention, an MLP or experts.
pub(in crate::model) const NEMOTRON_H: Family = Family {
    architecture: "NemotronHForCausalLM",
    model_type: "nemotron_h",
    norms: NormsRow {
        epsilon: "layer_norm_epsilon",
        ..LLAMA.norms
    },
    mixers: Mixers::Blocks,
    rope: RopeRow {
        layers: Ropes::Never,
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::MlpHiddenAct(Activation::Relu2),
        gated: false,
        ..LLAMA.mlp
    },
    experts: ExpertsRow {
        layers: Sparse::Blocks,
        shared: Shared::Experts("n_shared_experts", 0, "moe_shared_expert_intermediate_size"),
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::NEMOTRON_H,
    ..LLAMA
};

/// Attention and a state side by side.
pub(in crate::model) const FALCON_H1: Family = Family {
    architecture: "FalconH1ForCausalLM",
    model_type: "falcon_h1",
    mixers: Mixers::AttentionAndState,
    attention: UNBIASED,
    mlp: UNBIASED_MLP,
    norms: NormsRow {
        epsilon: "rms_norm_eps",
        ..LLAMA.norms
    },
    scales: Scales::FalconH1,
    tensors: &tensor_names::FALCON_H1,
    ..LLAMA
};
