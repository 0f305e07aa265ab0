//! `<|tools_prefix|>[{"name": {…}}]<|tools_suffix|>`, objects whose key is the name: Apertus.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::named::{Frame, Named};

const CALLS: [&str; 2] = ["<|tools_prefix|>", "<|tools_suffix|>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["apertus"],
    templates: &[&[CALLS[0]]],
    markers: &CALLS,
    parser: |tools| CallParser::Named(Named::new(tools.clone(), &FRAME)),
    form: Some(form),
};

static FRAME: Frame = Frame {
    section: [&[CALLS[0]], &[CALLS[1]]],
    call: ["{", "}"],
    may_stand_alone: false,
    name,
};

fn name(header: &str) -> &str {
    header.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | ':'))
}

fn form(marks: &Marks<'_>) -> Form {
    let [first, last] = CALLS.map(|marker| marks.lark(marker));
    let around = [
        format!("{first} {}", quoted("[")),
        quoted(", "),
        format!("{} {last}", quoted("]")),
    ];
    Form::in_json(around, [quoted("{\""), quoted("\": "), quoted("}")])
}
