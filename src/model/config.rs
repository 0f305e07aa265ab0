//! Reads a [`ModelSpec`] from a `config.json`.
//!
//! A row of [`FAMILIES`] says how one architecture's config is read. Every number is validated here, once.
//! `torch_dtype` and `dtype` are not read: weights keep the element types of the checkpoint.

use super::LoadError;
use super::config_reader::{self, ConfigReader};
use super::families::{ActivationField, Bias, Experts, FAMILIES, Family, Ropes, Scales, Windows};
use super::rope::RopeSpec;
use super::spec::{AttentionSpec, EXPERTS_MAX, ExpertsSpec, IDS_MAX, LAYERS_MAX, LayerSpec, ModelSpec, NormSpec};
use crate::plan::Activation;
use crate::plan::check::{GROUP_SIZE_MAX, HEAD_DIM_MAX, ROUTES_MAX};
use serde_json::{Value, json};

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5. `file` names it in errors.
    pub fn from_json(file: &str, config_json: &[u8]) -> Result<Self, LoadError> {
        let value = config_reader::parse(file, config_json)?;
        let config = ConfigReader::root(file, &value)?;
        let family = family(file, &config)?;
        let vocab = config.integer("vocab_size", 1..=IDS_MAX)?;
        let vocab = config.required("vocab_size", vocab)?;
        let positions_max = config.integer("max_position_embeddings", 2..=IDS_MAX)?;
        let positions_max = config.required("max_position_embeddings", positions_max)?;
        let heads = Heads::read(&config)?;
        let scales = Multipliers::read(&config, family.scales, &heads)?;
        let slides = slides(&config, family, layer_count(&config)?)?;
        let (ropes, layer_ropes) = ropes(&config, family.ropes, &heads, &slides)?;
        // A window as long as the context hides nothing: treat it as full attention, so that both share block ids.
        let window = config.integer("sliding_window", 1..=u32::MAX)?.filter(|&window| window < positions_max);
        let sparse = sparse_layers(&config, family.experts, slides.len())?;
        let experts = if sparse.contains(&true) { experts(&config, family.experts)? } else { None };
        let layers = slides.iter().zip(layer_ropes).zip(sparse);
        let layer = |((&slides, rope), experts)| LayerSpec { window: window.filter(|_| slides), rope, experts };
        let layers = layers.map(layer).collect();
        Ok(Self {
            architecture: family.architecture,
            vocab,
            positions_max,
            hidden: heads.hidden,
            mlp: multiple_of_eight(&config, "intermediate_size", 1 << 20)?,
            query_heads: heads.query,
            kv_heads: heads.kv,
            head_dim: heads.dim,
            norm: NormSpec {
                place: family.norm_place,
                epsilon: scales.epsilon(&config)?,
                one_plus: family.norm_one_plus,
            },
            attention: AttentionSpec {
                scale: scales.attention as f32,
                softcap: scales.attention_softcap.map(|cap| cap as f32),
                qkv_bias: family.qkv_bias.read(&config)?,
                output_bias: family.output_bias.read(&config)?,
                head_norms: family.head_norms,
                sinks: family.sinks,
            },
            activation: activation(&config, family.activation)?,
            mlp_bias: family.mlp_bias.read(&config)?,
            experts,
            embedding_scale: (scales.embedding / scales.residual) as f32,
            logits_scale: scales.logits as f32,
            logits_softcap: scales.logits_softcap.map(|cap| cap as f32),
            tied_embeddings: config.boolean("tie_word_embeddings")?.unwrap_or(family.tied_default),
            ropes,
            layers,
            eos_token_ids: config.token_ids("eos_token_id", vocab)?,
            tensors: family.tensors,
        })
    }

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

