//! JSON as the whole answer: a call, or a list of calls. For models whose own format is not known.

use super::CallFormat;
use crate::text::answer::tools::bare::Bare;
use crate::text::answer::tools::form::{Form, Marks, Unmarked, json_call, quoted};
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["json"],
    templates: &[],
    markers: &[],
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Bare(Bare::new(tools.clone()))
}

/// A list of calls.
pub(crate) fn form(_: &Marks<'_>) -> Form {
    let around = [quoted("["), quoted(", "), quoted("]")];
    Form {
        unmarked: Some(Unmarked {
            arguments: "arguments",
            several: "call | \"[\" call (\", \" call)* \"]\"",
        }),
        ..Form::in_json(around, json_call("name", "arguments"))
    }
}
