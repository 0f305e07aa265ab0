//! LFM2's calls: a list of calls as Python writes them, `[name(key="text", other=[1, True])]`, between markers.

use super::super::json_text::{Object, quoted};
use super::complete::{Call, DEPTH_MAX};
use serde_json::Value;

/// Opening and closing marker.
pub(crate) const MARKERS: [&str; 2] = ["<|tool_call_start|>", "<|tool_call_end|>"];

/// Reads a list of calls, or one call without brackets.
pub(crate) fn read(raw: &str) -> Option<Vec<Call>> {
    let mut reader = Reader { rest: raw };
    let is_list = reader.eat("[");
    let mut calls = vec![reader.call()?];
    while is_list && reader.eat(",") {
        calls.push(reader.call()?);
    }
    ((!is_list || reader.eat("]")) && reader.rest.trim().is_empty()).then_some(calls)
}

/// Reads one value, as JSON.
pub(crate) fn literal(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// `name(key=value, …)`.
    fn call(&mut self) -> Option<Call> {
        let name = self.name()?.to_owned();
        self.eat("(").then_some(())?;
        let mut arguments = Object::default();
        while !self.eat(")") {
            let key = self.name()?.to_owned();
            self.eat("=").then_some(())?;
            arguments.insert(&key, self.value(0)?);
            if !self.eat(",") {
                self.eat(")").then_some(())?;
                break;
            }
        }
        Some((name, arguments.json()))
    }

    /// An identifier. Names of functions may have dots and dashes.
    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (name, rest) = rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    /// A value as JSON.
    fn value(&mut self, depth: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return None;
        }
        match self.rest.trim_start().chars().next()? {
            '"' | '\'' => self.string().map(|text| quoted(&text)),
            '[' => self.items("[", "]", depth),
            '(' => self.items("(", ")", depth),
            '{' => self.dictionary(depth),
            _ => match self.name_or_number()? {
                "True" | "true" => Some("true".to_owned()),
                "False" | "false" => Some("false".to_owned()),
                "None" | "null" => Some("null".to_owned()),
                number => {
                    let number = number.replace('_', "");
                    serde_json::from_str::<Value>(&number)
                        .is_ok_and(|value| value.is_number())
                        .then_some(number)
                }
            },
        }
    }

    fn name_or_number(&mut self) -> Option<&'a str> {
        let rest = self.rest.trim_start();
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, ',' | ')' | ']' | '}' | ':'))
            .unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        Some(word)
    }

    fn items(&mut self, open: &str, close: &str, depth: usize) -> Option<String> {
        self.eat(open).then_some(())?;
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(self.value(depth + 1)?);
            if !self.eat(",") {
                self.eat(close).then_some(())?;
                break;
            }
        }
        Some(format!("[{}]", items.join(",")))
    }

    fn dictionary(&mut self, depth: usize) -> Option<String> {
        self.eat("{").then_some(())?;
        let mut map = Object::default();
        while !self.eat("}") {
            let key = self.string()?;
            self.eat(":").then_some(())?;
            map.insert(&key, self.value(depth + 1)?);
            if !self.eat(",") {
                self.eat("}").then_some(())?;
                break;
            }
        }
        Some(map.json())
    }

    /// A text in single or double quotes, with Python's escapes for characters.
    fn string(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let mut text = String::new();
        let mut characters = rest.char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            match character {
                '\\' => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    't' => text.push('\t'),
                    'r' => text.push('\r'),
                    escape @ ('x' | 'u' | 'U') => {
                        let digits = match escape {
                            'x' => 2,
                            'u' => 4,
                            _ => 8,
                        };
                        let hex: String = characters
                            .by_ref()
                            .take(digits)
                            .map(|(_, digit)| digit)
                            .collect();
                        let code = u32::from_str_radix(&hex, 16).ok()?;
                        text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    other => text.push(other),
                },
                end if end == quote => {
                    self.rest = &rest[at + end.len_utf8()..];
                    return Some(text);
                }
                other => text.push(other),
            }
        }
        None
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(text);
        rest.map(|rest| self.rest = rest).is_some()
    }
}

/// Whether a name may have this character.
pub(super) fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}
