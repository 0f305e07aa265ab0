//! Server-sent events: the encoding of an event, and the response that carries them.

use axum::body::Body;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;

/// The last event of OpenAI's streams.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// One event with `json` as its data.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// A response that streams events. Dropping it drops the stream.
pub(crate) fn response(events: impl Stream<Item = String> + Send + 'static) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        // Otherwise proxies would buffer the events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}