fn family(file: &str, config: &ConfigReader<'_>) -> Result<&'static Family, LoadError> {
    let architectures = config.list("architectures")?.unwrap_or_default();
    let found = match architectures.first() {
        Some(Value::String(name)) => name.as_str(),
        Some(_) => return Err(config.invalid("architectures", "holds something that is not a name")),
        None => config.required("architectures", config.text("model_type")?)?,
    };
    let known = |family: &&Family| family.architecture == found || family.model_type == found;
    FAMILIES.into_iter().find(known).ok_or_else(|| LoadError::Architecture {
        file: file.into(),
        found: found.into(),
        known: FAMILIES.map(|family| family.architecture).join(", "),
    })
}

impl Bias {
    fn read(self, config: &ConfigReader<'_>) -> Result<bool, LoadError> {
        match self {
            Self::Never => Ok(false),
            Self::Always => Ok(true),
            Self::Field(name) => Ok(config.boolean(name)?.unwrap_or(false)),
        }
    }
}

struct Heads {
    hidden: u32,
    query: u32,
    kv: u32,
    dim: u32,
}

impl Heads {
    fn read(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let hidden = multiple_of_eight(config, "hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=1024)?;
        let query = config.required("num_attention_heads", query)?;
        let kv = config.integer("num_key_value_heads", 1..=1024)?.unwrap_or(query);
        if query % kv != 0 {
            let message = format!("is {kv}, which does not divide num_attention_heads = {query}");
            return Err(config.invalid("num_key_value_heads", message));
        }
        if query / kv > GROUP_SIZE_MAX {
            let message = format!("is {kv}: more than {GROUP_SIZE_MAX} of {query} query heads would share one");
            return Err(config.invalid("num_key_value_heads", message));
        }
        if config.get("head_dim").is_some() {
            let dim = multiple_of_eight(config, "head_dim", HEAD_DIM_MAX)?;
            return Ok(Self { hidden, query, kv, dim });
        }
        let dim = hidden / query;
        if hidden % query != 0 {
            let message = format!("is {query}, which does not divide hidden_size = {hidden}");
            return Err(config.invalid("num_attention_heads", message));
        }
        if dim % 8 != 0 || dim > HEAD_DIM_MAX {
            let message = format!("would be {dim}, not a multiple of 8 up to {HEAD_DIM_MAX}");
            return Err(config.invalid("head_dim", message));
        }
        Ok(Self { hidden, query, kv, dim })
    }
}

fn multiple_of_eight(config: &ConfigReader<'_>, name: &str, max: u32) -> Result<u32, LoadError> {
    let value = config.required(name, config.integer(name, 8..=max)?)?;
    if value % 8 != 0 {
        return Err(config.invalid(name, format!("is {value}, not a multiple of 8")));
    }
    Ok(value)
}

fn activation(config: &ConfigReader<'_>, field: ActivationField) -> Result<Activation, LoadError> {
    let (name, default) = match field {
        ActivationField::HiddenAct => ("hidden_act", Activation::Silu),
        ActivationField::HiddenActivation => ("hidden_activation", Activation::GeluTanh),
        ActivationField::ClampedSwiglu => {
            let alpha = config.number("swiglu_alpha", 1e-3..=1e3)?.unwrap_or(1.702) as f32;
            let limit = config.number("swiglu_limit", 1e-3..=1e6)?.unwrap_or(7.0) as f32;
            return Ok(Activation::ClampedSwiglu { alpha, limit });
        }
    };
    match config.text(name)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => Err(config.invalid(name, format!("is {other:?}, not silu or gelu_pytorch_tanh"))),
    }
}

/// The multipliers and caps of a model, from its [`Scales`].
struct Multipliers {
    attention: f64,
    attention_softcap: Option<f64>,
    embedding: f64,
    /// Multiplies what attention and MLP add to the residual stream.
    ///
    /// Applied without a step of its own: `x += m · f(norm(x))` is equivalent to `y += f(norm(y))` with x = m · y, if
    /// embedded rows are divided by m and the norms' epsilon by m². Only the norms of the stream read y.
    residual: f64,
    logits: f64,
    logits_softcap: Option<f64>,
}

impl Multipliers {
    fn read(config: &ConfigReader<'_>, scales: Scales, heads: &Heads) -> Result<Self, LoadError> {
        let plain = Self {
            attention: 1.0 / f64::from(heads.dim).sqrt(),
            attention_softcap: None,
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logits_softcap: None,
        };
        match scales {
            Scales::Plain => Ok(plain),
            Scales::Gemma { softcaps } => {
                if config.get("use_bidirectional_attention").is_some_and(|value| *value != Value::Bool(false)) {
                    let message = "is set, but only attention to earlier tokens is supported";
                    return Err(config.invalid("use_bidirectional_attention", message));
                }
                let scalar = config.number("query_pre_attn_scalar", 1e-3..=1e6)?.unwrap_or(256.0);
                let softcap = |name: &str, index: usize| match config.number(name, 1e-3..=1e6)? {
                    None if !config.is_null(name) => Ok::<_, LoadError>(softcaps.map(|caps| caps[index])),
                    given => Ok(given),
                };
                Ok(Self {
                    attention: 1.0 / scalar.sqrt(),
                    attention_softcap: softcap("attn_logit_softcapping", 0)?,
                    embedding: f64::from(heads.hidden).sqrt(),
                    logits_softcap: softcap("final_logit_softcapping", 1)?,
                    ..plain
                })
            }
            Scales::Multipliers => {
                let number = |name: &str| Ok::<_, LoadError>(config.number(name, 1e-3..=1e6)?.unwrap_or(1.0));
                Ok(Self {
                    attention: number("attention_multiplier")?,
                    embedding: number("embedding_multiplier")?,
                    residual: number("residual_multiplier")?,
                    logits: 1.0 / number("logits_scaling")?,
                    ..plain
                })
            }
        }
    }

    /// `rms_norm_eps`, rescaled for the stream as it is stored.
    fn epsilon(&self, config: &ConfigReader<'_>) -> Result<f32, LoadError> {
        let epsilon = config.number("rms_norm_eps", 1e-12..=0.1)?.unwrap_or(1e-6);
        Ok((epsilon / (self.residual * self.residual)) as f32)
    }
}

fn layer_count(config: &ConfigReader<'_>) -> Result<usize, LoadError> {
    let count = config.required("num_hidden_layers", config.integer("num_hidden_layers", 1..=LAYERS_MAX)?)?;
    Ok(count as usize)
}

/// For each layer, whether it has a sliding window.
fn slides(config: &ConfigReader<'_>, family: &Family, count: usize) -> Result<Vec<bool>, LoadError> {
    let asked = config.boolean("use_sliding_window")?.unwrap_or(false);
    let window = config.get("sliding_window").is_some();
    let pattern = |every: u32| {
        let given = config.integer("sliding_window_pattern", 1..=LAYERS_MAX)?;
        Ok::<_, LoadError>(given.or(config.integer("_sliding_window_pattern", 1..=LAYERS_MAX)?).unwrap_or(every))
    };
    let none = vec![false; count];
    let slides: Vec<bool> = match family.windows {
        Windows::Never => return Ok(none),
        Windows::UpperLayers | Windows::UnrotatedLayers if !asked => none.clone(),
        Windows::EveryLayer => vec![window; count],
        Windows::UpperLayers => {
            let first = config.integer("max_window_layers", 0..=u32::MAX)?.unwrap_or(28) as usize;
            (0..count).map(|layer| layer >= first).collect()
        }
        Windows::Pattern(every) => {
            let every = pattern(every)? as usize;
            (1..=count).map(|layer| layer % every != 0).collect()
        }
        Windows::UnrotatedLayers => rotated_layers(config, count)?.into_iter().map(|rotated| !rotated).collect(),
    };
    let slides = match config.list("layer_types")? {
        None => slides,
        Some(kinds) if kinds.len() != count => {
            let message = format!("has {} entries, not num_hidden_layers = {count}", kinds.len());
            return Err(config.invalid("layer_types", message));
        }
        Some(kinds) => {
            let slides = |kind: &Value| match kind.as_str() {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => Err(config.invalid("layer_types", format!("has {kind}, an unknown kind of layer"))),
            };
            kinds.iter().map(slides).collect::<Result<_, _>>()?
        }
    };
    match family.windows {
        Windows::EveryLayer if !window => return Ok(none),
        Windows::UpperLayers | Windows::UnrotatedLayers if !asked => return Ok(none),
        _ => {}
    }
    if slides.contains(&true) && !window {
        return Err(config.invalid("sliding_window", "is missing, but some layers have a sliding window"));
    }
    Ok(slides)
}

/// The rotary embeddings of a model, and for each layer the index of its own.
type LayerRopes = (Vec<RopeSpec>, Vec<Option<usize>>);

fn ropes(config: &ConfigReader<'_>, ropes: Ropes, heads: &Heads, slides: &[bool]) -> Result<LayerRopes, LoadError> {
    match ropes {
        Ropes::One => Ok((vec![RopeSpec::from_config(config, heads.dim)?], vec![Some(0); slides.len()])),
        Ropes::LocalAndGlobal => {
            let ropes = RopeSpec::global_and_local(config, heads.dim)?;
            Ok((ropes.into(), slides.iter().map(|&slides| Some(usize::from(slides))).collect()))
        }
        Ropes::SomeLayers => {
            let layers = rotated_layers(config, slides.len())?.into_iter().map(|rotated| rotated.then_some(0));
            Ok((vec![RopeSpec::from_config(config, heads.dim)?], layers.collect()))
        }
    }
}

/// For each layer, whether it has rotary embeddings: `no_rope_layers` has a 1 if so.
fn rotated_layers(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    let Some(given) = config.list("no_rope_layers")? else {
        let interval = config.integer("no_rope_layer_interval", 1..=LAYERS_MAX)?.unwrap_or(4) as usize;
        return Ok((1..=count).map(|layer| layer % interval != 0).collect());
    };
    if given.len() != count {
        let message = format!("has {} entries, not num_hidden_layers = {count}", given.len());
        return Err(config.invalid("no_rope_layers", message));
    }
    let rotates = |entry: &Value| match entry.as_u64() {
        Some(rotates @ 0..=1) => Ok(rotates == 1),
        _ => Err(config.invalid("no_rope_layers", format!("has {entry}, not 0 or 1"))),
    };
    given.iter().map(rotates).collect()
}

/// For each layer, whether it has experts.
fn sparse_layers(config: &ConfigReader<'_>, experts: Experts, count: usize) -> Result<Vec<bool>, LoadError> {
    match experts {
        Experts::Never => Ok(vec![false; count]),
        Experts::EveryLayer => Ok(vec![true; count]),
        Experts::SparseLayers => {
            let step = config.integer("decoder_sparse_step", 1..=LAYERS_MAX)?.unwrap_or(1) as usize;
            let dense = config.list("mlp_only_layers")?.unwrap_or_default();
            let is_dense = |layer: usize| dense.iter().any(|entry| entry.as_u64() == Some(layer as u64));
            Ok((0..count).map(|layer| (layer + 1) % step == 0 && !is_dense(layer)).collect())
        }
    }
}

fn experts(config: &ConfigReader<'_>, experts: Experts) -> Result<Option<ExpertsSpec>, LoadError> {
    let (mlp, renormalize, bias) = match experts {
        Experts::Never => return Ok(None),
        Experts::SparseLayers => ("moe_intermediate_size", config.boolean("norm_topk_prob")?.unwrap_or(false), false),
        Experts::EveryLayer => ("intermediate_size", true, true),
    };
    // transformers 5 writes the first name, published configs the second.
    let counted = if config.get("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
    let count = config.required(counted, config.integer(counted, 1..=EXPERTS_MAX)?)?;
    let chosen = config.integer("num_experts_per_tok", 1..=ROUTES_MAX)?;
    let per_token = config.required("num_experts_per_tok", chosen)?;
    if per_token > count {
        return Err(config.invalid("num_experts_per_tok", format!("is {per_token}, more than {counted} = {count}")));
    }
    Ok(Some(ExpertsSpec { count, per_token, mlp: multiple_of_eight(config, mlp, 1 << 20)?, renormalize, bias }))
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
