//! Connections: listening, timeouts, limits, and graceful shutdown.
//!
//! All timeouts of the server are here; the router has none. By default: a client has ten seconds to send its headers.
//! A body must keep arriving. A client that reads nothing for half a minute is disconnected, which drops its receivers
//! and so cancels its requests. A silent stream gets a comment every fifteen seconds so that proxies keep it open.
//!
//! When its `shutdown` future completes, [`serve`] shuts down: `/health` answers 503; after a grace period the engine
//! accepts no more requests; running answers finish or reach a time limit; then connections close.

mod guesses;

use super::guards::access::WrongKey;
use super::wire::error::ApiError;
use super::{BodyTimeout, ServerState, router};
use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response};
use axum::response::IntoResponse as _;
use guesses::Guesses;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tower::ServiceExt;

/// A body's deadline moves by one second for this many bytes received.
const BODY_BYTES_PER_SECOND: f64 = 32_768.0;
/// After a refusal, the rest of the request is read for this long; otherwise a TCP reset could discard the response.
const LINGER: Duration = Duration::from_secs(1);
/// Interval at which a draining server checks whether its answers have finished.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Maximum time to close idle connections at the end.
const CLOSE: Duration = Duration::from_secs(5);

/// Timeouts and limits of connections.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Timeout for the headers of one request; also how long an idle connection stays open.
    pub header_timeout: Duration,
    /// Timeout for the body of one request, plus a second for each 32 KiB received.
    pub body_timeout: Duration,
    /// How long a client may read nothing before it is disconnected.
    pub write_timeout: Duration,
    /// Silence on a stream before a comment is sent.
    pub keep_alive: Duration,
    /// Maximum open connections; further ones are closed at once.
    pub connections_max: usize,
    /// How long requests are still accepted after `shutdown`, while `/health` already answers 503.
    pub shutdown_grace: Duration,
    /// How long running answers may continue after that, before they end with an error; `None`: no limit.
    pub shutdown_timeout: Option<Duration>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            connections_max: 1024,
            shutdown_grace: Duration::ZERO,
            shutdown_timeout: None,
        }
    }
}

/// Serves until `shutdown` is done and the last answer has been sent.
pub async fn serve(
    listener: TcpListener,
    state: ServerState,
    options: SocketOptions,
    shutdown: impl Future<Output = ()>,
) {
    let server = Server {
        app: router(state.clone()),
        connections: Arc::new(Semaphore::new(options.connections_max)),
        graceful: GracefulShutdown::new(),
        guesses: Arc::default(),
        options,
    };
    tokio::select! {
        () = server.accept(&listener) => {}
        () = shutdown => {}
    }
    state.begin_closing();
    if !server.options.shutdown_grace.is_zero() {
        tokio::select! {
            () = server.accept(&listener) => {}
            () = sleep(server.options.shutdown_grace) => {}
        }
    }
    state.engine.drain();
    // Connections are still accepted, so that clients get 503 instead of a refused connection.
    let done = || async {
        while state.active_answers() > 0 {
            sleep(DRAIN_POLL).await;
        }
    };
    let limit = async {
        match server.options.shutdown_timeout {
            Some(limit) => sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = server.accept(&listener) => {}
        () = done() => {}
        () = limit => {
            tracing::warn!("shutdown timeout: running answers are cancelled");
            state.engine.abort();
            // Waits until their clients have received the error.
            drop(timeout(CLOSE, done()).await);
        }
    }
    drop(listener);
    if timeout(CLOSE, server.graceful.shutdown()).await.is_err() {
        tracing::warn!("shutdown timeout: open connections are closed");
    }
}

/// Completes at the first Ctrl-C or SIGTERM. A second one ends the process at once.
pub async fn shutdown_signal() {
    signal().await;
    tokio::spawn(async {
        signal().await;
        std::process::exit(130);
    });
}

async fn signal() {
    // If no handler can be set, the signal keeps its default action, which ends the process.
    let interrupt = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    #[cfg(unix)]
    let terminate = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signals) => signals.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<Option<()>>();
    tokio::select! {
        () = interrupt => {}
        _ = terminate => {}
    }
}

