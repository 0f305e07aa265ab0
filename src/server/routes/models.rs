//! `GET /v1/models` and `GET /v1/models/{name}`.

use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

fn card(state: &ServerState, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "folio",
        "root": state.model_names[0],
        "max_model_len": state.engine.info().map(|info| info.max_model_len),
    })
}

/// All served names.
pub(crate) async fn list(State(state): State<ServerState>) -> Json<Value> {
    let cards: Vec<_> = state.model_names.iter().map(|name| card(&state, name)).collect();
    Json(json!({"object": "list", "data": cards}))
}

/// One served name; it may contain slashes.
pub(crate) async fn retrieve(
    State(state): State<ServerState>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = state.model(Some(name))?;
    Ok(Json(card(&state, &name)))
}
