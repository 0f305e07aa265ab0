//! One connection: what hyper reads and writes, and the task that watches it.
//!
//! hyper knows when a request or a response ends, but neither why a connection waits nor whether its client is still
//! there. [`drive`] knows both: it limits how long a connection waits, closes it when another one needs its place, and
//! finds out whether a client that ended its requests has only shut down its writing side or is gone. TCP does not tell
//! these apart until something is written. So while a response is awaited, an interim response (`100 Continue`) is
//! sent, which every HTTP/1.1 client skips, and an event stream gets a comment. A client that is gone answers them with
//! a reset, which ends its requests. HTTP/1.0 knows no interim responses, so there is nothing to write to its clients;
//! they hardly ever shut down only their writing side, so they count as gone, as they do for other servers.

use super::SocketOptions;
use super::connections::Seat;
use axum::http::Version;
use hyper::Error;
use std::fmt::Debug;
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// After a refusal, the rest of the request is read for this long; otherwise a TCP reset could discard the response.
const LINGER: Duration = Duration::from_secs(1);
/// Time from a client's end of writing to the first probe. It doubles with every probe.
const PROBE: Duration = Duration::from_millis(100);
const INTERIM: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What a connection needs of a socket. Tests have one without a network.
pub(super) trait Stream: AsyncRead + AsyncWrite + Debug + Send + Unpin {
    /// Waits for bytes or the end of what the client sends, without consuming either. Returns how many bytes were seen.
    fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>>;

    /// Writes what the socket takes at once.
    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

impl Stream for TcpStream {
    fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Self::poll_peek(self, context, &mut ReadBuf::new(&mut [0]))
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }
}

/// Where a connection is in its current request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// No request is being answered.
    Waiting,
    /// The service works on a response. `interim`: the client understands interim responses.
    Asked { interim: bool },
    /// The response is handed to hyper.
    Answering,
    /// All of it was handed over, but perhaps not yet written.
    Answered,
}

/// The socket of a connection, and what hyper, the service and [`drive`] tell each other. All three run in one task, so
/// they never wait for the lock.
#[derive(Clone, Debug)]
pub(super) struct Link(Arc<Mutex<Socket>>);

#[derive(Debug)]
struct Socket {
    stream: Box<dyn Stream>,
    phase: Phase,
    /// hyper has nothing left to write.
    flushed: bool,
    /// Bytes have arrived since the last response.
    heard: bool,
    /// The event stream should send a comment now.
    comment: bool,
    requests: u32,
}

impl Link {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        let socket = Socket {
            stream,
            phase: Phase::Waiting,
            flushed: true,
            heard: false,
            comment: false,
            requests: 0,
        };
        Self(Arc::new(Mutex::new(socket)))
    }

    /// A request begins. Returns the number of requests so far.
    pub(super) fn begin(&self, version: Version) -> u32 {
        let mut socket = self.lock();
        socket.phase = Phase::Asked {
            interim: version >= Version::HTTP_11,
        };
        socket.requests += 1;
        socket.requests
    }

    /// The response is handed to hyper.
    pub(super) fn answer(&self) {
        self.lock().phase = Phase::Answering;
    }

    /// The response's body has ended.
    pub(super) fn end(&self) {
        self.lock().phase = Phase::Answered;
    }

    /// Whether the event stream should send a comment now.
    pub(super) fn takes_comment(&self) -> bool {
        std::mem::take(&mut self.lock().comment)
    }

    fn lock(&self) -> MutexGuard<'_, Socket> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a connection until it ends.
pub(super) async fn drive(
    http: impl Future<Output = Result<(), Error>>,
    link: &Link,
    seat: &Seat,
    options: &SocketOptions,
) {
    let (mut http, mut must_close) = (pin!(http), pin!(seat.must_close()));
    let mut watch = Watch::new(options);
    let run = std::future::poll_fn(|context| {
        loop {
            // First, so that a request that has already arrived is seen before the connection is closed.
            if let Poll::Ready(result) = http.as_mut().poll(context) {
                return Poll::Ready(result.err().map_or("it ended", |error| {
                    tracing::debug!(%error, "a connection ended");
                    "an error"
                }));
            }
            if must_close.as_mut().poll(context).is_ready() {
                return Poll::Ready("another connection needs its place");
            }
            match ready!(watch.poll(link, seat, context)) {
                Event::Comment => link.lock().comment = true,
                Event::Close(why) => return Poll::Ready(why),
            }
        }
    });
    let why = run.await;
    tracing::debug!(why, "a connection is closed");
}

