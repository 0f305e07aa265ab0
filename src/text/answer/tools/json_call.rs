//! [`JsonCall`] parses one call, a JSON object, while it streams. It reports the name as soon as it is known, then the
//! arguments as they are written.

use super::super::json_stream::{JsonStream, Step, completed};
use super::super::json_text::{quoted, repaired};
use super::CallDelta;
use serde_json::Value;

/// Keys under which models put a call's arguments.
const ARGUMENTS: [&str; 2] = ["arguments", "parameters"];

/// Meaning of a key of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// Position of the scanner within the call's top-level object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Open,
    Key,
    Colon,
    Value,
    Comma,
}

/// A call that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct JsonCall {
    raw: String,
    expect: Expect,
    /// Nesting within the value that is being read.
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Start of the string or value being read in the call's top-level object.
    start: Option<usize>,
    field: Field,
    name: Option<String>,
    arguments: Arguments,
    /// Nothing but the arguments follows.
    is_named: bool,
    /// The call has no arguments.
    is_blank: bool,
    is_told: bool,
}

#[derive(Clone, Debug)]
enum Arguments {
    None,
    /// An object that is being written.
    Open(Box<JsonStream>),
    /// The same, or anything else, that is complete.
    Whole(String),
}

/// State of a call after some text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Incomplete; more text is needed.
    Open,
    /// Complete; this many bytes of the text belong to it.
    Whole(usize),
    /// Not a valid call; this many bytes of the text were valid.
    Failed(usize),
}

impl Outcome {
    /// How many bytes of `text` were taken.
    pub(crate) fn bytes(self, text: &str) -> usize {
        match self {
            Self::Open => text.len(),
            Self::Whole(bytes) | Self::Failed(bytes) => bytes,
        }
    }
}

impl JsonCall {
    pub(crate) fn new() -> Self {
        Self {
            raw: String::new(),
            expect: Expect::Open,
            depth: 0,
            in_string: false,
            escaped: false,
            start: None,
            field: Field::Other,
            name: None,
            arguments: Arguments::None,
            is_named: false,
            is_blank: false,
            is_told: false,
        }
    }

