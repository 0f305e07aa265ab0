//! Calls in tags with attributes: MiniMax M2's `<invoke name="…">` with `<parameter name="…">` for each argument, and
//! DeepSeek's, which also say whether a value is text. Families differ only in the tags ([`Invoke`]). What names no
//! function of the request is content.
//!
//! Values are not escaped: a value ends at a closing tag that another argument or the end of the call follows.

use super::super::json_text::{Object, quoted};
use super::super::marker::{Markers, begins};
use super::content::Content;
use super::types::{self, Allowed};
use super::{CallDelta, Parts, Staged, ToolSet};
use serde_json::Value;
use std::sync::Arc;

/// The tags of a family.
#[derive(Debug)]
pub(crate) struct Invoke {
    /// Markers before and after all calls.
    pub(super) section: [&'static str; 2],
    /// The tag of a call up to its name, and the tag after the call.
    pub(super) call: [&'static str; 2],
    /// The tag of an argument up to its name, and the tag after its value.
    pub(super) value: [&'static str; 2],
}

/// Parses calls in tags.
#[derive(Clone, Debug)]
pub(crate) struct Invoked {
    tools: Arc<ToolSet>,
    tags: &'static Invoke,
    content: Content,
    /// Finds the marker before the calls, and the tag of a call.
    search: Markers,
    stage: Stage,
    /// Tags before the call, which are content if it is none.
    opening: String,
    calls: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// Among the calls: what is before the next one, or ends them.
    Among(String),
    /// The rest of a call's first tag.
    Name(String),
    Call(Arguments),
}

/// The arguments of a call that is being parsed.
#[derive(Clone, Debug)]
struct Arguments {
    name: String,
    /// The text that was not read yet: of a value, if there is a key, else what is before the next tag.
    text: String,
    /// In a value: everything before this is known not to end it.
    searched: usize,
    /// The key of the value, and whether it is text, if the tag says so.
    key: Option<(String, Option<bool>)>,
    read: Object,
}

impl Invoked {
    pub(crate) fn new(tools: Arc<ToolSet>, tags: &'static Invoke) -> Self {
        let search = Markers::new(vec![tags.section[0].to_owned(), tags.call[0].to_owned()]);
        let (content, opening, stage) = (Content::default(), String::new(), Stage::Content);
        Self {
            tools,
            tags,
            content,
            search,
            stage,
            opening,
            calls: 0,
        }
    }

    /// Ends the text. An unfinished beginning of a call was content, unless the text was cut.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Among(held) if opening.is_empty() => held.trim_start().to_owned(),
            Stage::Among(held) | Stage::Name(held) => format!("{opening}{held}"),
            Stage::Call(call) if !is_cut => {
                let arguments = call.finish(self.tags, &self.tools);
                parts.call(self.calls, arguments);
                String::new()
            }
            Stage::Call(_) => String::new(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }

    /// Before a call, or after the last. Returns what follows, once it is known.
    fn among(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let (next, end) = (held.trim_start(), self.tags.section[1]);
        let is_undecided = |marker: &&str| begins(next, marker).is_none();
        if next.is_empty() || [self.tags.call[0], end].iter().any(is_undecided) {
            self.stage = Stage::Among(held);
            return None;
        }
        if let Some(name) = next.strip_prefix(self.tags.call[0]) {
            self.opening.push_str(&held[..held.len() - name.len()]);
            self.stage = Stage::Name(String::new());
            return Some(name.to_owned());
        }
        if self.opening.is_empty() {
            return Some(next.strip_prefix(end).unwrap_or(next).to_owned());
        }
        self.no_call(parts);
        Some(held)
    }

    /// What stands before the text is content.
    fn no_call(&mut self, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.content.push(&opening, parts);
    }

    /// The first tag of a call, up to its end.
    fn named(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let may_go_on = held.len() <= TAG_BYTES_MAX && !held.contains('<');
        let Some((tag, rest)) = held.split_once('>') else {
            if may_go_on {
                self.stage = Stage::Name(held);
                return None;
            }
            self.no_call(parts);
            return Some(held);
        };
        let name = attribute(tag).0;
        if !self.tools.has(name) {
            self.no_call(parts);
            return Some(held);
        }
        self.opening.clear();
        self.content.call_begins();
        let delta = CallDelta {
            name: Some(name.to_owned()),
            ..CallDelta::default()
        };
        parts.call(self.calls, delta);
        self.stage = Stage::Call(Arguments::new(name));
        Some(rest.to_owned())
    }
}

/// Maximum bytes of a tag.
const TAG_BYTES_MAX: usize = 512;

/// A name in quotes, and the attributes after it.
fn attribute(tag: &str) -> (&str, &str) {
    tag.split_once('"').unwrap_or((tag, ""))
}

impl Arguments {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            text: String::new(),
            searched: 0,
            key: None,
            read: Object::default(),
        }
    }

    /// Takes more text. Returns the text after the call, once the call is complete.
    fn push(&mut self, text: &str, tags: &Invoke, tools: &ToolSet) -> Option<String> {
        self.text.push_str(text);
        loop {
            if self.key.is_some() {
                let end = self.value_end(tags)?;
                self.insert(end, tags, tools);
                continue;
            }
            let Some(at) = self.text.find('<') else {
                self.text.clear();
                return None;
            };
            self.text.drain(..at);
            if let Some(rest) = self.text.strip_prefix(tags.call[1]) {
                return Some(rest.to_owned());
            }
            if let Some(tag) = self.text.strip_prefix(tags.value[0]) {
                let (tag, rest) = tag.split_once('>')?;
                let (key, attributes) = attribute(tag);
                let is_text = attributes
                    .contains("string=\"true\"")
                    .then_some(true)
                    .or_else(|| attributes.contains("string=\"false\"").then_some(false));
                self.key = Some((key.to_owned(), is_text));
                (self.text, self.searched) = (rest.to_owned(), 0);
                continue;
            }
            let is_undecided = |tag: &&str| begins(&self.text, tag).is_none();
            if [tags.call[1], tags.value[0]].iter().any(is_undecided) {
                return None;
            }
            // Anything else has no meaning here.
            self.text.drain(..1);
        }
    }

    /// Where the value ends, once that is certain.
    fn value_end(&mut self, tags: &Invoke) -> Option<usize> {
        let [next, close] = [tags.value[0], tags.value[1]];
        while let Some(at) = self.text[self.searched..].find(close) {
            let at = self.searched + at;
            let after = self.text[at + close.len()..].trim_start();
            let follows = [begins(after, next), begins(after, tags.call[1])];
            if follows.contains(&Some(true)) {
                return Some(at);
            }
            if after.is_empty() || follows.contains(&None) {
                self.searched = at;
                return None;
            }
            self.searched = at + close.len();
        }
        let undecided = self.text[self.searched..].rfind('<');
        self.searched = undecided.map_or(self.text.len(), |at| self.searched + at);
        None
    }

    /// Reads the value that ends here.
    fn insert(&mut self, end: usize, tags: &Invoke, tools: &ToolSet) {
        let Some((key, is_text)) = self.key.take() else {
            return;
        };
        let value = &self.text[..end];
        let is_json = || serde_json::from_str::<Value>(value).is_ok();
        let json = match is_text {
            Some(true) => quoted(value),
            Some(false) if is_json() => value.trim().to_owned(),
            _ => {
                let parameters = tools.parameters(&self.name);
                let declared = types::properties(parameters);
                let schema = declared
                    .and_then(|declared| declared.get(&key))
                    .unwrap_or(&Value::Null);
                Allowed::by(schema, parameters).read(value)
            }
        };
        self.read.insert(&key, json);
        let rest = self.text.split_off(end);
        self.text = rest.strip_prefix(tags.value[1]).unwrap_or(&rest).to_owned();
    }

    /// All arguments, at the end of the call.
    fn delta(&self) -> CallDelta {
        CallDelta {
            arguments: self.read.json(),
            ..CallDelta::default()
        }
    }

    /// All arguments, at the end of the text. A value that has not ended ends before the next tag of the call.
    fn finish(&mut self, tags: &Invoke, tools: &ToolSet) -> CallDelta {
        let ends = [tags.value[1], tags.call[1], tags.section[1]];
        let end = ends.iter().filter_map(|tag| self.text.rfind(tag)).min();
        self.insert(end.unwrap_or(self.text.len()), tags, tools);
        self.delta()
    }
}

impl Staged for Invoked {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                let (before, found) = self.search.push(text);
                self.content.push(&before, parts);
                let (index, rest) = found?;
                self.opening = self.search.text(index).to_owned();
                self.stage = if index == 0 {
                    Stage::Among(String::new())
                } else {
                    Stage::Name(String::new())
                };
                Some(rest)
            }
            Stage::Among(held) => self.among(held + text, parts),
            Stage::Name(held) => self.named(held + text, parts),
            Stage::Call(mut call) => {
                let Some(rest) = call.push(text, self.tags, &self.tools) else {
                    self.stage = Stage::Call(call);
                    return None;
                };
                parts.call(self.calls, call.delta());
                self.calls += 1;
                self.stage = Stage::Among(String::new());
                Some(rest)
            }
        }
    }
}
