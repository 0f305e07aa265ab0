//! The access log: one line for each request when its response has ended, with its tokens and times, and without any
//! text of prompts and answers. Routes that a monitor asks every few seconds have one only at the level `debug`.

use crate::platform::Instant;
use crate::server::traces::Usage;
use crate::server::wire::body::kept_until_the_end;
use axum::http::Method;
use axum::response::Response;
use std::sync::Arc;

/// The log's name, for filters.
const TARGET: &str = "folio::access";
/// Characters of a path that are logged.
const PATH_CHARACTERS: usize = 200;
/// Routes of monitors.
const MONITORED: [&str; 7] = [
    "/health",
    "/v1/health",
    "/ping",
    "/metrics",
    "/load",
    "/v1/loads",
    "/get_load",
];

/// A request whose line is written when this is dropped.
struct Entry {
    id: String,
    method: Method,
    path: String,
    status: u16,
    started: Instant,
    usage: Option<Arc<Usage>>,
}

/// Writes the line of a request when `response` has ended or its client has gone. `path` is without its query.
pub(super) fn logged(
    mut response: Response,
    id: &str,
    method: &Method,
    path: &str,
    started: Instant,
) -> Response {
    let usage = response.extensions_mut().remove();
    let status = response.status().as_u16();
    let path = path.chars().take(PATH_CHARACTERS).collect();
    let entry = Entry {
        id: id.to_owned(),
        method: method.clone(),
        path,
        status,
        started,
        usage,
    };
    kept_until_the_end(response, entry)
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Self {
            id,
            method,
            path,
            status,
            started,
            usage,
        } = self;
        let (method, total_ms) = (method.as_str(), started.elapsed().as_millis() as u64);
        if let Some(usage) = usage {
            let [tokens_in, cached, tokens_out] = usage.tokens();
            let first_token_ms = usage
                .first_token()
                .map(|first| (first - *started).as_millis() as u64);
            tracing::info!(
                target: TARGET, status, tokens_in, cached, tokens_out, first_token_ms, total_ms, request = id,
                "{method} {path}"
            );
        } else if MONITORED.contains(&path.trim_end_matches('/')) {
            tracing::debug!(target: TARGET, status, total_ms, request = id, "{method} {path}");
        } else {
            tracing::info!(target: TARGET, status, total_ms, request = id, "{method} {path}");
        }
    }
}
