//! [`ResponsesReply`]: the reply to `/v1/responses`, in the form of OpenAI's Responses API.
//!
//! A response is a list of items: thoughts, messages, calls. A stream opens and closes them one after the other, and
//! its events are numbered. A whole reply is the response object with which the same deltas end.

use super::ReplyForm;
use super::generation::{Delta, PromptProgress, Totals};
use super::logprobs::TokenNames;
use super::timings::Timings;
use crate::engine::request::FinishReason;
use crate::platform;
use crate::server::parameters::responses::{Asked, Called};
use crate::server::parameters::sampling::Shown;
use crate::server::state::ModelState;
use crate::server::stored::Stored;
use crate::server::wire::error::ApiError;
use crate::server::wire::{json, sse};
use crate::text::answer::CallDelta;
use serde::Serialize;
use serde_json::{Value, json};

/// The reply to one request.
pub(crate) struct ResponsesReply {
    state: ModelState,
    client: u32,
    asked: Asked,
    id: String,
    model: String,
    created: u64,
    /// `None`: the answer has no logprobs.
    tokens: Option<TokenNames>,
    /// Every event with new text has times, and the last one.
    times_deltas: bool,
    is_begun: bool,
    items: Vec<Item>,
    /// The last item is not complete.
    is_open: bool,
    finish: Option<FinishReason>,
    totals: Totals,
    events: Events,
}

/// The events of a stream: how many there were, and the text of those that were not sent yet.
#[derive(Default)]
struct Events {
    count: u64,
    text: String,
}

/// The data of an event. It repeats the event's name as its type.
#[derive(Serialize)]
struct Event<'a, T> {
    r#type: &'a str,
    sequence_number: u64,
    #[serde(flatten)]
    more: T,
}

impl Events {
    fn push(&mut self, name: &str, more: impl Serialize) {
        let event = Event {
            r#type: name,
            sequence_number: self.count,
            more,
        };
        sse::push_named(&mut self.text, name, &json::write(&event));
        self.count += 1;
    }
}

/// Where in the response something happens: in an item, or in its one part if there is an index of a part.
#[derive(Serialize)]
struct Place<'a> {
    item_id: &'a str,
    output_index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary_index: Option<u32>,
}

/// The rest of an event about a place.
#[derive(Serialize)]
struct At<'a, T> {
    #[serde(flatten)]
    place: Place<'a>,
    #[serde(flatten)]
    more: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Serialize)]
struct Text<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct More<'a> {
    delta: &'a str,
}

#[derive(Serialize)]
struct MoreText<'a> {
    delta: &'a str,
    logprobs: &'a [Value],
}

/// The names of the events about a thought.
#[derive(Clone, Copy)]
struct ReasoningNames {
    part_added: &'static str,
    text_delta: &'static str,
    text_done: &'static str,
    part_done: &'static str,
}

/// Those of a thought that is reported as a summary.
const SUMMARY_NAMES: ReasoningNames = ReasoningNames {
    part_added: "response.reasoning_summary_part.added",
    text_delta: "response.reasoning_summary_text.delta",
    text_done: "response.reasoning_summary_text.done",
    part_done: "response.reasoning_summary_part.done",
};

/// Those of a thought that is the content of its item.
const CONTENT_NAMES: ReasoningNames = ReasoningNames {
    part_added: "response.content_part.added",
    text_delta: "response.reasoning_text.delta",
    text_done: "response.reasoning_text.done",
    part_done: "response.content_part.done",
};

struct Item {
    id: String,
    body: Body,
    is_cut: bool,
}

enum Body {
    Reasoning {
        text: String,
        sealed: Option<String>,
    },
    Message {
        text: String,
        logprobs: Vec<Value>,
    },
    Call {
        call_id: String,
        called: Called,
        arguments: String,
    },
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
    serde_json::from_str(arguments)
        .ok()
        .and_then(|value: Value| value["input"].as_str().map(str::to_owned))
        .unwrap_or_else(|| arguments.to_owned())
}

