//! What a config says of experts.

use super::config_layers::{Word, of_layers};
use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::families::{ExpertsRow, Groups, RouterRow, Scores, Shared, Sparse};
use super::spec::{EXPERTS_MAX, ExpertsSpec, LAYERS_MAX, LayerSpec, RouterSpec, SharedSpec};
use crate::plan::ExpertGroups;
use crate::plan::check::ROUTES_MAX;

/// For each layer, whether it has experts.
pub(super) fn sparse(
    config: &ConfigReader<'_>,
    row: ExpertsRow,
    words: &[Word],
) -> Result<Vec<bool>, LoadError> {
    let count = words.len();
    match row.layers {
        Sparse::Never => Ok(vec![false; count]),
        Sparse::EveryLayer => Ok(vec![true; count]),
        Sparse::EveryLayerIfAny => {
            let experts = config.integer(count_field(config, row), 0..=EXPERTS_MAX)?;
            Ok(vec![experts.unwrap_or(0) > 0; count])
        }
        Sparse::Blocks => Ok(words.iter().map(|word| *word == Word::Experts).collect()),
        Sparse::BesideMlp => Ok(vec![
            config.boolean("enable_moe_block")?.unwrap_or(false);
            count
        ]),
        Sparse::EveryNth | Sparse::AfterDense(..) if config.get("mlp_layer_types").is_some() => {
            sparse_kinds(config, count)
        }
        Sparse::AfterDense(field, default) => {
            let dense = config.integer(field, 0..=LAYERS_MAX)?.unwrap_or(default) as usize;
            Ok((0..count).map(|layer| layer >= dense).collect())
        }
        Sparse::Interleaved => interleaved(config, count),
        Sparse::Enumerated => enumerated(config, count),
        Sparse::EveryNth => every_nth(config, count),
        Sparse::Between => between(config, count),
    }
}

/// Those of `moe_layers`, or every `interleave_moe_layer_step`-th layer.
fn interleaved(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    let Some(list) = config.list("moe_layers")? else {
        let name = "interleave_moe_layer_step";
        let step = config.integer(name, 1..=LAYERS_MAX)?.unwrap_or(1) as usize;
        return Ok((1..=count).map(|layer| layer % step == 0).collect());
    };
    let mut sparse = vec![false; count];
    for entry in list {
        let index = entry.as_u64().and_then(|index| usize::try_from(index).ok());
        let layer = index.and_then(|index| sparse.get_mut(index));
        *layer.ok_or_else(|| {
            config.invalid(
                "moe_layers",
                format!("has {entry}, not one of {count} layers"),
            )
        })? = true;
    }
    Ok(sparse)
}

/// Those of `mlp_layer_types`, or of `moe_layers_enum`, such as `3,4,5`; without both, all but the first three. Indices
/// beyond the last are those of layers that guess tokens.
fn enumerated(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    if config.get("mlp_layer_types").is_some() {
        return sparse_kinds(config, count);
    }
    let name = "moe_layers_enum";
    let Some(text) = config.text(name)? else {
        return Ok((0..count).map(|layer| layer >= 3).collect());
    };
    let indices: Result<Vec<usize>, _> =
        text.split(',').map(|index| index.trim().parse()).collect();
    let indices =
        indices.map_err(|_| config.invalid(name, format!("is {text:?}, not a list of indices")))?;
    Ok((0..count).map(|layer| indices.contains(&layer)).collect())
}

/// Every `moe_layer_interval`-th layer between two indices.
fn between(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    let index = |name: &str| config.integer(name, 0..=LAYERS_MAX);
    let first = index("moe_layer_start_index")?.unwrap_or(0) as usize;
    let last = match config.number("moe_layer_end_index", -1.0..=f64::from(LAYERS_MAX))? {
        Some(-1.0) | None => count,
        Some(_) => index("moe_layer_end_index")?.map_or(count, |last| last as usize),
    };
    let step = config
        .integer("moe_layer_interval", 1..=LAYERS_MAX)?
        .unwrap_or(1) as usize;
    Ok((0..count)
        .map(|layer| (first..=last).contains(&layer) && (layer + 1) % step == 0)
        .collect())
}

