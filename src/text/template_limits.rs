//! Bounds for what a hostile template can make out of small values.
//!
//! Fuel pays for instructions and for the bytes that they produce. But lists can share their items: sixty assignments
//! of `[a, a]` make a value of a few kilobytes whose text has 2^60 items. Nor does fuel know what methods in the style
//! of Python produce. So a value is measured here before it becomes text or is compared, and a method's result is paid
//! for in advance.
//!
//! Not bounded are the operators that minijinja applies to such lists itself, where nothing can be put in between: `~`,
//! `+`, `in`, comparisons, and a list as the key in `{…}` and `[…]`.

use minijinja::functions::Function;
use minijinja::value::{FunctionArgs, FunctionResult, Rest, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters, tests};
use std::io;

/// Bytes that one fuel pays for.
const BYTES_PER_FUEL: u64 = 64;
/// Cost of an item, as bytes: its place in a list, and its commas and brackets as text.
const ITEM_BYTES: u64 = 64;
/// Maximum depth of lists in lists that become text. Deeper than any JSON that a request may send.
const DEPTH_MAX: u32 = 200;

/// Pays for `bytes` bytes.
pub(super) fn pay(state: &State<'_, '_>, bytes: u64) -> Result<(), Error> {
    state.consume_fuel(bytes.div_ceil(BYTES_PER_FUEL))
}

/// Pays for the text of a value. Fails if the fuel does not last, or if lists are nested too deeply. Only lists and
/// maps cost anything: a string exists already.
pub(super) fn pay_for_text(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.as_object().is_none() {
        return Ok(());
    }
    let mut bytes = 0;
    add_text_bytes(value, bytes_left(state), DEPTH_MAX, &mut bytes)?;
    pay(state, bytes)
}

/// Bytes that the rest of the fuel pays for.
pub(super) fn bytes_left(state: &State<'_, '_>) -> u64 {
    state
        .fuel_levels()
        .map_or(u64::MAX, |(_, left)| left.saturating_mul(BYTES_PER_FUEL))
}

/// Adds the size of a value's text to `bytes`, and stops soon after that exceeds `left`.
fn add_text_bytes(value: &Value, left: u64, depth: u32, bytes: &mut u64) -> Result<(), Error> {
    *bytes += ITEM_BYTES + value.as_str().map_or(0, |text| text.len() as u64);
    if *bytes > left || value.as_object().is_none() {
        return Ok(());
    }
    let Some(depth) = depth.checked_sub(1) else {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "lists are nested too deeply",
        ));
    };
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter().into_iter().flatten() {
        if *bytes > left {
            break;
        }
        if is_map {
            add_text_bytes(&value.get_item(&item)?, left, depth, bytes)?;
        }
        add_text_bytes(&item, left, depth, bytes)?;
    }
    Ok(())
}

/// Replaces the filters that turn a list into text, or compare lists, by ones that pay for it first. Removes what is
/// neither paid for nor part of Jinja.
pub(super) fn guard_filters(environment: &mut Environment<'_>) {
    environment.remove_global("debug");
    environment.remove_filter("chain");
    guard(environment, "capitalize", filters::capitalize);
    guard(environment, "lines", filters::lines);
    guard(environment, "lower", filters::lower);
    guard(environment, "split", filters::split);
    guard(environment, "title", filters::title);
    guard(environment, "upper", filters::upper);
}

fn guard<F, Rv, Args>(environment: &mut Environment<'_>, name: &'static str, filter: F)
where
    F: Function<Rv, Args>,
    Rv: FunctionResult,
    Args: for<'a> FunctionArgs<'a>,
{
    let filter = Value::from_function(filter);
    environment.add_filter(
        name,
        move |state: &mut State<'_, '_>, arguments: Rest<ValueOrKwargs>| {
            let arguments = arguments.into_values();
            arguments
                .iter()
                .try_for_each(|argument| pay_for_text(state, argument))?;
            filter.call(state, &arguments)
        },
    );
}

/// Replaces the tests that compare lists, also by the names of operators, by ones that pay for it first.
pub(super) fn guard_tests(environment: &mut Environment<'_>) {
    let comparisons: [(&[&str], Value); 7] = [
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (
            &["gt", "greaterthan", ">"],
            Value::from_function(tests::is_gt),
        ),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
    ];
    for (names, test) in comparisons {
        for name in names {
            let test = test.clone();
            environment.add_test(
                *name,
                move |state: &mut State<'_, '_>, arguments: Rest<Value>| {
                    arguments
                        .iter()
                        .try_for_each(|argument| pay_for_text(state, argument))?;
                    test.call(state, &arguments).map(|value| value.is_true())
                },
            );
        }
    }
}

/// A writer that fails after more than `bytes_max` bytes.
pub(super) struct Capped {
    /// What was written.
    pub(super) bytes: Vec<u8>,
    bytes_max: usize,
    /// Whether more was written than fits.
    pub(super) full: bool,
}

impl Capped {
    /// A writer of at most `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes: Vec::new(),
            bytes_max,
            full: false,
        }
    }
}

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.bytes_max {
            self.full = true;
            return Err(io::Error::other("the size limit is reached"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
