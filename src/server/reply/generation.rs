//! [`Generation`]: the running choices of one request, as one stream of deltas.
//!
//! It reads every choice's receiver, decodes ids to text, splits the text into parts and ends a choice by dropping its
//! receiver. All tokens of a choice that are ready at a poll are merged into one delta. A slow reader therefore gets
//! fewer and longer deltas, and no buffer grows beyond the receivers' own bounds.

use super::weight;
use crate::engine::request::{
    Cached, DraftReport, Event, FinishReason, PrefixReport, PromptEvent, RequestError, Token,
};
use crate::platform::Instant;
use crate::server::counters::Metrics;
use crate::server::parameters::sampling::Sampling;
use crate::server::state::{Answering, Counted, ModelState};
use crate::server::traces::{OpenTrace, RequestTrace, Usage};
use crate::server::wire::error::ApiError;
use crate::text::TextStream;
use crate::text::answer::{AnswerParser, Parts};
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Tokens counted so far over all choices; a prompt counts once, however many choices it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u32,
    pub(crate) cached: Cached,
    pub(crate) completion_tokens: u32,
    /// Those of `completion_tokens` that are reasoning.
    pub(crate) reasoning_tokens: u32,
}

/// New output of one choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    /// Index of the choice: prompt × n + choice within the prompt.
    pub(crate) choice: usize,
    pub(crate) parts: Parts,
    /// The tokens of this delta, if the request asks for logprobs or token ids.
    pub(crate) tokens: Vec<Token>,
    /// Logprobs of the prompt's tokens except the first, if requested; sent once per choice.
    pub(crate) prompt: Vec<Arc<[Token]>>,
    /// Why no more of the prompt was found in the prefix cache, if requested; sent once per prompt.
    pub(crate) prefix: Option<PrefixReport>,
    /// What became of the choice's drafts, if requested; sent when it has ended.
    pub(crate) drafts: Option<DraftReport>,
    /// Why the choice ended; `None` while it runs.
    pub(crate) finish: Option<FinishReason>,
    /// The stop string that ended it.
    pub(crate) stop: Option<String>,
}

/// The running choices of one request.
pub(crate) struct Generation {
    choices: Vec<Choice>,
    /// Index of the choice to poll first; it rotates for fairness.
    next: usize,
    totals: Totals,
    /// Tokens found in the prefix cache, per prompt.
    cached: Vec<Cached>,
    n: usize,
    metrics: Arc<Metrics>,
    started: Instant,
    /// `None` if traces are not asked for.
    trace: Option<OpenTrace>,
    usage: Arc<Usage>,
    _active: Counted,
}

