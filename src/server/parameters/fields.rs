//! How a request's body is read: [`read`] takes the fields of a [`Group`] of the table out of it. What is left over at
//! the end was unknown.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::kinds::{Bounds, Presence};
use crate::server::parameters::table::{IGNORED, UNSUPPORTED};
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, shorten};
use serde_json::{Map, Value, json};
use std::sync::PoisonError;

/// Names of unknown fields that are logged, in one request and in all.
const UNKNOWN_PER_REQUEST: usize = 8;
const UNKNOWN_MAX: usize = 256;

/// Fields that are read together: a whole request, an object within one, or a part that several requests have.
pub(crate) trait Group: Sized {
    /// Takes this group's fields out of `map`, an object that is called `at` (the body itself: an empty name).
    fn take(map: &mut Map<String, Value>, at: &str, bounds: &Bounds) -> Result<Self, ApiError>;

    /// What [`Self::take`] reads.
    fn rows(bounds: &Bounds) -> Vec<Row>;
}

/// One field as it is documented.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) sentence: String,
    pub(crate) schema: Value,
    pub(crate) required: bool,
}

/// Takes one field; null counts as absent.
pub(crate) fn take<P: Presence>(
    map: &mut Map<String, Value>,
    at: &str,
    name: &'static str,
    presence: &P,
    bounds: &Bounds,
) -> Result<P::Value, ApiError> {
    let value = map.remove(name).filter(|value| !value.is_null());
    if at.is_empty() {
        return presence.take(name, value, bounds);
    }
    presence.take(&format!("{at}.{name}"), value, bounds)
}

/// Documents one field.
pub(crate) fn row<P: Presence>(name: &'static str, sentence: &[&str], presence: &P, bounds: &Bounds) -> Row {
    let (schema, required) = presence.schema(bounds);
    let sentence = sentence.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    Row { name, sentence, schema, required }
}

/// The rows of a group's parts, without those that its own rows hide, and its own.
pub(crate) fn joined(own: Vec<Row>, parts: Vec<Vec<Row>>) -> Vec<Row> {
    let hidden = |row: &Row| own.iter().any(|known| known.name == row.name);
    let mut rows: Vec<Row> = parts.into_iter().flatten().filter(|row| !hidden(row)).collect();
    rows.extend(own);
    rows
}

/// An object with these fields, as a JSON schema.
pub(crate) fn object_schema(rows: &[Row]) -> Value {
    let property = |row: &Row| {
        let mut schema = row.schema.clone();
        schema["description"] = row.sentence.as_str().into();
        (row.name.to_owned(), schema)
    };
    let properties: Map<String, Value> = rows.iter().map(property).collect();
    let required: Vec<_> = rows.iter().filter(|row| row.required).map(|row| row.name).collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = required.into();
    }
    schema
}

/// Reads a whole request. Of its other fields, those that would change the answer are refused, and unknown ones logged,
/// each name once.
pub(crate) fn read<G: Group>(body: Map<String, Value>, state: &ServerState, info: &EngineInfo) -> Result<G, ApiError> {
    let mut body = body;
    let group = read_part(&mut body, state, info)?;
    finish(&body, state)?;
    Ok(group)
}

/// Reads some fields of a request; the others do not matter.
pub(crate) fn read_part<G: Group>(
    body: &mut Map<String, Value>,
    state: &ServerState,
    info: &EngineInfo,
) -> Result<G, ApiError> {
    G::take(body, "", &Bounds::new(&state.options.limits, Some(info)))
}

fn finish(rest: &Map<String, Value>, state: &ServerState) -> Result<(), ApiError> {
    let refused = rest.iter().find(|(name, value)| UNSUPPORTED.contains(&name.as_str()) && !is_off(value));
    if let Some((name, _)) = refused {
        return Err(ApiError::not_supported(name));
    }
    let known = |name: &str| UNSUPPORTED.contains(&name) || IGNORED.contains(&name);
    for name in rest.keys().filter(|name| !known(name)).take(UNKNOWN_PER_REQUEST) {
        let name = shorten(name);
        let mut seen = state.unknown_fields.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < UNKNOWN_MAX && seen.insert(name.clone()) {
            tracing::warn!(field = name, "an unknown request field is ignored");
        }
    }
    Ok(())
}

/// Whether an unsupported field is only spelled out with the value that means "not used".
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// "`name` must be …, not …", with the value shortened.
pub(crate) fn wrong(name: &str, rule: &str, value: &Value) -> ApiError {
    let given = match value {
        Value::Array(items) if items.is_empty() => "an empty array".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        Value::String(text) => format!("the string {}", shorten(text)),
        other => other.to_string(),
    };
    ApiError::invalid(name, format!("`{name}` must be {rule}, not {given}"))
}
