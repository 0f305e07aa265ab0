//! [`Turns`]: a conversation of another API, in the form of chat messages.
//!
//! Anthropic's and OpenAI's newer APIs send a conversation as blocks or items, several for one turn. Chat templates
//! expect turns: at most one system message, which is first, then messages of the user, of the assistant with its
//! calls, and of tools. Text that follows text of the same role is joined to it. Instructions that come later than the
//! first message of the user become part of the user's turn, because many templates refuse them anywhere else.

use crate::server::images::GivenImage;
use crate::server::parameters::kinds::images::{self, Piece};
use crate::server::parameters::kinds::messages::MessageList;
use serde_json::{Map, Value, json};

/// A conversation, turn by turn.
#[derive(Default)]
pub(crate) struct Turns {
    system: String,
    turns: Vec<Map<String, Value>>,
    /// Those that parts of the turns stand for, in order.
    images: Vec<GivenImage>,
}

impl Turns {
    /// Adds instructions.
    pub(crate) fn system(&mut self, text: &str) {
        if self.turns.is_empty() {
            join(&mut self.system, text);
        } else {
            self.user(text);
        }
    }

    /// Adds text of the user.
    pub(crate) fn user(&mut self, text: &str) {
        join_value(
            self.turn("user")
                .entry("content")
                .or_insert_with(|| "".into()),
            text,
        );
    }

    /// Adds an image of the user.
    pub(crate) fn image(&mut self, image: GivenImage) {
        self.images.push(image);
        self.image_part();
    }

    /// Adds a part of the user that stands for an image. What the turn has becomes parts.
    pub(crate) fn image_part(&mut self) {
        let content = self
            .turn("user")
            .entry("content")
            .or_insert_with(|| json!([]));
        if let Value::String(text) = content {
            let part = (!text.is_empty()).then(|| images::text_part(text));
            *content = part.into_iter().collect();
        }
        if let Value::Array(parts) = content {
            parts.push(images::part());
        }
    }

    /// Adds text of the assistant.
    pub(crate) fn assistant(&mut self, text: &str) {
        join_value(
            self.turn("assistant")
                .entry("content")
                .or_insert_with(|| "".into()),
            text,
        );
    }

    /// Adds what the assistant thought before its answer.
    pub(crate) fn reasoning(&mut self, text: &str) {
        join_value(
            self.turn("assistant")
                .entry("reasoning_content")
                .or_insert_with(|| "".into()),
            text,
        );
    }

    /// Adds a call by the assistant.
    pub(crate) fn call(&mut self, id: &str, name: &str, arguments: &Value) {
        let call = json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        match self
            .turn("assistant")
            .entry("tool_calls")
            .or_insert_with(|| json!([]))
        {
            Value::Array(calls) => calls.push(call),
            _ => unreachable!("only this function writes calls"),
        }
    }

    /// Adds the result of a call: a text, or texts and images.
    pub(crate) fn result(&mut self, id: &str, pieces: Vec<Piece>) {
        let content: Value = match &*pieces {
            [] => "".into(),
            [Piece::Text(text)] => text.as_str().into(),
            _ => {
                let parts = pieces.into_iter().map(|piece| self.result_part(piece));
                parts.collect()
            }
        };
        let turn = json!({"role": "tool", "tool_call_id": id, "content": content});
        self.turns.extend(turn.as_object().cloned());
    }

    fn result_part(&mut self, piece: Piece) -> Value {
        match piece {
            Piece::Text(text) => images::text_part(&text),
            Piece::Image(image) => {
                self.images.push(image);
                images::part()
            }
        }
    }

    /// Whether the conversation ends with text of the assistant, which an answer continues.
    pub(crate) fn ends_with_text(&self) -> bool {
        let last = self.turns.last().filter(|turn| turn["role"] == "assistant");
        last.is_some_and(|turn| {
            !turn.contains_key("tool_calls") && turn.get("content").is_some_and(|text| text != "")
        })
    }

    /// Whether there is nothing but instructions.
    pub(crate) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// The messages for a chat template that refuses the role of instructions: the first message of the user begins
    /// with them.
    pub(crate) fn messages_without_system(mut self) -> MessageList {
        let mut instructions = std::mem::take(&mut self.system);
        match self
            .turns
            .first_mut()
            .filter(|turn| turn["role"] == "user")
            .and_then(|turn| turn.get_mut("content"))
        {
            Some(Value::String(text)) if !instructions.is_empty() => {
                instructions.push('\n');
                join(&mut instructions, text);
                *text = instructions;
            }
            Some(Value::Array(parts)) if !instructions.is_empty() => {
                parts.insert(0, images::text_part(&instructions));
            }
            Some(_) => {}
            None => {
                let user = json!({"role": "user", "content": instructions});
                self.turns.splice(0..0, user.as_object().cloned());
            }
        }
        self.messages()
    }

    /// The messages for the chat template.
    pub(crate) fn messages(self) -> MessageList {
        let system =
            (!self.system.is_empty()).then(|| json!({"role": "system", "content": self.system}));
        let turns = self.turns.into_iter().map(|mut turn| {
            turn.entry("content").or_insert_with(|| "".into());
            Value::Object(turn)
        });
        MessageList::new(system.into_iter().chain(turns).collect(), self.images)
    }

    /// The last turn, if it is of this role; else a new one.
    fn turn(&mut self, role: &'static str) -> &mut Map<String, Value> {
        if self.turns.last().is_none_or(|turn| turn["role"] != role) {
            self.turns
                .push(Map::from_iter([("role".to_owned(), role.into())]));
        }
        self.turns.last_mut().expect("there is a turn: added above")
    }
}

/// Adds a paragraph.
fn join(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

fn join_value(value: &mut Value, more: &str) {
    match value {
        Value::String(text) => join(text, more),
        Value::Array(parts) if !more.is_empty() => parts.push(images::text_part(more)),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
