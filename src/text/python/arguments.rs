//! What filters, tests and functions take: arguments by position and by name, and values to run over.

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, ErrorKind, State};

/// A filter; its first argument is the value before the bar.
pub(in crate::text) type Filter = fn(&mut State<'_, '_>, &[Value]) -> Result<Value, Error>;

/// A filter's value and its other arguments.
pub(in crate::text) fn subject(arguments: &[Value]) -> Result<(&Value, &[Value]), Error> {
    arguments
        .split_first()
        .ok_or_else(|| Error::from(ErrorKind::MissingArgument))
}

/// Arguments by the names of their parameters, as Python binds them.
pub(in crate::text) fn bind<const N: usize>(
    arguments: &[Value],
    names: [&str; N],
) -> Result<[Option<Value>; N], Error> {
    let values = bound_values(arguments, &names)?;
    values
        .try_into()
        .map_err(|_| Error::from(ErrorKind::TooManyArguments))
}

/// [`bind`], for a list of names.
pub(in crate::text) fn bound_values(
    arguments: &[Value],
    names: &[&str],
) -> Result<Vec<Option<Value>>, Error> {
    let (positional, named): (&[Value], Kwargs) = from_args(arguments)?;
    if positional.len() > names.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let bound = names
        .iter()
        .enumerate()
        .map(|(index, name)| match positional.get(index) {
            Some(value) => Ok(Some(value.clone())),
            None if named.has(name) => named.get(name).map(Some),
            None => Ok(None),
        });
    let bound = bound.collect::<Result<Vec<_>, _>>()?;
    named.assert_all_used()?;
    Ok(bound)
}

/// An integer, or what it is when it is not given.
pub(in crate::text) fn integer_or(argument: Option<Value>, default: i64) -> Result<i64, Error> {
    argument
        .filter(|value| !value.is_none())
        .map_or(Ok(default), i64::try_from)
}

/// Fails for none, which has no items.
pub(in crate::text) fn refuse_none(value: &Value) -> Result<(), Error> {
    if value.is_none() {
        Err(Error::new(ErrorKind::InvalidOperation, "none has no items"))
    } else {
        Ok(())
    }
}

/// The items of a list, the keys of a map, the characters of a text; nothing of an undefined value.
pub(in crate::text) fn items_of(
    value: &Value,
) -> Result<Box<dyn Iterator<Item = Value> + '_>, Error> {
    refuse_none(value)?;
    match value.as_str() {
        Some(text) => Ok(Box::new(text.chars().map(Value::from))),
        None if value.is_undefined() => Ok(Box::new(std::iter::empty())),
        None => Ok(Box::new(value.try_iter()?)),
    }
}
