//! The supported architectures, one row of data each: how a `config.json` becomes a [`super::ModelSpec`].
//!
//! A row says which options an architecture has, which of them its config decides, and the defaults for missing fields
//! (those of transformers). `config.rs` interprets the rows.

mod attention;
mod encoders;
mod experts;
mod newest;
mod state;
mod towers;

pub(super) use towers::{IDEFICS3_VISION, PIXTRAL};

use super::config_reader::FieldNames;
use super::rope::RopeOptions;
use super::spec::{HeadNorms, NormPlace, OutputGate};
use super::tensor_names::TensorNames;
use crate::plan::Activation;
use attention::{
    APERTUS, ARCEE, COHERE, COHERE2, ERNIE4_5, EXAONE, EXAONE4, GEMMA, GEMMA2, GEMMA3, GLM, GLM4,
    GRANITE, HUNYUAN_DENSE, LLAMA, MINICPM3, MINISTRAL3, MISTRAL, MUSE_GLIMMER, OLMO2, OLMO3, PHI,
    PHI3, QWEN2, QWEN2_5_VL, QWEN3, QWEN3_VL, SEED_OSS, SMOLLM3, STARCODER2,
};
use encoders::{
    BERT, CAMEMBERT, EURO_BERT, GTE, GTE_NEW, JINA_BERT, JINA_V3, MODERN_BERT, NOMIC_BERT, ROBERTA,
    XLM_ROBERTA,
};
use experts::{
    AFMOE, COHERE2_MOE, DEEPSEEK_V2, DEEPSEEK_V3, ERNIE4_5_MOE, EXAONE_MOE, GEMMA4, GEMMA4_UNIFIED,
    GLM4_MOE, GLM4_MOE_LITE, GPT_OSS, GRANITE_MOE, GRANITE_MOE_SHARED, HUNYUAN_MOE, HY_V3, MELLUM,
    MINIMAX_M2, MIXTRAL, OLMOE, QWEN2_MOE, QWEN3_MOE, QWEN3_VL_MOE, SOLAR_OPEN,
};
use newest::{LAGUNA, LLAMA4, LLAMA4_WRAPPED, MISTRAL4, PHI_MOE, STEP3P5, STEP3P7};
use state::{
    FALCON_H1, GRANITE_HYBRID, LFM2, LFM2_MOE, LFM3, NEMOTRON_H, OLMO_HYBRID, QWEN3_5, QWEN3_5_MOE,
    QWEN3_NEXT,
};

/// How an architecture's `config.json` becomes a [`super::ModelSpec`].
pub(super) struct Family {
    /// First entry of `architectures`.
    pub(super) architecture: &'static str,
    /// Other spellings of it.
    pub(super) spellings: &'static [&'static str],
    /// Fields that its configs have under other names.
    pub(super) fields: FieldNames,
    /// `model_type`, used for configs without `architectures`, and for the text model of a multimodal checkpoint.
    pub(super) model_type: &'static str,
    /// Fields that would change the results, and may only be absent, `null`, false or zero.
    pub(super) unsupported: &'static [&'static str],
    /// Fields that may have only one value, as JSON: others mean something that is not supported.
    pub(super) fixed: &'static [(&'static str, &'static str)],
    /// The LM head has a bias.
    pub(super) head_bias: Flag,
    pub(super) tables: TablesRow,
    pub(super) norms: NormsRow,
    pub(super) sizes: Sizes,
    pub(super) mixers: Mixers,
    pub(super) attention: AttentionRow,
    pub(super) rope: RopeRow,
    pub(super) mlp: MlpRow,
    pub(super) experts: ExpertsRow,
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
    /// Embedded rows are normalized; without a weight if [`TensorNames::embedding_norm`] is empty.
    pub(super) embedding: bool,
    /// There is a norm after the last layer.
    pub(super) last: bool,
    /// The field of epsilon.
    pub(super) epsilon: &'static str,
    /// The field of epsilon of RMS norms instead of LayerNorms, if it is there.
    pub(super) epsilon_rms: Option<&'static str>,
    /// The field of another epsilon for norms after branches.
    pub(super) epsilon_after: Option<&'static str>,
    /// `one_plus` of the final norm.
    pub(super) final_one_plus: bool,
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
    /// Whether there are `head_norms`.
    pub(super) head_norms_if: Flag,
    /// Only layers that rotate have `head_norms`.
    pub(super) head_norms_rotated: bool,
    /// RMS norm of v without a weight.
    pub(super) value_norm: bool,
    pub(super) query_growth: Growth,
    pub(super) query_heads: QueryHeads,
    pub(super) windows: Windows,
    /// A learned logit per query head in the softmax.
    pub(super) sinks: bool,
    /// What multiplies the attended rows.
    pub(super) gate: OutputGate,
    /// The field that says whether there is a `gate`, true by default; `None`: there is.
    pub(super) gate_if: Option<&'static str>,
    /// The field that says whether there is a gate, and which: true or `per-head`, or `per-element`.
    pub(super) gate_kind: Option<&'static str>,
    /// The function of the gates.
    pub(super) gate_activation: Activation,
    /// Keys and values are products with a latent (MLA).
    pub(super) latent: bool,
    /// Rows see all others of their sequence, also those after them. Windows reach half as far as `sliding_window`
    /// says, in both directions.
    pub(super) both_ways: Flag,
    /// Scores fall with the distance, by slopes that follow from the number of heads.
    pub(super) alibi: bool,
}

