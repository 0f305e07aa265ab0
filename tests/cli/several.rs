//! Several models behind one server, from the command line: a file of options, the plan of all models, and the commands
//! that speak to a running server.

use super::{
    Server, demo_golden, folio, golden_answer, packed, refusal, repository, result, run, text,
};
use folio::backend::DeviceKind;
use folio::backend::wgpu::WgpuBackend;
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tempfile::TempDir;

/// A file of options, in a folder that is removed with it.
struct File {
    _folder: TempDir,
    path: PathBuf,
}

impl File {
    fn new(options: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("folio.toml");
        fs::write(&path, options).expect("it can be written");
        Self {
            _folder: folder,
            path,
        }
    }

    fn name(&self) -> &str {
        self.path.to_str().expect("a path of text")
    }
}

/// The demo model, a folder and a GGUF file.
fn three(device: &str, top: &str) -> File {
    let at = |path: &str| Value::from(packed::model(path).to_string_lossy()).to_string();
    File::new(&format!(
        "port = 0\ndevice = \"{device}\"\nkv-cache-bytes = \"8MiB\"\n{top}\n\
         [models.chat]\nalias = [\"gpt-4o-mini\"]\n\
         [models.folder]\nmodel = {}\nmax-num-seqs = 4\n\
         [models.gguf]\nmodel = {}\nidle-unload = 1000\n",
        at("golden/qwen3"),
        at("gguf/tiny-qwen3-Q8_0.gguf"),
    ))
}

