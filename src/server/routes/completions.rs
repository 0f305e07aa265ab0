//! `POST /v1/completions`: a prompt, several, or lists of token ids, each continued `n` times.

use crate::server::guards::Client;
use crate::server::parameters::prompts::{GapFields, Prompts};
use crate::server::parameters::read;
use crate::server::parameters::sampling::Sampling;
use crate::server::parameters::table::CompletionRequest;
use crate::server::reply::generation::Generation;
use crate::server::reply::openai::{Kind, OpenAiReply, PromptPart};
use crate::server::reply::respond;
use crate::server::routes::tokens::decode_all;
use crate::server::state::ModelState;
use crate::server::wire::error::{ApiError, Names};
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
    let client = Client::of(&request);
    let request: CompletionRequest = read::read(request, &state).await?;
    let info = state.ready()?;
    let model = state.model(request.target.model)?;
    let from = (client, &[] as Names);
    let defaults = &state.options.defaults;
    let mut sampling = Sampling::new(
        request.sampling,
        request.queueing,
        defaults,
        info.max_model_len,
        from,
    )?;
    let echo = request.echo;
    // The answer repeats only the prompt, with its logprobs.
    let max_tokens = request.max_tokens.unwrap_or(Some(MAX_TOKENS_DEFAULT));
    sampling.silent = echo && max_tokens == Some(0);
    sampling.complete(
        request.logprobs,
        if sampling.silent { Some(1) } else { max_tokens },
        info,
    )?;
    if echo && sampling.wants_logprobs {
        sampling.params.prompt_logprobs = sampling
            .params
            .prompt_logprobs
            .max(sampling.params.logprobs);
    }

    sampling.constrain(&state).await?;
    let prompts = match request.suffix.filter(|suffix| !suffix.is_empty()) {
        None => {
            request
                .prompt
                .encode(&state, request.add_special_tokens)
                .await?
        }
        Some(suffix) => {
            let (prompts, ends) = gap(request.prompt, suffix, echo)?.encode(&state).await?;
            sampling.also_ends_at(ends);
            prompts
        }
    };
    let ids: Vec<Arc<[u32]>> = prompts
        .into_iter()
        .map(|ids| sampling.truncated(ids).into())
        .collect();
    let texts = if echo {
        decode_all(&state, ids.clone(), sampling.skip_special).await?
    } else {
        Vec::new()
    };
    let mut texts = texts.into_iter();
    let prompts = ids
        .iter()
        .map(|ids| PromptPart {
            ids: ids.clone(),
            echo: texts.next(),
        })
        .collect();
    let generation = Generation::submit(&state, ids, &sampling)?;
    let form = OpenAiReply::new(Kind::Completion, (&state, info), model, &sampling, prompts);
    respond(generation, form, sampling.stream).await
}

/// The gap between prompts and a suffix.
fn gap(prompt: Prompts, after: String, echo: bool) -> Result<GapFields, ApiError> {
    let before = match prompt {
        Prompts::Texts(texts) if !echo => texts,
        Prompts::Texts(_) => {
            return Err(ApiError::invalid("suffix", "`suffix` needs `echo`: false"));
        }
        Prompts::Ids(_) => {
            return Err(ApiError::invalid(
                "suffix",
                "`suffix` needs a `prompt` that is a text",
            ));
        }
    };
    Ok(GapFields {
        before,
        after,
        field: "suffix",
        ..GapFields::default()
    })
}
