//! The rows of decoders whose layers all have attention.

use super::{
    ActivationField, AfterDense, AttentionRow, Experts, Family, Flag, Mixers, MlpRow, MlpSize,
    NormsRow, Positions, RopeRow, Ropes, Scales, Scores, Sizes, TablesRow, Windows,
};
use crate::model::rope::RopeOptions;
use crate::model::spec::{HeadNorms, NormPlace, OutputGate};
use crate::model::tensor_names;
use crate::plan::Activation;

pub(in crate::model) const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    synonyms: &[],
    fixed: &[],
    tables: TablesRow {
        positions: Positions::Never,
        texts: false,
    },
    norms: NormsRow {
        place: NormPlace::Before,
        first: None,
        after_if: None,
        one_plus: false,
        center: false,
        bias: false,
        embedding: false,
        last: true,
        epsilon: "rms_norm_eps",
    },
    sizes: Sizes::Same,
    mixers: Mixers::Attention,
    attention: AttentionRow {
        qkv_bias: Flag::Field("attention_bias"),
        output_bias: Flag::Field("attention_bias"),
        head_norms: HeadNorms::None,
        head_norms_if: None,
        value_norm: false,
        query_growth: false,
        windows: Windows::Never,
        sinks: false,
        gate: OutputGate::None,
        gate_if: None,
        latent: false,
        both_ways: Flag::Never,
        alibi: false,
    },
    rope: RopeRow {
        layers: Ropes::One,
        options: RopeOptions {
            interleaved: false,
            partial_rotary_factor: 1.0,
        },
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Silu),
        gated: true,
        bias: Flag::Field("mlp_bias"),
        down_bias: None,
        size: MlpSize::Field("intermediate_size"),
    },
    experts: Experts::Never,
    scales: Scales::Plain,
    tied_default: false,
    tensors: &tensor_names::HUGGING_FACE,
};

/// Attention without biases.
pub(in crate::model) const UNBIASED: AttentionRow = AttentionRow {
    qkv_bias: Flag::Never,
    output_bias: Flag::Never,
    ..LLAMA.attention
};

/// An MLP without biases.
pub(in crate::model) const UNBIASED_MLP: MlpRow = MlpRow {
    bias: Flag::Never,
    ..LLAMA.mlp
};

pub(in crate::model) const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    attention: AttentionRow {
        windows: Windows::EveryLayer,
        ..UNBIASED
    },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

pub(in crate::model) const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    attention: AttentionRow {
        qkv_bias: Flag::Always,
        windows: Windows::UpperLayers,
        ..UNBIASED
    },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

pub(in crate::model) const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        windows: Windows::UpperLayers,
        ..LLAMA.attention
    },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

pub(in crate::model) const GEMMA: Family = Family {
    architecture: "GemmaForCausalLM",
    model_type: "gemma",
    fixed: &[("use_bidirectional_attention", "false")],
    norms: NormsRow {
        one_plus: true,
        ..LLAMA.norms
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenActivation,
        ..UNBIASED_MLP
    },
    scales: Scales::Gemma {
        scalar_default: None,
        softcaps: None,
    },
    tied_default: true,
    ..LLAMA
};

pub(in crate::model) const GEMMA2: Family = Family {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        ..GEMMA.norms
    },
    attention: AttentionRow {
        windows: Windows::Pattern(2),
        ..LLAMA.attention
    },
    scales: Scales::Gemma {
        scalar_default: Some(256.0),
        softcaps: Some([50.0, 30.0]),
    },
    tensors: &tensor_names::GEMMA,
    ..GEMMA
};

/// The text-only model; checkpoints with vision have another architecture.
pub(in crate::model) const GEMMA3: Family = Family {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    fixed: &[],
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        windows: Windows::Pattern(6),
        both_ways: Flag::Field("use_bidirectional_attention"),
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LLAMA.rope
    },
    scales: Scales::Gemma {
        scalar_default: Some(256.0),
        softcaps: None,
    },
    ..GEMMA2
};

pub(in crate::model) const PHI3: Family = Family {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    tensors: &tensor_names::PHI3,
    ..MISTRAL
};

pub(in crate::model) const SMOLLM3: Family = Family {
    architecture: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    attention: AttentionRow {
        windows: Windows::UnrotatedLayers,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::SomeLayers,
        ..LLAMA.rope
    },
    tied_default: true,
    ..LLAMA
};

