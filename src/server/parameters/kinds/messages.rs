//! The conversation of a chat request: checked, and normalized to the form that chat templates expect.
//!
//! Content parts are joined into one string, but those of the user stay parts if there are several: the template
//! decides. The files of images go beside the messages. A missing content beside tool calls becomes the empty string. A
//! refusal becomes the content, and a developer message a system message. The template decides which roles may follow
//! each other; what it demands of messages beyond this is done in `prepared`.

use crate::platform;
use crate::server::images::GivenImage;
use crate::server::parameters::kind::{Bounds, Kind, wrong};
use crate::server::parameters::kinds::images::{self, Images};
use crate::server::parameters::kinds::object;
use crate::server::wire::error::ApiError;
use crate::text::RESERVED_KWARGS;
use serde_json::{Map, Value, json};
use std::ops::Deref;

const ROLE_BYTES_MAX: usize = 64;
const CALLS_MAX: usize = 128;
/// OpenAI's values of `reasoning_effort`. The chat template decides what they mean.
pub(crate) const EFFORTS: &[&str] = &["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// As many messages are freed where the request ends.
const FREED_HERE_MAX: usize = 1000;

/// Checked messages. A request may be refused for another reason at any time; if it has many messages, they are freed
/// beside the async threads.
pub(crate) struct MessageList {
    messages: Value,
    /// Those that parts of the messages stand for, in order.
    images: Vec<GivenImage>,
}

impl MessageList {
    /// Messages in the form that chat templates expect, with the images that parts of them stand for.
    pub(crate) fn new(messages: Vec<Value>, images: Vec<GivenImage>) -> Self {
        Self {
            messages: Value::Array(messages),
            images,
        }
    }

    /// The images, in order.
    pub(crate) fn images(&self) -> &[GivenImage] {
        &self.images
    }

    /// The same images, for whoever reads them. Their names stay.
    pub(crate) fn take_images(&mut self) -> Vec<GivenImage> {
        let taken = self.images.iter_mut().map(|image| GivenImage {
            name: image.name.clone(),
            file: std::mem::take(&mut image.file),
        });
        taken.collect()
    }

    /// The first image of a tool's result.
    pub(crate) fn first_of_results(&self) -> Option<&GivenImage> {
        let messages = self.messages.as_array()?;
        let result = messages
            .iter()
            .position(|message| message["role"] == "tool" && count_of(message) > 0)?;
        self.images
            .get(messages[..result].iter().map(count_of).sum::<usize>())
    }
}

impl MessageList {
    /// Replaces the messages.
    pub(crate) fn change(&mut self, change: impl FnOnce(Vec<Value>) -> Vec<Value>) {
        if let Value::Array(messages) = self.messages.take() {
            self.messages = Value::Array(change(messages));
        }
    }
}

/// Number of images of a message.
fn count_of(message: &Value) -> usize {
    let parts = message["content"].as_array().into_iter().flatten();
    parts.filter(|part| images::is_image(part)).count()
}

impl Deref for MessageList {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.messages
    }
}

impl Drop for MessageList {
    fn drop(&mut self) {
        if self
            .messages
            .as_array()
            .is_some_and(|messages| messages.len() > FREED_HERE_MAX)
        {
            platform::discard(self.messages.take());
        }
    }
}

/// A list of at least one message.
pub(crate) struct Messages;

impl Kind for Messages {
    type Value = MessageList;

