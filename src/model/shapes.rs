//! Published shapes by name, for plans and benchmarks without a checkpoint.

use super::error::LoadError;
use super::spec::ModelSpec;
use super::stored::Stored;
use serde_json::{Map, Value, json};

const PUBLISHED: &str = include_str!("shapes/published.json");

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
        let mut config = match published().remove(name) {
            Some(config) => config,
            None => qwen3_shape(seven_numbers(name)?),
        };
        complete(&mut config);
        Self::from_complete_json(
            &format!("shape {name}"),
            config.to_string().as_bytes(),
            &Stored::CHECKPOINT,
        )
    }
}

/// The configs of [`ModelSpec::SHAPES`], as published; what only changes numbers, such as the stretching of rotary
/// frequencies, is left out.
fn published() -> Map<String, Value> {
    serde_json::from_str(PUBLISHED).expect("the table of shapes is JSON")
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

#[cfg(test)]
mod tests;