impl ResponsesReply {
    /// A reply that shows these things.
    pub(crate) fn new(
        state: &ModelState,
        client: u32,
        model: String,
        asked: Asked,
        shown: &Shown,
    ) -> Self {
        let tokens = shown.logprobs.then(|| TokenNames {
            tokenizer: state.text.tokenizer.clone(),
            by_id: false,
            hides_special: false,
        });
        Self {
            state: state.clone(),
            client,
            asked,
            id: state.shared.new_id("resp").replace('-', "_"),
            model,
            created: platform::unix_time(),
            tokens,
            times_deltas: shown.timings,
            is_begun: false,
            items: Vec::new(),
            is_open: false,
            finish: None,
            totals: Totals::default(),
            events: Events::default(),
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
            Some(_) => (0..self.items.len())
                .map(|index| self.item(index, true))
                .collect(),
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
            if self.finish.is_some() {
                // As llama.cpp's server reports them.
                map.insert("timings".into(), json!(Timings::from(self.totals)));
            }
            map.extend(self.asked.echo.clone());
        }
        response
    }

    fn usage(&self) -> Value {
        let Totals {
            prompt_tokens,
            cached,
            completion_tokens,
            reasoning_tokens,
            ..
        } = self.totals;
        json!({
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": cached.all, "cache_write_tokens": 0},
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
                    let (list, part) = (
                        if self.asked.summary {
                            "summary"
                        } else {
                            "content"
                        },
                        self.part(index, true),
                    );
                    item[list] = json!([part]);
                }
                if self.asked.sealed {
                    item["encrypted_content"] = sealed.as_deref().map_or(Value::Null, Value::from);
                }
                item
            }
            Body::Message { .. } => {
                let content = if is_done {
                    vec![self.part(index, true)]
                } else {
                    Vec::new()
                };
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": content})
            }
            Body::Call {
                call_id,
                called,
                arguments,
            } => {
                let kind = if called.is_custom {
                    "custom_tool_call"
                } else {
                    "function_call"
                };
                let mut item = json!({"id": id, "type": kind, "status": status, "call_id": call_id,
                    "name": called.name});
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
                let (text, logprobs) = if is_done {
                    (text.as_str(), &logprobs[..])
                } else {
                    ("", &[][..])
                };
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs})
            }
            Body::Reasoning { text, .. } => {
                let kind = if self.asked.summary {
                    "summary_text"
                } else {
                    "reasoning_text"
                };
                json!({"type": kind, "text": if is_done { text } else { "" }})
            }
            Body::Call { .. } => Value::Null,
        }
    }

    /// The place of the last item; of its part, unless the item is a call.
    fn place(&self) -> Place<'_> {
        let (index, item) = (
            self.items.len() - 1,
            self.items.last().expect("an item is open"),
        );
        let (content_index, summary_index) = match &item.body {
            Body::Reasoning { .. } if self.asked.summary => (None, Some(0)),
            Body::Reasoning { .. } | Body::Message { .. } => (Some(0), None),
            Body::Call { .. } => (None, None),
        };
        Place {
            item_id: &item.id,
            output_index: index,
            content_index,
            summary_index,
        }
    }

    /// Adds an event about the last item or its part, with times if it has new text and the request asks for them.
    fn push_at(&self, events: &mut Events, name: &str, more: impl Serialize) {
        let is_timed = self.times_deltas && name.ends_with(".delta");
        events.push(
            name,
            At {
                place: self.place(),
                more,
                timings: is_timed.then(|| self.totals.into()),
            },
        );
    }

    /// The names of events about a thought's part and its text, by what it is reported as.
    fn reasoning_names(&self) -> ReasoningNames {
        if self.asked.summary {
            SUMMARY_NAMES
        } else {
            CONTENT_NAMES
        }
    }

    /// Begins an item; the one before it ends.
    fn open(&mut self, body: Body, events: &mut Events) {
        self.close(false, events);
        let id = self.state.shared.new_id(body.prefix()).replace('-', "_");
        self.items.push(Item {
            id,
            body,
            is_cut: false,
        });
        self.is_open = true;
        let index = self.items.len() - 1;
        let item = self.item(index, false);
        events.push(
            "response.output_item.added",
            json!({"output_index": index, "item": item}),
        );
        let name = match &self.items[index].body {
            Body::Reasoning { .. } => self.reasoning_names().part_added,
            Body::Message { .. } => "response.content_part.added",
            Body::Call { .. } => return,
        };
        self.push_at(events, name, json!({"part": self.part(index, false)}));
    }

    /// Ends the last item. It is incomplete if the answer was cut within it.
    fn close(&mut self, is_cut: bool, events: &mut Events) {
        let was_open = std::mem::take(&mut self.is_open);
        let Some(last) = self.items.last_mut() else {
            return;
        };
        if !was_open {
            return;
        }
        last.is_cut = is_cut;
        if let Body::Reasoning { text, sealed } = &mut last.body {
            *sealed = self.asked.sealed.then(|| self.state.shared.seal.seal(text));
        }
        let index = self.items.len() - 1;
        match &self.items[index].body {
            Body::Reasoning { text, .. } => {
                let names = self.reasoning_names();
                self.push_at(events, names.text_done, Text { text });
                self.push_at(
                    events,
                    names.part_done,
                    json!({"part": self.part(index, true)}),
                );
            }
            Body::Message { text, logprobs } => {
                self.push_at(
                    events,
                    "response.output_text.done",
                    json!({"text": text, "logprobs": logprobs}),
                );
                self.push_at(
                    events,
                    "response.content_part.done",
                    json!({"part": self.part(index, true)}),
                );
            }
            Body::Call {
                called, arguments, ..
            } if called.is_custom => {
                let input = custom_input(arguments);
                self.push_at(
                    events,
                    "response.custom_tool_call_input.delta",
                    More { delta: &input },
                );
                self.push_at(
                    events,
                    "response.custom_tool_call_input.done",
                    json!({"input": input}),
                );
            }
            Body::Call {
                called, arguments, ..
            } => {
                let done = json!({"name": called.name, "arguments": arguments});
                self.push_at(events, "response.function_call_arguments.done", done);
            }
        }
        let item = self.item(index, true);
        events.push(
            "response.output_item.done",
            json!({"output_index": index, "item": item}),
        );
    }

    fn reasoning(&mut self, more: &str, events: &mut Events) {
        if !matches!(self.items.last(), Some(Item { body: Body::Reasoning { .. }, .. }) if self.is_open)
        {
            self.open(
                Body::Reasoning {
                    text: String::new(),
                    sealed: None,
                },
                events,
            );
        }
        if let Some(Item {
            body: Body::Reasoning { text, .. },
            ..
        }) = self.items.last_mut()
        {
            text.push_str(more);
        }
        self.push_at(
            events,
            self.reasoning_names().text_delta,
            More { delta: more },
        );
    }

    fn text(&mut self, more: &str, logprobs: Vec<Value>, events: &mut Events) {
        if !matches!(self.items.last(), Some(Item { body: Body::Message { .. }, .. }) if self.is_open)
        {
            // Line breaks between calls are no answer.
            if more.trim().is_empty()
                && matches!(
                    self.items.last(),
                    Some(Item {
                        body: Body::Call { .. },
                        ..
                    })
                )
            {
                return;
            }
            self.open(
                Body::Message {
                    text: String::new(),
                    logprobs: Vec::new(),
                },
                events,
            );
        }
        self.push_at(
            events,
            "response.output_text.delta",
            MoreText {
                delta: more,
                logprobs: &logprobs,
            },
        );
        if let Some(Item {
            body: Body::Message {
                text,
                logprobs: all,
            },
            ..
        }) = self.items.last_mut()
        {
            text.push_str(more);
            all.extend(logprobs);
        }
    }

    fn call(&mut self, call: CallDelta, events: &mut Events) {
        if let Some(name) = call.name {
            let called = self.asked.names.called(&name);
            let call_id = self.state.shared.new_id("call").replace('-', "_");
            self.open(
                Body::Call {
                    call_id,
                    called,
                    arguments: String::new(),
                },
                events,
            );
        }
        let Some(Item {
            body: Body::Call {
                arguments, called, ..
            },
            ..
        }) = self.items.last_mut()
        else {
            return;
        };
        arguments.push_str(&call.arguments);
        // The input of a custom tool is known when its call is complete.
        if !called.is_custom && !call.arguments.is_empty() {
            self.push_at(
                events,
                "response.function_call_arguments.delta",
                More {
                    delta: &call.arguments,
                },
            );
        }
    }

    /// The events before all others.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            let response = json!({"response": self.response(None)});
            self.events.push("response.created", &response);
            self.events.push("response.in_progress", &response);
        }
    }

    /// Ends the response, and stores it.
    fn end(&mut self, finish: FinishReason, events: &mut Events) {
        self.close(finish == FinishReason::Length, events);
        self.finish = Some(finish);
        let response = self.response(None);
        let kind = if finish == FinishReason::Length {
            "response.incomplete"
        } else {
            "response.completed"
        };
        let mut end = json!({"response": &response});
        if self.times_deltas {
            end["timings"] = json!(Timings::from(self.totals));
        }
        events.push(kind, end);
        if let Some(input) = self.asked.input.take() {
            let input = input
                .into_iter()
                .map(|mut item| {
                    if let Value::Object(map) = &mut item {
                        map.entry("id").or_insert_with(|| {
                            self.state.shared.new_id("msg").replace('-', "_").into()
                        });
                    }
                    item
                })
                .collect();
            let stored = Stored {
                response,
                input,
                previous: self.asked.previous.take(),
            };
            self.state
                .shared
                .responses
                .keep(self.client, &self.id, &stored);
        }
    }
}

