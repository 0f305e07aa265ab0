//! Calls as Python writes them, `[name(key="text", other=[1, True])]`, while they stream. Texts are passed on as they
//! are written, other values when they are complete.

use super::super::json_text::{escaped, quoted};
use super::super::marker::begins;
use super::json_call::{JsonCall, Outcome};
use super::progress::Progress;
use super::tags::is_in_name;
use super::types::{self, Allowed};
use super::{CallDelta, ToolSet, python};
use serde_json::Value;
use std::sync::Arc;

/// Calls that are being parsed: a list, or one without brackets. Some models write JSON instead.
#[derive(Clone, Debug)]
pub(crate) struct PythonCalls {
    tools: Arc<ToolSet>,
    close: &'static str,
    /// Whether only functions of the request are called.
    is_strict: bool,
    /// The text from the end of the last call, until it is certain that there is another one.
    raw: String,
    /// Text that was not read yet.
    held: String,
    is_over: bool,
    stage: Stage,
    /// Number of the current call.
    index: usize,
    name: String,
    /// Something of the current call is certain, and its name was reported.
    is_begun: bool,
    is_named: bool,
    key: String,
    given: Vec<String>,
    /// JSON of the arguments that was not reported yet.
    arguments: String,
    deltas: Vec<CallDelta>,
}

#[derive(Clone, Debug)]
enum Stage {
    Start,
    Name,
    /// Before a key, or the end of the arguments.
    Key,
    Value,
    Quote(char),
    /// Within a text, with its quotes.
    Text(&'static str),
    AfterValue,
    AfterCall,
    Json(Box<JsonCall>),
    End,
}

impl PythonCalls {
    pub(super) fn new(tools: Arc<ToolSet>, close: &'static str, is_strict: bool) -> Self {
        Self {
            tools,
            close,
            is_strict,
            raw: String::new(),
            held: String::new(),
            is_over: false,
            stage: Stage::Start,
            index: 0,
            name: String::new(),
            is_begun: false,
            is_named: false,
            key: String::new(),
            given: Vec::new(),
            arguments: String::new(),
            deltas: Vec::new(),
        }
    }

    pub(super) fn rest(self) -> String {
        self.held
    }

    /// What is new since the last call.
    pub(super) fn take(&mut self) -> Vec<CallDelta> {
        self.flush();
        std::mem::take(&mut self.deltas)
    }

    pub(super) fn push(&mut self, text: &str) -> Progress {
        if !self.is_begun {
            self.raw.push_str(text);
        }
        self.held.push_str(text);
        self.read()
    }

    pub(super) fn finish(&mut self) -> Progress {
        self.is_over = true;
        self.read()
    }

    fn read(&mut self) -> Progress {
        loop {
            let progress = match std::mem::replace(&mut self.stage, Stage::End) {
                Stage::Start => self.start(),
                Stage::Name => self.name(),
                Stage::Key => self.key(),
                Stage::Value => self.value(),
                Stage::Quote(quote) => self.quote(quote),
                Stage::Text(quotes) => self.text(quotes),
                Stage::AfterValue => self.after_value(),
                Stage::AfterCall => self.after_call(),
                Stage::Json(call) => self.json(call),
                Stage::End => return Progress::Whole,
            };
            if let Some(progress) = progress {
                return progress;
            }
        }
    }

    /// More text is needed; where there is no more, the calls end.
    fn wait(&mut self, stage: Stage) -> Option<Progress> {
        if self.is_over {
            return self.break_off();
        }
        self.stage = stage;
        Some(Progress::Open)
    }

    /// The text is no call from here on. What was begun of one is completed.
    fn break_off(&mut self) -> Option<Progress> {
        if self.is_begun {
            self.end_call();
        } else {
            self.held = std::mem::take(&mut self.raw);
            if self.index == 0 {
                return Some(Progress::NoCall);
            }
        }
        self.stage = Stage::End;
        None
    }

    /// The first character after white space, which is skipped.
    fn first(&mut self) -> Option<char> {
        self.held = self.held.trim_start().to_owned();
        self.held.chars().next()
    }

    /// The identifier with which the held text begins, and the text after it; `None` if it may go on.
    fn identifier(&self) -> Option<(String, String)> {
        let end = self.held.find(|c| !is_in_name(c))?;
        let (name, rest) = self.held.split_at(end);
        let rest = rest.trim_start();
        (!rest.is_empty()).then(|| (name.to_owned(), rest.to_owned()))
    }

    fn start(&mut self) -> Option<Progress> {
        match self.first() {
            None => return self.wait(Stage::Start),
            Some('[') => {
                self.held.remove(0);
                self.stage = Stage::AfterCall;
            }
            Some('{') => self.stage = Stage::Json(Box::new(JsonCall::new())),
            Some(_) => self.stage = Stage::Name,
        }
        None
    }

