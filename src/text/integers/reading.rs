//! Reads JSON with its long integers marked: what requests are, so that only the API needs it.

use super::{OPEN, digits, has_integer_form};
use serde_json::Value;

/// The text of JSON with its long integers marked, and without the sign of a zero, which is none for Python. `None` if
/// it has neither.
pub(crate) fn marked(json: &[u8]) -> Option<Vec<u8>> {
    let mut marked = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while at < json.len() {
        match json[at] {
            b'"' => at = string_end(json, at),
            b'-' | b'0'..=b'9' => {
                let end = at
                    + json[at..]
                        .iter()
                        .take_while(|byte| is_of_number(**byte))
                        .count();
                let number = std::str::from_utf8(&json[at..end]).unwrap_or_default();
                if number == "-0" || is_long(number) {
                    marked.extend(&json[copied..at]);
                    match number {
                        "-0" => marked.push(b'0'),
                        digits => marked.extend(format!("{OPEN}{digits}\"}}").bytes()),
                    }
                    copied = end;
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    if copied == 0 {
        return None;
    }
    marked.extend(&json[copied..]);
    Some(marked)
}

/// Whether a number of JSON may have this byte.
fn is_of_number(byte: u8) -> bool {
    byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E')
}

/// The place behind the string that begins at `start`.
fn string_end(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = json.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    json.len()
}

fn is_long(number: &str) -> bool {
    // The shortest one is 2^63 below zero.
    number.len() >= 19
        && has_integer_form(number)
        && number.parse::<u64>().is_err()
        && number.parse::<i64>().is_err()
}

/// Parses JSON with its long integers marked. `None` if it is not JSON.
pub(crate) fn parse(json: &str) -> Option<Value> {
    match marked(json.as_bytes()) {
        Some(marked) => serde_json::from_slice(&marked).ok(),
        None => serde_json::from_str(json).ok(),
    }
}

/// Parses an object as [`parse`] does. `None` for any other value.
pub(crate) fn parse_object(json: &str) -> Option<Value> {
    parse(json).filter(|value| value.is_object() && digits(value).is_none())
}
