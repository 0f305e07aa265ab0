//! Python's methods of texts, lists and maps, where minijinja's own lack parameters or differ.

use super::marks::{MARK, MARK_END, without_marks};
use super::python::{self, bind, integer_or, is_space};
use super::template_limits::{pay, pay_for_text};
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Cost of an item of a list, as bytes.
const ITEM_BYTES: u64 = 64;
/// Digits zero of the scripts that have decimal digits of their own and are in use.
const ZEROS: [char; 19] = [
    '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}', '\u{be6}', '\u{c66}',
    '\u{ce6}', '\u{d66}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}', '\u{17e0}', '\u{1810}', '\u{ff10}',
];

/// A method in the style of Python, paid for in advance.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    // As text, as something to compare with, or as the key of a map.
    arguments.iter().try_for_each(|argument| pay_for_text(state, argument))?;
    if let Some(text) = value.as_str() {
        pay(state, result_bytes(text, name, arguments))?;
    } else if matches!(name, "count" | "index") {
        pay_for_text(state, value)?;
    }
    let own = match value.as_str() {
        Some(text) => of_text(state, text, name, arguments)?,
        None => of_container(value, name, arguments)?,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, name, arguments),
    }
}

/// Bytes of the largest result of a method of a text that does not pay itself.
fn result_bytes(text: &str, name: &str, arguments: &[Value]) -> u64 {
    let bytes = text.len() as u64;
    let product = |count: usize, bytes: usize| (count as u64).saturating_mul(bytes as u64);
    match name {
        "join" => arguments.first().and_then(Value::len).map_or(0, |count| product(count, text.len())),
        // A field may be repeated.
        "format" => {
            let widths = widths(text, arguments);
            let longest = arguments.iter().filter_map(|argument| argument.as_str().map(str::len)).max().unwrap_or(0);
            bytes.saturating_add(widths).saturating_add(product(text.matches('{').count(), longest))
        }
        _ => bytes,
    }
}

/// The sum of what may be widths of fields: numbers in a pattern, and values that it takes as widths.
pub(super) fn widths(pattern: &str, values: &[Value]) -> u64 {
    let numbers = pattern.split(|character: char| !character.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let numbers = numbers.map(|digits| digits.parse().unwrap_or(u64::MAX));
    let takes_widths = pattern.contains('*') || pattern.contains(":{");
    let values = values.iter().filter(|_| takes_widths);
    let values = values.filter_map(|value| i128::try_from(value.clone()).ok());
    let values = values.map(|value| u64::try_from(value.unsigned_abs()).unwrap_or(u64::MAX));
    numbers.chain(values).fold(0, u64::saturating_add)
}

fn failed(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn of_container(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let is_list = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    Ok(match name {
        "copy" if is_list || value.kind() == ValueKind::Map => {
            let () = from_args(arguments)?;
            Some(value.clone())
        }
        "index" if is_list => {
            let [what, start, end] = bind(arguments, ["value", "start", "stop"])?;
            let items: Vec<Value> = value.try_iter()?.collect();
            let (start, end) = bounds(items.len(), start, end)?;
            let found = items.iter().enumerate().take(end).skip(start).find(|(_, item)| Some(*item) == what.as_ref());
            Some(Value::from(found.ok_or_else(|| failed("the value is not in the list"))?.0))
        }
        _ => None,
    })
}

/// The methods of texts that this file defines; `None` for others.
fn of_text(state: &State<'_, '_>, text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            return searched(text, name, arguments).map(Some);
        }
        "isspace" => Value::from(!text.is_empty() && text.chars().all(is_space)),
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(is_decimal)),
        "isdigit" => Value::from(!text.is_empty() && text.chars().all(|c| is_decimal(c) || is_small_digit(c))),
        "isidentifier" => Value::from(is_identifier(text)),
        "strip" | "lstrip" | "rstrip" => stripped(text, name, arguments)?,
        "split" | "rsplit" => split(state, text, name == "rsplit", arguments)?,
        "splitlines" => split_lines(state, text, arguments)?,
        "partition" | "rpartition" => partition(text, name == "rpartition", arguments)?,
        "removeprefix" => Value::from(text.strip_prefix(affix(arguments)?.as_str()).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(affix(arguments)?.as_str()).unwrap_or(text)),
        "replace" => {
            let [old, new, count] = bind(arguments, ["old", "new", "count"])?;
            let [Some(old), Some(new)] = [&old, &new].map(|text| text.as_ref().and_then(Value::as_str)) else {
                return Err(failed("replace needs two texts"));
            };
            replaced(state, &[text, old, new].map(str::to_owned), integer_or(count, -1)?)?
        }
        "ljust" | "rjust" | "center" => {
            let [width, fill] = bind(arguments, ["width", "fillchar"])?;
            let fill = fill.as_ref().and_then(Value::as_str).and_then(|fill| fill.chars().next()).unwrap_or(' ');
            let sides = [name != "ljust", name != "rjust"];
            let width = width.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
            aligned(state, text, i64::try_from(width)?, fill, sides)?
        }
        "zfill" => {
            let (width,): (i64,) = from_args(arguments)?;
            let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
            let sign = &text[..text.len() - digits.len()];
            let filled = aligned(state, digits, width.saturating_sub(sign.len() as i64), '0', [true, false])?;
            Value::from(format!("{sign}{filled}"))
        }
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(text.chars().map(swapped).collect::<String>()),
        "casefold" => Value::from(text.to_lowercase().replace('ß', "ss")),
        "format" => return formatted(text, arguments).map(Some),
        _ => return Ok(None),
    }))
}

