//! `<start_function_call>call:name{key:<escape>…<escape>}<end_function_call>`: FunctionGemma. Gemma 4 has other
//! markers: `<|tool_call>call:name{key:<|"|>…<|"|>}<tool_call|>`.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::enclosed::Enclosed;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::gemma::{MARKERS, MARKERS_4};
use crate::text::answer::tools::notation::Notation;

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["gemma", "functiongemma"],
    templates: &[&[MARKERS[0]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Enclosed(Box::new(Enclosed::gemma(tools.clone(), MARKERS))),
    form: Some(|marks| form(marks, MARKERS)),
};

pub(crate) const GEMMA_4: CallFormat = CallFormat {
    names: &["gemma4"],
    templates: &[&[MARKERS_4[0]]],
    markers: &MARKERS_4,
    parser: |tools| CallParser::Enclosed(Box::new(Enclosed::gemma(tools.clone(), MARKERS_4))),
    form: Some(|marks| form(marks, MARKERS_4)),
};

fn form(marks: &Marks<'_>, [open, close, quote]: [&'static str; 3]) -> Form {
    let call = [
        format!("{} {}", marks.lark(open), quoted("call:")),
        quoted("{"),
        format!("{} {}", quoted("}"), marks.lark(close)),
    ];
    Form {
        notation: Some(Notation::Gemma(marks.end(quote))),
        ..Form::in_json(Default::default(), call)
    }
}
