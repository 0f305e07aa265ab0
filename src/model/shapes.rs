//! Published shapes by name, for plans and benchmarks without a checkpoint.

mod states;

use super::error::LoadError;
use super::spec::ModelSpec;
use super::stored::Stored;
use serde_json::{Value, json};

impl ModelSpec {
    /// The names of published shapes.
    pub const SHAPES: [&str; 32] = [
        "qwen3-0.6b",
        "llama-3.2-1b",
        "llama-3-8b",
        "olmo-3-7b",
        "olmo-3-32b",
        "phi-4-mini",
        "granite-4.0-micro",
        "ministral-3-3b",
        "ministral-3-8b",
        "ministral-3-14b",
        "gpt-oss-20b",
        "gpt-oss-120b",
        "glm-4.5-air",
        "deepseek-v2-lite",
        "deepseek-v3",
        "glm-4.7-flash",
        "gemma-4-e2b",
        "gemma-4-e4b",
        "gemma-4-12b",
        "gemma-4-26b-a4b",
        "gemma-4-31b",
        "qwen-3.5-0.8b",
        "qwen-3.5-2b",
        "qwen-3.5-4b",
        "qwen-3.5-9b",
        "qwen-3.5-27b",
        "qwen-3.5-35b-a3b",
        "granite-4.0-h-micro",
        "granite-4.0-h-tiny",
        "granite-4.0-h-small",
        "nemotron-h-8b",
        "nemotron-3-nano",
    ];

