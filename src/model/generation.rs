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
    /// Temperature, thresholds and repetition penalty, as far as the file sets them.
    pub draw: DrawDefaults,
    /// Maximum tokens to generate, if the file sets it.
    pub max_new_tokens: Option<u32>,
}

/// How to draw tokens, as far as a model's files say it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DrawDefaults {
    /// See [`DrawParams::temperature`].
    pub temperature: Option<f32>,
    /// See [`DrawParams::top_p`].
    pub top_p: Option<f32>,
    /// See [`DrawParams::top_k`].
    pub top_k: Option<u32>,
    /// See [`DrawParams::min_p`].
    pub min_p: Option<f32>,
    /// See [`DrawParams::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
}

impl DrawDefaults {
    /// These values, and those of `base` where the files say nothing.
    pub fn over(self, base: DrawParams) -> DrawParams {
        DrawParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_p: self.top_p.unwrap_or(base.top_p),
            top_k: self.top_k.unwrap_or(base.top_k),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        }
    }
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
        let number = |name, range| usable(config.number(name, range)).map(|number| number as f32);
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
            draw: DrawDefaults {
                temperature: number("temperature", 0.0..=2.0),
                top_p: number("top_p", 1e-6..=1.0),
                top_k,
                min_p: number("min_p", 0.0..=1.0),
                repetition_penalty: number("repetition_penalty", 1e-3..=2.0),
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
