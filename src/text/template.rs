//! [`ChatTemplate`] renders a conversation to the prompt's text, with the semantics of Hugging Face's templates.
//!
//! These are Jinja with trimmed blocks, Python's string and dict methods, `raise_exception`, `strftime_now`, loop
//! controls, a `tojson` that neither sorts nor escapes for HTML, and a `{% generation %}` block that only marks text.
//! minijinja runs them; [`template_source`], [`template_filters`], `template_html`, `template_format`,
//! `template_methods` and [`python`] are what it does not do as Jinja2. A template comes with the model, so it may be
//! hostile: the number of instructions, the bytes that they produce and the size of the output are limited (see
//! [`template_limits`]).

use super::TextError;
use super::template_limits::{self, Capped};
use super::{integers, python, template_filters, template_methods, template_source};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value as JinjaValue};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Fuel per rendering: pays for as many instructions, or for 64 bytes of data each. So a template makes at most 64 MiB
/// of data; a long conversation needs a fraction of that.
const FUEL: u64 = 1 << 20;
/// Maximum characters of a refusal that are shown.
const REFUSAL_CHARACTERS_MAX: usize = 500;

/// Variables that a request must not set, because the renderer sets them.
pub const RESERVED_KWARGS: [&str; 5] = [
    "chat_template",
    "messages",
    "tools",
    "tokenize",
    "add_generation_prompt",
];

/// The compiled templates of one model.
pub struct ChatTemplate {
    environment: Environment<'static>,
    /// bos_token, eos_token and similar strings, from tokenizer_config.json.
    tokens: Map<String, Value>,
    has_tool_template: bool,
    /// What is wrong with templates that do not compile, by their names.
    faults: BTreeMap<String, String>,
    /// Source text of all templates.
    source: String,
}

/// One conversation to render.
#[derive(Clone, Copy)]
pub struct ChatInput<'a> {
    /// A list of messages.
    pub messages: &'a Value,
    /// A list of tools.
    pub tools: Option<&'a Value>,
    /// Additional template variables.
    pub kwargs: Option<&'a Map<String, Value>>,
    /// Whether to end with the start of the assistant's answer.
    pub add_generation_prompt: bool,
    /// Whether to end with the last message's content, so that the answer continues it.
    pub continue_final: bool,
    /// Time for `strftime_now`, in seconds since 1970 (UTC).
    pub unix_time: u64,
    /// Maximum bytes of rendered text.
    pub bytes_max: usize,
}

/// Why a conversation was not rendered.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum TemplateError {
    /// The template refused the conversation, with its own message.
    #[error("{0}")]
    Refused(String),
    /// The template could not be run on this conversation.
    #[error("the chat template failed: {0}")]
    Failed(String),
    /// The rendered text is too long.
    #[error("the conversation renders to more than {bytes_max} bytes")]
    TooLong {
        /// The limit in bytes.
        bytes_max: usize,
    },
    /// The last message cannot be found in the rendered text, so it cannot be continued.
    #[error(
        "the chat template does not render the last message verbatim, so it cannot be continued"
    )]
    NotShown,
    /// The rendering took too many instructions, or too much memory.
    #[error("the chat template takes too much time or memory on this conversation")]
    TooSlow,
}

impl ChatTemplate {
    /// The template of a tokenizer_config.json: a string, or a list of named templates. `None` if it has none.
    pub(super) fn from_config(config: &Map<String, Value>) -> Result<Option<Self>, TextError> {
        let named = match config.get("chat_template") {
            Some(Value::String(text)) => vec![("default".to_owned(), text.clone())],
            Some(Value::Array(list)) => list.iter().filter_map(named_template).collect(),
            None | Some(Value::Null) => Vec::new(),
            Some(_) => {
                let message = "chat_template is neither a string nor a list".to_owned();
                return Err(TextError::File {
                    name: "tokenizer_config.json".to_owned(),
                    message,
                });
            }
        };
        if named.is_empty() {
            return Ok(None);
        }
        let tokens = config.iter().filter_map(|(name, value)| {
            let value = value.get("content").unwrap_or(value);
            (name.ends_with("_token") && value.is_string()).then(|| (name.clone(), value.clone()))
        });
        let named_tokens = config
            .get("extra_special_tokens")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let named_tokens = named_tokens
            .map(|(name, value)| (name.clone(), value.get("content").unwrap_or(value).clone()));
        Self::new(named, tokens.chain(named_tokens).collect()).map(Some)
    }

