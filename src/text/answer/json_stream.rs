//! [`JsonStream`] follows a JSON object while it streams, and passes on what closing brackets would complete. So the
//! text that was passed on becomes JSON wherever the object breaks off.

use super::json_text::{Repair, quoted};
use serde_json::Value;

/// A JSON object, or a list, that is being written.
#[derive(Clone, Debug)]
pub(crate) struct JsonStream {
    /// The brackets that close what is open, outermost first.
    closers: Vec<char>,
    expect: Expect,
    /// Makes the strings valid.
    repair: Repair,
    /// Whether the string that is being read is a key.
    is_key: bool,
    /// A quote that may end the string of a value, and the text after it.
    quote: String,
    /// A value that is neither a string nor in brackets, so far.
    scalar: String,
    /// Text that was not taken yet.
    certain: String,
    /// Whether there was any certain text.
    is_certain: bool,
    /// The text after it: commas and keys, which need a value.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    FirstKey,
    Key,
    Colon,
    FirstItem,
    Value,
    Comma,
}

/// What a character does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    More,
    /// It ends the object.
    End,
    /// It cannot follow.
    Broken,
}

impl JsonStream {
    pub(crate) fn new() -> Self {
        Self {
            closers: Vec::new(),
            expect: Expect::Value,
            repair: Repair::default(),
            is_key: false,
            quote: String::new(),
            scalar: String::new(),
            certain: String::new(),
            is_certain: false,
            held: String::new(),
        }
    }

