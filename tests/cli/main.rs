//! The binary from a user's view: output, exit codes, one-line errors, and a server that starts, answers and shuts
//! down. `hub` tests models by name.
//!
//! Everything runs on the CPU reference with the built-in demo model or the small folders of `tests/data`. Expected
//! answers come from the reference outputs beside those models, not from folio itself.

mod batch;
#[cfg(unix)]
#[path = "../support/gguf_builder.rs"]
mod builder;
mod closed;
mod disk;
mod files;
#[cfg(unix)]
mod hostile;
mod hub;
mod lora;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(unix)]
mod messages;
#[cfg(unix)]
#[path = "../support/gguf_models.rs"]
mod models;
#[path = "../support/packed.rs"]
mod packed;
mod plan;
mod quantize;
mod serving;
mod several;
mod speculation;
#[cfg(unix)]
mod terminal;
mod traces;
#[cfg(unix)]
mod unix_socket;
mod vectors;
mod vllm;

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

fn folio(arguments: &[&str]) -> Command {
    program(env!("CARGO_BIN_EXE_folio"), arguments)
}

/// A program without the developer's own settings, which must not affect a test.
fn program(name: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("FOLIO_") || name.starts_with("OTEL_"))
    {
        command.env_remove(name);
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    folio(arguments).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

/// Runs a command that must succeed, and returns its output.
fn result(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(
        output.status.success(),
        "{arguments:?} failed: {}",
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Runs a command that must fail with one line that contains all of `words`, and nothing on stdout.
fn refusal(arguments: &[&str], words: &[&str]) {
    let output = run(arguments);
    let message = text(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} must fail");
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| code == 1 || code == 2),
        "{arguments:?}: {:?}",
        output.status
    );
    assert_eq!(
        text(&output.stdout),
        "",
        "{arguments:?}: stdout is for results"
    );
    let errors: Vec<&str> = message
        .lines()
        .filter(|line| line.starts_with("error: "))
        .collect();
    assert_eq!(
        errors.len(),
        1,
        "{arguments:?}: one line tells the error: {message}"
    );
    assert_eq!(
        message.lines().last(),
        errors.last().copied(),
        "{arguments:?}: nothing follows it: {message}"
    );
    for word in words {
        assert!(
            errors[0].contains(word),
            "{arguments:?}: {word:?} is not in {message}"
        );
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn parsed(path: &str) -> Value {
    read_json(&repository(path))
}

fn read_json(file: &Path) -> Value {
    let text = fs::read_to_string(file).expect("the reference is part of the repository");
    serde_json::from_str(&text).expect("the reference is JSON")
}

/// Prompts for the demo model with the answers of another implementation, in f32.
fn demo_golden() -> Vec<Value> {
    parsed("assets/demo/recipe/golden.json")["prompts"]
        .as_array()
        .expect("a list of prompts")
        .clone()
}

fn golden_answer(golden: &Value) -> String {
    golden["greedy_text"]
        .as_str()
        .expect("a text")
        .trim_end_matches("<|im_end|>")
        .to_owned()
}

#[cfg(target_os = "linux")]
#[test]
fn a_pool_larger_than_the_machines_memory_is_refused() {
    let pool = [
        "--device",
        "cpu",
        "--kv-cache-bytes",
        "100000GiB",
        "--max-num-seqs",
        "1",
    ];
    let words = ["KV pool (", " TiB) do not fit in ", "with --kv-cache-bytes"];
    refusal(&[&["run", "--prompt", "a"][..], &pool].concat(), &words);
    refusal(&[&["serve", "--port", "0"][..], &pool].concat(), &words);
}

#[test]
fn the_size_of_the_host_tier_is_given_once() {
    let serve = ["serve", "--port", "0", "--device", "fake"];
    let sizes = [
        ["--kv-host-bytes", "1GiB"],
        ["--swap-space", "1"],
        ["--kv-offloading-size", "1"],
    ];
    for [first, second] in [[0, 1], [0, 2], [1, 2]] {
        let words = [sizes[first][0], "cannot be used with", sizes[second][0]];
        refusal(
            &[&serve[..], &sizes[first], &sizes[second]].concat(),
            &words,
        );
    }
    refusal(
        &[&serve[..], &["--swap-space", "4GiB"]].concat(),
        &["`4GiB` is not a number of GiB"],
    );
}

#[test]
fn a_context_that_is_lowered_is_said() {
    let words = "the context (max_model_len) is limited to 2048 tokens instead of 5000, \
        because the model has no positions";
    let lowered = ["--device", "cpu", "--max-model-len", "5000"];
    for command in [
        &["run", "--prompt", "a", "--max-tokens", "1"][..],
        &["bench", "--scenario", "serve", "--requests", "1"],
    ] {
        let output = run(&[command, &lowered[..]].concat());
        let message = text(&output.stderr);
        assert_eq!(
            message.lines().filter(|line| line.contains(words)).count(),
            1,
            "{command:?}: {message}"
        );
    }
    let output = run(&[
        "run",
        "--prompt",
        "a",
        "--max-tokens",
        "1",
        "--device",
        "cpu",
        "--max-model-len",
        "2048",
    ]);
    assert!(
        !text(&output.stderr).contains("limited"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn run_answers_a_prompt() {
    let golden = demo_golden();
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
        "--prompt",
    ];
    let prompt = golden[0]["messages"][0]["content"]
        .as_str()
        .expect("a user's message");
    assert_eq!(
        result(&[&greedy[..], &[prompt]].concat()),
        golden_answer(&golden[0]) + "\n"
    );
    let rendered = golden[0]["prompt_text"].as_str().expect("a text");
    let raw = result(&[&greedy[..], &[rendered, "--raw"]].concat());
    assert_eq!(
        raw,
        golden_answer(&golden[0]) + "\n",
        "--raw takes the text as it is"
    );
    let same = |seed| {
        result(&[
            "run",
            "--device",
            "cpu",
            "--temperature",
            "1",
            "--seed",
            seed,
            "--prompt",
            "Hello!",
        ])
    };
    assert_eq!(same("7"), same("7"), "a seed fixes the answer");
}

/// Every command can make an adapter run the kernels of another class.
#[test]
fn kernels_of_another_gpu_are_chosen_by_option_or_variable() {
    let commands: [&[&str]; 6] = [
        &["serve"],
        &["chat"],
        &["run", "--prompt", "a"],
        &["plan"],
        &["bench"],
        &["selftest"],
    ];
    let wrong = [
        (
            "FOLIO_WGPU_CLASS",
            "--class",
            "discrete, integrated, software",
        ),
        ("FOLIO_WGPU_TIER", "--tier", "t0, t1"),
    ];
    for (variable, option, allowed) in wrong {
        for command in commands {
            let output = folio(command)
                .env(variable, "huge")
                .output()
                .expect("the binary starts");
            let message = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{command:?}: {message}");
            assert!(
                [variable, "huge", allowed]
                    .iter()
                    .all(|word| message.contains(word)),
                "{command:?}: {message}"
            );
        }
        let output = folio(&["plan", option, "huge"])
            .env(variable, "also wrong")
            .output()
            .expect("the binary starts");
        let message = text(&output.stderr);
        assert!(
            message.contains(option) && !message.contains(variable),
            "the typed value was wrong: {message}"
        );
    }
    let devices: Value = serde_json::from_str(&result(&["devices", "--json"])).expect("it is JSON");
    if !devices["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .any(|device| device["device"] == "wgpu:0")
    {
        println!("SKIPPED: wgpu finds no adapter to choose kernels for");
        return;
    }
    let mut plan = folio(&["plan", "--device", "wgpu:0", "--json"]);
    let output = plan
        .env("FOLIO_WGPU_CLASS", "integrated")
        .env("FOLIO_WGPU_TIER", "t0")
        .output();
    let output = output.expect("the binary starts");
    let plan: Value = serde_json::from_str(&text(&output.stdout)).expect("it is JSON");
    let tier = plan["device"]["tier"].as_str().expect("a tier");
    let integrated = plan["device"]["kind"] == "integrated";
    assert_eq!(
        tier,
        if integrated {
            "T0"
        } else {
            "T0, kernels of the integrated class"
        }
    );
    let typed = result(&[
        "plan",
        "--device",
        "wgpu:0",
        "--json",
        "--class",
        "integrated",
        "--tier",
        "t0",
    ]);
    assert_eq!(
        serde_json::from_str::<Value>(&typed).expect("it is JSON")["device"]["tier"],
        tier
    );
}

#[test]
fn run_answers_a_file_as_one_batch() {
    let golden = demo_golden();
    let mut lines: Vec<String> = golden
        .iter()
        .map(|golden| json!({"messages": golden["messages"], "tools": golden["tools"]}).to_string())
        .collect();
    lines.insert(1, r#"{"prompt": "a", "no_such_field": 1}"#.to_owned());
    lines.insert(2, "not JSON".to_owned());
    lines.push(
        json!({"prompt_token_ids": golden[0]["prompt_ids"], "n": 2, "logprobs": 5}).to_string(),
    );
    lines.push(json!({"prompt_token_ids": [4_000_000]}).to_string());
    lines.push(
        json!({"messages": golden[0]["messages"], "stop": golden_answer(&golden[0])[4..8]})
            .to_string(),
    );
    let folder = tempfile::tempdir().expect("a folder for this test");
    let (input, output) = (
        folder.path().join("in.jsonl"),
        folder.path().join("out.jsonl"),
    );
    fs::write(&input, lines.join("\n")).expect("the folder takes files");
    let (input, output) = (input.to_string_lossy(), output.to_string_lossy());
    let greedy = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--max-tokens",
        "64",
        "--input",
        &input,
    ];
    let run = run(&[&greedy[..], &["--output", &output]].concat());
    assert_eq!(
        (text(&run.stdout).as_str(), run.status.code()),
        ("", Some(1)),
        "results go to the file; some failed"
    );
    assert!(
        text(&run.stderr).contains(&format!("3 of {} lines failed", lines.len())),
        "{}",
        text(&run.stderr)
    );

    let answers = fs::read_to_string(&*output).expect("the output was written");
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(answers.len(), lines.len());
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(
            answer["index"], index,
            "answers come in the order of their lines"
        );
    }
    assert!(
        answers[1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("no_such_field")),
        "{}",
        answers[1]
    );
    assert!(answers[2]["error"].is_string(), "{}", answers[2]);
    let good = answers[..1].iter().chain(&answers[3..=golden.len() + 1]);
    for (answer, golden) in good.zip(&golden) {
        assert_eq!(
            answer["outputs"][0]["token_ids"], golden["greedy_ids"],
            "{golden}"
        );
        assert_eq!(answer["outputs"][0]["text"], golden_answer(golden));
        assert_eq!(
            answer["usage"]["completion_tokens"],
            golden["greedy_ids"].as_array().map_or(0, Vec::len)
        );
        assert_eq!(
            answer["usage"]["prompt_tokens"],
            golden["prompt_ids"].as_array().map_or(0, Vec::len)
        );
    }
    let [choices, unknown, stopped] = &answers[golden.len() + 2..] else {
        panic!("three more lines")
    };
    assert_eq!(
        choices["outputs"][0], choices["outputs"][1],
        "greedy choices are equal"
    );
    assert_eq!(choices["outputs"][0]["token_ids"], golden[0]["greedy_ids"]);
    let entry = &choices["outputs"][0]["logprobs"][0];
    let (logprob, reference) = (
        &entry["top"][1]["logprob"],
        &golden[0]["top5_logprobs_first_8"][0][1][1],
    );
    let difference = logprob.as_f64().unwrap_or(f64::NAN) - reference.as_f64().unwrap_or(f64::NAN);
    assert!(
        difference.abs() < 0.05,
        "{entry} is near the reference's {reference}"
    );
    assert!(
        unknown["error"]
            .as_str()
            .is_some_and(|error| error.contains("4000000")),
        "{unknown}"
    );
    assert_eq!(
        stopped["outputs"][0]["text"],
        golden_answer(&golden[0])[..4],
        "text ends before the stop string"
    );
    assert_eq!(stopped["outputs"][0]["finish_reason"], "stop");
}

#[test]
fn a_model_without_tokenizer_serves_token_ids() {
    let case = &read_json(&packed::model("golden/llama/golden.json"))["cases"][0];
    let folder = tempfile::tempdir().expect("a folder for this test");
    let input = folder.path().join("in.jsonl");
    let lines = [
        json!({"prompt_token_ids": case["prompt"], "max_tokens": 24, "ignore_eos": true})
            .to_string(),
        json!({"prompt": "text"}).to_string(),
    ];
    fs::write(&input, lines.join("\n")).expect("the folder takes files");
    let (input, model) = (input.to_string_lossy(), packed::model("golden/llama"));
    let arguments = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--input",
        &input,
        "--model",
    ];
    let output = run(&[&arguments[..], &[&model.to_string_lossy()]].concat());
    let answers = text(&output.stdout);
    let answers: Vec<Value> = answers
        .lines()
        .map(|line| serde_json::from_str(line).expect("a line is JSON"))
        .collect();
    assert_eq!(answers[0]["outputs"][0]["token_ids"], case["greedy"]);
    assert_eq!(answers[0]["outputs"][0]["text"], Value::Null);
    assert_eq!(answers[0]["outputs"][0]["finish_reason"], "length");
    assert!(
        answers[1]["error"]
            .as_str()
            .is_some_and(|error| error.contains("tokenizer")),
        "{}",
        answers[1]
    );
}

#[test]
fn wrong_arguments_are_told_in_one_line() {
    refusal(
        &["run", "--prompt", "a", "--device", "wgpu:99"],
        &["wgpu:99", "cpu"],
    );
    refusal(
        &["run", "--prompt", "a", "--device", "cuda"],
        &["CUDA", "cpu"],
    );
    refusal(
        &["run", "--prompt", "a", "--device", "tpu"],
        &["--device", "auto"],
    );
    refusal(&["run"], &["--prompt"]);
    refusal(
        &[
            "run",
            "--prompt",
            "a",
            "--device",
            "cpu",
            "--block-size",
            "17",
        ],
        &["block-size", "17"],
    );
    refusal(
        &[
            "run",
            "--prompt",
            "a",
            "--device",
            "cpu",
            "--temperature",
            "9",
        ],
        &["temperature", "9"],
    );
    refusal(
        &["run", "--device", "cpu", "--input", "no-such-file.jsonl"],
        &["no-such-file.jsonl"],
    );
    refusal(
        &["bench", "--device", "cpu", "--shape", "1x2x3"],
        &["1x2x3"],
    );
    refusal(&["nonsense"], &["nonsense"]);
}

#[test]
fn help_says_the_defaults() {
    let help = result(&["serve", "--help"]);
    for (option, default) in [
        ("--max-num-seqs", "64"),
        ("--block-size", "32"),
        ("--gpu-memory-utilization", "0.9"),
    ] {
        let text = help
            .split(option)
            .nth(1)
            .and_then(|rest| rest.split("[env:").next())
            .expect("the option is there");
        assert!(
            text.contains(&format!("[default: {default}")),
            "{option}: {text}"
        );
    }
}

#[test]
fn broken_model_folders_are_told_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let place = folder.path();
    let model = place.to_string_lossy();
    let check = |words: &[&str]| {
        refusal(
            &["run", "--device", "cpu", "--prompt", "a", "--model", &model],
            words,
        );
    };
    refusal(
        &[
            "run",
            "--device",
            "cpu",
            "--prompt",
            "a",
            "--model",
            "no/such/folder",
        ],
        &["no/such/folder"],
    );
    check(&["config.json"]);

    let copy = |name: &str| {
        fs::copy(repository("assets/demo").join(name), place.join(name))
            .expect("a file of the demo copies");
    };
    for name in [
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        copy(name);
    }
    fs::write(place.join("config.json"), "{").expect("the folder takes files");
    check(&["config.json"]);
    let config =
        fs::read_to_string(repository("assets/demo/config.json")).expect("the demo has a config");
    let wrong = |from: &str, to: &str| {
        assert!(config.contains(from), "{from} is in the demo's config");
        fs::write(place.join("config.json"), config.replace(from, to))
            .expect("the folder takes files");
    };
    wrong("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 3");
    check(&["config.json", "num_key_value_heads", "3"]);
    wrong("\"rope_theta\": 10000.0", "\"rope_theta\": -1.0");
    check(&["config.json", "rope_theta"]);
    wrong("\"intermediate_size\": 640", "\"intermediate_size\": 648");
    check(&["safetensors", "mlp", "640", "648"]);
    wrong("Qwen3ForCausalLM", "OtherForCausalLM");
    check(&["config.json", "OtherForCausalLM", "Qwen3ForCausalLM"]);

    copy("config.json");
    let weights = fs::read(place.join("model.safetensors")).expect("the copy reads");
    fs::write(
        place.join("model.safetensors"),
        &weights[..weights.len() / 2],
    )
    .expect("the folder takes files");
    check(&["model.safetensors"]);
    copy("model.safetensors");
    fs::write(place.join("tokenizer.json"), "{}").expect("the folder takes files");
    check(&["tokenizer.json"]);
}

#[test]
fn devices_names_the_cpu_and_the_choice() {
    let devices: Value =
        serde_json::from_str(&result(&["devices", "--json"])).expect("one JSON object");
    let list = devices["devices"].as_array().expect("a list");
    assert_eq!(list[0]["device"], "cpu");
    let chosen: Vec<&Value> = list
        .iter()
        .filter(|device| device["chosen"] == true)
        .collect();
    assert_eq!(chosen.len(), 1, "exactly one is chosen: {devices}");
    assert_eq!(chosen[0]["device"], devices["chosen"]);
    let software = chosen[0]["kind"] == "software" && chosen[0]["device"] != "cpu";
    assert!(
        !software,
        "a driver that runs shaders on the CPU is never chosen: {devices}"
    );
    assert!(result(&["devices"]).contains("auto selects"));
}

/// Where a driver crashes while it lists its devices, a process of its own does so first, and this one goes on without.
#[test]
fn devices_can_be_listed_without_vulkan_and_tried_in_silence() {
    let output = folio(&["devices", "--json"])
        .env("FOLIO_WITHOUT_VULKAN", "1")
        .output()
        .expect("it runs");
    let devices: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let list = devices["devices"].as_array().expect("a list");
    assert_eq!(list[0]["device"], "cpu");
    assert!(
        list.iter().all(|device| device["api"] != "vulkan"),
        "{devices}"
    );
    assert_eq!(result(&["devices", "--try"]), "");
}

/// Without a usable NVIDIA device the same binary says why and uses another device; with one it lists it.
#[cfg(feature = "cuda")]
#[test]
fn devices_says_what_of_cuda_is_missing() {
    let devices: Value =
        serde_json::from_str(&result(&["devices", "--json"])).expect("one JSON object");
    let parts = devices["cuda"]["parts"]
        .as_array()
        .expect("a list of what was found and what is missing");
    assert!(!parts.is_empty(), "{devices}");
    let listed = devices["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .any(|device| device["api"] == "cuda");
    let Some(obstacle) = devices["cuda"]["obstacle"].as_str() else {
        assert!(listed && devices["chosen"] == "cuda:0", "{devices}");
        return;
    };
    assert!(devices["chosen"] != "cuda:0", "{devices}");
    refusal(&["run", "--prompt", "a", "--device", "cuda"], &[obstacle]);
    let output = run(&[
        "run",
        "--prompt",
        "Hi",
        "--max-tokens",
        "1",
        "--device",
        "auto",
    ]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.lines().filter(|line| line.contains(obstacle)).count(),
        1,
        "one line tells why: {said}"
    );
}

/// A server of the demo model on a free port; it ends with the test.
struct Server {
    process: Child,
    messages: Box<dyn BufRead + Send + Sync>,
    address: String,
    /// Its output until it was ready.
    greeting: String,
    /// Additional header lines of every request.
    headers: Vec<&'static str>,
}

impl Server {
    fn start() -> Self {
        Self::with(&["--device", "cpu"])
    }

    fn with(options: &[&str]) -> Self {
        Self::of(folio(&[&["serve", "--port", "0"], options].concat()))
    }

    /// A server on the fake device, after some words of a shell.
    #[cfg(unix)]
    fn after(words: &str, script: &str) -> Self {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("{words}; exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_folio"),
        ]);
        command.args(["serve", "--port", "0", "--device", script]);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut process = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let mut messages = BufReader::new(process.stderr.take().expect("stderr is piped"));
        let (mut line, mut greeting) = (String::new(), String::new());
        while !line.contains("http://") {
            line.clear();
            assert!(
                messages.read_line(&mut line).expect("stderr reads") > 0,
                "the server ended before it was ready"
            );
            greeting += &line;
        }
        let rest = line
            .split("http://")
            .nth(1)
            .expect("the line names the address");
        let address = rest
            .split(|c: char| c.is_whitespace() || c == '/')
            .next()
            .unwrap_or_default()
            .to_owned();
        Self {
            process,
            messages: Box::new(messages),
            address,
            greeting,
            headers: Vec::new(),
        }
    }

    /// Sends a request and returns the whole response, head and body.
    fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let mut stream = self.open(method, path, body);
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("the answer is text");
        answer
    }

    fn open(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).expect("the server listens");
        let headers = self.headers.concat();
        let host = if headers.contains("Host:") {
            String::new()
        } else {
            format!("Host: {}\r\n", self.address)
        };
        let head = format!("{method} {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n");
        let length = body.len();
        let request = format!(
            "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream
            .write_all(request.as_bytes())
            .expect("the server takes the request");
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // If the test passed, it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(unix)]
fn signal(server: &Server, name: &str) {
    let id = server.process.id().to_string();
    assert!(
        Command::new("kill")
            .args([name, &id])
            .status()
            .expect("kill runs")
            .success()
    );
}

/// Opens a stream and waits until it has begun.
#[cfg(unix)]
fn begun(server: &Server, max_tokens: u32) -> BufReader<TcpStream> {
    let body =
        json!({"prompt": "Hello", "stream": true, "ignore_eos": true, "max_tokens": max_tokens});
    let mut stream = BufReader::new(server.open("POST", "/v1/completions", &body.to_string()));
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(
            stream.read_line(&mut line).expect("the stream reads") > 0,
            "the stream has begun"
        );
    }
    stream
}
