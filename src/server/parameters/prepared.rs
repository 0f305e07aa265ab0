//! [`prepare`]: gives the messages of a conversation the form that a chat template reads, whatever API and client they
//! come from. This is the only place that does so.
//!
//! Thoughts get every name that templates know, calls get ids and arguments that are objects. What else a template
//! needs is found in its text ([`TemplateForm`]).

use crate::server::parameters::kinds::images;
use crate::server::parameters::kinds::messages::joined_texts;
use crate::text::integers;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Names under which templates and clients know an assistant's thought.
const THOUGHTS: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
/// Length of the ids of calls that Mistral's models know.
const SHORT_ID: usize = 9;

/// What a chat template demands of messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TemplateForm {
    /// Ids of calls have nine letters and digits: Mistral.
    has_short_ids: bool,
    /// Only the first call of a message is shown: gpt-oss and Llama 3.
    has_single_calls: bool,
    /// Beside a call there is either a thought or content: gpt-oss.
    has_thought_or_content: bool,
    /// Thoughts are parts of the content: Mistral.
    has_thought_parts: bool,
    /// All contents are lists of parts: Idefics 3 and SmolVLM. These show nothing of a content that is a text.
    has_only_parts: bool,
    /// Texts of the user that are parts are shown so.
    shows_parts: bool,
}

impl TemplateForm {
    /// The form that a template's text shows.
    pub(crate) fn of(template: &str) -> Self {
        let asks_for_text = ["is string", "is not string"]
            .into_iter()
            .any(|test| template.contains(test));
        Self {
            has_only_parts: loops_over(template, "content") && !asks_for_text,
            has_short_ids: template.contains("[TOOL_CALLS]"),
            has_single_calls: template.contains("tool_calls[0]")
                && !loops_over(template, "tool_calls"),
            has_thought_or_content: template.contains("<|channel|>")
                && accesses("thinking")
                    .iter()
                    .any(|access| template.contains(access)),
            has_thought_parts: template.contains("== 'thinking'")
                || template.contains("== \"thinking\""),
            shows_parts: false,
        }
    }

    /// The same for a template that shows the user's parts, or not.
    pub(crate) fn showing_parts(self, shows_parts: bool) -> Self {
        Self {
            shows_parts,
            ..self
        }
    }
}

impl TemplateForm {
    /// Whether results stay in the order in which a conversation has them.
    pub(crate) fn keeps_order(self) -> bool {
        !self.has_single_calls
    }
}

/// How templates write a field of a message.
fn accesses(field: &str) -> [String; 3] {
    [
        format!(".{field}"),
        format!("['{field}']"),
        format!("[\"{field}\"]"),
    ]
}

/// Whether a template has a loop over this field of messages, whatever it calls a message.
fn loops_over(template: &str, field: &str) -> bool {
    accesses(field).iter().any(|access| {
        template.match_indices(access).any(|(at, _)| {
            let name = |letter: char| letter.is_alphanumeric() || letter == '_';
            let before = template[..at].trim_end_matches(name);
            let statement = before.rsplit("{%").next().unwrap_or_default();
            let statement = statement.trim_start_matches(['-', '+']).trim_start();
            before.ends_with(" in ") && statement.starts_with("for ")
        })
    })
}

/// What stands in a result for an image that comes behind it.
const IMAGE_BEHIND: &str = "[an image, shown below]";

/// The messages with the images of results behind them, as the user's: at the beginning of the user's message that
/// follows, else as one of their own.
pub(crate) fn with_images_behind_results(messages: Vec<Value>) -> Vec<Value> {
    let mut moved = Vec::with_capacity(messages.len() + 1);
    let mut shown = Vec::new();
    for mut message in messages {
        if message["role"] == "tool" {
            take_images(&mut message, &mut shown);
        } else if !shown.is_empty() && message["role"] == "user" {
            make_content_parts(&mut message);
            if let Value::Array(parts) = &mut message["content"] {
                parts.splice(0..0, shown.drain(..));
            }
        } else if !shown.is_empty() {
            moved.push(json!({"role": "user", "content": std::mem::take(&mut shown)}));
        }
        moved.push(message);
    }
    if !shown.is_empty() {
        moved.push(json!({"role": "user", "content": shown}));
    }
    moved
}

