//! `POST /tokenize`, `POST /detokenize`, `GET /tokenizer_info`, and the `render` routes: text and token ids without
//! generating anything.
//!
//! `/tokenize` speaks two dialects, told apart by which field is there: vLLM's `prompt` or `messages`, llama.cpp's
//! `content`. An answer of `/detokenize` has the text under both their names.

use crate::engine::handle::EngineInfo;
use crate::server::parameters::fields::{Fields, wrong};
use crate::server::parameters::messages::Conversation;
use crate::server::parameters::sampling::token_id;
use crate::server::routes::chat;
use crate::server::routes::completions::read_prompts;
use crate::server::state::{ServerState, prompt_bytes_max};
use crate::server::wire::error::ApiError;
use crate::server::wire::json::read_object;
use crate::text::{TextModel, TextStream, Tokenizer};
use axum::Json;
use axum::extract::{Request, State};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What decoding a token costs, in bytes of text that would be encoded.
const BYTES_PER_ID: usize = 4;

/// The text of token ids.
pub(crate) fn decode(text: &TextModel, ids: &[u32], skip_special: bool) -> String {
    let mut stream = TextStream::new(text.tokenizer.clone(), &[], skip_special);
    let decoded: String = ids.iter().map(|id| stream.push(*id).text).collect();
    decoded + &stream.finish().text
}

/// The texts of several lists of token ids, beside the async threads if they are long.
pub(crate) async fn decode_all(
    state: &ServerState,
    lists: Vec<Arc<[u32]>>,
    skip_special: bool,
) -> Result<Vec<String>, ApiError> {
    let count: usize = lists.iter().map(|ids| ids.len()).sum();
    let work = move |text: &TextModel| lists.iter().map(|ids| decode(text, ids, skip_special)).collect();
    state.with_text(count * BYTES_PER_ID, work).await
}

fn tokenizer(state: &ServerState) -> Result<&Arc<Tokenizer>, ApiError> {
    let missing = || ApiError::unsupported("model", "this model has no tokenizer");
    state.text.tokenizer.as_ref().ok_or_else(missing)
}

/// Token ids of a text or a conversation.
pub(crate) async fn tokenize(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    state.model(fields.model()?)?;
    let names = fields.boolean("return_token_strs")?.unwrap_or(false);
    let add_special = fields.boolean("add_special_tokens")?;
    let ids = if fields.has("messages") {
        chat::prompt(&state, info, Conversation::read(&mut fields)?).await?
    } else if fields.has("content") {
        return llama_tokenize(&state, info, fields).await;
    } else {
        let mut prompts =
            read_prompts(&mut fields, "prompt", info, 1)?.encode(&state, add_special.unwrap_or(true)).await?;
        prompts.pop().unwrap_or_default()
    };
    fields.finish(&state)?;
    let tokenizer = tokenizer(&state)?;
    let names = names.then(|| ids.iter().map(|id| name(tokenizer, *id)).collect::<Vec<_>>());
    let (count, max_model_len) = (ids.len(), info.max_model_len);
    Ok(Json(json!({"count": count, "max_model_len": max_model_len, "tokens": ids, "token_strs": names})))
}

fn name(tokenizer: &Tokenizer, id: u32) -> String {
    String::from_utf8_lossy(&tokenizer.token_bytes(id, None)).into_owned()
}

/// llama.cpp's form: `{content, add_special, with_pieces}`.
async fn llama_tokenize(state: &ServerState, info: &EngineInfo, mut fields: Fields) -> Result<Json<Value>, ApiError> {
    let add_special = fields.boolean("add_special")?.unwrap_or(false);
    let with_pieces = fields.boolean("with_pieces")?.unwrap_or(false);
    let parses = fields.boolean("parse_special")?.unwrap_or(true);
    if !parses {
        return Err(ApiError::unsupported("parse_special", "special tokens in `content` are always read as such"));
    }
    let content = fields.string("content", prompt_bytes_max(info))?.unwrap_or_default();
    fields.finish(state)?;
    let tokenizer = tokenizer(state)?.clone();
    let (bytes, encoder) = (content.len(), tokenizer.clone());
    let ids = state.offload(bytes, move || encoder.encode(&content, add_special)).await?;
    let ids = ids.map_err(|error| ApiError::invalid("content", error.to_string()))?;
    if !with_pieces {
        return Ok(Json(json!({"tokens": ids})));
    }
    let piece = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id, None);
        // A piece that is only part of a character is told by its bytes.
        let piece = String::from_utf8(bytes).map_or_else(|wrong| json!(wrong.into_bytes()), Value::from);
        json!({"id": id, "piece": piece})
    };
    Ok(Json(json!({"tokens": ids.iter().map(piece).collect::<Vec<_>>()})))
}

/// The text of token ids, special ones included.
pub(crate) async fn detokenize(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    state.model(fields.model()?)?;
    let tokens = match fields.take("tokens") {
        None => return Err(ApiError::missing("tokens")),
        Some(Value::Array(tokens)) => tokens,
        Some(value) => return Err(wrong("tokens", "a list of token ids", &value)),
    };
    fields.finish(&state)?;
    tokenizer(&state)?;
    let ids = tokens.iter().map(|item| token_id("tokens", item, info.vocab)).collect::<Result<Vec<_>, _>>()?;
    let work = move |text: &TextModel| decode(text, &ids, false);
    let text = state.with_text(tokens.len() * BYTES_PER_ID, work).await?;
    Ok(Json(json!({"prompt": text, "content": text})))
}

/// What the model's files say of its tokenizer.
pub(crate) async fn tokenizer_info(State(state): State<ServerState>) -> Result<Json<Value>, ApiError> {
    let vocabulary = tokenizer(&state)?.vocabulary();
    let mut info: Map<String, Value> = state.text.config.clone();
    info.entry("tokenizer_class").or_insert_with(|| "PreTrainedTokenizerFast".into());
    info.insert("vocab_size".into(), vocabulary.into());
    Ok(Json(Value::Object(info)))
}

/// `POST /v1/chat/completions/render`: the prompt of a chat request.
pub(crate) async fn render_chat(State(state): State<ServerState>, request: Request) -> Result<Json<Value>, ApiError> {
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    state.model(fields.model()?)?;
    let ids = chat::prompt(&state, info, Conversation::read(&mut fields)?).await?;
    Ok(Json(json!({"token_ids": ids})))
}

/// `POST /v1/completions/render`: the prompts of a completions request.
pub(crate) async fn render_completions(
    State(state): State<ServerState>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    state.model(fields.model()?)?;
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let prompts = read_prompts(&mut fields, "prompt", info, state.options.limits.prompts_max)?;
    let prompts = prompts.encode(&state, add_special).await?;
    Ok(Json(prompts.into_iter().map(|ids| json!({"token_ids": ids})).collect()))
}
