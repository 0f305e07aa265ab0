//! Calls with markers: Hermes' `<tool_call>` … `</tool_call>`, and calls after Mistral's `[TOOL_CALLS]`.

use super::super::marker::Marker;
use super::json_call::{JsonCall, Outcome};
use super::xml::{GLM, QWEN, XmlCall};
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// Opening and closing marker of Hermes, and of most others.
pub(crate) const TOOL_CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// The same of Seed-OSS.
pub(crate) const SEED_TOOL_CALL: [&str; 2] = ["<seed:tool_call>", "</seed:tool_call>"];
const CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";

/// Content before calls. White space at its end is dropped if a call follows, and so is white space between two calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    space: String,
    after_call: bool,
}

impl Content {
    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut text = std::mem::take(&mut self.space) + text;
        let end = text.trim_end().len();
        self.space = text.split_off(end);
        if !text.is_empty() {
            let text = if std::mem::take(&mut self.after_call) { text.trim_start() } else { &text };
            parts.content.push_str(text);
        }
    }

    pub(crate) fn call_begins(&mut self) {
        self.space.clear();
        self.after_call = true;
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts) {
        if !self.after_call {
            parts.content.push_str(&std::mem::take(&mut self.space));
        }
    }
}

/// Parses Hermes' calls: JSON, or tags, between markers.
#[derive(Clone, Debug)]
pub(crate) struct Hermes {
    tools: Arc<ToolSet>,
    markers: &'static [&'static str; 2],
    /// A call that starts with neither a brace nor a tag is GLM's.
    is_glm: bool,
    content: Content,
    open: Marker,
    stage: Stage,
    calls: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// After the opening marker: white space, then a call of either kind.
    Opened(String),
    Json(JsonCall),
    Xml(XmlCall),
    /// After a call: the closing marker, which some models omit.
    Closing(String),
}

impl Hermes {
    pub(crate) fn new(tools: Arc<ToolSet>, markers: &'static [&'static str; 2], is_glm: bool) -> Self {
        let open = Marker::new(markers[0]);
        Self { tools, markers, is_glm, content: Content::default(), open, stage: Stage::Content, calls: 0 }
    }

    fn close(&mut self, rest: &str) -> Option<String> {
        self.calls += 1;
        self.stage = Stage::Closing(String::new());
        Some(rest.to_owned())
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let open = self.markers[0];
        let raw = match &mut self.stage {
            Stage::Content => self.open.finish(),
            Stage::Opened(space) => format!("{open}{space}"),
            Stage::Json(call) if call.name().is_none() => format!("{open}{}", call.raw()),
            Stage::Xml(call) => match call.take(&self.tools) {
                Some(delta) => {
                    self.content.call_begins();
                    parts.call(self.calls, delta);
                    String::new()
                }
                None => format!("{open}{}", call.raw()),
            },
            Stage::Closing(held) => std::mem::take(held),
            Stage::Json(_) => String::new(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }
}

impl Staged for Hermes {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        let [open, end] = *self.markers;
        match &mut self.stage {
            Stage::Content => {
                let (before, found) = self.open.push(text);
                self.content.push(&before, parts);
                if found.is_some() {
                    self.stage = Stage::Opened(String::new());
                }
                found
            }
            Stage::Opened(space) => {
                space.push_str(text);
                let first = space.trim_start().chars().next()?;
                let text = std::mem::take(space);
                self.stage = match first {
                    '<' => Stage::Xml(XmlCall::new(&QWEN)),
                    '{' => Stage::Json(JsonCall::new()),
                    _ if self.is_glm => Stage::Xml(XmlCall::new(&GLM)),
                    _ => Stage::Json(JsonCall::new()),
                };
                Some(text)
            }
            Stage::Json(call) => {
                let outcome = call.push(text);
                if let (Outcome::Failed(bytes), None) = (outcome, call.name()) {
                    let raw = format!("{}{}", call.raw(), &text[bytes..]);
                    self.content.push(open, parts);
                    self.stage = Stage::Content;
                    return Some(raw);
                }
                if let Some(delta) = call.take(outcome != Outcome::Open) {
                    self.content.call_begins();
                    parts.call(self.calls, delta);
                }
                match outcome {
                    Outcome::Open => None,
                    Outcome::Whole(bytes) | Outcome::Failed(bytes) => self.close(&text[bytes..]),
                }
            }
            Stage::Xml(call) => {
                let rest = call.push(text)?;
                match call.take(&self.tools) {
                    Some(delta) => {
                        self.content.call_begins();
                        parts.call(self.calls, delta);
                        self.close(&rest)
                    }
                    None => {
                        let raw = format!("{open}{}", call.raw());
                        self.content.push(&raw, parts);
                        self.stage = Stage::Content;
                        Some(rest)
                    }
                }
            }
            Stage::Closing(held) => {
                held.push_str(text);
                let mark = held.trim_start();
                if end.starts_with(mark) && mark != end {
                    return None;
                }
                let rest = mark.strip_prefix(end).unwrap_or(mark).to_owned();
                self.stage = Stage::Content;
                Some(rest)
            }
        }
    }
}

