//! Published shapes of models with layers that keep a state.

use serde_json::{Value, json};

/// A shape by its name.
pub(super) fn published(name: &str) -> Option<Value> {
    Some(match name {
        "qwen-3.5-0.8b" => qwen([1024, 24, 8, 2, 3584, 16], true),
        "qwen-3.5-2b" => qwen([2048, 24, 8, 2, 6144, 16], true),
        "qwen-3.5-4b" => qwen([2560, 32, 16, 4, 9216, 32], true),
        "qwen-3.5-9b" => qwen([4096, 32, 16, 4, 12_288, 32], false),
        "qwen-3.5-27b" => qwen([5120, 64, 24, 4, 17_408, 48], false),
        "qwen-3.5-35b-a3b" => {
            let mut config = qwen([2048, 40, 16, 2, 0, 32], false);
            config["architectures"] = json!(["Qwen3_5MoeForCausalLM"]);
            config["num_experts"] = 256.into();
            config["num_experts_per_tok"] = 8.into();
            config["moe_intermediate_size"] = 512.into();
            config["shared_expert_intermediate_size"] = 512.into();
            config
        }
        "granite-4.0-h-micro" => granite([2048, 32, 8, 64, 8192], [0, 0, 0]),
        "granite-4.0-h-tiny" => granite([1536, 12, 4, 48, 1024], [64, 6, 512]),
        "granite-4.0-h-small" => granite([4096, 32, 8, 128, 1536], [72, 10, 768]),
        "nemotron-h-8b" => nemotron(json!({
            "hidden_size": 4096, "num_key_value_heads": 8, "mamba_num_heads": 128, "intermediate_size": 21_504,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "max_position_embeddings": 8192,
        })),
        "nemotron-3-nano" => nemotron(json!({
            "hidden_size": 2688, "num_key_value_heads": 2, "mamba_num_heads": 64, "moe_intermediate_size": 1856,
            "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1,
            "num_experts_per_tok": 6, "routed_scaling_factor": 2.5,
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "max_position_embeddings": 262_144,
        })),
        _ => return None,
    })
}

/// Hidden size, layers, query heads, key/value heads, MLP size, value heads of states; whether embeddings are tied.
fn qwen([hidden, layers, heads, kv_heads, mlp, value_heads]: [u32; 6], tied: bool) -> Value {
    json!({
        "architectures": ["Qwen3_5ForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "intermediate_size": mlp,
        "linear_num_key_heads": 16, "linear_num_value_heads": value_heads, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "vocab_size": 248_320, "max_position_embeddings": 262_144, "rope_theta": 1e7,
        "tie_word_embeddings": tied,
    })
}

/// Hidden size, query heads, key/value heads, heads of states, shared MLP size; experts, experts per token, their size.
fn granite(
    [hidden, heads, kv_heads, state_heads, mlp]: [u32; 5],
    [experts, chosen, size]: [u32; 3],
) -> Value {
    json!({
        "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": hidden, "num_hidden_layers": 40,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "mamba_n_heads": state_heads,
        "mamba_d_head": 64, "mamba_d_state": 128, "shared_intermediate_size": mlp, "num_local_experts": experts,
        "num_experts_per_tok": chosen, "intermediate_size": size, "vocab_size": 100_352,
        "max_position_embeddings": 131_072, "tie_word_embeddings": true, "position_embedding_type": "nope",
        "layer_types": (0..40).map(|layer| {
        if layer % 10 == 5 {
            "attention"
        } else {
            "mamba"
        }
    }).collect::<Vec<_>>(),
    })
}

/// Adds what all models of Nemotron-H share.
fn nemotron(mut config: Value) -> Value {
    config["architectures"] = json!(["NemotronHForCausalLM"]);
    for (field, number) in [
        ("num_attention_heads", 32),
        ("head_dim", 128),
        ("mamba_head_dim", 64),
        ("ssm_state_size", 128),
        ("n_groups", 8),
        ("vocab_size", 131_072),
    ] {
        config[field] = number.into();
    }
    config
}
