//! Answers a request from its [`Generation`]: as server-sent events, or collected into one body.

use crate::server::reply::generation::{Generation, Piece, Totals};
use crate::server::wire::error::ApiError;
use axum::body::Body;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The form of an answer.
pub(crate) trait Answer: Unpin + Send + 'static {
    /// A piece has come; what becomes of it follows.
    fn begins(&mut self) {}

    /// The events that one piece becomes.
    fn events(&mut self, piece: &Piece, totals: Totals) -> String;

    /// The end of a stream that went well.
    fn last_events(&mut self, totals: Totals) -> String;

    /// The end of a stream that did not.
    fn fault(&self, error: &ApiError) -> String {
        format!("data: {}\n\ndata: [DONE]\n\n", error.json())
    }

    /// Which of the choices are answered with; `pieces` holds all of each choice, in order.
    fn choose(&self, pieces: Vec<Piece>) -> Vec<Piece> {
        pieces
    }

    /// The whole answer.
    fn whole(&mut self, pieces: &[Piece], totals: Totals) -> String;
}

/// What a client is sent while it runs.
struct Events<A> {
    /// `None` after the last event.
    generation: Option<Generation>,
    reply: A,
}

impl<A: Answer> Stream for Events<A> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { generation: slot, reply } = &mut *self;
        let Some(generation) = slot else { return Poll::Ready(None) };
        let events = match ready!(generation.poll_next_unpin(context)) {
            Some(Ok(piece)) => {
                let totals = generation.totals();
                reply.begins();
                reply.events(&piece, totals)
            }
            // The status was sent long ago, so the fault is an event.
            Some(Err(error)) => {
                *slot = None;
                reply.fault(&ApiError::failed(error))
            }
            None => {
                let totals = generation.totals();
                *slot = None;
                reply.last_events(totals)
            }
        };
        Poll::Ready(Some(Ok(events.into())))
    }
}

/// A response of events. Dropping it cancels the generation.
pub(crate) fn stream(generation: Generation, reply: impl Answer) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        // Proxies would otherwise collect the events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let events = Events { generation: Some(generation), reply };
    (headers, Body::from_stream(events)).into_response()
}

/// The whole answer at once. Dropping the future cancels the generation.
pub(crate) async fn collect(mut generation: Generation, mut reply: impl Answer) -> Result<Response, ApiError> {
    let mut pieces: Vec<_> = (0..generation.choices()).map(|choice| Piece { choice, ..Piece::default() }).collect();
    while let Some(piece) = generation.next().await {
        let piece = piece.map_err(ApiError::failed)?;
        reply.begins();
        let whole = &mut pieces[piece.choice];
        whole.parts.extend(piece.parts);
        whole.tokens.extend(piece.tokens);
        whole.finish = piece.finish;
        whole.prefix = whole.prefix.or(piece.prefix);
        whole.prompt.extend(piece.prompt);
    }
    let pieces = reply.choose(pieces);
    let body = reply.whole(&pieces, generation.totals());
    Ok(([(CONTENT_TYPE, "application/json")], body).into_response())
}
