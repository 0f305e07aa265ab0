//! Logprobs in the forms of OpenAI's two APIs, and those of prompts in vLLM's.

use crate::engine::request::{Token, TokenLogprob};
use crate::text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What stands for a probability of zero.
const LOGPROB_MIN: f32 = -9999.0;

/// Logprobs of the tokens of one chunk, or of a whole choice.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    Chat(ChatLogprobs),
    Completion(CompletionLogprobs),
}

/// An entry for each token. Nothing here refuses.
#[derive(Clone, Debug, Serialize)]
pub(super) struct ChatLogprobs {
    content: Vec<ChatToken>,
    refusal: (),
}

#[derive(Clone, Debug, Serialize)]
struct ChatToken {
    token: String,
    logprob: f64,
    bytes: Vec<u8>,
    /// Of the chosen token; its alternatives have none themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatToken>>,
}

/// A list for each fact, with an entry for each token.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing has foretold.
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

/// A logprob as JSON has it: finite.
pub(super) fn finite(logprob: Option<f32>) -> f64 {
    f64::from(logprob.unwrap_or(LOGPROB_MIN).max(LOGPROB_MIN))
}

impl Logprobs {
    pub(super) fn append(&mut self, later: Self) {
        match (self, later) {
            (Self::Chat(now), Self::Chat(later)) => now.content.extend(later.content),
            (Self::Completion(now), Self::Completion(later)) => {
                now.tokens.extend(later.tokens);
                now.token_logprobs.extend(later.token_logprobs);
                now.top_logprobs.extend(later.top_logprobs);
                now.text_offset.extend(later.text_offset);
            }
            _ => unreachable!("a choice is of one kind from its first chunk to its last"),
        }
    }
}

/// Writes tokens as text.
pub(super) struct TokenNames {
    /// `None`: tokens have no text.
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Logprobs name tokens by id, as vLLM does: `token_id:123`.
    pub(super) by_id: bool,
}

impl TokenNames {
    pub(super) fn bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer.as_ref().map(|tokenizer| tokenizer.token_bytes(id, None)).unwrap_or_default()
    }

    /// The token's text, with U+FFFD for what is no whole character.
    pub(super) fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }

    /// The name that replaces the token's text, if tokens are named by id.
    fn id_name(&self, id: u32) -> Option<String> {
        self.by_id.then(|| format!("token_id:{id}"))
    }

    /// The token's text; of a token that is only part of a character its bytes, so that two of them stay apart.
    fn distinct(&self, id: u32) -> String {
        if let Some(name) = self.id_name(id) {
            return name;
        }
        String::from_utf8(self.bytes(id)).unwrap_or_else(|error| {
            error.as_bytes().iter().fold("bytes:".to_owned(), |name, byte| format!("{name}\\x{byte:02x}"))
        })
    }

    pub(super) fn chat(&self, tokens: &[Token]) -> Logprobs {
        let entry = |id: u32, logprob: Option<f32>| {
            let (token, bytes) = (self.id_name(id).unwrap_or_else(|| self.text(id)), self.bytes(id));
            ChatToken { token, logprob: finite(logprob), bytes, top_logprobs: None }
        };
        let content = tokens.iter().map(|token| {
            let top = token.top_logprobs.iter().map(|top| entry(top.token_id, Some(top.logprob)));
            ChatToken { top_logprobs: Some(top.collect()), ..entry(token.id, token.logprob) }
        });
        Logprobs::Chat(ChatLogprobs { content: content.collect(), refusal: () })
    }

    /// A token without more than its id is the first of a prompt. `offset` counts the characters of all tokens so far.
    pub(super) fn completion<'a>(
        &self,
        tokens: impl Iterator<Item = (u32, Option<&'a Token>)>,
        offset: &mut usize,
    ) -> Logprobs {
        let mut lists = CompletionLogprobs::default();
        for (id, token) in tokens {
            let top = token.map(|token| {
                let chosen = TokenLogprob { token_id: id, logprob: token.logprob.unwrap_or(LOGPROB_MIN) };
                let alternatives = token.top_logprobs.iter().chain([&chosen]);
                alternatives.map(|top| (self.distinct(top.token_id), finite(Some(top.logprob)).into())).collect()
            });
            lists.tokens.push(self.distinct(id));
            lists.token_logprobs.push(token.map(|token| finite(token.logprob)));
            lists.top_logprobs.push(top);
            lists.text_offset.push(*offset);
            // Characters begin at bytes that are not continuations, so parts of one add up to it.
            *offset += self.bytes(id).iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        }
        Logprobs::Completion(lists)
    }

    /// vLLM's form: for each token of the prompt, by id, what was likely in its place and how likely it was itself.
    pub(super) fn prompt<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> Value {
        let entry = |id: u32, logprob: Option<f32>, rank: Option<usize>| {
            (id.to_string(), json!({"logprob": finite(logprob), "rank": rank, "decoded_token": self.text(id)}))
        };
        let of_token = |token: &Token| {
            let own = entry(token.id, token.logprob, None);
            let top = token.top_logprobs.iter().zip(1..);
            let top = top.map(|(top, rank)| entry(top.token_id, Some(top.logprob), Some(rank)));
            // A token that is among the likely ones has its rank from there.
            Value::Object(std::iter::once(own).chain(top).collect())
        };
        std::iter::once(Value::Null).chain(tokens.map(of_token)).collect()
    }
}
