//! `functools[{…}]`: Phi-4-mini. Its own template shows `<|tool_call|>[{…}]<|/tool_call|>`.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};

const OPEN: [&str; 2] = ["functools", "<|tool_call|>"];
const CLOSE: &str = "<|/tool_call|>";

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["phi4_mini_json"],
    templates: &[&["functools"], &["<|/tool|>"], &[CLOSE]],
    markers: &[OPEN[1], CLOSE],
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|_| Form::json_list(&quoted(OPEN[0]), "", "name", "arguments")),
};

static LIST: List = List {
    open: &OPEN,
    close: &[CLOSE],
    is_bare: false,
    written: Written::Json,
};
