//! `<function_call> {…}`, once more for each further call: Granite 20B for functions.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, json_call, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};

const OPEN: &str = "<function_call>";

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["granite-20b-fc"],
    templates: &[&[OPEN]],
    markers: &[OPEN],
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| {
        let [open, middle, close] = json_call("name", "arguments");
        let open = format!("{} {} {open}", marks.lark(OPEN), quoted(" "));
        Form::in_json(
            [String::new(), quoted(" "), String::new()],
            [open, middle, close],
        )
    }),
};

static LIST: List = List {
    open: &[OPEN],
    close: &[],
    is_bare: false,
    written: Written::Json,
};
