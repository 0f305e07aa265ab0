//! Python behavior that templates expect: `str`, `repr` of numbers, `json.dumps` and `strftime`.

mod json;
mod pretty;
mod repr;
mod time;
mod wrap;

use super::template_html;
use super::template_limits::pay_for_text;
use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{AutoEscape, Error, ErrorKind, Output, State};
use std::borrow::Cow;

pub(super) use json::tojson;
pub(super) use pretty::pretty;
pub(super) use repr::{escaped_to_ascii, is_printable, repr};
pub(super) use time::strftime;
pub(super) use wrap::{Wrapping, wrap};

/// `{{ value }}`: as `str(value)` in Python.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    pay_for_text(state, value)?;
    let text = text_of(value);
    match state.auto_escape() {
        AutoEscape::Html if !value.is_safe() => out.write_str(&template_html::escaped(&text)).map_err(Error::from),
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
        ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Bytes => repr(value).into(),
        _ => value.to_string().into(),
    }
}

/// Whether the value is an object of the type of minijinja that has this name, which has no other public sign.
pub(super) fn is_of_type(value: &Value, name: &str) -> bool {
    value.as_object().is_some_and(|object| object.type_name().rsplit("::").next() == Some(name))
}

/// `repr` of a floating-point number: the shortest digits that give this number, with an exponent below 1e-4 and from
/// 1e16 on.
pub(super) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>() {
        Ok(-4..16) | Err(_) => format!("{number:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// White space, as `str.isspace` has it.
pub(super) fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&character)
}

/// Arguments by the names of their parameters, as Python binds them.
pub(super) fn bind<const N: usize>(arguments: &[Value], names: [&str; N]) -> Result<[Option<Value>; N], Error> {
    let values = bound_values(arguments, &names)?;
    values.try_into().map_err(|_| Error::from(ErrorKind::TooManyArguments))
}

/// [`bind`], for a list of names.
pub(super) fn bound_values(arguments: &[Value], names: &[&str]) -> Result<Vec<Option<Value>>, Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
    if positional.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let bound = names.iter().enumerate().map(|(index, name)| match positional.get(index) {
        Some(value) => Ok(Some(value.clone())),
        None if named.has(name) => named.get(name).map(Some),
        None => Ok(None),
    });
    let bound = bound.collect::<Result<Vec<_>, _>>()?;
    named.assert_all_used()?;
    Ok(bound)
}

/// An integer, or what it is when it is not given.
pub(super) fn integer_or(argument: Option<Value>, default: i64) -> Result<i64, Error> {
    argument.filter(|value| !value.is_none()).map_or(Ok(default), i64::try_from)
}
