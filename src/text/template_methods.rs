//! Python's methods of texts, lists and maps, where minijinja's own lack parameters or differ.

use super::marks::{MARK, MARK_END, without_marks};
use super::python::{bind, integer_or, is_printable, is_space, items_of};
use super::template_format::{formatted, formatted_by_map};
use super::template_limits::{pay, pay_for_text};
use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Cost of an item of a list, as bytes.
const ITEM_BYTES: u64 = 64;
/// Digits zero of the scripts that have decimal digits of their own and are in use.
const ZEROS: [char; 19] = [
    '\u{660}', '\u{6f0}', '\u{7c0}', '\u{966}', '\u{9e6}', '\u{a66}', '\u{ae6}', '\u{b66}',
    '\u{be6}', '\u{c66}', '\u{ce6}', '\u{d66}', '\u{e50}', '\u{ed0}', '\u{f20}', '\u{1040}',
    '\u{17e0}', '\u{1810}', '\u{ff10}',
];

/// A method in the style of Python. The bytes by which a result may exceed its text are paid for there.
pub(super) fn call(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    // As text, as something to compare with, or as the key of a map.
    arguments
        .iter()
        .try_for_each(|argument| pay_for_text(state, argument))?;
    if let Some(text) = value.as_str() {
        pay(state, text.len() as u64)?;
    } else if matches!(name, "count" | "index") {
        pay_for_text(state, value)?;
    }
    let own = match value.as_str() {
        Some(text) if value.kind() == ValueKind::String => of_text(state, text, name, arguments)?,
        _ if value.kind() == ValueKind::Number => of_number(value, name, arguments)?,
        _ => of_container(state, value, name, arguments)?,
    };
    match own {
        Some(result) => Ok(result),
        None => unknown_method_callback(state, value, name, arguments),
    }
}

fn failed(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

fn of_number(value: &Value, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let result = match name {
        "is_integer" => {
            Value::from(value.is_integer() || f64::try_from(value.clone())?.fract() == 0.0)
        }
        "bit_length" if value.is_integer() => {
            let bits = i128::try_from(value.clone())?.unsigned_abs();
            Value::from(u128::BITS - bits.leading_zeros())
        }
        _ => return Ok(None),
    };
    let () = from_args(arguments)?;
    Ok(Some(result))
}

fn of_container(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
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
            let found = items
                .iter()
                .enumerate()
                .take(end)
                .skip(start)
                .find(|(_, item)| Some(*item) == what.as_ref());
            Some(Value::from(
                found
                    .ok_or_else(|| failed("the value is not in the list"))?
                    .0,
            ))
        }
        "decode" => value
            .as_bytes()
            .map(|bytes| Value::from(String::from_utf8_lossy(bytes))),
        // Also of the function `dict`.
        "fromkeys" if matches!(value.kind(), ValueKind::Map | ValueKind::Plain) => {
            let (keys, filling): (Value, Option<Value>) = from_args(arguments)?;
            let filling = filling.unwrap_or_else(|| Value::from(()));
            let mut pairs = Vec::new();
            for key in items_of(&keys)? {
                pay(state, ITEM_BYTES)?;
                pairs.push((key, filling.clone()));
            }
            Some(Value::from_pairs(pairs))
        }
        _ => None,
    })
}

