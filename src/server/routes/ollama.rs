//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask about models. Requests are
//! translated to chat turns. Routes that change models are refused by name.

use crate::engine::handle::EngineInfo;
use crate::platform::{self, Instant};
use crate::server::guards::Client;
use crate::server::parameters::kind::{Bounds, Group as _};
use crate::server::parameters::ollama::{
    OllamaChatRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaGenerateRequest, OllamaShowRequest, Task,
};
use crate::server::parameters::read;
use crate::server::parameters::table::SamplingFields;
use crate::server::reply::ollama::{OllamaReply, loaded};
use crate::server::reply::respond;
use crate::server::routes::chat::{self, Begun};
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::ServerState;
use crate::server::wire::error::ApiError;
use crate::server::wire::sse;
use crate::text::answer::ReasoningParser;
use crate::text::iso_time;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Map, Value, json};

/// The version of Ollama whose API this is. Some clients ask for a minimum.
const VERSION: &str = "0.12.6";
/// A loaded model never expires: this many seconds from now.
const EXPIRES_SECONDS: u64 = 100 * 365 * 24 * 3600;

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

/// Answers a conversation.
pub(crate) async fn chat(State(state): State<ServerState>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: OllamaChatRequest = read::read(request, &state).await?;
    let (task, stream) = request.task(defaults(&state)?)?;
    answer(&state, client, task, (stream, true)).await
}

/// Answers a prompt.
pub(crate) async fn generate(State(state): State<ServerState>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: OllamaGenerateRequest = read::read(request, &state).await?;
    let (task, stream) = request.task(defaults(&state)?)?;
    answer(&state, client, task, (stream, false)).await
}

/// Sampling fields of which none is set.
fn defaults(state: &ServerState) -> Result<SamplingFields, ApiError> {
    SamplingFields::take(&mut Map::new(), "", &Bounds::new(&state.options.limits, state.engine.info()))
}

async fn answer(
    state: &ServerState,
    client: Client,
    task: Task,
    (stream, is_chat): (bool, bool),
) -> Result<Response, ApiError> {
    let Begun { generation, sampling, model, .. } = match task {
        Task::Load(model) => {
            let line = loaded(&state.model(model)?, is_chat);
            let lines = futures_util::stream::iter([format!("{line}\n")]);
            let streamed = || sse::response(sse::LINES, lines);
            return Ok(if stream { streamed() } else { Json(line).into_response() });
        }
        Task::Chat(turn) => chat::begin(state, client, turn).await?,
        Task::Raw(prompt, turn) => chat::begin_raw(state, client, prompt, turn).await?,
    };
    let form = OllamaReply::new(state, model, is_chat, sampling.wants_logprobs);
    respond(generation, form, stream).await
}

/// Embeds texts.
pub(crate) async fn embed(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let client = Client::of(&request);
    let request: OllamaEmbedRequest = read::read(request, &state).await?;
    let model = state.model(request.target.model)?;
    let mut inputs = Inputs::new(request.input, request.queueing);
    inputs.truncates |= request.truncate;
    inputs.dimensions = request.dimensions.map(|count| count as usize);
    let (embeddings, tokens) = embeddings::vectors(&state, client, inputs).await?;
    Ok(Json(json!({
        "model": model,
        "embeddings": embeddings,
        "total_duration": u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

/// Embeds one text, in the older form.
pub(crate) async fn embed_one(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let client = Client::of(&request);
    let request: OllamaEmbeddingsRequest = read::read(request, &state).await?;
    state.model(request.target.model)?;
    let mut inputs = Inputs::new(request.prompt, request.queueing);
    inputs.truncates = true;
    let (mut embeddings, _) = embeddings::vectors(&state, client, inputs).await?;
    Ok(Json(json!({"embedding": embeddings.pop()})))
}

fn details() -> Value {
    json!({
        "parent_model": "",
        "format": "folio",
        "family": "folio",
        "families": ["folio"],
        "parameter_size": "",
        "quantization_level": "",
    })
}

/// A served name as Ollama lists it, with its tag.
fn entry(state: &ServerState, info: &EngineInfo, name: &str) -> Value {
    let name = if name.contains(':') { name.to_owned() } else { format!("{name}:latest") };
    let digest = blake3::hash(format!("{name} {}", info.weight_bytes).as_bytes()).to_hex();
    json!({
        "name": name,
        "model": name,
        "modified_at": iso_time(state.created),
        "size": info.weight_bytes,
        "digest": digest.as_str(),
        "details": details(),
    })
}

/// All served names.
pub(crate) async fn tags(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    let models: Vec<_> = state.model_names.iter().map(|name| entry(&state, info, name)).collect();
    Ok(Json(json!({"models": models})))
}

/// The loaded model.
pub(crate) async fn ps(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let info = state.ready()?;
    let mut model = entry(&state, info, &state.model_names[0]);
    model["expires_at"] = iso_time(platform::unix_time() + EXPIRES_SECONDS).into();
    model["size_vram"] = (info.weight_bytes + info.kv_bytes).into();
    model["context_length"] = info.max_model_len.into();
    Ok(Json(json!({"models": [model]})))
}

/// What is known of a model.
pub(crate) async fn show(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let request: OllamaShowRequest = read::read(request, &state).await?;
    let info = state.ready()?;
    let name = state.model(request.target.model.or(request.name))?;
    let template = state.text.template.as_ref().map_or("", |template| template.source());
    let mut capabilities = vec!["completion"];
    capabilities.extend((!template.is_empty()).then_some("tools"));
    capabilities.extend((state.answer_format.reasoning != ReasoningParser::None).then_some("thinking"));
    capabilities.extend((info.embedding_len > 0).then_some("embedding"));
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": "",
        "template": template,
        "details": details(),
        "model_info": {
            "general.architecture": "folio",
            "general.basename": name,
            "folio.context_length": info.max_model_len,
            "folio.embedding_length": info.embedding_len,
            "folio.vocab_size": info.vocab,
        },
        "capabilities": capabilities,
        "modified_at": iso_time(state.created),
    })))
}

/// A route that changes models.
pub(crate) async fn refused(request: Request) -> ApiError {
    let path = request.uri().path();
    let instead = "models are chosen when the server starts: `folio pull`, then `folio serve --model`";
    ApiError::unsupported(path, format!("`{path}` is not supported: {instead}"))
}
