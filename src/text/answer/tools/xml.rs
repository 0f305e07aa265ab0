//! Calls in tags. Qwen3-Coder's: `<function=name>`, then `<parameter=key>` value `</parameter>` for each argument.
//! GLM's: a name, then `<arg_key>` key `</arg_key>` and `<arg_value>` value `</arg_value>`.

use super::{CallDelta, ToolSet};
use serde_json::{Map, Value};

/// The tags of a notation.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Before and after the name.
    name: [&'static str; 2],
    /// Before and after a key.
    key: [&'static str; 2],
    /// Before and after a value.
    value: [&'static str; 2],
    /// After the call.
    end: &'static str,
}

/// Qwen3-Coder's tags, which Seed-OSS uses, too.
pub(crate) const QWEN: Tags =
    Tags { name: ["<function=", ">"], key: ["<parameter=", ">"], value: ["", "</parameter>"], end: "</function>" };

/// GLM's tags. The name ends where the first key or the call ends.
pub(crate) const GLM: Tags = Tags {
    name: ["", "<arg_key>"],
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    end: "</tool_call>",
};

/// The markers around GLM's calls, and its tags.
pub(crate) const GLM_MARKERS: [&str; 6] =
    ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

/// A call that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct XmlCall {
    tags: &'static Tags,
    raw: String,
}

impl XmlCall {
    pub(crate) fn new(tags: &'static Tags) -> Self {
        Self { tags, raw: String::new() }
    }

    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    /// Takes more text. Returns the text after the call once the call is complete.
    pub(crate) fn push(&mut self, text: &str) -> Option<String> {
        self.raw.push_str(text);
        let end = self.raw.find(self.tags.end)? + self.tags.end.len();
        Some(self.raw.split_off(end))
    }

    /// The call, if it is valid. Values that are not strings in the tool's schema are parsed as JSON if they are JSON.
    pub(crate) fn take(&self, tools: &ToolSet) -> Option<CallDelta> {
        let Tags { name: [before_name, after_name], key: [before_key, after_key], value, end } = *self.tags;
        let body = self.raw.trim_start().strip_prefix(before_name)?.strip_suffix(end)?;
        let (name, mut body) = match body.find(after_name) {
            // A tag that begins the first key belongs to it.
            Some(at) if after_name == before_key => body.split_at(at),
            Some(at) => (&body[..at], &body[at + after_name.len()..]),
            None if after_name == before_key => (body, ""),
            None => return None,
        };
        let name = name.trim();
        let mut arguments = Map::new();
        while let Some((_, parameter)) = body.split_once(before_key) {
            let (key, rest) = parameter.split_once(after_key)?;
            let (_, rest) = rest.split_once(value[0])?;
            let (value, rest) = rest.split_once(value[1]).unwrap_or((rest, ""));
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let text = || Value::from(value);
            let read =
                if tools.is_text(name, key) { text() } else { serde_json::from_str(value).unwrap_or_else(|_| text()) };
            arguments.insert(key.trim().to_owned(), read);
            body = rest;
        }
        let arguments = Value::Object(arguments).to_string();
        (!name.is_empty()).then(|| CallDelta { name: Some(name.to_owned()), arguments, ..CallDelta::default() })
    }
}