struct Choice {
    /// `None` once the choice has ended.
    receiver: Option<Answering>,
    text: TextStream,
    answer: AnswerParser,
    /// Token ids that end a choice and have no text.
    end_ids: Arc<[u32]>,
    keeps_tokens: bool,
    /// Generated tokens are not returned.
    silent: bool,
    tokens: Vec<Token>,
    prompt: Vec<Arc<[Token]>>,
    prefix: Option<PrefixReport>,
    drafts: Option<DraftReport>,
    prompt_tokens: u32,
    completion_tokens: u32,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Generation {
    /// Submits every prompt. If one is refused, those before it are cancelled by dropping their receivers.
    pub(crate) fn submit(
        state: &ModelState,
        prompts: Vec<Arc<[u32]>>,
        sampling: &Sampling,
    ) -> Result<Self, ApiError> {
        let active = state.count_answer();
        let info = state.ready()?;
        let params = &sampling.params;
        let bytes_max = state.shared.options.limits.reply_bytes_max;
        let checked = weight::check(&prompts, params, info.max_model_len, bytes_max);
        checked.map_err(|error| ApiError::refused(&error, sampling.names))?;
        let mut end_ids = if sampling.show_stops {
            Vec::new()
        } else {
            params.stop_token_ids.clone()
        };
        if !params.ignore_eos {
            end_ids.extend_from_slice(&info.eos_token_ids);
        }
        let end_ids: Arc<[u32]> = end_ids.into();
        let mut choices = Vec::new();
        let mut totals = Totals::default();
        let cached = vec![Cached::default(); prompts.len()];
        let constraint = sampling.constraint(state.text.tokenizer.as_ref(), info.vocab)?;
        for prompt in prompts {
            let prompt_tokens = prompt.len() as u32;
            let mut request = sampling.request(prompt);
            request.params.constraint.clone_from(&constraint);
            let receivers = state.submit(request);
            let receivers = receivers.map_err(|error| ApiError::refused(&error, sampling.names))?;
            totals.prompt_tokens += prompt_tokens;
            choices.extend(receivers.into_iter().map(|receiver| Choice {
                receiver: Some(receiver),
                text: sampling.text_stream(state.text.tokenizer.clone()),
                answer: sampling.answer_parser(),
                end_ids: end_ids.clone(),
                keeps_tokens: params.logprobs.is_some() || sampling.return_token_ids,
                silent: sampling.silent,
                tokens: Vec::new(),
                prompt: Vec::new(),
                prefix: None,
                drafts: None,
                prompt_tokens,
                completion_tokens: 0,
                admitted: None,
                first_token: None,
                last_token: None,
            }));
        }
        let (metrics, started) = (state.metrics.clone(), Instant::now());
        let trace = state.options.traces.as_ref().map(|sink| {
            let trace = RequestTrace {
                prompt_tokens: totals.prompt_tokens,
                ..sampling.trace(&state.model_names[0])
            };
            OpenTrace::new(sink, trace)
        });
        let (n, usage) = (params.n as usize, Usage::new(totals.prompt_tokens));
        Ok(Self {
            choices,
            next: 0,
            totals,
            cached,
            n,
            metrics,
            started,
            trace,
            usage,
            _active: active,
        })
    }

    /// Tokens counted so far.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            cached: self.cached.iter().copied().sum(),
            ..self.totals
        }
    }

    /// Tokens counted so far, for the access log.
    pub(crate) fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    fn poll_choice(
        &mut self,
        index: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delta, RequestError>> {
        let choice = &mut self.choices[index];
        let Some(receiver) = &mut choice.receiver else {
            return Poll::Pending;
        };
        let mut delta = Delta {
            choice: index,
            ..Delta::default()
        };
        let mut new_tokens = 0;
        let mut by_text = false;
        let mut end = None;
        while delta.finish.is_none() {
            match receiver.poll_next_unpin(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Event::Prompt(PromptEvent::Admitted))) => {
                    choice.admitted = Some(Instant::now());
                    self.metrics
                        .request_queue_time
                        .observe(self.started.elapsed().as_secs_f64());
                    self.trace.iter_mut().for_each(OpenTrace::admitted);
                }
                Poll::Ready(Some(Event::Prompt(PromptEvent::Prefix(report)))) => {
                    choice.prefix = Some(report);
                }
                Poll::Ready(Some(Event::Prompt(PromptEvent::Logprobs(tokens)))) => {
                    choice.prompt.push(tokens);
                }
                // Not requested here.
                Poll::Ready(Some(Event::Prompt(PromptEvent::Embedding(_)))) => {}
                Poll::Ready(Some(Event::Token(_))) if choice.silent => {}
                Poll::Ready(Some(Event::Finished { .. })) if choice.silent => {
                    delta.finish = Some(FinishReason::Length);
                }
                Poll::Ready(Some(Event::Token(token))) => {
                    new_tokens += 1;
                    let cached = &mut self.cached[index / self.n];
                    if token.cached.all > cached.all {
                        *cached = token.cached;
                    }
                    choice.drafts = token.drafts;
                    let is_end = choice.end_ids.contains(&token.id);
                    if !is_end {
                        let text = choice.text.push(token.id).text;
                        choice.answer.push(&text, &mut delta.parts);
                        self.totals.reasoning_tokens += u32::from(choice.answer.is_reasoning());
                        by_text = choice.answer.is_done();
                        delta.finish = by_text.then_some(FinishReason::Stop);
                        if by_text {
                            choice.answer.finish(&mut delta.parts, false);
                        }
                    }
                    if choice.keeps_tokens {
                        if is_end && !delta.parts.is_empty() {
                            // Clients take the tokens of a chunk for its text, which this one is no part of.
                            end = Some(token);
                            break;
                        }
                        choice.tokens.push(token);
                    }
                }
                Poll::Ready(Some(Event::Finished { reason, .. })) => {
                    let rest = choice.text.finish().text;
                    choice.answer.push(&rest, &mut delta.parts);
                    choice
                        .answer
                        .finish(&mut delta.parts, reason == FinishReason::Length);
                    let reason = choice.answer.stop().map_or(reason, |_| FinishReason::Stop);
                    delta.finish = Some(reason);
                }
                Poll::Ready(Some(Event::Failed(error))) => return Poll::Ready(Err(error)),
                // The engine ends every choice with an event. A receiver closed without one means that the engine is
                // gone.
                Poll::Ready(None) => return Poll::Ready(Err(RequestError::Internal)),
            }
        }
        self.count(index, new_tokens);
        if let Some(reason) = delta.finish {
            self.end(&mut delta, reason, by_text);
        } else if delta.parts.is_empty() {
            return Poll::Pending;
        }
        let choice = &mut self.choices[index];
        delta.tokens = std::mem::replace(&mut choice.tokens, end.into_iter().collect());
        delta.prefix = choice.prefix.take();
        delta.prompt = std::mem::take(&mut choice.prompt);
        Poll::Ready(Ok(delta))
    }

    fn count(&mut self, index: usize, new_tokens: u32) {
        if new_tokens == 0 {
            return;
        }
        let now = Instant::now();
        self.trace.iter_mut().for_each(OpenTrace::token);
        let choice = &mut self.choices[index];
        let mut gaps = new_tokens;
        choice.first_token.get_or_insert(now);
        let since = choice.last_token.replace(now).unwrap_or_else(|| {
            self.metrics
                .time_to_first_token
                .observe((now - self.started).as_secs_f64());
            gaps -= 1;
            now
        });
        // Tokens that arrived together share the time since the previous one.
        for _ in 0..gaps {
            self.metrics
                .inter_token_latency
                .observe((now - since).as_secs_f64() / f64::from(gaps));
        }
        choice.completion_tokens += new_tokens;
        self.totals.completion_tokens += new_tokens;
        let totals = self.totals();
        self.usage
            .update(totals.cached.all, totals.completion_tokens);
    }

    fn end(&mut self, delta: &mut Delta, reason: FinishReason, by_text: bool) {
        if let Some(trace) = &mut self.trace {
            trace
                .trace
                .finish_reasons
                .push(if reason == FinishReason::Length {
                    "length"
                } else {
                    "stop"
                });
        }
        let choice = &mut self.choices[delta.choice];
        delta.drafts = choice.drafts;
        delta.stop = choice.answer.stop().map(str::to_owned);
        match choice.receiver.take() {
            Some(receiver) if by_text || reason == FinishReason::Stop => receiver.stop(),
            receiver => drop(receiver),
        }
        self.metrics
            .request_prompt_tokens
            .observe(f64::from(choice.prompt_tokens));
        self.metrics
            .request_generation_tokens
            .observe(f64::from(choice.completion_tokens));
        if let (Some(first), Some(last)) = (choice.first_token, choice.last_token) {
            let seconds = (last - first).as_secs_f64();
            self.metrics.request_decode_time.observe(seconds);
            if let Some(admitted) = choice.admitted {
                self.metrics
                    .request_prefill_time
                    .observe((first - admitted).as_secs_f64());
                self.metrics
                    .request_inference_time
                    .observe((last - admitted).as_secs_f64());
            }
            if choice.completion_tokens > 1 {
                let mean = seconds / f64::from(choice.completion_tokens - 1);
                self.metrics.request_time_per_output_token.observe(mean);
            }
        }
        self.metrics
            .e2e_request_latency
            .observe(self.started.elapsed().as_secs_f64());
        if self.choices.iter().all(|choice| choice.receiver.is_none()) {
            let most = self
                .choices
                .iter()
                .map(|choice| choice.completion_tokens)
                .max()
                .unwrap_or(0);
            self.metrics
                .request_max_num_generation_tokens
                .observe(f64::from(most));
        }
    }
}

