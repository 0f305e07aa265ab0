//! Routes, headers and metrics of vLLM.

use crate::agents::thinking;
use crate::harness::{CHAT, COMPLETIONS, MODEL, Server, hello, ids, post, with};
use axum::body::Body;
use axum::http::{HeaderValue, Request};
use serde_json::{Value, json};

fn named(path: &str, body: &Value, id: &str) -> Request<Body> {
    let mut request = post(path, body);
    let value = HeaderValue::from_str(id).expect("a header");
    request.headers_mut().insert("x-request-id", value);
    request
}

#[test]
fn the_id_of_a_reply_has_the_id_of_its_request() {
    let server = Server::plain();
    let prompt = json!({"prompt": "Once", "max_tokens": 2});
    for (path, base, kind) in [(CHAT, hello(), "chatcmpl"), (COMPLETIONS, prompt, "cmpl")] {
        let whole = server.send(named(path, &base, "proxy-7.a_b")).json();
        assert_eq!(whole["id"], format!("{kind}-proxy-7.a_b"));
        let streamed = with(&base, &json!({"stream": true}));
        for chunk in server.send(named(path, &streamed, "proxy-8")).chunks() {
            assert_eq!(chunk["id"], format!("{kind}-proxy-8"));
        }
        // What no id may have is not repeated.
        let other = server.send(named(path, &base, "a b")).json();
        assert_ne!(other["id"], format!("{kind}-a b"));
        assert!(
            other["id"]
                .as_str()
                .is_some_and(|id| id.starts_with(&format!("{kind}-")))
        );
    }
}

#[test]
fn calls_are_unique_though_a_client_repeats_its_id() {
    let call = "<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call>";
    let tool =
        json!({"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}});
    let request = with(&hello(), &json!({"tools": [tool], "max_tokens": 60}));
    let server = thinking(&[call, call]);
    let ids = [0, 1].map(|_| {
        let answer = server.send(named(CHAT, &request, "same")).json();
        answer["choices"][0]["message"]["tool_calls"][0]["id"].clone()
    });
    assert!(ids[0].is_string() && ids[0] != ids[1], "{ids:?}");
}

#[test]
fn a_reset_cache_shares_nothing_that_was_cached_before() {
    let server = Server::plain();
    let prompt = json!({"prompt": "One two three four five six seven eight nine ten. ".repeat(4), "max_tokens": 1});
    let cached = || {
        let answer = server.post(COMPLETIONS, &prompt).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .expect("a count")
    };
    assert_eq!(cached(), 0);
    assert!(cached() > 0);
    let reset = || {
        server.send(
            Request::post("/reset_prefix_cache")
                .body(Body::empty())
                .expect("a request"),
        )
    };
    for _ in 0..2 {
        assert_eq!(reset().status, 200);
        assert_eq!(cached(), 0);
        assert!(cached() > 0, "what is computed then is shared again");
    }
}

#[test]
fn a_complete_response_cannot_be_cancelled() {
    let server = Server::plain();
    let answer = server
        .post(
            "/v1/responses",
            &json!({"input": "Hello!", "max_output_tokens": 16}),
        )
        .json();
    let id = answer["id"].as_str().expect("an id");
    let cancel = |id: &str| server.post(&format!("/v1/responses/{id}/cancel"), &json!({}));
    let refused = cancel(id);
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["error"]["message"],
        "Cannot cancel a synchronous response."
    );
    assert_eq!(cancel("resp_none").status, 404);
}

#[test]
fn conversations_of_a_batch_are_answered_as_alone() {
    let server = Server::plain();
    let conversation = |text: &str| json!([{"role": "user", "content": text}]);
    let texts = ["Hello!", "Who sleeps?", "Count to three."];
    let path = "/v1/chat/completions/batch";
    let base = json!({"model": MODEL, "temperature": 0, "max_tokens": 8});
    let all = with(&base, &json!({"messages": texts.map(conversation)}));
    let batch = server.post(path, &all).json();
    let choices = batch["choices"]
        .as_array()
        .unwrap_or_else(|| panic!("{batch}"));
    let mut sum = 0;
    for (at, text) in texts.iter().enumerate() {
        let alone = server
            .post(CHAT, &with(&base, &json!({"messages": conversation(text)})))
            .json();
        assert_eq!(choices[at]["index"], at);
        assert_eq!(choices[at]["message"], alone["choices"][0]["message"]);
        sum += alone["usage"]["total_tokens"].as_u64().expect("a count");
    }
    assert_eq!(batch["usage"]["total_tokens"], sum);
    assert_eq!(
        server.post(path, &with(&all, &json!({"n": 2}))).json()["choices"][5]["index"],
        5
    );
    for (more, field) in [
        (json!({"messages": []}), "messages"),
        (json!({"messages": [[]]}), "messages"),
        (json!({"messages": conversation("flat")}), "messages"),
        (json!({"messages": "a"}), "messages"),
        (json!({"messages": vec![conversation("a"); 65]}), "messages"),
        (json!({"stream": true}), "stream"),
        (json!({"temperature": 9}), "temperature"),
        (json!({"lora": "x"}), "lora"),
    ] {
        let refused = server.post(path, &with(&all, &more));
        assert_eq!(
            (refused.status.as_u16(), &refused.json()["error"]["param"]),
            (400, &json!(field)),
            "{more}"
        );
    }
}

#[test]
fn an_invocation_is_what_its_fields_say() {
    let server = Server::plain();
    for (body, object) in [
        (hello(), "chat.completion"),
        (
            json!({"prompt": "Once", "max_tokens": 2}),
            "text_completion",
        ),
        (json!({"input": "Once"}), "list"),
        (json!({"text_1": "a", "text_2": "b"}), "list"),
    ] {
        let answer = server.post("/invocations", &body);
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["object"]),
            (200, &json!(object)),
            "{body}"
        );
    }
    let ranked = server
        .post(
            "/invocations",
            &json!({"query": "a", "documents": ["b", "c"]}),
        )
        .json();
    assert_eq!(
        ranked["results"].as_array().map(Vec::len),
        Some(2),
        "{ranked}"
    );
    let stream = server.post("/invocations", &with(&hello(), &json!({"stream": true})));
    assert!(stream.chunks().len() > 1);
    assert_eq!(
        server.post("/invocations", &json!({"nothing": 1})).status,
        400
    );
}

