//! Connections: listening, timeouts, limits, and graceful shutdown.
//!
//! All timeouts of the server are here; the router has none. By default: a client has ten seconds to send its headers.
//! A body must keep arriving. A client that reads nothing for half a minute is disconnected, which drops its receivers
//! and so cancels its requests. A silent stream gets a comment every ten seconds so that proxies keep it open.
//!
//! The number of connections is limited, in total and for peers that have sent no valid request yet; `connections`
//! decides which one is closed when another arrives. `link` is one connection; `bodies` has the bodies of requests and
//! responses.
//!
//! When its `shutdown` future completes, [`serve`] shuts down: `/health` answers 503; after a grace period the engine
//! accepts no more requests; running answers finish or reach a time limit; then connections close.

mod bodies;
mod connections;
mod forwarded;
mod gate;
mod guesses;
mod link;
mod listener;
mod signals;
#[cfg(test)]
mod tests;

pub use listener::{Address, Listener};
pub use signals::shutdown_signal;

use super::guards::access::{KeyOutcome, Passed, key_digest};
use super::wire::error::{ApiError, Dialect};
use super::{ServerState, router};
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response};
use axum::response::IntoResponse as _;
use bodies::{AnswerBody, TimedBody};
use connections::{Connections, Limits, Seat};
pub use forwarded::Proxies;
use guesses::{Guesses, Verdict};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use link::{Connection, Link, Stream, drive};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWrite as _;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt;

/// Interval at which a draining server checks whether its answers have finished.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Maximum time to close idle connections at the end.
const CLOSE: Duration = Duration::from_secs(5);
/// Clients that are told at the same time that there is no room; further ones are disconnected at once.
const REFUSALS_MAX: usize = 64;

/// Timeouts and limits of connections.
#[derive(Clone, Debug)]
pub struct SocketOptions {
    /// Timeout for the headers of one request, from their first byte; for the first request, from the connection's
    /// start.
    pub header_timeout: Duration,
    /// How long a connection stays open between two requests.
    pub idle_timeout: Duration,
    /// Timeout for the body of one request, plus a second for each 32 KiB received.
    pub body_timeout: Duration,
    /// How long a client may read nothing before it is disconnected.
    pub write_timeout: Duration,
    /// Silence on a stream before a comment is sent.
    pub keep_alive: Duration,
    /// Maximum requests of one connection. It is closed after the last one.
    pub requests_max: u32,
    /// Maximum open connections. One more closes the connection that has waited longest for a request. If all have one
    /// in progress, the new one gets status 503.
    pub connections_max: usize,
    /// Maximum connections of one peer (an IPv4 address, or a /64 of IPv6 addresses) that have not yet sent a valid
    /// request: one with an allowed host and origin, and a key if its route needs one. One more closes the oldest of
    /// them. `None`: no limit. The default is above what OpenAI's own client opens at once (1000).
    pub connections_per_peer_max: Option<usize>,
    /// Who is trusted to tell the addresses of clients. Wrong API keys are counted by them.
    pub proxies: Proxies,
    /// How long requests are still accepted after `shutdown`, while `/health` already answers 503.
    pub shutdown_grace: Duration,
    /// How long running answers may continue after that, before they end with an error; `None`: no limit.
    pub shutdown_timeout: Option<Duration>,
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            requests_max: 1000,
            connections_max: 4096,
            connections_per_peer_max: Some(1024),
            proxies: Proxies::default(),
            shutdown_grace: Duration::ZERO,
            shutdown_timeout: None,
        }
    }
}

/// Serves until `shutdown` is done and the last answer has been sent.
pub async fn serve(
    listener: impl Into<Listener>,
    state: ServerState,
    options: SocketOptions,
    shutdown: impl Future<Output = ()>,
) {
    serve_when_ready(
        listener,
        (std::future::ready(Some(state)), None),
        options,
        shutdown,
    )
    .await;
}

/// As [`serve`], for a state that comes later, once the model is there. Until then, requests wait for the given time at
/// most (`None`: as long as it takes), and `/health` answers 503. Ends if there will be no state.
pub async fn serve_when_ready(
    listener: impl Into<Listener>,
    (coming, load_timeout): (impl Future<Output = Option<ServerState>>, Option<Duration>),
    options: SocketOptions,
    shutdown: impl Future<Output = ()>,
) {
    let listener = listener.into();
    let (open, ready) = watch::channel(None);
    let server = Server::new(gate::gated(ready, load_timeout), options);
    // One future for all phases, so that no connection is lost between two of them.
    let (mut accept, mut shutdown) = (Box::pin(server.accept(&listener)), pin!(shutdown));
    let state = tokio::select! {
        biased;
        state = coming => state,
        () = &mut shutdown => None,
        () = &mut accept => None,
    };
    let Some(state) = state else {
        // Those who wait are told.
        drop(open);
        drop(accept);
        drop(listener);
        drop(timeout(CLOSE, server.graceful.shutdown()).await);
        return;
    };
    open.send_replace(Some(router(state.clone())));
    tokio::select! {
        () = &mut accept => {}
        () = &mut shutdown => {}
    }
    state.begin_closing();
    if !server.options.shutdown_grace.is_zero() {
        tokio::select! {
            () = &mut accept => {}
            () = sleep(server.options.shutdown_grace) => {}
        }
    }
    state.drain();
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
        () = &mut accept => {}
        () = done() => {}
        () = limit => {
            tracing::warn!("shutdown timeout: running answers are cancelled");
            state.abort();
            // Waits until their clients have received the error.
            drop(timeout(CLOSE, done()).await);
        }
    }
    drop(accept);
    drop(listener);
    if timeout(CLOSE, server.graceful.shutdown()).await.is_err() {
        tracing::warn!("shutdown timeout: open connections are closed");
    }
}

