//! [`OpenAiReply`]: the reply to a chat or a completion in OpenAI's form, with vLLM's additions.

use super::ReplyForm;
use super::generation::{Delta, PromptProgress, Stop, Totals};
use super::logprobs::{Logprobs, TokenNames};
use super::objects::{
    Body, Choice, Chunk, Debug, Difference, Drafts, Extras, FunctionCall, Message, PrefixMatch,
    ToolCall, Usage,
};
use crate::engine::handle::EngineInfo;
use crate::engine::request::{FinishReason, PrefixReport, Token};
use crate::platform;
use crate::server::parameters::sampling::Sampling;
use crate::server::state::ModelState;
use crate::server::wire::{json, sse};
use crate::text::answer::CallDelta;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;

/// Which of the two APIs the reply is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// The reply to one request.
pub(crate) struct OpenAiReply {
    pub(super) kind: Kind,
    pub(super) head: Head,
    pub(super) options: ReplyOptions,
    pub(super) tokens: TokenNames,
    pub(super) prompts: Vec<PromptPart>,
    /// What was already sent, per choice.
    pub(super) progress: Vec<Progress>,
    /// The tokens of all deltas that were already sent.
    pub(super) sent: Totals,
}

/// Fields that every object begins with.
pub(super) struct Head {
    pub(super) id: String,
    /// What the ids of calls are made of: unlike `id`, it is never the client's.
    pub(super) unique: String,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) fingerprint: String,
}

/// Parts of the reply that the request asked for.
#[derive(Clone, Debug)]
pub(super) struct ReplyOptions {
    pub(super) logprobs: bool,
    pub(super) prompt_logprobs: bool,
    pub(super) token_ids: bool,
    /// A last chunk reports the usage.
    pub(super) usage: bool,
    /// Every chunk reports the usage so far.
    pub(super) continuous_usage: bool,
    /// Every chunk reports times.
    pub(super) timings: bool,
    /// Choices generated per prompt. The reply has the `best` ones of them.
    pub(super) drawn: usize,
    pub(super) best: usize,
}

/// Parts of a prompt that a reply may repeat.
#[derive(Clone, Debug)]
pub(crate) struct PromptPart {
    pub(crate) ids: Arc<[u32]>,
    /// Text of the prompt, to be put before the text of each choice.
    pub(crate) echo: Option<String>,
}

/// What was already sent of a choice.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    begun: bool,
    has_calls: bool,
    /// Number of characters in the tokens so far.
    text_offset: usize,
    /// Sum of the tokens' logprobs, and the number of tokens.
    logprob: (f64, usize),
}

impl Progress {
    /// Counts what a delta adds. Returns whether it is the first of the choice.
    fn count(&mut self, delta: &Delta) -> bool {
        self.has_calls |= !delta.parts.calls.is_empty();
        let logprobs = delta.tokens.iter().filter_map(|token| token.logprob);
        self.logprob.0 += logprobs.map(f64::from).sum::<f64>();
        self.logprob.1 += delta.tokens.len();
        !std::mem::replace(&mut self.begun, true)
    }
}

/// What a reply has beside the text of a delta.
struct Beside {
    /// It is the first delta of its choice.
    begins: bool,
    /// The prompt's text, to be put before the choice's.
    echo: Option<String>,
    logprobs: Option<Logprobs>,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<Option<Stop>>,
    prompt_token_ids: Option<Vec<u32>>,
    prompt_logprobs: Option<Value>,
    debug: Option<Debug>,
}

/// The keys around a chunk, in OpenAI's order.
#[derive(Serialize)]
struct Envelope<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_tier: Option<()>,
    #[serde(flatten)]
    chunk: &'a Chunk,
}

impl OpenAiReply {
    /// A reply to a request with these prompts.
    pub(crate) fn new(
        kind: Kind,
        (state, info): (&ModelState, &EngineInfo),
        sampling: &Sampling,
        prompts: Vec<PromptPart>,
    ) -> Self {
        let id = match kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        let head = Head {
            id: state.shared.new_id(id),
            unique: state.shared.new_id("call"),
            created: platform::unix_time(),
            model: sampling.model.clone(),
            fingerprint: state.fingerprint(info),
        };
        let (shown, drawn) = (sampling.shown, sampling.params.n as usize);
        let options = ReplyOptions {
            logprobs: shown.logprobs,
            prompt_logprobs: shown.prompt_logprobs,
            token_ids: shown.token_ids,
            // A whole reply always reports the usage.
            usage: shown.usage || !sampling.stream,
            continuous_usage: shown.continuous_usage,
            timings: shown.timings,
            drawn,
            best: sampling.best,
        };
        let progress = vec![Progress::default(); prompts.len() * drawn];
        let tokens = TokenNames {
            tokenizer: state.text.tokenizer.clone(),
            by_id: shown.tokens_as_ids,
            hides_special: sampling.skip_special,
        };
        Self {
            kind,
            head,
            options,
            tokens,
            prompts,
            progress,
            sent: Totals::default(),
        }
    }

