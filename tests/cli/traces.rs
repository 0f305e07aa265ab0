//! `--otlp-traces-endpoint`: what a collector gets.

use super::{Server, folio, signal, text};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Longer than any export takes.
const EXPORT_MAX: Duration = Duration::from_secs(30);
/// The status and headers of a collector that takes an export.
const TAKEN: &str = "200 OK\r\ncontent-type: application/json";

/// Takes one connection. A server that does not connect fails the test, which otherwise waits for ever.
fn accept(listener: &TcpListener) -> TcpStream {
    listener
        .set_nonblocking(true)
        .expect("a listener may be polled");
    let end = Instant::now() + EXPORT_MAX;
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("the server cannot connect: {error}"),
        }
        assert!(Instant::now() < end, "the server does not connect");
        std::thread::sleep(Duration::from_millis(10));
    };
    stream.set_nonblocking(false).expect("a stream may block");
    stream
        .set_read_timeout(Some(EXPORT_MAX))
        .expect("a time is set");
    stream
}

/// Takes one export and returns its path and body.
fn collect(listener: &TcpListener) -> (String, Value) {
    collect_and_answer(listener, TAKEN, Duration::ZERO)
}

/// Takes one export, and answers with this status and these headers after a while.
fn collect_and_answer(listener: &TcpListener, answer: &str, after: Duration) -> (String, Value) {
    let stream = accept(listener);
    let mut reader = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("the head is text");
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if line == "\r\n" {
            break;
        }
        head += &line;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body is whole");
    std::thread::sleep(after);
    let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
    reader
        .get_mut()
        .write_all(answer.as_bytes())
        .expect("the server reads");
    (
        head,
        serde_json::from_slice(&body).expect("the body is JSON"),
    )
}

#[test]
fn a_collector_gets_a_span_of_each_request() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has ports");
    let endpoint = format!(
        "http://{}/v1/traces",
        listener.local_addr().expect("an address")
    );
    let mut command = folio(&[
        "serve",
        "--port",
        "0",
        "--device",
        "fake",
        "--otlp-traces-endpoint",
        &endpoint,
    ]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=unused");
    command.env(
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "authorization=Bearer%20abc,x-tenant=one",
    );
    let mut server = Server::of(command);
    server.headers =
        vec!["traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"];
    let body = json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5, "ignore_eos": true,
        "temperature": 0.7});
    let answer = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (head, sent) = collect(&listener);
    assert!(
        head.starts_with("POST /v1/traces ") && head.to_lowercase().contains("application/json"),
        "{head}"
    );
    let head = head.to_lowercase();
    assert!(
        head.contains("\nauthorization: bearer abc\r") && head.contains("\nx-tenant: one\r"),
        "{head}"
    );
    assert!(
        !head.contains("x-api-key"),
        "the variable of traces replaces the general one: {head}"
    );
    let resource = &sent["resourceSpans"][0];
    assert_eq!(
        resource["resource"]["attributes"][0],
        json!({"key": "service.name", "value": {"stringValue": "folio"}})
    );
    let span = &resource["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(
        (&span["parentSpanId"], &span["kind"]),
        (&json!("b7ad6b7169203331"), &json!(2))
    );
    assert!(
        span["spanId"]
            .as_str()
            .is_some_and(|id| id.len() == 16 && id != "b7ad6b7169203331"),
        "{span}"
    );
    let time = |name: &str| {
        span[name]
            .as_str()
            .and_then(|time| time.parse::<u128>().ok())
            .expect("a text of digits")
    };
    assert!(
        time("startTimeUnixNano") < time("endTimeUnixNano") && span["status"].is_null(),
        "{span}"
    );
    let attributes = span["attributes"].as_array().expect("a list");
    let value = |key: &str| {
        attributes
            .iter()
            .find(|one| one["key"] == key)
            .map_or(&Value::Null, |one| &one["value"])
    };
    assert_eq!(
        value("gen_ai.operation.name"),
        &json!({"stringValue": "chat"})
    );
    assert_eq!(
        value("gen_ai.usage.output_tokens"),
        &json!({"intValue": "5"})
    );
    assert_eq!(
        value("gen_ai.request.temperature"),
        &json!({"doubleValue": 0.7})
    );
    let reasons = json!({"arrayValue": {"values": [{"stringValue": "length"}]}});
    assert_eq!(value("gen_ai.response.finish_reasons"), &reasons);
    assert!(
        value("gen_ai.latency.time_in_queue")["doubleValue"].is_f64(),
        "{span}"
    );
}