/// The methods of texts that this file defines; `None` for others.
fn of_text(
    state: &State<'_, '_>,
    text: &str,
    name: &str,
    arguments: &[Value],
) -> Result<Option<Value>, Error> {
    if let Some(answer) = tested(text, name) {
        return Ok(Some(answer.into()));
    }
    Ok(Some(match name {
        "find" | "rfind" | "index" | "rindex" | "count" | "startswith" | "endswith" => {
            searched(text, name, arguments)?
        }
        "join" => joined(state, text, arguments)?,
        "strip" | "lstrip" | "rstrip" => stripped(text, name, arguments)?,
        "split" | "rsplit" => split(state, text, name == "rsplit", arguments)?,
        "splitlines" => split_lines(state, text, arguments)?,
        "partition" | "rpartition" => partition(text, name == "rpartition", arguments)?,
        "removeprefix" | "removesuffix" => {
            let affix = affix(arguments)?;
            let rest = match name {
                "removeprefix" => text.strip_prefix(&*affix),
                _ => text.strip_suffix(&*affix),
            };
            Value::from(rest.unwrap_or(text))
        }
        "replace" => with_replacements(state, text, arguments)?,
        "ljust" | "rjust" | "center" => justified(state, text, name, arguments)?,
        "zfill" => filled_with_zeros(state, text, arguments)?,
        "title" => Value::from(title(text)),
        "swapcase" => Value::from(text.chars().map(swapped).collect::<String>()),
        "casefold" => Value::from(text.chars().map(folded).collect::<String>()),
        "encode" => Value::from_bytes(text.as_bytes().to_vec()),
        "expandtabs" => expand_tabs(state, text, arguments)?,
        "format" => formatted(state, text, arguments)?,
        "format_map" => formatted_by_map(state, text, arguments)?,
        "maketrans" => translation(arguments)?,
        "translate" => translated(state, text, arguments)?,
        _ => return Ok(None),
    }))
}

/// What a method whose name begins with `is` answers; `None` for others.
fn tested(text: &str, name: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !text.is_empty() && text.chars().all(is);
    Some(match name {
        "isspace" => all(is_space),
        "isdecimal" => all(is_decimal),
        "isdigit" => all(|c| is_decimal(c) || is_small_digit(c)),
        "isnumeric" => all(is_numeric),
        "isidentifier" => is_identifier(text),
        "isprintable" => text.chars().all(is_printable),
        "istitle" => text.chars().any(char::is_alphabetic) && text == title(text),
        _ => return None,
    })
}

fn with_replacements(
    state: &State<'_, '_>,
    text: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let [old, new, count] = bind(arguments, ["old", "new", "count"])?;
    let [Some(old), Some(new)] = [&old, &new].map(|text| text.as_ref().and_then(Value::as_str))
    else {
        return Err(failed("replace needs two texts"));
    };
    let texts = [text, old, new].map(str::to_owned);
    replaced(state, &texts, integer_or(count, -1)?)
}

/// `ljust`, `rjust` and `center`.
fn justified(
    state: &State<'_, '_>,
    text: &str,
    name: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let [width, fill] = bind(arguments, ["width", "fillchar"])?;
    let fill = fill.as_ref().and_then(Value::as_str);
    let fill = fill.and_then(|fill| fill.chars().next()).unwrap_or(' ');
    let sides = [name != "ljust", name != "rjust"];
    let width = width.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    aligned(state, text, i64::try_from(width)?, fill, sides)
}

/// `zfill`: zeros between a sign and the digits.
fn filled_with_zeros(
    state: &State<'_, '_>,
    text: &str,
    arguments: &[Value],
) -> Result<Value, Error> {
    let (width,): (i64,) = from_args(arguments)?;
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = &text[..text.len() - digits.len()];
    let width = width.saturating_sub(sign.len() as i64);
    let filled = aligned(state, digits, width, '0', [true, false])?;
    Ok(Value::from(format!("{sign}{filled}")))
}

/// A range of characters or items, as a slice of Python has it.
fn bounds(len: usize, start: Option<Value>, end: Option<Value>) -> Result<(usize, usize), Error> {
    let count = len as i64;
    let absolute = |at: i64| (if at < 0 { (at + count).max(0) } else { at }) as usize;
    Ok((
        absolute(integer_or(start, 0)?),
        absolute(integer_or(end, count)?).min(len),
    ))
}

