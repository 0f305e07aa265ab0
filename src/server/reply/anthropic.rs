//! [`AnthropicReply`]: the reply to `/v1/messages`, in Anthropic's form.
//!
//! A message is a list of blocks: thinking, text, calls of tools. A stream opens and closes them one after the other.
//! A whole reply is the blocks that the same deltas left behind.

use super::ReplyForm;
use super::generation::{Delta, Stop, Totals};
use crate::engine::request::FinishReason;
use crate::server::state::ModelState;
use crate::server::wire::error::{ApiError, Dialect};
use crate::server::wire::{json, sse};
use crate::text::answer::CallDelta;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The reply to one request.
pub(crate) struct AnthropicReply {
    id: String,
    model: String,
    is_begun: bool,
    blocks: Vec<Block>,
    /// The last block is not complete.
    is_open: bool,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    totals: Totals,
}

enum Block {
    Thinking(String),
    Text(String),
    ToolUse {
        id: String,
        name: String,
        arguments: String,
    },
}

impl Block {
    /// The block with what was written into it.
    fn content(&self) -> Content<'_> {
        match self {
            Self::Thinking(thinking) => Content::Thinking {
                thinking,
                signature: signature(thinking),
            },
            Self::Text(text) => Content::Text { text },
            Self::ToolUse {
                id,
                name,
                arguments,
            } => Content::ToolUse {
                id,
                name,
                input: json::object_of(arguments),
            },
        }
    }

    /// The block before anything was written into it.
    fn empty(&self) -> Value {
        match self {
            Self::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Self::Text(_) => json!({"type": "text", "text": ""}),
            Self::ToolUse { id, name, .. } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": {}})
            }
        }
    }
}

/// A complete block.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    Thinking {
        thinking: &'a str,
        signature: String,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        input: Box<RawValue>,
    },
}

/// A message with its blocks.
#[derive(Serialize)]
struct Message<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Content<'a>>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: Value,
}

/// A change of a block.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Change<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "signature_delta")]
    Signature { signature: String },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

/// The event of a change.
#[derive(Serialize)]
struct ChangeEvent<'a> {
    r#type: &'static str,
    index: usize,
    delta: Change<'a>,
}

/// Appends an event, whose data repeats its name as its type.
fn push(events: &mut String, name: &str, data: &impl Serialize) {
    sse::push_named(events, name, &json::write(data));
}

