//! Adapters of `serve` and `run`: as models, all at once, combined, and loaded by clients; compared with the answers of
//! peft.

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
    of_base(&arguments)
}

/// A server of the base with these options.
fn of_base(more: &[&str]) -> Server {
    let base = folder("base");
    let model = ["serve", "--port", "0", "--device", "cpu", "--model", &base];
    Server::of(folio(&[&model[..], more].concat()))
}

/// Status and body of a reply.
fn reply(server: &Server, method: &str, path: &str, body: &Value) -> (u32, String) {
    let reply = server.ask(method, path, &body.to_string());
    let (head, body) = reply.split_once("\r\n\r\n").expect("a reply has a body");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// A reply that must be successful JSON.
fn ok(server: &Server, method: &str, path: &str, body: &Value) -> Value {
    let (status, text) = reply(server, method, path, body);
    assert_eq!(status, 200, "{path}: {text}");
    serde_json::from_str(&text).expect("it is JSON")
}

/// A reply that must refuse, with these words.
fn refused(server: &Server, path: &str, body: &Value, (status, words): (u32, &[&str])) {
    let (found, text) = reply(server, "POST", path, body);
    assert_eq!(found, status, "{path} {body}: {text}");
    for word in words {
        assert!(text.contains(word), "{path} {body}: {text}");
    }
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
    let reply = ok(server, "POST", "/v1/completions", &body);
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

/// The likeliest token after a prompt with its logprob, from logits.
fn likeliest(logits: &Value) -> (usize, f64) {
    let logits = logits.as_array().expect("a list").iter();
    let logits: Vec<f64> = logits.filter_map(Value::as_f64).collect();
    let (id, most) = logits
        .iter()
        .enumerate()
        .fold((0, f64::MIN), |best, (id, &logit)| {
            if logit > best.1 { (id, logit) } else { best }
        });
    let sum: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
    (id, -sum.ln())
}

/// The first token of a greedy answer to the prompt of the golden file must be the likeliest one of these logits.
fn begins_with(server: &Server, more: &Value, logits: &Value) {
    let mut body = json!({"prompt": golden()["prefix"]["prompt"], "max_tokens": 1, "temperature": 0, "logprobs": 0,
                          "return_token_ids": true});
    for (name, value) in more.as_object().expect("fields") {
        body[name] = value.clone();
    }
    let choice = ok(server, "POST", "/v1/completions", &body)["choices"][0].take();
    let (id, expected) = likeliest(logits);
    assert_eq!(choice["token_ids"], json!([id]), "{more}");
    let found = choice["logprobs"]["token_logprobs"][0].as_f64();
    let difference = (found.expect("a logprob") - expected).abs();
    assert!(difference < 2e-3, "{more}: {difference}");
}

#[test]
fn adapters_are_combined_as_llama_cpp_s_clients_ask() {
    let golden = golden();
    let [first, second] = ["r8-qv", "r4-all"].map(folder);
    let more = ["--kv-cache-dtype", "f32", "--lora-scaled"];
    let scaled = format!("{first}:0.5,{second}:0.25");
    let server = of_base(&[&more[..], &[&scaled]].concat());
    let list = ok(&server, "GET", "/lora-adapters", &json!(null));
    assert_eq!(
        (&list[0]["id"], &list[0]["scale"], &list[1]["scale"]),
        (&json!(0), &json!(0.5), &json!(0.25))
    );
    let (mixed, alone) = (&golden["mixed"]["logits"], &golden["prefix"]["logits"]);
    // Those of the command line change every answer of the base.
    begins_with(&server, &json!({}), mixed);
    begins_with(&server, &json!({"lora": []}), &alone[""]);
    begins_with(
        &server,
        &json!({"lora": [{"id": 1, "scale": 1}]}),
        &alone["r4-all"],
    );
    begins_with(&server, &json!({"model": "r8-qv"}), &alone["r8-qv"]);
    // Of an adapter that is named twice, the last factor counts.
    let lora = json!([{"id": 1, "scale": 0.25}, {"id": 0, "scale": 9}, {"id": 0, "scale": 0.5}]);
    begins_with(&server, &json!({"lora": lora}), mixed);
    let set = ok(
        &server,
        "POST",
        "/lora-adapters",
        &json!([{"id": 0, "scale": 1.0}]),
    );
    assert_eq!(set, json!({"success": true}));
    begins_with(&server, &json!({}), &alone["r8-qv"]);
    ok(&server, "POST", "/lora-adapters", &json!([]));
    begins_with(&server, &json!({}), &alone[""]);
    let complete = |lora: Value| json!({"prompt": "a", "max_tokens": 1, "lora": lora});
    for lora in [
        json!([{"id": 2}]),
        json!([{"scale": 1}]),
        json!([{"id": 0, "scale": 1e9}]),
        json!("x"),
    ] {
        refused(
            &server,
            "/v1/completions",
            &complete(lora),
            (400, &["lora"]),
        );
    }
    let mut both = complete(json!([{"id": 0}]));
    both["model"] = "r8-qv".into();
    refused(&server, "/v1/completions", &both, (400, &["already"]));
    refused(
        &server,
        "/lora-adapters",
        &json!([{"id": 7}]),
        (400, &["adapter 7"]),
    );
    refused(
        &server,
        "/v1/embeddings",
        &json!({"input": "a", "lora": [{"id": 0}]}),
        (400, &["lora"]),
    );
}

#[test]
fn ranks_that_exceed_the_room_together_are_refused() {
    let [first, second] = ["r16-rslora", "r8-qv"].map(folder);
    let lora = format!("{first},{second}");
    let server = of_base(&[
        "--lora-init-without-apply",
        "--max-lora-rank",
        "16",
        "--lora",
        &lora,
    ]);
    let body = json!({"prompt": "a", "max_tokens": 1, "lora": [{"id": 0}, {"id": 1}]});
    refused(
        &server,
        "/v1/completions",
        &body,
        (400, &["lora", "exceed 16"]),
    );
    let base = folder("base");
    let command = [
        "serve",
        "--port",
        "0",
        "--device",
        "cpu",
        "--model",
        &base,
        "--max-lora-rank",
        "16",
        "--lora",
    ];
    refusal(
        &[&command[..], &[&lora]].concat(),
        &["--lora", "larger rank than 16"],
    );
}

#[test]
fn clients_load_and_unload_adapters_of_one_folder() {
    let golden = golden();
    let parent = packed::model("golden-lora/llama");
    let parent = parent.to_str().expect("a path is text");
    let outside = format!("r1={}", folder("r8-qv"));
    let server = of_base(&[
        "--kv-cache-dtype",
        "f32",
        "--max-cpu-loras",
        "3",
        "--lora-folder",
        parent,
        "--lora-modules",
        &outside,
    ]);
    let load = |name: &str, path: &str| json!({"lora_name": name, "lora_path": path});
    let (loads, unloads) = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter");
    let (status, text) = reply(&server, "POST", loads, &load("mine", "r4-all"));
    assert_eq!(
        (status, text.as_str()),
        (200, "Success: LoRA adapter 'mine' added successfully.")
    );
    let logits = &golden["prefix"]["logits"];
    begins_with(&server, &json!({"model": "mine"}), &logits["r4-all"]);
    let models = ok(&server, "GET", "/v1/models", &json!(null));
    assert_eq!(
        (&models["data"][2]["id"], &models["data"][2]["root"]),
        (&json!("mine"), &json!("r4-all"))
    );
    refused(
        &server,
        loads,
        &load("mine", "r8-qv"),
        (400, &["already been loaded"]),
    );
    let mut again = load("mine", "r8-qv");
    again["load_inplace"] = true.into();
    let (status, _) = reply(&server, "POST", loads, &again);
    assert_eq!(status, 200);
    // Nothing that the former adapter cached is used.
    begins_with(&server, &json!({"model": "mine"}), &logits["r8-qv"]);
    let base = models["data"][0]["id"].as_str().expect("a name");
    refused(
        &server,
        loads,
        &load(base, "r8-qv"),
        (400, &["conflicts with a served base model"]),
    );
    for path in ["nowhere", "..", "/etc", "../../..", "base", ""] {
        refused(
            &server,
            loads,
            &load("x", path),
            (400, &["no such adapter in the folder"]),
        );
    }
    refused(
        &server,
        loads,
        &load("x", "dora"),
        (400, &["lora_path", "use_dora"]),
    );
    refused(
        &server,
        loads,
        &json!({"lora_name": "x"}),
        (400, &["lora_path"]),
    );
    let (status, _) = reply(&server, "POST", loads, &load("third", "r16-rslora"));
    assert_eq!(status, 200);
    refused(
        &server,
        loads,
        &load("fourth", "r4-all"),
        (400, &["--max-cpu-loras"]),
    );
    let metrics = server.ask("GET", "/metrics", "");
    assert!(
        metrics.contains("vllm:lora_requests_info{")
            && metrics.contains(r#"max_lora="1",running_lora_adapters="""#),
        "{metrics}"
    );
    let (status, text) = reply(&server, "POST", unloads, &json!({"lora_name": "mine"}));
    assert_eq!(
        (status, text.as_str()),
        (200, "Success: LoRA adapter 'mine' removed successfully.")
    );
    refused(
        &server,
        unloads,
        &json!({"lora_name": "mine"}),
        (404, &["cannot be found"]),
    );
    refused(
        &server,
        "/v1/completions",
        &json!({"model": "mine", "prompt": "a"}),
        (404, &["mine"]),
    );
}

#[cfg(unix)]
#[test]
fn a_link_out_of_the_folder_is_not_followed() {
    let folder_of_clients = tempfile::tempdir().expect("a folder");
    let link = folder_of_clients.path().join("link");
    std::os::unix::fs::symlink(folder("r8-qv"), link).expect("a link");
    let copied = folder_of_clients.path().join("copied");
    std::fs::create_dir(&copied).expect("a folder");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::os::unix::fs::symlink(format!("{}/{file}", folder("r8-qv")), copied.join(file))
            .expect("a link");
    }
    let place = folder_of_clients.path().to_str().expect("a path is text");
    let server = of_base(&["--lora-folder", place]);
    for path in ["link", "copied"] {
        let load = json!({"lora_name": "x", "lora_path": path});
        refused(
            &server,
            "/v1/load_lora_adapter",
            &load,
            (400, &["no such adapter in the folder"]),
        );
    }
}

#[test]
fn clients_load_nothing_unless_a_folder_is_named() {
    let server = server("1");
    let load = json!({"lora_name": "x", "lora_path": "/tmp"});
    refused(
        &server,
        "/v1/load_lora_adapter",
        &load,
        (501, &["--lora-folder"]),
    );
    refused(
        &server,
        "/v1/unload_lora_adapter",
        &json!({"lora_name": "a"}),
        (501, &["--lora-folder"]),
    );
}

#[test]
fn an_adapter_changes_the_answers_of_run() {
    let golden = golden();
    let case = &golden["adapters"]["r4-all"]["cases"][0];
    let folder_of_input = tempfile::tempdir().expect("a folder");
    let input = folder_of_input.path().join("requests.jsonl");
    let line = json!({"prompt_token_ids": case["prompt"], "max_tokens": 24, "temperature": 0, "ignore_eos": true,
                      "return_token_ids": true});
    std::fs::write(&input, line.to_string()).expect("a file");
    let input = input.to_str().expect("a path is text");
    let (base, adapter) = (folder("base"), folder("r4-all"));
    let command = [
        "run", "--device", "cpu", "--model", &base, "--lora", &adapter, "--input", input,
    ];
    let output = super::run(&command);
    assert!(output.status.success(), "{}", super::text(&output.stderr));
    let line: Value = serde_json::from_slice(&output.stdout).expect("a line of JSON");
    let ids = &line["outputs"][0]["token_ids"];
    assert_eq!(ids, &case["greedy"], "{line}");
}