impl ReplyForm for ResponsesReply {
    /// The events of a delta.
    type Chunk = String;
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<String> {
        self.totals = totals;
        self.begin();
        let mut events = std::mem::take(&mut self.events);
        let logprobs = self
            .tokens
            .as_ref()
            .map(|names| names.entries(&delta.tokens))
            .unwrap_or_default();
        let parts = delta.parts;
        if !parts.reasoning.is_empty() {
            self.reasoning(&parts.reasoning, &mut events);
        }
        if !parts.content.is_empty() {
            self.text(&parts.content, logprobs, &mut events);
        }
        parts
            .calls
            .into_iter()
            .for_each(|call| self.call(call, &mut events));
        if let Some(finish) = delta.finish {
            self.end(finish, &mut events);
        }
        let text = std::mem::take(&mut events.text);
        self.events = events;
        vec![text]
    }

    /// As llama.cpp's server, `response.in_progress` again, with no more of the response than its id.
    fn progress(&mut self, _: usize, progress: PromptProgress) -> Option<String> {
        self.begin();
        let response = json!({"id": self.id, "object": "response", "status": "in_progress"});
        let mut more = json!({"response": response, "prompt_progress": progress});
        if self.times_deltas {
            more["timings"] = json!(Timings::from(progress));
        }
        self.events.push("response.in_progress", more);
        Some(std::mem::take(&mut self.events.text))
    }

    fn last_chunk(&self, _: Totals) -> Option<String> {
        None
    }

    fn event(&self, chunk: String) -> String {
        chunk
    }

    fn error(&mut self, error: &ApiError) -> String {
        self.begin();
        let response = self.response(Some(error));
        self.events
            .push("response.failed", json!({"response": response}));
        std::mem::take(&mut self.events.text)
    }

    fn whole(&self, _: Vec<String>) -> String {
        json::write(&self.response(None))
    }
}
