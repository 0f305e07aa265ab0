//! [`Reply`]: the pieces of a generation as OpenAI's JSON, whole or chunk by chunk.

use crate::engine::handle::EngineInfo;
use crate::engine::request::{FinishReason, PrefixEnd, PrefixReport, Token, TokenLogprob};
use crate::platform;
use crate::server::parameters::sampling::Sampling;
use crate::server::reply::generation::{Generation, Piece, Totals};
use crate::server::state::ServerState;
use crate::server::wire::sse::Answer;
use crate::text::Tokenizer;
use crate::text::answer::tools::{CallDelta, Parts, ToolParser};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What stands for a probability of zero.
pub(crate) const LOGPROB_MIN: f32 = -9999.0;

/// Which of the two APIs is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// The form of one request's answer.
pub(crate) struct Reply {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
    wants_logprobs: bool,
    include_usage: bool,
    continuous_usage: bool,
    wants_prompt_logprobs: bool,
    return_token_ids: bool,
    tokens_as_ids: bool,
    /// Mistral's templates want call ids of nine characters.
    short_call_ids: bool,
    /// Choices of a prompt that are drawn, and of these, those that are answered with.
    drawn: usize,
    best: usize,
    tokenizer: Option<Arc<Tokenizer>>,
    prompts: Vec<PromptPart>,
    /// Per choice: what was already said of it.
    progress: Vec<Progress>,
}

/// What an answer may repeat of a prompt.
#[derive(Clone, Debug)]
pub(crate) struct PromptPart {
    pub(crate) ids: Arc<[u32]>,
    /// Stands before the text of each choice.
    pub(crate) echo: Option<String>,
}

/// What was already said of a choice.
#[derive(Clone, Debug, Default)]
struct Progress {
    /// The prompt was repeated as far as it is to be.
    begun: bool,
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
    system_fingerprint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<Value>,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Value>>,
    #[serde(flatten)]
    extras: Extras,
}

/// What no other API has, and only who asks gets.
type Extras = Map<String, Value>;

#[derive(Serialize)]
struct ChatChunk<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Value>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'a [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Value>,
}

fn reason(finish: FinishReason, has_calls: bool) -> &'static str {
    match finish {
        FinishReason::Stop if has_calls => "tool_calls",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// vLLM's name of a token where tokens are named by id.
fn by_id(id: u32) -> String {
    format!("token_id:{id}")
}

fn end_name(end: PrefixEnd) -> &'static str {
    match end {
        PrefixEnd::EndOfPrompt => "end_of_prompt",
        PrefixEnd::Difference => "difference",
        PrefixEnd::Salt => "salt",
        PrefixEnd::Eviction => "eviction",
        PrefixEnd::Disabled => "disabled",
    }
}

pub(crate) fn usage(totals: Totals) -> Value {
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
    /// The form of the answer to a request of these prompts, whose generation has begun.
    pub(crate) fn new(
        kind: Kind,
        (state, info): (&ServerState, &EngineInfo),
        model: String,
        sampling: &Sampling,
        prompts: Vec<PromptPart>,
        generation: &Generation,
    ) -> Self {
        Self {
            kind,
            id: state.new_id(if kind == Kind::Chat { "chatcmpl" } else { "cmpl" }),
            created: platform::unix_time(),
            model,
            fingerprint: state.fingerprint(info),
            wants_logprobs: sampling.wants_logprobs,
            include_usage: sampling.include_usage,
            continuous_usage: sampling.continuous_usage,
            wants_prompt_logprobs: sampling.wants_prompt_logprobs,
            return_token_ids: sampling.return_token_ids,
            tokens_as_ids: sampling.tokens_as_ids,
            short_call_ids: state.dialect.tools == ToolParser::Mistral,
            drawn: sampling.params.n as usize,
            best: sampling.best,
            tokenizer: state.text.tokenizer.clone(),
            prompts,
            progress: vec![Progress::default(); generation.choices()],
        }
    }

    fn envelope<C: Serialize>(
        &self,
        object: &'static str,
        choices: C,
        usage: Option<Option<Value>>,
        extras: Extras,
    ) -> String {
        let (id, created, model, system_fingerprint) = (&self.id, self.created, &self.model, &self.fingerprint);
        let service_tier = (self.kind == Kind::Chat).then_some(Value::Null);
        let envelope =
            Envelope { id, object, created, model, system_fingerprint, service_tier, choices, usage, extras };
        serde_json::to_string(&envelope).expect("strings and numbers always serialise")
    }

    /// `debug` for prompts of which something was learned.
    fn debug(&self, learned: &[(usize, PrefixReport)]) -> Extras {
        let mut extras = Extras::new();
        if learned.is_empty() {
            return extras;
        }
        let entry = |(prompt, report): &(usize, PrefixReport)| {
            let difference = report.differing.map(|id| {
                let token = String::from_utf8_lossy(&self.token_bytes(id)).into_owned();
                json!({"position": report.common_tokens, "token_id": id, "token": token})
            });
            json!({
                "prompt": prompt,
                "cached_tokens": report.cached_tokens,
                "matched_tokens": report.common_tokens,
                "first_difference": difference,
                "stopped_by": end_name(report.end),
            })
        };
        extras.insert("debug".into(), json!({"prefix": learned.iter().map(entry).collect::<Vec<_>>()}));
        extras
    }

    fn token_ids(&self, piece: &Piece) -> Option<Vec<u32>> {
        self.return_token_ids.then(|| piece.tokens.iter().map(|token| token.id).collect())
    }

    fn chunk<C: Serialize>(&self, choices: C, totals: Totals, extras: Extras) -> String {
        let object = match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        let now = self.continuous_usage.then(|| usage(totals));
        let json = self.envelope(object, choices, self.include_usage.then_some(now), extras);
        format!("data: {json}\n\n")
    }
}

