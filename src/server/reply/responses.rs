//! [`ResponsesReply`]: the reply to `/v1/responses`, in the form of OpenAI's Responses API.
//!
//! A response is a list of items: thoughts, messages, calls. A stream opens and closes them one after the other, and
//! its events are numbered. A whole reply is the response object with which the same deltas end.

use super::ReplyForm;
use super::generation::{Delta, Totals};
use super::logprobs::TokenNames;
use crate::engine::request::FinishReason;
use crate::platform;
use crate::server::parameters::responses::{Asked, Called};
use crate::server::state::ServerState;
use crate::server::stored::Stored;
use crate::server::wire::error::ApiError;
use crate::server::wire::sse;
use crate::text::answer::CallDelta;
use serde_json::{Map, Value, json};

/// The reply to one request.
pub(crate) struct ResponsesReply {
    state: ServerState,
    client: u32,
    asked: Asked,
    id: String,
    model: String,
    created: u64,
    /// `None`: the answer has no logprobs.
    tokens: Option<TokenNames>,
    is_begun: bool,
    items: Vec<Item>,
    /// The last item is not complete.
    is_open: bool,
    finish: Option<FinishReason>,
    totals: Totals,
    /// Number of events so far.
    sequence: u64,
}

struct Item {
    id: String,
    body: Body,
    is_cut: bool,
}

enum Body {
    Reasoning { text: String, sealed: Option<String> },
    Message { text: String, logprobs: Vec<Value> },
    Call { call_id: String, called: Called, arguments: String },
}

impl Body {
    /// How ids of such items begin.
    fn prefix(&self) -> &'static str {
        match self {
            Self::Reasoning { .. } => "rs",
            Self::Message { .. } => "msg",
            Self::Call { called, .. } if called.is_custom => "ctc",
            Self::Call { .. } => "fc",
        }
    }
}

/// The input of a custom tool, which the model wrote as the one argument of a function.
fn custom_input(arguments: &str) -> String {
    let arguments_of = |value: Value| value["input"].as_str().map(str::to_owned);
    serde_json::from_str(arguments).ok().and_then(arguments_of).unwrap_or_else(|| arguments.to_owned())
}

impl ResponsesReply {
    /// `logprobs`: how tokens are named, if the answer reports them.
    pub(crate) fn new(state: &ServerState, client: u32, model: String, asked: Asked, logprobs: bool) -> Self {
        let tokens = logprobs.then(|| TokenNames { tokenizer: state.text.tokenizer.clone(), by_id: false });
        Self {
            state: state.clone(),
            client,
            asked,
            id: state.new_id("resp").replace('-', "_"),
            model,
            created: platform::unix_time(),
            tokens,
            is_begun: false,
            items: Vec::new(),
            is_open: false,
            finish: None,
            totals: Totals::default(),
            sequence: 0,
        }
    }

