//! Jinja2's filters for HTML, addresses and long lines.

use super::python::{self, Filter, Wrapping, bind, decimal, escaped, integer_or, subject};
use super::template_limits::pay;
use super::template_methods::lines;
use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// The filters of this file by name.
pub(super) const FILTERS: [(&str, Filter); 8] = [
    ("e", escape),
    ("escape", escape),
    ("filesizeformat", file_size),
    ("forceescape", force_escape),
    ("striptags", strip_tags),
    ("urlencode", url_encode),
    ("wordwrap", word_wrap),
    ("xmlattr", xml_attributes),
];

/// Names of characters in HTML that texts use; others stay as they are.
const ENTITIES: [(&str, &str); 23] = [
    ("amp", "&"),
    ("lt", "<"),
    ("gt", ">"),
    ("quot", "\""),
    ("apos", "'"),
    ("nbsp", "\u{a0}"),
    ("copy", "©"),
    ("reg", "®"),
    ("trade", "™"),
    ("deg", "°"),
    ("euro", "€"),
    ("hellip", "…"),
    ("ndash", "–"),
    ("mdash", "—"),
    ("lsquo", "‘"),
    ("rsquo", "’"),
    ("ldquo", "“"),
    ("rdquo", "”"),
    ("laquo", "«"),
    ("raquo", "»"),
    ("bull", "•"),
    ("middot", "·"),
    ("times", "×"),
];
/// Maximum characters of an entity.
const ENTITY_MAX: usize = 10;

fn escape(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, _) = subject(arguments)?;
    if value.is_safe() {
        Ok(value.clone())
    } else {
        force_escape(state, arguments)
    }
}

fn force_escape(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    let text = python::text(value);
    pay(state, text.len() as u64 * 5)?;
    Ok(Value::from_safe_string(escaped(&text)))
}

fn file_size(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [binary] = bind(rest, ["binary"])?;
    let is_binary = binary.is_some_and(|binary| binary.is_true());
    let size = match value.as_str() {
        Some(text) => decimal(text),
        None => f64::try_from(value.clone()).ok(),
    };
    let size =
        size.ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the size is not a number"))?;
    let base = if is_binary { 1024.0 } else { 1000.0 };
    if size == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if size < base {
        return Ok(Value::from(format!("{} Bytes", size.trunc())));
    }
    let (mut unit, mut names) = (
        base,
        ["k", "M", "G", "T", "P", "E", "Z", "Y"]
            .into_iter()
            .peekable(),
    );
    let mut name = names.next().unwrap_or_default();
    while let Some(next) = names.next_if(|_| size >= unit * base) {
        (unit, name) = (unit * base, next);
    }
    let suffix = if is_binary {
        format!("{}iB", name.to_uppercase())
    } else {
        format!("{name}B")
    };
    Ok(Value::from(format!("{:.1} {suffix}", size / unit)))
}

/// The text without comments and tags, with single spaces and without the names of characters.
fn strip_tags(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    let text = without(&without(&python::text(value), "<!--", "-->"), "<", ">");
    let text = text
        .split(python::is_space)
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    Ok(Value::from(unescaped(&text)))
}

/// The text without what stands between these.
fn without(text: &str, open: &str, close: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, inside)) = rest.split_once(open) {
        let Some((_, behind)) = inside.split_once(close) else {
            break;
        };
        kept.push_str(before);
        rest = behind;
    }
    kept + rest
}

fn unescaped(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    let mut rest = html;
    while let Some((before, after)) = rest.split_once('&') {
        text.push_str(before);
        let end = after
            .char_indices()
            .take(ENTITY_MAX)
            .find(|(_, c)| *c == ';')
            .map(|(at, _)| at);
        match end.and_then(|end| Some((entity(&after[..end])?, end))) {
            Some((character, end)) => {
                text.push_str(&character);
                rest = &after[end + 1..];
            }
            None => {
                text.push('&');
                rest = after;
            }
        }
    }
    text + rest
}

fn entity(name: &str) -> Option<String> {
    let Some(number) = name.strip_prefix('#') else {
        return ENTITIES
            .iter()
            .find(|(entity, _)| *entity == name)
            .map(|(_, text)| (*text).to_owned());
    };
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => number.parse(),
    };
    char::from_u32(code.ok()?).map(String::from)
}

/// A part of an address, or the pairs of a query.
fn url_encode(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    if !is_list && value.kind() != ValueKind::Map {
        let text = python::text(value);
        pay(state, text.len() as u64 * 3)?;
        return Ok(Value::from(quoted(&text, "/")));
    }
    let mut pairs = Vec::new();
    for entry in value.try_iter()? {
        let (key, value) = match is_list {
            true => (entry.get_item_by_index(0)?, entry.get_item_by_index(1)?),
            false => (entry.clone(), value.get_item(&entry)?),
        };
        let [key, value] =
            [key, value].map(|part| quoted(&python::text(&part), "").replace("%20", "+"));
        pay(state, (key.len() + value.len()) as u64)?;
        pairs.push(format!("{key}={value}"));
    }
    Ok(Value::from(pairs.join("&")))
}

fn quoted(text: &str, also_safe: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        let character = char::from(byte);
        if character.is_ascii_alphanumeric()
            || "_.-~".contains(character)
            || also_safe.contains(character)
        {
            quoted.push(character);
        } else {
            quoted.push_str(&format!("%{byte:02X}"));
        }
    }
    quoted
}

fn word_wrap(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [width, long_words, separator, hyphens] = bind(
        rest,
        [
            "width",
            "break_long_words",
            "wrapstring",
            "break_on_hyphens",
        ],
    )?;
    let width = usize::try_from(integer_or(width, 79)?)
        .ok()
        .filter(|width| *width > 0);
    let width = width
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "the width must be at least 1"))?;
    let separator = separator.filter(|separator| !separator.is_none());
    let separator = separator.map_or_else(|| "\n".to_owned(), |separator| python::text(&separator));
    let wrapping = Wrapping {
        width,
        breaks_long_words: is_on(long_words),
        breaks_on_hyphens: is_on(hyphens),
    };
    let text = python::text(value);
    // A line has a character at least.
    pay(state, text.len() as u64 * (16 + separator.len() as u64))?;
    let lines = lines(state, &text, false)?.into_iter();
    let wrapped: Vec<String> = lines
        .map(|line| python::wrap(line, wrapping).join(&separator))
        .collect();
    Ok(Value::from(wrapped.join(&separator)))
}

/// Of an option that is on unless it is turned off.
fn is_on(option: Option<Value>) -> bool {
    option.is_none_or(|option| option.is_true())
}

/// The attributes of a tag, without those that are none or undefined.
fn xml_attributes(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (map, rest) = subject(arguments)?;
    let [space] = bind(rest, ["autospace"])?;
    if map.kind() != ValueKind::Map {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "xmlattr needs a map",
        ));
    }
    let mut text = String::new();
    for key in map.try_iter()? {
        let value = map.get_item(&key)?;
        if value.is_none() || value.is_undefined() {
            continue;
        }
        let name = python::text(&key);
        if name.contains(|c: char| python::is_space(c) || matches!(c, '/' | '>' | '=')) {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("{name:?} is not the name of an attribute"),
            ));
        }
        let value = if value.is_safe() {
            python::text(&value)
        } else {
            escaped(&python::text(&value))
        };
        let attribute = format!(" {}=\"{value}\"", escaped(&name));
        pay(state, attribute.len() as u64)?;
        text.push_str(&attribute);
    }
    let has_space = is_on(space);
    Ok(Value::from_safe_string(if has_space {
        text
    } else {
        text.trim_start().to_owned()
    }))
}
