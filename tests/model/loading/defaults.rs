//! Fields that a config lacks have the defaults of the architecture's class in transformers.

use crate::golden;
use folio::model::ModelSpec;
use serde_json::{Value, json};

fn spec(config: &Value) -> ModelSpec {
    let json = config.to_string();
    ModelSpec::from_json("config.json", json.as_bytes())
        .unwrap_or_else(|error| panic!("{error}: {json}"))
}

/// As published: the text model's config has six fields.
#[test]
fn the_published_config_of_gemma_3_is_complete() {
    let text = json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    });
    let found =
        spec(&json!({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}));
    assert_eq!(
        (found.vocab, found.positions_max, found.query_heads),
        (262_208, 131_072, 8)
    );
    assert!(
        found
            .layers
            .iter()
            .all(|layer| (layer.kv_heads, layer.head_dim) == (4, 256))
    );
    assert_eq!(found.attention.scale, 1.0 / 16.0);
    assert_eq!(found.ropes[0].theta, 1e6);
}

/// The fields whose absence matters, with the default of each architecture's class.
#[test]
fn absent_fields_have_the_defaults_of_the_architectures_class() {
    let apertus = json!({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let gpt_oss = json!({"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
        "original_max_position_embeddings": 4096});
    let ministral = json!({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "original_max_position_embeddings": 16384, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1});
    for (family, field, default) in [
        ("llama", "max_position_embeddings", json!(2048)),
        ("qwen3", "max_position_embeddings", json!(32768)),
        ("mistral-window", "max_position_embeddings", json!(131_072)),
        ("glm4", "rms_norm_eps", json!(1.5625e-7)),
        ("glm4", "num_key_value_heads", json!(2)),
        ("olmo2", "rms_norm_eps", json!(1e-5)),
        ("phi3", "rms_norm_eps", json!(1e-5)),
        ("glm4", "attention_bias", json!(true)),
        ("gpt-oss", "attention_bias", json!(true)),
        ("seed_oss", "attention_bias", json!(true)),
        ("deepseek_v2", "n_shared_experts", json!(2)),
        ("deepseek_v3", "n_shared_experts", json!(1)),
        ("deepseek_v3", "topk_group", json!(4)),
        ("glm4_moe", "n_shared_experts", json!(1)),
        ("nemotron_h-moe", "n_shared_experts", json!(1)),
        ("granite4-h-moe", "num_local_experts", json!(8)),
        ("granitemoe", "num_local_experts", json!(8)),
        ("gpt-oss", "num_experts_per_tok", json!(4)),
        ("qwen3-moe", "num_experts_per_tok", json!(8)),
        ("gemma2", "sliding_window", json!(4096)),
        ("exaone4", "sliding_window", json!(4096)),
        ("lfm3", "sliding_window", json!(256)),
        ("gemma4-wide", "head_dim", json!(256)),
        ("gemma4-dense", "global_head_dim", json!(512)),
        ("qwen3_5-wide", "linear_key_head_dim", json!(128)),
        (
            "smollm3",
            "rope_parameters",
            json!({"rope_theta": 2e6, "rope_type": "default"}),
        ),
        ("apertus", "rope_parameters", apertus),
        ("gpt-oss", "rope_parameters", gpt_oss),
        ("ministral3", "rope_parameters", ministral),
        ("gemma3", "vocab_size", json!(262_208)),
    ] {
        let json =
            std::fs::read(golden(family).join("config.json")).expect("the golden config reads");
        let mut config: Value = serde_json::from_slice(&json).expect("it is JSON");
        config[field] = default;
        let expected = spec(&config);
        config
            .as_object_mut()
            .expect("it is an object")
            .remove(field);
        assert_eq!(spec(&config), expected, "{family} without {field}");
    }
}

/// A field that is null is there, and another name of a field counts.
#[test]
fn defaults_replace_neither_null_nor_another_name() {
    let json =
        std::fs::read(golden("qwen3-moe").join("config.json")).expect("the golden config reads");
    let mut config: Value = serde_json::from_slice(&json).expect("it is JSON");
    let expected = spec(&config);
    let count = config["num_experts"]
        .as_u64()
        .or(config["num_local_experts"].as_u64())
        .expect("it has experts");
    for name in ["num_experts", "num_local_experts"] {
        let object = config.as_object_mut().expect("it is an object");
        ["num_experts", "num_local_experts"]
            .iter()
            .for_each(|name| drop(object.remove(*name)));
        config[name] = json!(count);
        assert_eq!(spec(&config), expected, "{name}");
    }
    config["vocab_size"] = Value::Null;
    let error = ModelSpec::from_json("config.json", config.to_string().as_bytes())
        .expect_err("null is no size");
    assert_eq!(error.to_string(), "config.json: vocab_size is missing");
}

/// As people add it for long contexts; transformers prefers it to `rope_parameters` and what that says.
#[test]
fn a_rope_scaling_beside_rope_parameters_counts() {
    let json = std::fs::read(golden("llama").join("config.json")).expect("the golden config reads");
    let base: Value = serde_json::from_slice(&json).expect("it is JSON");
    let ropes = |changes: Value| {
        let mut config = base.clone();
        config
            .as_object_mut()
            .expect("it is an object")
            .remove("rope_theta");
        changes
            .as_object()
            .expect("an object")
            .iter()
            .for_each(|(name, value)| config[name] = value.clone());
        spec(&config).ropes
    };
    let linear = json!({"type": "linear", "factor": 4.0});
    let parameters = json!({"rope_type": "default", "rope_theta": 5e5});
    let expected =
        ropes(json!({"rope_parameters": null, "rope_scaling": linear, "rope_theta": 1e4}));
    assert_eq!(
        ropes(json!({"rope_parameters": parameters, "rope_scaling": linear})),
        expected
    );
    let with_theta =
        json!({"rope_parameters": parameters, "rope_scaling": linear, "rope_theta": 5e5});
    let expected = ropes(
        json!({"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}}),
    );
    assert_eq!(ropes(with_theta), expected);
    let own_theta = json!({"rope_parameters": parameters,
        "rope_scaling": {"type": "linear", "factor": 4.0, "rope_theta": 5e5}});
    assert_eq!(ropes(own_theta), expected);
    let plain = ropes(json!({"rope_parameters": parameters}));
    for nothing in [json!({}), Value::Null] {
        assert_eq!(
            ropes(json!({"rope_parameters": parameters, "rope_scaling": nothing})),
            plain
        );
    }
    for unscaled in ["dynamic", "mrope", "default"] {
        let scaling = json!({"rope_type": unscaled, "factor": 4.0, "rope_theta": 5e5});
        assert_eq!(
            ropes(json!({"rope_parameters": scaling})),
            plain,
            "{unscaled}"
        );
    }
}

/// Where layers have rotations by their kind, it changes that of full attention.
#[test]
fn a_rope_scaling_changes_the_layers_with_full_attention() {
    let json =
        std::fs::read(golden("gemma3").join("config.json")).expect("the golden config reads");
    let mut config: Value = serde_json::from_slice(&json).expect("it is JSON");
    config["rope_scaling"] = json!({"rope_type": "linear", "factor": 4.0});
    let found = spec(&config).ropes;
    config["rope_scaling"] = Value::Null;
    config["rope_parameters"]["full_attention"]["rope_type"] = "linear".into();
    config["rope_parameters"]["full_attention"]["factor"] = 4.0.into();
    assert_eq!(found, spec(&config).ropes);
}
