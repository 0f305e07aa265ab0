//! [`LocalApi`]: the API in process, without a socket. It serves a browser tab, `folio run`, `folio chat` and programs
//! that embed the engine.
//!
//! [`LocalApi::call`] takes and returns bytes, as a connection would. [`LocalApi::post`] takes JSON, and its response
//! is read as JSON: whole with [`LocalResponse::json`], or as a stream of events with [`LocalResponse::events`].

use super::{ServerState, router};
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower::ServiceExt;

/// The routes, called directly.
#[derive(Clone)]
pub struct LocalApi {
    router: Router,
}

/// A response whose body may still be arriving. Dropping it cancels the request.
pub struct LocalResponse {
    /// HTTP status.
    pub status: u16,
    /// Header names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body, as it arrives.
    pub body: LocalBody,
}

/// The chunks of a response's body. Dropping it cancels the request.
pub struct LocalBody {
    chunks: BodyDataStream,
}

/// The events of a streamed response, each as JSON, up to `[DONE]`. Dropping it cancels the request.
pub struct LocalEvents {
    body: LocalBody,
    status: u16,
    /// Bytes received that do not form a complete event yet.
    held: Vec<u8>,
    ended: bool,
}

/// Why a local call failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LocalError {
    /// The method, path or a header is not valid HTTP.
    #[error("invalid HTTP request: {0}")]
    Request(String),
    /// The API refused the request, or failed while it generated the response.
    #[error("{}", body["error"]["message"].as_str().unwrap_or("the request failed"))]
    Api {
        /// HTTP status of the response; 200 if the stream had already begun.
        status: u16,
        /// `{"error": {"message", "type", "param", "code"}}`.
        body: Value,
    },
    /// The response does not have the expected form.
    #[error("unexpected response: {0}")]
    Response(String),
}

impl LocalApi {
    /// An API with the same routes as the HTTP server.
    pub fn new(state: ServerState) -> Self {
        Self {
            router: router(state),
        }
    }

    /// Answers one request. Dropping the future or the response cancels the request.
    pub async fn call(
        &self,
        method: &str,
        uri: &str,
        headers: &[(String, String)],
        body: Bytes,
    ) -> Result<LocalResponse, LocalError> {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request
            .body(Body::from(body))
            .map_err(|error| LocalError::Request(error.to_string()))?;
        let response = match self.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let (parts, body) = response.into_parts();
        Ok(LocalResponse {
            status: parts.status.as_u16(),
            headers: parts
                .headers
                .iter()
                .map(|(name, value)| {
                    (
                        name.to_string(),
                        String::from_utf8_lossy(value.as_bytes()).into_owned(),
                    )
                })
                .collect(),
            body: LocalBody {
                chunks: body.into_data_stream(),
            },
        })
    }

    /// Posts `body` to `path`, such as `/v1/chat/completions`. A refusal becomes an error when the response is read.
    pub async fn post(&self, path: &str, body: &Value) -> Result<LocalResponse, LocalError> {
        let headers = [("content-type".to_owned(), "application/json".to_owned())];
        self.call("POST", path, &headers, body.to_string().into())
            .await
    }
}

impl LocalResponse {
    /// Reads the whole body. A status other than 2xx becomes an error that holds the body.
    pub async fn json(mut self) -> Result<Value, LocalError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.body.next().await {
            bytes.extend_from_slice(&chunk);
        }
        let body = parse(&bytes)?;
        let status = self.status;
        if (200..300).contains(&status) {
            Ok(body)
        } else {
            Err(LocalError::Api { status, body })
        }
    }

    /// The events of the response to a request with `"stream": true`.
    pub async fn events(self) -> Result<LocalEvents, LocalError> {
        if self
            .headers
            .iter()
            .any(|(name, value)| name == "content-type" && value == "text/event-stream")
        {
            return Ok(LocalEvents {
                status: self.status,
                body: self.body,
                held: Vec::new(),
                ended: false,
            });
        }
        self.json().await?;
        Err(LocalError::Response(
            "not an event stream: set `stream` to true".into(),
        ))
    }
}

impl Stream for LocalBody {
    type Item = Bytes;

    /// The stream ends early if the handler failed, as a connection would.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.chunks
            .poll_next_unpin(context)
            .map(|chunk| chunk.and_then(Result::ok))
    }
}

impl LocalEvents {
    /// The next complete event in the bytes received so far.
    fn next_held(&mut self) -> Option<Result<Value, LocalError>> {
        while !self.ended {
            let length = self.held.windows(2).position(|window| window == b"\n\n")?;
            let event: Vec<u8> = self.held.drain(..length + 2).collect();
            let lines = event.trim_ascii_end().split(|byte| *byte == b'\n');
            match lines.filter_map(|line| line.strip_prefix(b"data: ")).next() {
                // A comment.
                None => {}
                Some(b"[DONE]") => self.ended = true,
                Some(data) => {
                    let event = parse(data);
                    self.ended = !matches!(&event, Ok(event) if event["error"].is_null());
                    return Some(event.and_then(|body| match body["error"] {
                        Value::Null => Ok(body),
                        _ => Err(LocalError::Api {
                            status: self.status,
                            body,
                        }),
                    }));
                }
            }
        }
        None
    }
}

impl Stream for LocalEvents {
    type Item = Result<Value, LocalError>;

    /// The last item is an error if the request failed.
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.next_held() {
                return Poll::Ready(Some(event));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(self.body.poll_next_unpin(context)) {
                Some(chunk) => self.held.extend_from_slice(&chunk),
                None => {
                    self.ended = true;
                    let within = !self.held.is_empty();
                    return Poll::Ready(within.then(|| {
                        Err(LocalError::Response(
                            "the stream ended in the middle of an event".into(),
                        ))
                    }));
                }
            }
        }
    }
}

fn parse(json: &[u8]) -> Result<Value, LocalError> {
    serde_json::from_slice(json).map_err(|error| LocalError::Response(format!("not JSON: {error}")))
}
