//! Real connections on the loopback interface: odd clients, those that disconnect or never read, and shutdown.
//! `server/socket/tests` tests the limits of time.

use crate::harness::{CHAT, Server, config, hello, wait, with};
use folio::server::ServerOptions;
use folio::server::socket::{SocketOptions, serve};
use serde_json::{Value, json};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A server that listens until it is stopped.
pub(crate) struct Listening {
    pub(crate) server: Server,
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Listening {
    pub(crate) fn start(script: &str, options: SocketOptions) -> Self {
        Self::with(script, options, ServerOptions::default())
    }

    pub(crate) fn with(script: &str, options: SocketOptions, server: ServerOptions) -> Self {
        let server = Server::fake(script, config(), server);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(TcpListener::bind("127.0.0.1:0"))
            .expect("the loopback has ports");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let state = server.state.clone();
        let thread = std::thread::spawn(move || {
            runtime.block_on(serve(listener, state, options, async {
                drop(stopped.await);
            }));
        });
        Self {
            server,
            address,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream
    }

    pub(crate) fn send(&self, body: &Value) -> TcpStream {
        let mut stream = self.connect();
        stream
            .write_all(request(&body.to_string()).as_bytes())
            .expect("it reads");
        stream
    }

    fn begin_stop(&mut self) {
        self.stop
            .take()
            .expect("it was not stopped yet")
            .send(())
            .expect("it runs");
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread
            .take()
            .expect("it runs")
            .join()
            .expect("it ends well");
    }
}

pub(crate) fn request(body: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Reads until the text contains `what`.
pub(crate) fn read_until(stream: &mut impl Read, what: &str) -> String {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.contains(what) {
            return text;
        }
        let count = stream
            .read(&mut buffer)
            .unwrap_or_else(|error| panic!("{error}, after {text}"));
        assert!(count > 0, "closed before {what:?}: {text}");
        bytes.extend_from_slice(&buffer[..count]);
    }
}

/// Reads until the other side closes.
pub(crate) fn read_to_close(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8_lossy(&bytes).into_owned(),
    }
}

pub(crate) fn long() -> Value {
    with(
        &hello(),
        &json!({"stream": true, "max_tokens": 2000, "ignore_eos": true}),
    )
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending() {
    let listening = Listening::start("", SocketOptions::default());
    let mut stream = listening.connect();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        1_u64 << 30
    );
    stream.write_all(head.as_bytes()).expect("it reads");
    let chunk = vec![b' '; 1 << 20];
    // More than the socket's buffers can hold; a reset would lose the response.
    for _ in 0..16 {
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let answer = read_to_close(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.1 413 ") && answer.contains("body_too_large"),
        "{answer}"
    );
}

#[test]
fn odd_but_right_http_is_answered_and_wrong_http_is_not() {
    let listening = Listening::start("", SocketOptions::default());
    let body = hello().to_string();
    let old = request(&body).replace("HTTP/1.1", "HTTP/1.0");
    let mut stream = listening.connect();
    stream.write_all(old.as_bytes()).expect("it reads");
    let answer = read_to_close(&mut stream);
    assert!(
        answer.starts_with("HTTP/1.0 200 ") && answer.contains("\"usage\""),
        "{answer}"
    );

    // Two pipelined requests get two responses in order.
    let mut stream = listening.connect();
    let unknown = with(&hello(), &json!({"model": "nobody"})).to_string();
    stream
        .write_all(format!("{}{}", request(&unknown), request(&body)).as_bytes())
        .expect("it reads");
    let answers = read_until(&mut stream, "\"usage\"");
    let (first, second) = (answers.find("HTTP/1.1 404"), answers.find("HTTP/1.1 200"));
    assert!(first == Some(0) && second > first, "{answers}");

    let mut stream = listening.connect();
    let (head, _) = request(&body)
        .split_once("\r\n\r\n")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a head");
    stream
        .write_all(format!("{head}\r\nExpect: 100-continue\r\n\r\n").as_bytes())
        .expect("it reads");
    assert!(read_until(&mut stream, "\r\n\r\n").starts_with("HTTP/1.1 100 "));
    stream.write_all(body.as_bytes()).expect("it reads");
    assert!(read_until(&mut stream, "\"usage\"").contains("HTTP/1.1 200 "));

    let length = format!("Content-Length: {}", body.len());
    let chunked = head.replace(&length, "Transfer-Encoding: chunked");
    for (chunks, status) in [
        (format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len()), "200"),
        ("zz\r\n".into(), "400"),
    ] {
        let mut stream = listening.connect();
        stream
            .write_all(format!("{chunked}\r\nConnection: close\r\n\r\n{chunks}").as_bytes())
            .expect("it reads");
        let answer = read_to_close(&mut stream);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    let mut good = listening.send(&hello());
    assert!(read_until(&mut good, "\"usage\"").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_client_that_leaves_is_noticed_streaming_or_not() {
    // An answer takes 40 seconds if nobody notices.
    let listening = Listening::start("pause=20", SocketOptions::default());
    for (stream, version) in [
        (true, "HTTP/1.1"),
        (false, "HTTP/1.1"),
        (true, "HTTP/1.0"),
        (false, "HTTP/1.0"),
    ] {
        let mut connection = listening.connect();
        let body = with(&long(), &json!({"stream": stream})).to_string();
        connection
            .write_all(request(&body).replace("HTTP/1.1", version).as_bytes())
            .expect("it reads");
        wait("it runs", || {
            listening.server.engine.stats().requests_running == 1
        });
        drop(connection);
        let start = Instant::now();
        listening.server.wait_until_idle();
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{version}: noticed after {:?}",
            start.elapsed()
        );
    }
}

#[test]
fn a_reader_that_never_reads_is_dropped() {
    let options = SocketOptions {
        write_timeout: Duration::from_millis(200),
        ..SocketOptions::default()
    };
    let listening = Listening::start("", options);
    // Many choices with logprobs fill the socket's buffers.
    let greedy = json!({"n": 8, "logprobs": true, "top_logprobs": 20, "seed": 1, "temperature": 1});
    let connections: Vec<_> = (0..3)
        .map(|_| listening.send(&with(&long(), &greedy)))
        .collect();
    let mut quick = listening.send(&with(&hello(), &json!({"stream": true})));
    read_until(&mut quick, "[DONE]");
    wait("they are dropped", || {
        listening.server.state.active_answers() == 0
    });
    listening.server.wait_until_idle();
    drop(connections);
}

#[test]
fn the_end_is_orderly() {
    let mut listening = Listening::start("pause=2", SocketOptions::default());
    let mut open = listening.send(&with(
        &hello(),
        &json!({"stream": true, "max_tokens": 200, "ignore_eos": true}),
    ));
    read_until(&mut open, "\"role\"");
    let mut idle = listening.connect();
    listening.begin_stop();
    wait("health has noticed", || {
        listening.server.get("/health").status == 503
    });
    let mut late = listening.send(&hello());
    assert!(read_until(&mut late, "server_shutting_down").starts_with("HTTP/1.1 503 "));
    assert!(read_until(&mut open, "[DONE]").contains("\"finish_reason\":\"length\""));
    listening
        .thread
        .take()
        .expect("it runs")
        .join()
        .expect("it ends well");
    listening.thread = Some(std::thread::spawn(|| ()));
    read_to_close(&mut idle);
    assert!(
        TcpStream::connect(listening.address).is_err(),
        "nobody listens any more"
    );
}

#[test]
fn a_grace_lets_others_find_out_first() {
    let options = SocketOptions {
        shutdown_grace: Duration::from_millis(400),
        ..SocketOptions::default()
    };
    let mut listening = Listening::start("", options);
    listening.begin_stop();
    wait("health has noticed", || {
        listening.server.get("/health").status == 503
    });
    let mut late = listening.send(&hello());
    assert!(
        read_until(&mut late, "\"usage\"").starts_with("HTTP/1.1 200 "),
        "requests are still accepted"
    );
    wait("the grace has passed", || {
        listening.server.engine.status() != folio::engine::handle::Status::Ready
    });
}

#[test]
fn what_runs_beyond_the_limit_is_told_so() {
    let options = SocketOptions {
        shutdown_timeout: Some(Duration::from_millis(100)),
        ..SocketOptions::default()
    };
    let mut listening = Listening::start("pause=20", options);
    let mut streamed = listening.send(&long());
    read_until(&mut streamed, "\"role\"");
    let mut whole = listening.send(&with(&long(), &json!({"stream": false})));
    wait("both run", || {
        listening.server.engine.stats().requests_running == 2
    });
    listening.begin_stop();
    let text = read_until(&mut streamed, "[DONE]");
    assert!(text.contains("\"code\":\"server_shutting_down\""), "{text}");
    let answer = read_until(&mut whole, "server_shutting_down");
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.to_lowercase().contains("retry-after"),
        "{answer}"
    );
}
