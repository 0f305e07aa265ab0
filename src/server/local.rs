//! The API without a socket: for a browser tab, and for programs that want it in process.

use super::{ServerState, router};
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use std::pin::Pin;
use std::task::{Context, Poll};
use tower::ServiceExt;

/// The routes, called directly.
#[derive(Clone)]
pub struct LocalApi {
    router: Router,
}

/// The pieces of an answer's body. Dropping it cancels the answer.
pub struct LocalBody {
    pieces: BodyDataStream,
}

/// Status, headers, body.
pub struct LocalAnswer {
    /// HTTP status.
    pub status: u16,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// What follows, as it comes.
    pub body: LocalBody,
}

/// Method, address or a header that HTTP does not allow.
#[derive(Debug, thiserror::Error)]
#[error("not an HTTP request: {0}")]
pub struct NotHttp(String);

impl LocalApi {
    /// The same routes as those of a socket.
    pub fn new(state: ServerState) -> Self {
        Self { router: router(state) }
    }

    /// Answers one request. Dropping the future, or the answer's body, cancels what it computes.
    pub async fn call(
        &self,
        method: &str,
        uri: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<LocalAnswer, NotHttp> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Body::from(body)).map_err(|error| NotHttp(error.to_string()))?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        let text = |value: &axum::http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        Ok(LocalAnswer {
            status: parts.status.as_u16(),
            headers: parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect(),
            body: LocalBody { pieces: body.into_data_stream() },
        })
    }
}

impl Stream for LocalBody {
    type Item = Bytes;

    /// Ends early if the handler failed, as a connection would.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.pieces.poll_next_unpin(context).map(|piece| piece.and_then(Result::ok))
    }
}
