//! Connections in memory, on a clock that stands still while anything can run and then jumps to the next timer. So
//! time limits are checked to the millisecond, and no test waits. `tests/http` tests the same on real sockets.

use super::*;
use crate::engine::handle::channel;
use crate::model::demo;
use crate::server::ServerOptions;
use crate::server::guards::access;
use crate::text::TextModel;
use axum::routing::get;
use futures_util::{FutureExt as _, StreamExt as _};
use std::io;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{
    AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf,
};

/// A socket without a network. Its client is gone when the other end is dropped.
#[derive(Debug)]
struct Pipe {
    end: DuplexStream,
    /// Bytes that were peeked at and not read yet.
    peeked: Vec<u8>,
}

impl AsyncRead for Pipe {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.peeked.is_empty() {
            return Pin::new(&mut self.end).poll_read(context, buffer);
        }
        let count = self.peeked.len().min(buffer.remaining());
        buffer.put_slice(&self.peeked[..count]);
        self.peeked.drain(..count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(context)
    }
}

impl Stream for Pipe {
    fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.peeked.is_empty() {
            let mut bytes = [0; 4096];
            let mut buffer = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.end).poll_read(context, &mut buffer))?;
            self.peeked.extend_from_slice(buffer.filled());
        }
        Poll::Ready(Ok(self.peeked.len()))
    }

    fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut self.end).poll_write(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(written) => written,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// The client's end of a connection.
struct Client(DuplexStream);

impl Client {
    async fn send(&mut self, text: &str) {
        self.0
            .write_all(text.as_bytes())
            .await
            .expect("the server reads");
    }

    /// What arrives until the text contains `what`.
    async fn read_until(&mut self, what: &str) -> String {
        let mut text = String::new();
        while !text.contains(what) {
            let byte = self
                .0
                .read_u8()
                .await
                .unwrap_or_else(|error| panic!("{error}, after {text}"));
            text.push(byte.into());
        }
        text
    }

    /// What arrives until the server closes the connection.
    async fn read_to_close(&mut self) -> String {
        let mut text = String::new();
        self.0
            .read_to_string(&mut text)
            .await
            .expect("the server answers with text");
        text
    }
}

const KEY: &str = "sesame-9";

async fn slow() -> &'static str {
    sleep(Duration::from_secs(60)).await;
    "done"
}

/// An event stream with one late event.
async fn silent() -> impl axum::response::IntoResponse {
    let event = slow().into_stream().map(Ok::<_, Infallible>);
    (
        [("content-type", "text/event-stream")],
        Body::from_stream(event),
    )
}

/// The routes of a server whose model never gets ready, with a few more behind the same guard.
fn app() -> axum::Router {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    let text = Arc::new(text.expect("the demo's files are right"));
    let options = ServerOptions {
        api_keys: vec![KEY.into()],
        ..ServerOptions::default()
    };
    let state = ServerState::new(channel(1).0, text, vec!["demo".into()], options);
    let guarded = axum::Router::new()
        .route("/quick", get(async || "done"))
        .route("/slow", get(slow))
        .route("/silent", get(silent))
        .route("/large", get(async || "x".repeat(1 << 20)))
        .route(
            "/panic",
            get(async || -> () { panic!("a handler's panic, planted by this test") }),
        )
        .layer(axum::middleware::from_fn_with_state(
            state.clone(),
            access::guard,
        ));
    guarded.merge(router(state))
}

/// A request with the right key.
fn request(line: &str) -> String {
    let (method_and_path, version) = line.split_once(" HTTP").expect("a version");
    format!(
        "{method_and_path} HTTP{version}\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n\r\n"
    )
}

/// A request with the right key, in the current version.
fn quick() -> String {
    request("GET /quick HTTP/1.1")
}

/// The head of a request with a body of so many bytes.
fn head(bytes: usize) -> String {
    let more = format!("Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n");
    request("POST /v1/chat/completions HTTP/1.1").replace("\r\n\r\n", &format!("\r\n{more}"))
}

