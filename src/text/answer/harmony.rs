//! Harmony: the answer format of gpt-oss, whose answers are messages on channels. The analysis channel contains the
//! reasoning, the commentary channel contains tool calls (`to=functions.name`) and remarks, the final channel contains
//! the answer.

use super::json_text::Repair;
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

/// Parses an answer. It starts within a header, because the prompt ends with `<|start|>assistant`, unless it continues
/// a message that the prompt has started.
#[derive(Clone, Debug)]
pub(crate) struct Harmony {
    tools: Arc<ToolSet>,
    held: String,
    header: String,
    body: Option<Body>,
    calls: usize,
    /// The call has no arguments yet.
    is_blank: bool,
    /// Makes the strings of the call's arguments valid.
    repair: Repair,
    /// There was a marker, so all text is in messages.
    is_marked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Reasoning,
    Content,
    Call,
}

impl Harmony {
    /// A parser for a request with these tools.
    pub(crate) fn new(start: Start, tools: Arc<ToolSet>) -> Self {
        let body = (start.stage == Stage::Answering).then_some(Body::Content);
        let (held, header, repair) = (String::new(), String::new(), Repair::default());
        Self {
            tools,
            held,
            header,
            body,
            calls: 0,
            is_blank: false,
            repair,
            is_marked: false,
        }
    }

    pub(crate) fn is_reasoning(&self) -> bool {
        self.body == Some(Body::Reasoning)
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

    /// Ends the text. If it was cut, a marker that has begun is left out.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let rest = std::mem::take(&mut self.held);
        self.text(if is_cut { "" } else { &rest }, parts);
        if !is_cut {
            self.end_arguments(parts);
        }
        // Text without any marker is an answer, unless it is the beginning of a call's header.
        let header = self.header.trim_start();
        let is_header = is_cut && (header.starts_with(RECIPIENT) || RECIPIENT.starts_with(header));
        if self.body.is_none() && !self.is_marked && !is_header {
            parts.content.push_str(&std::mem::take(&mut self.header));
        }
    }

    fn text(&mut self, text: &str, parts: &mut Parts) {
        match self.body {
            Some(Body::Reasoning) => parts.reasoning.push_str(text),
            Some(Body::Content) => parts.content.push_str(text),
            Some(Body::Call) if self.is_blank && text.trim().is_empty() => {}
            Some(Body::Call) => {
                self.is_blank = false;
                let arguments = self.repair.push(text);
                parts.call(
                    self.calls,
                    CallDelta {
                        arguments,
                        ..CallDelta::default()
                    },
                );
            }
            None => {
                self.header.push_str(text);
                if self.header.len() > HEADER_BYTES_MAX {
                    parts.content.push_str(&std::mem::take(&mut self.header));
                    self.body = Some(Body::Content);
                }
            }
        }
    }

    fn marker(&mut self, marker: &'static str, parts: &mut Parts) {
        self.is_marked = true;
        match (marker, self.body) {
            ("<|message|>", None) => self.begin(parts),
            // Within a header.
            ("<|channel|>" | "<|constrain|>", None) => self.header.push_str(marker),
            _ => {
                self.end_arguments(parts);
                self.calls += usize::from(self.body == Some(Body::Call));
                self.body = None;
                self.header.clear();
                if marker == "<|channel|>" {
                    self.header.push_str(marker);
                }
            }
        }
    }

    /// Ends a call's message. One without a text has no arguments.
    fn end_arguments(&mut self, parts: &mut Parts) {
        if self.body != Some(Body::Call) {
            return;
        }
        let rest = std::mem::take(&mut self.repair).finish();
        let arguments = if std::mem::take(&mut self.is_blank) {
            "{}".to_owned()
        } else {
            rest
        };
        if !arguments.is_empty() {
            parts.call(
                self.calls,
                CallDelta {
                    arguments,
                    ..CallDelta::default()
                },
            );
        }
    }

    /// The header is complete: decides what kind of message follows.
    fn begin(&mut self, parts: &mut Parts) {
        let header = std::mem::take(&mut self.header);
        let recipient = header.split_once(RECIPIENT).map(|(_, rest)| {
            let end = rest
                .find(|c: char| c.is_whitespace() || c == '<')
                .unwrap_or(rest.len());
            &rest[..end]
        });
        let channel = header
            .split_once("<|channel|>")
            .map_or("", |(_, channel)| channel.trim_start());
        self.body = Some(
            match recipient.map(|recipient| (recipient, self.function(recipient))) {
                Some((_, Some(name))) => {
                    parts.call(
                        self.calls,
                        CallDelta {
                            name: Some(name.to_owned()),
                            ..CallDelta::default()
                        },
                    );
                    self.is_blank = true;
                    Body::Call
                }
                // A call of a built-in tool, which does not exist here.
                Some((recipient, None)) if !PEOPLE.contains(&recipient) => Body::Reasoning,
                _ if channel.starts_with("analysis") => Body::Reasoning,
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
