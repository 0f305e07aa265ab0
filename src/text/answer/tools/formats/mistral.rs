//! `[TOOL_CALLS]`, then a JSON list or `name[ARGS]{…}`: Mistral.

use super::CallFormat;
use crate::text::answer::tools::form::{Form, Marks};
use crate::text::answer::tools::marked::Mistral;
use crate::text::answer::tools::{CallParser, ToolSet};
use std::sync::Arc;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["mistral"],
    templates: &[&["[TOOL_CALLS]"]],
    markers: &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
    parser,
    form: Some(form),
};

fn parser(tools: &Arc<ToolSet>) -> CallParser {
    CallParser::Mistral(Mistral::new(tools.clone()))
}

/// A name and its arguments after a marker each, if the vocabulary has both; else one list of JSON objects.
fn form(marks: &Marks<'_>) -> Form {
    let open = marks.lark("[TOOL_CALLS]");
    if marks.are_tokens(&["[ARGS]"]) {
        return Form::in_json(
            Default::default(),
            [open, marks.lark("[ARGS]"), String::new()],
        );
    }
    Form::json_list(&open, "", "name", "arguments")
}
