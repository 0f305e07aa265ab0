//! Routes of vLLM's that have no other place: `/invocations`, by which SageMaker calls every model, and
//! `/reset_prefix_cache`.

use crate::server::guards::parse_ahead;
use crate::server::parameters::read::has;
use crate::server::routes::{chat, classes, completions, embeddings, rerank};
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::ApiError;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

/// What a request to `/invocations` is, by the fields that it has.
#[derive(Clone, Copy)]
enum Invocation {
    Chat,
    Completion,
    Embedding,
    Rerank,
    Score,
}

impl Invocation {
    fn of(body: &Map<String, Value>) -> Result<Self, ApiError> {
        let kinds = [
            ("input", Self::Embedding),
            ("messages", Self::Chat),
            ("prompt", Self::Completion),
            ("query", Self::Rerank),
            ("text_1", Self::Score),
            ("queries", Self::Score),
            ("data_1", Self::Score),
        ];
        let kind = kinds.iter().find(|(field, _)| has(body, field));
        kind.map(|(_, kind)| *kind).ok_or_else(|| {
            let names = kinds.map(|(field, _)| format!("`{field}`")).join(", ");
            ApiError::body(format!("the body must have one of {names}"))
        })
    }
}

/// Answers a request of any kind.
pub(crate) async fn invocations(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let (request, kind) = parse_ahead(request, &state.shared, Invocation::of).await?;
    let state = State(state);
    match kind {
        Invocation::Chat => chat::chat(state, request).await,
        Invocation::Completion => completions::completions(state, request).await,
        Invocation::Embedding if classes::head(&state.0).is_ok() => {
            Ok(classes::classify(state, request).await?.into_response())
        }
        Invocation::Embedding => embeddings::embeddings(state, request).await,
        Invocation::Rerank => Ok(rerank::rerank(state, request).await?.into_response()),
        Invocation::Score => Ok(rerank::score(state, request).await?.into_response()),
    }
}

/// Lets no later prompt share what is cached now; its blocks leave the pool when their memory is needed.
pub(crate) async fn reset_prefix_cache(State(server): State<ServerState>) -> Json<Value> {
    server.shared.reset_prefixes();
    Json(json!({}))
}
