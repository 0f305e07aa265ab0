//! `<|action_start|><|plugin|>{…}<|action_end|>`: InternLM 2 and 2.5.

use super::CallFormat;
use crate::text::answer::tools::CallParser;
use crate::text::answer::tools::form::{Form, json_call, quoted};
use crate::text::answer::tools::listed::{List, Listed, Written};

const MARKERS: [&str; 3] = ["<|action_start|>", "<|plugin|>", "<|action_end|>"];

pub(crate) const FORMAT: CallFormat = CallFormat {
    names: &["internlm"],
    templates: &[&[MARKERS[0], MARKERS[1]]],
    markers: &MARKERS,
    parser: |tools| CallParser::Listed(Listed::new(tools.clone(), &LIST)),
    form: Some(|marks| {
        let [first, second, last] = MARKERS.map(|marker| marks.lark(marker));
        let [open, middle, close] = json_call("name", "parameters");
        let open = format!("{first} {second} {} {open}", quoted("\n"));
        Form::in_json(
            Default::default(),
            [open, middle, format!("{close} {last}")],
        )
    }),
};

static LIST: List = List {
    open: &["<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"],
    close: &[MARKERS[2]],
    is_bare: false,
    written: Written::Json,
};
