//! Calls without markers: the whole answer is a JSON call, or a list of them. Because an answer may be JSON for other
//! reasons, it is a call only if its name matches one of the request's tools.

use super::json_call::{JsonCall, Outcome};
use super::{Parts, Staged, ToolSet};
use std::sync::Arc;

/// Llama sometimes writes this before its calls.
const PREFIX: &str = "<|python_tag|>";

/// Parses calls without markers.
#[derive(Clone, Debug)]
pub(crate) struct Bare {
    tools: Arc<ToolSet>,
    stage: Stage,
    calls: usize,
}

#[derive(Clone, Debug)]
enum Stage {
    /// White space and possibly the prefix so far.
    Start(String),
    /// Within a call. `held` is all text since the start of the answer that was not reported yet.
    Call {
        held: String,
        call: JsonCall,
    },
    /// After a call: the separator before the next one.
    Between,
    Content,
}

impl Bare {
    pub(crate) fn new(tools: Arc<ToolSet>) -> Self {
        Self {
            tools,
            stage: Stage::Start(String::new()),
            calls: 0,
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        match &mut self.stage {
            _ if is_cut => {}
            Stage::Start(held) => parts.content.push_str(held),
            Stage::Call { held, call } if call.name().is_none() => {
                parts.content.push_str(held);
                parts.content.push_str(call.raw());
            }
            Stage::Call { .. } | Stage::Between | Stage::Content => {}
        }
    }
}

impl Staged for Bare {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match &mut self.stage {
            Stage::Content => {
                parts.content.push_str(text);
                None
            }
            Stage::Start(held) => {
                held.push_str(text);
                let begin = held.trim_start();
                if begin.is_empty() || PREFIX.starts_with(begin) {
                    return None;
                }
                let begin = begin.strip_prefix(PREFIX).unwrap_or(begin).trim_start();
                let begin = begin.strip_prefix('[').map_or(begin, str::trim_start);
                if begin.is_empty() {
                    return None;
                }
                let (call, held) = (begin.to_owned(), std::mem::take(held));
                if call.starts_with('{') {
                    let before = held[..held.len() - call.len()].to_owned();
                    self.stage = Stage::Call {
                        held: before,
                        call: JsonCall::new(),
                    };
                    return Some(call);
                }
                self.stage = Stage::Content;
                Some(held)
            }
            Stage::Call { held, call } => {
                let outcome = call.push(text);
                let is_known = call.name().is_none_or(|name| self.tools.has(name));
                let is_none = matches!(outcome, Outcome::Failed(_)) && call.name().is_none();
                if is_none || !is_known {
                    let taken = match outcome {
                        Outcome::Open => text.len(),
                        Outcome::Whole(bytes) | Outcome::Failed(bytes) => bytes,
                    };
                    let raw = format!("{held}{}{}", call.raw(), &text[taken..]);
                    self.stage = Stage::Content;
                    return Some(raw);
                }
                if let Some(delta) = call.take(outcome != Outcome::Open) {
                    parts.call(self.calls, delta);
                }
                let rest = match outcome {
                    Outcome::Open => return None,
                    Outcome::Whole(bytes) | Outcome::Failed(bytes) => &text[bytes..],
                };
                self.calls += 1;
                self.stage = Stage::Between;
                Some(rest.to_owned())
            }
            Stage::Between => {
                let text = text.trim_start_matches(|c: char| {
                    c.is_whitespace() || matches!(c, ';' | ',' | ']')
                });
                let is_call = text.chars().next()? == '{';
                let call = Stage::Call {
                    held: String::new(),
                    call: JsonCall::new(),
                };
                self.stage = if is_call { call } else { Stage::Content };
                Some(text.to_owned())
            }
        }
    }
}
