//! Keeps special-token strings inside a conversation ordinary text.
//!
//! A template writes `<|im_end|>` as a control token; a user who types the same characters must not get one. So before
//! rendering, each such string in the conversation is put between [`MARK`] and [`MARK_END`], where the template still
//! finds it; after rendering, those without marks are the template's own. They are replaced by aliases made of
//! noncharacters, the marks are removed, and a second tokenizer encodes the text: it treats aliases as special tokens,
//! and special strings as text. Unicode does not use noncharacters in interchange; any in a conversation become U+FFFD.
//!
//! A template may split a text at a special string, which leaves a mark at an end: see [`super::marks`].
//!
//! A string may also be *completed* by what the template puts next to it, so the beginning of a special string is
//! broken by a mark at the end of a value, or where a template may cut it: at trailing white space and at another added
//! token.

use super::integers;
use super::marks::{MARK, MARK_END, is_noncharacter};
use super::template::ChatInput;
use serde_json::{Map, Value};

const ALIAS: char = '\u{FDD1}';
const DIGIT_ZERO: u32 = 0xFDE0;
const DIGITS: usize = 4;

/// The special-token strings of one tokenizer.
pub(super) struct Literals {
    /// The special added tokens, longest first, so that the first match is the longest.
    special: Vec<String>,
    /// All added tokens. A template may split a value at them.
    added: Vec<String>,
    /// First bytes of `special`.
    first_bytes: [bool; 256],
}

/// A conversation with its special-token strings broken.
pub(super) struct Marked {
    pub(super) messages: Value,
    pub(super) tools: Option<Value>,
}

impl Literals {
    pub(super) fn new(mut special: Vec<String>, added: Vec<String>) -> Self {
        special.retain(|token| !token.is_empty());
        special.sort_by(|a, b| b.len().cmp(&a.len()).then(a.cmp(b)));
        let mut first_bytes = [false; 256];
        for token in &special {
            first_bytes[usize::from(token.as_bytes()[0])] = true;
        }
        Self {
            special,
            added: added
                .into_iter()
                .filter(|token| !token.is_empty())
                .collect(),
            first_bytes,
        }
    }

    /// The special-token strings, in the order of their aliases.
    pub(super) fn special(&self) -> &[String] {
        &self.special
    }

    /// The alias of special token `index`.
    pub(super) fn alias(index: usize) -> String {
        std::iter::once(ALIAS)
            .chain((0..DIGITS).rev().map(|place| {
                let value = (index >> (4 * place)) & 15;
                char::from_u32(DIGIT_ZERO + value as u32)
                    .expect("U+FDE0..=U+FDEF are scalar values")
            }))
            .collect()
    }

    /// A marked copy of the conversation; `None` if there is nothing to mark, which is nearly always the case.
    pub(super) fn mark_input(&self, input: &ChatInput<'_>) -> Option<Marked> {
        let needs = self.needs_marks(input.messages)
            || input.tools.is_some_and(|tools| self.needs_marks(tools));
        needs.then(|| self.marked(input))
    }

    /// A marked copy of the conversation.
    pub(super) fn marked(&self, input: &ChatInput<'_>) -> Marked {
        Marked {
            messages: self.mark_value(input.messages),
            tools: input.tools.map(|tools| self.mark_value(tools)),
        }
    }

    /// The text rendered from a marked conversation, with these texts in place of the special token `token`, one for
    /// each time that the template wrote it. The number of times is the error if there are more texts or fewer.
    pub(super) fn replace(
        &self,
        rendered: &str,
        token: &str,
        texts: &[String],
    ) -> Result<String, usize> {
        let mut replaced = String::with_capacity(rendered.len());
        let (mut rest, mut count) = (rendered, 0);
        while let Some(at) = rest.find(token) {
            let (before, behind) = (&rest[..at], &rest[at + token.len()..]);
            replaced.push_str(before);
            // One mark is enough: a template may have cut off the other.
            if before.ends_with(MARK) || behind.starts_with(MARK_END) {
                replaced.push_str(token);
            } else {
                replaced.push_str(texts.get(count).map_or("", String::as_str));
                count += 1;
            }
            rest = behind;
        }
        replaced.push_str(rest);
        if count == texts.len() {
            Ok(replaced)
        } else {
            Err(count)
        }
    }

