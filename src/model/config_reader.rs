//! Typed access to JSON objects of a checkpoint; each error is one line with file and field.

use super::error::LoadError;
use super::stand_in::stand_in;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

/// One JSON object of a file. A field that is `null` counts as absent.
#[derive(Clone)]
pub(super) struct ConfigReader<'a> {
    file: &'a str,
    /// Names of the enclosing objects, each followed by a dot.
    prefix: String,
    object: &'a Map<String, Value>,
    names: FieldNames,
}

/// Names of fields that a family has under other names: the usual one, and its own.
pub(super) type FieldNames = &'static [(&'static str, &'static str)];

/// Parses a JSON file. Python writes `NaN` and `Infinity`, which JSON does not have. They are read as strings, so that
/// a field with such a value is rejected by name if it must be a number, and ignored if it is not used.
pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Value, LoadError> {
    let fault = |message: String| LoadError::Json {
        file: file.into(),
        message,
    };
    if let Some(message) = stand_in(bytes) {
        return Err(fault(message.into()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| fault(error.to_string()))?;
    serde_json::from_str(text)
        .or_else(|error| serde_json::from_str(&quote_bare_words(text)).map_err(|_| error))
        .map_err(|error| fault(error.to_string()))
}

/// Puts quotes around `NaN`, `Infinity` and `-Infinity` outside strings.
fn quote_bare_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let (mut in_string, mut escaped) = (false, false);
    while let Some(first) = rest.chars().next() {
        let word = ["NaN", "-Infinity", "Infinity"]
            .into_iter()
            .find(|word| !in_string && rest.starts_with(word));
        if let Some(word) = word {
            out.extend(["\"", word, "\""]);
            rest = &rest[word.len()..];
            continue;
        }
        in_string ^= first == '"' && !escaped;
        escaped = in_string && first == '\\' && !escaped;
        out.push(first);
        rest = &rest[first.len_utf8()..];
    }
    out
}

impl<'a> ConfigReader<'a> {
    /// The object a file holds.
    pub(super) fn root(file: &'a str, value: &'a Value) -> Result<Self, LoadError> {
        match value {
            Value::Object(object) => Ok(Self {
                file,
                prefix: String::new(),
                object,
                names: &[],
            }),
            _ => Err(LoadError::Json {
                file: file.into(),
                message: "not a JSON object".into(),
            }),
        }
    }

    /// The same object, whose fields may have these names besides the usual ones.
    pub(super) fn named(self, names: FieldNames) -> Self {
        Self { names, ..self }
    }

    /// What the object calls a field.
    fn own_name<'n>(&self, name: &'n str) -> &'n str {
        let own = self
            .names
            .iter()
            .find(|(usual, own)| *usual == name && self.object.contains_key(*own));
        own.map_or(name, |(_, own)| own)
    }

    /// The error for an invalid field `name`; `message` continues a sentence that starts with the field's name.
    pub(super) fn invalid(&self, name: &str, message: impl Into<String>) -> LoadError {
        let field = format!("{}{}", self.prefix, self.own_name(name));
        LoadError::Field {
            file: self.file.into(),
            field,
            message: message.into(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object
            .get(self.own_name(name))
            .filter(|value| !value.is_null())
    }

    /// Whether the field is present and `null`.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.object
            .get(self.own_name(name))
            .is_some_and(Value::is_null)
    }

    /// All fields, in the file's order.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
        self.object.iter()
    }

    /// The value of a required field; an error if it is absent.
    pub(super) fn required<T>(&self, name: &str, value: Option<T>) -> Result<T, LoadError> {
        value.ok_or_else(|| self.invalid(name, "is missing"))
    }

    /// An integer within `range`.
    pub(super) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, LoadError> {
        self.get(name)
            .map(|value| self.whole(name, value, range))
            .transpose()
    }

    /// An integer within `range`, or a list of it for each layer.
    pub(super) fn uniform_integer(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<Option<u32>, LoadError> {
        self.get(name)
            .map(|value| self.whole(name, repeated(value), range))
            .transpose()
    }

    fn whole(
        &self,
        name: &str,
        value: &Value,
        range: RangeInclusive<u32>,
    ) -> Result<u32, LoadError> {
        match value.as_f64() {
            Some(number) if number.fract() == 0.0 && within(number, &range) => Ok(number as u32),
            _ => Err(self.wrong(
                name,
                value,
                format!("an integer in {}..={}", range.start(), range.end()),
            )),
        }
    }

    /// A required integer within `range`.
    pub(super) fn required_integer(
        &self,
        name: &str,
        range: RangeInclusive<u32>,
    ) -> Result<u32, LoadError> {
        self.required(name, self.integer(name, range)?)
    }

    /// A required multiple of 8, up to `max`.
    pub(super) fn multiple_of_eight(&self, name: &str, max: u32) -> Result<u32, LoadError> {
        let value = self.required_integer(name, 8..=max)?;
        if value % 8 != 0 {
            return Err(self.invalid(name, format!("is {value}, not a multiple of 8")));
        }
        Ok(value)
    }

    /// A finite number within `range`.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
    ) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match value.as_f64() {
            Some(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.wrong(name, value, format!("a number in {range:?}"))),
        }
    }

    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, LoadError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_bool()
            .map(Some)
            .ok_or_else(|| self.wrong(name, value, "true or false"))
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>, LoadError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_str()
            .map(Some)
            .ok_or_else(|| self.wrong(name, value, "a string"))
    }

    pub(super) fn list(&self, name: &str) -> Result<Option<&'a [Value]>, LoadError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_array()
            .map(|list| Some(list.as_slice()))
            .ok_or_else(|| self.wrong(name, value, "a list"))
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, LoadError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        let object = value
            .as_object()
            .ok_or_else(|| self.wrong(name, value, "an object"))?;
        Ok(Some(Self {
            file: self.file,
            prefix: format!("{}{name}.", self.prefix),
            object,
            names: &[],
        }))
    }

    /// Token ids below `vocab`, given as one number or a list; empty if the field is absent. What is none is ignored
    /// with a warning: no token is like it.
    pub(super) fn token_ids(&self, name: &str, vocab: u32) -> Vec<u32> {
        let Some(value) = self.get(name) else {
            return Vec::new();
        };
        let list = value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice);
        list.iter()
            .filter_map(|id| {
                let number = id.as_f64().filter(|number| {
                    number.fract() == 0.0 && (0.0..f64::from(vocab)).contains(number)
                });
                if number.is_none() {
                    let error = self.wrong(
                        name,
                        id,
                        format!("a token id below the vocabulary of {vocab}"),
                    );
                    tracing::warn!("{error}; it is ignored");
                }
                number.map(|number| number as u32)
            })
            .collect()
    }

    fn wrong(&self, name: &str, value: &Value, expected: impl Display) -> LoadError {
        let mut found = value.to_string();
        if found.len() > 40 {
            let end = (0..=40)
                .rev()
                .find(|&at| found.is_char_boundary(at))
                .unwrap_or(0);
            found.truncate(end);
            found.push('…');
        }
        self.invalid(name, format!("is {found}, not {expected}"))
    }
}

/// The value that all entries of a list have; anything else as it is.
fn repeated(value: &Value) -> &Value {
    match value.as_array().map(Vec::as_slice) {
        Some([first, others @ ..]) if others.iter().all(|other| other == first) => first,
        _ => value,
    }
}

fn within(number: f64, range: &RangeInclusive<u32>) -> bool {
    (f64::from(*range.start())..=f64::from(*range.end())).contains(&number)
}

#[cfg(test)]
mod tests;
