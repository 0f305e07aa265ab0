//! Reads a [`ModelSpec`] from a `config.json`.
//!
//! A row of [`FAMILIES`] says how one architecture's config is read. Every number is validated here, once.
//! `torch_dtype` and `dtype` are not read: weights keep the element types of the checkpoint.

use super::config_defaults;
use super::config_experts;
use super::config_layers::{self as per_layer, LayerShape, Word};
use super::config_reader::{self, ConfigReader};
use super::config_state::{self, ParallelScales};
use super::error::LoadError;
use super::families::{
    ActivationField, AttentionRow, Bias, Experts, FAMILIES, Family, Mixers, MlpRow, NormsRow, Rule,
    Scales, Sizes,
};
use super::rope::{RopeSpec, damping};
use super::spec::{
    AttentionSpec, Factors, HeadNorms, IDS_MAX, LatentSpec, LayerKind, LayerSpec, MlpSpec,
    ModelSpec, NormPlace, NormSpec, OutputGate,
};
use super::stored::Stored;
use crate::plan::check::{GROUP_SIZE_MAX, HEAD_DIM_MAX, LATENT_DIM_MAX, LATENT_HEADS_MAX};
use crate::plan::{Activation, QueryGrowth};
use serde_json::Value;

impl ModelSpec {
    /// Reads a `config.json` as written by transformers 4 or 5, where absent fields have the defaults of transformers.
    /// `file` names it in errors.
    pub fn from_json(file: &str, config_json: &[u8]) -> Result<Self, LoadError> {
        let mut value = config_reader::parse(file, config_json)?;
        let whole = ConfigReader::root(file, &value)?;
        let text = whole.object("text_config")?;
        let family = family(file, &whole, text.as_ref())?;
        let config = if text.is_some() {
            &mut value["text_config"]
        } else {
            &mut value
        };
        config_defaults::complete(
            config.as_object_mut().expect("the config is an object"),
            family,
        );
        Self::from_value(file, &value, &Stored::CHECKPOINT)
    }

    /// [`ModelSpec::from_json`] of a config that lacks a field only if the model lacks what it describes, and whose
    /// tensors are `stored` so.
    pub(super) fn from_complete_json(
        file: &str,
        config_json: &[u8],
        stored: &Stored<'_>,
    ) -> Result<Self, LoadError> {
        Self::from_value(file, &config_reader::parse(file, config_json)?, stored)
    }

