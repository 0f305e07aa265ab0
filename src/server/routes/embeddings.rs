//! `POST /v1/embeddings`, and `POST /embedding` in llama.cpp's form: embeddings of texts or token ids. As in its
//! server, `content` instead of `input` asks for that form on both.
//!
//! An embedding is the hidden state of the first or of the last token, or the mean over all tokens, after the model's
//! final norm: as the request says, or the model's files, which may say more. It is scaled to length one unless the
//! request disables that.
//! `docs/embeddings.md` is for users.

use crate::engine::handle::{EngineInfo, through};
use crate::engine::request::{
    Event, Pooling, PromptEvent, Request as EngineRequest, RequestError, SamplingParams,
    SubmitError,
};
use crate::platform;
use crate::server::guards::{Client, read_object};
use crate::server::parameters::adapters::base;
use crate::server::parameters::conversation::Conversation;
use crate::server::parameters::prompts::{Prompt, Prompts};
use crate::server::parameters::read;
use crate::server::parameters::sampling::Truncation;
use crate::server::parameters::table::{
    EmbeddingChatRequest, EmbeddingRequest, LlamaEmbeddingRequest, Queueing,
};
use crate::server::reply::vectors::{VectorForm, Vectors, json_of};
use crate::server::routes::chat;
use crate::server::state::{ModelState, prompt_bytes_max};
use crate::server::wire::error::{ApiError, Names, name_of};
use crate::text::sentence::{self, RowsOfText};
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::{Map, Value};

/// The engine's field names and those of an embeddings request, where they differ.
const NAMES: Names = &[("prompt", "input")];
/// The same for a request in llama.cpp's form.
const LLAMA_NAMES: Names = &[("prompt", "content")];
/// Maximum inputs of one request that are submitted at once, so that it does not fill the queue.
const INPUTS_AT_ONCE: usize = 16;
/// Products of numbers that take as long as encoding a byte of text.
const PRODUCTS_PER_BYTE: usize = 100;

/// What to embed, and how.
pub(crate) struct Inputs {
    prompts: Prompts,
    queueing: Queueing,
    pub(crate) add_special: bool,
    /// `None`: as the model's files say.
    pub(crate) pooling: Option<RowsOfText>,
    /// The name of the prompt that is put before texts; `None`: the default one of the model's files.
    pub(crate) prompt_name: Option<String>,
    pub(crate) normalize: bool,
    /// Leave out what does not fit into the context.
    pub(crate) truncates: bool,
    /// Leave out the beginning of that, not its end.
    pub(crate) keeps_end: bool,
    /// Maximum tokens of an input; `None`: as many as the model reads.
    pub(crate) tokens_max: Option<usize>,
    /// All rows are wanted, not a vector made of them.
    keeps_rows: bool,
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
            prompt_name: None,
            normalize: true,
            truncates: false,
            keeps_end: false,
            tokens_max: None,
            keeps_rows: false,
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
                prompt_name: request.prompt_name,
                ..Inputs::new(request.input, request.queueing)
            };
            (request.target, request.form, inputs)
        }
        Asked::Llama(request) => return llama_form(&state, client, *request).await,
        Asked::Chat(request) => {
            let mut conversation = Conversation::new(request.conversation)?;
            conversation.refuse_images()?;
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
    let model = base(&state, &target)?;
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
    base(state, &request.target)?;
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
    json_of(&entries)
}

/// The pooling that a request names.
pub(crate) fn pooling(name: Option<&str>) -> Option<RowsOfText> {
    Some(match name? {
        "cls" => RowsOfText::First,
        "max" => RowsOfText::Max,
        "mean" => RowsOfText::Mean,
        "weightedmean" => RowsOfText::WeightedMean,
        _ => RowsOfText::Last,
    })
}

/// How the rows of texts become vectors.
struct TextPooling {
    poolings: Vec<RowsOfText>,
    /// Number of first rows that do not count.
    skipped: usize,
}

impl TextPooling {
    /// What a request asks for; else what the model's files say; else the usual one.
    fn new(state: &ModelState, info: &EngineInfo, asked: Option<RowsOfText>) -> Self {
        let own = || state.text.sentence.as_ref().map(|own| own.poolings.clone());
        let usual = if info.computes_whole_sequences {
            RowsOfText::Mean
        } else {
            RowsOfText::Last
        };
        let asked = asked.map(|one| vec![one]);
        Self {
            poolings: asked.or_else(own).unwrap_or_else(|| vec![usual]),
            skipped: 0,
        }
    }

