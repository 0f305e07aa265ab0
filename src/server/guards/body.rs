//! Checks of a request's body: its headers, its size, the time it takes to arrive. Large bodies are parsed off the
//! async threads.

use crate::server::state::ServerState;
use crate::server::wire::error::{ApiError, BodyTimeout, shorten};
use crate::server::wire::json::parse;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

/// Reads the body of a request as a JSON object.
pub(crate) async fn read_object(request: Request, state: &ServerState) -> Result<Map<String, Value>, ApiError> {
    let bytes_max = state.options.limits.body_bytes_max;
    let (parts, body) = request.into_parts();
    check_headers(&parts.headers, bytes_max)?;
    let bytes = read_body(body, bytes_max).await?;
    match state.offload(bytes.len(), move || parse(&bytes)).await?? {
        Value::Object(map) => Ok(map),
        _ => Err(ApiError::body("the body must be a JSON object")),
    }
}

fn check_headers(headers: &HeaderMap, bytes_max: usize) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(encoding) = text(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
        let encoding = shorten(encoding);
        return Err(ApiError::media_type(format!("Content-Encoding {encoding} is not supported")));
    }
    let media_type = text(CONTENT_TYPE).unwrap_or("").split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    if media_type != "application/json" {
        return Err(ApiError::media_type("the body must be sent with Content-Type: application/json"));
    }
    let length = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > bytes_max as u64) {
        return Err(ApiError::body_too_large(bytes_max));
    }
    Ok(())
}

async fn read_body(body: Body, bytes_max: usize) -> Result<bytes::Bytes, ApiError> {
    let collected = Limited::new(body, bytes_max).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            return ApiError::body_too_large(bytes_max);
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error.as_ref());
        while let Some(current) = cause {
            if current.downcast_ref::<BodyTimeout>().is_some() {
                return ApiError::body_timeout();
            }
            cause = current.source();
        }
        ApiError::body("the body could not be read")
    })
}
