//! [`Fields`]: typed reading of a request's fields, each once, each with its range; what is left over at the end was
//! unknown.

use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, shorten};
use serde_json::{Map, Value};
use std::ops::RangeInclusive;
use std::sync::PoisonError;

/// Names of unknown fields that are logged, in one request and in all.
const UNKNOWN_PER_REQUEST: usize = 8;
const UNKNOWN_MAX: usize = 256;

/// Known fields of other servers that change what is generated. Ignoring one would answer another question than was
/// asked, or open a door that is kept shut; so each is refused by name until it is built.
const REFUSED: &[&str] = &[
    "allowed_token_ids",
    "audio",
    "bad_words",
    "chat_template",
    "documents",
    "function_call",
    "functions",
    "grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "input_audio",
    "kv_transfer_params",
    "logprob_token_ids",
    "lora_request",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "moderation",
    "multi_modal_data",
    "prompt_embeds",
    "suffix",
    "use_beam_search",
    "vllm_xargs",
    "web_search_options",
];

/// Fields that say nothing about the text to generate; taken without a word.
const HARMLESS: &[&str] = &[
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "spaces_between_special_tokens",
    "store",
    "truncation",
    "verbosity",
];

/// The fields of one request that were not read yet.
pub(crate) struct Fields(Map<String, Value>);

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self(map)
    }

    /// A field's value; null counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Whether a field is there and not null.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| wrong(name, "true or false", &value))
    }

    pub(crate) fn string(&mut self, name: &'static str, bytes_max: usize) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.len() <= bytes_max => Ok(Some(text)),
            Some(value) => Err(wrong(name, &format!("a string of at most {bytes_max} bytes"), &value)),
        }
    }

    /// The model's name, of any length: a wrong one is unknown rather than too long.
    pub(crate) fn model(&mut self) -> Result<Option<String>, ApiError> {
        match self.take("model") {
            None => Ok(None),
            Some(Value::String(name)) => Ok(Some(name)),
            Some(value) => Err(wrong("model", "a string", &value)),
        }
    }

    /// A whole number in `range`.
    pub(crate) fn integer(&mut self, name: &'static str, range: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let rule = || format!("a whole number from {} to {}", range.start(), range.end());
        value.as_i64().filter(|number| range.contains(number)).map(Some).ok_or_else(|| wrong(name, &rule(), &value))
    }

    /// A count of tokens: at least one, and clamped later to the room there is, so any size will do.
    pub(crate) fn token_count(&mut self, name: &'static str) -> Result<Option<u32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let count = value.as_u64().filter(|count| *count >= 1);
        let count = count.ok_or_else(|| wrong(name, "a whole number of at least 1", &value))?;
        Ok(Some(u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// Whether a field is the number 0; then it counts as read.
    pub(crate) fn take_zero(&mut self, name: &str) -> bool {
        let zero = self.0.get(name).and_then(Value::as_u64) == Some(0);
        zero && self.0.remove(name).is_some()
    }

    /// A number that `accepts` takes; `rule` says which in words.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        rule: &str,
        accepts: impl Fn(f64) -> bool,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = value.as_f64().filter(|number| accepts(*number));
        number.map(|number| Some(number as f32)).ok_or_else(|| wrong(name, rule, &value))
    }

    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Map<String, Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(value) => Err(wrong(name, "an object", &value)),
        }
    }

    /// Refuses what is known and not built, and logs what is not known, each name once.
    pub(crate) fn finish(self, state: &ServerState) -> Result<(), ApiError> {
        for (name, value) in &self.0 {
            if REFUSED.contains(&name.as_str()) && !is_off(value) {
                return Err(ApiError::unsupported(name, format!("`{name}` is not supported")));
            }
        }
        let known = |name: &str| REFUSED.contains(&name) || HARMLESS.contains(&name);
        for name in self.0.keys().filter(|name| !known(name)).take(UNKNOWN_PER_REQUEST) {
            let name = shorten(name);
            let mut seen = state.unknown_fields.lock().unwrap_or_else(PoisonError::into_inner);
            if seen.len() < UNKNOWN_MAX && seen.insert(name.clone()) {
                tracing::warn!(field = name, "a field that is not known is ignored");
            }
        }
        Ok(())
    }
}

/// Whether a refused field is only spelled out with the value that means "not used".
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// "`name` must be …, not …", with the value shortened.
pub(crate) fn wrong(name: &str, rule: &str, value: &Value) -> ApiError {
    let given = match value {
        Value::Array(items) if items.is_empty() => "an empty array".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("the string {}", shorten(text)),
        other => other.to_string(),
    };
    ApiError::invalid(name, format!("`{name}` must be {rule}, not {given}"))
}