    /// Prepares the text rendered from a marked conversation for the second tokenizer: replaces the template's special
    /// tokens by aliases and removes the marks.
    pub(super) fn alias_text(&self, rendered: &str) -> String {
        let mut text = String::with_capacity(rendered.len());
        let mut rest = rendered;
        let mut is_marked = false;
        while let Some(character) = rest.chars().next() {
            if let Some(index) = self.special_at(rest) {
                let (token, behind) = rest.split_at(self.special[index].len());
                // One mark is enough: a template may have cut off the other.
                match is_marked || behind.starts_with(MARK_END) {
                    true => text.push_str(token),
                    false => text.push_str(&Self::alias(index)),
                }
                (is_marked, rest) = (false, behind);
                continue;
            }
            is_marked = character == MARK;
            if !matches!(character, MARK | MARK_END) {
                text.push(character);
            }
            rest = &rest[character.len_utf8()..];
        }
        text
    }

    fn special_at(&self, text: &str) -> Option<usize> {
        let first = usize::from(*text.as_bytes().first()?);
        if !self.first_bytes[first] {
            return None;
        }
        self.special
            .iter()
            .position(|token| text.starts_with(token.as_str()))
    }

    /// Whether a special-token string starts here, or a beginning of one that the following text may complete.
    fn starts_special(&self, text: &str) -> bool {
        if !self.first_bytes[usize::from(text.as_bytes()[0])] {
            return false;
        }
        self.special.iter().any(|token| {
            let common = common_prefix(text, token);
            let rest = &text[common..];
            common == token.len()
                || common > 0
                    && (rest.trim().is_empty()
                        || self.added.iter().any(|added| rest.starts_with(added)))
        })
    }

    fn needs_marks(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => self.text_needs_marks(text),
            Value::Array(items) => items.iter().any(|item| self.needs_marks(item)),
            _ if integers::digits(value).is_some() => false,
            Value::Object(map) => map
                .iter()
                .any(|(key, item)| self.text_needs_marks(key) || self.needs_marks(item)),
            _ => false,
        }
    }

    fn text_needs_marks(&self, text: &str) -> bool {
        text.char_indices()
            .any(|(at, character)| is_noncharacter(character) || self.starts_special(&text[at..]))
    }

    fn mark_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark_text(text)),
            Value::Array(items) => items.iter().map(|item| self.mark_value(item)).collect(),
            _ if integers::digits(value).is_some() => value.clone(),
            Value::Object(map) => {
                let pairs = map
                    .iter()
                    .map(|(key, item)| (self.mark_text(key), self.mark_value(item)));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
            other => other.clone(),
        }
    }

    fn mark_text(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len() + 8);
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if let Some(index) = self.special_at(rest) {
                let (token, behind) = rest.split_at(self.special[index].len());
                marked.extend([MARK]);
                marked.push_str(token);
                marked.extend([MARK_END]);
                rest = behind;
                continue;
            }
            marked.push(if is_noncharacter(character) {
                char::REPLACEMENT_CHARACTER
            } else {
                character
            });
            if self.starts_special(rest) {
                marked.push(MARK);
            }
            rest = &rest[character.len_utf8()..];
        }
        marked
    }
}

/// Length of the common prefix in bytes, ending at a character boundary of `text`.
fn common_prefix(text: &str, token: &str) -> usize {
    text.chars()
        .zip(token.chars())
        .take_while(|(a, b)| a == b)
        .map(|(a, _)| a.len_utf8())
        .sum()
}
