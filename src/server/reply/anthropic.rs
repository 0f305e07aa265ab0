//! [`AnthropicReply`]: the reply to `/v1/messages`, in Anthropic's form.
//!
//! A message is a list of blocks: thinking, text, calls of tools. A stream opens and closes them one after the other.
//! A whole reply is the blocks that the same deltas left behind.

use super::ReplyForm;
use super::generation::{Delta, Totals};
use crate::engine::request::FinishReason;
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, Dialect};
use crate::server::wire::sse;
use crate::text::answer::CallDelta;
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
    ToolUse { id: String, name: String, arguments: String },
}

impl Block {
    /// The block with what was written into it.
    fn json(&self) -> Value {
        match self {
            Self::Thinking(text) => json!({"type": "thinking", "thinking": text, "signature": signature(text)}),
            Self::Text(text) => json!({"type": "text", "text": text}),
            Self::ToolUse { id, name, arguments } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": input(arguments)})
            }
        }
    }

    /// The block before anything was written into it.
    fn empty(&self) -> Value {
        match self {
            Self::Thinking(_) => json!({"type": "thinking", "thinking": "", "signature": ""}),
            Self::Text(_) => json!({"type": "text", "text": ""}),
            Self::ToolUse { id, name, .. } => json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
        }
    }
}

/// Clients send a thought back with its signature. It is not checked, because the thought is only read by the model
/// that wrote it.
fn signature(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// The arguments as an object. Those that are none, because the answer was cut, are wrapped as Anthropic's
/// documentation recommends.
fn input(arguments: &str) -> Value {
    match serde_json::from_str(arguments) {
        Ok(object @ Value::Object(_)) => object,
        _ if arguments.trim().is_empty() => json!({}),
        _ => json!({"INVALID_JSON": arguments}),
    }
}

impl AnthropicReply {
    pub(crate) fn new(state: &ServerState, model: String) -> Self {
        Self {
            id: state.new_id("msg"),
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
    fn message(&self, content: &[Value], output_tokens: u32) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": self.stop_reason,
            "stop_sequence": self.stop_sequence,
            "usage": self.usage(output_tokens),
        })
    }

    /// The prompt's tokens that were cached are counted apart.
    fn usage(&self, output_tokens: u32) -> Value {
        let Totals { prompt_tokens, cached_tokens, .. } = self.totals;
        json!({
            "input_tokens": prompt_tokens - cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
            "output_tokens": output_tokens,
        })
    }

    /// Begins a block; the one before it ends.
    fn open(&mut self, block: Block, events: &mut Vec<Value>) {
        self.close(events);
        let start = json!({
            "type": "content_block_start",
            "index": self.blocks.len(),
            "content_block": block.empty(),
        });
        events.push(start);
        self.blocks.push(block);
        self.is_open = true;
    }

    fn close(&mut self, events: &mut Vec<Value>) {
        let Some(last) = self.blocks.last().filter(|_| self.is_open) else { return };
        if let Block::Thinking(text) = last {
            events.push(self.delta(&json!({"type": "signature_delta", "signature": signature(text)})));
        }
        events.push(json!({"type": "content_block_stop", "index": self.blocks.len() - 1}));
        self.is_open = false;
    }

    /// A change of the last block.
    fn delta(&self, delta: &Value) -> Value {
        json!({"type": "content_block_delta", "index": self.blocks.len() - 1, "delta": delta})
    }

    fn thinking(&mut self, more: &str, events: &mut Vec<Value>) {
        if !matches!(self.blocks.last(), Some(Block::Thinking(_)) if self.is_open) {
            self.open(Block::Thinking(String::new()), events);
        }
        if let Some(Block::Thinking(text)) = self.blocks.last_mut() {
            text.push_str(more);
        }
        events.push(self.delta(&json!({"type": "thinking_delta", "thinking": more})));
    }

    fn text(&mut self, more: &str, events: &mut Vec<Value>) {
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
        events.push(self.delta(&json!({"type": "text_delta", "text": more})));
    }

    fn call(&mut self, call: CallDelta, events: &mut Vec<Value>) {
        if let Some(name) = call.name {
            let hash = blake3::hash(format!("{} {}", self.id, call.index).as_bytes()).to_hex();
            let id = format!("toolu_{}", &hash[..24]);
            self.open(Block::ToolUse { id, name, arguments: String::new() }, events);
        }
        if call.arguments.is_empty() {
            return;
        }
        if let Some(Block::ToolUse { arguments, .. }) = self.blocks.last_mut() {
            arguments.push_str(&call.arguments);
        }
        events.push(self.delta(&json!({"type": "input_json_delta", "partial_json": call.arguments})));
    }

    /// Ends the message.
    fn finish(&mut self, finish: FinishReason, stop: Option<String>, events: &mut Vec<Value>) {
        self.close(events);
        let has_calls = self.blocks.iter().any(|block| matches!(block, Block::ToolUse { .. }));
        self.stop_reason = Some(match finish {
            FinishReason::Length => "max_tokens",
            FinishReason::Stop if stop.is_some() => "stop_sequence",
            FinishReason::Stop if has_calls => "tool_use",
            FinishReason::Stop => "end_turn",
        });
        self.stop_sequence = stop;
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": self.stop_sequence});
        events
            .push(json!({"type": "message_delta", "delta": delta, "usage": self.usage(self.totals.completion_tokens)}));
        events.push(json!({"type": "message_stop"}));
    }
}

impl ReplyForm for AnthropicReply {
    type Chunk = Value;
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<Value> {
        self.totals = totals;
        let mut events = Vec::new();
        if !std::mem::replace(&mut self.is_begun, true) {
            events.push(json!({"type": "message_start", "message": self.message(&[], 0)}));
        }
        let parts = delta.parts;
        if !parts.reasoning.is_empty() {
            self.thinking(&parts.reasoning, &mut events);
        }
        if !parts.content.is_empty() {
            self.text(&parts.content, &mut events);
        }
        parts.calls.into_iter().for_each(|call| self.call(call, &mut events));
        if let Some(finish) = delta.finish {
            self.finish(finish, delta.stop, &mut events);
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
        sse::named("error", &error.json(Dialect::Anthropic))
    }

    fn whole(&self, _: Vec<Value>) -> String {
        let blocks: Vec<_> = self.blocks.iter().map(Block::json).collect();
        self.message(&blocks, self.totals.completion_tokens).to_string()
    }
}