impl Answer for Reply {
    /// The events of one piece: the role once, then text, then the reason for the end.
    fn events(&mut self, piece: &Piece, totals: Totals) -> String {
        let (index, prompt) = (piece.choice, piece.choice / self.drawn);
        let begins = !std::mem::replace(&mut self.progress[index].begun, true);
        let echoed = if begins { self.prompts[prompt].echo.clone() } else { None };
        let mut logprobs = self.logprobs(piece, prompt);
        let prompt_logprobs = begins.then(|| self.prompt_logprobs(piece)).flatten();
        self.progress[index].has_calls |= !piece.parts.calls.is_empty();
        let finish_reason = piece.finish.map(|finish| reason(finish, self.progress[index].has_calls));
        let mut token_ids = self.token_ids(piece);
        let learned: Vec<_> = piece.prefix.iter().map(|report| (prompt, *report)).collect();
        let mut extras = self.debug(&learned);
        let repeats_ids = begins && self.return_token_ids;
        if self.kind == Kind::Completion {
            let text = &(echoed.unwrap_or_default() + &piece.parts.content);
            let prompt_token_ids = repeats_ids.then_some(&*self.prompts[prompt].ids);
            let choice =
                CompletionChoice { index, text, logprobs, finish_reason, token_ids, prompt_token_ids, prompt_logprobs };
            return self.chunk([choice], totals, extras);
        }
        let chunk = |delta, logprobs, finish_reason, token_ids| {
            [ChatChunk { index, delta, logprobs, finish_reason, token_ids }]
        };
        let mut events = String::new();
        if !std::mem::replace(&mut self.progress[index].role_sent, true) {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            if repeats_ids {
                extras.insert("prompt_token_ids".into(), self.prompts[prompt].ids.to_vec().into());
            }
            if let Some(logprobs) = prompt_logprobs.filter(|_| index == 0) {
                extras.insert("prompt_logprobs".into(), logprobs);
            }
            events.push_str(&self.chunk(chunk(delta, None, None, None), totals, std::mem::take(&mut extras)));
        }
        let has_tokens = logprobs.is_some() || token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        for delta in self.deltas(index, &piece.parts, has_tokens) {
            // The tokens of the whole piece come with its first delta.
            let chunk = chunk(delta, logprobs.take(), None, token_ids.take());
            events.push_str(&self.chunk(chunk, totals, std::mem::take(&mut extras)));
        }
        if finish_reason.is_some() {
            events.push_str(&self.chunk(chunk(Delta::default(), None, finish_reason, None), totals, extras));
        }
        events
    }

    /// The end of a stream that went well.
    fn last_events(&mut self, totals: Totals) -> String {
        let mut events = String::new();
        if self.include_usage {
            let object = if self.kind == Kind::Chat { "chat.completion.chunk" } else { "text_completion" };
            let none: [Value; 0] = [];
            events = format!("data: {}\n\n", self.envelope(object, none, Some(Some(usage(totals))), Extras::new()));
        }
        events.push_str("data: [DONE]\n\n");
        events
    }

