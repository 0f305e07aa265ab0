//! `GET /v1/models` and `GET /v1/models/{name}`, in OpenAI's form or, for Anthropic's clients, in theirs; and
//! `POST /models/load` and `POST /models/unload` of servers of several models.

use crate::server::parameters::read;
use crate::server::parameters::table::LoadRequest;
use crate::server::routes::forward;
use crate::server::state::{ModelOutline, ModelStatus, ModelView, ServerState};
use crate::server::wire::error::{ApiError, Dialect, shorten};
use crate::server::wire::query;
use crate::text::iso_time;
use axum::Json;
use axum::extract::{Path, Request, State};
use serde_json::{Value, json};

/// Models of a page in Anthropic's form, by default and at most.
const PAGE_DEFAULT: usize = 20;
const PAGE_MAX: usize = 1000;

/// The form of a model that the sender of a request expects.
#[derive(Clone, Copy)]
enum Form {
    OpenAi,
    Anthropic,
}

impl Form {
    fn of(request: &Request) -> Self {
        match Dialect::of_request(request.uri().path(), request.headers()) {
            Dialect::Anthropic => Self::Anthropic,
            Dialect::OpenAi | Dialect::Ollama => Self::OpenAi,
        }
    }

    fn card(self, server: &ServerState, model: &ModelView, name: &str) -> Value {
        match self {
            Self::OpenAi => card(server, model, name),
            Self::Anthropic => anthropic_card(server, model, name),
        }
    }
}

/// A model in OpenAI's form.
fn card(server: &ServerState, model: &ModelView, name: &str) -> Value {
    let mut status = json!({"value": model.status.word()});
    if let ModelStatus::Failed(reason) = &model.status {
        (status["failed"], status["reason"]) = (true.into(), reason.as_str().into());
    }
    let state = model.state.as_ref();
    let adapter = state.and_then(|state| state.adapters.named(name));
    json!({
        "id": name,
        "object": "model",
        "created": server.shared.created,
        "owned_by": "folio",
        // For clients of Anthropic's API that do not name its version.
        "type": "model",
        "display_name": name,
        "created_at": iso_time(server.shared.created),
        "root": adapter.as_ref().map_or(&model.names[0], |adapter| &adapter.served.path),
        // The model that an adapter changes.
        "parent": adapter.map(|_| &model.names[0]),
        "max_model_len": context(model),
        // As llama.cpp's clients read them.
        "status": status,
        "meta": model.facts.as_ref().map(|known| meta(&known.outline)),
        "aliases": model.names.iter().filter(|other| *other != name).collect::<Vec<_>>(),
        "capabilities": model.facts.as_ref().map(|known| known.outline.capabilities()),
        "tags": [],
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    })
}

/// The numbers of a model, as llama.cpp's server has them.
fn meta(outline: &ModelOutline) -> Value {
    json!({
        "n_ctx": outline.max_model_len,
        "n_ctx_train": outline.figures.positions_max,
        "n_vocab": outline.vocab,
        "n_embd": outline.embedding_len,
        "n_params": outline.figures.parameters,
        "size": outline.weight_bytes,
        "ftype": outline.figures.main_format(),
    })
}

/// A model in Anthropic's form.
fn anthropic_card(server: &ServerState, model: &ModelView, name: &str) -> Value {
    json!({
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": iso_time(server.shared.created),
        "lifecycle": "active",
        "max_input_tokens": context(model),
    })
}

/// Tokens of a model's context, if they are known.
fn context(model: &ModelView) -> Option<u32> {
    model
        .facts
        .as_ref()
        .map(|known| known.outline.max_model_len)
}

