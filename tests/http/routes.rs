//! The small routes, and the checks of host, origin, key and body.

use crate::harness::{CHAT, Server, config, hello, with};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Method, Request};
use flate2::read::GzDecoder;
use folio::platform::block_on;
use folio::server::{ServerOptions, paths};
use regex::Regex;
use serde_json::{Value, json};
use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tower::ServiceExt as _;

#[test]
fn models_are_listed_and_found() {
    let server = Server::plain();
    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let card = &list["data"][0];
    assert_eq!(
        (&card["id"], &card["object"], &card["owned_by"]),
        (&json!("demo"), &json!("model"), &json!("folio"))
    );
    assert_eq!(
        (&card["max_model_len"], &card["root"]),
        (&json!(2048), &json!("demo"))
    );
    assert!(card["created"].is_u64());
    assert_eq!(server.get("/v1/models/demo").json(), *card);
    assert_eq!(
        server.get("/v1/models/other/name").json()["id"],
        "other/name"
    );
    assert_eq!(
        server.get("/v1/models/other%2Fname").json()["id"],
        "other/name"
    );
    let missing = server.get("/v1/models/nobody");
    assert_eq!(
        (missing.status.as_u16(), &missing.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    assert_eq!(
        server.get("/version").json()["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(server.get("/ping").status, 200);
}

#[test]
fn clients_of_anthropic_get_pages_of_models_in_its_form() {
    let server = Server::plain();
    let get = |path: &str| {
        let request = Request::get(path).header("anthropic-version", "2023-06-01");
        server.send(request.body(Body::empty()).expect("a request"))
    };
    let card = |id: &str, created: &Value| {
        json!({"type": "model", "id": id, "display_name": id, "created_at": created, "lifecycle": "active",
            "max_input_tokens": 2048})
    };
    let whole = get("/v1/models").json();
    let created = whole["data"][0]["created_at"].clone();
    let form = Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$").expect("a pattern");
    assert!(
        created.as_str().is_some_and(|time| form.is_match(time)),
        "{created}"
    );
    let [demo, other] = ["demo", "other/name"].map(|id| card(id, &created));
    let all = json!({"data": [demo, other], "has_more": false, "first_id": "demo", "last_id": "other/name"});
    assert_eq!(whole, all);
    assert_eq!(
        get("/v1/models?limit=2&after_id=&before_id=").json(),
        all,
        "an empty id is none"
    );
    let one = |model: &Value, has_more: bool| {
        let id = &model["id"];
        json!({"data": [model], "has_more": has_more, "first_id": id, "last_id": id})
    };
    assert_eq!(get("/v1/models?limit=1").json(), one(&demo, true));
    assert_eq!(
        get("/v1/models?limit=1&after_id=demo").json(),
        one(&other, false)
    );
    assert_eq!(
        get("/v1/models?limit=1&before_id=other%2Fname").json(),
        one(&demo, false)
    );
    let none = json!({"data": [], "has_more": false, "first_id": null, "last_id": null});
    assert_eq!(get("/models?after_id=other%2Fname").json(), none);
    assert_eq!(get("/v1/models/other/name").json(), other);
    let missing = get("/v1/models/nobody").json();
    assert_eq!(
        (&missing["type"], &missing["error"]["type"]),
        (&json!("error"), &json!("not_found_error"))
    );
}

#[test]
fn a_wrong_method_says_which_are_right() {
    let server = Server::plain();
    assert_eq!(server.get(CHAT).header("allow"), "POST");
    let request = Request::post("/v1/models")
        .body(Body::empty())
        .expect("a request");
    assert_eq!(server.send(request).header("allow"), "GET,HEAD");
}

#[test]
fn a_key_is_right_if_all_of_its_digest_is() {
    let options = ServerOptions {
        api_keys: vec!["sesame-9".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let first = |key: &str| blake3::hash(key.as_bytes()).as_bytes()[0];
    let near = (0..)
        .map(|number| format!("near-{number}"))
        .find(|near| first(near) == first("sesame-9"));
    for (key, status) in [
        (near.expect("one in 256 is"), 401),
        ("sesame-9".to_owned(), 200),
    ] {
        let request = Request::get("/v1/models")
            .header("x-api-key", &key)
            .body(Body::empty());
        assert_eq!(
            server.send(request.expect("a request")).status,
            status,
            "{key}"
        );
    }
}

#[test]
fn every_route_but_the_open_ones_needs_the_key() {
    let options = ServerOptions {
        api_keys: vec!["sesame-9".into(), "other-7".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let call = |method: &Method, path: &str, header: Option<(&str, &str)>| {
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", "application/json");
        if let Some((name, value)) = header {
            request = request.header(name, value);
        }
        server.send(
            request
                .body(Body::from(hello().to_string()))
                .expect("a request"),
        )
    };
    let open = [
        "/",
        "/ui/app.js",
        "/ui/style.css",
        "/ui/licences.txt",
        "/health",
        "/v1/health",
        "/ping",
    ];
    // Every other path, one that does not exist, and paths that look like others.
    let paths = paths()
        .into_iter()
        .filter(|path| !open.contains(path))
        .map(|path| path.replace(['{', '*', '}'], ""));
    let look_alikes = [
        "/nothing",
        "//v1/models",
        "/V1/models",
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/health/../metrics",
        "//health",
        "/metrics?x=/health",
        "http://localhost/metrics",
    ];
    let closed: Vec<String> = paths.chain(look_alikes.map(str::to_owned)).collect();
    assert!(
        closed.len() > 60 && closed.contains(&"/v1/models/name".to_owned()),
        "{closed:?}"
    );
    let wrong = [
        None,
        Some(("authorization", "Bearer ")),
        Some(("authorization", "Bearer sesame-8")),
        Some(("authorization", "Bearer sesame-99")),
        Some(("authorization", "Basic sesame-9")),
        Some(("authorization", "sesame-9")),
        Some(("x-api-key", "sesame")),
        Some(("authorization", "Bearersesame-9")),
    ];
    let (get, post) = (Method::GET, Method::POST);
    let refused = |method: &Method, path: &str, header| {
        let answer = call(method, path, header);
        assert_eq!(answer.status, 401, "{method} {path} {header:?}");
        let json = answer.json();
        // Ollama's form has no type, and Anthropic's clients are told by it.
        let [kind, code] = match &json["error"] {
            Value::String(_) => [&json!("authentication_error"), &json["code"]],
            error => [&error["type"], &error["code"]],
        };
        assert_eq!(
            (kind, code),
            (&json!("authentication_error"), &json!("invalid_api_key")),
            "{path}"
        );
    };
    for path in &closed {
        assert_eq!(call(&Method::HEAD, path, None).status, 401, "HEAD {path}");
        for method in [&get, &post, &Method::DELETE] {
            refused(method, path, None);
            refused(method, path, Some(("authorization", "Bearer sesame-8")));
        }
    }
    for header in wrong {
        refused(&get, "/v1/models", header);
        refused(&post, CHAT, header);
    }
    for header in [
        ("authorization", "Bearer sesame-9"),
        ("authorization", "bEARER other-7"),
        ("x-api-key", "sesame-9"),
    ] {
        assert_eq!(
            call(&get, "/v1/models", Some(header)).status,
            200,
            "{header:?}"
        );
        assert_eq!(call(&post, CHAT, Some(header)).status, 200, "{header:?}");
    }
    for path in open {
        assert_eq!(call(&get, path, None).status, 200, "{path}");
    }
}

#[test]
fn metrics_need_no_key_if_they_are_open() {
    let options = ServerOptions {
        api_keys: vec!["k".into()],
        metrics_open: true,
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    assert_eq!(
        [
            server.get("/metrics").status,
            server.get("/metrics/").status
        ],
        [200, 200],
        "they are open"
    );
    assert_eq!(
        [server.get("/v1/models").status, server.get("/load").status],
        [401, 401],
        "the others are not"
    );
}

#[test]
fn a_server_may_answer_to_any_name() {
    let server = Server::fake(
        "",
        config(),
        ServerOptions {
            any_model: true,
            ..ServerOptions::default()
        },
    );
    for name in ["llama3.2:3b", "gpt-9", "demo"] {
        let answer = server.post(CHAT, &with(&hello(), &json!({"model": name})));
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["model"]),
            (200, &json!(name))
        );
        let request = json!({"model": name, "prompt": "Hello!", "stream": false, "options": {"num_predict": 2}});
        assert_eq!(server.post("/api/generate", &request).json()["model"], name);
    }
    assert_eq!(
        server.get("/v1/models").json()["data"][0]["id"],
        "demo",
        "it is listed by its own"
    );
    assert_eq!(
        Server::plain()
            .post(CHAT, &with(&hello(), &json!({"model": "gpt-9"})))
            .status,
        404
    );
}

#[test]
fn clients_of_sglang_find_what_they_ask_for() {
    let server = Server::plain();
    let info = server.engine.info().expect("it is ready");
    let model = json!({"model_path": "demo", "tokenizer_path": "demo", "served_model_name": "demo",
        "is_generation": true, "max_model_len": 2048, "vocab_size": 4096});
    let tokens = u64::from(info.blocks) * 16;
    let of_server = json!({"model_path": "demo", "served_model_name": "demo", "context_length": 2048,
        "max_running_requests": info.max_num_seqs, "max_total_num_tokens": tokens, "page_size": 16,
        "device": info.device, "version": env!("CARGO_PKG_VERSION")});
    for (paths, expected) in [
        (["/get_model_info", "/model_info"], model),
        (["/get_server_info", "/server_info"], of_server),
    ] {
        for path in paths {
            assert_eq!(server.get(path).json(), expected, "{path}");
        }
    }
    let idle = json!([{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}]);
    assert_eq!(server.get("/get_load").json(), idle);
}

#[test]
fn hosts_that_are_ours_pass() {
    let options = ServerOptions {
        allowed_hosts: vec!["gpu.lan".into(), "*.gpu.test".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let call = |headers: &[(&str, &str)]| {
        let mut request = Request::post(CHAT).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        server
            .send(
                request
                    .body(Body::from(hello().to_string()))
                    .expect("a request"),
            )
            .status
            .as_u16()
    };
    for host in [
        "localhost",
        "localhost:8000",
        "LOCALHOST:1",
        "127.0.0.1:8000",
        "[::1]:8000",
        "[::1]",
        "192.168.0.7:80",
        "gpu.lan:8000",
        "GPU.lan",
        "a.b.gpu.test:1",
    ] {
        assert_eq!(call(&[("host", host)]), 200, "{host}");
        let origin = format!("http://{host}");
        assert_eq!(
            call(&[
                ("host", host),
                ("origin", &origin),
                ("sec-fetch-site", "same-origin")
            ]),
            200,
            "{host}"
        );
    }
    for look_alike in [
        "gpu.lan.evil",
        "evil-gpu.lan",
        "evil-localhost",
        "localhost.evil",
        "xlocalhost",
        "1.2.3.4.evil",
        "gpu.test",
        "a.gpu.test.evil",
    ] {
        assert_eq!(call(&[("host", look_alike)]), 403, "{look_alike}");
    }
    // A key stops pages that reach the server by a foreign name.
    let options = ServerOptions {
        api_keys: vec!["k".into()],
        ..ServerOptions::default()
    };
    let keyed = Server::fake("", config(), options);
    for (key, status) in [("k", 200), ("x", 401)] {
        let request = Request::get("/v1/models")
            .header("host", "gpu.example.org")
            .header("x-api-key", key);
        assert_eq!(
            keyed
                .send(request.body(Body::empty()).expect("a request"))
                .status,
            status,
            "{key}"
        );
    }
}

#[test]
fn request_ids_are_echoed_if_plain_and_made_otherwise() {
    let server = Server::plain();
    let call = |id: &[u8]| {
        let request = Request::get("/health")
            .header("x-request-id", id)
            .body(Body::empty())
            .expect("a request");
        server.send(request).header("x-request-id").to_owned()
    };
    assert_eq!(call(b"abc-1.2_3"), "abc-1.2_3");
    for id in [
        &b"a b"[..],
        b"[31mred",
        b"http://evil/?x=1",
        &[b'x'; 10_000],
        b"\xff",
        b"",
    ] {
        let made = call(id);
        assert!(made.starts_with("req-") && made.len() == 28, "{made}");
    }
    assert_ne!(
        server.get("/health").header("x-request-id"),
        server.get("/health").header("x-request-id")
    );
}

#[test]
fn a_body_that_is_too_large_is_not_read_to_its_end() {
    let server = Server::plain();
    let chunk = Bytes::from(vec![b' '; 1 << 20]);
    let send = |length: Option<u64>| {
        let read = Arc::new(AtomicUsize::new(0));
        let (counter, chunk) = (read.clone(), chunk.clone());
        let chunks = futures_util::stream::repeat_with(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, std::convert::Infallible>(chunk.clone())
        });
        let mut request = Request::post(CHAT).header("content-type", "application/json");
        if let Some(length) = length {
            request = request.header("content-length", length);
        }
        let answer = server.send(request.body(Body::from_stream(chunks)).expect("a request"));
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (413, &json!("body_too_large"))
        );
        assert_eq!(answer.header("connection"), "close");
        read.load(Ordering::Relaxed)
    };
    assert_eq!(send(Some(1 << 30)), 0, "a length says enough");
    assert!(
        send(None) <= 65,
        "without a length, reading stops at the limit"
    );
}

#[test]
fn metrics_are_there_before_the_first_request_and_count_after_it() {
    let server = Server::plain();
    let value = |text: &str, name: &str| -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name} is there: {text}"));
        line.rsplit(' ')
            .next()
            .expect("a value")
            .parse()
            .expect("a number")
    };
    let idle = server.get("/metrics");
    assert_eq!(
        idle.header("content-type"),
        "text/plain; version=0.0.4; charset=utf-8"
    );
    for name in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "prompt_tokens_total",
        "generation_tokens_total",
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "corrupted_requests_total",
        "time_to_first_token_seconds_count",
        "e2e_request_latency_seconds_sum",
    ] {
        assert_eq!(
            value(
                &idle.text,
                &format!("vllm:{name}{{engine=\"0\",model_name=\"demo\"}} ")
            ),
            0.0,
            "{name}"
        );
    }
    assert!(idle.text.contains(
        "vllm:cache_config_info{engine=\"0\",model_name=\"demo\",block_size=\"16\",num_gpu_blocks=\""
    ));
    for more in [json!({}), json!({"stop": ["a", "e", "i", "o", "u", " "]})] {
        server.post(CHAT, &with(&hello(), &more));
    }
    server.wait_until_idle();
    let text = server.get("/metrics").text;
    assert!(value(&text, "vllm:generation_tokens_total") >= 24.0);
    assert_eq!(value(&text, "vllm:time_to_first_token_seconds_count"), 2.0);
    assert_eq!(value(&text, "vllm:request_prompt_tokens_sum"), 26.0);
    assert_eq!(
        value(
            &text,
            "vllm:request_success_total{engine=\"0\",model_name=\"demo\",finished_reason=\"stop\"}"
        ),
        1.0
    );
    assert_eq!(
        value(
            &text,
            "vllm:request_success_total{engine=\"0\",model_name=\"demo\",finished_reason=\"abort\"}"
        ),
        0.0
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, number) = line.rsplit_once(' ').expect("name and value");
        let is_of_the_model = name.starts_with("vllm:") && name.ends_with('}');
        assert!(
            is_of_the_model
                || name.starts_with("http_requests_total{")
                || name == "process_resident_memory_bytes",
            "{line}"
        );
        assert!(number.parse::<f64>().is_ok(), "{line}");
    }
    let times = (0..50).map(|_| {
        let start = Instant::now();
        server.get("/metrics");
        start.elapsed()
    });
    assert!(
        times.min() < Some(Duration::from_millis(1)),
        "a scrape is cheap"
    );
}

#[test]
fn the_page_is_its_own_and_asks_nobody_else() {
    let server = Server::plain();
    let files = [
        ("/", "text/html"),
        ("/ui/app.js", "text/javascript"),
        ("/ui/style.css", "text/css"),
        ("/ui/licences.txt", "text/plain"),
    ];
    for (path, kind) in files {
        let answer = server.get(path);
        assert_eq!(answer.status, 200);
        assert!(answer.header("content-type").starts_with(kind), "{path}");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.contains("default-src 'none'") && !policy.contains("unsafe"),
            "{policy}"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert!(answer.text.len() > 500, "{path} is there");
        let tag = answer.header("etag").to_owned();
        for (held, status) in [
            (tag.clone(), 304),
            (format!("\"other\", W/{tag}"), 304),
            ("\"other\"".into(), 200),
        ] {
            let request = Request::get(path).header("if-none-match", &held);
            let again = server.send(request.body(Body::empty()).expect("a request"));
            assert_eq!(
                (again.status.as_u16(), again.text.is_empty()),
                (status, status == 304),
                "{path} {held}"
            );
        }
    }
    for (path, _) in files {
        let plain = server.get(path);
        let compressed = |held: &str| {
            let request = Request::get(path)
                .header("accept-encoding", "br, gzip")
                .header("if-none-match", held);
            let request = request.body(Body::empty()).expect("a request");
            let response =
                block_on(server.app.clone().oneshot(request)).expect("the router never fails");
            let (parts, body) = response.into_parts();
            (
                parts,
                block_on(axum::body::to_bytes(body, usize::MAX)).expect("a body has no errors"),
            )
        };
        let (parts, bytes) = compressed(plain.header("etag"));
        assert_eq!(parts.status, 200, "the client holds the other form");
        assert_eq!(
            (&parts.headers["content-encoding"], &parts.headers["vary"]),
            (&HeaderValue::from_static("gzip"), &plain.headers["vary"])
        );
        let mut text = String::new();
        GzDecoder::new(&bytes[..])
            .read_to_string(&mut text)
            .expect("it is gzip");
        assert!(
            text == plain.text && bytes.len() < 2 * text.len() / 3,
            "{path}: {} bytes",
            bytes.len()
        );
        let tag = parts.headers["etag"].to_str().expect("a tag is text");
        assert!(
            tag != plain.header("etag") && plain.header("content-encoding").is_empty(),
            "{path}: {tag}"
        );
        assert_eq!(compressed(tag).0.status, 304);
    }
    let page = server.get("/").text;
    for forbidden in [
        " onclick",
        " style=",
        "<style",
        "src=\"/",
        "href=\"/",
        "src=\"http",
        "href=\"http",
        "<base",
    ] {
        assert!(!page.contains(forbidden), "the page has {forbidden}");
    }
    assert_eq!(
        page.matches("<script").count(),
        page.matches("<script type=\"module\" src=\"ui/").count()
    );
}