    fn from_value(file: &str, value: &Value, stored: &Stored<'_>) -> Result<Self, LoadError> {
        let whole = ConfigReader::root(file, value)?;
        // A multimodal checkpoint: the text model is read, other parts are not.
        let text = whole.object("text_config")?;
        let family = family(file, &whole, text.as_ref())?;
        let config = text.unwrap_or_else(|| whole.clone());
        let vocab = config.integer("vocab_size", 1..=IDS_MAX)?;
        let vocab = config.required("vocab_size", vocab)?;
        let positions_max = config.integer("max_position_embeddings", 2..=IDS_MAX)?;
        let positions_max = config.required("max_position_embeddings", positions_max)?;
        let heads = if family.attention.latent {
            Heads::read_latent(&config)?
        } else {
            Heads::read(&config)?
        };
        let scales = Multipliers::read(&config, family.scales, &heads)?;
        let (mut ropes, layers) = layers(&config, family, &heads, positions_max)?;
        if let Some(rope) = ropes.first_mut()
            && !stored.rope_divisors.is_empty()
        {
            rope.divide(file, stored.rope_divisors)?;
        }
        let sparse = layers.iter().any(|layer| layer.experts);
        let field = family.norms.epsilon;
        let epsilon = config.required(field, config.number(field, 1e-12..=0.1)?)?;
        let has_state = layers.iter().any(|layer| layer.kind.has_state());
        let is_by_kind = family.sizes == Sizes::ByKind;
        Ok(Self {
            architecture: family.architecture,
            vocab,
            positions_max,
            hidden: heads.hidden,
            query_heads: heads.query,
            norm: NormSpec {
                epsilon: scales.epsilon(epsilon),
                one_plus: family.norms.one_plus && stored.norms_less_one,
                center: family.norms.center,
                bias: family.norms.bias,
            },
            attention: attention(&config, family.attention, &scales, stored)?,
            latent: heads.latent,
            convolution: match layers
                .iter()
                .any(|layer| layer.kind == LayerKind::Convolution)
            {
                true => Some(per_layer::convolution(&config)?),
                false => None,
            },
            state: if has_state {
                config_state::state(&config, family.mixers, epsilon, stored)?
            } else {
                None
            },
            factors: scales.factors,
            mlp: MlpSpec {
                activation: activation(&config, family.mlp)?,
                gated: family.mlp.gated,
                bias: family.mlp.bias.read(&config)?,
            },
            experts: if sparse {
                config_experts::experts(&config, family.experts)?
            } else {
                None
            },
            layer_embedding: if is_by_kind {
                layer_embedding(&config, vocab)?
            } else {
                None
            },
            layer_scalar: is_by_kind,
            embedding_scale: (scales.embedding / scales.residual) as f32,
            logits_scale: scales.logits as f32,
            logits_softcap: scales.logits_softcap.map(|cap| cap as f32),
            tied_embeddings: tied(&whole, &config)?.unwrap_or(family.tied_default),
            embedding_in_head: false,
            ropes,
            layers,
            eos_token_ids: end_tokens(&whole, &config, vocab),
            tensors: stored.tensors.unwrap_or(family.tensors),
        })
    }
}

/// The rotary embeddings and the layers.
fn layers(
    config: &ConfigReader<'_>,
    family: &Family,
    heads: &Heads,
    positions_max: u32,
) -> Result<(Vec<RopeSpec>, Vec<LayerSpec>), LoadError> {
    let words = per_layer::words(config, family.mixers, family.attention.windows)?;
    let slides = per_layer::slides(config, family.attention.windows, &words)?;
    let sparse = config_experts::sparse(config, family.experts, &words)?;
    let beside = matches!(family.experts, Experts::BesideMlp);
    let dense = |(word, sparse): (&Word, &bool)| match family.mixers {
        Mixers::Blocks => *word == Word::Mlp,
        _ => beside || !sparse,
    };
    let dense: Vec<bool> = words.iter().zip(&sparse).map(dense).collect();
    let usual = LayerShape {
        kv_heads: heads.kv,
        head_dim: heads.dim,
        mlp: if dense.contains(&true) {
            per_layer::mlp_size(config, family.mlp.size)?
        } else {
            0
        },
        kv_from: None,
        value_is_key: false,
    };
    let shapes = per_layer::shapes(config, family.sizes, usual, &slides)?;
    let mut rope = family.rope;
    if heads.latent.is_some() {
        rope.options.interleaved = config
            .boolean("rope_interleave")?
            .unwrap_or(rope.options.interleaved);
    } else {
        shapes
            .iter()
            .try_for_each(|shape| check_groups(config, heads.query, shape.kv_heads))?;
    }
    let (ropes, layer_ropes) = per_layer::ropes(config, rope, heads.rotated(), &slides, &shapes)?;
    let window = match slides.contains(&true) {
        true => config.integer("sliding_window", 1..=u32::MAX)?,
        false => None,
    };
    // A window as long as the context hides nothing: treat it as full attention, so that both share block ids.
    let window = window.filter(|&window| window < positions_max);
    let place = norm_place(config, family.norms)?;
    Ok((
        ropes,
        (0..words.len())
            .map(|index| {
                let (kind, shape): (_, LayerShape) =
                    (words[index].kind(family.mixers), shapes[index]);
                // OLMo hybrid: layers with a state have norms before.
                let is_exception = kind == LayerKind::State
                    && matches!(family.mixers, Mixers::AttentionOrState(Rule::NegativeDelta));
                LayerSpec {
                    kind,
                    norms: if is_exception {
                        NormPlace::Before
                    } else {
                        place
                    },
                    window: if slides[index] { window } else { None },
                    rope: layer_ropes[index],
                    experts: sparse[index],
                    mlp: if dense[index] { shape.mlp } else { 0 },
                    kv_heads: shape.kv_heads,
                    head_dim: shape.head_dim,
                    kv_from: shape.kv_from,
                    value_is_key: shape.value_is_key,
                }
            })
            .collect(),
    ))
}

