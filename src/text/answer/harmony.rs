//! Harmony: the answer format of gpt-oss, whose answers are messages on channels. The analysis channel contains the
//! reasoning, the commentary channel contains tool calls (`to=functions.name`) and remarks, the final channel contains
//! the answer.

use super::json_stream::{JsonStream, Step};
use super::parts::{CallDelta, Parts};
use super::reasoning::{Stage, Start};
use super::tool_set::ToolSet;
use std::sync::Arc;

/// The special tokens of harmony.
pub(crate) const MARKERS: [&str; 7] = [
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|constrain|>",
    "<|end|>",
    "<|call|>",
    "<|return|>",
];
/// Maximum bytes of a header. Headers are short; longer text has none.
const HEADER_BYTES_MAX: usize = 256;
/// What a header has before the name of what is called.
const RECIPIENT: &str = "to=";
/// Recipients that are no functions.
const PEOPLE: [&str; 3] = ["assistant", "user", "all"];
const CHANNEL: &str = "<|channel|>";
const CHANNELS: [&str; 3] = ["analysis", "commentary", "final"];

/// Parses an answer. It starts within a header, because the prompt ends with `<|start|>assistant`, unless it continues
/// a message that the prompt has started.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    tools: Arc<ToolSet>,
    held: String,
    header: String,
    body: Option<Body>,
    calls: usize,
    /// There was a marker, so all text is in messages.
    is_marked: bool,
}

#[derive(Clone, Debug)]
enum Body {
    Reasoning,
    Content,
    Call(Box<Call>),
}

/// A message that is a call.
#[derive(Clone, Debug)]
struct Call {
    name: String,
    is_told: bool,
    raw: String,
    arguments: JsonStream,
    /// Nothing of the text that follows is an argument.
    is_over: bool,
}

impl Call {
    fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            is_told: false,
            raw: String::new(),
            arguments: JsonStream::new(),
            is_over: false,
        }
    }

    fn push(&mut self, text: &str) {
        self.raw.push_str(text);
        for character in text.chars() {
            if self.is_over {
                return;
            }
            let step = self.arguments.push(character);
            self.is_over = step != Step::More;
            if step == Step::Broken {
                self.arguments.finish();
            }
        }
    }

    /// Ends the message. One without a text has no arguments.
    fn finish(&mut self) {
        if self.raw.trim().is_empty() {
            self.push("{}");
        }
        self.arguments.finish();
        self.is_over = true;
    }

    /// Whether this is no call, because its text does not begin as arguments.
    fn is_text(&self) -> bool {
        self.is_over && !self.arguments.is_certain()
    }

    /// What is new since the last call.
    fn take(&mut self) -> Option<CallDelta> {
        if !self.arguments.is_certain() {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.is_told, true);
        let arguments = self.arguments.take();
        (is_first || !arguments.is_empty()).then(|| CallDelta {
            name: is_first.then(|| self.name.clone()),
            arguments,
            ..CallDelta::default()
        })
    }
}

impl Harmony {
    /// A parser for a request with these tools.
    pub(crate) fn new(start: Start, tools: Arc<ToolSet>) -> Self {
        Self {
            tools,
            held: String::new(),
            header: String::new(),
            body: (start.stage == Stage::Answering).then_some(Body::Content),
            calls: 0,
            is_marked: false,
        }
    }

    pub(crate) fn is_reasoning(&self) -> bool {
        matches!(self.body, Some(Body::Reasoning))
    }

