//! What varies between architectures, as data.
//!
//! [`ModelSpec`] is what the decoder reads; a row of [`FAMILIES`] says how one architecture's `config.json` becomes a
//! spec. Every number is checked here, once, so that nothing behind it meets a shape it cannot have. The config's
//! `torch_dtype` or `dtype` is not read: weights stay as the checkpoint stores them.

use super::LoadError;
use super::fields::{self, Fields};
use super::rope::RopeSpec;
use super::weights::{HUGGING_FACE, TensorNames};
use crate::plan::Activation;
use crate::plan::check::{GROUP_SIZE_MAX, HEAD_DIM_MAX};
use serde_json::{Value, json};

/// Layers of a decoder, at most.
pub const LAYERS_MAX: u32 = 1024;
/// Token ids and positions are below this.
pub const IDS_MAX: u32 = 1 << 24;

/// One decoder, described.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The name `config.json` gives, for example `Qwen3ForCausalLM`.
    pub architecture: &'static str,
    /// Token ids are below this.
    pub vocab: u32,
    /// Positions are below this.
    pub positions_max: u32,
    /// Elements of a residual row.
    pub hidden: u32,
    /// Elements of a gate or up row.
    pub mlp: u32,
    /// Query heads.
    pub query_heads: u32,
    /// Key/value heads; they divide the query heads.
    pub kv_heads: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// All RMS norms.
    pub norm: NormSpec,
    /// What surrounds the product of queries and keys.
    pub attention: AttentionSpec,
    /// The activation between gate/up and down.
    pub activation: Activation,
    /// Gate, up and down have biases.
    pub mlp_bias: bool,
    /// Multiplies embedded rows.
    pub embedding_scale: f32,
    /// The LM head is the embedding table.
    pub tied_embeddings: bool,
    /// Rotations, named by [`LayerSpec::rope`].
    pub ropes: Vec<RopeSpec>,
    /// One entry a layer, in order.
    pub layers: Vec<LayerSpec>,
    /// End tokens that `config.json` names.
    pub eos_token_ids: Vec<u32>,
    pub(super) tensors: &'static TensorNames,
}

/// Options shared by all RMS norms of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
}

/// Options of attention that all layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Multiplies q · k.
    pub scale: f32,
    /// `c · tanh(score / c)`.
    pub softcap: Option<f32>,
    /// q, k and v have biases.
    pub qkv_bias: bool,
    /// The output projection has a bias.
    pub output_bias: bool,
    /// RMS norm over each head of q and k.
    pub head_norms: bool,
}

/// What may differ from layer to layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpec {
    /// A query sees this many keys, its own included; `None`: all.
    pub window: Option<u32>,
    /// Index into [`ModelSpec::ropes`]; `None`: a layer without rotation.
    pub rope: Option<usize>,
}

/// How an architecture's `config.json` becomes a [`ModelSpec`].
struct Family {
    /// First entry of `architectures`.
    architecture: &'static str,
    /// `model_type`, for configs without `architectures`.
    model_type: &'static str,
    qkv_bias: Bias,
    output_bias: Bias,
    mlp_bias: Bias,
    head_norms: bool,
    norm_one_plus: bool,
    windows: Windows,
    /// `tie_word_embeddings` where the config is silent.
    tied_default: bool,
    tensors: &'static TensorNames,
}

