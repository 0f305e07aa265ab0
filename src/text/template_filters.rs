//! Jinja2's filters, tests and functions where minijinja's differ: in their parameters, in what they make of values
//! that they cannot read, or in how they write numbers.

use super::python::{
    self, Filter, LongInteger, bind, bound_values, decimal, integer_or, is_of_type, is_space,
    is_true, items_of, refuse_none, subject, without_underscores,
};
use super::template_limits::{pay, pay_for_text};
use super::template_methods::{aligned, lines, replaced, trimmed};
use super::{template_format, template_html, template_source};
use minijinja::value::{Kwargs, Object, Rest, Tuple, Value, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters, functions, tests};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

type Arguments = Rest<ValueOrKwargs>;
/// Adds all filters, tests and functions of this file.
pub(super) fn add(environment: &mut Environment<'_>) {
    add_renamed(environment);
    add_filters_of_lists(environment);
    let own: [(&'static str, Filter); 16] = [
        ("abs", abs),
        ("attr", attribute),
        ("center", center),
        ("float", float),
        ("format", format),
        ("indent", indent),
        ("int", int),
        ("join", join),
        ("pprint", pretty),
        ("replace", replace),
        ("string", string),
        ("trim", trim),
        ("wordcount", word_count),
        (template_source::ITEMS, items),
        (template_source::PERCENT, percent),
        (template_source::STR, string),
    ];
    for (name, filter) in own.into_iter().chain(template_html::FILTERS) {
        environment.add_filter(
            name,
            move |state: &mut State<'_, '_>, arguments: Arguments| {
                let arguments = arguments.into_values();
                arguments
                    .iter()
                    .try_for_each(|argument| pay_for_text(state, argument))?;
                filter(state, &arguments)
            },
        );
    }
    environment.add_filter("map", map);
    environment.add_filter(
        "tojson",
        |state: &mut State<'_, '_>, arguments: Arguments| {
            python::tojson(state, &arguments.into_values())
        },
    );
    environment.add_test("callable", is_callable);
    environment.add_test("divisibleby", is_divisible);
    environment.add_test("int", |value: Value| {
        tests::is_integer(&value) || is_long(&value)
    });
    environment.add_test("integer", |value: Value| {
        tests::is_integer(&value) || is_long(&value)
    });
    environment.add_test("iterable", is_iterable);
    environment.add_test("mapping", |value: Value| is_map(&value));
    environment.add_test("number", |value: Value| {
        tests::is_number(&value) || is_long(&value)
    });
    environment.add_test("sequence", is_sequence);
    environment.add_function("cycler", cycler);
    environment.add_function("dict", dict);
    environment.add_function("joiner", joiner);
    environment.add_function(
        "namespace",
        |state: &mut State<'_, '_>, arguments: Arguments| {
            let values = dict(state, arguments)?;
            Value::from_function(functions::namespace).call(state, &[values])
        },
    );
}

/// Filters of minijinja that take none for an empty list, as Jinja2 does not.
fn add_filters_of_lists(environment: &mut Environment<'_>) {
    let filters = [
        ("groupby", Value::from_function(filters::groupby)),
        ("list", Value::from_function(filters::list)),
        ("sum", Value::from_function(filters::sum)),
    ];
    for (name, filter) in filters {
        environment.add_filter(
            name,
            move |state: &mut State<'_, '_>, arguments: Arguments| {
                let arguments = arguments.into_values();
                refuse_none(subject(&arguments)?.0)?;
                filter.call(state, &arguments)
            },
        );
    }
}

/// A filter of minijinja, and the parameters that it has in Jinja2.
struct Renamed {
    name: &'static str,
    filter: Value,
    parameters: &'static [&'static str],
    /// minijinja's filter takes only keyword arguments; otherwise, only positional ones.
    by_keyword: bool,
}