struct Server {
    app: axum::Router,
    connections: Arc<Connections>,
    refusals: Arc<Semaphore>,
    graceful: GracefulShutdown,
    guesses: Arc<Guesses>,
    options: SocketOptions,
}

impl Server {
    fn new(app: axum::Router, options: SocketOptions) -> Self {
        let unproven_per_peer = options.connections_per_peer_max.unwrap_or(usize::MAX);
        Self {
            app,
            connections: Connections::new(Limits {
                total: options.connections_max,
                unproven_per_peer,
            }),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            graceful: GracefulShutdown::new(),
            guesses: Arc::default(),
            options,
        }
    }

    /// Accepts connections forever.
    async fn accept(&self, listener: &Listener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.admit(stream, peer).await,
                // Out of file descriptors, or the client has already disconnected; other connections are not affected.
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    /// Serves a new connection, once there is room for it, or refuses it.
    async fn admit(&self, stream: Box<dyn Stream>, peer: IpAddr) {
        match self.connections.admit(peer).await {
            Some(seat) => self.connect(stream, peer, seat),
            None => self.refuse(stream),
        }
    }

    fn connect(&self, stream: Box<dyn Stream>, peer: IpAddr, seat: Seat) {
        let (link, seat) = (Link::new(stream), Arc::new(seat));
        let service = Service {
            app: self.app.clone(),
            guesses: self.guesses.clone(),
            options: self.options.clone(),
            peer,
            link: link.clone(),
            seat: seat.clone(),
        };
        let service = hyper::service::service_fn(move |request| {
            let answer = service.clone().answer(request);
            async move { Ok::<_, Infallible>(answer.await) }
        });
        let mut builder = http1::Builder::new();
        // The time of headers is limited by `drive`, and a client that has shut down its writing side gets its answer.
        builder.half_close(true).header_read_timeout(None);
        let stream = TokioIo::new(Connection::new(link.clone(), self.options.write_timeout));
        let http = self
            .graceful
            .watch(builder.serve_connection(stream, service));
        let options = self.options.clone();
        tokio::spawn(async move { drive(http, &link, &seat, &options).await });
    }

    /// Answers 503 without reading the request, because every connection has one in progress.
    fn refuse(&self, stream: Box<dyn Stream>) {
        let Ok(permit) = self.refusals.clone().try_acquire_owned() else {
            return;
        };
        let mut connection = Connection::new(Link::new(stream), self.options.write_timeout);
        tokio::spawn(async move {
            let response = no_room();
            // A new socket's buffer holds all of it.
            let write = poll_fn(|context| {
                Pin::new(&mut connection).poll_write(context, response.as_bytes())
            });
            if write.await.is_ok() {
                let _ = poll_fn(|context| Pin::new(&mut connection).poll_shutdown(context)).await;
            }
            drop(permit);
        });
    }
}

/// The response to a connection for which there is no room.
fn no_room() -> String {
    let error = ApiError::too_many_connections();
    let body = error.json(Dialect::OpenAi);
    let response = error.into_response();
    let mut text = format!(
        "HTTP/1.1 {}\r\nconnection: close\r\ncontent-length: {}\r\n",
        response.status(),
        body.len()
    );
    for (name, value) in response.headers() {
        write!(text, "{name}: {}\r\n", value.to_str().unwrap_or_default())
            .expect("a string takes text");
    }
    format!("{text}\r\n{body}")
}

/// What answers the requests of one connection.
#[derive(Clone)]
struct Service {
    app: axum::Router,
    guesses: Arc<Guesses>,
    options: SocketOptions,
    peer: IpAddr,
    link: Link,
    seat: Arc<Seat>,
}

impl Service {
    /// The response to one request. hyper calls this when the headers have arrived, before it polls the future.
    fn answer(self, request: Request<Incoming>) -> impl Future<Output = Response<AnswerBody>> {
        let is_last = self.link.begin(request.version()) >= self.options.requests_max;
        let mut request =
            request.map(|body| Body::new(TimedBody::new(body, self.options.body_timeout)));
        let seat = self.seat.clone();
        request
            .extensions_mut()
            .insert(Passed(Arc::new(move || seat.begin())));
        async move {
            let mut response = self.guessed(request).await;
            if is_last {
                response
                    .headers_mut()
                    .insert(CONNECTION, HeaderValue::from_static("close"));
            }
            self.link.answer();
            AnswerBody::wrap(response, self.link, self.options.keep_alive)
        }
    }

    /// The response to a request whose key is looked at when its turn has come.
    async fn guessed(&self, request: Request<Body>) -> Response<Body> {
        let app = self.app.clone();
        let client = self.options.proxies.client(self.peer, request.headers());
        let Some((client, key)) = client.zip(key_digest(&request)) else {
            let Ok(response) = app.oneshot(request).await;
            return response;
        };
        let verdict = self.guesses.judge(client, &key, Instant::now());
        match verdict {
            Verdict::Now => {}
            Verdict::After(wait) => sleep(wait).await,
            Verdict::Refused(wait) => return ApiError::too_many_wrong_keys(wait).into_response(),
        }
        let Ok(response) = app.oneshot(request).await;
        let waited = verdict != Verdict::Now;
        match response.extensions().get() {
            Some(KeyOutcome::Right) => self.guesses.right(client, &key, waited, Instant::now()),
            Some(KeyOutcome::Wrong) if !waited => self.guesses.wrong(client, Instant::now()),
            _ => {}
        }
        response
    }
}
