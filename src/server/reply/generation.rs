//! [`Generation`]: the running choices of one request, as one stream of deltas.
//!
//! It reads every choice's receiver, decodes ids to text, splits the text into parts and ends a choice by dropping its
//! receiver. All tokens of a choice that are ready at a poll are merged into one delta. A slow reader therefore gets
//! fewer and longer deltas, and no buffer grows beyond the receivers' own bounds.

use super::weight::Weight;
use crate::engine::handle::EngineInfo;
use crate::engine::request::{
    Cached, DraftReport, Event, FinishReason, PrefixReport, Progress, PromptEvent, Request,
    RequestError, SamplingParams, SubmitError, Token,
};
use crate::platform::Instant;
use crate::server::counters::Metrics;
use crate::server::images::PlacedImages;
use crate::server::parameters::sampling::{Sampling, Shape};
use crate::server::state::{AdapterUse, Answering, Counted, ModelState};
use crate::server::traces::{OpenTrace, RequestTrace, Usage};
use crate::server::wire::error::ApiError;
use crate::text::TextStream;
use crate::text::answer::{AnswerParser, Parts};
use futures_util::{Stream, StreamExt};
use serde::Serialize;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Tokens counted so far over all choices; a prompt counts once, however many choices it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) prompt_tokens: u32,
    pub(crate) cached: Cached,
    pub(crate) completion_tokens: u32,
    /// Those of `completion_tokens` that are reasoning.
    pub(crate) reasoning_tokens: u32,
    /// What became of drafts.
    pub(crate) drafts: DraftReport,
    pub(crate) times: Times,
}

/// When the tokens of an answer came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// From the admission to the first tokens; waiting in the queue is no part of it.
    pub(crate) prompt: Duration,
    /// From the first tokens to the last.
    pub(crate) answer: Duration,
    /// Tokens that came in this time. The first ones came with the prompt.
    pub(crate) later_tokens: u32,
}

/// How much of a prompt is computed, in llama.cpp's form.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct PromptProgress {
    /// Tokens of the prompt.
    pub(crate) total: u32,
    /// Those of them that were found in the prefix cache.
    pub(crate) cache: u32,
    /// Those that are computed, the cached ones included.
    pub(crate) processed: u32,
    /// Milliseconds since the request was admitted.
    pub(crate) time_ms: u64,
    /// The same time; none has passed before the first step.
    #[serde(skip)]
    pub(crate) time: Duration,
}

impl Times {
    /// How long this many tokens take at the pace of those that came after the first ones. If there are none, the first
    /// ones took as long as the prompt, with which they came.
    pub(crate) fn of_tokens(self, tokens: u32) -> Duration {
        match self.later_tokens {
            0 => self.prompt,
            later => self.answer.mul_f64(f64::from(tokens) / f64::from(later)),
        }
    }
}

/// New output of one choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delta {
    /// Index of the choice: prompt × n + choice within the prompt.
    pub(crate) choice: usize,
    /// Tokens and times of this choice alone.
    pub(crate) own: Totals,
    pub(crate) parts: Parts,
    /// The tokens of this delta, if the request asks for logprobs or token ids.
    pub(crate) tokens: Vec<Token>,
    /// Logprobs of the prompt's tokens except the first, if requested; sent once per choice.
    pub(crate) prompt: Vec<Arc<[Token]>>,
    /// Why no more of the prompt was found in the prefix cache, if requested; sent once per prompt.
    pub(crate) prefix: Option<PrefixReport>,
    /// What became of the choice's drafts, if requested; sent when it has ended.
    pub(crate) drafts: Option<DraftReport>,
    /// How much of the prompt is computed, if requested; each more than the one before.
    pub(crate) progress: Vec<PromptProgress>,
    /// There is nothing else in this delta.
    pub(crate) is_progress: bool,
    /// The seed that the tokens are drawn with.
    pub(crate) seed: Option<u64>,
    /// Why the choice ended; `None` while it runs.
    pub(crate) finish: Option<FinishReason>,
    /// What of the request ended it.
    pub(crate) stop: Option<Stop>,
}

/// What a request names to end its choices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Stop {
    Text(String),
    Token(u32),
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
    /// Deltas report drafts.
    shows_drafts: bool,
    metrics: Arc<Metrics>,
    started: Instant,
    /// `None` if traces are not asked for.
    trace: Option<OpenTrace>,
    adapter_use: AdapterUse,
    usage: Arc<Usage>,
    /// Charged as long as it runs.
    _images: PlacedImages,
    _active: Counted,
}

