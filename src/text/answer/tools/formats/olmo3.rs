//! `<function_calls>`, calls as in Python, one a line, `</function_calls>`: OLMo 3.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};
use crate::text::answer::tools::notation::Notation;

const MARKERS: [&str; 2] = ["<function_calls>", "</function_calls>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["olmo3"],
    templates: &[&[MARKERS[0]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| {
        let [open, close] = MARKERS.map(|marker| marks.lark(marker));
        let around = [
            format!("{open} {}", quoted("\n")),
            quoted("\n"),
            format!("{} {close}", quoted("\n")),
        ];
        Form {
            notation: Some(Notation::Python),
            ..Form::in_json(around, [String::new(), quoted("("), quoted(")")])
        }
    }),
};

static LIST: List = List {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    is_bare: false,
    written: Written::Python,
};