    /// The response object so far.
    fn response(&self, error: Option<&ApiError>) -> Value {
        let is_cut = self.finish == Some(FinishReason::Length);
        let status = match self.finish {
            _ if error.is_some() => "failed",
            None => "in_progress",
            Some(FinishReason::Length) => "incomplete",
            Some(FinishReason::Stop) => "completed",
        };
        let output: Vec<_> = match self.finish {
            None => Vec::new(),
            Some(_) => (0..self.items.len()).map(|index| self.item(index, true)).collect(),
        };
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": self.finish.map(|_| platform::unix_time()),
            "status": status,
            "background": false,
            "error": error.map(|error| json!({"code": "server_error", "message": error.message()})),
            "incomplete_details": is_cut.then(|| json!({"reason": "max_output_tokens"})),
            "model": self.model,
            "output": output,
            "max_tool_calls": null,
            "service_tier": "default",
            "usage": self.finish.map(|_| self.usage()),
            "user": null,
        });
        if let Value::Object(map) = &mut response {
            map.extend(self.asked.echo.clone());
        }
        response
    }

    fn usage(&self) -> Value {
        let Totals { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, .. } = self.totals;
        json!({
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
            "output_tokens": completion_tokens,
            "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
            "total_tokens": prompt_tokens + completion_tokens,
        })
    }

    /// An item, empty when it begins or with its content.
    fn item(&self, index: usize, is_done: bool) -> Value {
        let Item { id, body, is_cut } = &self.items[index];
        let status = match (is_done, is_cut) {
            (false, _) => "in_progress",
            (true, false) => "completed",
            (true, true) => "incomplete",
        };
        match body {
            Body::Reasoning { sealed, .. } => {
                let mut item = json!({"id": id, "type": "reasoning", "summary": []});
                if is_done {
                    let (list, part) = (if self.asked.summary { "summary" } else { "content" }, self.part(index, true));
                    item[list] = json!([part]);
                }
                if self.asked.sealed {
                    item["encrypted_content"] = sealed.as_deref().map_or(Value::Null, Value::from);
                }
                item
            }
            Body::Message { .. } => {
                let content = if is_done { vec![self.part(index, true)] } else { Vec::new() };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Body::Call { call_id, called, arguments } => {
                let kind = if called.is_custom { "custom_tool_call" } else { "function_call" };
                let mut item =
                    json!({"id": id, "type": kind, "status": status, "call_id": call_id, "name": called.name});
                if let Some(namespace) = &called.namespace {
                    item["namespace"] = namespace.as_str().into();
                }
                let arguments = if is_done { arguments } else { "" };
                if called.is_custom {
                    item["input"] = custom_input(arguments).into();
                } else {
                    item["arguments"] = arguments.into();
                }
                item
            }
        }
    }

    /// The one part of a message or a thought.
    fn part(&self, index: usize, is_done: bool) -> Value {
        match &self.items[index].body {
            Body::Message { text, logprobs } => {
                let (text, logprobs) = if is_done { (text.as_str(), &logprobs[..]) } else { ("", &[][..]) };
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            Body::Reasoning { text, .. } => {
                let kind = if self.asked.summary { "summary_text" } else { "reasoning_text" };
                json!({"type": kind, "text": if is_done { text } else { "" }})
            }
            Body::Call { .. } => Value::Null,
        }
    }

    /// Adds an event about the last item, or about the response if there is none.
    fn emit(&mut self, events: &mut Vec<Value>, kind: &str, more: Value) {
        let mut event = json!({"type": kind, "sequence_number": self.sequence});
        self.sequence += 1;
        if let (Value::Object(event), Value::Object(more)) = (&mut event, more) {
            event.extend(more);
        }
        events.push(event);
    }

    /// The place of the last item, and of its part if `part` names the kind of its index.
    fn place(&self, part: Option<&str>) -> Map<String, Value> {
        let index = self.items.len() - 1;
        let mut place = Map::from_iter([("item_id".to_owned(), self.items[index].id.as_str().into())]);
        place.insert("output_index".into(), index.into());
        place.extend(part.map(|name| (name.to_owned(), 0.into())));
        place
    }

    /// Adds an event about the last item's part.
    fn emit_at(&mut self, events: &mut Vec<Value>, kind: &str, part: Option<&str>, (name, value): (&str, Value)) {
        let mut place = self.place(part);
        place.insert(name.to_owned(), value);
        self.emit(events, kind, place.into());
    }

    /// The events of a thought are named by what it is reported as.
    fn reasoning_names(&self) -> (&'static str, &'static str, &'static str) {
        if self.asked.summary {
            ("response.reasoning_summary_part", "response.reasoning_summary_text", "summary_index")
        } else {
            ("response.content_part", "response.reasoning_text", "content_index")
        }
    }

    /// Begins an item; the one before it ends.
    fn open(&mut self, body: Body, events: &mut Vec<Value>) {
        self.close(false, events);
        let id = self.state.new_id(body.prefix()).replace('-', "_");
        self.items.push(Item { id, body, is_cut: false });
        self.is_open = true;
        let index = self.items.len() - 1;
        let item = self.item(index, false);
        self.emit(events, "response.output_item.added", json!({"output_index": index, "item": item}));
        let (part_event, part_index) = match &self.items[index].body {
            Body::Reasoning { .. } => (self.reasoning_names().0, self.reasoning_names().2),
            Body::Message { .. } => ("response.content_part", "content_index"),
            Body::Call { .. } => return,
        };
        let part = self.part(index, false);
        self.emit_at(events, &format!("{part_event}.added"), Some(part_index), ("part", part));
    }

    /// Ends the last item. It is incomplete if the answer was cut within it.
    fn close(&mut self, is_cut: bool, events: &mut Vec<Value>) {
        let Some(last) = self.items.last_mut().filter(|_| std::mem::take(&mut self.is_open)) else { return };
        last.is_cut = is_cut;
        let index = self.items.len() - 1;
        match &mut self.items[index].body {
            Body::Reasoning { text, sealed } => {
                *sealed = self.asked.sealed.then(|| self.state.seal.seal(text));
                let text = text.clone();
                let (part_event, text_event, part_index) = self.reasoning_names();
                self.emit_at(events, &format!("{text_event}.done"), Some(part_index), ("text", text.into()));
                let part = self.part(index, true);
                self.emit_at(events, &format!("{part_event}.done"), Some(part_index), ("part", part));
            }
            Body::Message { text, logprobs } => {
                let (text, logprobs) = (text.clone(), logprobs.clone());
                let mut done = self.place(Some("content_index"));
                done.extend([("text".to_owned(), text.into()), ("logprobs".to_owned(), logprobs.into())]);
                self.emit(events, "response.output_text.done", done.into());
                let part = self.part(index, true);
                self.emit_at(events, "response.content_part.done", Some("content_index"), ("part", part));
            }
            Body::Call { called, arguments, .. } if called.is_custom => {
                let input = Value::from(custom_input(arguments));
                self.emit_at(events, "response.custom_tool_call_input.delta", None, ("delta", input.clone()));
                self.emit_at(events, "response.custom_tool_call_input.done", None, ("input", input));
            }
            Body::Call { called, arguments, .. } => {
                let (name, arguments) = (called.name.clone(), arguments.clone());
                let mut done = self.place(None);
                done.extend([("name".to_owned(), name.into()), ("arguments".to_owned(), arguments.into())]);
                self.emit(events, "response.function_call_arguments.done", done.into());
            }
        }
        let item = self.item(index, true);
        self.emit(events, "response.output_item.done", json!({"output_index": index, "item": item}));
    }

    fn reasoning(&mut self, more: &str, events: &mut Vec<Value>) {
        if !matches!(self.items.last(), Some(Item { body: Body::Reasoning { .. }, .. }) if self.is_open) {
            self.open(Body::Reasoning { text: String::new(), sealed: None }, events);
        }
        if let Some(Item { body: Body::Reasoning { text, .. }, .. }) = self.items.last_mut() {
            text.push_str(more);
        }
        let (_, text_event, part_index) = self.reasoning_names();
        self.emit_at(events, &format!("{text_event}.delta"), Some(part_index), ("delta", more.into()));
    }

    fn text(&mut self, more: &str, logprobs: Vec<Value>, events: &mut Vec<Value>) {
        if !matches!(self.items.last(), Some(Item { body: Body::Message { .. }, .. }) if self.is_open) {
            // Line breaks between calls are no answer.
            if more.trim().is_empty() && matches!(self.items.last(), Some(Item { body: Body::Call { .. }, .. })) {
                return;
            }
            self.open(Body::Message { text: String::new(), logprobs: Vec::new() }, events);
        }
        if let Some(Item { body: Body::Message { text, logprobs: all }, .. }) = self.items.last_mut() {
            text.push_str(more);
            all.extend(logprobs.iter().cloned());
        }
        let mut delta = self.place(Some("content_index"));
        delta.extend([("delta".to_owned(), more.into()), ("logprobs".to_owned(), logprobs.into())]);
        self.emit(events, "response.output_text.delta", delta.into());
    }

    fn call(&mut self, call: CallDelta, events: &mut Vec<Value>) {
        if let Some(name) = call.name {
            let called = self.asked.names.called(&name);
            let call_id = self.state.new_id("call").replace('-', "_");
            self.open(Body::Call { call_id, called, arguments: String::new() }, events);
        }
        let Some(Item { body: Body::Call { arguments, called, .. }, .. }) = self.items.last_mut() else { return };
        arguments.push_str(&call.arguments);
        // The input of a custom tool is known when its call is complete.
        if !called.is_custom && !call.arguments.is_empty() {
            self.emit_at(events, "response.function_call_arguments.delta", None, ("delta", call.arguments.into()));
        }
    }

    /// Ends the response, and stores it.
    fn end(&mut self, finish: FinishReason, events: &mut Vec<Value>) {
        self.close(finish == FinishReason::Length, events);
        self.finish = Some(finish);
        let response = self.response(None);
        let kind = if finish == FinishReason::Length { "response.incomplete" } else { "response.completed" };
        self.emit(events, kind, json!({"response": response}));
        if let Some(input) = self.asked.input.take() {
            let with_id = |mut item: Value| {
                if let Value::Object(map) = &mut item {
                    map.entry("id").or_insert_with(|| self.state.new_id("msg").replace('-', "_").into());
                }
                item
            };
            let input = input.into_iter().map(with_id).collect();
            let stored = Stored { response, input, previous: self.asked.previous.take() };
            self.state.responses.keep(self.client, &self.id, stored);
        }
    }
}

impl ReplyForm for ResponsesReply {
    type Chunk = Value;
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<Value> {
        self.totals = totals;
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            let response = self.response(None);
            self.emit(&mut events, "response.created", json!({"response": response}));
            self.emit(&mut events, "response.in_progress", json!({"response": response}));
        }
        let logprobs = self.tokens.as_ref().map(|names| names.entries(&delta.tokens)).unwrap_or_default();
        let parts = delta.parts;
        if !parts.reasoning.is_empty() {
            self.reasoning(&parts.reasoning, &mut events);
        }
        if !parts.content.is_empty() {
            self.text(&parts.content, logprobs, &mut events);
        }
        parts.calls.into_iter().for_each(|call| self.call(call, &mut events));
        if let Some(finish) = delta.finish {
            self.end(finish, &mut events);
        }
        events
    }

    fn last_chunk(&self, _: Totals) -> Option<Value> {
        None
    }

    fn event(&self, chunk: &Value) -> String {
        sse::named(chunk["type"].as_str().unwrap_or_default(), &chunk.to_string())
    }

    fn error(&mut self, error: &ApiError) -> String {
        let mut events = Vec::new();
        let response = self.response(Some(error));
        self.emit(&mut events, "response.failed", json!({"response": response}));
        events.iter().map(|event| self.event(event)).collect()
    }

    fn whole(&self, _: Vec<Value>) -> String {
        self.response(None).to_string()
    }
}
