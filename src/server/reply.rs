//! [`Reply`]: the pieces of a generation as OpenAI's JSON, whole or chunk by chunk.

use super::generate::{Piece, Totals};
use super::tools::CallDelta;
use crate::engine::request::{FinishReason, Token, TokenLogprob};
use crate::text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What stands for a probability of zero.
const LOGPROB_MIN: f32 = -9999.0;

/// Which of the two APIs is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Chat,
    Completion,
}

/// The form of one request's answer.
pub(super) struct Reply {
    pub(super) kind: Kind,
    pub(super) id: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) wants_logprobs: bool,
    pub(super) include_usage: bool,
    pub(super) continuous_usage: bool,
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Mistral's templates want call ids of nine characters.
    pub(super) short_call_ids: bool,
    /// Per choice: what was already said of it.
    pub(super) progress: Vec<Progress>,
}

/// What was already said of a choice.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    role_sent: bool,
    has_calls: bool,
    /// Characters of the tokens so far.
    text_offset: usize,
}

/// The keys around the choices, in OpenAI's order.
#[derive(Serialize)]
struct Envelope<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: Option<&'a str>,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Value>>,
}

#[derive(Serialize)]
struct ChatChunk<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<Value>,
}

#[derive(Serialize)]
struct CompletionChoice<'a> {
    index: usize,
    text: &'a str,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
}

fn reason(finish: FinishReason, has_calls: bool) -> &'static str {
    match finish {
        FinishReason::Stop if has_calls => "tool_calls",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

fn usage(totals: Totals) -> Value {
    let Totals { prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens } = totals;
    let mut usage = json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    });
    if reasoning_tokens > 0 {
        usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning_tokens});
    }
    usage
}

impl Reply {
    fn envelope<C: Serialize>(&self, object: &'static str, choices: C, usage: Option<Option<Value>>) -> String {
        let (id, created, model) = (&self.id, self.created, &self.model);
        let envelope = Envelope { id, object, created, model, system_fingerprint: None, choices, usage };
        serde_json::to_string(&envelope).expect("strings and numbers always serialise")
    }

    fn chunk<C: Serialize>(&self, choices: C, totals: Totals) -> String {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        let now = self.continuous_usage.then(|| usage(totals));
        let json = self.envelope(object, choices, self.include_usage.then_some(now));
        format!("data: {json}\n\n")
    }

    /// The events of one piece: the role once, then text, then the reason for the end.
    pub(super) fn events(&mut self, piece: &Piece, totals: Totals) -> String {
        let index = piece.choice;
        let logprobs = self.logprobs(piece);
        let parts = &piece.parts;
        self.progress[index].has_calls |= !parts.calls.is_empty();
        let finish_reason = piece.finish.map(|finish| reason(finish, self.progress[index].has_calls));
        if self.kind == Kind::Completion {
            let choice = CompletionChoice { index, text: &parts.content, logprobs, finish_reason };
            return self.chunk([choice], totals);
        }
        let chunk = |delta, logprobs, finish_reason| [ChatChunk { index, delta, logprobs, finish_reason }];
        let mut events = String::new();
        if !std::mem::replace(&mut self.progress[index].role_sent, true) {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            events.push_str(&self.chunk(chunk(delta, None, None), totals));
        }
        if !parts.reasoning.is_empty() {
            let delta = Delta { reasoning_content: Some(&parts.reasoning), ..Delta::default() };
            events.push_str(&self.chunk(chunk(delta, None, None), totals));
        }
        if !parts.content.is_empty() || logprobs.is_some() {
            let delta = Delta { content: Some(&parts.content), ..Delta::default() };
            events.push_str(&self.chunk(chunk(delta, logprobs, None), totals));
        }
        for call in &parts.calls {
            let delta = Delta { tool_calls: Some(json!([self.call_delta(index, call)])), ..Delta::default() };
            events.push_str(&self.chunk(chunk(delta, None, None), totals));
        }
        if finish_reason.is_some() {
            events.push_str(&self.chunk(chunk(Delta::default(), None, finish_reason), totals));
        }
        events
    }

    /// The end of a stream that went well.
    pub(super) fn last_events(&self, totals: Totals) -> String {
        let mut events = String::new();
        if self.include_usage {
            let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
            let none: [Value; 0] = [];
            events = format!("data: {}\n\n", self.envelope(object, none, Some(Some(usage(totals)))));
        }
        events.push_str("data: [DONE]\n\n");
        events
    }

