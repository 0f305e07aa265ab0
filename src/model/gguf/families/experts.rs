//! The rows of decoders with experts whose names, or numbers, are their own.

use super::{
    EXAONE4, Family, GLM4_MOE, GRANITE_MOE, HUNYUAN_DENSE, LLAMA, QWEN2, QWEN3_MOE, STORED, Windows,
};
use crate::model::stored::Stored;
use crate::model::tensor_names;

/// Mixtral's files have the architecture of Llama, with experts.
pub(super) const MIXTRAL: Family = Family {
    needed: Some("expert_count"),
    architecture: "MixtralForCausalLM",
    layer_names: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        ("ffn_gate_exps", "block_sparse_moe.experts.{e}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{e}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{e}.w2"),
    ],
    numbers: &[
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
    ],
    windows: Windows::Config(None),
    ..LLAMA
};

pub(super) const OLMOE: Family = Family {
    name: "olmoe",
    architecture: "OlmoeForCausalLM",
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
    ],
    normalizes: false,
    ..QWEN2
};

pub(super) const MELLUM: Family = Family {
    name: "mellum",
    architecture: "MellumForCausalLM",
    numbers: &[
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
    ],
    windows: Windows::Config(None),
    ..QWEN3_MOE
};

/// Granite with an MLP that every token passes.
pub(super) const GRANITE_MOE_SHARED: Family = Family {
    needed: Some("expert_shared_feed_forward_length"),
    architecture: "GraniteMoeSharedForCausalLM",
    layer_names: GLM4_MOE.layer_names,
    numbers: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        (
            "expert_shared_feed_forward_length",
            "shared_intermediate_size",
        ),
    ],
    stored: Stored {
        tensors: Some(&tensor_names::GLM4_MOE),
        ..STORED
    },
    ..GRANITE_MOE
};

/// Hunyuan 3.
pub(super) const HY_V3: Family = Family {
    name: "hy_v3",
    architecture: "HYV3ForCausalLM",
    layer_names: &[
        ("ffn_gate_inp", "mlp.router.gate"),
        ("exp_probs_b.bias", "mlp.expert_bias"),
        ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
        ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_scale", "router_scaling_factor"),
    ],
    ..QWEN2
};

/// The base of the rotation includes the factor of NTK.
pub(super) const HUNYUAN_MOE: Family = Family {
    name: "hunyuan-moe",
    architecture: "HunYuanMoEV1ForCausalLM",
    layer_names: &[
        ("attn_q_norm", "self_attn.query_layernorm"),
        ("attn_k_norm", "self_attn.key_layernorm"),
        ("ffn_gate_inp", "mlp.gate.wg"),
        ("ffn_gate_shexp", "mlp.shared_mlp.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_mlp.up_proj"),
        ("ffn_down_shexp", "mlp.shared_mlp.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_shared_count", "num_shared_expert"),
    ],
    ..HUNYUAN_DENSE
};

/// K-EXAONE.
pub(super) const EXAONE_MOE: Family = Family {
    name: "exaone-moe",
    architecture: "ExaoneMoeForCausalLM",
    layer_names: &[
        ("exp_probs_b.bias", "mlp.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("expert_group_count", "n_group"),
        ("expert_group_used_count", "topk_group"),
    ],
    ..EXAONE4
};

pub(super) const QWEN3_VL_MOE: Family = Family {
    name: "qwen3vlmoe",
    architecture: "Qwen3VLMoeForConditionalGeneration",
    ..QWEN3_MOE
};

pub(super) const MINIMAX_M2: Family = Family {
    name: "minimax-m2",
    architecture: "MiniMaxM2ForCausalLM",
    layer_names: &[
        ("ffn_gate_inp", "block_sparse_moe.gate"),
        (
            "exp_probs_b.bias",
            "block_sparse_moe.e_score_correction_bias",
        ),
        ("ffn_gate_exps", "block_sparse_moe.experts.{e}.w1"),
        ("ffn_up_exps", "block_sparse_moe.experts.{e}.w3"),
        ("ffn_down_exps", "block_sparse_moe.experts.{e}.w2"),
    ],
    numbers: &[
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
    ],
    ..QWEN2
};

/// Trinity. All files scale embedded rows.
pub(super) const AFMOE: Family = Family {
    name: "afmoe",
    architecture: "AfmoeForCausalLM",
    layer_names: &[
        ("ffn_norm", "pre_mlp_layernorm"),
        ("post_ffw_norm", "post_mlp_layernorm"),
        ("attn_gate", "self_attn.gate_proj"),
        ("ffn_gate_inp", "mlp.router.gate"),
        ("exp_probs_b.bias", "mlp.expert_bias"),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "num_shared_experts"),
        ("expert_weights_scale", "route_scale"),
    ],
    set: &["mup_enabled"],
    windows: Windows::Config(None),
    ..QWEN2
};

/// Rows of q and k as in Ernie 4.5.
pub(super) const ERNIE4_5_MOE: Family = Family {
    name: "ernie4_5-moe",
    architecture: "Ernie4_5_MoeForCausalLM",
    layer_names: &[
        (
            "exp_probs_b.bias",
            "mlp.moe_statics.e_score_correction_bias",
        ),
        ("ffn_gate_shexp", "mlp.shared_experts.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_experts.up_proj"),
        ("ffn_down_shexp", "mlp.shared_experts.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_shared_count", "num_shared_experts"),
        ("interleave_moe_layer_step", "moe_layer_interval"),
        ("leading_dense_block_count", "moe_layer_start_index"),
    ],
    ..QWEN2
};
