//! Fields of `config.json` of models whose layers have different numbers of query heads.

use super::super::families::Family;
use super::super::metadata::Metadata;
use super::layers;
use crate::model::error::LoadError;
use crate::model::source::TensorInfo;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const KEY: &str = "attention.head_count";

/// The number of query heads of each layer.
fn of_layers(metadata: &Metadata, family: &Family) -> Result<Vec<u32>, LoadError> {
    let blocks = family.required(metadata, "block_count")? as usize;
    let key = family.key(KEY);
    let heads = metadata.required(&key, metadata.integers_by_layer(&key, blocks)?)?;
    match heads.contains(&0) {
        true => Err(metadata.invalid(&key, "has a layer without heads")),
        false => Ok(heads),
    }
}

/// The number of query heads of the first layer.
pub(super) fn of_first_layer(metadata: &Metadata, family: &Family) -> Result<u32, LoadError> {
    let heads = of_layers(metadata, family)?.first().copied();
    metadata.required(&family.key(KEY), heads)
}

/// Sets the query heads of each layer, whether their gates are one a head or one an element, and the rotations of
/// layers with a window and without.
pub(super) fn fields(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(), LoadError> {
    let mut heads = of_layers(metadata, family)?;
    heads.truncate(layers(metadata, family)? as usize);
    let gate = tensors.get(&format!("{}.0.self_attn.g_proj.weight", family.layers));
    config["gating"] = match gate {
        None => false.into(),
        Some(gate) if gate.shape[0] == u64::from(heads[0]) => "per-head".into(),
        Some(_) => "per-element".into(),
    };
    if config.get("sliding_window").is_some() && config.get("layer_types").is_none() {
        // Files have no pattern: as in llama.cpp, the first of each four layers has no window.
        config["layer_types"] = (0..heads.len())
            .map(|layer| match layer % 4 {
                0 => "full_attention",
                _ => "sliding_attention",
            })
            .collect();
    }
    config["num_attention_heads_per_layer"] = heads.into();
    let head_dim = family.head_dim(metadata)?;
    let base = |key: &str| {
        let base = metadata.number(&family.key(key))?;
        Ok::<_, LoadError>(base.unwrap_or(10_000.0))
    };
    let rotated = |key: &str| {
        let rotated = family.integer(metadata, key)?.unwrap_or(head_dim);
        Ok::<_, LoadError>(f64::from(rotated) / f64::from(head_dim))
    };
    let mut global = match config["rope_scaling"].take() {
        Value::Object(scaling) => Value::Object(scaling),
        _ => json!({"rope_type": "default"}),
    };
    global["rope_theta"] = base("rope.freq_base")?.into();
    global["partial_rotary_factor"] = rotated("rope.dimension_count")?.into();
    config["rope_parameters"] = json!({
        "full_attention": global,
        "sliding_attention": {
            "rope_type": "default",
            "rope_theta": base("rope.freq_base_swa")?,
            "partial_rotary_factor": rotated("rope.dimension_count_swa")?,
        },
    });
    Ok(())
}
