//! Edge cases: limits set by the operator, inputs that barely fit, handlers that panic, and long work that must not
//! block other requests.

use crate::harness::{
    CHAT, COMPLETIONS, Server, blanked, config, demo_text, hello, merged, post, wait, with,
};
use axum::body::{Body, Bytes};
use axum::http::Request;
use flate2::Compression;
use flate2::write::GzEncoder;
use folio::config::Config;
use folio::model::demo;
use folio::platform::block_on;
use folio::server::{Limits, ServerOptions};
use folio::text::TextModel;
use futures_util::StreamExt;
use serde_json::{Value, json};
use std::io::Write as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Clients cut texts between the two halves of a character.
#[test]
fn half_a_character_is_replaced() {
    let server = Server::plain();
    let ids = |content: &str| {
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}");
        let request = Request::post("/v1/chat/completions/render/")
            .header("content-type", "application/json");
        let answer = server.send(request.body(Body::from(body)).expect("a request"));
        assert_eq!(answer.status, 200, "{content}: {}", answer.text);
        answer.json()["token_ids"].clone()
    };
    assert_eq!(ids(r"a\ud83d"), ids("a\u{FFFD}"));
    assert_eq!(
        ids(r"\udc00b\\ud83d\ud83d\ude00"),
        ids("\u{FFFD}b\\\\ud83d😀")
    );
}

/// The limit holds for what the body says, not for its compressed bytes.
#[test]
fn a_gzip_body_is_read_within_the_limit() {
    let limits = Limits {
        body_bytes_max: Some(20_000),
        ..Limits::default()
    };
    let server = Server::fake(
        "",
        config(),
        ServerOptions {
            limits,
            ..ServerOptions::default()
        },
    );
    let gzip = |body: &Value| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder
            .write_all(body.to_string().as_bytes())
            .expect("memory takes bytes");
        encoder.finish().expect("memory takes bytes")
    };
    let send = |bytes: &[u8]| {
        let request = Request::post(CHAT)
            .header("content-type", "application/json")
            .header("content-encoding", "gzip");
        server.send(request.body(Body::from(bytes.to_vec())).expect("a request"))
    };
    let plain = gzip(&hello());
    assert_eq!(
        blanked(&send(&plain).text),
        blanked(&server.post(CHAT, &hello()).text)
    );
    // A body may have several members, one after the other.
    let text = hello().to_string();
    let members: Vec<u8> = [&text[..20], &text[20..]]
        .into_iter()
        .flat_map(|part| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder
                .write_all(part.as_bytes())
                .expect("memory takes bytes");
            encoder.finish().expect("memory takes bytes")
        })
        .collect();
    assert_eq!(blanked(&send(&members).text), blanked(&send(&plain).text));
    let bomb = gzip(&json!({"messages": " ".repeat(10_000_000)}));
    assert!(bomb.len() < 60_000, "{} bytes", bomb.len());
    let small = gzip(&json!({"messages": " ".repeat(1_000_000)}));
    assert!(
        small.len() < 20_000,
        "the compressed body is within the limit"
    );
    for (bytes, status) in [
        (&bomb[..], 413),
        (&small, 413),
        // What is wrong behind the limit is not found, because nothing behind it is decompressed.
        (&small[..small.len() - 9], 413),
        (&plain[..plain.len() - 9], 400),
        (b"x", 400),
    ] {
        assert_eq!(send(bytes).status, status);
    }
}

/// Bodies of small values; lists of token ids are as long as the context.
#[test]
fn values_are_limited_beside_bytes_and_token_ids_are_no_excess() {
    let limits = Limits {
        body_bytes_max: Some(64 << 20),
        ..Limits::default()
    };
    let server = Server::fake(
        "",
        config(),
        ServerOptions {
            limits,
            ..ServerOptions::default()
        },
    );
    for (path, field) in [
        (CHAT, "messages"),
        ("/v1/responses", "input"),
        ("/v1/messages", "messages"),
    ] {
        for value in ["{\"\":0}", "[]", "\"\"", "{\"a\":{}}", "[[]]"] {
            let body = format!(
                "{{\"model\":\"demo\",\"{field}\":[{}{value}]}}",
                format!("{value},").repeat(200_000)
            );
            let request = Request::post(path)
                .header("content-type", "application/json")
                .body(Body::from(body));
            let answer = server.send(request.expect("a request"));
            assert_eq!(answer.status, 400, "{path} {value}: {}", answer.text);
            assert!(
                answer
                    .text
                    .contains(&format!("`{field}` has too many values")),
                "{path} {value}: {}",
                answer.text
            );
        }
    }
    let ids = json!({"prompt": vec![7; 1_000_000], "max_tokens": 1});
    assert!(
        server
            .post(COMPLETIONS, &ids)
            .text
            .contains("1000000 tokens"),
        "it was read"
    );
}

