//! Calls whose name stands between markers, before arguments in JSON: DeepSeek's, Kimi's and Apertus'. Families differ
//! only in the markers ([`Frame`]). What names no function of the request is content.

use super::super::marker::{Markers, begins};
use super::content::Content;
use super::json_call::{JsonCall, Outcome};
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// The markers of a family.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Markers before all calls, and after them.
    pub(super) section: [&'static [&'static str]; 2],
    /// What is before and after a call.
    pub(super) call: [&'static str; 2],
    /// Whether calls may lack the markers around all of them.
    pub(super) may_stand_alone: bool,
    /// Finds the name in the text between a call's first marker and its arguments.
    pub(super) name: fn(&str) -> &str,
}

/// Maximum bytes before the arguments of a call.
const HEADER_BYTES_MAX: usize = 512;

/// Parses calls in a frame.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    tools: Arc<ToolSet>,
    frame: &'static Frame,
    content: Content,
    /// Finds the markers that begin calls.
    search: Markers,
    stage: Stage,
    /// Markers before the call, which are content if it is none.
    opening: String,
    calls: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// Among the calls: what is before the next one, or ends them.
    Among(String),
    /// The text before a call's arguments.
    Header(String),
    Arguments(Box<JsonCall>),
    /// After a call's arguments: what is before its last marker.
    Closing(String),
}

impl Named {
    pub(crate) fn new(tools: Arc<ToolSet>, frame: &'static Frame) -> Self {
        let alone = frame.may_stand_alone.then_some(&frame.call[0]);
        let open = frame.section[0].iter().chain(alone);
        Self {
            tools,
            frame,
            content: Content::default(),
            search: Markers::new(open.map(|&marker| marker.to_owned()).collect()),
            stage: Stage::Content,
            opening: String::new(),
            calls: 0,
        }
    }

    /// Ends the text. An unfinished beginning of a call was content, unless the text was cut.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if let (Stage::Arguments(call), false) = (&mut self.stage, is_cut) {
            call.finish();
            let last = call.take();
            self.report(last, parts);
        }
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Among(held) if opening.is_empty() => {
                held.trim_start_matches(is_separator).to_owned()
            }
            Stage::Among(held) | Stage::Header(held) => format!("{opening}{held}"),
            Stage::Arguments(call) if !call.is_told() => format!("{opening}{}", call.raw()),
            Stage::Arguments(_) | Stage::Closing(_) => String::new(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }

    /// A marker in the content.
    fn found(&mut self, index: usize, rest: String) -> String {
        self.stage = Stage::Among(String::new());
        if index < self.frame.section[0].len() {
            self.opening = self.search.text(index).to_owned();
            return rest;
        }
        format!("{}{rest}", self.frame.call[0])
    }

    /// Before a call, or after the last. Returns what follows, once it is known.
    fn among(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let next = held.trim_start_matches(is_separator);
        let ends = self.frame.section[1];
        let is_open = |marker: &&str| begins(next, marker).is_none();
        if next.is_empty() || is_open(&self.frame.call[0]) || ends.iter().any(is_open) {
            self.stage = Stage::Among(held);
            return None;
        }
        if let Some(header) = next.strip_prefix(self.frame.call[0]) {
            let before = &held[..held.len() - header.len()];
            self.opening.push_str(before);
            self.stage = Stage::Header(String::new());
            return Some(header.to_owned());
        }
        if let Some(after) = ends
            .iter()
            .find_map(|end| held.trim_start().strip_prefix(*end))
        {
            // Between markers without a call there is nothing that is content.
            self.opening.clear();
            return Some(after.to_owned());
        }
        if self.opening.is_empty() {
            let end = ends.iter().find_map(|end| next.strip_prefix(*end));
            return Some(end.unwrap_or(&held).to_owned());
        }
        self.no_call(parts);
        Some(held)
    }

    /// What stands before the text is content.
    fn no_call(&mut self, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.content.push(&opening, parts);
        self.stage = Stage::Content;
    }

    /// Up to a call's arguments. A call without any has none.
    fn header(&mut self, held: String, parts: &mut Parts) -> Option<String> {
        let close = self.frame.call[1];
        let end = [held.find('{'), held.find(close)]
            .into_iter()
            .flatten()
            .min();
        let Some(end) = end.filter(|&end| end <= HEADER_BYTES_MAX) else {
            if end.is_some() || held.len() > HEADER_BYTES_MAX {
                self.no_call(parts);
                return Some(held);
            }
            self.stage = Stage::Header(held);
            return None;
        };
        let name = (self.frame.name)(&held[..end]).to_owned();
        if !self.tools.has(&name) {
            self.no_call(parts);
            return Some(held);
        }
        let rest = held[end..].to_owned();
        if rest.starts_with('{') {
            self.opening.push_str(&held[..end]);
            self.stage = Stage::Arguments(Box::new(JsonCall::named(&name)));
        } else {
            let delta = CallDelta {
                name: Some(name),
                arguments: "{}".to_owned(),
                ..CallDelta::default()
            };
            self.report(Some(delta), parts);
            self.stage = Stage::Closing(String::new());
        }
        Some(rest)
    }

    /// More of a call's arguments, which may turn out to be none.
    fn arguments(
        &mut self,
        mut call: Box<JsonCall>,
        text: &str,
        parts: &mut Parts,
    ) -> Option<String> {
        let outcome = call.push(text);
        let more = call.take();
        self.report(more, parts);
        if outcome == Outcome::Open {
            self.stage = Stage::Arguments(call);
            return None;
        }
        let rest = &text[outcome.bytes(text)..];
        if !call.is_told() {
            self.no_call(parts);
            return Some(format!("{}{rest}", call.raw()));
        }
        self.stage = Stage::Closing(String::new());
        Some(rest.to_owned())
    }

    /// Reports more of the current call.
    fn report(&mut self, delta: Option<CallDelta>, parts: &mut Parts) {
        if let Some(delta) = delta {
            self.opening.clear();
            self.content.call_begins();
            parts.call(self.calls, delta);
        }
    }

    /// After a call's arguments, which may be in a code fence.
    fn closing(&mut self, held: String) -> Option<String> {
        let next = held.trim_start_matches(|c: char| c.is_whitespace() || c == '`');
        if next.is_empty() || begins(next, self.frame.call[1]).is_none() {
            self.stage = Stage::Closing(held);
            return None;
        }
        self.calls += 1;
        self.stage = Stage::Among(String::new());
        Some(
            next.strip_prefix(self.frame.call[1])
                .unwrap_or(next)
                .to_owned(),
        )
    }
}

/// What may be around calls.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | '[' | ']')
}

impl Staged for Named {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                let (before, found) = self.search.push(text);
                self.content.push(&before, parts);
                found.map(|(index, rest)| self.found(index, rest))
            }
            Stage::Among(held) => self.among(held + text, parts),
            Stage::Header(held) => self.header(held + text, parts),
            Stage::Arguments(call) => self.arguments(call, text, parts),
            Stage::Closing(held) => self.closing(held + text),
        }
    }
}