    /// The whole answer; `pieces` holds all of each choice, in order.
    fn whole(&mut self, pieces: &[Piece], totals: Totals) -> String {
        let mut choices = Vec::with_capacity(pieces.len());
        let mut learned = Vec::new();
        for piece in pieces {
            let (index, prompt) = (piece.choice, piece.choice / self.best);
            learned.extend(piece.prefix.map(|report| (prompt, report)));
            let logprobs = self.logprobs(piece, prompt);
            let finish_reason = piece.finish.map(|finish| reason(finish, !piece.parts.calls.is_empty()));
            let mut choice = match self.kind {
                Kind::Completion => {
                    let text = self.prompts[prompt].echo.clone().unwrap_or_default() + &piece.parts.content;
                    json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason})
                }
                Kind::Chat => {
                    let message = self.message(index, &piece.parts);
                    json!({"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason})
                }
            };
            if let Some(ids) = self.token_ids(piece) {
                choice["token_ids"] = ids.into();
                if self.kind == Kind::Completion {
                    choice["prompt_token_ids"] = self.prompts[prompt].ids.to_vec().into();
                }
            }
            if let Some(logprobs) = self.prompt_logprobs(piece).filter(|_| self.kind == Kind::Completion) {
                choice["prompt_logprobs"] = logprobs;
            }
            choices.push(choice);
        }
        let mut extras = self.debug(&learned);
        if self.kind == Kind::Chat && self.return_token_ids {
            extras.insert("prompt_token_ids".into(), self.prompts[0].ids.to_vec().into());
        }
        if let Some(logprobs) = self.prompt_logprobs(&pieces[0]).filter(|_| self.kind == Kind::Chat) {
            extras.insert("prompt_logprobs".into(), logprobs);
        }
        let object = if self.kind == Kind::Chat { "chat.completion" } else { "text_completion" };
        self.envelope(object, choices, Some(Some(usage(totals))), extras)
    }

    /// Keeps the likeliest choices of each prompt, by the mean logprob of their tokens, and numbers them anew.
    fn choose(&self, pieces: Vec<Piece>) -> Vec<Piece> {
        if self.best == self.drawn {
            return pieces;
        }
        let mean = |piece: &Piece| {
            let sum: f64 = piece.tokens.iter().filter_map(|token| token.logprob).map(f64::from).sum();
            sum / piece.tokens.len().max(1) as f64
        };
        let mut chosen = Vec::new();
        let mut rest = pieces.into_iter();
        for _ in 0..self.prompts.len() {
            let mut drawn: Vec<_> = rest.by_ref().take(self.drawn).collect();
            let prefix = drawn.iter_mut().find_map(|piece| piece.prefix.take());
            drawn.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
            drawn.truncate(self.best);
            drawn.iter_mut().take(1).for_each(|piece| piece.prefix = prefix);
            chosen.extend(drawn);
        }
        chosen.into_iter().enumerate().map(|(choice, piece)| Piece { choice, ..piece }).collect()
    }
}