#[derive(Clone, Copy)]
enum Bias {
    Never,
    Always,
    /// As this boolean field says; false if it is absent.
    Field(&'static str),
}

/// Which layers slide a window, where `layer_types` does not say.
#[derive(Clone, Copy)]
enum Windows {
    Never,
    /// All, if `sliding_window` is set.
    EveryLayer,
    /// From layer `max_window_layers` (28 where the config is silent) on, if `use_sliding_window` is set.
    UpperLayers,
}

const LLAMA: Family = Family {
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    qkv_bias: Bias::Field("attention_bias"),
    output_bias: Bias::Field("attention_bias"),
    mlp_bias: Bias::Field("mlp_bias"),
    head_norms: false,
    norm_one_plus: false,
    windows: Windows::Never,
    tied_default: false,
    tensors: &HUGGING_FACE,
};

const MISTRAL: Family = Family {
    architecture: "MistralForCausalLM",
    model_type: "mistral",
    qkv_bias: Bias::Never,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::EveryLayer,
    ..LLAMA
};

const QWEN2: Family = Family {
    architecture: "Qwen2ForCausalLM",
    model_type: "qwen2",
    qkv_bias: Bias::Always,
    output_bias: Bias::Never,
    mlp_bias: Bias::Never,
    windows: Windows::UpperLayers,
    ..LLAMA
};

const QWEN3: Family = Family {
    architecture: "Qwen3ForCausalLM",
    model_type: "qwen3",
    mlp_bias: Bias::Never,
    head_norms: true,
    windows: Windows::UpperLayers,
    ..LLAMA
};

/// A new architecture is a row here.
const FAMILIES: [&Family; 4] = [&LLAMA, &MISTRAL, &QWEN2, &QWEN3];

impl ModelSpec {
    /// Reads `config.json`, in the style of transformers 4 or 5. `file` names it in errors.
    pub fn from_json(file: &str, config_json: &[u8]) -> Result<Self, LoadError> {
        let value = fields::parse(file, config_json)?;
        let config = Fields::root(file, &value)?;
        let family = family(file, &config)?;
        let vocab = config.integer("vocab_size", 1..=IDS_MAX)?;
        let vocab = config.required("vocab_size", vocab)?;
        let positions_max = config.integer("max_position_embeddings", 2..=IDS_MAX)?;
        let positions_max = config.required("max_position_embeddings", positions_max)?;
        let heads = Heads::read(&config)?;
        let epsilon = config.number("rms_norm_eps", 1e-12..=0.1)?.unwrap_or(1e-6) as f32;
        Ok(Self {
            architecture: family.architecture,
            vocab,
            positions_max,
            hidden: heads.hidden,
            mlp: multiple_of_eight(&config, "intermediate_size", 1 << 20)?,
            query_heads: heads.query,
            kv_heads: heads.kv,
            head_dim: heads.dim,
            norm: NormSpec { epsilon, one_plus: family.norm_one_plus },
            attention: AttentionSpec {
                scale: (1.0 / f64::from(heads.dim).sqrt()) as f32,
                softcap: None,
                qkv_bias: family.qkv_bias.read(&config)?,
                output_bias: family.output_bias.read(&config)?,
                head_norms: family.head_norms,
            },
            activation: activation(&config)?,
            mlp_bias: family.mlp_bias.read(&config)?,
            embedding_scale: 1.0,
            tied_embeddings: config.boolean("tie_word_embeddings")?.unwrap_or(family.tied_default),
            ropes: vec![RopeSpec::from_config(&config, heads.dim)?],
            layers: layers(&config, family.windows, positions_max)?,
            eos_token_ids: config.token_ids("eos_token_id", vocab)?,
            tensors: family.tensors,
        })
    }

    /// A published shape by name, or `HxLxNxKxDxFxV`: hidden, layers, query heads, key/value heads, head size, MLP,
    /// vocabulary of a Qwen3 decoder with tied embeddings.
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

    /// Elements of a row of q.
    pub fn query_columns(&self) -> u32 {
        self.query_heads * self.head_dim
    }