struct Server {
    app: axum::Router,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
    guesses: Arc<Guesses>,
    options: SocketOptions,
}

impl Server {
    /// Accepts connections forever.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.connect(stream, peer.ip()),
                // Out of file descriptors, or the client has already disconnected; other connections are not affected.
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn connect(&self, stream: TcpStream, peer: IpAddr) {
        let Ok(permit) = self.connections.clone().try_acquire_owned() else { return };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was lost");
            return;
        }
        let (app, keep_alive, body_timeout) = (self.app.clone(), self.options.keep_alive, self.options.body_timeout);
        let guesses = self.guesses.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let request = request.map(|body| Body::new(TimedBody::new(body, body_timeout)));
            let (answer, guesses) = (app.clone().oneshot(request), guesses.clone());
            async move {
                let response = slow_down(answer.await?, &guesses, peer).await;
                Ok::<_, Infallible>(with_comments(response, keep_alive))
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.options.header_timeout);
        let stream = TokioIo::new(Connection::new(stream, self.options.write_timeout));
        let connection = self.graceful.watch(builder.serve_connection(stream, service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(permit);
        });
    }
}

/// Delays the response to a wrong key, so that keys cannot be guessed quickly.
async fn slow_down(response: Response<Body>, guesses: &Guesses, peer: IpAddr) -> Response<Body> {
    if response.extensions().get::<WrongKey>().is_none() {
        return response;
    }
    match guesses.delay(peer, Instant::now()) {
        Some(delay) => {
            sleep(delay).await;
            response
        }
        None => ApiError::too_many_wrong_keys().into_response(),
    }
}

/// A request's body, with a deadline that moves as bytes arrive.
struct TimedBody {
    inner: Incoming,
    sleep: Pin<Box<Sleep>>,
    deadline: Instant,
}

impl TimedBody {
    fn new(inner: Incoming, limit: Duration) -> Self {
        let deadline = Instant::now() + limit;
        Self { inner, sleep: Box::pin(sleep_until(deadline)), deadline }
    }
}

impl HttpBody for TimedBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
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

/// Adds keep-alive comments to a silent event stream.
fn with_comments(response: Response<Body>, every: Duration) -> Response<Body> {
    let is_events = |value: &HeaderValue| value.as_bytes().starts_with(b"text/event-stream");
    if !response.headers().get(CONTENT_TYPE).is_some_and(is_events) {
        return response;
    }
    response.map(|inner| Body::new(CommentedBody { inner, silence: Box::pin(sleep(every)), every }))
}

struct CommentedBody {
    inner: Body,
    silence: Pin<Box<Sleep>>,
    every: Duration,
}

impl HttpBody for CommentedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                ready!(self.silence.as_mut().poll(context));
                Some(Ok(Frame::data(Bytes::from_static(b": keep-alive\n\n"))))
            }
        };
        let next = Instant::now() + self.every;
        self.silence.as_mut().reset(next);
        Poll::Ready(frame)
    }
}

/// A connection with a write timeout that lingers after its end, so that the last response is not lost.
struct Connection {
    inner: TcpStream,
    write_timeout: Duration,
    /// Timer that runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Timer that runs after our side was shut down.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    fn new(inner: TcpStream, write_timeout: Duration) -> Self {
        Self { inner, write_timeout, stalled: None, linger: None }
    }

    /// Turns a write that waits too long into an error.
    fn watch<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "write timeout: the client does not read")))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write_vectored(context, slices);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.inner).poll_shutdown(context))?;
            self.linger = Some(Box::pin(sleep(LINGER)));
        }
        loop {
            // Checked before each read, so that a client that never stops sending is also disconnected.
            if self.linger.as_mut().is_some_and(|linger| linger.as_mut().poll(context).is_ready()) {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 8192];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.inner).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
