//! Gemma's calls, while they stream: `call:name{key:value}` between markers, in a notation similar to JSON: keys are
//! unquoted, and strings have their own markers.

use super::super::json_text::{Repair, escaped, quoted};
use super::super::marker::begins;
use super::progress::{OpenCall, Progress};
use super::tags::is_in_name;
use super::types::{self, Allowed};
use super::{CallDelta, ToolSet};
use serde_json::Value;
use std::sync::Arc;

/// Opening marker, closing marker, and string delimiter.
pub(crate) const MARKERS: [&str; 3] = ["<start_function_call>", "<end_function_call>", "<escape>"];
/// The same for Gemma 4.
pub(crate) const MARKERS_4: [&str; 3] = ["<|tool_call>", "<tool_call|>", "<|\"|>"];
/// What is before the name.
const CALL: &str = "call:";

/// A call that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct GemmaCall {
    tools: Arc<ToolSet>,
    markers: [&'static str; 3],
    /// Whether only functions of the request are called.
    is_strict: bool,
    /// Text that was not read yet.
    held: String,
    is_over: bool,
    expect: Expect,
    call: OpenCall,
    /// The schema of the arguments.
    parameters: Value,
    /// The objects and lists that are open, outermost first.
    levels: Vec<Level>,
    /// The key whose value follows.
    key: String,
    /// Makes a string in JSON's quotes valid.
    repair: Repair,
}

#[derive(Clone, Debug)]
struct Level {
    closer: char,
    schema: Value,
    is_empty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Head,
    Key,
    Colon,
    Value,
    Comma,
    /// Within a string.
    Text,
    /// Within a string in JSON's quotes.
    Json,
    End,
}

