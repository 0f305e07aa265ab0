//! `POST /v1/embeddings`, and `POST /embedding` in llama.cpp's form: embeddings of texts or token ids. As in its
//! server, `content` instead of `input` asks for that form on both.
//!
//! An embedding is the hidden state of the first or of the last token, or the mean over all tokens, after the model's
//! final norm: as the request says, or the model's files. It is scaled to length one unless the request disables that.
//! `docs/embeddings.md` is for users.

use crate::engine::handle::EngineInfo;
use crate::engine::request::{
    Event, Pooling, PromptEvent, Request as EngineRequest, RequestError, SamplingParams,
    SubmitError,
};
use crate::platform;
use crate::server::guards::{Client, read_object};
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::prompts::{Prompt, Prompts};
use crate::server::parameters::read;
use crate::server::parameters::sampling::Truncation;
use crate::server::parameters::table::{
    EmbeddingChatRequest, EmbeddingRequest, LlamaEmbeddingRequest, Queueing,
};
use crate::server::reply::vectors::{VectorForm, Vectors};
use crate::server::routes::chat;
use crate::server::state::{ModelState, prompt_bytes_max};
use crate::server::wire::error::{ApiError, Names, name_of};
use crate::text::sentence::RowsOfText;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::{Map, Value};

/// The engine's field names and those of an embeddings request, where they differ.
const NAMES: Names = &[("prompt", "input")];
/// The same for a request in llama.cpp's form.
const LLAMA_NAMES: Names = &[("prompt", "content")];
/// Maximum inputs of one request that are submitted at once, so that it does not fill the queue.
const INPUTS_AT_ONCE: usize = 16;

/// What to embed, and how.
pub(crate) struct Inputs {
    prompts: Prompts,
    queueing: Queueing,
    pub(crate) add_special: bool,
    /// `None`: as the model's files say.
    pub(crate) pooling: Option<Pooling>,
    normalize: bool,
    /// Leave out the end of what does not fit into the context.
    pub(crate) truncates: bool,
    /// The engine's field names and the request's, where they differ.
    pub(crate) names: Names,
    /// Number of leading elements to keep.
    pub(crate) dimensions: Option<usize>,
}

impl Inputs {
    /// Normalized vectors, pooled as the model's files say.
    pub(crate) fn new(prompts: Prompts, queueing: Queueing) -> Self {
        Self {
            prompts,
            queueing,
            add_special: true,
            pooling: None,
            normalize: true,
            truncates: false,
            names: NAMES,
            dimensions: None,
        }
    }
}

/// An embedding in llama.cpp's form.
#[derive(Serialize)]
struct LlamaEntry {
    index: usize,
    embedding: [Vec<f32>; 1],
}

/// Embeds every input.
pub(crate) async fn embeddings(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let owned = state.clone();
    let request = read_object(request, &state.shared, move |body| {
        Asked::read(body, &owned)
    });
    let (target, form, inputs) = match request.await? {
        Asked::Inputs(request) => {
            let inputs = Inputs {
                add_special: request.add_special_tokens,
                ..Inputs::new(request.input, request.queueing)
            };
            (request.target, request.form, inputs)
        }
        Asked::Llama(request) => return llama_form(&state, client, *request).await,
        Asked::Chat(request) => {
            let mut conversation = Conversation::new(request.conversation)?;
            conversation.add_generation_prompt = request.add_generation_prompt;
            let bytes_max = prompt_bytes_max(state.ready()?);
            let ids = chat::prompt(&state, conversation, chat::NAMES, bytes_max).await?;
            let inputs = Inputs {
                names: chat::NAMES,
                ..Inputs::new(Prompts(vec![Prompt::Ids(ids)]), request.queueing)
            };
            (request.target, request.form, inputs)
        }
    };
    let model = state.base(target.model)?;
    let inputs = Inputs {
        pooling: pooling(form.pooling),
        normalize: form.normalize,
        dimensions: form.dimensions.map(|count| count as usize),
        ..inputs
    };
    let (vectors, prompt_tokens) = vectors(&state, client, inputs).await?;
    VectorForm::new(&form).reply(Vectors {
        id: state.shared.new_id("embd"),
        created: platform::unix_time(),
        model,
        vectors,
        prompt_tokens,
    })
}

/// The forms of a request.
enum Asked {
    Inputs(Box<EmbeddingRequest>),
    Chat(Box<EmbeddingChatRequest>),
    Llama(Box<LlamaEmbeddingRequest>),
}

