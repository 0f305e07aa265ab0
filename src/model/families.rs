//! The supported architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and the defaults for missing fields
//! (those of transformers). `config.rs` interprets the rows.

use super::rope::RopeOptions;
use super::spec::{HeadNorms, NormPlace};
use super::tensor_names::{self, TensorNames};

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// `model_type`, used for configs without `architectures`, and for the text model of a multimodal checkpoint.
    pub(super) model_type: &'static str,
    pub(super) norms: NormsRow,
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
}

#[derive(Clone, Copy)]
pub(super) struct AttentionRow {
    pub(super) qkv_bias: Bias,
    pub(super) output_bias: Bias,
    pub(super) head_norms: HeadNorms,
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
    pub(super) bias: Bias,
    /// The field with the size of layers without experts.
    pub(super) size: &'static str,
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
    /// In every layer if `position_embedding_type` is `rope`, else in none.
    PositionEmbeddingType,
}

/// Which field names the activation of the MLP.
#[derive(Clone, Copy)]
pub(super) enum ActivationField {
    /// `hidden_act`; default SiLU.
    HiddenAct,
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
}

/// Which layers have experts instead of one MLP, and how experts are weighted.
#[derive(Clone, Copy)]
pub(super) enum Experts {
    Never,
    /// As `Never`; a config with experts (`num_local_experts`) is refused.
    Refused,
    /// Every n-th layer, n being `decoder_sparse_step`, except `mlp_only_layers`. Experts have size
    /// `moe_intermediate_size`; `norm_topk_prob` says whether a token's weights are normalized.
    SparseLayers,
    /// Every layer. Experts have size `intermediate_size`; a token's weights add up to 1.
    EveryLayer {
        /// Router, gate, up and down have biases.
        bias: bool,
    },
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    norms: NormsRow { place: NormPlace::Before, one_plus: false },
    attention: AttentionRow {
        qkv_bias: Bias::Field("attention_bias"),
        output_bias: Bias::Field("attention_bias"),
        head_norms: HeadNorms::None,
        windows: Windows::Never,
        sinks: false,
    },
    rope: RopeRow {
        layers: Ropes::One,
        options: RopeOptions { interleaved: false, theta: 10_000.0, partial_rotary_factor: 1.0 },
    },
    mlp: MlpRow { activation: ActivationField::HiddenAct, bias: Bias::Field("mlp_bias"), size: "intermediate_size" },
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
    norms: NormsRow { place: NormPlace::BeforeAndAfter, one_plus: true },
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
    norms: NormsRow { place: NormPlace::After, one_plus: false },
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
    norms: NormsRow { place: NormPlace::BeforeAndAfter, one_plus: false },
    attention: AttentionRow { output_bias: Bias::Never, ..LLAMA.attention },
    rope: RopeRow {
        options: RopeOptions { interleaved: true, theta: 10_000.0, partial_rotary_factor: 0.5 },
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    tensors: &tensor_names::GLM4,
    ..LLAMA
};

const GRANITE: Family =
    Family { architecture: "GraniteForCausalLM", model_type: "granite", scales: Scales::Multipliers, ..LLAMA };

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
    rope: RopeRow { layers: Ropes::PositionEmbeddingType, ..LLAMA.rope },
    mlp: MlpRow { size: "shared_intermediate_size", ..UNBIASED_MLP },
    experts: Experts::Refused,
    tensors: &tensor_names::GRANITE_HYBRID,
    ..GRANITE
};

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
    attention: AttentionRow { windows: Windows::Pattern(2), sinks: true, ..LLAMA.attention },
    mlp: MlpRow { activation: ActivationField::ClampedSwiglu, ..LLAMA.mlp },
    experts: Experts::EveryLayer { bias: true },
    tensors: &tensor_names::GPT_OSS,
    ..LLAMA
};

/// To add an architecture, add a row here.
pub(super) const FAMILIES: [&Family; 20] = [
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
];
