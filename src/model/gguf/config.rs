//! Translates a file's metadata to a `config.json`.

mod query_heads;
mod states;

use super::families::{Family, Windows};
use super::metadata::Metadata;
use super::reader;
use crate::model::error::LoadError;
use crate::model::rope::damping;
use crate::model::source::TensorInfo;
use crate::model::spec::LAYERS_MAX;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The equivalent `config.json`.
pub(super) fn config_json(
    metadata: &Metadata,
    family: &Family,
    tensors: &BTreeMap<String, TensorInfo>,
    factors: &[Vec<f32>; 2],
) -> Result<Value, LoadError> {
    let has = |name: &str| tensors.contains_key(name);
    let mut config = sizes(metadata, family, tensors)?;
    set_norms_and_router(metadata, family, &mut config)?;
    for (field, present) in options(&has) {
        config[field] = present.into();
    }
    for field in family.set {
        config[*field] = true.into();
    }
    for (field, number) in family.constants {
        config[*field] = (*number).into();
    }
    for (key, field) in family.numbers {
        if let Some(number) = metadata.integer_or_number(&family.key(key))? {
            config[*field] = number;
        }
    }
    let experts = family.integer(metadata, "expert_count")?;
    if experts.is_some() && experts == family.unnormed_experts {
        config["use_qk_norm"] = false.into();
    }
    let scaling = match factors {
        [short, long] if short.is_empty() && long.is_empty() => rope_scaling(metadata, family)?,
        [short, long] => Some(longrope(metadata, family, short, long)?),
    };
    config["rope_scaling"] = scaling.map_or(Value::Null, Value::Object);
    if family.latent {
        latent(metadata, family, &mut config)?;
    }
    layers_differ(metadata, family, &mut config, &has)?;
    if family.query_heads_by_layer {
        query_heads::fields(metadata, family, &mut config, tensors)?;
    }
    if family.keeps_states() {
        states::fields(metadata, family, &mut config, tensors)?;
    }
    Ok(config)
}

