//! A table of bad requests (`data/http/bad_requests.json`). After each: the error has the right form and came quickly,
//! a concurrent stream is unchanged, the server is healthy, no block is leaked, and a canary request has the same
//! answer as before.

use crate::harness::{Answer, CHAT, COMPLETIONS, Server, blanked, hello, merged, with};
use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Expands the table's shorthands for long values: `{"$repeat": ["a", 9]}`, `{"$list": [1, 9]}`, `{"$nest": 9}`,
/// `{"$keys": 9}`.
fn expand(value: &Value) -> Value {
    if let Some(map) = value.as_object().filter(|map| map.len() == 1) {
        let (key, argument) = map.iter().next().expect("one pair");
        let count = |value: &Value| value.as_u64().expect("a count") as usize;
        match key.as_str() {
            "$repeat" => {
                return argument[0]
                    .as_str()
                    .expect("a string")
                    .repeat(count(&argument[1]))
                    .into();
            }
            "$list" => return Value::Array(vec![expand(&argument[0]); count(&argument[1])]),
            "$keys" => {
                return (0..count(argument))
                    .map(|key| (key.to_string(), json!(1)))
                    .collect();
            }
            "$nest" => return (0..count(argument)).fold(json!(1), |inner, _| json!([inner])),
            _ => {}
        }
    }
    match value {
        Value::Array(items) => items.iter().map(expand).collect(),
        Value::Object(map) => Value::Object(
            map.iter()
                .map(|(key, item)| (key.clone(), expand(item)))
                .collect(),
        ),
        other => other.clone(),
    }
}

