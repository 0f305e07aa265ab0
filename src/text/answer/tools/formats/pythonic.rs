//! `[name(key="…")]` as the whole answer, calls as in Python: Llama 3.2, ToolACE, Gemma 3 and Llama 4, whose templates
//! ask for it. Llama 4 may put markers around it.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};
use crate::text::answer::tools::notation::Notation;

const MARKERS: [&str; 2] = ["<|python_start|>", "<|python_end|>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["pythonic", "llama4_pythonic"],
    templates: &[&["[func_name1("]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|_| {
        let around = [quoted("["), quoted(", "), quoted("]")];
        Form {
            notation: Some(Notation::Python),
            ..Form::in_json(around, [String::new(), quoted("("), quoted(")")])
        }
    }),
};

static LIST: List = List {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    is_bare: true,
    written: Written::Python,
};
