//! Tests of `server/parameters/read.rs`.

use super::*;
use crate::backend::fake::{FakeBackend, Script};
use crate::config::Config;
use crate::engine;
use crate::engine::handle::{Status, channel};
use crate::model::Model;
use crate::platform::block_on;
use crate::server::{ServerOptions, ServerState};
use axum::body::Body;
use serde_json::json;
use std::thread::{ThreadId, current};

/// A group whose value is the thread that reads it.
struct Reader(ThreadId);

impl Group for Reader {
    const NAME: &'static str = "Reader";

    fn take(_: &mut Map<String, Value>, _: &str, _: &Bounds) -> Result<Self, ApiError> {
        Ok(Self(current().id()))
    }

    fn rows(_: &Bounds) -> Vec<crate::server::parameters::kind::Row> {
        Vec::new()
    }

    fn foreign() -> Vec<crate::server::parameters::kind::Foreign> {
        Vec::new()
    }
}

#[test]
fn a_mistyped_name_is_recognized_and_another_word_is_not() {
    let names = ["temperature", "top_p", "top_k", "max_tokens", "stop"];
    assert_eq!(nearest("temprature", names), Some("temperature"));
    assert_eq!(nearest("max_token", names), Some("max_tokens"));
    assert_eq!(nearest("no_such_field", names), None);
}

#[test]
fn a_large_body_is_read_beside_the_async_threads() {
    let (handle, inbox) = channel(1);
    let open = || Ok(FakeBackend::new(Script::default()));
    let thread = engine::spawn(open, Model::demo(), Config::default(), inbox, |_| {});
    while handle.status() != Status::Ready {
        std::thread::yield_now();
    }
    let server = ServerState::new(
        handle.clone(),
        Arc::default(),
        vec!["demo".into()],
        ServerOptions::default(),
    );
    let state = server.models.one().expect("it has one model");
    let request = |messages: usize| {
        let body = json!({"messages": vec![json!({"role": "user", "content": "a"}); messages]});
        let request = Request::post("/").header("content-type", "application/json");
        request
            .body(Body::from(body.to_string()))
            .expect("a request")
    };
    for (messages, is_here) in [(1, true), (20_000, false)] {
        let whole = block_on(read::<Reader>(request(messages), state)).expect("it is read");
        let part = block_on(read_part::<Reader>(request(messages), state)).expect("it is read");
        assert_eq!(
            (whole.0 == current().id(), part.0 == current().id()),
            (is_here, is_here),
            "{messages}"
        );
    }
    handle.drain();
    drop(thread.join());
}