    fn name(&mut self) -> Option<Progress> {
        self.first();
        let Some((name, rest)) = self.identifier() else {
            return self.wait(Stage::Name);
        };
        let is_strange = name.is_empty() || self.is_strict && !self.tools.has(&name);
        let (Some(arguments), false) = (rest.strip_prefix('('), is_strange) else {
            return self.break_off();
        };
        (self.name, self.held) = (name, arguments.to_owned());
        self.given.clear();
        self.stage = Stage::Key;
        None
    }

    fn key(&mut self) -> Option<Progress> {
        match self.first() {
            None => return self.wait(Stage::Key),
            Some(')') => {
                self.held.remove(0);
                self.end_call();
                self.stage = Stage::AfterCall;
                return None;
            }
            Some(_) => {}
        }
        let Some((key, rest)) = self.identifier() else {
            return self.wait(Stage::Key);
        };
        let (Some(value), false) = (rest.strip_prefix('='), key.is_empty()) else {
            return self.break_off();
        };
        (self.key, self.held) = (key, value.to_owned());
        self.stage = Stage::Value;
        None
    }

    fn value(&mut self) -> Option<Progress> {
        match self.first() {
            None => self.wait(Stage::Value),
            Some(quote @ ('"' | '\'')) => {
                self.held.remove(0);
                self.begin_value("\"");
                self.stage = Stage::Quote(quote);
                None
            }
            Some('[' | '(' | '{') => match python::value(&self.held) {
                python::Parsed::Value(json, length) => {
                    self.held.drain(..length);
                    self.begin_value(&json);
                    None
                }
                python::Parsed::Open => self.wait(Stage::Value),
                python::Parsed::None => self.break_off(),
            },
            Some(_) => self.word(),
        }
    }

    /// A value without quotes and brackets.
    fn word(&mut self) -> Option<Progress> {
        let end = self.held.char_indices().find(|&(at, character)| {
            matches!(character, ',' | ')' | ']' | '}')
                || character == '<' && begins(&self.held[at..], self.close) != Some(false)
        });
        let end = match end {
            Some((at, '<')) if begins(&self.held[at..], self.close).is_none() && !self.is_over => {
                return self.wait(Stage::Value);
            }
            Some((at, _)) => at,
            None if self.is_over => self.held.len(),
            None => return self.wait(Stage::Value),
        };
        let is_broken = self.held[end..].starts_with([']', '}']) && !self.is_begun;
        let json = self.word_as_json(self.held[..end].trim());
        let (Some(json), false) = (json, is_broken) else {
            return self.break_off();
        };
        self.held.drain(..end);
        self.begin_value(&json);
        None
    }

    /// A number, a constant, or a text whose quotes are missing, if the schema allows one.
    fn word_as_json(&self, word: &str) -> Option<String> {
        let parameters = self.tools.parameters(&self.name);
        let schema = types::member(parameters, parameters, &self.key).unwrap_or(&Value::Null);
        let allowed = Allowed::by(schema, parameters);
        match python::literal(word) {
            Some(json) if allowed.texts_are_bare() && json.starts_with(is_of_number) => {
                Some(allowed.read(word))
            }
            Some(json) => Some(json),
            None if word.is_empty() => None,
            None => (allowed.texts_are_bare() || self.is_begun).then(|| quoted(word)),
        }
    }

    /// A value begins with this JSON. Of several values of a key, the last counts for those who read them.
    fn begin_value(&mut self, json: &str) {
        let before = if self.given.is_empty() { '{' } else { ',' };
        self.arguments.push(before);
        self.arguments.push_str(&quoted(&self.key));
        self.arguments.push(':');
        self.arguments.push_str(json);
        self.given.push(self.key.clone());
        self.is_begun = true;
        self.stage = Stage::AfterValue;
    }

    /// After the first quote of a text: two more of them, or its first character.
    fn quote(&mut self, quote: char) -> Option<Progress> {
        let (one, two, three) = if quote == '"' {
            ("\"", "\"\"", "\"\"\"")
        } else {
            ("'", "''", "'''")
        };
        let quotes = match begins(&self.held, two) {
            None if !self.is_over => return self.wait(Stage::Quote(quote)),
            Some(true) => {
                self.held.drain(..two.len());
                three
            }
            _ => one,
        };
        self.stage = Stage::Text(quotes);
        None
    }

    fn text(&mut self, quotes: &'static str) -> Option<Progress> {
        let mut at = 0;
        let mut text = String::new();
        let is_open = loop {
            let rest = &self.held[at..];
            let Some(next) = rest.find(['\\', '"', '\'']) else {
                text.push_str(rest);
                at = self.held.len();
                break true;
            };
            text.push_str(&rest[..next]);
            at += next;
            let rest = &self.held[at..];
            if rest.starts_with('\\') {
                match python::escape(rest) {
                    Some((meant, length)) => {
                        text.push_str(&meant);
                        at += length;
                    }
                    None if self.is_over => at = self.held.len(),
                    None => break true,
                }
                continue;
            }
            match self.ends_text(rest, quotes) {
                Some(true) => {
                    at += quotes.len();
                    break false;
                }
                None if !self.is_over => break true,
                _ => {
                    text.push_str(&rest[..1]);
                    at += 1;
                }
            }
        };
        self.arguments.push_str(&escaped(&text));
        self.held.drain(..at);
        if is_open && !self.is_over {
            self.stage = Stage::Text(quotes);
            return Some(Progress::Open);
        }
        self.arguments.push('"');
        self.stage = Stage::AfterValue;
        None
    }

