//! Ollama's API: `/api/chat`, `/api/generate`, `/api/embed`, and what its clients ask about models. Requests are
//! translated to chat turns. Routes that change models are refused by name.

use crate::platform::{self, Instant};
use crate::server::guards::Client;
use crate::server::parameters::kind::{Bounds, Group as _};
use crate::server::parameters::ollama::{
    OllamaChatRequest, OllamaEmbedRequest, OllamaEmbeddingsRequest, OllamaGenerateRequest,
    OllamaOptions, OllamaPullRequest, OllamaSettings, OllamaShowRequest, Task,
};
use crate::server::parameters::prompts::Prompts;
use crate::server::parameters::read;
use crate::server::parameters::table::SamplingFields;
use crate::server::reply::ollama::{LoadState, LoadTime, OllamaReply, model_line, nanoseconds};
use crate::server::reply::respond;
use crate::server::routes::chat::{self, Begun};
use crate::server::routes::embeddings::{self, Inputs};
use crate::server::state::{ModelFacts, ModelState, ModelView, ServerState};
use crate::server::wire::error::{ApiError, Dialect};
use crate::server::wire::sse;
use crate::text::answer::ReasoningParser;
use crate::text::{Infill, iso_time};
use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};

/// The version of Ollama whose API this is. Some clients ask for a minimum.
const VERSION: &str = "0.12.6";
/// What stays loaded expires this many seconds from now.
const EXPIRES_SECONDS: u64 = 100 * 365 * 24 * 3600;

/// `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": VERSION}))
}

/// Answers a conversation.
pub(crate) async fn chat(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let sent = (Client::of(&request), LoadTime::of(&request));
    let request: OllamaChatRequest = read::read(request, &state).await?;
    report_options(&request.settings, &state)?;
    let (task, stream) = request.task(defaults(&state)?)?;
    answer(&state, sent, task, (stream, true)).await
}

/// Answers a prompt.
pub(crate) async fn generate(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let sent = (Client::of(&request), LoadTime::of(&request));
    let request: OllamaGenerateRequest = read::read(request, &state).await?;
    report_options(&request.settings, &state)?;
    let has_images = request
        .images
        .as_ref()
        .is_some_and(|images| !images.is_empty());
    if has_images && state.text.template.is_none() {
        let message = "images need a chat template, and this model has none";
        return Err(ApiError::unsupported("images", message));
    }
    let (task, stream) = request.task(defaults(&state)?)?;
    answer(&state, sent, task, (stream, false)).await
}

/// Reports unknown fields of `options`.
fn report_options(settings: &OllamaSettings, state: &ModelState) -> Result<(), ApiError> {
    settings.unknown_options().map_or(Ok(()), |rest| {
        read::report_unknown_in::<OllamaOptions>(rest, "options", state)
    })
}

/// Sampling fields of which none is set.
fn defaults(state: &ModelState) -> Result<SamplingFields, ApiError> {
    SamplingFields::take(
        &mut Map::new(),
        "",
        &Bounds::new(&state.options.limits, state.engine.info()),
    )
}

async fn answer(
    state: &ModelState,
    (client, loaded): (Client, LoadTime),
    task: Task,
    (stream, is_chat): (bool, bool),
) -> Result<Response, ApiError> {
    let Begun {
        generation,
        sampling,
        ..
    } = match task {
        Task::Load(model) => {
            let line = model_line(&state.model(model)?, LoadState::Loaded, is_chat);
            return Ok(if stream {
                sse::response(sse::LINES, futures_util::stream::iter([line + "\n"]))
            } else {
                ([(CONTENT_TYPE, "application/json")], line).into_response()
            });
        }
        Task::Chat(turn) => chat::begin(state, client, turn).await?,
        Task::Raw(prompt, sampling) => {
            let prompts = Prompts::texts(vec![prompt]);
            let prompts = async {
                prompts.check_bytes("prompt", state.ready()?)?;
                Ok((prompts.encode(state, true).await?, Vec::new()))
            };
            chat::begin_raw(state, client, prompts, sampling).await?
        }
        Task::Gap(gap, sampling) => {
            chat::begin_raw(state, client, gap.encode(state), sampling).await?
        }
    };
    let form = OllamaReply::new(
        state,
        sampling.model,
        (is_chat, sampling.shown.logprobs),
        loaded,
    );
    respond(generation, form, stream).await
}

/// Embeds texts.
pub(crate) async fn embed(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let started = Instant::now();
    let (client, loaded) = (Client::of(&request), LoadTime::of(&request));
    let request: OllamaEmbedRequest = read::read(request, &state).await?;
    let model = state.model(request.target.model)?;
    let mut inputs = Inputs::new(request.input, request.queueing);
    inputs.truncates |= request.truncate;
    inputs.dimensions = request.dimensions.map(|count| count as usize);
    let (embeddings, tokens) = embeddings::vectors(&state, client, inputs).await?;
    Ok(Json(json!({
        "model": model,
        "embeddings": embeddings,
        "total_duration": nanoseconds(loaded.0 + started.elapsed()),
        "load_duration": nanoseconds(loaded.0),
        "prompt_eval_count": tokens,
    })))
}

