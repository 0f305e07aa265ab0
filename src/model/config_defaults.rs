//! Fields that a `config.json` lacks have the values of the architecture's config class in transformers.

use super::families::Family;
use serde_json::{Map, Value};

/// By `model_type`, what the classes of transformers 5.24 set.
const DEFAULTS: &str = include_str!("families/defaults.json");

/// Fields that say the same as others: with one of the latter, the former is not absent.
const SYNONYMS: [(&str, &[&str]); 6] = [
    ("num_experts", &["num_local_experts"]),
    ("num_local_experts", &["num_experts"]),
    ("rope_parameters", &["rope_scaling"]),
    ("global_head_dim", &["per_layer_config"]),
    (
        "layers_block_type",
        &["hybrid_override_pattern", "layer_types"],
    ),
    ("n_groups", &["mamba_n_groups"]),
];

/// Adds what the config of a text model lacks. A field that is `null` is there, except for rotary embeddings, as in
/// transformers.
pub(super) fn complete(config: &mut Map<String, Value>, family: &Family) {
    for name in ["rope_parameters", "rope_scaling", "rope_theta"] {
        if config
            .get(name)
            .is_some_and(|value| value.is_null() || value.as_object().is_some_and(Map::is_empty))
        {
            config.remove(name);
        }
    }
    merge_rope_scaling(config);
    let all: Value = serde_json::from_str(DEFAULTS).expect("the table of defaults is JSON");
    let own = all[family.model_type]
        .as_object()
        .expect("every family has its defaults");
    for (name, default) in own {
        let synonyms = SYNONYMS
            .iter()
            .find(|(field, _)| field == name)
            .map_or(&[][..], |(_, others)| others);
        let usual = family.fields.iter().find(|(_, own)| own == name);
        let is_there = |other: &str| config.contains_key(other);
        let is_said = synonyms.iter().any(|other| is_there(other))
            || usual.is_some_and(|(usual, _)| is_there(usual));
        if !is_said {
            config.entry(name).or_insert_with(|| default.clone());
        }
    }
}

/// Of a `rope_scaling` beside `rope_parameters`, the former counts, as in transformers: people add it for long
/// contexts. It changes the layers with full attention if the latter has objects by the kind of layer, and replaces it
/// otherwise.
fn merge_rope_scaling(config: &mut Map<String, Value>) {
    let Some(Value::Object(scaling)) = config.get("rope_scaling").cloned() else {
        return;
    };
    let Some(Value::Object(parameters)) = config.get_mut("rope_parameters") else {
        return;
    };
    if let Some(Value::Object(full)) = parameters.get_mut("full_attention") {
        full.extend(scaling);
        config.remove("rope_scaling");
        return;
    }
    let has_theta = scaling.contains_key("rope_theta") || !parameters.contains_key("rope_theta");
    config.remove("rope_parameters");
    if !has_theta && !config.contains_key("rope_theta") {
        tracing::warn!(
            "rope_scaling replaces rope_parameters with its rope_theta: give rope_scaling a rope_theta"
        );
    }
}