/// `find` and its relatives, within a range of characters.
fn searched(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [what, start, end] = bind(arguments, ["sub", "start", "end"])?;
    let what = what.ok_or_else(|| Error::from(ErrorKind::MissingArgument))?;
    let (start, end) = match (&start, &end) {
        (None, None) => (0, usize::MAX),
        _ => bounds(text.chars().count(), start, end)?,
    };
    let byte = |at: usize| {
        text.char_indices()
            .nth(at)
            .map_or(text.len(), |(byte, _)| byte)
    };
    let is_inside = start <= end && (start == 0 || start <= text.chars().count());
    let range = if is_inside {
        &text[byte(start)..byte(end)]
    } else {
        ""
    };
    if matches!(name, "startswith" | "endswith") {
        let range = without_marks(range);
        let fits = |affix: &str| match name {
            "startswith" => range.starts_with(&*without_marks(affix)),
            _ => range.ends_with(&*without_marks(affix)),
        };
        return match what.as_str() {
            Some(affix) => Ok(Value::from(is_inside && fits(affix))),
            None => Ok(Value::from(
                is_inside
                    && what
                        .try_iter()?
                        .any(|affix| affix.as_str().is_some_and(fits)),
            )),
        };
    }
    let what = what
        .as_str()
        .ok_or_else(|| failed("the argument is not a text"))?;
    if name == "count" {
        return Ok(Value::from(if is_inside {
            range.matches(what).count()
        } else {
            0
        }));
    }
    let found = if name.starts_with('r') {
        range.rfind(what)
    } else {
        range.find(what)
    };
    match found {
        Some(at) if is_inside => Ok(Value::from(start + range[..at].chars().count())),
        _ if name.ends_with("find") => Ok(Value::from(-1)),
        _ => Err(failed("substring not found")),
    }
}

fn is_decimal(character: char) -> bool {
    character.is_ascii_digit()
        || ZEROS
            .iter()
            .any(|zero| (*zero as u32..*zero as u32 + 10).contains(&(character as u32)))
}

/// A superscript or a subscript.
fn is_small_digit(character: char) -> bool {
    matches!(character, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}')
}

fn is_identifier(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || c == '_')
        && text.chars().next().is_some_and(|c| !c.is_numeric())
}

fn affix(arguments: &[Value]) -> Result<String, Error> {
    let (affix,): (&str,) = from_args(arguments)?;
    Ok(affix.to_owned())
}

/// `separator.join(texts)`.
fn joined(state: &State<'_, '_>, separator: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (list,): (Value,) = from_args(arguments)?;
    let mut joined = String::new();
    for (index, item) in items_of(&list)?.enumerate() {
        let text = item
            .as_str()
            .ok_or_else(|| failed("only texts are joined"))?;
        pay(state, (separator.len() + text.len()) as u64)?;
        if index > 0 {
            joined.push_str(separator);
        }
        joined.push_str(text);
    }
    Ok(Value::from(joined))
}

fn stripped(text: &str, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (characters,): (Option<&str>,) = from_args(arguments)?;
    Ok(Value::from(trimmed(
        text,
        characters,
        [name != "rstrip", name != "lstrip"],
    )))
}

/// A text without these characters (white space if there are none) at these sides. The mark that a text lost its other
/// one to, because it was split at a special string, does not count.
pub(super) fn trimmed<'a>(
    text: &'a str,
    characters: Option<&str>,
    [start, end]: [bool; 2],
) -> &'a str {
    let goes =
        |c: char| characters.map_or_else(|| is_space(c), |characters| characters.contains(c));
    let text = if start {
        text.trim_start_matches(|c| goes(c) || c == MARK_END)
    } else {
        text
    };
    if end {
        text.trim_end_matches(|c| goes(c) || c == MARK)
    } else {
        text
    }
}

fn split(
    state: &State<'_, '_>,
    text: &str,
    from_right: bool,
    arguments: &[Value],
) -> Result<Value, Error> {
    let [separator, count] = bind(arguments, ["sep", "maxsplit"])?;
    let count = usize::try_from(integer_or(count, -1)?).unwrap_or(usize::MAX);
    let separator = separator.filter(|separator| !separator.is_none());
    let pieces: Vec<&str> = match &separator {
        Some(separator) => {
            let separator = separator.as_str().filter(|separator| !separator.is_empty());
            let separator = separator.ok_or_else(|| failed("split needs a separator"))?;
            pay(
                state,
                (1 + text.matches(separator).count() as u64).saturating_mul(ITEM_BYTES),
            )?;
            match from_right {
                true => text.rsplitn(count.saturating_add(1), separator).collect(),
                false => text.splitn(count.saturating_add(1), separator).collect(),
            }
        }
        None => {
            pay(
                state,
                (1 + text.len() as u64 / 2).saturating_mul(ITEM_BYTES),
            )?;
            words(text, count, from_right)
        }
    };
    let pieces = pieces.into_iter().map(Value::from);
    Ok(if from_right {
        pieces.rev().collect()
    } else {
        pieces.collect()
    })
}

