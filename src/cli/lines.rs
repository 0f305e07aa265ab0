//! One line of `run --input`: a prompt and sampling fields by their OpenAI and vLLM names.
//!
//! A line is read strictly: a field that is not known is an error of that line, so a misspelt one is not ignored.
//! Ranges are the engine's to check.

use super::session::Session;
use anyhow::{Context as _, Result, bail, ensure};
use folio::engine::request::{Request, SamplingParams};
use folio::platform;
use folio::text::{ChatInput, TextStream};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The fields of a line. Absent ones take the model's defaults.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line {
    prompt: Option<String>,
    messages: Option<Value>,
    prompt_token_ids: Option<Vec<u32>>,
    n: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    seed: Option<i64>,
    stop: Option<Stop>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    min_tokens: Option<u32>,
    logprobs: Option<Logprobs>,
    top_logprobs: Option<u32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    cache_salt: Option<String>,
    tools: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// One stop string or several.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

/// A number as in completions, or a switch as in chat.
#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Logprobs {
    Top(u32),
    Switch(bool),
}

/// A line ready for the engine.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) request: Request,
    pub(crate) stop: Vec<String>,
}

/// Values that a line takes where it has none of its own.
#[derive(Clone, Debug)]
pub(crate) struct Defaults {
    pub(crate) params: SamplingParams,
    pub(crate) stop: Vec<String>,
}

impl Line {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("not JSON")?;
        ensure!(value.is_object(), "a line is a JSON object");
        Ok(serde_json::from_value(value)?)
    }

    /// A line with a plain prompt, or with it as a user's message.
    pub(crate) fn from_prompt(text: &str, raw: bool) -> Self {
        if raw {
            return Self { prompt: Some(text.to_owned()), ..Self::default() };
        }
        Self::from_messages(serde_json::json!([{"role": "user", "content": text}]))
    }

    pub(crate) fn from_messages(messages: Value) -> Self {
        Self { messages: Some(messages), ..Self::default() }
    }

    /// Encodes the prompt and fills in the defaults.
    pub(crate) fn prepare(self, session: &Session, defaults: &Defaults) -> Result<Job> {
        let prompt = self.token_ids(session)?;
        let stop = match &self.stop {
            Some(Stop::One(text)) => vec![text.clone()],
            Some(Stop::Many(texts)) => texts.clone(),
            None => defaults.stop.clone(),
        };
        ensure!(stop.is_empty() || session.text.tokenizer.is_some(), "stop: this model has no tokenizer");
        ensure!(stop.iter().all(|text| !text.is_empty()), "stop: an empty string would stop at once");
        let cache_salt = self.cache_salt.clone();
        let params = self.params(&defaults.params)?;
        Ok(Job { request: Request { prompt, params, cache_salt, ..Request::default() }, stop })
    }

    fn token_ids(&self, session: &Session) -> Result<Arc<[u32]>> {
        let missing = "this model has no tokenizer: give prompt_token_ids";
        let tokenizer = || session.text.tokenizer.as_ref().context(missing);
        let text_bytes = self.prompt.as_ref().map_or(0, String::len);
        ensure!(text_bytes <= session.prompt_bytes_max()?, "the prompt is far longer than the context");
        let ids = match (&self.prompt, &self.messages, &self.prompt_token_ids) {
            (Some(text), None, None) => tokenizer()?.encode(text, true)?,
            (None, Some(messages), None) => {
                tokenizer()?;
                let missing = "this model has no chat template: give prompt, or --chat-template";
                ensure!(session.text.template.is_some(), missing);
                session.text.chat_prompt(&ChatInput {
                    messages,
                    tools: self.tools.as_ref(),
                    kwargs: self.chat_template_kwargs.as_ref(),
                    add_generation_prompt: true,
                    continue_final: false,
                    unix_time: platform::unix_time(),
                    bytes_max: session.prompt_bytes_max()?,
                })?
            }
            (None, None, Some(ids)) => ids.clone(),
            _ => bail!("a line has exactly one of prompt, messages and prompt_token_ids"),
        };
        ensure!(!ids.is_empty(), "the prompt is empty");
        Ok(ids.into())
    }

    fn params(self, defaults: &SamplingParams) -> Result<SamplingParams> {
        let bias = |(id, bias): (String, f32)| {
            Ok((id.parse().with_context(|| format!("logit_bias: `{id}` is no token id"))?, bias))
        };
        Ok(SamplingParams {
            n: self.n.unwrap_or(defaults.n),
            max_tokens: self.max_completion_tokens.or(self.max_tokens).or(defaults.max_tokens),
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            // vLLM's -1 keeps all, as 0 does.
            top_k: match self.top_k {
                None => defaults.top_k,
                Some(-1) => 0,
                Some(k) => u32::try_from(k).context("top_k: out of range")?,
            },
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            logit_bias: self.logit_bias.unwrap_or_default().into_iter().map(bias).collect::<Result<_>>()?,
            // A negative seed is a seed: its bits count.
            seed: self.seed.map(|seed| seed as u64).or(defaults.seed),
            stop_token_ids: self.stop_token_ids.unwrap_or_else(|| defaults.stop_token_ids.clone()),
            ignore_eos: self.ignore_eos.unwrap_or(defaults.ignore_eos),
            min_tokens: self.min_tokens.unwrap_or(0),
            prompt_logprobs: None,
            logprobs: match (self.logprobs, self.top_logprobs) {
                (Some(Logprobs::Top(top)), None) => Some(top),
                (Some(Logprobs::Switch(true)), top) => Some(top.unwrap_or(0)),
                (None | Some(Logprobs::Switch(false)), None) => defaults.logprobs,
                _ => bail!("top_logprobs: needs \"logprobs\": true"),
            },
            constraint: defaults.constraint.clone(),
        })
    }
}

impl Job {
    /// The text of one choice, where the model has a tokenizer.
    pub(crate) fn text_stream(&self, session: &Session) -> Option<TextStream> {
        let tokenizer = session.text.tokenizer.clone()?;
        Some(TextStream::new(Some(tokenizer), &self.stop, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_strictly() {
        let check = |text: &str, fault: &str| {
            let message = format!(
                "{:#}",
                Line::parse(text)
                    .and_then(|line| line.params(&SamplingParams::default()))
                    .expect_err("the line is wrong")
            );
            assert!(message.contains(fault), "{text}: {message}");
        };
        check("{", "not JSON");
        check("[]", "a JSON object");
        check(r#"{"prompt": "a", "temprature": 1}"#, "temprature");
        check(r#"{"prompt": "a", "top_k": -2}"#, "top_k");
        check(r#"{"prompt": "a", "logit_bias": {"x": 1}}"#, "logit_bias");
        check(r#"{"prompt": "a", "top_logprobs": 2}"#, "logprobs");
    }

    #[test]
    fn fields_fill_the_parameters() {
        let defaults = SamplingParams { temperature: 0.5, top_k: 7, ..SamplingParams::default() };
        let text = r#"{"prompt_token_ids": [1], "max_tokens": 3, "seed": -1, "top_p": 0.5, "logit_bias": {"9": 2},
                       "logprobs": true, "top_logprobs": 4}"#;
        let params = Line::parse(text).and_then(|line| line.params(&defaults)).expect("the line is right");
        let expected = SamplingParams {
            max_tokens: Some(3),
            seed: Some(u64::MAX),
            top_p: 0.5,
            logit_bias: BTreeMap::from([(9, 2.0)]),
            logprobs: Some(4),
            ..defaults
        };
        assert_eq!(params, expected);
    }
}
