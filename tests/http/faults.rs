//! Clients that disconnect, full queues, devices that fail, servers that are loading or shutting down.

use crate::harness::{
    CHAT, COMPLETIONS, MODEL, Server, blanked, config, demo_text, events, hello, merged, post,
    send, wait, with,
};
use axum::http::StatusCode;
use folio::config::Config;
use folio::engine::handle::channel;
use folio::platform::block_on;
use folio::server::{ServerOptions, ServerState, router};
use futures_util::future::{Either, select};
use futures_util::pin_mut;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use serde_json::{Value, json};
use std::task::Poll;
use tower::ServiceExt as _;

fn slow(config: Config) -> Server {
    Server::fake("pause=2", config, ServerOptions::default())
}

fn long() -> Value {
    with(&hello(), &json!({"max_tokens": 2000, "ignore_eos": true}))
}

#[test]
fn a_client_that_leaves_frees_its_blocks() {
    let server = slow(config());
    let survivor = with(
        &hello(),
        &json!({"stream": true, "seed": 9, "temperature": 1, "ignore_eos": true}),
    );
    let expected = merged(&server.open(CHAT, &survivor).rest());
    for round in 0..30 {
        let neighbour = server.open(CHAT, &survivor);
        let stream = round % 2 == 0;
        let request = with(
            &long(),
            &json!({"stream": stream, "n": 1 + round % 3, "seed": round}),
        );
        if stream {
            let mut open = server.open(CHAT, &request);
            for _ in 0..round % 7 {
                assert!(open.more(), "the stream goes on");
            }
            drop(open);
        } else {
            // The request is sent, reaches the engine, and is dropped before its answer.
            let answer = send(&server.app, post(CHAT, &request));
            pin_mut!(answer);
            let steps = server.engine.stats().steps + round % 5;
            let moment = std::future::poll_fn(|context| {
                context.waker().wake_by_ref();
                if server.engine.stats().steps >= steps {
                    Poll::Ready(())
                } else {
                    Poll::Pending
                }
            });
            let left = block_on(select(answer, moment));
            assert!(
                matches!(left, Either::Right(_)),
                "the answer is not there yet"
            );
        }
        assert_eq!(merged(&neighbour.rest()), expected, "round {round}");
    }
    server.wait_until_idle();
    assert_eq!(server.state.active_answers(), 0);
    assert!(server.engine.stats().finished_abort >= 30);
}

#[test]
fn a_queued_client_that_leaves_removes_only_itself() {
    let config = Config {
        max_num_seqs: 1,
        queue_requests_max: 8,
        ..config()
    };
    let server = slow(config);
    let running = server.open(
        CHAT,
        &with(&hello(), &json!({"stream": true, "ignore_eos": true})),
    );
    let queued = server.open(CHAT, &with(&long(), &json!({"stream": true})));
    let behind = server.open(
        CHAT,
        &with(&hello(), &json!({"stream": true, "ignore_eos": true})),
    );
    drop(queued);
    assert!(running.rest().ends_with("data: [DONE]\n\n"));
    assert!(behind.rest().ends_with("data: [DONE]\n\n"));
    server.wait_until_idle();
}

#[test]
fn a_full_queue_is_said_at_once() {
    let server = slow(Config {
        max_num_seqs: 1,
        max_num_batched_tokens: 64,
        ..config()
    });
    let request = with(&long(), &json!({"stream": true}));
    let running = server.open(CHAT, &request);
    // Until the engine has scheduled it, the first request also occupies a place in the queue.
    wait("the first one runs", || {
        server.engine.stats().requests_running == 1
    });
    let open: Vec<_> = (0..64).map(|_| server.open(CHAT, &request)).collect();
    let refused: Vec<_> = (0..20).map(|_| server.post(CHAT, &hello())).collect();
    let full = refused
        .iter()
        .find(|answer| answer.status == StatusCode::TOO_MANY_REQUESTS)
        .expect("the queue is full");
    assert_eq!(full.json()["error"]["code"], "queue_full");
    assert_eq!(full.header("retry-after"), "1");
    // A request with several prompts is accepted as a whole or not at all.
    let prompts = json!({"prompt": vec!["Hello"; 64]});
    assert_eq!(server.post(COMPLETIONS, &prompts).status, 429);
    drop((running, open));
    server.wait_until_idle();
    assert_eq!(server.post(CHAT, &hello()).status, 200);
}

