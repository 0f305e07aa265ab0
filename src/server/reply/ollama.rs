//! [`OllamaReply`]: the reply to `/api/chat` and `/api/generate`, in Ollama's form: one line of JSON for each part of
//! the answer, and a last one with counts and times. A call is reported when it is complete.

use super::ReplyForm;
use super::generation::{Delta, Totals};
use super::logprobs::TokenNames;
use crate::engine::request::FinishReason;
use crate::platform::{self, Instant};
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, Dialect};
use crate::text::answer::CallDelta;
use crate::text::iso_time;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// The reply to one request.
pub(crate) struct OllamaReply {
    model: String,
    is_chat: bool,
    /// `None`: the answer has no logprobs.
    tokens: Option<TokenNames>,
    started: Instant,
    /// When the first tokens arrived.
    first: Option<Instant>,
    /// The call that is being written.
    call: Option<CallDelta>,
    whole: Part,
    /// Fields of the last line.
    end: Map<String, Value>,
}

/// Some of an answer, or all of it.
#[derive(Default)]
struct Part {
    thinking: String,
    content: String,
    calls: Vec<Value>,
    logprobs: Vec<Value>,
}

impl Part {
    fn append(&mut self, more: &Self) {
        self.thinking.push_str(&more.thinking);
        self.content.push_str(&more.content);
        self.calls.extend(more.calls.iter().cloned());
        self.logprobs.extend(more.logprobs.iter().cloned());
    }

    fn is_empty(&self) -> bool {
        self.thinking.is_empty() && self.content.is_empty() && self.calls.is_empty() && self.logprobs.is_empty()
    }
}

/// A line about a model that is loaded, when nothing was asked of it.
pub(crate) fn loaded(model: &str, is_chat: bool) -> Value {
    let mut line = line(model, is_chat, &Part::default());
    line.extend([("done".to_owned(), true.into()), ("done_reason".to_owned(), "load".into())]);
    line.into()
}

fn line(model: &str, is_chat: bool, part: &Part) -> Map<String, Value> {
    let mut body = Map::new();
    let text = if is_chat { "content" } else { "response" };
    if is_chat {
        body.insert("role".into(), "assistant".into());
    }
    body.insert(text.into(), part.content.as_str().into());
    if !part.thinking.is_empty() {
        body.insert("thinking".into(), part.thinking.as_str().into());
    }
    if !part.calls.is_empty() {
        body.insert("tool_calls".into(), part.calls.clone().into());
    }
    let mut line = Map::new();
    line.insert("model".into(), model.into());
    line.insert("created_at".into(), iso_time(platform::unix_time()).into());
    if is_chat {
        line.insert("message".into(), body.into());
    } else {
        line.extend(body);
    }
    if !part.logprobs.is_empty() {
        line.insert("logprobs".into(), part.logprobs.clone().into());
    }
    line
}

impl OllamaReply {
    /// A reply to a request that starts now. `logprobs`: whether it reports them.
    pub(crate) fn new(state: &ServerState, model: String, is_chat: bool, logprobs: bool) -> Self {
        let tokens = logprobs.then(|| TokenNames { tokenizer: state.text.tokenizer.clone(), by_id: false });
        Self {
            model,
            is_chat,
            tokens,
            started: Instant::now(),
            first: None,
            call: None,
            whole: Part::default(),
            end: Map::new(),
        }
    }

    /// The call that was being written, which is complete.
    fn end_call(&mut self) -> Option<Value> {
        let CallDelta { index, name, arguments } = self.call.take()?;
        // Arguments that were cut are no object; what there is of them is kept.
        let arguments = match serde_json::from_str(&arguments) {
            Ok(object @ Value::Object(_)) => object,
            _ if arguments.trim().is_empty() => json!({}),
            _ => json!({"INVALID_JSON": arguments}),
        };
        Some(json!({"function": {"index": index, "name": name.unwrap_or_default(), "arguments": arguments}}))
    }

    fn end(&self, finish: FinishReason, totals: Totals) -> Map<String, Value> {
        let now = Instant::now();
        let first = self.first.unwrap_or(now);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let reason = if finish == FinishReason::Length { "length" } else { "stop" };
        let end = json!({
            "done": true,
            "done_reason": reason,
            "total_duration": nanoseconds(now - self.started),
            "load_duration": 0,
            "prompt_eval_count": totals.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - self.started),
            "eval_count": totals.completion_tokens,
            "eval_duration": nanoseconds(now - first),
        });
        end.as_object().cloned().unwrap_or_default()
    }
}

impl ReplyForm for OllamaReply {
    type Chunk = Value;
    const MEDIA_TYPE: &'static str = "application/x-ndjson";
    const END: &'static str = "";

    fn begins(&mut self) {
        self.first.get_or_insert_with(Instant::now);
    }

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<Value> {
        let logprobs = self.tokens.as_ref().map(|names| names.entries(&delta.tokens)).unwrap_or_default();
        let mut part =
            Part { thinking: delta.parts.reasoning, content: delta.parts.content, calls: Vec::new(), logprobs };
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
        let mut lines = Vec::new();
        if !part.is_empty() {
            let mut line = line(&self.model, self.is_chat, &part);
            line.insert("done".into(), false.into());
            lines.push(line.into());
        }
        if let Some(finish) = delta.finish {
            self.end = self.end(finish, totals);
            let mut line = line(&self.model, self.is_chat, &Part::default());
            line.extend(self.end.clone());
            lines.push(line.into());
        }
        lines
    }

    fn last_chunk(&self, _: Totals) -> Option<Value> {
        None
    }

    fn event(&self, chunk: &Value) -> String {
        format!("{chunk}\n")
    }

    fn error(&mut self, error: &ApiError) -> String {
        error.json(Dialect::Ollama) + "\n"
    }

    fn whole(&self, _: Vec<Value>) -> String {
        let mut line = line(&self.model, self.is_chat, &self.whole);
        line.extend(self.end.clone());
        Value::from(line).to_string()
    }
}
