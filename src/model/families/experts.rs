//! The rows of decoders with attention and experts in their layers.

use super::attention::{
    COHERE2, ERNIE4_5, EXAONE4, GLM4, GRANITE, HUNYUAN_DENSE, LLAMA, MISTRAL, QWEN2, QWEN3,
    UNBIASED, UNBIASED_MLP,
};
use super::{
    ActivationField, AttentionRow, EXPERT_COUNT, ExpertsRow, Family, Flag, Groups, MlpRow, MlpSize,
    NormsRow, RopeRow, Ropes, RouterRow, Scales, Scores, Shared, Sizes, Sparse, Windows,
};
use crate::model::rope::RopeOptions;
use crate::model::spec::{HeadNorms, NormPlace, OutputGate};
use crate::model::tensor_names;

pub(in crate::model) const GRANITE_MOE: Family = Family {
    architecture: "GraniteMoeForCausalLM",
    model_type: "granitemoe",
    experts: ExpertsRow::EVERY_LAYER,
    tensors: &tensor_names::GRANITE_MOE,
    ..GRANITE
};

pub(in crate::model) const QWEN3_MOE: Family = Family {
    architecture: "Qwen3MoeForCausalLM",
    model_type: "qwen3_moe",
    experts: ExpertsRow::EVERY_NTH,
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
    experts: ExpertsRow {
        bias: true,
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::GPT_OSS,
    ..LLAMA
};

pub(in crate::model) const GLM4_MOE: Family = Family {
    architecture: "Glm4MoeForCausalLM",
    model_type: "glm4_moe",
    attention: AttentionRow {
        output_bias: Flag::Never,
        head_norms: HeadNorms::EachHead,
        head_norms_if: Flag::Field("use_qk_norm"),
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
    experts: ExpertsRow::AFTER_DENSE,
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
    experts: ExpertsRow {
        layers: Sparse::AfterDense("first_k_dense_replace", 3),
        router: RouterRow {
            factor: Some(("routed_scaling_factor", 2.5)),
            ..RouterRow::SIGMOID
        },
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::DEEPSEEK,
    ..LLAMA
};

pub(in crate::model) const DEEPSEEK_V2: Family = Family {
    architecture: "DeepseekV2ForCausalLM",
    model_type: "deepseek_v2",
    experts: ExpertsRow {
        layers: Sparse::AfterDense("first_k_dense_replace", 0),
        router: RouterRow {
            normalizes: Flag::Never,
            groups: Groups::Method,
            factor: Some(("routed_scaling_factor", 1.0)),
            ..RouterRow::SOFTMAX
        },
        ..ExpertsRow::AFTER_DENSE
    },
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
    experts: ExpertsRow {
        router: RouterRow {
            factor: Some(("routed_scaling_factor", 1.8)),
            ..RouterRow::SIGMOID
        },
        ..ExpertsRow::AFTER_DENSE
    },
    ..DEEPSEEK_V3
};

pub(in crate::model) const QWEN2_MOE: Family = Family {
    architecture: "Qwen2MoeForCausalLM",
    model_type: "qwen2_moe",
    attention: AttentionRow {
        qkv_bias: Flag::UnlessField("qkv_bias"),
        ..QWEN2.attention
    },
    experts: ExpertsRow {
        shared: Shared::Gated("shared_expert_intermediate_size"),
        ..ExpertsRow::EVERY_NTH
    },
    tensors: &tensor_names::QWEN2_MOE,
    ..QWEN2
};

pub(in crate::model) const GEMMA4: Family = Family {
    architecture: "Gemma4ForCausalLM",
    model_type: "gemma4_text",
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        ..LLAMA.norms
    },
    sizes: Sizes::ByKind,
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        value_norm: true,
        windows: Windows::PatternButLast(6),
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
    experts: ExpertsRow {
        layers: Sparse::BesideMlp,
        per_token: "top_k_experts",
        ..ExpertsRow::NONE
    },
    scales: Scales::Unscaled,
    tied_default: true,
    tensors: &tensor_names::GEMMA4,
    ..LLAMA
};

pub(in crate::model) const GEMMA4_UNIFIED: Family = Family {
    architecture: "Gemma4UnifiedForCausalLM",
    model_type: "gemma4_unified_text",
    ..GEMMA4
};

pub(in crate::model) const MIXTRAL: Family = Family {
    architecture: "MixtralForCausalLM",
    model_type: "mixtral",
    experts: ExpertsRow::EVERY_LAYER,
    tensors: &tensor_names::MIXTRAL,
    ..MISTRAL
};

pub(in crate::model) const OLMOE: Family = Family {
    architecture: "OlmoeForCausalLM",
    model_type: "olmoe",
    attention: AttentionRow {
        head_norms: HeadNorms::WholeRow,
        ..LLAMA.attention
    },
    unsupported: &["clip_qkv"],
    experts: ExpertsRow {
        router: ExpertsRow::EVERY_NTH.router,
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::QWEN3_MOE,
    ..LLAMA
};

pub(in crate::model) const MELLUM: Family = Family {
    architecture: "MellumForCausalLM",
    model_type: "mellum",
    attention: AttentionRow {
        windows: Windows::Words,
        ..QWEN3.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LLAMA.rope
    },
    experts: ExpertsRow {
        router: RouterRow {
            normalizes: Flag::UnlessField("norm_topk_prob"),
            ..RouterRow::SOFTMAX
        },
        ..ExpertsRow::EVERY_NTH
    },
    ..QWEN3_MOE
};

pub(in crate::model) const GRANITE_MOE_SHARED: Family = Family {
    architecture: "GraniteMoeSharedForCausalLM",
    model_type: "granitemoeshared",
    experts: ExpertsRow {
        shared: Shared::Sized("shared_intermediate_size"),
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::GRANITE_MOE_SHARED,
    ..GRANITE_MOE
};

pub(in crate::model) const SOLAR_OPEN: Family = Family {
    architecture: "SolarOpenForCausalLM",
    model_type: "solar_open",
    attention: AttentionRow {
        output_bias: Flag::Never,
        ..LLAMA.attention
    },
    mlp: UNBIASED_MLP,
    experts: ExpertsRow {
        layers: Sparse::EveryLayer,
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::GLM4_MOE,
    ..LLAMA
};

pub(in crate::model) const HY_V3: Family = Family {
    architecture: "HYV3ForCausalLM",
    model_type: "hy_v3",
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        ..LLAMA.attention
    },
    experts: ExpertsRow {
        count: EXPERT_COUNT,
        router: RouterRow {
            normalizes: Flag::Always,
            groups: Groups::Never,
            factor: Some(("router_scaling_factor", 2.826)),
            ..RouterRow::SIGMOID
        },
        shared: Shared::Experts("num_shared_experts", 0, "moe_intermediate_size"),
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::HY_V3,
    ..LLAMA
};

/// K-EXAONE. Its norms are before attention and experts, not after as in EXAONE 4.
pub(in crate::model) const EXAONE_MOE: Family = Family {
    architecture: "ExaoneMoeForCausalLM",
    spellings: &["ExaoneMoEForCausalLM"],
    model_type: "exaone_moe",
    norms: LLAMA.norms,
    fields: &[("first_k_dense_replace", "first_last_k_dense_replace")],
    experts: ExpertsRow {
        count: EXPERT_COUNT,
        router: RouterRow {
            factor: Some(("routed_scaling_factor", 2.5)),
            ..RouterRow::SIGMOID
        },
        shared: Shared::Experts("num_shared_experts", 0, "moe_intermediate_size"),
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::EXAONE_MOE,
    ..EXAONE4
};

/// Experts, and as many that every token passes, have the size of the MLP.
pub(in crate::model) const HUNYUAN_MOE: Family = Family {
    architecture: "HunYuanMoEV1ForCausalLM",
    model_type: "hunyuan_v1_moe",
    fields: &[("num_experts_per_tok", "moe_topk")],
    experts: ExpertsRow {
        shared: Shared::Experts("num_shared_expert", 1, "intermediate_size"),
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::HUNYUAN_MOE,
    ..HUNYUAN_DENSE
};

/// The text model. Positions of text are the same in all sections of M-RoPE.
pub(in crate::model) const QWEN3_VL_MOE: Family = Family {
    architecture: "Qwen3VLMoeForConditionalGeneration",
    model_type: "qwen3_vl_moe_text",
    attention: AttentionRow {
        windows: Windows::Never,
        ..QWEN3.attention
    },
    experts: MELLUM.experts,
    tensors: &tensor_names::QWEN3_VL_MOE,
    ..QWEN3_MOE
};

/// The weights of a token's experts are divided by their sum alone.
pub(in crate::model) const MINIMAX_M2: Family = Family {
    architecture: "MiniMaxM2ForCausalLM",
    model_type: "minimax_m2",
    fixed: &[
        ("scoring_func", "\"sigmoid\""),
        ("qk_norm_type", "\"per_layer\""),
    ],
    attention: AttentionRow {
        head_norms: HeadNorms::WholeRow,
        head_norms_if: Flag::UnlessField("use_qk_norm"),
        ..LLAMA.attention
    },
    rope: RopeRow {
        options: RopeOptions {
            rotary_dim: Some("rotary_dim"),
            ..LLAMA.rope.options
        },
        ..LLAMA.rope
    },
    experts: ExpertsRow {
        router: RouterRow {
            choice_bias: Flag::UnlessField("use_routing_bias"),
            normalizes: Flag::Always,
            groups: Groups::Never,
            factor: None,
            ..RouterRow::SIGMOID
        },
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::MINIMAX_M2,
    ..LLAMA
};

/// Trinity.
pub(in crate::model) const AFMOE: Family = Family {
    architecture: "AfmoeForCausalLM",
    model_type: "afmoe",
    fixed: &[("score_func", "\"sigmoid\"")],
    fields: &[("sliding_window_pattern", "global_attn_every_n_layers")],
    norms: NormsRow {
        place: NormPlace::BeforeAndAfter,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        windows: Windows::Pattern(4),
        gate: OutputGate::EachElement,
        ..UNBIASED
    },
    rope: RopeRow {
        layers: Ropes::Local,
        ..LLAMA.rope
    },
    mlp: UNBIASED_MLP,
    experts: ExpertsRow {
        layers: Sparse::AfterDense("num_dense_layers", 1),
        count: EXPERT_COUNT,
        router: RouterRow {
            normalizes: Flag::UnlessField("route_norm"),
            groups: Groups::Never,
            factor: Some(("route_scale", 1.0)),
            ..RouterRow::SIGMOID
        },
        shared: Shared::Experts("num_shared_experts", 0, "moe_intermediate_size"),
        ..ExpertsRow::AFTER_DENSE
    },
    scales: Scales::EmbeddingIf("mup_enabled"),
    tensors: &tensor_names::AFMOE,
    ..LLAMA
};

/// Attention and experts side by side. Without a shared expert, there is nothing to average.
pub(in crate::model) const COHERE2_MOE: Family = Family {
    architecture: "Cohere2MoeForCausalLM",
    model_type: "cohere2_moe",
    norms: NormsRow {
        epsilon_rms: Some("rms_norm_eps"),
        ..COHERE2.norms
    },
    attention: AttentionRow {
        windows: Windows::PatternAfterDense(4),
        ..COHERE2.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalOrDense,
        ..COHERE2.rope
    },
    mlp: MlpRow {
        size: MlpSize::Field("prefix_dense_intermediate_size"),
        ..UNBIASED_MLP
    },
    experts: ExpertsRow {
        layers: Sparse::AfterDense("first_k_dense_replace", 0),
        size: "intermediate_size",
        router: RouterRow {
            scores: Scores::Field("expert_selection_fn"),
            normalizes: Flag::UnlessField("norm_topk_prob"),
            ..RouterRow::SOFTMAX
        },
        shared: Shared::Experts("num_shared_experts", 0, "intermediate_size"),
        combination: Some("shared_expert_combination_strategy"),
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::GLM4_MOE,
    ..COHERE2
};

/// Experts are chosen by probability and bias, and weighted without the bias.
pub(in crate::model) const ERNIE4_5_MOE: Family = Family {
    architecture: "Ernie4_5_MoeForCausalLM",
    spellings: &["Ernie4_5_MoEForCausalLM"],
    model_type: "ernie4_5_moe",
    fields: &[
        ("num_experts", "moe_num_experts"),
        ("num_experts_per_tok", "moe_k"),
        ("num_shared_experts", "moe_num_shared_experts"),
    ],
    experts: ExpertsRow {
        layers: Sparse::Between,
        count: &["num_experts"],
        router: RouterRow {
            choice_bias: Flag::Always,
            ..RouterRow::SOFTMAX
        },
        shared: Shared::Experts("num_shared_experts", 0, "moe_intermediate_size"),
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::ERNIE4_5_MOE,
    ..ERNIE4_5
};