/// Whether q grows with its position.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Growth {
    Never,
    /// By `llama_4_scaling_beta` of `rope_parameters`, if it is there.
    Rope,
    /// In layers that do not rotate, by `attn_scale` per logarithm of `floor_scale` positions, counted from 1, unless
    /// `attn_temperature_tuning` is false.
    Unrotated,
}

/// The number of query heads of a layer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryHeads {
    /// `num_attention_heads`.
    Same,
    /// As `num_attention_heads_per_layer` lists; or of layers with a window, `num_sliding_attention_heads`, or that of
    /// `attention_other_setting`.
    ByLayer,
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
    /// `swiglu_limits` lists a clamp of experts for each layer, `swiglu_limits_shared` one of other MLPs; 0: none.
    pub(super) clamps: bool,
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

/// An option that is fixed, or that a field decides.
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
    /// Like `Pattern`, but the last layer has none, whatever `layer_types` says.
    PatternButLast(u32),
    /// Like `Pattern`, but counted from behind the first `first_k_dense_replace` layers. Of these, n is
    /// `prefix_dense_sliding_window_pattern`.
    PatternAfterDense(u32),
    /// All but every n-th layer, counted from the last, which has none.
    PatternFromLast(u32),
    /// The same, where the first of n layers has no window.
    AfterFirst(u32),
    /// Like `Pattern` if `sliding_window` is set, else none. The pattern may be a text with an `L` for each layer with
    /// a window, such as `LLLG`.
    PatternIfSet(u32),
    /// Layers without rotary embeddings, if `use_sliding_window` is set.
    UnrotatedLayers,
    /// Layers with rotary embeddings see chunks of `attention_chunk_size`, or those that `layer_types` says.
    Chunks,
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
    /// In layers with a sliding window, and in those without experts if `prefix_dense_sliding_window_pattern` is 1.
    LocalOrDense,
    /// In layers whose entry of `layer_rope_theta` is not zero, which is the base; without the list, as `Local`.
    ListedBases,
    /// One for layers with a sliding window, another for layers without, of lists with an entry per layer.
    ListedByKind,
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
    /// As `Plain`, and embedded rows times √hidden if this field is true.
    EmbeddingIf(&'static str),
    /// Embedded rows times `scale_emb`, branches times `scale_depth` / √layers, and logits divided by hidden /
    /// `dim_model_base`.
    MiniCpm,
    /// Logits times `output_multiplier`, with a cap from `final_logit_softcapping`; the norm of q is times
    /// `qk_scale_factor`.
    MuseGlimmer,
    /// q · k times 1, embedded rows times √hidden; a cap of logits from `final_logit_softcapping`.
    Unscaled,
}

/// Experts: which layers have them instead of one MLP, how they are chosen, and the fields of their numbers.
#[derive(Clone, Copy)]
pub(super) struct ExpertsRow {
    pub(super) layers: Sparse,
    /// Fields with the number of experts; the first that is there counts.
    pub(super) count: &'static [&'static str],
    /// The field with the number of experts of a token.
    pub(super) per_token: &'static str,
    /// The field with the size of one.
    pub(super) size: &'static str,
    pub(super) router: RouterRow,
    pub(super) shared: Shared,
    /// The field that says whether chosen experts and the shared one are a `sum` or, by default, their `average`;
    /// `None`: a sum.
    pub(super) combination: Option<&'static str>,
    /// The weight of an expert multiplies its input instead of its output.
    pub(super) weighs_input: bool,
    /// Router, gate, up and down have biases.
    pub(super) bias: bool,
}