impl Renamed {
    fn by_keyword(name: &'static str, filter: Value, parameters: &'static [&'static str]) -> Self {
        Self {
            name,
            filter,
            parameters,
            by_keyword: true,
        }
    }

    fn by_position(name: &'static str, filter: Value, parameters: &'static [&'static str]) -> Self {
        Self {
            by_keyword: false,
            ..Self::by_keyword(name, filter, parameters)
        }
    }

    fn call(&self, state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
        arguments
            .iter()
            .try_for_each(|argument| pay_for_text(state, argument))?;
        let (value, rest) = subject(arguments)?;
        let bound = bound_values(rest, self.parameters)?;
        if !matches!(self.name, "default" | "d" | "truncate") {
            refuse_none(value)?;
        }
        let mut call = vec![value.clone()];
        if self.by_keyword {
            let given = self
                .parameters
                .iter()
                .zip(bound)
                .filter_map(|(name, value)| Some((*name, value?)));
            call.push(given.collect::<Kwargs>().into());
        } else {
            let last = bound.iter().rposition(Option::is_some);
            let given = bound.into_iter().take(last.map_or(0, |last| last + 1));
            call.extend(given.map(|value| value.unwrap_or_else(|| Value::from(""))));
        }
        self.filter.call(state, &call)
    }
}

/// Filters of minijinja whose parameters have other names or places than in Jinja2.
fn renamed() -> [Renamed; 10] {
    let by = &["case_sensitive", "attribute"];
    let default = &["default_value", "boolean"];
    [
        Renamed::by_keyword(
            "sort",
            Value::from_function(filters::sort),
            &["reverse", "case_sensitive", "attribute"],
        ),
        Renamed::by_keyword("unique", Value::from_function(filters::unique), by),
        Renamed::by_keyword("min", Value::from_function(filters::min), by),
        Renamed::by_keyword("max", Value::from_function(filters::max), by),
        Renamed::by_keyword(
            "dictsort",
            Value::from_function(filters::dictsort),
            &["case_sensitive", "by", "reverse"],
        ),
        Renamed::by_keyword(
            "truncate",
            Value::from_function(minijinja_contrib::filters::truncate),
            &["length", "killwords", "end", "leeway"],
        ),
        Renamed::by_position(
            "batch",
            Value::from_function(filters::batch),
            &["linecount", "fill_with"],
        ),
        Renamed::by_position(
            "slice",
            Value::from_function(filters::slice),
            &["slices", "fill_with"],
        ),
        Renamed::by_position("default", Value::from_function(filters::default), default),
        Renamed::by_position("d", Value::from_function(filters::default), default),
    ]
}

fn add_renamed(environment: &mut Environment<'_>) {
    for filter in renamed() {
        environment.add_filter(
            filter.name,
            move |state: &mut State<'_, '_>, arguments: Arguments| {
                filter.call(state, &arguments.into_values())
            },
        );
    }
}

fn missing() -> Error {
    Error::from(ErrorKind::MissingArgument)
}

/// The text of an argument, or what it is when it is not given.
fn text_or(argument: Option<&Value>, default: &str) -> String {
    argument.map_or_else(|| default.to_owned(), python::text)
}

fn center(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [width] = bind(rest, ["width"])?;
    aligned(
        state,
        &python::text(value),
        integer_or(width, 80)?,
        ' ',
        [true, true],
    )
}

/// The absolute value of a number, which true and false are too.
fn abs(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    let number = if value.kind() == ValueKind::Bool {
        Value::from(i32::from(value.is_true()))
    } else {
        value.clone()
    };
    Value::from_function(filters::abs).call(state, &[number])
}

/// An attribute of a value; entries of maps are none.
fn attribute(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value, name] = arguments else {
        return Err(missing());
    };
    if is_map(value) {
        Ok(Value::UNDEFINED)
    } else {
        value.get_item(name)
    }
}

/// Whether the value is a map of Python; macros and namespaces are maps of minijinja too.
fn is_map(value: &Value) -> bool {
    value.kind() == ValueKind::Map && !is_of_type(value, "Namespace") && !is_of_type(value, "Macro")
}

fn refuse_undefined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        Err(Error::from(ErrorKind::UndefinedError))
    } else {
        Ok(())
    }
}

