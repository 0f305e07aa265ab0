//! `POST /v1/completions`: a prompt, several, or lists of token ids, each continued `n` times.

use super::ServerState;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::generate::Generation;
use super::json::read_object;
use super::reply::{Kind, Progress, Reply};
use super::sampling::{Sampling, TOP_LOGPROBS_MAX, token_id};
use super::{prompt_bytes_max, sse, structured};
use crate::engine::handle::EngineInfo;
use crate::platform;
use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::Value;
use std::sync::Arc;

/// OpenAI's default.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// What `prompt` may hold.
enum Prompts {
    Texts(Vec<String>),
    Ids(Vec<Arc<[u32]>>),
}

/// Continues prompts.
pub(super) async fn completions(State(state): State<ServerState>, request: Request) -> Result<Response, ApiError> {
    let body = read_object(request, &state).await?;
    let info = state.ready()?;
    let mut fields = Fields::new(body);
    let model = state.model(fields.model()?)?;
    let mut sampling = Sampling::read(&mut fields, &state, info)?;
    sampling.params.logprobs = fields.integer("logprobs", 0..=TOP_LOGPROBS_MAX)?.map(|top| top as u32);
    sampling.params.max_tokens = Some(fields.token_count("max_tokens")?.unwrap_or(MAX_TOKENS_DEFAULT));
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    if fields.boolean("echo")? == Some(true) {
        return Err(ApiError::unsupported("echo", "`echo` is not supported"));
    }
    let prompts = read_prompts(&mut fields, info, state.options.limits.prompts_max)?;
    fields.finish()?;

    let prompts = match prompts {
        Prompts::Ids(prompts) => prompts,
        Prompts::Texts(texts) => encode(&state, texts, add_special).await?,
    };
    if let Some(structure) = sampling.structure.take() {
        let grammar = state.grammar(structure).await?;
        sampling.params.constraint = Some(structured::plain_constraint(grammar));
    }
    let generation = Generation::submit(&state, prompts, &sampling, "prompt")?;
    let reply = Reply {
        kind: Kind::Completion,
        id: state.new_id("cmpl"),
        created: platform::unix_time(),
        model,
        wants_logprobs: sampling.params.logprobs.is_some(),
        include_usage: sampling.include_usage,
        continuous_usage: sampling.continuous_usage,
        tokenizer: state.text.tokenizer.clone(),
        short_call_ids: false,
        progress: vec![Progress::default(); generation.choices()],
    };
    if sampling.stream { Ok(sse::stream(generation, reply)) } else { sse::collect(generation, reply).await }
}

fn read_prompts(fields: &mut Fields, info: &EngineInfo, prompts_max: usize) -> Result<Prompts, ApiError> {
    let value = fields.take("prompt").ok_or_else(|| ApiError::missing("prompt"))?;
    let items = match value {
        Value::String(text) => return Ok(Prompts::Texts(vec![checked_text(text, info)?])),
        Value::Array(items) if !items.is_empty() => items,
        other => return Err(wrong("prompt", "a string, strings, token ids or lists of token ids, not empty", &other)),
    };
    if items[0].is_number() {
        return Ok(Prompts::Ids(vec![ids(&items, info)?]));
    }
    if items.len() > prompts_max {
        let message = format!("`prompt` has {} prompts; at most {prompts_max} are allowed", items.len());
        return Err(ApiError::invalid("prompt", message));
    }
    if items[0].is_array() {
        let lists = items.iter().map(|item| match item {
            Value::Array(list) => ids(list, info),
            other => Err(wrong("prompt", "of one kind: lists of token ids", other)),
        });
        return Ok(Prompts::Ids(lists.collect::<Result<_, _>>()?));
    }
    let texts = items.into_iter().map(|item| match item {
        Value::String(text) => checked_text(text, info),
        other => Err(wrong("prompt", "of one kind: strings", &other)),
    });
    Ok(Prompts::Texts(texts.collect::<Result<_, _>>()?))
}

fn checked_text(text: String, info: &EngineInfo) -> Result<String, ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid("prompt", "a prompt must not be empty"));
    }
    let (bytes, bytes_max) = (text.len(), prompt_bytes_max(info));
    if bytes > bytes_max {
        let context = info.max_model_len;
        let message =
            format!("the prompt has {bytes} bytes; the context is {context} tokens, at most {bytes_max} bytes");
        return Err(ApiError::context_length("prompt", message));
    }
    Ok(text)
}

fn ids(items: &[Value], info: &EngineInfo) -> Result<Arc<[u32]>, ApiError> {
    if items.is_empty() {
        return Err(ApiError::invalid("prompt", "a prompt must not be empty"));
    }
    items.iter().map(|item| token_id("prompt", item, info.vocab)).collect()
}

async fn encode(state: &ServerState, texts: Vec<String>, add_special: bool) -> Result<Vec<Arc<[u32]>>, ApiError> {
    if state.text.tokenizer.is_none() {
        return Err(ApiError::invalid("prompt", "this model has no tokenizer: send token ids"));
    }
    let bytes = texts.iter().map(String::len).sum();
    let encoded = state.with_text(bytes, move |text| {
        let tokenizer = text.tokenizer.as_ref().expect("it was there a moment ago and never goes");
        let encode = |text: &String| tokenizer.encode(text, add_special).map(Arc::<[u32]>::from);
        texts.iter().map(encode).collect::<Result<Vec<_>, _>>()
    });
    let prompts = encoded.await?.map_err(|error| ApiError::invalid("prompt", error.to_string()))?;
    if prompts.iter().any(|ids| ids.is_empty()) {
        return Err(ApiError::invalid("prompt", "a prompt has no tokens"));
    }
    Ok(prompts)
}
