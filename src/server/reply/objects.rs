//! The objects of OpenAI's replies. Each type serves chunks and whole replies: a whole reply is the first chunk with
//! the later ones appended.

use super::generation::{PromptProgress, Stop, Totals};
use super::logprobs::Logprobs;
use super::timings::Timings;
use crate::engine::request::{DraftReport, DraftSkip};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;

/// One event, or the whole reply.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Chunk {
    pub(super) choices: Vec<Choice>,
    /// Token counts so far; may be absent or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) usage: Option<Option<Usage>>,
    #[serde(flatten)]
    pub(super) extras: Extras,
}

/// Fields beyond OpenAI's API.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Extras {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) debug: Option<Debug>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_logprobs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_progress: Option<PromptProgress>,
    /// As llama.cpp's server reports them, in the last chunks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) timings: Option<Timings>,
}

/// Why prompts were not entirely found in the prefix cache, and what became of drafts.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Debug {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) prefix: Vec<PrefixMatch>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) drafts: Vec<Drafts>,
}

/// What became of the drafts of one choice.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Drafts {
    pub(super) choice: usize,
    drafted_tokens: u32,
    accepted_tokens: u32,
    /// Draws without drafts, by why there were none.
    skips: BTreeMap<&'static str, u32>,
}

impl Drafts {
    pub(super) fn new(choice: usize, report: DraftReport) -> Self {
        let names = DraftSkip::ALL.iter().map(|(_, name)| *name);
        let skips = names.zip(report.skips).collect();
        Self {
            choice,
            drafted_tokens: report.drafted,
            accepted_tokens: report.accepted,
            skips,
        }
    }
}

/// How much of one prompt was found in the prefix cache.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PrefixMatch {
    pub(super) prompt: usize,
    pub(super) cached_tokens: u32,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) host_cached_tokens: u32,
    /// Those of `cached_tokens` that were read from disk.
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) disk_cached_tokens: u32,
    pub(super) matched_tokens: u32,
    pub(super) first_difference: Option<Difference>,
    pub(super) stopped_by: &'static str,
}

/// The first token of the prompt that no cached prefix continues with.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Difference {
    pub(super) position: u32,
    pub(super) token_id: u32,
    pub(super) token: String,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Choice {
    pub(super) index: usize,
    #[serde(flatten)]
    pub(super) body: Body,
    pub(super) logprobs: Option<Logprobs>,
    pub(super) finish_reason: Option<&'static str>,
    /// Beside the finish reason: what of the request ended the choice, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: Option<Option<Stop>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) prompt_logprobs: Option<Value>,
}

impl Choice {
    /// A choice with nothing beside its content.
    pub(super) fn new(index: usize, body: Body) -> Self {
        Self {
            index,
            body,
            logprobs: None,
            finish_reason: None,
            stop_reason: None,
            token_ids: None,
            prompt_token_ids: None,
            prompt_logprobs: None,
        }
    }
}

/// The content of a choice.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Body {
    /// Part of a chat message, in a chunk.
    Delta(Message),
    /// A whole chat message.
    Message(Message),
    /// The text of a completion.
    Text(String),
}

/// A message, or the new part of one.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    /// Null if there are tool calls and no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<Option<String>>,
    /// Always null, and only in a whole message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) refusal: Option<()>,
    /// The reasoning before the answer.
    #[serde(
        flatten,
        serialize_with = "under_both_names",
        skip_serializing_if = "Option::is_none"
    )]
    pub(super) reasoning: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tool_calls: Option<Vec<ToolCall>>,
}

/// A tool call, or the next part of its arguments.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ToolCall {
    /// Index of the call in the message; in chunks only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    pub(super) function: FunctionCall,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FunctionCall {
    /// In the first chunk of the call only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Usage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptTokens,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionTokens>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptTokens {
    cached_tokens: u32,
    /// Those of them that came from host memory.
    #[serde(skip_serializing_if = "is_zero")]
    host_cached_tokens: u32,
    /// Those of `cached_tokens` that were read from disk.
    #[serde(skip_serializing_if = "is_zero")]
    disk_cached_tokens: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionTokens {
    reasoning_tokens: u32,
}

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        let Totals {
            prompt_tokens,
            cached,
            completion_tokens,
            ..
        } = totals;
        let reasoning_tokens = totals.reasoning_tokens;
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            prompt_tokens_details: PromptTokens {
                cached_tokens: cached.all,
                host_cached_tokens: cached.host,
                disk_cached_tokens: cached.disk,
            },
            completion_tokens_details: (reasoning_tokens > 0)
                .then_some(CompletionTokens { reasoning_tokens }),
        }
    }
}