/// What [`drive`] does next.
enum Event {
    /// The event stream must be polled again, to send a comment.
    Comment,
    /// The connection is closed, for this reason.
    Close(&'static str),
}

/// The timers of one connection.
struct Watch {
    header_timeout: Duration,
    idle_timeout: Duration,
    /// When a connection that waits is closed.
    deadline: Pin<Box<Sleep>>,
    /// The headers of a request have begun to arrive, or have never been waited for before.
    hearing: bool,
    /// The client has ended its requests; the time of the next probe, and the pause after it.
    probe: Option<(Pin<Box<Sleep>>, Duration)>,
}

impl Watch {
    fn new(options: &SocketOptions) -> Self {
        let SocketOptions {
            header_timeout,
            idle_timeout,
            ..
        } = *options;
        Self {
            header_timeout,
            idle_timeout,
            deadline: Box::pin(sleep(header_timeout)),
            hearing: true,
            probe: None,
        }
    }

    fn poll(&mut self, link: &Link, seat: &Seat, context: &mut Context<'_>) -> Poll<Event> {
        let mut socket = link.lock();
        if socket.phase == Phase::Answered && socket.flushed {
            (socket.phase, socket.heard, self.hearing) = (Phase::Waiting, false, false);
            self.deadline
                .as_mut()
                .reset(Instant::now() + self.idle_timeout);
            seat.end();
        }
        if socket.phase != Phase::Waiting {
            return self.poll_client(&mut socket, context);
        }
        if socket.heard && !self.hearing {
            self.hearing = true;
            self.deadline
                .as_mut()
                .reset(Instant::now() + self.header_timeout);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Event::Close("it waited too long"))
    }

    /// Watches a client whose request is being answered.
    fn poll_client(&mut self, socket: &mut Socket, context: &mut Context<'_>) -> Poll<Event> {
        let Some((at, pause)) = &mut self.probe else {
            match ready!(socket.stream.poll_peek(context)) {
                Ok(0) => self.probe = Some((Box::pin(sleep(PROBE)), PROBE)),
                // The next request has already arrived, so the end cannot be seen yet.
                Ok(_) => return Poll::Pending,
                Err(_) => return Poll::Ready(Event::Close("the client is gone")),
            }
            return self.poll_client(socket, context);
        };
        loop {
            ready!(at.as_mut().poll(context));
            *pause *= 2;
            at.as_mut().reset(Instant::now() + *pause);
            match socket.phase {
                Phase::Answering => return Poll::Ready(Event::Comment),
                Phase::Asked { interim: false } => {
                    return Poll::Ready(Event::Close("the client is gone"));
                }
                // Only between whole responses, so that bytes of one are never torn apart.
                Phase::Asked { interim: true } if socket.flushed => {
                    match socket.stream.try_write(INTERIM) {
                        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                            return Poll::Ready(Event::Close("the client is gone"));
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

/// The socket as hyper sees it: with a write timeout, and with a pause after its end, so that the last response is not
/// lost.
pub(super) struct Connection {
    link: Link,
    write_timeout: Duration,
    /// Timer that runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Timer that runs after our side was shut down.
    linger: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub(super) fn new(link: Link, write_timeout: Duration) -> Self {
        Self {
            link,
            write_timeout,
            stalled: None,
            linger: None,
        }
    }

    /// Turns a write that waits too long into an error.
    fn watch<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let limit = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "write timeout: the client does not read",
        )))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut socket = self.link.lock();
        let before = buffer.filled().len();
        let read = Pin::new(&mut socket.stream).poll_read(context, buffer);
        socket.heard |= buffer.filled().len() > before;
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut socket = self.link.lock();
        socket.flushed = false;
        let written = Pin::new(&mut socket.stream).poll_write(context, bytes);
        drop(socket);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut socket = self.link.lock();
        socket.flushed = false;
        let written = Pin::new(&mut socket.stream).poll_write_vectored(context, slices);
        drop(socket);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.link.lock().stream.is_write_vectored()
    }

    /// hyper flushes when it has written everything.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut socket = self.link.lock();
        socket.flushed = true;
        Pin::new(&mut socket.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let link = self.link.clone();
        let mut socket = link.lock();
        if self.linger.is_none() {
            ready!(Pin::new(&mut socket.stream).poll_shutdown(context))?;
            self.linger = Some(Box::pin(sleep(LINGER)));
        }
        loop {
            // Checked before each read, so that a client that never stops sending is also disconnected.
            if self
                .linger
                .as_mut()
                .is_some_and(|linger| linger.as_mut().poll(context).is_ready())
            {
                return Poll::Ready(Ok(()));
            }
            let mut bytes = [0; 8192];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut socket.stream).poll_read(context, &mut buffer));
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
