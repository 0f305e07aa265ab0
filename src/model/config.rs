//! Reads a [`ModelSpec`] from a `config.json`.
//!
//! A row of [`FAMILIES`] says how one architecture's config is read. Every number is validated here, once.
//! `torch_dtype` and `dtype` are not read: weights keep the element types of the checkpoint.

use super::classes::{self, ClassesSpec};
use super::config_defaults;
use super::config_experts;
use super::config_heads::{Heads, check_groups};
use super::config_layers::{self as per_layer, LayerShape, Word};
use super::config_reader::{self, ConfigReader};
use super::config_scales::Multipliers;
use super::config_state;
use super::error::LoadError;
use super::families::{
    ActivationField, AttentionRow, BASES, FAMILIES, Family, Flag, Growth, Mixers, MlpRow, NormsRow,
    Positions, RopeRow, Rule, Sizes, Sparse, Windows,
};
use super::rope::RopeSpec;
use super::spec::{
    AttentionSpec, HeadNorms, IDS_MAX, LayerKind, LayerSpec, MlpSpec, ModelSpec, NormPlace,
    NormSpec, OutputGate,
};
use super::stored::Stored;
use crate::plan::{Activation, QueryGrowth, Window};
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
        let config = text.unwrap_or_else(|| whole.clone()).named(family.fields);
        check_supported(&config, family)?;
        let spec = Self::of_family(family, &whole, &config, stored)?;
        let spec = spec.headed(classes::classes(&whole)?);
        spec.divided(file, stored.rope_divisors)
    }

    /// The same with a head for classes, if there is one.
    fn headed(self, classes: Option<ClassesSpec>) -> Self {
        let own = classes.as_ref().map(|classes| classes.architecture);
        Self {
            architecture: own.unwrap_or(self.architecture),
            classes,
            ..self
        }
    }

    /// Reads the config of a text model or a tower, as the row of its family says; `whole` is the config that it is a
    /// part of.
    pub(super) fn of_family(
        family: &Family,
        whole: &ConfigReader<'_>,
        config: &ConfigReader<'_>,
        stored: &Stored<'_>,
    ) -> Result<Self, LoadError> {
        let vocab = config.required_integer("vocab_size", 1..=IDS_MAX)?;
        let (first_position, positions_max) = positions(config, family.tables.positions)?;
        let heads = Heads::of(config, family.attention.latent)?;
        let scales = Multipliers::read(config, family.scales, &heads)?;
        let (ropes, layers) = layers(config, family, &heads, positions_max)?;
        let norms = norms_row(config, family.norms);
        let epsilon = epsilon(config, norms)?;
        Ok(Self {
            architecture: family.architecture,
            classes: None,
            tower: None,
            vocab,
            positions_max,
            hidden: heads.hidden,
            query_heads: heads.query,
            first_position,
            texts: texts(config, family.tables.texts)?,
            norm: norm(config, norms, (epsilon, &scales), stored)?,
            attention: attention(config, family.attention, &scales, stored)?,
            latent: heads.latent,
            convolution: per_layer::convolution(config, &layers)?,
            state: config_state::state(config, family.mixers, &layers, epsilon, stored)?,
            factors: scales.factors,
            mlp: mlp(config, family.mlp)?,
            experts: config_experts::experts(config, family.experts, &layers)?,
            layer_embedding: layer_embedding(config, family.sizes, vocab)?,
            layer_scalar: family.sizes == Sizes::ByKind,
            embedding_scale: (scales.embedding / scales.residual) as f32,
            logits_scale: scales.logits as f32,
            logits_softcap: scales.logits_softcap.map(|cap| cap as f32),
            tied_embeddings: tied(whole, config)?.unwrap_or(family.tied_default),
            embedding_in_head: false,
            head_bias: family.head_bias.read(config)?,
            ropes,
            layers,
            eos_token_ids: end_tokens(whole, config, vocab),
            tensors: stored.tensors.unwrap_or(family.tensors),
        })
    }

    /// The same, with these divisors of the rotary frequencies of layers without a window, whose rotation is the first.
    fn divided(mut self, file: &str, divisors: &[f32]) -> Result<Self, LoadError> {
        if let Some(rope) = self.ropes.first_mut()
            && !divisors.is_empty()
        {
            rope.divide(file, divisors)?;
        }
        Ok(self)
    }
}

