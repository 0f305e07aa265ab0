//! `json.dumps`, as templates call it: `tojson`.

use super::{LongInteger, bind, float, is_true, repr};
use crate::text::marks::is_noncharacter;
use crate::text::template_limits::{Capped, bytes_left, pay, pay_for_text};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use std::io::{self, Write as _};

/// Maximum characters of one level's indent.
const INDENT_MAX: usize = 64;

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)` with the parameters of transformers' `tojson`: by
/// default it neither escapes nor sorts, and writes a space after comma and colon.
pub(in crate::text) fn tojson(state: &State<'_, '_>, arguments: &[Value]) -> Result<String, Error> {
    arguments
        .iter()
        .try_for_each(|argument| pay_for_text(state, argument))?;
    let (value, rest) = arguments
        .split_first()
        .ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let [ensure_ascii, indent, separators, sort_keys] =
        bind(rest, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = indent
        .filter(|indent| !indent.is_none() && !indent.is_undefined())
        .map(indent_text)
        .transpose()?;
    let comma_default = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match separators.filter(|separators| !separators.is_none()) {
        Some(separators) => (
            separators.get_item_by_index(0)?.to_string(),
            separators.get_item_by_index(1)?.to_string(),
        ),
        None => (comma_default.to_owned(), ": ".to_owned()),
    };
    let (ensure_ascii, sort_keys) = (is_true(ensure_ascii), is_true(sort_keys));
    // The value is paid for, but not its separators, indents and escapes.
    let output = Capped::new(usize::try_from(bytes_left(state)).unwrap_or(usize::MAX));
    let mut writer = Writer {
        output,
        comma,
        colon,
        indent,
        ensure_ascii,
        sort_keys,
    };
    let outcome = writer.value(value, 0);
    if writer.output.full {
        pay(state, u64::MAX)?;
    }
    outcome?;
    String::from_utf8(writer.output.bytes).map_err(invalid)
}

/// An indent is a number of spaces or a text.
fn indent_text(indent: Value) -> Result<String, Error> {
    match indent.as_str() {
        Some(text) => Ok(text.chars().take(INDENT_MAX).collect()),
        None => Ok(" ".repeat(i64::try_from(indent)?.clamp(0, INDENT_MAX as i64) as usize)),
    }
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::BadSerialization, error.to_string())
}

struct Writer {
    output: Capped,
    comma: String,
    colon: String,
    /// What one level of a value on several lines begins with.
    indent: Option<String>,
    ensure_ascii: bool,
    sort_keys: bool,
}

impl Writer {
    fn put(&mut self, text: &str) -> Result<(), Error> {
        self.output.write_all(text.as_bytes()).map_err(invalid)
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.list(value, depth),
            ValueKind::Map => self.map(value, depth),
            _ => match scalar(value) {
                Some(text) => self.put(&text),
                None => Err(invalid(format_args!(
                    "a value of the type {} has no JSON",
                    value.kind()
                ))),
            },
        }
    }

    fn list(&mut self, list: &Value, depth: usize) -> Result<(), Error> {
        self.put("[")?;
        let mut is_empty = true;
        for item in list.try_iter()? {
            self.next(is_empty, depth + 1)?;
            self.value(&item, depth + 1)?;
            is_empty = false;
        }
        self.close(is_empty, depth, "]")
    }

    fn map(&mut self, map: &Value, depth: usize) -> Result<(), Error> {
        self.put("{")?;
        let mut keys: Vec<Value> = map.try_iter()?.collect();
        if self.sort_keys {
            keys.sort();
        }
        for (index, key) in keys.iter().enumerate() {
            self.next(index == 0, depth + 1)?;
            let name = key.as_str().map(str::to_owned).or_else(|| scalar(key));
            self.string(
                &name.ok_or_else(|| invalid("keys must be texts, numbers, true, false or none"))?,
            )?;
            self.output
                .write_all(self.colon.as_bytes())
                .map_err(invalid)?;
            self.value(&map.get_item(key)?, depth + 1)?;
        }
        self.close(keys.is_empty(), depth, "}")
    }

    /// What stands before an item.
    fn next(&mut self, is_first: bool, depth: usize) -> Result<(), Error> {
        if !is_first {
            self.output
                .write_all(self.comma.as_bytes())
                .map_err(invalid)?;
        }
        self.line(depth).map_err(invalid)
    }

    fn close(&mut self, is_empty: bool, depth: usize, bracket: &str) -> Result<(), Error> {
        if !is_empty {
            self.line(depth).map_err(invalid)?;
        }
        self.put(bracket)
    }

    fn line(&mut self, depth: usize) -> io::Result<()> {
        let Some(indent) = &self.indent else {
            return Ok(());
        };
        self.output.write_all(b"\n")?;
        (0..depth).try_for_each(|_| self.output.write_all(indent.as_bytes()))
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        self.put("\"")?;
        let ensure_ascii = self.ensure_ascii;
        let mut plain = 0;
        for (at, character) in text
            .char_indices()
            .filter(|(_, character)| is_escaped(*character, ensure_ascii))
        {
            self.put(&text[plain..at])?;
            self.escape(character).map_err(invalid)?;
            plain = at + character.len_utf8();
        }
        self.put(&text[plain..])?;
        self.put("\"")
    }

    fn escape(&mut self, character: char) -> io::Result<()> {
        match character {
            '"' => self.output.write_all(b"\\\""),
            '\\' => self.output.write_all(b"\\\\"),
            '\n' => self.output.write_all(b"\\n"),
            '\r' => self.output.write_all(b"\\r"),
            '\t' => self.output.write_all(b"\\t"),
            '\u{8}' => self.output.write_all(b"\\b"),
            '\u{c}' => self.output.write_all(b"\\f"),
            _ => character
                .encode_utf16(&mut [0; 2])
                .iter()
                .try_for_each(|unit| write!(self.output, "\\u{unit:04x}")),
        }
    }
}

fn is_escaped(character: char, ensure_ascii: bool) -> bool {
    match character {
        '"' | '\\' | '\0'..='\u{1f}' => true,
        // The marks in a text are none of its characters.
        _ => ensure_ascii && !matches!(character, ' '..='~') && !is_noncharacter(character),
    }
}

/// A value that is neither text, list nor map. `None` for what JSON does not have.
fn scalar(value: &Value) -> Option<String> {
    match value.kind() {
        ValueKind::None => Some("null".to_owned()),
        ValueKind::Bool => Some(if value.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => Some(match number {
                f64::INFINITY => "Infinity".to_owned(),
                f64::NEG_INFINITY => "-Infinity".to_owned(),
                _ if number.is_nan() => "NaN".to_owned(),
                _ => float(number),
            }),
            _ => Some(repr::number(value)),
        },
        _ => value
            .downcast_object_ref::<LongInteger>()
            .map(|_| value.to_string()),
    }
}