fn server(options: SocketOptions) -> Server {
    Server::new(app(), options)
}

/// Room for this many connections.
fn places(total: usize) -> SocketOptions {
    SocketOptions {
        connections_max: total,
        ..SocketOptions::default()
    }
}

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(203, 0, 113, 1));

/// A new connection whose buffers hold so many bytes in each direction.
async fn connect_with(server: &Server, bytes: usize) -> Client {
    let (end, client) = tokio::io::duplex(bytes);
    server
        .admit(
            Box::new(Pipe {
                end,
                peeked: Vec::new(),
            }),
            PEER,
        )
        .await;
    Client(client)
}

async fn connect(server: &Server) -> Client {
    connect_with(server, 64 << 10).await
}

/// Number of connections for which there is room. No open one may be waiting for a request, because it would be closed.
fn room(server: &Server) -> usize {
    let admit = || server.connections.admit(PEER).now_or_never().flatten();
    let seats: Vec<Seat> = std::iter::from_fn(admit).inspect(Seat::begin).collect();
    seats.len()
}

/// Runs a test on a paused clock.
fn paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    runtime.expect("a runtime").block_on(test);
}

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The time since `start` is `expected`; timers are rounded up to milliseconds.
#[track_caller]
fn assert_after(start: Instant, expected: Duration) {
    let elapsed = start.elapsed();
    assert!(
        elapsed >= expected && elapsed <= expected + ms(2),
        "after {elapsed:?}, not {expected:?}"
    );
}

/// What a client does once its bytes are sent.
#[derive(Clone, Copy, Debug)]
enum Then {
    Leaves,
    ShutsDown,
    Reads,
    NeverReads,
}

#[test]
fn a_place_is_released_exactly_once_however_a_connection_ends() {
    const TOTAL: usize = 3;
    paused(async {
        let (server, cut) = (server(places(TOTAL)), head(100) + "{");
        let close = quick().replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
        let [slow, silent, large, panics] = ["slow", "silent", "large", "panic"]
            .map(|path| request(&format!("GET /{path} HTTP/1.1")));
        let no_key = quick().replace(KEY, "guess");
        let twice = quick() + &slow;
        let sent = [
            "",
            "GET /qu",
            "?\r\n\r\n",
            &quick(),
            &close,
            &no_key,
            &cut,
            &slow,
            &silent,
            &large,
            &panics,
            &twice,
        ];
        for text in sent {
            for then in [Then::Leaves, Then::ShutsDown, Then::Reads, Then::NeverReads] {
                let mut client = connect_with(&server, 2000).await;
                client.send(text).await;
                sleep(ms(50)).await;
                match then {
                    Then::Leaves => drop(client),
                    Then::ShutsDown => {
                        client.0.shutdown().await.expect("it is open");
                        client.read_to_close().await;
                    }
                    Then::Reads => drop(client.read_to_close().await),
                    Then::NeverReads => {
                        sleep(seconds(300)).await;
                        drop(client);
                    }
                }
                sleep(seconds(5)).await;
                assert_eq!(
                    room(&server),
                    TOTAL,
                    "{text:?}, and then the client {then:?}"
                );
            }
        }
    });
}

#[test]
fn a_place_is_released_when_another_connection_takes_it_or_the_server_ends() {
    paused(async {
        let server = server(places(2));
        let (mut first, _second) = (connect(&server).await, connect(&server).await);
        let mut third = connect(&server).await;
        assert_eq!(first.read_to_close().await, "");
        third.send(&quick()).await;
        third.read_until("done").await;
        let connections = server.connections.clone();
        server.graceful.shutdown().await;
        let seats = [(); 3].map(|()| {
            connections
                .admit(PEER)
                .now_or_never()
                .flatten()
                .inspect(Seat::begin)
        });
        assert_eq!(seats.iter().flatten().count(), 2);
    });
}