/// The row of position 0 in a table of positions, if there is one, and the number of positions.
fn positions(config: &ConfigReader<'_>, table: Positions) -> Result<(Option<u32>, u32), LoadError> {
    let name = "max_position_embeddings";
    let rows = config.required_integer(name, 2..=IDS_MAX)?;
    let first = match table {
        Positions::Never => return Ok((None, rows)),
        Positions::FromZero => 0,
        Positions::AfterPad => 1 + config.required_integer("pad_token_id", 0..=IDS_MAX)?,
    };
    match rows.checked_sub(first) {
        Some(positions @ 2..) => Ok((Some(first), positions)),
        _ => {
            let message = format!("is {rows}: positions begin at row {first}");
            Err(config.invalid(name, message))
        }
    }
}

/// Maximum rows of a table of token types.
const TEXTS_MAX: u32 = 16;

/// Rows of the table of token types; 0 if there is none.
fn texts(config: &ConfigReader<'_>, has_table: bool) -> Result<u32, LoadError> {
    if !has_table {
        return Ok(0);
    }
    config.required_integer("type_vocab_size", 0..=TEXTS_MAX)
}

/// The rotary embeddings and the layers.
fn layers(
    config: &ConfigReader<'_>,
    family: &Family,
    heads: &Heads,
    positions_max: u32,
) -> Result<(Vec<RopeSpec>, Vec<LayerSpec>), LoadError> {
    let attention = family.attention;
    let words = per_layer::words(config, family.mixers, attention.windows)?;
    let sparse = config_experts::sparse(config, family.experts, &words)?;
    let slides = per_layer::slides(config, attention.windows, &words)?;
    let dense = dense(family, &words, &sparse);
    let usual = usual_shape(config, family, heads, &dense)?;
    let kinds = (family.sizes, attention.query_heads);
    let shapes = per_layer::shapes(config, kinds, usual, &slides)?;
    let rope = rope_row(config, family, heads, &shapes)?;
    let (ropes, layer_ropes) =
        per_layer::ropes(config, rope, heads.rotated(), &slides, &shapes, &sparse)?;
    let window = window(config, attention, &slides, positions_max)?;
    let place = norm_place(config, family.norms)?;
    let clamps = per_layer::clamps(config, family.mlp, words.len())?;
    let layers = (0..words.len()).map(|index| {
        let kind = words[index].kind(family.mixers);
        let shape = shapes[index];
        let rotates = layer_ropes[index].is_some();
        LayerSpec {
            kind,
            norms: norms_of((index, kind), family, place),
            window: if slides[index] { window } else { None },
            rope: layer_ropes[index],
            experts: sparse[index],
            mlp: if dense[index] { shape.mlp } else { 0 },
            query_heads: shape.query_heads,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            kv_from: shape.kv_from,
            value_is_key: shape.value_is_key,
            head_norms: rotates || !attention.head_norms_rotated,
            query_growth: !rotates || attention.query_growth != Growth::Unrotated,
            clamps: clamps[index],
        }
    });
    Ok((ropes, layers.collect()))
}

/// The sizes of layers that have no others of their own.
fn usual_shape(
    config: &ConfigReader<'_>,
    family: &Family,
    heads: &Heads,
    dense: &[bool],
) -> Result<LayerShape, LoadError> {
    Ok(LayerShape {
        query_heads: heads.query,
        kv_heads: heads.kv,
        head_dim: heads.dim,
        mlp: if dense.contains(&true) {
            per_layer::mlp_size(config, family.mlp.size)?
        } else {
            0
        },
        kv_from: None,
        value_is_key: false,
    })
}

/// For each layer, whether it has an MLP that is not its experts'.
fn dense(family: &Family, words: &[Word], sparse: &[bool]) -> Vec<bool> {
    let beside = matches!(family.experts.layers, Sparse::BesideMlp);
    let is_dense = |(word, sparse): (&Word, &bool)| match family.mixers {
        Mixers::Blocks => *word == Word::Mlp,
        _ => beside || !sparse,
    };
    words.iter().zip(sparse).map(is_dense).collect()
}

/// How a family rotates heads. With a latent, the config says how pairs lie; otherwise, heads share keys in groups,
/// which are checked.
fn rope_row(
    config: &ConfigReader<'_>,
    family: &Family,
    heads: &Heads,
    shapes: &[LayerShape],
) -> Result<RopeRow, LoadError> {
    let mut rope = family.rope;
    if heads.latent.is_some() {
        let given = config.boolean("rope_interleave")?;
        rope.options.interleaved = given.unwrap_or(rope.options.interleaved);
        rope.options.whole = true;
    } else {
        for shape in shapes {
            check_groups(config, shape.query_heads, shape.kv_heads)?;
        }
    }
    Ok(rope)
}