impl Generation {
    fn fail_trace(&mut self, why: String) {
        if let Some(trace) = &mut self.trace {
            trace.trace.error = Some(why);
        }
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.trace.is_none() {
            return;
        }
        if self.choices.iter().any(|choice| choice.receiver.is_some()) {
            self.fail_trace("the client is gone".to_owned());
        }
        let totals = self.totals();
        if let Some(trace) = &mut self.trace {
            trace.trace.cached_tokens = totals.cached.all;
            trace.trace.completion_tokens = totals.completion_tokens;
        }
    }
}

impl Stream for Generation {
    type Item = Result<Delta, RequestError>;

    /// The next delta of any choice; `None` once all have ended. An error ends all choices.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let count = self.choices.len();
        for offset in 0..count {
            let index = (self.next + offset) % count;
            if let Poll::Ready(delta) = self.poll_choice(index, context) {
                self.next = (index + 1) % count;
                if let Err(error) = &delta {
                    self.fail_trace(error.to_string());
                    self.choices
                        .iter_mut()
                        .for_each(|choice| choice.receiver = None);
                }
                return Poll::Ready(Some(delta));
            }
        }
        if self.choices.iter().all(|choice| choice.receiver.is_none()) {
            Poll::Ready(None)
        } else {
            Poll::Pending
        }
    }
}