/// Moves the images of a result to the parts that come behind it. What stays is a text.
fn take_images(message: &mut Value, shown: &mut Vec<Value>) {
    let Value::Array(parts) = &mut message["content"] else {
        return;
    };
    let mut texts = Vec::with_capacity(parts.len());
    for part in parts.drain(..) {
        if images::is_image(&part) {
            texts.push(IMAGE_BEHIND.to_owned());
            shown.push(part);
        } else {
            texts.extend(part["text"].as_str().map(str::to_owned));
        }
    }
    message["content"] = texts.join("\n").into();
}

/// The messages in the form of a template.
pub(crate) fn prepare(mut messages: Vec<Value>, form: TemplateForm) -> Vec<Value> {
    name_thoughts(&mut messages);
    read_arguments(&mut messages);
    pair_ids(&mut messages, form.has_short_ids);
    if form.has_single_calls {
        messages = with_single_calls(messages);
    }
    for message in assistants(&mut messages) {
        if form.has_thought_or_content && message.contains_key("tool_calls") {
            add_content_to_thought(message);
        }
        if form.has_thought_parts {
            add_thought_to_content(message);
        }
    }
    if form.has_only_parts {
        messages.iter_mut().for_each(make_content_parts);
    } else if !form.shows_parts {
        messages.iter_mut().for_each(join_texts);
    }
    messages
}

/// The first call whose arguments are text that is no JSON object: indices of its message and in it.
pub(crate) fn unreadable_arguments(messages: &[Value]) -> Option<(usize, usize)> {
    messages
        .iter()
        .enumerate()
        .find_map(|(index, message)| Some((index, in_message(message)?)))
}

fn in_message(message: &Value) -> Option<usize> {
    message["tool_calls"]
        .as_array()?
        .iter()
        .position(|call| !arguments(&call["function"]["arguments"]).is_object())
}

fn assistants(messages: &mut [Value]) -> impl Iterator<Item = &mut Map<String, Value>> {
    messages
        .iter_mut()
        .filter_map(Value::as_object_mut)
        .filter(|message| message["role"] == "assistant")
}

fn calls_of(message: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(Value::as_object_mut)
}

fn text_in<'a>(message: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    message
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.trim().is_empty())
}

fn thought_of(message: &Map<String, Value>) -> Option<String> {
    THOUGHTS
        .iter()
        .find_map(|name| text_in(message, name))
        .map(str::to_owned)
}

/// Gives each thought all names, because a template reads one of them.
fn name_thoughts(messages: &mut [Value]) {
    for message in assistants(messages) {
        let thought = thought_of(message);
        for name in THOUGHTS {
            if message.get(name).is_some_and(Value::is_null) {
                message.remove(name);
            }
            if let Some(thought) = &thought
                && text_in(message, name).is_none()
            {
                message.insert(name.to_owned(), thought.clone().into());
            }
        }
    }
}

/// Templates format arguments in their own style, or go through them.
fn read_arguments(messages: &mut [Value]) {
    for call in assistants(messages).flat_map(calls_of) {
        if let Some(Value::Object(function)) = call.get_mut("function") {
            let read = arguments(function.get("arguments").unwrap_or(&Value::Null));
            function.insert("arguments".to_owned(), read);
        }
    }
}

/// The arguments of a call: an object. Some clients write none as null or as an empty text. Text that is no object
/// stays as it is.
fn arguments(value: &Value) -> Value {
    match value {
        Value::Null => json!({}),
        Value::String(text) if matches!(text.trim(), "" | "null") => json!({}),
        Value::String(text) => integers::parse_object(text).unwrap_or_else(|| value.clone()),
        _ => value.clone(),
    }
}

