//! The supported architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and the defaults for missing fields
//! (those of transformers). `config.rs` interprets the rows.

use super::spec::{HeadNorms, NormPlace};
use super::tensor_names::{self, TensorNames};

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// `model_type`, used for configs without `architectures`.
    pub(super) model_type: &'static str,
    pub(super) qkv_bias: Bias,
    pub(super) output_bias: Bias,
    pub(super) mlp_bias: Bias,
    pub(super) head_norms: HeadNorms,
    pub(super) norm_place: NormPlace,
    pub(super) norm_one_plus: bool,
    pub(super) windows: Windows,
    pub(super) ropes: Ropes,
    pub(super) activation: ActivationField,
    pub(super) scales: Scales,
    pub(super) experts: Experts,
    /// A learned logit per query head in the softmax of attention.
    pub(super) sinks: bool,
    /// Default of `tie_word_embeddings`.
    pub(super) tied_default: bool,
    pub(super) tensors: &'static TensorNames,
}

#[derive(Clone, Copy)]
pub(super) enum Bias {
    Never,
    Always,
    /// The value of this boolean field; false if it is absent.
    Field(&'static str),
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
}

/// Which field names the activation of the MLP.
#[derive(Clone, Copy)]
pub(super) enum ActivationField {
    /// `hidden_act`; default SiLU.
    HiddenAct,
    /// `hidden_activation`; default GELU.
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
    Gemma { softcaps: Option<[f64; 2]> },
    /// Factors `attention_multiplier`, `embedding_multiplier`, `residual_multiplier`; logits divided by
    /// `logits_scaling`.
    Multipliers,
}

/// Which layers have experts instead of one MLP, and how experts are weighted.
#[derive(Clone, Copy)]
pub(super) enum Experts {
    Never,
    /// Every n-th layer, n being `decoder_sparse_step`, except `mlp_only_layers`. Experts have size
    /// `moe_intermediate_size`; `norm_topk_prob` says whether a token's weights are normalized.
    SparseLayers,
    /// Every layer. Experts have size `intermediate_size` and biases; a token's weights add up to 1.
    EveryLayer,
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    qkv_bias: Bias::Field("attention_bias"),
    output_bias: Bias::Field("attention_bias"),
    mlp_bias: Bias::Field("mlp_bias"),
    head_norms: HeadNorms::None,
    norm_place: NormPlace::Before,
    norm_one_plus: false,
    windows: Windows::Never,
    ropes: Ropes::One,
    activation: ActivationField::HiddenAct,
    scales: Scales::Plain,
    experts: Experts::Never,
    sinks: false,
    tied_default: false,
    tensors: &tensor_names::HUGGING_FACE,
};

const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::EveryLayer,
    ..LLAMA
};

const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    qkv_bias: Bias::Always,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::UpperLayers,
    ..LLAMA
};

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    mlp_bias: Bias::Never,
    head_norms: HeadNorms::EachHead,
    windows: Windows::UpperLayers,
    ..LLAMA
};

const GEMMA2: Family = Family {
    architecture: "Gemma2ForCausalLM",
    model_type: "gemma2",
    mlp_bias: Bias::Never,
    norm_place: NormPlace::BeforeAndAfter,
    norm_one_plus: true,
    windows: Windows::Pattern(2),
    activation: ActivationField::HiddenActivation,
    scales: Scales::Gemma { softcaps: Some([50.0, 30.0]) },
    tied_default: true,
    tensors: &tensor_names::GEMMA,
    ..LLAMA
};

/// The text-only model; checkpoints with vision have another architecture.
const GEMMA3: Family = Family {
    architecture: "Gemma3ForCausalLM",
    model_type: "gemma3_text",
    head_norms: HeadNorms::EachHead,
    windows: Windows::Pattern(6),
    ropes: Ropes::LocalAndGlobal,
    scales: Scales::Gemma { softcaps: None },
    ..GEMMA2
};

const PHI3: Family = Family {
    architecture: "Phi3ForCausalLM",
    model_type: "phi3",
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::EveryLayer,
    tensors: &tensor_names::PHI3,
    ..LLAMA
};

const SMOLLM3: Family = Family {
    architecture: "SmolLM3ForCausalLM",
    model_type: "smollm3",
    windows: Windows::UnrotatedLayers,
    ropes: Ropes::SomeLayers,
    tied_default: true,
    ..LLAMA
};

const OLMO2: Family = Family {
    architecture: "Olmo2ForCausalLM",
    model_type: "olmo2",
    mlp_bias: Bias::Never,
    head_norms: HeadNorms::WholeRow,
    norm_place: NormPlace::After,
    tensors: &tensor_names::OLMO2,
    ..LLAMA
};

const GRANITE: Family =
    Family { architecture: "GraniteForCausalLM", model_type: "granite", scales: Scales::Multipliers, ..LLAMA };

const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    experts: Experts::SparseLayers,
    tensors: &tensor_names::QWEN3_MOE,
    ..QWEN3
};

const GPT_OSS: Family = Family {
    architecture: "GptOssForCausalLM",
    model_type: "gpt_oss",
    windows: Windows::Pattern(2),
    activation: ActivationField::ClampedSwiglu,
    experts: Experts::EveryLayer,
    sinks: true,
    tensors: &tensor_names::GPT_OSS,
    ..LLAMA
};

/// To add an architecture, add a row here.
pub(super) const FAMILIES: [&Family; 12] =
    [&LLAMA, &MISTRAL, &QWEN2, &QWEN3, &QWEN3_MOE, &GEMMA2, &GEMMA3, &PHI3, &SMOLLM3, &OLMO2, &GRANITE, &GPT_OSS];