/// Words between white space, of which at most `count` are split off. The rest keeps its white space at the end.
fn words<'a>(text: &'a str, count: usize, from_right: bool) -> Vec<&'a str> {
    let mut words = Vec::new();
    let trimmed = |text: &'a str| {
        if from_right {
            text.trim_end_matches(is_space)
        } else {
            text.trim_start_matches(is_space)
        }
    };
    let mut rest = trimmed(text);
    while !rest.is_empty() {
        let cut = match from_right {
            true => rest
                .rfind(is_space)
                .map(|at| at + rest[at..].chars().next().map_or(0, char::len_utf8)),
            false => rest.find(is_space),
        };
        let (word, others) = match cut {
            Some(at) if words.len() < count && from_right => (&rest[at..], trimmed(&rest[..at])),
            Some(at) if words.len() < count => (&rest[..at], trimmed(&rest[at..])),
            _ => (rest, ""),
        };
        words.push(word);
        rest = others;
    }
    words
}

fn split_lines(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [keep] = bind(arguments, ["keepends"])?;
    let keep = keep.is_some_and(|keep| keep.is_true());
    Ok(lines(state, text, keep)?
        .into_iter()
        .map(Value::from)
        .collect())
}

/// `str.splitlines`, with or without the ends of the lines.
pub(super) fn lines<'a>(
    state: &State<'_, '_>,
    text: &'a str,
    keep: bool,
) -> Result<Vec<&'a str>, Error> {
    pay(
        state,
        (1 + text.matches(ends_a_line).count() as u64).saturating_mul(ITEM_BYTES),
    )?;
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let len = rest.find(ends_a_line).unwrap_or(rest.len());
        let behind = &rest[len..];
        let end = if behind.starts_with("\r\n") {
            2
        } else {
            behind.chars().next().map_or(0, char::len_utf8)
        };
        lines.push(&rest[..if keep { len + end } else { len }]);
        rest = &rest[len + end..];
    }
    Ok(lines)
}

