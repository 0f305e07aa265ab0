//! What a config says of each layer: kinds, windows, rotary embeddings, experts.

use super::LoadError;
use super::config_reader::ConfigReader;
use super::families::{AfterDense, Experts, Mixers, MlpSize, RopeRow, Ropes, Sizes, Windows};
use super::rope::RopeSpec;
use super::spec::{ConvolutionSpec, EXPERTS_MAX, ExpertsSpec, LAYERS_MAX, LayerKind, RouterSpec, SharedSpec};
use crate::plan::ExpertGroups;
use crate::plan::check::{HEAD_DIM_MAX, ROUTES_MAX, TAPS_MAX};
use serde_json::Value;
use std::collections::BTreeSet;

/// Pairs of head size and number of KV heads among a model's layers: those with a window, and the others. The plan has
/// buffers for each.
const HEAD_SHAPES_MAX: usize = 2;

/// The number of layers.
pub(super) fn count(config: &ConfigReader<'_>) -> Result<usize, LoadError> {
    let count = config.required("num_hidden_layers", config.integer("num_hidden_layers", 1..=LAYERS_MAX)?)?;
    Ok(count as usize)
}

/// For each layer, what mixes its tokens: `layer_types`, or the layers with attention in `full_attn_idxs`.
pub(super) fn kinds(config: &ConfigReader<'_>, mixers: Mixers, count: usize) -> Result<Vec<LayerKind>, LoadError> {
    if let Mixers::Attention = mixers {
        return Ok(vec![LayerKind::Attention; count]);
    }
    if let Some(words) = config.list("layer_types")? {
        let kind = |word: &Value| match word.as_str() {
            Some("conv") => Ok(LayerKind::Convolution),
            Some("full_attention" | "attention") => Ok(LayerKind::Attention),
            _ => Err(config.invalid("layer_types", format!("has {word}, an unknown kind of layer"))),
        };
        check_count(config, words, count)?;
        return words.iter().map(kind).collect();
    }
    let attends = config.required("layer_types", config.list("full_attn_idxs")?)?;
    let mut kinds = vec![LayerKind::Convolution; count];
    for index in attends {
        let layer = index.as_u64().and_then(|index| kinds.get_mut(usize::try_from(index).ok()?));
        *layer.ok_or_else(|| config.invalid("full_attn_idxs", format!("has {index}, not one of {count} layers")))? =
            LayerKind::Attention;
    }
    Ok(kinds)
}

/// The options of short convolutions.
pub(super) fn convolution(config: &ConfigReader<'_>) -> Result<ConvolutionSpec, LoadError> {
    let taps = config.integer("conv_L_cache", 2..=TAPS_MAX)?.unwrap_or(3);
    Ok(ConvolutionSpec { taps, bias: config.boolean("conv_bias")?.unwrap_or(false) })
}

/// The size of an MLP that is not its experts'.
pub(super) fn mlp_size(config: &ConfigReader<'_>, size: MlpSize) -> Result<u32, LoadError> {
    const MAX: u32 = 1 << 20;
    let name = match size {
        MlpSize::Field(name) => return config.multiple_of_eight(name, MAX),
        MlpSize::Adjusted if config.get("block_ff_dim").is_some() => "block_ff_dim",
        MlpSize::Adjusted => "intermediate_size",
    };
    if !config.boolean("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return config.multiple_of_eight(name, MAX);
    }
    let whole = config.required(name, config.integer(name, 8..=MAX)?)?;
    let factor = config.number("block_ffn_dim_multiplier", 1e-3..=1e3)?.unwrap_or(1.0);
    let multiple = config.integer("block_multiple_of", 8..=1 << 16)?.unwrap_or(256);
    let size = (f64::from(2 * whole / 3) * factor) as u32;
    let size = size.max(1).next_multiple_of(multiple);
    if !size.is_multiple_of(8) || size > MAX {
        return Err(config.invalid(name, format!("is {whole}: the adjusted size would be {size}")));
    }
    Ok(size)
}

