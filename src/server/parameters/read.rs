//! Reads a request's body: [`read`] removes the fields of a [`Group`] of the table. Those that remain are unknown.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::kind::{Bounds, Foreign, Group};
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, shorten};
use serde_json::{Map, Value};
use std::sync::PoisonError;

/// Maximum number of unknown field names that are logged, per request and in total.
const UNKNOWN_PER_REQUEST: usize = 8;
const UNKNOWN_MAX: usize = 256;

/// Reads a whole request. Unknown fields are logged, each name once, or refused with `strict_fields`.
pub(crate) fn read<G: Group>(body: Map<String, Value>, state: &ServerState, info: &EngineInfo) -> Result<G, ApiError> {
    let mut body = body;
    let group = read_part(&mut body, state, info)?;
    report_unknown(&body, state)?;
    Ok(group)
}

/// Reads some fields of a request and leaves the others. Fields of other servers that would change the answer are
/// refused.
pub(crate) fn read_part<G: Group>(
    body: &mut Map<String, Value>,
    state: &ServerState,
    info: &EngineInfo,
) -> Result<G, ApiError> {
    let group = G::take(body, "", &Bounds::new(&state.options.limits, Some(info)))?;
    for Foreign { name, reason, is_refused } in G::foreign() {
        if body.remove(name).is_some_and(|value| is_refused && !is_off(&value)) {
            return Err(ApiError::unsupported(name, format!("`{name}` is not supported: {reason}")));
        }
    }
    Ok(group)
}

fn report_unknown(rest: &Map<String, Value>, state: &ServerState) -> Result<(), ApiError> {
    for name in rest.keys().take(UNKNOWN_PER_REQUEST) {
        if state.options.strict_fields {
            return Err(ApiError::invalid(name, format!("unknown field {}", shorten(name))));
        }
        let name = shorten(name);
        let mut seen = state.unknown_fields.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() < UNKNOWN_MAX && seen.insert(name.clone()) {
            tracing::warn!(field = name, "an unknown request field is ignored");
        }
    }
    Ok(())
}

/// Whether an unsupported field has a value that means "not used".
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
