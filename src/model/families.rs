//! The supported architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and the defaults for missing fields
//! (those of transformers). `config.rs` interprets the rows.

mod attention;
mod encoders;
mod state;

use super::rope::RopeOptions;
use super::spec::{ClassForm, HeadNorms, NormPlace, OutputGate};
use super::tensor_names::TensorNames;
use crate::plan::Activation;
use attention::{
    APERTUS, ARCEE, COHERE2, DEEPSEEK_V2, DEEPSEEK_V3, ERNIE4_5, EXAONE4, GEMMA, GEMMA2, GEMMA3,
    GEMMA4, GEMMA4_UNIFIED, GLM4, GLM4_MOE, GLM4_MOE_LITE, GPT_OSS, GRANITE, GRANITE_MOE,
    HUNYUAN_DENSE, LLAMA, MINISTRAL3, MISTRAL, OLMO2, OLMO3, PHI3, QWEN2, QWEN2_MOE, QWEN3,
    QWEN3_MOE, SEED_OSS, SMOLLM3, STARCODER2,
};
use encoders::{
    BERT, CAMEMBERT, EURO_BERT, GTE, GTE_NEW, JINA_BERT, JINA_V3, MODERN_BERT, NOMIC_BERT, ROBERTA,
    XLM_ROBERTA,
};
use state::{
    FALCON_H1, GRANITE_HYBRID, LFM2, LFM2_MOE, LFM3, NEMOTRON_H, OLMO_HYBRID, QWEN3_5, QWEN3_5_MOE,
    QWEN3_NEXT,
};

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// `model_type`, used for configs without `architectures`, and for the text model of a multimodal checkpoint.
    pub(super) model_type: &'static str,
    /// Names that its config has for fields, and those that other families have for the same.
    pub(super) synonyms: &'static [(&'static str, &'static str)],
    /// Fields that may have only one value, as JSON: others mean something that is not supported.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    pub(super) tables: TablesRow,
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

/// Tables whose rows are added to those of tokens.
#[derive(Clone, Copy)]
pub(super) struct TablesRow {
    pub(super) positions: Positions,
    /// Which text of a pair a token belongs to; `type_vocab_size` is the number of rows, which may be 0.
    pub(super) texts: bool,
}

/// A table of positions, of `max_position_embeddings` rows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Positions {
    Never,
    FromZero,
    /// The row after that of `pad_token_id` is that of position 0.
    AfterPad,
}

/// The norms of the residual stream.
#[derive(Clone, Copy)]
pub(super) struct NormsRow {
    pub(super) place: NormPlace,
    /// Where the first layer has them, if elsewhere.
    pub(super) first: Option<NormPlace>,
    /// The field that says whether there are the norms after branches, true by default; `None`: there are.
    pub(super) after_if: Option<&'static str>,
    /// Multiply by `1 + w` instead of `w`.
    pub(super) one_plus: bool,
    /// LayerNorms: rows are centered first.
    pub(super) center: bool,
    pub(super) bias: bool,
    /// Embedded rows are normalized.
    pub(super) embedding: bool,
    /// There is a norm after the last layer.
    pub(super) last: bool,
    /// The field of epsilon.
    pub(super) epsilon: &'static str,
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
    AttentionOrConvolution {
        /// Attention may have a sliding window. Without `layer_types`, of four layers the first has one (but not in the
        /// first four), and the third has none.
        sliding: bool,
    },
    /// Attention or a recurrent state, as `layer_types` says.
    AttentionOrState(Rule),
    /// Both, in every layer; the state is that of Mamba 2.
    AttentionAndState,
    /// Each layer has attention, a state, an MLP or experts, and one norm, as `layers_block_type` says, or the letters
    /// of `hybrid_override_pattern`: `*`, `M`, `-` and `E`. The state is that of Mamba 2.
    Blocks,
}

/// The rule of a recurrent state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The gated delta rule. Without `layer_types`, every n-th layer has attention; n is `full_attention_interval`,
    /// default 4.
    Delta,
    /// Like `Delta`, with β up to 2 unless `linear_allow_neg_eigval` is false, and a norm with a fixed epsilon.
    NegativeDelta,
    /// Mamba 2. Without `layer_types`, no layer has attention.
    Mamba2,
}

