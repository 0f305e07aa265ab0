//! `POST /v1/completions`: a prompt, several, or lists of token ids, each continued `n` times.

use crate::engine::handle::EngineInfo;
use crate::server::guards::access::Client;
use crate::server::parameters::fields::{Fields, wrong};
use crate::server::parameters::sampling::{Sampling, TOP_LOGPROBS_MAX, token_id};
use crate::server::reply::generation::Generation;
use crate::server::reply::openai::{Kind, PromptPart, Reply};
use crate::server::routes::tokens::decode_all;
use crate::server::state::ServerState;
use crate::server::state::prompt_bytes_max;
use crate::server::wire::error::ApiError;
use crate::server::wire::json::read_object;
use crate::server::wire::sse;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use std::sync::Arc;

/// OpenAI's default.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// What `prompt` may hold.
pub(crate) enum Prompts {
    Texts(Vec<String>),
    Ids(Vec<Vec<u32>>),
}

impl Prompts {
    /// Token ids; texts are encoded, with what the tokenizer adds around them if `add_special`.
    pub(crate) async fn encode(self, state: &ServerState, add_special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
        match self {
            Self::Ids(prompts) => Ok(prompts),
            Self::Texts(texts) => encode(state, texts, add_special).await,
        }
    }
}

/// Continues prompts.
pub(crate) async fn completions(State(state): State<ServerState>, request: Request) -> Result<Response, ApiError> {
    let client = Client::of(&request);
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    let model = state.model(fields.model()?)?;
    let mut sampling = Sampling::read(&mut fields, &state, info, client)?;
    sampling.set_logprobs(fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?.map(|top| top as u32));
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let echo = fields.boolean("echo")?.unwrap_or(false);
    // Only the prompt again, for its logprobs.
    sampling.silent = echo && fields.take_zero("max_tokens");
    let max_tokens = fields.token_count("max_tokens")?.unwrap_or(MAX_TOKENS_DEFAULT);
    sampling.params.max_tokens = Some(if sampling.silent { 1 } else { max_tokens });
    if echo && sampling.wants_logprobs {
        sampling.params.prompt_logprobs = sampling.params.prompt_logprobs.max(sampling.params.logprobs);
    }
    let prompts = read_prompts(&mut fields, "prompt", info, state.options.limits.prompts_max)?;
    fields.finish(&state)?;

    let prompts = prompts.encode(&state, add_special).await?;
    let ids: Vec<Arc<[u32]>> = prompts.into_iter().map(|ids| sampling.truncated(ids).into()).collect();
    let texts = if echo { decode_all(&state, ids.clone(), sampling.skip_special).await? } else { Vec::new() };
    let mut texts = texts.into_iter();
    let prompts = ids.iter().map(|ids| PromptPart { ids: ids.clone(), echo: texts.next() }).collect();
    sampling.constrain(&state).await?;
    let generation = Generation::submit(&state, ids, &sampling, "prompt")?;
    let reply = Reply::new(Kind::Completion, (&state, info), model, &sampling, prompts, &generation);
    if sampling.stream { Ok(sse::stream(generation, reply)) } else { sse::collect(generation, reply).await }
}

/// `prompt`, or another field that holds the same kinds of things.
pub(crate) fn read_prompts(
    fields: &mut Fields,
    field: &'static str,
    info: &EngineInfo,
    prompts_max: usize,
) -> Result<Prompts, ApiError> {
    let value = fields.take(field).ok_or_else(|| ApiError::missing(field))?;
    let items = match value {
        Value::String(text) => return Ok(Prompts::Texts(vec![checked_text(field, text, info)?])),
        Value::Array(items) if !items.is_empty() => items,
        other => return Err(wrong(field, "a string, strings, token ids or lists of token ids, not empty", &other)),
    };
    if items[0].is_number() {
        return Ok(Prompts::Ids(vec![ids(field, &items, info)?]));
    }
    if items.len() > prompts_max {
        let message = format!("`{field}` has {} prompts; at most {prompts_max} are allowed", items.len());
        return Err(ApiError::invalid(field, message));
    }
    if items[0].is_array() {
        let lists = items.iter().map(|item| match item {
            Value::Array(list) => ids(field, list, info),
            other => Err(wrong(field, "of one kind: lists of token ids", other)),
        });
        return Ok(Prompts::Ids(lists.collect::<Result<_, _>>()?));
    }
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) => checked_text(field, text, info),
        other => Err(wrong(field, "of one kind: strings", &other)),
    });
    Ok(Prompts::Texts(texts.collect::<Result<_, _>>()?))
}

fn checked_text(field: &str, text: String, info: &EngineInfo) -> Result<String, ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid(field, "a prompt must not be empty"));
    }
    let (bytes, bytes_max) = (text.len(), prompt_bytes_max(info));
    if bytes > bytes_max {
        let context = info.max_model_len;
        let message =
            format!("the prompt has {bytes} bytes; the context is {context} tokens, at most {bytes_max} bytes");
        return Err(ApiError::context_length(field, message));
    }
    Ok(text)
}

fn ids(field: &str, items: &[Value], info: &EngineInfo) -> Result<Vec<u32>, ApiError> {
    if items.is_empty() {
        return Err(ApiError::invalid(field, "a prompt must not be empty"));
    }
    items.iter().map(|item| token_id(field, item, info.vocab)).collect()
}

async fn encode(state: &ServerState, texts: Vec<String>, add_special: bool) -> Result<Vec<Vec<u32>>, ApiError> {
    if state.text.tokenizer.is_none() {
        return Err(ApiError::invalid("prompt", "this model has no tokenizer: send token ids"));
    }
    let bytes = texts.iter().map(String::len).sum();
    let encoded = state.with_text(bytes, move |text| {
        let tokenizer = text.tokenizer.as_ref().expect("it was there a moment ago and never goes");
        let encode = |text: &String| tokenizer.encode(text, add_special);
        texts.iter().map(encode).collect::<Result<Vec<_>, _>>()
    });
    let prompts = encoded.await?.map_err(|error| ApiError::invalid("prompt", error.to_string()))?;
    if prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::invalid("prompt", "a prompt has no tokens"));
    }
    Ok(prompts)
}
