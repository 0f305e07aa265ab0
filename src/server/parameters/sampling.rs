//! The sampling fields that chat and completions share, by their OpenAI and vLLM names.

use crate::engine::handle::EngineInfo;
use crate::engine::request::SamplingParams;
use crate::server::guards::access::Client;
use crate::server::parameters::fields::{Fields, wrong};
use crate::server::parameters::structured::{self, Structure};
use crate::server::state::{Limits, ServerState};
use crate::server::wire::error::ApiError;
use crate::text::answer::AnswerParser;
use crate::text::{TextStream, Tokenizer};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Below this a temperature means greedy: dividing by it would overflow.
const TEMPERATURE_MIN: f32 = 1e-5;
const STOPS_MAX: usize = 16;
const STOP_BYTES_MAX: usize = 256;
const STOP_IDS_MAX: usize = 128;
const LOGIT_BIASES_MAX: usize = 1024;
const SALT_BYTES_MAX: usize = 128;
pub(crate) const USER_BYTES_MAX: usize = 4096;
/// Alternatives per token.
pub(crate) const TOP_LOGPROBS_MAX: i64 = 20;

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
    /// Reads and checks all shared fields. The request wins over the model's defaults.
    pub(crate) fn read(
        fields: &mut Fields,
        state: &ServerState,
        info: &EngineInfo,
        client: Client,
    ) -> Result<Self, ApiError> {
        let (include_usage, continuous_usage, stream) = stream_options(fields)?;
        let mut params = sampling_params(fields, &state.options.defaults, &state.options.limits, info)?;
        let best = params.n as usize;
        let wants_prompt_logprobs = params.prompt_logprobs.is_some();
        params.n = best_of(fields, params.n, stream, &state.options.limits)?;
        let sampling = Self {
            params,
            wants_logprobs: false,
            wants_prompt_logprobs,
            silent: false,
            best,
            client,
            show_stops: fields.boolean("include_stop_str_in_output")?.unwrap_or(false),
            return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
            prompt_tokens_max: prompt_tokens_max(fields, info)?,
            explain_prefix: explain_prefix(fields)?,
            stops: stop_strings(fields)?,
            cache_salt: cache_salt(fields)?,
            priority: fields.integer("priority", i32::MIN.into()..=i32::MAX.into())?.unwrap_or(0) as i32,
            skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
            stream,
            include_usage,
            continuous_usage,
            structure: structured::read(fields)?,
            answer: AnswerParser::plain(),
            kept_ids: Arc::default(),
        };
        fields.string("user", USER_BYTES_MAX)?;
        metadata(fields)?;
        Ok(sampling)
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

fn sampling_params(
    fields: &mut Fields,
    defaults: &SamplingParams,
    limits: &Limits,
    info: &EngineInfo,
) -> Result<SamplingParams, ApiError> {
    let vocabulary = info.vocab;
    let penalty = |value: f64| (-2.0..=2.0).contains(&value);
    let penalty_rule = "a number from -2 to 2";
    let temperature = fields.number("temperature", "a number from 0 to 2", |value| (0.0..=2.0).contains(&value))?;
    let temperature = temperature.unwrap_or(defaults.temperature);
    let top_p = fields.number("top_p", "a number above 0, at most 1", |value| value > 0.0 && value <= 1.0)?;
    let min_p = fields.number("min_p", "a number from 0 to 1", |value| (0.0..=1.0).contains(&value))?;
    let repetition = |value: f64| value > 0.0 && value <= 2.0;
    let top_k = fields.integer("top_k", -1..=i64::from(i32::MAX))?.map(|top_k| top_k.max(0) as u32);
    Ok(SamplingParams {
        n: fields.integer("n", 1..=i64::from(limits.choices_max))?.unwrap_or(1) as u32,
        max_tokens: None,
        temperature: if temperature < TEMPERATURE_MIN { 0.0 } else { temperature },
        // The smallest f64 above 0 rounds to 0 in f32, which would keep nothing.
        top_p: top_p.unwrap_or(defaults.top_p).max(f32::MIN_POSITIVE),
        top_k: top_k.unwrap_or(defaults.top_k),
        min_p: min_p.unwrap_or(defaults.min_p),
        // Smaller ones would only make logits infinite.
        repetition_penalty: fields
            .number("repetition_penalty", "a number above 0, at most 2", repetition)?
            .map_or(defaults.repetition_penalty, |penalty| penalty.max(1e-3)),
        presence_penalty: fields
            .number("presence_penalty", penalty_rule, penalty)?
            .unwrap_or(defaults.presence_penalty),
        frequency_penalty: fields
            .number("frequency_penalty", penalty_rule, penalty)?
            .unwrap_or(defaults.frequency_penalty),
        logit_bias: logit_bias(fields, vocabulary)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned).or(defaults.seed),
        stop_token_ids: stop_token_ids(fields, vocabulary)?,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(defaults.ignore_eos),
        min_tokens: fields.integer("min_tokens", 0..=i64::from(info.max_model_len))?.unwrap_or(0) as u32,
        logprobs: None,
        prompt_logprobs: fields.integer("prompt_logprobs", 0..=TOP_LOGPROBS_MAX)?.map(|top| top as u32),
        constraint: None,
    })
}

/// The last `most` tokens of a prompt.
pub(crate) fn truncated(mut prompt: Vec<u32>, most: Option<u32>) -> Vec<u32> {
    let surplus = prompt.len().saturating_sub(most.map_or(usize::MAX, |most| most as usize));
    prompt.drain(..surplus);
    prompt
}