    fn new(named: Vec<(String, String)>, tokens: Map<String, Value>) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|error| TextError::Template(one_line(&error)))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_unknown_method_callback(template_methods::call);
        environment.set_formatter(python::format);
        environment.set_fuel(Some(FUEL));
        template_limits::guard_filters(&mut environment);
        template_limits::guard_tests(&mut environment);
        template_filters::add(&mut environment);
        environment.add_function("raise_exception", raise);
        let has_tool_template = named.iter().any(|(name, _)| name == "tool_use");
        let source = named
            .iter()
            .map(|(_, text)| text.as_str())
            .collect::<Vec<_>>()
            .join("\n");
        let has_default = named.iter().any(|(name, _)| name == "default");
        let fallback = if has_default {
            None
        } else {
            named.first().map(|(name, _)| name.clone())
        };
        let mut faults = BTreeMap::new();
        for (name, text) in named {
            let name = if Some(&name) == fallback.as_ref() {
                "default".to_owned()
            } else {
                name
            };
            let text = template_source::for_minijinja(&text);
            if let Err(error) = environment.add_template_owned(name.clone(), text) {
                faults.insert(name, one_line(&error));
            }
        }
        Ok(Self {
            environment,
            tokens,
            has_tool_template,
            faults,
            source,
        })
    }

    /// Source text of the templates. It shows which formats the model was trained on.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// What is wrong with a template that does not compile.
    pub(super) fn fault(&self) -> Option<&str> {
        self.faults.values().next().map(String::as_str)
    }

    /// Renders one conversation.
    pub(super) fn render(&self, input: &ChatInput<'_>) -> Result<String, TemplateError> {
        let name = if self.has_tool_template && input.tools.is_some() {
            "tool_use"
        } else {
            "default"
        };
        if let Some(fault) = self.faults.get(name) {
            return Err(TemplateError::Failed(fault.clone()));
        }
        let template = self
            .environment
            .get_template(name)
            .map_err(|error| TemplateError::Failed(one_line(&error)))?;
        let unix_time = input.unix_time;
        let mut context: Vec<(String, JinjaValue)> = Vec::new();
        let kwargs = input.kwargs.into_iter().flatten();
        context.extend(
            self.tokens
                .iter()
                .chain(kwargs)
                .map(|(key, value)| (key.clone(), to_jinja(value))),
        );
        context.push((
            "strftime_now".into(),
            JinjaValue::from_function(move |pattern: &str| python::strftime(pattern, unix_time)),
        ));
        let tagged = input
            .continue_final
            .then(|| Continued::new(input.messages))
            .transpose()?;
        context.push((
            "messages".into(),
            to_jinja(
                tagged
                    .as_ref()
                    .map_or(input.messages, |tagged| &tagged.messages),
            ),
        ));
        context.push((
            "tools".into(),
            input.tools.map_or(JinjaValue::from(()), to_jinja),
        ));
        context.push((
            "add_generation_prompt".into(),
            JinjaValue::from(input.add_generation_prompt),
        ));
        let mut output = Capped::new(input.bytes_max);
        let context = JinjaValue::from_pairs(context);
        let result = template
            .render_captured_to(context, &mut output)
            .map(|_| ());
        if output.full {
            return Err(TemplateError::TooLong {
                bytes_max: input.bytes_max,
            });
        }
        result.map_err(|error| template_error(&error))?;
        let text = String::from_utf8(output.bytes)
            .map_err(|error| TemplateError::Failed(error.to_string()))?;
        match tagged {
            Some(tagged) => tagged.cut(&text),
            None => Ok(text),
        }
    }
}

