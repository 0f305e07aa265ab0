//! [`Notation`]: how calls in tags are written, by Qwen3-Coder and by GLM.

use super::super::marker::begins;
use super::ToolSet;
use serde_json::{Map, Value};
use std::sync::Arc;

/// The tags of a notation.
#[derive(Debug)]
pub(crate) struct Tags {
    /// Before the name.
    pub(super) name: &'static str,
    /// Before and after a key.
    pub(super) key: [&'static str; 2],
    /// Before and after a value.
    pub(super) value: [&'static str; 2],
    /// After the arguments, before the marker that closes the call.
    pub(super) last: Option<&'static str>,
}

/// The tag before the name of a function.
pub(crate) const FUNCTION: &str = "<function=";

/// Qwen3-Coder's tags, which Seed-OSS uses, too.
pub(crate) const QWEN: Tags = Tags {
    name: FUNCTION,
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    last: Some("</function>"),
};

/// GLM's tags. The name ends where its line, the first key or the call ends.
pub(crate) const GLM: Tags = Tags {
    name: "",
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    last: None,
};

/// The notation of a request's calls.
#[derive(Clone, Debug)]
pub(crate) struct Notation {
    pub(super) tags: &'static Tags,
    /// The markers around a call.
    pub(super) markers: &'static [&'static str; 2],
    pub(super) tools: Arc<ToolSet>,
}

impl Notation {
    /// The key after this text, which begins with the tag of one, and the text after it; `None` if it has not ended.
    pub(super) fn key<'a>(&self, text: &'a str) -> Option<(&'a str, &'a str)> {
        let [before, after] = self.tags.key;
        let text = &text[before.len()..];
        let value = self.tags.value[0];
        let (end, tag) = if value.is_empty() {
            // Without its tag, a key ends with its line.
            (text.find(['>', '\n'])?, after)
        } else {
            let ends = [after, value].map(|tag| Some((text.find(tag)?, tag)));
            let (end, tag) = ends.into_iter().flatten().min()?;
            (end, if tag == value { "" } else { tag })
        };
        Some((text[..end].trim(), &text[end + tag.len()..]))
    }

    /// Whether a call begins with this text; `None` if that is open.
    pub(super) fn begins_call(&self, text: &str) -> Option<bool> {
        let [open, _] = *self.markers;
        if begins(text, open)? {
            return self.begins_name(text[open.len()..].trim_start());
        }
        if self.tags.name.is_empty() || !begins(text, self.tags.name)? {
            return Some(false);
        }
        let name = &text[self.tags.name.len()..];
        let end = name.find(|c: char| !is_in_name(c))?;
        Some(self.tools.has(&name[..end]) && name[end..].starts_with(['>', '\n']))
    }

    /// Whether this text after an opening marker is a call.
    fn begins_name(&self, text: &str) -> Option<bool> {
        if !self.tags.name.is_empty() {
            return begins(text, self.tags.name);
        }
        let end = text.find(|c: char| !is_in_name(c));
        end.and_then(|end| begins(text[end..].trim_start(), self.tags.key[0]))
    }
}

/// The arguments that may follow.
pub(super) struct Due<'a> {
    pub(super) declared: Option<&'a Map<String, Value>>,
    pub(super) given: &'a [String],
    /// The one that is being read.
    pub(super) key: String,
}

impl Due<'_> {
    /// Whether an argument is declared and was not given yet.
    pub(super) fn has(&self, key: &str) -> bool {
        let is_given = key == self.key || self.given.iter().any(|given| given == key);
        !is_given
            && self
                .declared
                .is_some_and(|declared| declared.contains_key(key))
    }
}

/// Whether names of functions have this character.
pub(super) fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '-' | '.')
}
