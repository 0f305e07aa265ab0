//! Numbers as Python reads and writes them.

use super::is_space;
use minijinja::value::{Object, ObjectRepr, Value};
use std::fmt;
use std::sync::Arc;

/// An integer beyond 128 bits, which can be written, but not calculated with.
#[derive(Debug)]
pub(in crate::text) struct LongInteger(String);

impl Object for LongInteger {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// An integer by its digits.
pub(in crate::text) fn integer(digits: &str) -> Value {
    let short = digits
        .parse::<i128>()
        .map(Value::from)
        .or_else(|_| digits.parse::<u128>().map(Value::from));
    short.unwrap_or_else(|_| Value::from_object(LongInteger(digits.to_owned())))
}

/// `repr` of a floating-point number: the shortest digits that give this number, with an exponent below 1e-4 and from
/// 1e16 on.
pub(in crate::text) fn float(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{number:e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(-4..16) | Err(_) => format!("{number:?}"),
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
        }
    }
}

/// Underscores may stand between digits.
pub(in crate::text) fn without_underscores(digits: &str) -> Option<String> {
    let wrong =
        digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__");
    (!wrong).then(|| digits.replace('_', ""))
}

/// `float(text)`, if that is a number.
pub(in crate::text) fn decimal(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let number: f64 = without_underscores(digits)?.parse().ok()?;
    Some(if text.starts_with('-') {
        -number
    } else {
        number
    })
}
