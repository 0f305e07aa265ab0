//! Values as Python writes them: `[1, True]`, `{'key': None}`.

use super::super::json_text::{Object, quoted};
use serde_json::Value;

/// Maximum nesting of a value.
const DEPTH_MAX: usize = 32;

/// Opening and closing marker.
pub(crate) const MARKERS: [&str; 2] = ["<|tool_call_start|>", "<|tool_call_end|>"];

/// Reads one value, as JSON.
pub(crate) fn literal(text: &str) -> Option<String> {
    let mut reader = Reader { rest: text };
    let value = reader.value(0)?;
    reader.rest.trim().is_empty().then_some(value)
}

/// What a text begins with.
pub(crate) enum Parsed {
    /// A value, as JSON, of so many bytes.
    Value(String, usize),
    /// Perhaps the beginning of one.
    Open,
    None,
}

/// Reads the list or dictionary with which a text begins that may go on.
pub(crate) fn value(text: &str) -> Parsed {
    // Without a bracket that closes it, there is no need to read it again.
    if !text.contains([']', '}', ')']) {
        return Parsed::Open;
    }
    let mut reader = Reader { rest: text };
    match reader.value(0) {
        Some(value) => Parsed::Value(value, text.len() - reader.rest.len()),
        None if reader.rest.trim().is_empty() => Parsed::Open,
        None => Parsed::None,
    }
}

/// The text that an escape means, and its length; `None` if it has not ended. What is no escape means itself.
pub(crate) fn escape(text: &str) -> Option<(String, usize)> {
    let character = text.chars().nth(1)?;
    let length = 1 + character.len_utf8();
    let digits = match character {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    let meant = match character {
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        'r' => "\r".to_owned(),
        '\\' | '\'' | '"' => character.to_string(),
        'x' | 'u' | 'U' => {
            let hex: String = text[length..].chars().take(digits).collect();
            match u32::from_str_radix(&hex, 16) {
                _ if hex.chars().any(|digit| !digit.is_ascii_hexdigit()) => {
                    text[..length].to_owned()
                }
                Ok(code) if hex.len() == digits => {
                    let meant = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                    return Some((meant.to_string(), length + digits));
                }
                _ => return None,
            }
        }
        _ => text[..length].to_owned(),
    };
    Some((meant, length))
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
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
                number => number_as_json(number),
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

    /// A dictionary, or a set, which is a list in JSON.
    fn dictionary(&mut self, depth: usize) -> Option<String> {
        self.eat("{").then_some(())?;
        let (mut map, mut items) = (Object::default(), Vec::new());
        while !self.eat("}") {
            let item = self.value(depth + 1)?;
            if items.is_empty() && self.eat(":") {
                let key = serde_json::from_str(&item).unwrap_or(item);
                map.insert(&key, self.value(depth + 1)?);
            } else {
                items.push(item);
            }
            if !self.eat(",") {
                self.eat("}").then_some(())?;
                break;
            }
        }
        Some(if items.is_empty() {
            map.json()
        } else {
            format!("[{}]", items.join(","))
        })
    }

    /// A text in quotes. A quote before anything that cannot follow a value is a part of it.
    fn string(&mut self) -> Option<String> {
        let text = self.rest.trim_start();
        let one = &text[..1];
        let three = one.repeat(3);
        let quotes = if text.starts_with(&three) {
            &three
        } else {
            one
        };
        let mut meant = String::new();
        let mut rest = &text[quotes.len()..];
        // If it does not end, it may go on.
        self.rest = "";
        loop {
            let at = rest.find(['\\', '"', '\''])?;
            meant.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with('\\') {
                let (character, length) = escape(rest)?;
                meant.push_str(&character);
                rest = &rest[length..];
                continue;
            }
            if let Some(after) = rest.strip_prefix(quotes)
                && after
                    .trim_start()
                    .chars()
                    .next()
                    .is_none_or(|next| ",]}):".contains(next))
            {
                self.rest = after;
                return Some(meant);
            }
            meant.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }

    fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(text);
        rest.map(|rest| self.rest = rest).is_some()
    }
}

/// A number may have underscores, and zeros before it.
fn number_as_json(number: &str) -> Option<String> {
    let number = number.replace('_', "");
    let digits = number.strip_prefix(['-', '+']).unwrap_or(&number);
    let zeros = digits.len() - digits.trim_start_matches('0').len();
    let is_padded = digits[zeros..].starts_with(|c: char| c.is_ascii_digit());
    let kept = &digits[if is_padded {
        zeros
    } else {
        zeros.saturating_sub(1)
    }..];
    let sign = if number.starts_with('-') { "-" } else { "" };
    let json = format!("{sign}{kept}");
    let is_number = serde_json::from_str::<Value>(&json).is_ok_and(|value| value.is_number());
    is_number.then_some(json)
}
