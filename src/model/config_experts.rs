//! What a config says of experts.

use super::config_layers::Word;
use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::families::{AfterDense, Experts, Scores};
use super::spec::{EXPERTS_MAX, ExpertsSpec, LAYERS_MAX, LayerSpec, RouterSpec, SharedSpec};
use crate::plan::ExpertGroups;
use crate::plan::check::ROUTES_MAX;
use serde_json::Value;

/// For each layer, whether it has experts.
pub(super) fn sparse(
    config: &ConfigReader<'_>,
    experts: Experts,
    words: &[Word],
) -> Result<Vec<bool>, LoadError> {
    let count = words.len();
    match experts {
        Experts::Never => Ok(vec![false; count]),
        Experts::EveryLayer { shared: true, .. } => {
            let experts = config
                .integer("num_local_experts", 0..=EXPERTS_MAX)?
                .unwrap_or(0);
            Ok(vec![experts > 0; count])
        }
        Experts::EveryLayer { .. } | Experts::EveryLayerBesideGated => Ok(vec![true; count]),
        Experts::Blocks => Ok(words.iter().map(|word| *word == Word::Experts).collect()),
        Experts::AfterDense(AfterDense {
            dense: (field, default),
            ..
        }) => {
            if let Some(kinds) = config.list("mlp_layer_types")? {
                return sparse_kinds(config, kinds, count);
            }
            let dense = config.integer(field, 0..=LAYERS_MAX)?.unwrap_or(default) as usize;
            Ok((0..count).map(|layer| layer >= dense).collect())
        }
        Experts::BesideMlp => Ok(vec![
            config.boolean("enable_moe_block")?.unwrap_or(false);
            count
        ]),
        Experts::SparseLayers { .. } => {
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
    }
}

/// Reads `mlp_layer_types`.
fn sparse_kinds(
    config: &ConfigReader<'_>,
    kinds: &[Value],
    count: usize,
) -> Result<Vec<bool>, LoadError> {
    if kinds.len() != count {
        let message = format!(
            "has {} entries, not num_hidden_layers = {count}",
            kinds.len()
        );
        return Err(config.invalid("mlp_layer_types", message));
    }
    kinds
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

/// A router with these scores; `factor` is the default of `routed_scaling_factor`.
fn router(config: &ConfigReader<'_>, scores: Scores, factor: f64) -> Result<RouterSpec, LoadError> {
    let factor = config
        .number("routed_scaling_factor", 1e-3..=1e3)?
        .unwrap_or(factor) as f32;
    let choice_bias = match scores {
        Scores::Sigmoid => true,
        Scores::SigmoidIf(field) => config.boolean(field)?.unwrap_or(true),
        Scores::Softmax => {
            let groups = match config.text("topk_method")?.unwrap_or("greedy") {
                "greedy" => None,
                "group_limited_greedy" => expert_groups(config)?,
                method => {
                    let message =
                        format!("is {method:?}, not \"greedy\" or \"group_limited_greedy\"");
                    return Err(config.invalid("topk_method", message));
                }
            };
            return Ok(RouterSpec {
                groups,
                factor,
                ..softmax(false)
            });
        }
    };
    let (groups, renormalize) = (
        expert_groups(config)?,
        config.boolean("norm_topk_prob")?.unwrap_or(true),
    );
    Ok(RouterSpec {
        sigmoid: true,
        renormalize,
        choice_bias,
        groups,
        factor,
    })
}

/// The options of experts, if any layer has them.
pub(super) fn experts(
    config: &ConfigReader<'_>,
    experts: Experts,
    layers: &[LayerSpec],
) -> Result<Option<ExpertsSpec>, LoadError> {
    if !layers.iter().any(|layer| layer.experts) {
        return Ok(None);
    }
    let (router, shared) = router_and_shared(config, experts)?;
    let fields = Fields::of(config, experts);
    let count = config.required_integer(fields.count, 1..=EXPERTS_MAX)?;
    let per_token = config.required_integer(fields.per_token, 1..=ROUTES_MAX)?;
    if per_token > count {
        let message = format!("is {per_token}, more than {} = {count}", fields.count);
        return Err(config.invalid(fields.per_token, message));
    }
    check_expert_groups(config, router.groups, count, per_token)?;
    Ok(Some(ExpertsSpec {
        count,
        per_token,
        mlp: config.multiple_of_eight(fields.mlp, 1 << 20)?,
        latent: latent(config, experts)?,
        router,
        bias: matches!(experts, Experts::EveryLayer { bias: true, .. }),
        shared,
        beside: matches!(experts, Experts::BesideMlp),
    }))
}

/// The router, and the MLP that every token passes besides.
fn router_and_shared(
    config: &ConfigReader<'_>,
    experts: Experts,
) -> Result<(RouterSpec, Option<SharedSpec>), LoadError> {
    match experts {
        Experts::Never | Experts::BesideMlp => Ok((softmax(true), None)),
        Experts::SparseLayers { shared, normalizes } => {
            let given = config.boolean("norm_topk_prob")?;
            let router = softmax(given.unwrap_or(normalizes));
            Ok((router, shared_behind_gate(config, shared)?))
        }
        Experts::EveryLayer { shared, .. } => Ok((softmax(true), shared_mlp(config, shared)?)),
        Experts::EveryLayerBesideGated => Ok((softmax(true), shared_behind_gate(config, true)?)),
        Experts::AfterDense(AfterDense { scores, factor, .. }) => {
            let router = router(config, scores, factor)?;
            Ok((router, shared_experts(config, "moe_intermediate_size")?))
        }
        Experts::Blocks => {
            let router = router(config, Scores::Sigmoid, 1.0)?;
            let size = "moe_shared_expert_intermediate_size";
            Ok((router, shared_experts(config, size)?))
        }
    }
}

/// A router whose scores are a softmax.
fn softmax(renormalize: bool) -> RouterSpec {
    RouterSpec {
        sigmoid: false,
        renormalize,
        choice_bias: false,
        groups: None,
        factor: 1.0,
    }
}

/// The fields that have the numbers of experts.
struct Fields {
    count: &'static str,
    per_token: &'static str,
    /// The size of one.
    mlp: &'static str,
}

impl Fields {
    fn of(config: &ConfigReader<'_>, experts: Experts) -> Self {
        Self {
            // transformers 5 writes the first name, published configs another.
            count: match experts {
                Experts::AfterDense(AfterDense { count, .. }) => count,
                Experts::Blocks => "n_routed_experts",
                _ if config.get("num_local_experts").is_some() => "num_local_experts",
                _ => "num_experts",
            },
            per_token: match experts {
                Experts::BesideMlp => "top_k_experts",
                _ => "num_experts_per_tok",
            },
            mlp: match experts {
                Experts::EveryLayer { .. } => "intermediate_size",
                _ => "moe_intermediate_size",
            },
        }
    }
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
fn latent(config: &ConfigReader<'_>, experts: Experts) -> Result<Option<u32>, LoadError> {
    let name = "moe_latent_size";
    if config.get(name).is_none() {
        return Ok(None);
    }
    if !matches!(experts, Experts::Blocks) {
        let message = "is set, which is not supported in this architecture";
        return Err(config.invalid(name, message));
    }
    Ok(Some(config.multiple_of_eight(name, 1 << 16)?))
}

/// The MLP of size `shared_expert_intermediate_size`, if the family has it.
fn shared_behind_gate(
    config: &ConfigReader<'_>,
    shared: bool,
) -> Result<Option<SharedSpec>, LoadError> {
    if !shared {
        return Ok(None);
    }
    let mlp = config.multiple_of_eight("shared_expert_intermediate_size", 1 << 20)?;
    Ok(Some(SharedSpec { mlp, gated: true }))
}

/// The MLP of size `shared_intermediate_size`, if the family has it.
fn shared_mlp(config: &ConfigReader<'_>, shared: bool) -> Result<Option<SharedSpec>, LoadError> {
    if !shared {
        return Ok(None);
    }
    let mlp = config.multiple_of_eight("shared_intermediate_size", 1 << 20)?;
    Ok(Some(SharedSpec { mlp, gated: false }))
}

/// `n_shared_experts` experts that every token passes, as one MLP; `size` is the field with the size of one.
fn shared_experts(config: &ConfigReader<'_>, size: &str) -> Result<Option<SharedSpec>, LoadError> {
    let count = config
        .integer("n_shared_experts", 0..=EXPERTS_MAX)?
        .unwrap_or(0);
    let mlp = config.multiple_of_eight(size, 1 << 20)?;
    if count.checked_mul(mlp).is_none_or(|all| all > 1 << 20) {
        return Err(config.invalid(
            "n_shared_experts",
            format!("is {count}: experts of {mlp} would be too large"),
        ));
    }
    Ok((count > 0).then_some(SharedSpec {
        mlp: count * mlp,
        gated: false,
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