fn request(case: &Value) -> Request<Body> {
    let endpoint = case["to"].as_str().unwrap_or("chat");
    let path = match endpoint {
        "chat" => CHAT,
        "completions" => COMPLETIONS,
        path => path,
    };
    let method = case["method"].as_str().unwrap_or("POST");
    let mut request = Request::builder().method(method).uri(path);
    let headers = case["headers"].as_object();
    if !headers.is_some_and(|headers| headers.contains_key("content-type")) {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers
        .into_iter()
        .flatten()
        .filter(|(_, value)| value.is_string())
    {
        request = request.header(name, value.as_str().expect("a string"));
    }
    let base = match endpoint {
        "completions" => json!({"prompt": "Hello", "max_tokens": 4, "temperature": 0}),
        "/v1/embeddings" => json!({}),
        _ => hello(),
    };
    let body = match (&case["raw"], &case["bytes"], &case["depth"]) {
        (Value::String(raw), _, _) => raw.clone().into_bytes(),
        (_, Value::Array(bytes), _) => bytes
            .iter()
            .map(|byte| byte.as_u64().expect("a byte") as u8)
            .collect(),
        (_, _, Value::Number(depth)) => "["
            .repeat(depth.as_u64().expect("a depth") as usize)
            .into_bytes(),
        _ => {
            let more = case.get("with").map_or(json!({}), expand);
            with(&base, &more).to_string().into_bytes()
        }
    };
    request.body(Body::from(body)).expect("a request")
}

/// What is wrong with a refusal.
fn faults_of(case: &Value, answer: &Answer, time: Duration) -> Option<String> {
    if time > Duration::from_secs(1) {
        return Some(format!("took {time:?}"));
    }
    if u64::from(answer.status.as_u16()) != case["status"] {
        return Some(format!("status {}", answer.status));
    }
    let json = answer.json();
    // Ollama's form has the message as a text, with the rest beside it.
    let (error, names) = match &json["error"] {
        Value::String(_) => (json.clone(), ["error", "param", "code"].as_slice()),
        error => (
            error.clone(),
            ["message", "type", "param", "code"].as_slice(),
        ),
    };
    let keys: Vec<_> = error
        .as_object()
        .into_iter()
        .flat_map(|error| error.keys())
        .collect();
    if keys != *names {
        return Some(format!("keys {keys:?}"));
    }
    if !error["message"]
        .as_str()
        .or(error["error"].as_str())
        .is_some_and(|text| (1..500).contains(&text.len()))
    {
        return Some("the message is empty or long".into());
    }
    if case
        .get("param")
        .is_some_and(|param| *param != error["param"])
    {
        return Some("another param".into());
    }
    (error["code"] != case["code"].as_str().unwrap_or("invalid_value"))
        .then(|| "another code".into())
}

#[test]
fn every_bad_request_is_refused_and_disturbs_nobody() {
    let cases: Value = serde_json::from_str(include_str!("../data/http/bad_requests.json"))
        .expect("the table is JSON");
    let cases = cases.as_array().expect("a list");
    assert!(cases.len() > 150, "the table is whole");
    let server = Server::plain();
    let canary = || blanked(&server.post(CHAT, &hello()).text);
    let neighbour_request = with(
        &hello(),
        &json!({"stream": true, "seed": 5, "temperature": 1, "ignore_eos": true}),
    );
    let expected = canary();
    let neighbour_expected = merged(&server.open(CHAT, &neighbour_request).rest());
    assert!(
        neighbour_expected.len() > 600,
        "the neighbour says something"
    );
    let mut wrong = Vec::new();
    for case in cases {
        let mut neighbour = server.open(CHAT, &neighbour_request);
        assert!(neighbour.more(), "the neighbour runs");
        let built = request(case);
        let start = Instant::now();
        let answer = server.send(built);
        let mut time = start.elapsed();
        // Other tests share the machine, so only a request that is slow three times counts as slow.
        for _ in 0..2 {
            if time > Duration::from_secs(1) {
                let start = Instant::now();
                server.send(request(case));
                time = start.elapsed();
            }
        }
        wrong.extend(
            faults_of(case, &answer, time).map(|fault| format!("{case}: {fault}: {}", answer.text)),
        );
        assert_eq!(
            merged(&neighbour.rest()),
            neighbour_expected,
            "{case} changed a neighbour"
        );
        assert_eq!(server.get("/health").status, 200, "{case}");
        assert_eq!(canary(), expected, "{case} changed the canary");
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
    server.wait_until_idle();
}

#[test]
fn what_clients_send_beside_is_taken() {
    let server = Server::plain();
    let accepted = [
        json!({"unknown": {"deep": [1]}, "store": false, "service_tier": "auto", "user": "someone"}),
        json!({"metadata": {"a": "b"}, "n": null, "stop": null, "logit_bias": {}, "tools": [], "seed": -1}),
        json!({"temperature": 1e-40}),
        json!({"top_k": -1, "min_p": 1, "top_p": 1e-300, "presence_penalty": -2, "frequency_penalty": 2}),
        json!({"repetition_penalty": 1e-300, "priority": -5, "cache_salt": "A-z_9"}),
        json!({"max_tokens": 1_000_000_000_000_000_000_u64, "stop_token_ids": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}),
        json!({"max_tokens": 3, "max_completion_tokens": 3, "best_of": 2, "response_format": {"type": "text"}}),
        json!({"stop": ["a", "b"], "logit_bias": {"4095": -100, "0": 100.0}, "suffix": "", "use_beam_search": false}),
        json!({"model": "other/name", "stop": "x", "tool_choice": "none"}),
        json!({"use_beam_search": true, "n": 2, "best_of": 3, "length_penalty": 0.5, "early_stopping": true}),
        json!({"use_beam_search": true, "n": 2, "logit_bias": {"5": 0}, "presence_penalty": 0, "temperature": 2}),
        json!({"chat_template_kwargs": {"enable_thinking": true}, "add_generation_prompt": true}),
        json!({"min_tokens": 4, "return_token_ids": true, "reasoning_effort": "low"}),
        json!({"include_stop_str_in_output": true, "top_p": 0, "max_tokens": 4.0, "seed": 1.0}),
        json!({"guided_regex": "a+", "structured_outputs": {"regex": "a+"}, "guided_decoding_backend": "xgrammar"}),
        json!({"web_search_options": {"search_context_size": null, "user_location": null}}),
        json!({"max_tokens": -1, "stop": [" "], "guided_choice": ["a"]}),
        json!({"debug": {"prefix": true, "other": 1}, "truncate_prompt_tokens": -1, "allowed_token_ids": []}),
        json!({"spaces_between_special_tokens": false, "suffix": null, "bad_words": []}),
        json!({"typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "top_n_sigma": -1, "dry_multiplier": 0.0,
            "xtc_probability": 0, "repeat_last_n": 64, "samplers": ["top_k"], "lora": [], "lora_path": null}),
        json!({"repeat_penalty": 1.1, "repeat_last_n": -1}),
        json!({"seed": i64::MIN, "stream": false, "stream_options": null, "logprobs": true, "top_logprobs": 20}),
    ];
    for more in accepted {
        let short = with(&hello(), &json!({"max_tokens": 4}));
        let answer = server.post(CHAT, &with(&short, &more));
        assert_eq!(answer.status, 200, "{more}: {}", answer.text);
    }
    let messages = [
        json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi", "name": "x"}]),
        json!([{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}]}]),
        json!([{"role": "user", "content": "w?"}, {"role": "assistant", "content": null, "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}},
            {"id": "2", "type": "function", "function": {"name": "f", "arguments": "not JSON"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "3"}]),
        json!([{"role": "user", "content": "Hi"}, {"role": "system", "content": "late"}]),
    ];
    for messages in messages {
        let answer = server.post(CHAT, &with(&hello(), &json!({"messages": messages})));
        assert_eq!(answer.status, 200, "{messages}: {}", answer.text);
    }
}

#[test]
fn greedy_means_greedy_for_tiny_temperatures() {
    let server = Server::cpu();
    let greedy = blanked(&server.post(CHAT, &hello()).text);
    assert_eq!(
        blanked(
            &server
                .post(CHAT, &with(&hello(), &json!({"temperature": 1e-40})))
                .text
        ),
        greedy
    );
}
