//! `--generation-config` and `--override-generation-config`: the defaults of requests that leave fields unset.

use folio::engine::request::{
    DrawParams, MIN_P, NumberRange, REPETITION_PENALTY, SamplingParams, TEMPERATURE, TOP_P,
};
use serde::Deserialize;

/// vLLM's names of defaults.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Defaults {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    /// Limits the tokens of every answer.
    pub(crate) max_new_tokens: Option<u32>,
}

/// Where defaults come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum GenerationConfig {
    /// The model's generation_config.json.
    #[default]
    Auto,
    /// Not from the model's files.
    Vllm,
}

impl GenerationConfig {
    /// Reads the option.
    ///
    /// # Errors
    /// Another value than `auto` or `vllm`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "vllm" => Ok(Self::Vllm),
            _ => Err(
                "expected auto or vllm; --override-generation-config sets single defaults".into(),
            ),
        }
    }
}

impl Defaults {
    /// Reads a JSON object.
    ///
    /// # Errors
    /// A field that is no default, or out of the range that it has in requests.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check("temperature", read.temperature, TEMPERATURE)?;
        check("top_p", read.top_p, TOP_P)?;
        check("min_p", read.min_p, MIN_P)?;
        check(
            "repetition_penalty",
            read.repetition_penalty,
            REPETITION_PENALTY,
        )?;
        if let Some(top_k) = read
            .top_k
            .filter(|top_k| !(-1..=i64::from(i32::MAX)).contains(top_k))
        {
            return Err(format!("`top_k` must be at least -1, not {top_k}"));
        }
        if read.max_new_tokens == Some(0) {
            return Err("`max_new_tokens` must be at least 1, not 0".into());
        }
        Ok(read)
    }

    /// A model's defaults with these.
    pub(crate) fn over(&self, model: SamplingParams) -> SamplingParams {
        let draw = DrawParams {
            temperature: self.temperature.unwrap_or(model.draw.temperature),
            top_p: self.top_p.unwrap_or(model.draw.top_p),
            top_k: self
                .top_k
                .map_or(model.draw.top_k, |top_k| top_k.max(0) as u32),
            min_p: self.min_p.unwrap_or(model.draw.min_p),
            repetition_penalty: self
                .repetition_penalty
                .unwrap_or(model.draw.repetition_penalty),
            ..model.draw
        };
        SamplingParams { draw, ..model }
    }
}

fn check(name: &str, value: Option<f32>, range: NumberRange) -> Result<(), String> {
    match value.filter(|value| !range.contains(*value)) {
        Some(value) => Err(format!("`{name}` must be a number {range}, not {value}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