    /// Elements of a row of k, or of v.
    pub fn kv_columns(&self) -> u32 {
        self.kv_heads * self.head_dim
    }
}

fn family(file: &str, config: &Fields<'_>) -> Result<&'static Family, LoadError> {
    let architectures = config.list("architectures")?.unwrap_or_default();
    let found = match architectures.first() {
        Some(Value::String(name)) => name.as_str(),
        Some(_) => return Err(config.fault("architectures", "holds something that is not a name")),
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
    fn read(self, config: &Fields<'_>) -> Result<bool, LoadError> {
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
    fn read(config: &Fields<'_>) -> Result<Self, LoadError> {
        let hidden = multiple_of_eight(config, "hidden_size", 1 << 16)?;
        let query = config.integer("num_attention_heads", 1..=1024)?;
        let query = config.required("num_attention_heads", query)?;
        let kv = config.integer("num_key_value_heads", 1..=1024)?.unwrap_or(query);
        if query % kv != 0 {
            let message = format!("is {kv}, which does not divide num_attention_heads = {query}");
            return Err(config.fault("num_key_value_heads", message));
        }
        if query / kv > GROUP_SIZE_MAX {
            let message = format!("is {kv}: more than {GROUP_SIZE_MAX} of {query} query heads would share one");
            return Err(config.fault("num_key_value_heads", message));
        }
        if config.get("head_dim").is_some() {
            let dim = multiple_of_eight(config, "head_dim", HEAD_DIM_MAX)?;
            return Ok(Self { hidden, query, kv, dim });
        }
        let dim = hidden / query;
        if hidden % query != 0 {
            let message = format!("is {query}, which does not divide hidden_size = {hidden}");
            return Err(config.fault("num_attention_heads", message));
        }
        if dim % 8 != 0 || dim > HEAD_DIM_MAX {
            let message = format!("would be {dim}, not a multiple of 8 up to {HEAD_DIM_MAX}");
            return Err(config.fault("head_dim", message));
        }
        Ok(Self { hidden, query, kv, dim })
    }
}

fn multiple_of_eight(config: &Fields<'_>, name: &str, max: u32) -> Result<u32, LoadError> {
    let value = config.required(name, config.integer(name, 8..=max)?)?;
    if value % 8 != 0 {
        return Err(config.fault(name, format!("is {value}, not a multiple of 8")));
    }
    Ok(value)
}

fn activation(config: &Fields<'_>) -> Result<Activation, LoadError> {
    match config.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => Err(config.fault("hidden_act", format!("is {other:?}, not silu or gelu_pytorch_tanh"))),
    }
}

fn layers(config: &Fields<'_>, windows: Windows, positions_max: u32) -> Result<Vec<LayerSpec>, LoadError> {
    let count = config.required("num_hidden_layers", config.integer("num_hidden_layers", 1..=LAYERS_MAX)?)?;
    let window = config.integer("sliding_window", 1..=u32::MAX)?;
    let (first, window) = match windows {
        Windows::Never => (0, None),
        Windows::EveryLayer => (0, window),
        Windows::UpperLayers if config.boolean("use_sliding_window")?.unwrap_or(false) => {
            (config.integer("max_window_layers", 0..=u32::MAX)?.unwrap_or(28), window)
        }
        Windows::UpperLayers => (0, None),
    };
    // A window as long as the context hides nothing: such layers share the block ids of full attention.
    let window = window.filter(|&window| window < positions_max);
    let kinds = config.list("layer_types")?.filter(|_| !matches!(windows, Windows::Never));
    if let Some(kinds) = kinds.filter(|kinds| kinds.len() != count as usize) {
        let message = format!("has {} entries, not num_hidden_layers = {count}", kinds.len());
        return Err(config.fault("layer_types", message));
    }
    (0..count)
        .map(|layer| {
            let slides = match kinds.map(|kinds| &kinds[layer as usize]) {
                None => layer >= first,
                Some(kind) => match kind.as_str() {
                    Some("sliding_attention") => true,
                    Some("full_attention") => false,
                    _ => return Err(config.fault("layer_types", format!("has {kind}, an unknown kind of layer"))),
                },
            };
            Ok(LayerSpec { window: window.filter(|_| slides), rope: Some(0) })
        })
        .collect()
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
