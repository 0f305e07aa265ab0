//! Calls after a marker: one, several, or a list of them, each a JSON object or a call as Python writes it. Families
//! differ only in the markers ([`List`]). What names no function of the request is content.

use super::super::marker::{Markers, begins};
use super::content::Content;
use super::json_call::{JsonCall, Outcome};
use super::progress::Progress;
use super::python_calls::PythonCalls;
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// How a family lists its calls.
#[derive(Debug)]
pub(crate) struct List {
    /// Markers before calls.
    pub(super) open: &'static [&'static str],
    /// Markers after calls, which may be missing.
    pub(super) close: &'static [&'static str],
    /// Whether an answer may begin with calls without a marker: objects, or a list.
    pub(super) is_bare: bool,
    pub(super) written: Written,
}

/// How each call is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// `{"name": …, "arguments": {…}}`.
    Json,
    /// `name(key=value, …)`.
    Python,
}

impl Written {
    /// Whether a call may begin with this character.
    fn begins_with(self, first: char) -> bool {
        match self {
            Self::Json => first == '{',
            Self::Python => first.is_alphabetic() || first == '_',
        }
    }
}

/// Parses calls in a list.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    tools: Arc<ToolSet>,
    list: &'static List,
    content: Content,
    /// Finds the opening markers.
    search: Markers,
    stage: Stage,
    /// What stands before the call, which is content if it is none.
    opening: String,
    /// Whether the calls are in brackets.
    has_bracket: bool,
    calls: usize,
    /// Calls of this list, if they are written as in Python.
    told: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// After an opening marker: white space and a bracket so far.
    Opened(String),
    Json(JsonCall),
    /// All calls, if they are written as in Python.
    Python(Box<PythonCalls>),
    /// After a call: what is before the next one, or ends the list.
    Between(String),
}

impl Listed {
    pub(crate) fn new(tools: Arc<ToolSet>, list: &'static List) -> Self {
        let open = list.open.iter().map(|&marker| marker.to_owned()).collect();
        let stage = if list.is_bare {
            Stage::Opened(String::new())
        } else {
            Stage::Content
        };
        Self {
            tools,
            list,
            content: Content::default(),
            search: Markers::new(open),
            stage,
            opening: String::new(),
            has_bracket: false,
            calls: 0,
            told: 0,
        }
    }

