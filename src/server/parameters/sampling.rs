//! [`Sampling`]: what chat, completions and llama.cpp's completion have in common once they are read, and the kinds of
//! fields that only they have.

use crate::engine::request::{CACHE_SALT_LEN_MAX, LOGIT_BIAS, LOGIT_BIAS_MAX, SamplingParams};
use crate::server::guards::access::Client;
use crate::server::parameters::fields::wrong;
use crate::server::parameters::kinds::{Bounds, Kind, Number, object, token_id_schema};
use crate::server::parameters::structured::Structure;
use crate::server::parameters::table::{Queueing, SamplingFields};
use crate::server::wire::error::{ApiError, Names};
use crate::text::answer::AnswerParser;
use crate::text::{TextStream, Tokenizer};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const METADATA_MAX: usize = 16;
const METADATA_KEY_BYTES_MAX: usize = 64;
const METADATA_VALUE_BYTES_MAX: usize = 512;
pub(crate) const USER_BYTES_MAX: usize = 4096;

/// How to continue a request's prompts.
pub(crate) struct Sampling {
    /// `logprobs` and `max_tokens` are set by the endpoint, as their names differ, and so is the constraint.
    pub(crate) params: SamplingParams,
    /// The answer has logprobs; [`Self::set_logprobs`].
    pub(crate) wants_logprobs: bool,
    /// The answer has `prompt_logprobs`.
    pub(crate) wants_prompt_logprobs: bool,
    /// Nothing is generated as far as the answer tells: it is the prompt alone.
    pub(crate) silent: bool,
    pub(crate) stops: Vec<String>,
    pub(crate) cache_salt: Option<String>,
    pub(crate) priority: i32,
    pub(crate) skip_special: bool,
    /// The text of an answer includes what has stopped it.
    pub(crate) show_stops: bool,
    /// Choices per prompt that are answered with: the likeliest of those that are drawn.
    pub(crate) best: usize,
    pub(crate) return_token_ids: bool,
    /// Keep so many of a prompt's last tokens.
    pub(crate) prompt_tokens_max: Option<u32>,
    pub(crate) explain_prefix: bool,
    pub(crate) client: Client,
    /// The engine's names of fields that the request calls otherwise.
    pub(crate) names: Names,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) continuous_usage: bool,
    /// What the answer has to look like.
    pub(crate) structure: Option<Structure>,
    /// Set by an endpoint whose answers are more than text.
    pub(crate) answer: AnswerParser,
    /// Special tokens that have text all the same, for the answer to be taken apart by.
    pub(crate) kept_ids: Arc<[u32]>,
}

impl Sampling {
    /// Checks fields that depend on each other; the engine checks the ranges of its own when the request is submitted.
    /// The request wins over the model's `defaults`.
    pub(crate) fn new(
        fields: SamplingFields,
        queueing: Queueing,
        defaults: &SamplingParams,
        context: u32,
        (client, names): (Client, Names),
    ) -> Result<Self, ApiError> {
        let stream = fields.stream;
        if fields.stream_options.is_some() && !stream {
            return Err(ApiError::invalid("stream_options", "`stream_options` needs `stream`: true"));
        }
        let options = fields.stream_options.as_ref();
        let best = fields.n.unwrap_or(1) as usize;
        let params = SamplingParams { n: best_of(&fields)?, ..sampling_params(&fields, defaults) };
        Ok(Self {
            wants_logprobs: false,
            wants_prompt_logprobs: params.prompt_logprobs.is_some(),
            silent: false,
            best,
            client,
            names,
            show_stops: fields.include_stop_str_in_output,
            return_token_ids: fields.return_token_ids,
            prompt_tokens_max: prompt_tokens_max(&queueing, context),
            explain_prefix: fields.debug.is_some_and(|debug| debug.prefix),
            include_usage: options.is_some_and(|options| options.include_usage),
            continuous_usage: options.is_some_and(|options| options.continuous_usage_stats),
            stops: fields.stop.unwrap_or_default(),
            cache_salt: queueing.cache_salt,
            priority: queueing.priority.unwrap_or(0) as i32,
            skip_special: fields.skip_special_tokens,
            stream,
            structure: fields.structured.structure()?,
            answer: AnswerParser::plain(),
            kept_ids: Arc::default(),
            params,
        })
    }

