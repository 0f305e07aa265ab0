//! Routes of vLLM, llama.cpp and load balancers, the OpenAPI document, and cross-origin requests.

use crate::harness::{CHAT, COMPLETIONS, Server, config, hello, with};
use axum::body::Body;
use axum::http::Request;
use folio::server::{ServerOptions, paths};
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[test]
fn text_to_ids_and_back() {
    let server = Server::plain();
    let ids = |more: Value| server.post("/tokenize", &more).json();
    let answer = ids(json!({"prompt": "Hello, world", "return_token_strs": true}));
    let strings: String = answer["token_strs"]
        .as_array()
        .expect("strings")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(
        (strings.as_str(), &answer["max_model_len"]),
        ("Hello, world", &json!(2048))
    );
    assert_eq!(
        answer["count"].as_u64(),
        answer["tokens"]
            .as_array()
            .map(|tokens| tokens.len() as u64)
    );
    let back = server
        .post("/detokenize", &json!({"tokens": answer["tokens"]}))
        .json();
    assert_eq!(
        back,
        json!({"prompt": "Hello, world", "content": "Hello, world"})
    );
    assert_eq!(ids(json!({"prompt": "a"}))["token_strs"], Value::Null);
    let llama = ids(json!({"content": "Hello, world"}));
    assert_eq!(llama, json!({"tokens": answer["tokens"]}));
    let pieces = ids(json!({"content": "é😀", "with_pieces": true}))["tokens"].clone();
    let mut bytes = Vec::new();
    for piece in pieces.as_array().expect("pieces") {
        match &piece["piece"] {
            Value::String(text) => bytes.extend_from_slice(text.as_bytes()),
            parts => bytes.extend(
                parts
                    .as_array()
                    .expect("bytes")
                    .iter()
                    .map(|b| b.as_u64().expect("a byte") as u8),
            ),
        }
    }
    assert_eq!(String::from_utf8(bytes).expect("text"), "é😀");
    assert_eq!(ids(json!({"content": ""})), json!({"tokens": []}));
    let special = server
        .post(
            "/detokenize",
            &json!({"tokens": ids(json!({"prompt": "<|im_end|>"}))["tokens"]}),
        )
        .json();
    assert_eq!(special["prompt"], "<|im_end|>");
}

#[test]
fn what_is_rendered_is_what_is_computed() {
    let server = Server::plain();
    let told = server
        .post(CHAT, &with(&hello(), &json!({"return_token_ids": true})))
        .json()["prompt_token_ids"]
        .clone();
    assert_eq!(
        server.post("/v1/chat/completions/render", &hello()).json(),
        json!({"token_ids": told})
    );
    assert_eq!(
        server
            .post("/tokenize", &json!({"messages": hello()["messages"]}))
            .json()["tokens"],
        told
    );
    let text = server.post("/apply-template", &hello()).json()["prompt"].clone();
    assert_eq!(
        server
            .post(
                "/tokenize",
                &json!({"prompt": text, "add_special_tokens": false})
            )
            .json()["tokens"],
        told
    );
    let prompts = json!({"prompt": ["Hello", "A fox"], "return_token_ids": true, "max_tokens": 1});
    let told = server.post(COMPLETIONS, &prompts).json();
    let rendered = server.post("/v1/completions/render", &prompts).json();
    for index in 0..2 {
        assert_eq!(
            rendered[index]["token_ids"],
            told["choices"][index]["prompt_token_ids"]
        );
    }
}

#[test]
fn facts_for_clients_and_routers() {
    let server = Server::plain();
    let info = server.get("/tokenizer_info").json();
    assert!(
        info["chat_template"]
            .as_str()
            .is_some_and(|text| text.contains("im_start")),
        "{info}"
    );
    assert!(info["tokenizer_class"].is_string() && info["vocab_size"].is_u64());
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 2048);
    assert_eq!(
        (&props["total_slots"], &props["modalities"]["vision"]),
        (&json!(64), &json!(false))
    );
    assert_eq!(props["chat_template"], info["chat_template"]);
    assert_eq!(server.get("/load").json(), json!({"server_load": 0}));
    server.post(CHAT, &hello());
    server.wait_until_idle();
    let loads = server.get("/v1/loads?include=core,queues").json();
    let load = &loads["loads"][0];
    for name in [
        "num_running_reqs",
        "num_waiting_reqs",
        "num_used_tokens",
        "num_total_reqs",
        "dp_rank",
    ] {
        assert_eq!(load[name], 0, "{name}: {loads}");
    }
    assert!(
        load["max_total_num_tokens"].as_u64() > Some(2048) && load["max_running_requests"] == 64
    );
    assert!(load["gen_throughput"].is_number() && load["cache_hit_rate"].is_number());
    let time = loads["timestamp"].as_str().expect("a time");
    assert!(
        time.len() == 20 && time.starts_with("20") && time.ends_with('Z'),
        "{time}"
    );
    assert_eq!(server.get("/models").json()["data"][0]["id"], "demo");
    assert_eq!(server.get("/models/other/name").json()["id"], "other/name");
    assert_eq!(server.get("/v1/health").status, 200);
    let answer = server.post("/chat/completions", &hello()).json();
    assert_eq!(
        answer["choices"],
        server.post(CHAT, &hello()).json()["choices"]
    );
    assert_eq!(
        server
            .post("/completions", &json!({"prompt": "a", "max_tokens": 1}))
            .status,
        200
    );
}

