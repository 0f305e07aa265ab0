//! Options, model information and statistics exchanged between JavaScript and the engine: JSON with the names of
//! `web/ts`.

use crate::error::EngineError;
use folio::config::{Config, ConfigError, EngineOption};
use folio::engine::handle::{EngineInfo, Stats, Value as StatValue};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Default maximum of sequences computed at once.
const SEQUENCES: u32 = 8;
/// Default maximum of tokens computed per step on a GPU.
const BATCHED_TOKENS: u32 = 256;
/// The same on the CPU, which computes nothing else meanwhile and keeps the worker from its messages.
const BATCHED_TOKENS_CPU: u32 = 64;

/// Where the engine computes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Device {
    WebGpu,
    Cpu,
}

/// The options of [`crate::WebEngine::load`].
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LoadOptions {
    /// The model's name in responses.
    pub(crate) name: String,
    pub(crate) device: Device,
    /// Whether the adapter has WebGPU's feature `subgroups`.
    pub(crate) subgroups: bool,
    /// The GGUF file to open, if it was named.
    pub(crate) gguf: Option<String>,
    /// What selects one of several GGUF files: a quantization or a file name.
    pub(crate) requested: Option<String>,
    /// Maximum bytes that a kernel may bind, if less than the device's limit.
    pub(crate) binding_bytes: Option<u64>,
    speculation: Option<bool>,
    /// The engine's numbers, under the names of its table.
    #[serde(flatten)]
    limits: BTreeMap<String, Option<u64>>,
}

impl LoadOptions {
    pub(crate) fn parse(json: &str) -> Result<Self, EngineError> {
        serde_json::from_str(json).map_err(|error| EngineError::limit(format!("limits: {error}")))
    }

    /// The engine's limits, checked.
    pub(crate) fn config(&self) -> Result<Config, EngineError> {
        let default = Config::default();
        let config = Config {
            max_num_seqs: SEQUENCES,
            max_num_batched_tokens: match self.device {
                Device::WebGpu => BATCHED_TOKENS,
                Device::Cpu => BATCHED_TOKENS_CPU,
            },
            speculation: if self.speculation.unwrap_or(true) {
                default.speculation
            } else {
                None
            },
            ..default
        };
        let given = self
            .limits
            .iter()
            .filter_map(|(name, value)| Some((name, (*value)?)))
            .map(|(name, value)| Ok((option_of(name)?, value)))
            .collect::<Result<Vec<_>, EngineError>>()?;
        config
            .with(&given)
            .map_err(|error| EngineError::limit(told(&error)))
    }
}

/// The engine's option that a page calls by this name.
fn option_of(name: &str) -> Result<&'static EngineOption, EngineError> {
    Config::OPTIONS
        .iter()
        .find(|option| camel_case(option.name) == name)
        .ok_or_else(|| EngineError::limit(format!("limits.{name}: there is no such limit")))
}

/// A setting outside its range, by the name of the page's limit instead of the command line's option.
fn told(error: &ConfigError) -> String {
    let message = error
        .message
        .split(' ')
        .map(camel_case)
        .collect::<Vec<_>>()
        .join(" ");
    format!("limits.{}: {message}", camel_case(error.option))
}

/// `max-num-seqs` and `max_num_seqs` as `maxNumSeqs`; other words and numbers as they are.
fn camel_case(word: &str) -> String {
    let mut parts = word.split(['-', '_']);
    let first = parts.next().unwrap_or_default();
    parts.fold(first.into(), |mut name: String, part| {
        let (initial, rest) = part.split_at_checked(1).unwrap_or_default();
        name.push_str(&initial.to_uppercase());
        name.push_str(rest);
        name
    })
}

pub(crate) fn info(info: &EngineInfo) -> String {
    json!({
        "tier": info.tier,
        "vocab": info.vocab,
        "maxModelLen": info.max_model_len,
        "maxNumSeqs": info.max_num_seqs,
        "blockSize": info.block_size,
        "blocks": info.blocks,
        "kvBytes": info.kv_bytes,
        "weightBytes": info.weight_bytes,
    })
    .to_string()
}

/// All rows of the engine's table, as `web/ts/stats.ts` describes them.
pub(crate) fn stats(stats: &Stats, ready: bool) -> String {
    let mut all = Map::new();
    all.insert("ready".into(), ready.into());
    for stat in Stats::TABLE {
        let value = match (stat.value)(stats) {
            StatValue::One(count) => count.into(),
            StatValue::By(_, counts) => counts.into_iter().collect(),
            StatValue::Histogram(bounds, counts, _) => {
                let bounds = bounds.iter().map(f64::to_string).chain(["+Inf".into()]);
                bounds.zip(counts.into_iter().map(Value::from)).collect()
            }
        };
        all.insert(camel_case(stat.name), value);
    }
    Value::from(all).to_string()
}
