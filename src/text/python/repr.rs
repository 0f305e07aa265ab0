//! `repr`: a value as Python writes it within a list.

use super::{float, is_of_type};
use crate::text::marks::is_noncharacter;
use minijinja::value::{Tuple, Value, ValueKind};
use std::fmt::Write as _;

/// `repr(value)`. The text must have been paid for.
pub(in crate::text) fn repr(value: &Value) -> String {
    let mut text = String::new();
    write_repr(value, &mut text);
    text
}

fn write_repr(value: &Value, text: &mut String) {
    match value.kind() {
        ValueKind::Undefined => text.push_str("Undefined"),
        ValueKind::Number => text.push_str(&number(value)),
        ValueKind::String => write_string(value.as_str().unwrap_or_default(), text),
        ValueKind::Bytes => write_bytes(value.as_bytes().unwrap_or_default(), text),
        ValueKind::Seq | ValueKind::Iterable => write_items(value, text),
        ValueKind::Map if !is_of_type(value, "Macro") => write_map(value, text),
        _ => text.push_str(&value.to_string()),
    }
}

/// A number as `str` and `repr` write it.
pub(super) fn number(value: &Value) -> String {
    match f64::try_from(value.clone()) {
        Ok(number) if !value.is_integer() => float(number),
        _ => value.to_string(),
    }
}

fn write_items(list: &Value, text: &mut String) {
    let is_tuple = list.downcast_object_ref::<Tuple>().is_some() || is_of_type(list, "GroupTuple");
    text.push(if is_tuple { '(' } else { '[' });
    let mut count = 0;
    for item in list.try_iter().into_iter().flatten() {
        if count > 0 {
            text.push_str(", ");
        }
        write_repr(&item, text);
        count += 1;
    }
    text.push_str(match (is_tuple, count) {
        (true, 1) => ",)",
        (true, _) => ")",
        (false, _) => "]",
    });
}

fn write_map(map: &Value, text: &mut String) {
    text.push('{');
    for (index, key) in map.try_iter().into_iter().flatten().enumerate() {
        if index > 0 {
            text.push_str(", ");
        }
        write_repr(&key, text);
        text.push_str(": ");
        write_repr(&map.get_item(&key).unwrap_or_default(), text);
    }
    text.push('}');
}

/// A text in quotes: single ones, unless it has such and no double ones.
fn write_string(string: &str, text: &mut String) {
    let quote = if string.contains('\'') && !string.contains('"') {
        '"'
    } else {
        '\''
    };
    text.push(quote);
    for character in string.chars() {
        match character {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            _ if character == quote => text.extend(['\\', quote]),
            _ if is_printable(character) || is_noncharacter(character) => text.push(character),
            _ => write_code(character, text),
        }
    }
    text.push(quote);
}

/// The escape of a character by its number.
fn write_code(character: char, text: &mut String) {
    let code = character as u32;
    // Writing to a string does not fail.
    let _ = match code {
        0..=0xFF => write!(text, "\\x{code:02x}"),
        0x100..=0xFFFF => write!(text, "\\u{code:04x}"),
        _ => write!(text, "\\U{code:08x}"),
    };
}

/// `ascii(text)` for a text that `repr` has written.
pub(in crate::text) fn escaped_to_ascii(written: &str) -> String {
    let mut text = String::with_capacity(written.len());
    for character in written.chars() {
        if character.is_ascii() {
            text.push(character);
        } else {
            write_code(character, &mut text);
        }
    }
    text
}

fn write_bytes(bytes: &[u8], text: &mut String) {
    let quote = if bytes.contains(&b'\'') && !bytes.contains(&b'"') {
        '"'
    } else {
        '\''
    };
    text.extend(['b', quote]);
    for byte in bytes {
        match char::from(*byte) {
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            character if character == quote || character == '\\' => text.extend(['\\', character]),
            character @ ' '..='~' => text.push(character),
            character => write_code(character, text),
        }
    }
    text.push(quote);
}

/// `str.isprintable` of one character. Rust's escapes follow the same classes of Unicode, after a first character.
pub(in crate::text) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let mut bytes = [b'a', 0, 0, 0, 0];
    let len = 1 + character.encode_utf8(&mut bytes[1..]).len();
    std::str::from_utf8(&bytes[..len])
        .is_ok_and(|text| text.escape_debug().nth(1) == Some(character))
}
