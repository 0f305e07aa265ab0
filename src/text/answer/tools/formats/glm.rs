//! `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM 4.5 and later.

use super::CallFormat;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::marked::{Hermes, TOOL_CALL};
use crate::text::answer::tools::notation::Notation;
use crate::text::answer::tools::xml::GLM_MARKERS;
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["glm", "glm45", "glm47"],
    templates: &[&["<tool_call>", "<arg_key>"]],
    markers: &GLM_MARKERS,
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Hermes(Hermes::new(tools.clone(), &TOOL_CALL, true))
}

fn form(marks: &Marks<'_>) -> Form {
    let [open, close, key_open, key_close, value_open, value_close] = GLM_MARKERS;
    // GLM 4.5 writes line breaks, later ones do not.
    let space = format!("{}?", quoted("\n"));
    let notation = Notation::Tags {
        key: [
            marks.lark(key_open),
            format!("{} {space}", marks.lark(key_close)),
        ],
        open: marks.lark(value_open),
        close: marks.end(value_close),
        after: space.clone(),
    };
    let (around, call) = (
        [String::new(), space.clone(), String::new()],
        [marks.lark(open), space, marks.lark(close)],
    );
    Form {
        notation: Some(notation),
        ..Form::in_json(around, call)
    }
}
