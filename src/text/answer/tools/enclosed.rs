//! Calls between markers in notations that are not JSON, while they stream.

use super::super::marker::{Markers, begins};
use super::content::Content;
use super::gemma::GemmaCall;
use super::progress::Progress;
use super::python_calls::PythonCalls;
use super::{CallDelta, Parts, Staged, ToolSet};
use std::sync::Arc;

/// A notation, with its markers.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Gemma([&'static str; 3]),
    Python([&'static str; 2]),
}

/// Reads what is between the markers.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    Gemma(GemmaCall),
    Python(PythonCalls),
}

impl Body {
    fn new(kind: Kind, tools: Arc<ToolSet>, is_strict: bool) -> Self {
        match kind {
            Kind::Gemma(markers) => Self::Gemma(GemmaCall::new(tools, markers, is_strict)),
            Kind::Python(markers) => Self::Python(PythonCalls::new(tools, markers[1], is_strict)),
        }
    }

    fn push(&mut self, text: &str) -> Progress {
        match self {
            Self::Gemma(call) => call.push(text),
            Self::Python(calls) => calls.push(text),
        }
    }

    /// Ends the text.
    fn finish(&mut self) -> Progress {
        match self {
            Self::Gemma(call) => call.finish(),
            Self::Python(calls) => calls.finish(),
        }
    }

    /// What is new of the calls, numbered from 0.
    fn take(&mut self) -> Vec<CallDelta> {
        match self {
            Self::Gemma(call) => call.take().into_iter().collect(),
            Self::Python(calls) => calls.take(),
        }
    }

    /// The text after the calls, or all of it if there are none.
    fn rest(self) -> String {
        match self {
            Self::Gemma(call) => call.rest(),
            Self::Python(calls) => calls.rest(),
        }
    }
}

