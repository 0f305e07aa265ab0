//! `GET /health` (and `/ping`): whether requests are accepted. `GET /version`.

use crate::server::state::{ModelView, ServerState};
use crate::server::wire::error::ApiError;
use crate::server::wire::query;
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Value, json};

/// 200 when ready; 503 while the only model is loading or its device is lost, and while shutting down. Without its
/// folder of KV blocks a server still answers, and says so.
pub(crate) async fn health(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    if server.is_closing() {
        return Err(ApiError::shutting_down());
    }
    server.models.check()?;
    check_slots(&request, &server.models.views())?;
    if server
        .models
        .loaded()
        .iter()
        .any(|model| model.engine.stats().disk_failing > 0)
    {
        return Ok(Json(json!({"status": "ok", "kv_disk": "failing"})));
    }
    Ok(Json(json!({"status": "ok"})))
}

/// The error of a request that asks, as llama.cpp's clients do, whether one more would run at once on any of these
/// models, if none of them has room for it.
pub(crate) fn check_slots(request: &Request, models: &[ModelView]) -> Result<(), ApiError> {
    let asked = query::value(request.uri().query(), "fail_on_no_slot");
    if asked.is_some_and(|asked| !asked.is_empty()) && models.iter().all(is_full) {
        return Err(ApiError::no_slot());
    }
    Ok(())
}

/// Whether a model runs as many sequences as it can.
fn is_full(model: &ModelView) -> bool {
    let engine = model.state.as_ref().map(|state| &state.engine);
    engine.is_some_and(|engine| {
        let most = engine.info().map_or(0, |info| info.max_num_seqs);
        engine.stats().requests_running >= u64::from(most)
    })
}

/// The version of this build.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
