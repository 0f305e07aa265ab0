//! [`Turn`]: what every API asks for, whatever its form: a conversation to answer, and how. [`Conversation`]: the input
//! of the chat template.

use crate::server::parameters::kinds::images;
use crate::server::parameters::kinds::messages::MessageList;
use crate::server::parameters::prepared::{
    TemplateForm, prepare, unreadable_arguments, with_images_behind_results,
};
use crate::server::parameters::sampling::SamplingRequest;
use crate::server::parameters::table::ConversationFields;
use crate::server::parameters::thinking::Thinking;
use crate::server::parameters::tools;
use crate::server::parameters::turns::Turns;
use crate::server::wire::error::ApiError;
use crate::text::answer::{Parsing, ToolChoice};
use crate::text::integers;
use serde_json::{Map, Value};

/// How tools are described where the chat template does not do it.
const TOOLS_BEFORE: &str = "You can call these functions:";
const TOOLS_AFTER: &str = "To call one, answer with nothing but JSON: {\"name\": …, \"arguments\": {…}}. To call \
                           several, answer with a JSON list of such objects. Otherwise answer in words.";

/// How a result is introduced there.
const RESULT_BEFORE: &str = "The function returned:";

/// One answer in a conversation that a client asks for.
pub(crate) struct Turn {
    pub(crate) conversation: Conversation,
    pub(crate) sampling: SamplingRequest,
}

/// Input of the chat template.
pub(crate) struct Conversation {
    pub(crate) messages: MessageList,
    pub(crate) tools: ToolChoice,
    pub(crate) kwargs: Option<Map<String, Value>>,
    pub(crate) add_generation_prompt: bool,
    pub(crate) continue_final: bool,
    /// Which parts of the answer are told apart.
    pub(crate) parsing: Parsing,
}

