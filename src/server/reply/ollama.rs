//! [`OllamaReply`]: the reply to `/api/chat` and `/api/generate`, in Ollama's form: one line of JSON for each part of
//! the answer, and a last one with counts and times. A call is reported when it is complete.

use super::ReplyForm;
use super::generation::{Delta, Totals};
use super::logprobs::TokenNames;
use crate::engine::request::FinishReason;
use crate::platform::{self, Instant};
use crate::server::state::ModelState;
use crate::server::wire::error::{ApiError, Dialect};
use crate::server::wire::json;
use crate::text::answer::CallDelta;
use crate::text::iso_time;
use axum::extract::Request;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::time::Duration;

/// The reply to one request.
pub(crate) struct OllamaReply {
    model: String,
    is_chat: bool,
    /// `None`: the answer has no logprobs.
    tokens: Option<TokenNames>,
    started: Instant,
    loaded: LoadTime,
    /// The call that is being written.
    call: Option<CallDelta>,
    whole: Part,
    /// Seconds since 1970, and the same as text.
    now: (u64, String),
    end: End,
}

/// Some of an answer, or all of it.
#[derive(Default)]
struct Part {
    thinking: String,
    content: String,
    calls: Vec<Call>,
    logprobs: Vec<Value>,
}

/// A complete call.
#[derive(Clone, Serialize)]
struct Call {
    function: Function,
}

#[derive(Clone, Serialize)]
struct Function {
    index: usize,
    name: String,
    arguments: Box<RawValue>,
}

impl Part {
    fn append(&mut self, more: &Self) {
        self.thinking.push_str(&more.thinking);
        self.content.push_str(&more.content);
        self.calls.extend(more.calls.iter().cloned());
        self.logprobs.extend(more.logprobs.iter().cloned());
    }

    fn is_empty(&self) -> bool {
        self.thinking.is_empty()
            && self.content.is_empty()
            && self.calls.is_empty()
            && self.logprobs.is_empty()
    }
}

/// A line of a stream, or the whole reply.
#[derive(Serialize)]
struct Line<'a> {
    model: &'a str,
    created_at: &'a str,
    #[serde(flatten)]
    body: Body<'a>,
    #[serde(skip_serializing_if = "<[Value]>::is_empty")]
    logprobs: &'a [Value],
    #[serde(flatten)]
    end: &'a End,
}

/// The part of an answer, in the form of its route.
#[derive(Serialize)]
#[serde(untagged)]
enum Body<'a> {
    Chat { message: Message<'a> },
    Generate(Generated<'a>),
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(flatten)]
    more: More<'a>,
}

#[derive(Serialize)]
struct Generated<'a> {
    response: &'a str,
    #[serde(flatten)]
    more: More<'a>,
}

/// What is absent if there is none.
#[derive(Serialize)]
struct More<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    thinking: &'a str,
    #[serde(skip_serializing_if = "<[Call]>::is_empty")]
    tool_calls: &'a [Call],
}

/// Whether it is the last line, and what that one says more.
#[derive(Default, Serialize)]
struct End {
    done: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    done_reason: Option<&'static str>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

/// Counts of tokens, and times in nanoseconds.
#[derive(Serialize)]
struct Figures {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: u32,
    prompt_eval_duration: u64,
    eval_count: u32,
    eval_duration: u64,
}

/// How long a request waited until its model was loaded; an extension of the request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LoadTime(pub(crate) Duration);

impl LoadTime {
    pub(crate) fn of(request: &Request) -> Self {
        request.extensions().get().copied().unwrap_or_default()
    }
}

/// A time as Ollama writes it.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What has become of a model of which nothing was asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadState {
    Loaded,
    Unloaded,
}

/// A line about a model, when nothing was asked of it.
pub(crate) fn model_line(model: &str, state: LoadState, is_chat: bool) -> String {
    let reason = match state {
        LoadState::Loaded => "load",
        LoadState::Unloaded => "unload",
    };
    let end = End {
        done: true,
        done_reason: Some(reason),
        figures: None,
    };
    line(
        (model, is_chat),
        &iso_time(platform::unix_time()),
        &Part::default(),
        &end,
    )
}

