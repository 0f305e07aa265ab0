//! The architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and what holds where the config is
//! silent (transformers' own defaults). What the words of a row mean is decided in `config.rs`.

use super::spec::{HeadNorms, NormPlace};
use super::tensor_names::{self, TensorNames};

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// `model_type`, for configs without `architectures`.
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
    /// `tie_word_embeddings` where the config is silent.
    pub(super) tied_default: bool,
    pub(super) tensors: &'static TensorNames,
}

#[derive(Clone, Copy)]
pub(super) enum Bias {
    Never,
    Always,
    /// As this boolean field says; false if it is absent.
    Field(&'static str),
}

/// Which layers slide a window, where `layer_types` does not say.
#[derive(Clone, Copy)]
pub(super) enum Windows {
    Never,
    /// All, if `sliding_window` is set.
    EveryLayer,
    /// From layer `max_window_layers` (28 where the config is silent) on, if `use_sliding_window` is set.
    UpperLayers,
    /// All but each n-th; n is `sliding_window_pattern`, or this where the config is silent.
    Pattern(u32),
    /// Those without rotation, if `use_sliding_window` is set.
    UnrotatedLayers,
}

/// Which rotation a layer has.
#[derive(Clone, Copy)]
pub(super) enum Ropes {
    /// The same in every layer.
    One,
    /// One in layers with a window, another in layers without.
    LocalAndGlobal,
    /// None where `no_rope_layers` has a 0, or in each n-th layer, n being `no_rope_layer_interval` (4).
    SomeLayers,
}

/// Where the activation of the MLP is named.
#[derive(Clone, Copy)]
pub(super) enum ActivationField {
    /// `hidden_act`; SiLU where the config is silent.
    HiddenAct,
    /// `hidden_activation`; GELU where the config is silent.
    HiddenActivation,
    /// None: a clamped SwiGLU with `swiglu_alpha` and `swiglu_limit`.
    ClampedSwiglu,
}

/// What q · k, embedded rows, branches and logits are multiplied by or capped at.
#[derive(Clone, Copy)]
pub(super) enum Scales {
    /// q · k by 1 / √head_dim.
    Plain,
    /// q · k by 1 / √`query_pre_attn_scalar`, embedded rows by √hidden; caps as `attn_logit_softcapping` and
    /// `final_logit_softcapping` say, or these where the config is silent.
    Gemma { softcaps: Option<[f64; 2]> },
    /// By `attention_multiplier`, `embedding_multiplier`, `residual_multiplier`; logits divided by `logits_scaling`.
    Multipliers,
}

/// Which layers route to experts instead of one MLP, and how.
#[derive(Clone, Copy)]
pub(super) enum Experts {
    Never,
    /// Each n-th layer, n being `decoder_sparse_step`, but for `mlp_only_layers`; experts of `moe_intermediate_size`,
    /// weights as `norm_topk_prob` says.
    SparseLayers,
    /// Every layer; experts of `intermediate_size`, with biases; weights of a token add up to 1.
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

/// The text model alone; its checkpoints with vision have another architecture.
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

/// A new architecture is a row here.
pub(super) const FAMILIES: [&Family; 12] =
    [&LLAMA, &MISTRAL, &QWEN2, &QWEN3, &QWEN3_MOE, &GEMMA2, &GEMMA3, &PHI3, &SMOLLM3, &OLMO2, &GRANITE, &GPT_OSS];