#[test]
fn a_completion_in_the_words_of_llama_cpp() {
    let server = Server::cpu();
    let prompt = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n";
    let base = json!({"prompt": prompt, "temperature": 0, "seed": -1, "n_predict": 64, "cache_prompt": true});
    let whole = server.post("/completion", &base).json();
    assert_eq!(whole["content"], "Hi! What can I do for you?");
    assert_eq!(
        (&whole["stop"], &whole["stop_type"]),
        (&json!(true), &json!("eos"))
    );
    assert_eq!(
        (&whole["tokens_predicted"], &whole["tokens_evaluated"]),
        (&json!(10), &json!(13))
    );
    assert_eq!(whole["tokens"], json!([]));
    assert!(
        whole["timings"]["predicted_per_second"].as_f64() > Some(0.0),
        "{whole}"
    );
    let stopped = server
        .post(
            "/completion",
            &with(&base, &json!({"stop": ["can"], "return_tokens": true})),
        )
        .json();
    assert_eq!(
        (&stopped["content"], &stopped["stop_type"]),
        (&json!("Hi! What "), &json!("word"))
    );
    assert_eq!(stopped["tokens"].as_array().map(Vec::len), Some(4));
    let cut = server
        .post(
            "/completion",
            &with(&base, &json!({"n_predict": 2, "n_probs": 3})),
        )
        .json();
    assert_eq!(
        (&cut["content"], &cut["stop_type"]),
        (&json!("Hi!"), &json!("limit"))
    );
    let first = &cut["completion_probabilities"][0];
    assert_eq!(
        (
            &first["token"],
            first["top_logprobs"].as_array().map(Vec::len)
        ),
        (&json!("Hi"), Some(3))
    );
    let banned = server
        .post(
            "/completion",
            &with(&base, &json!({"logit_bias": [[879, false]]})),
        )
        .json();
    assert!(
        !banned["content"]
            .as_str()
            .expect("a text")
            .starts_with("Hi")
    );
    let stream = server.post("/completion", &with(&base, &json!({"stream": true})));
    let events: Vec<Value> = stream
        .events()
        .iter()
        .map(|event| serde_json::from_str(event).expect("JSON"))
        .collect();
    let text: String = events
        .iter()
        .filter_map(|event| event["content"].as_str())
        .collect();
    assert_eq!(text, whole["content"]);
    assert!(
        events.iter().all(|event| event["tokens"].is_array()),
        "{events:?}"
    );
    assert_eq!(
        events
            .iter()
            .flat_map(|event| event["tokens"].as_array())
            .flatten()
            .count(),
        10,
        "ids are streamed"
    );
    assert!(events.last().expect("events")["timings"]["prompt_per_second"].as_f64() > Some(0.0));
    assert_eq!(whole["has_new_line"], false);
    assert_eq!(
        events.iter().filter(|event| event["stop"] == true).count(),
        1,
        "the last says so"
    );
    assert_eq!(events.last().expect("events")["stop_type"], "eos");
}

