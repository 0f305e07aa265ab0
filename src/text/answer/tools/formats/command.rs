//! `<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>`: Command R7B and Command A. Command R writes
//! `Action:` and the list in a code fence.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};

const MARKERS: [&str; 2] = ["<|START_ACTION|>", "<|END_ACTION|>"];
const FENCE: [&str; 2] = ["Action: ```json\n", "\n```"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["command_r7b", "cohere_command3", "cohere_command4"],
    templates: &[&[MARKERS[0]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| {
        let [open, close] = MARKERS.map(|marker| marks.lark(marker));
        let mut form = Form::json_list(&open, &close, "tool_name", "parameters");
        // Calls are numbered.
        let [before, after] = ["{\"tool_call_id\": \"", "\", \"tool_name\": \""].map(quoted);
        form.call[0] = format!("{before} /[0-9]+/ {after}");
        form
    }),
};

static LIST: List = List {
    open: &[MARKERS[0]],
    close: &[MARKERS[1]],
    is_bare: false,
    written: Written::Json,
};

pub(crate) const COMMAND_R: CallFormat = CallFormat {
    names: &["command_r"],
    templates: &[&["<|CHATBOT_TOKEN|>", "Action:"]],
    markers: &[],
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &FENCED)),
    form: Some(|_| {
        let [open, close] = FENCE.map(quoted);
        Form::json_list(&open, &close, "tool_name", "parameters")
    }),
};

static FENCED: List = List {
    open: &["Action: ```json", "Action:```json", "Action:\n```json"],
    close: &["```"],
    is_bare: false,
    written: Written::Json,
};
