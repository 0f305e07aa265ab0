//! What a config says of each layer: windows, rotary embeddings, experts.

use super::LoadError;
use super::config_reader::ConfigReader;
use super::families::{Experts, RopeRow, Ropes, Windows};
use super::rope::RopeSpec;
use super::spec::{EXPERTS_MAX, ExpertsSpec, LAYERS_MAX};
use crate::plan::check::ROUTES_MAX;
use serde_json::Value;

/// The number of layers.
pub(super) fn count(config: &ConfigReader<'_>) -> Result<usize, LoadError> {
    let count = config.required("num_hidden_layers", config.integer("num_hidden_layers", 1..=LAYERS_MAX)?)?;
    Ok(count as usize)
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

/// Reads `layer_types`.
fn layer_kinds(config: &ConfigReader<'_>, kinds: &[Value], count: usize) -> Result<Vec<bool>, LoadError> {
    if kinds.len() != count {
        let message = format!("has {} entries, not num_hidden_layers = {count}", kinds.len());
        return Err(config.invalid("layer_types", message));
    }
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
) -> Result<LayerRopes, LoadError> {
    let one = || Ok::<_, LoadError>(vec![RopeSpec::from_config(config, head_dim, row.options)?]);
    let count = slides.len();
    let by_window = || slides.iter().map(|&slides| Some(usize::from(slides))).collect();
    Ok(match row.layers {
        Ropes::One => (one()?, vec![Some(0); count]),
        Ropes::LocalAndGlobal => (RopeSpec::global_and_local(config, head_dim, row.options)?.into(), by_window()),
        Ropes::ScaledIfGlobal => (RopeSpec::scaled_and_plain(config, head_dim, row.options)?.into(), by_window()),
        Ropes::SomeLayers => {
            (one()?, rotated_layers(config, count)?.into_iter().map(|rotated| rotated.then_some(0)).collect())
        }
        Ropes::LocalUnlessAllGlobal => {
            let all = !slides.contains(&true);
            (one()?, slides.iter().map(|&slides| (all || slides).then_some(0)).collect())
        }
        Ropes::PositionEmbeddingType => {
            let rotates = config.text("position_embedding_type")? == Some("rope");
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
        Experts::SparseLayers => {
            let step = config.integer("decoder_sparse_step", 1..=LAYERS_MAX)?.unwrap_or(1) as usize;
            let dense = config.list("mlp_only_layers")?.unwrap_or_default();
            let is_dense = |layer: usize| dense.iter().any(|entry| entry.as_u64() == Some(layer as u64));
            Ok((0..count).map(|layer| (layer + 1) % step == 0 && !is_dense(layer)).collect())
        }
    }
}

/// The options of layers with experts.
pub(super) fn experts(config: &ConfigReader<'_>, experts: Experts) -> Result<Option<ExpertsSpec>, LoadError> {
    let (mlp, renormalize, bias) = match experts {
        Experts::Never | Experts::Refused => return Ok(None),
        Experts::SparseLayers => ("moe_intermediate_size", config.boolean("norm_topk_prob")?.unwrap_or(false), false),
        Experts::EveryLayer { bias } => ("intermediate_size", true, bias),
    };
    // transformers 5 writes the first name, published configs the second.
    let counted = if config.get("num_local_experts").is_some() { "num_local_experts" } else { "num_experts" };
    let count = config.required(counted, config.integer(counted, 1..=EXPERTS_MAX)?)?;
    let chosen = config.integer("num_experts_per_tok", 1..=ROUTES_MAX)?;
    let per_token = config.required("num_experts_per_tok", chosen)?;
    if per_token > count {
        return Err(config.invalid("num_experts_per_tok", format!("is {per_token}, more than {counted} = {count}")));
    }
    Ok(Some(ExpertsSpec { count, per_token, mlp: config.multiple_of_eight(mlp, 1 << 20)?, renormalize, bias }))
}
