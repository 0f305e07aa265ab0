//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: Anthropic's API. A request is translated to a chat turn,
//! and the answer back to blocks.

use crate::server::guards::Client;
use crate::server::parameters::anthropic::{CountTokensRequest, MessagesRequest};
use crate::server::parameters::read;
use crate::server::reply::anthropic::AnthropicReply;
use crate::server::reply::respond;
use crate::server::routes::chat::{self, Begun};
use crate::server::state::ModelState;
use crate::server::wire::error::ApiError;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};

/// Answers a conversation.
pub(crate) async fn messages(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: MessagesRequest = read::read(request, &state).await?;
    let (turn, left_out) = request.turn()?;
    let Begun {
        generation,
        sampling,
        ..
    } = chat::begin(&state, client, turn).await?;
    let form = AnthropicReply::new(&state, sampling.model);
    let response = respond(generation, form, sampling.stream).await?;
    Ok(chat::naming_ignored(&state, response, &left_out))
}

/// Number of tokens of a prompt.
pub(crate) async fn count_tokens(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: CountTokensRequest = read::read(request, &state).await?;
    state.model(request.target.model)?;
    let (conversation, ..) = request.prompt.conversation()?;
    let ids = chat::prompt(&state, conversation, chat::NAMES, state.text_bytes_max()?).await?;
    Ok(Json(json!({"input_tokens": ids.len()})))
}
