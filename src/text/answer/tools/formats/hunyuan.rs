//! `<tool_calls>[{…}]</tool_calls>`: Hunyuan A13B, Jamba, and MiniMax M1, which writes one object a line instead.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::Form;
use crate::text::answer::tools::listed::{List, Listed, Written};

const MARKERS: [&str; 2] = ["<tool_calls>", "</tool_calls>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["hunyuan_a13b", "jamba", "minimax"],
    templates: &[&[MARKERS[0]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| {
        let [open, close] = MARKERS.map(|marker| marks.lark(marker));
        Form::json_list(&open, &close, "name", "arguments")
    }),
};

static LIST: List = List {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    is_bare: false,
    written: Written::Json,
};