fn body(answer: &str) -> Value {
    let body = answer.split("\r\n\r\n").nth(1).expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// What `folio ps` tells of each model.
fn statuses(server: &str) -> Vec<String> {
    let listed: Value =
        serde_json::from_str(&result(&["ps", "--server", server, "--json"])).expect("JSON");
    let models = listed["models"].as_array().expect("a list").iter();
    models
        .map(|model| {
            format!(
                "{} {}",
                model["name"].as_str().unwrap_or(""),
                model["status"].as_str().unwrap_or("")
            )
        })
        .collect()
}

/// What `folio chat` prints for one message.
fn chat(options: &[&str]) -> String {
    let sampling = ["--temperature", "0", "--max-tokens", "12"];
    let mut command = folio(&[&["chat"], options, &sampling].concat());
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    process
        .stdin
        .take()
        .expect("it is piped")
        .write_all(b"Hello!\n")
        .expect("it reads");
    let output = process.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_file_serves_several_models() {
    let file = three("cpu", "max-num-seqs = 8");
    let mut server = Server::of(folio(&["serve", "--config", file.name()]));
    assert!(
        server
            .greeting
            .contains("all can be loaded at the same time"),
        "{}",
        server.greeting
    );
    let address = server.address.clone();
    let show = body(&server.ask("POST", "/api/show", &json!({"model": "chat"}).to_string()));
    assert_eq!(
        show["capabilities"],
        json!(["completion", "tools", "embedding"]),
        "{show}"
    );
    assert_eq!(show["model_info"]["folio.context_length"], 2048, "{show}");
    assert_eq!(
        statuses(&address),
        ["chat unloaded", "folder unloaded", "gguf unloaded"]
    );

    let golden = demo_golden();
    let ask = json!({"model": "gpt-4o-mini", "messages": golden[0]["messages"], "temperature": 0, "max_tokens": 64});
    let answer = server.ask("POST", "/v1/chat/completions", &ask.to_string());
    assert!(answer.contains(&golden_answer(&golden[0])), "{answer}");
    for model in ["folder", "tiny-qwen3-Q8_0"] {
        let ask = json!({"model": model, "prompt": [5, 6, 7], "max_tokens": 3, "ignore_eos": true});
        let answer = server.ask("POST", "/v1/completions", &ask.to_string());
        assert_eq!(body(&answer)["usage"]["completion_tokens"], 3, "{answer}");
    }
    let size = |folder: &Path| {
        super::read_json(&folder.join("config.json"))["hidden_size"]
            .as_u64()
            .expect("a size")
    };
    let sizes = [repository("assets/demo"), packed::model("golden/qwen3")]
        .map(|folder| size(&folder) as usize);
    assert_ne!(sizes[0], sizes[1]);
    for (model, size) in [("folder", sizes[1]), ("chat", sizes[0])] {
        let answer = server.ask(
            "POST",
            "/v1/embeddings",
            &json!({"model": model, "input": [5, 6, 7]}).to_string(),
        );
        let vector: Vec<f64> =
            serde_json::from_value(body(&answer)["data"][0]["embedding"].take()).expect("numbers");
        let length = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!(
            vector.len() == size && (length - 1.0).abs() < 1e-3,
            "{model}: {length}, {answer}"
        );
    }
    assert_eq!(
        statuses(&address),
        ["chat loaded", "folder loaded", "gguf loaded"]
    );
    let listed = result(&["ps", "--server", &address]);
    assert!(
        listed.lines().count() == 4 && listed.contains("chat    loaded"),
        "{listed}"
    );
    let load = body(&server.ask("GET", "/v1/loads", ""));
    let most: Vec<_> = (0..3)
        .map(|index| load["loads"][index]["max_running_requests"].clone())
        .collect();
    assert_eq!(
        most,
        [8, 4, 8],
        "a table's option wins over the top of the file"
    );

    result(&["stop", "folder", "--server", &address]);
    assert_eq!(statuses(&address)[1], "folder unloaded");
    refusal(
        &["stop", "folder", "--server", &address],
        &["the model is not loaded"],
    );
    result(&["load", "folder", "--server", &address]);
    assert_eq!(statuses(&address)[1], "folder loaded");
    refusal(
        &["load", "nobody", "--server", &address],
        &["`nobody` not found; there is `chat`, `gpt-4o-mini`"],
    );

    let here = chat(&["--device", "cpu"]);
    assert_eq!(chat(&["--server", &address]), here);
    assert_eq!(
        chat(&["--server", &address, "--model", "gpt-4o-mini"]),
        here
    );
    refusal(
        &["chat", "--server", &address, "--model", "nobody"],
        &["has no model nobody", "gpt-4o-mini, folder"],
    );

    #[cfg(unix)]
    {
        super::signal(&server, "-TERM");
        let mut messages = String::new();
        server
            .messages
            .read_to_string(&mut messages)
            .expect("stderr reads");
        assert_eq!(
            server.process.wait().expect("the server ends").code(),
            Some(0),
            "{messages}"
        );
        assert_eq!(messages.matches("is unloaded").count(), 4, "{messages}");
    }
    refusal(
        &["ps", "--server", &address],
        &["no answer from http://", "is `folio serve` running there?"],
    );
}

/// Clients of random models, on the processor and on every software adapter, while models come and go.
#[test]
fn many_clients_of_random_models_are_answered() {
    let adapters = WgpuBackend::adapters()
        .into_iter()
        .filter(|adapter| adapter.kind == DeviceKind::Software);
    let golden = &demo_golden()[0];
    let expected = golden_answer(golden);
    for device in adapters
        .map(|adapter| format!("wgpu:{}", adapter.index))
        .chain(["cpu".to_owned()])
    {
        let file = three(&device, "");
        let server = Server::of(folio(&["serve", "--config", file.name()]));
        let client = |client: usize| {
            for turn in 0..2 {
                let model = ["chat", "folder", "gguf"][(client * 7 + turn * 5 + client / 3) % 3];
                let ask = match model {
                    "chat" => {
                        json!({"model": model, "messages": golden["messages"], "temperature": 0, "max_tokens": 64})
                    }
                    _ => {
                        json!({"model": model, "prompt": [5, 6, 7], "max_tokens": 64, "ignore_eos": true})
                    }
                };
                let route = if model == "chat" {
                    "/v1/chat/completions"
                } else {
                    "/v1/completions"
                };
                let answer = server.ask("POST", route, &ask.to_string());
                let is_right = match model {
                    "chat" => answer.contains(&expected),
                    _ => body(&answer)["usage"]["completion_tokens"] == 64,
                };
                assert!(is_right, "{device}, client {client}, {model}: {answer}");
                if client % 8 == turn {
                    server.ask(
                        "POST",
                        "/models/unload",
                        &json!({"model": model}).to_string(),
                    );
                }
            }
        };
        std::thread::scope(|scope| {
            (0..32).for_each(|number| drop(scope.spawn(move || client(number))));
        });
    }
}

#[test]
fn several_models_without_a_file() {
    let path = packed::model("golden/qwen3").to_string_lossy().into_owned();
    let gguf = packed::model("gguf/tiny-qwen3-Q8_0.gguf")
        .to_string_lossy()
        .into_owned();
    let server = Server::with(&["--device", "fake", "--model", &path, "--model", &gguf]);
    assert_eq!(
        statuses(&server.address),
        [
            format!("{path} unloaded"),
            "tiny-qwen3-Q8_0 unloaded".to_owned()
        ]
    );
    for name in ["qwen3", "tiny-qwen3-Q8_0"] {
        let ask = json!({"model": name, "prompt": [5], "max_tokens": 1});
        let answer = server.ask("POST", "/v1/completions", &ask.to_string());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let alone = Server::with(&["--device", "fake", "--model", &path]);
    let answer = alone.ask(
        "POST",
        "/v1/completions",
        &json!({"model": "qwen3", "prompt": [5]}).to_string(),
    );
    assert!(
        answer.starts_with("HTTP/1.1 200"),
        "a single model is found by its folder's name too: {answer}"
    );
    refusal(&["serve", &path, &path], &["two models have the name"]);
    refusal(
        &["serve", &path, "--model", &gguf],
        &["the model is named twice"],
    );
    refusal(
        &["serve", &path, &gguf, "--served-model-name", "a"],
        &["--served-model-name names one model"],
    );
}

#[test]
fn a_damaged_model_does_not_concern_the_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let gguf = folder.path().join("cut.gguf");
    let whole = fs::read(packed::model("gguf/tiny-qwen3-Q8_0.gguf")).expect("it is there");
    fs::write(&gguf, &whole[..whole.len() / 2]).expect("it can be written");
    let file = File::new(&format!(
        "port = 0\ndevice = \"fake\"\n[models.demo]\n[models.cut]\nmodel = {}\n[models.none]\nmodel = \"./no/such\"\n",
        Value::from(gguf.to_string_lossy())
    ));
    let server = Server::of(folio(&["serve", "--config", file.name(), "--offline"]));
    let ask = |model: &str| {
        let ask = json!({"model": model, "prompt": [5], "max_tokens": 1});
        server.ask("POST", "/v1/completions", &ask.to_string())
    };
    for (model, words) in [("cut", "cut.gguf"), ("none", "no/such")] {
        let refused = ask(model);
        assert!(
            refused.starts_with("HTTP/1.1 503") && refused.contains("model_load_failed"),
            "{refused}"
        );
        assert!(refused.contains(words), "{refused}");
    }
    assert!(ask("demo").starts_with("HTTP/1.1 200"));
}

/// The tokenizer comes through a pipe, so that the model loads until the test writes it.
#[cfg(unix)]
#[test]
fn a_signal_while_a_model_loads_ends_its_requests_and_the_server() {
    let file =
        File::new("port = 0\ndevice = \"fake:loading=1500\"\n[models.demo]\n[models.slow]\n");
    let mut server = Server::of(folio(&["serve", "--config", file.name()]));
    let ask = json!({"model": "demo", "prompt": [5], "max_tokens": 1});
    assert!(
        server
            .ask("POST", "/v1/completions", &ask.to_string())
            .starts_with("HTTP/1.1 200")
    );
    let ask = json!({"model": "slow", "prompt": "Hello", "stream": true});
    let mut stream = server.open("POST", "/v1/completions", &ask.to_string());
    while statuses(&server.address)[1] != "slow loading" {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    super::signal(&server, "-TERM");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the stream reads");
    assert!(
        answer.contains(": loading `slow`") && answer.contains("server_shutting_down"),
        "{answer}"
    );
    assert!(answer.contains("data: [DONE]"), "{answer}");
    let mut messages = String::new();
    server
        .messages
        .read_to_string(&mut messages)
        .expect("stderr reads");
    assert_eq!(
        server.process.wait().expect("the server ends").code(),
        Some(0),
        "{messages}"
    );
    assert_eq!(messages.matches("is unloaded").count(), 2, "{messages}");
}

#[test]
fn one_plan_is_made_for_all_models() {
    let planned = |options: &str| {
        let file = File::new(options);
        let output = run(&["plan", "--config", file.name(), "--json"]);
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
        (report, output.status.code())
    };
    let tables =
        "[models.a]\n[models.b]\nmax-num-seqs = 32\n[models.c]\nkv-cache-bytes = \"4MiB\"\n";
    // Weights of 10 MiB and activations of 8 MiB each.
    let (report, code) = planned(&format!("device = \"fake:memory=104857600\"\n{tables}"));
    let of = |report: &Value, index: usize, name: &str| {
        report["models"][index][name].as_u64().expect("a number")
    };
    let device = &report["devices"][0];
    assert_eq!(
        (code, &device["side_by_side"], device["bytes"].as_u64()),
        (
            Some(0),
            &json!(true),
            Some((0..3).map(|index| of(&report, index, "bytes")).sum())
        )
    );
    let pools = [0, 1, 2].map(|index| of(&report, index, "kv_bytes"));
    assert!(
        pools[0].abs_diff(pools[1]) < pools[0] / 20 && pools[2] <= 4 << 20,
        "what is left is shared equally: {pools:?}"
    );
    let budget = device["budget_bytes"].as_u64().expect("it is known");
    assert!(
        device["bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes <= budget && bytes > budget * 9 / 10),
        "{report}"
    );

    let (report, code) = planned(&format!("device = \"fake:memory=31457280\"\n{tables}"));
    assert_eq!(
        (code, &report["devices"][0]["side_by_side"]),
        (Some(0), &json!(false)),
        "{report}"
    );
    let (report, code) = planned(&format!("device = \"fake:memory=14680064\"\n{tables}"));
    assert_eq!(
        (code, &report["models"][0]["fits"]),
        (Some(1), &json!(false)),
        "{report}"
    );
    assert!(
        report["models"][0]["reason"]
            .as_str()
            .is_some_and(|reason| reason.contains("no room for a KV pool"))
    );
    let tabled = |options: &str| {
        result(&[
            "plan",
            "--config",
            File::new(&format!("device = \"fake\"\nport = 1\n{options}{tables}")).name(),
        ])
    };
    let table = tabled("");
    assert!(
        table.starts_with("model  ") && table.contains("\na  ") && table.contains("\nc  "),
        "{table}"
    );
    assert!(
        !table.contains("host memory")
            && tabled("kv-host-bytes = \"8MiB\"\n").contains("  host memory  ")
    );
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    for (options, words) in [
        (
            "prot = 1",
            &["there is no option `prot`; did you mean `port`?"][..],
        ),
        ("port = 70000", &["invalid value '70000'", "--port"]),
        (
            "[models.a]\nmax-num-seqs = \"x\"",
            &["model a", "--max-num-seqs"],
        ),
        (
            "[models.a]\nmodle = \"x\"",
            &["models.a: there is no option `modle`; did you mean `model`?"],
        ),
        (
            "model = \"x\"\n[models.a]\n",
            &["the file's tables name the models"],
        ),
        (
            "[models.a]\nalias = \"b\"\n[models.b]\n",
            &["two models have the name b"],
        ),
        ("port = ", &["folio.toml", "line 1"]),
    ] {
        let file = File::new(options);
        refusal(&["serve", "--config", file.name()], words);
    }
    refusal(
        &["serve", "--config", "no-such-file.toml"],
        &["no-such-file.toml"],
    );
}
