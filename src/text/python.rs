//! Python behavior that templates expect: `str`, `repr` of numbers, `json.dumps` and `strftime`.

mod arguments;
mod html;
mod json;
mod numbers;
mod pretty;
mod repr;
mod time;
mod wrap;

use super::template_limits::pay_for_text;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Error, Output, State};
use std::borrow::Cow;

pub(super) use arguments::{
    Filter, bind, bound_values, integer_or, items_of, refuse_none, subject,
};
pub(super) use html::escaped;
pub(super) use json::tojson;
pub(super) use numbers::{LongInteger, decimal, float, integer, without_underscores};
pub(super) use pretty::pretty;
pub(super) use repr::{escaped_to_ascii, is_printable, repr};
pub(super) use time::strftime;
pub(super) use wrap::{Wrapping, wrap};

/// `{{ value }}`: as `str(value)` in Python.
pub(super) fn format(
    out: &mut Output<'_>,
    state: &mut State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    pay_for_text(state, value)?;
    let text = text_of(value);
    match state.auto_escape() {
        AutoEscape::Html if !value.is_safe() => out.write_str(&escaped(&text)).map_err(Error::from),
        _ => out.write_str(&text).map_err(Error::from),
    }
}

/// `str(value)`. The text must have been paid for.
pub(super) fn text(value: &Value) -> String {
    text_of(value).into_owned()
}

fn text_of(value: &Value) -> Cow<'_, str> {
    match value.kind() {
        ValueKind::String => value.as_str().unwrap_or_default().into(),
        ValueKind::Number => repr::number(value).into(),
        ValueKind::Undefined => "".into(),
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Bytes => {
            repr(value).into()
        }
        _ => value.to_string().into(),
    }
}

/// Whether the value is an object of the type of minijinja that has this name, which has no other public sign.
pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    value
        .as_object()
        .is_some_and(|object| object.type_name().rsplit("::").next() == Some(name))
}

/// White space, as `str.isspace` has it.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Whether an option of a filter is given and true, as Python sees it.
pub(super) fn is_true(option: Option<Value>) -> bool {
    option.is_some_and(|option| option.is_true())
}
