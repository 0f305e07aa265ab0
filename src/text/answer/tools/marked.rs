//! Calls with markers: Hermes' `<tool_call>` … `</tool_call>`, and calls after Mistral's `[TOOL_CALLS]`.

use super::super::json_text::Repair;
use super::super::marker::{Marker, Markers, begins};
use super::content::Content;
use super::json_call::{JsonCall, Outcome};
use super::progress::Progress;
use super::tags::{FUNCTION, GLM, Notation, QWEN, Tags, is_in_name};
use super::xml::XmlCall;
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// Opening and closing marker of Hermes, and of most others.
pub(crate) const TOOL_CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
/// The same of Seed-OSS.
pub(crate) const SEED_TOOL_CALL: [&str; 2] = ["<seed:tool_call>", "</seed:tool_call>"];
const CALLS: &str = "[TOOL_CALLS]";
const ARGS: &str = "[ARGS]";
const CALL_ID: &str = "[CALL_ID]";

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
    /// Opening markers that were content.
    shown: usize,
    stage: Stage,
    calls: usize,
    /// Whether only functions of the request are called.
    is_strict: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// After two markers without a call.
    Blank,
    /// After the opening marker: white space, then a call of either kind.
    Opened(String),
    /// A call, and text that may be its end within a string that is not closed.
    Json(JsonCall, String),
    Xml(Box<XmlCall>),
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
        let tags = names.flat_map(|name| ['>', '\n'].map(|end| format!("{FUNCTION}{name}{end}")));
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
            shown: 0,
            stage,
            calls: 0,
            is_strict: false,
        }
    }

    /// The same parser for a thought, which may show how a call is written.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            is_strict: true,
            content: Content::of_thought(),
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
                let is_text = self.calls == 0 || self.shown > 0;
                self.shown = self.shown.saturating_sub(1);
                self.content
                    .push(if is_text { self.markers[1] } else { "" }, parts);
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
        let (is_tagged, is_closed) = (begins(call, FUNCTION), begins(call, self.markers[1]));
        let is_open = is_tagged.is_none() || is_closed.is_none() || begins(call, open).is_none();
        if call.is_empty() || is_open {
            self.stage = Stage::Opened(text);
            return None;
        }
        if is_closed == Some(true) {
            self.stage = Stage::Blank;
            return Some(call[self.markers[1].len()..].to_owned());
        }
        let call = call.to_owned();
        self.opening.push_str(&text[..text.len() - call.len()]);
        match call.as_bytes()[0] {
            b'<' if is_tagged == Some(true) => self.stage = self.in_tags(&QWEN),
            b'<' => self.no_call("", parts),
            first if first != b'{' && self.is_glm => self.stage = self.in_tags(&GLM),
            _ => self.stage = Stage::Json(JsonCall::new(), String::new()),
        }
        Some(call)
    }

    fn in_tags(&self, tags: &'static Tags) -> Stage {
        Stage::Xml(Box::new(XmlCall::new(Notation {
            tags,
            markers: self.markers,
            tools: self.tools.clone(),
        })))
    }

    /// What looked like a call is content.
    fn no_call(&mut self, raw: &str, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.shown += usize::from(!opening.is_empty());
        self.content.push(&format!("{opening}{raw}"), parts);
    }

    fn add(&mut self, call: CallDelta, parts: &mut Parts) {
        // The answer has begun, even if a thought had not ended.
        self.is_strict = false;
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
            self.stage = Stage::Json(JsonCall::new(), String::new());
            return Some(next.to_owned());
        }
        self.stage = Stage::Content;
        Some(next.strip_prefix(close).unwrap_or(next).to_owned())
    }

    fn json(&mut self, mut call: JsonCall, text: &str, parts: &mut Parts) -> Option<String> {
        let mut rest = text;
        while let Some(at) = rest.find('<') {
            let (before, tag) = rest.split_at(at);
            let outcome = call.push(before);
            if outcome != Outcome::Open {
                return self.end_json(&mut call, &rest[outcome.bytes(before)..], parts);
            }
            match self.ends_string(&call, tag) {
                Some(true) => {
                    call.finish();
                    return self.end_json(&mut call, tag, parts);
                }
                None => {
                    self.tell(&mut call, parts);
                    self.stage = Stage::Json(call, tag.to_owned());
                    return None;
                }
                Some(false) => {}
            }
            if call.push("<") != Outcome::Open {
                return self.end_json(&mut call, tag, parts);
            }
            rest = &tag[1..];
        }
        let outcome = call.push(rest);
        if outcome == Outcome::Open && !self.is_strange(&call) {
            self.tell(&mut call, parts);
            self.stage = Stage::Json(call, String::new());
            return None;
        }
        self.end_json(&mut call, &rest[outcome.bytes(rest)..], parts)
    }

    /// Whether the text at a `<` ends the call although a string is open: the end marker is the last that there is, or
    /// another call follows it on a line of its own. `None` if that is open.
    fn ends_string(&self, call: &JsonCall, text: &str) -> Option<bool> {
        let [open, close] = *self.markers;
        if !call.in_string() || !begins(text, close)? {
            return Some(false);
        }
        let after = &text[close.len()..];
        let next = after.trim_start();
        if next.is_empty() {
            return None;
        }
        Some(begins(next, open)? && after[..after.len() - next.len()].contains('\n'))
    }

    /// A call ends, or is none, and this follows it.
    fn end_json(&mut self, call: &mut JsonCall, rest: &str, parts: &mut Parts) -> Option<String> {
        self.tell(call, parts);
        if call.is_told() {
            return self.close(rest);
        }
        self.no_call("", parts);
        Some(format!("{}{rest}", call.raw()))
    }

    /// Reports what is new of a call.
    fn tell(&mut self, call: &mut JsonCall, parts: &mut Parts) {
        if !self.is_strange(call)
            && let Some(delta) = call.take()
        {
            self.add(delta, parts);
        }
    }

    /// Whether a call is none because it names no function of the request.
    fn is_strange(&self, call: &JsonCall) -> bool {
        self.is_strict && call.name().is_some_and(|name| !self.tools.has(name))
    }

    fn tagged(&mut self, mut call: XmlCall, text: &str, parts: &mut Parts) -> Option<String> {
        let progress = call.push(text);
        self.tell_tagged(call, progress, parts)
    }

    /// Reports what is new of a call in tags. Returns the text after it.
    fn tell_tagged(
        &mut self,
        mut call: XmlCall,
        progress: Progress,
        parts: &mut Parts,
    ) -> Option<String> {
        if let Some(delta) = call.take() {
            self.add(delta, parts);
        }
        match progress {
            Progress::Open => {
                self.stage = Stage::Xml(Box::new(call));
                None
            }
            Progress::Whole => self.close(&call.rest()),
            Progress::NoCall => {
                self.no_call("", parts);
                Some(call.rest())
            }
        }
    }

    /// Completes a call in JSON with which the text ends.
    fn finish_json(&mut self, parts: &mut Parts) {
        let (mut call, held) = match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Json(call, held) => (call, held),
            other => return self.stage = other,
        };
        // The end marker within an open string ends it.
        let is_end = held.trim_end() == self.markers[1];
        call.push(if is_end { "" } else { &held });
        call.finish();
        self.tell(&mut call, parts);
        self.stage = Stage::Json(call, String::new());
    }

    /// Ends the call with which the text ends, and reads what follows it.
    fn finish_calls(&mut self, parts: &mut Parts) {
        loop {
            self.finish_json(parts);
            let mut call = match std::mem::replace(&mut self.stage, Stage::Content) {
                Stage::Xml(call) => *call,
                other => return self.stage = other,
            };
            let progress = call.finish();
            if let Some(rest) = self.tell_tagged(call, progress, parts) {
                self.push(&rest, parts);
            }
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if !is_cut {
            self.finish_calls(parts);
        } else if matches!(self.stage, Stage::Opened(_) | Stage::Json(..)) {
            self.content.call_begins();
        }
        let opening = std::mem::take(&mut self.opening);
        let raw = match &mut self.stage {
            Stage::Content => self.search.finish(),
            Stage::Opened(space) => format!("{opening}{space}"),
            Stage::Json(call, _) if !call.is_told() => format!("{opening}{}", call.raw()),
            Stage::Closing(held) => std::mem::take(held),
            Stage::Blank | Stage::Json(..) | Stage::Xml(_) => String::new(),
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
            Stage::Blank if text.trim_start().is_empty() => {
                self.stage = Stage::Blank;
                None
            }
            Stage::Blank => Some(text.trim_start().to_owned()),
            Stage::Opened(space) => self.opened(space + text, parts),
            Stage::Json(call, held) => self.json(call, &(held + text), parts),
            Stage::Xml(call) => self.tagged(*call, text, parts),
            Stage::Closing(held) => self.closing(&(held + text)),
        }
    }
}