/// Where a family has norms, unless a field says that there are none after its branches.
fn norm_place(config: &ConfigReader<'_>, row: NormsRow) -> Result<NormPlace, LoadError> {
    let after = row
        .after_if
        .map_or(Ok(None), |field| config.boolean(field))?
        .unwrap_or(true);
    Ok(if after { row.place } else { NormPlace::Before })
}

fn attention(
    config: &ConfigReader<'_>,
    row: AttentionRow,
    scales: &Multipliers,
    stored: &Stored<'_>,
) -> Result<AttentionSpec, LoadError> {
    let [qkv_bias, output_bias] = match stored.attention_biases {
        Some(biases) if !row.latent => biases,
        _ => [row.qkv_bias.read(config)?, row.output_bias.read(config)?],
    };
    Ok(AttentionSpec {
        scale: scales.attention as f32,
        softcap: scales.attention_softcap.map(|cap| cap as f32),
        qkv_bias,
        output_bias,
        head_norms: head_norms(config, row)?,
        value_norm: row.value_norm,
        query_growth: if row.query_growth {
            query_growth(config)?
        } else {
            None
        },
        sinks: row.sinks,
        gate: match row
            .gate_if
            .map_or(Ok(None), |field| config.boolean(field))?
            .unwrap_or(true)
        {
            true => row.gate,
            false => OutputGate::None,
        },
    })
}

/// The row of a config; that of a multimodal checkpoint is found by the `model_type` of its text model.
fn family(
    file: &str,
    whole: &ConfigReader<'_>,
    text: Option<&ConfigReader<'_>>,
) -> Result<&'static Family, LoadError> {
    let kind = text
        .map(|text| text.text("model_type"))
        .transpose()?
        .flatten();
    let architectures = whole.list("architectures")?.unwrap_or_default();
    let found = match (kind, architectures.first()) {
        (Some(kind), _) => kind,
        (None, Some(Value::String(name))) => name.as_str(),
        (None, Some(_)) => {
            return Err(whole.invalid("architectures", "holds something that is not a name"));
        }
        (None, None) => whole.required("architectures", whole.text("model_type")?)?,
    };
    FAMILIES
        .into_iter()
        .find(|family| family.architecture == found || family.model_type == found)
        .ok_or_else(|| {
            let names = FAMILIES.map(|family| family.architecture);
            let lacking = UNSUPPORTED
                .iter()
                .find(|(field, _)| text.unwrap_or(whole).get(field).is_some());
            let (file, found) = (file.into(), found.to_owned());
            LoadError::Architecture {
                file,
                hint: hint(&found, &names, lacking),
                found,
                known: names.join(", "),
            }
        })
}

/// Fields that only models with certain layers have, and what these layers compute.
const UNSUPPORTED: [(&str, &str); 4] = [
    (
        "linear_num_value_heads",
        "layers with a gated delta rule of another form",
    ),
    ("mamba_d_state", "Mamba layers of another form"),
    ("ssm_state_size", "Mamba layers of another form"),
    ("num_codebooks", "several codebooks"),
];

