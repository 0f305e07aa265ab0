//! The rows of decoders with layers that keep a state.

use super::{Family, GRANITE, QWEN2, STORED};
use crate::model::stored::Stored;

/// Rows of q and k as in the checkpoint. The size of an MLP is the adjusted one.
pub(super) const LFM2: Family = Family {
    name: "lfm2",
    architecture: "Lfm2ForCausalLM",
    layer_names: &[
        ("attn_norm", "operator_norm"),
        ("ffn_norm", "ffn_norm"),
        ("attn_q_norm", "self_attn.q_layernorm"),
        ("attn_k_norm", "self_attn.k_layernorm"),
        ("attn_output", "self_attn.out_proj"),
        ("shortconv.in_proj", "conv.in_proj"),
        ("shortconv.conv", "conv.conv"),
        ("shortconv.out_proj", "conv.out_proj"),
        ("ffn_gate", "feed_forward.w1"),
        ("ffn_up", "feed_forward.w3"),
        ("ffn_down", "feed_forward.w2"),
        ("ffn_gate_inp", "feed_forward.gate"),
        ("exp_probs_b.bias", "feed_forward.expert_bias"),
        ("ffn_gate_exps", "feed_forward.experts.{e}.w1"),
        ("ffn_up_exps", "feed_forward.experts.{e}.w3"),
        ("ffn_down_exps", "feed_forward.experts.{e}.w2"),
    ],
    whole_names: &[("token_embd_norm", "model.embedding_norm")],
    numbers: &[("shortconv.l_cache", "conv_L_cache")],
    kinds: Some("layer_types"),
    ..QWEN2
};