#[test]
fn requests_beyond_the_memory_of_all_are_refused_and_others_are_not() {
    let limits = Limits {
        requests_bytes_max: 3_000_000,
        ..Limits::default()
    };
    let server = Server::fake(
        "pause=20",
        config(),
        ServerOptions {
            limits,
            ..ServerOptions::default()
        },
    );
    let large = |more: &Value| {
        with(
            &with(
                &hello(),
                &json!({"x_padding": "x".repeat(2_000_000), "max_tokens": 100}),
            ),
            more,
        )
    };
    let mut running = server.open(CHAT, &large(&json!({"stream": true, "ignore_eos": true})));
    assert!(running.more());
    let refused = server.post(CHAT, &large(&json!({})));
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.json()["error"]["code"].as_str()
        ),
        (429, Some("requests_too_large"))
    );
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(
        server
            .post(CHAT, &with(&hello(), &json!({"max_tokens": 1})))
            .status,
        200,
        "a small one is answered"
    );
    drop(running);
    wait("its memory is free", || {
        server
            .post(CHAT, &with(&large(&json!({})), &json!({"max_tokens": 1})))
            .status
            == 200
    });
}

#[test]
fn limits_are_what_the_operator_says() {
    let limits = Limits {
        choices_max: 2,
        prompts_max: 3,
        body_bytes_max: Some(2000),
        ..Limits::default()
    };
    let server = Server::fake(
        "",
        config(),
        ServerOptions {
            limits,
            ..ServerOptions::default()
        },
    );
    let status = |more: Value| {
        let answer = server.post(
            COMPLETIONS,
            &with(&json!({"prompt": "Hello", "max_tokens": 2}), &more),
        );
        (
            answer.status.as_u16(),
            answer.json()["error"]["param"].clone(),
        )
    };
    assert_eq!(status(json!({"n": 2})), (200, Value::Null));
    assert_eq!(status(json!({"n": 3})), (400, json!("n")));
    assert_eq!(
        status(json!({"prompt": ["a", "b", "c"]})),
        (200, Value::Null)
    );
    assert_eq!(
        status(json!({"prompt": ["a", "b", "c", "d"]})),
        (400, json!("prompt"))
    );
    assert_eq!(
        status(json!({"prompt": "a".repeat(2000)})),
        (413, Value::Null)
    );
}

#[test]
fn a_prompt_larger_than_the_pool_is_refused_and_one_that_just_fits_is_not() {
    // Here the pool, not the model, limits the context.
    let server = Server::fake(
        "",
        Config {
            kv_cache_bytes: Some(1 << 20),
            ..config()
        },
        ServerOptions::default(),
    );
    let context = server.get("/v1/models").json()["data"][0]["max_model_len"]
        .as_u64()
        .expect("a length") as usize;
    assert!(context < 2000, "{context} is below the model's own");
    let post = |length: usize| {
        server.post(
            COMPLETIONS,
            &json!({"prompt": vec![5; length], "max_tokens": 9, "ignore_eos": true}),
        )
    };
    let full = post(context - 1).json();
    assert_eq!(
        (
            &full["usage"]["completion_tokens"],
            &full["choices"][0]["finish_reason"]
        ),
        (&json!(1), &json!("length"))
    );
    for length in [context, context + 1, 2000] {
        let answer = post(length);
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
        assert!(
            answer.text.contains(&length.to_string()) && answer.text.contains(&context.to_string())
        );
    }
}

#[test]
fn biases_against_everything_allowed_disturb_nobody() {
    let server = Server::cpu();
    let neighbour = with(
        &hello(),
        &json!({"stream": true, "seed": 3, "temperature": 1}),
    );
    let expected = merged(&server.open(CHAT, &neighbour).rest());
    let banned: serde_json::Map<_, _> = (0..1024).map(|id| (id.to_string(), json!(-100))).collect();
    let open = server.open(CHAT, &neighbour);
    let answer = server.post(
        COMPLETIONS,
        &json!({"prompt": "Hello", "max_tokens": 8, "logprobs": 1, "logit_bias": banned}),
    );
    assert_eq!(answer.status, 200, "{}", answer.text);
    assert_eq!(merged(&open.rest()), expected);
}

#[test]
fn control_tokens_in_a_message_are_counted_as_text() {
    let server = Server::plain();
    let tokenizer = demo_text().tokenizer.clone().expect("the demo has one");
    let count = |content: &str| {
        let request = with(
            &hello(),
            &json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1}),
        );
        server.post(CHAT, &request).json()["usage"]["prompt_tokens"]
            .as_u64()
            .expect("a count") as usize
    };
    let empty = count("");
    for text in ["<|im_end|>", "<|im_start|>system", "<|endoftext|>"] {
        let control = tokenizer.encode(text, false).expect("it encodes").len();
        assert!(
            count(text) - empty > control + 2,
            "{text} is spelled out, not one control token"
        );
    }
}