/// All served names; to Anthropic's clients, a page of them.
pub(crate) async fn list(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let views = server.models.views();
    let form = Form::of(&request);
    let cards = views.iter().flat_map(|model| {
        model
            .names
            .iter()
            .map(|name| form.card(&server, model, name))
    });
    let cards: Vec<_> = cards.collect();
    if let Form::Anthropic = form {
        let (page, has_more) = page(&cards, request.uri().query())?;
        return Ok(Json(listed(page, has_more)));
    }
    let mut list = listed(&cards, false);
    list["object"] = "list".into();
    Ok(Json(list))
}

/// Models as Anthropic's clients read a page.
fn listed(cards: &[Value], has_more: bool) -> Value {
    let [first, last] = [cards.first(), cards.last()].map(|card| card.map(|card| &card["id"]));
    json!({"data": cards, "has_more": has_more, "first_id": first, "last_id": last})
}

/// The models that a query asks for by `limit` and either `after_id` or `before_id`, and whether more follow in that
/// direction.
fn page<'a>(cards: &'a [Value], query: Option<&str>) -> Result<(&'a [Value], bool), ApiError> {
    let given = |name| query::value(query, name).filter(|value| !value.is_empty());
    let limit = query::limit(given("limit"), PAGE_DEFAULT, PAGE_MAX)?;
    let place = |name: &str, id: &str| {
        cards
            .iter()
            .position(|card| card["id"] == *id)
            .ok_or_else(|| {
                ApiError::invalid(name, format!("`{name}`: there is no model {}", shorten(id)))
            })
    };
    match (given("before_id"), given("after_id")) {
        (Some(_), Some(_)) => Err(ApiError::invalid(
            "before_id",
            "`before_id` and `after_id` exclude each other",
        )),
        (Some(id), None) => {
            let end = place("before_id", &id)?;
            let start = end.saturating_sub(limit);
            Ok((&cards[start..end], start > 0))
        }
        (None, after) => {
            let start = after.map_or(Ok(0), |id| Ok(place("after_id", &id)? + 1))?;
            let end = cards.len().min(start + limit);
            Ok((&cards[start..end], end < cards.len()))
        }
    }
}

/// Has a model loaded, and does not wait for it.
pub(crate) async fn load(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let LoadRequest { model } = read::read_without_model(request, &server.shared).await?;
    match server.models.many() {
        Some(fleet) => fleet.ask(fleet.find(Some(&model))?)?,
        None => drop(server.models.view(&model)?),
    }
    Ok(Json(json!({"success": true})))
}

/// Has a model unloaded when its answers are complete, and does not wait for that.
pub(crate) async fn unload(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let LoadRequest { model } = read::read_without_model(request, &server.shared).await?;
    let fleet = forward::several(&server)?;
    if !fleet.unload(fleet.find(Some(&model))?) {
        return Err(ApiError::invalid("model", "the model is not loaded"));
    }
    Ok(Json(json!({"success": true})))
}

/// The model in SGLang's form.
pub(crate) async fn sglang_model(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (names, known) = forward::known_of_query(&server, &request)?;
    Ok(Json(json!({
        "model_path": names[0],
        "tokenizer_path": names[0],
        "served_model_name": names[0],
        "is_generation": !known.outline.encodes,
        "max_model_len": known.outline.max_model_len,
        "vocab_size": known.outline.vocab,
    })))
}

/// The server in SGLang's form.
pub(crate) async fn sglang_server(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (names, known) = forward::known_of_query(&server, &request)?;
    Ok(Json(json!({
        "model_path": names[0],
        "served_model_name": names[0],
        "context_length": known.outline.max_model_len,
        "max_running_requests": known.outline.max_num_seqs,
        "max_total_num_tokens": known.outline.pool_tokens,
        "page_size": known.outline.block_size,
        "device": known.device,
        "version": env!("CARGO_PKG_VERSION"),
    })))
}

/// One served name; it may contain slashes.
pub(crate) async fn retrieve(
    State(server): State<ServerState>,
    Path(name): Path<String>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let name = name.trim_end_matches('/');
    Ok(Json(Form::of(&request).card(
        &server,
        &server.models.view(name)?,
        name,
    )))
}
