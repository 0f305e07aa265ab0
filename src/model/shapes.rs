//! Published shapes by name, for plans and benchmarks without a checkpoint.

use super::{LoadError, ModelSpec};
use serde_json::{Value, json};

impl ModelSpec {
    /// A published shape by name, or `HxLxNxKxDxFxV`: hidden size, layers, query heads, key/value heads, head size, MLP
    /// size and vocabulary of a Qwen3 decoder with tied embeddings.
    pub fn named(name: &str) -> Result<Self, LoadError> {
        let config = match name {
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
            _ => qwen3_shape(seven_numbers(name)?),
        };
        Self::from_json(&format!("shape {name}"), config.to_string().as_bytes())
    }
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
        message: "is not qwen3-0.6b, llama-3.2-1b, llama-3-8b or HxLxNxKxDxFxV (hidden, layers, query heads, \
                  key/value heads, head size, MLP, vocabulary)"
            .into(),
    })
}
