//! Integers of JSON beyond 64 bits, with all their digits.
//!
//! A number of serde_json has 64 bits; its feature for longer ones would keep every number as a text, so that a prompt
//! of token ids takes several times as much memory. So a long integer is *marked*: an object of one entry, whose key is
//! [`KEY`] and whose value has the digits. Only what becomes text may have marked integers: [`to_json`], templates and
//! grammars write their digits. [`round`] makes numbers of them for everything else.

#[cfg(any(test, feature = "api"))]
mod reading;

#[cfg(any(test, feature = "api"))]
pub(crate) use reading::{marked, parse, parse_object};

use serde_json::{Number, Value};

/// A noncharacter, which is the key of no other object.
const KEY: &str = "\u{FDD5}";
/// How a marked integer begins, as serde_json writes it.
const OPEN: &str = "{\"\u{FDD5}\":\"";

/// The digits of a marked integer, with its sign.
pub(crate) fn digits(value: &Value) -> Option<&str> {
    let entries = value.as_object().filter(|entries| entries.len() == 1)?;
    entries
        .get(KEY)?
        .as_str()
        .filter(|digits| has_integer_form(digits))
}

/// Whether a number is an integer as it is written.
pub(crate) fn is_integer(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || digits(value).is_some()
}

fn has_integer_form(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let has_zero_before = digits.len() > 1 && digits.starts_with('0');
    !digits.is_empty() && !has_zero_before && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// The JSON of a value, with the digits of marked integers.
pub(crate) fn to_json(value: &Value) -> String {
    unmarked(value.to_string())
}

/// JSON as serde_json writes it, with the digits of marked integers.
pub(crate) fn unmarked(json: String) -> String {
    if !json.contains(OPEN) {
        return json;
    }
    let mut pieces = json.split(OPEN);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece
            .split_once("\"}")
            .filter(|(digits, _)| has_integer_form(digits))
        {
            Some((digits, behind)) => text.extend([digits, behind]),
            None => text.extend([OPEN, piece]),
        }
    }
    text
}

/// The float that is nearest to a number, marked or not.
pub(crate) fn nearest(value: &Value) -> Option<f64> {
    match digits(value) {
        Some(digits) => digits.parse().ok(),
        None => value.as_f64(),
    }
}

/// Turns marked integers into the numbers that are nearest.
pub(crate) fn round(value: &mut Value) {
    if let Some(digits) = digits(value) {
        let nearest: f64 = digits.parse().unwrap_or_default();
        let number = Number::from_f64(nearest.clamp(f64::MIN, f64::MAX));
        *value = number.map_or(Value::Null, Value::Number);
        return;
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(round),
        Value::Object(entries) => entries.values_mut().for_each(round),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