pub(in crate::model) const OLMO2: Family = Family {
    architecture: "Olmo2ForCausalLM",
    model_type: "olmo2",
    norms: NormsRow {
        place: NormPlace::After,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        head_norms: HeadNorms::WholeRow,
        ..LLAMA.attention
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::OLMO2,
    ..LLAMA
};

pub(in crate::model) const OLMO3: Family = Family {
    architecture: "Olmo3ForCausalLM",
    model_type: "olmo3",
    attention: AttentionRow {
        windows: Windows::Pattern(4),
        ..OLMO2.attention
    },
    rope: RopeRow {
        layers: Ropes::ScaledIfGlobal,
        ..LLAMA.rope
    },
    ..OLMO2
};

pub(in crate::model) const EXAONE4: Family = Family {
    architecture: "Exaone4ForCausalLM",
    model_type: "exaone4",
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        windows: Windows::PatternIfSet(4),
        ..UNBIASED
    },
    rope: RopeRow {
        layers: Ropes::LocalUnlessAllGlobal,
        ..LLAMA.rope
    },
    ..OLMO2
};

pub(in crate::model) const SEED_OSS: Family = Family {
    architecture: "SeedOssForCausalLM",
    model_type: "seed_oss",
    attention: AttentionRow {
        output_bias: Flag::Field("attention_out_bias"),
        ..LLAMA.attention
    },
    ..LLAMA
};

pub(in crate::model) const ERNIE4_5: Family = Family {
    architecture: "Ernie4_5ForCausalLM",
    model_type: "ernie4_5",
    attention: AttentionRow {
        qkv_bias: Flag::Field("use_bias"),
        output_bias: Flag::Field("use_bias"),
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            interleaved: true,
            partial_rotary_factor: 1.0,
        },
        ..LLAMA.rope
    },
    mlp: MlpRow {
        bias: Flag::Field("use_bias"),
        ..LLAMA.mlp
    },
    tied_default: true,
    ..LLAMA
};

pub(in crate::model) const GLM4: Family = Family {
    architecture: "Glm4ForCausalLM",
    model_type: "glm4",
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        output_bias: Flag::Never,
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            interleaved: true,
            partial_rotary_factor: 0.5,
        },
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::GLM4,
    ..LLAMA
};

/// In GGUF, Granite 4 without Mamba layers has this architecture, too.
pub(in crate::model) const GRANITE: Family = Family {
    architecture: "GraniteForCausalLM",
    model_type: "granite",
    rope: RopeRow {
        layers: Ropes::PositionEmbeddingType { default: true },
        ..LLAMA.rope
    },
    scales: Scales::Multipliers,
    ..LLAMA
};

pub(in crate::model) const GRANITE_MOE: Family = Family {
    architecture: "GraniteMoeForCausalLM",
    model_type: "granitemoe",
    experts: Experts::EveryLayer {
        bias: false,
        shared: false,
    },
    tensors: &tensor_names::GRANITE_MOE,
    ..GRANITE
};

pub(in crate::model) const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    experts: Experts::SparseLayers {
        shared: false,
        normalizes: false,
    },
    tensors: &tensor_names::QWEN3_MOE,
    ..QWEN3
};

pub(in crate::model) const GPT_OSS: Family = Family {
    architecture: "GptOssForCausalLM",
    model_type: "gpt_oss",
    attention: AttentionRow {
        windows: Windows::Pattern(2),
        sinks: true,
        ..LLAMA.attention
    },
    mlp: MlpRow {
        activation: ActivationField::ClampedSwiglu,
        ..LLAMA.mlp
    },
    experts: Experts::EveryLayer {
        bias: true,
        shared: false,
    },
    tensors: &tensor_names::GPT_OSS,
    ..LLAMA
};

pub(in crate::model) const MINISTRAL3: Family = Family {
    architecture: "Ministral3ForCausalLM",
    model_type: "ministral3",
    attention: AttentionRow {
        query_growth: true,
        ..MISTRAL.attention
    },
    ..MISTRAL
};

pub(in crate::model) const HUNYUAN_DENSE: Family = Family {
    architecture: "HunYuanDenseV1ForCausalLM",
    model_type: "hunyuan_v1_dense",
    attention: AttentionRow {
        head_norms: HeadNorms::EachHeadRotated,
        ..LLAMA.attention
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::HUNYUAN_DENSE,
    ..LLAMA
};

pub(in crate::model) const GLM4_MOE: Family = Family {
    architecture: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    attention: AttentionRow {
        output_bias: Flag::Never,
        head_norms: HeadNorms::EachHead,
        head_norms_if: Some("use_qk_norm"),
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            interleaved: false,
            ..GLM4.rope.options
        },
        ..GLM4.rope
    },
    mlp: UNBIASED_MLP,
    experts: Experts::AfterDense(AfterDense {
        dense: ("first_k_dense_replace", 1),
        count: "n_routed_experts",
        scores: Scores::Sigmoid,
        factor: 1.0,
    }),
    tensors: &tensor_names::GLM4_MOE,
    ..LLAMA
};