/// For each layer, whether it has a sliding window.
pub(super) fn slides(config: &ConfigReader<'_>, windows: Windows, count: usize) -> Result<Vec<bool>, LoadError> {
    let asked = config.boolean("use_sliding_window")?.unwrap_or(false);
    let window = config.get("sliding_window").is_some();
    let none = vec![false; count];
    if let Windows::Never = windows {
        return Ok(none);
    }
    let kinds = config.list("layer_types")?.map(|kinds| layer_kinds(config, kinds, count)).transpose()?;
    match windows {
        Windows::EveryLayer | Windows::PatternIfSet(_) if !window => return Ok(none),
        Windows::UpperLayers | Windows::UnrotatedLayers if !asked => return Ok(none),
        _ => {}
    }
    let slides: Vec<bool> = match (kinds, windows) {
        (Some(kinds), _) => kinds,
        (None, Windows::Never) => none,
        (None, Windows::EveryLayer) => vec![true; count],
        (None, Windows::UpperLayers) => {
            let first = config.integer("max_window_layers", 0..=u32::MAX)?.unwrap_or(28) as usize;
            (0..count).map(|layer| layer >= first).collect()
        }
        (None, Windows::Pattern(every) | Windows::PatternIfSet(every)) => pattern(config, every, count)?,
        (None, Windows::UnrotatedLayers) => {
            rotated_layers(config, count)?.into_iter().map(|rotated| !rotated).collect()
        }
    };
    if slides.contains(&true) && !window {
        return Err(config.invalid("sliding_window", "is missing, but some layers have a sliding window"));
    }
    Ok(slides)
}

/// Fails unless `layer_types` has an entry per layer.
fn check_count(config: &ConfigReader<'_>, kinds: &[Value], count: usize) -> Result<(), LoadError> {
    if kinds.len() == count {
        return Ok(());
    }
    let message = format!("has {} entries, not num_hidden_layers = {count}", kinds.len());
    Err(config.invalid("layer_types", message))
}

/// Reads `layer_types` of a model whose layers all have attention.
fn layer_kinds(config: &ConfigReader<'_>, kinds: &[Value], count: usize) -> Result<Vec<bool>, LoadError> {
    check_count(config, kinds, count)?;
    let slides = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention" | "attention") => Ok(false),
        _ => Err(config.invalid("layer_types", format!("has {kind}, an unknown kind of layer"))),
    };
    kinds.iter().map(slides).collect()
}

/// All but every n-th layer; n is `sliding_window_pattern`, or `every` if it is absent.
fn pattern(config: &ConfigReader<'_>, every: u32, count: usize) -> Result<Vec<bool>, LoadError> {
    if let Some(Value::String(letters)) = config.get("sliding_window_pattern") {
        if letters.is_empty() || letters.chars().any(|letter| !"LG".contains(letter)) {
            return Err(config.invalid("sliding_window_pattern", "is not a text of L and G"));
        }
        return Ok(letters.chars().cycle().take(count).map(|letter| letter == 'L').collect());
    }
    let given = config.integer("sliding_window_pattern", 1..=LAYERS_MAX)?;
    let given = given.or(config.integer("_sliding_window_pattern", 1..=LAYERS_MAX)?);
    let every = given.unwrap_or(every) as usize;
    Ok((1..=count).map(|layer| layer % every != 0).collect())
}

/// The rotary embeddings of a model, and for each layer the index of its own.
type LayerRopes = (Vec<RopeSpec>, Vec<Option<usize>>);