/// Every `decoder_sparse_step`-th layer, except `mlp_only_layers`.
fn every_nth(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    let step = config
        .integer("decoder_sparse_step", 1..=LAYERS_MAX)?
        .unwrap_or(1) as usize;
    let dense = config.list("mlp_only_layers")?.unwrap_or_default();
    let is_dense = |layer: usize| {
        dense
            .iter()
            .any(|entry| entry.as_u64() == Some(layer as u64))
    };
    Ok((0..count)
        .map(|layer| (layer + 1) % step == 0 && !is_dense(layer))
        .collect())
}

/// Reads `mlp_layer_types`.
fn sparse_kinds(config: &ConfigReader<'_>, count: usize) -> Result<Vec<bool>, LoadError> {
    let name = "mlp_layer_types";
    let kinds = config.list(name)?.unwrap_or_default();
    of_layers(config, name, kinds, count)?
        .iter()
        .map(|kind| match kind.as_str() {
            Some("sparse") => Ok(true),
            Some("dense") => Ok(false),
            _ => Err(config.invalid(
                "mlp_layer_types",
                format!("has {kind}, not dense or sparse"),
            )),
        })
        .collect()
}

fn router(config: &ConfigReader<'_>, row: RouterRow) -> Result<RouterSpec, LoadError> {
    let factor = match row.factor {
        Some((field, default)) => config.number(field, 1e-3..=1e3)?.unwrap_or(default),
        None => 1.0,
    };
    let sigmoid = match row.scores {
        Scores::Softmax | Scores::SparseMixer(..) => false,
        Scores::Sigmoid => true,
        Scores::Field(field) => match config.text(field)?.unwrap_or("softmax") {
            "softmax" => false,
            "sigmoid" => true,
            other => {
                let message = format!("is {other:?}, not \"softmax\" or \"sigmoid\"");
                return Err(config.invalid(field, message));
            }
        },
    };
    let of_chosen = !sigmoid && matches!(row.scores, Scores::Field(_));
    Ok(RouterSpec {
        sigmoid,
        renormalize: of_chosen || row.normalizes.read(config)?,
        choice_bias: row.choice_bias.read(config)?,
        groups: match row.groups {
            Groups::Never => None,
            Groups::Fields => expert_groups(config)?,
            Groups::Method => expert_groups_by_method(config)?,
        },
        factor: factor as f32,
        softcap: match row.softcap {
            Some(field) => config.number(field, 0.0..=1e6)?.filter(|cap| *cap > 0.0),
            None => None,
        }
        .map(|cap| cap as f32),
        mixer: match row.scores {
            Scores::SparseMixer(field, default) => {
                let half = config.number(field, 0.0..=1e3)?.unwrap_or(default);
                Some((2.0 * half) as f32)
            }
            _ => None,
        },
    })
}

/// The options of experts, if any layer has them.
pub(super) fn experts(
    config: &ConfigReader<'_>,
    row: ExpertsRow,
    layers: &[LayerSpec],
) -> Result<Option<ExpertsSpec>, LoadError> {
    if !layers.iter().any(|layer| layer.experts) {
        return Ok(None);
    }
    let mut router = router(config, row.router)?;
    let mut shared = shared(config, row.shared)?;
    if let Some(shared) = &mut shared
        && is_average(config, row)?
    {
        router.factor /= 2.0;
        shared.factor /= 2.0;
    }
    let number = |field, max| config.required(field, config.uniform_integer(field, 1..=max)?);
    let field = count_field(config, row);
    let count = number(field, EXPERTS_MAX)?;
    let per_token = number(row.per_token, ROUTES_MAX)?;
    if per_token > count {
        let message = format!("is {per_token}, more than {field} = {count}");
        return Err(config.invalid(row.per_token, message));
    }
    check_expert_groups(config, router.groups, count, per_token)?;
    Ok(Some(ExpertsSpec {
        count,
        per_token,
        mlp: config.multiple_of_eight(row.size, 1 << 20)?,
        latent: latent(config, row)?,
        router,
        bias: row.bias,
        shared,
        beside: matches!(row.layers, Sparse::BesideMlp),
        weighs_input: row.weighs_input,
    }))
}

