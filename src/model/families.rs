//! The supported architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and the defaults for missing fields
//! (those of transformers). `config.rs` interprets the rows.

use super::rope::RopeOptions;
use super::spec::{HeadNorms, NormPlace};
use super::tensor_names::{self, TensorNames};
use crate::plan::Activation;

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// `model_type`, used for configs without `architectures`, and for the text model of a multimodal checkpoint.
    pub(super) model_type: &'static str,
    pub(super) norms: NormsRow,
    pub(super) sizes: Sizes,
    pub(super) mixers: Mixers,
    pub(super) attention: AttentionRow,
    pub(super) rope: RopeRow,
    pub(super) mlp: MlpRow,
    pub(super) experts: Experts,
    pub(super) scales: Scales,
    /// Default of `tie_word_embeddings`.
    pub(super) tied_default: bool,
    pub(super) tensors: &'static TensorNames,
}

/// The norms of the residual stream.
#[derive(Clone, Copy)]
pub(super) struct NormsRow {
    pub(super) place: NormPlace,
    /// Multiply by `1 + w` instead of `w`.
    pub(super) one_plus: bool,
    /// LayerNorms: rows are centered first.
    pub(super) center: bool,
    pub(super) bias: bool,
    /// The field of epsilon, and its default.
    pub(super) epsilon: (&'static str, f64),
}

/// Whether the sizes of heads and MLPs depend on the layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sizes {
    Same,
    /// Layers without a window have `global_head_dim` and `num_global_key_value_heads`; `per_layer_config` has
    /// exceptions. With `attention_k_eq_v`, they have no weight for v. The last `num_kv_shared_layers` use the keys and
    /// values of earlier ones, and have MLPs of twice the size with `use_double_wide_mlp`. Layers have a number of
    /// their own that multiplies the stream, and embeddings of their own if `hidden_size_per_layer_input` is above
    /// zero.
    ByKind,
}

/// What mixes the tokens of a layer.
#[derive(Clone, Copy)]
pub(super) enum Mixers {
    /// Attention, in every layer.
    Attention,
    /// Attention or a short convolution, as `layer_types` says; its options are `conv_L_cache` and `conv_bias`.
    AttentionOrConvolution,
}

#[derive(Clone, Copy)]
pub(super) struct AttentionRow {
    pub(super) qkv_bias: Bias,
    pub(super) output_bias: Bias,
    pub(super) head_norms: HeadNorms,
    /// The field that says whether there are `head_norms`; `None`: there are.
    pub(super) head_norms_if: Option<&'static str>,
    /// RMS norm of v without a weight.
    pub(super) value_norm: bool,
    /// q grows with its position, by `llama_4_scaling_beta` of `rope_parameters` if it is there.
    pub(super) query_growth: bool,
    pub(super) windows: Windows,
    /// A learned logit per query head in the softmax.
    pub(super) sinks: bool,
}

#[derive(Clone, Copy)]
pub(super) struct RopeRow {
    pub(super) layers: Ropes,
    pub(super) options: RopeOptions,
}

#[derive(Clone, Copy)]
pub(super) struct MlpRow {
    pub(super) activation: ActivationField,
    /// Whether the activation is gated.
    pub(super) gated: bool,
    pub(super) bias: Bias,
    /// The size of layers without experts.
    pub(super) size: MlpSize,
}

