//! Fields of `config.json` of models with layers that keep a state.

use super::super::families::Family;
use super::super::metadata::Metadata;
use crate::model::error::LoadError;
use crate::model::source::TensorInfo;
use serde_json::Value;
use std::collections::BTreeMap;

/// Tensors that say what a layer is, and the word for it. A layer without any of them has attention.
const KINDS: [(&str, &str); 6] = [
    ("conv.in_proj.weight", "conv"),
    ("linear_attn.out_proj.weight", "linear_attention"),
    ("mamba.out_proj.weight", "mamba"),
    ("mixer.out_proj.weight", "mamba"),
    ("mixer.gate.weight", "moe"),
    ("mixer.up_proj.weight", "mlp"),
];

/// Sets what each layer is, and the sizes that only such models have.
pub(super) fn fields(
    metadata: &Metadata,
    family: &Family,
    config: &mut Value,
    tensors: &BTreeMap<String, TensorInfo>,
) -> Result<(), LoadError> {
    if let Some(field) = family.kinds {
        let layers = config["num_hidden_layers"].as_u64().unwrap_or(0);
        config[field] = (0..layers)
            .map(|layer| {
                KINDS
                    .into_iter()
                    .find(|(name, _)| {
                        tensors.contains_key(&format!("{}.{layer}.{name}", family.layers))
                    })
                    .map_or("full_attention", |(_, word)| word)
            })
            .collect();
    }
    if let Some(inner) = family.integer(metadata, "ssm.inner_size")? {
        let heads = family.required(metadata, "ssm.time_step_rank")?;
        if inner % heads != 0 {
            let message = format!("is {inner}, not a multiple of the {heads} heads");
            return Err(metadata.invalid(&family.key("ssm.inner_size"), message));
        }
        for field in ["linear_value_head_dim", "mamba_head_dim"] {
            config[field] = (inner / heads).into();
        }
    }
    let shape = |end: &str| {
        tensors
            .iter()
            .find(|(name, _)| name.ends_with(end))
            .map(|(_, info)| &info.shape)
    };
    for (field, end) in [
        ("use_conv_bias", ".conv1d.bias"),
        ("mamba_proj_bias", ".in_proj.bias"),
        ("use_bias", ".in_proj.bias"),
        ("mamba_rms_norm", ".mamba.norm.weight"),
        ("conv_bias", ".conv.conv.bias"),
        ("use_expert_bias", ".expert_bias"),
    ] {
        config[field] = shape(end).is_some().into();
    }
    config["mamba_norm_before_gate"] = false.into();
    config["block_auto_adjust_ff_dim"] = false.into();
    // Granite's keys for these sizes depend on whether there are experts.
    for (field, end) in [
        ("shared_intermediate_size", ".shared_mlp.gate_proj.weight"),
        (
            "intermediate_size",
            ".block_sparse_moe.experts.0.gate_proj.weight",
        ),
    ] {
        if let Some([rows, ..]) = shape(end).map(Vec::as_slice) {
            config[field] = (*rows).into();
        }
    }
    Ok(())
}