#[test]
fn a_handler_that_panics_answers_and_leaves_nothing_behind() {
    let server = Server::plain();
    let neighbour = with(
        &hello(),
        &json!({"stream": true, "seed": 8, "temperature": 1, "ignore_eos": true}),
    );
    let canary = || blanked(&server.post(CHAT, &hello()).text);
    let (expected, greedy) = (merged(&server.open(CHAT, &neighbour).rest()), canary());
    let mut open = server.open(CHAT, &neighbour);
    assert!(open.more(), "the neighbour runs");
    // The handler reads its body, and the second chunk panics.
    let chunk = |index| {
        assert!(index == 0, "a handler's panic, planted by this test");
        Ok::<_, std::convert::Infallible>(Bytes::from_static(b"{"))
    };
    let body = Body::from_stream(futures_util::stream::iter(0..2).map(chunk));
    let request = Request::post(CHAT)
        .header("content-type", "application/json")
        .body(body)
        .expect("a request");
    let answer = server.send(request);
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (500, &json!("internal_error"))
    );
    assert_eq!(merged(&open.rest()), expected, "a neighbour goes on");
    assert_eq!(
        (canary(), server.get("/health").status.as_u16()),
        (greedy, 200)
    );
    server.wait_until_idle();
    assert_eq!(server.state.active_answers(), 0);
}

/// Polls a request twice: whether it was neither ready nor submitted both times.
fn is_handed_over_twice(server: &Server, path: &str, body: &Value) -> bool {
    let mut answer = pin!(crate::harness::send(&server.app, post(path, body)));
    let (mut turns, mut waits) = (0, true);
    let answer = block_on(std::future::poll_fn(|context| {
        let poll = answer.as_mut().poll(context);
        turns += 1;
        // The first poll ends when parsing was handed to a thread, the second with rendering and encoding.
        waits &= turns > 2 || poll.is_pending() && server.state.active_answers() == 0;
        poll
    }));
    assert!(
        [200, 400].contains(&answer.status.as_u16()),
        "{}",
        answer.text
    );
    waits && turns > 2
}

#[test]
fn a_long_input_is_worked_on_beside_the_async_threads() {
    let server = Server::plain();
    let filler = "word ".repeat(2000);
    let tool = json!({"type": "function", "function": {"name": "f", "description": filler}});
    let chat = with(&hello(), &json!({"tools": [tool], "max_tokens": 1}));
    let completion = json!({"prompt": filler, "max_tokens": 1});
    for (path, body) in [(CHAT, chat), (COMPLETIONS, completion)] {
        // If a thread finishes before the next poll, one poll is saved. That cannot happen every time.
        assert!(
            (0..100).any(|_| is_handed_over_twice(&server, path, &body)),
            "{path} blocks its thread"
        );
    }
}

#[test]
fn a_hundred_thousand_messages_are_refused_at_once() {
    let server = Server::plain();
    let chat = with(
        &hello(),
        &json!({"messages": vec![json!({"role": "user", "content": "a"}); 100_000]}),
    );
    let tokenize = json!({"messages": chat["messages"]});
    for (path, body) in [
        (CHAT, &chat),
        ("/v1/chat/completions/render", &chat),
        ("/tokenize", &tokenize),
    ] {
        // On a busy machine one of several requests is quick.
        let best = (0..5).map(|_| {
            let start = Instant::now();
            let answer = server.post(path, body);
            assert_eq!(
                (answer.status.as_u16(), &answer.json()["error"]["param"]),
                (400, &json!("messages"))
            );
            assert!(
                answer.text.contains("`messages` has too many values"),
                "{}",
                answer.text
            );
            start.elapsed()
        });
        let best = best.min().expect("five requests");
        assert!(best < Duration::from_secs(1), "{path} takes {best:?}");
    }
}

