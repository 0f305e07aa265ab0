//! Python's two ways to format texts: `pattern % values` and `pattern.format(…)`. minijinja formats a single number;
//! fields, texts and conversions are done here.

use super::python::{self, escaped_to_ascii, repr};
use super::template_limits::pay;
use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

fn failed(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The values that a pattern with `%` takes.
struct Values<'a> {
    map: Option<&'a Value>,
    items: std::slice::Iter<'a, Value>,
}

impl Values<'_> {
    fn next(&mut self) -> Result<Value, Error> {
        self.items
            .next()
            .cloned()
            .ok_or_else(|| failed("not enough arguments for the format"))
    }
}

/// One conversion of a pattern with `%`.
struct Conversion<'a> {
    flags: &'a str,
    width: String,
    precision: Option<String>,
    kind: char,
}

/// `pattern % values`: a tuple has several values, a map has those of fields with names.
pub(super) fn percent(
    state: &State<'_, '_>,
    pattern: &str,
    values: &Value,
) -> Result<Value, Error> {
    let several = values.downcast_object_ref::<Tuple>().is_some();
    let items: Vec<Value> = if several {
        values.try_iter()?.collect()
    } else {
        vec![values.clone()]
    };
    let map = Some(values).filter(|values| values.kind() == ValueKind::Map);
    let mut values = Values {
        map,
        items: items.iter(),
    };
    let mut text = String::new();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        text.push_str(before);
        let (value, name_len) = named(after, &values)?;
        let (conversion, len) = conversion(&after[name_len..], &mut values)?;
        rest = &after[name_len + len..];
        if conversion.kind == '%' {
            text.push('%');
            continue;
        }
        let value = value.map_or_else(|| values.next(), Ok)?;
        let value = converted(state, &conversion, &value)?;
        pay(state, value.len() as u64)?;
        text.push_str(&value);
    }
    text.push_str(rest);
    pay(state, pattern.len() as u64)?;
    if map.is_none() && values.items.next().is_some() {
        return Err(failed("not all arguments are converted by the format"));
    }
    Ok(Value::from(text))
}

/// The value of a field with a name, and the length of that.
fn named(after: &str, values: &Values<'_>) -> Result<(Option<Value>, usize), Error> {
    let Some(inside) = after.strip_prefix('(') else {
        return Ok((None, 0));
    };
    let (name, _) = inside
        .split_once(')')
        .ok_or_else(|| failed("a format's name has no end"))?;
    let map = values.map.ok_or_else(|| failed("the format needs a map"))?;
    let value = map.get_attr(name)?;
    if value.is_undefined() {
        return Err(failed("the map lacks a name of the format"));
    }
    Ok((Some(value), name.len() + 2))
}

/// Reads flags, width, precision and kind, and their length.
fn conversion<'a>(
    text: &'a str,
    values: &mut Values<'_>,
) -> Result<(Conversion<'a>, usize), Error> {
    let flags = &text[..text.len() - text.trim_start_matches(['-', '+', ' ', '#', '0']).len()];
    let mut rest = &text[flags.len()..];
    let mut number = |rest: &mut &'a str| -> Result<String, Error> {
        if let Some(behind) = rest.strip_prefix('*') {
            *rest = behind;
            return Ok(i64::try_from(values.next()?)?.to_string());
        }
        let behind = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let digits = &rest[..rest.len() - behind.len()];
        *rest = behind;
        Ok(digits.to_owned())
    };
    let width = number(&mut rest)?;
    let precision = match rest.strip_prefix('.') {
        Some(behind) => {
            rest = behind;
            Some(number(&mut rest)?)
        }
        None => None,
    };
    rest = rest.trim_start_matches(['h', 'l', 'L']);
    let kind = rest
        .chars()
        .next()
        .ok_or_else(|| failed("the format is incomplete"))?;
    let len = text.len() - rest.len() + kind.len_utf8();
    Ok((
        Conversion {
            flags,
            width,
            precision,
            kind,
        },
        len,
    ))
}