/// Where the size of an MLP is.
#[derive(Clone, Copy)]
pub(super) enum MlpSize {
    /// In this field.
    Field(&'static str),
    /// In `block_ff_dim` or `intermediate_size`. Unless `block_auto_adjust_ff_dim` is false, two thirds of it times
    /// `block_ffn_dim_multiplier`, up to a multiple of `block_multiple_of`.
    Adjusted,
}

#[derive(Clone, Copy)]
pub(super) enum Bias {
    Never,
    Always,
    /// The value of this boolean field; false if it is absent.
    Field(&'static str),
    /// The value of this boolean field; true if it is absent.
    UnlessField(&'static str),
}

/// Which layers have a sliding window, if `layer_types` is absent.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    Never,
    /// All layers, if `sliding_window` is set.
    EveryLayer,
    /// Layers from `max_window_layers` (default 28) on, if `use_sliding_window` is set.
    UpperLayers,
    /// All but every n-th layer; n is `sliding_window_pattern`, with this default.
    Pattern(u32),
    /// Like `Pattern` if `sliding_window` is set, else none. The pattern may be a text with an `L` for each layer with
    /// a window, such as `LLLG`.
    PatternIfSet(u32),
    /// Layers without rotary embeddings, if `use_sliding_window` is set.
    UnrotatedLayers,
}

/// Which layers have which rotary embeddings.
#[derive(Clone, Copy)]
pub(super) enum Ropes {
    /// The same in every layer.
    One,
    /// One for layers with a sliding window, another for layers without.
    LocalAndGlobal,
    /// None in layers where `no_rope_layers` has a 0, or else in every n-th layer; n is `no_rope_layer_interval`
    /// (default 4).
    SomeLayers,
    /// The same base in every layer, its scaling only in layers without a sliding window.
    ScaledIfGlobal,
    /// In layers with a sliding window only; in every layer if no layer has one.
    LocalUnlessAllGlobal,
    /// In layers with a sliding window only.
    Local,
    /// In every layer if `position_embedding_type` is `rope`, else in none.
    PositionEmbeddingType {
        /// Whether layers rotate if the field is absent.
        default: bool,
    },
}

/// Which field names the activation of the MLP.
#[derive(Clone, Copy)]
pub(super) enum ActivationField {
    /// `hidden_act`, with this default.
    HiddenAct(Activation),
    /// `hidden_activation`, or `hidden_act` if it is absent; default GELU.
    HiddenActivation,
    /// No field: a clamped SwiGLU with `swiglu_alpha` and `swiglu_limit`.
    ClampedSwiglu,
}

/// Factors and caps of q · k, embedded rows, branches and logits.
#[derive(Clone, Copy)]
pub(super) enum Scales {
    /// q · k times 1 / √head_dim.
    Plain,
    /// q · k times 1 / √`query_pre_attn_scalar`, embedded rows times √hidden; caps from `attn_logit_softcapping` and
    /// `final_logit_softcapping`, with these defaults.
    Gemma {
        /// Default of `query_pre_attn_scalar`; `None`: the size of a head, whatever the config has.
        scalar_default: Option<f64>,
        softcaps: Option<[f64; 2]>,
    },
    /// Factors `attention_multiplier`, `embedding_multiplier`, `residual_multiplier`; logits divided by
    /// `logits_scaling`.
    Multipliers,
    /// As `Plain`, and logits times `logit_scale`, with this default.
    LogitScale(f64),
    /// q · k times 1, embedded rows times √hidden; a cap of logits from `final_logit_softcapping`.
    Unscaled,
}

/// Which layers have experts instead of one MLP, and how experts are weighted.
#[derive(Clone, Copy)]
pub(super) enum Experts {
    Never,
    /// As `Never`; a config with experts (`num_local_experts`) is refused.
    Refused,
    /// Every n-th layer, n being `decoder_sparse_step`, except `mlp_only_layers`. Experts have size
    /// `moe_intermediate_size`; `norm_topk_prob` says whether a token's weights are normalized.
    SparseLayers {
        /// Every token also passes a gated MLP of size `shared_expert_intermediate_size`.
        shared: bool,
    },
    /// All layers but the first few, with experts of size `moe_intermediate_size` and `n_shared_experts` that every
    /// token passes. Scores are sigmoids.
    AfterDense(AfterDense),
    /// Every layer if `enable_moe_block` is set, beside its MLP: `num_experts` of size `moe_intermediate_size`.
    BesideMlp,
    /// Every layer. Experts have size `intermediate_size`; a token's weights add up to 1.
    EveryLayer {
        /// Router, gate, up and down have biases.
        bias: bool,
    },
}

/// What configs call the numbers of [`Experts::AfterDense`].
#[derive(Clone, Copy)]
pub(super) struct AfterDense {
    /// The field with the number of layers without experts, and its default.
    pub(super) dense: (&'static str, u32),
    /// The field with the number of experts.
    pub(super) count: &'static str,
    /// The field that says whether scores have a bias for the choice, true by default; `None`: they have.
    pub(super) choice_bias: Option<&'static str>,
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    norms: NormsRow {
        place: NormPlace::Before,
        one_plus: false,
        center: false,
        bias: false,
        epsilon: ("rms_norm_eps", 1e-6),
    },
    sizes: Sizes::Same,
    mixers: Mixers::Attention,
    attention: AttentionRow {
        qkv_bias: Bias::Field("attention_bias"),
        output_bias: Bias::Field("attention_bias"),
        head_norms: HeadNorms::None,
        head_norms_if: None,
        value_norm: false,
        query_growth: false,
        windows: Windows::Never,
        sinks: false,
    },
    rope: RopeRow {
        layers: Ropes::One,
        options: RopeOptions { interleaved: false, theta: 10_000.0, partial_rotary_factor: 1.0 },
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::Silu),
        gated: true,
        bias: Bias::Field("mlp_bias"),
        size: MlpSize::Field("intermediate_size"),
    },
    experts: Experts::Never,
    scales: Scales::Plain,
    tied_default: false,
    tensors: &tensor_names::HUGGING_FACE,
};

/// Attention without biases.
const UNBIASED: AttentionRow = AttentionRow { qkv_bias: Bias::Never, output_bias: Bias::Never, ..LLAMA.attention };

/// An MLP without biases.
const UNBIASED_MLP: MlpRow = MlpRow { bias: Bias::Never, ..LLAMA.mlp };

const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    attention: AttentionRow { windows: Windows::EveryLayer, ..UNBIASED },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    attention: AttentionRow { qkv_bias: Bias::Always, windows: Windows::UpperLayers, ..UNBIASED },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    attention: AttentionRow { head_norms: HeadNorms::EachHead, windows: Windows::UpperLayers, ..LLAMA.attention },
    mlp: UNBIASED_MLP,
    ..LLAMA
};

const GEMMA: Family = Family {
    architecture: "GemmaForCausalLM",
    model_type: "gemma",
    norms: NormsRow { one_plus: true, ..LLAMA.norms },
    mlp: MlpRow { activation: ActivationField::HiddenActivation, ..UNBIASED_MLP },
    scales: Scales::Gemma { scalar_default: None, softcaps: None },
    tied_default: true,
    ..LLAMA
};

const GEMMA2: Family = Family {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    norms: NormsRow { place: NormPlace::BeforeAndAfter, ..GEMMA.norms },
    attention: AttentionRow { windows: Windows::Pattern(2), ..LLAMA.attention },
    scales: Scales::Gemma { scalar_default: Some(256.0), softcaps: Some([50.0, 30.0]) },
    tensors: &tensor_names::GEMMA,
    ..GEMMA
};

/// The text-only model; checkpoints with vision have another architecture.
const GEMMA3: Family = Family {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    attention: AttentionRow { head_norms: HeadNorms::EachHead, windows: Windows::Pattern(6), ..LLAMA.attention },
    rope: RopeRow { layers: Ropes::LocalAndGlobal, ..LLAMA.rope },
    scales: Scales::Gemma { scalar_default: Some(256.0), softcaps: None },
    ..GEMMA2
};

const PHI3: Family =
    Family { architecture: "Phi3ForCausalLM", model_type: "phi3", tensors: &tensor_names::PHI3, ..MISTRAL };

const SMOLLM3: Family = Family {
    architecture: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    attention: AttentionRow { windows: Windows::UnrotatedLayers, ..LLAMA.attention },
    rope: RopeRow { layers: Ropes::SomeLayers, ..LLAMA.rope },
    tied_default: true,
    ..LLAMA
};

const OLMO2: Family = Family {
    architecture: "Olmo2ForCausalLM",
    model_type: "olmo2",
    norms: NormsRow { place: NormPlace::After, ..LLAMA.norms },
    attention: AttentionRow { head_norms: HeadNorms::WholeRow, ..LLAMA.attention },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::OLMO2,
    ..LLAMA
};

const OLMO3: Family = Family {
    architecture: "Olmo3ForCausalLM",
    model_type: "olmo3",
    attention: AttentionRow { windows: Windows::Pattern(4), ..OLMO2.attention },
    rope: RopeRow { layers: Ropes::ScaledIfGlobal, ..LLAMA.rope },
    ..OLMO2
};

const EXAONE4: Family = Family {
    architecture: "Exaone4ForCausalLM",
    model_type: "exaone4",
    attention: AttentionRow { head_norms: HeadNorms::EachHead, windows: Windows::PatternIfSet(4), ..UNBIASED },
    rope: RopeRow { layers: Ropes::LocalUnlessAllGlobal, ..LLAMA.rope },
    ..OLMO2
};

const SEED_OSS: Family = Family {
    architecture: "SeedOssForCausalLM",
    model_type: "seed_oss",
    attention: AttentionRow { output_bias: Bias::Field("attention_out_bias"), ..LLAMA.attention },
    ..LLAMA
};

const ERNIE4_5: Family = Family {
    architecture: "Ernie4_5ForCausalLM",
    model_type: "ernie4_5",
    attention: AttentionRow {
        qkv_bias: Bias::Field("use_bias"),
        output_bias: Bias::Field("use_bias"),
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions { interleaved: true, theta: 500_000.0, partial_rotary_factor: 1.0 },
        ..LLAMA.rope
    },
    mlp: MlpRow { bias: Bias::Field("use_bias"), ..LLAMA.mlp },
    tied_default: true,
    ..LLAMA
};

const GLM4: Family = Family {
    architecture: "Glm4ForCausalLM",
    model_type: "glm4",
    norms: NormsRow { place: NormPlace::BeforeAndAfter, ..LLAMA.norms },
    attention: AttentionRow { output_bias: Bias::Never, ..LLAMA.attention },
    rope: RopeRow {
        options: RopeOptions { interleaved: true, theta: 10_000.0, partial_rotary_factor: 0.5 },
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::GLM4,
    ..LLAMA
};

/// In GGUF, Granite 4 without Mamba layers has this architecture, too.
const GRANITE: Family = Family {
    architecture: "GraniteForCausalLM",
    model_type: "granite",
    rope: RopeRow { layers: Ropes::PositionEmbeddingType { default: true }, ..LLAMA.rope },
    scales: Scales::Multipliers,
    ..LLAMA
};

const GRANITE_MOE: Family = Family {
    architecture: "GraniteMoeForCausalLM",
    model_type: "granitemoe",
    experts: Experts::EveryLayer { bias: false },
    tensors: &tensor_names::GRANITE_MOE,
    ..GRANITE
};

/// Granite 4. Of its layers, only those with attention and one MLP are supported.
const GRANITE_HYBRID: Family = Family {
    architecture: "GraniteMoeHybridForCausalLM",
    model_type: "granitemoehybrid",
    rope: RopeRow { layers: Ropes::PositionEmbeddingType { default: false }, ..LLAMA.rope },
    mlp: MlpRow { size: MlpSize::Field("shared_intermediate_size"), ..UNBIASED_MLP },
    experts: Experts::Refused,
    tensors: &tensor_names::GRANITE_HYBRID,
    ..GRANITE
};

const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    experts: Experts::SparseLayers { shared: false },
    tensors: &tensor_names::QWEN3_MOE,
    ..QWEN3
};

const GPT_OSS: Family = Family {
    architecture: "GptOssForCausalLM",
    model_type: "gpt_oss",
    attention: AttentionRow { windows: Windows::Pattern(2), sinks: true, ..LLAMA.attention },
    mlp: MlpRow { activation: ActivationField::ClampedSwiglu, ..LLAMA.mlp },
    experts: Experts::EveryLayer { bias: true },
    tensors: &tensor_names::GPT_OSS,
    ..LLAMA
};

const MINISTRAL3: Family = Family {
    architecture: "Ministral3ForCausalLM",
    model_type: "ministral3",
    attention: AttentionRow { query_growth: true, ..MISTRAL.attention },
    ..MISTRAL
};

const HUNYUAN_DENSE: Family = Family {
    architecture: "HunYuanDenseV1ForCausalLM",
    model_type: "hunyuan_v1_dense",
    attention: AttentionRow { head_norms: HeadNorms::EachHeadRotated, ..LLAMA.attention },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::HUNYUAN_DENSE,
    ..LLAMA
};

const GLM4_MOE: Family = Family {
    architecture: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    attention: AttentionRow {
        output_bias: Bias::Never,
        head_norms: HeadNorms::EachHead,
        head_norms_if: Some("use_qk_norm"),
        ..LLAMA.attention
    },
    rope: RopeRow { options: RopeOptions { interleaved: false, ..GLM4.rope.options }, ..GLM4.rope },
    mlp: UNBIASED_MLP,
    experts: Experts::AfterDense(AfterDense {
        dense: ("first_k_dense_replace", 1),
        count: "n_routed_experts",
        choice_bias: None,
    }),
    tensors: &tensor_names::GLM4_MOE,
    ..LLAMA
};

const QWEN2_MOE: Family = Family {
    architecture: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    attention: AttentionRow { qkv_bias: Bias::UnlessField("qkv_bias"), ..QWEN2.attention },
    experts: Experts::SparseLayers { shared: true },
    tensors: &tensor_names::QWEN2_MOE,
    ..QWEN2
};

const COHERE2: Family = Family {
    architecture: "Cohere2ForCausalLM",
    model_type: "cohere2",
    norms: NormsRow { place: NormPlace::BeforeBoth, center: true, epsilon: ("layer_norm_eps", 1e-5), ..LLAMA.norms },
    attention: AttentionRow { windows: Windows::Pattern(4), ..LLAMA.attention },
    rope: RopeRow { layers: Ropes::Local, options: RopeOptions { interleaved: true, ..LLAMA.rope.options } },
    mlp: UNBIASED_MLP,
    scales: Scales::LogitScale(0.0625),
    tied_default: true,
    ..LLAMA
};

const ARCEE: Family = Family {
    architecture: "ArceeForCausalLM",
    model_type: "arcee",
    mlp: MlpRow { activation: ActivationField::HiddenAct(Activation::Relu2), gated: false, ..LLAMA.mlp },
    tensors: &tensor_names::UNGATED,
    ..LLAMA
};

const APERTUS: Family = Family {
    architecture: "ApertusForCausalLM",
    model_type: "apertus",
    attention: AttentionRow { head_norms: HeadNorms::EachHead, ..LLAMA.attention },
    mlp: MlpRow { activation: ActivationField::HiddenAct(Activation::Xielu), gated: false, ..UNBIASED_MLP },
    tensors: &tensor_names::APERTUS,
    ..LLAMA
};

const STARCODER2: Family = Family {
    architecture: "Starcoder2ForCausalLM",
    model_type: "starcoder2",
    norms: NormsRow { center: true, bias: true, epsilon: ("norm_epsilon", 1e-5), ..LLAMA.norms },
    attention: AttentionRow {
        qkv_bias: Bias::UnlessField("use_bias"),
        output_bias: Bias::UnlessField("use_bias"),
        ..MISTRAL.attention
    },
    mlp: MlpRow {
        activation: ActivationField::HiddenAct(Activation::GeluTanh),
        gated: false,
        bias: Bias::UnlessField("use_bias"),
        ..LLAMA.mlp
    },
    tied_default: true,
    tensors: &tensor_names::STARCODER2,
    ..LLAMA
};

const GEMMA4: Family = Family {
    architecture: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    norms: NormsRow { place: NormPlace::BeforeAndAfter, ..LLAMA.norms },
    sizes: Sizes::ByKind,
    mixers: Mixers::Attention,
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        value_norm: true,
        windows: Windows::Pattern(6),
        ..LLAMA.attention
    },
    rope: RopeRow { layers: Ropes::LocalAndGlobal, ..LLAMA.rope },
    mlp: MlpRow { activation: ActivationField::HiddenActivation, ..UNBIASED_MLP },
    experts: Experts::BesideMlp,
    scales: Scales::Unscaled,
    tied_default: true,
    tensors: &tensor_names::GEMMA4,
};