/// The line of this model and route, without a line break.
fn line((model, is_chat): (&str, bool), created_at: &str, part: &Part, end: &End) -> String {
    let more = More {
        thinking: &part.thinking,
        tool_calls: &part.calls,
    };
    let body = if is_chat {
        Body::Chat {
            message: Message {
                role: "assistant",
                content: &part.content,
                more,
            },
        }
    } else {
        Body::Generate(Generated {
            response: &part.content,
            more,
        })
    };
    json::write(&Line {
        model,
        created_at,
        body,
        logprobs: &part.logprobs,
        end,
    })
}

impl OllamaReply {
    /// A reply to a request that starts now, after its model was loaded. `logprobs`: whether it reports them.
    pub(crate) fn new(
        state: &ModelState,
        model: String,
        (is_chat, logprobs): (bool, bool),
        loaded: LoadTime,
    ) -> Self {
        let tokens = logprobs.then(|| TokenNames {
            tokenizer: state.text.tokenizer.clone(),
            by_id: false,
            hides_special: false,
        });
        Self {
            model,
            is_chat,
            tokens,
            started: Instant::now(),
            loaded,
            call: None,
            whole: Part::default(),
            now: (0, String::new()),
            end: End::default(),
        }
    }

    /// The call that was being written, which is complete.
    fn end_call(&mut self) -> Option<Call> {
        let CallDelta {
            index,
            name,
            arguments,
        } = self.call.take()?;
        let function = Function {
            index,
            name: name.unwrap_or_default(),
            arguments: json::object_of(&arguments),
        };
        Some(Call { function })
    }

    fn end(&self, finish: FinishReason, totals: Totals) -> End {
        let figures = Figures {
            total_duration: nanoseconds(self.loaded.0 + self.started.elapsed()),
            load_duration: nanoseconds(self.loaded.0),
            prompt_eval_count: totals.prompt_tokens,
            prompt_eval_duration: nanoseconds(totals.times.prompt),
            eval_count: totals.completion_tokens,
            eval_duration: nanoseconds(totals.times.of_tokens(totals.completion_tokens)),
        };
        let reason = if finish == FinishReason::Length {
            "length"
        } else {
            "stop"
        };
        End {
            done: true,
            done_reason: Some(reason),
            figures: Some(figures),
        }
    }

    fn line(&self, part: &Part, end: &End) -> String {
        line((&self.model, self.is_chat), &self.now.1, part, end)
    }
}

impl ReplyForm for OllamaReply {
    /// The lines of a delta.
    type Chunk = String;
    const MEDIA_TYPE: &'static str = "application/x-ndjson";
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<String> {
        let logprobs = self
            .tokens
            .as_ref()
            .map(|names| names.entries(&delta.tokens))
            .unwrap_or_default();
        let mut part = Part {
            thinking: delta.parts.reasoning,
            content: delta.parts.content,
            calls: Vec::new(),
            logprobs,
        };
        for call in delta.parts.calls {
            if call.name.is_some() {
                part.calls.extend(self.end_call());
                self.call = Some(call);
            } else if let Some(begun) = &mut self.call {
                begun.arguments.push_str(&call.arguments);
            }
        }
        if delta.finish.is_some() {
            part.calls.extend(self.end_call());
        }
        self.whole.append(&part);
        let now = platform::unix_time();
        if self.now.0 != now {
            self.now = (now, iso_time(now));
        }
        let mut lines = Vec::new();
        if !part.is_empty() {
            lines.push(self.line(&part, &End::default()) + "\n");
        }
        if let Some(finish) = delta.finish {
            self.end = self.end(finish, totals);
            lines.push(self.line(&Part::default(), &self.end) + "\n");
        }
        lines
    }

    fn last_chunk(&self, _: Totals) -> Option<String> {
        None
    }

    fn event(&self, chunk: String) -> String {
        chunk
    }

    fn error(&mut self, error: &ApiError) -> String {
        error.json(Dialect::Ollama) + "\n"
    }

    fn whole(&self, _: Vec<String>) -> String {
        self.line(&self.whole, &self.end)
    }
}