#[test]
fn a_rendered_prompt_says_where_its_tokens_are() {
    let server = Server::plain();
    let text = "Où est le 🙂 café?";
    let asked = json!({"prompt": text, "return_token_offsets": true});
    let rendered = server.post("/v1/completions/render", &asked).json()[0].clone();
    let tokens: Vec<u32> = serde_json::from_value(rendered["token_ids"].clone()).expect("ids");
    let offsets: Vec<[usize; 2]> =
        serde_json::from_value(rendered["token_offsets"].clone()).expect("offsets");
    assert_eq!(tokens, ids(text));
    assert_eq!(offsets.len(), tokens.len());
    let characters = text.chars().count();
    assert_eq!(
        (offsets[0][0], offsets.last().expect("a token")[1]),
        (0, characters)
    );
    for pair in offsets.windows(2) {
        assert!(
            pair[1][0] == pair[0][1] || pair[1][0] + 1 == pair[0][1],
            "{offsets:?}"
        );
    }
    let asked = with(&hello(), &json!({"return_token_offsets": true}));
    let chat = server.post("/v1/chat/completions/render", &asked).json();
    let counts = ["token_ids", "token_offsets"].map(|name| chat[name].as_array().map(Vec::len));
    assert!(counts[0].is_some() && counts[0] == counts[1], "{chat}");
    let plain = server.post("/v1/chat/completions/render", &hello()).json();
    assert!(plain["token_offsets"].is_null());
}

#[test]
fn metrics_have_the_label_and_the_histograms_of_vllm() {
    let server = Server::plain();
    let text = "One two three four five six seven eight nine ten. ".repeat(4);
    let prompt = json!({"prompt": text, "max_tokens": 3, "n": 2});
    server.post(COMPLETIONS, &prompt);
    server.post(COMPLETIONS, &prompt);
    server.wait_until_idle();
    let text = server.get("/metrics").text;
    for line in text.lines().filter(|line| line.starts_with("vllm:")) {
        assert!(line.contains("{engine=\"0\",model_name=\"demo\""), "{line}");
    }
    let value = |start: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        value.unwrap_or_else(|| panic!("{start}: {text}"))
    };
    assert_eq!(value("vllm:request_params_n_sum"), 4.0);
    assert_eq!(value("vllm:request_params_max_tokens_sum"), 6.0);
    let cached = value("vllm:prompt_tokens_cached_total");
    assert!(cached > 0.0);
    let by = "vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"demo\",source=";
    let [computed, hit] =
        ["local_compute", "local_cache_hit"].map(|source| value(&format!("{by}\"{source}\"")));
    assert_eq!(
        (hit, computed + hit),
        (cached, value("vllm:prompt_tokens_total"))
    );
    assert!(value("vllm:request_prefill_kv_computed_tokens_sum") > 0.0);
    let steps = value("vllm:engine_steps_total");
    assert_eq!(value("vllm:iteration_tokens_total_count"), steps);
    assert!(
        value("vllm:iteration_tokens_total_sum") > steps,
        "a prompt's step has many tokens"
    );
    for reason in ["capacity", "deferred"] {
        let by = "vllm:num_requests_waiting_by_reason{engine=\"0\",model_name=\"demo\",reason=";
        assert_eq!(value(&format!("{by}\"{reason}\"")), 0.0);
    }
}