impl Reply {
    /// The deltas of a piece; an empty one where it has tokens and nothing else.
    fn deltas<'a>(&self, choice: usize, parts: &'a Parts, has_tokens: bool) -> Vec<Delta<'a>> {
        let mut deltas = Vec::new();
        if !parts.reasoning.is_empty() {
            deltas.push(Delta { reasoning_content: Some(&parts.reasoning), ..Delta::default() });
        }
        if !parts.content.is_empty() || (has_tokens && parts.is_empty()) {
            deltas.push(Delta { content: Some(&parts.content), ..Delta::default() });
        }
        let call = |call| Delta { tool_calls: Some(json!([self.call_delta(choice, call)])), ..Delta::default() };
        deltas.extend(parts.calls.iter().map(call));
        deltas
    }

    /// The message of a whole answer.
    fn message(&self, choice: usize, parts: &Parts) -> Value {
        let mut message = json!({"role": "assistant", "content": parts.content, "refusal": null});
        if !parts.reasoning.is_empty() {
            message["reasoning_content"] = parts.reasoning.as_str().into();
        }
        if !parts.calls.is_empty() {
            message["tool_calls"] = self.whole_calls(choice, &parts.calls);
            if parts.content.is_empty() {
                message["content"] = Value::Null;
            }
        }
        message
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

    fn logprobs(&mut self, piece: &Piece, prompt: usize) -> Option<Value> {
        // A prompt that is repeated has come with the first piece.
        let echoed = self.prompts[prompt].echo.is_some() && self.progress[piece.choice].text_offset == 0;
        if !self.wants_logprobs || (piece.tokens.is_empty() && !echoed) {
            return None;
        }
        if self.kind == Kind::Chat {
            return Some(self.chat_logprobs(&piece.tokens));
        }
        let ids = self.prompts[prompt].ids.clone();
        let first = ids.iter().take(usize::from(echoed)).map(|id| (*id, None));
        let scored = piece.prompt.iter().flat_map(|tokens| tokens.iter()).filter(|_| echoed);
        let tokens = scored.chain(&piece.tokens).map(|token| (token.id, Some(token)));
        Some(self.completion_logprobs(first.chain(tokens), piece.choice))
    }

    /// vLLM's form: for each token of the prompt, by id, what was likely in its place and how likely it was itself.
    fn prompt_logprobs(&self, piece: &Piece) -> Option<Value> {
        if !self.wants_prompt_logprobs {
            return None;
        }
        let entry = |id: u32, logprob: f32, rank: Option<usize>| {
            let token = String::from_utf8_lossy(&self.token_bytes(id)).into_owned();
            (id.to_string(), json!({"logprob": logprob.max(LOGPROB_MIN), "rank": rank, "decoded_token": token}))
        };
        let of_token = |token: &Token| {
            let own = entry(token.id, token.logprob.unwrap_or(LOGPROB_MIN), None);
            let top =
                token.top_logprobs.iter().zip(1..).map(|(top, rank)| entry(top.token_id, top.logprob, Some(rank)));
            // A token that is among the likely ones has its rank from there.
            Value::Object(std::iter::once(own).chain(top).collect())
        };
        let tokens = piece.prompt.iter().flat_map(|tokens| tokens.iter()).map(of_token);
        Some(std::iter::once(Value::Null).chain(tokens).collect())
    }

    fn token_bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(id, None)).unwrap_or_default()
    }

    fn chat_logprobs(&self, tokens: &[Token]) -> Value {
        let entry = |id: u32, logprob: f32| {
            let bytes = self.token_bytes(id);
            let mut entry = Map::new();
            let text = || String::from_utf8_lossy(&bytes).into_owned();
            entry.insert("token".into(), if self.tokens_as_ids { by_id(id) } else { text() }.into());
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

    /// A token without logprob is the first of a prompt, which nothing has foretold.
    fn completion_logprobs<'a>(
        &mut self,
        tokens: impl Iterator<Item = (u32, Option<&'a Token>)>,
        choice: usize,
    ) -> Value {
        // A token that is only part of a character is named by its bytes, so that two of them stay apart.
        let as_ids = self.tokens_as_ids;
        let name = |id: u32, bytes: &[u8]| match std::str::from_utf8(bytes) {
            _ if as_ids => by_id(id),
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}")),
        };
        let (mut names, mut logprobs, mut tops, mut offsets) = (vec![], vec![], vec![], vec![]);
        for (id, token) in tokens {
            let bytes = self.token_bytes(id);
            let logprob = token.map(|token| token.logprob.unwrap_or(LOGPROB_MIN).max(LOGPROB_MIN));
            let top = token.map(|token| {
                let chosen = TokenLogprob { token_id: id, logprob: logprob.unwrap_or(LOGPROB_MIN) };
                let alternatives = token.top_logprobs.iter().chain([&chosen]);
                let bytes = |top: &TokenLogprob| self.token_bytes(top.token_id);
                let top = alternatives.map(|top| (name(top.token_id, &bytes(top)), top.logprob.max(LOGPROB_MIN)));
                top.map(|(name, logprob)| (name, logprob.into())).collect::<Map<_, _>>()
            });
            tops.push(top);
            names.push(name(id, &bytes));
            logprobs.push(logprob);
            let offset = &mut self.progress[choice].text_offset;
            offsets.push(*offset);
            // Characters begin at bytes that are not continuations, so parts of one add up to it.
            *offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        }
        json!({"tokens": names, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets})
    }
}
