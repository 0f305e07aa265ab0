//! Tests of towers' configs.

use super::*;
use serde_json::json;

fn read(change: &Value) -> Result<Option<ModelSpec>, LoadError> {
    let mut config = json!({
        "model_type": "smolvlm", "scale_factor": 4,
        "text_config": {
            "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 256,
        },
        "vision_config": {"hidden_size": 768, "image_size": 512, "patch_size": 16, "num_attention_heads": 12},
    });
    let target = config["vision_config"].as_object_mut().expect("an object");
    target.extend(change.as_object().expect("an object").clone());
    let json = config.to_string();
    let text =
        ModelSpec::from_json("config.json", json.as_bytes()).expect("the text model is known");
    ModelSpec::tower_from_json("config.json", json.as_bytes(), &text)
}

#[test]
fn a_tower_is_read_from_its_part_of_the_config_with_the_defaults_of_transformers() {
    let spec = read(&json!({}))
        .expect("it is read")
        .expect("there is a tower");
    let tower = spec.tower.expect("it is a tower");
    assert_eq!(
        (tower.patch, tower.merged, tower.out, tower.columns()),
        (16, 16, 64, 768)
    );
    assert_eq!(
        (spec.hidden, spec.query_heads, spec.positions_max),
        (768, 12, 1024)
    );
    assert_eq!(
        (
            spec.layers.len(),
            spec.layers[0].mlp,
            spec.layers[0].head_dim
        ),
        (12, 3072, 64)
    );
    assert!(spec.is_encoder());
}

#[test]
fn sizes_that_do_not_fit_together_are_refused_by_name() {
    for (change, field) in [
        (json!({"image_size": 510}), "image_size"),
        (json!({"image_size": 528}), "image_size"),
        (json!({"image_size": 8}), "image_size"),
        (json!({"patch_size": 0}), "patch_size"),
        (json!({"num_channels": 4}), "num_channels"),
        (json!({"hidden_act": "nope"}), "hidden_act"),
    ] {
        let error = read(&change).expect_err("it is refused").to_string();
        assert!(error.contains(field), "{change}: {error}");
    }
}

#[test]
fn a_model_of_text_alone_has_no_tower() {
    let json = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 256,
    })
    .to_string();
    let text = ModelSpec::from_json("config.json", json.as_bytes()).expect("it is known");
    let tower = ModelSpec::tower_from_json("config.json", json.as_bytes(), &text);
    assert_eq!(tower.expect("it is read"), None);
}

/// The tower of Mistral 3 with these changes of its config, and of the whole.
fn mistral3(vision: &Value, whole: &Value) -> Result<Option<ModelSpec>, LoadError> {
    let mut config = json!({
        "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.001,
            "max_position_embeddings": 256, "rope_theta": 10000.0,
        },
        "vision_config": {"model_type": "pixtral", "image_size": 1540, "patch_size": 14},
    });
    let object = config.as_object_mut().expect("an object");
    object.extend(whole.as_object().expect("an object").clone());
    let target = config["vision_config"].as_object_mut().expect("an object");
    target.extend(vision.as_object().expect("an object").clone());
    let json = config.to_string();
    let text =
        ModelSpec::from_json("config.json", json.as_bytes()).expect("the text model is known");
    ModelSpec::tower_from_json("config.json", json.as_bytes(), &text)
}

#[test]
fn the_tower_of_mistral_3_ends_with_a_norm_of_the_text_models_epsilon() {
    let spec = mistral3(&json!({}), &json!({})).expect("it is read");
    let spec = spec.expect("there is a tower");
    let tower = spec.tower.expect("it is a tower");
    assert_eq!((tower.merged, tower.out, tower.patch_bias), (4, 64, false));
    assert_eq!(tower.projector, Projector::MergeAndMlp(64));
    assert_eq!((tower.final_epsilon, spec.norm.epsilon), (0.001, 1e-5));
    assert_eq!((spec.positions_max, spec.hidden), (110 * 110, 1024));
    assert_eq!(spec.first_position, None);
}

#[test]
fn what_mistral_3_may_have_and_is_not_supported_is_refused_by_name() {
    let none = json!({});
    for (vision, whole, field) in [
        (
            json!({"model_type": "siglip"}),
            &none,
            "vision_config.model_type",
        ),
        (
            none.clone(),
            &json!({"vision_feature_layer": -2}),
            "vision_feature_layer",
        ),
        (
            none.clone(),
            &json!({"multimodal_projector_bias": true}),
            "multimodal_projector_bias",
        ),
        (
            none.clone(),
            &json!({"projector_hidden_act": "relu"}),
            "projector_hidden_act",
        ),
    ] {
        let error = mistral3(&vision, whole)
            .expect_err("it is refused")
            .to_string();
        assert!(error.contains(field), "{field}: {error}");
    }
}