    /// What the engine pools; all rows if more is to be done with them.
    fn of_engine(&self) -> Pooling {
        match (&self.poolings[..], self.skipped) {
            ([RowsOfText::First], 0) => Pooling::First,
            ([RowsOfText::Last], _) => Pooling::Last,
            ([RowsOfText::Mean], 0) => Pooling::Mean,
            _ => Pooling::All,
        }
    }

    /// The vector of a text from what the engine gave for its so many tokens.
    fn vector(&self, given: Vec<f32>, tokens: usize) -> Vec<f32> {
        match self.of_engine() {
            Pooling::All => {
                let columns = given.len() / tokens.max(1);
                sentence::pool(&given, columns, self.skipped, &self.poolings)
            }
            _ => given,
        }
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

/// The prompt that is put before texts.
fn prompt<'a>(state: &'a ModelState, name: Option<&str>) -> Result<Option<&'a str>, ApiError> {
    let sentence = state.text.sentence.as_ref();
    let Some(name) = name else {
        return Ok(sentence.and_then(|own| own.default_prompt.as_deref()));
    };
    let prompts = sentence.map(|own| &own.prompts);
    let found = prompts.and_then(|prompts| prompts.get(name));
    found.map(|text| Some(text.as_str())).ok_or_else(|| {
        let names = prompts.into_iter().flat_map(|prompts| prompts.keys());
        let names = names.map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = match names.as_str() {
            "" => "`prompt_name`: this model's files have no prompts".to_owned(),
            names => format!("`prompt_name`: this model's prompts are {names}, not {name}"),
        };
        ApiError::invalid("prompt_name", message)
    })
}

/// The inputs as the model's files want them: with their prompt, and lowercased.
fn prepared(state: &ModelState, mut prompts: Prompts, before: Option<&str>) -> Prompts {
    let lowercases = state.text.sentence.as_ref();
    let lowercases = lowercases.is_some_and(|own| own.lowercases);
    for prompt in &mut prompts.0 {
        if let Prompt::Text(text) = prompt {
            text.insert_str(0, before.unwrap_or_default());
            if lowercases {
                *text = text.to_lowercase();
            }
        }
    }
    prompts
}

/// The number of rows that a prompt before a text takes, and the special tokens before it.
fn prompt_rows(state: &ModelState, before: &str) -> usize {
    let Some(tokenizer) = &state.text.tokenizer else {
        return 0;
    };
    if before.is_empty() {
        return 0;
    }
    let ids = tokenizer.encode(before, true).unwrap_or_default();
    let ends = ids.last().is_some_and(|last| tokenizer.is_special(*last));
    ids.len() - usize::from(ends)
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
    let info = state.ready()?;
    let (dimensions, normalize) = (inputs.dimensions, inputs.normalize);
    let (rows, counts) = rows(state, client, inputs).await?;
    let rows = through_dense(state, info, rows).await?;
    let vectors = rows.into_iter();
    let vectors = vectors.map(|vector| finished(vector, dimensions, normalize));
    Ok((vectors.collect(), counts.iter().sum()))
}

/// The hidden states of all tokens of inputs, and the number of tokens.
pub(crate) async fn token_rows(
    state: &ModelState,
    client: Client,
    mut inputs: Inputs,
) -> Result<(Vec<Vec<Vec<f32>>>, usize), ApiError> {
    inputs.keeps_rows = true;
    let (given, counts) = rows(state, client, inputs).await?;
    let all = given.iter().zip(&counts).map(|(given, tokens)| {
        let columns = (given.len() / tokens.max(&1)).max(1);
        given.chunks(columns).map(<[f32]>::to_vec).collect()
    });
    Ok((all.collect(), counts.iter().sum()))
}

/// What the dense modules of a model make of pooled rows.
async fn through_dense(
    state: &ModelState,
    info: &EngineInfo,
    rows: Vec<Vec<f32>>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let wanted = state.text.sentence.as_ref().map_or(0, |own| own.dense);
    let layers = info.dense.clone();
    let fits = layers
        .first()
        .is_none_or(|first| rows.iter().all(|row| row.len() == first.inputs()));
    if layers.len() != wanted || !fits {
        let message = "the dense modules in this model's folder are not those of its rows";
        return Err(ApiError::unsupported("model", message));
    }
    if layers.is_empty() {
        return Ok(rows);
    }
    let work: usize = layers
        .iter()
        .map(|layer| layer.inputs() * layer.outputs())
        .sum();
    // A product costs less than a byte of text.
    let bytes = rows.len() * work / PRODUCTS_PER_BYTE;
    let vector = move |row: &Vec<f32>| {
        let vector = through(&layers, row).into_iter();
        vector.map(|x| x as f32).collect()
    };
    state
        .shared
        .offload(bytes, move || rows.iter().map(vector).collect())
        .await
}

