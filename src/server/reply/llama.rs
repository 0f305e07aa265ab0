//! [`LlamaReply`]: the reply to `/completion` in llama.cpp's form.

use super::ReplyForm;
use super::generation::{Delta, Totals};
use super::logprobs::{TokenNames, finite};
use crate::engine::handle::EngineInfo;
use crate::engine::request::{FinishReason, Token};
use crate::platform::Instant;
use crate::server::state::ModelState;
use crate::server::wire::{json, sse};
use serde::Serialize;
use serde_json::Value;
use std::time::Duration;

/// The reply to one request; it has one choice.
pub(crate) struct LlamaReply {
    model: String,
    settings: Value,
    tokens: TokenNames,
    eos_token_ids: Vec<u32>,
    probabilities: bool,
    returns_tokens: bool,
    has_new_line: bool,
    started: Instant,
    /// When the first tokens arrived.
    first: Option<Instant>,
}

/// One event, or the whole reply.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chunk {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<Probability>>,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Clone, Debug, Serialize)]
struct Probability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    logprob: f64,
    /// Alternatives to the chosen token; absent for an alternative itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Probability>>,
}

/// Additional fields of the last event.
#[derive(Clone, Debug, Serialize)]
struct End {
    model: String,
    generation_settings: Value,
    has_new_line: bool,
    truncated: bool,
    stop_type: &'static str,
    tokens_cached: u32,
    timings: Timings,
}

/// Times and rates. A rate is null if its divisor is zero.
#[derive(Clone, Debug, Serialize)]
struct Timings {
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_token_ms: Option<f64>,
    prompt_per_second: Option<f64>,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_token_ms: Option<f64>,
    predicted_per_second: Option<f64>,
}

impl Timings {
    fn new(totals: Totals, prompt: Duration, predicted: Duration) -> Self {
        let (prompt_n, predicted_n) = (
            totals.prompt_tokens - totals.cached.all,
            totals.completion_tokens,
        );
        let [prompt_ms, predicted_ms] = [prompt, predicted].map(|time| time.as_secs_f64() * 1e3);
        Self {
            cache_n: totals.cached.all,
            prompt_n,
            prompt_ms,
            prompt_per_token_ms: per_token(prompt_ms, prompt_n),
            prompt_per_second: per_second(prompt_ms, prompt_n),
            predicted_n,
            predicted_ms,
            predicted_per_token_ms: per_token(predicted_ms, predicted_n),
            predicted_per_second: per_second(predicted_ms, predicted_n),
        }
    }
}

fn per_second(ms: f64, tokens: u32) -> Option<f64> {
    (ms > 0.0).then(|| 1e3 * f64::from(tokens) / ms)
}

fn per_token(ms: f64, tokens: u32) -> Option<f64> {
    (tokens > 0).then(|| ms / f64::from(tokens))
}

impl LlamaReply {
    /// A reply to a request that starts now. The last event repeats `settings`.
    pub(crate) fn new(
        state: &ModelState,
        info: &EngineInfo,
        (model, settings): (String, Value),
        probabilities: bool,
        returns_tokens: bool,
    ) -> Self {
        Self {
            model,
            settings,
            tokens: TokenNames {
                tokenizer: state.text.tokenizer.clone(),
                by_id: false,
                hides_special: false,
            },
            eos_token_ids: info.eos_token_ids.clone(),
            probabilities,
            returns_tokens,
            has_new_line: false,
            started: Instant::now(),
            first: None,
        }
    }

    fn probability(&self, token: &Token) -> Probability {
        let one = |id: u32, logprob: Option<f32>| {
            let (token, bytes) = (self.tokens.text(id), self.tokens.bytes(id));
            Probability {
                id,
                token,
                bytes,
                logprob: finite(logprob),
                top_logprobs: None,
            }
        };
        let top = token
            .top_logprobs
            .iter()
            .map(|top| one(top.token_id, Some(top.logprob)));
        Probability {
            top_logprobs: Some(top.collect()),
            ..one(token.id, token.logprob)
        }
    }

    fn end(&self, finish: FinishReason, last: Option<&Token>, totals: Totals) -> End {
        let is_eos = last.is_some_and(|token| self.eos_token_ids.contains(&token.id));
        let stop_type = match finish {
            FinishReason::Length => "limit",
            FinishReason::Stop if is_eos => "eos",
            FinishReason::Stop => "word",
        };
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        End {
            model: self.model.clone(),
            generation_settings: self.settings.clone(),
            has_new_line: self.has_new_line,
            truncated: false,
            stop_type,
            tokens_cached: totals.prompt_tokens + totals.completion_tokens,
            timings: Timings::new(totals, first - self.started, now - first),
        }
    }
}

impl Chunk {
    fn append(&mut self, later: Self) {
        self.content.push_str(&later.content);
        self.tokens.extend(later.tokens);
        (self.tokens_predicted, self.tokens_evaluated) =
            (later.tokens_predicted, later.tokens_evaluated);
        if let (Some(probabilities), Some(later)) = (
            &mut self.completion_probabilities,
            later.completion_probabilities,
        ) {
            probabilities.extend(later);
        }
        (self.stop, self.end) = (later.stop, later.end);
    }
}

impl ReplyForm for LlamaReply {
    type Chunk = Chunk;
    /// No end event: the last chunk of the choice is complete.
    const END: &'static str = "";

    fn begins(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<Chunk> {
        self.has_new_line |= delta.parts.content.contains('\n');
        let end = delta
            .finish
            .map(|finish| self.end(finish, delta.tokens.last(), totals));
        let returned = if self.returns_tokens {
            &delta.tokens[..]
        } else {
            &[]
        };
        let ids = returned.iter().map(|token| token.id);
        vec![Chunk {
            index: delta.choice,
            tokens: ids.collect(),
            stop: end.is_some(),
            tokens_predicted: totals.completion_tokens,
            tokens_evaluated: totals.prompt_tokens,
            completion_probabilities: self.probabilities.then(|| {
                delta
                    .tokens
                    .iter()
                    .map(|token| self.probability(token))
                    .collect()
            }),
            end,
            content: delta.parts.content,
        }]
    }

    fn last_chunk(&self, _: Totals) -> Option<Chunk> {
        None
    }

    fn event(&self, chunk: Chunk) -> String {
        sse::event(&json::write(&chunk))
    }

    fn whole(&self, chunks: Vec<Chunk>) -> String {
        let whole = chunks.into_iter().reduce(|mut whole, later| {
            whole.append(later);
            whole
        });
        json::write(&whole.expect("a choice ends with a chunk"))
    }
}