    /// Takes more text and adds what is certain to `parts`.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        self.held.push_str(text);
        loop {
            let found = MARKERS
                .iter()
                .filter_map(|marker| Some((self.held.find(marker)?, *marker)))
                .min();
            let Some((at, marker)) = found else { break };
            let rest = self.held.split_off(at + marker.len());
            self.held.truncate(at);
            let before = std::mem::replace(&mut self.held, rest);
            self.text(&before, parts);
            self.marker(marker, parts);
        }
        let undecided = self
            .held
            .match_indices('<')
            .map(|(at, _)| at)
            .find(|at| {
                MARKERS
                    .iter()
                    .any(|marker| marker.starts_with(&self.held[*at..]))
            })
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(undecided);
        let certain = std::mem::replace(&mut self.held, rest);
        self.text(&certain, parts);
    }

    /// Ends the text. If it was cut, a marker that has begun is left out, and so is a header.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let rest = std::mem::take(&mut self.held);
        if !is_cut {
            self.text(&rest, parts);
            self.end_call(parts);
        }
        // Text without any marker is an answer, unless it is the beginning of a call's header.
        let header = self.header.trim_start();
        let is_header = is_cut && (header.starts_with(RECIPIENT) || RECIPIENT.starts_with(header));
        if self.body.is_some() {
            return;
        }
        if !self.is_marked && !is_header {
            parts.content.push_str(&std::mem::take(&mut self.header));
        } else if !is_cut {
            self.end_header(parts);
        }
    }

    fn text(&mut self, text: &str, parts: &mut Parts) {
        match &mut self.body {
            Some(Body::Reasoning) => parts.reasoning.push_str(text),
            Some(Body::Content) => parts.content.push_str(text),
            Some(Body::Call(call)) => {
                call.push(text);
                self.tell(parts);
            }
            None => {
                self.header.push_str(text);
                self.begin_early(parts);
            }
        }
    }

    /// Reports what is new of a call, or that it is content.
    fn tell(&mut self, parts: &mut Parts) {
        let Some(Body::Call(call)) = &mut self.body else {
            return;
        };
        if let Some(delta) = call.take() {
            parts.call(self.calls, delta);
        }
        if call.is_text() {
            parts.content.push_str(&call.raw);
            self.body = Some(Body::Content);
        }
    }

    /// A header has no brace, and is short: after that, models have left out the marker before the text.
    fn begin_early(&mut self, parts: &mut Parts) {
        let has_channel = self.header.contains(CHANNEL);
        match self.header.find('{') {
            Some(brace) if has_channel => {
                let text = self.header.split_off(brace);
                self.begin();
                self.text(&text, parts);
            }
            _ if self.header.len() <= HEADER_BYTES_MAX => {}
            _ if has_channel && !self.header.contains(RECIPIENT) => {
                let is_thought = channel_of(&self.header).starts_with("analysis");
                self.end_header(parts);
                self.body = Some(if is_thought {
                    Body::Reasoning
                } else {
                    Body::Content
                });
            }
            _ => {
                parts.content.push_str(&std::mem::take(&mut self.header));
                self.body = Some(Body::Content);
            }
        }
    }

    fn marker(&mut self, marker: &'static str, parts: &mut Parts) {
        self.is_marked = true;
        match (marker, &self.body) {
            ("<|message|>", None) => self.begin(),
            // Within a header.
            ("<|constrain|>", None) => self.header.push_str(marker),
            (CHANNEL, None) if !self.header.contains(CHANNEL) => self.header.push_str(marker),
            _ => {
                self.end_call(parts);
                if self.body.take().is_none() {
                    self.end_header(parts);
                }
                self.header.clear();
                if marker == CHANNEL {
                    self.header.push_str(marker);
                }
            }
        }
    }

    /// Ends a message that is a call.
    fn end_call(&mut self, parts: &mut Parts) {
        if let Some(Body::Call(call)) = &mut self.body {
            call.finish();
            self.tell(parts);
        }
        if matches!(self.body, Some(Body::Call(_))) {
            self.calls += 1;
            self.body = Some(Body::Content);
        }
    }

    /// A header ends without a message: what is after the channel's name is the text, unless it is for a recipient.
    fn end_header(&mut self, parts: &mut Parts) {
        let header = std::mem::take(&mut self.header);
        if header.contains(RECIPIENT) {
            return;
        }
        let channel = channel_of(&header);
        let name = CHANNELS.iter().find(|name| channel.starts_with(**name));
        let name = name.copied().unwrap_or_default();
        let rest = channel[name.len()..].trim_start();
        let form = rest.strip_prefix("<|constrain|>").map(str::trim_start);
        let text = match form {
            Some(form) => form
                .trim_start_matches(|c: char| c.is_alphanumeric())
                .trim_start(),
            None => rest,
        };
        if name == "analysis" {
            parts.reasoning.push_str(text);
        } else {
            parts.content.push_str(text);
        }
    }

    /// The header is complete: decides what kind of message follows.
    fn begin(&mut self) {
        let header = std::mem::take(&mut self.header);
        let recipient = header.split_once(RECIPIENT).map(|(_, rest)| {
            let end = rest
                .find(|c: char| c.is_whitespace() || c == '<')
                .unwrap_or(rest.len());
            &rest[..end]
        });
        self.body = Some(
            match recipient.map(|recipient| (recipient, self.function(recipient))) {
                Some((_, Some(name))) => Body::Call(Box::new(Call::new(name))),
                // A call of a built-in tool, which does not exist here.
                Some((recipient, None)) if !PEOPLE.contains(&recipient) => Body::Reasoning,
                _ if channel_of(&header).starts_with("analysis") => Body::Reasoning,
                _ => Body::Content,
            },
        );
    }

    /// The function that a recipient is. In long conversations models leave out what is before its name.
    fn function<'a>(&self, recipient: &'a str) -> Option<&'a str> {
        let name = recipient.strip_prefix("functions.");
        name.or_else(|| {
            let name = recipient.strip_prefix("function.").unwrap_or(recipient);
            self.tools.has(name).then_some(name)
        })
    }
}

/// What a header says after the marker of its channel.
fn channel_of(header: &str) -> &str {
    header
        .split_once(CHANNEL)
        .map_or("", |(_, channel)| channel.trim_start())
}