/// The pooled rows of inputs, or all rows of each one after the other, and the numbers of their tokens.
pub(crate) async fn rows(
    state: &ModelState,
    client: Client,
    inputs: Inputs,
) -> Result<(Vec<Vec<f32>>, Vec<usize>), ApiError> {
    let info = state.ready()?;
    if info.embedding_len == 0 {
        let message = "this model does not support embeddings";
        return Err(ApiError::unsupported("model", message));
    }
    let (keeps_rows, names) = (inputs.keeps_rows, inputs.names);
    let mut pooling = TextPooling::new(state, info, inputs.pooling);
    let before = prompt(state, inputs.prompt_name.as_deref())?;
    let sentence = state.text.sentence.as_ref();
    // Token ids come with whatever belongs before them.
    if sentence.is_some_and(|own| !own.pools_prompt) && inputs.prompts.are_texts() {
        pooling.skipped = before.map_or(0, |before| prompt_rows(state, before));
    }
    let of_engine = if keeps_rows {
        Pooling::All
    } else {
        pooling.of_engine()
    };
    let base = base_request(&inputs.queueing, client, of_engine);
    base.check_without_prompt(info.vocab, info.max_model_len)
        .map_err(|error| ApiError::refused(&error, names))?;
    let inputs = token_ids(state, info, inputs, before).await?;
    let counts: Vec<usize> = inputs.iter().map(Vec::len).collect();
    let requests = inputs.into_iter().map(|ids| EngineRequest {
        prompt: ids.into(),
        ..base.clone()
    });
    let given = pooled(state, requests, names).await?;
    if keeps_rows {
        return Ok((given, counts));
    }
    let rows = given.into_iter().zip(&counts);
    let rows = rows.map(|(given, tokens)| pooling.vector(given, *tokens));
    Ok((rows.collect(), counts))
}

/// The token ids of inputs after a prompt, each as long as the model reads it.
async fn token_ids(
    state: &ModelState,
    info: &EngineInfo,
    inputs: Inputs,
    before: Option<&str>,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let (names, add_special) = (inputs.names, inputs.add_special);
    let room = tokens_max(state, info);
    let own = inputs.tokens_max.and_then(|most| u32::try_from(most).ok());
    let room = own.map_or(room, |own| own.min(room));
    let truncation = Truncation::new(&inputs.queueing, room);
    let prompts = prepared(state, inputs.prompts, before);
    if !inputs.truncates && !truncation.is_asked() {
        prompts.check_bytes(name_of("prompt", names), info)?;
    }
    let cut = match (truncation.beginning(), truncation.ending()) {
        (Some(most), _) if add_special => Some((most, false)),
        // Of an encoder, the tokens at both ends belong to every text.
        (_, Some(most)) if add_special && info.computes_whole_sequences => Some((most, true)),
        _ if inputs.truncates => Some((room as usize, inputs.keeps_end)),
        _ => None,
    };
    let ids = encoded(state, prompts, cut, add_special).await?;
    let ids: Vec<_> = ids.into_iter().map(|ids| truncation.of(ids)).collect();
    check_lengths(&ids, room).map_err(|error| ApiError::refused(&error, names))?;
    Ok(ids)
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
pub(crate) fn base_request(queueing: &Queueing, client: Client, pooling: Pooling) -> EngineRequest {
    EngineRequest {
        params: SamplingParams {
            max_tokens: Some(1),
            ..SamplingParams::default()
        },
        cache_salt: queueing.cache_salt.clone(),
        priority: queueing.priority.unwrap_or(0) as i32,
        client: client.0,
        pooling: Some(pooling),
        ..EngineRequest::default()
    }
}

/// The ids of inputs, or so many of the first or of the last ones of each. What was cut ends as a whole text does.
async fn encoded(
    state: &ModelState,
    prompts: Prompts,
    cut: Option<(usize, bool)>,
    add_special: bool,
) -> Result<Vec<Vec<u32>>, ApiError> {
    let most = match cut {
        None => return prompts.encode(state, add_special).await,
        Some((most, true)) => return prompts.encode_ending(state, most).await,
        Some((most, false)) => most,
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
pub(crate) fn finished(
    mut vector: Vec<f32>,
    dimensions: Option<usize>,
    normalize: bool,
) -> Vec<f32> {
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
