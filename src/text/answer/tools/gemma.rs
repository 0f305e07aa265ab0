//! Gemma's calls: `call:name{key:value}` between markers, in a notation similar to JSON: keys are unquoted, and strings
//! have their own markers.

use super::super::json_text::{Object, quoted};
use super::complete::{Call, DEPTH_MAX};
use serde_json::Value;

/// Opening marker, closing marker, and string delimiter.
pub(crate) const MARKERS: [&str; 3] = ["<start_function_call>", "<end_function_call>", "<escape>"];
/// The same for Gemma 4.
pub(crate) const MARKERS_4: [&str; 3] = ["<|tool_call>", "<tool_call|>", "<|\"|>"];

/// Reads a call of FunctionGemma.
pub(crate) fn read(raw: &str) -> Option<Vec<Call>> {
    read_call(raw, MARKERS[2]).map(|call| vec![call])
}

/// Reads a call of Gemma 4.
pub(crate) fn read_4(raw: &str) -> Option<Vec<Call>> {
    read_call(raw, MARKERS_4[2]).map(|call| vec![call])
}

fn read_call(raw: &str, quote: &'static str) -> Option<Call> {
    let call = raw.trim().strip_prefix("call:")?;
    let brace = call.find('{')?;
    let (name, arguments) = call.split_at(brace);
    let mut reader = Reader {
        rest: arguments,
        quote,
    };
    let arguments = reader.value(0)?;
    let name = name.trim();
    (!name.is_empty() && reader.rest.trim().is_empty()).then(|| (name.to_owned(), arguments))
}

struct Reader<'a> {
    rest: &'a str,
    quote: &'static str,
}

impl<'a> Reader<'a> {
    /// A value as JSON.
    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(text) = self.string() {
            return Some(quoted(text));
        }
        if self.eat("{") {
            let mut map = Object::default();
            while !self.eat("}") {
                let key = match self.string() {
                    Some(key) => key,
                    None => self.until(&[':'])?,
                };
                let key = key.trim().to_owned();
                self.eat(":").then_some(())?;
                map.insert(&key, self.value(depth + 1)?);
                self.eat(",");
            }
            return Some(map.json());
        }
        if self.eat("[") {
            let mut items = Vec::new();
            while !self.eat("]") {
                items.push(self.value(depth + 1)?);
                self.eat(",");
            }
            return Some(format!("[{}]", items.join(",")));
        }
        let bare = self.until(&[',', '}', ']'])?.trim();
        let is_json = serde_json::from_str::<Value>(bare).is_ok();
        (!bare.is_empty()).then(|| {
            if is_json {
                bare.to_owned()
            } else {
                quoted(bare)
            }
        })
    }

    /// Parses a string between its delimiters.
    fn string(&mut self) -> Option<&'a str> {
        let (text, rest) = self
            .rest
            .trim_start()
            .strip_prefix(self.quote)?
            .split_once(self.quote)?;
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
