//! `<TOOLCALL>[{…}]</TOOLCALL>`: Nemotron Super v1.5 and Nano v2.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::Form;
use crate::text::answer::tools::listed::{List, Listed, Written};

const MARKERS: [&str; 2] = ["<TOOLCALL>", "</TOOLCALL>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["nemotron_json", "llama_nemotron_json"],
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