/// What helps with an architecture that is not supported: the one of `known` whose name begins alike, and what it has
/// that none of them computes, with the field that says so.
pub(super) fn hint(found: &str, known: &[&str], lacking: Option<&(&str, &str)>) -> String {
    let alike = |name: &&&str| {
        plain_name(name)
            .chars()
            .zip(plain_name(found).chars())
            .take_while(|(a, b)| a == b)
            .count()
    };
    let nearest = known
        .iter()
        .rev()
        .max_by_key(alike)
        .filter(|name| alike(name) >= 3);
    let nearest = nearest.map(|name| format!("; the nearest supported one is {name}"));
    let lacking =
        lacking.map(|(field, what)| format!("; {field} means {what}, which is not supported"));
    [nearest, lacking].into_iter().flatten().collect()
}

fn plain_name(name: &str) -> String {
    name.to_lowercase().replace(['_', '-'], "")
}

/// `tie_word_embeddings`, which multimodal checkpoints have inside or outside the text model's config. LFM2 calls it
/// `tie_embedding`.
fn tied(whole: &ConfigReader<'_>, text: &ConfigReader<'_>) -> Result<Option<bool>, LoadError> {
    if let Some(tied) = text.boolean("tie_embedding")? {
        return Ok(Some(tied));
    }
    Ok(text
        .boolean("tie_word_embeddings")?
        .or(whole.boolean("tie_word_embeddings")?))
}

fn end_tokens(whole: &ConfigReader<'_>, text: &ConfigReader<'_>, vocab: u32) -> Vec<u32> {
    let inner = text.token_ids("eos_token_id", vocab);
    let mut ids = if inner.is_empty() {
        whole.token_ids("eos_token_id", vocab)
    } else {
        inner
    };
    // Hunyuan's end of a document.
    ids.extend(
        text.token_ids("eod_token_id", vocab)
            .into_iter()
            .filter(|id| !ids.contains(id))
            .collect::<Vec<_>>(),
    );
    ids
}

impl Bias {
    fn read(self, config: &ConfigReader<'_>) -> Result<bool, LoadError> {
        match self {
            Self::Never => Ok(false),
            Self::Always => Ok(true),
            Self::Field(name) => Ok(config.boolean(name)?.unwrap_or(false)),
            Self::UnlessField(name) => Ok(config.boolean(name)?.unwrap_or(true)),
        }
    }
}

struct Heads {
    hidden: u32,
    query: u32,
    kv: u32,
    dim: u32,
    latent: Option<LatentSpec>,
}