/// Whether chosen experts and the shared one are averaged.
fn is_average(config: &ConfigReader<'_>, row: ExpertsRow) -> Result<bool, LoadError> {
    let Some(field) = row.combination else {
        return Ok(false);
    };
    match config.text(field)?.unwrap_or("average") {
        "average" => Ok(true),
        "sum" => Ok(false),
        other => {
            let message = format!("is {other:?}, not \"average\" or \"sum\"");
            Err(config.invalid(field, message))
        }
    }
}

/// The field that has the number of experts.
fn count_field(config: &ConfigReader<'_>, row: ExpertsRow) -> &'static str {
    let mut fields = row.count.iter().copied();
    let last = row.count[row.count.len() - 1];
    fields
        .find(|field| config.get(field).is_some())
        .unwrap_or(last)
}

/// Fails if experts do not fit into the groups from which a token's are chosen.
fn check_expert_groups(
    config: &ConfigReader<'_>,
    groups: Option<ExpertGroups>,
    experts: u32,
    per_token: u32,
) -> Result<(), LoadError> {
    let Some(ExpertGroups { count, kept }) = groups else {
        return Ok(());
    };
    let each = experts / count;
    if !experts.is_multiple_of(count) || each < 2 || per_token > each * kept {
        let message = format!(
            "is {count}: {experts} experts, {per_token} a token, do not fit into {kept} of them"
        );
        return Err(config.invalid("n_group", message));
    }
    Ok(())
}

/// `moe_latent_size`: columns that experts read and write.
fn latent(config: &ConfigReader<'_>, row: ExpertsRow) -> Result<Option<u32>, LoadError> {
    let name = "moe_latent_size";
    if config.get(name).is_none() {
        return Ok(None);
    }
    if !matches!(row.layers, Sparse::Blocks) {
        let message = "is set, which is not supported in this architecture";
        return Err(config.invalid(name, message));
    }
    Ok(Some(config.multiple_of_eight(name, 1 << 16)?))
}

/// The MLP that every token passes besides.
fn shared(config: &ConfigReader<'_>, row: Shared) -> Result<Option<SharedSpec>, LoadError> {
    const MAX: u32 = 1 << 20;
    let (mlp, gated) = match row {
        Shared::Never => return Ok(None),
        Shared::Gated(size) => (config.multiple_of_eight(size, MAX)?, true),
        Shared::Sized(size) => (config.multiple_of_eight(size, MAX)?, false),
        Shared::Experts(field, default, size) => {
            let count = config.uniform_integer(field, 0..=EXPERTS_MAX)?;
            let count = count.unwrap_or(default);
            let each = config.multiple_of_eight(size, MAX)?;
            let all = count.checked_mul(each).filter(|all| *all <= MAX);
            let all = all.ok_or_else(|| {
                let message = format!("is {count}: experts of {each} would be too large");
                config.invalid(field, message)
            })?;
            (all, false)
        }
    };
    Ok((mlp > 0).then_some(SharedSpec {
        mlp,
        gated,
        factor: 1.0,
    }))
}

/// `n_group` and `topk_group`; `None` if all groups are kept.
fn expert_groups(config: &ConfigReader<'_>) -> Result<Option<ExpertGroups>, LoadError> {
    let count = config.integer("n_group", 1..=32)?.unwrap_or(1);
    let kept = config.integer("topk_group", 1..=32)?.unwrap_or(1);
    if kept > count {
        return Err(config.invalid(
            "topk_group",
            format!("is {kept}, more than n_group = {count}"),
        ));
    }
    Ok((kept < count).then_some(ExpertGroups { count, kept }))
}

/// The same, as `topk_method` says.
fn expert_groups_by_method(config: &ConfigReader<'_>) -> Result<Option<ExpertGroups>, LoadError> {
    match config.text("topk_method")?.unwrap_or("greedy") {
        "greedy" => Ok(None),
        "group_limited_greedy" => expert_groups(config),
        method => {
            let message = format!("is {method:?}, not \"greedy\" or \"group_limited_greedy\"");
            Err(config.invalid("topk_method", message))
        }
    }
}