/// Gives each call an id, and its result the same one. Results without an id belong to the calls in their order.
fn pair_ids(messages: &mut [Value], short: bool) {
    let form = |id: &str| if short { short_id(id) } else { id.to_owned() };
    let mut pending: VecDeque<(String, Value)> = VecDeque::new();
    for (index, message) in messages.iter_mut().enumerate() {
        let Value::Object(message) = message else {
            continue;
        };
        if message.contains_key("tool_calls") {
            pending.clear();
            for (place, call) in calls_of(message).enumerate() {
                let id =
                    text_in(call, "id").map_or_else(|| short_id(&format!("{index} {place}")), form);
                pending.push_back((id.clone(), call["function"]["name"].clone()));
                call.insert("id".to_owned(), id.into());
                call.entry("type").or_insert_with(|| "function".into());
            }
        } else if message["role"] == "tool" {
            let given = text_in(message, "tool_call_id").map(form);
            let place = match &given {
                Some(id) => pending.iter().position(|(other, _)| other == id),
                None => pending
                    .iter()
                    .position(|(_, name)| Some(name) == message.get("name"))
                    .or((!pending.is_empty()).then_some(0)),
            };
            let paired = place
                .and_then(|place| pending.remove(place))
                .map(|(id, _)| id);
            if let Some(id) = given.or(paired) {
                message.insert("tool_call_id".to_owned(), id.into());
            }
        }
    }
}

/// An id of nine letters and digits. Another id becomes a hash: the same each time, so that results find their calls.
fn short_id(id: &str) -> String {
    if id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    let hash = blake3::hash(id.as_bytes());
    hash.as_bytes()
        .iter()
        .take(SHORT_ID)
        .map(|byte| char::from_digit(u32::from(*byte) % 36, 36).expect("a digit is below its base"))
        .collect()
}

/// One message for each call, with its result after it.
fn with_single_calls(messages: Vec<Value>) -> Vec<Value> {
    let mut single = Vec::with_capacity(messages.len());
    let mut messages = messages.into_iter().peekable();
    while let Some(mut message) = messages.next() {
        let calls = match message.get_mut("tool_calls") {
            Some(Value::Array(calls)) if calls.len() > 1 => std::mem::take(calls),
            _ => {
                single.push(message);
                continue;
            }
        };
        let mut results = Vec::new();
        while let Some(result) = messages.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        for (index, call) in calls.into_iter().enumerate() {
            let (own, others) = results
                .into_iter()
                .partition(|result: &Value| result["tool_call_id"] == call["id"]);
            results = others;
            let next = json!({"role": "assistant", "content": ""});
            let mut asked = if index == 0 {
                std::mem::replace(&mut message, next)
            } else {
                message.clone()
            };
            asked["tool_calls"] = json!([call]);
            single.push(asked);
            single.extend::<Vec<Value>>(own);
        }
        single.append(&mut results);
    }
    single
}

/// Makes a remark beside a call the end of the thought.
fn add_content_to_thought(message: &mut Map<String, Value>) {
    let (Some(thought), Some(content)) = (thought_of(message), text_in(message, "content")) else {
        return;
    };
    let both = format!("{thought}\n\n{content}");
    for name in THOUGHTS {
        message.insert(name.to_owned(), both.clone().into());
    }
    message.insert("content".to_owned(), "".into());
}

/// Makes a thought the first part of the content.
fn add_thought_to_content(message: &mut Map<String, Value>) {
    let Some(thought) = thought_of(message) else {
        return;
    };
    let mut parts = vec![json!({"type": "thinking", "thinking": thought, "closed": true})];
    parts.extend(text_in(message, "content").map(|text| json!({"type": "text", "text": text})));
    message.insert("content".to_owned(), parts.into());
}

/// Joins the parts of a user's content if all are texts.
fn join_texts(message: &mut Value) {
    let text = message["content"]
        .as_array()
        .and_then(|parts| joined_texts(parts));
    if let Some(text) = text
        && message["role"] == "user"
    {
        message["content"] = text.into();
    }
}

/// Makes a text the only part of a content.
fn make_content_parts(message: &mut Value) {
    let content = &mut message["content"];
    if content.is_string() {
        *content = json!([{"type": "text", "text": content.take()}]);
    }
}

#[cfg(test)]
mod tests;