    /// One of [`SHAPES`](Self::SHAPES), or `HxLxNxKxDxFxV`: hidden size, layers, query heads, key/value heads, head
    /// size, MLP size and vocabulary of a Qwen3 decoder with tied embeddings.
    pub fn named(name: &str) -> Result<Self, LoadError> {
        let mut config = match name {
            "qwen3-0.6b" => qwen3_shape([1024, 28, 16, 8, 128, 3072, 151_936]),
            "llama-3.2-1b" => json!({
                "architectures": ["LlamaForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 16,
                "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 8192,
                "vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
                "tie_word_embeddings": true, "rope_theta": 500_000.0,
                "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
            }),
            "llama-3-8b" => json!({
                "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
                "vocab_size": 128_256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0,
            }),
            _ => match published(name).or_else(|| states::published(name)) {
                Some(config) => config,
                None => qwen3_shape(seven_numbers(name)?),
            },
        };
        complete(&mut config);
        Self::from_complete_json(
            &format!("shape {name}"),
            config.to_string().as_bytes(),
            &Stored::CHECKPOINT,
        )
    }
}

/// Adds what a complete config has, where a shape leaves it out because it changes numbers only.
fn complete(config: &mut Value) {
    let Value::Object(fields) = config else {
        return;
    };
    if !fields.contains_key("rope_parameters") {
        fields.entry("rope_theta").or_insert(10_000.0.into());
    }
    for epsilon in ["rms_norm_eps", "layer_norm_epsilon"] {
        fields.entry(epsilon).or_insert(1e-5.into());
    }
}

/// The shapes that need more than seven numbers, from the published configs; what only changes numbers, such as the
/// stretching of rotary frequencies, is left out.
fn published(name: &str) -> Option<Value> {
    let config = match name {
        "olmo-3-7b" => olmo3([4096, 32, 32, 32, 11_008]),
        "olmo-3-32b" => olmo3([5120, 64, 40, 8, 27_648]),
        "phi-4-mini" => json!({
            "architectures": ["Phi3ForCausalLM"], "hidden_size": 3072, "num_hidden_layers": 32,
            "num_attention_heads": 24, "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 200_064,
            "max_position_embeddings": 131_072, "partial_rotary_factor": 0.75, "tie_word_embeddings": true,
        }),
        "granite-4.0-micro" => json!({
            "architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 2560, "num_hidden_layers": 40,
            "num_attention_heads": 40, "num_key_value_heads": 8, "shared_intermediate_size": 8192,
            "vocab_size": 100_352, "max_position_embeddings": 131_072, "position_embedding_type": "rope",
            "rope_theta": 1e7, "tie_word_embeddings": true, "layer_types": vec!["attention"; 40],
        }),
        "ministral-3-3b" => ministral3([3072, 26, 9216], true),
        "ministral-3-8b" => ministral3([4096, 34, 14_336], false),
        "ministral-3-14b" => ministral3([5120, 40, 16_384], false),
        "gpt-oss-20b" => gpt_oss(24, 32),
        "gpt-oss-120b" => gpt_oss(36, 128),
        "glm-4.5-air" => json!({
            "architectures": ["Glm4MoeForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 46,
            "num_attention_heads": 96, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 10_944,
            "moe_intermediate_size": 1408, "n_routed_experts": 128, "n_shared_experts": 1, "num_experts_per_tok": 8,
            "first_k_dense_replace": 1, "attention_bias": true, "vocab_size": 151_552,
            "max_position_embeddings": 131_072, "rope_theta": 1e6,
        }),
        "deepseek-v2-lite" => json!({
            "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 27,
            "num_attention_heads": 16, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
            "v_head_dim": 128, "intermediate_size": 10_944, "moe_intermediate_size": 1408, "n_routed_experts": 64,
            "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102_400,
            "max_position_embeddings": 163_840,
        }),
        "deepseek-v3" => json!({
            "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 7168, "num_hidden_layers": 61,
            "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18_432, "moe_intermediate_size": 2048,
            "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
            "first_k_dense_replace": 3, "vocab_size": 129_280, "max_position_embeddings": 163_840,
        }),
        "glm-4.7-flash" => json!({
            "architectures": ["Glm4MoeLiteForCausalLM"], "hidden_size": 2048, "num_hidden_layers": 47,
            "num_attention_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
            "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 10_240, "moe_intermediate_size": 1536,
            "n_routed_experts": 64, "n_shared_experts": 1, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
            "vocab_size": 154_880, "max_position_embeddings": 202_752,
        }),
        name => gemma4(name)?,
    };
    Some(config)
}

/// The shapes of Gemma 4.
fn gemma4(name: &str) -> Option<Value> {
    let mut config = match name {
        "gemma-4-e2b" => json!({
            "hidden_size": 1536, "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 1,
            "intermediate_size": 6144, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 20,
            "use_double_wide_mlp": true, "sliding_window_pattern": 5, "sliding_window": 512,
            "max_position_embeddings": 131_072,
        }),
        "gemma-4-e4b" => json!({
            "hidden_size": 2560, "num_hidden_layers": 42, "num_attention_heads": 8, "num_key_value_heads": 2,
            "intermediate_size": 10_240, "hidden_size_per_layer_input": 256, "num_kv_shared_layers": 18,
            "sliding_window": 512, "max_position_embeddings": 131_072,
        }),
        "gemma-4-12b" => json!({
            "hidden_size": 3840, "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 1, "attention_k_eq_v": true, "intermediate_size": 15_360,
            "sliding_window": 1024, "max_position_embeddings": 262_144,
        }),
        "gemma-4-26b-a4b" => json!({
            "hidden_size": 2816, "num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8,
            "num_global_key_value_heads": 2, "attention_k_eq_v": true, "intermediate_size": 2112,
            "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
            "sliding_window": 1024, "max_position_embeddings": 262_144,
        }),
        "gemma-4-31b" => json!({
            "hidden_size": 5376, "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
            "num_global_key_value_heads": 4, "attention_k_eq_v": true, "intermediate_size": 21_504,
            "sliding_window": 1024, "max_position_embeddings": 262_144,
        }),
        _ => return None,
    };
    config["architectures"] = json!(["Gemma4ForCausalLM"]);
    config["head_dim"] = 256.into();
    config["global_head_dim"] = 512.into();
    config["vocab_size"] = 262_144.into();
    config["final_logit_softcapping"] = 30.0.into();
    config["rope_parameters"] = json!({
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    });
    Some(config)
}

/// Hidden size, layers, query heads, key/value heads and MLP size of OLMo 3.
fn olmo3([hidden, layers, heads, kv_heads, mlp]: [u32; 5]) -> Value {
    json!({
        "architectures": ["Olmo3ForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": mlp,
        "vocab_size": 100_278, "max_position_embeddings": 65_536, "sliding_window": 4096, "rope_theta": 500_000.0,
    })
}

/// Hidden size, layers and MLP size of Ministral 3; whether embeddings are tied.
fn ministral3([hidden, layers, mlp]: [u32; 3], tied: bool) -> Value {
    json!({
        "architectures": ["Ministral3ForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": mlp,
        "vocab_size": 131_072, "max_position_embeddings": 262_144, "rope_theta": 1e6, "tie_word_embeddings": tied,
    })
}

fn gpt_oss(layers: u32, experts: u32) -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "hidden_size": 2880, "num_hidden_layers": layers,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 2880,
        "num_local_experts": experts, "num_experts_per_tok": 4, "attention_bias": true, "vocab_size": 201_088,
        "max_position_embeddings": 131_072, "sliding_window": 128, "rope_theta": 150_000.0,
    })
}

fn qwen3_shape([hidden, layers, heads, kv_heads, head_dim, mlp, vocab]: [u32; 7]) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"], "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "intermediate_size": mlp, "vocab_size": vocab, "max_position_embeddings": 40_960, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": true,
    })
}

fn seven_numbers(name: &str) -> Result<[u32; 7], LoadError> {
    let numbers: Option<Vec<u32>> = name.split('x').map(|part| part.parse().ok()).collect();
    numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| LoadError::Field {
        file: "shape".into(),
        field: format!("{name:?}"),
        message: format!(
            "is unknown; expected one of {} or HxLxNxKxDxFxV (hidden, layers, query heads, key/value heads, head size, \
             MLP, vocabulary)",
            ModelSpec::SHAPES.join(", ")
        ),
    })
}
