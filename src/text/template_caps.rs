//! [`TemplateCaps`]: what a chat template shows of a conversation, found by rendering small ones.

use super::template::{ChatInput, ChatTemplate};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// A word that no template has.
const WORD: &str = "probe7f3a";
/// A second one.
const OTHER: &str = "probe91c4";
/// Maximum bytes of a rendered conversation: templates may write long instructions beside it.
const BYTES_MAX: usize = 1 << 20;

/// What a template shows, under the names by which llama.cpp's server reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TemplateCaps {
    /// The content of a message may be a text.
    pub supports_string_content: bool,
    /// The content of a message may be a list of parts.
    pub supports_typed_content: bool,
    /// Tools are described.
    pub supports_tools: bool,
    /// Calls of earlier answers are shown.
    pub supports_tool_calls: bool,
    /// All calls of one answer are.
    pub supports_parallel_tool_calls: bool,
    /// The arguments of a call may be an object.
    pub supports_object_arguments: bool,
    /// Instructions are shown.
    pub supports_system_role: bool,
    /// Thoughts of all earlier answers are shown.
    pub supports_preserve_reasoning: bool,
    /// The effort of thinking makes a difference.
    pub supports_reasoning_effort: bool,
}

impl ChatTemplate {
    /// What this template shows.
    pub fn caps(&self) -> TemplateCaps {
        let user = |content: Value| json!({"role": "user", "content": content});
        let hello = user("Hello".into());
        let shows = |messages: Value| self.probe(&messages, None, None).unwrap_or_default();
        let parts = shows(json!([user(json!([{"type": "text", "text": WORD}]))]));
        let call = shows(json!([hello, calling(&[WORD]), result(0)]));
        let calls = shows(json!([
            hello,
            calling(&[WORD, OTHER]),
            result(0),
            result(1)
        ]));
        let thought = json!({"role": "assistant", "content": "Yes.", "reasoning_content": WORD});
        let tools = json!([{"type": "function", "function": {"name": WORD, "description": "Looks.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}}]);
        let question = json!([hello]);
        let with_effort = |effort: &str| {
            let kwargs = Map::from_iter([("reasoning_effort".to_owned(), effort.into())]);
            self.probe(&question, None, Some(&kwargs))
        };
        TemplateCaps {
            supports_string_content: shows(json!([user(WORD.into())])).contains(WORD),
            // A list that is written as such is not understood.
            supports_typed_content: parts.contains(WORD) && !parts.contains("type"),
            supports_tools: self
                .probe(&question, Some(&tools), None)
                .is_some_and(|text| text.contains(WORD)),
            supports_tool_calls: call.contains(WORD),
            supports_parallel_tool_calls: [WORD, OTHER].iter().all(|word| calls.contains(word)),
            supports_object_arguments: call.contains("place_of_call"),
            supports_system_role: shows(json!([{"role": "system", "content": WORD}, hello]))
                .contains(WORD),
            supports_preserve_reasoning: shows(json!([hello, thought, hello])).contains(WORD),
            supports_reasoning_effort: with_effort("low") != with_effort("high"),
        }
    }

    /// Whether an image in the result of a call is shown. It is not if the template leaves it out, refuses it, or
    /// writes its part as such.
    pub fn shows_images_of_results(&self) -> bool {
        let text = json!({"type": "text", "text": WORD});
        let shows = |parts: Value| {
            let mut found = result(0);
            found["content"] = parts;
            // A template that shows images knows parts.
            let hello = json!({"role": "user", "content": [{"type": "text", "text": "Hello"}]});
            let messages = json!([hello, calling(&[OTHER]), found]);
            self.probe(&messages, None, None).unwrap_or_default()
        };
        let with_image = shows(json!([{"type": "image"}, text]));
        // Between parts, templates may write space.
        let without_space = |text: &str| text.split_whitespace().collect::<String>();
        with_image.contains(WORD)
            && !with_image.contains("'type'")
            && !with_image.contains("\"type\"")
            && without_space(&with_image) != without_space(&shows(json!([text])))
    }

    /// Whether texts of a content that is a list of parts are shown. They are not if the template leaves one out, or
    /// writes the list as such.
    pub fn shows_parts(&self) -> bool {
        let part = |text: &str| json!({"type": "text", "text": text});
        let hello = json!([{"role": "user", "content": [part(WORD), part(OTHER)]}]);
        let text = self.probe(&hello, None, None).unwrap_or_default();
        let behind = text.split_once(WORD).map_or("", |(_, behind)| behind);
        let between = behind.split_once(OTHER).map(|(between, _)| between);
        between.is_some_and(|between| between.trim().is_empty())
    }

    /// A conversation as text; `None` if the template refuses it.
    fn probe(
        &self,
        messages: &Value,
        tools: Option<&Value>,
        kwargs: Option<&Map<String, Value>>,
    ) -> Option<String> {
        let input = ChatInput {
            messages,
            tools,
            kwargs,
            add_generation_prompt: true,
            continue_final: false,
            unix_time: 0,
            bytes_max: BYTES_MAX,
        };
        self.render(&input).ok()
    }
}

/// An answer with calls of these functions.
fn calling(names: &[&str]) -> Value {
    let calls = names.iter().enumerate().map(|(index, name)| {
        json!({"id": call_id(index), "type": "function",
            "function": {"name": name, "arguments": {"place_of_call": 1}}})
    });
    json!({"role": "assistant", "content": "", "tool_calls": calls.collect::<Vec<_>>()})
}

/// The result of a call.
fn result(index: usize) -> Value {
    json!({"role": "tool", "tool_call_id": call_id(index), "content": "Found."})
}

/// Nine letters and digits, which some templates demand.
fn call_id(index: usize) -> String {
    format!("call{index:05}")
}

#[cfg(test)]
mod tests;
