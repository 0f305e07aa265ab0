//! `<|tool_call|>`, then a JSON list: Granite 3. Its first version writes `<tool_call>`.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::Form;
use crate::text::answer::tools::listed::{List, Listed, Written};

const OPEN: [&str; 2] = ["<|tool_call|>", "<tool_call>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["granite"],
    templates: &[&[OPEN[0]]],
    markers: &OPEN,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| Form::json_list(&marks.lark(OPEN[0]), "", "name", "arguments")),
};

static LIST: List = List {
    open: &OPEN,
    close: &["</tool_call>"],
    is_bare: false,
    written: Written::Json,
};