/// Reads the rotary embeddings of heads of `head_dim` elements.
pub(super) fn ropes(
    config: &ConfigReader<'_>,
    row: RopeRow,
    head_dim: u32,
    slides: &[bool],
    shapes: &[LayerShape],
) -> Result<LayerRopes, LoadError> {
    let dim_of = |local: bool| {
        let found = slides.iter().zip(shapes).find(|(slides, _)| **slides == local);
        found.map_or(head_dim, |(_, shape)| shape.head_dim)
    };
    let one = || Ok::<_, LoadError>(vec![RopeSpec::from_config(config, head_dim, row.options)?]);
    let count = slides.len();
    let by_window = || slides.iter().map(|&slides| Some(usize::from(slides))).collect();
    Ok(match row.layers {
        Ropes::One => (one()?, vec![Some(0); count]),
        Ropes::LocalAndGlobal => {
            (RopeSpec::global_and_local(config, [dim_of(false), dim_of(true)], row.options)?.into(), by_window())
        }
        Ropes::ScaledIfGlobal => (RopeSpec::scaled_and_plain(config, head_dim, row.options)?.into(), by_window()),
        Ropes::SomeLayers => {
            (one()?, rotated_layers(config, count)?.into_iter().map(|rotated| rotated.then_some(0)).collect())
        }
        Ropes::LocalUnlessAllGlobal => {
            let all = !slides.contains(&true);
            (one()?, slides.iter().map(|&slides| (all || slides).then_some(0)).collect())
        }
        Ropes::Local => (one()?, slides.iter().map(|&slides| slides.then_some(0)).collect()),
        Ropes::PositionEmbeddingType { default } => {
            let rotates = config.text("position_embedding_type")?.map_or(default, |kind| kind == "rope");
            (one()?, vec![rotates.then_some(0); count])
        }
    })
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
pub(super) fn sparse(config: &ConfigReader<'_>, experts: Experts, count: usize) -> Result<Vec<bool>, LoadError> {
    match experts {
        Experts::Never => Ok(vec![false; count]),
        Experts::Refused if config.integer("num_local_experts", 0..=EXPERTS_MAX)?.unwrap_or(0) > 0 => {
            Err(config.invalid("num_local_experts", "is above zero: experts are not supported in this architecture"))
        }
        Experts::Refused => Ok(vec![false; count]),
        Experts::EveryLayer { .. } => Ok(vec![true; count]),
        Experts::AfterDense(AfterDense { dense: (field, default), .. }) => {
            let dense = config.integer(field, 0..=LAYERS_MAX)?.unwrap_or(default) as usize;
            Ok((0..count).map(|layer| layer >= dense).collect())
        }
        Experts::BesideMlp => Ok(vec![config.boolean("enable_moe_block")?.unwrap_or(false); count]),
        Experts::SparseLayers { .. } => {
            let step = config.integer("decoder_sparse_step", 1..=LAYERS_MAX)?.unwrap_or(1) as usize;
            let dense = config.list("mlp_only_layers")?.unwrap_or_default();
            let is_dense = |layer: usize| dense.iter().any(|entry| entry.as_u64() == Some(layer as u64));
            Ok((0..count).map(|layer| (layer + 1) % step == 0 && !is_dense(layer)).collect())
        }
    }
}

/// The options of layers with experts.
pub(super) fn experts(config: &ConfigReader<'_>, experts: Experts) -> Result<Option<ExpertsSpec>, LoadError> {
    let normalizes = |default| Ok::<_, LoadError>(config.boolean("norm_topk_prob")?.unwrap_or(default));
    let softmax =
        |renormalize| RouterSpec { sigmoid: false, renormalize, choice_bias: false, groups: None, factor: 1.0 };
    let (router, bias, shared) = match experts {
        Experts::Never | Experts::Refused => return Ok(None),
        Experts::SparseLayers { shared } => (softmax(normalizes(false)?), false, shared_behind_gate(config, shared)?),
        Experts::EveryLayer { bias } => (softmax(true), bias, None),
        Experts::BesideMlp => (softmax(true), false, None),
        Experts::AfterDense(AfterDense { choice_bias, .. }) => {
            let choice_bias = choice_bias.map_or(Ok(None), |field| config.boolean(field))?.unwrap_or(true);
            let groups = expert_groups(config)?;
            let factor = config.number("routed_scaling_factor", 1e-3..=1e3)?.unwrap_or(1.0) as f32;
            let router = RouterSpec { sigmoid: true, renormalize: normalizes(true)?, choice_bias, groups, factor };
            (router, false, shared_experts(config)?)
        }
    };
    // transformers 5 writes the first name, published configs another.
    let counted = match experts {
        Experts::AfterDense(AfterDense { count, .. }) => count,
        _ if config.get("num_local_experts").is_some() => "num_local_experts",
        _ => "num_experts",
    };
    let chosen = if matches!(experts, Experts::BesideMlp) { "top_k_experts" } else { "num_experts_per_tok" };
    let size =
        if matches!(experts, Experts::EveryLayer { .. }) { "intermediate_size" } else { "moe_intermediate_size" };
    let count = config.required(counted, config.integer(counted, 1..=EXPERTS_MAX)?)?;
    let per_token = config.required(chosen, config.integer(chosen, 1..=ROUTES_MAX)?)?;
    if per_token > count {
        return Err(config.invalid(chosen, format!("is {per_token}, more than {counted} = {count}")));
    }
    if let Some(ExpertGroups { count: groups, kept }) = router.groups
        && (count % groups != 0 || count / groups < 2 || per_token > count / groups * kept)
    {
        let message = format!("is {groups}: {count} experts, {per_token} a token, do not fit into {kept} of them");
        return Err(config.invalid("n_group", message));
    }
    let mlp = config.multiple_of_eight(size, 1 << 20)?;
    let beside = matches!(experts, Experts::BesideMlp);
    Ok(Some(ExpertsSpec { count, per_token, mlp, router, bias, shared, beside }))
}

/// The MLP of size `shared_expert_intermediate_size`, if the family has it.
fn shared_behind_gate(config: &ConfigReader<'_>, shared: bool) -> Result<Option<SharedSpec>, LoadError> {
    if !shared {
        return Ok(None);
    }
    let mlp = config.multiple_of_eight("shared_expert_intermediate_size", 1 << 20)?;
    Ok(Some(SharedSpec { mlp, gated: true }))
}

/// `n_shared_experts` experts that every token passes, as one MLP.
fn shared_experts(config: &ConfigReader<'_>) -> Result<Option<SharedSpec>, LoadError> {
    let count = config.integer("n_shared_experts", 0..=EXPERTS_MAX)?.unwrap_or(0);
    let mlp = config.multiple_of_eight("moe_intermediate_size", 1 << 20)?;
    if count.checked_mul(mlp).is_none_or(|all| all > 1 << 20) {
        return Err(config.invalid("n_shared_experts", format!("is {count}: experts of {mlp} would be too large")));
    }
    Ok((count > 0).then_some(SharedSpec { mlp: count * mlp, gated: false }))
}

/// `n_group` and `topk_group`; `None` if all groups are kept.
fn expert_groups(config: &ConfigReader<'_>) -> Result<Option<ExpertGroups>, LoadError> {
    let count = config.integer("n_group", 1..=32)?.unwrap_or(1);
    let kept = config.integer("topk_group", 1..=32)?.unwrap_or(1);
    if kept > count {
        return Err(config.invalid("topk_group", format!("is {kept}, more than n_group = {count}")));
    }
    Ok((kept < count).then_some(ExpertGroups { count, kept }))
}

/// The sizes of a layer, and where its keys and values come from.
#[derive(Clone, Copy)]
pub(super) struct LayerShape {
    pub(super) kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) mlp: u32,
    pub(super) kv_from: Option<usize>,
    pub(super) value_is_key: bool,
}