struct Choice {
    /// `None` once the choice has ended.
    receiver: Option<Answering>,
    reader: Reader,
    /// Tokens that no delta has yet.
    tokens: Vec<Token>,
    last_id: Option<u32>,
    /// An end token, which is told after the text before it.
    held: Option<Token>,
    prompt: Vec<Arc<[Token]>>,
    prefix: Option<PrefixReport>,
    drafts: Option<DraftReport>,
    cached: Cached,
    prompt_tokens: u32,
    completion_tokens: u32,
    reasoning_tokens: u32,
    admitted: Option<Instant>,
    /// How much of the prompt is computed, as far as no delta has reported it yet.
    new_progress: Vec<PromptProgress>,
    /// The seed of the choices of its prompt, which the first of them has.
    seed: Option<u64>,
    first_token: Option<Instant>,
    /// Tokens that came at that time.
    first_tokens: u32,
    last_token: Option<Instant>,
}

/// How the tokens of a choice become its text.
#[derive(Clone)]
struct Reader {
    text: TextStream,
    answer: AnswerParser,
    /// Token ids that end a choice and have no text.
    end_ids: Arc<[u32]>,
    /// The request's own, unless the model ends with them anyway.
    stop_ids: Arc<[u32]>,
    keeps_tokens: bool,
    /// Thoughts are not returned.
    hides_reasoning: bool,
    /// Generated tokens are not returned.
    silent: bool,
}

impl Reader {
    /// Before the first token.
    fn new(
        sampling: &Sampling,
        shape: &Shape,
        params: &SamplingParams,
        (state, info): (&ModelState, &EngineInfo),
    ) -> Self {
        let mut end_ids = if sampling.show_stops {
            Vec::new()
        } else {
            params.stop_token_ids.clone()
        };
        let mut stop_ids = sampling.params.stop_token_ids.clone();
        if !params.ignore_eos {
            end_ids.extend_from_slice(&info.eos_token_ids);
            stop_ids.retain(|id| !info.eos_token_ids.contains(id));
        }
        Self {
            text: sampling.text_stream(shape, state.text.tokenizer.clone()),
            answer: sampling.answer_parser(shape),
            end_ids: end_ids.into(),
            stop_ids: stop_ids.into(),
            hides_reasoning: sampling.hides_reasoning,
            keeps_tokens: params.logprobs.is_some() || sampling.shown.token_ids,
            silent: sampling.silent,
        }
    }

    /// The text of a token, and the end of the choice if that text ends it.
    fn push(&mut self, id: u32, delta: &mut Delta) {
        let text = self.text.push(id).text;
        self.answer.push(&text, &mut delta.parts);
        if self.answer.is_done() {
            self.answer.finish(&mut delta.parts, false);
            delta.finish = Some(if self.answer.is_cut() {
                FinishReason::Length
            } else {
                FinishReason::Stop
            });
        }
    }

    /// The rest of the text, and why the choice has ended.
    fn finish(&mut self, reason: FinishReason, delta: &mut Delta) {
        let rest = self.text.finish().text;
        self.answer.push(&rest, &mut delta.parts);
        self.answer
            .finish(&mut delta.parts, reason == FinishReason::Length);
        delta.finish = Some(match self.answer.stop() {
            Some(_) => FinishReason::Stop,
            None => reason,
        });
    }

    /// What of the request ended a choice whose last token is `last`.
    fn stop(&self, reason: FinishReason, last: Option<u32>) -> Option<Stop> {
        let text = self.answer.stop().map(|stop| Stop::Text(stop.to_owned()));
        let token = last.filter(|id| reason == FinishReason::Stop && self.stop_ids.contains(id));
        text.or(token.map(Stop::Token))
    }
}

impl Choice {
    /// A choice of a prompt with this many tokens.
    fn new(receiver: Answering, reader: Reader, prompt_tokens: u32) -> Self {
        Self {
            receiver: Some(receiver),
            reader,
            tokens: Vec::new(),
            last_id: None,
            held: None,
            prompt: Vec::new(),
            prefix: None,
            drafts: None,
            cached: Cached::default(),
            prompt_tokens,
            completion_tokens: 0,
            reasoning_tokens: 0,
            admitted: None,
            new_progress: Vec::new(),
            seed: None,
            first_token: None,
            first_tokens: 0,
            last_token: None,
        }
    }

    /// Tokens and times of this choice.
    fn totals(&self) -> Totals {
        let admitted = self.admitted.or(self.first_token);
        let from = |start: Option<Instant>, end: Option<Instant>| {
            start
                .zip(end)
                .map_or(Duration::ZERO, |(start, end)| end - start)
        };
        Totals {
            prompt_tokens: self.prompt_tokens,
            cached: self.cached,
            completion_tokens: self.completion_tokens,
            reasoning_tokens: self.reasoning_tokens,
            drafts: self.drafts.unwrap_or_default(),
            times: Times {
                prompt: from(admitted, self.first_token),
                answer: from(self.first_token, self.last_token),
                later_tokens: self.completion_tokens - self.first_tokens,
            },
        }
    }

