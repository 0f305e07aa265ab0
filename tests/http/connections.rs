//! The limits of connections: how many and of whom. And clients that shut down their writing side.
//! `server/socket/tests` tests the limits of time.

use crate::harness::{hello, wait, with};
use crate::sockets::{Listening, long, read_to_close, read_until, request};
use axum::body::Body;
use axum::http::Request;
use folio::server::ServerOptions;
use folio::server::socket::SocketOptions;
use serde_json::{Value, json};
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

/// The limit of this process's open files, raised as far as 1,400 connections need, of which it has both ends.
#[cfg(unix)]
fn open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(4200, |maximum| maximum.min(4200));
    if current.is_some_and(|current| current < wanted) {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current: Some(wanted),
                maximum,
            },
        )
        .expect("a process may raise it");
    }
    getrlimit(Resource::Nofile).current.unwrap_or(wanted)
}

#[cfg(not(unix))]
fn open_files() -> u64 {
    4200
}

fn keyed() -> ServerOptions {
    ServerOptions {
        api_keys: vec!["sesame".into()],
        ..ServerOptions::default()
    }
}

/// The chat request of a client with this key.
fn with_key(body: &Value, key: &str) -> String {
    request(&body.to_string()).replace(
        "Host: localhost",
        &format!("Host: localhost\r\nAuthorization: Bearer {key}"),
    )
}

fn ask(listening: &Listening, request: &str) -> TcpStream {
    let mut stream = listening.connect();
    stream.write_all(request.as_bytes()).expect("it reads");
    stream
}

fn is_healthy(listening: &Listening) -> bool {
    let mut health = ask(
        listening,
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    );
    read_to_close(&mut health).starts_with("HTTP/1.1 200 ")
}

#[test]
fn idle_connections_silence_nobody() {
    let count = 1400.min(open_files() as usize / 3);
    let options = SocketOptions {
        connections_max: count / 2,
        connections_per_peer_max: Some(count / 4),
        ..Default::default()
    };
    let listening = Listening::with("pause=2", options, keyed());
    let mut open = ask(&listening, &with_key(&long(), "sesame"));
    read_until(&mut open, "\"role\"");
    let mut idle: Vec<_> = (0..count).map(|_| listening.connect()).collect();
    assert!(is_healthy(&listening));
    let mut client = ask(&listening, &with_key(&hello(), "sesame"));
    assert!(read_until(&mut client, "\"usage\"").starts_with("HTTP/1.1 200 "));
    assert_eq!(read_to_close(&mut idle[0]), "", "the oldest has made room");
    assert!(
        read_until(&mut open, "[DONE]").contains("\"finish_reason\":\"length\""),
        "the open stream goes on"
    );
    let mut newest = idle.pop().expect("many are open");
    newest
        .write_all(with_key(&hello(), "sesame").as_bytes())
        .expect("it reads");
    assert!(
        read_until(&mut newest, "\"usage\"").starts_with("HTTP/1.1 200 "),
        "the newest is still open"
    );
}

