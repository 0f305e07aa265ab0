//! Calls with markers: Hermes' `<tool_call>` … `</tool_call>`, and calls after Mistral's `[TOOL_CALLS]`.

use super::super::marker::{Marker, Markers, begins};
use super::content::Content;
use super::json_call::{JsonCall, Outcome};
use super::xml::{FUNCTION, GLM, QWEN, Tags, XmlCall};
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// Opening and closing marker of Hermes, and of most others.
pub(crate) const TOOL_CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// The same of Seed-OSS.
pub(crate) const SEED_TOOL_CALL: [&str; 2] = ["<seed:tool_call>", "</seed:tool_call>"];
const CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";

/// Parses Hermes' calls: JSON, or tags, between markers. Calls in tags may lack the first marker, which Qwen3-Coder
/// often omits, if they name a function of the request.
#[derive(Clone, Debug)]
pub(crate) struct Hermes {
    tools: Arc<ToolSet>,
    markers: &'static [&'static str; 2],
    /// A call that starts with neither a brace nor a tag is GLM's.
    is_glm: bool,
    content: Content,
    /// Finds the markers, and the tags of the request's functions.
    search: Markers,
    /// The markers before the current call, which are content if it is none.
    opening: String,
    stage: Stage,
    calls: usize,
    /// Whether calls within the values of a call in tags are counted.
    counts_nested: bool,
    /// Whether only functions of the request are called.
    is_strict: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// After the opening marker: white space, then a call of either kind.
    Opened(String),
    Json(JsonCall),
    Xml(XmlCall),
    /// After a call: the closing marker, which some models omit, and brackets too many.
    Closing(String),
}

/// Indices of the markers in [`Hermes::search`].
const OPEN: usize = 0;
const CLOSE: usize = 1;

impl Hermes {
    pub(crate) fn new(
        tools: Arc<ToolSet>,
        markers: &'static [&'static str; 2],
        is_glm: bool,
    ) -> Self {
        // GLM's calls have no tags with the name.
        let tagged = if is_glm { &[] } else { &tools.functions[..] };
        let names = tagged
            .iter()
            .filter_map(|function| function["name"].as_str());
        let tags = names.map(|name| format!("{FUNCTION}{name}>"));
        let search = Markers::new(
            markers
                .iter()
                .map(|&marker| marker.to_owned())
                .chain(tags)
                .collect(),
        );
        let (content, opening, stage) = (Content::default(), String::new(), Stage::Content);
        Self {
            tools,
            markers,
            is_glm,
            content,
            search,
            opening,
            stage,
            calls: 0,
            counts_nested: true,
            is_strict: false,
        }
    }

    /// The same parser for a thought, which may show how a call is written.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            is_strict: true,
            ..self.clone()
        }
    }

    /// A marker or a tag in the content.
    fn found(&mut self, index: usize, rest: String, parts: &mut Parts) -> String {
        match index {
            OPEN => {
                self.opening = self.markers[0].to_owned();
                self.stage = Stage::Opened(String::new());
                rest
            }
            CLOSE => {
                // After a call it closes nothing, and means nothing.
                self.content
                    .push(if self.calls > 0 { "" } else { self.markers[1] }, parts);
                rest
            }
            _ => {
                self.stage = self.in_tags(&QWEN);
                format!("{}{rest}", self.search.text(index))
            }
        }
    }

    /// After the opening marker, which may come twice. Returns the text of the call, once its kind is known.
    fn opened(&mut self, text: String, parts: &mut Parts) -> Option<String> {
        let open = self.markers[0];
        let mut call = text.trim_start();
        while let Some(rest) = call.strip_prefix(open) {
            call = rest.trim_start();
        }
        let is_tagged = begins(call, FUNCTION);
        if call.is_empty() || begins(call, open).is_none() || is_tagged.is_none() {
            self.stage = Stage::Opened(text);
            return None;
        }
        let call = call.to_owned();
        self.opening.push_str(&text[..text.len() - call.len()]);
        match call.as_bytes()[0] {
            b'<' if is_tagged == Some(true) => self.stage = self.in_tags(&QWEN),
            b'<' => self.no_call("", parts),
            first if first != b'{' && self.is_glm => self.stage = self.in_tags(&GLM),
            _ => self.stage = Stage::Json(JsonCall::new()),
        }
        Some(call)
    }

    fn in_tags(&self, tags: &'static Tags) -> Stage {
        Stage::Xml(XmlCall::new(tags, self.markers, self.counts_nested))
    }

    /// What looked like a call is content.
    fn no_call(&mut self, raw: &str, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.content.push(&format!("{opening}{raw}"), parts);
    }

    fn add(&mut self, call: CallDelta, parts: &mut Parts) {
        self.content.call_begins();
        parts.call(self.calls, call);
    }

    fn close(&mut self, rest: &str) -> Option<String> {
        self.opening.clear();
        self.calls += 1;
        self.stage = Stage::Closing(String::new());
        Some(rest.to_owned())
    }

    /// After a call, with the text up to where it is known what follows.
    fn closing(&mut self, held: &str) -> Option<String> {
        let [open, close] = *self.markers;
        let next = held
            .trim_start_matches(|c: char| c.is_whitespace() || matches!(c, '}' | ']' | ',' | ';'));
        if begins(next, close).is_none() || begins(next, open).is_none() {
            self.stage = Stage::Closing(next.to_owned());
            return None;
        }
        if next.starts_with('{') {
            self.stage = Stage::Json(JsonCall::new());
            return Some(next.to_owned());
        }
        self.stage = Stage::Content;
        Some(next.strip_prefix(close).unwrap_or(next).to_owned())
    }

    fn json(&mut self, mut call: JsonCall, text: &str, parts: &mut Parts) -> Option<String> {
        let outcome = call.push(text);
        let is_strange = self.is_strict && call.name().is_some_and(|name| !self.tools.has(name));
        if matches!((outcome, call.name()), (Outcome::Failed(_), None)) || is_strange {
            self.stage = Stage::Content;
            self.no_call("", parts);
            return Some(format!("{}{}", call.raw(), &text[outcome.bytes(text)..]));
        }
        if let Some(delta) = call.take(outcome != Outcome::Open) {
            self.add(delta, parts);
        }
        match outcome {
            Outcome::Open => {
                self.stage = Stage::Json(call);
                None
            }
            Outcome::Whole(bytes) | Outcome::Failed(bytes) => self.close(&text[bytes..]),
        }
    }

    fn tagged(&mut self, mut call: XmlCall, text: &str, parts: &mut Parts) -> Option<String> {
        let Some(rest) = call.push(text, &self.tools) else {
            self.stage = Stage::Xml(call);
            return None;
        };
        match call.take(&self.tools) {
            Some(delta) => {
                self.add(delta, parts);
                self.close(&rest)
            }
            None => {
                self.no_call(call.raw(), parts);
                Some(rest)
            }
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        // After the end there is nothing that could end them.
        self.counts_nested = false;
        while let Stage::Xml(call) = &mut self.stage {
            let rest = call.finish(&self.tools, is_cut);
            let delta = rest.as_ref().and_then(|_| call.take(&self.tools));
            let (Some(rest), Some(delta)) = (rest, delta) else {
                break;
            };
            self.add(delta, parts);
            self.close("");
            self.push(&rest, parts);
        }
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Opened(space) => format!("{opening}{space}"),
            Stage::Json(call) if call.name().is_none() => format!("{opening}{}", call.raw()),
            Stage::Xml(call) => format!("{opening}{}", call.raw()),
            Stage::Closing(held) => std::mem::take(held),
            Stage::Json(_) => String::new(),
        };
        self.content.push(if is_cut { "" } else { &raw }, parts);
        self.content.finish(parts);
    }
}