/// Sliding windows, with their length or how far they reach in each direction; or chunks. One as long as the context
/// hides nothing: it counts as full attention, so that both share block ids.
fn window(
    config: &ConfigReader<'_>,
    row: AttentionRow,
    slides: &[bool],
    positions_max: u32,
) -> Result<Option<Window>, LoadError> {
    if !slides.contains(&true) {
        return Ok(None);
    }
    let tokens = config.integer(row.windows.field(), 1..=u32::MAX)?;
    let both_ways = row.both_ways.read(config)?;
    let tokens = tokens.map(|tokens| if both_ways { tokens / 2 } else { tokens });
    let tokens = tokens.filter(|&tokens| tokens < positions_max);
    Ok(tokens.map(match row.windows {
        Windows::Chunks => Window::Chunk,
        _ => Window::Last,
    }))
}

/// Where a layer has norms: the first one of some families elsewhere. In OLMo hybrid, layers with a state have them
/// before.
fn norms_of((index, kind): (usize, LayerKind), family: &Family, usual: NormPlace) -> NormPlace {
    if let (0, Some(first)) = (index, family.norms.first) {
        return first;
    }
    match (kind, family.mixers) {
        (LayerKind::State, Mixers::AttentionOrState(Rule::NegativeDelta)) => NormPlace::Before,
        _ => usual,
    }
}

/// How a family has norms: as LayerNorms, unless the config has an epsilon of RMS norms.
fn norms_row(config: &ConfigReader<'_>, row: NormsRow) -> NormsRow {
    match row.epsilon_rms {
        Some(field) if config.get(field).is_some() => NormsRow {
            epsilon: field,
            center: false,
            ..row
        },
        _ => row,
    }
}

fn epsilon(config: &ConfigReader<'_>, row: NormsRow) -> Result<f64, LoadError> {
    config.required(row.epsilon, config.number(row.epsilon, 1e-12..=0.1)?)
}

fn norm(
    config: &ConfigReader<'_>,
    row: NormsRow,
    (epsilon, scales): (f64, &Multipliers),
    stored: &Stored<'_>,
) -> Result<NormSpec, LoadError> {
    let after = row
        .epsilon_after
        .map_or(Ok(None), |field| config.number(field, 1e-12..=0.1))?;
    Ok(NormSpec {
        epsilon: scales.epsilon(epsilon),
        epsilon_after: scales.epsilon(after.unwrap_or(epsilon)),
        one_plus: row.one_plus && stored.norms_less_one,
        final_one_plus: row.final_one_plus && stored.norms_less_one,
        center: row.center,
        bias: row.bias,
        embedding: row.embedding,
        last: row.last,
    })
}

fn mlp(config: &ConfigReader<'_>, row: MlpRow) -> Result<MlpSpec, LoadError> {
    // An ungated function leaves a family's MLPs without gates.
    let is_plain = matches!(row.activation, ActivationField::Function)
        && config.text("activation_function")? == Some("gelu");
    let bias = row.bias.read(config)?;
    Ok(MlpSpec {
        activation: activation(config, row)?,
        gated: row.gated && !is_plain,
        bias,
        down_bias: row.down_bias.map_or(Ok(bias), |down| down.read(config))?,
    })
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
        query_norm_factor: scales.query_norm as f32,
        value_norm: row.value_norm,
        query_growth: match row.query_growth {
            Growth::Never => None,
            Growth::Rope => growth_of_rope(config)?,
            Growth::Unrotated => growth_of_unrotated(config)?,
        },
        sinks: row.sinks,
        gate: output_gate(config, row)?,
        gate_activation: row.gate_activation,
        both_ways: row.both_ways.read(config)?,
        alibi: row.alibi,
    })
}

/// What multiplies attended rows.
fn output_gate(config: &ConfigReader<'_>, row: AttentionRow) -> Result<OutputGate, LoadError> {
    let is_there = match (row.gate_if, row.gate_kind) {
        (None, Some(field)) if config.get(field).is_some_and(Value::is_string) => {
            return match config.text(field)?.unwrap_or_default() {
                "per-head" => Ok(OutputGate::EachHead),
                "per-element" => Ok(OutputGate::EachElement),
                other => {
                    let message = format!("is {other:?}, not \"per-head\" or \"per-element\"");
                    Err(config.invalid(field, message))
                }
            };
        }
        (Some(field), _) | (None, Some(field)) => config.boolean(field)?,
        (None, None) => None,
    };
    Ok(match is_there.unwrap_or(true) {
        true => row.gate,
        false => OutputGate::None,
    })
}

