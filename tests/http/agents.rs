//! Anthropic's Messages API: its stream, event by event, whole answers, the loop of calls, and what Claude Code sends.
//! Helpers for named events, which other APIs have too.

use crate::document::golden;
use crate::harness::{Answer, MODEL, Server, config, post, say, saying, with};
use axum::body::Body;
use axum::http::Request;
use folio::server::ServerOptions;
use folio::text::answer::ReasoningParser;
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";
pub(crate) const CALL: &str = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": \
    {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>";

/// Where a chat's stream has the thought.
const THOUGHT: &str = "/choices/0/delta/reasoning_content";
/// Where a chat's stream has the arguments of a call.
const CALL_ARGUMENTS: &str = "/choices/0/delta/tool_calls/0/function/arguments";

/// A server of a reasoning model.
pub(crate) fn thinking(answers: &[&str]) -> Server {
    let options = ServerOptions {
        reasoning_parser: Some(ReasoningParser::Think),
        ..ServerOptions::default()
    };
    Server::fake(&say(answers), config(), options)
}

/// The events of a stream, whose names are the types of their data.
pub(crate) fn named(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-type")),
        (200, "text/event-stream"),
        "{}",
        answer.text
    );
    let event = |event: &str| {
        let (name, data) = event
            .split_once('\n')
            .expect("an event has a name and data");
        let data: Value =
            serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON");
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    answer.text.split_terminator("\n\n").map(event).collect()
}

