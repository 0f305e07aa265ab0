//! `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`: Kimi K2.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::named::{Frame, Named};

const CALLS: [&str; 2] = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"];
const CALL: [&str; 2] = ["<|tool_call_begin|>", "<|tool_call_end|>"];
const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["kimi_k2"],
    templates: &[&[CALL[0]], &["<|im_system|>tool_declare"]],
    markers: &[CALLS[0], CALLS[1], CALL[0], CALL[1], ARGUMENTS],
    parser: |tools| CallParser::Named(Named::new(tools.clone(), &FRAME)),
    form: Some(form),
};

static FRAME: Frame = Frame {
    section: [
        &[CALLS[0], "<|tool_call_section_begin|>"],
        &[CALLS[1], "<|tool_call_section_end|>"],
    ],
    call: CALL,
    may_stand_alone: true,
    name,
};

/// The name is a part of the call's id, after its kind and before its number.
fn name(header: &str) -> &str {
    let id = header
        .split_once(ARGUMENTS)
        .map_or(header, |(id, _)| id)
        .trim();
    let id = id.strip_prefix("functions.").unwrap_or(id);
    id.split_once(':').map_or(id, |(name, _)| name)
}

fn form(marks: &Marks<'_>) -> Form {
    let [first, last] = CALLS.map(|marker| marks.lark(marker));
    let [open, close] = CALL.map(|marker| marks.lark(marker));
    let open = format!("{open} {}", quoted("functions."));
    let middle = format!("/:[0-9]+/ {}", marks.lark(ARGUMENTS));
    Form::in_json([first, String::new(), last], [open, middle, close])
}