/// `int(value)`, or a default for what is none.
fn int(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [default, base] = bind(rest, ["default", "base"])?;
    refuse_undefined(value)?;
    let base = u32::try_from(integer_or(base, 10)?)
        .ok()
        .filter(|base| (2..=36).contains(base))
        .unwrap_or(10);
    let number = match value.as_str() {
        Some(text) => integer(text, base).or_else(|| decimal(text).map(whole)),
        None => number(value).map(|number| {
            if value.is_integer() {
                value.clone()
            } else {
                whole(number)
            }
        }),
    };
    Ok(number.or(default).unwrap_or_else(|| Value::from(0)))
}

/// A number, which true and false are too.
fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(if value.is_true() { 1.0 } else { 0.0 }),
        _ => f64::try_from(value.clone()).ok(),
    }
}

fn whole(number: f64) -> Value {
    Value::from(number.trunc() as i128)
}

fn integer(text: &str, base: u32) -> Option<Value> {
    let text = text.trim_matches(is_space).to_ascii_lowercase();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let digits = digits.strip_prefix(prefix).unwrap_or(digits);
    let number = i128::from_str_radix(&without_underscores(digits)?, base).ok()?;
    Some(Value::from(sign * number))
}

/// `float(value)`, or a default for what is none.
fn float(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [default] = bind(rest, ["default"])?;
    refuse_undefined(value)?;
    let number = match value.as_str() {
        Some(text) => decimal(text),
        None => number(value),
    };
    Ok(number
        .map(Value::from)
        .or(default)
        .unwrap_or_else(|| Value::from(0.0)))
}

fn format(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let (positional, named): (&[Value], Kwargs) = from_args(rest)?;
    let is_named = named.args().next().is_some();
    let values = if is_named {
        named.into()
    } else {
        Value::from(Tuple::from(positional.to_vec()))
    };
    template_format::percent(state, &python::text(value), &values)
}

fn pretty(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    python::pretty(state, value).map(Value::from)
}

/// Python's `%`: formats a text, or takes the remainder of numbers.
fn percent(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [left, right] = arguments else {
        return Err(missing());
    };
    if let Some(pattern) = left.as_str() {
        return template_format::percent(state, pattern, right);
    }
    let zero = || Error::new(ErrorKind::InvalidOperation, "integer modulo by zero");
    if left.is_integer() && right.is_integer() {
        let (left, right) = (
            i128::try_from(left.clone())?,
            i128::try_from(right.clone())?,
        );
        let remainder = left.checked_rem(right).ok_or_else(zero)?;
        let is_off = remainder != 0 && (remainder < 0) != (right < 0);
        return Ok(Value::from(if is_off {
            remainder + right
        } else {
            remainder
        }));
    }
    let (left, right) = (f64::try_from(left.clone())?, f64::try_from(right.clone())?);
    if right == 0.0 {
        return Err(zero());
    }
    let remainder = left % right;
    let is_off = remainder != 0.0 && (remainder < 0.0) != (right < 0.0);
    Ok(Value::from(if is_off {
        remainder + right
    } else {
        remainder
    }))
}

fn indent(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [width, first, blank] = bind(rest, ["width", "first", "blank"])?;
    if value.is_none() || value.is_undefined() {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "only a text is indented",
        ));
    }
    let text = python::text(value);
    let (first, blank) = (is_true(first), is_true(blank));
    let width = width.unwrap_or_else(|| Value::from(4));
    let spaces = match width.as_str() {
        Some(text) => text.len(),
        None => usize::try_from(i64::try_from(width.clone())?.max(0)).unwrap_or(usize::MAX),
    };
    let ended = text + "\n";
    let lines = lines(state, &ended, false)?;
    pay(
        state,
        (lines.len() as u64)
            .saturating_mul(spaces as u64)
            .saturating_add(ended.len() as u64),
    )?;
    let indent = width
        .as_str()
        .map_or_else(|| " ".repeat(spaces), str::to_owned);
    let indented = lines.into_iter().enumerate().map(|(number, line)| {
        let is_indented = if number == 0 {
            first
        } else {
            blank || !line.is_empty()
        };
        if is_indented {
            format!("{indent}{line}")
        } else {
            line.to_owned()
        }
    });
    Ok(Value::from(indented.collect::<Vec<_>>().join("\n")))
}

