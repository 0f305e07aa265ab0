//! What a grammar of forced calls is made of: the text around calls and around their parts ([`Form`]), and the markers
//! of a format as a grammar writes them ([`Marks`]).

pub(super) use super::notation::quoted;
use super::notation::{self, Arguments, Mark, Notation};
use crate::text::{GrammarError, Tokenizer, schema_as_json};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The text around calls and around the parts of a call, in Lark notation.
pub(crate) struct Form {
    /// Text before the first call, between two calls, and after the last.
    pub(super) around: [String; 3],
    /// Text before the name, between name and arguments, and after the arguments.
    pub(super) call: [String; 3],
    /// Whether one answer can contain several calls.
    pub(super) several: bool,
    /// How arguments are written, if not in JSON.
    pub(super) notation: Option<Notation>,
    /// What calls are that nothing but their keys tells from an answer in JSON.
    pub(super) unmarked: Option<Unmarked>,
}

/// Calls in JSON without a marker.
pub(super) struct Unmarked {
    /// Key of the arguments.
    pub(super) arguments: &'static str,
    /// The rule of several calls.
    pub(super) several: &'static str,
}

impl Form {
    /// One list of JSON objects with these keys, between two markers.
    pub(super) fn json_list(open: &str, close: &str, name: &str, arguments: &str) -> Self {
        let around = [
            format!("{open} {}", quoted("[")),
            quoted(", "),
            format!("{} {close}", quoted("]")),
        ];
        Self::in_json(around, json_call(name, arguments))
    }

    /// One or several calls with arguments in JSON.
    pub(super) fn in_json(around: [String; 3], call: [String; 3]) -> Self {
        Self {
            around,
            call,
            several: true,
            notation: None,
            unmarked: None,
        }
    }

    /// The arguments of these functions, if their notation can enforce their schemas.
    pub(super) fn arguments(&self, functions: &[Value]) -> Result<Option<Arguments>, GrammarError> {
        match &self.notation {
            Some(notation) => notation::arguments(notation, functions),
            None => notation::in_json(functions).map(Some),
        }
    }

    /// The rules of calls to these functions.
    pub(super) fn calls(&self, functions: &[Value], arguments: &Arguments, single: bool) -> String {
        let [first, between, last] = &self.around;
        let [open, middle, close] = &self.call;
        let more = if single || !self.several {
            String::new()
        } else {
            format!(" ({between} call)*")
        };
        let names: Vec<_> = (0..functions.len())
            .map(|index| format!("call{index}"))
            .collect();
        let mut grammar = format!(
            "calls: {first} call{more} {last}\ncall: {}",
            names.join(" | ")
        );
        for ((function, name), arguments) in functions.iter().zip(names).zip(&arguments.each) {
            let own = quoted(function["name"].as_str().unwrap_or_default());
            write!(
                grammar,
                "\n{name}: {open} {own} {middle} {arguments} {close}"
            )
            .expect("a string takes text");
        }
        grammar + &arguments.rules
    }
}

/// Markers as a grammar writes them: special tokens are not text, so it refers to them by id.
pub(crate) struct Marks<'a>(pub(super) &'a Tokenizer);

impl Marks<'_> {
    fn token(&self, text: &str) -> Option<u32> {
        self.0.id_of(text).filter(|&id| self.0.is_special(id))
    }

    /// Whether the vocabulary has a token for each of these texts.
    pub(super) fn are_tokens(&self, texts: &[&str]) -> bool {
        texts.iter().all(|text| self.0.id_of(text).is_some())
    }

    pub(super) fn lark(&self, text: &str) -> String {
        self.token(text)
            .map_or_else(|| quoted(text), |id| format!("<[{id}]>"))
    }

    /// A marker that ends a text.
    pub(super) fn end(&self, text: &'static str) -> Mark {
        Mark {
            text,
            lark: self.lark(text),
            is_token: self.token(text).is_some(),
        }
    }
}

/// A call that is a JSON object with these keys of its name and of its arguments.
pub(super) fn json_call(name: &str, arguments: &str) -> [String; 3] {
    [
        quoted(&format!("{{\"{name}\": \"")),
        quoted(&format!("\", \"{arguments}\": ")),
        quoted("}"),
    ]
}

impl Unmarked {
    /// The rules of calls to these functions. Each is described by a schema, because a grammar can tell two objects
    /// apart that begin alike only if both are.
    pub(super) fn calls(&self, functions: &[Value], single: bool) -> Result<String, GrammarError> {
        let (arguments, several) = (self.arguments, if single { "call" } else { self.several });
        let names: Vec<_> = (0..functions.len())
            .map(|index| format!("call{index}"))
            .collect();
        let mut grammar = format!("calls: {several}\ncall: {}", names.join(" | "));
        for (function, name) in functions.iter().zip(names) {
            let mut parameters = notation::object_schema(function);
            move_references(&mut parameters, &format!("#/properties/{arguments}"));
            let properties = json!({"name": {"const": function["name"]}, arguments: parameters});
            let schema = json!({"type": "object", "properties": properties, "required": ["name", arguments]});
            let schema = schema_as_json(&schema, function["strict"] == true)?;
            write!(grammar, "\n{name}: {schema}").expect("a string takes text");
        }
        Ok(grammar)
    }
}

/// Lets the references within a schema point to its new place.
fn move_references(schema: &mut Value, place: &str) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(rest) = reference.strip_prefix('#')
            {
                *reference = format!("{place}{rest}");
            }
            map.values_mut()
                .for_each(|value| move_references(value, place));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| move_references(item, place)),
        _ => {}
    }
}
