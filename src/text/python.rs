//! Python behavior that templates expect: `str`, `repr` of numbers, `json.dumps` and `strftime`.

mod json;
mod time;

use super::template_limits::pay_for_text;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, Output, State, escape_formatter};

pub(super) use json::tojson;
pub(super) use time::strftime;

/// `{{ value }}`: as `str(value)` in Python.
pub(super) fn format(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    pay_for_text(state, value)?;
    match text_with_floats(value) {
        Some(text) => out.write_str(&text).map_err(Error::from),
        None => escape_formatter(out, state, value),
    }
}

/// `str(value)`. The text must have been paid for.
pub(super) fn text(value: &Value) -> String {
    text_with_floats(value).unwrap_or_else(|| value.to_string())
}

/// The text of a value that has a number which minijinja writes otherwise. `None` for all others.
fn text_with_floats(value: &Value) -> Option<String> {
    match as_float(value) {
        Some(number) => Some(float(number)),
        None => has_float(value).then(|| repr(value)),
    }
}

fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok()).flatten()
}

fn has_float(value: &Value) -> bool {
    let any = |value: &Value| value.try_iter().is_ok_and(|mut items| items.any(|item| has_float(&item)));
    match value.kind() {
        ValueKind::Number => as_float(value).is_some(),
        ValueKind::Seq => any(value),
        ValueKind::Map => pairs(value).any(|(key, value)| has_float(&key) || has_float(&value)),
        _ => false,
    }
}

fn pairs(map: &Value) -> impl Iterator<Item = (Value, Value)> {
    let keys = map.try_iter().into_iter().flatten();
    keys.map(|key| {
        let value = map.get_item(&key).unwrap_or_default();
        (key, value)
    })
}

/// `repr(value)`.
fn repr(value: &Value) -> String {
    let items = || value.try_iter().into_iter().flatten().map(|item| repr(&item)).collect::<Vec<_>>();
    match value.kind() {
        ValueKind::Number => text(value),
        ValueKind::Seq if value.downcast_object_ref::<Tuple>().is_some() => match items().as_slice() {
            [one] => format!("({one},)"),
            items => format!("({})", items.join(", ")),
        },
        ValueKind::Seq => format!("[{}]", items().join(", ")),
        ValueKind::Map => {
            let pairs = pairs(value).map(|(key, value)| format!("{}: {}", repr(&key), repr(&value)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        _ => format!("{value:?}"),
    }
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
