//! [`Arguments`]: the arguments of a call in tags with attributes, while they stream.
//!
//! Values are not escaped: one ends at a closing tag that another argument or the end of the call follows. Models
//! forget closing tags, so a value also ends before an argument that is still due, and before the end of the calls.

use super::super::super::json_text::{compact, escaped, quoted};
use super::super::super::marker::begins;
use super::super::progress::OpenCall;
use super::super::types::{self, Allowed};
use super::super::{CallDelta, ToolSet};
use super::Invoke;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum bytes of a tag.
pub(super) const TAG_BYTES_MAX: usize = 512;

/// Names of an argument in which models put all of them.
const WRAPPERS: [&str; 2] = ["arguments", "input"];

/// The arguments of a call that is being parsed.
#[derive(Clone, Debug)]
pub(super) struct Arguments {
    tags: &'static Invoke,
    tools: Arc<ToolSet>,
    name: String,
    call: OpenCall,
    /// The text that was not read yet: of a value, if one is open, else what is before the next tag.
    text: String,
    value: Option<OpenValue>,
    /// The keys so far. The first of several values of a key counts, because it may have been reported.
    given: Vec<String>,
    /// The JSON of an argument that may hold all of them, and its key.
    wrapper: Option<(String, String)>,
}

/// A value that has not ended.
#[derive(Clone, Debug)]
struct OpenValue {
    key: String,
    allowed: Allowed,
    /// Whether it may hold all arguments.
    is_wrapper: bool,
    /// Whether it is text, if its tag says so.
    is_text: Option<bool>,
    /// Everything before this is known not to end the value.
    searched: usize,
    /// Whether some of it was passed on, as text.
    is_begun: bool,
}

/// Where a value ends: this many of its bytes, and of the tag after it, are read.
struct End {
    value: usize,
    tag: usize,
}

impl Arguments {
    pub(super) fn new(name: &str, tags: &'static Invoke, tools: &Arc<ToolSet>) -> Self {
        Self {
            tags,
            tools: tools.clone(),
            name: name.to_owned(),
            call: OpenCall::of(name),
            text: String::new(),
            value: None,
            given: Vec::new(),
            wrapper: None,
        }
    }

    /// What is new since the last time.
    pub(super) fn take(&mut self) -> Option<CallDelta> {
        self.call.take()
    }

    /// Takes more text. Returns the text after the call, once the call is complete.
    pub(super) fn push(&mut self, text: &str) -> Option<String> {
        self.text.push_str(text);
        loop {
            if self.value.is_some() {
                self.read_value()?;
                continue;
            }
            let Some(at) = self.text.find('<') else {
                self.text.clear();
                return None;
            };
            self.text.drain(..at);
            if let Some(rest) = self.text.strip_prefix(self.tags.call[1]) {
                let rest = rest.to_owned();
                self.end();
                return Some(rest);
            }
            if self.text.starts_with(self.tags.value[0]) {
                self.open_value()?;
                continue;
            }
            let ends = self.tags.close.iter().chain([&self.tags.call[0]]);
            if any(ends.map(|end| begins(&self.text, end)))? {
                self.end();
                return Some(std::mem::take(&mut self.text));
            }
            let tags = [self.tags.call[1], self.tags.value[0]];
            any(tags.iter().map(|tag| begins(&self.text, tag)))?;
            // Anything else has no meaning here.
            self.text.drain(..1);
        }
    }

    /// Ends the text, and the call with it. A value that has not ended ends before the next tag of the call.
    pub(super) fn finish(&mut self) {
        while self.value.is_some() {
            let tags = [self.tags.value[1], self.tags.call[1]];
            let tags = tags.iter().chain(self.tags.close);
            let end = tags.filter_map(|tag| self.text.rfind(tag)).min();
            let end = End {
                value: end.unwrap_or(self.text.len()),
                tag: 0,
            };
            let end = self
                .forgotten(Some(&end))
                .map_or(end, |value| End { value, tag: 0 });
            self.end_value(&end);
            if self.push("").is_some() {
                return;
            }
        }
        self.end();
    }

