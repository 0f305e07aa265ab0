//! Calls in tags with attributes: MiniMax M2's `<invoke name="…">` with `<parameter name="…">` for each argument, and
//! DeepSeek's, which also say whether a value is text. Families differ only in the tags ([`Invoke`]). What names no
//! function of the request is content.

mod arguments;

use super::super::marker::{Markers, begins};
use super::content::Content;
use super::{Parts, Staged, ToolSet};
use arguments::{Arguments, TAG_BYTES_MAX, attribute};
use std::sync::Arc;

/// The tags of a family.
#[derive(Debug)]
pub(crate) struct Invoke {
    /// Markers before all calls: the first is as the family's template shows it, the others are how models misspell it.
    pub(super) open: &'static [&'static str],
    /// Markers after all calls.
    pub(super) close: &'static [&'static str],
    /// The tag of a call up to its name, and the tag after the call.
    pub(super) call: [&'static str; 2],
    /// The tag of an argument up to its name, and the tag after its value.
    pub(super) value: [&'static str; 2],
}

impl Invoke {
    /// Finds the marker before the calls, or one of these tags.
    fn search(&self, tags: &[&'static str]) -> Markers {
        let starts = self.open.iter().chain(tags);
        Markers::new(starts.map(|&tag| tag.to_owned()).collect())
    }
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
    Call(Box<Arguments>),
}

impl Invoked {
    pub(crate) fn new(tools: Arc<ToolSet>, tags: &'static Invoke) -> Self {
        Self {
            tools,
            tags,
            content: Content::default(),
            search: tags.search(&[tags.call[0]]),
            stage: Stage::Content,
            opening: String::new(),
            calls: 0,
        }
    }

    /// A parser of the same calls within a thought. A thought may well show the tag of a call, so that calls begin only
    /// with the marker before them.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            search: self.tags.search(&[]),
            ..self.clone()
        }
    }

    /// Ends the text. An unfinished beginning of a call was content, unless the text was cut.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Among(held) if opening.is_empty() => held.trim_start().to_owned(),
            Stage::Among(held) | Stage::Name(held) => format!("{opening}{held}"),
            Stage::Call(call) => {
                if !is_cut {
                    call.finish();
                }
                report(call, self.calls, parts);
                String::new()
            }
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }

    /// Before a call, or after the last. Returns what follows, once it is known.
    fn among(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let next = held.trim_start();
        let is_undecided = |marker: &&str| begins(next, marker).is_none();
        let ends = self.tags.close.iter();
        if ends.clone().chain([&self.tags.call[0]]).any(is_undecided) {
            self.stage = Stage::Among(held);
            return None;
        }
        if let Some(name) = next.strip_prefix(self.tags.call[0]) {
            self.opening.push_str(&held[..held.len() - name.len()]);
            self.stage = Stage::Name(String::new());
            return Some(name.to_owned());
        }
        if let Some(after) = ends.clone().find_map(|end| next.strip_prefix(end)) {
            // Between markers without a call there is nothing that is content.
            self.opening.clear();
            return Some(after.to_owned());
        }
        if self.opening.is_empty() {
            return Some(next.to_owned());
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
        self.search = self.tags.search(&[self.tags.call[0]]);
        let mut call = Box::new(Arguments::new(name, self.tags, &self.tools));
        report(&mut call, self.calls, parts);
        self.stage = Stage::Call(call);
        Some(rest.to_owned())
    }
}

/// Adds what is new of a call.
fn report(call: &mut Arguments, index: usize, parts: &mut Parts) {
    if let Some(delta) = call.take() {
        parts.call(index, delta);
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
                self.stage = if self.tags.open.contains(&self.opening.as_str()) {
                    Stage::Among(String::new())
                } else {
                    Stage::Name(String::new())
                };
                Some(rest)
            }
            Stage::Among(held) => self.among(held + text, parts),
            Stage::Name(held) => self.named(held + text, parts),
            Stage::Call(mut call) => {
                let rest = call.push(text);
                report(&mut call, self.calls, parts);
                let Some(rest) = rest else {
                    self.stage = Stage::Call(call);
                    return None;
                };
                self.calls += 1;
                self.stage = Stage::Among(String::new());
                Some(rest)
            }
        }
    }
}