    fn read(&self, at: &str, value: Value, bounds: &Bounds) -> Result<MessageList, ApiError> {
        let messages = match value {
            Value::Array(messages) if !messages.is_empty() => messages,
            value => return Err(wrong(at, "a list of at least one message", &value)),
        };
        check_count(at, messages.len(), bounds)?;
        let mut images = Vec::new();
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(index, value)| message(&format!("{at}[{index}]"), value, bounds, &mut images));
        let messages = messages.collect::<Result<_, _>>()?;
        Ok(MessageList::new(messages, images))
    }

    fn schema(&self, _: &Bounds) -> Value {
        let call = json!({
            "title": "MessageToolCall",
            "type": "object",
            "required": ["function"],
            "properties": {
                "id": {},
                "type": {},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string"}, "arguments": {"type": ["string", "object", "null"]}},
                },
            },
        });
        let part = |kinds: Value, key: &str| {
            let properties = json!({"type": kinds, key: {"type": "string"}});
            json!({"type": "object", "required": ["type", key], "properties": properties})
        };
        let text = part(
            json!({"enum": ["text", "input_text", "output_text"]}),
            "text",
        );
        let refusal = part(json!({"const": "refusal"}), "refusal");
        let url = json!({"type": "string", "description": "data:image/…;base64,…"});
        let image = json!({
            "type": "object",
            "required": ["type", "image_url"],
            "description": "A PNG, JPEG, WebP, GIF or BMP file, for a model that reads images, in a message of the \
                            user or the result of a tool.",
            "properties": {
                "type": {"const": "image_url"},
                "image_url": {
                    "type": ["object", "string"],
                    "required": ["url"],
                    "properties": {"url": url, "detail": {"type": ["string", "null"]}},
                },
            },
        });
        let part = json!({"title": "ContentPart", "anyOf": [text, refusal, image]});
        let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}, {"type": "null"}]});
        let roles = ["system", "developer", "user", "assistant", "tool"];
        let role = json!({
            "type": "string",
            "minLength": 1,
            "maxLength": ROLE_BYTES_MAX,
            "description": "The chat template decides which roles it takes.",
            "examples": roles,
        });
        let message = json!({
            "title": "Message",
            "examples": [{"role": "user", "content": "Hello!"}],
            "type": "object",
            "required": ["role"],
            "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}, {"required": ["refusal"]}],
            "properties": {
                "role": role,
                "content": content,
                "name": {"type": ["string", "null"]},
                "refusal": {"type": ["string", "null"]},
                "tool_calls": {"type": ["array", "null"], "maxItems": CALLS_MAX, "items": call},
                "tool_call_id": {"type": ["string", "null"]},
            },
        });
        json!({"type": "array", "minItems": 1, "items": message})
    }
}

/// Refuses a conversation of more messages than the context has tokens, before anything is done for each message.
pub(crate) fn check_count(at: &str, count: usize, bounds: &Bounds) -> Result<(), ApiError> {
    if count <= bounds.context as usize {
        return Ok(());
    }
    Err(ApiError::context_length(
        at,
        bounds.context,
        &format!("`{at}` has {count} messages"),
    ))
}

/// Checks and normalizes one message, whose images go to those of the request.
pub(crate) fn message(
    name: &str,
    value: Value,
    bounds: &Bounds,
    images: &mut Vec<GivenImage>,
) -> Result<Value, ApiError> {
    let at = |field: &str| format!("{name}.{field}");
    let mut message = object(name, value)?;
    let role = match message.get("role") {
        None | Some(Value::Null) => return Err(ApiError::missing(at("role"))),
        Some(Value::String(role)) if (1..=ROLE_BYTES_MAX).contains(&role.len()) => role.clone(),
        Some(value) => return Err(wrong(&at("role"), "a short string", value)),
    };
    if role == "developer" {
        message.insert("role".into(), "system".into());
    }
    if let Some(field) = ["name", "refusal", "tool_call_id"].iter().find(|field| {
        message
            .get(**field)
            .is_some_and(|value| !value.is_string() && !value.is_null())
    }) {
        return Err(wrong(&at(field), "a string", &message[*field]));
    }
    let calls = tool_calls(&at("tool_calls"), message.remove("tool_calls"))?;
    // Clients send a model's refusal back beside an empty content. It is the text that the model wrote.
    let refusal = message.remove("refusal").filter(Value::is_string);
    let content = match message
        .remove("content")
        .filter(|content| !content.is_null())
        .or(refusal)
    {
        None if calls.is_some() => "".into(),
        None => return Err(ApiError::missing(at("content"))),
        Some(text @ Value::String(_)) => text,
        Some(Value::Array(parts)) => {
            let taken = Images::of_role(&role, bounds.reads_images);
            let parts = content_parts(&at("content"), &parts, (taken, images))?;
            let text = parts.as_array().and_then(|parts| joined_texts(parts));
            match text {
                Some(text) if role != "user" => text.into(),
                _ => parts,
            }
        }
        Some(value) => {
            return Err(wrong(
                &at("content"),
                "a string or a list of text parts",
                &value,
            ));
        }
    };
    message.insert("content".into(), content);
    if let Some(calls) = calls {
        message.insert("tool_calls".into(), calls);
    }
    Ok(Value::Object(message))
}

