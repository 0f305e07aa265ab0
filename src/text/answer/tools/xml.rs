//! Calls in tags. Qwen3-Coder's: `<function=name>`, then `<parameter=key>` value `</parameter>` for each argument.
//! GLM's: a name, then `<arg_key>` key `</arg_key>` and `<arg_value>` value `</arg_value>`.
//!
//! Values are not escaped, so a file that is written may contain any of these tags. The text after a tag decides
//! whether it ends a value or a call; calls within a value are counted, so that their ends are not taken for the call's
//! own.

use super::super::json_text::Object;
use super::super::marker::begins;
use super::types::{self, Allowed};
use super::{CallDelta, ToolSet};
use serde_json::Value;

/// The tags of a notation.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Before and after the name.
    name: [&'static str; 2],
    /// Before and after a key.
    key: [&'static str; 2],
    /// Before and after a value.
    value: [&'static str; 2],
    /// After all arguments of a call that has any.
    last: &'static str,
    /// What begins and ends a call that is part of a value.
    within: [&'static str; 2],
}

/// The tag before the name of a function.
pub(crate) const FUNCTION: &str = "<function=";

/// Qwen3-Coder's tags, which Seed-OSS uses, too.
pub(crate) const QWEN: Tags = Tags {
    name: [FUNCTION, ">"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    last: "</function>",
    within: [FUNCTION, "</function>"],
};

/// GLM's tags. The name ends where the first key or the call ends.
pub(crate) const GLM: Tags = Tags {
    name: ["", "<arg_key>"],
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    last: "</arg_value>",
    within: ["<tool_call>", "</tool_call>"],
};

/// The markers around GLM's calls, and its tags.
pub(crate) const GLM_MARKERS: [&str; 6] = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
];

/// A call that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct XmlCall {
    tags: &'static Tags,
    /// The markers around a call.
    markers: &'static [&'static str; 2],
    raw: String,
    /// Everything before this is known not to end the call.
    searched: usize,
    /// There was a tag of a key.
    has_key: bool,
    /// Calls that began within a value and have not ended.
    nested: usize,
    /// Whether calls within a value are counted.
    counts_nested: bool,
}

impl XmlCall {
    pub(crate) fn new(
        tags: &'static Tags,
        markers: &'static [&'static str; 2],
        counts_nested: bool,
    ) -> Self {
        Self {
            tags,
            markers,
            raw: String::new(),
            searched: 0,
            has_key: false,
            nested: 0,
            counts_nested,
        }
    }

    /// All text so far.
    pub(crate) fn raw(&self) -> &str {
        &self.raw
    }

    /// Takes more text. Returns the text after the call once the call is complete.
    pub(crate) fn push(&mut self, text: &str, tools: &ToolSet) -> Option<String> {
        self.raw.push_str(text);
        let end = self.end(tools)?;
        Some(self.raw.split_off(end))
    }

    /// Ends the text, and the call at its last closing tag. Returns the text after the call, if there is a call; a text
    /// that was cut has one only if nothing else follows.
    pub(crate) fn finish(&mut self, tools: &ToolSet, is_cut: bool) -> Option<String> {
        if std::mem::take(&mut self.nested) > 0 {
            // What looked like a call within a value was none, because it never ended.
            (self.counts_nested, self.searched, self.has_key) = (false, 0, false);
            if let Some(end) = self.end(tools)
                && !is_cut
            {
                return Some(self.raw.split_off(end));
            }
        }
        let [_, close] = *self.markers;
        let last = self
            .raw
            .rfind(self.tags.last)
            .map(|at| at + self.tags.last.len());
        let end = self.raw.rfind(close).max(last)?;
        // After a value, another argument may follow.
        let may_go_on =
            self.tags.last == self.tags.value[1] || !close.starts_with(self.raw[end..].trim());
        if is_cut && may_go_on {
            return None;
        }
        Some(self.raw.split_off(end))
    }

    /// Where the call ends, once that is certain: at its last tag, before a marker or another call.
    fn end(&mut self, tools: &ToolSet) -> Option<usize> {
        let [open, close] = *self.markers;
        let tags = [self.tags.last, self.tags.key[0], open, close];
        loop {
            let (at, tag) = self.next_tag(&tags)?;
            let after = at + tag.len();
            let rest = self.raw[after..].trim_start();
            if tag == self.tags.key[0] {
                self.has_key = true;
            } else if tag == close && !self.has_key {
                return Some(at);
            } else if tag == open {
                self.nested += usize::from(self.begins_call(rest)? && self.counts_nested);
            } else if tag == self.tags.last {
                match self.following(rest, tools)? {
                    Following::Close if self.nested > 0 => self.nested -= 1,
                    Following::Close | Following::Call if self.nested == 0 => return Some(after),
                    _ => {}
                }
            }
            self.searched = after;
        }
    }

    /// The next of these tags that was not looked at, and where it is.
    fn next_tag(&mut self, tags: &[&'static str]) -> Option<(usize, &'static str)> {
        while let Some(at) = self.raw[self.searched..].find('<') {
            self.searched += at;
            let rest = &self.raw[self.searched..];
            if let Some(tag) = tags.iter().find(|tag| rest.starts_with(**tag)) {
                return Some((self.searched, tag));
            }
            if tags.iter().any(|tag| tag.starts_with(rest)) {
                return None;
            }
            self.searched += 1;
        }
        self.searched = self.raw.len();
        None
    }

    /// Whether this text after an opening marker is a call; `None` if that is open.
    fn begins_call(&self, rest: &str) -> Option<bool> {
        let [before_name, after_name] = self.tags.name;
        if !before_name.is_empty() {
            return begins(rest, before_name);
        }
        let name_end = rest.find(|c: char| !is_in_name(c));
        name_end.and_then(|end| begins(rest[end..].trim_start(), after_name))
    }

    /// What follows the last tag of a call; `None` if that is open.
    fn following(&self, rest: &str, tools: &ToolSet) -> Option<Following> {
        let [open, close] = *self.markers;
        if begins(rest, close)? {
            return Some(Following::Close);
        }
        if begins(rest, open)? {
            return Some(Following::Call);
        }
        let [before_name, after_name] = self.tags.name;
        if before_name.is_empty() || !begins(rest, before_name)? {
            return Some(Following::Text);
        }
        let name = &rest[before_name.len()..];
        let end = name.find(|c: char| !is_in_name(c))?;
        let is_call = tools.has(&name[..end]) && name[end..].starts_with(after_name);
        Some(if is_call {
            Following::Call
        } else {
            Following::Text
        })
    }

    /// The call, if it is valid.
    pub(crate) fn take(&self, tools: &ToolSet) -> Option<CallDelta> {
        let Tags {
            name: [before_name, after_name],
            key: [before_key, after_key],
            value,
            ..
        } = *self.tags;
        let body = self.raw.trim().strip_prefix(before_name)?;
        let body = body.strip_suffix(self.tags.within[1]).unwrap_or(body);
        let (name, mut body) = match body.find(after_name) {
            // A tag that begins the first key belongs to it.
            Some(at) if after_name == before_key => body.split_at(at),
            Some(at) => (&body[..at], &body[at + after_name.len()..]),
            None if after_name == before_key => (body, ""),
            None => return None,
        };
        let name = name.trim();
        let parameters = tools.parameters(name);
        let declared = types::properties(parameters);
        let counts = self.is_balanced(body);
        let mut arguments = Object::default();
        while let Some((_, parameter)) = body.split_once(before_key) {
            let (key, rest) = parameter.split_once(after_key)?;
            let key = key.trim();
            let (_, rest) = rest.split_once(value[0])?;
            let (value, after) = self.split_value(rest, counts, |next: &str| {
                let is_given = next == key || arguments.has(next);
                !is_given && declared.is_some_and(|declared| declared.contains_key(next))
            });
            let value = value.strip_prefix('\n').unwrap_or(value);
            let value = value.strip_suffix('\n').unwrap_or(value);
            let schema = declared
                .and_then(|declared| declared.get(key))
                .unwrap_or(&Value::Null);
            arguments.insert(key, Allowed::by(schema, parameters).read(value));
            body = after;
        }
        let arguments = arguments.json();
        (!name.is_empty()).then(|| CallDelta {
            name: Some(name.to_owned()),
            arguments,
            ..CallDelta::default()
        })
    }

    /// Whether each call that begins within these arguments also ends.
    fn is_balanced(&self, body: &str) -> bool {
        let [open, close] = self.tags.within;
        let tags = tags_in(body, [open, close]);
        tags.fold(0_usize, |depth, (_, tag)| {
            if tag == open {
                depth + 1
            } else {
                depth.saturating_sub(1)
            }
        }) == 0
    }

    /// A value, and what is after its closing tag: the first one that is followed by the end, or by another argument,
    /// and that is not part of a call or an argument within the value. `is_due`: whether an argument is declared and
    /// was not given yet.
    fn split_value<'a>(
        &self,
        text: &'a str,
        counts: bool,
        is_due: impl Fn(&str) -> bool,
    ) -> (&'a str, &'a str) {
        let Tags {
            key: [before_key, after_key],
            value: [_, close],
            within: [open_call, close_call],
            ..
        } = *self.tags;
        let (mut calls, mut keys) = (0_usize, 0_usize);
        for (at, tag) in tags_in(text, [close, before_key, open_call, close_call]) {
            let after = &text[at + tag.len()..];
            if tag == open_call {
                calls += usize::from(counts);
            } else if tag == close_call {
                calls = calls.saturating_sub(1);
            } else if tag == before_key {
                keys += 1;
            } else {
                let next = after.trim_start();
                let key = next
                    .strip_prefix(before_key)
                    .and_then(|key| key.split_once(after_key));
                let is_next = key.is_some_and(|(key, _)| keys == 0 || is_due(key.trim()));
                if next.is_empty() || calls == 0 && is_next {
                    return (&text[..at], after);
                }
                keys = keys.saturating_sub(1);
            }
        }
        match text.rfind(close) {
            Some(at) => (&text[..at], ""),
            None => (text, ""),
        }
    }
}

/// What follows the last tag of a call.
enum Following {
    /// The marker that closes it.
    Close,
    /// Another call.
    Call,
    /// Anything else, so that the tag is part of a value.
    Text,
}

/// Whether names of functions have this character.
pub(super) fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.')
}

/// These tags in a text, in order.
fn tags_in<const N: usize>(
    text: &str,
    tags: [&'static str; N],
) -> impl Iterator<Item = (usize, &'static str)> {
    let places = text.match_indices('<').map(|(at, _)| at);
    places.filter_map(move |at| {
        tags.iter()
            .find(|tag| text[at..].starts_with(**tag))
            .map(|tag| (at, *tag))
    })
}
