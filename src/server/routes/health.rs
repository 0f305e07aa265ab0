//! `GET /health` (and `/ping`): whether requests are accepted. `GET /version`.

use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

/// 200 when ready; 503 while the only model is loading or its device is lost, and while shutting down. Without its
/// folder of KV blocks a server still answers, and says so.
pub(crate) async fn health(State(server): State<ServerState>) -> Result<Json<Value>, ApiError> {
    if server.is_closing() {
        return Err(ApiError::shutting_down());
    }
    server.models.check()?;
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

/// The version of this build.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}