    /// With the id that the client gave to its request, if it did.
    pub(crate) fn named(mut self, given: Option<&str>) -> Self {
        if let Some(id) = given {
            let kind = self.head.id.split('-').next().unwrap_or_default();
            self.head.id = format!("{kind}-{id}");
        }
        self
    }

    fn json(&self, object: &'static str, chunk: &Chunk) -> String {
        let Head {
            id,
            created,
            model,
            fingerprint,
            ..
        } = &self.head;
        let service_tier = (self.kind == Kind::Chat).then_some(());
        let envelope = Envelope {
            id,
            object,
            created: *created,
            model,
            system_fingerprint: fingerprint,
            service_tier,
            chunk,
        };
        json::write(&envelope)
    }

    fn chunk(&self, choice: Choice, totals: Totals, mut extras: Extras) -> Chunk {
        let is_timed = self.options.timings || choice.finish_reason.is_some();
        extras.timings = is_timed.then(|| totals.into());
        let now = self.options.continuous_usage.then(|| totals.into());
        Chunk {
            choices: vec![choice],
            usage: self.options.usage.then_some(now),
            extras,
        }
    }

    /// The deltas of a message; an empty one if there are tokens without text.
    fn messages(&self, delta: &mut Delta, has_tokens: bool) -> Vec<Message> {
        let parts = std::mem::take(&mut delta.parts);
        let mut messages = Vec::new();
        let is_empty = parts.is_empty();
        if !parts.reasoning.is_empty() {
            messages.push(Message {
                reasoning: Some(parts.reasoning),
                ..Message::default()
            });
        }
        if !parts.content.is_empty() || (has_tokens && is_empty) {
            messages.push(Message {
                content: Some(Some(parts.content)),
                ..Message::default()
            });
        }
        messages.extend(parts.calls.into_iter().map(|call| Message {
            tool_calls: Some(vec![self.call(delta.choice, call)]),
            ..Message::default()
        }));
        messages
    }

    /// One delta of a tool call: the first has id, type and name, later ones only arguments.
    fn call(&self, choice: usize, call: CallDelta) -> ToolCall {
        let CallDelta {
            index,
            name,
            arguments,
        } = call;
        let begins = name.is_some();
        ToolCall {
            index: Some(index),
            id: begins.then(|| self.call_id(choice, index)),
            kind: begins.then_some("function"),
            function: FunctionCall { name, arguments },
        }
    }

    /// Unique, because what is unique of the reply is part of it.
    fn call_id(&self, choice: usize, index: usize) -> String {
        let hash =
            blake3::hash(format!("{} {choice} {index}", self.head.unique).as_bytes()).to_hex();
        format!("call_{}", &hash[..24])
    }

    fn logprobs(&mut self, delta: &Delta, echoed: bool) -> Option<Logprobs> {
        if !self.options.logprobs || (delta.tokens.is_empty() && !echoed) {
            return None;
        }
        if self.kind == Kind::Chat {
            return Some(self.tokens.chat(&delta.tokens));
        }
        // If the prompt is repeated, it is in the first chunk.
        let ids = &self.prompts[delta.choice / self.options.drawn].ids;
        let first = ids.iter().take(usize::from(echoed)).map(|id| (*id, None));
        let scored = echoed.then(|| prompt_tokens(delta)).into_iter().flatten();
        let tokens = scored
            .chain(&delta.tokens)
            .map(|token| (token.id, Some(token)));
        Some(self.tokens.completion(
            first.chain(tokens),
            &mut self.progress[delta.choice].text_offset,
        ))
    }

