//! Bodies with timers: a request's has a deadline that moves as bytes arrive, a silent event stream gets comments.

use super::link::Link;
use crate::server::BodyTimeout;
use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::Response;
use axum::http::header::CONTENT_TYPE;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// A body's deadline moves by one second for this many bytes received.
const BODY_BYTES_PER_SECOND: f64 = 32_768.0;

/// A request's body, with a deadline that moves as bytes arrive.
pub(super) struct TimedBody {
    inner: Incoming,
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
}

impl TimedBody {
    pub(super) fn new(inner: Incoming, limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self {
            inner,
            sleep: Box::pin(sleep_until(deadline)),
            deadline,
        }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.inner).poll_frame(context) else {
            ready!(self.sleep.as_mut().poll(context));
            return Poll::Ready(Some(Err(BodyTimeout.into())));
        };
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            self.deadline += Duration::from_secs_f64(bytes as f64 / BODY_BYTES_PER_SECOND);
            let deadline = self.deadline;
            self.sleep.as_mut().reset(deadline);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// A response's body. It tells the connection when it has ended, and adds comments to a silent event stream.
pub(super) struct AnswerBody {
    inner: Body,
    link: Link,
    comments: Option<Comments>,
}

struct Comments {
    silence: Pin<Box<Sleep>>,
    every: Duration,
}

impl AnswerBody {
    pub(super) fn wrap(response: Response<Body>, link: Link, every: Duration) -> Response<Self> {
        let has_comments = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
        let comments = has_comments.then(|| Comments {
            silence: Box::pin(sleep(every)),
            every,
        });
        response.map(|inner| Self {
            inner,
            link,
            comments,
        })
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Self {
            inner,
            link,
            comments,
        } = &mut *self;
        let frame = Pin::new(inner).poll_frame(context);
        let Some(Comments { silence, every }) = comments else {
            return frame;
        };
        let frame = match frame {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                if !link.takes_comment() {
                    ready!(silence.as_mut().poll(context));
                }
                Some(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n"))))
            }
        };
        silence.as_mut().reset(Instant::now() + *every);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.link.end();
    }
}
