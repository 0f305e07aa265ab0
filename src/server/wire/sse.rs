//! Streams: the encoding of a server-sent event, and the response that carries events or lines.

use axum::body::Body;
use axum::http::HeaderName;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use std::convert::Infallible;

/// The media types of streams.
pub(crate) const EVENTS: &str = "text/event-stream";
pub(crate) const LINES: &str = "application/x-ndjson";

/// The last event of OpenAI's streams.
pub(crate) const DONE: &str = "data: [DONE]\n\n";

/// One event with `json` as its data.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// One event with a name and `json` as its data.
pub(crate) fn named(name: &str, json: &str) -> String {
    format!("event: {name}\ndata: {json}\n\n")
}

/// A response that streams events. Dropping it drops the stream.
pub(crate) fn response(media_type: &'static str, events: impl Stream<Item = String> + Send + 'static) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-cache"),
        // Otherwise proxies would buffer the events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}
