//! Fields that a config lacks have the defaults of the architecture's class in transformers.

use crate::{golden, packed, read_json, repository};
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

/// What `tests/real/defaults.py` has found out from transformers.
const CLASS_DEFAULTS: &str = "tests/data/class-defaults.json";
/// Fields that say how layers rotate: what the class sets is one of them.
const ROTATIONS: [&str; 4] = [
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_local_base_freq",
];

/// The object of a config that describes the model of text.
fn text_config(config: &mut Value) -> &mut serde_json::Map<String, Value> {
    let own = match config.get("text_config") {
        Some(_) => &mut config["text_config"],
        None => config,
    };
    own.as_object_mut().expect("a config is an object")
}

/// Every field of every family's class: a config without it is read as one that has its default.
#[test]
fn absent_fields_have_the_defaults_of_the_architectures_class() {
    let models = read_json(&repository(CLASS_DEFAULTS));
    let mut others = Vec::new();
    for (model, defaults) in models.as_object().expect("models by their names") {
        let config = read_json(&packed::model(model).join("config.json"));
        for (field, default) in defaults.as_object().expect("fields by their names") {
            let mut without = config.clone();
            let names = match field.as_str() {
                "rope_parameters" => &ROTATIONS[..],
                field => &[field],
            };
            names
                .iter()
                .for_each(|name| drop(text_config(&mut without).remove(*name)));
            let mut with = without.clone();
            text_config(&mut with).insert(field.clone(), default.clone());
            let [without, with] = [without, with]
                .map(|config| ModelSpec::from_json("config.json", config.to_string().as_bytes()))
                .map(Result::ok);
            if without != with {
                others.push(format!(
                    "{model} without {field}, whose default is {default}"
                ));
            }
        }
    }
    assert!(others.is_empty(), "{}", others.join("\n"));
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
