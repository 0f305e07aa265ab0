//! Kinds of fields that set how text is generated.

use crate::engine::request::{
    CACHE_SALT_LEN_MAX, LOGIT_BIAS, LOGIT_BIAS_MAX, NumberRange, TOP_P, check_cache_salt,
};
use crate::server::parameters::kind::{Bounds, Kind, Most, wrong};
use crate::server::parameters::kinds::{Count, Number, object, token_id_schema, whole};
use crate::server::wire::error::ApiError;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const BAD_WORDS_MAX: usize = 128;
const METADATA_MAX: usize = 16;
const METADATA_KEY_BYTES_MAX: usize = 64;
const METADATA_VALUE_BYTES_MAX: usize = 512;
/// `top_p` in requests: 0 always takes the likeliest token.
pub(crate) const TOP_P_OR_GREEDY: NumberRange = NumberRange {
    above_min: false,
    ..TOP_P
};
pub(crate) const USER_BYTES_MAX: usize = 4096;

/// A maximum number of tokens; `None`, which is sent as -1, stands for as many as fit into the context. A value beyond
/// 32 bits becomes the largest 32-bit one.
pub(crate) struct MaxTokens {
    pub(crate) min: u32,
}

impl Kind for MaxTokens {
    type Value = Option<u32>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Option<u32>, ApiError> {
        if whole(&value) == Some(-1) {
            return Ok(None);
        }
        Count {
            min: self.min,
            max: Most::Any,
        }
        .read(at, value, bounds)
        .map(Some)
    }

    fn schema(&self, _: &Bounds) -> Value {
        let mut schema = json!({"type": "integer", "minimum": -1});
        if self.min > 0 {
            schema["not"] = json!({"const": 0});
        }
        schema
    }
}

/// One string, or a list of them.
pub(crate) struct StopStrings;

impl Kind for StopStrings {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<String>, ApiError> {
        let items = match value {
            Value::Array(items) => items,
            value => vec![value],
        };
        short_strings(at, items, STOPS_MAX)
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"anyOf": [short_string(), {"type": "array", "maxItems": STOPS_MAX, "items": short_string()}]})
    }
}

/// Texts that an answer may not have.
pub(crate) struct BadWords;

impl Kind for BadWords {
    type Value = Vec<String>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<String>, ApiError> {
        match value {
            Value::Array(items) => short_strings(at, items, BAD_WORDS_MAX),
            value => Err(wrong(at, "a list of strings", &value)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "array", "maxItems": BAD_WORDS_MAX, "items": short_string()})
    }
}

fn short_strings(at: &str, items: Vec<Value>, most: usize) -> Result<Vec<String>, ApiError> {
    if items.len() > most {
        let message = format!(
            "`{at}` has {} strings; at most {most} are allowed",
            items.len()
        );
        return Err(ApiError::invalid(at, message));
    }
    items
        .into_iter()
        .map(|item| match item {
            Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => Ok(text),
            other => Err(wrong(
                at,
                &format!("strings of 1 to {STOP_BYTES_MAX} bytes"),
                &other,
            )),
        })
        .collect()
}

fn short_string() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": STOP_BYTES_MAX})
}

/// Token ids that the engine checks.
pub(crate) struct StopTokenIds {
    pub(crate) count_max: usize,
}

impl Kind for StopTokenIds {
    type Value = Vec<u32>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<u32>, ApiError> {
        let Value::Array(items) = &value else {
            return Err(wrong(at, "a list of token ids", &value));
        };
        items
            .iter()
            .map(|item| {
                (whole(item).and_then(|id| u32::try_from(id).ok()))
                    .ok_or_else(|| wrong(at, "a list of token ids", item))
            })
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "array", "maxItems": self.count_max, "items": token_id_schema(bounds)})
    }
}

/// Token ids and the biases added to their logits; the engine checks both.
pub(crate) struct LogitBias;

