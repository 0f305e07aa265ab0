//! `serve --lora-modules`: adapters as models, all at once, compared with the answers of peft.

use super::{Server, folio, json, packed, refusal};
use serde_json::Value;

fn folder(name: &str) -> String {
    let folder = packed::model("golden-lora/llama").join(name);
    folder.to_str().expect("a path is text").to_owned()
}

/// A server of the base with three adapters, of which so many fit a step.
fn server(slots: &str) -> Server {
    let modules = [("a", "r8-qv"), ("b", "r4-all"), ("c", "r16-rslora")];
    let modules = modules.map(|(name, adapter)| format!("{name}={}", folder(adapter)));
    let mut arguments = vec!["--max-loras", slots, "--lora-modules"];
    arguments.extend(modules.iter().map(String::as_str));
    let base = folder("base");
    let model = ["serve", "--port", "0", "--device", "cpu", "--model", &base];
    Server::of(folio(&[&model[..], &arguments].concat()))
}

/// The names of the models, with those of the adapters in the golden file.
const NAMES: [(&str, &str); 4] = [
    ("", ""),
    ("a", "r8-qv"),
    ("b", "r4-all"),
    ("c", "r16-rslora"),
];

fn golden() -> Value {
    let text = std::fs::read(folder("golden.json")).expect("the golden file reads");
    serde_json::from_slice(&text).expect("the golden file is JSON")
}

/// The answer of a model to a golden case must be the golden one.
fn answers(server: &Server, model: &str, case: &Value) {
    let mut body = json!({"prompt": case["prompt"], "max_tokens": 24, "temperature": 0, "return_token_ids": true,
                          "ignore_eos": true});
    if !model.is_empty() {
        body["model"] = model.into();
    }
    let reply = server.ask("POST", "/v1/completions", &body.to_string());
    let (_, body) = reply.split_once("\r\n\r\n").expect("a reply has a body");
    let reply: Value = serde_json::from_str(body).expect("it is JSON");
    assert_eq!(
        reply["choices"][0]["token_ids"], case["greedy"],
        "{model}: {reply}"
    );
}

#[test]
fn clients_of_different_adapters_get_the_answers_of_peft_at_once() {
    let golden = golden();
    // With one slot, they take turns.
    for slots in ["3", "1"] {
        let server = server(slots);
        std::thread::scope(|scope| {
            for (model, adapter) in NAMES {
                let cases = golden["adapters"][adapter]["cases"].as_array();
                for case in cases.expect("a list of cases") {
                    let server = &server;
                    scope.spawn(move || answers(server, model, case));
                }
            }
        });
        let list = server.ask("GET", "/v1/models", "");
        assert!(
            list.contains(r#""id":"c""#) && list.contains(r#""parent":"#),
            "{list}"
        );
    }
}

#[test]
fn an_adapter_is_refused_where_it_changes_nothing() {
    let server = server("3");
    let reply = server.ask(
        "POST",
        "/v1/embeddings",
        r#"{"model": "a", "input": [1, 2]}"#,
    );
    assert!(
        reply.starts_with("HTTP/1.1 400 ") && reply.contains("is an adapter"),
        "{reply}"
    );
}

#[test]
fn adapters_that_do_not_fit_end_the_server_before_it_starts() {
    let base = folder("base");
    let start = |more: &[&str], words: &[&str]| {
        let command = ["serve", "--port", "0", "--device", "cpu", "--model", &base];
        refusal(&[&command[..], more].concat(), words);
    };
    let module = format!("a={}", folder("r16-rslora"));
    start(
        &["--max-lora-rank", "8", "--lora-modules", &module],
        &["--lora-modules a", "has rank 16", "--max-lora-rank"],
    );
    start(
        &["--lora-modules", &module, &module],
        &["--lora-modules a", "has this name"],
    );
    let module = format!("a={}", folder("dora"));
    start(
        &["--lora-modules", &module],
        &["adapter_config.json", "use_dora"],
    );
    start(&["--lora-modules", "a"], &["NAME=PATH"]);
}
