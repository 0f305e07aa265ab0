//! Gemma's calls: `call:name{key:value}` between markers, in a notation similar to JSON: keys are unquoted, and strings
//! have their own markers. A call is reported when it is complete.

use super::super::marker::Marker;
use super::marked::Content;
use super::{CallDelta, Parts};
use serde_json::{Map, Value};

/// Opening marker, closing marker, and string delimiter.
pub(crate) const MARKERS: [&str; 3] = ["<start_function_call>", "<end_function_call>", "<escape>"];
/// The same for Gemma 4.
pub(crate) const MARKERS_4: [&str; 3] = ["<|tool_call>", "<tool_call|>", "<|\"|>"];

/// Maximum nesting of arguments.
const DEPTH_MAX: usize = 32;

/// Parses Gemma's calls.
#[derive(Clone, Debug)]
pub(crate) struct Gemma {
    markers: &'static [&'static str; 3],
    content: Content,
    open: Marker,
    /// The call being parsed.
    call: Option<(String, Marker)>,
    calls: usize,
}

impl Gemma {
    pub(crate) fn new(markers: &'static [&'static str; 3]) -> Self {
        Self { markers, content: Content::default(), open: Marker::new(markers[0]), call: None, calls: 0 }
    }

    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut text = text.to_owned();
        loop {
            let Some((raw, close)) = &mut self.call else {
                let (before, found) = self.open.push(&text);
                self.content.push(&before, parts);
                let Some(rest) = found else { return };
                self.call = Some((String::new(), Marker::new(self.markers[1])));
                text = rest;
                continue;
            };
            let (more, found) = close.push(&text);
            raw.push_str(&more);
            let Some(rest) = found else { return };
            self.end_call(parts);
            text = rest;
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let rest = self.open.finish();
        if !is_cut {
            self.content.push(&rest, parts);
            if let Some((raw, close)) = &mut self.call {
                raw.push_str(&close.finish());
                self.end_call(parts);
            }
        }
        self.content.finish(parts);
    }

    fn end_call(&mut self, parts: &mut Parts) {
        let Some((raw, _)) = self.call.take() else { return };
        match read_call(&raw, self.markers[2]) {
            Some((name, arguments)) => {
                let arguments = Value::Object(arguments).to_string();
                self.content.call_begins();
                parts.call(self.calls, CallDelta { name: Some(name), arguments, ..CallDelta::default() });
                self.calls += 1;
            }
            None => self.content.push(&format!("{}{raw}", self.markers[0]), parts),
        }
    }
}

fn read_call(raw: &str, quote: &'static str) -> Option<(String, Map<String, Value>)> {
    let call = raw.trim().strip_prefix("call:")?;
    let brace = call.find('{')?;
    let (name, arguments) = call.split_at(brace);
    let mut reader = Reader { rest: arguments, quote };
    let Value::Object(arguments) = reader.value(0)? else { return None };
    let name = name.trim();
    (!name.is_empty() && reader.rest.trim().is_empty()).then(|| (name.to_owned(), arguments))
}

struct Reader<'a> {
    rest: &'a str,
    quote: &'static str,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(text) = self.string() {
            return Some(Value::from(text));
        }
        if self.eat("{") {
            let mut map = Map::new();
            while !self.eat("}") {
                let key = match self.string() {
                    Some(key) => key,
                    None => self.until(&[':'])?,
                };
                let key = key.trim().to_owned();
                self.eat(":").then_some(())?;
                map.insert(key, self.value(depth + 1)?);
                self.eat(",");
            }
            return Some(Value::Object(map));
        }
        if self.eat("[") {
            let mut items = Vec::new();
            while !self.eat("]") {
                items.push(self.value(depth + 1)?);
                self.eat(",");
            }
            return Some(Value::Array(items));
        }
        let bare = self.until(&[',', '}', ']'])?.trim();
        (!bare.is_empty()).then(|| serde_json::from_str(bare).unwrap_or_else(|_| Value::from(bare)))
    }

    /// Parses a string between its delimiters.
    fn string(&mut self) -> Option<&'a str> {
        let (text, rest) = self.rest.trim_start().strip_prefix(self.quote)?.split_once(self.quote)?;
        self.rest = rest;
        Some(text)
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(text);
        rest.map(|rest| self.rest = rest).is_some()
    }

    fn until(&mut self, ends: &[char]) -> Option<&'a str> {
        let (text, rest) = self.rest.split_at(self.rest.find(ends)?);
        self.rest = rest;
        Some(text)
    }
}