/// A range of characters or items, as a slice of Python has it.
fn bounds(len: usize, start: Option<Value>, end: Option<Value>) -> Result<(usize, usize), Error> {
    let count = len as i64;
    let absolute = |at: i64| (if at < 0 { (at + count).max(0) } else { at }) as usize;
    Ok((absolute(integer_or(start, 0)?), absolute(integer_or(end, count)?).min(len)))
}

/// `find` and its relatives, within a range of characters.
fn searched(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [what, start, end] = bind(arguments, ["sub", "start", "end"])?;
    let what = what.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let (start, end) = match (&start, &end) {
        (None, None) => (0, usize::MAX),
        _ => bounds(text.chars().count(), start, end)?,
    };
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    let is_inside = start <= end && (start == 0 || start <= text.chars().count());
    let range = if is_inside { &text[byte(start)..byte(end)] } else { "" };
    if matches!(name, "startswith" | "endswith") {
        let range = without_marks(range);
        let fits = |affix: &str| match name {
            "startswith" => range.starts_with(&*without_marks(affix)),
            _ => range.ends_with(&*without_marks(affix)),
        };
        return match what.as_str() {
            Some(affix) => Ok(Value::from(is_inside && fits(affix))),
            None => Ok(Value::from(is_inside && what.try_iter()?.any(|affix| affix.as_str().is_some_and(fits)))),
        };
    }
    let what = what.as_str().ok_or_else(|| failed("the argument is not a text"))?;
    if name == "count" {
        return Ok(Value::from(if is_inside { range.matches(what).count() } else { 0 }));
    }
    let found = if name.starts_with('r') { range.rfind(what) } else { range.find(what) };
    match found.filter(|_| is_inside) {
        Some(at) => Ok(Value::from(start + range[..at].chars().count())),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(failed("substring not found")),
    }
}

fn is_decimal(character: char) -> bool {
    character.is_ascii_digit()
        || ZEROS.iter().any(|zero| (*zero as u32..*zero as u32 + 10).contains(&(character as u32)))
}

/// A superscript or a subscript.
fn is_small_digit(character: char) -> bool {
    matches!(character, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}')
}

fn is_identifier(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_') && text.chars().next().is_some_and(|c| !c.is_numeric())
}

fn affix(arguments: &[Value]) -> Result<String, Error> {
    let (affix,): (&str,) = from_args(arguments)?;
    Ok(affix.to_owned())
}

fn stripped(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(Value::from(trimmed(text, characters, [name != "rstrip", name != "lstrip"])))
}

/// A text without these characters (white space if there are none) at these sides. The mark that a text lost its other
/// one to, because it was split at a special string, does not count.
pub(super) fn trimmed<'a>(text: &'a str, characters: Option<&str>, [start, end]: [bool; 2]) -> &'a str {
    let goes = |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start { text.trim_start_matches(|c| goes(c) || c == MARK_END) } else { text };
    if end { text.trim_end_matches(|c| goes(c) || c == MARK) } else { text }
}

fn split(state: &State<'_, '_>, text: &str, from_right: bool, arguments: &[Value]) -> Result<Value, Error> {
    let [separator, count] = bind(arguments, ["sep", "maxsplit"])?;
    let count = usize::try_from(integer_or(count, -1)?).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let pieces: Vec<&str> = match &separator {
        Some(separator) => {
            let separator = separator.as_str().filter(|separator| !separator.is_empty());
            let separator = separator.ok_or_else(|| failed("split needs a separator"))?;
            pay(state, (1 + text.matches(separator).count() as u64).saturating_mul(ITEM_BYTES))?;
            match from_right {
                true => text.rsplitn(count.saturating_add(1), separator).collect(),
                false => text.splitn(count.saturating_add(1), separator).collect(),
            }
        }
        None => {
            pay(state, (1 + text.len() as u64 / 2).saturating_mul(ITEM_BYTES))?;
            words(text, count, from_right)
        }
    };
    let pieces = pieces.into_iter().map(Value::from);
    Ok(if from_right { pieces.rev().collect() } else { pieces.collect() })
}

