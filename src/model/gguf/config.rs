//! Translates a file's metadata to a `config.json`, and its tensor names to those of a checkpoint.

use super::metadata::Metadata;
use super::reader;
use crate::model::LoadError;
use crate::model::source::TensorInfo;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// How one architecture's GGUF files differ from the checkpoints they were converted from.
#[derive(Debug)]
pub(super) struct Family {
    /// `general.architecture`.
    name: &'static str,
    /// Name of the architecture in `config.json`.
    architecture: &'static str,
    /// Whether rows of q and k are stored in the order of interleaved rotation.
    interleaved: bool,
    /// Tensor names within a layer whose meaning differs from [`LAYER_NAMES`].
    layer_names: &'static [(&'static str, &'static str)],
    /// Metadata keys of numbers (after the architecture's prefix) and their fields in `config.json`; zero counts as
    /// absent.
    numbers: &'static [(&'static str, &'static str)],
    windows: Windows,
    /// Models with this many layers divide q · k by √(hidden / heads) instead of √head_dim; no metadata key says so.
    wide_layers: Option<u32>,
    /// The YaRN ramp may end at a fractional pair index; no metadata key says so.
    fractional_ramp: bool,
}

/// The meaning of `attention.sliding_window`; zero counts as absent.
#[derive(Debug)]
enum Windows {
    /// None: files may have the key, but no layer has a window.
    Ignored,
    /// If set, the architecture is this one.
    Architecture(&'static str),
    /// The same as in the config; the number is the default.
    Config(Option<u32>),
    /// If set, this is a variant of the architecture that is not supported.
    Refused,
}

const LLAMA: Family = Family {
    name: "llama",
    architecture: "LlamaForCausalLM",
    interleaved: true,
    layer_names: &[],
    numbers: &[],
    // Mistral's files have the architecture llama, and most do not set the window.
    windows: Windows::Architecture("MistralForCausalLM"),
    wide_layers: None,
    fractional_ramp: false,
};

const QWEN2: Family =
    Family { name: "qwen2", architecture: "Qwen2ForCausalLM", interleaved: false, windows: Windows::Ignored, ..LLAMA };

const QWEN3: Family = Family { name: "qwen3", architecture: "Qwen3ForCausalLM", ..QWEN2 };

const QWEN3_MOE: Family = Family {
    name: "qwen3moe",
    architecture: "Qwen3MoeForCausalLM",
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "moe_intermediate_size"),
    ],
    ..QWEN2
};

/// Norm weights are stored as `1 + w`, as in Gemma 3.
const GEMMA2: Family = Family {
    name: "gemma2",
    architecture: "Gemma2ForCausalLM",
    layer_names: &[("ffn_norm", "pre_feedforward_layernorm")],
    numbers: &[
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ],
    windows: Windows::Config(Some(4096)),
    wide_layers: Some(46),
    ..QWEN2
};

const GEMMA3: Family = Family {
    name: "gemma3",
    architecture: "Gemma3ForCausalLM",
    numbers: &[("final_logit_softcapping", "final_logit_softcapping"), ("rope.freq_base_swa", "rope_local_base_freq")],
    windows: Windows::Config(None),
    wide_layers: Some(62),
    ..GEMMA2
};

const PHI3: Family = Family {
    name: "phi3",
    architecture: "Phi3ForCausalLM",
    layer_names: &[("ffn_up", "mlp.gate_up_proj")],
    windows: Windows::Config(None),
    ..QWEN2
};

const SMOLLM3: Family =
    Family { name: "smollm3", architecture: "SmolLM3ForCausalLM", windows: Windows::Ignored, ..LLAMA };

/// OLMo 3 files also have the architecture olmo2.
const OLMO2: Family = Family { name: "olmo2", architecture: "Olmo2ForCausalLM", windows: Windows::Refused, ..QWEN2 };

const GRANITE: Family = Family {
    name: "granite",
    architecture: "GraniteForCausalLM",
    numbers: &[
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ],
    windows: Windows::Ignored,
    ..LLAMA
};

const GPT_OSS: Family = Family {
    name: "gpt-oss",
    architecture: "GptOssForCausalLM",
    numbers: &[
        ("expert_count", "num_experts"),
        ("expert_used_count", "num_experts_per_tok"),
        ("expert_feed_forward_length", "intermediate_size"),
    ],
    windows: Windows::Config(None),
    fractional_ramp: true,
    ..QWEN2
};