    /// Whether some of the object is certain, so that it can be completed.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_certain
    }

    pub(crate) fn in_string(&self) -> bool {
        self.repair.in_string() && self.quote.is_empty()
    }

    /// The certain text since the last call.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.certain)
    }

    pub(crate) fn push(&mut self, character: char) -> Step {
        if !self.quote.is_empty() || character == '"' && self.in_text() {
            self.quote.push(character);
            return self.read_quote();
        }
        if self.repair.in_string() {
            self.string(character);
            return Step::More;
        }
        if !self.scalar.is_empty() && !self.ends_scalar(character) {
            self.scalar.push(character);
            return Step::More;
        }
        self.end_scalar();
        match (self.expect, character) {
            (_, ' ' | '\n' | '\r' | '\t') if self.closers.is_empty() => {}
            (_, ' ' | '\n' | '\r' | '\t') => self.add(character),
            (_, '}' | ']') => return self.close_to(character),
            (Expect::FirstKey | Expect::Key, '"') => {
                self.is_key = true;
                self.string('"');
            }
            (Expect::Colon, ':') => {
                self.held.push(':');
                self.settle();
                self.expect = Expect::Value;
            }
            (Expect::Comma, ',') => {
                self.held.push(',');
                let in_object = self.closers.last() == Some(&'}');
                self.expect = if in_object {
                    Expect::Key
                } else {
                    Expect::Value
                };
            }
            (Expect::Value | Expect::FirstItem, first) => return self.value(first),
            _ => return Step::Broken,
        }
        Step::More
    }

    /// Whether the string of a value is open, and no escape in it.
    fn in_text(&self) -> bool {
        self.repair.in_string() && !self.repair.in_escape() && !self.is_key
    }

    /// Models forget to escape quotes. One before anything that cannot follow a value is a part of the text.
    fn read_quote(&mut self) -> Step {
        let Some(is_end) = self.ends_text() else {
            return Step::More;
        };
        let held = std::mem::take(&mut self.quote);
        if is_end {
            self.string('"');
        } else {
            self.certain.push_str("\\\"");
        }
        for character in held[1..].chars() {
            let step = self.push(character);
            if step != Step::More {
                return step;
            }
        }
        Step::More
    }

    /// Whether the held quote ends the string; `None` if that is open.
    fn ends_text(&self) -> Option<bool> {
        let next = self.quote[1..].trim_start();
        let first = next.chars().next()?;
        if first != ',' {
            return Some(matches!(first, '}' | ']' | '<'));
        }
        let after = next[1..].trim_start();
        let first = after.chars().next()?;
        if matches!(first, '"' | '}' | ']' | '<') {
            return Some(true);
        }
        if self.closers.last() == Some(&']') {
            return Some(first.is_ascii_digit() || "{[-tfnTFN".contains(first));
        }
        // A key whose quotes are missing is no text either.
        let key = after.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
        let colon = key.trim_start().chars().next()?;
        Some(colon == ':' && key.len() < after.len())
    }

    /// The first character of a value.
    fn value(&mut self, first: char) -> Step {
        if self.closers.is_empty() && !matches!(first, '{' | '[')
            || matches!(first, ',' | ':' | '<')
        {
            return Step::Broken;
        }
        if !self.closers.is_empty() {
            self.settle();
        }
        match first {
            '{' => self.open(first, '}', Expect::FirstKey),
            '[' => self.open(first, ']', Expect::FirstItem),
            '"' => {
                self.is_key = false;
                self.string(first);
            }
            _ => self.scalar.push(first),
        }
        Step::More
    }

    fn open(&mut self, bracket: char, closer: char, expect: Expect) {
        self.add(bracket);
        self.closers.push(closer);
        self.expect = expect;
    }

    /// A character of a string, its quotes included.
    fn string(&mut self, character: char) {
        let piece = self.repair.push(character.encode_utf8(&mut [0; 4]));
        if self.is_key {
            self.held.push_str(&piece);
        } else {
            self.certain.push_str(&piece);
        }
        if !self.repair.in_string() {
            self.expect = if self.is_key {
                Expect::Colon
            } else {
                Expect::Comma
            };
        }
    }

    /// A closing bracket, and those that are missing before it.
    fn close_to(&mut self, bracket: char) -> Step {
        let Some(depth) = self.closers.iter().rposition(|&closer| closer == bracket) else {
            return Step::Broken;
        };
        match self.expect {
            Expect::Colon => return Step::Broken,
            Expect::FirstKey | Expect::FirstItem => self.settle(),
            _ => self.complete_value(),
        }
        self.close(depth);
        if depth == 0 { Step::End } else { Step::More }
    }

    /// Completes the object where it breaks off, if anything of it is certain. A key without a colon is left out.
    pub(crate) fn finish(&mut self) {
        if !self.is_certain || self.closers.is_empty() {
            return;
        }
        self.quote.clear();
        if self.repair.in_string() && !self.is_key {
            self.certain.push_str(&self.repair.finish());
            self.certain.push('"');
            self.expect = Expect::Comma;
        }
        self.repair = Repair::default();
        self.end_scalar();
        self.complete_value();
        self.close(0);
    }

    /// Leaves out a comma without a value, and adds the value that is missing after a colon.
    fn complete_value(&mut self) {
        let is_missing = self.expect == Expect::Value && self.closers.last() == Some(&'}');
        if is_missing {
            self.certain.push_str("null");
        }
        self.held.clear();
    }

    /// Closes all brackets but the outermost `depth` ones.
    fn close(&mut self, depth: usize) {
        self.certain.extend(self.closers.drain(depth..).rev());
        self.expect = Expect::Comma;
    }

    fn ends_scalar(&self, next: char) -> bool {
        matches!(next, ',' | '}' | ']' | '<' | '\n')
            || next.is_whitespace() && constant(&self.scalar).is_some()
    }

    /// A value without quotes that is no JSON can only be meant as a text.
    fn end_scalar(&mut self) {
        if self.scalar.is_empty() {
            return;
        }
        let scalar = std::mem::take(&mut self.scalar);
        let text = scalar.trim_end();
        self.certain
            .push_str(&constant(text).unwrap_or_else(|| quoted(unquoted(text))));
        self.expect = Expect::Comma;
    }

    /// Adds a character that needs no value after it.
    fn add(&mut self, character: char) {
        if self.is_certain && self.held.is_empty() {
            self.certain.push(character);
        } else {
            self.held.push(character);
        }
    }

    /// The held text has got its value.
    fn settle(&mut self) {
        self.certain.push_str(&self.held);
        self.held.clear();
        self.is_certain = true;
    }
}

/// A number, boolean or null, which may be written as in Python.
fn constant(text: &str) -> Option<String> {
    Some(match text {
        "True" => "true".to_owned(),
        "False" => "false".to_owned(),
        "None" => "null".to_owned(),
        _ => serde_json::from_str::<Value>(text)
            .ok()
            .map(|_| text.to_owned())?,
    })
}

/// A text without the single quotes around it.
fn unquoted(text: &str) -> &str {
    let inner = text.strip_prefix('\'');
    inner
        .and_then(|text| text.strip_suffix('\''))
        .unwrap_or(text)
}

/// A whole object or list, completed where it breaks off; `None` if that cannot be done.
pub(crate) fn completed(text: &str) -> Option<String> {
    let mut stream = JsonStream::new();
    for character in text.trim().chars() {
        match stream.push(character) {
            Step::More => {}
            Step::End => return Some(stream.take()),
            Step::Broken => break,
        }
    }
    stream.finish();
    stream.is_certain().then(|| stream.take())
}

#[cfg(test)]
mod tests;