/// Parses the text after Mistral's marker: a list of calls, a call without a list, or a name and its arguments.
#[derive(Clone, Debug)]
pub(crate) struct Mistral {
    tools: Arc<ToolSet>,
    content: Content,
    open: Marker,
    /// The text from the marker to the current call, which is content if it is none.
    opening: String,
    stage: MistralStage,
    calls: usize,
    /// Whether the calls are in brackets.
    has_bracket: bool,
    /// Whether only functions of the request are called.
    is_strict: bool,
}

#[derive(Clone, Debug)]
enum MistralStage {
    Content,
    /// After a list without a call.
    Blank,
    /// After the marker, until it is known what follows.
    Opened(String),
    /// Between the calls of a list.
    List,
    /// An entry of a list that is a text: it has no meaning.
    Entry(Repair),
    ListCall(JsonCall),
    /// The arguments of a named call.
    Arguments(JsonCall),
}

/// What follows the marker, with the text from there on.
enum Head<'a> {
    /// More text is needed to tell.
    Open,
    /// A list without a call.
    Empty(&'a str),
    Call(&'a str),
    Arguments(&'a str, &'a str),
    /// A call without arguments, and the next marker.
    Blank(&'a str, &'a str),
    /// No call.
    Text,
}

impl Mistral {
    pub(crate) fn new(tools: Arc<ToolSet>) -> Self {
        let (content, open) = (Content::default(), Marker::new(CALLS));
        Self {
            tools,
            content,
            open,
            opening: String::new(),
            stage: MistralStage::Content,
            calls: 0,
            has_bracket: false,
            is_strict: false,
        }
    }

    /// The same parser for a thought, which may show how a call is written.
    pub(crate) fn in_thought(&self) -> Self {
        Self {
            is_strict: true,
            content: Content::of_thought(),
            ..self.clone()
        }
    }

    /// After the marker, which may come twice.
    fn opened(&mut self, text: String, parts: &mut Parts) -> Option<String> {
        let mut head = text.trim_start();
        while let Some(rest) = head.strip_prefix(CALLS) {
            head = rest.trim_start();
        }
        let rest = match self.head(head) {
            Head::Open => {
                self.stage = MistralStage::Opened(text);
                return None;
            }
            Head::Text => {
                self.content.push(CALLS, parts);
                return Some(text);
            }
            Head::Empty(rest) => {
                self.stage = MistralStage::Blank;
                return Some(rest.to_owned());
            }
            Head::Blank(name, rest) => {
                self.add_blank(name, parts);
                return Some(rest.to_owned());
            }
            Head::Call(rest) => {
                self.stage = MistralStage::ListCall(JsonCall::new());
                rest
            }
            Head::Arguments(name, rest) => {
                self.stage = MistralStage::Arguments(JsonCall::named(name));
                rest
            }
        };
        self.opening = format!("{CALLS}{}", &text[..text.len() - rest.len()]);
        self.has_bracket = head.starts_with('[');
        Some(rest.to_owned())
    }

    fn head<'a>(&self, text: &'a str) -> Head<'a> {
        if text.is_empty() || begins(text, CALLS).is_none() {
            return Head::Open;
        }
        let list = text.strip_prefix('[').map(str::trim_start);
        match list.unwrap_or(text).chars().next() {
            None => return Head::Open,
            Some(']') if list.is_some() => return Head::Empty(list.map_or("", |list| &list[1..])),
            Some('{') => return Head::Call(list.unwrap_or(text)),
            _ if list.is_some() => return Head::Text,
            _ => {}
        }
        let Some(end) = text.find(|c| !is_in_name(c)) else {
            return Head::Open;
        };
        let (name, after) = text.split_at(end);
        if self.tools.has(name) {
            named_head(name, after.trim_start())
        } else {
            Head::Text
        }
    }

    fn add(&mut self, delta: CallDelta, parts: &mut Parts) {
        self.opening.clear();
        // The answer has begun, even if a thought had not ended.
        self.is_strict = false;
        self.content.call_begins();
        parts.call(self.calls, delta);
    }

    fn add_blank(&mut self, name: &str, parts: &mut Parts) {
        let (name, arguments) = (Some(name.to_owned()), "{}".to_owned());
        let delta = CallDelta {
            name,
            arguments,
            ..CallDelta::default()
        };
        self.add(delta, parts);
        self.calls += 1;
    }

    /// More of a call. Returns the text after it, with the stage that follows.
    fn call(
        &mut self,
        mut call: JsonCall,
        text: &str,
        parts: &mut Parts,
        is_list: bool,
    ) -> Option<String> {
        let outcome = call.push(text);
        self.tell(&mut call, parts);
        let rest = &text[outcome.bytes(text)..];
        if outcome == Outcome::Open && !self.is_strange(&call) {
            self.stage = if is_list {
                MistralStage::ListCall(call)
            } else {
                MistralStage::Arguments(call)
            };
            return None;
        }
        if !call.is_told() {
            self.no_call(&call, parts);
            return Some(rest.to_owned());
        }
        self.calls += 1;
        if is_list {
            self.stage = MistralStage::List;
        }
        Some(rest.to_owned())
    }

    /// A text in a list of calls, up to the next entry or the end of the list.
    fn entry(&mut self, mut read: Repair, text: &str) -> Option<String> {
        for (at, character) in text.char_indices() {
            if !read.in_string() && matches!(character, ',' | ']' | '{') {
                self.stage = MistralStage::List;
                return Some(text[at..].to_owned());
            }
            read.push(character.encode_utf8(&mut [0; 4]));
        }
        self.stage = MistralStage::Entry(read);
        None
    }

    fn no_call(&mut self, call: &JsonCall, parts: &mut Parts) {
        let opening = std::mem::take(&mut self.opening);
        self.content
            .push(&format!("{opening}{}", call.raw()), parts);
    }

    fn tell(&mut self, call: &mut JsonCall, parts: &mut Parts) {
        if !self.is_strange(call)
            && let Some(delta) = call.take()
        {
            self.add(delta, parts);
        }
    }

    /// Whether a call is none because it names no function of the request.
    fn is_strange(&self, call: &JsonCall) -> bool {
        self.is_strict && call.name().is_some_and(|name| !self.tools.has(name))
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let stage = std::mem::replace(&mut self.stage, MistralStage::Content);
        match stage {
            MistralStage::Content | MistralStage::Blank if is_cut => {}
            _ if is_cut => self.content.call_begins(),
            MistralStage::Content => {
                let rest = self.open.finish();
                self.content.push(&rest, parts);
            }
            MistralStage::Opened(text) => {
                // Without its arguments, a call has none.
                let name = text
                    .trim()
                    .strip_suffix(ARGS)
                    .and_then(|head| head.split('[').next());
                match name.map(str::trim).filter(|name| self.tools.has(name)) {
                    Some(name) => self.add_blank(name, parts),
                    None => self.content.push(&format!("{CALLS}{text}"), parts),
                }
            }
            MistralStage::ListCall(mut call) | MistralStage::Arguments(mut call) => {
                call.finish();
                self.tell(&mut call, parts);
                if !call.is_told() {
                    self.no_call(&call, parts);
                }
            }
            MistralStage::Blank | MistralStage::List | MistralStage::Entry(_) => {}
        }
        self.content.finish(parts);
    }
}