#[test]
fn numbers_that_are_none_end_one_request() {
    let server = Server::fake("nan=4000", config(), ServerOptions::default());
    let good = || {
        server.post(
            COMPLETIONS,
            &json!({"prompt": [1, 2, 3], "max_tokens": 30, "temperature": 0}),
        )
    };
    let expected = blanked(&good().text);
    let bad = json!({"prompt": [1, 4000], "max_tokens": 30, "temperature": 0});
    let answer = server.post(COMPLETIONS, &bad);
    assert_eq!(answer.status, 500);
    assert_eq!(answer.json()["error"]["code"], "numerical_error");
    assert_eq!(answer.header("x-should-retry"), "false");
    let stream = server.post(COMPLETIONS, &with(&bad, &json!({"stream": true})));
    let events = stream.events();
    assert_eq!(
        (stream.status.as_u16(), events.len(), events[1]),
        (200, 2, "[DONE]")
    );
    let error: Value = serde_json::from_str(events[0]).expect("JSON");
    assert_eq!(error["error"]["code"], "numerical_error");
    assert_eq!(blanked(&good().text), expected);
    server.wait_until_idle();
    assert_eq!(server.engine.stats().corrupted_requests, 2);
}

#[test]
fn a_refused_batch_ends_its_own_requests_only() {
    let quiet = Server::plain();
    let expected = blanked(&quiet.post(CHAT, &hello()).text);
    for script in ["invalid@3", "failed@3"] {
        let server = Server::fake(script, config(), ServerOptions::default());
        let answer = server.post(CHAT, &hello());
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (500, &json!("internal_error")),
            "{script}"
        );
        server.wait_until_idle();
        assert_eq!(server.get("/health").status, 200, "{script}");
        assert_eq!(
            blanked(&server.post(CHAT, &hello()).text),
            expected,
            "{script}"
        );
        let server = Server::fake(script, config(), ServerOptions::default());
        let text = server
            .open(CHAT, &with(&hello(), &json!({"stream": true})))
            .rest();
        assert!(
            text.contains("\"code\":\"internal_error\"") && text.ends_with("data: [DONE]\n\n"),
            "{script}: {text}"
        );
    }
}

#[test]
fn a_device_that_comes_back_keeps_streams_open() {
    let quiet = Server::plain();
    let request = with(&hello(), &json!({"stream": true, "ignore_eos": true}));
    let expected = merged(&quiet.open(CHAT, &request).rest());
    // Lost in prefill, in decode, at submission, twice; and a batch that never completes.
    for script in [
        "lost@1",
        "lost@5",
        "lost-submit@4",
        "lost@3,lost@5",
        "hang@1",
        "hang@5",
        "hang@3,lost@5",
    ] {
        let server = Server::fake(script, config(), ServerOptions::default());
        assert_eq!(
            merged(&server.open(CHAT, &request).rest()),
            expected,
            "{script}"
        );
        assert_eq!(server.get("/health").status, 200, "{script}");
        assert_eq!(
            server.engine.stats().recoveries as usize,
            script.split(',').count(),
            "{script}"
        );
    }
}

#[test]
fn a_device_lost_while_idle_is_back_before_the_next_answer() {
    let answer = |server: &Server| {
        blanked(
            &server
                .post(CHAT, &with(&hello(), &json!({"max_tokens": 2})))
                .text,
        )
    };
    let expected = answer(&Server::plain());
    for batch in 3..6 {
        let server = Server::fake(
            &format!("lost-submit@{batch}"),
            config(),
            ServerOptions::default(),
        );
        for _ in 0..4 {
            assert_eq!(answer(&server), expected, "lost before batch {batch}");
            server.wait_until_idle();
        }
        assert_eq!(
            server.engine.stats().recoveries,
            1,
            "lost before batch {batch}"
        );
    }
}

#[test]
fn a_device_that_stays_away_ends_streams_and_health() {
    for script in ["dead@5", "lost@3,lost@5,lost@7", "hang@3,hang@5,hang@7"] {
        let server = Server::fake(script, config(), ServerOptions::default());
        let text = server
            .open(CHAT, &with(&long(), &json!({"stream": true})))
            .rest();
        let events = events(&text);
        let error: Value = serde_json::from_str(events[events.len() - 2]).expect("JSON");
        assert_eq!(
            (error["error"]["code"].as_str(), events.last()),
            (Some("device_lost"), Some(&"[DONE]")),
            "{script}"
        );
        wait("health has noticed", || server.get("/health").status == 503);
        let refused = server.post(CHAT, &hello());
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]["code"]),
            (503, &json!("device_lost")),
            "{script}"
        );
    }
}