pub(super) const LFM2_MOE: Family = Family {
    name: "lfm2moe",
    architecture: "Lfm2MoeForCausalLM",
    numbers: &[
        ("shortconv.l_cache", "conv_L_cache"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        ("expert_weights_scale", "routed_scaling_factor"),
    ],
    ..LFM2
};

/// Norm weights are stored as `1 + w`.
pub(super) const QWEN35: Family = Family {
    name: "qwen35",
    architecture: "Qwen3_5ForCausalLM",
    layer_names: &[
        ("attn_qkv", "linear_attn.in_proj_qkv"),
        ("attn_gate", "linear_attn.in_proj_z"),
        ("ssm_beta", "linear_attn.in_proj_b"),
        ("ssm_alpha", "linear_attn.in_proj_a"),
        ("ssm_ba", "linear_attn.in_proj_ba"),
        ("ssm_in", "linear_attn.in_proj_qkvz"),
        ("ssm_conv1d", "linear_attn.conv1d"),
        ("ssm_a", "linear_attn.A_log"),
        ("ssm_dt.bias", "linear_attn.dt_bias"),
        ("ssm_norm", "linear_attn.norm"),
        ("ssm_out", "linear_attn.out_proj"),
        ("ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"),
        ("ffn_gate_inp_shexp", "mlp.shared_expert_gate"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ],
    numbers: &[
        ("ssm.conv_kernel", "linear_conv_kernel_dim"),
        ("ssm.state_size", "linear_key_head_dim"),
        ("ssm.group_count", "linear_num_key_heads"),
        ("ssm.time_step_rank", "linear_num_value_heads"),
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        (
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        ),
    ],
    kinds: Some("layer_types"),
    stored: Stored {
        tiled_heads: true,
        ..STORED
    },
    ..QWEN2
};

pub(super) const QWEN35_MOE: Family = Family {
    name: "qwen35moe",
    architecture: "Qwen3_5MoeForCausalLM",
    ..QWEN35
};

pub(super) const QWEN3_NEXT: Family = Family {
    name: "qwen3next",
    architecture: "Qwen3NextForCausalLM",
    stored: STORED,
    ..QWEN35
};

pub(super) const GRANITE_HYBRID: Family = Family {
    name: "granitehybrid",
    architecture: "GraniteMoeHybridForCausalLM",
    layer_names: &[
        ("ssm_in", "mamba.in_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_a", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_dt.bias", "mamba.dt_bias"),
        ("ssm_norm", "mamba.norm"),
        ("ssm_out", "mamba.out_proj"),
        ("ffn_gate", "shared_mlp.gate_proj"),
        ("ffn_up", "shared_mlp.up_proj"),
        ("ffn_down", "shared_mlp.output_linear"),
        ("ffn_gate_shexp", "shared_mlp.gate_proj"),
        ("ffn_up_shexp", "shared_mlp.up_proj"),
        ("ffn_down_shexp", "shared_mlp.output_linear"),
        ("ffn_gate_inp", "block_sparse_moe.router.layer"),
        ("ffn_gate_exps", "block_sparse_moe.experts.{e}.gate_proj"),
        ("ffn_up_exps", "block_sparse_moe.experts.{e}.up_proj"),
        ("ffn_down_exps", "block_sparse_moe.experts.{e}.down_proj"),
    ],
    numbers: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
    ],
    kinds: Some("layer_types"),
    ..GRANITE
};

/// Whether rows of q and k are permuted does not matter: nothing rotates.
pub(super) const NEMOTRON_H: Family = Family {
    name: "nemotron_h",
    architecture: "NemotronHForCausalLM",
    layer_names: &[
        ("attn_norm", "norm"),
        ("attn_q", "mixer.q_proj"),
        ("attn_k", "mixer.k_proj"),
        ("attn_v", "mixer.v_proj"),
        ("attn_output", "mixer.o_proj"),
        ("ssm_in", "mixer.in_proj"),
        ("ssm_conv1d", "mixer.conv1d"),
        ("ssm_a", "mixer.A_log"),
        ("ssm_d", "mixer.D"),
        ("ssm_dt.bias", "mixer.dt_bias"),
        ("ssm_norm", "mixer.norm"),
        ("ssm_out", "mixer.out_proj"),
        ("ffn_up", "mixer.up_proj"),
        ("ffn_down", "mixer.down_proj"),
        ("ffn_gate_inp", "mixer.gate"),
        ("exp_probs_b.bias", "mixer.gate.e_score_correction_bias"),
        ("ffn_up_exps", "mixer.experts.{e}.up_proj"),
        ("ffn_down_exps", "mixer.experts.{e}.down_proj"),
        ("ffn_up_shexp", "mixer.shared_experts.up_proj"),
        ("ffn_down_shexp", "mixer.shared_experts.down_proj"),
        ("ffn_latent_down", "mixer.fc1_latent_proj"),
        ("ffn_latent_up", "mixer.fc2_latent_proj"),
    ],
    layers: "backbone.layers",
    whole_names: &[
        ("token_embd", "backbone.embeddings"),
        ("output_norm", "backbone.norm_f"),
    ],
    numbers: &[
        ("ssm.conv_kernel", "conv_kernel"),
        ("ssm.state_size", "ssm_state_size"),
        ("ssm.group_count", "n_groups"),
        ("ssm.time_step_rank", "mamba_num_heads"),
        ("expert_count", "n_routed_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        (
            "expert_shared_feed_forward_length",
            "moe_shared_expert_intermediate_size",
        ),
        ("expert_shared_count", "n_shared_experts"),
        ("expert_weights_scale", "routed_scaling_factor"),
        ("expert_group_count", "n_group"),
        ("expert_group_used_count", "topk_group"),
        ("moe_latent_size", "moe_latent_size"),
    ],
    kinds: Some("layers_block_type"),
    ..QWEN2
};

pub(super) const NEMOTRON_H_MOE: Family = Family {
    name: "nemotron_h_moe",
    ..NEMOTRON_H
};

/// All multipliers are folded into the weights; rows of q and k are as in the checkpoint.
pub(super) const FALCON_H1: Family = Family {
    name: "falcon-h1",
    architecture: "FalconH1ForCausalLM",
    layer_names: &[
        ("ssm_in", "mamba.in_proj"),
        ("ssm_conv1d", "mamba.conv1d"),
        ("ssm_a", "mamba.A_log"),
        ("ssm_d", "mamba.D"),
        ("ssm_dt.bias", "mamba.dt_bias"),
        ("ssm_norm", "mamba.norm"),
        ("ssm_out", "mamba.out_proj"),
        // The converter's name has no suffix.
        ("ffn_norm", "pre_ff_layernorm.weight"),
        ("ffn_norm.weight", "pre_ff_layernorm.weight"),
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
    ],
    whole_names: &[("output_norm", "model.final_layernorm")],
    numbers: &[
        ("ssm.conv_kernel", "mamba_d_conv"),
        ("ssm.state_size", "mamba_d_state"),
        ("ssm.group_count", "mamba_n_groups"),
        ("ssm.time_step_rank", "mamba_n_heads"),
    ],
    ..QWEN2
};