/// Parses calls between markers.
#[derive(Clone, Debug)]
pub(crate) struct Enclosed {
    tools: Arc<ToolSet>,
    kind: Kind,
    markers: [&'static str; 2],
    content: Content,
    search: Markers,
    stage: Stage,
    calls: usize,
    /// The text of this block, and its calls so far.
    block: String,
    told: usize,
    /// Opening markers that were content.
    shown: usize,
    /// Whether only functions of the request are called.
    is_strict: bool,
}

#[derive(Clone, Debug)]
enum Stage {
    Content,
    /// After the opening marker, until there is more than white space.
    Opened(String),
    /// After two markers without a call.
    Blank,
    Calls(Box<Body>),
    /// After the calls: the closing marker, which may be missing.
    Closing(String),
    /// After the closing marker: LFM2 repeats the calls and the marker at times, which means nothing.
    Closed(String),
}

impl Enclosed {
    pub(crate) fn gemma(tools: Arc<ToolSet>, markers: [&'static str; 3]) -> Self {
        Self::new(tools, Kind::Gemma(markers), [markers[0], markers[1]])
    }

    pub(crate) fn python(tools: Arc<ToolSet>, markers: [&'static str; 2]) -> Self {
        Self::new(tools, Kind::Python(markers), markers)
    }

    fn new(tools: Arc<ToolSet>, kind: Kind, markers: [&'static str; 2]) -> Self {
        Self {
            tools,
            kind,
            markers,
            content: Content::default(),
            search: Markers::new(markers.map(str::to_owned).to_vec()),
            stage: Stage::Content,
            calls: 0,
            block: String::new(),
            told: 0,
            shown: 0,
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

    /// A closing marker in the content means nothing after a call.
    fn stray_end(&mut self, parts: &mut Parts) {
        if self.calls == 0 || self.shown > 0 {
            self.content.push(self.markers[1], parts);
        }
        self.shown = self.shown.saturating_sub(1);
    }

    fn opened(&mut self, text: String) -> Option<String> {
        let (call, [_, close]) = (text.trim_start(), self.markers);
        let is_closed = begins(call, close);
        if call.is_empty() || is_closed.is_none() {
            self.stage = Stage::Opened(text);
            return None;
        }
        if is_closed == Some(true) {
            self.stage = Stage::Blank;
            return Some(call[close.len()..].to_owned());
        }
        self.block.clear();
        let body = Body::new(self.kind, self.tools.clone(), self.is_strict);
        self.stage = Stage::Calls(Box::new(body));
        Some(text)
    }

    /// Reports what is new of the calls. Returns the text after them.
    fn tell(
        &mut self,
        mut body: Box<Body>,
        progress: Progress,
        parts: &mut Parts,
    ) -> Option<String> {
        for delta in body.take() {
            // The answer has begun, even if a thought had not ended.
            self.is_strict = false;
            self.content.call_begins();
            self.told = delta.index + 1;
            parts.call(self.calls + delta.index, delta);
        }
        match progress {
            Progress::Open => {
                self.stage = Stage::Calls(body);
                return None;
            }
            Progress::Whole => self.stage = Stage::Closing(String::new()),
            Progress::NoCall => {
                self.shown += 1;
                self.content.push(self.markers[0], parts);
            }
        }
        self.calls += std::mem::take(&mut self.told);
        let rest = body.rest();
        self.block
            .truncate(self.block.len().saturating_sub(rest.len()));
        Some(rest)
    }

    fn closing(&mut self, text: String) -> Option<String> {
        let (next, close) = (text.trim_start(), self.markers[1]);
        let is_closed = begins(next, close);
        if next.is_empty() || is_closed.is_none() {
            self.stage = Stage::Closing(text);
            return None;
        }
        let Some(next) = next.strip_prefix(close) else {
            return Some(text);
        };
        self.stage = match self.kind {
            Kind::Python(_) => Stage::Closed(String::new()),
            Kind::Gemma(_) => Stage::Blank,
        };
        Some(next.to_owned())
    }

    fn closed(&mut self, text: String) -> Option<String> {
        let next = text.trim_start();
        let again = format!("{}{}", self.block.trim(), self.markers[1]);
        match begins(next, &again) {
            None => {
                self.stage = Stage::Closed(text);
                None
            }
            Some(is_again) => {
                self.stage = Stage::Blank;
                Some(next[if is_again { again.len() } else { 0 }..].to_owned())
            }
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if !is_cut {
            while let Some(rest) = self.end(parts) {
                self.push(&rest, parts);
            }
        } else if matches!(self.stage, Stage::Opened(_) | Stage::Calls(_)) {
            self.content.call_begins();
        }
        self.content.finish(parts);
    }

    /// Ends the text in one stage. Returns what is still to be read.
    fn end(&mut self, parts: &mut Parts) -> Option<String> {
        let text = match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => self.search.finish(),
            Stage::Opened(space) => format!("{}{space}", self.markers[0]),
            Stage::Blank => String::new(),
            Stage::Closing(text) | Stage::Closed(text) => text,
            Stage::Calls(mut body) => {
                let progress = body.finish();
                return self.tell(body, progress, parts);
            }
        };
        self.content.push(&text, parts);
        None
    }
}

impl Staged for Enclosed {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                let (before, found) = self.search.push(text);
                self.content.push(&before, parts);
                let (index, rest) = found?;
                if index == 0 {
                    self.stage = Stage::Opened(String::new());
                } else {
                    self.stray_end(parts);
                }
                Some(rest)
            }
            Stage::Blank if text.trim_start().is_empty() => {
                self.stage = Stage::Blank;
                None
            }
            Stage::Blank => Some(text.trim_start().to_owned()),
            Stage::Opened(space) => self.opened(space + text),
            Stage::Calls(mut body) => {
                self.block.push_str(text);
                let progress = body.push(text);
                self.tell(body, progress, parts)
            }
            Stage::Closing(held) => self.closing(held + text),
            Stage::Closed(held) => self.closed(held + text),
        }
    }
}
