//! Reads a request's body: [`read`] removes the fields of a [`Group`] of the table. Those that remain are unknown.
//! Reading a list of messages or of token ids takes as long as parsing it, so both are done on the same thread.

use crate::engine::handle::EngineInfo;
use crate::server::guards::read_object;
use crate::server::parameters::kind::{Bounds, Group, path, take_foreign};
use crate::server::state::{ModelState, Shared};
use crate::server::wire::error::{ApiError, shorten};
use axum::extract::Request;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Maximum number of unknown field names of one request that are logged.
const UNKNOWN_PER_REQUEST: usize = 8;
/// The least likeness, by Jaro and Winkler, of a name that is proposed.
const LIKENESS_MIN: f64 = 0.84;

/// Reads a whole request. Unknown fields are logged, each name once, or refused with `strict_fields`.
pub(crate) async fn read<G: Group + Send + 'static>(
    request: Request,
    state: &ModelState,
) -> Result<G, ApiError> {
    let owned = state.clone();
    read_object(request, &state.shared, move |body| whole(body, &owned)).await
}

/// [`read`] for a request that no model answers.
pub(crate) async fn read_without_model<G: Group + Send + 'static>(
    request: Request,
    shared: &Arc<Shared>,
) -> Result<G, ApiError> {
    let owned = shared.clone();
    read_object(request, shared, move |body| {
        whole_within(body, &owned, None)
    })
    .await
}

/// Reads some fields of a request and ignores the others.
pub(crate) async fn read_part<G: Group + Send + 'static>(
    request: Request,
    state: &ModelState,
) -> Result<G, ApiError> {
    let owned = state.clone();
    read_object(request, &state.shared, move |mut body| {
        part(&mut body, &owned.shared, Some(owned.ready()?))
    })
    .await
}

/// [`read`] for a body that was parsed before.
pub(crate) fn whole<G: Group>(body: Map<String, Value>, state: &ModelState) -> Result<G, ApiError> {
    whole_within(body, &state.shared, Some(state.ready()?))
}

/// Whether a body has a field, other than null.
pub(crate) fn has(body: &Map<String, Value>, name: &str) -> bool {
    body.get(name).is_some_and(|value| !value.is_null())
}

fn whole_within<G: Group>(
    mut body: Map<String, Value>,
    shared: &Shared,
    info: Option<&EngineInfo>,
) -> Result<G, ApiError> {
    let group = part(&mut body, shared, info)?;
    report_unknown::<G>(&body, "", shared, info)?;
    Ok(group)
}

/// Reports the unknown fields of the object at the path `at`, as those of a whole request.
pub(crate) fn report_unknown_in<G: Group>(
    rest: &Map<String, Value>,
    at: &str,
    state: &ModelState,
) -> Result<(), ApiError> {
    report_unknown::<G>(rest, at, &state.shared, state.engine.info())
}

/// Removes the fields of a group. Fields of other servers that would change the answer are refused.
fn part<G: Group>(
    body: &mut Map<String, Value>,
    shared: &Shared,
    info: Option<&EngineInfo>,
) -> Result<G, ApiError> {
    let group = G::take(body, "", &Bounds::new(&shared.options.limits, info))?;
    take_foreign::<G>(body, "")?;
    Ok(group)
}

fn report_unknown<G: Group>(
    rest: &Map<String, Value>,
    at: &str,
    shared: &Shared,
    info: Option<&EngineInfo>,
) -> Result<(), ApiError> {
    for name in rest.keys().take(UNKNOWN_PER_REQUEST) {
        let path = path(at, name);
        if shared.options.strict_fields {
            let rows = G::rows(&Bounds::new(&shared.options.limits, info));
            let near = nearest(name, rows.iter().map(|row| row.name));
            let tip = near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"));
            return Err(ApiError::invalid(
                path.clone(),
                format!("unknown field {}{tip}", shorten(&path)),
            ));
        }
        let name = shorten(&path);
        if shared.is_new_name(&name) {
            tracing::warn!(field = name, "an unknown request field is ignored");
        }
    }
    Ok(())
}

/// The name that is most like a mistyped one, if one is like it.
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = names
        .into_iter()
        .map(|name| (strsim::jaro_winkler(word, name), name));
    let near = near.filter(|(likeness, _)| *likeness > LIKENESS_MIN);
    near.max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests;