fn ends_a_line(c: char) -> bool {
    matches!(c, '\n'..='\r' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn partition(text: &str, from_right: bool, arguments: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(arguments)?;
    if separator.is_empty() {
        return Err(failed("partition needs a separator"));
    }
    let found = if from_right {
        text.rsplit_once(separator)
    } else {
        text.split_once(separator)
    };
    let parts = match found {
        Some((before, after)) => [before, separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Tuple::from(parts.map(Value::from)).into())
}

/// The first text with the second replaced by the third, at most `count` times unless that is negative.
pub(super) fn replaced(
    state: &State<'_, '_>,
    texts: &[String; 3],
    count: i64,
) -> Result<Value, Error> {
    let [text, old, new] = texts;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let times = text.matches(old.as_str()).count().min(count) as u64;
    pay(
        state,
        times
            .saturating_mul(new.len() as u64)
            .saturating_add(text.len() as u64),
    )?;
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
    pay(
        state,
        (missing as u64)
            .saturating_mul(fill.len_utf8() as u64)
            .saturating_add(text.len() as u64),
    )?;
    let left = match sides {
        // As CPython divides an odd number.
        [true, true] => missing / 2 + (missing & width & 1),
        [true, false] => missing,
        [false, _] => 0,
    };
    let filling = |count: usize| fill.to_string().repeat(count);
    Ok(Value::from(format!(
        "{}{text}{}",
        filling(left),
        filling(missing - left)
    )))
}

/// Capitalizes every run of letters.
fn title(text: &str) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut in_word = false;
    for character in text.chars() {
        match in_word {
            true => titled.extend(character.to_lowercase()),
            false => titled.push_str(&capital(character)),
        }
        in_word = character.is_alphabetic();
    }
    titled
}

/// A character as a capital. Of several that it may become, only the first is one.
fn capital(character: char) -> String {
    let mut upper = character.to_uppercase();
    let first = upper.next();
    first
        .into_iter()
        .chain(upper.flat_map(char::to_lowercase))
        .collect()
}

fn swapped(character: char) -> String {
    if character.is_uppercase() {
        character.to_lowercase().collect()
    } else {
        character.to_uppercase().collect()
    }
}

/// A character without differences of case. The dotless i keeps its own.
fn folded(character: char) -> String {
    let lower = character.to_lowercase();
    if character == 'ı' {
        lower.collect()
    } else {
        lower
            .flat_map(char::to_uppercase)
            .flat_map(char::to_lowercase)
            .collect()
    }
}

/// A digit, a fraction, a number of letters, or a Chinese numeral.
fn is_numeric(character: char) -> bool {
    character.is_numeric()
        || "一二三四五六七八九十百千万亿億兆零〇两兩壹贰貳叁參肆伍陆陸柒捌玖拾佰仟萬廿卅"
            .contains(character)
}

/// Spaces in the place of tabs, up to the next column that is a multiple of the size.
fn expand_tabs(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let [size] = bind(arguments, ["tabsize"])?;
    let size = usize::try_from(integer_or(size, 8)?).unwrap_or(0);
    let tabs = text.matches('\t').count() as u64;
    pay(
        state,
        tabs.saturating_mul(size as u64)
            .saturating_add(text.len() as u64),
    )?;
    let (mut expanded, mut column) = (String::new(), 0);
    for character in text.chars() {
        match character {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                expanded.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            '\t' => {}
            '\n' | '\r' => {
                expanded.push(character);
                column = 0;
            }
            _ => {
                expanded.push(character);
                column += 1;
            }
        }
    }
    Ok(Value::from(expanded))
}

/// `str.maketrans`: a map of the numbers of characters, for `translate`.
fn translation(arguments: &[Value]) -> Result<Value, Error> {
    if let [map] = arguments
        && map.kind() == ValueKind::Map
    {
        let mut pairs = Vec::new();
        for key in map.try_iter()? {
            let code = match key.as_str() {
                Some(text) => text
                    .chars()
                    .next()
                    .map(number)
                    .ok_or_else(|| failed("a key has no character"))?,
                None => key.clone(),
            };
            pairs.push((code, map.get_item(&key)?));
        }
        return Ok(Value::from_pairs(pairs));
    }
    let (from, to, removed): (&str, &str, Option<&str>) = from_args(arguments)?;
    if from.chars().count() != to.chars().count() {
        return Err(failed("maketrans needs texts of the same length"));
    }
    let pairs = from
        .chars()
        .zip(to.chars())
        .map(|(from, to)| (number(from), number(to)));
    let removed = removed
        .into_iter()
        .flat_map(str::chars)
        .map(|character| (number(character), Value::from(())));
    Ok(Value::from_pairs(pairs.chain(removed)))
}

fn number(character: char) -> Value {
    Value::from(character as u32)
}

/// Characters by a map of their numbers: to a text, to the number of another, or to nothing.
fn translated(state: &State<'_, '_>, text: &str, arguments: &[Value]) -> Result<Value, Error> {
    let (map,): (Value,) = from_args(arguments)?;
    let mut translated = String::new();
    for character in text.chars() {
        let value = map.get_item(&Value::from(character as u32))?;
        if value.is_undefined() {
            translated.push(character);
        } else if let Some(text) = value.as_str() {
            pay(state, text.len() as u64)?;
            translated.push_str(text);
        } else if !value.is_none() {
            let code = u32::try_from(value)?;
            translated.push(
                char::from_u32(code)
                    .ok_or_else(|| failed("a number is not that of a character"))?,
            );
        }
    }
    Ok(Value::from(translated))
}