/// The texts of parts in one, a line each; `None` if some part is no text.
pub(crate) fn joined_texts(parts: &[Value]) -> Option<String> {
    let texts: Option<Vec<&str>> = parts.iter().map(|part| part["text"].as_str()).collect();
    texts.map(|texts| texts.join("\n"))
}

/// The content that parts make: a text, or parts again if there are several.
fn content_parts(
    name: &str,
    parts: &[Value],
    (images, given): (Images, &mut Vec<GivenImage>),
) -> Result<Value, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    let mut shown = Vec::new();
    for (index, part) in parts.iter().enumerate() {
        let name = format!("{name}[{index}]");
        match part["type"].as_str() {
            Some(kind @ ("text" | "input_text" | "output_text" | "refusal")) => {
                let key = if kind == "refusal" { "refusal" } else { "text" };
                let text = part[key].as_str();
                let text =
                    text.ok_or_else(|| wrong(&format!("{name}.{key}"), "a string", &part[key]))?;
                texts.push(text);
            }
            Some("image_url") => match images {
                Images::Read => {
                    given.push(images::from_part(&name, part)?);
                    shown.extend(texts.drain(..).map(images::text_part));
                    shown.push(images::part());
                }
                Images::Named => {
                    images::url_of(&name, part)?;
                    texts.push(images::UNSEEN);
                }
                Images::Refused => return Err(images::not_of_user(&name)),
            },
            Some(kind) => {
                let message = format!(
                    "content parts of type {} are not supported",
                    crate::server::wire::error::shorten(kind)
                );
                return Err(ApiError::unsupported(name, message));
            }
            None => return Err(wrong(&format!("{name}.type"), "a string", &part["type"])),
        }
    }
    if shown.is_empty() && texts.len() <= 1 {
        return Ok(texts.concat().into());
    }
    shown.extend(texts.drain(..).map(images::text_part));
    Ok(shown.into())
}

/// The tool calls of an assistant's message; `None` if there are none.
fn tool_calls(name: &str, value: Option<Value>) -> Result<Option<Value>, ApiError> {
    let calls = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) if calls.len() <= CALLS_MAX => calls,
        Some(value) => {
            return Err(wrong(
                name,
                &format!("a list of at most {CALLS_MAX} calls"),
                &value,
            ));
        }
    };
    for (index, call) in calls.iter().enumerate() {
        let name = format!("{name}[{index}].function");
        let Some(Value::Object(function)) = call.get("function") else {
            return Err(ApiError::missing(name));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::missing(format!("{name}.name")));
        }
        match function.get("arguments") {
            None | Some(Value::Null | Value::Object(_) | Value::String(_)) => {}
            Some(value) => return Err(wrong(&format!("{name}.arguments"), "a string", value)),
        }
    }
    Ok(Some(Value::Array(calls)))
}

/// Variables of the chat template, except the reserved ones that the server sets itself.
pub(crate) struct TemplateSettings;

impl Kind for TemplateSettings {
    type Value = Map<String, Value>;

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<Self::Value, ApiError> {
        let map = object(at, value)?;
        match RESERVED_KWARGS.iter().find(|name| map.contains_key(**name)) {
            None => Ok(map),
            Some(name) => {
                let name = format!("{at}.{name}");
                let message = format!("`{name}` cannot be set by a request");
                Err(ApiError::unsupported(name, message))
            }
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "object", "propertyNames": {"not": {"enum": RESERVED_KWARGS}}})
    }
}

/// Output modalities: only text.
pub(crate) struct Modalities;

impl Kind for Modalities {
    type Value = ();

    fn read(&self, at: &str, value: Value, _: &Bounds) -> Result<(), ApiError> {
        match value {
            Value::Array(kinds) if kinds.iter().all(|kind| kind == "text") => Ok(()),
            _ => Err(ApiError::unsupported(
                at,
                format!("`{at}` must be [\"text\"]: answers are text only"),
            )),
        }
    }

    fn schema(&self, _: &Bounds) -> Value {
        json!({"type": "array", "items": {"const": "text"}})
    }
}
