//! `--speculative-config`: vLLM's JSON object, with the part of it that folio has.

use folio::config::{Speculation, SpeculationMethod};
use serde::Deserialize;
use std::path::PathBuf;

/// With a draft model, unless it is set: drafts for any number of sequences.
pub(crate) const BY_MODEL: Speculation = Speculation {
    method: SpeculationMethod::DraftModel,
    ..Speculation::DEFAULT
};

/// With layers of the model itself, unless it is set: as far as they predict well.
const BY_LAYERS: Speculation = Speculation {
    method: SpeculationMethod::Mtp,
    num_speculative_tokens: 3,
    ..Speculation::DEFAULT
};

/// vLLM's names of the method `mtp`: today's, then the older ones, by family.
const MTP: [&str; 8] = [
    "mtp",
    "deepseek_mtp",
    "ernie_mtp",
    "glm4_moe_mtp",
    "mimo_mtp",
    "nemotron_h_mtp",
    "qwen3_5_mtp",
    "qwen3_next_mtp",
];

/// The option's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpeculativeConfig {
    /// `None`: off.
    pub(crate) settings: Option<Speculation>,
    /// The draft model.
    pub(crate) model: Option<PathBuf>,
}

/// vLLM's fields.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    method: Option<String>,
    model: Option<PathBuf>,
    num_speculative_tokens: Option<u32>,
    prompt_lookup_max: Option<u32>,
    prompt_lookup_min: Option<u32>,
    disable_by_batch_size: Option<u32>,
}

/// Reads the JSON object; `null` turns speculation off. Ranges are checked with the other settings.
pub(crate) fn parse(text: &str) -> Result<SpeculativeConfig, String> {
    let fields: Option<Fields> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let Some(fields) = fields else {
        return Ok(SpeculativeConfig {
            settings: None,
            model: None,
        });
    };
    let default = match (fields.method.as_deref(), &fields.model) {
        (None | Some("ngram"), None) => Speculation::DEFAULT,
        (None | Some("draft_model"), Some(_)) => BY_MODEL,
        (Some(name), None) if MTP.contains(&name) => BY_LAYERS,
        (Some(name), Some(_)) if MTP.contains(&name) => {
            return Err(format!(
                "the method \"{name}\" takes no `model`: its layers are the model's own"
            ));
        }
        (Some("draft_model"), None) => {
            return Err("the method \"draft_model\" needs a `model`".into());
        }
        (Some("ngram"), Some(_)) => return Err("the method \"ngram\" takes no `model`".into()),
        (Some(other), _) => {
            return Err(format!(
                "`method` must be \"ngram\", \"draft_model\" or \"mtp\", not \"{other}\""
            ));
        }
    };
    // As in vLLM, one of the two stands for both.
    let max = fields
        .prompt_lookup_max
        .or(fields.prompt_lookup_min)
        .unwrap_or(default.prompt_lookup_max);
    let min = fields
        .prompt_lookup_min
        .or(fields.prompt_lookup_max)
        .unwrap_or(default.prompt_lookup_min);
    let settings = Speculation {
        method: default.method,
        num_speculative_tokens: fields
            .num_speculative_tokens
            .unwrap_or(default.num_speculative_tokens),
        prompt_lookup_min: min,
        prompt_lookup_max: max,
        disable_by_batch_size: fields.disable_by_batch_size,
    };
    Ok(SpeculativeConfig {
        settings: Some(settings),
        model: fields.model,
    })
}

#[cfg(test)]
mod tests;
