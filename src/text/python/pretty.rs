//! `pprint.pformat`: lists and maps on lines of at most 80 characters, with the keys of maps in order.

use super::is_space;
use super::repr::repr;
use crate::text::template_limits::pay;
use minijinja::value::{Tuple, Value, ValueKind};
use minijinja::{Error, State};

const WIDTH: usize = 80;

/// `pprint.pformat(value)`. The value must have been paid for once.
pub(in crate::text) fn pretty(state: &State<'_, '_>, value: &Value) -> Result<String, Error> {
    let mut printer = Printer {
        state,
        text: String::new(),
    };
    printer.value(&ordered(value)?, 0, 0, 1)?;
    Ok(printer.text)
}

/// The value with the keys of all its maps in order.
fn ordered(value: &Value) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Map => {
            let mut keys: Vec<Value> = value.try_iter()?.collect();
            keys.sort();
            let pairs: Result<Vec<_>, Error> = keys
                .into_iter()
                .map(|key| Ok((key.clone(), ordered(&value.get_item(&key)?)?)))
                .collect();
            Ok(Value::from_pairs(pairs?))
        }
        ValueKind::Seq => {
            let items = value
                .try_iter()?
                .map(|item| ordered(&item))
                .collect::<Result<Vec<_>, _>>()?;
            let is_tuple = value.downcast_object_ref::<Tuple>().is_some();
            Ok(if is_tuple {
                Tuple::from(items).into()
            } else {
                Value::from(items)
            })
        }
        _ => Ok(value.clone()),
    }
}

struct Printer<'a, 'b, 'c> {
    state: &'a State<'b, 'c>,
    text: String,
}

impl Printer<'_, '_, '_> {
    fn paid_repr(&self, value: &Value) -> Result<String, Error> {
        let text = repr(value);
        pay(self.state, text.len() as u64)?;
        Ok(text)
    }

    fn put(&mut self, text: &str) -> Result<(), Error> {
        pay(self.state, text.len() as u64)?;
        self.text.push_str(text);
        Ok(())
    }

    fn line(&mut self, indent: usize) -> Result<(), Error> {
        pay(self.state, indent as u64)?;
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        Ok(())
    }

    /// Writes a value that begins after `indent` characters, and leaves `allowance` characters free behind it.
    fn value(
        &mut self,
        value: &Value,
        indent: usize,
        allowance: usize,
        level: usize,
    ) -> Result<(), Error> {
        let whole = self.paid_repr(value)?;
        let fits = whole.chars().count() <= WIDTH.saturating_sub(indent + allowance);
        match value.kind() {
            ValueKind::Map if !fits => self.map(value, indent, allowance, level),
            ValueKind::Seq if !fits => self.list(value, indent, allowance, level),
            ValueKind::String if !fits => {
                self.string(value.as_str().unwrap_or_default(), indent, allowance, level)
            }
            _ => self.put(&whole),
        }
    }

    fn map(
        &mut self,
        map: &Value,
        indent: usize,
        allowance: usize,
        level: usize,
    ) -> Result<(), Error> {
        self.put("{")?;
        let count = map.len().unwrap_or(0);
        for (index, key) in map.try_iter()?.enumerate() {
            if index > 0 {
                self.put(",")?;
                self.line(indent + 1)?;
            }
            let name = self.paid_repr(&key)?;
            self.put(&name)?;
            self.put(": ")?;
            let free = if index + 1 == count { allowance + 1 } else { 1 };
            self.value(
                &map.get_item(&key)?,
                indent + 1 + name.chars().count() + 2,
                free,
                level + 1,
            )?;
        }
        self.put("}")
    }

    fn list(
        &mut self,
        list: &Value,
        indent: usize,
        allowance: usize,
        level: usize,
    ) -> Result<(), Error> {
        let count = list.len().unwrap_or(0);
        let (open, close) = match (list.downcast_object_ref::<Tuple>().is_some(), count) {
            (true, 1) => ("(", ",)"),
            (true, _) => ("(", ")"),
            (false, _) => ("[", "]"),
        };
        self.put(open)?;
        for (index, item) in list.try_iter()?.enumerate() {
            if index > 0 {
                self.put(",")?;
                self.line(indent + 1)?;
            }
            let free = if index + 1 == count {
                allowance + close.len()
            } else {
                1
            };
            self.value(&item, indent + 1, free, level + 1)?;
        }
        self.put(close)
    }

    /// A long text as several ones, one a line.
    fn string(
        &mut self,
        text: &str,
        indent: usize,
        allowance: usize,
        level: usize,
    ) -> Result<(), Error> {
        let is_top = level == 1;
        let (indent, allowance) = if is_top {
            (indent + 1, allowance + 1)
        } else {
            (indent, allowance)
        };
        let chunks = self.chunks(text, WIDTH.saturating_sub(indent), allowance)?;
        let is_enclosed = is_top && chunks.len() > 1;
        if is_enclosed {
            self.put("(")?;
        }
        for (index, chunk) in chunks.iter().enumerate() {
            if index > 0 {
                self.line(indent)?;
            }
            self.put(chunk)?;
        }
        if is_enclosed { self.put(")") } else { Ok(()) }
    }

    /// The pieces of a text, each as `repr` writes it: lines, and of those that are too long as many words as fit.
    fn chunks(&self, text: &str, width: usize, allowance: usize) -> Result<Vec<String>, Error> {
        let repr = |text: &str| self.paid_repr(&Value::from(text));
        let mut chunks = Vec::new();
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        for (number, line) in lines.iter().enumerate() {
            let is_last_line = number + 1 == lines.len();
            let whole = repr(line)?;
            let room = if is_last_line {
                width.saturating_sub(allowance)
            } else {
                width
            };
            if whole.chars().count() <= room {
                chunks.push(whole);
                continue;
            }
            let words = words(line);
            let mut current = String::new();
            for (index, word) in words.iter().enumerate() {
                let is_last = is_last_line && index + 1 == words.len();
                let room = if is_last {
                    width.saturating_sub(allowance)
                } else {
                    width
                };
                let candidate = format!("{current}{word}");
                if repr(&candidate)?.chars().count() <= room {
                    current = candidate;
                    continue;
                }
                if !current.is_empty() {
                    chunks.push(repr(&current)?);
                }
                current = (*word).to_owned();
            }
            if !current.is_empty() {
                chunks.push(repr(&current)?);
            }
        }
        Ok(chunks)
    }
}

/// Words, each with the white space behind it.
fn words(line: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = line;
    while !rest.is_empty() {
        let space = rest.find(is_space).unwrap_or(rest.len());
        let end = rest[space..]
            .find(|c| !is_space(c))
            .map_or(rest.len(), |len| space + len);
        words.push(&rest[..end]);
        rest = &rest[end..];
    }
    words
}
