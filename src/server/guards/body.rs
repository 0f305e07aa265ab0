//! Checks of a request's body: its headers, its size, the time it takes to arrive. A gzip body is decompressed, within
//! the same limit. Large bodies are parsed and read off the async threads.

use super::header_text;
use crate::server::state::{ALWAYS, Shared};
use crate::server::wire::error::{ApiError, BodyTimeout, Dialect, shorten};
use crate::server::wire::json::parse;
use crate::server::wire::memory::Charge;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::{Map, Value};
use std::io::Read as _;
use std::sync::Arc;

/// Reads the body of a request as a JSON object and passes it to `read`. If the body is large, it is parsed and read on
/// a separate thread.
pub(crate) async fn read_object<T: Send + 'static>(
    request: Request,
    shared: &Shared,
    read: impl FnOnce(Map<String, Value>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let bytes_max = shared.body_bytes_max;
    let (mut parts, body) = request.into_parts();
    if let Some(Parsed { object, bytes_len }) = parts.extensions.remove() {
        return shared.offload(bytes_len, move || read(object)).await?;
    }
    let charge = parts
        .extensions
        .get::<Arc<Charge>>()
        .cloned()
        .unwrap_or_else(|| shared.memory.request());
    let encoding = check_headers(&parts.headers, bytes_max, Dialect::of(parts.uri.path()))?;
    let bytes = read_body(body, bytes_max).await?;
    let bytes_len = if encoding == Encoding::Gzip {
        ALWAYS
    } else {
        bytes.len()
    };
    shared
        .offload(bytes_len, move || {
            let bytes = if encoding == Encoding::Gzip {
                decompressed(&bytes, bytes_max)?
            } else {
                bytes
            };
            match parse(&bytes, &charge)? {
                Value::Object(map) => read(map),
                _ => Err(ApiError::body("the body must be a JSON object")),
            }
        })
        .await?
}

/// The body of a request that was read before, to find the model that it asks for; an extension of the request.
#[derive(Clone, Debug)]
struct Parsed {
    object: Map<String, Value>,
    /// Its size as it was sent.
    bytes_len: usize,
}

/// Reads the body of a request as a JSON object, takes a look at it, and leaves it to [`read_object`].
pub(crate) async fn parse_ahead<T>(
    request: Request,
    shared: &Shared,
    look: impl FnOnce(&Map<String, Value>) -> Result<T, ApiError>,
) -> Result<(Request, T), ApiError> {
    let (mut parts, body) = request.into_parts();
    // A body whose length is not told may be long.
    let bytes_len = length_of(&parts.headers).unwrap_or(ALWAYS);
    let object = read_object(Request::from_parts(parts.clone(), body), shared, Ok).await?;
    let seen = look(&object)?;
    parts.extensions.insert(Parsed { object, bytes_len });
    Ok((Request::from_parts(parts, Body::empty()), seen))
}

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Encoding {
    Plain,
    Gzip,
}

/// Bytes of a body as it is parsed, if its headers tell.
fn length_of(headers: &HeaderMap) -> Option<usize> {
    if headers.contains_key(CONTENT_ENCODING) {
        return None;
    }
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_headers(
    headers: &HeaderMap,
    bytes_max: usize,
    dialect: Dialect,
) -> Result<Encoding, ApiError> {
    let encoding = match header_text(headers, CONTENT_ENCODING)
        .map(str::to_ascii_lowercase)
        .as_deref()
    {
        None | Some("identity") => Encoding::Plain,
        Some("gzip" | "x-gzip") => Encoding::Gzip,
        Some(other) => {
            let other = shorten(other);
            return Err(ApiError::media_type(format!(
                "Content-Encoding {other} is not supported; gzip is"
            )));
        }
    };
    let media_type = header_text(headers, CONTENT_TYPE)
        .unwrap_or("")
        .split(';')
        .next()
        .unwrap_or("")
        .trim()
        .to_ascii_lowercase();
    // Ollama's users call it with curl, which sends a form's type unless told otherwise. The origin check keeps pages
    // of other sites away.
    let is_from_curl = dialect == Dialect::Ollama
        && ["", "application/x-www-form-urlencoded"].contains(&&*media_type);
    if media_type != "application/json" && !is_from_curl {
        return Err(ApiError::media_type(
            "the body must be sent with Content-Type: application/json",
        ));
    }
    let length = header_text(headers, CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > bytes_max as u64) {
        return Err(ApiError::body_too_large(bytes_max));
    }
    Ok(encoding)
}

/// The content of a gzip body. A few bytes may stand for very many, so no more than the limit is decompressed.
fn decompressed(bytes: &[u8], bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(bytes)
        .take(bytes_max as u64 + 1)
        .read_to_end(&mut plain);
    read.map_err(|_| ApiError::body("the body is not valid gzip"))?;
    if plain.len() > bytes_max {
        return Err(ApiError::body_too_large(bytes_max));
    }
    Ok(plain)
}

/// The whole body. Each frame is copied and dropped as it arrives: it may be a few bytes of a buffer of several KiB,
/// and a client that sends single bytes would fill the memory with such buffers.
async fn read_body(body: Body, bytes_max: usize) -> Result<Vec<u8>, ApiError> {
    let mut body = Limited::new(body, bytes_max);
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| body_error(error.as_ref(), bytes_max))?;
        // Other frames are trailers, which mean nothing here.
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

fn body_error(error: &(dyn std::error::Error + 'static), bytes_max: usize) -> ApiError {
    let mut cause = Some(error);
    while let Some(current) = cause {
        if current.is::<LengthLimitError>() {
            return ApiError::body_too_large(bytes_max);
        }
        if current.is::<BodyTimeout>() {
            return ApiError::body_timeout();
        }
        cause = current.source();
    }
    ApiError::body("the body could not be read")
}

#[cfg(test)]
mod tests;
