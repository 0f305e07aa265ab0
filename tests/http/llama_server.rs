//! What clients of llama.cpp's server ask about the server, its model and its settings.

use crate::harness::{CHAT, END, MODEL, Server, config, hello, wait, with};
use crate::llama::{ok, refused};
use axum::body::Body;
use axum::http::Request;
use folio::server::ServerOptions;
use serde_json::{Value, json};

#[test]
fn the_small_routes_of_llama_cpp_answer() {
    let server = Server::plain();
    let get = |path: &str| {
        let answer = server.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        answer.json()
    };
    let slots = get("/slots");
    let slot = json!({"id": 0, "n_ctx": 2048, "is_processing": false});
    assert_eq!(slots[0], slot);
    assert_eq!(
        slots.as_array().map(|slots| slots.len() as u64),
        get("/props")["total_slots"].as_u64()
    );
    assert_eq!(get("/lora-adapters"), json!([]));
    assert_eq!(
        ok(&server, "/lora-adapters", &json!([])),
        json!({"success": true})
    );
    assert_eq!(
        refused(&server, "/lora-adapters", &json!([{"id": 0, "scale": 1}])),
        "id"
    );
    for path in ["/props", "/slots/0?action=save"] {
        let answer = server.post(path, &json!({}));
        assert_eq!(
            (answer.status.as_u16(), &answer.json()["error"]["type"]),
            (501, &json!("not_supported_error"))
        );
    }
    let ranked = json!({"query": "Who?", "documents": ["a", "b"]});
    for path in ["/reranking", "/v1/reranking"] {
        assert_eq!(
            ok(&server, path, &ranked)["results"]
                .as_array()
                .map(Vec::len),
            Some(2)
        );
    }
    let (messages, chat) = (&hello()["messages"], "chat/completions/input_tokens");
    let tokens = ok(&server, "/tokenize", &json!({"messages": messages}))["count"].clone();
    for path in [format!("/{chat}"), format!("/v1/{chat}")] {
        let counted = ok(
            &server,
            &path,
            &json!({"model": MODEL, "messages": messages, "stream": true}),
        );
        assert_eq!(
            counted,
            json!({"object": "response.input_tokens", "input_tokens": tokens})
        );
    }
}

#[test]
fn health_needs_no_key_under_both_of_its_names() {
    let options = ServerOptions {
        api_keys: vec!["sesame-9".into()],
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    for path in ["/health", "/v1/health"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        assert_eq!(server.send(request).status, 200, "{path}");
    }
}

#[test]
fn a_reply_tells_the_seed_that_was_used() {
    let seeded = folio::config::Config {
        seed: Some(42),
        ..config()
    };
    let server = Server::fake("", seeded, ServerOptions::default());
    let props = server.get("/props").json();
    assert_eq!(props["default_generation_settings"]["params"]["seed"], 42);
    assert_eq!(props["is_sleeping"], false);
    let request = json!({"prompt": "Hello", "n_predict": 8, "temperature": 1, "ignore_eos": true});
    let first = ok(&server, "/completion", &request);
    let seed = &first["generation_settings"]["seed"];
    assert!(seed.is_i64() && *seed != -1, "{seed}");
    let again = ok(
        &server,
        "/completion",
        &with(&request, &json!({"seed": seed})),
    );
    assert_eq!(first["content"], again["content"]);
    let own = ok(&server, "/completion", &with(&request, &json!({"seed": 7})));
    assert_eq!(own["generation_settings"]["seed"], 7);
}

#[test]
fn a_client_is_told_if_it_asks_whether_no_slot_is_free() {
    let one = folio::config::Config {
        max_num_seqs: 1,
        ..config()
    };
    let server = Server::fake("pause=20", one, ServerOptions::default());
    let (health, slots) = ("/health?fail_on_no_slot=1", "/slots?fail_on_no_slot=1");
    assert_eq!(
        [health, slots].map(|path| server.get(path).status.as_u16()),
        [200, 200]
    );
    let request = with(
        &hello(),
        &json!({"stream": true, "ignore_eos": true, "max_tokens": 1000}),
    );
    let mut running = server.open(CHAT, &request);
    assert!(running.more());
    // The count is that of the last step.
    wait("it runs", || server.get(slots).status == 503);
    for path in [health, slots] {
        let answer = server.get(path);
        let told = (answer.status.as_u16(), &answer.json()["error"]["code"]);
        assert_eq!(told, (503, &json!("no_slot")), "{path}");
    }
    for path in ["/health", "/slots", "/health?fail_on_no_slot="] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
}

#[test]
fn a_list_of_models_tells_their_size_and_their_other_names() {
    let server = Server::fake("", config(), ServerOptions::default());
    let model = server.get("/v1/models").json()["data"][0].clone();
    let spec = folio::model::Model::demo().spec().clone();
    let meta = &model["meta"];
    for (name, value) in [
        ("n_vocab", u64::from(spec.vocab)),
        ("n_ctx", 2048),
        ("n_ctx_train", u64::from(spec.positions_max)),
    ] {
        assert_eq!(meta[name], value, "{name}: {meta}");
    }
    let (bytes, parameters) = (meta["size"].as_u64(), meta["n_params"].as_u64());
    assert!(parameters > Some(100_000) && bytes > parameters, "{meta}");
    assert_eq!(meta["ftype"], server.get("/props").json()["model_ftype"]);
    assert!(meta["ftype"].is_string(), "{meta}");
    let (aliases, tags) = (&model["aliases"], &model["tags"]);
    assert_eq!([aliases, tags], [&json!(["other/name"]), &json!([])]);
    assert_eq!(model["architecture"]["input_modalities"], json!(["text"]));
}

#[test]
fn props_name_the_models_file_and_what_its_template_shows() {
    let options = ServerOptions {
        file: Some("tiny-F16.gguf".into()),
        ..ServerOptions::default()
    };
    let props = Server::fake("", config(), options).get("/props").json();
    assert_eq!(
        (&props["model_path"], &props["model_alias"]),
        (&json!("tiny-F16.gguf"), &json!(MODEL))
    );
    let caps = &props["chat_template_caps"];
    assert_eq!(
        [&caps["supports_tools"], &caps["supports_system_role"]],
        [&json!(true), &json!(true)],
        "{caps}"
    );
    let nameless = Server::plain().get("/props").json();
    assert_eq!(nameless["model_path"], MODEL);
}

#[test]
fn settings_tell_the_biases_of_a_request_and_the_end_tokens_that_are_left_out() {
    let server = Server::plain();
    let biases = |more: Value| {
        let request = with(&json!({"prompt": "Hello", "n_predict": 1}), &more);
        ok(&server, "/completion", &request)["generation_settings"]["logit_bias"].clone()
    };
    assert_eq!(biases(json!({})), json!([]));
    assert_eq!(
        biases(json!({"ignore_eos": true, "logit_bias": [[5, -1.5]]})),
        json!([{"token": END, "bias": null}, {"token": 4089, "bias": null}, {"token": 5, "bias": -1.5}])
    );
}