impl Asked {
    fn read(body: Map<String, Value>, state: &ModelState) -> Result<Self, ApiError> {
        if read::has(&body, "input") {
            read::whole(body, state).map(|request| Self::Inputs(Box::new(request)))
        } else if read::has(&body, "messages") {
            read::whole(body, state).map(|request| Self::Chat(Box::new(request)))
        } else if read::has(&body, "content") {
            read::whole(body, state).map(|request| Self::Llama(Box::new(request)))
        } else {
            read::whole(body, state).map(|request| Self::Inputs(Box::new(request)))
        }
    }
}

/// Embeds every input, in llama.cpp's form.
pub(crate) async fn llama_embedding(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let request = read::read(request, &state).await?;
    llama_form(&state, client, request).await
}

/// One vector for each input, in a list of its own.
async fn llama_form(
    state: &ModelState,
    client: Client,
    request: LlamaEmbeddingRequest,
) -> Result<Response, ApiError> {
    state.base(request.target.model)?;
    let content = request
        .content
        .ok_or_else(|| ApiError::missing("content"))?;
    let inputs = Inputs {
        pooling: pooling(request.pooling),
        normalize: request.embd_normalize,
        names: LLAMA_NAMES,
        ..Inputs::new(content, request.queueing)
    };
    let (vectors, _) = vectors(state, client, inputs).await?;
    let entries = vectors.into_iter().enumerate();
    let entries: Vec<_> = entries
        .map(|(index, vector)| LlamaEntry {
            index,
            embedding: [vector],
        })
        .collect();
    let body = serde_json::to_string(&entries).map_err(|_| ApiError::internal())?;
    Ok(([(CONTENT_TYPE, "application/json")], Body::from(body)).into_response())
}

fn pooling(name: Option<&str>) -> Option<Pooling> {
    Some(match name? {
        "mean" => Pooling::Mean,
        _ => Pooling::Last,
    })
}

/// The pooling of requests that name none.
fn usual_pooling(state: &ModelState, info: &EngineInfo) -> Pooling {
    match state.text.sentence.as_ref().map(|sentence| sentence.rows) {
        Some(RowsOfText::First) => Pooling::First,
        Some(RowsOfText::Mean) => Pooling::Mean,
        None if info.computes_whole_sequences => Pooling::Mean,
        Some(RowsOfText::Last) | None => Pooling::Last,
    }
}

/// Maximum tokens of an input: the context, or less if the model's files say so.
pub(crate) fn tokens_max(state: &ModelState, info: &EngineInfo) -> u32 {
    let own = if info.computes_whole_sequences {
        state.text.encoder_tokens_max()
    } else {
        let sentence = state.text.sentence.as_ref();
        sentence.and_then(|sentence| sentence.max_tokens)
    };
    let own = own.and_then(|own| u32::try_from(own).ok());
    own.map_or(info.max_model_len, |own| own.min(info.max_model_len))
}

/// The inputs as the model's files want them: with their prompt, and lowercased.
fn prepared(state: &ModelState, mut prompts: Prompts) -> Prompts {
    let Some(sentence) = &state.text.sentence else {
        return prompts;
    };
    for prompt in &mut prompts.0 {
        if let Prompt::Text(text) = prompt {
            if let Some(own) = &sentence.default_prompt {
                text.insert_str(0, own);
            }
            if sentence.lowercases {
                *text = text.to_lowercase();
            }
        }
    }
    prompts
}

/// The token that ends a text, of a tokenizer that adds one at each end.
fn end_token(state: &ModelState) -> Option<u32> {
    let tokenizer = state.text.tokenizer.as_ref()?;
    let ends = tokenizer.encode("", true).ok()?;
    if ends.len() > 1 {
        ends.last().copied()
    } else {
        None
    }
}

/// The vectors of inputs, and the number of their tokens.
pub(crate) async fn vectors(
    state: &ModelState,
    client: Client,
    inputs: Inputs,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    if state.ready()?.classes.is_some() {
        let message = "this model has a head for classes: use /rerank, /score or /classify";
        return Err(ApiError::unsupported("model", message));
    }
    let (dimensions, normalize) = (inputs.dimensions, inputs.normalize);
    let (rows, tokens) = rows(state, client, inputs).await?;
    let vectors = rows.into_iter();
    let vectors = vectors.map(|vector| finished(vector, dimensions, normalize));
    Ok((vectors.collect(), tokens))
}

