//! From the events of a request's choices to its reply.
//!
//! A [`generation::Generation`] merges the running choices into one stream of deltas. A [`ReplyForm`] turns each delta
//! into chunks: OpenAI's ([`openai`], [`responses`]), Anthropic's ([`anthropic`]), Ollama's ([`ollama`]) or llama.cpp's
//! ([`llama`]). A streamed reply sends each chunk as an event. A whole reply is the fold of the same chunks, so every
//! JSON object is built in one place for both.
//!
//! Nothing here knows routes, or how a request's fields are read.

pub(crate) mod anthropic;
pub(crate) mod generation;
pub(crate) mod llama;
mod logprobs;
mod objects;
pub(crate) mod ollama;
pub(crate) mod openai;
pub(crate) mod responses;
mod timings;
pub(crate) mod vectors;
pub(crate) mod weight;

use super::wire::error::{ApiError, Dialect};
use super::wire::sse;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, stream};
use generation::{Delta, Generation, PromptProgress, Totals};

/// The form of a reply.
pub(crate) trait ReplyForm: Send + 'static {
    /// What a delta adds to the reply: the content of one event of a stream, or the text of several.
    type Chunk: Send;

    /// The media type of a stream.
    const MEDIA_TYPE: &'static str = sse::EVENTS;

    /// The event that ends a stream, after the last chunk or an error.
    const END: &'static str;

    /// The chunks of a delta.
    fn chunks(&mut self, delta: Delta, totals: Totals) -> Vec<Self::Chunk>;

    /// A chunk that tells how much of the prompt of a choice is computed, if the form has one.
    fn progress(&mut self, _choice: usize, _progress: PromptProgress) -> Option<Self::Chunk> {
        None
    }

    /// An additional chunk after the last delta.
    fn last_chunk(&self, totals: Totals) -> Option<Self::Chunk>;

    /// A chunk as text of a stream.
    fn event(&self, chunk: Self::Chunk) -> String;

    /// The event of a failure: the status has already been sent.
    fn error(&mut self, error: &ApiError) -> String {
        sse::event(&error.json(Dialect::OpenAi))
    }

    /// The whole reply as JSON, folded from all chunks.
    fn whole(&self, chunks: Vec<Self::Chunk>) -> String;
}

/// Sends the reply as a stream or as a whole. Dropping the future or the response cancels the generation.
pub(crate) async fn respond<F: ReplyForm>(
    generation: Generation,
    form: F,
    streams: bool,
) -> Result<Response, ApiError> {
    let usage = generation.usage();
    let mut response = if streams {
        sse::response(
            F::MEDIA_TYPE,
            events(generation, form).map(sse::with_plain_lines),
        )
    } else {
        whole(generation, form).await?
    };
    response.extensions_mut().insert(usage);
    Ok(response)
}

/// The events of each delta as one string, then the end event.
fn events<F: ReplyForm>(
    generation: Generation,
    form: F,
) -> impl stream::Stream<Item = String> + Send + 'static {
    stream::unfold(Some((generation, form)), async |running| {
        let (mut generation, mut form) = running?;
        let next = generation.next().await;
        let totals = generation.totals();
        Some(match next {
            Some(Ok(mut delta)) => {
                let progress = std::mem::take(&mut delta.progress);
                let mut chunks: Vec<_> = progress
                    .into_iter()
                    .filter_map(|progress| form.progress(delta.choice, progress))
                    .collect();
                if !delta.is_progress {
                    chunks.extend(form.chunks(delta, totals));
                }
                let events = chunks.into_iter().map(|chunk| form.event(chunk)).collect();
                (events, Some((generation, form)))
            }
            Some(Err(error)) => (form.error(&ApiError::failed(error)) + F::END, None),
            None => {
                let last = form.last_chunk(totals).map(|chunk| form.event(chunk));
                (last.unwrap_or_default() + F::END, None)
            }
        })
    })
}

async fn whole(mut generation: Generation, mut form: impl ReplyForm) -> Result<Response, ApiError> {
    let mut chunks = Vec::new();
    while let Some(delta) = generation.next().await {
        chunks.extend(form.chunks(delta.map_err(ApiError::failed)?, generation.totals()));
    }
    chunks.extend(form.last_chunk(generation.totals()));
    Ok(([(CONTENT_TYPE, "application/json")], form.whole(chunks)).into_response())
}