/// Words between white space, of which at most `count` are split off. What is left keeps its white space at the end.
fn words<'a>(text: &'a str, count: usize, from_right: bool) -> Vec<&'a str> {
    let mut words = Vec::new();
    let trimmed =
        |text: &'a str| if from_right { text.trim_end_matches(is_space) } else { text.trim_start_matches(is_space) };
    let mut rest = trimmed(text);
    while !rest.is_empty() {
        let cut = match from_right {
            true => rest.rfind(is_space).map(|at| at + rest[at..].chars().next().map_or(0, char::len_utf8)),
            false => rest.find(is_space),
        };
        let (word, others) = match (cut.filter(|_| words.len() < count), from_right) {
            (None, _) => (rest, ""),
            (Some(at), true) => (&rest[at..], trimmed(&rest[..at])),
            (Some(at), false) => (&rest[..at], trimmed(&rest[at..])),
        };
        words.push(word);
        rest = others;
    }
    words
}

fn split_lines(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [keep] = bind(arguments, ["keepends"])?;
    let keep = keep.is_some_and(|keep| keep.is_true());
    let ends = |c: char| matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}');
    pay(state, (1 + text.matches(ends).count() as u64).saturating_mul(ITEM_BYTES))?;
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let len = rest.find(ends).unwrap_or(rest.len());
        let behind = &rest[len..];
        let end = if behind.starts_with("\r\n") { 2 } else { behind.chars().next().map_or(0, char::len_utf8) };
        lines.push(Value::from(&rest[..if keep { len + end } else { len }]));
        rest = &rest[len + end..];
    }
    Ok(Value::from(lines))
}

fn partition(text: &str, from_right: bool, arguments: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(arguments)?;
    if separator.is_empty() {
        return Err(failed("partition needs a separator"));
    }
    let found = if from_right { text.rsplit_once(separator) } else { text.split_once(separator) };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

/// The first text with the second replaced by the third, at most `count` times unless that is negative.
pub(super) fn replaced(state: &State<'_, '_>, texts: &[String; 3], count: i64) -> Result<Value, Error> {
    let [text, old, new] = texts;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let times = text.matches(old.as_str()).count().min(count) as u64;
    pay(state, times.saturating_mul(new.len() as u64).saturating_add(text.len() as u64))?;
    Ok(Value::from(text.replacen(old.as_str(), new, count)))
}

/// A text filled up to `width` characters at these sides: left, right.
pub(super) fn aligned(
    state: &State<'_, '_>,
    text: &str,
    width: i64,
    fill: char,
    sides: [bool; 2],
) -> Result<Value, Error> {
    let count = text.chars().count();
    let width = usize::try_from(width).unwrap_or(0);
    let missing = width.saturating_sub(count);
    pay(state, (missing as u64).saturating_mul(fill.len_utf8() as u64).saturating_add(text.len() as u64))?;
    let left = match sides {
        // As CPython divides an odd number.
        [true, true] => missing / 2 + (missing & width & 1),
        [true, false] => missing,
        [false, _] => 0,
    };
    let filling = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(format!("{}{text}{}", filling(left), filling(missing - left))))
}

/// Capitalizes every run of letters.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut in_word = false;
    for character in text.chars() {
        match in_word {
            true => titled.extend(character.to_lowercase()),
            false => titled.extend(character.to_uppercase()),
        }
        in_word = character.is_alphabetic();
    }
    titled
}

fn swapped(character: char) -> String {
    if character.is_uppercase() { character.to_lowercase().collect() } else { character.to_uppercase().collect() }
}

/// `str.format`. Fields without a format get numbers as Python writes them.
fn formatted(pattern: &str, arguments: &[Value]) -> Result<Value, Error> {
    use minijinja::formatting::{FormatStyle, format};
    if pattern.contains([':', '[', '.', '!']) {
        return format(FormatStyle::StrFormat, pattern, arguments).map(Value::from);
    }
    let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
    let as_text = |value: &Value| Value::from(python::text(value));
    let mut texts: Vec<Value> = positional.iter().map(as_text).collect();
    let names: Vec<&str> = named.args().collect();
    if !names.is_empty() {
        let pairs: Result<Vec<_>, Error> =
            names.into_iter().map(|name| Ok((name, as_text(&named.get::<Value>(name)?)))).collect();
        texts.push(pairs?.into_iter().collect::<Kwargs>().into());
    }
    format(FormatStyle::StrFormat, pattern, &texts).map(Value::from)
}
