//! `<｜DSML｜function_calls>`, `<｜DSML｜invoke name="…">` with `<｜DSML｜parameter name="…" string="true">` for a text,
//! and `string="false"` for JSON: DeepSeek V3.2. V4 writes `<｜DSML｜tool_calls>` around the calls.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::invoked::{Invoke, Invoked};

const CALLS: [&str; 2] = ["<｜DSML｜function_calls>", "</｜DSML｜function_calls>"];
const CALLS_4: [&str; 2] = ["<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["deepseek_v32"],
    templates: &[&["｜DSML｜", "function_calls>"]],
    markers: &["｜DSML｜"],
    parser: |tools| CallParser::Invoked(Invoked::new(tools.clone(), &TAGS)),
    // What a value may be is said before it, in a way that no grammar of tags can express.
    form: None,
};

pub(crate) const V4: CallFormat = CallFormat {
    names: &["deepseek_v4"],
    templates: &[&["｜DSML｜", "tool_calls>"]],
    parser: |tools| CallParser::Invoked(Invoked::new(tools.clone(), &TAGS_4)),
    ..FORMAT
};

const CALL: [&str; 2] = ["<｜DSML｜invoke name=\"", "</｜DSML｜invoke>"];
const VALUE: [&str; 2] = ["<｜DSML｜parameter name=\"", "</｜DSML｜parameter>"];

static TAGS: Invoke = Invoke {
    open: &[CALLS[0]],
    close: &[CALLS[1]],
    call: CALL,
    value: VALUE,
};

static TAGS_4: Invoke = Invoke {
    open: &[CALLS_4[0], "<｜DSML｜toolcalls>", "<｜DSML｜tool>"],
    close: &[CALLS_4[1]],
    call: CALL,
    value: VALUE,
};