/// The sizes that all models have, the scale of attention, and how its heads rotate.
fn sizes(
    metadata: &Metadata,
    family: &Family,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Value, LoadError> {
    let heads = match family.query_heads_by_layer {
        true => query_heads::of_first_layer(metadata, family)?,
        false => family.required(metadata, "attention.head_count")?,
    };
    let head_dim = family.head_dim(metadata)?;
    let hidden = family.required(metadata, "embedding_length")?;
    let layers = layers(metadata, family)?;
    // Token ids are bounded by the length of the embedding table, not by the metadata.
    let table = tensors
        .get(&family.tensor_name("token_embd.weight"))
        .map(|info| info.shape[0]);
    let vocab = metadata.required("tensor \"token_embd.weight\"", table)?;
    check_values(metadata, family, head_dim)?;
    let rotary = family
        .integer(metadata, "rope.dimension_count")?
        .unwrap_or(head_dim);
    let scalar = if family.wide_layers == Some(layers) {
        f64::from(hidden) / f64::from(heads)
    } else {
        head_dim.into()
    };
    Ok(json!({
        "architectures": [family.architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": null,
        "num_attention_heads": heads,
        "num_key_value_heads": null,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": family.required(metadata, "context_length")?,
        "rope_theta": metadata.number(&family.key("rope.freq_base"))?.unwrap_or(10_000.0),
        "partial_rotary_factor": f64::from(rotary) / f64::from(head_dim),
        "query_pre_attn_scalar": scalar,
        "attention_multiplier": 1.0 / f64::from(head_dim).sqrt(),
        "eos_token_id": super::vocabulary::end_tokens(metadata, vocab)?,
    }))
}

/// The number of layers. The last blocks may predict further tokens; they are not read.
fn layers(metadata: &Metadata, family: &Family) -> Result<u32, LoadError> {
    let predicting = metadata.integer(&family.key("nextn_predict_layers"), 0..=LAYERS_MAX)?;
    let blocks = family.required(metadata, "block_count")?;
    Ok(blocks.saturating_sub(predicting.unwrap_or(0)))
}

/// Sets the epsilon of norms, whether the weights of experts are normalized, and how many layers have none, under the
/// names of all architectures.
fn set_norms_and_router(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
) -> Result<(), LoadError> {
    let epsilon = epsilon(metadata, family)?;
    for field in [
        "rms_norm_eps",
        "layer_norm_eps",
        "norm_epsilon",
        "norm_eps",
        "layer_norm_epsilon",
    ] {
        config[field] = epsilon.into();
    }
    let normalizes = metadata.boolean(&family.key("expert_weights_norm"))?;
    config["norm_topk_prob"] = normalizes.unwrap_or(family.normalizes).into();
    let dense = metadata.integer(&family.key("leading_dense_block_count"), 0..=LAYERS_MAX)?;
    for field in ["first_k_dense_replace", "num_dense_layers"] {
        config[field] = dense.unwrap_or(0).into();
    }
    Ok(())
}

/// Fails if the metadata asks for something that changes the results and is not supported.
pub(super) fn check_supported(metadata: &Metadata, family: &Family) -> Result<(), LoadError> {
    if let Some(kind) = metadata
        .text("general.type")?
        .filter(|kind| *kind != "model")
    {
        return Err(metadata.invalid("general.type", format!("is {kind:?}, not a model")));
    }
    for (key, usual) in [("attention.causal", true), ("use_parallel_residual", false)] {
        let key = family.key(key);
        if metadata.boolean(&key)?.is_some_and(|given| given != usual) {
            return Err(metadata.invalid(&key, format!("is {}, which is not supported", !usual)));
        }
    }
    for key in ["attention.clamp_kqv", "attention.max_alibi_bias"] {
        let key = family.key(key);
        if let Some(given) = metadata.number(&key)?.filter(|given| *given != 0.0) {
            return Err(metadata.invalid(&key, format!("is {given}, which is not supported")));
        }
    }
    Ok(())
}

/// Fails unless a head of v is as long as one of k, where the plan has it so.
fn check_values(metadata: &Metadata, family: &Family, head_dim: u32) -> Result<(), LoadError> {
    if let Some(value_length) = family
        .integer(metadata, "attention.value_length")?
        .filter(|dim| *dim != head_dim && !family.latent)
    {
        let message =
            format!("is {value_length}, but keys have {head_dim}, which is not supported");
        return Err(metadata.invalid(&family.key("attention.value_length"), message));
    }
    Ok(())
}

/// The sizes of latent attention. Older files have the lengths of heads under the usual keys, newer ones under keys of
/// their own, since there the usual keys describe what is cached.
fn latent(metadata: &Metadata, family: &Family, config: &mut Value) -> Result<(), LoadError> {
    let length = |own: &str, usual: &str| match family.integer(metadata, own)? {
        Some(length) => Ok(length),
        None => family.required(metadata, usual),
    };
    let key = length("attention.key_length_mla", "attention.key_length")?;
    let rotated = family.required(metadata, "rope.dimension_count")?;
    if rotated >= key {
        let message = format!("is {rotated}, but heads have {key} elements");
        return Err(metadata.invalid(&family.key("rope.dimension_count"), message));
    }
    config["q_lora_rank"] = family.integer(metadata, "attention.q_lora_rank")?.into();
    config["kv_lora_rank"] = family.required(metadata, "attention.kv_lora_rank")?.into();
    config["qk_rope_head_dim"] = rotated.into();
    config["qk_nope_head_dim"] = (key - rotated).into();
    config["v_head_dim"] = length("attention.value_length_mla", "attention.value_length")?.into();
    config["partial_rotary_factor"] = 1.0.into();
    // Files of DeepSeek V2 do not say how scores are computed.
    let gating = family.integer(metadata, "expert_gating_func")?.unwrap_or(1);
    let is_deepseek = family.architecture == "DeepseekV2ForCausalLM";
    match gating {
        1 => config["topk_method"] = "group_limited_greedy".into(),
        2 if is_deepseek => config["architectures"] = json!(["DeepseekV3ForCausalLM"]),
        _ => {
            let message = format!("is {gating}, not 1 (softmax) or 2 (sigmoid)");
            return Err(metadata.invalid(&family.key("expert_gating_func"), message));
        }
    }
    Ok(())
}

/// What may differ from layer to layer: windows, sizes, rotation.
fn layers_differ(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
    has: &dyn Fn(&str) -> bool,
) -> Result<(), LoadError> {
    windows(metadata, family, config)?;
    if family.sizes_by_layer {
        sizes_by_layer(metadata, family, config, has)?;
    } else if family.kinds.is_some() {
        // Layers without attention, or without an MLP, have zeros.
        let layers = family.required(metadata, "block_count")? as usize;
        for (key, field) in [
            ("feed_forward_length", "intermediate_size"),
            ("attention.head_count_kv", "num_key_value_heads"),
        ] {
            let sizes = metadata
                .integers_by_layer(&family.key(key), layers)?
                .unwrap_or_default();
            config[field] = sizes.into_iter().max().filter(|size| *size > 0).into();
        }
    } else {
        config[family.mlp_field] = family.integer(metadata, "feed_forward_length")?.into();
        config["num_key_value_heads"] = match family.integer(metadata, "attention.head_count_kv")? {
            Some(heads) => heads.into(),
            None => config["num_attention_heads"].clone(),
        };
    }
    if let Some(rotated) = metadata.booleans(&family.key("attention.rope_pattern"))? {
        config["no_rope_layers"] = rotated.into_iter().map(u32::from).collect();
    }
    // Granite 4 has no rotation if this flag is false; in files of others it means nothing.
    let rotates = metadata
        .boolean(&family.key("rope.scaling.finetuned"))?
        .unwrap_or(true);
    config["position_embedding_type"] = if rotates { "rope" } else { "nope" }.into();
    Ok(())
}

/// The epsilon of RMS norms, or of LayerNorms.
fn epsilon(metadata: &Metadata, family: &Family) -> Result<f64, LoadError> {
    let key = family.key("attention.layer_norm_rms_epsilon");
    let epsilon = match metadata.number(&key)? {
        Some(epsilon) => Some(epsilon),
        None => metadata.number(&family.key("attention.layer_norm_epsilon"))?,
    };
    metadata.required(&key, epsilon)
}

/// Fields of `config.json` that say which tensors there are; here, the tensors themselves do.
fn options(has: &dyn Fn(&str) -> bool) -> [(&'static str, bool); 7] {
    let attention = |name: &str| has(&format!("model.layers.0.self_attn.{name}"));
    let is_biased = attention("q_proj.bias") || attention("qkv_proj.bias");
    let mlp = |name: &str| has(&format!("model.layers.0.mlp.{name}"));
    [
        ("tie_word_embeddings", !has("lm_head.weight")),
        ("attention_bias", is_biased),
        ("qkv_bias", is_biased),
        ("use_bias", is_biased),
        ("attention_out_bias", attention("o_proj.bias")),
        ("use_qk_norm", attention("q_norm.weight")),
        ("mlp_bias", mlp("gate_proj.bias") || mlp("up_proj.bias")),
    ]
}

/// The sizes of heads and MLPs of each layer, and what else differs by layer.
fn sizes_by_layer(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
    has: &dyn Fn(&str) -> bool,
) -> Result<(), LoadError> {
    let layers = family.required(metadata, "block_count")? as usize;
    let by_layer = |name: &str| {
        let found = metadata.integers_by_layer(&family.key(name), layers)?;
        metadata.required(&family.key(name), found)
    };
    let (heads, mlps) = (
        by_layer("attention.head_count_kv")?,
        by_layer("feed_forward_length")?,
    );
    let slides = slides(config, layers);
    set_heads(metadata, family, config, &heads, &slides)?;
    set_ropes(metadata, family, config)?;
    config["intermediate_size"] = mlps.first().copied().into();
    config["use_double_wide_mlp"] = (mlps.first() != mlps.last()).into();
    let shared = metadata.integer(&family.key("attention.shared_kv_layers"), 0..=LAYERS_MAX)?;
    config["num_kv_shared_layers"] = shared.unwrap_or(0).into();
    let global = slides.iter().position(|slides| !slides);
    let value_is_key =
        global.is_some_and(|layer| !has(&format!("model.layers.{layer}.self_attn.v_proj.weight")));
    config["attention_k_eq_v"] = value_is_key.into();
    config["enable_moe_block"] = config.get("num_experts").is_some().into();
    Ok(())
}

/// For each layer, whether it has a sliding window.
fn slides(config: &Value, layers: usize) -> Vec<bool> {
    if let Some(kinds) = config["layer_types"].as_array() {
        let slides = kinds.iter().map(|kind| kind == "sliding_attention");
        return slides.collect();
    }
    let every = config["sliding_window_pattern"].as_u64().unwrap_or(6);
    let every = every.max(1) as usize;
    (1..=layers).map(|layer| layer % every != 0).collect()
}

/// Sets the heads of each layer, whose size depends on whether it has a window.
fn set_heads(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
    heads: &[u32],
    slides: &[bool],
) -> Result<(), LoadError> {
    let global_dim = family.head_dim(metadata)?;
    let local_dim = family
        .integer(metadata, "attention.key_length_swa")?
        .unwrap_or(global_dim);
    let own = heads.iter().zip(slides).map(|(heads, slides)| {
        let dim = if *slides { local_dim } else { global_dim };
        json!({"head_dim": dim, "num_key_value_heads": heads})
    });
    let own = own.enumerate().map(|(layer, own)| (layer.to_string(), own));
    config["per_layer_config"] = own.collect::<Map<_, _>>().into();
    config["head_dim"] = local_dim.into();
    config["num_key_value_heads"] = heads.first().copied().into();
    Ok(())
}

/// Sets the rotary embeddings of layers without a window, and of those with one.
fn set_ropes(metadata: &Metadata, family: &Family, config: &mut Value) -> Result<(), LoadError> {
    let global = metadata.number(&family.key("rope.freq_base"))?;
    let local = metadata.number(&family.key("rope.freq_base_swa"))?;
    config["rope_parameters"] = json!({
        "full_attention": {"rope_type": "default", "rope_theta": global},
        "sliding_attention": {"rope_type": "default", "rope_theta": local.unwrap_or(10_000.0)},
    });
    config["partial_rotary_factor"] = 1.0.into();
    Ok(())
}

/// Sets the window length, and which layers have a sliding window.
fn windows(metadata: &Metadata, family: &Family, config: &mut Value) -> Result<(), LoadError> {
    let key = family.key("attention.sliding_window");
    let window = metadata
        .integer(&key, 0..=u32::MAX)?
        .filter(|window| *window > 0);
    match (&family.windows, window) {
        (Windows::Ignored, _) | (_, None) if !matches!(family.windows, Windows::Config(_)) => {
            return Ok(());
        }
        (Windows::Architecture(name), _) => config["architectures"] = json!([name]),
        _ => {}
    }
    let default = if let Windows::Config(default) = family.windows {
        default
    } else {
        None
    };
    let Some(window) = window.or(default) else {
        // A pattern of 1 means that no layer has a window.
        config["sliding_window_pattern"] = 1.into();
        return Ok(());
    };
    config["sliding_window"] = window.into();
    let key = family.key("attention.sliding_window_pattern");
    if matches!(metadata.get(&key), Some(reader::Value::List(_))) {
        let slides = metadata.booleans(&key)?.unwrap_or_default().into_iter();
        config["layer_types"] = slides
            .map(|slides| {
                if slides {
                    "sliding_attention"
                } else {
                    "full_attention"
                }
            })
            .collect();
    } else if let Some(every) = family.integer(metadata, "attention.sliding_window_pattern")? {
        config["sliding_window_pattern"] = every.into();
    }
    Ok(())
}

/// Longrope, whose two lists of divisors are tensors.
fn longrope(
    metadata: &Metadata,
    family: &Family,
    short: &[f32],
    long: &[f32],
) -> Result<Map<String, Value>, LoadError> {
    let positions = family.required(metadata, "rope.scaling.original_context_length")?;
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), "longrope".into());
    scaling.insert("short_factor".into(), short.into());
    scaling.insert("long_factor".into(), long.into());
    scaling.insert("original_max_position_embeddings".into(), positions.into());
    if let Some(factor) = metadata.number(&family.key("rope.scaling.attn_factor"))? {
        scaling.insert("attention_factor".into(), factor.into());
    }
    Ok(scaling)
}

/// How frequencies are stretched otherwise; `None` if they are not.
fn rope_scaling(
    metadata: &Metadata,
    family: &Family,
) -> Result<Option<Map<String, Value>>, LoadError> {
    let factor = match metadata.number(&family.key("rope.scaling.factor"))? {
        Some(factor) => Some(factor),
        // The key of files before November 2023.
        None => metadata.number(&family.key("rope.scale_linear"))?,
    };
    let factor = factor.filter(|factor| *factor != 0.0);
    let kind = metadata
        .text(&family.key("rope.scaling.type"))?
        .or(factor.map(|_| "linear"));
    let Some(kind) = kind.filter(|kind| *kind != "none") else {
        return Ok(None);
    };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), kind.into());
    scaling.insert("truncate".into(), (!family.fractional_ramp).into());
    for (own, theirs) in ROPE_NUMBERS {
        if let Some(number) = metadata.number(&family.key(own))? {
            scaling.insert(theirs.into(), number.into());
        }
    }
    scaling.extend(factor.map(|factor| ("factor".to_owned(), factor.into())));
    let slope = metadata.number(&family.key("rope.scaling.yarn_log_multiplier"))?;
    if let Some(slope) = slope.filter(|slope| *slope != 0.0) {
        // With a latent, the file has what ln(factor) is multiplied by, and cos and sin are not scaled.
        let (mscale, all) = if family.latent {
            (10.0 * slope, 10.0 * slope)
        } else {
            (1.0, slope)
        };
        scaling.insert("mscale".into(), mscale.into());
        scaling.insert("mscale_all_dim".into(), all.into());
    }
    if kind == "yarn"
        && let Some(times) = metadata.number(&family.key("rope.scaling.attn_factor"))?
    {
        let plain = attention_factor(&scaling, factor.unwrap_or(1.0));
        scaling.insert("attention_factor".into(), (plain * times).into());
    }
    Ok(Some(scaling))
}

/// Numbers of YaRN and their fields.
const ROPE_NUMBERS: [(&str, &str); 5] = [
    (
        "rope.scaling.original_context_length",
        "original_max_position_embeddings",
    ),
    ("rope.scaling.yarn_attn_factor", "attention_factor"),
    ("rope.scaling.yarn_beta_fast", "beta_fast"),
    ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ("attention.temperature_scale", "llama_4_scaling_beta"),
];

/// What YaRN multiplies cos and sin by, as these fields say. The key `attn_factor` multiplies it.
fn attention_factor(scaling: &Map<String, Value>, factor: f64) -> f64 {
    let given = |name: &str| scaling.get(name).and_then(Value::as_f64);
    if let Some(given) = given("attention_factor") {
        return given;
    }
    match (given("mscale"), given("mscale_all_dim")) {
        (Some(slope), Some(all)) => damping(slope, factor) / damping(all, factor),
        _ => damping(1.0, factor),
    }
}
