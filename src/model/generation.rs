//! Sampling defaults from a model's files.

use super::config_reader::{self, ConfigReader};
use super::error::LoadError;
use super::spec::ModelSpec;
use crate::plan::inputs::DrawParams;

/// Defaults from `generation_config.json` for requests that leave fields unset. Like vLLM, folio does not read
/// `do_sample`: greedy decoding is requested with temperature 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// End tokens of `config.json` and `generation_config.json`, each once.
    pub eos_token_ids: Vec<u32>,
    /// Temperature, thresholds and repetition penalty from the file; folio's defaults for what it does not set.
    pub draw: DrawParams,
    /// Maximum tokens to generate, if the file sets it.
    pub max_new_tokens: Option<u32>,
}

impl GenerationDefaults {
    /// Reads the file if there is one; `file` names it in errors. A default that no request could have is ignored with
    /// a warning, as in transformers: a model is served without it.
    pub(super) fn new(
        spec: &ModelSpec,
        file: &str,
        json: Option<&[u8]>,
    ) -> Result<Self, LoadError> {
        let mut eos_token_ids = spec.eos_token_ids.clone();
        let Some(json) = json else {
            return Ok(Self {
                eos_token_ids,
                ..Self::default()
            });
        };
        let value = config_reader::parse(file, json)?;
        let config = ConfigReader::root(file, &value)?;
        eos_token_ids.extend(config.token_ids("eos_token_id", spec.vocab));
        let mut seen = std::collections::BTreeSet::new();
        eos_token_ids.retain(|&id| seen.insert(id));
        let plain = DrawParams::default();
        let number = |name, range, default| {
            usable(config.number(name, range)).map_or(default, |number| number as f32)
        };
        let keeps_all = config
            .get("top_k")
            .is_some_and(|value| value.as_i64() == Some(-1));
        let top_k = if keeps_all {
            Some(0)
        } else {
            usable(config.integer("top_k", 0..=u32::MAX))
        };
        Ok(Self {
            eos_token_ids,
            draw: DrawParams {
                temperature: number("temperature", 0.0..=2.0, plain.temperature),
                top_p: number("top_p", 1e-6..=1.0, plain.top_p),
                top_k: top_k.unwrap_or(plain.top_k),
                min_p: number("min_p", 0.0..=1.0, plain.min_p),
                repetition_penalty: number(
                    "repetition_penalty",
                    1e-3..=2.0,
                    plain.repetition_penalty,
                ),
                ..plain
            },
            max_new_tokens: usable(config.integer("max_new_tokens", 1..=u32::MAX)),
        })
    }
}

/// A default, unless it is none that a request may have.
fn usable<T>(value: Result<Option<T>, LoadError>) -> Option<T> {
    value.unwrap_or_else(|error| {
        tracing::warn!("{error}; it is ignored");
        None
    })
}
