//! The metadata of a file in the form of a `config.json`, and its tensors under the names of a checkpoint.

use super::metadata::Metadata;
use crate::model::LoadError;
use crate::model::source::TensorInfo;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How one architecture's files differ from the checkpoints they were made from.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`.
    name: &'static str,
    /// In `config.json`.
    architecture: &'static str,
    /// Rows of q and k stand in the order of interleaved rotation.
    interleaved: bool,
}

const fn family_of(name: &'static str, architecture: &'static str, interleaved: bool) -> Family {
    Family { name, architecture, interleaved }
}

/// Mistral's files call themselves llama.
const FAMILIES: [Family; 3] = [
    family_of("llama", "LlamaForCausalLM", true),
    family_of("qwen2", "Qwen2ForCausalLM", false),
    family_of("qwen3", "Qwen3ForCausalLM", false),
];

/// Names of a file's tensors and of a checkpoint's, without `.weight` and `.bias`.
const WHOLE_NAMES: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// As [`WHOLE_NAMES`], within a layer.
const LAYER_NAMES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The row that describes a file.
pub(super) fn family(metadata: &Metadata) -> Result<&'static Family, LoadError> {
    let key = "general.architecture";
    let found = metadata.required(key, metadata.text(key)?)?;
    FAMILIES.iter().find(|family| family.name == found).ok_or_else(|| LoadError::Architecture {
        file: metadata.file().into(),
        found: found.into(),
        known: FAMILIES.each_ref().map(|family| family.name).join(", "),
    })
}

impl Family {
    /// The name that a checkpoint gives to a tensor; unknown ones keep their own.
    pub(super) fn tensor_name(&self, own: &str) -> String {
        let find = |names: &[(&str, &'static str)], stem: &str| {
            names.iter().find(|(name, _)| *name == stem).map(|(_, theirs)| *theirs)
        };
        let Some((stem, suffix)) = own.rsplit_once('.') else { return own.into() };
        if let Some(theirs) = find(&WHOLE_NAMES, stem) {
            return format!("{theirs}.{suffix}");
        }
        let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        match layer.and_then(|(layer, stem)| Some((layer, find(&LAYER_NAMES, stem)?))) {
            Some((layer, theirs)) => format!("model.layers.{layer}.{theirs}.{suffix}"),
            None => own.into(),
        }
    }

    /// Rows of a head, for a tensor whose heads are interleaved.
    pub(super) fn interleaved_head(&self, own: &str, metadata: &Metadata) -> Result<Option<usize>, LoadError> {
        let is_rotated = own.ends_with(".attn_q.weight") || own.ends_with(".attn_k.weight");
        if !self.interleaved || !is_rotated {
            return Ok(None);
        }
        let head = self.head_dim(metadata)?;
        let rows = metadata.tensors().find(|(name, _)| *name == own).map_or(0, |(_, entry)| entry.shape[0]);
        if !rows.is_multiple_of(u64::from(head)) || head % 2 != 0 {
            let message = format!("has {rows} rows, which are not heads of {head}");
            return Err(metadata.fault(&format!("tensor {own:?}"), message));
        }
        Ok(Some(head as usize))
    }

    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.name)
    }

    fn integer(&self, metadata: &Metadata, key: &str) -> Result<Option<u32>, LoadError> {
        metadata.integer(&self.key(key), 1..=1 << 24)
    }

    fn required(&self, metadata: &Metadata, key: &str) -> Result<u32, LoadError> {
        metadata.required(&self.key(key), self.integer(metadata, key)?)
    }

    fn head_dim(&self, metadata: &Metadata) -> Result<u32, LoadError> {
        if let Some(dim) = self.integer(metadata, "attention.key_length")? {
            return Ok(dim);
        }
        let (hidden, heads) =
            (self.required(metadata, "embedding_length")?, self.required(metadata, "attention.head_count")?);
        if hidden % heads != 0 {
            let message = format!("is {heads}, which does not divide embedding_length = {hidden}");
            return Err(metadata.fault(&self.key("attention.head_count"), message));
        }
        Ok(hidden / heads)
    }
}

/// What a checkpoint's `config.json` would say.
pub(super) fn config_json(
    metadata: &Metadata,
    family: &Family,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Value, LoadError> {
    let required = |key: &str| family.required(metadata, key);
    let heads = required("attention.head_count")?;
    let head_dim = family.head_dim(metadata)?;
    let has = |name: &str| tensors.contains_key(name);
    // The table's length, not the metadata's, is what token ids are bounded by.
    let table = tensors.get("model.embed_tokens.weight").map(|info| info.shape[0]);
    let vocab = metadata.required("tensor \"token_embd.weight\"", table)?;
    if let Some(value_length) = family.integer(metadata, "attention.value_length")?.filter(|dim| *dim != head_dim) {
        let message = format!("is {value_length}, but keys have {head_dim}, which is not supported");
        return Err(metadata.fault(&family.key("attention.value_length"), message));
    }
    let epsilon_key = family.key("attention.layer_norm_rms_epsilon");
    let epsilon = metadata.required(&epsilon_key, metadata.number(&epsilon_key)?)?;
    let rotary = family.integer(metadata, "rope.dimension_count")?.unwrap_or(head_dim);
    let mut config = json!({
        "architectures": [family.architecture],
        "hidden_size": required("embedding_length")?,
        "num_hidden_layers": required("block_count")?,
        "intermediate_size": required("feed_forward_length")?,
        "num_attention_heads": heads,
        "num_key_value_heads": family.integer(metadata, "attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": required("context_length")?,
        "rms_norm_eps": epsilon,
        "rope_theta": metadata.number(&family.key("rope.freq_base"))?.unwrap_or(10_000.0),
        "partial_rotary_factor": f64::from(rotary) / f64::from(head_dim),
        "tie_word_embeddings": !has("lm_head.weight"),
        "attention_bias": has("model.layers.0.self_attn.q_proj.bias"),
        "mlp_bias": has("model.layers.0.mlp.gate_proj.bias"),
        "eos_token_id": super::vocabulary::end_tokens(metadata, vocab)?,
    });
    if let Some(scaling) = rope_scaling(metadata, family)? {
        config["rope_scaling"] = Value::Object(scaling);
    }
    if let Some(window) = family.integer(metadata, "attention.sliding_window")? {
        config["sliding_window"] = window.into();
    }
    Ok(config)
}

fn rope_scaling(metadata: &Metadata, family: &Family) -> Result<Option<Map<String, Value>>, LoadError> {
    let kind = metadata.text(&family.key("rope.scaling.type"))?;
    let Some(kind) = kind.filter(|kind| *kind != "none") else { return Ok(None) };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), kind.into());
    for (own, theirs) in [
        ("rope.scaling.factor", "factor"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.attn_factor", "attention_factor"),
    ] {
        if let Some(number) = metadata.number(&family.key(own))? {
            scaling.insert(theirs.into(), number.into());
        }
    }
    Ok(Some(scaling))
}
