//! The rows of families with experts whose layers differ, or whose routers are their own.

use super::{DEEPSEEK2, Family, QWEN2, QWEN3, Windows};

/// Chunks, the growth of q and which layers rotate are the same in every file. Rows of q and k are those of the
/// checkpoint.
pub(super) const LLAMA4: Family = Family {
    name: "llama4",
    architecture: "Llama4ForCausalLM",
    layer_names: &[
        ("ffn_gate", "feed_forward.gate_proj"),
        ("ffn_up", "feed_forward.up_proj"),
        ("ffn_down", "feed_forward.down_proj"),
        ("ffn_gate_inp", "feed_forward.router"),
        ("ffn_gate_exps", "feed_forward.experts.{e}.gate_proj"),
        ("ffn_up_exps", "feed_forward.experts.{e}.up_proj"),
        ("ffn_down_exps", "feed_forward.experts.{e}.down_proj"),
        ("ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"),
        ("ffn_up_shexp", "feed_forward.shared_expert.up_proj"),
        ("ffn_down_shexp", "feed_forward.shared_expert.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
        ("interleave_moe_layer_step", "interleave_moe_layer_step"),
    ],
    set: &["use_qk_norm"],
    constants: &[
        ("attention_chunk_size", 8192.0),
        ("floor_scale", 8192.0),
        ("attn_scale", 0.1),
    ],
    mlp_field: "intermediate_size_mlp",
    // Maverick.
    unnormed_experts: Some(128),
    ..QWEN2
};

/// As DeepSeek's, with growing queries.
pub(super) const MISTRAL4: Family = Family {
    name: "mistral4",
    architecture: "Mistral4ForCausalLM",
    ..DEEPSEEK2
};

/// The router's scores are sigmoids whose sum is 1 in every file.
pub(super) const LAGUNA: Family = Family {
    name: "laguna",
    architecture: "LagunaForCausalLM",
    layer_names: &[
        ("attn_gate", "self_attn.g_proj"),
        ("exp_probs_b.bias", "mlp.experts.e_score_correction_bias"),
        ("ffn_gate_shexp", "mlp.shared_expert.gate_proj"),
        ("ffn_up_shexp", "mlp.shared_expert.up_proj"),
        ("ffn_down_shexp", "mlp.shared_expert.down_proj"),
    ],
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
        (
            "expert_shared_feed_forward_length",
            "shared_expert_intermediate_size",
        ),
        ("expert_weights_scale", "moe_routed_scaling_factor"),
        ("router_logit_softcapping", "moe_router_logit_softcapping"),
    ],
    windows: Windows::Config(None),
    query_heads_by_layer: true,
    ..QWEN3
};