    /// The same parser for a thought, in which only a marker begins calls.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            stage: Stage::Content,
            ..self.clone()
        }
    }

    /// Ends the text. An unfinished beginning of a call was content, unless the text was cut.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if !is_cut {
            self.finish_call(parts);
        }
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Opened(held) => format!("{opening}{held}"),
            Stage::Json(call) if !call.is_told() => format!("{opening}{}", call.raw()),
            Stage::Json(_) | Stage::Python(_) => String::new(),
            Stage::Between(held) => after_list(held, self.has_bracket)
                .trim_start_matches(is_separator)
                .to_owned(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }

    /// Completes a call with which the text ends.
    fn finish_call(&mut self, parts: &mut Parts) {
        loop {
            match std::mem::replace(&mut self.stage, Stage::Content) {
                Stage::Json(mut call) => {
                    call.finish();
                    self.tell(&mut call, parts);
                    return self.stage = Stage::Json(call);
                }
                Stage::Python(mut calls) => {
                    let progress = calls.finish();
                    if let Some(rest) = self.tell_all(calls, progress, parts) {
                        self.push(&rest, parts);
                    }
                }
                other => return self.stage = other,
            }
        }
    }

    /// After an opening marker, or at the beginning of the answer. Returns the text of the call, or of none.
    fn opened(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let start = held.trim_start();
        let inside = start.strip_prefix('[').map_or(start, str::trim_start);
        let Some(first) = inside.chars().next() else {
            self.stage = Stage::Opened(held);
            return None;
        };
        self.has_bracket = start.starts_with('[');
        // Without a marker, only the bracket tells calls in Python from text.
        let is_list =
            self.has_bracket || !self.opening.is_empty() || self.list.written == Written::Json;
        if !is_list || !self.list.written.begins_with(first) {
            self.no_call(parts);
            return Some(held);
        }
        let call = inside.to_owned();
        self.opening.push_str(&held[..held.len() - call.len()]);
        self.stage = match self.list.written {
            Written::Json => Stage::Json(JsonCall::new()),
            Written::Python => {
                let close = self.list.close.first().copied().unwrap_or("]");
                Stage::Python(Box::new(PythonCalls::new(self.tools.clone(), close, true)))
            }
        };
        Some(call)
    }

    /// What stands before the text is content.
    fn no_call(&mut self, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.content.push(&opening, parts);
        self.stage = Stage::Content;
    }

    /// More of a call, which may turn out to be none.
    fn go_on(&mut self, mut call: JsonCall, text: &str, parts: &mut Parts) -> Option<String> {
        let outcome = call.push(text);
        let is_known = self.tell(&mut call, parts);
        if is_known && outcome == Outcome::Open {
            self.stage = Stage::Json(call);
            return None;
        }
        let rest = &text[outcome.bytes(text)..];
        if !call.is_told() {
            self.no_call(parts);
            return Some(format!("{}{rest}", call.raw()));
        }
        self.calls += 1;
        self.stage = Stage::Between(String::new());
        Some(rest.to_owned())
    }

    /// Reports what is new of a call, unless it names no function of the request.
    fn tell(&mut self, call: &mut JsonCall, parts: &mut Parts) -> bool {
        let is_known = call.name().is_none_or(|name| self.tools.has(name));
        if is_known && let Some(delta) = call.take() {
            self.report(self.calls, delta, parts);
        }
        is_known
    }

    /// Reports what is new of the calls of a list. Returns the text after them.
    fn tell_all(
        &mut self,
        mut calls: Box<PythonCalls>,
        progress: Progress,
        parts: &mut Parts,
    ) -> Option<String> {
        for delta in calls.take() {
            self.told = delta.index + 1;
            self.report(self.calls + delta.index, delta, parts);
        }
        match progress {
            Progress::Open => {
                self.stage = Stage::Python(calls);
                return None;
            }
            Progress::Whole => {
                self.calls += std::mem::take(&mut self.told);
                self.has_bracket = false;
                self.stage = Stage::Between(String::new());
            }
            Progress::NoCall => self.no_call(parts),
        }
        Some(calls.rest())
    }

    fn report(&mut self, index: usize, delta: CallDelta, parts: &mut Parts) {
        self.opening.clear();
        self.content.call_begins();
        parts.call(index, delta);
    }

    /// After a call, with the text up to where it is known what follows.
    fn between(&mut self, held: String) -> Option<String> {
        let next = held.trim_start_matches(is_separator);
        if self.list.written == Written::Json && next.starts_with('{') {
            let next = next.to_owned();
            self.opening = held[..held.len() - next.len()].to_owned();
            self.stage = Stage::Json(JsonCall::new());
            return Some(next);
        }
        let rest = after_list(&held, self.has_bracket);
        let is_undecided = |close: &&str| begins(rest, close).is_none();
        if next.is_empty() || rest.is_empty() || self.list.close.iter().any(is_undecided) {
            self.stage = Stage::Between(held);
            return None;
        }
        let close = self
            .list
            .close
            .iter()
            .find(|close| rest.starts_with(**close));
        Some(rest[close.map_or(0, |close| close.len())..].to_owned())
    }
}

/// What is after the last call of a list, without the bracket.
fn after_list(held: &str, has_bracket: bool) -> &str {
    if !has_bracket {
        return held.trim_start();
    }
    let next = held.trim_start_matches(is_separator);
    next.strip_prefix(']').unwrap_or(next).trim_start()
}

/// What may separate two calls.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | ';')
}

impl Staged for Listed {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                let (before, found) = self.search.push(text);
                self.content.push(&before, parts);
                let (index, rest) = found?;
                self.opening = self.search.text(index).to_owned();
                self.stage = Stage::Opened(String::new());
                Some(rest)
            }
            Stage::Opened(held) => self.opened(held + text, parts),
            Stage::Json(call) => self.go_on(call, text, parts),
            Stage::Python(mut calls) => {
                let progress = calls.push(text);
                self.tell_all(calls, progress, parts)
            }
            Stage::Between(held) => self.between(held + text),
        }
    }
}
