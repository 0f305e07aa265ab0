//! `<|tool_call_start|>[name(key="…")]<|tool_call_end|>`, calls as in Python: LFM2.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::enclosed::Enclosed;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::notation::Notation;
use crate::text::answer::tools::python::MARKERS;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["lfm2"],
    templates: &[&[MARKERS[0]], &["<|tool_list_start|>"]],
    markers: &MARKERS,
    parser: |tools| CallParser::Enclosed(Box::new(Enclosed::python(tools.clone(), MARKERS))),
    form: Some(form),
};

fn form(marks: &Marks<'_>) -> Form {
    let [open, close] = MARKERS.map(|marker| marks.lark(marker));
    let around = [
        format!("{open} {}", quoted("[")),
        quoted(", "),
        format!("{} {close}", quoted("]")),
    ];
    Form {
        notation: Some(Notation::Python),
        ..Form::in_json(around, [String::new(), quoted("("), quoted(")")])
    }
}
