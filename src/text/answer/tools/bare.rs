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
            Stage::Call { held, call } => {
                call.finish();
                if let Some(delta) = call.take() {
                    parts.call(self.calls, delta);
                }
                if !call.is_told() {
                    parts.content.push_str(held);
                    parts.content.push_str(call.raw());
                }
            }
            Stage::Between | Stage::Content => {}
        }
    }

    /// The answer so far: a call begins, it has none, or more is needed to tell. Returns what was not read.
    fn start(&mut self, held: String) -> Option<String> {
        let Some(begin) = beginning(&held) else {
            self.stage = Stage::Start(held);
            return None;
        };
        if !begin.starts_with('{') {
            return Some(held);
        }
        let (before, call) = held.split_at(held.len() - begin.len());
        self.stage = Stage::Call {
            held: before.to_owned(),
            call: JsonCall::new(),
        };
        Some(call.to_owned())
    }

    /// More of a call, which may turn out to be none.
    fn go_on(
        &mut self,
        held: String,
        mut call: JsonCall,
        text: &str,
        parts: &mut Parts,
    ) -> Option<String> {
        let outcome = call.push(text);
        let taken = outcome.bytes(text);
        let is_known = call.name().is_none_or(|name| self.tools.has(name));
        if is_known && let Some(delta) = call.take() {
            parts.call(self.calls, delta);
        }
        if is_known && outcome == Outcome::Open {
            self.stage = Stage::Call { held, call };
            return None;
        }
        if !call.is_told() {
            return Some(format!("{held}{}{}", call.raw(), &text[taken..]));
        }
        self.calls += 1;
        self.stage = Stage::Between;
        Some(text[taken..].to_owned())
    }

    /// The separator after a call, and what follows it: another call, or something else.
    fn after_call(&mut self, text: &str) -> Option<String> {
        let text =
            text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ',' | ']'));
        if text.is_empty() {
            self.stage = Stage::Between;
            return None;
        }
        if text.starts_with('{') {
            self.stage = Stage::Call {
                held: String::new(),
                call: JsonCall::new(),
            };
        }
        Some(text.to_owned())
    }
}

/// An answer without what may precede its first call; `None` if there is not enough of it to tell.
fn beginning(held: &str) -> Option<&str> {
    let text = held.trim_start();
    if PREFIX.starts_with(text) {
        return None;
    }
    let text = text.strip_prefix(PREFIX).unwrap_or(text).trim_start();
    let text = text.strip_prefix('[').map_or(text, str::trim_start);
    (!text.is_empty()).then_some(text)
}

impl Staged for Bare {
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String> {
        match std::mem::replace(&mut self.stage, Stage::Content) {
            Stage::Content => {
                parts.content.push_str(text);
                None
            }
            Stage::Start(held) => self.start(held + text),
            Stage::Call { held, call } => self.go_on(held, call, text, parts),
            Stage::Between => self.after_call(text),
        }
    }
}
