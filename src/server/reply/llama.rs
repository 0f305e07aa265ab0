//! [`LlamaReply`]: the reply to `/completion` in llama.cpp's form.

use super::ReplyForm;
use super::generation::{Delta, PromptProgress, Stop, Totals};
use super::logprobs::{TokenNames, finite};
use super::timings::Timings;
use crate::engine::handle::EngineInfo;
use crate::engine::request::{FinishReason, Token};
use crate::server::state::ModelState;
use crate::server::wire::{json, sse};
use serde::Serialize;
use serde_json::{Map, Value};

/// The reply to one request; several prompts or choices are a list of replies.
pub(crate) struct LlamaReply {
    model: String,
    asked: Asked,
    tokens: TokenNames,
    eos_token_ids: Vec<u32>,
    /// Tokens of prompt and answer together.
    context: u32,
    /// Whether the text of a choice has a line break.
    has_new_line: Vec<bool>,
}

/// What a request asks for, as far as the reply shows it.
pub(crate) struct Asked {
    /// The settings that the last event of each choice repeats.
    pub(crate) settings: Value,
    /// The prompts as texts.
    pub(crate) prompts: Vec<String>,
    /// Choices per prompt.
    pub(crate) choices: usize,
    /// Each token has its logprob.
    pub(crate) probabilities: bool,
    /// The ids of tokens are returned.
    pub(crate) tokens: bool,
    /// Every event of a stream has times.
    pub(crate) timings: bool,
    /// The only keys of a whole reply; a path with slashes is a key of its own.
    pub(crate) fields: Option<Vec<String>>,
}

/// One event, or the whole reply.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Chunk {
    index: usize,
    content: String,
    tokens: Vec<u32>,
    /// Slots do not exist here; clients of llama.cpp expect the number of one.
    id_slot: u32,
    stop: bool,
    tokens_predicted: u32,
    tokens_evaluated: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_probabilities: Option<Vec<Probability>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_progress: Option<PromptProgress>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
    #[serde(flatten)]
    end: Option<End>,
}

#[derive(Clone, Debug, Serialize)]
struct Probability {
    id: u32,
    token: String,
    bytes: Vec<u8>,
    logprob: f64,
    /// Alternatives to the chosen token; absent for an alternative itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<Probability>>,
}

/// Additional fields of the last event.
#[derive(Clone, Debug, Serialize)]
struct End {
    model: String,
    generation_settings: Value,
    prompt: String,
    has_new_line: bool,
    /// The context ended the answer.
    truncated: bool,
    stop_type: &'static str,
    /// The stop string that ended the answer, or "".
    stopping_word: String,
    tokens_cached: u32,
}

impl LlamaReply {
    /// A reply to a request.
    pub(crate) fn new(state: &ModelState, info: &EngineInfo, model: String, asked: Asked) -> Self {
        let choices = asked.prompts.len() * asked.choices;
        Self {
            model,
            asked,
            tokens: TokenNames {
                tokenizer: state.text.tokenizer.clone(),
                by_id: false,
                hides_special: false,
            },
            eos_token_ids: info.eos_token_ids.clone(),
            context: info.max_model_len,
            has_new_line: vec![false; choices],
        }
    }

    fn probability(&self, token: &Token) -> Probability {
        let one = |id: u32, logprob: Option<f32>| {
            let (token, bytes) = (self.tokens.text(id), self.tokens.bytes(id));
            Probability {
                id,
                token,
                bytes,
                logprob: finite(logprob),
                top_logprobs: None,
            }
        };
        let top = token
            .top_logprobs
            .iter()
            .map(|top| one(top.token_id, Some(top.logprob)));
        Probability {
            top_logprobs: Some(top.collect()),
            ..one(token.id, token.logprob)
        }
    }