/// Embeds one text, in the older form.
pub(crate) async fn embed_one(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
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
fn entry(server: &ServerState, model: &ModelView, name: &str) -> Value {
    let name = if name.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    };
    let bytes = model
        .facts
        .as_ref()
        .map_or(0, |known| known.outline.weight_bytes);
    let digest = blake3::hash(format!("{name} {bytes}").as_bytes()).to_hex();
    json!({
        "name": name,
        "model": name,
        "modified_at": iso_time(server.shared.created),
        "size": bytes,
        "digest": digest.as_str(),
        "details": details(),
    })
}

/// All served names.
pub(crate) async fn tags(State(server): State<ServerState>) -> Result<Json<Value>, ApiError> {
    server.models.check()?;
    let (views, server) = (server.models.views(), &server);
    let entries = views.iter().flat_map(|model| {
        model
            .names
            .iter()
            .map(move |name| entry(server, model, name))
    });
    Ok(Json(json!({"models": entries.collect::<Vec<_>>()})))
}

/// The loaded models.
pub(crate) async fn ps(State(server): State<ServerState>) -> Result<Json<Value>, ApiError> {
    server.models.check()?;
    let models: Vec<_> = server
        .models
        .views()
        .iter()
        .filter_map(|view| {
            let info = view.state.as_ref()?.engine.info()?;
            let mut model = entry(&server, view, &view.names[0]);
            let stays = view.expires.map_or(EXPIRES_SECONDS, |left| left.as_secs());
            model["expires_at"] = iso_time(platform::unix_time().saturating_add(stays)).into();
            model["size_vram"] = (info.weight_bytes + info.kv_bytes).into();
            model["context_length"] = info.max_model_len.into();
            Some(model)
        })
        .collect();
    Ok(Json(json!({"models": models})))
}

/// What is known of a model. It is not loaded for that: clients ask about every model that is listed.
pub(crate) async fn show(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let request: OllamaShowRequest = read::read_without_model(request, &server.shared).await?;
    let asked = request.target.model.or(request.name);
    let (
        names,
        ModelFacts {
            outline,
            answer_format,
            reads_images,
            ..
        },
    ) = server.models.facts(asked.as_deref())?;
    let name = asked.unwrap_or_else(|| names[0].clone());
    let template = outline
        .text
        .template
        .as_ref()
        .map_or("", |template| template.source());
    let mut capabilities = Vec::new();
    capabilities.extend((!outline.encodes).then_some("completion"));
    capabilities.extend((!template.is_empty()).then_some("tools"));
    capabilities.extend(reads_images.then_some("vision"));
    capabilities.extend((answer_format.reasoning != ReasoningParser::None).then_some("thinking"));
    let fills_gaps = outline
        .text
        .tokenizer
        .as_ref()
        .is_some_and(|tokenizer| Infill::new(tokenizer).is_some());
    capabilities.extend(fills_gaps.then_some("insert"));
    let gives_vectors = outline.embedding_len > 0 && outline.labels == 0;
    capabilities.extend(gives_vectors.then_some("embedding"));
    Ok(Json(json!({
        "modelfile": format!("FROM {name}\n"),
        "parameters": "",
        "template": template,
        "details": details(),
        "model_info": {
            "general.architecture": "folio",
            "general.basename": name,
            "folio.context_length": outline.max_model_len,
            "folio.embedding_length": outline.embedding_len,
            "folio.vocab_size": outline.vocab,
        },
        "capabilities": capabilities,
        "modified_at": iso_time(server.shared.created),
    })))
}

/// Downloads a model into the cache, from which the next `folio serve` loads it. A served model is there already.
pub(crate) async fn pull(
    State(server): State<ServerState>,
    request: Request,
) -> Result<Response, ApiError> {
    let request: OllamaPullRequest = read::read_without_model(request, &server.shared).await?;
    let name = request
        .target
        .model
        .or(request.name)
        .ok_or_else(|| ApiError::missing("model"))?;
    let puller = match (server.models.view(&name), &server.shared.options.pull) {
        (Ok(_), _) => None,
        (Err(_), Some(puller)) => Some(puller.clone()),
        (Err(_), None) => {
            let message = "`/api/pull` is refused: this server was started without --allow-pull";
            return Err(ApiError::unsupported("model", message));
        }
    };
    let work = async move {
        let Some(puller) = puller else { return Ok(()) };
        let done = platform::offload(move || puller.pull(&name))
            .await
            .ok_or_else(ApiError::internal)?;
        done.ok_or_else(|| ApiError::busy("another model is being downloaded"))?
            .map_err(|why| ApiError::invalid("model", why))
    };
    if !request.stream {
        work.await?;
        return Ok(Json(json!({"status": "success"})).into_response());
    }
    let line = |value: Value| format!("{value}\n");
    let begun = line(json!({"status": "pulling manifest"}));
    let end = async move {
        match work.await {
            Ok(()) => line(json!({"status": "success"})),
            Err(error) => error.json(Dialect::Ollama) + "\n",
        }
    };
    let lines = futures_util::stream::iter([begun]).chain(futures_util::stream::once(end));
    Ok(sse::response(sse::LINES, lines))
}

/// A route that changes models.
pub(crate) async fn refused(request: Request) -> ApiError {
    let path = request.uri().path();
    let instead =
        "models are chosen when the server starts: `folio pull`, then `folio serve --model`";
    ApiError::unsupported(path, format!("`{path}` is not supported: {instead}"))
}