impl Chunk {
    /// Appends a later chunk.
    pub(super) fn append(&mut self, later: Self) {
        for choice in later.choices {
            match self
                .choices
                .iter_mut()
                .find(|known| known.index == choice.index)
            {
                Some(known) => known.append(choice),
                None => self.choices.push(choice.begun()),
            }
        }
        self.usage = later.usage.or(self.usage);
        self.extras.append(later.extras);
    }
}

impl Extras {
    fn append(&mut self, later: Self) {
        match (&mut self.debug, later.debug) {
            (Some(debug), Some(later)) => {
                debug.prefix.extend(later.prefix);
                debug.drafts.extend(later.drafts);
            }
            (debug, later) => *debug = debug.take().or(later),
        }
        self.prompt_token_ids = self.prompt_token_ids.take().or(later.prompt_token_ids);
        self.prompt_logprobs = self.prompt_logprobs.take().or(later.prompt_logprobs);
        self.timings = later.timings.or(self.timings);
    }
}

impl Choice {
    /// Turns the first chunk of a choice into the beginning of the whole choice.
    fn begun(mut self) -> Self {
        if let Body::Delta(delta) = self.body {
            let mut message = Message {
                content: Some(None),
                refusal: Some(()),
                ..Message::default()
            };
            message.append(delta);
            self.body = Body::Message(message);
        }
        self
    }

    fn append(&mut self, later: Self) {
        match (&mut self.body, later.body) {
            (Body::Text(text), Body::Text(more)) => text.push_str(&more),
            (Body::Message(message), Body::Delta(delta)) => message.append(delta),
            _ => unreachable!("a choice is of one kind from its first chunk to its last"),
        }
        match (&mut self.logprobs, later.logprobs) {
            (Some(logprobs), Some(later)) => logprobs.append(later),
            (logprobs, later) => *logprobs = logprobs.take().or(later),
        }
        match (&mut self.token_ids, later.token_ids) {
            (Some(ids), Some(later)) => ids.extend(later),
            (ids, later) => *ids = ids.take().or(later),
        }
        self.finish_reason = later.finish_reason.or(self.finish_reason);
        self.stop_reason = later.stop_reason.or(self.stop_reason.take());
    }
}

impl Message {
    fn append(&mut self, delta: Self) {
        self.role = self.role.or(delta.role);
        push(&mut self.reasoning, delta.reasoning);
        if let Some(content) = &mut self.content {
            push(content, delta.content.flatten());
        }
        for call in delta.tool_calls.into_iter().flatten() {
            let calls = self.tool_calls.get_or_insert_default();
            match call.index.and_then(|index| calls.get_mut(index)) {
                Some(known) => known.function.arguments.push_str(&call.function.arguments),
                None => calls.push(ToolCall {
                    index: None,
                    ..call
                }),
            }
        }
        if self.tool_calls.is_some() {
            self.content = Some(
                self.content
                    .take()
                    .flatten()
                    .filter(|content| !content.is_empty()),
            );
        }
    }
}

/// Reasoning as vLLM's clients read it, and as DeepSeek's do.
fn under_both_names<S: Serializer>(
    reasoning: &Option<String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(2))?;
    map.serialize_entry("reasoning_content", reasoning)?;
    map.serialize_entry("reasoning", reasoning)?;
    map.end()
}

/// Appends to a text that may be absent.
fn push(text: &mut Option<String>, more: Option<String>) {
    match (text, more) {
        (Some(text), Some(more)) => text.push_str(&more),
        (text, more) => *text = text.take().or(more),
    }
}