impl Heads {
    /// Latent attention: all heads share one key, the latent and what is rotated.
    fn read_latent(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let hidden = config.multiple_of_eight("hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=LATENT_HEADS_MAX)?;
        let query = config.required("num_attention_heads", query)?;
        if config.boolean("attention_bias")?.unwrap_or(false) {
            return Err(config.invalid(
                "attention_bias",
                "is true: biases of latent attention are not supported",
            ));
        }
        let size = |name: &str| config.multiple_of_eight(name, HEAD_DIM_MAX);
        let query_rank = config
            .get("q_lora_rank")
            .map(|_| config.multiple_of_eight("q_lora_rank", 1 << 16));
        let (rank, rotated) = (size("kv_lora_rank")?, size("qk_rope_head_dim")?);
        let (plain, value) = (size("qk_nope_head_dim")?, size("v_head_dim")?);
        if rank + rotated > LATENT_DIM_MAX {
            let message = format!(
                "is {rank}: with {rotated} rotated elements, a token would have over {LATENT_DIM_MAX}"
            );
            return Err(config.invalid("kv_lora_rank", message));
        }
        let latent = Some(LatentSpec {
            query_rank: query_rank.transpose()?,
            rank,
            plain,
            rotated,
            value,
        });
        Ok(Self {
            hidden,
            query,
            kv: 1,
            dim: rank + rotated,
            latent,
        })
    }

    /// Elements of a head that are rotated, or a part of which is.
    fn rotated(&self) -> u32 {
        self.latent.map_or(self.dim, |latent| latent.rotated)
    }

    fn read(config: &ConfigReader<'_>) -> Result<Self, LoadError> {
        let hidden = config.multiple_of_eight("hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=1024)?;
        let query = config.required("num_attention_heads", query)?;
        let kv = config
            .integer("num_key_value_heads", 1..=1024)?
            .unwrap_or(query);
        check_groups(config, query, kv)?;
        if config.get("head_dim").is_some() {
            let dim = config.multiple_of_eight("head_dim", HEAD_DIM_MAX)?;
            return Ok(Self {
                hidden,
                query,
                kv,
                dim,
                latent: None,
            });
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
        Ok(Self {
            hidden,
            query,
            kv,
            dim,
            latent: None,
        })
    }
}

fn check_groups(config: &ConfigReader<'_>, query: u32, kv: u32) -> Result<(), LoadError> {
    if !query.is_multiple_of(kv) {
        let message = format!("is {kv}, which does not divide num_attention_heads = {query}");
        return Err(config.invalid("num_key_value_heads", message));
    }
    if query / kv > GROUP_SIZE_MAX {
        let message =
            format!("is {kv}: more than {GROUP_SIZE_MAX} of {query} query heads would share one");
        return Err(config.invalid("num_key_value_heads", message));
    }
    Ok(())
}

/// The norms of q and k, unless a field says that there are none.
fn head_norms(config: &ConfigReader<'_>, row: AttentionRow) -> Result<HeadNorms, LoadError> {
    let present = match row.head_norms_if {
        Some(field) => config.boolean(field)?.unwrap_or(false),
        None => true,
    };
    Ok(if present {
        row.head_norms
    } else {
        HeadNorms::None
    })
}

/// Factor of q · k with a latent: 1 / √(elements of a head), times the square of what YaRN multiplies cos and sin by
/// with `mscale_all_dim`.
fn latent_scale(config: &ConfigReader<'_>, latent: &LatentSpec) -> Result<f64, LoadError> {
    let fields = match config.object("rope_parameters")? {
        Some(fields) => Some(fields),
        None => config.object("rope_scaling")?,
    };
    let plain = 1.0 / f64::from(latent.plain + latent.rotated).sqrt();
    let Some(fields) = fields else {
        return Ok(plain);
    };
    let (slope, factor) = (
        fields.number("mscale_all_dim", 0.0..=1e3)?,
        fields.number("factor", 1e-6..=1e9)?,
    );
    let (Some(slope), Some(factor)) = (slope, factor) else {
        return Ok(plain);
    };
    Ok(plain * damping(slope, factor).powi(2))
}

/// `llama_4_scaling_beta` of `rope_parameters`, and the positions after which q begins to grow.
fn query_growth(config: &ConfigReader<'_>) -> Result<Option<QueryGrowth>, LoadError> {
    let fields = match config.object("rope_parameters")? {
        Some(fields) => Some(fields),
        None => config.object("rope_scaling")?,
    };
    let Some(fields) = fields else {
        return Ok(None);
    };
    let Some(slope) = fields
        .number("llama_4_scaling_beta", 0.0..=1e3)?
        .filter(|slope| *slope > 0.0)
    else {
        return Ok(None);
    };
    let name = "original_max_position_embeddings";
    let positions = fields.required(name, fields.integer(name, 1..=IDS_MAX)?)?;
    Ok(Some(QueryGrowth {
        slope: slope as f32,
        positions,
    }))
}

/// `hidden_size_per_layer_input`: elements of the embeddings that layers have of their own.
fn layer_embedding(config: &ConfigReader<'_>, vocab: u32) -> Result<Option<u32>, LoadError> {
    let name = "hidden_size_per_layer_input";
    if config.integer(name, 0..=1 << 16)?.unwrap_or(0) == 0 {
        return Ok(None);
    }
    let table = config
        .integer("vocab_size_per_layer_input", 1..=IDS_MAX)?
        .unwrap_or(vocab);
    if table != vocab {
        let message = format!("is {table}, not vocab_size = {vocab}");
        return Err(config.invalid("vocab_size_per_layer_input", message));
    }
    Ok(Some(config.multiple_of_eight(name, 1 << 16)?))
}

fn activation(config: &ConfigReader<'_>, row: MlpRow) -> Result<Activation, LoadError> {
    let (name, default) = match row.activation {
        ActivationField::HiddenAct(default) => ("hidden_act", default),
        ActivationField::MlpHiddenAct(default) => ("mlp_hidden_act", default),
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
        Some("relu2") => Ok(Activation::Relu2),
        // Its numbers are tensors, which only families with this default have.
        Some("xielu") if default == Activation::Xielu => Ok(default),
        Some(other) => Err(config.invalid(
            name,
            format!("is {other:?}, not silu, gelu_pytorch_tanh, relu2 or xielu"),
        )),
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
    factors: Factors,
}

impl Multipliers {
    fn read(config: &ConfigReader<'_>, scales: Scales, heads: &Heads) -> Result<Self, LoadError> {
        let plain = Self {
            attention: match heads.latent {
                Some(latent) => latent_scale(config, &latent)?,
                None => 1.0 / f64::from(heads.dim).sqrt(),
            },
            attention_softcap: None,
            embedding: 1.0,
            residual: 1.0,
            logits: 1.0,
            logits_softcap: None,
            factors: Factors::NONE,
        };
        match scales {
            Scales::Plain => Ok(plain),
            Scales::Gemma {
                scalar_default,
                softcaps,
            } => {
                if config
                    .get("use_bidirectional_attention")
                    .is_some_and(|value| *value != Value::Bool(false))
                {
                    let message = "is set, but only attention to earlier tokens is supported";
                    return Err(config.invalid("use_bidirectional_attention", message));
                }
                let scalar = match scalar_default {
                    Some(default) => config
                        .number("query_pre_attn_scalar", 1e-3..=1e6)?
                        .unwrap_or(default),
                    None => f64::from(heads.dim),
                };
                let softcap = |name: &str, index: usize| match config.number(name, 1e-3..=1e6)? {
                    _ if scalar_default.is_none() => Ok(None),
                    None if !config.is_null(name) => {
                        Ok::<_, LoadError>(softcaps.map(|caps| caps[index]))
                    }
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
            Scales::LogitScale(default) => Ok(Self {
                logits: config.number("logit_scale", 1e-6..=1e6)?.unwrap_or(default),
                ..plain
            }),
            Scales::Unscaled => {
                if config
                    .get("use_bidirectional_attention")
                    .is_some_and(|value| *value == "all")
                {
                    let message = "is \"all\", but only attention to earlier tokens is supported";
                    return Err(config.invalid("use_bidirectional_attention", message));
                }
                Ok(Self {
                    attention: 1.0,
                    embedding: f64::from(heads.hidden).sqrt(),
                    logits_softcap: config.number("final_logit_softcapping", 1e-3..=1e6)?,
                    ..plain
                })
            }
            Scales::FalconH1 => Self::read_parallel(config, &plain),
            Scales::Multipliers => {
                let number = |name: &str| {
                    Ok::<_, LoadError>(config.number(name, 1e-3..=1e6)?.unwrap_or(1.0))
                };
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

    /// The multipliers of a model with attention and a state side by side.
    fn read_parallel(config: &ConfigReader<'_>, plain: &Self) -> Result<Self, LoadError> {
        let number =
            |name: &str| Ok::<_, LoadError>(config.number(name, 1e-6..=1e6)?.unwrap_or(1.0));
        let ParallelScales {
            attention,
            residual,
            factors,
        } = ParallelScales::read(config)?;
        Ok(Self {
            attention: attention * plain.attention,
            embedding: number("embedding_multiplier")?,
            residual,
            logits: number("lm_head_multiplier")?,
            factors,
            ..*plain
        })
    }

    /// Epsilon, rescaled for the stream as it is stored.
    fn epsilon(&self, epsilon: f64) -> f32 {
        (epsilon / (self.residual * self.residual)) as f32
    }
}
