//! The API in process, as `folio run`, `folio chat` and a browser tab call it.

use crate::harness::{CHAT, COMPLETIONS, Server, config, hello, with};
use folio::platform::block_on;
use folio::server::{LocalApi, LocalError, ServerOptions};
use futures_util::TryStreamExt;
use serde_json::{Value, json};

async fn events(api: &LocalApi, path: &str, body: &Value) -> Result<Vec<Value>, LocalError> {
    api.post(path, body)
        .await?
        .events()
        .await?
        .try_collect()
        .await
}

#[test]
fn a_whole_reply_is_a_value() {
    let server = Server::plain();
    let api = LocalApi::new(server.state.clone());
    let whole =
        block_on(async { api.post(CHAT, &hello()).await?.json().await }).expect("an answer");
    let socket = server.post(CHAT, &hello()).json();
    assert_eq!(whole["choices"], socket["choices"]);
    assert_eq!(whole["usage"], socket["usage"]);
}

#[test]
fn a_stream_is_its_events() {
    let server = Server::plain();
    let api = LocalApi::new(server.state.clone());
    let request = json!({"prompt": "Hello", "temperature": 0, "stream": true});
    let events = block_on(events(&api, COMPLETIONS, &request)).expect("a stream");
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str())
        .collect();
    let whole = server
        .post(COMPLETIONS, &with(&request, &json!({"stream": false})))
        .json();
    assert_eq!(whole["choices"][0]["text"], text);
    assert_eq!(
        events.last().expect("a last event")["choices"][0]["finish_reason"],
        "length"
    );
}

#[test]
fn a_refusal_is_an_error_with_its_body() {
    let server = Server::plain();
    let api = LocalApi::new(server.state.clone());
    let request = with(&hello(), &json!({"temperature": -1, "stream": true}));
    let expected = server.post(CHAT, &request).json();
    let whole = block_on(async { api.post(CHAT, &request).await?.json().await });
    let streamed = block_on(events(&api, CHAT, &request));
    let refused = LocalError::Api {
        status: 400,
        body: expected.clone(),
    };
    assert_eq!(
        (whole, streamed),
        (Err(refused.clone()), Err(refused.clone()))
    );
    assert_eq!(
        Value::from(refused.to_string()),
        expected["error"]["message"]
    );
}

#[test]
fn an_answer_that_fails_ends_its_stream_with_an_error() {
    let server = Server::fake("failed@3,pause=1", config(), ServerOptions::default());
    let api = LocalApi::new(server.state.clone());
    let error = block_on(events(
        &api,
        CHAT,
        &with(&hello(), &json!({"stream": true})),
    ))
    .expect_err("the answer fails");
    assert!(
        matches!(&error, LocalError::Api { status: 200, body } if body["error"]["code"] == "internal_error")
    );
}

#[test]
fn what_is_no_stream_or_no_request_is_said() {
    let server = Server::plain();
    let api = LocalApi::new(server.state.clone());
    let whole = block_on(events(&api, CHAT, &hello())).expect_err("no stream was asked for");
    assert_eq!(
        whole.to_string(),
        "unexpected response: not an event stream: set `stream` to true"
    );
    let address = block_on(api.post("not an address", &hello()))
        .err()
        .expect("an address has no spaces");
    assert!(matches!(address, LocalError::Request(_)), "{address}");
}