pub(in crate::model) const DEEPSEEK_V3: Family = Family {
    architecture: "DeepseekV3ForCausalLM",
    model_type: "deepseek_v3",
    attention: AttentionRow {
        latent: true,
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            interleaved: true,
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    experts: Experts::AfterDense(AfterDense {
        dense: ("first_k_dense_replace", 3),
        count: "n_routed_experts",
        scores: Scores::Sigmoid,
        factor: 2.5,
    }),
    tensors: &tensor_names::DEEPSEEK,
    ..LLAMA
};

pub(in crate::model) const DEEPSEEK_V2: Family = Family {
    architecture: "DeepseekV2ForCausalLM",
    model_type: "deepseek_v2",
    experts: Experts::AfterDense(AfterDense {
        dense: ("first_k_dense_replace", 0),
        count: "n_routed_experts",
        scores: Scores::Softmax,
        factor: 1.0,
    }),
    ..DEEPSEEK_V3
};

/// GLM 4.7 Flash.
pub(in crate::model) const GLM4_MOE_LITE: Family = Family {
    architecture: "Glm4MoeLiteForCausalLM",
    model_type: "glm4_moe_lite",
    rope: RopeRow {
        options: RopeOptions {
            ..DEEPSEEK_V3.rope.options
        },
        ..LLAMA.rope
    },
    experts: Experts::AfterDense(AfterDense {
        dense: ("first_k_dense_replace", 1),
        count: "n_routed_experts",
        scores: Scores::Sigmoid,
        factor: 1.8,
    }),
    ..DEEPSEEK_V3
};

pub(in crate::model) const QWEN2_MOE: Family = Family {
    architecture: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    attention: AttentionRow {
        qkv_bias: Flag::UnlessField("qkv_bias"),
        ..QWEN2.attention
    },
    experts: Experts::SparseLayers {
        shared: true,
        normalizes: false,
    },
    tensors: &tensor_names::QWEN2_MOE,
    ..QWEN2
};

pub(in crate::model) const COHERE2: Family = Family {
    architecture: "Cohere2ForCausalLM",
    model_type: "cohere2",
    norms: NormsRow {
        place: NormPlace::BeforeBoth,
        center: true,
        epsilon: "layer_norm_eps",
        ..LLAMA.norms
    },
    attention: AttentionRow {
        windows: Windows::Pattern(4),
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::Local,
        options: RopeOptions {
            interleaved: true,
            ..LLAMA.rope.options
        },
    },
    mlp: UNBIASED_MLP,
    scales: Scales::LogitScale(0.0625),
    tied_default: true,
    ..LLAMA
};

pub(in crate::model) const ARCEE: Family = Family {
    architecture: "ArceeForCausalLM",
    model_type: "arcee",
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Relu2),
        gated: false,
        ..LLAMA.mlp
    },
    tensors: &tensor_names::UNGATED,
    ..LLAMA
};

pub(in crate::model) const APERTUS: Family = Family {
    architecture: "ApertusForCausalLM",
    model_type: "apertus",
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        ..LLAMA.attention
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Xielu),
        gated: false,
        ..UNBIASED_MLP
    },
    tensors: &tensor_names::APERTUS,
    ..LLAMA
};

pub(in crate::model) const STARCODER2: Family = Family {
    architecture: "Starcoder2ForCausalLM",
    model_type: "starcoder2",
    norms: NormsRow {
        center: true,
        bias: true,
        epsilon: "norm_epsilon",
        ..LLAMA.norms
    },
    attention: AttentionRow {
        qkv_bias: Flag::UnlessField("use_bias"),
        output_bias: Flag::UnlessField("use_bias"),
        ..MISTRAL.attention
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::GeluTanh),
        gated: false,
        bias: Flag::UnlessField("use_bias"),
        ..LLAMA.mlp
    },
    tied_default: true,
    tensors: &tensor_names::STARCODER2,
    ..LLAMA
};

pub(in crate::model) const GEMMA4: Family = Family {
    architecture: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    synonyms: &[],
    fixed: &[],
    tables: LLAMA.tables,
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        ..LLAMA.norms
    },
    sizes: Sizes::ByKind,
    mixers: Mixers::Attention,
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        value_norm: true,
        windows: Windows::Pattern(6),
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenActivation,
        ..UNBIASED_MLP
    },
    experts: Experts::BesideMlp,
    scales: Scales::Unscaled,
    tied_default: true,
    tensors: &tensor_names::GEMMA4,
};

pub(in crate::model) const GEMMA4_UNIFIED: Family = Family {
    architecture: "Gemma4UnifiedForCausalLM",
    model_type: "gemma4_unified_text",
    ..GEMMA4
};
