//! Bodies of responses.

use axum::body::{Body, HttpBody as _};
use axum::response::Response;
use http_body_util::BodyExt as _;

/// Keeps a value until the response has ended, or until its client has gone.
pub(crate) fn kept_until_the_end<T: Send + 'static>(response: Response, value: T) -> Response {
    if response.body().size_hint().exact().is_some() {
        // The response is complete; a wrapped body would not tell its length.
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _kept = &value;
            frame
        }))
    })
}