/// The row of a config. That of a multimodal checkpoint is found by the `model_type` of its text model.
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
    let base = BASES.iter().find(|(base, _)| *base == found);
    let base = base.map(|(_, own)| *own).or_else(|| classes::base(found));
    let found = base.unwrap_or(found);
    FAMILIES
        .into_iter()
        .find(|family| {
            family.architecture == found
                || family.model_type == found
                || family.spellings.contains(&found)
        })
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

/// Fails if a field asks for what the decoder does not do.
fn check_supported(config: &ConfigReader<'_>, family: &Family) -> Result<(), LoadError> {
    let asked = |field: &&&str| {
        config
            .get(field)
            .is_some_and(|value| *value != Value::Bool(false) && value.as_f64() != Some(0.0))
    };
    if let Some(field) = family.unsupported.iter().find(asked) {
        return Err(config.invalid(field, "is set, which is not supported"));
    }
    for (field, expected) in family.fixed {
        let found = config.get(field).map(Value::to_string);
        if let Some(found) = found.filter(|found| found != expected) {
            let message = format!("is {found}: only {expected} is supported");
            return Err(config.invalid(field, message));
        }
    }
    Ok(())
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

impl Flag {
    pub(super) fn read(self, config: &ConfigReader<'_>) -> Result<bool, LoadError> {
        match self {
            Self::Never => Ok(false),
            Self::Always => Ok(true),
            Self::Field(name) => Ok(config.boolean(name)?.unwrap_or(false)),
            Self::UnlessField(name) => Ok(config.boolean(name)?.unwrap_or(true)),
        }
    }
}

/// The norms of q and k, unless a field says that there are none.
fn head_norms(config: &ConfigReader<'_>, row: AttentionRow) -> Result<HeadNorms, LoadError> {
    Ok(if row.head_norms_if.read(config)? {
        row.head_norms
    } else {
        HeadNorms::None
    })
}

/// `llama_4_scaling_beta` of `rope_parameters`, and the positions after which q begins to grow.
fn growth_of_rope(config: &ConfigReader<'_>) -> Result<Option<QueryGrowth>, LoadError> {
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
        ahead: 0,
    }))
}

/// `attn_scale` and `floor_scale`, unless `attn_temperature_tuning` is false.
fn growth_of_unrotated(config: &ConfigReader<'_>) -> Result<Option<QueryGrowth>, LoadError> {
    if !config.boolean("attn_temperature_tuning")?.unwrap_or(true) {
        return Ok(None);
    }
    let name = "attn_scale";
    let slope = config.required(name, config.number(name, 0.0..=1e3)?)?;
    let positions = config.required_integer("floor_scale", 1..=IDS_MAX)?;
    Ok((slope > 0.0).then_some(QueryGrowth {
        slope: slope as f32,
        positions,
        ahead: 1,
    }))
}

/// `hidden_size_per_layer_input`: elements of the embeddings that layers have of their own.
fn layer_embedding(
    config: &ConfigReader<'_>,
    sizes: Sizes,
    vocab: u32,
) -> Result<Option<u32>, LoadError> {
    let name = "hidden_size_per_layer_input";
    if sizes == Sizes::Same || config.integer(name, 0..=1 << 16)?.unwrap_or(0) == 0 {
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
        ActivationField::Function => ("activation_function", Activation::Gelu),
        ActivationField::FeedForwardType => ("feed_forward_type", Activation::Gelu),
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
        Some("silu" | "swish" | "swiglu") => Ok(Activation::Silu),
        Some("gelu" | "geglu") => Ok(Activation::Gelu),
        Some("relu" | "reglu") => Ok(Activation::Relu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some("relu2") => Ok(Activation::Relu2),
        // Its numbers are tensors, which only families with this default have.
        Some("xielu") if default == Activation::Xielu => Ok(default),
        Some(other) => Err(config.invalid(
            name,
            format!("is {other:?}, not silu, gelu, gelu_pytorch_tanh, relu, relu2 or xielu"),
        )),
    }
}
