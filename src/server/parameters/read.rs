//! Reads a request's body: [`read`] removes the fields of a [`Group`] of the table. Those that remain are unknown.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::kind::{Bounds, Group};
use crate::server::parameters::table::{IGNORED, UNSUPPORTED};
use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, shorten};
use serde_json::{Map, Value};
use std::sync::PoisonError;

/// Maximum number of unknown field names that are logged, per request and in total.
const UNKNOWN_PER_REQUEST: usize = 8;
const UNKNOWN_MAX: usize = 256;

/// Reads a whole request. Unsupported fields that would change the answer are refused. Unknown ones are logged, each
/// name once, or refused with `strict_fields`.
pub(crate) fn read<G: Group>(body: Map<String, Value>, state: &ServerState, info: &EngineInfo) -> Result<G, ApiError> {
    let mut body = body;
    let group = read_part(&mut body, state, info)?;
    finish(&body, state)?;
    Ok(group)
}

/// Reads some fields of a request and ignores the others.
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
