//! Messages to `functions.name` on the commentary channel: gpt-oss. Its messages are more than calls, so the whole
//! answer has a parser of its own ([`Harmony`](crate::text::answer::harmony::Harmony)).

use super::CallFormat;
use crate::text::answer::harmony::MARKERS;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, Marks, quoted};

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["harmony", "openai"],
    templates: &[&["<|channel|>", "<|message|>"]],
    markers: &MARKERS,
    parser: |_| CallParser::Off,
    form: Some(form),
};

fn form(marks: &Marks<'_>) -> Form {
    let reasoning = format!(
        "({} \"analysis\" {} /(.|\\n)*/ {} {} \"assistant\")?",
        marks.lark("<|channel|>"),
        marks.lark("<|message|>"),
        marks.lark("<|end|>"),
        marks.lark("<|start|>")
    );
    let open = format!(
        "{} {}",
        marks.lark("<|channel|>"),
        quoted("commentary to=functions.")
    );
    let middle = format!(
        "{} {} {} {}",
        quoted(" "),
        marks.lark("<|constrain|>"),
        quoted("json"),
        marks.lark("<|message|>")
    );
    let around = [reasoning, String::new(), String::new()];
    Form {
        several: false,
        ..Form::in_json(around, [open, middle, marks.lark("<|call|>")])
    }
}
