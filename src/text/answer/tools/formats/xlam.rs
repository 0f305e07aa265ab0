//! A JSON list as the whole answer, after a thought, or in a code fence: xLAM.

use super::{CallFormat, json};
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::listed::{List, Listed, Written};

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["xlam"],
    templates: &[&["xLAM"], &["make calls in a single JSON array"]],
    markers: &[],
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: json::FORMAT.form,
};

static LIST: List = List {
    open: &["```json", "[TOOL_CALLS]", "<tool_call>", "</think>"],
    close: &["```", "</tool_call>"],
    is_bare: true,
    written: Written::Json,
};
