//! The rows of families with experts whose layers differ, or whose routers are their own.

use super::attention::{LLAMA, MISTRAL, QWEN3, UNBIASED_MLP};
use super::experts::DEEPSEEK_V3;
use super::{
    AttentionRow, EXPERT_COUNT, ExpertsRow, Family, Flag, Groups, Growth, MlpRow, MlpSize,
    NormsRow, QueryHeads, RopeRow, Ropes, RouterRow, Scores, Shared, Sparse, Windows,
};
use crate::model::rope::RopeOptions;
use crate::model::spec::{HeadNorms, OutputGate};
use crate::model::tensor_names;
use crate::plan::Activation;

/// Layers that rotate see chunks, and norm q and k; q of the others grows. The norm follows the rotation, which changes
/// no length.
pub(in crate::model) const LLAMA4: Family = Family {
    architecture: "Llama4ForCausalLM",
    model_type: "llama4_text",
    attention: AttentionRow {
        head_norms: HeadNorms::Unweighted,
        head_norms_if: Flag::UnlessField("use_qk_norm"),
        head_norms_rotated: true,
        query_growth: Growth::Unrotated,
        windows: Windows::Chunks,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::SomeLayers,
        options: RopeOptions {
            interleaved: true,
            ..LLAMA.rope.options
        },
    },
    mlp: MlpRow {
        size: MlpSize::Field("intermediate_size_mlp"),
        ..UNBIASED_MLP
    },
    experts: ExpertsRow {
        layers: Sparse::Interleaved,
        size: "intermediate_size",
        router: RouterRow {
            scores: Scores::Sigmoid,
            normalizes: Flag::Never,
            ..RouterRow::SOFTMAX
        },
        shared: Shared::Sized("intermediate_size"),
        weighs_input: true,
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::LLAMA4,
    ..LLAMA
};

/// The same in a multimodal checkpoint.
pub(in crate::model) const LLAMA4_WRAPPED: Family = Family {
    architecture: "Llama4ForConditionalGeneration",
    ..LLAMA4
};

/// The number of query heads differs by layer, and gates of attention are not sigmoids.
pub(in crate::model) const LAGUNA: Family = Family {
    architecture: "LagunaForCausalLM",
    model_type: "laguna",
    unsupported: &["moe_apply_router_weight_on_input", "gating_types"],
    attention: AttentionRow {
        query_heads: QueryHeads::ByLayer,
        windows: Windows::Words,
        gate: OutputGate::EachHead,
        gate_kind: Some("gating"),
        gate_activation: Activation::Softplus,
        ..QWEN3.attention
    },
    rope: RopeRow {
        layers: Ropes::LocalAndGlobal,
        ..LLAMA.rope
    },
    experts: ExpertsRow {
        layers: Sparse::AfterDense("first_k_dense_replace", 1),
        count: EXPERT_COUNT,
        router: RouterRow {
            normalizes: Flag::Always,
            groups: Groups::Never,
            factor: Some(("moe_routed_scaling_factor", 1.0)),
            softcap: Some("moe_router_logit_softcapping"),
            ..RouterRow::SIGMOID
        },
        shared: Shared::Sized("shared_expert_intermediate_size"),
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::LAGUNA,
    ..QWEN3
};

/// Phi 3.5 with experts.
pub(in crate::model) const PHI_MOE: Family = Family {
    architecture: "PhimoeForCausalLM",
    spellings: &["PhiMoEForCausalLM"],
    model_type: "phimoe",
    head_bias: Flag::Field("lm_head_bias"),
    norms: NormsRow {
        center: true,
        bias: true,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        windows: Windows::EveryLayer,
        ..LLAMA.attention
    },
    experts: ExpertsRow {
        router: RouterRow {
            scores: Scores::SparseMixer("router_jitter_noise", 0.01),
            normalizes: Flag::Never,
            ..RouterRow::SOFTMAX
        },
        ..ExpertsRow::EVERY_LAYER
    },
    tensors: &tensor_names::PHI_MOE,
    ..MISTRAL
};

/// Layers with a window have another number of query heads; MLPs of some layers are clamped.
pub(in crate::model) const STEP3P5: Family = Family {
    architecture: "Step3p5ForCausalLM",
    model_type: "step3p5",
    fixed: &[("hidden_act", "\"silu\"")],
    fields: &[
        ("num_key_value_heads", "num_attention_groups"),
        ("n_routed_experts", "moe_num_experts"),
        ("num_experts_per_tok", "moe_top_k"),
        ("share_expert_dim", "share_expert_dims"),
    ],
    norms: NormsRow {
        one_plus: true,
        final_one_plus: true,
        ..LLAMA.norms
    },
    attention: AttentionRow {
        head_norms: HeadNorms::EachHead,
        query_heads: QueryHeads::ByLayer,
        windows: Windows::Words,
        gate: OutputGate::EachHead,
        ..LLAMA.attention
    },
    rope: RopeRow {
        layers: Ropes::ListedByKind,
        ..LLAMA.rope
    },
    mlp: MlpRow {
        clamps: true,
        ..LLAMA.mlp
    },
    experts: ExpertsRow {
        layers: Sparse::Enumerated,
        count: &["n_routed_experts"],
        router: RouterRow {
            normalizes: Flag::Always,
            groups: Groups::Never,
            factor: Some(("moe_router_scaling_factor", 1.0)),
            ..RouterRow::SIGMOID
        },
        shared: Shared::Sized("share_expert_dim"),
        ..ExpertsRow::NONE
    },
    tensors: &tensor_names::STEP3P5,
    ..LLAMA
};

/// The same in a multimodal checkpoint.
pub(in crate::model) const STEP3P7: Family = Family {
    architecture: "Step3p7ForConditionalGeneration",
    ..STEP3P5
};

/// Latents, whose queries grow with their position.
pub(in crate::model) const MISTRAL4: Family = Family {
    architecture: "Mistral4ForCausalLM",
    model_type: "mistral4",
    fixed: &[("n_group", "1")],
    attention: AttentionRow {
        query_growth: Growth::Rope,
        ..DEEPSEEK_V3.attention
    },
    experts: ExpertsRow {
        layers: Sparse::AfterDense("first_k_dense_replace", 0),
        router: RouterRow {
            normalizes: Flag::UnlessField("norm_topk_prob"),
            factor: Some(("routed_scaling_factor", 1.0)),
            ..RouterRow::SOFTMAX
        },
        ..ExpertsRow::AFTER_DENSE
    },
    tensors: &tensor_names::MISTRAL4,
    ..DEEPSEEK_V3
};
