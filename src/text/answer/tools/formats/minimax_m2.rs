//! `<minimax:tool_call>`, `<invoke name="…">` with `<parameter name="…">`, `</minimax:tool_call>`: MiniMax M2.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, Marks, quoted};
use crate::text::answer::tools::invoked::{Invoke, Invoked};
use crate::text::answer::tools::notation::Notation;

const MARKERS: [&str; 2] = ["<minimax:tool_call>", "</minimax:tool_call>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["minimax_m2"],
    templates: &[&[MARKERS[0]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Invoked(Invoked::new(tools.clone(), &TAGS)),
    form: Some(form),
};

static TAGS: Invoke = Invoke {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    call: ["<invoke name=\"", "</invoke>"],
    value: ["<parameter name=\"", "</parameter>"],
};

fn form(marks: &Marks<'_>) -> Form {
    let [first, last] = MARKERS.map(|marker| marks.lark(marker));
    let notation = Notation::Tags {
        key: [quoted(TAGS.value[0]), quoted("\">")],
        open: String::new(),
        close: marks.end(TAGS.value[1]),
        after: quoted("\n"),
    };
    let around = [
        format!("{first} {}", quoted("\n")),
        quoted("\n"),
        format!("{} {last}", quoted("\n")),
    ];
    let call = [quoted(TAGS.call[0]), quoted("\">\n"), quoted(TAGS.call[1])];
    Form {
        notation: Some(notation),
        ..Form::in_json(around, call)
    }
}