    /// Reads the tag of an argument, once it is whole.
    fn open_value(&mut self) -> Option<()> {
        let (tag, rest) = self.text[self.tags.value[0].len()..].split_once('>')?;
        let (key, attributes) = attribute(tag);
        let rest = rest.to_owned();
        let is_text = ["true", "false"]
            .iter()
            .find(|value| attributes.contains(&format!("string=\"{value}\"")))
            .map(|value| *value == "true");
        let key = key.to_owned();
        self.end_wrapper();
        let parameters = self.tools.parameters(&self.name);
        let schema = self.declared().and_then(|declared| declared.get(&key));
        self.value = Some(OpenValue {
            is_wrapper: self.given.is_empty() && self.may_wrap(&key),
            allowed: Allowed::by(schema.unwrap_or(&Value::Null), parameters),
            is_text,
            searched: 0,
            is_begun: false,
            key,
        });
        self.text = rest;
        Some(())
    }

    fn declared(&self) -> Option<&Map<String, Value>> {
        types::properties(self.tools.parameters(&self.name))
    }

    /// Reads more of a value; `None` if it goes on.
    fn read_value(&mut self) -> Option<()> {
        let Some(end) = self.value_end() else {
            self.pass_on();
            return None;
        };
        let forgotten = self.forgotten(Some(&end));
        self.end_value(&forgotten.map_or(end, |value| End { value, tag: 0 }));
        Some(())
    }

    /// Where the value ends with a tag, once that is certain.
    fn value_end(&mut self) -> Option<End> {
        let mut searched = self.value.as_ref()?.searched;
        let end = loop {
            let Some(at) = self.text[searched..].find('<') else {
                searched = self.text.len();
                break None;
            };
            searched += at;
            match self.ends_at(searched) {
                None => break None,
                Some(None) => searched += 1,
                Some(Some(tag)) => {
                    break Some(End {
                        value: searched,
                        tag,
                    });
                }
            }
        };
        self.value.as_mut()?.searched = searched;
        end
    }

    /// Whether the value ends before the tag at this place: the bytes of the tag, if it is the value's own. `None` if
    /// that is open.
    fn ends_at(&self, at: usize) -> Option<Option<usize>> {
        let text = &self.text[at..];
        let [close, call_end] = [self.tags.value[1], self.tags.call[1]];
        let calls = self.tags.close.iter().chain([&self.tags.call[0]]);
        if let Some(after) = text.strip_prefix(close) {
            let next = calls.chain([&self.tags.value[0], &call_end]);
            let is_end = any(next.map(|next| begins(after.trim_start(), next)))?;
            return Some(is_end.then_some(close.len()));
        }
        if let Some(after) = text.strip_prefix(call_end) {
            let is_own = !self.text[..at].contains(self.tags.call[0]);
            let is_end = is_own && any(calls.map(|next| begins(after.trim_start(), next)))?;
            return Some(is_end.then_some(0));
        }
        let tags = [close, call_end, self.tags.value[0]];
        let is_open = tags.iter().any(|tag| begins(text, tag).is_none());
        (!is_open).then_some(None)
    }

    /// Where an argument begins, or perhaps begins, that is due although the value was not closed. Within a value that
    /// has ended, it is one only if no closing tag belongs to it.
    fn forgotten(&self, end: Option<&End>) -> Option<usize> {
        let value = self.value.as_ref()?;
        let declared = self.declared().filter(|declared| !declared.is_empty());
        let is_new = |key: &str| {
            let is_given = key == value.key || self.given.iter().any(|given| given == key);
            !is_given && declared.is_none_or(|declared| declared.contains_key(key))
        };
        let (open, close) = (self.tags.value[0], self.tags.value[1]);
        let text = end.map_or(self.text.as_str(), |end| &self.text[..end.value]);
        let is_due = |tag: &str| match tag.split_once('"') {
            Some((key, _)) => is_new(key),
            None => end.is_none() && tag.len() <= TAG_BYTES_MAX,
        };
        let places = text.match_indices(open).map(|(at, _)| at);
        let mut places = places.filter(|at| is_due(&text[at + open.len()..]));
        let first = places.next()?;
        let closed = text[first..].matches(close).count();
        (end.is_none() || places.count() + 1 > closed).then_some(first)
    }