    fn debug(&self, delta: &mut Delta) -> Option<Debug> {
        let (choice, prompt) = (delta.choice, delta.choice / self.options.drawn);
        let prefix: Vec<_> = delta
            .prefix
            .take()
            .map(|report| self.prefix_match(prompt, report))
            .into_iter()
            .collect();
        let drafts: Vec<_> = delta
            .drafts
            .map(|report| Drafts::new(choice, report))
            .into_iter()
            .collect();
        let is_asked = !prefix.is_empty() || !drafts.is_empty();
        is_asked.then_some(Debug { prefix, drafts })
    }

    fn prefix_match(&self, prompt: usize, report: PrefixReport) -> PrefixMatch {
        PrefixMatch {
            prompt,
            cached_tokens: report.cached.all,
            host_cached_tokens: report.cached.host,
            disk_cached_tokens: report.cached.disk,
            matched_tokens: report.common_tokens,
            first_difference: report.differing.map(|id| Difference {
                position: report.common_tokens,
                token_id: id,
                token: self.tokens.text(id),
            }),
            stopped_by: report.end.name(),
        }
    }

    /// What the reply has beside the text of a delta.
    fn beside(&mut self, delta: &mut Delta, begins: bool) -> Beside {
        let PromptPart { ids, echo } = &self.prompts[delta.choice / self.options.drawn];
        let echo = if begins { echo.clone() } else { None };
        let options = &self.options;
        let prompt_token_ids = (begins && options.token_ids).then(|| ids.to_vec());
        let prompt_logprobs =
            (begins && options.prompt_logprobs).then(|| self.tokens.prompt(prompt_tokens(delta)));
        let token_ids = options
            .token_ids
            .then(|| delta.tokens.iter().map(|token| token.id).collect());
        let has_calls = self.progress[delta.choice].has_calls;
        Beside {
            begins,
            prompt_token_ids,
            prompt_logprobs,
            token_ids,
            finish_reason: delta.finish.map(|finish| finish_name(finish, has_calls)),
            stop_reason: delta.finish.map(|_| delta.stop.take()),
            logprobs: self.logprobs(delta, echo.is_some()),
            echo,
            debug: self.debug(delta),
        }
    }

    fn completion_chunk(&self, delta: &Delta, beside: Beside, totals: Totals) -> Chunk {
        let text = beside.echo.unwrap_or_default() + &delta.parts.content;
        let choice = Choice {
            logprobs: beside.logprobs,
            finish_reason: beside.finish_reason,
            stop_reason: beside.stop_reason,
            token_ids: beside.token_ids,
            prompt_token_ids: beside.prompt_token_ids,
            prompt_logprobs: beside.prompt_logprobs,
            ..Choice::new(delta.choice, Body::Text(text))
        };
        let extras = Extras {
            debug: beside.debug,
            ..Extras::default()
        };
        self.chunk(choice, totals, extras)
    }

    /// The chunks of a message before any token: its role, then what it repeats of the conversation.
    fn opening(&self, index: usize, beside: &mut Beside, totals: Totals) -> Vec<Chunk> {
        let before = Totals {
            completion_tokens: self.sent.completion_tokens,
            reasoning_tokens: self.sent.reasoning_tokens,
            ..totals
        };
        let mut extras = Extras {
            debug: beside.debug.take(),
            prompt_token_ids: beside.prompt_token_ids.take(),
            prompt_logprobs: if index == 0 {
                beside.prompt_logprobs.take()
            } else {
                None
            },
            ..Extras::default()
        };
        let role = Message {
            role: Some("assistant"),
            content: Some(Some(String::new())),
            ..Message::default()
        };
        let repeated = beside.echo.take().map(|text| Message {
            content: Some(Some(text)),
            ..Message::default()
        });
        let messages = std::iter::once(role).chain(repeated);
        let choices = messages.map(|message| Choice::new(index, Body::Delta(message)));
        choices
            .map(|choice| self.chunk(choice, before, std::mem::take(&mut extras)))
            .collect()
    }

    fn chat_chunks(&self, mut delta: Delta, mut beside: Beside, totals: Totals) -> Vec<Chunk> {
        let index = delta.choice;
        let mut chunks = if beside.begins {
            self.opening(index, &mut beside, totals)
        } else {
            Vec::new()
        };
        let Beside {
            mut logprobs,
            mut token_ids,
            finish_reason,
            stop_reason,
            debug,
            ..
        } = beside;
        let bare = |message| Choice::new(index, Body::Delta(message));
        let mut choices = Vec::new();
        let has_ids = token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        let has_tokens = logprobs.is_some() || has_ids;
        for message in self.messages(&mut delta, has_tokens) {
            // The first message has the tokens of the whole delta.
            choices.push(Choice {
                logprobs: logprobs.take(),
                token_ids: token_ids.take(),
                ..bare(message)
            });
        }
        if finish_reason.is_some() {
            choices.push(Choice {
                finish_reason,
                stop_reason,
                ..bare(Message::default())
            });
        }
        let mut extras = Extras {
            debug,
            ..Extras::default()
        };
        let choices = choices.into_iter();
        chunks
            .extend(choices.map(|choice| self.chunk(choice, totals, std::mem::take(&mut extras))));
        chunks
    }

