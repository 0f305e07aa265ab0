//! Reads a [`ModelSpec`] from a `config.json`.
//!
//! A row of [`FAMILIES`] says how one architecture's config is read. Every number is validated here, once.
//! `torch_dtype` and `dtype` are not read: weights keep the element types of the checkpoint.

use super::LoadError;
use super::config_layers as per_layer;
use super::config_reader::{self, ConfigReader};
use super::families::{ActivationField, Bias, FAMILIES, Family, Scales};
use super::spec::{AttentionSpec, IDS_MAX, LayerSpec, ModelSpec, NormSpec};
use crate::plan::Activation;
use crate::plan::check::{GROUP_SIZE_MAX, HEAD_DIM_MAX};
use serde_json::Value;

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5. `file` names it in errors.
    pub fn from_json(file: &str, config_json: &[u8]) -> Result<Self, LoadError> {
        let value = config_reader::parse(file, config_json)?;
        let whole = ConfigReader::root(file, &value)?;
        // A multimodal checkpoint: the text model is read, other parts are not.
        let (config, family) = match whole.object("text_config")? {
            Some(text) => {
                let family = family_of_text(file, &whole, &text)?;
                (text, family)
            }
            None => {
                let family = family(file, &whole)?;
                (whole.clone(), family)
            }
        };
        let vocab = config.integer("vocab_size", 1..=IDS_MAX)?;
        let vocab = config.required("vocab_size", vocab)?;
        let positions_max = config.integer("max_position_embeddings", 2..=IDS_MAX)?;
        let positions_max = config.required("max_position_embeddings", positions_max)?;
        let heads = Heads::read(&config)?;
        let scales = Multipliers::read(&config, family.scales, &heads)?;
        let slides = per_layer::slides(&config, family.attention.windows, per_layer::count(&config)?)?;
        let (ropes, layer_ropes) = per_layer::ropes(&config, family.rope, heads.dim, &slides)?;
        // A window as long as the context hides nothing: treat it as full attention, so that both share block ids.
        let window = config.integer("sliding_window", 1..=u32::MAX)?.filter(|&window| window < positions_max);
        let sparse = per_layer::sparse(&config, family.experts, slides.len())?;
        let experts = if sparse.contains(&true) { per_layer::experts(&config, family.experts)? } else { None };
        let layers = slides.iter().zip(layer_ropes).zip(sparse);
        let layer = |((&slides, rope), experts)| LayerSpec { window: window.filter(|_| slides), rope, experts };
        let layers = layers.map(layer).collect();
        Ok(Self {
            architecture: family.architecture,
            vocab,
            positions_max,
            hidden: heads.hidden,
            mlp: config.multiple_of_eight(family.mlp.size, 1 << 20)?,
            query_heads: heads.query,
            kv_heads: heads.kv,
            head_dim: heads.dim,
            norm: NormSpec {
                place: family.norms.place,
                epsilon: scales.epsilon(&config)?,
                one_plus: family.norms.one_plus,
            },
            attention: AttentionSpec {
                scale: scales.attention as f32,
                softcap: scales.attention_softcap.map(|cap| cap as f32),
                qkv_bias: family.attention.qkv_bias.read(&config)?,
                output_bias: family.attention.output_bias.read(&config)?,
                head_norms: family.attention.head_norms,
                sinks: family.attention.sinks,
            },
            activation: activation(&config, family.mlp.activation)?,
            mlp_bias: family.mlp.bias.read(&config)?,
            experts,
            embedding_scale: (scales.embedding / scales.residual) as f32,
            logits_scale: scales.logits as f32,
            logits_softcap: scales.logits_softcap.map(|cap| cap as f32),
            tied_embeddings: tied(&whole, &config)?.unwrap_or(family.tied_default),
            ropes,
            layers,
            eos_token_ids: end_tokens(&whole, &config, vocab)?,
            tensors: family.tensors,
        })
    }
}

fn family(file: &str, config: &ConfigReader<'_>) -> Result<&'static Family, LoadError> {
    let architectures = config.list("architectures")?.unwrap_or_default();
    let found = match architectures.first() {
        Some(Value::String(name)) => name.as_str(),
        Some(_) => return Err(config.invalid("architectures", "holds something that is not a name")),
        None => config.required("architectures", config.text("model_type")?)?,
    };
    find_family(file, found)
}

/// The family of the text model of a multimodal checkpoint, by its own `model_type`.
fn family_of_text(file: &str, whole: &ConfigReader<'_>, text: &ConfigReader<'_>) -> Result<&'static Family, LoadError> {
    match text.text("model_type")? {
        Some(found) => find_family(file, found),
        None => family(file, whole),
    }
}

fn find_family(file: &str, found: &str) -> Result<&'static Family, LoadError> {
    let known = |family: &&Family| family.architecture == found || family.model_type == found;
    FAMILIES.into_iter().find(known).ok_or_else(|| LoadError::Architecture {
        file: file.into(),
        found: found.into(),
        known: FAMILIES.map(|family| family.architecture).join(", "),
    })
}

/// `tie_word_embeddings`, which multimodal checkpoints have inside or outside the text model's config.
fn tied(whole: &ConfigReader<'_>, text: &ConfigReader<'_>) -> Result<Option<bool>, LoadError> {
    Ok(text.boolean("tie_word_embeddings")?.or(whole.boolean("tie_word_embeddings")?))
}

fn end_tokens(whole: &ConfigReader<'_>, text: &ConfigReader<'_>, vocab: u32) -> Result<Vec<u32>, LoadError> {
    let inner = text.token_ids("eos_token_id", vocab)?;
    if inner.is_empty() { whole.token_ids("eos_token_id", vocab) } else { Ok(inner) }
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
        let hidden = config.multiple_of_eight("hidden_size", 1 << 16)?;
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
            let dim = config.multiple_of_eight("head_dim", HEAD_DIM_MAX)?;
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

fn activation(config: &ConfigReader<'_>, field: ActivationField) -> Result<Activation, LoadError> {
    let (name, default) = match field {
        ActivationField::HiddenAct => ("hidden_act", Activation::Silu),
        ActivationField::HiddenActivation if config.get("hidden_activation").is_some() => {
            ("hidden_activation", Activation::GeluTanh)
        }
        ActivationField::HiddenActivation => {
            // The first Gemma was published with "gelu", which stands for its tanh approximation.
            if config.text("hidden_act")? == Some("gelu") {
                return Ok(Activation::GeluTanh);
            }
            ("hidden_act", Activation::GeluTanh)
        }
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
            Scales::Gemma { scalar_default, softcaps } => {
                if config.get("use_bidirectional_attention").is_some_and(|value| *value != Value::Bool(false)) {
                    let message = "is set, but only attention to earlier tokens is supported";
                    return Err(config.invalid("use_bidirectional_attention", message));
                }
                let scalar = match scalar_default {
                    Some(default) => config.number("query_pre_attn_scalar", 1e-3..=1e6)?.unwrap_or(default),
                    None => f64::from(heads.dim),
                };
                let softcap = |name: &str, index: usize| match config.number(name, 1e-3..=1e6)? {
                    _ if scalar_default.is_none() => Ok(None),
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