impl Kind for LogitBias {
    type Value = BTreeMap<u32, f32>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Self::Value, ApiError> {
        object(at, value)?
            .iter()
            .map(|(key, value)| {
                // `parse` would also take a leading plus sign or zeros: two spellings of one id.
                let id = key.parse::<u32>().ok().filter(|id| id.to_string() == *key);
                let id =
                    id.ok_or_else(|| wrong(at, "keyed by token ids", &Value::String(key.clone())))?;
                Ok((id, Number::narrow(at, value, LOGIT_BIAS)?))
            })
            .collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let value = Number(LOGIT_BIAS).schema(bounds);
        json!({"type": "object", "maxProperties": LOGIT_BIAS_MAX, "additionalProperties": value})
    }
}

/// [`LogitBias`], or a list of pairs of token id and bias, as llama.cpp's clients send it.
pub(crate) struct LogitBiasPairs;

impl Kind for LogitBiasPairs {
    type Value = BTreeMap<u32, f32>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        let Value::Array(pairs) = value else {
            return LogitBias.read(at, value, bounds);
        };
        let map = pairs
            .iter()
            .map(|pair| match (pair[0].as_u64(), &pair[1]) {
                (Some(id), Value::Bool(false)) => Ok((id.to_string(), json!(LOGIT_BIAS.min))),
                (Some(id), bias @ Value::Number(_)) => Ok((id.to_string(), bias.clone())),
                _ => Err(wrong(at, "pairs of a token id and a number or false", pair)),
            })
            .collect::<Result<Map<_, _>, _>>()?;
        LogitBias.read(at, map.into(), bounds)
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let bias = json!({"anyOf": [Number(LOGIT_BIAS).schema(bounds), {"const": false}]});
        let pair =
            json!({"type": "array", "minItems": 2, "prefixItems": [token_id_schema(bounds), bias]});
        json!({"anyOf": [LogitBias.schema(bounds), {"type": "array", "items": pair}]})
    }
}

/// A cache salt by the engine's rule, checked here too because a request that only loads a model reaches no engine.
pub(crate) struct CacheSalt;

impl Kind for CacheSalt {
    type Value = String;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<String, ApiError> {
        let Value::String(salt) = value else {
            return Err(wrong(at, "a string", &value));
        };
        check_cache_salt(&salt).map_err(|rule| ApiError::invalid(at, format!("`{at}` {rule}")))?;
        Ok(salt)
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "string", "minLength": 1, "maxLength": CACHE_SALT_LEN_MAX})
    }
}

/// The number of choices, where only 1 is supported.
pub(crate) struct OneChoice;

impl Kind for OneChoice {
    type Value = ();

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<(), ApiError> {
        match value.as_u64() {
            Some(1) => Ok(()),
            Some(count) if (2..=bounds.choices.into()).contains(&count) => {
                let message =
                    format!("`{at}` must be 1 here; /v1/completions generates several choices");
                Err(ApiError::unsupported(at, message))
            }
            _ => Err(wrong(at, "1", &value)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "integer", "minimum": 1, "maximum": 1})
    }
}

/// A map from strings to strings, limited in size.
pub(crate) struct Metadata;

impl Kind for Metadata {
    type Value = Map<String, Value>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Self::Value, ApiError> {
        let map = object(at, value)?;
        if map.len() <= METADATA_MAX
            && map.iter().all(|(key, value)| {
                let short = value
                    .as_str()
                    .is_some_and(|text| text.len() <= METADATA_VALUE_BYTES_MAX);
                key.len() <= METADATA_KEY_BYTES_MAX && short
            })
        {
            return Ok(map);
        }
        let message = format!(
            "`{at}` must be at most {METADATA_MAX} pairs of a key of up to {METADATA_KEY_BYTES_MAX} bytes and a string \
             of up to {METADATA_VALUE_BYTES_MAX}"
        );
        Err(ApiError::invalid(at, message))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({
            "type": "object",
            "maxProperties": METADATA_MAX,
            "propertyNames": {"maxLength": METADATA_KEY_BYTES_MAX},
            "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_BYTES_MAX},
        })
    }
}