    /// Whether a text with these quotes ends with the quote before which `text` begins: models do not escape quotes
    /// within a text. After the text another argument follows, or the end of the call.
    fn ends_text(&self, text: &str, quotes: &str) -> Option<bool> {
        if !begins(text, quotes)? {
            return Some(false);
        }
        let next = text[quotes.len()..].trim_start();
        let after = next
            .chars()
            .next()
            .map(|first| next[first.len_utf8()..].trim_start());
        let Some(after) = after else {
            return self.is_over.then_some(true);
        };
        match next.as_bytes()[0] {
            b')' if after.is_empty() => self.is_over.then_some(true),
            b')' if next[1..next.len() - after.len()].contains('\n')
                && self.begins_call(after)? =>
            {
                Some(true)
            }
            b')' => Some(after.starts_with([']', ',']) || begins(after, self.close)?),
            b',' if after.starts_with(')') => Some(true),
            b',' => {
                let end = after.find(|c| !is_in_name(c))?;
                let key = after[end..].trim_start();
                if key.is_empty() {
                    return self.is_over.then_some(false);
                }
                Some(end > 0 && key.starts_with('='))
            }
            b'<' => begins(next, self.close),
            _ => Some(false),
        }
    }

    /// Whether a text begins with a call of a function of the request, as on the next of several lines.
    fn begins_call(&self, text: &str) -> Option<bool> {
        let end = text.find(|c| !is_in_name(c))?;
        let arguments = text[end..].trim_start();
        if arguments.is_empty() {
            return None;
        }
        Some(arguments.starts_with('(') && self.tools.has(&text[..end]))
    }

    fn after_value(&mut self) -> Option<Progress> {
        match self.first() {
            None => return self.wait(Stage::AfterValue),
            Some(',') => {
                self.held.remove(0);
                self.stage = Stage::Key;
            }
            Some(')') => {
                self.held.remove(0);
                self.end_call();
                self.stage = Stage::AfterCall;
            }
            Some(_) => return self.break_off(),
        }
        None
    }

    /// The current call is complete.
    fn end_call(&mut self) {
        let end = if self.given.is_empty() { "{}" } else { "}" };
        self.arguments.push_str(end);
        self.is_begun = true;
        self.flush();
        self.next_call();
    }

    fn next_call(&mut self) {
        (self.is_begun, self.is_named) = (false, false);
        self.raw = self.held.clone();
        self.index += 1;
    }

    /// Reports what is certain of the current call.
    fn flush(&mut self) {
        if !self.is_begun || self.is_named && self.arguments.is_empty() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.is_named, true);
        self.deltas.push(CallDelta {
            index: self.index,
            name: is_first.then(|| self.name.clone()),
            arguments: std::mem::take(&mut self.arguments),
        });
    }

    /// Between the calls of a list.
    fn after_call(&mut self) -> Option<Progress> {
        match self.first() {
            None if self.is_over => {}
            None => return self.wait(Stage::AfterCall),
            Some(',') => {
                self.held.remove(0);
                self.stage = Stage::AfterCall;
            }
            Some(']') => {
                self.held.remove(0);
            }
            Some('{') => self.stage = Stage::Json(Box::new(JsonCall::new())),
            Some(first) if is_in_name(first) || self.index == 0 => self.stage = Stage::Name,
            Some(_) => {}
        }
        None
    }

    fn json(&mut self, mut call: Box<JsonCall>) -> Option<Progress> {
        let outcome = call.push(&self.held);
        if self.is_over && outcome == Outcome::Open {
            call.finish();
        }
        let is_strange = self.is_strict && call.name().is_some_and(|name| !self.tools.has(name));
        if !is_strange && let Some(delta) = call.take() {
            self.deltas.push(CallDelta {
                index: self.index,
                ..delta
            });
            self.is_begun = true;
            self.is_named = true;
        }
        if outcome == Outcome::Open && !self.is_over && !is_strange {
            self.held.clear();
            self.stage = Stage::Json(call);
            return Some(Progress::Open);
        }
        if !call.is_told() {
            return self.break_off();
        }
        self.held.drain(..outcome.bytes(&self.held));
        self.next_call();
        self.stage = Stage::AfterCall;
        None
    }
}

fn is_of_number(character: char) -> bool {
    character.is_ascii_digit() || character == '-'
}
