//! `{"name": …, "parameters": …}`, which may be between two markers: Llama 4.

use super::{CallFormat, llama3_json};
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::listed::{List, Listed, Written};

const MARKERS: [&str; 2] = ["<|python_start|>", "<|python_end|>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["llama4_json"],
    templates: &[&["<|header_start|>"]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: llama3_json::FORMAT.form,
};

static LIST: List = List {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    is_bare: true,
    written: Written::Json,
};
