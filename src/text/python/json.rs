//! `json.dumps`, as templates call it: `tojson`.

use super::{bind, float};
use crate::text::marks::is_noncharacter;
use crate::text::template_limits::{Capped, bytes_left, pay, pay_for_text};
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};
use serde::Serialize;
use std::io;

/// Maximum characters of one level's indent.
const INDENT_MAX: usize = 64;

/// `json.dumps(value, ensure_ascii, indent, separators, sort_keys)` with the parameters of transformers' `tojson`: by
/// default it neither escapes nor sorts, and writes a space after comma and colon.
pub(in crate::text) fn tojson(state: &State<'_, '_>, arguments: &[Value]) -> Result<String, Error> {
    arguments.iter().try_for_each(|argument| pay_for_text(state, argument))?;
    let (value, rest) = arguments.split_first().ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let [ensure_ascii, indent, separators, sort_keys] =
        bind(rest, ["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let is_true = |option: Option<Value>| option.is_some_and(|option| option.is_true());
    let indent = indent.filter(|indent| !indent.is_none() && !indent.is_undefined()).map(indent_text).transpose()?;
    let comma_default = if indent.is_some() { "," } else { ", " };
    let (comma, colon) = match separators.filter(|separators| !separators.is_none()) {
        Some(separators) => {
            (separators.get_item_by_index(0)?.to_string(), separators.get_item_by_index(1)?.to_string())
        }
        None => (comma_default.to_owned(), ": ".to_owned()),
    };
    let value = if is_true(sort_keys) { sorted(value)? } else { value.clone() };
    // The value is paid for, but not its separators, indents and escapes.
    let mut output = Capped::new(usize::try_from(bytes_left(state)).unwrap_or(usize::MAX));
    let style = PythonJson { comma, colon, indent, ensure_ascii: is_true(ensure_ascii), depth: 0, empty: true };
    let outcome = value.serialize(&mut serde_json::Serializer::with_formatter(&mut output, style));
    if output.full {
        pay(state, u64::MAX)?;
    }
    outcome.map_err(invalid)?;
    String::from_utf8(output.bytes).map_err(invalid)
}

/// An indent is a number of spaces or a text.
fn indent_text(indent: Value) -> Result<String, Error> {
    match indent.as_str() {
        Some(text) => Ok(text.chars().take(INDENT_MAX).collect()),
        None => Ok(" ".repeat(i64::try_from(indent)?.clamp(0, INDENT_MAX as i64) as usize)),
    }
}

/// The value with the keys of all its maps in order.
fn sorted(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pairs: Result<Vec<_>, Error> =
                keys.into_iter().map(|key| Ok((key.clone(), sorted(&value.get_item(&key)?)?))).collect();
            Ok(Value::from_pairs(pairs?))
        }
        ValueKind::Seq | ValueKind::Iterable => {
            Ok(Value::from(value.try_iter()?.map(|item| sorted(&item)).collect::<Result<Vec<_>, _>>()?))
        }
        _ => Ok(value.clone()),
    }
}

fn invalid(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::BadSerialization, error.to_string())
}

struct PythonJson {
    comma: String,
    colon: String,
    /// What one level of a value on several lines begins with.
    indent: Option<String>,
    ensure_ascii: bool,
    depth: usize,
    empty: bool,
}

impl PythonJson {
    fn open<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + io::Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.line(writer)?;
        }
        self.empty = false;
        writer.write_all(bracket)
    }

    fn item<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.comma.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + io::Write>(&self, writer: &mut W) -> io::Result<()> {
        let Some(indent) = &self.indent else { return Ok(()) };
        writer.write_all(b"\n")?;
        (0..self.depth).try_for_each(|_| writer.write_all(indent.as_bytes()))
    }
}

impl serde_json::ser::Formatter for PythonJson {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(float(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            // The marks in a text are none of its characters.
            if character.is_ascii() || is_noncharacter(character) {
                writer.write_all(character.encode_utf8(&mut [0; 4]).as_bytes())?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.item(writer, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.colon.as_bytes())
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.empty = false;
        Ok(())
    }
}
