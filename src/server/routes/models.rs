//! `GET /v1/models` and `GET /v1/models/{name}`.

use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use crate::text::iso_time;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};

fn card(state: &ServerState, name: &str) -> Value {
    json!({
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "folio",
        // As Anthropic's clients read it.
        "type": "model",
        "display_name": name,
        "created_at": iso_time(state.created),
        "root": state.model_names[0],
        "max_model_len": state.engine.info().map(|info| info.max_model_len),
    })
}

/// All served names.
pub(crate) async fn list(State(state): State<ServerState>) -> Json<Value> {
    let cards: Vec<_> = state.model_names.iter().map(|name| card(&state, name)).collect();
    let [first, last] = [cards.first(), cards.last()].map(|card| card.map(|card| card["id"].clone()));
    Json(json!({"object": "list", "data": cards, "has_more": false, "first_id": first, "last_id": last}))
}

/// The model in SGLang's form.
pub(crate) async fn sglang_model(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    Ok(Json(json!({
        "model_path": state.model_names[0],
        "tokenizer_path": state.model_names[0],
        "served_model_name": state.model_names[0],
        "is_generation": true,
        "max_model_len": info.max_model_len,
        "vocab_size": info.vocab,
    })))
}

/// The server in SGLang's form.
pub(crate) async fn sglang_server(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    Ok(Json(json!({
        "model_path": state.model_names[0],
        "served_model_name": state.model_names[0],
        "context_length": info.max_model_len,
        "max_running_requests": info.max_num_seqs,
        "max_total_num_tokens": u64::from(info.blocks) * u64::from(info.block_size),
        "page_size": info.block_size,
        "device": info.device,
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

/// One served name; it may contain slashes.
pub(crate) async fn retrieve(
    State(state): State<ServerState>,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let name = state.model(Some(name.trim_end_matches('/').to_owned()))?;
    Ok(Json(card(&state, &name)))
}
