//! The conversation of a chat request: checked, and brought to the one form that chat templates expect.
//!
//! Content parts become one string, a missing content beside tool calls the empty string, a
//! refusal the content, a developer a system message,
//! and a tool call's arguments the object they spell. What roles may follow each other is the template's affair.

use crate::server::parameters::fields::{Fields, wrong};
use crate::server::parameters::tools;
use crate::server::wire::error::ApiError;
use crate::text::RESERVED_KWARGS;
use crate::text::answer::tools::ToolUse;
use serde_json::{Map, Value};

const ROLE_BYTES_MAX: usize = 64;
const CALLS_MAX: usize = 128;

/// What a chat request wants rendered.
pub(crate) struct Conversation {
    pub(crate) messages: Value,
    pub(crate) tools: ToolUse,
    pub(crate) kwargs: Option<Map<String, Value>>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final: bool,
}

/// OpenAI's words for how long a model should think; what they mean is the template's affair.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

impl Conversation {
    pub(crate) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = match fields.take("messages") {
            None => return Err(ApiError::missing("messages")),
            Some(Value::Array(messages)) if !messages.is_empty() => messages,
            Some(value) => return Err(wrong("messages", "a list of at least one message", &value)),
        };
        let messages = messages.into_iter().enumerate().map(|(index, value)| message(index, value));
        let messages = Value::Array(messages.collect::<Result<_, _>>()?);
        let tools = tools::read(fields)?;
        let kwargs = fields.object("chat_template_kwargs")?;
        let kwargs = reasoning_effort(fields, kwargs)?;
        if let Some(name) = RESERVED_KWARGS.iter().find(|name| kwargs.as_ref().is_some_and(|k| k.contains_key(**name)))
        {
            let param = format!("chat_template_kwargs.{name}");
            return Err(ApiError::unsupported(&param, format!("`{param}` cannot be set by a request")));
        }
        modalities(fields)?;
        let continue_final = fields.boolean("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = fields.boolean("add_generation_prompt")?.unwrap_or(!continue_final);
        if continue_final && add_generation_prompt {
            let message = "the last message cannot be continued and a new one begun: set `add_generation_prompt` false";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        Ok(Self { messages, tools, kwargs, add_generation_prompt, continue_final })
    }

    /// The text of the last message, if the answer goes on with it.
    pub(crate) fn continued(&self) -> Option<String> {
        let last = self.messages.as_array().and_then(|messages| messages.last()).filter(|_| self.continue_final);
        last.map(|message| message["content"].as_str().unwrap_or_default().to_owned())
    }

    /// Bytes of the prompt at least: what every template writes, before it adds its own.
    pub(crate) fn content_bytes(&self) -> usize {
        let Value::Array(messages) = &self.messages else { return 0 };
        messages.iter().filter_map(|message| message["content"].as_str()).map(str::len).sum()
    }

    /// Bytes of all text that a template may write: messages, calls, tools and settings.
    pub(crate) fn text_bytes(&self) -> usize {
        let kwargs = self.kwargs.iter().flatten().map(|(key, value)| key.len() + bytes_of(value));
        bytes_of(&self.messages) + self.tools.shown.as_ref().map_or(0, bytes_of) + kwargs.sum::<usize>()
    }
}

/// `reasoning_effort` as a variable of the template, unless the variables say it themselves.
fn reasoning_effort(
    fields: &mut Fields,
    kwargs: Option<Map<String, Value>>,
) -> Result<Option<Map<String, Value>>, ApiError> {
    let Some(effort) = fields.take("reasoning_effort") else { return Ok(kwargs) };
    if !effort.as_str().is_some_and(|effort| EFFORTS.contains(&effort)) {
        return Err(wrong("reasoning_effort", &format!("one of {}", EFFORTS.join(", ")), &effort));
    }
    let mut kwargs = kwargs.unwrap_or_default();
    kwargs.entry("reasoning_effort").or_insert(effort);
    Ok(Some(kwargs))
}

/// Bytes of all strings in a value, keys included. Its depth is bounded, as it came in a request.
fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes_of).sum(),
        Value::Object(map) => map.iter().map(|(key, item)| key.len() + bytes_of(item)).sum(),
        _ => 0,
    }
}

