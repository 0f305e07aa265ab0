//! What a trace says of a request: [`RequestTrace`], filled while it runs, and [`TraceSink`], which takes it at its
//! end. [`Usage`] is the part that the access log needs.
//!
//! The server knows no exporter: the command line passes one in.

use crate::platform::{Instant, SystemTime};
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The caller's place in a trace, as the header `traceparent` of the W3C says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace.
    pub trace: [u8; 16],
    /// Id of the caller's span.
    pub span: [u8; 8],
    /// Whether the caller records it.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads `00-{trace}-{span}-{flags}`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('-').collect();
        let [version, trace, span, flags, ..] = parts[..] else {
            return None;
        };
        if version == "ff" || (version == "00" && parts.len() != 4) {
            return None;
        }
        let [_] = bytes::<1>(version)?;
        let (trace, span, [flags]) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Self {
            trace,
            span,
            sampled: flags & 1 == 1,
        })
    }
}

/// The bytes of lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
    }
    Some(bytes)
}

/// One request, from its submission to the end of its last choice.
#[derive(Clone, Debug)]
pub struct RequestTrace {
    /// What was asked for, in OpenTelemetry's words: `chat` or `text_completion`.
    pub operation: &'static str,
    /// The served name that the answer names.
    pub model: String,
    /// The caller's span.
    pub parent: Option<TraceParent>,
    /// When it was submitted.
    pub started: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// Until the engine admitted it.
    pub queued: Option<Duration>,
    /// Until its first token.
    pub first_token: Option<Duration>,
    /// Number of choices per prompt.
    pub choices: u32,
    /// Maximum tokens of a choice, if the request says one.
    pub max_tokens: Option<u32>,
    /// Sampling temperature.
    pub temperature: f32,
    /// Probability mass to sample from.
    pub top_p: f32,
    /// Tokens of all prompts.
    pub prompt_tokens: u32,
    /// Those of them that were cached.
    pub cached_tokens: u32,
    /// Tokens of all choices.
    pub completion_tokens: u32,
    /// Why the choices ended, in OpenAI's words; not those that were cancelled.
    pub finish_reasons: Vec<&'static str>,
    /// Why the request failed, or that its client has gone.
    pub error: Option<String>,
}

/// Takes the traces of finished requests; it must not block.
#[derive(Clone)]
pub struct TraceSink(pub Arc<dyn Fn(RequestTrace) + Send + Sync>);

impl fmt::Debug for TraceSink {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TraceSink").finish_non_exhaustive()
    }
}

/// A trace that is sent when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenTrace {
    pub(crate) trace: RequestTrace,
    sink: TraceSink,
    since: Instant,
}

impl OpenTrace {
    pub(crate) fn new(sink: &TraceSink, trace: RequestTrace) -> Self {
        Self {
            trace,
            sink: sink.clone(),
            since: Instant::now(),
        }
    }

    /// The request was admitted.
    pub(crate) fn admitted(&mut self) {
        self.trace.queued.get_or_insert(self.since.elapsed());
    }

    /// A token has come.
    pub(crate) fn token(&mut self) {
        if self.trace.first_token.is_none() {
            self.trace.first_token = Some(self.since.elapsed());
        }
    }
}

impl Drop for OpenTrace {
    fn drop(&mut self) {
        self.trace.duration = self.since.elapsed();
        (self.sink.0)(self.trace.clone());
    }
}

/// Tokens of a running generation. Its response carries them, so that the access log, which knows no generations, has
/// them when the response ends.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    prompt_tokens: AtomicU32,
    cached_tokens: AtomicU32,
    completion_tokens: AtomicU32,
    first_token: OnceLock<Instant>,
}

impl Usage {
    /// Of prompts with this many tokens in all.
    pub(crate) fn new(prompt_tokens: u32) -> Arc<Self> {
        Arc::new(Self {
            prompt_tokens: prompt_tokens.into(),
            ..Self::default()
        })
    }

    /// Tokens have come: the totals of the generation.
    pub(crate) fn update(&self, cached_tokens: u32, completion_tokens: u32) {
        self.first_token.get_or_init(Instant::now);
        self.cached_tokens.store(cached_tokens, Ordering::Relaxed);
        self.completion_tokens
            .store(completion_tokens, Ordering::Relaxed);
    }

    /// Tokens of the prompts, those of them that were cached, and tokens of the answers.
    pub(crate) fn tokens(&self) -> [u32; 3] {
        [
            &self.prompt_tokens,
            &self.cached_tokens,
            &self.completion_tokens,
        ]
        .map(|count| count.load(Ordering::Relaxed))
    }

    /// When the first token came.
    pub(crate) fn first_token(&self) -> Option<Instant> {
        self.first_token.get().copied()
    }
}

#[cfg(test)]
mod tests;