#[test]
fn responses_are_counted_by_route_method_and_class_of_status() {
    let server = Server::plain();
    server.post(COMPLETIONS, &json!({"prompt": "a", "max_tokens": 1}));
    server.post(
        &format!("{COMPLETIONS}/"),
        &json!({"prompt": "a", "max_tokens": 1}),
    );
    server.post(COMPLETIONS, &json!({"prompt": 5}));
    server.get("/nowhere/1");
    server.get("/nowhere/2");
    let invented = Request::builder().method("BREW").uri("/v1/models");
    server.send(invented.body(Body::empty()).expect("it is a request"));
    let text = server.get("/metrics").text;
    for (route, method, status, count) in [
        (COMPLETIONS, "POST", "2xx", 2),
        (COMPLETIONS, "POST", "4xx", 1),
        ("none", "GET", "4xx", 2),
        ("/v1/models", "OTHER", "4xx", 1),
    ] {
        let labels = format!("handler=\"{route}\",method=\"{method}\",status=\"{status}\"");
        let line = format!("http_requests_total{{{labels}}} {count}\n");
        assert!(text.contains(&line), "{line}{text}");
    }
}

#[test]
fn scores_are_asked_for_under_every_name() {
    let server = Server::plain();
    let (query, documents) = (json!("Who sleeps?"), json!(["A cat sleeps.", "It rains."]));
    for path in ["/score", "/v1/score"] {
        let scores = |first: &str, second: &str| {
            let answer = server.post(path, &json!({ (first): query, (second): documents }));
            assert_eq!(answer.status, 200, "{first} {second}: {}", answer.text);
            answer.json()["data"].clone()
        };
        let expected = scores("text_1", "text_2");
        assert_eq!(expected.as_array().map(Vec::len), Some(2));
        for (first, second) in [
            ("queries", "documents"),
            ("queries", "items"),
            ("data_1", "data_2"),
        ] {
            assert_eq!(scores(first, second), expected);
        }
        for (body, field) in [
            (json!({"text_1": "a"}), "text_2"),
            (json!({}), "text_1"),
            (json!({"documents": "a"}), "queries"),
            (
                json!({"text_1": "a", "queries": "b", "text_2": "c"}),
                "queries",
            ),
            (
                json!({"queries": "a", "items": "b", "documents": "c"}),
                "documents",
            ),
            (json!({"queries": ["a", "b"], "items": ["c"]}), "queries"),
        ] {
            let refused = server.post(path, &body).json();
            assert_eq!(refused["error"]["param"], field, "{body}: {refused}");
        }
    }
}

#[test]
fn a_conversation_is_embedded_as_its_template_writes_it() {
    let server = Server::plain();
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    let vector = |body: &Value| {
        let answer = server.post("/v1/embeddings", body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text);
        answer.json()["data"][0]["embedding"].clone()
    };
    for more in [json!({}), json!({"add_generation_prompt": true})] {
        let base = with(
            &json!({"messages": messages, "add_generation_prompt": false}),
            &more,
        );
        let rendered = server.post("/v1/chat/completions/render", &base).json();
        let by_ids = vector(&json!({"input": rendered["token_ids"]}));
        assert_eq!(
            vector(&with(&json!({"messages": messages}), &more)),
            by_ids,
            "{more}"
        );
    }
    let refused = server
        .post("/v1/embeddings", &json!({"messages": []}))
        .json();
    assert_eq!(refused["error"]["param"], "messages");
    let raw = vector(&json!({"input": "Hello!", "normalize": false}));
    assert_eq!(
        vector(&json!({"input": "Hello!", "use_activation": false})),
        raw
    );
}

#[test]
fn vectors_have_the_format_and_the_byte_order_that_a_request_names() {
    let server = Server::plain();
    let ask = |more: Value| {
        server.post(
            "/v1/embeddings",
            &with(&json!({"input": ["a", "b"]}), &more),
        )
    };
    let floats: Vec<Vec<f32>> = ask(json!({})).json()["data"]
        .as_array()
        .expect("vectors")
        .iter()
        .map(|entry| serde_json::from_value(entry["embedding"].clone()).expect("numbers"))
        .collect();
    let bytes = |more: Value| {
        let text =
            ask(with(&json!({"encoding_format": "base64"}), &more)).json()["data"][0]["embedding"]
                .clone();
        base64::Engine::decode(
            &base64::engine::general_purpose::STANDARD,
            text.as_str().expect("a text"),
        )
        .expect("base64")
    };
    let little: Vec<u8> = floats[0]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let big: Vec<u8> = floats[0]
        .iter()
        .flat_map(|value| value.to_be_bytes())
        .collect();
    assert_eq!(bytes(json!({})), little);
    assert_eq!(
        bytes(json!({"embed_dtype": "float32", "endianness": "big"})),
        big
    );
    let half: Vec<u8> = floats[0]
        .iter()
        .flat_map(|value| half::f16::from_f32(*value).to_le_bytes())
        .collect();
    assert_eq!(bytes(json!({"embed_dtype": "float16"})), half);
    assert_eq!(
        bytes(json!({"embed_dtype": "bfloat16"})).len(),
        floats[0].len() * 2
    );
    for (more, field) in [
        (json!({"embed_dtype": "fp8"}), "embed_dtype"),
        (json!({"endianness": "middle"}), "endianness"),
        (json!({"encoding_format": "text"}), "encoding_format"),
    ] {
        assert_eq!(ask(more).json()["error"]["param"], field);
    }
    let many = json!({"input": vec!["a"; 600], "encoding_format": "bytes"});
    let refused = server.post("/v1/embeddings", &many).json();
    assert_eq!(refused["error"]["param"], "encoding_format");
}