#[test]
fn a_refusal_is_brief_and_its_permit_returns() {
    paused(async {
        let server = server(places(1));
        let mut busy = connect(&server).await;
        busy.send(&request("GET /slow HTTP/1.1")).await;
        sleep(ms(1)).await;
        let start = Instant::now();
        let mut refused: Vec<Client> = Vec::new();
        for _ in 0..2 * REFUSALS_MAX {
            refused.push(connect(&server).await);
        }
        sleep(ms(1)).await;
        assert_eq!(server.refusals.available_permits(), 0);
        for (index, client) in refused.iter_mut().enumerate() {
            let answer = client.read_to_close().await;
            assert_eq!(
                answer.starts_with("HTTP/1.1 503 "),
                index < REFUSALS_MAX,
                "{index}: {answer}"
            );
        }
        sleep(seconds(2)).await;
        assert_eq!(server.refusals.available_permits(), REFUSALS_MAX);
        busy.read_until("done").await;
        assert_after(start, seconds(60) - ms(1));
    });
}

#[test]
fn the_connection_that_waits_longest_goes_first() {
    paused(async {
        let server = server(places(3));
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connect(&server).await);
        }
        // Two have been answered since the second one began to wait, the third before the first.
        for index in [2, 0] {
            clients[index].send(&quick()).await;
            clients[index].read_until("done").await;
            sleep(ms(10)).await;
        }
        for index in [1, 2, 0] {
            let mut newcomer = connect(&server).await;
            newcomer.send(&request("GET /slow HTTP/1.1")).await;
            sleep(ms(1)).await;
            assert_eq!(
                clients[index].read_to_close().await,
                "",
                "{index} is closed"
            );
            clients.push(newcomer);
        }
        for client in &mut clients[3..] {
            client.read_until("done").await;
        }
    });
}

#[test]
fn a_peer_is_limited_until_its_first_valid_request() {
    paused(async {
        let server = server(SocketOptions {
            connections_per_peer_max: Some(2),
            ..SocketOptions::default()
        });
        let mut valid = Vec::new();
        for _ in 0..5 {
            let mut client = connect(&server).await;
            client.send(&quick()).await;
            client.read_until("done").await;
            valid.push(client);
        }
        let (mut first, mut second) = (connect(&server).await, connect(&server).await);
        first.send(&quick().replace(KEY, "guess")).await;
        first.read_until("}}").await;
        let mut third = connect(&server).await;
        assert_eq!(
            first.read_to_close().await,
            "",
            "a refused request proves nothing"
        );
        second.send(&quick()).await;
        second.read_until("done").await;
        let _fourth = connect(&server).await;
        for client in valid.iter_mut().chain([&mut second, &mut third]) {
            client.send(&quick()).await;
            client.read_until("done").await;
        }
    });
}

#[test]
fn headers_have_ten_seconds_from_their_first_byte() {
    paused(async {
        let server = server(SocketOptions::default());
        for text in ["", "GET /quick HTTP/1.1\r\nHost: loc"] {
            let (mut client, start) = (connect(&server).await, Instant::now());
            client.send(text).await;
            assert_eq!(client.read_to_close().await, "");
            assert_after(start, seconds(10));
        }
        let mut client = connect(&server).await;
        client.send(&quick()).await;
        client.read_until("done").await;
        sleep(seconds(50)).await;
        let start = Instant::now();
        for byte in quick().chars().take(10) {
            client.send(&byte.to_string()).await;
            sleep(ms(900)).await;
        }
        assert_eq!(client.read_to_close().await, "");
        assert_after(start, seconds(10));
    });
}

#[test]
fn a_connection_is_kept_for_some_requests_and_some_time() {
    paused(async {
        let server = server(SocketOptions {
            requests_max: 3,
            ..SocketOptions::default()
        });
        let mut idle = connect(&server).await;
        idle.send(&quick()).await;
        idle.read_until("done").await;
        let start = Instant::now();
        assert_eq!(idle.read_to_close().await, "");
        assert_after(start, seconds(75));

        let mut busy = connect(&server).await;
        for _ in 0..2 {
            busy.send(&quick()).await;
            assert!(!busy.read_until("done").await.contains("connection: close"));
            sleep(seconds(75) - ms(1)).await;
        }
        busy.send(&quick()).await;
        let last = busy.read_to_close().await;
        assert!(
            last.contains("\r\nconnection: close\r\n") && last.ends_with("done"),
            "{last}"
        );
    });
}