    /// The likeliest choices of each prompt by the mean logprob of their tokens, renumbered.
    fn choose(&self, choices: Vec<Choice>) -> Vec<Choice> {
        let mut chosen = Vec::new();
        let mut rest = choices.into_iter();
        for _ in &self.prompts {
            let mut drawn: Vec<_> = rest.by_ref().take(self.options.drawn).collect();
            drawn.sort_by(|a, b| self.mean(b).total_cmp(&self.mean(a)));
            chosen.extend(drawn.into_iter().take(self.options.best));
        }
        chosen
            .into_iter()
            .enumerate()
            .map(|(index, choice)| Choice { index, ..choice })
            .collect()
    }

    fn mean(&self, choice: &Choice) -> f64 {
        let (sum, count) = self.progress[choice.index].logprob;
        sum / count.max(1) as f64
    }
}

impl ReplyForm for OpenAiReply {
    type Chunk = Chunk;
    const END: &'static str = sse::DONE;

    /// For a chat: first the role, then text, then the finish reason. For a completion: one chunk.
    fn chunks(&mut self, mut delta: Delta, totals: Totals) -> Vec<Chunk> {
        let begins = self.progress[delta.choice].count(&delta);
        let beside = self.beside(&mut delta, begins);
        match self.kind {
            Kind::Completion => vec![self.completion_chunk(&delta, beside, totals)],
            Kind::Chat => {
                let chunks = self.chat_chunks(delta, beside, totals);
                self.sent = totals;
                chunks
            }
        }
    }

    fn progress(&mut self, choice: usize, progress: PromptProgress) -> Option<Chunk> {
        let body = match self.kind {
            Kind::Chat => Body::Delta(Message::default()),
            Kind::Completion => Body::Text(String::new()),
        };
        Some(Chunk {
            choices: vec![Choice::new(choice, body)],
            usage: self.options.usage.then_some(None),
            extras: Extras {
                prompt_progress: Some(progress),
                timings: self.options.timings.then(|| progress.into()),
                ..Extras::default()
            },
        })
    }

    fn last_chunk(&self, totals: Totals) -> Option<Chunk> {
        let usage: Usage = totals.into();
        self.options.usage.then(|| Chunk {
            usage: Some(Some(usage)),
            extras: Extras {
                timings: Some(totals.into()),
                ..Extras::default()
            },
            ..Chunk::default()
        })
    }

    fn event(&self, chunk: Chunk) -> String {
        let object = if self.kind == Kind::Chat {
            "chat.completion.chunk"
        } else {
            "text_completion"
        };
        sse::event(&self.json(object, &chunk))
    }

    fn whole(&self, chunks: Vec<Chunk>) -> String {
        let mut whole = Chunk::default();
        for chunk in chunks {
            whole.append(chunk);
        }
        whole.choices.sort_by_key(|choice| choice.index);
        if self.options.token_ids {
            // A choice without any token has an empty list.
            for choice in &mut whole.choices {
                choice.token_ids.get_or_insert_default();
            }
        }
        if let Some(debug) = &mut whole.extras.debug {
            debug.prefix.sort_by_key(|found| found.prompt);
            debug.drafts.sort_by_key(|drafts| drafts.choice);
        }
        if self.options.best < self.options.drawn {
            whole.choices = self.choose(whole.choices);
        }
        let object = if self.kind == Kind::Chat {
            "chat.completion"
        } else {
            "text_completion"
        };
        self.json(object, &whole)
    }
}

/// The tokens of the prompt that have logprobs: all except the first.
fn prompt_tokens(delta: &Delta) -> impl Iterator<Item = &Token> {
    delta.prompt.iter().flat_map(|tokens| tokens.iter())
}

fn finish_name(finish: FinishReason, has_calls: bool) -> &'static str {
    match finish {
        FinishReason::Stop if has_calls => "tool_calls",
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

#[cfg(test)]
mod tests;