/// `truncate_prompt_tokens`; −1 is as many as the context takes.
pub(crate) fn prompt_tokens_max(fields: &mut Fields, info: &EngineInfo) -> Result<Option<u32>, ApiError> {
    let context = info.max_model_len;
    match fields.integer("truncate_prompt_tokens", -1..=i64::from(context))? {
        None => Ok(None),
        Some(-1) => Ok(Some(context - 1)),
        Some(0) => Err(wrong("truncate_prompt_tokens", "-1, or at least 1", &Value::from(0))),
        Some(count) => Ok(Some(count as u32)),
    }
}

/// `"debug": {"prefix": true}`.
fn explain_prefix(fields: &mut Fields) -> Result<bool, ApiError> {
    let Some(debug) = fields.object("debug")? else { return Ok(false) };
    match debug.get("prefix") {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(value) => Err(wrong("debug.prefix", "true or false", value)),
    }
}

fn stream_options(fields: &mut Fields) -> Result<(bool, bool, bool), ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let Some(options) = fields.object("stream_options")? else { return Ok((false, false, stream)) };
    if !stream {
        return Err(ApiError::invalid("stream_options", "`stream_options` needs `stream`: true"));
    }
    let flag = |name: &str| match options.get(name) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(value) => Err(wrong(&format!("stream_options.{name}"), "true or false", value)),
    };
    Ok((flag("include_usage")?, flag("continuous_usage_stats")?, stream))
}

fn stop_strings(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(value) => vec![value],
    };
    if items.len() > STOPS_MAX {
        let message = format!("`stop` has {} strings; at most {STOPS_MAX} are allowed", items.len());
        return Err(ApiError::invalid("stop", message));
    }
    let string = |item: Value| match item {
        Value::String(text) if (1..=STOP_BYTES_MAX).contains(&text.len()) => Ok(text),
        other => Err(wrong("stop", &format!("strings of 1 to {STOP_BYTES_MAX} bytes"), &other)),
    };
    items.into_iter().map(string).collect()
}

fn stop_token_ids(fields: &mut Fields, vocabulary: u32) -> Result<Vec<u32>, ApiError> {
    let items = match fields.take("stop_token_ids") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) if items.len() <= STOP_IDS_MAX => items,
        Some(value) => {
            return Err(wrong("stop_token_ids", &format!("a list of at most {STOP_IDS_MAX} token ids"), &value));
        }
    };
    items.iter().map(|item| token_id("stop_token_ids", item, vocabulary)).collect()
}

/// A token id of the model.
pub(crate) fn token_id(name: &str, value: &Value, vocabulary: u32) -> Result<u32, ApiError> {
    let id = value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < vocabulary);
    id.ok_or_else(|| wrong(name, &format!("token ids from 0 to {}", vocabulary - 1), value))
}

fn logit_bias(fields: &mut Fields, vocabulary: u32) -> Result<BTreeMap<u32, f32>, ApiError> {
    let map: Map<String, Value> = fields.object("logit_bias")?.unwrap_or_default();
    if map.len() > LOGIT_BIASES_MAX {
        let message = format!("`logit_bias` has {} entries; at most {LOGIT_BIASES_MAX} are allowed", map.len());
        return Err(ApiError::invalid("logit_bias", message));
    }
    let mut biases = BTreeMap::new();
    for (key, value) in &map {
        // `parse` would also take a leading plus sign or zeros: two spellings of one id.
        let id = key.parse::<u32>().ok().filter(|id| *id < vocabulary && id.to_string() == *key);
        let rule = format!("keyed by token ids from 0 to {}", vocabulary - 1);
        let id = id.ok_or_else(|| wrong("logit_bias", &rule, &Value::String(key.clone())))?;
        let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        biases.insert(id, bias.ok_or_else(|| wrong("logit_bias", "numbers from -100 to 100", value))? as f32);
    }
    Ok(biases)
}

pub(crate) fn cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    let Some(value) = fields.take("cache_salt") else { return Ok(None) };
    let fits = |salt: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=SALT_BYTES_MAX).contains(&salt.len()) && salt.bytes().all(allowed)
    };
    match value {
        Value::String(salt) if fits(&salt) => Ok(Some(salt)),
        other => Err(wrong("cache_salt", &format!("1 to {SALT_BYTES_MAX} of [A-Za-z0-9_-]"), &other)),
    }
}

/// Choices to draw, of which `n` are answered with.
fn best_of(fields: &mut Fields, n: u32, stream: bool, limits: &Limits) -> Result<u32, ApiError> {
    let Some(best_of) = fields.integer("best_of", 1..=i64::from(limits.choices_max))? else { return Ok(n) };
    let best_of = best_of as u32;
    if best_of < n {
        return Err(ApiError::invalid("best_of", format!("`best_of` ({best_of}) must not be below `n` ({n})")));
    }
    if stream && best_of > n {
        return Err(ApiError::invalid(
            "best_of",
            "which choice is best is known at the end: `best_of` needs no stream",
        ));
    }
    Ok(best_of)
}

fn metadata(fields: &mut Fields) -> Result<(), ApiError> {
    let Some(metadata) = fields.object("metadata")? else { return Ok(()) };
    let fits =
        |(key, value): (&String, &Value)| key.len() <= 64 && value.as_str().is_some_and(|text| text.len() <= 512);
    if metadata.len() > 16 || !metadata.iter().all(fits) {
        let rule = "`metadata` must be at most 16 pairs of a key up to 64 and a string up to 512 bytes";
        return Err(ApiError::invalid("metadata", rule));
    }
    Ok(())
}