/// The sizes of each layer; `usual` are those that hold where the config says nothing else.
pub(super) fn shapes(
    config: &ConfigReader<'_>,
    sizes: Sizes,
    usual: LayerShape,
    slides: &[bool],
) -> Result<Vec<LayerShape>, LoadError> {
    let mut shapes = vec![usual; slides.len()];
    if sizes == Sizes::Same {
        return Ok(shapes);
    }
    let value_is_key = config.boolean("attention_k_eq_v")?.unwrap_or(false);
    let exceptions = config.object("per_layer_config")?;
    let global_dim = optional_size(config, "global_head_dim", HEAD_DIM_MAX)?;
    let global_heads = config.integer("num_global_key_value_heads", 1..=1024)?.filter(|_| value_is_key);
    for (index, (shape, slides)) in shapes.iter_mut().zip(slides).enumerate() {
        if !slides {
            shape.head_dim = global_dim.unwrap_or(shape.head_dim);
            shape.kv_heads = global_heads.unwrap_or(shape.kv_heads);
            shape.value_is_key = value_is_key;
        }
        let Some(own) = exceptions.as_ref().map(|all| all.object(&index.to_string())).transpose()?.flatten() else {
            continue;
        };
        shape.head_dim = optional_size(&own, "head_dim", HEAD_DIM_MAX)?.unwrap_or(shape.head_dim);
        shape.kv_heads = own.integer("num_key_value_heads", 1..=1024)?.unwrap_or(shape.kv_heads);
    }
    let count = slides.len();
    let shared = config.integer("num_kv_shared_layers", 0..=LAYERS_MAX)?.unwrap_or(0) as usize;
    let is_double = config.boolean("use_double_wide_mlp")?.unwrap_or(false);
    if shared >= count {
        return Err(config.invalid("num_kv_shared_layers", format!("is {shared} of {count} layers")));
    }
    for index in count - shared..count {
        let from = (0..count - shared).rev().find(|&from| slides[from] == slides[index]);
        let from = from.ok_or_else(|| {
            config
                .invalid("num_kv_shared_layers", format!("is {shared}: layer {index} has none of its kind before them"))
        })?;
        let (kv_heads, head_dim) = (shapes[from].kv_heads, shapes[from].head_dim);
        let mlp = if is_double { 2 * usual.mlp } else { usual.mlp };
        shapes[index] = LayerShape { kv_heads, head_dim, mlp, kv_from: Some(from), value_is_key: false };
    }
    let kinds: BTreeSet<_> = shapes.iter().map(|shape| (shape.head_dim, shape.kv_heads)).collect();
    if kinds.len() > HEAD_SHAPES_MAX {
        let message = format!("gives layers {} kinds of heads; at most {HEAD_SHAPES_MAX} are supported", kinds.len());
        return Err(config.invalid("per_layer_config", message));
    }
    Ok(shapes)
}

fn optional_size(config: &ConfigReader<'_>, name: &str, max: u32) -> Result<Option<u32>, LoadError> {
    config.get(name).map(|_| config.multiple_of_eight(name, max)).transpose()
}