fn join(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [separator, attribute] = bind(rest, ["d", "attribute"])?;
    let separator = text_or(separator.as_ref(), "");
    let mut text = String::new();
    for (index, item) in items_of(value)?.enumerate() {
        let item = match attribute.as_ref().filter(|attribute| !attribute.is_none()) {
            Some(attribute) => by_attribute(&item, attribute)?,
            None => item,
        };
        let item = python::text(&item);
        pay(state, (separator.len() + item.len()) as u64)?;
        if index > 0 {
            text.push_str(&separator);
        }
        text.push_str(&item);
    }
    Ok(Value::from(text))
}

fn by_attribute(item: &Value, attribute: &Value) -> Result<Value, Error> {
    match attribute.as_str() {
        Some(path) => {
            path.split('.')
                .try_fold(item.clone(), |value, name| match name.parse::<usize>() {
                    Ok(index) => value.get_item_by_index(index),
                    Err(_) => value.get_attr(name),
                })
        }
        None => item.get_item(attribute),
    }
}

/// What a loop runs over: a list for a text and for what has no known length, so that the loop knows its last item.
fn items(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, _) = subject(arguments)?;
    refuse_none(value)?;
    if value.as_str().is_none() && value.kind() != ValueKind::Iterable {
        return Ok(value.clone());
    }
    let mut list = Vec::new();
    for item in items_of(value)? {
        pay(state, 64)?;
        list.push(item);
    }
    Ok(Value::from(list))
}

fn replace(state: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [old, new, count] = bind(rest, ["old", "new", "count"])?;
    let (old, new) = (old.ok_or_else(missing)?, new.ok_or_else(missing)?);
    let texts = [python::text(value), python::text(&old), python::text(&new)];
    replaced(state, &texts, integer_or(count, -1)?)
}

fn string(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    Ok(if value.as_str().is_some() {
        value.clone()
    } else {
        Value::from(python::text(value))
    })
}

fn trim(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let (value, rest) = subject(arguments)?;
    let [characters] = bind(rest, ["chars"])?;
    let text = python::text(value);
    let characters = characters
        .filter(|characters| !characters.is_none())
        .map(|characters| python::text(&characters));
    Ok(Value::from(trimmed(
        &text,
        characters.as_deref(),
        [true, true],
    )))
}

fn word_count(_: &mut State<'_, '_>, arguments: &[Value]) -> Result<Value, Error> {
    let [value] = arguments else {
        return Err(Error::from(ErrorKind::TooManyArguments));
    };
    let text = python::text(value);
    Ok(Value::from(
        text.split(|c| !template_source::is_word(c))
            .filter(|word| !word.is_empty())
            .count(),
    ))
}

/// `map` by attribute or by filter, whose keyword arguments it passes on.
fn map(state: &mut State<'_, '_>, value: Value, arguments: Arguments) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    let (positional, named): (&[Value], Kwargs) = from_args(&arguments)?;
    let Some((name, rest)) = positional.split_first() else {
        let filter = Value::from_function(filters::map);
        return filter.call(state, &[vec![value], arguments].concat());
    };
    let name = name
        .as_str()
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "map needs a filter's name"))?;
    let mut mapped = Vec::new();
    if value.is_none() {
        return Ok(Value::from(mapped));
    }
    for item in items_of(&value)? {
        pay(state, 64)?;
        let mut call = [&[item], rest].concat();
        if named.args().next().is_some() {
            call.push(named.clone().into());
        }
        mapped.push(state.apply_filter(name, &call)?);
    }
    Ok(Value::from(mapped))
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "a template test's arguments arrive by value"
)]
fn is_callable(value: Value) -> bool {
    let is_function = value.kind() == ValueKind::Plain && value.as_object().is_some();
    is_function && !is_long(&value) || is_of_type(&value, "Macro")
}

