//! Routes of vLLM's that have no other place: `/invocations`, by which SageMaker calls every model, `/pooling`,
//! `/v1/load_lora_adapter`, `/v1/unload_lora_adapter` and `/reset_prefix_cache`.

use crate::engine::handle::Squash;
use crate::platform;
use crate::server::guards::{Client, parse_ahead};
use crate::server::parameters::adapters;
use crate::server::parameters::read::{self, has};
use crate::server::parameters::table::{LoadAdapterRequest, UnloadAdapterRequest};
use crate::server::parameters::vectors::PoolingRequest;
use crate::server::reply::vectors::{base64_of, json_of};
use crate::server::routes::embeddings::Inputs;
use crate::server::routes::{chat, classes, completions, embeddings, rerank};
use crate::server::state::{ModelState, ServerState};
use crate::server::wire::error::ApiError;
use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
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

/// Reads an adapter, which requests then name as their model.
pub(crate) async fn load_adapter(
    State(server): State<ServerState>,
    request: Request,
) -> Result<String, ApiError> {
    let LoadAdapterRequest {
        lora_name: name,
        lora_path: path,
        load_inplace,
    } = read::read_without_model(request, &server.shared).await?;
    let model = only_model(&server)?;
    model.load_adapter(name.clone(), path, load_inplace).await?;
    Ok(format!(
        "Success: LoRA adapter '{name}' added successfully."
    ))
}

fn only_model(server: &ServerState) -> Result<&ModelState, ApiError> {
    let model = server.models.one();
    model.ok_or_else(|| ApiError::not_implemented("a server of several models has no adapters"))
}

/// Forgets an adapter. Answers that use it go on.
pub(crate) async fn unload_adapter(
    State(server): State<ServerState>,
    request: Request,
) -> Result<String, ApiError> {
    let UnloadAdapterRequest { lora_name: name } =
        read::read_without_model(request, &server.shared).await?;
    only_model(&server)?.unload_adapter(&name)?;
    Ok(format!(
        "Success: LoRA adapter '{name}' removed successfully."
    ))
}

/// Lets no later prompt share what is cached now; its blocks leave the pool when their memory is needed.
pub(crate) async fn reset_prefix_cache(State(server): State<ServerState>) -> Json<Value> {
    server.shared.reset_prefixes();
    Json(json!({}))
}

/// A vector of each text, of each of its tokens, or the probabilities of classes.
pub(crate) async fn pooling(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request: PoolingRequest = read::read(request, &state).await?;
    let model = adapters::base(&state, &request.target)?;
    let mut inputs = Inputs::new(request.input, request.queueing);
    inputs.add_special = request.add_special_tokens;
    inputs.normalize = request.use_activation;
    inputs.dimensions = request.dimensions.map(|count| count as usize);
    let is_base64 = request.encoding_format == Some("base64");
    let usual = if classes::head(&state).is_ok() {
        "classify"
    } else {
        "token_embed"
    };
    let (data, tokens) = match request.task.unwrap_or(usual) {
        "classify" => pooled_classes(&state, client, inputs, is_base64).await?,
        "embed" => {
            let (vectors, tokens) = embeddings::vectors(&state, client, inputs).await?;
            let vectors = vectors.into_iter();
            let vectors = vectors.map(|vector| Pooled::new(vector, is_base64));
            (vectors.collect(), tokens)
        }
        _ => pooled_tokens(&state, client, inputs, is_base64).await?,
    };
    let entries = data.into_iter().enumerate();
    let entries = entries.map(|(index, data)| PooledEntry {
        index,
        object: "pooling",
        data,
    });
    json_of(&PoolingReply {
        id: state.shared.new_id("pool"),
        object: "list",
        created: platform::unix_time(),
        model,
        data: entries.collect(),
        usage: json!({"prompt_tokens": tokens, "total_tokens": tokens}),
    })
}

/// The probabilities of classes, or the logits if vectors are not to be normalized; and the number of tokens.
async fn pooled_classes(
    state: &ModelState,
    client: Client,
    inputs: Inputs,
    is_base64: bool,
) -> Result<(Vec<Pooled>, usize), ApiError> {
    let head = classes::head(state)?;
    let function = if inputs.normalize {
        head.spec.score
    } else {
        Squash::Identity
    };
    let (logits, tokens) = classes::logits(state, client, &head, inputs).await?;
    let scores = logits.iter().map(|logits| {
        let scores = classes::scores(function, logits).into_iter();
        Pooled::new(scores.map(|score| score as f32).collect(), is_base64)
    });
    Ok((scores.collect(), tokens))
}

/// A vector of each token, and the number of tokens.
async fn pooled_tokens(
    state: &ModelState,
    client: Client,
    inputs: Inputs,
    is_base64: bool,
) -> Result<(Vec<Pooled>, usize), ApiError> {
    let (dimensions, normalize) = (inputs.dimensions, inputs.normalize);
    let (rows, tokens) = embeddings::token_rows(state, client, inputs).await?;
    let rows = rows.into_iter().map(|rows| {
        let rows = rows.into_iter();
        let rows = rows.map(|row| embeddings::finished(row, dimensions, normalize));
        Pooled::of_rows(rows.collect(), is_base64)
    });
    Ok((rows.collect(), tokens))
}

#[derive(Serialize)]
struct PoolingReply {
    id: String,
    object: &'static str,
    created: u64,
    model: String,
    data: Vec<PooledEntry>,
    usage: Value,
}

#[derive(Serialize)]
struct PooledEntry {
    index: usize,
    object: &'static str,
    data: Pooled,
}

/// What is pooled of an input.
#[derive(Serialize)]
#[serde(untagged)]
enum Pooled {
    Vector(Vec<f32>),
    Rows(Vec<Vec<f32>>),
    Base64(String),
}

impl Pooled {
    fn new(vector: Vec<f32>, is_base64: bool) -> Self {
        if is_base64 {
            Self::Base64(base64_of(&vector))
        } else {
            Self::Vector(vector)
        }
    }

    fn of_rows(rows: Vec<Vec<f32>>, is_base64: bool) -> Self {
        if is_base64 {
            Self::Base64(base64_of(&rows.concat()))
        } else {
            Self::Rows(rows)
        }
    }
}
