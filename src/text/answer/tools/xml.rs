//! Qwen3-Coder's calls: `<function=name>`, then `<parameter=key>` value `</parameter>` for each argument.

use super::{CallDelta, ToolSet};
use serde_json::{Map, Value};

const END: &str = "</function>";

/// A call that is being parsed.
#[derive(Clone, Debug, Default)]
pub(crate) struct XmlCall {
    raw: String,
}

impl XmlCall {
    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    /// Takes more text. Returns the text after the call once the call is complete.
    pub(crate) fn push(&mut self, text: &str) -> Option<String> {
        self.raw.push_str(text);
        let end = self.raw.find(END)? + END.len();
        Some(self.raw.split_off(end))
    }

    /// The call, if it is valid. Values that are not strings in the tool's schema are parsed as JSON if they are JSON.
    pub(crate) fn take(&self, tools: &ToolSet) -> Option<CallDelta> {
        let head = self.raw.trim_start().strip_prefix("<function=")?;
        let (name, body) = head.split_once('>')?;
        let name = name.trim();
        let mut body = body.strip_suffix(END)?;
        let mut arguments = Map::new();
        while let Some((_, parameter)) = body.split_once("<parameter=") {
            let (key, rest) = parameter.split_once('>')?;
            let (value, rest) = rest.split_once("</parameter>").unwrap_or((rest, ""));
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
