//! Ollama's API: lines of JSON, whole answers, calls, embeddings, and what its clients ask about models.

use crate::agents::{self, CALL, thinking};
use crate::document::golden;
use crate::harness::{Answer, MODEL, QWEN, Server, config, demo_text, renamed, saying, with};
use axum::body::Body;
use axum::http::Request;
use folio::config::Config;
use folio::model::demo;
use folio::server::{Puller, ServerOptions};
use folio::text::TextModel;
use serde_json::{Value, json};
use std::sync::Arc;

fn ask() -> Value {
    let tool = json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}});
    json!({"model": format!("{MODEL}:latest"), "messages": [{"role": "user", "content": "What is the weather?"}],
        "tools": [tool], "options": {"num_predict": 100, "temperature": 0, "num_ctx": 4096}, "keep_alive": "5m"})
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-type")),
        (200, "application/x-ndjson"),
        "{}",
        answer.text
    );
    answer
        .text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect()
}

/// Joins the messages of a stream. Every line but the last says that there are more.
fn joined(lines: &[Value]) -> (String, String, Vec<Value>) {
    let mut all = (String::new(), String::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line["done"], index + 1 == lines.len(), "{line}");
        let message = &line["message"];
        all.0 += message["thinking"].as_str().unwrap_or_default();
        all.1 += message["content"]
            .as_str()
            .expect("every message has a content");
        all.2.extend(
            message["tool_calls"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
    }
    all
}

#[test]
fn a_chat_in_lines_and_whole() {
    let server = thinking(&[
        &format!("<think>\nHm.\n</think>\n\nI look.\n{CALL}"),
        "It is sunny.",
    ]);
    let stream = lines(&server.post("/api/chat", &with(&ask(), &json!({"think": true}))));
    let (thinking, content, calls) = joined(&stream);
    assert_eq!((thinking.as_str(), content.as_str()), ("Hm.", "I look."));
    assert_eq!(
        calls[0]["function"]["arguments"],
        json!({"city": "Paris", "days": 2})
    );
    let whole = server
        .post("/api/chat", &with(&ask(), &json!({"stream": false})))
        .json();
    let message = &whole["message"];
    assert_eq!(
        (&message["thinking"], &message["content"]),
        (&thinking.as_str().into(), &content.as_str().into())
    );
    assert_eq!(message["tool_calls"], json!(calls));
    let last = stream.last().expect("a line");
    for name in [
        "total_duration",
        "load_duration",
        "prompt_eval_count",
        "prompt_eval_duration",
        "eval_count",
        "eval_duration",
    ] {
        assert!(last[name].is_u64() && whole[name].is_u64(), "{name}");
    }
    assert_eq!(
        (&last["done_reason"], &whole["model"]),
        (&"stop".into(), &format!("{MODEL}:latest").into())
    );
    let mut next = with(&ask(), &json!({"stream": false}));
    let messages = next["messages"].as_array_mut().expect("a list");
    messages.extend([
        message.clone(),
        json!({"role": "tool", "tool_name": "get_weather", "content": "sunny"}),
    ]);
    assert_eq!(
        server.post("/api/chat", &next).json()["message"]["content"],
        "It is sunny."
    );
}

/// The lines of a stream, one for each part, as far as they do not depend on the reader's speed.
#[test]
fn the_lines_of_a_chat() {
    let server = thinking(&[&format!(
        "<think>\nHm.\n</think>\n\nI look.\n{CALL}\n{CALL}"
    )]);
    let parts = |line: Value| -> Vec<Value> {
        let message = &line["message"];
        let texts = ["thinking", "content"].map(|name| (name, message[name].clone()));
        let texts = texts
            .into_iter()
            .filter(|(_, text)| text.as_str().is_some_and(|text| !text.is_empty()));
        let calls = message["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|call| ("tool_calls", json!([call])));
        let one = |(name, part): (&str, Value)| {
            with(
                &line,
                &json!({"message": {"role": message["role"], name: part}}),
            )
        };
        let parts: Vec<_> = texts.chain(calls).map(one).collect();
        if parts.is_empty() {
            vec![line.clone()]
        } else {
            parts
        }
    };
    let stream = lines(&server.post("/api/chat", &with(&ask(), &json!({"think": true}))));
    golden(
        "tests/data/http/ollama_chat.jsonl",
        &agents::lines(stream.into_iter().flat_map(parts).collect()),
    );
}

#[test]
fn options_that_change_nothing_are_taken_and_unknown_ones_are_told() {
    let server = saying(&["Yes."]);
    let options = json!({"typical_p": 1.0, "mirostat": 0, "mirostat_tau": 5.0, "repeat_last_n": 64, "num_gpu": 99,
        "num_batch": 512, "use_mmap": false, "penalize_newline": true, "no_such_option": 1});
    for format in [json!(""), Value::Null] {
        let request = with(
            &ask(),
            &json!({"options": options, "format": format, "stream": false}),
        );
        assert_eq!(
            server.post("/api/chat", &request).json()["message"]["content"],
            "Yes.",
            "{format}"
        );
    }
    let strict = Server::fake(
        "",
        config(),
        ServerOptions {
            strict_fields: true,
            ..ServerOptions::default()
        },
    );
    let told = |option: &str| {
        let request = with(&ask(), &json!({"options": {option: 1}, "stream": false}));
        strict.post("/api/chat", &request).json()
    };
    assert_eq!(told("num_gpu")["done"], true, "it is known");
    let unknown = told("repeat_penalt");
    assert_eq!(unknown["param"], "options.repeat_penalt");
    assert!(
        unknown["error"]
            .as_str()
            .is_some_and(|text| text.ends_with("did you mean `repeat_penalty`?")),
        "{unknown}"
    );
}

#[test]
fn a_prompt_is_answered_or_continued() {
    let server = saying(&["One two three."]);
    let request =
        json!({"model": MODEL, "prompt": "Count.", "system": "Be brief.", "stream": false});
    let whole = server.post("/api/generate", &request).json();
    assert_eq!(
        (&whole["response"], &whole["done_reason"]),
        (&"One two three.".into(), &"stop".into())
    );
    let cut =
        json!({"options": {"num_predict": 1, "stop": ["x"], "seed": 3, "repeat_penalty": 1.1}});
    assert_eq!(
        server.post("/api/generate", &with(&request, &cut)).json()["done_reason"],
        "length"
    );
    let raw = with(
        &request,
        &json!({"raw": true, "prompt": "<|im_start|>assistant\n"}),
    );
    assert_eq!(
        server.post("/api/generate", &raw).json()["response"],
        "One two three."
    );
    let loaded = server
        .post("/api/generate", &json!({"model": MODEL, "stream": false}))
        .json();
    assert_eq!(
        (&loaded["done_reason"], &loaded["response"]),
        (&"load".into(), &"".into())
    );
    assert_eq!(
        lines(&server.post("/api/chat", &json!({"model": MODEL, "messages": []})))[0]["done_reason"],
        "load"
    );
    // As curl sends it.
    let form =
        Request::post("/api/generate").header("content-type", "application/x-www-form-urlencoded");
    assert_eq!(
        server
            .send(
                form.body(Body::from(request.to_string()))
                    .expect("a request")
            )
            .status,
        200
    );
    let properties = json!({"n": {"type": "integer", "maximum": 9, "minimum": 0}});
    let schema = json!({"type": "object", "properties": properties, "required": ["n"]});
    let object = with(&request, &json!({"format": schema}));
    let text = server.post("/api/generate", &object).json()["response"]
        .as_str()
        .expect("a text")
        .to_owned();
    assert!(
        serde_json::from_str::<Value>(&text).expect("JSON")["n"].is_u64(),
        "{text}"
    );
}

#[test]
fn models_are_listed_and_not_changed() {
    let server = Server::plain();
    let tags = server.get("/api/tags").json();
    assert_eq!(tags["models"][0]["name"], format!("{MODEL}:latest"));
    assert!(server.get("/api/ps").json()["models"][0]["size_vram"].is_u64());
    assert!(server.get("/api/version").json()["version"].is_string());
    let show = server
        .post("/api/show", &json!({"model": format!("{MODEL}:latest")}))
        .json();
    assert!(
        show["model_info"]["folio.context_length"].is_u64(),
        "{show}"
    );
    let can = |show: &Value, what: &str| {
        show["capabilities"]
            .as_array()
            .expect("a list")
            .contains(&what.into())
    };
    assert!(can(&show, "tools") && !can(&show, "insert"), "{show}");
    let text =
        TextModel::with_tokenizer(Some(renamed(QWEN)), Some(demo::TOKENIZER_CONFIG_JSON), None);
    let filling = Server::plain_with(Arc::new(text.expect("the demo's files are right")));
    assert!(can(&filling.post("/api/show", &json!({})).json(), "insert"));
    let missing = server.post("/api/show", &json!({"model": "no"}));
    assert!(
        missing.status == 404 && missing.json()["error"].is_string(),
        "{}",
        missing.text
    );
    for path in ["create", "copy", "push"] {
        let refused = server.post(&format!("/api/{path}"), &json!({"model": "a"}));
        assert!(
            refused.status == 400
                && refused
                    .text
                    .contains(&format!("`/api/{path}` is not supported")),
            "{}",
            refused.text
        );
    }
}

#[test]
fn models_are_pulled_where_that_is_allowed() {
    let pulled = |server: &Server, more: Value| server.post("/api/pull", &more);
    let closed = Server::plain();
    assert_eq!(
        lines(&pulled(&closed, json!({"model": MODEL})))
            .last()
            .expect("a line")["status"],
        "success"
    );
    let refused = pulled(&closed, json!({"name": "org/other", "stream": false}));
    assert!(
        refused.status == 400 && refused.text.contains("--allow-pull"),
        "{}",
        refused.text
    );
    let (asked, names) = std::sync::mpsc::channel();
    let puller = Puller::new(move |name| {
        asked.send(name.to_owned()).expect("the test listens");
        if name == "org/none" {
            Err("there is no such model".into())
        } else {
            Ok(())
        }
    });
    let open = Server::fake(
        "",
        config(),
        ServerOptions {
            pull: Some(puller),
            ..ServerOptions::default()
        },
    );
    let statuses = |answer: &Answer| {
        lines(answer)
            .iter()
            .map(|line| line["status"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        statuses(&pulled(&open, json!({"model": "org/other:Q4"}))),
        ["pulling manifest", "success"]
    );
    assert_eq!(names.recv(), Ok("org/other:Q4".to_owned()));
    let none = pulled(&open, json!({"model": "org/none"}));
    assert_eq!(lines(&none)[1]["error"], "there is no such model");
    assert_eq!(
        pulled(&open, json!({"model": "org/none", "stream": false})).status,
        400
    );
}

#[test]
fn texts_become_vectors() {
    let server = Server::cpu();
    let several = server
        .post(
            "/api/embed",
            &json!({"model": MODEL, "input": ["Hello", "A fox"], "dimensions": 8}),
        )
        .json();
    assert_eq!(
        several["embeddings"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|v| v.as_array().map_or(0, Vec::len))
            .collect::<Vec<_>>(),
        [8, 8]
    );
    let tokens = |text: &str| {
        demo_text()
            .tokenizer
            .as_ref()
            .expect("the demo has one")
            .encode(text, true)
            .expect("it encodes")
            .len()
    };
    assert_eq!(
        several["prompt_eval_count"],
        tokens("Hello") + tokens("A fox")
    );
    let one = server
        .post(
            "/api/embeddings",
            &json!({"model": MODEL, "prompt": "Hello"}),
        )
        .json();
    let openai = server
        .post("/v1/embeddings", &json!({"input": "Hello"}))
        .json();
    assert_eq!(
        one["embedding"].as_array().expect("a list").len(),
        openai["data"][0]["embedding"]
            .as_array()
            .expect("a list")
            .len()
    );
    let long = json!({"model": MODEL, "input": "a ".repeat(4000)});
    assert_eq!(server.post("/api/embed", &long).status, 200, "it is cut");
    assert_eq!(
        server
            .post("/api/embed", &with(&long, &json!({"truncate": false})))
            .status,
        400
    );
}

/// A document's title and first paragraphs say what it is about.
#[test]
fn a_text_that_is_too_long_loses_its_end() {
    let config = Config {
        max_model_len: Some(64),
        ..config()
    };
    let server = Server::fake("", config, ServerOptions::default());
    let words: Vec<String> = (0..200).map(|number| format!("word{number}")).collect();
    let (text, other) = (
        words.join(" "),
        [&words[..100], &["end".to_owned()]].concat().join(" "),
    );
    let ids = demo_text()
        .tokenizer
        .as_ref()
        .expect("the demo has one")
        .encode(&text, true)
        .expect("it encodes");
    let embedded = |path: &str, body: Value| {
        let answer = server.post(path, &body).json();
        let vectors = [
            &answer["embeddings"][0],
            &answer["embedding"],
            &answer["data"][0]["embedding"],
        ];
        let vector = vectors
            .into_iter()
            .find_map(|vector| vector.as_array())
            .unwrap_or_else(|| panic!("{answer}"));
        // The APIs write them with different precision.
        vector
            .iter()
            .map(|number| number.as_f64().expect("a number") as f32)
            .collect::<Vec<_>>()
    };
    // All tokens of the context can be used where nothing is generated.
    let first = embedded("/v1/embeddings", json!({"input": ids[..64]}));
    assert_ne!(
        first,
        embedded("/v1/embeddings", json!({"input": ids[ids.len() - 64..]}))
    );
    let scored =
        json!({"model": MODEL, "prompt": ids[..64], "max_tokens": 0, "echo": true, "logprobs": 1});
    let scored = server.post("/v1/completions", &scored);
    assert_eq!(
        scored.json()["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .map(Vec::len),
        Some(64),
        "{}",
        scored.text
    );
    for (path, request) in [
        ("/v1/embeddings", json!({"input": ids[..65]})),
        (
            "/v1/completions",
            json!({"model": MODEL, "prompt": ids[..65], "max_tokens": 0, "echo": true}),
        ),
        (
            "/v1/completions",
            json!({"model": MODEL, "prompt": ids[..64], "max_tokens": 1}),
        ),
    ] {
        assert_eq!(server.post(path, &request).status, 400, "{path}: {request}");
    }
    for text in [&text, &other] {
        assert_eq!(
            embedded("/api/embed", json!({"model": MODEL, "input": text})),
            first
        );
        assert_eq!(
            embedded("/api/embeddings", json!({"model": MODEL, "prompt": text})),
            first
        );
    }
}

/// Numbers of calls have all of their digits, and arguments that span lines are JSON.
/// The arguments that the events of a stream add, as they came.
fn streamed_arguments(events: &str) -> String {
    let data = events
        .lines()
        .filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    let pointers = [
        "/delta",
        "/delta/partial_json",
        "/choices/0/delta/tool_calls/0/function/arguments",
    ];
    let parts = events.filter_map(|event| {
        let mut found = pointers.iter().filter_map(|pointer| event.pointer(pointer));
        found.find_map(|text| text.as_str().map(str::to_owned))
    });
    parts.collect()
}

#[test]
fn arguments_keep_their_digits_whatever_the_api() {
    let number = "123456789012345678901234567890.123456789012345678901";
    let call = format!(
        "<tool_call>\n{{\"name\": \"pay\", \"arguments\": {{\"a\": {number}, \"b\": \"x\ny\"}}}}\n</tool_call>"
    );
    let server = saying(&[&call]);
    let function = json!({"name": "pay", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}});
    let chat = json!([{"type": "function", "function": function}]);
    let item = with(&json!({"type": "function"}), &function);
    let block = json!({"name": "pay", "input_schema": function["parameters"]});
    let user = json!([{"role": "user", "content": "Pay."}]);
    let base = json!({"model": MODEL, "messages": user, "max_tokens": 200});
    for (path, request) in [
        ("/v1/chat/completions", with(&base, &json!({"tools": chat}))),
        ("/v1/messages", with(&base, &json!({"tools": [block]}))),
        (
            "/v1/responses",
            json!({"model": MODEL, "input": "Pay.", "tools": [item]}),
        ),
        (
            "/api/chat",
            json!({"model": MODEL, "messages": user, "tools": chat}),
        ),
    ] {
        for stream in [false, true] {
            let answer = server.post(path, &with(&request, &json!({"stream": stream})));
            let text = match stream && path != "/api/chat" {
                true => streamed_arguments(&answer.text),
                false => answer.text.clone(),
            };
            let text = text.replace("\\\\n", "\\n");
            assert!(text.contains(number), "{path}: {}", answer.text);
            assert!(
                !answer.text.contains("INVALID_JSON"),
                "{path}: {}",
                answer.text
            );
            assert!(text.contains("x\\ny"), "{path}: {}", answer.text);
        }
    }
}
