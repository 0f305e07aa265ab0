//! `POST /v1/completions`: a prompt, several, or lists of token ids, each continued `n` times.

use crate::server::guards::{Client, GivenId};
use crate::server::parameters::prompts::{GapFields, Prompt, Prompts};
use crate::server::parameters::read;
use crate::server::parameters::sampling::{SamplingRequest, Shape};
use crate::server::parameters::table::CompletionRequest;
use crate::server::reply::generation::Generation;
use crate::server::reply::openai::{Kind, OpenAiReply, PromptPart};
use crate::server::reply::respond;
use crate::server::routes::tokens::decode_all;
use crate::server::state::ModelState;
use crate::server::wire::error::ApiError;
use axum::extract::{Request, State};
use axum::response::Response;
use std::sync::Arc;

/// OpenAI's default.
const MAX_TOKENS_DEFAULT: u32 = 16;

/// Continues prompts.
pub(crate) async fn completions(
    State(state): State<ModelState>,
    request: Request,
) -> Result<Response, ApiError> {
    let (client, id) = (Client::of(&request), GivenId::of(&request));
    let request: CompletionRequest = read::read(request, &state).await?;
    let info = state.ready()?;
    let echo = request.echo;
    let sampling = SamplingRequest {
        target: request.target,
        fields: request.sampling,
        queueing: request.queueing,
        form: None,
        alternatives: request.logprobs,
        max_tokens: request.max_tokens.unwrap_or(Some(MAX_TOKENS_DEFAULT)),
        echo,
        operation: "text_completion",
        names: &[],
    };
    let (sampling, structure) = sampling.resolve(&state, client)?;
    let plain = Shape::plain(&state, client, structure).await?;
    let (prompts, end_ids) = match request.suffix.filter(|suffix| !suffix.is_empty()) {
        None => {
            if !sampling.truncates() {
                request.prompt.check_bytes("prompt", info)?;
            }
            let prompts = request.prompt.encode(&state, request.add_special_tokens);
            (prompts.await?, Vec::new())
        }
        Some(suffix) => gap(request.prompt, suffix, echo)?.encode(&state).await?,
    };
    let shape = Shape { end_ids, ..plain };
    let ids: Vec<Arc<[u32]>> = prompts
        .into_iter()
        .map(|ids| sampling.truncated(ids))
        .collect();
    let parts = parts(&state, &ids, echo.then_some(sampling.skip_special)).await?;
    let generation = Generation::submit(&state, &ids, &sampling, &shape)?;
    let form =
        OpenAiReply::new(Kind::Completion, (&state, info), &sampling, parts).named(id.0.as_deref());
    respond(generation, form, sampling.stream).await
}

/// The prompts as replies may repeat them: with their texts if they do, without special tokens if these are skipped.
async fn parts(
    state: &ModelState,
    prompts: &[Arc<[u32]>],
    echo: Option<bool>,
) -> Result<Vec<PromptPart>, ApiError> {
    let mut texts = match echo {
        Some(skip_special) => decode_all(state, prompts.to_vec(), skip_special).await?,
        None => Vec::new(),
    }
    .into_iter();
    Ok(prompts
        .iter()
        .map(|ids| PromptPart {
            ids: ids.clone(),
            echo: texts.next(),
        })
        .collect())
}

/// The gap between prompts and a suffix.
fn gap(prompt: Prompts, after: String, echo: bool) -> Result<GapFields, ApiError> {
    if echo {
        return Err(ApiError::invalid("suffix", "`suffix` needs `echo`: false"));
    }
    let before = prompt.0.into_iter().map(|prompt| match prompt {
        Prompt::Text(text) => Ok(text),
        _ => {
            let message = "`suffix` needs a `prompt` that is a text";
            Err(ApiError::invalid("suffix", message))
        }
    });
    Ok(GapFields {
        before: before.collect::<Result<_, _>>()?,
        after,
        field: "suffix",
        ..GapFields::default()
    })
}
