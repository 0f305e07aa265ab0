//! `/v1/responses`: OpenAI's Responses API. A request is translated to a chat turn, and the answer back to items.
//! Stored responses can be read, listed and deleted.

use crate::server::guards::Client;
use crate::server::parameters::read;
use crate::server::parameters::responses::{
    Earlier, InputTokensRequest, NAMES, ResponsesPrompt, ResponsesRequest,
};
use crate::server::reply::respond;
use crate::server::reply::responses::ResponsesReply;
use crate::server::routes::chat::{self, Begun};
use crate::server::state::{ModelState, ServerState, Shared};
use crate::server::stored::{Chain, Stored};
use crate::server::wire::error::{ApiError, shorten};
use crate::server::wire::json::write;
use crate::server::wire::query;
use axum::Json;
use axum::extract::{Path, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use std::collections::HashMap;

/// Items of one page, and those of a page whose size is not given.
const PAGE_MAX: usize = 100;
const PAGE_DEFAULT: usize = 20;
/// Bytes of all stored items that one input may refer to, those that it refers to several times counted as often: each
/// becomes a part of the conversation.
const REFERRED_BYTES_MAX: usize = 32 << 20;

/// Answers an input.
pub(crate) async fn create(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: ResponsesRequest = read::read(request, &state).await?;
    let (items, referred) = earlier(&state.shared, client, &request.prompt).await?;
    let (turn, asked) = request.turn(&Earlier {
        items,
        referred,
        seal: &state.shared.seal,
        reads_images: state.ready()?.images.is_some(),
    })?;
    let Begun {
        generation,
        sampling,
        ..
    } = chat::begin(&state, client, turn).await?;
    let left_out = asked.left_out.clone();
    let form = ResponsesReply::new(&state, client.0, sampling.model, asked, &sampling.shown);
    let response = respond(generation, form, sampling.stream).await?;
    Ok(chat::naming_ignored(&state, response, &left_out))
}

/// Number of tokens of an input.
pub(crate) async fn input_tokens(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let client = Client::of(&request);
    let request: InputTokensRequest = read::read(request, &state).await?;
    state.model(request.target.model)?;
    let (items, referred) = earlier(&state.shared, client, &request.prompt).await?;
    let (conversation, ..) = request.prompt.conversation(&Earlier {
        items,
        referred,
        seal: &state.shared.seal,
        reads_images: state.ready()?.images.is_some(),
    })?;
    let ids = chat::prompt(&state, conversation, NAMES, state.text_bytes_max()?).await?;
    Ok(Json(
        json!({"object": "response.input_tokens", "input_tokens": ids.len()}),
    ))
}

/// The items before an input, and those that it refers to by their ids.
async fn earlier(
    shared: &Shared,
    client: Client,
    prompt: &ResponsesPrompt,
) -> Result<(Vec<Value>, HashMap<String, Value>), ApiError> {
    let chain = match &prompt.previous_response_id {
        None => Chain::default(),
        Some(id) => {
            let chain = shared.responses.chain(client.0, id);
            chain.ok_or_else(|| ApiError::previous_response(id))?
        }
    };
    let (mut found, mut bytes) = (HashMap::new(), 0);
    for (place, id) in prompt.references() {
        let name = format!("input[{place}]");
        let item = shared.responses.item(client.0, id).ok_or_else(|| {
            ApiError::invalid(&name, format!("item {} is not stored", shorten(id)))
        })?;
        bytes += item.bytes();
        if bytes > REFERRED_BYTES_MAX {
            let message = format!(
                "with this one, the items that the input refers to have {bytes} bytes; at most \
                 {REFERRED_BYTES_MAX} are read"
            );
            return Err(ApiError::invalid(&name, message));
        }
        found.insert(id.to_owned(), item);
    }
    let bytes = bytes + chain.bytes();
    let read = move || {
        let referred = found
            .into_iter()
            .map(|(id, item)| Some((id, item.value()?)));
        Some((chain.items()?, referred.collect::<Option<_>>()?))
    };
    let read = shared.offload(bytes, read).await?;
    read.ok_or_else(ApiError::internal)
}

fn stored(shared: &Shared, client: Client, id: &str) -> Result<Stored, ApiError> {
    shared
        .responses
        .get(client.0, id)
        .ok_or_else(|| ApiError::unknown_response(id))
}

/// A stored response.
pub(crate) async fn retrieve(
    State(state): State<ServerState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    let response = stored(&state.shared, Client::of(&request), &id)?.response;
    Ok(([(CONTENT_TYPE, "application/json")], write(&response)).into_response())
}

/// Forgets a stored response.
pub(crate) async fn delete(
    State(state): State<ServerState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    if !state.shared.responses.delete(Client::of(&request).0, &id) {
        return Err(ApiError::unknown_response(&id));
    }
    Ok(Json(
        json!({"id": id, "object": "response", "deleted": true}),
    ))
}

/// Refused in OpenAI's words: responses are complete when they are stored.
pub(crate) async fn cancel(
    State(state): State<ServerState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Response, ApiError> {
    stored(&state.shared, Client::of(&request), &id)?;
    let message = "Cannot cancel a synchronous response.";
    Err(ApiError::invalid("response_id", message))
}

/// The items of a stored response's input, newest first unless `order` is `asc`; `after` is the id of an item.
pub(crate) async fn input_items(
    State(state): State<ServerState>,
    Path(id): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let given = |name| query::value(request.uri().query(), name);
    let mut items = stored(&state.shared, Client::of(&request), &id)?.input;
    if given("order").is_none_or(|order| order != "asc") {
        items.reverse();
    }
    let limit = query::limit(given("limit"), PAGE_DEFAULT, PAGE_MAX)?;
    let start = match given("after") {
        None => 0,
        Some(after) => items
            .iter()
            .position(|item| item["id"] == *after)
            .map_or(items.len(), |at| at + 1),
    };
    let has_more = items.len() > start + limit;
    let page: Vec<_> = items.into_iter().skip(start).take(limit).collect();
    let (first_id, last_id) = (id_of(page.first()), id_of(page.last()));
    Ok(Json(
        json!({"object": "list", "data": page, "first_id": first_id, "last_id": last_id, "has_more": has_more}),
    ))
}

fn id_of(item: Option<&Value>) -> Option<Value> {
    item.map(|item| item["id"].clone())
}