fn converted(
    state: &State<'_, '_>,
    conversion: &Conversion<'_>,
    value: &Value,
) -> Result<String, Error> {
    let Conversion {
        flags,
        width,
        precision,
        kind,
    } = conversion;
    let wide = width
        .trim_start_matches('-')
        .parse()
        .unwrap_or(if width.is_empty() { 0 } else { u64::MAX });
    let exact = precision.as_ref().map(|digits| {
        digits
            .parse()
            .unwrap_or(if digits.is_empty() { 0 } else { u64::MAX })
    });
    pay(state, wide.saturating_add(exact.unwrap_or(0)))?;
    let text = match kind {
        's' => python::text(value),
        'r' => repr(value),
        'a' => escaped_to_ascii(&repr(value)),
        'c' => character(value)?.to_string(),
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' | 'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
            let precision = precision
                .as_ref()
                .map_or(String::new(), |digits| format!(".{digits}"));
            let pattern = format!(
                "%{flags}{width}{precision}{}",
                if *kind == 'u' { 'd' } else { *kind }
            );
            return format(
                FormatStyle::Printf,
                &pattern,
                &[number(value, matches!(kind, 'd' | 'i' | 'u'))?],
            );
        }
        _ => return Err(failed("the format has an unknown conversion")),
    };
    let text: String = match exact.and_then(|count| usize::try_from(count).ok()) {
        Some(count) if *kind != 'c' => text.chars().take(count).collect(),
        _ => text,
    };
    let fill = " ".repeat((wide as usize).saturating_sub(text.chars().count()));
    let is_left = flags.contains('-') || width.starts_with('-');
    Ok(if is_left { text + &fill } else { fill + &text })
}

/// A number to format; true and false are numbers too.
fn number(value: &Value, truncates: bool) -> Result<Value, Error> {
    match value.kind() {
        ValueKind::Bool => Ok(Value::from(i32::from(value.is_true()))),
        ValueKind::Number if truncates && !value.is_integer() => {
            Ok(Value::from(f64::try_from(value.clone())?.trunc() as i128))
        }
        ValueKind::Number => Ok(value.clone()),
        _ => Err(failed("the format needs a number")),
    }
}

fn character(value: &Value) -> Result<char, Error> {
    let wrong = || failed("%c needs a character or its number");
    match value.as_str() {
        Some(text) => {
            let mut characters = text.chars();
            match (characters.next(), characters.next()) {
                (Some(character), None) => Ok(character),
                _ => Err(wrong()),
            }
        }
        None => {
            char::from_u32(u32::try_from(value.clone()).map_err(|_| wrong())?).ok_or_else(wrong)
        }
    }
}

/// What the fields of `str.format` name.
struct Arguments<'a> {
    positional: &'a [Value],
    named: Option<Value>,
    next: usize,
}

/// `pattern.format(…)`.
pub(super) fn formatted(
    state: &State<'_, '_>,
    pattern: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
    let pairs: Result<Vec<(&str, Value)>, Error> = named
        .args()
        .map(|name| Ok((name, named.get(name)?)))
        .collect();
    let mut arguments = Arguments {
        positional,
        named: Some(Value::from_pairs(pairs?)),
        next: 0,
    };
    Ok(Value::from(arguments.fill(state, pattern, 0)?))
}

/// `pattern.format_map(map)`.
pub(super) fn formatted_by_map(
    state: &State<'_, '_>,
    pattern: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let (map,): (Value,) = from_args(arguments)?;
    let mut arguments = Arguments {
        positional: &[],
        named: Some(map),
        next: 0,
    };
    Ok(Value::from(arguments.fill(state, pattern, 0)?))
}