    /// Passes on what is certainly in the value, if it is a text.
    fn pass_on(&mut self) {
        let is_text = |value: &OpenValue| {
            let text = &self.text[..value.searched];
            let is_new = !value.is_wrapper && !self.given.contains(&value.key);
            is_new && !text.is_empty() && (value.is_begun || value.is_text(text))
        };
        if !self.value.as_ref().is_some_and(is_text) {
            return;
        }
        let forgotten = self.forgotten(None);
        let Some(value) = &mut self.value else {
            return;
        };
        let end = forgotten.map_or(value.searched, |at| at.min(value.searched));
        if !std::mem::replace(&mut value.is_begun, true) {
            let before = if self.given.is_empty() { '{' } else { ',' };
            let key = quoted(&value.key);
            self.call.arguments.push_str(&format!("{before}{key}:\""));
        }
        self.call.arguments.push_str(&escaped(&self.text[..end]));
        self.text.drain(..end);
        value.searched -= end;
    }

    /// The value ends.
    fn end_value(&mut self, end: &End) {
        let Some(value) = self.value.take() else {
            return;
        };
        let text = self.text[..end.value].to_owned();
        self.text.drain(..end.value + end.tag);
        if value.is_begun {
            self.call.arguments.push_str(&escaped(&text));
            self.call.arguments.push('"');
            return self.given.push(value.key);
        }
        let json = value.json(&text);
        if value.is_wrapper {
            self.wrapper = Some((value.key, json));
        } else {
            self.give(value.key, &json);
        }
    }

    /// Reports an argument.
    fn give(&mut self, key: String, json: &str) {
        if self.given.contains(&key) {
            return;
        }
        let before = if self.given.is_empty() { '{' } else { ',' };
        let member = format!("{before}{}:{json}", quoted(&key));
        self.call.arguments.push_str(&member);
        self.given.push(key);
    }

    /// Whether an argument of this name, which the function does not have, may hold all that it has.
    fn may_wrap(&self, key: &str) -> bool {
        let declared = self.declared().filter(|declared| !declared.is_empty());
        WRAPPERS.contains(&key) && declared.is_some_and(|declared| !declared.contains_key(key))
    }

    /// Another argument follows, so that the one before is no wrapper.
    fn end_wrapper(&mut self) {
        if let Some((key, json)) = self.wrapper.take() {
            self.give(key, &json);
        }
    }

    /// The call has ended.
    fn end(&mut self) {
        let wrapped = self
            .wrapper
            .as_ref()
            .and_then(|(_, json)| self.wrapped(json));
        if let Some(wrapped) = wrapped {
            return self.call.arguments.push_str(&wrapped);
        }
        self.end_wrapper();
        let end = if self.given.is_empty() { "{}" } else { "}" };
        self.call.arguments.push_str(end);
    }

    /// The arguments that a wrapper holds: an object, which may be quoted, of what the function declares.
    fn wrapped(&self, json: &str) -> Option<String> {
        let text: Option<String> = serde_json::from_str(json).ok();
        let json = text.as_deref().unwrap_or(json);
        let arguments: Map<String, Value> = serde_json::from_str(json).ok()?;
        let declared = self.declared()?;
        let is_declared = arguments.keys().all(|key| declared.contains_key(key));
        is_declared.then(|| compact(json))
    }
}

impl OpenValue {
    /// Whether a value that begins with this is certainly a text.
    fn is_text(&self, text: &str) -> bool {
        match self.is_text {
            Some(true) => self.allowed.has_text(),
            Some(false) => false,
            None => self.allowed.is_text(text),
        }
    }

    /// The JSON of the whole value. A tag may say something else than the schema, which counts.
    fn json(&self, text: &str) -> String {
        match self.is_text {
            Some(true) if self.allowed.has_text() => quoted(text),
            Some(false) if serde_json::from_str::<String>(text).is_ok() => text.trim().to_owned(),
            _ => self.allowed.read(text),
        }
    }
}

/// Whether one of several is certain; `None` if that is open.
fn any(are: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let are: Vec<_> = are.collect();
    match are.contains(&Some(true)) {
        false if are.contains(&None) => None,
        is => Some(is),
    }
}

/// A name in quotes, and the attributes after it.
pub(super) fn attribute(tag: &str) -> (&str, &str) {
    tag.split_once('"').unwrap_or((tag, ""))
}