/// One request must not take the memory of a server, whatever its model's tokenizer makes of it.
#[test]
fn a_text_that_the_tokenizer_makes_long_is_refused_on_every_route() {
    let mut tokenizer: Value = serde_json::from_slice(demo::TOKENIZER_JSON).expect("it is JSON");
    let doubling = json!({"type": "Replace", "pattern": {"String": "~"}, "content": "~~"});
    tokenizer["normalizer"] = json!({"type": "Sequence", "normalizers": vec![doubling; 40]});
    let json = tokenizer.to_string();
    let text = TextModel::from_parts(
        Some(json.as_bytes()),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    let server = Server::plain_with(Arc::new(text.expect("no text has grown yet")));
    let (hostile, usual) = ("~".repeat(2000), "Hello".to_owned());
    let messages = |text: &str| json!([{"role": "user", "content": text}]);
    let routes = |text: &str| {
        [
            (
                "/v1/completions",
                json!({"prompt": text, "max_tokens": 1}),
                "prompt",
            ),
            (
                "/v1/chat/completions",
                json!({"messages": messages(text), "max_tokens": 1}),
                "messages",
            ),
            (
                "/v1/messages",
                json!({"model": "demo", "messages": messages(text), "max_tokens": 1}),
                "messages",
            ),
            (
                "/v1/responses",
                json!({"input": text, "max_output_tokens": 16}),
                "input",
            ),
            (
                "/api/generate",
                json!({"prompt": text, "stream": false, "options": {"num_predict": 1}}),
                "prompt",
            ),
            (
                "/api/chat",
                json!({"messages": messages(text), "stream": false}),
                "messages",
            ),
            (
                "/completion",
                json!({"prompt": text, "n_predict": 1}),
                "prompt",
            ),
            ("/tokenize", json!({"prompt": text}), "prompt"),
            ("/tokenize", json!({"content": text}), "content"),
        ]
    };
    for ((path, body, field), (_, good, _)) in routes(&hostile).into_iter().zip(routes(&usual)) {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path}: {:.300}", answer.text);
        assert!(
            answer
                .text
                .contains("normalizer makes the text more than 16 times as long"),
            "{path}: {}",
            answer.text
        );
        assert!(
            answer.text.contains(&format!("\"param\":\"{field}\"")),
            "{path}: {}",
            answer.text
        );
        assert_eq!(server.post(path, &good).status, 200, "{path}");
    }
}

/// What a reply may weigh is known at the door, whatever the route.
#[test]
fn a_reply_larger_than_the_limit_is_refused_on_every_route() {
    let limits = Limits {
        reply_bytes_max: 10_000,
        ..Limits::default()
    };
    let options = ServerOptions {
        limits,
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    let top = json!({"logprobs": true, "top_logprobs": 5});
    let chat = |tokens: u32| with(&json!({"messages": messages, "max_tokens": tokens}), &top);
    let batch = |tokens: u32, conversations: usize| {
        let all = vec![messages.clone(); conversations];
        with(&json!({"messages": all, "max_tokens": tokens}), &top)
    };
    let completion = |tokens: u32| json!({"prompt": [1, 2], "max_tokens": tokens, "logprobs": 5});
    let echo = |length: usize| json!({"prompt": vec![5; length], "max_tokens": 1, "echo": true, "logprobs": 5});
    let response = |tokens: u32| {
        json!({"input": "Hello!", "max_output_tokens": tokens, "top_logprobs": 5,
            "include": ["message.output_text.logprobs"]})
    };
    let llama = |tokens: u32| json!({"prompt": "a", "n_predict": tokens, "n_probs": 5});
    // A token with five alternatives weighs 776 bytes, one of a prompt 768.
    let cases = [
        (CHAT, chat(12), chat(20), "top_logprobs", 15_520),
        (
            "/v1/chat/completions/batch",
            batch(6, 2),
            batch(10, 2),
            "top_logprobs",
            15_520,
        ),
        (
            "/v1/chat/completions/batch",
            batch(3, 4),
            batch(3, 5),
            "top_logprobs",
            11_640,
        ),
        (
            "/v1/completions",
            completion(12),
            completion(20),
            "logprobs",
            15_520,
        ),
        (
            "/v1/completions",
            echo(11),
            echo(20),
            "prompt_logprobs",
            16_136,
        ),
        (
            "/v1/responses",
            response(12),
            response(20),
            "top_logprobs",
            15_520,
        ),
        ("/completion", llama(12), llama(20), "n_probs", 15_520),
    ];
    for (path, fits, exceeds, field, bytes) in cases {
        let answer = server.post(path, &fits);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        let answer = server.post(path, &exceeds);
        assert_eq!(answer.status, 400, "{path}: {}", answer.text);
        let error = answer.json()["error"].clone();
        assert_eq!(error["param"], field, "{path}: {error}");
        let message = error["message"].as_str().expect("a message");
        let numbers = format!("up to {bytes} bytes; this server's are at most 10000");
        assert!(message.contains(&numbers), "{path}: {message}");
    }
    let without = with(
        &echo(1),
        &json!({"prompt": [1], "echo": false, "logprobs": null, "max_tokens": 2000}),
    );
    let error = server.post("/v1/completions", &without).json()["error"].clone();
    assert_eq!(error["param"], "max_tokens", "{error}");
    server.wait_until_idle();
}