fn message(index: usize, value: Value) -> Result<Value, ApiError> {
    let at = |field: &str| format!("messages[{index}].{field}");
    let Value::Object(mut message) = value else {
        return Err(wrong(&format!("messages[{index}]"), "an object", &value));
    };
    let role = match message.get("role") {
        None | Some(Value::Null) => return Err(ApiError::missing(at("role"))),
        Some(Value::String(role)) if (1..=ROLE_BYTES_MAX).contains(&role.len()) => role.clone(),
        Some(value) => return Err(wrong(&at("role"), "a short string", value)),
    };
    if role == "developer" {
        message.insert("role".into(), "system".into());
    }
    let calls = tool_calls(&at("tool_calls"), message.remove("tool_calls"))?;
    // What a model refused with comes back beside an empty content, and is what it said.
    let refusal = message.remove("refusal").filter(Value::is_string);
    let content = match message.remove("content").filter(|content| !content.is_null()).or(refusal) {
        None if calls.is_some() => String::new(),
        None => return Err(ApiError::missing(at("content"))),
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => content_parts(&at("content"), &parts)?,
        Some(value) => return Err(wrong(&at("content"), "a string or a list of text parts", &value)),
    };
    message.insert("content".into(), content.into());
    if let Some(calls) = calls {
        message.insert("tool_calls".into(), calls);
    }
    Ok(Value::Object(message))
}

fn content_parts(name: &str, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.iter().enumerate() {
        let name = format!("{name}[{index}]");
        match part["type"].as_str() {
            Some(kind @ ("text" | "input_text" | "output_text" | "refusal")) => {
                let key = if kind == "refusal" { "refusal" } else { "text" };
                texts.push(part[key].as_str().ok_or_else(|| wrong(&format!("{name}.{key}"), "a string", &part[key]))?);
            }
            // Nothing is ever fetched, and there is no model here that sees or hears.
            Some(kind) => {
                let message =
                    format!("content parts of type {} are not supported", crate::server::wire::error::shorten(kind));
                return Err(ApiError::unsupported(name, message));
            }
            None => return Err(wrong(&format!("{name}.type"), "a string", &part["type"])),
        }
    }
    Ok(texts.join("\n"))
}

/// Calls that an assistant's message made; absent if there are none.
fn tool_calls(name: &str, value: Option<Value>) -> Result<Option<Value>, ApiError> {
    let mut calls = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(calls)) if calls.is_empty() => return Ok(None),
        Some(Value::Array(calls)) if calls.len() <= CALLS_MAX => calls,
        Some(value) => return Err(wrong(name, &format!("a list of at most {CALLS_MAX} calls"), &value)),
    };
    for (index, call) in calls.iter_mut().enumerate() {
        let name = format!("{name}[{index}].function");
        let Some(Value::Object(function)) = call.get_mut("function") else {
            return Err(ApiError::missing(name));
        };
        if !function.get("name").is_some_and(Value::is_string) {
            return Err(ApiError::missing(format!("{name}.name")));
        }
        match function.get("arguments") {
            None | Some(Value::Null | Value::Object(_)) => {}
            // Templates write an object in their own style; text that is none stays as it is.
            Some(Value::String(text)) => {
                if let Ok(arguments @ Value::Object(_)) = serde_json::from_str(text) {
                    function.insert("arguments".into(), arguments);
                }
            }
            Some(value) => return Err(wrong(&format!("{name}.arguments"), "a string", value)),
        }
    }
    Ok(Some(Value::Array(calls)))
}

fn modalities(fields: &mut Fields) -> Result<(), ApiError> {
    match fields.take("modalities") {
        None => Ok(()),
        Some(Value::Array(kinds)) if kinds.iter().all(|kind| kind == "text") => Ok(()),
        Some(_) => Err(ApiError::unsupported("modalities", "answers are text only")),
    }
}
