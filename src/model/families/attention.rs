//! The rows of decoders whose layers all have attention.

use super::{
    ActivationField, AttentionRow, ExpertsRow, Family, Flag, Growth, Mixers, MlpRow, MlpSize,
    NormsRow, Positions, QueryHeads, RopeRow, Ropes, Scales, Sizes, TablesRow, Windows,
};
use crate::model::rope::{RopeAxes, RopeOptions};
use crate::model::spec::{HeadNorms, NormPlace, OutputGate};
use crate::model::tensor_names;
use crate::plan::Activation;

pub(in crate::model) const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    spellings: &[],
    fields: &[],
    unsupported: &[],
    fixed: &[],
    head_bias: Flag::Never,
    model_type: "llama",
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
        epsilon_rms: None,
        epsilon_after: None,
        final_one_plus: false,
    },
    sizes: Sizes::Same,
    mixers: Mixers::Attention,
    attention: AttentionRow {
        qkv_bias: Flag::Field("attention_bias"),
        output_bias: Flag::Field("attention_bias"),
        head_norms: HeadNorms::None,
        head_norms_if: Flag::Always,
        head_norms_rotated: false,
        value_norm: false,
        query_growth: Growth::Never,
        query_heads: QueryHeads::Same,
        windows: Windows::Never,
        sinks: false,
        gate: OutputGate::None,
        gate_if: None,
        gate_kind: None,
        gate_activation: Activation::Sigmoid,
        latent: false,
        both_ways: Flag::Never,
        alibi: false,
    },
    rope: RopeRow {
        layers: Ropes::One,
        options: RopeOptions {
            interleaved: false,
            partial_rotary_factor: 1.0,
            rotary_dim: None,
            whole: false,
            axes: RopeAxes::One,
        },
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Silu),
        gated: true,
        bias: Flag::Field("mlp_bias"),
        down_bias: None,
        size: MlpSize::Field("intermediate_size"),
        clamps: false,
    },
    experts: ExpertsRow::NONE,
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
        final_one_plus: true,
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
            ..LLAMA.rope.options
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
            ..LLAMA.rope.options
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

pub(in crate::model) const MINISTRAL3: Family = Family {
    architecture: "Ministral3ForCausalLM",
    model_type: "ministral3",
    attention: AttentionRow {
        query_growth: Growth::Rope,
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

/// GLM 4 9B: without the norms after branches of [`GLM4`].
pub(in crate::model) const GLM: Family = Family {
    architecture: "GlmForCausalLM",
    model_type: "glm",
    norms: LLAMA.norms,
    tensors: &tensor_names::GLM,
    ..GLM4
};

/// EXAONE 3 and 3.5: Llama with other names.
pub(in crate::model) const EXAONE: Family = Family {
    architecture: "ExaoneForCausalLM",
    model_type: "exaone",
    fields: &[
        ("num_hidden_layers", "num_layers"),
        ("rms_norm_eps", "layer_norm_epsilon"),
        ("hidden_act", "activation_function"),
    ],
    tensors: &tensor_names::EXAONE,
    ..LLAMA
};

/// The text model. Positions of text are the same in all sections of M-RoPE.
pub(in crate::model) const QWEN3_VL: Family = Family {
    architecture: "Qwen3VLForConditionalGeneration",
    model_type: "qwen3_vl_text",
    attention: AttentionRow {
        windows: Windows::Never,
        ..QWEN3.attention
    },
    ..QWEN3
};

/// The text model, whose fields may be those of the whole model, too.
pub(in crate::model) const QWEN2_5_VL: Family = Family {
    architecture: "Qwen2_5_VLForConditionalGeneration",
    model_type: "qwen2_5_vl_text",
    ..QWEN2
};

/// Command R and Aya. LayerNorms of q and k, which Command R+ has, are not supported.
pub(in crate::model) const COHERE: Family = Family {
    architecture: "CohereForCausalLM",
    model_type: "cohere",
    unsupported: &["use_qk_norm"],
    attention: LLAMA.attention,
    rope: RopeRow {
        layers: Ropes::One,
        ..COHERE2.rope
    },
    ..COHERE2
};

/// Phi 1, 1.5 and 2.
pub(in crate::model) const PHI: Family = Family {
    architecture: "PhiForCausalLM",
    model_type: "phi",
    unsupported: &["qk_layernorm"],
    head_bias: Flag::Always,
    norms: NormsRow {
        bias: true,
        ..COHERE2.norms
    },
    attention: AttentionRow {
        qkv_bias: Flag::Always,
        output_bias: Flag::Always,
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            partial_rotary_factor: 0.5,
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::GeluTanh),
        gated: false,
        bias: Flag::Always,
        ..LLAMA.mlp
    },
    tensors: &tensor_names::PHI,
    ..LLAMA
};

pub(in crate::model) const MINICPM3: Family = Family {
    architecture: "MiniCPM3ForCausalLM",
    model_type: "minicpm3",
    attention: AttentionRow {
        latent: true,
        ..LLAMA.attention
    },
    scales: Scales::MiniCpm,
    tied_default: true,
    tensors: &tensor_names::DEEPSEEK,
    ..LLAMA
};

/// The text model. All norms but the final one multiply by `1 + w`, and those of q and k have no weight.
pub(in crate::model) const MUSE_GLIMMER: Family = Family {
    architecture: "MuseGlimmerForConditionalGeneration",
    model_type: "muse_glimmer_text",
    norms: NormsRow {
        epsilon_after: Some("post_norm_eps"),
        final_one_plus: false,
        embedding: true,
        ..GEMMA2.norms
    },
    attention: AttentionRow {
        head_norms: HeadNorms::Unweighted,
        windows: Windows::PatternFromLast(4),
        gate: OutputGate::EachElement,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::ListedBases,
        ..LLAMA.rope
    },
    mlp: GEMMA.mlp,
    scales: Scales::MuseGlimmer,
    tensors: &tensor_names::MUSE_GLIMMER,
    ..LLAMA
};