/// To add an architecture, add a row here.
const FAMILIES: [&Family; 11] =
    [&LLAMA, &QWEN2, &QWEN3, &QWEN3_MOE, &GEMMA2, &GEMMA3, &PHI3, &SMOLLM3, &OLMO2, &GRANITE, &GPT_OSS];

/// Names of tensors outside layers, in GGUF and in a checkpoint, without `.weight` and `.bias`.
const WHOLE_NAMES: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The same within a layer. For names with `{e}`, GGUF has one tensor for all experts and a checkpoint one per expert.
const LAYER_NAMES: [(&str, &str); 19] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_sinks", "self_attn.sinks"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.{e}.gate_proj"),
    ("ffn_up_exps", "mlp.experts.{e}.up_proj"),
    ("ffn_down_exps", "mlp.experts.{e}.down_proj"),
];

/// The row for a file's architecture.
pub(super) fn family(metadata: &Metadata) -> Result<&'static Family, LoadError> {
    let key = "general.architecture";
    let found = metadata.required(key, metadata.text(key)?)?;
    FAMILIES.into_iter().find(|family| family.name == found).ok_or_else(|| LoadError::Architecture {
        file: metadata.file().into(),
        found: found.into(),
        known: FAMILIES.map(|family| family.name).join(", "),
    })
}