    /// Takes what is ready into a delta, up to the end of the choice or to an end token that the delta has no room for.
    fn take(&mut self, delta: &mut Delta, context: &mut Context<'_>) -> Result<(), RequestError> {
        while delta.finish.is_none() && self.held.is_none() {
            let Some(receiver) = &mut self.receiver else {
                break;
            };
            let Poll::Ready(event) = receiver.poll_next_unpin(context) else {
                break;
            };
            // The engine ends every choice with an event. A receiver closed without one means that the engine is gone.
            match event.ok_or(RequestError::Internal)? {
                Event::Prompt(PromptEvent::Admitted { seed }) => {
                    (self.admitted, self.seed) = (Some(Instant::now()), Some(seed));
                }
                Event::Prompt(PromptEvent::Progress(progress)) => self.add_progress(progress),
                Event::Prompt(PromptEvent::Prefix(report)) => self.prefix = Some(report),
                Event::Prompt(PromptEvent::Logprobs(tokens)) => self.prompt.push(tokens),
                // Not requested here.
                Event::Prompt(PromptEvent::Embedding(_)) => {}
                Event::Token(token) => self.take_token(token, delta),
                Event::Finished { .. } if self.reader.silent => {
                    delta.finish = Some(FinishReason::Length);
                }
                Event::Finished { reason, .. } => self.reader.finish(reason, delta),
                Event::Failed(error) => return Err(error),
            }
            if self.reader.hides_reasoning {
                delta.parts.reasoning.clear();
            }
        }
        Ok(())
    }

    fn add_progress(&mut self, progress: Progress) {
        let time = match self.admitted {
            Some(admitted) if progress.processed > progress.cached => admitted.elapsed(),
            _ => Duration::ZERO,
        };
        self.new_progress.push(PromptProgress {
            total: self.prompt_tokens,
            cache: progress.cached,
            processed: progress.processed,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            time,
        });
    }

    fn take_token(&mut self, token: Token, delta: &mut Delta) {
        if self.reader.silent {
            return;
        }
        self.completion_tokens += 1;
        self.last_id = Some(token.id);
        self.cached = self.cached.max(token.cached);
        self.drafts = token.drafts;
        let is_end = self.reader.end_ids.contains(&token.id);
        if !is_end {
            self.reader.push(token.id, delta);
            self.reasoning_tokens += u32::from(self.reader.answer.is_reasoning());
        }
        if !self.reader.keeps_tokens {
            return;
        }
        if is_end && !delta.parts.is_empty() {
            // Clients take the tokens of a chunk for its text, which this one is no part of.
            self.held = Some(token);
        } else {
            self.tokens.push(token);
        }
    }
}

/// The trace of a request, if traces are sent.
fn open_trace(state: &ModelState, sampling: &Sampling, prompt_tokens: u32) -> Option<OpenTrace> {
    let sink = state.options.traces.as_ref()?;
    let trace = RequestTrace {
        prompt_tokens,
        ..sampling.trace(&state.model_names[0])
    };
    Some(OpenTrace::new(sink, trace))
}