    /// Alternatives to report for each token, if logprobs are wanted. To choose the best they are needed anyway.
    pub(crate) fn set_logprobs(&mut self, alternatives: Option<u32>) {
        self.wants_logprobs = alternatives.is_some();
        let chooses = self.best < self.params.n as usize;
        self.params.logprobs = alternatives.or(chooses.then_some(0));
    }

    /// The decoder of one choice.
    pub(crate) fn text_stream(&self, tokenizer: Option<Arc<Tokenizer>>) -> TextStream {
        let stream = TextStream::new(tokenizer, &self.stops, self.skip_special);
        let stream = stream.keeping(self.kept_ids.clone());
        stream.show_stops(self.show_stops).min_tokens(self.params.min_tokens)
    }

    /// A prompt without the beginning that is too much.
    pub(crate) fn truncated(&self, prompt: Vec<u32>) -> Vec<u32> {
        truncated(prompt, self.prompt_tokens_max)
    }
}

/// `logprobs` and `max_tokens` are set by the endpoint, as their names differ.
fn sampling_params(fields: &SamplingFields, defaults: &SamplingParams) -> SamplingParams {
    SamplingParams {
        max_tokens: None,
        temperature: fields.temperature.unwrap_or(defaults.temperature),
        top_p: fields.top_p.unwrap_or(defaults.top_p),
        top_k: fields.top_k.map_or(defaults.top_k, |top_k| top_k.max(0) as u32),
        min_p: fields.min_p.unwrap_or(defaults.min_p),
        repetition_penalty: fields.repetition_penalty.unwrap_or(defaults.repetition_penalty),
        presence_penalty: fields.presence_penalty.unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields.frequency_penalty.unwrap_or(defaults.frequency_penalty),
        logit_bias: fields.logit_bias.clone().unwrap_or_default(),
        seed: fields.seed.map(i64::cast_unsigned).or(defaults.seed),
        stop_token_ids: fields.stop_token_ids.clone().unwrap_or_default(),
        ignore_eos: fields.ignore_eos.unwrap_or(defaults.ignore_eos),
        min_tokens: fields.min_tokens.unwrap_or(0),
        prompt_logprobs: fields.prompt_logprobs,
        ..SamplingParams::default()
    }
}

/// Choices to draw, of which `n` are answered with.
fn best_of(fields: &SamplingFields) -> Result<u32, ApiError> {
    let n = fields.n.unwrap_or(1);
    let best_of = fields.best_of.unwrap_or(n);
    if best_of < n {
        return Err(ApiError::invalid("best_of", format!("`best_of` ({best_of}) must not be below `n` ({n})")));
    }
    if fields.stream && best_of > n {
        let message = "`best_of` above `n` needs `stream`: false: which choice is best is known at the end";
        return Err(ApiError::invalid("best_of", message));
    }
    Ok(best_of as u32)
}

/// The last `most` tokens of a prompt.
pub(crate) fn truncated(mut prompt: Vec<u32>, most: Option<u32>) -> Vec<u32> {
    let surplus = prompt.len().saturating_sub(most.map_or(usize::MAX, |most| most as usize));
    prompt.drain(..surplus);
    prompt
}

/// `truncate_prompt_tokens`; −1 is as many as the context takes.
pub(crate) fn prompt_tokens_max(queueing: &Queueing, context: u32) -> Option<u32> {
    queueing.truncate_prompt_tokens.map(|most| u32::try_from(most).unwrap_or(context - 1))
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
        if items.len() > STOPS_MAX {
            let message = format!("`{at}` has {} strings; at most {STOPS_MAX} are allowed", items.len());
            return Err(ApiError::invalid(at, message));
        }
        let string = |item: Value| match item {
            Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => Ok(text),
            other => Err(wrong(at, &format!("strings of 1 to {STOP_BYTES_MAX} bytes"), &other)),
        };
        items.into_iter().map(string).collect()
    }

    fn schema(&self, _: &Bounds) -> Value {
        let string = json!({"type": "string", "minLength": 1, "maxLength": STOP_BYTES_MAX});
        json!({"anyOf": [string, {"type": "array", "maxItems": STOPS_MAX, "items": string}]})
    }
}