/// Parses the text after Mistral's marker: a list of calls, or a name and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Mistral {
    tools: Arc<ToolSet>,
    content: Content,
    open: Marker,
    stage: MistralStage,
    calls: usize,
}

#[derive(Clone, Debug)]
enum MistralStage {
    Content,
    /// After the marker: a list, or a name.
    Opened(String),
    /// Between the calls of a list.
    List,
    ListCall(JsonCall),
    /// The arguments of a named call, parsed as an object with only arguments.
    Arguments(Box<JsonCall>),
}

impl Mistral {
    pub(crate) fn new(tools: Arc<ToolSet>) -> Self {
        let (content, open) = (Content::default(), Marker::new(CALLS));
        Self { tools, content, open, stage: MistralStage::Content, calls: 0 }
    }

    /// Parses the text after the marker, as far as it is complete.
    fn open_call(&mut self, head: &str, parts: &mut Parts) -> Option<String> {
        let head = head.trim_start();
        if let Some(list) = head.strip_prefix('[').filter(|_| !ARGS.starts_with(head) && !head.starts_with(ARGS)) {
            self.stage = MistralStage::List;
            return Some(list.to_owned());
        }
        if let Some((empty, _)) = head.split_once(CALLS).filter(|(empty, _)| self.is_empty_call(empty)) {
            self.add_empty_call(empty, parts);
            self.stage = MistralStage::Content;
            return Some(head[empty.len()..].to_owned());
        }
        let Some(brace) = head.find('{').filter(|&at| at > 0) else {
            // The first bracket of a list may also be the beginning of a marker.
            self.stage = MistralStage::Opened(head.to_owned());
            return None;
        };
        let (name, arguments) = head.split_at(brace);
        let name = name_in(name);
        let call = JsonCall::named(name);
        parts.call(self.calls, CallDelta { name: Some(name.to_owned()), ..CallDelta::default() });
        self.stage = MistralStage::Arguments(Box::new(call));
        Some(arguments.to_owned())
    }

    /// Whether this is a known name and the marker before arguments, which are missing.
    fn is_empty_call(&self, head: &str) -> bool {
        head.trim_end().ends_with(ARGS) && self.tools.has(name_in(head))
    }

    fn add_empty_call(&mut self, head: &str, parts: &mut Parts) {
        let (name, arguments) = (Some(name_in(head).to_owned()), "{}".to_owned());
        parts.call(self.calls, CallDelta { name, arguments, ..CallDelta::default() });
        self.calls += 1;
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if let MistralStage::Opened(head) = &self.stage {
            let head = head.clone();
            if !is_cut && self.is_empty_call(&head) {
                self.add_empty_call(&head, parts);
                return;
            }
        }
        let raw = match &mut self.stage {
            MistralStage::Content => self.open.finish(),
            MistralStage::Opened(head) => format!("{CALLS}{head}"),
            MistralStage::ListCall(call) if call.name().is_none() => call.raw().to_owned(),
            _ => String::new(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }
}

/// The name before the call id, which clients do not need, and before the marker of the arguments.
fn name_in(head: &str) -> &str {
    head.split('[').next().unwrap_or_default().trim()
}

impl Staged for Mistral {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match &mut self.stage {
            MistralStage::Content => {
                let (before, found) = self.open.push(text);
                self.content.push(&before, parts);
                if found.is_some() {
                    self.content.call_begins();
                    self.stage = MistralStage::Opened(String::new());
                }
                found
            }
            MistralStage::Opened(head) => {
                head.push_str(text);
                let head = std::mem::take(head);
                self.open_call(&head, parts)
            }
            MistralStage::List => {
                let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                match text.as_bytes().first() {
                    None => return None,
                    Some(b'{') => self.stage = MistralStage::ListCall(JsonCall::new()),
                    Some(_) => {
                        self.stage = MistralStage::Content;
                        return Some(text.strip_prefix(']').unwrap_or(text).to_owned());
                    }
                }
                Some(text.to_owned())
            }
            MistralStage::ListCall(call) => {
                let outcome = call.push(text);
                if let Some(delta) = call.take(outcome != Outcome::Open) {
                    parts.call(self.calls, delta);
                }
                match outcome {
                    Outcome::Open => None,
                    Outcome::Whole(bytes) => {
                        self.calls += 1;
                        self.stage = MistralStage::List;
                        Some(text[bytes..].to_owned())
                    }
                    Outcome::Failed(bytes) => {
                        let is_call = call.name().is_some();
                        self.calls += usize::from(is_call);
                        let raw = if is_call { "" } else { call.raw() };
                        let rest = format!("{raw}{}", &text[bytes..]);
                        self.stage = MistralStage::Content;
                        Some(rest)
                    }
                }
            }
            MistralStage::Arguments(call) => {
                call.push(text);
                if let Some(delta) = call.take(false) {
                    parts.call(self.calls, delta);
                }
                let end = call.arguments_end()?;
                self.calls += 1;
                self.stage = MistralStage::Content;
                Some(text[end..].to_owned())
            }
        }
    }
}
