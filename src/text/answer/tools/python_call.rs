//! [`PythonCall`] parses one call as Python writes it, `name(key=value, …)`, while it streams: it finds the end of the
//! call, and reports name and arguments there.

use super::json_call::Outcome;
use super::{CallDelta, python};

/// A call that is being parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct PythonCall {
    raw: String,
    /// The function, once its parenthesis has come.
    name: Option<String>,
    /// Brackets that are open.
    depth: usize,
    /// The quote of the text that is being read.
    quote: Option<char>,
    is_escaped: bool,
    /// Name and arguments, once the call is complete.
    complete: Option<(String, String)>,
    is_told: bool,
}

impl PythonCall {
    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Takes more text, up to the end of the call.
    pub(crate) fn push(&mut self, text: &str) -> Outcome {
        for (at, character) in text.char_indices() {
            if !self.step(character) {
                return Outcome::Failed(at);
            }
            self.raw.push(character);
            let is_end = self.name.is_some() && self.depth == 0;
            if is_end {
                return self.end(at + character.len_utf8());
            }
        }
        Outcome::Open
    }

    /// Takes one character. Returns false if the text is no call.
    fn step(&mut self, character: char) -> bool {
        match (self.quote, character) {
            (Some(_), _) if self.is_escaped => self.is_escaped = false,
            (Some(_), '\\') => self.is_escaped = true,
            (Some(quote), _) if quote == character => self.quote = None,
            (Some(_), _) => {}
            (None, '(') if self.name.is_none() => {
                self.name = Some(self.raw.clone());
                self.depth = 1;
                return !self.raw.is_empty();
            }
            (None, _) if self.name.is_none() => return python::is_part(character),
            (None, '"' | '\'') => self.quote = Some(character),
            (None, '(' | '[' | '{') => self.depth += 1,
            (None, ')' | ']' | '}') => self.depth -= 1,
            (None, _) => {}
        }
        true
    }

    /// The call has ended, after so many bytes of the text.
    fn end(&mut self, bytes: usize) -> Outcome {
        self.complete = python::call(&self.raw);
        if self.complete.is_some() {
            return Outcome::Whole(bytes);
        }
        self.name = None;
        Outcome::Failed(bytes)
    }

    /// Whether the call was reported.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// The call, once it is complete.
    pub(crate) fn take(&mut self) -> Option<CallDelta> {
        let (name, arguments) = self.complete.take()?;
        self.is_told = true;
        Some(CallDelta {
            name: Some(name),
            arguments,
            ..CallDelta::default()
        })
    }
}
