//! Checks that every request passes before its route reads it: host, origin and key ([`access`]), then the limits of
//! the body ([`body`]). Around them is the access log ([`log`]).
//!
//! Nothing here knows routes or request fields: a guard refuses a request, or identifies its client and passes on its
//! body as a JSON object.

pub(super) mod access;
mod body;
mod log;

pub(super) use access::{Client, GivenId};
pub(super) use body::{parse_ahead, read_object};

use axum::http::{HeaderMap, HeaderName};

/// The text of a header; a question mark if it is none.
fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}