#[derive(Clone, Copy)]
pub(super) struct AttentionRow {
    pub(super) qkv_bias: Flag,
    pub(super) output_bias: Flag,
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
    /// What multiplies the attended rows.
    pub(super) gate: OutputGate,
    /// The field that says whether there is a `gate`, true by default; `None`: there is.
    pub(super) gate_if: Option<&'static str>,
    /// Keys and values are products with a latent (MLA).
    pub(super) latent: bool,
    /// Rows see all others of their sequence, also those after them. Windows reach half as far as `sliding_window`
    /// says, in both directions.
    pub(super) both_ways: Flag,
    /// Scores fall with the distance, by slopes that follow from the number of heads.
    pub(super) alibi: bool,
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
    pub(super) bias: Flag,
    /// Whether the last product has a bias, if not as the others.
    pub(super) down_bias: Option<Flag>,
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
pub(super) enum Flag {
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
    /// Those that a pattern of kinds of layers says.
    Words,
    /// All layers, if `sliding_window` is set.
    EveryLayer,
    /// Layers from `max_window_layers` (default 28) on, if `use_sliding_window` is set.
    UpperLayers,
    /// All but every n-th layer; n is `sliding_window_pattern`, with this default.
    Pattern(u32),
    /// The same, where the first of n layers has no window.
    AfterFirst(u32),
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
    /// In no layer.
    Never,
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
    /// `mlp_hidden_act`, with this default.
    MlpHiddenAct(Activation),
    /// `hidden_activation`, or `hidden_act` if it is absent; default GELU.
    HiddenActivation,
    /// `activation_function`, which is `gelu` for MLPs without a gate.
    Function,
    /// `feed_forward_type`: `geglu` or `reglu`.
    FeedForwardType,
    /// No field: a clamped SwiGLU with `swiglu_alpha` and `swiglu_limit`.
    ClampedSwiglu,
}

/// Factors and caps of q · k, embedded rows, branches and logits.
#[derive(Clone, Copy)]
pub(super) enum Scales {
    /// q · k times 1 / √head_dim; with a latent, also times the square of YaRN's `mscale_all_dim`.
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
    /// Factors of embedded rows, of the inputs and outputs of each branch, of k, of gates and of logits; those that no
    /// scale of a plan expresses are [`super::spec::Factors`].
    FalconH1,
    /// q · k times 1, embedded rows times √hidden; a cap of logits from `final_logit_softcapping`.
    Unscaled,
}

/// Which layers have experts instead of one MLP, and how experts are weighted.
#[derive(Clone, Copy)]
pub(super) enum Experts {
    Never,
    /// Every n-th layer, n being `decoder_sparse_step`, except `mlp_only_layers`. Experts have size
    /// `moe_intermediate_size`; `norm_topk_prob` says whether a token's weights are normalized.
    SparseLayers {
        /// Every token also passes a gated MLP of size `shared_expert_intermediate_size`.
        shared: bool,
        /// Default of `norm_topk_prob`.
        normalizes: bool,
    },
    /// Every layer, with experts of size `moe_intermediate_size` whose weights add up to 1, and a gated MLP of size
    /// `shared_expert_intermediate_size` that every token passes.
    EveryLayerBesideGated,
    /// The layers that [`Mixers::Blocks`] says, with experts as in `AfterDense`.
    Blocks,
    /// All layers but the first few, or those that `mlp_layer_types` calls `dense`, with experts of size
    /// `moe_intermediate_size` and `n_shared_experts` that every token passes.
    AfterDense(AfterDense),
    /// Every layer if `enable_moe_block` is set, beside its MLP: `num_experts` of size `moe_intermediate_size`.
    BesideMlp,
    /// Every layer. Experts have size `intermediate_size`; a token's weights add up to 1.
    EveryLayer {
        /// Router, gate, up and down have biases.
        bias: bool,
        /// Every token also passes the layer's MLP; `num_local_experts` may be zero, so that it is alone.
        shared: bool,
    },
}

/// What configs call the numbers of [`Experts::AfterDense`].
#[derive(Clone, Copy)]
pub(super) struct AfterDense {
    /// The field with the number of layers without experts, and its default.
    pub(super) dense: (&'static str, u32),
    /// The field with the number of experts.
    pub(super) count: &'static str,
    /// How scores are computed.
    pub(super) scores: Scores,
    /// Default of `routed_scaling_factor`.
    pub(super) factor: f64,
}

/// The scores of [`Experts::AfterDense`].
#[derive(Clone, Copy)]
pub(super) enum Scores {
    /// Sigmoids, with a bias for the choice.
    Sigmoid,
    /// The same, with a bias if this field is true or absent.
    SigmoidIf(&'static str),
    /// A softmax, whose probabilities are not normalized. `topk_method` may only be `greedy`.
    Softmax,
}

/// To add an architecture, add a row here.
pub(super) const FAMILIES: [&Family; 53] = [
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
    &LFM3,
    &QWEN3_5,
    &QWEN3_5_MOE,
    &QWEN3_NEXT,
    &OLMO_HYBRID,
    &NEMOTRON_H,
    &FALCON_H1,
    &DEEPSEEK_V2,
    &DEEPSEEK_V3,
    &GLM4_MOE_LITE,
    &BERT,
    &ROBERTA,
    &XLM_ROBERTA,
    &CAMEMBERT,
    &MODERN_BERT,
    &NOMIC_BERT,
    &GTE_NEW,
    &GTE,
    &JINA_BERT,
    &JINA_V3,
    &EURO_BERT,
];

/// Classes of transformers with a head for classes over an encoder, the architecture without it, and the head's form.
pub(super) const CLASSIFIERS: [(&str, &str, ClassForm); 7] = [
    (
        "BertForSequenceClassification",
        "BertModel",
        ClassForm::Pooler,
    ),
    (
        "NewForSequenceClassification",
        "NewModel",
        ClassForm::Pooler,
    ),
    (
        "GteForSequenceClassification",
        "GteModel",
        ClassForm::Pooler,
    ),
    (
        "RobertaForSequenceClassification",
        "RobertaModel",
        ClassForm::Dense,
    ),
    (
        "XLMRobertaForSequenceClassification",
        "XLMRobertaModel",
        ClassForm::Dense,
    ),
    (
        "CamembertForSequenceClassification",
        "CamembertModel",
        ClassForm::Dense,
    ),
    (
        "ModernBertForSequenceClassification",
        "ModernBertModel",
        ClassForm::Normed,
    ),
];

/// Classes of transformers without the head that an architecture is named after.
pub(super) const BASES: [(&str, &str); 8] = [
    ("LlamaModel", "LlamaForCausalLM"),
    ("MistralModel", "MistralForCausalLM"),
    ("Qwen2Model", "Qwen2ForCausalLM"),
    ("Qwen3Model", "Qwen3ForCausalLM"),
    ("Qwen3MoeModel", "Qwen3MoeForCausalLM"),
    ("Gemma2Model", "Gemma2ForCausalLM"),
    ("Gemma3TextModel", "Gemma3ForCausalLM"),
    ("Phi3Model", "Phi3ForCausalLM"),
];