/// Replaces what differs between runs: ids, hashes and times.
fn blank(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (name, value) in map {
                let is_time =
                    name == "created" || name.ends_with("_at") || name.ends_with("_duration");
                let is_time = is_time && value.is_u64();
                let is_id = name == "id" || name.ends_with("_id") || name == "system_fingerprint";
                match value
                    .as_str()
                    .and_then(|text| text.split(['_', '-']).next())
                {
                    Some(kind) if is_id => *value = format!("{kind}_ID").into(),
                    Some(_) if name == "created_at" => *value = "TIME".into(),
                    _ if is_time => *value = 0.into(),
                    _ if name == "timings" => *value = "TIMES".into(),
                    Some(_) if name == "encrypted_content" => *value = "SEALED".into(),
                    _ => blank(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blank),
        _ => {}
    }
}

/// The events as lines, blanked. Deltas of one kind that follow each other are joined, because their boundaries depend
/// on the reader's speed.
pub(crate) fn lines(events: Vec<Value>) -> String {
    let mut joined: Vec<Value> = Vec::new();
    for mut event in events {
        blank(&mut event);
        if event["sequence_number"].is_u64() {
            event["sequence_number"] = Value::Null;
        }
        let text_of = |event: &Value| {
            let pointers = [
                "/delta",
                "/delta/text",
                "/delta/thinking",
                "/delta/partial_json",
                "/message/content",
                "/message/thinking",
                "/choices/0/delta/content",
                THOUGHT,
                CALL_ARGUMENTS,
            ];
            pointers
                .into_iter()
                .find(|pointer| event.pointer(pointer).is_some_and(Value::is_string))
        };
        let without = |event: &Value, pointer: &str| {
            let mut event = event.clone();
            *event.pointer_mut(pointer).expect("it is there") = Value::Null;
            // The same text under its other name.
            if pointer == THOUGHT {
                event["choices"][0]["delta"]["reasoning"] = Value::Null;
            }
            if pointer == CALL_ARGUMENTS {
                // Its first delta has more than its arguments.
                let call = &mut event["choices"][0]["delta"]["tool_calls"][0];
                *call = json!({"index": call["index"]});
            }
            event
        };
        match (joined.last_mut(), text_of(&event)) {
            (Some(last), Some(at))
                if text_of(last) == Some(at) && without(last, at) == without(&event, at) =>
            {
                let more = event
                    .pointer(at)
                    .and_then(Value::as_str)
                    .expect("a text")
                    .to_owned();
                if let Some(Value::String(text)) = last.pointer_mut(at) {
                    text.push_str(&more);
                }
                if at == THOUGHT {
                    let delta = &mut last["choices"][0]["delta"];
                    delta["reasoning"] = delta["reasoning_content"].clone();
                }
            }
            _ => joined.push(event),
        }
    }
    joined.iter().map(|event| format!("{event}\n")).collect()
}

fn ask() -> Value {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
    let question = json!({"role": "user", "content": "What is the weather in Paris?"});
    json!({"model": MODEL, "max_tokens": 200, "messages": [question],
        "tools": [{"name": "get_weather", "description": "The weather", "input_schema": schema}]})
}

pub(crate) fn streaming(request: &Value) -> Value {
    with(request, &json!({"stream": true}))
}

#[test]
fn a_stream_of_messages() {
    let server = thinking(&[&format!(
        "<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    )]);
    let request = with(&ask(), &json!({"thinking": {"type": "adaptive"}}));
    let stream = lines(named(&server.post(MESSAGES, &streaming(&request))));
    golden("tests/data/http/messages.jsonl", &stream);
    let mut whole = server.post(MESSAGES, &request).json();
    blank(&mut whole);
    let content = json!([
        {"type": "thinking", "thinking": "Hm.", "signature": whole["content"][0]["signature"]},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_ID", "name": "get_weather", "input": {"city": "Paris", "days": 2}},
        {"type": "tool_use", "id": "toolu_ID", "name": "get_weather", "input": {"city": "Paris", "days": 2}},
    ]);
    assert_eq!(
        (&whole["content"], &whole["stop_reason"]),
        (&content, &"tool_use".into())
    );
    let usage = &whole["usage"];
    assert!(
        usage["cache_read_input_tokens"].as_u64() > Some(0),
        "the stream had computed the prefix: {usage}"
    );
    server.wait_until_idle();
}

#[test]
fn the_loop_of_messages() {
    let server = saying(&[CALL, "It is sunny."]);
    let first = server.post(MESSAGES, &ask()).json();
    let call = &first["content"][0];
    assert_eq!(
        (&call["type"], &first["stop_reason"]),
        (&"tool_use".into(), &"tool_use".into()),
        "{first}"
    );
    let mut request = ask();
    let messages = request["messages"].as_array_mut().expect("a list");
    messages.push(json!({"role": "assistant", "content": first["content"]}));
    let result = json!([{"type": "text", "text": "sunny", "cache_control": {"type": "ephemeral"}}]);
    let result = json!({"type": "tool_result", "tool_use_id": call["id"], "content": result, "is_error": false});
    messages.push(
        json!({"role": "user", "content": [result, {"type": "text", "text": "Say it briefly."}]}),
    );
    let last = server.post(MESSAGES, &request).json();
    assert_eq!(
        last["content"],
        json!([{"type": "text", "text": "It is sunny."}])
    );
    assert_eq!(
        (&last["stop_reason"], &last["stop_sequence"]),
        (&"end_turn".into(), &Value::Null)
    );
    let tokens = server
        .post(
            COUNT,
            &json!({"messages": request["messages"], "tools": request["tools"]}),
        )
        .json();
    let usage = &last["usage"];
    let counted = ["input_tokens", "cache_read_input_tokens"]
        .map(|name| usage[name].as_u64().expect("a count"));
    assert_eq!(tokens["input_tokens"], counted.iter().sum::<u64>());
}

#[test]
fn why_a_message_ended() {
    let server = saying(&["One two three four five."]);
    let ended = |more: Value| {
        let answer = server.post(MESSAGES, &with(&ask(), &more)).json();
        (
            answer["stop_reason"].clone(),
            answer["stop_sequence"].clone(),
            answer["content"][0]["text"].clone(),
        )
    };
    let stops = json!({"stop_sequences": ["zero", " three"]});
    assert_eq!(
        ended(stops),
        ("stop_sequence".into(), " three".into(), "One two".into())
    );
    assert_eq!(ended(json!({"max_tokens": 1})).0, "max_tokens");
    assert_eq!(
        ended(json!({"max_tokens": 32_000})).0,
        "end_turn",
        "as many as fit"
    );
    // An answer that was begun is continued.
    let begun =
        json!([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "One"}]);
    let rest = server
        .post(MESSAGES, &json!({"messages": begun, "max_tokens": 1}))
        .json();
    assert_eq!(rest["content"][0]["type"], "text", "{rest}");
}

#[test]
fn what_claude_code_sends() {
    let server = Server::plain();
    let head = Request::head("/").body(Body::empty()).expect("a request");
    assert_eq!(server.send(head).status, 200);
    let instructions =
        json!({"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}});
    let system = |build: u32| {
        let billing = format!("x-anthropic-billing-header: cc_version={build}; cc_entrypoint=cli;");
        json!([{"type": "text", "text": billing}, instructions])
    };
    let messages = json!([
        {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
        {"role": "system", "content": "It is noon."},
    ]);
    let request = json!({
        "model": MODEL, "system": system(1), "messages": messages, "max_tokens": 8, "stream": true,
        "thinking": {"type": "adaptive"}, "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "{\"device_id\":\"0\"}"},
        "tools": [{"name": "Bash", "input_schema": {"type": "object"}},
            {"type": "web_search_20250305", "name": "web_search"}],
    });
    let answer = server.post("/v1/messages?beta=true", &request);
    assert_eq!(answer.header("x-ignored-tools"), "web_search");
    assert_eq!(
        named(&answer).last().expect("an event")["type"],
        "message_stop"
    );
    let count = |system: Value| {
        server
            .post(COUNT, &json!({"system": system, "messages": messages}))
            .json()["input_tokens"]
            .clone()
    };
    assert_eq!(
        count(system(1)),
        count(json!("Be brief.")),
        "the billing line is left out"
    );
}

#[test]
fn errors_of_messages_have_their_form() {
    let options = ServerOptions {
        api_keys: vec!["k".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    let send = |path: &str, key: &str, body: &Value| {
        let mut request = post(path, body);
        request
            .headers_mut()
            .insert("x-api-key", key.parse().expect("a header"));
        let answer = server.send(request);
        assert!(!answer.header("request-id").is_empty(), "{path}");
        let json = answer.json();
        assert_eq!(
            json["type"],
            if answer.status == 200 {
                "message"
            } else {
                "error"
            },
            "{path}"
        );
        (
            answer.status.as_u16(),
            json["error"]["type"].clone(),
            json["error"]["message"].clone(),
        )
    };
    assert_eq!(send(MESSAGES, "k", &ask()).0, 200);
    let kind = |path: &str, key: &str, body: &Value| {
        let (status, kind, _) = send(path, key, body);
        (status, kind.as_str().expect("a type").to_owned())
    };
    assert_eq!(
        kind(MESSAGES, "x", &ask()),
        (401, "authentication_error".into())
    );
    assert_eq!(
        kind(MESSAGES, "k", &with(&ask(), &json!({"model": "x"}))),
        (404, "not_found_error".into())
    );
    assert_eq!(
        kind(MESSAGES, "k", &with(&ask(), &json!({"messages": []}))),
        (400, "invalid_request_error".into())
    );
    assert_eq!(
        kind("/v1/messages/batches", "k", &json!({})),
        (404, "not_found_error".into())
    );
    let long = json!({"messages": [{"role": "user", "content": "a ".repeat(4000)}]});
    let (status, _, message) = send(MESSAGES, "k", &with(&ask(), &long));
    let message = message.as_str().expect("a message");
    assert!(
        status == 400 && message.starts_with("prompt is too long: "),
        "{status}: {message}"
    );
    let [tokens, limit] =
        [" tokens > ", " maximum"].map(|word| message.find(word).expect("both counts"));
    assert!(tokens < limit);
}

#[test]
fn a_stream_of_messages_that_fails() {
    let server = Server::fake("failed@2", config(), ServerOptions::default());
    let answer = server.post(
        MESSAGES,
        &with(&streaming(&ask()), &json!({"max_tokens": 50})),
    );
    let last = named(&answer).pop().expect("an event");
    assert_eq!(
        (&last["type"], &last["error"]["type"]),
        (&"error".into(), &"api_error".into()),
        "{}",
        answer.text
    );
    golden("tests/data/http/messages_error.jsonl", &lines(vec![last]));
}
