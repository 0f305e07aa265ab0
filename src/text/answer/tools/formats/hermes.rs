//! `<tool_call>` JSON `</tool_call>`: Hermes, Qwen and most others. Also Qwen3-Coder's tags between the two.

use super::CallFormat;
use crate::text::answer::tools::form::{Form, Marks, json_call, quoted};
use crate::text::answer::tools::marked::{Hermes, TOOL_CALL};
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &[
        "hermes",
        "qwen",
        "qwen3_json",
        "qwen3_coder",
        "qwen3_xml",
        "granite4",
        "ernie45",
        "mimo",
        "step3p5",
    ],
    templates: &[&["<tool_call>"]],
    markers: &TOOL_CALL,
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Hermes(Hermes::new(tools.clone(), &TOOL_CALL, false))
}

fn form(marks: &Marks<'_>) -> Form {
    let [open, middle, close] = json_call("name", "arguments");
    let [first, last] = TOOL_CALL.map(|marker| marks.lark(marker));
    let open = format!("{first} {} {open}", quoted("\n"));
    let close = format!("{close} {} {last}", quoted("\n"));
    Form::in_json(
        [String::new(), quoted("\n"), String::new()],
        [open, middle, close],
    )
}
