//! Calls without markers: JSON objects, alone or in a list. Because an answer may be JSON for other reasons, an object
//! is a call only if it names one of the request's functions and has arguments. It begins the answer, a line or a word:
//! small models put a remark before it, or a fence around it.

use super::content::Content;
use super::json_call::{JsonCall, Outcome};
use super::tags::{FUNCTION, is_in_name};
use super::{Parts, Staged, ToolSet};
use crate::text::answer::marker::begins;
use std::sync::Arc;

/// Llama sometimes writes this before its calls.
const PREFIX: &str = "<|python_tag|>";
/// What is around a block of code.
const FENCE: &str = "```";
/// The end of a call that names its function in a tag, as Llama is told to write calls that are not built in.
const FUNCTION_END: &str = "</function>";
/// The first key of a call. An object with another one is none.
const FIRST_KEYS: [&str; 6] = ["name", "function", "type", "id", "arguments", "parameters"];

/// Parses calls without markers.
#[derive(Clone, Debug)]
pub(crate) struct Bare {
    tools: Arc<ToolSet>,
    content: Content,
    stage: Stage,
    calls: usize,
    /// Whether a word may begin.
    after_space: bool,
    /// The text before the current call, which is content if it is none.
    opening: String,
    /// What may follow the current calls.
    closing: Option<&'static str>,
    /// Only calls with a prefix or a tag are looked for.
    needs_mark: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    /// Content, and text that may begin a call.
    Content(String),
    Call(JsonCall),
    /// After a call: the separator before the next one, and what closes the calls.
    Between(String),
    /// Within an object that is no call.
    Data(Data),
}

/// What a text begins with.
enum Start {
    /// More text is needed to tell.
    Open,
    Text,
    /// An object that may be a call, after so many bytes.
    Object(usize),
    /// The arguments of this function, after so many bytes.
    Arguments(String, usize),
    /// An object that is no call.
    Data,
}

impl Bare {
    pub(crate) fn new(tools: Arc<ToolSet>) -> Self {
        Self {
            tools,
            content: Content::default(),
            stage: Stage::Content(String::new()),
            calls: 0,
            after_space: true,
            opening: String::new(),
            closing: None,
            needs_mark: false,
        }
    }

    /// A parser for a thought, which may say what could be called.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            needs_mark: true,
            content: Content::of_thought(),
            ..self.clone()
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        match std::mem::replace(&mut self.stage, Stage::Content(String::new())) {
            Stage::Call(_) if is_cut => self.content.call_begins(),
            _ if is_cut => {}
            Stage::Content(held) => self.say(&held, parts),
            Stage::Call(mut call) => {
                call.finish();
                if !self.tell(&mut call, parts) {
                    self.no_call(&call, parts);
                }
            }
            Stage::Between(_) | Stage::Data(_) => {}
        }
        self.content.finish(parts);
    }

    fn say(&mut self, text: &str, parts: &mut Parts) {
        if let Some(last) = text.chars().last() {
            self.after_space = last.is_whitespace();
        }
        self.content.push(text, parts);
    }

    /// Content up to where a call may begin.
    fn read_content(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        for (at, _) in text.match_indices(['{', '[', '`', '<']) {
            let before = text[..at].chars().last();
            let after_space = before.map_or(self.after_space, char::is_whitespace);
            let start = self.start(&text[at..], after_space);
            if matches!(start, Start::Text) {
                continue;
            }
            self.say(&text[..at], parts);
            let rest = &text[at..];
            match start {
                Start::Open => {
                    self.stage = Stage::Content(rest.to_owned());
                    return None;
                }
                Start::Object(bytes) => return Some(self.open(rest, bytes, JsonCall::new())),
                Start::Arguments(name, bytes) => {
                    return Some(self.open(rest, bytes, JsonCall::named(&name)));
                }
                Start::Data => self.stage = Stage::Data(Data::default()),
                Start::Text => {}
            }
            return Some(rest.to_owned());
        }
        self.say(text, parts);
        None
    }

    /// A call may begin after so many bytes.
    fn open(&mut self, text: &str, bytes: usize, call: JsonCall) -> String {
        let (opening, rest) = text.split_at(bytes);
        self.closing = match opening.chars().next() {
            Some('`') => Some(FENCE),
            Some('<') if opening.starts_with(FUNCTION) => Some(FUNCTION_END),
            _ => None,
        };
        self.opening = opening.to_owned();
        self.stage = Stage::Call(call);
        rest.to_owned()
    }

    /// What the text at a bracket, a fence or a tag is.
    fn start(&self, text: &str, after_space: bool) -> Start {
        match begins(text, PREFIX) {
            None => return Start::Open,
            Some(true) => return object_in(text, PREFIX.len()),
            Some(false) => {}
        }
        match begins(text, FUNCTION) {
            _ if !after_space => Start::Text,
            None => Start::Open,
            Some(true) => self.function(text),
            Some(false) if self.needs_mark => Start::Text,
            Some(false) => match begins(text, FENCE) {
                None => Start::Open,
                Some(true) => fenced(text),
                Some(false) if text.starts_with(['{', '[']) => object_in(text, 0),
                Some(false) => Start::Text,
            },
        }
    }

    /// The tag of a function of the request, and an object.
    fn function(&self, text: &str) -> Start {
        let name = &text[FUNCTION.len()..];
        let Some(end) = name.find(|c| !is_in_name(c)) else {
            return Start::Open;
        };
        let (name, after) = name.split_at(end);
        let Some(object) = after.strip_prefix('>') else {
            return Start::Text;
        };
        let object = object.trim_start();
        match object.chars().next() {
            _ if !self.tools.has(name) => Start::Text,
            None => Start::Open,
            Some('{') => Start::Arguments(name.to_owned(), text.len() - object.len()),
            Some(_) => Start::Text,
        }
    }

    /// More of a call, which may turn out to be none.
    fn read_call(&mut self, mut call: JsonCall, text: &str, parts: &mut Parts) -> Option<String> {
        let outcome = call.push(text);
        let is_known = call.name().is_none_or(|name| self.tools.has(name));
        if is_known && outcome == Outcome::Open {
            self.tell(&mut call, parts);
            self.stage = Stage::Call(call);
            return None;
        }
        let rest = text[outcome.bytes(text)..].to_owned();
        if self.tell(&mut call, parts) {
            self.calls += 1;
            self.stage = Stage::Between(String::new());
        } else {
            self.no_call(&call, parts);
        }
        Some(rest)
    }

    /// Reports what is new of a call. Returns whether it is one.
    fn tell(&mut self, call: &mut JsonCall, parts: &mut Parts) -> bool {
        let is_known = call.name().is_some_and(|name| self.tools.has(name));
        if is_known
            && call.has_arguments()
            && let Some(delta) = call.take()
        {
            self.opening.clear();
            // The answer has begun, even if a thought had not ended.
            self.needs_mark = false;
            self.content.call_begins();
            parts.call(self.calls, delta);
        }
        call.is_told()
    }

    /// What looked like a call is data, to its end.
    fn no_call(&mut self, call: &JsonCall, parts: &mut Parts) {
        let text = std::mem::take(&mut self.opening) + call.raw();
        let mut data = Data::default();
        let end = data.end(&text);
        self.stage = if end.is_some() {
            Stage::Content(String::new())
        } else {
            Stage::Data(data)
        };
        self.say(&text, parts);
    }

    /// The separator after a call, and what follows it: another call, or something else.
    fn read_between(&mut self, text: &str) -> Option<String> {
        let rest =
            text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | ']'));
        let is_closed = self.closing.and_then(|closing| begins(rest, closing));
        if rest.is_empty() || self.closing.is_some() && is_closed.is_none() {
            self.stage = Stage::Between(rest.to_owned());
            return None;
        }
        self.after_space = true;
        if is_closed == Some(true) {
            let closing = self.closing.take().unwrap_or_default();
            return Some(rest[closing.len()..].to_owned());
        }
        if rest.starts_with('{') && !self.needs_mark {
            self.stage = Stage::Call(JsonCall::new());
        }
        Some(rest.to_owned())
    }
}

