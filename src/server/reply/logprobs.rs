//! Logprobs in the forms of OpenAI's two APIs, and prompt logprobs in vLLM's form.

use crate::engine::request::{Token, TokenLogprob};
use crate::text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Reported for a probability of zero, because JSON has no infinity.
const LOGPROB_MIN: f32 = -9999.0;

/// Logprobs of the tokens of one chunk, or of a whole choice.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Logprobs {
    Chat(ChatLogprobs),
    Completion(CompletionLogprobs),
}

/// The form of chats: an entry for each token. `refusal` is always null.
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
    /// Alternatives to the chosen token; absent for an alternative itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Vec<ChatToken>>,
}

/// The form of completions: parallel lists with an entry for each token.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct CompletionLogprobs {
    tokens: Vec<String>,
    /// Null for the first token of a prompt, which has no prediction.
    token_logprobs: Vec<Option<f64>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

/// A logprob as a finite number, which JSON requires.
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

/// How tokens are named in logprobs.
pub(super) struct TokenNames {
    /// `None`: the model has no tokenizer, so tokens have no text.
    pub(super) tokenizer: Option<Arc<Tokenizer>>,
    /// Logprobs name tokens by id, as vLLM does: `token_id:123`.
    pub(super) by_id: bool,
    /// Special tokens are not shown in the text.
    pub(super) hides_special: bool,
}

impl TokenNames {
    pub(super) fn bytes(&self, id: u32) -> Vec<u8> {
        self.tokenizer
            .as_ref()
            .map(|tokenizer| tokenizer.token_bytes(id, None))
            .unwrap_or_default()
    }

    /// The token's text, with U+FFFD for incomplete characters.
    pub(super) fn text(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }

    /// The name that replaces the token's text, if tokens are named by id.
    fn id_name(&self, id: u32) -> Option<String> {
        self.by_id.then(|| format!("token_id:{id}"))
    }

    /// The token's text, or its bytes if it is only part of a character, so that such tokens stay distinct.
    fn distinct(&self, id: u32) -> String {
        if let Some(name) = self.id_name(id) {
            return name;
        }
        String::from_utf8(self.bytes(id)).unwrap_or_else(|error| {
            error
                .as_bytes()
                .iter()
                .fold("bytes:".to_owned(), |name, byte| {
                    format!("{name}\\x{byte:02x}")
                })
        })
    }

    /// Logprobs in the form of chats, an entry for each token.
    pub(super) fn entries(&self, tokens: &[Token]) -> Vec<Value> {
        match json!(self.chat(tokens))["content"].take() {
            Value::Array(entries) => entries,
            _ => Vec::new(),
        }
    }

    pub(super) fn chat(&self, tokens: &[Token]) -> Logprobs {
        let content = tokens.iter().map(|token| {
            let top = token
                .top_logprobs
                .iter()
                .map(|top| self.entry(top.token_id, Some(top.logprob)));
            ChatToken {
                top_logprobs: Some(top.collect()),
                ..self.entry(token.id, token.logprob)
            }
        });
        Logprobs::Chat(ChatLogprobs {
            content: content.collect(),
            refusal: (),
        })
    }

    fn entry(&self, id: u32, logprob: Option<f32>) -> ChatToken {
        let (token, bytes) = (
            self.id_name(id).unwrap_or_else(|| self.text(id)),
            self.bytes(id),
        );
        ChatToken {
            token,
            logprob: finite(logprob),
            bytes,
            top_logprobs: None,
        }
    }

    /// The characters that a token adds to the text. Counts only bytes that start a character, so a character that is
    /// split over several tokens counts once.
    fn characters(&self, id: u32) -> usize {
        let is_hidden = self.hides_special
            && self
                .tokenizer
                .as_ref()
                .is_some_and(|tokenizer| tokenizer.is_special(id));
        if is_hidden {
            0
        } else {
            self.bytes(id)
                .iter()
                .filter(|byte| **byte & 0xC0 != 0x80)
                .count()
        }
    }

    /// Logprobs in the form of completions. A token given only by its id is the first of a prompt. `offset` counts the
    /// characters of all tokens so far.
    pub(super) fn completion<'a>(
        &self,
        tokens: impl Iterator<Item = (u32, Option<&'a Token>)>,
        offset: &mut usize,
    ) -> Logprobs {
        let mut lists = CompletionLogprobs::default();
        for (id, token) in tokens {
            let top = token.map(|token| {
                let chosen = TokenLogprob {
                    token_id: id,
                    logprob: token.logprob.unwrap_or(LOGPROB_MIN),
                };
                // The token itself comes first, also if it is among the likeliest ones.
                let named = std::iter::once(&chosen).chain(&token.top_logprobs);
                named
                    .map(|top| {
                        (
                            self.distinct(top.token_id),
                            finite(Some(top.logprob)).into(),
                        )
                    })
                    .collect()
            });
            lists.tokens.push(self.distinct(id));
            lists
                .token_logprobs
                .push(token.map(|token| finite(token.logprob)));
            lists.top_logprobs.push(top);
            lists.text_offset.push(*offset);
            *offset += self.characters(id);
        }
        Logprobs::Completion(lists)
    }

    /// Prompt logprobs in vLLM's form: for each token of the prompt a map, by token id, of the likeliest tokens at its
    /// position and the token itself.
    pub(super) fn prompt<'a>(&self, tokens: impl Iterator<Item = &'a Token>) -> Value {
        let entry = |id: u32, logprob: Option<f32>, rank: Option<u32>| {
            (
                id.to_string(),
                json!({"logprob": finite(logprob), "rank": rank, "decoded_token": self.text(id)}),
            )
        };
        std::iter::once(Value::Null)
            .chain(tokens.map(|token| {
                let own = entry(token.id, token.logprob, token.rank);
                let top = token.top_logprobs.iter().zip(1..);
                let top = top.map(|(top, rank)| entry(top.token_id, Some(top.logprob), Some(rank)));
                // If the token is among the likeliest ones, that entry replaces its own.
                Value::Object(std::iter::once(own).chain(top).collect())
            }))
            .collect()
    }
}