#[test]
fn the_last_spans_are_sent_and_unsampled_parents_stay_unsampled() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has ports");
    let endpoint = format!(
        "http://{}/v1/traces",
        listener.local_addr().expect("an address")
    );
    let mut server = Server::of(folio(&[
        "serve",
        "--port",
        "0",
        "--device",
        "fake",
        "--otlp-traces-endpoint",
        &endpoint,
    ]));
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    for flags in ["00", "01"] {
        let parent = format!(
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{flags}\r\n"
        );
        server.headers = vec![Box::leak(parent.into_boxed_str())];
        assert!(
            server
                .ask("POST", "/v1/completions", &body)
                .starts_with("HTTP/1.1 200 ")
        );
    }
    // Before the interval of exports is over.
    signal(&server, "-TERM");
    // A server that does not wait has ended, or gives the spans up, before a slow collector answers.
    let (_, sent) = collect_and_answer(&listener, TAKEN, Duration::from_millis(500));
    let mut messages = String::new();
    server
        .messages
        .read_to_string(&mut messages)
        .expect("stderr is text");
    assert!(!messages.contains("traces are lost"), "{messages}");
    let spans = sent["resourceSpans"][0]["scopeSpans"][0]["spans"]
        .as_array()
        .expect("a list");
    let flags: Vec<_> = spans.iter().map(|span| span["flags"].as_u64()).collect();
    assert_eq!(flags, [Some(0), Some(1)], "{sent}");
}

#[test]
fn a_collector_that_never_answers_delays_neither_requests_nor_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("the loopback has ports");
    let endpoint = format!(
        "http://{}/v1/traces",
        listener.local_addr().expect("an address")
    );
    let mut server = Server::of(folio(&[
        "serve",
        "--port",
        "0",
        "--device",
        "fake",
        "--otlp-traces-endpoint",
        &endpoint,
    ]));
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let start = Instant::now();
    for _ in 0..30 {
        assert!(
            server
                .ask("POST", "/v1/completions", &body)
                .starts_with("HTTP/1.1 200 ")
        );
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "{:?}",
        start.elapsed()
    );
    signal(&server, "-TERM");
    let start = Instant::now();
    server.process.wait().expect("it ends");
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn nothing_is_sent_where_a_collector_redirects_to() {
    let [listener, other] =
        [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("the loopback has ports"));
    let address = |listener: &TcpListener| listener.local_addr().expect("an address");
    let endpoint = format!("http://{}/v1/traces", address(&listener));
    let mut command = folio(&[
        "serve",
        "--port",
        "0",
        "--device",
        "fake",
        "--otlp-traces-endpoint",
        &endpoint,
    ]);
    command.env("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=abc");
    let mut server = Server::of(command);
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    // A client may follow a 302 with a GET, and a 307 with the same body.
    for status in ["302 Found", "307 Temporary Redirect"] {
        assert!(
            server
                .ask("POST", "/v1/completions", &body)
                .starts_with("HTTP/1.1 200 ")
        );
        let moved = format!("{status}\r\nlocation: http://{}/stolen", address(&other));
        collect_and_answer(&listener, &moved, Duration::ZERO);
    }
    signal(&server, "-TERM");
    server.process.wait().expect("it ends");
    other.set_nonblocking(true).expect("a socket can be");
    assert!(other.accept().is_err(), "nobody connects to it");
}

#[test]
fn malformed_headers_end_the_server_before_it_starts() {
    let endpoint = ["--otlp-traces-endpoint", "http://127.0.0.1:1/v1/traces"];
    let mut command =
        folio(&[&["serve", "--port", "0", "--device", "fake"][..], &endpoint].concat());
    let output = command
        .env("OTEL_EXPORTER_OTLP_HEADERS", "a=b,secret")
        .output()
        .expect("the binary starts");
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(
        message.starts_with("error: OTEL_EXPORTER_OTLP_HEADERS: ") && message.contains("entry 2"),
        "{message}"
    );
    assert!(!message.contains("secret"), "{message}");
}