#[test]
fn a_body_that_trickles_is_cut_at_its_deadline() {
    paused(async {
        let server = server(SocketOptions::default());
        // The deadline moves by a second for each 32 KiB.
        for (at_once, expected) in [(0, seconds(30)), (64 << 10, seconds(32))] {
            let (client, start) = (connect(&server).await, Instant::now());
            let (reader, mut writer) = tokio::io::split(client.0);
            let trickle = tokio::spawn(async move {
                let begin = head(1 << 20) + &" ".repeat(at_once);
                writer
                    .write_all(begin.as_bytes())
                    .await
                    .expect("the server reads");
                // The server reads on for a moment after it has answered.
                while writer.write_all(b" ").await.is_ok() {
                    sleep(seconds(1)).await;
                }
            });
            let mut reader = tokio::io::BufReader::new(reader);
            let mut answer = String::new();
            while !answer.contains("body_timeout") {
                answer.push(reader.read_u8().await.expect("an answer").into());
            }
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert_after(start, expected);
            drop(reader);
            trickle.await.expect("it ends with the connection");
        }
    });
}

#[test]
fn a_body_that_keeps_arriving_is_not_cut() {
    paused(async {
        let server = server(SocketOptions::default());
        let mut client = connect(&server).await;
        let (count, second) = (60, " ".repeat(33 << 10));
        client.send(&head(count * second.len())).await;
        for _ in 0..count {
            client.send(&second).await;
            sleep(seconds(1)).await;
        }
        let answer = client.read_until("}}").await;
        assert!(
            answer.starts_with("HTTP/1.1 400 "),
            "it is read, and is no JSON: {answer}"
        );
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_at_the_write_timeout_and_not_before() {
    paused(async {
        let server = server(places(1));
        let mut client = connect_with(&server, 1 << 10).await;
        client.send(&request("GET /large HTTP/1.1")).await;
        let mut buffer = [0; 1 << 10];
        for _ in 0..10 {
            sleep(seconds(30) - ms(5)).await;
            client
                .0
                .read_exact(&mut buffer)
                .await
                .expect("the server writes while the client reads");
        }
        let start = Instant::now();
        sleep(seconds(30) - ms(2)).await;
        assert_eq!(room(&server), 0, "after {:?}", start.elapsed());
        sleep(ms(4)).await;
        assert_eq!(room(&server), 1);
        let mut rest = Vec::new();
        client
            .0
            .read_to_end(&mut rest)
            .await
            .expect("what was already written");
        assert!(rest.len() <= 1 << 10, "{} bytes", rest.len());
    });
}

#[test]
fn a_silent_stream_gets_a_comment_every_ten_seconds() {
    paused(async {
        let server = server(SocketOptions::default());
        let (mut client, start) = (connect(&server).await, Instant::now());
        client.send(&request("GET /silent HTTP/1.1")).await;
        for count in 1..=5 {
            client.read_until(": keep-alive\n\n").await;
            assert_after(start, seconds(10) * count);
        }
        client.read_until("done").await;
        assert_after(start, seconds(60));
    });
}

/// TCP does not tell a client that has only shut down its writing side from one that is gone, until it is written to.
#[test]
fn a_client_that_shuts_down_its_writing_side_is_probed() {
    paused(async {
        let server = server(SocketOptions::default());
        for (path, probe) in [
            ("slow", "HTTP/1.1 100 Continue\r\n\r\n"),
            ("silent", ": keep-alive\n\n"),
        ] {
            let mut client = connect(&server).await;
            client
                .send(&request(&format!("GET /{path} HTTP/1.1")))
                .await;
            sleep(seconds(1)).await;
            client.0.shutdown().await.expect("it is open");
            let start = Instant::now();
            for pause in [100, 300, 700, 1500, 3100] {
                client.read_until(probe).await;
                assert_after(start, ms(pause));
            }
            let answer = client.read_to_close().await;
            assert!(answer.contains("done"), "{answer}");
        }
    });
}

#[test]
fn a_client_that_leaves_is_noticed_by_the_first_probe() {
    paused(async {
        let server = server(places(1));
        for line in [
            "GET /slow HTTP/1.1",
            "GET /silent HTTP/1.1",
            "GET /slow HTTP/1.0",
            "GET /silent HTTP/1.0",
        ] {
            let mut client = connect(&server).await;
            client.send(&request(line)).await;
            sleep(seconds(1)).await;
            drop(client);
            sleep(ms(98)).await;
            assert_eq!(room(&server), 0, "{line}: probed too early");
            sleep(ms(4)).await;
            assert_eq!(room(&server), 1, "{line}: not noticed");
        }
    });
}

/// HTTP/1.0 knows no interim responses, so a client of it that ends its requests is taken to be gone.
#[test]
fn an_http_1_0_client_that_ends_its_requests_has_left_unless_it_is_answered_at_once() {
    paused(async {
        let server = server(places(1));
        for (path, answered) in [("quick", true), ("slow", false), ("silent", true)] {
            let (mut client, start) = (connect(&server).await, Instant::now());
            client
                .send(&request(&format!("GET /{path} HTTP/1.0")))
                .await;
            client.0.shutdown().await.expect("it is open");
            let answer = client.read_to_close().await;
            assert_eq!(answer.ends_with("done"), answered, "{path}: {answer}");
            if !answered {
                assert_eq!(answer, "");
                assert_after(start, ms(100));
            }
        }
    });
}

#[test]
fn beyond_the_allowance_every_key_waits_its_turn_unless_it_was_right_before() {
    paused(async {
        let (server, start) = (server(SocketOptions::default()), Instant::now());
        let ask = async |key: &str, header: &str| {
            let mut client = connect(&server).await;
            let request = quick().replace(
                &format!("Authorization: Bearer {KEY}"),
                &format!("{header}{key}"),
            );
            client
                .send(&request.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n"))
                .await;
            let answer = client.read_to_close().await;
            (start.elapsed().as_millis() / 500, answer[9..12].to_owned())
        };
        let bearer = "Authorization: Bearer ";
        // A client of the same address, which goes on throughout.
        assert_eq!(ask(KEY, bearer).await, (0, "200".to_owned()));
        // Look-alikes: a prefix, more than the key, another case; in both headers.
        for wrong in ["sesame-", "sesame-99", "SESAME-9", "x", ""] {
            assert_eq!(ask(wrong, bearer).await, (0, "401".to_owned()), "{wrong}");
        }
        let keys = ["sesame-", "sesame-99", "SESAME-9", "x"]
            .into_iter()
            .cycle()
            .take(40);
        let guesses = keys
            .zip([bearer, "X-Api-Key: "].into_iter().cycle())
            .map(|(key, header)| ask(key, header));
        let mut answers = futures_util::future::join_all(guesses).await;
        answers.sort();
        let refused = vec![(0, "429".to_owned()); 20];
        let waited = (1..=20).map(|half_seconds| (half_seconds, "401".to_owned()));
        assert_eq!(
            answers,
            refused.into_iter().chain(waited).collect::<Vec<_>>()
        );
        let now = start.elapsed().as_millis() / 500;
        assert_eq!(
            ask(KEY, bearer).await,
            (now, "200".to_owned()),
            "it was right from here"
        );
        assert_eq!(
            ask(KEY, "X-Api-Key: ").await.1,
            "200",
            "it waits in a header of which that is not known"
        );
        assert!(start.elapsed().as_millis() / 500 > now);
    });
}