#[test]
fn a_panic_of_the_engine_ends_streams_and_health() {
    let server = Server::fake("panic@5", config(), ServerOptions::default());
    let text = server
        .open(CHAT, &with(&long(), &json!({"stream": true})))
        .rest();
    assert!(
        text.contains("\"error\"") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    wait("health has noticed", || server.get("/health").status == 503);
    assert_eq!(server.post(CHAT, &hello()).status, 503);
}

#[test]
fn before_it_is_ready_it_says_so() {
    let (handle, _inbox) = channel(4);
    let app = router(ServerState::new(
        handle,
        demo_text(),
        vec![MODEL.into()],
        ServerOptions::default(),
    ));
    for request in [
        post(CHAT, &hello()),
        post(COMPLETIONS, &json!({"prompt": "x"})),
        axum::http::Request::get("/health")
            .body(axum::body::Body::empty())
            .expect("a request"),
    ] {
        let answer = block_on(send(&app, request));
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["code"]),
            (503, &json!("model_loading"))
        );
        assert_eq!(answer.header("retry-after"), "5");
    }
    let models = axum::http::Request::get("/v1/models")
        .body(axum::body::Body::empty())
        .expect("a request");
    assert_eq!(block_on(send(&app, models)).status, 200);
}

#[test]
fn draining_finishes_streams_and_refuses_the_rest() {
    let server = slow(config());
    let mut open = server.open(
        CHAT,
        &with(&hello(), &json!({"stream": true, "ignore_eos": true})),
    );
    assert!(open.more(), "it runs");
    server.engine.drain();
    assert_eq!(server.get("/health").status, 503);
    let refused = server.post(CHAT, &hello());
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["code"]),
        (503, &json!("server_shutting_down"))
    );
    assert!(!refused.header("retry-after").is_empty());
    let text = open.rest();
    assert!(
        text.contains("\"finish_reason\":\"length\"") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
}

#[test]
fn clients_with_other_keys_take_turns() {
    let options = ServerOptions {
        api_keys: vec!["first".into(), "second".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake(
        "pause=5",
        Config {
            max_num_seqs: 1,
            ..config()
        },
        options,
    );
    let order = std::sync::Mutex::new(Vec::new());
    let keyed = |key: &'static str, more: Value| {
        let mut request = post(
            CHAT,
            &with(&with(&hello(), &json!({"ignore_eos": true})), &more),
        );
        request
            .headers_mut()
            .insert("x-api-key", axum::http::HeaderValue::from_static(key));
        request
    };
    let ask = |key: &'static str, priority: i32| {
        let request = keyed(key, json!({"max_tokens": 4, "priority": priority}));
        let (app, order) = (server.app.clone(), &order);
        async move {
            assert_eq!(send(&app, request).await.status, 200);
            order.lock().expect("nobody panicked").push((key, priority));
        }
    };
    let many = (0..6).map(|_| ask("first", 0));
    // Polls answers in the order in which the engine woke them, however late this thread runs.
    let all: FuturesUnordered<_> = many
        .chain([ask("second", 0), ask("second", 0), ask("first", -1)])
        .collect();
    // Holds the only place until all others wait, because they are rendered on threads and arrive in any order.
    let long = keyed("first", json!({"stream": true, "max_tokens": 2000}));
    let mut long =
        Some(block_on(server.app.clone().oneshot(long)).expect("the router never fails"));
    // While it is still queued it would be counted as one of the nine.
    wait("the long request runs", || {
        let stats = server.engine.stats();
        (stats.requests_running, stats.requests_waiting) == (1, 0)
    });
    let release = std::future::poll_fn(|context| {
        if server.engine.stats().requests_waiting < 9
            && order.lock().expect("nobody panicked").is_empty()
        {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        long = None;
        Poll::Ready(())
    });
    block_on(futures_util::future::join(all.collect::<()>(), release));
    let order = order.into_inner().expect("nobody panicked");
    let places: Vec<_> = (0..order.len())
        .filter(|&place| order[place].0 == "second")
        .collect();
    assert!(
        places.len() == 2 && places[1] <= 5,
        "the second client waits one round, not the whole queue: {order:?}"
    );
    let urgent = order.iter().position(|&(_, priority)| priority == -1);
    assert!(
        urgent <= Some(2),
        "priority precedes round-robin: {order:?}"
    );
    server.wait_until_idle();
}