#[test]
fn the_document_lists_every_route() {
    let server = Server::plain();
    let document = server.get("/openapi.json").json();
    assert_eq!(
        (&document["openapi"], &document["info"]["version"]),
        (&json!("3.1.0"), &json!(env!("CARGO_PKG_VERSION")))
    );
    let listed = document["paths"].as_object().expect("paths");
    let names: BTreeSet<_> = listed
        .keys()
        .map(|path| path.replace("{name}", "{*name}"))
        .collect();
    assert_eq!(
        names,
        paths()
            .into_iter()
            .map(str::to_owned)
            .collect::<BTreeSet<_>>()
    );
    for (path, operations) in listed {
        let uri = path.replace("{name}", "demo").replace("{id}", "x");
        let probe = Request::patch(&uri).body(Body::empty()).expect("a request");
        let answer = server.send(probe);
        assert_eq!(answer.status, 405, "{path}");
        let allowed: BTreeSet<_> = answer
            .header("allow")
            .split(',')
            .filter(|method| *method != "HEAD")
            .collect();
        let written: Vec<_> = operations
            .as_object()
            .expect("operations")
            .keys()
            .map(|m| m.to_uppercase())
            .collect();
        assert_eq!(
            allowed,
            written.iter().map(String::as_str).collect(),
            "{path}"
        );
    }
    // Every reference can be resolved.
    let text = document.to_string();
    for part in text.split("\"$ref\":\"").skip(1) {
        let target = part
            .split('"')
            .next()
            .expect("a reference ends")
            .trim_start_matches('#');
        assert!(document.pointer(target).is_some(), "{target}");
    }
}

#[test]
fn a_health_check_knows_first_that_the_server_will_end() {
    let server = Server::plain();
    server.state.begin_closing();
    let health = server.get("/health");
    assert_eq!(
        (health.status.as_u16(), &health.json()["error"]["code"]),
        (503, &json!("server_shutting_down"))
    );
    assert!(health.header("retry-after").parse::<u32>().is_ok());
    assert_eq!(
        server.post(CHAT, &hello()).status,
        200,
        "requests are still accepted"
    );
}

#[test]
fn pages_of_other_sites_are_let_in_only_if_listed() {
    let call = |server: &Server, method: &str, origin: &str| {
        let request = Request::builder()
            .method(method)
            .uri(CHAT)
            .header("origin", origin)
            .header("host", "localhost");
        let request = request
            .header("content-type", "application/json")
            .header("sec-fetch-site", "cross-site");
        let request = request.header("access-control-request-method", "POST");
        let request = request.header(
            "access-control-request-headers",
            "authorization,content-type",
        );
        let body = if method == "POST" {
            Body::from(hello().to_string())
        } else {
            Body::empty()
        };
        server.send(
            request
                .header("x-api-key", "k")
                .body(body)
                .expect("a request"),
        )
    };
    let plain = Server::plain();
    assert_eq!(call(&plain, "POST", "https://a.example").status, 403);
    let refused = call(&plain, "OPTIONS", "https://a.example");
    assert!(
        refused.status.is_client_error()
            && refused.header("access-control-allow-origin").is_empty()
    );
    let allowed_origins = vec![
        "https://a.example".into(),
        "http://localhost:*".into(),
        "app://*".into(),
    ];
    let options = ServerOptions {
        allowed_origins,
        api_keys: vec!["k".into()],
        ..ServerOptions::default()
    };
    let listed = Server::fake("", config(), options);
    let preflight = call(&listed, "OPTIONS", "https://a.example");
    assert_eq!(preflight.status, 200);
    assert_eq!(
        preflight.header("access-control-allow-origin"),
        "https://a.example"
    );
    assert_eq!(
        preflight.header("access-control-allow-headers"),
        "authorization,content-type"
    );
    let answer = call(&listed, "POST", "https://a.example");
    assert_eq!(
        (
            answer.status.as_u16(),
            answer.header("access-control-allow-origin")
        ),
        (200, "https://a.example")
    );
    assert_eq!(call(&listed, "POST", "https://b.example").status, 403);
    assert!(
        call(&listed, "OPTIONS", "https://b.example")
            .header("access-control-allow-origin")
            .is_empty()
    );
    for origin in ["http://localhost:5173", "app://obsidian.md"] {
        let answer = call(&listed, "POST", origin);
        assert_eq!(
            (
                answer.status.as_u16(),
                answer.header("access-control-allow-origin")
            ),
            (200, origin)
        );
    }
    for look_alike in [
        "http://localhost.evil:1",
        "https://a.example.evil",
        "https://a.exampl",
        "http://a.example",
        "https://evil-a.example",
    ] {
        let refused = call(&listed, "POST", look_alike);
        assert_eq!(refused.status, 403, "{look_alike}");
        assert!(
            refused.header("access-control-allow-origin").is_empty(),
            "{look_alike}"
        );
    }
    let any = ServerOptions {
        allowed_origins: vec!["*".into()],
        ..ServerOptions::default()
    };
    let any = Server::fake("", config(), any);
    assert_eq!(
        call(&any, "POST", "https://b.example").header("access-control-allow-origin"),
        "https://b.example"
    );
}