const GEMMA4_UNIFIED: Family =
    Family { architecture: "Gemma4UnifiedForCausalLM", model_type: "gemma4_unified_text", ..GEMMA4 };

const LFM2: Family = Family {
    architecture: "Lfm2ForCausalLM",
    model_type: "lfm2",
    norms: NormsRow { epsilon: ("norm_eps", 1e-5), ..LLAMA.norms },
    mixers: Mixers::AttentionOrConvolution,
    attention: AttentionRow { head_norms: HeadNorms::EachHead, ..UNBIASED },
    rope: RopeRow { options: RopeOptions { theta: 1e6, ..LLAMA.rope.options }, ..LLAMA.rope },
    mlp: MlpRow { size: MlpSize::Adjusted, ..UNBIASED_MLP },
    tied_default: true,
    tensors: &tensor_names::LFM2,
    ..LLAMA
};

/// The weights of a token's experts are divided by their sum; what transformers adds to it, 1e-6, is left out.
const LFM2_MOE: Family = Family {
    architecture: "Lfm2MoeForCausalLM",
    model_type: "lfm2_moe",
    mlp: UNBIASED_MLP,
    experts: Experts::AfterDense(AfterDense {
        dense: ("num_dense_layers", 2),
        count: "num_experts",
        choice_bias: Some("use_expert_bias"),
    }),
    tensors: &tensor_names::LFM2_MOE,
    ..LFM2
};

/// To add an architecture, add a row here.
pub(super) const FAMILIES: [&Family; 32] = [
    &LLAMA,
    &MISTRAL,
    &QWEN2,
    &QWEN3,
    &QWEN3_MOE,
    &GEMMA,
    &GEMMA2,
    &GEMMA3,
    &PHI3,
    &SMOLLM3,
    &OLMO2,
    &OLMO3,
    &EXAONE4,
    &SEED_OSS,
    &ERNIE4_5,
    &GLM4,
    &GRANITE,
    &GRANITE_MOE,
    &GRANITE_HYBRID,
    &GPT_OSS,
    &MINISTRAL3,
    &HUNYUAN_DENSE,
    &GLM4_MOE,
    &QWEN2_MOE,
    &COHERE2,
    &ARCEE,
    &APERTUS,
    &STARCODER2,
    &GEMMA4,
    &GEMMA4_UNIFIED,
    &LFM2,
    &LFM2_MOE,
];