fn is_long(value: &Value) -> bool {
    value.downcast_object_ref::<LongInteger>().is_some()
}

/// `value is divisibleby num`.
fn is_divisible(
    state: &mut State<'_, '_>,
    value: Value,
    arguments: Arguments,
) -> Result<bool, Error> {
    let [divisor] = bind(&arguments.into_values(), ["num"])?;
    let divisor = divisor.ok_or_else(missing)?;
    refuse_undefined(&divisor)?;
    Ok(percent(state, &[value, divisor])? == Value::from(0))
}

/// `value is iterable`: false for none; true for an undefined value, which is empty.
#[allow(
    clippy::needless_pass_by_value,
    reason = "a template test's arguments arrive by value"
)]
fn is_iterable(value: Value) -> bool {
    !value.is_none()
        && (value.is_undefined() || value.kind() == ValueKind::String || value.try_iter().is_ok())
}

/// `value is sequence`: a value with a length and items, so also texts and maps.
#[allow(
    clippy::needless_pass_by_value,
    reason = "a template test's arguments arrive by value"
)]
fn is_sequence(value: Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map
    )
}

/// `dict(pairs or map, name=value)`.
#[allow(
    clippy::needless_pass_by_value,
    reason = "a template function's arguments arrive by value"
)]
fn dict(state: &State<'_, '_>, arguments: Arguments) -> Result<Value, Error> {
    let arguments = arguments.into_values();
    arguments
        .iter()
        .try_for_each(|argument| pay_for_text(state, argument))?;
    let (positional, named): (&[Value], Kwargs) = from_args(&arguments)?;
    let mut pairs = Vec::new();
    for entry in positional
        .first()
        .map(Value::try_iter)
        .transpose()?
        .into_iter()
        .flatten()
    {
        let is_map = positional[0].kind() == ValueKind::Map;
        pairs.push(match is_map {
            true => (entry.clone(), positional[0].get_item(&entry)?),
            false => (entry.get_item_by_index(0)?, entry.get_item_by_index(1)?),
        });
    }
    for name in named.args() {
        pairs.push((Value::from(name), named.get(name)?));
    }
    if positional.len() > 1 {
        Err(Error::from(ErrorKind::TooManyArguments))
    } else {
        Ok(Value::from_pairs(pairs))
    }
}

/// `joiner(sep)`: a function that returns nothing at first, and then the separator.
fn joiner(arguments: Arguments) -> Result<Value, Error> {
    let [separator] = bind(&arguments.into_values(), ["sep"])?;
    let separator = separator.unwrap_or_else(|| Value::from(", "));
    let used = AtomicBool::new(false);
    Ok(Value::from_function(move || {
        if used.swap(true, Ordering::Relaxed) {
            separator.clone()
        } else {
            Value::from("")
        }
    }))
}

#[allow(
    clippy::needless_pass_by_value,
    reason = "a template function's arguments arrive by value"
)]
fn cycler(items: Rest<Value>) -> Result<Value, Error> {
    let cycler = Cycler {
        items: items.to_vec(),
        at: AtomicUsize::new(0),
    };
    if cycler.items.is_empty() {
        Err(missing())
    } else {
        Ok(Value::from_object(cycler))
    }
}

/// `cycler(items…)`: has the items in turn.
#[derive(Debug)]
struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Option<Value> {
        self.items.get(self.at.load(Ordering::Relaxed)).cloned()
    }
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        if key.as_str() == Some("current") {
            self.current()
        } else {
            None
        }
    }

    fn call_method(
        self: &Arc<Self>,
        _: &mut State<'_, '_>,
        name: &str,
        _: &[Value],
    ) -> Result<Value, Error> {
        let current = self.current().unwrap_or_default();
        match name {
            "next" => {
                let next = (self.at.load(Ordering::Relaxed) + 1) % self.items.len().max(1);
                self.at.store(next, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(Error::from(ErrorKind::UnknownMethod)),
        }
    }
}