impl Generation {
    /// Submits every prompt. If one is refused, those before it are cancelled by dropping their receivers.
    pub(crate) fn submit(
        state: &ModelState,
        prompts: &[Arc<[u32]>],
        sampling: &Sampling,
        shape: &Shape,
    ) -> Result<Self, ApiError> {
        let active = state.count_answer();
        let info = state.ready()?;
        let bytes_max = state.shared.options.limits.reply_bytes_max;
        let refused = |error: SubmitError| ApiError::refused(&error, sampling.names);
        let weight = Weight::new(prompts, &sampling.params, info.max_model_len);
        weight.check(bytes_max).map_err(refused)?;
        let tokenizer = state.text.tokenizer.as_ref();
        let params = sampling.params_of(shape, tokenizer, info.vocab)?;
        let reader = Reader::new(sampling, shape, &params, (state, info));
        let mut choices = Vec::new();
        for prompt in prompts {
            count_params(&state.metrics, &params, prompt, info.max_model_len);
            let request = Request {
                params: sampling.params_for(&params, prompt, (state, shape)),
                tiles: shape.images.tiles.clone(),
                ..sampling.request(prompt.clone())
            };
            for receiver in state.submit(request).map_err(refused)? {
                choices.push(Choice::new(receiver, reader.clone(), prompt.len() as u32));
            }
        }
        let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).sum();
        Ok(Self {
            choices,
            next: 0,
            totals: Totals {
                prompt_tokens,
                ..Totals::default()
            },
            cached: vec![Cached::default(); prompts.len()],
            n: params.n as usize,
            shows_drafts: sampling.shown.drafts,
            metrics: state.metrics.clone(),
            started: Instant::now(),
            trace: open_trace(state, sampling, prompt_tokens),
            adapter_use: AdapterUse::waiting(sampling.adapters.as_ref()),
            usage: Usage::new(prompt_tokens),
            _images: shape.images.clone(),
            _active: active,
        })
    }

    /// Tokens counted so far.
    pub(crate) fn totals(&self) -> Totals {
        Totals {
            cached: self.cached.iter().copied().sum(),
            drafts: self.choices.iter().filter_map(|choice| choice.drafts).sum(),
            times: self.times(),
            ..self.totals
        }
    }

    /// When the tokens came, of all choices together.
    fn times(&self) -> Times {
        let choices = || self.choices.iter();
        let first = choices()
            .filter_map(|choice| Some((choice.first_token?, choice.first_tokens)))
            .min();
        let Some((first, first_tokens)) = first else {
            return Times::default();
        };
        let admitted = choices().filter_map(|choice| choice.admitted).min();
        let last = choices().filter_map(|choice| choice.last_token).max();
        Times {
            prompt: first - admitted.unwrap_or(first),
            answer: last.unwrap_or(first) - first,
            later_tokens: self.totals.completion_tokens - first_tokens,
        }
    }

    /// Tokens counted so far, for the access log.
    pub(crate) fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    /// What is new of a choice.
    fn poll_choice(
        &mut self,
        index: usize,
        context: &mut Context<'_>,
    ) -> Poll<Result<Delta, RequestError>> {
        let mut delta = Delta {
            choice: index,
            ..Delta::default()
        };
        let choice = &mut self.choices[index];
        if choice.receiver.is_none() {
            return Poll::Pending;
        }
        let (tokens, reasoning) = (choice.completion_tokens, choice.reasoning_tokens);
        let was_waiting = choice.admitted.is_none();
        let taken = choice.take(&mut delta, context);
        if was_waiting && choice.admitted.is_some() {
            self.metrics
                .request_queue_time
                .observe(self.started.elapsed().as_secs_f64());
            self.trace.iter_mut().for_each(OpenTrace::admitted);
            self.adapter_use.run();
        }
        taken?;
        let new_tokens = choice.completion_tokens - tokens;
        self.totals.reasoning_tokens += choice.reasoning_tokens - reasoning;
        let cached = &mut self.cached[index / self.n];
        *cached = (*cached).max(choice.cached);
        self.count(index, new_tokens);
        if let Some(reason) = delta.finish {
            self.end(&mut delta, reason);
        } else if delta.parts.is_empty() {
            delta.progress = std::mem::take(&mut self.choices[index].new_progress);
            delta.is_progress = true;
            return if delta.progress.is_empty() {
                Poll::Pending
            } else {
                Poll::Ready(Ok(delta))
            };
        }
        delta.seed = self.choices[index - index % self.n].seed;
        let choice = &mut self.choices[index];
        delta.own = choice.totals();
        delta.progress = std::mem::take(&mut choice.new_progress);
        let held = choice.held.take();
        delta.tokens = std::mem::replace(&mut choice.tokens, held.into_iter().collect());
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
        if choice.first_token.is_none() {
            (choice.first_token, choice.first_tokens) = (Some(now), new_tokens);
        }
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
        self.totals.completion_tokens += new_tokens;
        let cached: Cached = self.cached.iter().copied().sum();
        self.usage.update(cached.all, self.totals.completion_tokens);
    }

    fn end(&mut self, delta: &mut Delta, reason: FinishReason) {
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
        delta.drafts = if self.shows_drafts {
            choice.drafts
        } else {
            None
        };
        delta.stop = choice.reader.stop(reason, choice.last_id);
        if let Some(receiver) = choice.receiver.take() {
            receiver.finish(reason);
        }
        self.metrics
            .request_prompt_tokens
            .observe(f64::from(choice.prompt_tokens));
        let computed = choice.prompt_tokens.saturating_sub(choice.cached.all);
        self.metrics
            .request_prefill_kv_computed_tokens
            .observe(computed.into());
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

/// Counts what a request asks for.
fn count_params(metrics: &Metrics, params: &SamplingParams, prompt: &[u32], context: u32) {
    let room = context.saturating_sub(prompt.len() as u32);
    let most = params.max_tokens.map_or(room, |most| most.min(room));
    metrics.request_params_max_tokens.observe(most.into());
    metrics.request_params_n.observe(params.n.into());
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
