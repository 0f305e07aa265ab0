//! `{"name": …, "parameters": …}` as the whole answer, several with `;` between: Llama 3.

use super::CallFormat;
use crate::text::answer::tools::bare::Bare;
use crate::text::answer::tools::form::{Form, Marks, Unmarked, json_call, quoted};
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["llama3_json"],
    templates: &[&["<|python_tag|>"], &["<|start_header_id|>"]],
    markers: &["<|python_tag|>"],
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Bare(Bare::new(tools.clone()))
}

fn form(_: &Marks<'_>) -> Form {
    let around = [String::new(), quoted("; "), String::new()];
    Form {
        unmarked: Some(Unmarked {
            arguments: "parameters",
            several: "call (\"; \" call)*",
        }),
        ..Form::in_json(around, json_call("name", "parameters"))
    }
}