/// Which layers have experts.
#[derive(Clone, Copy)]
pub(super) enum Sparse {
    Never,
    EveryLayer,
    /// Every layer, unless the number of experts is zero.
    EveryLayerIfAny,
    /// Every n-th layer, n being `decoder_sparse_step`, except `mlp_only_layers`; or those that `mlp_layer_types` says.
    EveryNth,
    /// The layers that [`Mixers::Blocks`] says.
    Blocks,
    /// Every n-th layer from `moe_layer_start_index` to `moe_layer_end_index` (−1: the last), n being
    /// `moe_layer_interval`.
    Between,
    /// As `moe_layers` lists, or else every n-th layer, n being `interleave_moe_layer_step`.
    Interleaved,
    /// As `mlp_layer_types` says, or `moe_layers_enum` lists in a text; without both, all layers but the first three.
    Enumerated,
    /// All layers but the first few, whose number is in this field, with this default; or those that `mlp_layer_types`
    /// says.
    AfterDense(&'static str, u32),
    /// Every layer if `enable_moe_block` is set, beside its MLP.
    BesideMlp,
}

/// How experts are chosen and weighted.
#[derive(Clone, Copy)]
pub(super) struct RouterRow {
    pub(super) scores: Scores,
    /// Scores have a bias for the choice.
    pub(super) choice_bias: Flag,
    /// A token's weights are divided by their sum.
    pub(super) normalizes: Flag,
    pub(super) groups: Groups,
    /// The field of the factor of all weights, and its default.
    pub(super) factor: Option<(&'static str, f64)>,
    /// The field of a soft cap of logits, if it is above zero.
    pub(super) softcap: Option<&'static str>,
}

/// How the scores of experts are computed.
#[derive(Clone, Copy)]
pub(super) enum Scores {
    Softmax,
    Sigmoid,
    /// SparseMixer, whose threshold is twice this field, with this default.
    SparseMixer(&'static str, f64),
    /// As this field says: `sigmoid`, or by default `softmax`, of a token's experts alone.
    Field(&'static str),
}

/// Whether experts are chosen from some groups only.
#[derive(Clone, Copy)]
pub(super) enum Groups {
    Never,
    /// `n_group` and `topk_group`.
    Fields,
    /// The same, if `topk_method` is `group_limited_greedy`; otherwise, it may only be `greedy`.
    Method,
}

/// The MLP that every token passes besides.
#[derive(Clone, Copy)]
pub(super) enum Shared {
    Never,
    /// One of the size in this field, behind a gate.
    Gated(&'static str),
    /// One of the size in this field.
    Sized(&'static str),
    /// As many experts as the first field says (by default, the number), of the size in the second, as one MLP.
    Experts(&'static str, u32, &'static str),
}

/// Fields with the number of experts: transformers 5 writes the first, published configs have another.
const EXPERT_COUNT: &[&str] = &["num_local_experts", "num_experts"];

impl RouterRow {
    /// A softmax of a token's experts.
    const SOFTMAX: Self = Self {
        scores: Scores::Softmax,
        choice_bias: Flag::Never,
        normalizes: Flag::Always,
        groups: Groups::Never,
        factor: None,
        softcap: None,
    };

    /// Sigmoids, with a bias for the choice among groups.
    const SIGMOID: Self = Self {
        scores: Scores::Sigmoid,
        choice_bias: Flag::Always,
        normalizes: Flag::UnlessField("norm_topk_prob"),
        groups: Groups::Fields,
        factor: Some(("routed_scaling_factor", 1.0)),
        softcap: None,
    };
}

impl ExpertsRow {
    /// In no layer.
    const NONE: Self = Self {
        layers: Sparse::Never,
        count: EXPERT_COUNT,
        per_token: "num_experts_per_tok",
        size: "moe_intermediate_size",
        router: RouterRow::SOFTMAX,
        shared: Shared::Never,
        combination: None,
        weighs_input: false,
        bias: false,
    };

    /// Instead of the MLP of every layer, with its size.
    const EVERY_LAYER: Self = Self {
        layers: Sparse::EveryLayer,
        size: "intermediate_size",
        ..Self::NONE
    };

    /// Qwen's.
    const EVERY_NTH: Self = Self {
        layers: Sparse::EveryNth,
        router: RouterRow {
            normalizes: Flag::Field("norm_topk_prob"),
            ..RouterRow::SOFTMAX
        },
        ..Self::NONE
    };

    /// DeepSeek's.
    const AFTER_DENSE: Self = Self {
        layers: Sparse::AfterDense("first_k_dense_replace", 1),
        count: &["n_routed_experts"],
        router: RouterRow::SIGMOID,
        shared: Shared::Experts("n_shared_experts", 0, "moe_intermediate_size"),
        ..Self::NONE
    };
}

/// To add an architecture, add a row here.
pub(super) const FAMILIES: [&Family; 81] = [
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
    &MIXTRAL,
    &OLMOE,
    &MELLUM,
    &GRANITE_MOE_SHARED,
    &GLM,
    &SOLAR_OPEN,
    &HY_V3,
    &EXAONE,
    &EXAONE_MOE,
    &HUNYUAN_MOE,
    &QWEN3_VL,
    &QWEN3_VL_MOE,
    &QWEN2_5_VL,
    &MINIMAX_M2,
    &PHI,
    &COHERE,
    &AFMOE,
    &MINICPM3,
    &MUSE_GLIMMER,
    &COHERE2_MOE,
    &ERNIE4_5_MOE,
    &LLAMA4,
    &LLAMA4_WRAPPED,
    &LAGUNA,
    &PHI_MOE,
    &STEP3P5,
    &STEP3P7,
    &MISTRAL4,
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