    /// The whole answer; `pieces` holds all of each choice, in order.
    pub(super) fn whole(&mut self, pieces: &[Piece], totals: Totals) -> String {
        let mut choices = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (index, parts) = (piece.choice, &piece.parts);
            let text = &parts.content;
            let finish_reason = piece.finish.map(|finish| reason(finish, !parts.calls.is_empty()));
            let logprobs = self.logprobs(piece);
            choices.push(match self.kind {
                Kind::Completion => {
                    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason})
                }
                Kind::Chat => {
                    let mut message = json!({"role": "assistant", "content": text, "refusal": null});
                    if !parts.reasoning.is_empty() {
                        message["reasoning_content"] = parts.reasoning.as_str().into();
                    }
                    if !parts.calls.is_empty() {
                        message["tool_calls"] = self.whole_calls(index, &parts.calls);
                        if text.is_empty() {
                            message["content"] = Value::Null;
                        }
                    }
                    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason})
                }
            });
        }
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        self.envelope(object, choices, Some(Some(usage(totals))))
    }

    /// One delta of a call: id, type and name come first, then arguments only.
    fn call_delta(&self, choice: usize, call: &CallDelta) -> Value {
        match &call.name {
            Some(name) => json!({
                "index": call.index,
                "id": self.call_id(choice, call.index),
                "type": "function",
                "function": {"name": name, "arguments": call.arguments},
            }),
            None => json!({"index": call.index, "function": {"arguments": call.arguments}}),
        }
    }

    fn whole_calls(&self, choice: usize, deltas: &[CallDelta]) -> Value {
        let mut calls: Vec<(usize, &str, String)> = Vec::new();
        for delta in deltas {
            match (&delta.name, calls.iter_mut().find(|call| call.0 == delta.index)) {
                (_, Some(call)) => call.2.push_str(&delta.arguments),
                (Some(name), None) => calls.push((delta.index, name, delta.arguments.clone())),
                (None, None) => {}
            }
        }
        let call = |(index, name, arguments): (usize, &str, String)| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": self.call_id(choice, index), "type": "function", "function": function})
        };
        calls.into_iter().map(call).collect()
    }

    /// Unique, as the answer's own id is.
    fn call_id(&self, choice: usize, index: usize) -> String {
        let hash = blake3::hash(format!("{} {choice} {index}", self.id).as_bytes()).to_hex();
        if self.short_call_ids { hash[..9].to_owned() } else { format!("call_{}", &hash[..24]) }
    }

    fn logprobs(&mut self, piece: &Piece) -> Option<Value> {
        if !self.wants_logprobs || piece.tokens.is_empty() {
            return None;
        }
        Some(match self.kind {
            Kind::Chat => self.chat_logprobs(&piece.tokens),
            Kind::Completion => self.completion_logprobs(&piece.tokens, piece.choice),
        })
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(id, None)).unwrap_or_default()
    }

    fn chat_logprobs(&self, tokens: &[Token]) -> Value {
        let entry = |id: u32, logprob: f32| {
            let bytes = self.token_bytes(id);
            let mut entry = Map::new();
            entry.insert("token".into(), String::from_utf8_lossy(&bytes).into());
            entry.insert("logprob".into(), logprob.max(LOGPROB_MIN).into());
            entry.insert("bytes".into(), bytes.into());
            entry
        };
        let content = tokens.iter().map(|token| {
            let mut chosen = entry(token.id, token.logprob.unwrap_or(LOGPROB_MIN));
            let top = token.top_logprobs.iter().map(|top| Value::Object(entry(top.token_id, top.logprob)));
            chosen.insert("top_logprobs".into(), top.collect());
            Value::Object(chosen)
        });
        json!({"content": content.collect::<Vec<_>>(), "refusal": null})
    }

    fn completion_logprobs(&mut self, tokens: &[Token], choice: usize) -> Value {
        // A token that is only part of a character is named by its bytes, so that two of them stay apart.
        let name = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
        };
        let (mut names, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for token in tokens {
            let bytes = self.token_bytes(token.id);
            let logprob = token.logprob.unwrap_or(LOGPROB_MIN).max(LOGPROB_MIN);
            let chosen = TokenLogprob { token_id: token.id, logprob };
            let alternatives = token.top_logprobs.iter().chain([&chosen]);
            let top = alternatives.map(|top| (name(&self.token_bytes(top.token_id)), top.logprob.max(LOGPROB_MIN)));
            tops.push(top.map(|(name, logprob)| (name, logprob.into())).collect::<Map<_, _>>());
            names.push(name(&bytes));
            logprobs.push(logprob);
            let offset = &mut self.progress[choice].text_offset;
            offsets.push(*offset);
            // Characters begin at bytes that are not continuations, so parts of one add up to it.
            *offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        }
        json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }
}