    /// A call whose name is known, so that only its arguments follow.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            expect: Expect::Value,
            field: Field::Arguments,
            name: Some(name.to_owned()),
            is_named: true,
            ..Self::new()
        }
    }

    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the call was reported, at least in part, so that it cannot be withdrawn.
    pub(crate) fn is_told(&self) -> bool {
        self.is_told
    }

    /// Whether a string of the arguments is open.
    pub(crate) fn in_string(&self) -> bool {
        matches!(&self.arguments, Arguments::Open(stream) if stream.in_string())
    }

    /// Takes more text, up to the end of the object. Where it breaks off, the arguments are completed.
    pub(crate) fn push(&mut self, text: &str) -> Outcome {
        let base = self.raw.len();
        self.raw.push_str(text);
        for (offset, character) in text.char_indices() {
            let end = offset + character.len_utf8();
            match self.step(base + offset, character) {
                Step::More => {}
                Step::End => {
                    self.raw.truncate(base + end);
                    return self.end(end);
                }
                Step::Broken => {
                    self.raw.truncate(base + offset);
                    self.break_off(character == '<');
                    return Outcome::Failed(offset);
                }
            }
        }
        Outcome::Open
    }

    fn end(&mut self, bytes: usize) -> Outcome {
        if self.name.is_none() {
            return Outcome::Failed(bytes);
        }
        if matches!(self.arguments, Arguments::None) {
            self.add_arguments();
        }
        Outcome::Whole(bytes)
    }

    /// Ends the text, and completes the call if only closing brackets are missing.
    pub(crate) fn finish(&mut self) {
        self.break_off(true);
    }

    fn break_off(&mut self, is_end: bool) {
        match &mut self.arguments {
            Arguments::Open(stream) => stream.finish(),
            Arguments::None if is_end && self.expect == Expect::Comma => {
                self.add_arguments();
            }
            Arguments::None | Arguments::Whole(_) => {}
        }
    }

    /// A call that says nothing of arguments has none.
    fn add_arguments(&mut self) {
        self.is_blank = true;
        self.arguments = Arguments::Whole("{}".to_owned());
    }

    /// Whether the call has arguments of its own.
    pub(crate) fn has_arguments(&self) -> bool {
        !self.is_blank && !matches!(self.arguments, Arguments::None)
    }

    /// What is new since the last call: the name once there are certain arguments, and more of these.
    pub(crate) fn take(&mut self) -> Option<CallDelta> {
        let name = self.name.as_ref()?;
        let arguments = match &mut self.arguments {
            Arguments::Open(stream) if stream.is_certain() => stream.take(),
            Arguments::Whole(arguments) => std::mem::take(arguments),
            Arguments::Open(_) | Arguments::None => return None,
        };
        let is_first = !std::mem::replace(&mut self.is_told, true);
        (is_first || !arguments.is_empty()).then(|| CallDelta {
            name: is_first.then(|| name.clone()),
            arguments,
            ..CallDelta::default()
        })
    }

    fn step(&mut self, at: usize, character: char) -> Step {
        if self.depth > 0
            && self.field == Field::Arguments
            && let Arguments::Open(stream) = &mut self.arguments
        {
            let step = stream.push(character);
            if step != Step::End {
                return step;
            }
            self.depth = 0;
            return self.end_value(at + 1);
        }
        if self.in_string {
            return self.step_string(at, character);
        }
        match character {
            ' ' | '\n' | '\r' | '\t' => {
                if self.depth == 0 && self.expect == Expect::Value && self.start.is_some() {
                    return self.end_value(at);
                }
                Step::More
            }
            _ if self.depth > 0 => self.step_inside(at, character),
            _ => self.step_call(at, character),
        }
    }

    fn step_string(&mut self, at: usize, character: char) -> Step {
        match (self.escaped, character) {
            (true, _) => self.escaped = false,
            (false, '\\') => self.escaped = true,
            (false, '"') => {
                self.in_string = false;
                if self.depth == 0 {
                    return self.end_string(at + 1);
                }
            }
            _ => {}
        }
        Step::More
    }

    /// Takes a character inside a value.
    fn step_inside(&mut self, at: usize, character: char) -> Step {
        match character {
            '"' => self.in_string = true,
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth -= 1;
                if self.depth == 0 {
                    return self.end_value(at + 1);
                }
            }
            _ => {}
        }
        Step::More
    }

    /// Takes a character of the call's top-level object.
    fn step_call(&mut self, at: usize, character: char) -> Step {
        let scalar = self.expect == Expect::Value && self.start.is_some();
        if scalar && matches!(character, ',' | '}') && self.end_value(at) != Step::More {
            return Step::Broken;
        }
        match (self.expect, character) {
            (Expect::Open, '{') => self.expect = Expect::Key,
            (Expect::Key, '"') => (self.in_string, self.start) = (true, Some(at)),
            (Expect::Colon, ':') => self.expect = Expect::Value,
            (Expect::Comma, ',') => self.expect = Expect::Key,
            (Expect::Comma | Expect::Key, '}') => return Step::End,
            (Expect::Value, '"') if !scalar => (self.in_string, self.start) = (true, Some(at)),
            (Expect::Value, '{' | '[') if !scalar => {
                (self.depth, self.start) = (1, Some(at));
                if character == '{' && self.field == Field::Arguments {
                    let mut stream = JsonStream::new();
                    stream.push(character);
                    self.arguments = Arguments::Open(Box::new(stream));
                }
            }
            (Expect::Value, 'a'..='z' | '0'..='9' | '-' | '+' | '.' | 'E') => {
                self.start.get_or_insert(at);
            }
            _ => return Step::Broken,
        }
        Step::More
    }

    /// Handles the end of a key or string value of the call's top-level object.
    fn end_string(&mut self, end: usize) -> Step {
        if self.expect == Expect::Value {
            return self.end_value(end);
        }
        let start = self.start.take().unwrap_or(end);
        let Ok(key) = serde_json::from_str::<String>(&self.raw[start..end]) else {
            return Step::Broken;
        };
        let has_arguments = !matches!(self.arguments, Arguments::None);
        self.field = match key.as_str() {
            // A reported name cannot be withdrawn, so the first of two counts.
            "name" | "function" | "tool_name" if self.name.is_none() => Field::Name,
            key if ARGUMENTS.contains(&key) && !has_arguments => Field::Arguments,
            _ => Field::Other,
        };
        self.expect = Expect::Colon;
        Step::More
    }

    fn end_value(&mut self, end: usize) -> Step {
        let Some(start) = self.start.take() else {
            return Step::More;
        };
        self.expect = Expect::Comma;
        let field = std::mem::replace(&mut self.field, Field::Other);
        let is_open = matches!(self.arguments, Arguments::Open(_));
        match field {
            Field::Name => self.name = serde_json::from_str(&self.raw[start..end]).ok(),
            Field::Arguments if !is_open => match arguments(&self.raw[start..end]) {
                Some(arguments) => self.arguments = Arguments::Whole(arguments),
                None => return Step::Broken,
            },
            Field::Arguments | Field::Other => {}
        }
        if field == Field::Arguments && self.is_named {
            Step::End
        } else {
            Step::More
        }
    }
}

/// Arguments that are no object: a string that contains it, null, or anything else that is JSON.
fn arguments(json: &str) -> Option<String> {
    match serde_json::from_str(&repaired(json)).ok()? {
        Value::Null => Some("{}".to_owned()),
        Value::String(text) if text.trim().is_empty() => Some("{}".to_owned()),
        Value::String(text) => Some(completed(&text).unwrap_or_else(|| quoted(&text))),
        other => Some(other.to_string()),
    }
}
