//! [`JsonCall`] parses one call, a JSON object, while it streams. It reports the name as soon as it is known, then the
//! arguments as they are written.

use super::super::json_text::{Repair, repaired};
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
    /// Number of bytes before the text of the last `push`.
    base: usize,
    expect: Expect,
    depth: u32,
    in_string: bool,
    escaped: bool,
    /// Start of the string or value being read in the call's top-level object.
    start: Option<usize>,
    field: Field,
    name: Option<String>,
    /// Start of the arguments, and their end once it is known.
    arguments: Option<(usize, Option<usize>)>,
    name_sent: bool,
    /// Number of bytes of the arguments already reported.
    sent: usize,
    /// Makes the arguments' strings valid.
    repair: Repair,
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

impl JsonCall {
    pub(crate) fn new() -> Self {
        Self {
            raw: String::new(),
            base: 0,
            expect: Expect::Open,
            depth: 0,
            in_string: false,
            escaped: false,
            start: None,
            field: Field::Other,
            name: None,
            arguments: None,
            name_sent: false,
            sent: 0,
            repair: Repair::default(),
        }
    }

    /// A call whose name is already reported, so that only its arguments follow.
    pub(crate) fn named(name: &str) -> Self {
        Self {
            raw: "{\"arguments\":".to_owned(),
            expect: Expect::Value,
            depth: 1,
            field: Field::Arguments,
            name: Some(name.to_owned()),
            name_sent: true,
            ..Self::new()
        }
    }

    /// End of the arguments within the text of the last `push`.
    pub(crate) fn arguments_end(&self) -> Option<usize> {
        let (_, end) = self.arguments?;
        end.map(|end| end - self.base)
    }

    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Takes more text, up to the end of the object.
    pub(crate) fn push(&mut self, text: &str) -> Outcome {
        self.base = self.raw.len();
        self.raw.push_str(text);
        for (offset, byte) in text.bytes().enumerate() {
            if !self.step(self.base + offset, byte) {
                self.raw.truncate(self.base + offset);
                return Outcome::Failed(offset);
            }
            if self.depth == 0 && self.expect == Expect::Comma {
                let end = offset + 1;
                self.raw.truncate(self.base + end);
                return if self.name.is_some() {
                    Outcome::Whole(end)
                } else {
                    Outcome::Failed(end)
                };
            }
        }
        Outcome::Open
    }

    /// What is new since the last call: the name once, and more of the arguments.
    pub(crate) fn take(&mut self, whole: bool) -> Option<CallDelta> {
        let name = self.name.as_ref()?;
        let mut delta = CallDelta::default();
        if !std::mem::replace(&mut self.name_sent, true) {
            delta.name = Some(name.clone());
        }
        match self.arguments {
            Some((start, end)) if self.raw[start..].starts_with('{') => {
                let all = &self.raw[start..end.unwrap_or(self.raw.len())];
                delta.arguments = self.repair.push(&all[self.sent..]);
                self.sent = all.len();
            }
            // The arguments are a string that contains the object, or null.
            Some((start, Some(end))) if self.sent == 0 => {
                delta.arguments = match serde_json::from_str(&repaired(&self.raw[start..end])) {
                    Ok(Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
                    Ok(Value::String(text)) => repaired(&text),
                    Ok(Value::Null) | Err(_) => "{}".to_owned(),
                    Ok(other) => other.to_string(),
                };
                self.sent = delta.arguments.len().max(1);
            }
            None if whole && self.sent == 0 => {
                delta.arguments = "{}".to_owned();
                self.sent = 2;
            }
            _ => {}
        }
        (delta.name.is_some() || !delta.arguments.is_empty()).then_some(delta)
    }

    /// Takes one byte. Returns false if the text is not a JSON object.
    fn step(&mut self, at: usize, byte: u8) -> bool {
        if self.in_string {
            match (self.escaped, byte) {
                (true, _) => self.escaped = false,
                (false, b'\\') => self.escaped = true,
                (false, b'"') => {
                    self.in_string = false;
                    return self.depth > 1 || self.end_string(at + 1);
                }
                _ => {}
            }
            return true;
        }
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {
                if self.depth == 1 && self.expect == Expect::Value && self.start.is_some() {
                    self.end_value(at);
                }
                true
            }
            _ if self.depth > 1 => {
                self.step_inside(at, byte);
                true
            }
            _ => self.step_call(at, byte),
        }
    }

    /// Takes a byte inside a value.
    fn step_inside(&mut self, at: usize, byte: u8) {
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth -= 1;
                if self.depth == 1 {
                    self.end_value(at + 1);
                }
            }
            _ => {}
        }
    }

    /// Takes a byte of the call's top-level object.
    fn step_call(&mut self, at: usize, byte: u8) -> bool {
        let scalar = self.expect == Expect::Value && self.start.is_some();
        if scalar && matches!(byte, b',' | b'}') {
            self.end_value(at);
        }
        match (self.expect, byte) {
            (Expect::Open, b'{') => (self.depth, self.expect) = (1, Expect::Key),
            (Expect::Key, b'"') => (self.in_string, self.start) = (true, Some(at)),
            (Expect::Colon, b':') => self.expect = Expect::Value,
            (Expect::Comma, b',') => self.expect = Expect::Key,
            (Expect::Comma | Expect::Key, b'}') => (self.depth, self.expect) = (0, Expect::Comma),
            (Expect::Value, b'"') if !scalar => {
                self.begin_value(at);
                self.in_string = true;
            }
            (Expect::Value, b'{' | b'[') if !scalar => {
                self.begin_value(at);
                self.depth = 2;
            }
            (Expect::Value, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'+' | b'.' | b'E') => {
                if !scalar {
                    self.begin_value(at);
                }
            }
            _ => return false,
        }
        true
    }

    fn begin_value(&mut self, at: usize) {
        self.start = Some(at);
        if self.field == Field::Arguments {
            self.arguments = Some((at, None));
        }
    }

    /// Handles the end of a key or string value of the call's top-level object.
    fn end_string(&mut self, end: usize) -> bool {
        if self.expect == Expect::Value {
            self.end_value(end);
            return true;
        }
        let start = self.start.take().expect("a string began somewhere");
        let Ok(key) = serde_json::from_str::<String>(&self.raw[start..end]) else {
            return false;
        };
        self.field = match key.as_str() {
            // A reported name cannot be withdrawn, so the first of two counts.
            "name" | "function" | "tool_name" if self.name.is_none() => Field::Name,
            key if ARGUMENTS.contains(&key) && self.arguments.is_none() => Field::Arguments,
            _ => Field::Other,
        };
        self.expect = Expect::Colon;
        true
    }

    fn end_value(&mut self, end: usize) {
        let Some(start) = self.start.take() else {
            return;
        };
        self.expect = Expect::Comma;
        match self.field {
            Field::Name => self.name = serde_json::from_str(&self.raw[start..end]).ok(),
            Field::Arguments => self.arguments = Some((start, Some(end))),
            Field::Other => {}
        }
    }
}