#[test]
fn the_oldest_idle_connection_makes_room() {
    let listening = Listening::start(
        "",
        SocketOptions {
            connections_max: 2,
            ..SocketOptions::default()
        },
    );
    let (mut first, mut second) = (listening.connect(), listening.connect());
    let mut third = listening.send(&hello());
    assert!(read_until(&mut third, "\"usage\"").starts_with("HTTP/1.1 200 "));
    assert_eq!(read_to_close(&mut first), "");
    second
        .write_all(request(&hello().to_string()).as_bytes())
        .expect("it reads");
    assert!(read_until(&mut second, "\"usage\"").starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_peer_is_limited_until_its_first_valid_request() {
    let options = SocketOptions {
        connections_per_peer_max: Some(2),
        ..SocketOptions::default()
    };
    let listening = Listening::with("pause=2", options, keyed());
    let mut streams: Vec<_> = (0..3)
        .map(|_| ask(&listening, &with_key(&long(), "sesame")))
        .collect();
    for stream in &mut streams {
        read_until(stream, "\"role\"");
    }
    let mut wrong = ask(&listening, &with_key(&hello(), "guess"));
    assert!(read_until(&mut wrong, "}}").starts_with("HTTP/1.1 401 "));
    let mut idle: Vec<_> = (0..2).map(|_| listening.connect()).collect();
    assert_eq!(
        read_to_close(&mut wrong),
        "",
        "a refused request does not count"
    );
    let mut last = ask(&listening, &with_key(&hello(), "sesame"));
    assert!(read_until(&mut last, "\"usage\"").starts_with("HTTP/1.1 200 "));
    assert_eq!(read_to_close(&mut idle[0]), "");
    for stream in &mut streams {
        assert!(
            read_until(stream, "[DONE]").contains("\"finish_reason\":\"length\""),
            "streams are not counted"
        );
    }
}

/// Clients that open many connections at once and send their requests right away lose none.
#[test]
fn a_burst_of_requests_is_answered_whatever_the_limit_per_peer() {
    let options = SocketOptions {
        connections_per_peer_max: Some(1),
        ..SocketOptions::default()
    };
    let listening = Listening::start("", options);
    let mut burst: Vec<_> = (0..32).map(|_| listening.send(&hello())).collect();
    for stream in &mut burst {
        assert!(read_until(stream, "\"usage\"").starts_with("HTTP/1.1 200 "));
    }
}

#[test]
fn a_full_server_says_so() {
    let listening = Listening::start(
        "pause=5",
        SocketOptions {
            connections_max: 1,
            ..SocketOptions::default()
        },
    );
    let mut open = listening.send(&long());
    read_until(&mut open, "\"role\"");
    let refusal = read_to_close(&mut listening.send(&hello())).to_lowercase();
    assert!(
        refusal.starts_with("http/1.1 503 ") && refusal.contains("\r\nretry-after: "),
        "{refusal}"
    );
    let (_, body) = refusal.split_once("\r\n\r\n").expect("a body");
    let error: Value = serde_json::from_str(body).expect("the body is JSON");
    assert_eq!(error["error"]["code"], "too_many_connections");
    drop(open);
    wait("there is room again", || is_healthy(&listening));
}

#[test]
fn a_client_that_shuts_down_its_writing_side_gets_its_answer() {
    let listening = Listening::start("pause=20", SocketOptions::default());
    for (stream, version) in [(false, "HTTP/1.1"), (true, "HTTP/1.1"), (true, "HTTP/1.0")] {
        let body = with(&hello(), &json!({"stream": stream, "ignore_eos": true}));
        let mut client = ask(
            &listening,
            &request(&body.to_string()).replace("HTTP/1.1", version),
        );
        client.shutdown(Shutdown::Write).expect("it is open");
        let mut answer = read_to_close(&mut client);
        while let Some(rest) = answer.strip_prefix("HTTP/1.1 100 Continue\r\n\r\n") {
            assert_eq!(version, "HTTP/1.1", "HTTP/1.0 knows no interim responses");
            answer = rest.to_owned();
        }
        assert!(
            answer.starts_with(version) && answer.contains(" 200 OK\r\n"),
            "{answer}"
        );
        assert!(answer.contains("\"finish_reason\":\"length\""), "{answer}");
    }
    let mut health = ask(
        &listening,
        "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    );
    health.shutdown(Shutdown::Write).expect("it is open");
    assert!(read_to_close(&mut health).starts_with("HTTP/1.1 200 "));
    // A request whose body is cut off is refused, and nothing runs.
    let whole = request(&hello().to_string());
    let mut cut = ask(&listening, &whole[..whole.len() - 5]);
    cut.shutdown(Shutdown::Write).expect("it is open");
    assert!(
        read_to_close(&mut cut).starts_with("HTTP/1.1 400 "),
        "half a body"
    );
    listening.server.wait_until_idle();
}

/// What needs no key proves nothing: clients that ask for it and never read make room for others.
#[test]
fn clients_that_never_read_what_needs_no_key_keep_nobody_out() {
    const CONNECTIONS: usize = 4;
    // The metrics of so many are more than the buffers of a connection hold.
    const REQUESTS: usize = 300;
    let open_metrics = ServerOptions {
        metrics_open: true,
        ..keyed()
    };
    let keyless = ["/ui/app.js", "/", "/health"];
    let cases = keyless
        .map(|path| (path, ServerOptions::default()))
        .into_iter()
        .chain([("/ui/app.js", keyed()), ("/metrics", open_metrics)]);
    for (path, server) in cases {
        let options = SocketOptions {
            connections_max: CONNECTIONS,
            ..SocketOptions::default()
        };
        let listening = Listening::with("", options, server);
        let requests = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").repeat(REQUESTS);
        let unread: Vec<_> = (0..CONNECTIONS * 3 / 2)
            .map(|_| {
                let mut stream = listening.connect();
                // The server may close it to make room for the next one.
                drop(stream.write_all(requests.as_bytes()));
                stream
            })
            .collect();
        // Those that are still open are in the midst of an answer once their sockets are full.
        let mut answered = 0;
        wait("nothing more is answered", || {
            std::thread::sleep(Duration::from_millis(300));
            let before = std::mem::replace(&mut answered, answers(&listening));
            // Asking counts.
            before > 0 && answered == before + 1
        });
        assert!(is_healthy(&listening), "{path}");
        let mut client = ask(&listening, &with_key(&hello(), "sesame"));
        let answer = read_until(&mut client, "\"usage\"");
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        drop(unread);
    }
}

/// The number of requests that a server has answered, as its metrics tell it.
fn answers(listening: &Listening) -> u64 {
    let request = Request::get("/metrics").header("authorization", "Bearer sesame");
    let request = request.body(Body::empty()).expect("a request");
    let metrics = listening.server.send(request).text;
    let counts = metrics
        .lines()
        .filter(|line| line.starts_with("http_requests_total{"));
    counts
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}