/// What follows the name of a function after Mistral's marker: the call's id, which clients do not need, and arguments.
fn named_head<'a>(name: &'a str, text: &'a str) -> Head<'a> {
    let arguments = match text.strip_prefix(CALL_ID) {
        Some(id) => match id.find(['[', '{']) {
            Some(end) => &id[end..],
            None => return Head::Open,
        },
        None => text,
    };
    if text.is_empty() || begins(text, CALL_ID).is_none() || begins(arguments, ARGS).is_none() {
        return Head::Open;
    }
    let after = arguments.strip_prefix(ARGS).map(str::trim_start);
    let next = after.unwrap_or(arguments);
    match after {
        _ if next.starts_with('{') => Head::Arguments(name, next),
        Some(next) if next.is_empty() || begins(next, CALLS).is_none() => Head::Open,
        Some(next) if next.starts_with(CALLS) => Head::Blank(name, next),
        _ => Head::Text,
    }
}

impl Staged for Mistral {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, MistralStage::Content) {
            MistralStage::Content => {
                let (before, found) = self.open.push(text);
                self.content.push(&before, parts);
                if found.is_some() {
                    self.stage = MistralStage::Opened(String::new());
                }
                found
            }
            MistralStage::Blank if text.trim_start().is_empty() => {
                self.stage = MistralStage::Blank;
                None
            }
            MistralStage::Blank => Some(text.trim_start().to_owned()),
            MistralStage::Opened(head) => self.opened(head + text, parts),
            MistralStage::List => {
                let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
                if text.is_empty() {
                    self.stage = MistralStage::List;
                    return None;
                }
                if text.starts_with('{') {
                    self.stage = MistralStage::ListCall(JsonCall::new());
                } else if self.has_bracket && text.starts_with('"') {
                    self.stage = MistralStage::Entry(Repair::default());
                }
                Some(text.strip_prefix(']').unwrap_or(text).to_owned())
            }
            MistralStage::Entry(read) => self.entry(read, text),
            MistralStage::ListCall(call) => self.call(call, text, parts, true),
            MistralStage::Arguments(call) => self.call(call, text, parts, false),
        }
    }
}