impl Conversation {
    /// Checks fields that depend on each other.
    pub(crate) fn new(fields: ConversationFields) -> Result<Self, ApiError> {
        let continue_final = fields.continue_final_message;
        let add_generation_prompt = fields.add_generation_prompt.unwrap_or(!continue_final);
        if continue_final && add_generation_prompt {
            let message = "`continue_final_message` needs `add_generation_prompt`: false";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let tools = tools::resolve(
            fields.tools,
            fields.tool_choice,
            !fields.parallel_tool_calls,
        )?;
        let effort = Thinking::of_effort(fields.reasoning_effort);
        let thinking = Thinking {
            on: fields.enable_thinking.or(effort.on),
            ..effort
        };
        Ok(Self {
            messages: fields.messages,
            tools,
            kwargs: thinking.variables(fields.template.chat_template_kwargs),
            add_generation_prompt,
            continue_final,
            parsing: Parsing {
                reasoning: fields.reasoning_format != Some("none"),
                calls: fields.parse_tool_calls,
            },
        })
    }

    /// With the variables of a server, which those of the request precede.
    pub(crate) fn with_defaults(mut self, defaults: &Map<String, Value>) -> Self {
        if !defaults.is_empty() {
            let mut kwargs = defaults.clone();
            kwargs.extend(self.kwargs.take().unwrap_or_default());
            self.kwargs = Some(kwargs);
        }
        self
    }

    /// The text of the last message, if the answer continues it.
    pub(crate) fn continued(&self) -> Option<String> {
        if !self.continue_final {
            return None;
        }
        let last = self.messages.as_array()?.last()?;
        Some(last["content"].as_str().unwrap_or_default().to_owned())
    }

    /// The text of the last message, if it is the assistant's.
    pub(crate) fn last_answer(&self) -> Option<String> {
        let last = self.messages.as_array()?.last()?;
        let is_answer = last["role"] == "assistant";
        last["content"]
            .as_str()
            .filter(|text| is_answer && !text.is_empty())
            .map(str::to_owned)
    }

    /// Refuses images, where only texts are read.
    pub(crate) fn refuse_images(&self) -> Result<(), ApiError> {
        match self.messages.images().first() {
            None => Ok(()),
            Some(image) => Err(ApiError::unsupported(
                image.name.clone(),
                "only text is read here, no images",
            )),
        }
    }

    /// Puts the images of results behind them, as the user's.
    pub(crate) fn move_images_of_results(&mut self) {
        self.messages.change(with_images_behind_results);
    }

    /// Gives the messages the form that a template reads.
    pub(crate) fn prepare(&mut self, form: TemplateForm) {
        self.messages.change(|messages| prepare(messages, form));
    }

    /// Whether a content is a list of parts.
    pub(crate) fn has_parts(&self) -> bool {
        let messages = self.messages.as_array().into_iter().flatten();
        messages
            .map(|message| &message["content"])
            .any(Value::is_array)
    }

    /// The first call whose arguments are no JSON object: indices of its message and in it.
    pub(crate) fn unreadable_arguments(&self) -> Option<(usize, usize)> {
        self.messages
            .as_array()
            .and_then(|messages| unreadable_arguments(messages))
    }

    /// For a template that shows no tools: the same conversation with tools, calls and results written as text. A call
    /// is JSON as the whole answer, which is what such a model's answers are parsed for. The tools are described in the
    /// instructions, or by the user if the template knows no instructions.
    pub(crate) fn with_tools_as_text(&self, has_system: bool) -> Self {
        let mut turns = Turns::default();
        if let Some(Value::Array(tools)) = &self.tools.shown {
            let functions: Vec<_> = tools
                .iter()
                .map(|tool| integers::to_json(&tool["function"]))
                .collect();
            turns.system(&format!(
                "{TOOLS_BEFORE}\n{}\n{TOOLS_AFTER}",
                functions.join("\n")
            ));
        }
        for message in self.messages.as_array().into_iter().flatten() {
            let content = message["content"].as_str().unwrap_or_default();
            match message["role"].as_str() {
                Some("system") => turns.system(content),
                Some("assistant") => {
                    turns.assistant(content);
                    let calls = message["tool_calls"].as_array().into_iter().flatten();
                    calls.for_each(|call| turns.assistant(&integers::to_json(&call["function"])));
                }
                Some("tool") => {
                    turns.user(RESULT_BEFORE);
                    add_of_user(&mut turns, &message["content"]);
                }
                _ => add_of_user(&mut turns, &message["content"]),
            }
        }
        let messages = if has_system {
            turns.messages()
        } else {
            turns.messages_without_system()
        };
        let (tools, kwargs) = (self.tools.clone(), self.kwargs.clone());
        let Self {
            add_generation_prompt,
            continue_final,
            parsing,
            ..
        } = *self;
        Self {
            messages,
            tools,
            kwargs,
            add_generation_prompt,
            continue_final,
            parsing,
        }
    }

    /// Whether the conversation has tools, or calls of earlier turns.
    pub(crate) fn uses_tools(&self) -> bool {
        self.tools.shown.is_some()
            || self
                .messages
                .as_array()
                .into_iter()
                .flatten()
                .any(|message| message["role"] == "tool" || message["tool_calls"].is_array())
    }

    /// Minimum bytes of the prompt: the text that every template writes.
    pub(crate) fn content_bytes(&self) -> usize {
        let Value::Array(messages) = &*self.messages else {
            return 0;
        };
        messages
            .iter()
            .map(|message| match &message["content"] {
                Value::Array(parts) => parts.iter().map(|part| text_bytes(&part["text"])).sum(),
                content => text_bytes(content),
            })
            .sum()
    }
}

/// Adds a content of the user, a text or parts, whose images have been read.
fn add_of_user(turns: &mut Turns, content: &Value) {
    let Value::Array(parts) = content else {
        return turns.user(content.as_str().unwrap_or_default());
    };
    for part in parts {
        if images::is_image(part) {
            turns.image_part();
        } else {
            turns.user(part["text"].as_str().unwrap_or_default());
        }
    }
}

fn text_bytes(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}
