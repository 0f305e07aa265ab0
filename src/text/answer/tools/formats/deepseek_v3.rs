//! `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, and the arguments in a code fence: DeepSeek V3, and R1 of May 2025.
//! V3.1 writes `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}`. Both are read whichever is set.

use super::CallFormat;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::named::{Frame, Named};
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

const CALLS: [&str; 2] = ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"];
const CALL: [&str; 2] = ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"];
const SEPARATOR: &str = "<｜tool▁sep｜>";
const MARKERS: [&str; 5] = [CALLS[0], CALLS[1], CALL[0], CALL[1], SEPARATOR];
/// What stands between the name and the arguments.
const FENCE: &str = "\n```json\n";

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["deepseek_v3"],
    templates: &[&[CALL[0], "```json"]],
    markers: &MARKERS,
    parser,
    form: Some(form),
};

pub(crate) const V3_1: CallFormat = CallFormat {
    names: &["deepseek_v31"],
    templates: &[&[CALL[0]]],
    markers: &MARKERS,
    parser,
    form: Some(form_3_1),
};

static FRAME: Frame = Frame {
    section: [&[CALLS[0]], &[CALLS[1]]],
    call: CALL,
    may_stand_alone: true,
    name,
};

/// The name is after the separator, unless only the arguments are.
fn name(header: &str) -> &str {
    let header = header.trim().trim_end_matches("```json").trim_end();
    match header.split_once(SEPARATOR) {
        Some((name, "")) => name.trim(),
        Some((_, name)) => name.trim(),
        None => header,
    }
}

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Named(Named::new(tools.clone(), &FRAME))
}

fn form(marks: &Marks<'_>) -> Form {
    let [open, close] = CALL.map(|marker| marks.lark(marker));
    let open = format!("{open} {} {}", quoted("function"), marks.lark(SEPARATOR));
    let close = format!("{} {close}", quoted("\n```"));
    let [first, last] = CALLS.map(|marker| marks.lark(marker));
    Form::in_json([first, quoted("\n"), last], [open, quoted(FENCE), close])
}

fn form_3_1(marks: &Marks<'_>) -> Form {
    let [open, close] = CALL.map(|marker| marks.lark(marker));
    let [first, last] = CALLS.map(|marker| marks.lark(marker));
    let call = [open, marks.lark(SEPARATOR), close];
    Form::in_json([first, String::new(), last], call)
}
