//! Requests to one of several models: finds the model that a request asks for, waits until it is loaded, and passes the
//! request to the route's own handler.
//!
//! A stream begins before the model is loaded, so that its client and proxies see that something happens: with a
//! comment, and the socket adds more while nothing else is sent. An error is then its only event.

use crate::platform::Instant;
use crate::server::guards::parse_ahead;
use crate::server::parameters::ollama::{keep_alive, loads_only};
use crate::server::reply::ollama::{LoadState, LoadTime, model_line};
use crate::server::state::{Entry, Fleet, ModelFacts, ModelState, ServerState, Use};
use crate::server::wire::body::kept_until_the_end;
use crate::server::wire::error::{ApiError, Dialect, shorten};
use crate::server::wire::{query, sse};
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodRouter, post};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::Duration;
use tower::ServiceExt as _;

/// What a request says about its model.
#[derive(Debug)]
struct Asked {
    model: Option<String>,
    /// Its answer is a stream of events.
    streams: bool,
    /// How long the model stays loaded without further requests, if the request says it.
    idle: Option<Option<Duration>>,
    /// It only loads the model, or unloads it.
    loads_only: bool,
}

/// The handler of a route, for one of several models. All requests that a model answers are posted.
pub(crate) fn forwarded(
    handlers: MethodRouter<ModelState>,
    may_stream: bool,
) -> MethodRouter<ServerState> {
    post(
        async move |State(server): State<ServerState>, request: Request| {
            forward(&server, handlers, request, may_stream).await
        },
    )
}

async fn forward(
    server: &ServerState,
    handlers: MethodRouter<ModelState>,
    request: Request,
    may_stream: bool,
) -> Result<Response, ApiError> {
    let fleet = server.models.many().ok_or_else(ApiError::internal)?;
    let path = request.uri().path().to_owned();
    let (request, asked) = parse_ahead(request, &server.shared, |object: &Map<String, Value>| {
        Asked::of(object, &path, may_stream)
    })
    .await?;
    let index = fleet.find(asked.model.as_deref())?;
    if asked.loads_only && asked.idle == Some(Some(Duration::ZERO)) {
        fleet.unload(index);
        let name = asked.model.unwrap_or_else(|| fleet.name(index).to_owned());
        let line = model_line(
            &name,
            LoadState::Unloaded,
            path.trim_end_matches('/') == "/api/chat",
        );
        return Ok(([(CONTENT_TYPE, "application/json")], line).into_response());
    }
    match fleet.enter(index, asked.streams, asked.idle)? {
        Entry::Now(model) => Ok(answer(model, handlers, request).await),
        Entry::Later(wait) if asked.streams => {
            let begun = Bytes::from(format!(": loading {}\n\n", shorten(fleet.name(index))));
            let rest = async move {
                let response = match wait.done().await {
                    Ok(model) => answer(model, handlers, request).await,
                    Err(error) => error.into_response(),
                };
                events(response, &path)
            };
            Ok(sse::response(
                sse::EVENTS,
                stream::iter([begun]).chain(stream::once(rest).flatten()),
            ))
        }
        Entry::Later(wait) => {
            let begun = Instant::now();
            let model = wait.done().await?;
            let mut request = request;
            request.extensions_mut().insert(LoadTime(begun.elapsed()));
            Ok(answer(model, handlers, request).await)
        }
    }
}

/// The answer of a model, which is in use until the answer has ended.
async fn answer(model: Use, handlers: MethodRouter<ModelState>, request: Request) -> Response {
    let Ok(response) = handlers
        .with_state::<()>(model.state().clone())
        .oneshot(request)
        .await;
    kept_until_the_end(response, model)
}

/// The rest of a stream whose head has been sent: the events of this response, or its error as one.
fn events(mut response: Response, path: &str) -> impl Stream<Item = Bytes> + Send + use<> {
    let error = response
        .extensions_mut()
        .remove::<ApiError>()
        .map(|error| Bytes::from(error_event(&error, path)));
    let is_error = error.is_some();
    let body = response.into_body().into_data_stream();
    // A body ends early if its handler failed, as a connection would.
    let body = body
        .filter_map(async |chunk| chunk.ok())
        .take_while(move |_| std::future::ready(!is_error));
    stream::iter(error).chain(body.boxed())
}

/// A refusal as the events of a stream, in the form of the path's API.
fn error_event(error: &ApiError, path: &str) -> String {
    let is_responses = path.trim_start_matches("/v1").starts_with("/responses");
    let mut event = String::new();
    match Dialect::of(path) {
        Dialect::OpenAi if is_responses => {
            let mut body: Value =
                serde_json::from_str(&error.json(Dialect::OpenAi)).unwrap_or_default();
            let mut body = body["error"].take();
            (body["type"], body["sequence_number"]) = (json!("error"), json!(0));
            sse::push_named(&mut event, "error", &body.to_string());
        }
        Dialect::Anthropic => sse::push_named(&mut event, "error", &error.json(Dialect::Anthropic)),
        dialect => event = sse::event(&error.json(dialect)) + sse::DONE,
    }
    event
}

impl Asked {
    fn of(object: &Map<String, Value>, path: &str, may_stream: bool) -> Result<Self, ApiError> {
        let is_ollama = Dialect::of(path) == Dialect::Ollama;
        // Ollama's older clients call it so.
        let by_name = if is_ollama { object.get("name") } else { None };
        let model = object.get("model").or(by_name);
        let model = match model {
            None | Some(Value::Null) => None,
            Some(Value::String(name)) => Some(name.clone()).filter(|name| !name.is_empty()),
            Some(_) => return Err(ApiError::invalid("model", "`model` must be a string")),
        };
        let idle = match object.get("keep_alive") {
            Some(time) if is_ollama => keep_alive(time)?,
            _ => None,
        };
        Ok(Self {
            model,
            streams: may_stream && object.get("stream") == Some(&Value::Bool(true)),
            idle,
            loads_only: is_ollama && loads_only(object, path),
        })
    }
}

/// The names of the model that the query of a request asks for, as clients of llama.cpp's server do, and what is known
/// of it. A server of one model tells of that.
pub(crate) fn known_of_query(
    server: &ServerState,
    request: &Request,
) -> Result<(Arc<[String]>, ModelFacts), ApiError> {
    let asked = server
        .models
        .many()
        .and_then(|_| query::value(request.uri().query(), "model"));
    server.models.facts(asked.as_deref())
}

/// The models of a request that names one of several, for routes that load and unload.
pub(crate) fn several(server: &ServerState) -> Result<&Arc<Fleet>, ApiError> {
    let message = "this server has one model, which is loaded while it runs";
    server
        .models
        .many()
        .ok_or_else(|| ApiError::unsupported("model", message))
}