impl GemmaCall {
    pub(super) fn new(tools: Arc<ToolSet>, markers: [&'static str; 3], is_strict: bool) -> Self {
        Self {
            tools,
            markers,
            is_strict,
            held: String::new(),
            is_over: false,
            expect: Expect::Head,
            call: OpenCall::default(),
            parameters: Value::Null,
            levels: Vec::new(),
            key: String::new(),
            repair: Repair::default(),
        }
    }

    pub(super) fn rest(self) -> String {
        self.held
    }

    /// What is new since the last time.
    pub(super) fn take(&mut self) -> Option<CallDelta> {
        self.call.take()
    }

    pub(super) fn push(&mut self, text: &str) -> Progress {
        self.held.push_str(text);
        self.read()
    }

    pub(super) fn finish(&mut self) -> Progress {
        self.is_over = true;
        self.read()
    }

    fn read(&mut self) -> Progress {
        loop {
            let progress = match self.expect {
                Expect::Head => self.head(),
                Expect::Text => self.text(),
                Expect::Json => self.json(),
                Expect::End => return Progress::Whole,
                Expect::Key | Expect::Colon | Expect::Value | Expect::Comma => self.token(),
            };
            if let Some(progress) = progress {
                return progress;
            }
        }
    }

    /// More text is needed; where there is no more, the call ends.
    fn wait(&mut self) -> Option<Progress> {
        if !self.is_over {
            return Some(Progress::Open);
        }
        self.held.clear();
        self.complete()
    }

    /// Whether the held text begins with `start`; `None` if that is open.
    fn begins(&self, text: &str, start: &str) -> Option<bool> {
        begins(text, start).or(self.is_over.then_some(false))
    }

    /// The name, before which models forget `call`.
    fn head(&mut self) -> Option<Progress> {
        let text = self.held.trim_start();
        let call = match self.begins(text, CALL) {
            None => return Some(Progress::Open),
            Some(true) => Some(&text[CALL.len()..]),
            Some(false) => text.strip_prefix(':'),
        };
        let Some(call) = call.map(str::trim_start) else {
            return Some(Progress::NoCall);
        };
        let (name, after) = call.split_at(call.find(|c| !is_in_name(c)).unwrap_or(call.len()));
        let after = after.trim_start();
        if after.is_empty() && !self.is_over {
            return Some(Progress::Open);
        }
        let is_strange = name.is_empty() || self.is_strict && !self.tools.has(name);
        let Some(rest) = after.strip_prefix('{') else {
            return Some(Progress::NoCall);
        };
        if is_strange {
            return Some(Progress::NoCall);
        }
        let (name, rest) = (name.to_owned(), rest.to_owned());
        self.parameters = self.tools.parameters(&name).clone();
        self.open('}', self.parameters.clone());
        (self.call.name, self.held) = (Some(name), rest);
        None
    }

    fn open(&mut self, closer: char, schema: Value) {
        let (opener, expect) = if closer == '}' {
            ('{', Expect::Key)
        } else {
            ('[', Expect::Value)
        };
        self.call.arguments.push(opener);
        self.expect = expect;
        self.levels.push(Level {
            closer,
            schema,
            is_empty: true,
        });
    }

    fn in_object(&self) -> bool {
        self.levels.last().is_some_and(|level| level.closer == '}')
    }

    /// What follows a value or a comma.
    fn next(&self) -> Expect {
        if self.in_object() {
            Expect::Key
        } else {
            Expect::Value
        }
    }

    fn token(&mut self) -> Option<Progress> {
        self.held = self.held.trim_start().to_owned();
        let Some(first) = self.held.chars().next() else {
            return self.wait();
        };
        match (self.expect, first) {
            (_, '<') => return self.marker(),
            (_, '}' | ']') => return self.close_to(first),
            (Expect::Value, ',') if self.in_object() => self.constant("null"),
            (Expect::Key | Expect::Value | Expect::Comma, ',') => {
                self.held.remove(0);
                self.expect = self.next();
            }
            (Expect::Comma, _) => self.expect = self.next(),
            (Expect::Colon, ':') => {
                self.held.remove(0);
                self.expect = Expect::Value;
            }
            (Expect::Colon, _) => return self.complete(),
            (Expect::Key, _) => return self.bare_key(),
            (_, '{' | '[') => {
                let schema = self.schema();
                self.begin_value();
                self.held.remove(0);
                self.open(if first == '{' { '}' } else { ']' }, schema);
            }
            (_, '"') => {
                self.begin_value();
                self.expect = Expect::Json;
            }
            _ => return self.bare(),
        }
        None
    }

    /// The closing marker, or the beginning of a string.
    fn marker(&mut self) -> Option<Progress> {
        let [_, close, quote] = self.markers;
        let (Some(is_close), Some(is_quote)) = (
            self.begins(&self.held, close),
            self.begins(&self.held, quote),
        ) else {
            return Some(Progress::Open);
        };
        match self.expect {
            _ if is_close || !is_quote => return self.complete(),
            Expect::Key => {
                let Some((key, rest)) = self.held[quote.len()..].split_once(quote) else {
                    return self.wait();
                };
                (self.key, self.held) = (key.trim().to_owned(), rest.to_owned());
                self.expect = Expect::Colon;
            }
            Expect::Value => {
                self.begin_value();
                self.call.arguments.push('"');
                self.held.drain(..quote.len());
                self.expect = Expect::Text;
            }
            Expect::Comma => self.expect = self.next(),
            _ => return self.complete(),
        }
        None
    }

    fn bare_key(&mut self) -> Option<Progress> {
        let Some(end) = self.held.find([':', ',', '}', '{', '<']) else {
            return self.wait();
        };
        if !self.held[end..].starts_with(':') {
            return self.complete();
        }
        let key = self.held[..end].trim();
        let inner = key.strip_prefix('"').and_then(|key| key.strip_suffix('"'));
        self.key = inner.unwrap_or(key).to_owned();
        self.held.drain(..=end);
        self.expect = Expect::Value;
        None
    }

    /// A value without quotes has the type that its schema allows.
    fn bare(&mut self) -> Option<Progress> {
        let [_, close, _] = self.markers;
        let end = self.held.char_indices().find(|&(at, character)| {
            matches!(character, ',' | '}' | ']')
                || character == '<' && begins(&self.held[at..], close) != Some(false)
        });
        let end = match end {
            Some((at, '<')) if self.begins(&self.held[at..], close).is_none() => {
                return Some(Progress::Open);
            }
            Some((at, _)) => at,
            None if self.is_over => self.held.len(),
            None => return Some(Progress::Open),
        };
        let schema = self.schema();
        let json = Allowed::by(&schema, &self.parameters).read(self.held[..end].trim());
        self.constant(&json);
        self.held.drain(..end);
        None
    }

    fn constant(&mut self, json: &str) {
        self.begin_value();
        self.call.arguments.push_str(json);
        self.expect = Expect::Comma;
    }

    /// The schema of the value that follows.
    fn schema(&self) -> Value {
        let Some(level) = self.levels.last() else {
            return Value::Null;
        };
        let own = if level.closer == '}' {
            types::member(&level.schema, &self.parameters, &self.key)
        } else {
            types::items(&level.schema, &self.parameters)
        };
        own.cloned().unwrap_or_default()
    }

    /// What is before a value: a comma and a key.
    fn begin_value(&mut self) {
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        if !std::mem::replace(&mut level.is_empty, false) {
            self.call.arguments.push(',');
        }
        if level.closer == '}' {
            self.call.arguments.push_str(&quoted(&self.key));
            self.call.arguments.push(':');
        }
    }

    /// More of a string, up to its delimiter. Where that is missing, the marker that closes the call ends it.
    fn text(&mut self) -> Option<Progress> {
        let [open, close, quote] = self.markers;
        let at = self.held.find('<').unwrap_or(self.held.len());
        let before: String = self.held.drain(..at).collect();
        self.call.arguments.push_str(&escaped(&before));
        if self.held.is_empty() {
            return self.wait();
        }
        let (Some(is_quote), Some(is_close)) = (
            self.begins(&self.held, quote),
            self.begins(&self.held, close),
        ) else {
            return Some(Progress::Open);
        };
        if is_quote {
            self.call.arguments.push('"');
            self.held.drain(..quote.len());
            self.expect = Expect::Comma;
            return None;
        }
        if is_close {
            let next = self.held[close.len()..].trim_start();
            if next.is_empty() && !self.is_over {
                return Some(Progress::Open);
            }
            match self.begins(next, open) {
                None => return Some(Progress::Open),
                Some(is_call) if is_call || next.is_empty() => return self.complete(),
                Some(_) => {}
            }
        }
        self.held.remove(0);
        self.call.arguments.push('<');
        None
    }

    /// More of a string in JSON's quotes.
    fn json(&mut self) -> Option<Progress> {
        for (at, character) in self.held.char_indices() {
            let json = self.repair.push(character.encode_utf8(&mut [0; 4]));
            self.call.arguments.push_str(&json);
            if !self.repair.in_string() {
                self.held.drain(..at + character.len_utf8());
                self.expect = Expect::Comma;
                return None;
            }
        }
        self.held.clear();
        self.wait()
    }

    /// A closing bracket, and those that are missing before it.
    fn close_to(&mut self, bracket: char) -> Option<Progress> {
        let depth = self
            .levels
            .iter()
            .rposition(|level| level.closer == bracket);
        let (Some(depth), false) = (depth, self.expect == Expect::Colon) else {
            return self.complete();
        };
        self.held.remove(0);
        self.close(depth);
        None
    }

    /// Completes the arguments where they break off.
    fn complete(&mut self) -> Option<Progress> {
        match self.expect {
            Expect::Text => self.call.arguments.push('"'),
            Expect::Json => {
                let rest = self.repair.finish();
                self.call.arguments.push_str(&rest);
                self.call.arguments.push('"');
            }
            _ => {}
        }
        if self.expect != Expect::Value {
            self.expect = Expect::Comma;
        }
        self.close(0);
        None
    }

    /// Closes all levels but the outermost `depth` ones.
    fn close(&mut self, depth: usize) {
        if self.expect == Expect::Value && self.in_object() {
            self.constant("null");
        }
        let closers = self.levels.drain(depth..).rev();
        self.call
            .arguments
            .extend(closers.map(|level| level.closer));
        self.expect = if depth == 0 {
            Expect::End
        } else {
            Expect::Comma
        };
    }
}