impl Staged for Hermes {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                let (before, found) = self.search.push(text);
                self.content.push(&before, parts);
                found.map(|(index, rest)| self.found(index, rest, parts))
            }
            Stage::Opened(space) => self.opened(space + text, parts),
            Stage::Json(call) => self.json(call, text, parts),
            Stage::Xml(call) => self.tagged(call, text, parts),
            Stage::Closing(held) => self.closing(&(held + text)),
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
        Self {
            tools,
            content,
            open,
            stage: MistralStage::Content,
            calls: 0,
        }
    }

    /// Parses the text after the marker, as far as it is complete.
    fn open_call(&mut self, head: &str, parts: &mut Parts) -> Option<String> {
        let head = head.trim_start();
        if let Some(list) = head.strip_prefix('[')
            && !ARGS.starts_with(head)
            && !head.starts_with(ARGS)
        {
            self.stage = MistralStage::List;
            return Some(list.to_owned());
        }
        if let Some((empty, _)) = head
            .split_once(CALLS)
            .filter(|(empty, _)| self.is_empty_call(empty))
        {
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
        parts.call(
            self.calls,
            CallDelta {
                name: Some(name.to_owned()),
                ..CallDelta::default()
            },
        );
        self.stage = MistralStage::Arguments(Box::new(call));
        Some(arguments.to_owned())
    }

    /// Whether this is a known name and the marker before arguments, which are missing.
    fn is_empty_call(&self, head: &str) -> bool {
        head.trim_end().ends_with(ARGS) && self.tools.has(name_in(head))
    }

    fn add_empty_call(&mut self, head: &str, parts: &mut Parts) {
        let (name, arguments) = (Some(name_in(head).to_owned()), "{}".to_owned());
        parts.call(
            self.calls,
            CallDelta {
                name,
                arguments,
                ..CallDelta::default()
            },
        );
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
