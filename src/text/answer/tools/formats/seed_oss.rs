//! `<seed:tool_call>`, Qwen3-Coder's tags, `</seed:tool_call>`: Seed-OSS.

use super::CallFormat;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::marked::{Hermes, SEED_TOOL_CALL};
use crate::text::answer::tools::notation::Notation;
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["seed_oss"],
    templates: &[&[SEED_TOOL_CALL[0]]],
    markers: &SEED_TOOL_CALL,
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Hermes(Hermes::new(tools.clone(), &SEED_TOOL_CALL, false))
}

fn form(marks: &Marks<'_>) -> Form {
    let [open, close] = SEED_TOOL_CALL.map(|marker| marks.lark(marker));
    let notation = Notation::Tags {
        key: [quoted("<parameter="), quoted(">")],
        open: String::new(),
        close: marks.end("</parameter>"),
        after: quoted("\n"),
    };
    let open = format!("{open} {}", quoted("\n<function="));
    let call = [
        open,
        quoted(">\n"),
        format!("{} {close}", quoted("</function>\n")),
    ];
    Form {
        notation: Some(notation),
        ..Form::in_json([String::new(), quoted("\n"), String::new()], call)
    }
}
