//! Streams: the encoding of a server-sent event, and the response that carries events or lines.

use axum::body::{Body, Bytes};
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

/// Bytes of an event beside its name and data.
const NAMED_BYTES: usize = "event: \ndata: \n\n".len();

/// One event with `json` as its data.
pub(crate) fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// Appends an event with a name and `json` as its data.
pub(crate) fn push_named(events: &mut String, name: &str, json: &str) {
    events.reserve(name.len() + json.len() + NAMED_BYTES);
    for part in ["event: ", name, "\ndata: ", json, "\n\n"] {
        events.push_str(part);
    }
}

/// JSON, or events of JSON, in which only line breaks end a line. Some readers also split lines at other characters,
/// which only occur in strings; there they are escaped.
pub(crate) fn with_plain_lines(text: String) -> String {
    const ENDS: [(char, &str); 3] = [
        ('\u{85}', "\\u0085"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ];
    if !text.contains(ENDS.map(|(end, _)| end)) {
        return text;
    }
    ENDS.iter()
        .fold(text, |text, (end, escape)| text.replace(*end, escape))
}

/// A response that streams events. Dropping it drops the stream.
pub(crate) fn response<E: Into<Bytes> + 'static>(
    media_type: &'static str,
    events: impl Stream<Item = E> + Send + 'static,
) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-cache"),
        // Otherwise proxies would buffer the events.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, Body::from_stream(events.map(Ok::<_, Infallible>))).into_response()
}