/// Token ids that the engine checks.
pub(crate) struct StopTokenIds {
    pub(crate) count_max: usize,
}

impl Kind for StopTokenIds {
    type Value = Vec<u32>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Vec<u32>, ApiError> {
        let Value::Array(items) = &value else { return Err(wrong(at, "a list of token ids", &value)) };
        let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
        items.iter().map(|item| id(item).ok_or_else(|| wrong(at, "a list of token ids", item))).collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        json!({"type": "array", "maxItems": self.count_max, "items": token_id_schema(bounds)})
    }
}

/// Token ids with what is added to their logits; the engine checks both.
pub(crate) struct LogitBias;

impl Kind for LogitBias {
    type Value = BTreeMap<u32, f32>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Self::Value, ApiError> {
        let entry = |(key, value): (&String, &Value)| {
            // `parse` would also take a leading plus sign or zeros: two spellings of one id.
            let id = key.parse::<u32>().ok().filter(|id| id.to_string() == *key);
            let id = id.ok_or_else(|| wrong(at, "keyed by token ids", &Value::String(key.clone())))?;
            Ok((id, Number::narrow(at, value, LOGIT_BIAS)?))
        };
        object(at, value)?.iter().map(entry).collect()
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let value = Number(LOGIT_BIAS).schema(bounds);
        json!({"type": "object", "maxProperties": LOGIT_BIAS_MAX, "additionalProperties": value})
    }
}

/// The same, or pairs of both as llama.cpp's clients send them.
pub(crate) struct LogitBiasPairs;

impl Kind for LogitBiasPairs {
    type Value = BTreeMap<u32, f32>;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<Self::Value, ApiError> {
        let Value::Array(pairs) = value else { return LogitBias.read(at, value, bounds) };
        let pair = |pair: &Value| match (pair[0].as_u64(), &pair[1]) {
            (Some(id), Value::Bool(false)) => Ok((id.to_string(), json!(LOGIT_BIAS.min))),
            (Some(id), bias @ Value::Number(_)) => Ok((id.to_string(), bias.clone())),
            _ => Err(wrong(at, "pairs of a token id and a number or false", pair)),
        };
        let map = pairs.iter().map(pair).collect::<Result<Map<_, _>, _>>()?;
        LogitBias.read(at, map.into(), bounds)
    }

    fn schema(&self, bounds: &Bounds) -> Value {
        let bias = json!({"anyOf": [Number(LOGIT_BIAS).schema(bounds), {"const": false}]});
        let pair = json!({"type": "array", "minItems": 2, "prefixItems": [token_id_schema(bounds), bias]});
        json!({"anyOf": [LogitBias.schema(bounds), {"type": "array", "items": pair}]})
    }
}

/// A string whose alphabet the engine checks.
pub(crate) struct CacheSalt;

impl Kind for CacheSalt {
    type Value = String;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<String, ApiError> {
        value.as_str().map(str::to_owned).ok_or_else(|| wrong(at, "a string", &value))
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "string", "pattern": format!("^[A-Za-z0-9_-]{{1,{CACHE_SALT_LEN_MAX}}}$")})
    }
}

/// The number of choices where there is only one.
pub(crate) struct OneChoice;

impl Kind for OneChoice {
    type Value = ();

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<(), ApiError> {
        match value.as_u64() {
            Some(1) => Ok(()),
            Some(count) if (2..=bounds.choices.into()).contains(&count) => {
                let message = format!("`{at}` must be 1 here; /v1/completions generates several choices");
                Err(ApiError::unsupported(at, message))
            }
            _ => Err(wrong(at, "1", &value)),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "integer", "minimum": 1, "maximum": 1})
    }
}

/// A few pairs of strings.
pub(crate) struct Metadata;

impl Kind for Metadata {
    type Value = ();

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<(), ApiError> {
        let map = object(at, value)?;
        let fits = |(key, value): (&String, &Value)| {
            let short = value.as_str().is_some_and(|text| text.len() <= METADATA_VALUE_BYTES_MAX);
            key.len() <= METADATA_KEY_BYTES_MAX && short
        };
        if map.len() <= METADATA_MAX && map.iter().all(fits) {
            return Ok(());
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