/// Clients send a thought back with its signature. It is not checked, because the thought is only read by the model
/// that wrote it.
fn signature(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

impl AnthropicReply {
    pub(crate) fn new(state: &ModelState, model: String) -> Self {
        Self {
            id: state.shared.new_id("msg"),
            model,
            is_begun: false,
            blocks: Vec::new(),
            is_open: false,
            stop_reason: None,
            stop_sequence: None,
            totals: Totals::default(),
        }
    }

    /// The message with these blocks.
    fn message<'a>(&'a self, content: Vec<Content<'a>>, output_tokens: u32) -> Message<'a> {
        Message {
            id: &self.id,
            r#type: "message",
            role: "assistant",
            model: &self.model,
            content,
            stop_reason: self.stop_reason,
            stop_sequence: self.stop_sequence.as_deref(),
            usage: self.usage(output_tokens),
        }
    }

    /// The prompt's tokens that were cached are counted apart.
    fn usage(&self, output_tokens: u32) -> Value {
        let Totals {
            prompt_tokens,
            cached,
            ..
        } = self.totals;
        json!({
            "input_tokens": prompt_tokens - cached.all,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached.all,
            "output_tokens": output_tokens,
        })
    }

    /// Begins a block; the one before it ends.
    fn open(&mut self, block: Block, events: &mut String) {
        self.close(events);
        let name = "content_block_start";
        push(
            events,
            name,
            &json!({"type": name, "index": self.blocks.len(), "content_block": block.empty()}),
        );
        self.blocks.push(block);
        self.is_open = true;
    }

    fn close(&mut self, events: &mut String) {
        let Some(last) = self.blocks.last() else {
            return;
        };
        if !self.is_open {
            return;
        }
        if let Block::Thinking(text) = last {
            self.change(
                events,
                Change::Signature {
                    signature: signature(text),
                },
            );
        }
        let name = "content_block_stop";
        push(
            events,
            name,
            &json!({"type": name, "index": self.blocks.len() - 1}),
        );
        self.is_open = false;
    }

    /// Adds a change of the last block.
    fn change(&self, events: &mut String, delta: Change<'_>) {
        let name = "content_block_delta";
        push(
            events,
            name,
            &ChangeEvent {
                r#type: name,
                index: self.blocks.len() - 1,
                delta,
            },
        );
    }

    fn thinking(&mut self, more: &str, events: &mut String) {
        if !matches!(self.blocks.last(), Some(Block::Thinking(_)) if self.is_open) {
            self.open(Block::Thinking(String::new()), events);
        }
        if let Some(Block::Thinking(text)) = self.blocks.last_mut() {
            text.push_str(more);
        }
        self.change(events, Change::Thinking { thinking: more });
    }

    fn text(&mut self, more: &str, events: &mut String) {
        if !matches!(self.blocks.last(), Some(Block::Text(_)) if self.is_open) {
            // Line breaks between calls are no answer.
            if more.trim().is_empty() && matches!(self.blocks.last(), Some(Block::ToolUse { .. })) {
                return;
            }
            self.open(Block::Text(String::new()), events);
        }
        if let Some(Block::Text(text)) = self.blocks.last_mut() {
            text.push_str(more);
        }
        self.change(events, Change::Text { text: more });
    }

    fn call(&mut self, call: CallDelta, events: &mut String) {
        if let Some(name) = call.name {
            let hash = blake3::hash(format!("{} {}", self.id, call.index).as_bytes()).to_hex();
            let id = format!("toolu_{}", &hash[..24]);
            self.open(
                Block::ToolUse {
                    id,
                    name,
                    arguments: String::new(),
                },
                events,
            );
        }
        if call.arguments.is_empty() {
            return;
        }
        if let Some(Block::ToolUse { arguments, .. }) = self.blocks.last_mut() {
            arguments.push_str(&call.arguments);
        }
        self.change(
            events,
            Change::Input {
                partial_json: &call.arguments,
            },
        );
    }

    /// Ends the message.
    fn finish(&mut self, finish: FinishReason, stop: Option<String>, events: &mut String) {
        self.close(events);
        let has_calls = self
            .blocks
            .iter()
            .any(|block| matches!(block, Block::ToolUse { .. }));
        self.stop_reason = Some(match finish {
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if stop.is_some() => "stop_sequence",
            FinishReason::Stop if has_calls => "tool_use",
            FinishReason::Stop => "end_turn",
        });
        self.stop_sequence = stop;
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence});
        let (name, usage) = ("message_delta", self.usage(self.totals.completion_tokens));
        push(
            events,
            name,
            &json!({"type": name, "delta": delta, "usage": usage}),
        );
        push(events, "message_stop", &json!({"type": "message_stop"}));
    }
}

impl ReplyForm for AnthropicReply {
    /// The events of a delta.
    type Chunk = String;
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<String> {
        self.totals = totals;
        let mut events = String::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            let name = "message_start";
            push(
                &mut events,
                name,
                &json!({"type": name, "message": self.message(Vec::new(), 0)}),
            );
        }
        let parts = delta.parts;
        if !parts.reasoning.is_empty() {
            self.thinking(&parts.reasoning, &mut events);
        }
        if !parts.content.is_empty() {
            self.text(&parts.content, &mut events);
        }
        parts
            .calls
            .into_iter()
            .for_each(|call| self.call(call, &mut events));
        if let Some(finish) = delta.finish {
            let stop = match delta.stop {
                Some(Stop::Text(stop)) => Some(stop),
                Some(Stop::Token(_)) | None => None,
            };
            self.finish(finish, stop, &mut events);
        }
        vec![events]
    }

    fn last_chunk(&self, _: Totals) -> Option<String> {
        None
    }

    fn event(&self, chunk: String) -> String {
        chunk
    }

    fn error(&mut self, error: &ApiError) -> String {
        let mut event = String::new();
        sse::push_named(&mut event, "error", &error.json(Dialect::Anthropic));
        event
    }

    fn whole(&self, _: Vec<String>) -> String {
        let blocks = self.blocks.iter().map(Block::content).collect();
        json::write(&self.message(blocks, self.totals.completion_tokens))
    }
}