/// The pooled rows of inputs, and the number of their tokens.
pub(crate) async fn rows(
    state: &ModelState,
    client: Client,
    inputs: Inputs,
) -> Result<(Vec<Vec<f32>>, usize), ApiError> {
    let info = state.ready()?;
    if info.embedding_len == 0 {
        return Err(ApiError::unsupported(
            "model",
            "this model does not support embeddings",
        ));
    }
    let Inputs {
        prompts,
        queueing,
        add_special,
        pooling,
        truncates,
        names,
        ..
    } = inputs;
    let room = tokens_max(state, info);
    let truncation = Truncation::new(&queueing, room);
    let prompts = prepared(state, prompts);
    let pooling = pooling.unwrap_or_else(|| usual_pooling(state, info));
    let base = base_request(queueing, client, pooling);
    base.check_without_prompt(info.vocab, info.max_model_len)
        .map_err(|error| ApiError::refused(&error, names))?;
    if !truncates && !truncation.is_asked() {
        prompts.check_bytes(name_of("prompt", names), info)?;
    }
    let most = match truncation.beginning() {
        Some(most) if add_special => Some(most),
        _ if truncates => Some(room as usize),
        _ => None,
    };
    let inputs = encoded(state, prompts, most, add_special).await?;
    let inputs: Vec<_> = inputs.into_iter().map(|ids| truncation.of(ids)).collect();
    check_lengths(&inputs, room).map_err(|error| ApiError::refused(&error, names))?;
    let prompt_tokens = inputs.iter().map(Vec::len).sum();
    let requests = inputs.into_iter().map(|ids| EngineRequest {
        prompt: ids.into(),
        ..base.clone()
    });
    Ok((pooled(state, requests, names).await?, prompt_tokens))
}

/// The pooled rows of requests.
pub(crate) async fn pooled(
    state: &ModelState,
    requests: impl Iterator<Item = EngineRequest>,
    names: Names,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let _active = state.count_answer();
    let all = requests.map(|request| embed(state, request, names));
    futures_util::stream::iter(all)
        .buffered(INPUTS_AT_ONCE)
        .try_collect()
        .await
}

/// A request for a vector, without its prompt.
pub(crate) fn base_request(queueing: Queueing, client: Client, pooling: Pooling) -> EngineRequest {
    EngineRequest {
        params: SamplingParams {
            max_tokens: Some(1),
            ..SamplingParams::default()
        },
        cache_salt: queueing.cache_salt,
        priority: queueing.priority.unwrap_or(0) as i32,
        client: client.0,
        pooling: Some(pooling),
        ..EngineRequest::default()
    }
}

/// The ids of inputs, or the first `most` of each. What was cut ends as a whole text does.
async fn encoded(
    state: &ModelState,
    prompts: Prompts,
    most: Option<usize>,
    add_special: bool,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let Some(most) = most else {
        return prompts.encode(state, add_special).await;
    };
    let mut inputs = prompts.encode_beginning(state, most).await?;
    if let Some(end) = end_token(state) {
        let cut = inputs.iter_mut().filter(|ids| ids.len() == most);
        cut.filter_map(|ids| ids.last_mut())
            .for_each(|last| *last = end);
    }
    Ok(inputs)
}

/// Fails if an input has more tokens than there is room for.
pub(crate) fn check_lengths(inputs: &[Vec<u32>], room: u32) -> Result<(), SubmitError> {
    match inputs.iter().find(|ids| ids.len() > room as usize) {
        Some(long) => Err(SubmitError::PromptTooLong {
            tokens: u32::try_from(long.len()).unwrap_or(u32::MAX),
            limit: room,
        }),
        None => Ok(()),
    }
}

/// The embedding of one prompt.
async fn embed(
    state: &ModelState,
    request: EngineRequest,
    names: Names,
) -> Result<Vec<f32>, ApiError> {
    let receivers = state
        .submit(request)
        .map_err(|error| ApiError::refused(&error, names))?;
    let mut events = futures_util::stream::iter(receivers).flatten();
    let mut embedding = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Prompt(PromptEvent::Embedding(vector)) => embedding = vector,
            Event::Finished { .. } => return Ok(embedding),
            Event::Failed(error) => return Err(ApiError::failed(error)),
            Event::Prompt(_) | Event::Token(_) => {}
        }
    }
    // The engine ends every request with an event. A receiver closed without one means that the engine is gone.
    Err(ApiError::failed(RequestError::Internal))
}

/// Truncates and normalizes one vector.
fn finished(mut vector: Vec<f32>, dimensions: Option<usize>, normalize: bool) -> Vec<f32> {
    vector.truncate(dimensions.unwrap_or(usize::MAX));
    let length = vector
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt();
    if normalize && length > 0.0 {
        vector
            .iter_mut()
            .for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    vector
}