/// A conversation whose last message is continued. A tag at the end of its content shows where that ends in the
/// rendered text: the content itself may be empty, or occur again in what the template writes after it.
struct Continued {
    messages: Value,
    /// White space at the end of the content, if there is other text before it.
    space: String,
}

/// Noncharacters, which occur in no text of interchange; others than the marks of special tokens.
const END_TAG: &str = "\u{FDD3}\u{FDD4}";

impl Continued {
    fn new(messages: &Value) -> Result<Self, TemplateError> {
        let mut messages = messages.clone();
        let last = messages
            .as_array_mut()
            .and_then(|messages| messages.last_mut())
            .ok_or(TemplateError::NotShown)?;
        let content = content_to_continue(last).ok_or(TemplateError::NotShown)?;
        let text_end = content.trim_end().len();
        let space = if text_end == 0 {
            String::new()
        } else {
            content[text_end..].to_owned()
        };
        // Behind the tag there is a space, which a template takes away if it trims the content.
        content.push_str(END_TAG);
        content.push(' ');
        Ok(Self { messages, space })
    }

    /// The rendered text up to the end of the content.
    fn cut(&self, text: &str) -> Result<String, TemplateError> {
        let at = text.rfind(END_TAG).ok_or(TemplateError::NotShown)?;
        let (shown, after) = (&text[..at], &text[at + END_TAG.len()..]);
        let is_trimmed = !after.starts_with(' ');
        let shown = if is_trimmed {
            shown.strip_suffix(&self.space).unwrap_or(shown)
        } else {
            shown
        };
        Ok(shown.to_owned())
    }
}

/// The text of a message's content, or of its last part.
fn content_to_continue(message: &mut Value) -> Option<&mut String> {
    let content = match message.get_mut("content")? {
        Value::Array(parts) => {
            if parts.last().is_none_or(|part| !part["text"].is_string()) {
                parts.push(serde_json::json!({"type": "text", "text": ""}));
            }
            parts.last_mut()?.get_mut("text")?
        }
        content => content,
    };
    if let Value::String(text) = content {
        Some(text)
    } else {
        None
    }
}

fn to_jinja(value: &Value) -> JinjaValue {
    if let Some(digits) = integers::digits(value) {
        return python::integer(digits);
    }
    match value {
        Value::Array(items) => items.iter().map(to_jinja).collect(),
        Value::Object(entries) => JinjaValue::from_pairs(
            entries
                .iter()
                .map(|(key, value)| (key.as_str(), to_jinja(value))),
        ),
        _ => JinjaValue::from(Serde(value)),
    }
}

fn named_template(entry: &Value) -> Option<(String, String)> {
    Some((
        entry["name"].as_str()?.to_owned(),
        entry["template"].as_str()?.to_owned(),
    ))
}

/// `raise_exception(message)`: refuses the conversation.
#[allow(
    clippy::needless_pass_by_value,
    reason = "a template function's arguments arrive by value"
)]
fn raise(state: &State<'_, '_>, message: JinjaValue) -> Result<JinjaValue, Error> {
    template_limits::pay_for_text(state, &message)?;
    let text = message.to_string();
    let mut characters = text.chars();
    let mut refusal: String = characters.by_ref().take(REFUSAL_CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        refusal.push('…');
    }
    Err(Error::new(ErrorKind::InvalidOperation, "").with_source(Refusal(refusal)))
}

/// The message passed to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refusal(String);

fn template_error(error: &Error) -> TemplateError {
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooSlow;
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(Refusal(message)) = current.downcast_ref() {
            return TemplateError::Refused(message.clone());
        }
        cause = current.source();
    }
    TemplateError::Failed(one_line(error))
}

fn one_line(error: &Error) -> String {
    let line = error
        .line()
        .map(|line| format!(" (line {line})"))
        .unwrap_or_default();
    format!(
        "{}{line}",
        error
            .detail()
            .map_or_else(|| error.kind().to_string(), str::to_owned)
    )
}

#[cfg(test)]
mod tests;