impl Family {
    /// The checkpoint's name of a tensor; with `{e}`, of the tensors it is split into. Unknown names are kept.
    pub(super) fn tensor_name(&self, own: &str) -> String {
        let find = |names: &[(&str, &'static str)], stem: &str| {
            names.iter().find(|(name, _)| *name == stem).map(|(_, theirs)| *theirs)
        };
        let Some((stem, suffix)) = own.rsplit_once('.') else { return own.into() };
        if let Some(theirs) = find(&WHOLE_NAMES, stem) {
            return format!("{theirs}.{suffix}");
        }
        let layer = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        let named = |stem: &str| find(self.layer_names, stem).or_else(|| find(&LAYER_NAMES, stem));
        match layer.and_then(|(layer, stem)| Some((layer, named(stem)?))) {
            Some((layer, theirs)) => format!("model.layers.{layer}.{theirs}.{suffix}"),
            None => own.into(),
        }
    }

    /// Rows per head, if the tensor's heads are stored interleaved.
    pub(super) fn interleaved_head(&self, own: &str, metadata: &Metadata) -> Result<Option<usize>, LoadError> {
        let is_rotated = [".attn_q.weight", ".attn_k.weight", ".attn_q.bias", ".attn_k.bias"];
        let is_rotated = is_rotated.iter().any(|name| own.ends_with(name));
        if !self.interleaved || !is_rotated {
            return Ok(None);
        }
        let head = self.head_dim(metadata)?;
        let rows = metadata.tensors().find(|(name, _)| *name == own).map_or(0, |(_, entry)| entry.shape[0]);
        if !rows.is_multiple_of(u64::from(head)) || head % 2 != 0 {
            let message = format!("has {rows} rows, not a multiple of the head size {head}");
            return Err(metadata.invalid(&format!("tensor {own:?}"), message));
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
            return Err(metadata.invalid(&self.key("attention.head_count"), message));
        }
        Ok(hidden / heads)
    }
}

/// The equivalent `config.json`.
pub(super) fn config_json(
    metadata: &Metadata,
    family: &Family,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<Value, LoadError> {
    let required = |key: &str| family.required(metadata, key);
    let heads = required("attention.head_count")?;
    let head_dim = family.head_dim(metadata)?;
    let (hidden, layers) = (required("embedding_length")?, required("block_count")?);
    let has = |name: &str| tensors.contains_key(name);
    // Token ids are bounded by the length of the embedding table, not by the metadata.
    let table = tensors.get("model.embed_tokens.weight").map(|info| info.shape[0]);
    let vocab = metadata.required("tensor \"token_embd.weight\"", table)?;
    if let Some(value_length) = family.integer(metadata, "attention.value_length")?.filter(|dim| *dim != head_dim) {
        let message = format!("is {value_length}, but keys have {head_dim}, which is not supported");
        return Err(metadata.invalid(&family.key("attention.value_length"), message));
    }
    let epsilon_key = family.key("attention.layer_norm_rms_epsilon");
    let epsilon = metadata.required(&epsilon_key, metadata.number(&epsilon_key)?)?;
    let rotary = family.integer(metadata, "rope.dimension_count")?.unwrap_or(head_dim);
    let is_wide = family.wide_layers == Some(layers);
    let mut config = json!({
        "architectures": [family.architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": family.integer(metadata, "feed_forward_length")?,
        "num_attention_heads": heads,
        "num_key_value_heads": family.integer(metadata, "attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": required("context_length")?,
        "rms_norm_eps": epsilon,
        "rope_theta": metadata.number(&family.key("rope.freq_base"))?,
        "partial_rotary_factor": f64::from(rotary) / f64::from(head_dim),
        "query_pre_attn_scalar": if is_wide { f64::from(hidden) / f64::from(heads) } else { head_dim.into() },
        "attention_multiplier": 1.0 / f64::from(head_dim).sqrt(),
        "norm_topk_prob": true,
        "tie_word_embeddings": !has("lm_head.weight"),
        "attention_bias": has("model.layers.0.self_attn.q_proj.bias"),
        "mlp_bias": has("model.layers.0.mlp.gate_proj.bias"),
        "eos_token_id": super::vocabulary::end_tokens(metadata, vocab)?,
    });
    for (key, field) in family.numbers {
        if let Some(number) = metadata.integer_or_number(&family.key(key))? {
            config[*field] = number;
        }
    }
    if let Some(scaling) = rope_scaling(metadata, family)? {
        config["rope_scaling"] = Value::Object(scaling);
    }
    windows(metadata, family, &mut config)?;
    if let Some(rotated) = metadata.booleans(&family.key("attention.rope_pattern"))? {
        config["no_rope_layers"] = rotated.into_iter().map(u32::from).collect();
    }
    Ok(config)
}

/// Sets the window length, and which layers have a sliding window.
fn windows(metadata: &Metadata, family: &Family, config: &mut Value) -> Result<(), LoadError> {
    let key = family.key("attention.sliding_window");
    let window = metadata.integer(&key, 0..=u32::MAX)?.filter(|window| *window > 0);
    match (&family.windows, window) {
        (Windows::Ignored, _) | (_, None) if !matches!(family.windows, Windows::Config(_)) => return Ok(()),
        (Windows::Refused, _) => {
            let message = format!("is set, which is not supported in files of {}", family.name);
            return Err(metadata.invalid(&key, message));
        }
        (Windows::Architecture(name), _) => config["architectures"] = json!([name]),
        _ => {}
    }
    let default = if let Windows::Config(default) = family.windows { default } else { None };
    let Some(window) = window.or(default) else {
        // A pattern of 1 means that no layer has a window.
        config["sliding_window_pattern"] = 1.into();
        return Ok(());
    };
    config["sliding_window"] = window.into();
    let key = family.key("attention.sliding_window_pattern");
    if matches!(metadata.get(&key), Some(reader::Value::List(_))) {
        let slides = metadata.booleans(&key)?.unwrap_or_default().into_iter();
        let kind = |slides| if slides { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = slides.map(kind).collect();
    } else if let Some(every) = family.integer(metadata, "attention.sliding_window_pattern")? {
        config["sliding_window_pattern"] = every.into();
    }
    Ok(())
}

fn rope_scaling(metadata: &Metadata, family: &Family) -> Result<Option<Map<String, Value>>, LoadError> {
    let kind = metadata.text(&family.key("rope.scaling.type"))?;
    let Some(kind) = kind.filter(|kind| *kind != "none") else { return Ok(None) };
    let mut scaling = Map::new();
    scaling.insert("rope_type".into(), kind.into());
    scaling.insert("truncate".into(), (!family.fractional_ramp).into());
    for (own, theirs) in [
        ("rope.scaling.factor", "factor"),
        ("rope.scaling.original_context_length", "original_max_position_embeddings"),
        ("rope.scaling.yarn_attn_factor", "attention_factor"),
        ("rope.scaling.yarn_beta_fast", "beta_fast"),
        ("rope.scaling.yarn_beta_slow", "beta_slow"),
    ] {
        if let Some(number) = metadata.number(&family.key(own))? {
            scaling.insert(theirs.into(), number.into());
        }
    }
    if let Some(slope) = metadata.number(&family.key("rope.scaling.yarn_log_multiplier"))?.filter(|slope| *slope != 0.0)
    {
        scaling.insert("mscale".into(), 1.0.into());
        scaling.insert("mscale_all_dim".into(), slope.into());
    }
    Ok(Some(scaling))
}