/// A block of code in which an object begins.
fn fenced(text: &str) -> Start {
    let language = &text[FENCE.len()..];
    let Some(end) = language.find(|c: char| !c.is_ascii_alphanumeric()) else {
        return Start::Open;
    };
    let object = language[end..].trim_start_matches([' ', '\r']);
    if object.is_empty() {
        return Start::Open;
    }
    if !object.starts_with('\n') {
        return Start::Text;
    }
    object_in(text, text.len() - object.len())
}

/// An object after so many bytes, which may be the first of a list.
fn object_in(text: &str, start: usize) -> Start {
    let object = text[start..].trim_start();
    let object = object.strip_prefix('[').map_or(object, str::trim_start);
    if object.is_empty() {
        return Start::Open;
    }
    let Some(key) = object.strip_prefix('{').map(str::trim_start) else {
        return Start::Text;
    };
    if key.is_empty() {
        return Start::Open;
    }
    let Some(key) = key.strip_prefix('"') else {
        return Start::Text;
    };
    let is_open = FIRST_KEYS.iter().any(|first| first.starts_with(key));
    match key.split_once('"') {
        Some((key, _)) if FIRST_KEYS.contains(&key) => Start::Object(text.len() - object.len()),
        None if is_open => Start::Open,
        _ => Start::Data,
    }
}

/// Finds the end of an object or list.
#[derive(Clone, Debug, Default)]
struct Data {
    depth: usize,
    in_string: bool,
    is_escaped: bool,
}

impl Data {
    /// Where the data end in more of their text.
    fn end(&mut self, text: &str) -> Option<usize> {
        for (at, byte) in text.bytes().enumerate() {
            match byte {
                _ if std::mem::take(&mut self.is_escaped) => {}
                b'\\' => self.is_escaped = self.in_string,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(at + 1);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

impl Staged for Bare {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content(String::new())) {
            Stage::Content(held) => self.read_content(&(held + text), parts),
            Stage::Call(call) => self.read_call(call, text, parts),
            Stage::Between(held) => self.read_between(&(held + text)),
            Stage::Data(mut data) => {
                let end = data.end(text);
                if end.is_none() {
                    self.stage = Stage::Data(data);
                }
                let (own, rest) = text.split_at(end.unwrap_or(text.len()));
                self.say(own, parts);
                Some(rest.to_owned())
            }
        }
    }
}