    fn end(&self, finish: FinishReason, delta: &Delta) -> End {
        let last = delta.tokens.last();
        let is_eos = last.is_some_and(|token| self.eos_token_ids.contains(&token.id));
        let stop_type = match finish {
            FinishReason::Length => "limit",
            FinishReason::Stop if is_eos => "eos",
            FinishReason::Stop => "word",
        };
        let count = delta.own.prompt_tokens + delta.own.completion_tokens;
        let mut settings = self.asked.settings.clone();
        settings["seed"] = delta.seed.map_or(-1, u64::cast_signed).into();
        End {
            model: self.model.clone(),
            generation_settings: settings,
            prompt: self.asked.prompts[delta.choice / self.asked.choices].clone(),
            has_new_line: self.has_new_line[delta.choice],
            truncated: finish == FinishReason::Length && count >= self.context,
            stop_type,
            stopping_word: match &delta.stop {
                Some(Stop::Text(text)) => text.clone(),
                _ => String::new(),
            },
            tokens_cached: count,
        }
    }

    /// One of the replies of a whole reply, with the fields that were asked for.
    fn shown(&self, reply: &Chunk) -> Value {
        let whole = serde_json::to_value(reply).unwrap_or_default();
        match &self.asked.fields {
            None => whole,
            Some(fields) => Value::Object(selected(&whole, fields)),
        }
    }
}

/// The values at these paths, each under its path.
fn selected(whole: &Value, paths: &[String]) -> Map<String, Value> {
    let at = |path: &String| {
        let value = path
            .split('/')
            .try_fold(whole, |value, name| value.get(name))?;
        Some((path.clone(), value.clone()))
    };
    paths.iter().filter_map(at).collect()
}

impl Chunk {
    fn append(&mut self, later: Self) {
        self.content.push_str(&later.content);
        self.tokens.extend(later.tokens);
        (self.tokens_predicted, self.tokens_evaluated) =
            (later.tokens_predicted, later.tokens_evaluated);
        if let (Some(probabilities), Some(later)) = (
            &mut self.completion_probabilities,
            later.completion_probabilities,
        ) {
            probabilities.extend(later);
        }
        (self.stop, self.timings, self.end) = (later.stop, later.timings, later.end);
    }
}

impl ReplyForm for LlamaReply {
    type Chunk = Chunk;
    /// No end event: the last chunk of the choice is complete.
    const END: &'static str = "";

    fn chunks(&mut self, delta: Delta, _: Totals) -> Vec<Chunk> {
        self.has_new_line[delta.choice] |= delta.parts.content.contains('\n');
        let end = delta.finish.map(|finish| self.end(finish, &delta));
        let returned = if self.asked.tokens {
            &delta.tokens[..]
        } else {
            &[]
        };
        let ids = returned.iter().map(|token| token.id);
        vec![Chunk {
            index: delta.choice,
            tokens: ids.collect(),
            id_slot: 0,
            stop: end.is_some(),
            tokens_predicted: delta.own.completion_tokens,
            tokens_evaluated: delta.own.prompt_tokens,
            completion_probabilities: self.asked.probabilities.then(|| {
                delta
                    .tokens
                    .iter()
                    .map(|token| self.probability(token))
                    .collect()
            }),
            prompt_progress: None,
            timings: (end.is_some() || self.asked.timings).then(|| delta.own.into()),
            end,
            content: delta.parts.content,
        }]
    }

    fn progress(&mut self, choice: usize, progress: PromptProgress) -> Option<Chunk> {
        Some(Chunk {
            index: choice,
            content: String::new(),
            tokens: Vec::new(),
            id_slot: 0,
            stop: false,
            tokens_predicted: 0,
            tokens_evaluated: progress.processed,
            completion_probabilities: None,
            prompt_progress: Some(progress),
            timings: self.asked.timings.then(|| progress.into()),
            end: None,
        })
    }

    fn last_chunk(&self, _: Totals) -> Option<Chunk> {
        None
    }

    fn event(&self, chunk: Chunk) -> String {
        sse::event(&json::write(&chunk))
    }

    fn whole(&self, chunks: Vec<Chunk>) -> String {
        let mut replies: Vec<Option<Chunk>> = vec![None; self.has_new_line.len()];
        for chunk in chunks {
            match &mut replies[chunk.index] {
                Some(reply) => reply.append(chunk),
                none => *none = Some(chunk),
            }
        }
        let mut shown: Vec<_> = replies
            .iter()
            .flatten()
            .map(|reply| self.shown(reply))
            .collect();
        if shown.len() == 1 {
            json::write(&shown.remove(0))
        } else {
            json::write(&shown)
        }
    }
}
