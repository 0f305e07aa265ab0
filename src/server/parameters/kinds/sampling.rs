//! Kinds of fields that set how text is generated.

use crate::engine::request::{
    CACHE_SALT_LEN_MAX, LOGIT_BIAS, LOGIT_BIAS_MAX, LOGPROBS_MAX, NumberRange, TEMPERATURE, TOP_P,
    check_cache_salt,
};
use crate::server::parameters::kind::{Bounds, Kind, Most, Presence, wrong};
use crate::server::parameters::kinds::{Count, Number, Optional, object, token_id_schema, whole};
use crate::server::wire::error::ApiError;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const STOPS_MAX: usize = 128;
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

/// A maximum number of tokens in llama.cpp's words: 0 computes the prompt and one token, and a negative number, read as
/// `None`, stands for as many as fit into the context.
pub(crate) struct Predicted;

impl Kind for Predicted {
    type Value = Option<u32>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Option<u32>, ApiError> {
        let count = whole(&value).or_else(|| value.as_u64().map(|_| i64::MAX));
        let count = count.ok_or_else(|| wrong(at, "a whole number", &value))?;
        Ok((count >= 0).then(|| u32::try_from(count).unwrap_or(u32::MAX).max(1)))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "integer"})
    }
}

/// [`Predicted`] where as many as fit into the context is what an absent field means.
pub(crate) struct PredictedOrAll;

impl Presence for PredictedOrAll {
    type Value = Option<u32>;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Option<u32>, ApiError> {
        let count = Optional(Predicted).take(at, value, bounds)?;
        Ok(count.flatten())
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        Optional(Predicted).schema(bounds)
    }
}

/// Alternatives to report for each token in llama.cpp's words: 0 means that no token is reported.
pub(crate) struct Probabilities;

impl Presence for Probabilities {
    type Value = Option<u32>;

    fn take(
        &self,
        at: &str,
        value: Option<Value>,
        bounds: &Bounds,
    ) -> Result<Option<u32>, ApiError> {
        let count = Optional(ALTERNATIVES).take(at, value, bounds)?;
        if let Some(count) = count.filter(|count| *count > LOGPROBS_MAX) {
            let message = format!("`{at}` must be at most {LOGPROBS_MAX}, not {count}");
            return Err(ApiError::invalid(at, message));
        }
        Ok(count.filter(|count| *count > 0))
    }

    fn schema(&self, bounds: &Bounds) -> (Value, bool) {
        Optional(ALTERNATIVES).schema(bounds)
    }
}

/// Alternatives to report for each token; the engine checks the number.
pub(crate) const ALTERNATIVES: Count = Count {
    min: 0,
    max: Most::Fixed(LOGPROBS_MAX as i64),
};

/// The temperature of OpenAI's API.
pub(crate) const OPENAI_TEMPERATURE: NumberRange = NumberRange::new(0.0, 2.0);

/// A number in a range of an API that is narrower than the engine's.
pub(crate) struct Within(pub(crate) NumberRange);

impl Kind for Within {
    type Value = f32;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<f32, ApiError> {
        let number = Number(self.0).read(at, value, bounds)?;
        if self.0.contains(number) {
            Ok(number)
        } else {
            let message = format!("`{at}` must be a number {}, not {number}", self.0);
            Err(ApiError::invalid(at, message))
        }
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        Number(self.0).schema(bounds)
    }
}

/// A temperature in llama.cpp's words: below 0 it always takes the likeliest token.
pub(crate) struct GreedyBelowZero;

impl Kind for GreedyBelowZero {
    type Value = f32;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<f32, ApiError> {
        Number::narrow(at, &value, TEMPERATURE).map(|temperature| temperature.max(0.0))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "number", "maximum": TEMPERATURE.max})
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

/// Values added to logits, by what names the tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Biases {
    /// By id; the engine checks ids and values.
    pub(crate) ids: BTreeMap<u32, f32>,
    /// Of each token of a text.
    pub(crate) texts: Vec<(String, f32)>,
}

impl Biases {
    /// Adds the bias of a token id, or of each token of a text.
    fn add(&mut self, at: &str, token: &Value, bias: &Value) -> Result<(), ApiError> {
        let bias = match bias {
            Value::Bool(false) => LOGIT_BIAS.min,
            bias => Number::narrow(at, bias, LOGIT_BIAS)?,
        };
        match token {
            Value::String(text) if !text.is_empty() && text.len() <= STOP_BYTES_MAX => {
                self.texts.push((text.clone(), bias));
            }
            token => {
                let id = whole(token).and_then(|id| u32::try_from(id).ok());
                let rule = "of token ids, or of texts of 1 to 256 bytes";
                self.ids
                    .insert(id.ok_or_else(|| wrong(at, rule, token))?, bias);
            }
        }
        Ok(())
    }
}

/// An object with token ids or texts as keys and their biases, or a list of pairs of both, where `false` forbids a
/// token.
pub(crate) struct LogitBias;

impl Kind for LogitBias {
    type Value = Biases;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Biases, ApiError> {
        let count = value.as_array().map(Vec::len);
        let count = count.or(value.as_object().map(Map::len)).unwrap_or(0);
        if count > LOGIT_BIAS_MAX {
            let message = format!("`{at}` must have at most {LOGIT_BIAS_MAX} entries, not {count}");
            return Err(ApiError::invalid(at, message));
        }
        let mut biases = Biases::default();
        match &value {
            Value::Object(map) => {
                for (key, bias) in map {
                    biases.add(at, &key_of_bias(at, key)?, bias)?;
                }
            }
            Value::Array(pairs) => {
                for pair in pairs {
                    match pair.as_array().map(Vec::as_slice) {
                        Some([token, bias]) => biases.add(at, token, bias)?,
                        _ => {
                            return Err(wrong(
                                at,
                                "a list of pairs of a token and a number or false",
                                pair,
                            ));
                        }
                    }
                }
            }
            other => return Err(wrong(at, "an object or a list of pairs", other)),
        }
        Ok(biases)
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let number = Number(LOGIT_BIAS).schema(bounds);
        let bias = json!({"anyOf": [number, {"const": false}]});
        let token = json!({"anyOf": [token_id_schema(bounds), short_string()]});
        let pair = json!({"type": "array", "minItems": 2, "prefixItems": [token, bias]});
        let map = json!({"type": "object", "maxProperties": LOGIT_BIAS_MAX, "additionalProperties": bias});
        json!({"anyOf": [map, {"type": "array", "items": pair}]})
    }
}

/// A key of an object: a whole number is a token id, anything else a text. Other spellings of numbers are neither: they
/// look like an id and would be a text.
fn key_of_bias(at: &str, key: &str) -> Result<Value, ApiError> {
    match key.parse::<i64>() {
        Ok(id) if id.to_string() == key => Ok(id.into()),
        _ if key.trim().parse::<f64>().is_ok() => {
            Err(wrong(at, "keyed by token ids or texts", &key.into()))
        }
        _ => Ok(key.into()),
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