impl Arguments<'_> {
    /// The pattern with values for its fields. Within a field's format, `depth` 1, there may be fields too.
    fn fill(&mut self, state: &State<'_, '_>, pattern: &str, depth: u32) -> Result<String, Error> {
        let mut text = String::new();
        let mut rest = pattern;
        while let Some(at) = rest.find(['{', '}']) {
            text.push_str(&rest[..at]);
            let (bracket, behind) = rest[at..].split_at(1);
            if let Some(behind) = behind.strip_prefix(bracket) {
                text.push_str(bracket);
                rest = behind;
                continue;
            }
            let end = if bracket == "{" && depth < 2 {
                field_end(behind)
            } else {
                None
            };
            let end = end.ok_or_else(|| failed("the format has a single bracket"))?;
            let value = self.field(state, &behind[..end], depth)?;
            pay(state, value.len() as u64)?;
            text.push_str(&value);
            rest = &behind[end + 1..];
        }
        text.push_str(rest);
        Ok(text)
    }

    fn field(&mut self, state: &State<'_, '_>, field: &str, depth: u32) -> Result<String, Error> {
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, conversion) = match name.split_once('!') {
            Some((name, conversion)) => (name, Some(conversion)),
            None => (name, None),
        };
        let value = self.value(name)?;
        let spec = self.fill(state, spec, depth + 1)?;
        let value = match conversion {
            None => value,
            Some("s") => Value::from(python::text(&value)),
            Some("r") => Value::from(repr(&value)),
            Some("a") => Value::from(escaped_to_ascii(&repr(&value))),
            Some(_) => return Err(failed("the format has an unknown conversion")),
        };
        with_spec(state, &value, &spec)
    }

    /// The value of `name`, `0`, `name.attribute` or `name[key]`.
    fn value(&mut self, name: &str) -> Result<Value, Error> {
        let path_at = name.find(['.', '[']).unwrap_or(name.len());
        let (first, mut path) = name.split_at(path_at);
        let missing = || failed("the format has a field without a value");
        let mut value = if first.is_empty() {
            self.next += 1;
            self.positional.get(self.next - 1).cloned()
        } else if let Ok(index) = first.parse::<usize>() {
            self.positional.get(index).cloned()
        } else {
            self.named
                .as_ref()
                .map(|named| named.get_attr(first))
                .transpose()?
                .filter(|value| !value.is_undefined())
        }
        .ok_or_else(missing)?;
        while !path.is_empty() {
            let (step, behind) = match path.strip_prefix('[') {
                Some(inside) => inside.split_once(']').ok_or_else(missing)?,
                None => {
                    let path = path.strip_prefix('.').ok_or_else(missing)?;
                    path.split_at(path.find(['.', '[']).unwrap_or(path.len()))
                }
            };
            value = match step.parse::<usize>() {
                Ok(index) => value.get_item_by_index(index)?,
                Err(_) => value.get_attr(step)?,
            };
            path = behind;
        }
        Ok(value)
    }
}

/// The end of a field, within which there may be others.
fn field_end(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.char_indices()
        .find_map(|(at, character)| match character {
            '{' => {
                depth += 1;
                None
            }
            '}' if depth == 0 => Some(at),
            '}' => {
                depth -= 1;
                None
            }
            _ => None,
        })
}

/// `format(text, spec)`, whose width has been paid for.
fn text_with_spec(text: &str, spec: &str) -> Result<String, Error> {
    let mut characters = spec.chars();
    let (first, second) = (characters.next(), characters.next());
    let (fill, side, rest) = match (first, sides(second), sides(first)) {
        (Some(fill), Some(side), _) => (fill, side, &spec[fill.len_utf8() + 1..]),
        (_, None, Some(side)) => (' ', side, &spec[1..]),
        _ => (' ', '<', spec),
    };
    let rest = rest.strip_suffix('s').unwrap_or(rest);
    let (width, precision) = rest
        .split_once('.')
        .map_or((rest, None), |(width, count)| (width, Some(count)));
    let number = |digits: &str| {
        digits
            .parse::<usize>()
            .map_err(|_| failed("the format does not fit a text"))
    };
    let text: String = match precision {
        Some(count) => text.chars().take(number(count)?).collect(),
        None => text.to_owned(),
    };
    let width = if width.is_empty() { 0 } else { number(width)? };
    // A zero before the width fills with zeros.
    let fill = if rest.starts_with('0') && sides(first).or(sides(second)).is_none() {
        '0'
    } else {
        fill
    };
    let free = width.saturating_sub(text.chars().count());
    let left = match side {
        '<' => 0,
        '>' => free,
        _ => free / 2,
    };
    let filling = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(filling(left) + &text + &filling(free - left))
}

fn sides(character: Option<char>) -> Option<char> {
    character.filter(|character| matches!(character, '<' | '>' | '^'))
}

/// `format(value, spec)`.
fn with_spec(state: &State<'_, '_>, value: &Value, spec: &str) -> Result<String, Error> {
    if spec.is_empty() {
        return Ok(python::text(value));
    }
    let numbers = spec
        .split(|c: char| !c.is_ascii_digit())
        .filter(|digits| !digits.is_empty());
    let size = numbers
        .map(|digits| digits.parse().unwrap_or(u64::MAX))
        .fold(0, u64::saturating_add);
    pay(state, size)?;
    let value = match value.kind() {
        ValueKind::Bool | ValueKind::Number => number(value, false)?,
        ValueKind::String => return text_with_spec(value.as_str().unwrap_or_default(), spec),
        _ => return Err(failed("only texts and numbers have formats")),
    };
    let spec = match spec.strip_suffix('n') {
        Some(spec) => format!("{spec}{}", if value.is_integer() { 'd' } else { 'g' }),
        None => spec.to_owned(),
    };
    format(FormatStyle::StrFormat, &format!("{{:{spec}}}"), &[value])
}
