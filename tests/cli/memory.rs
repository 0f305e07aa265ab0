//! The memory of a server is what `folio plan` says, and models that are unloaded give theirs back.

use super::{Server, folio, models, repository, result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Elements of the MLP's inner rows: enough for weights of more than 200 MB.
const WIDE: u64 = 24_576;
/// How much more a process may take than its plan says: the program itself, the tokenizer, requests.
const FACTOR: f64 = 1.35;

/// A row of the memory of a process, in bytes: `VmHWM` is the most that it has had, `VmRSS` what it has now.
fn memory(process: u32, row: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(':')).expect("the system tells it");
    line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") * 1024.0
}

/// Writes a model with weights of more than 200 MB, and returns its path.
fn wide(folder: &Path) -> String {
    let mut file = models::demo();
    file.set("qwen3.feed_forward_length", super::builder::Item::U32(WIDE as u32));
    for tensor in file.tensors.iter_mut().filter(|tensor| tensor.name.contains("ffn_") && !tensor.name.contains("norm"))
    {
        let inner = usize::from(!tensor.name.contains("ffn_down"));
        tensor.dimensions[inner] = WIDE;
        tensor.data = vec![0; tensor.dimensions.iter().product::<u64>() as usize * 2];
    }
    file.pack();
    let path = folder.join("wide.gguf");
    fs::write(&path, file.bytes()).expect("the folder takes files");
    path.to_string_lossy().into_owned()
}

#[test]
fn a_server_takes_what_its_plan_says() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = wide(folder.path());
    let options = ["--device", "cpu", "--model", &path, "--kv-cache-bytes", "16MiB"];

    let plan: Value = serde_json::from_str(&result(&[&["plan", "--json"], &options[..]].concat())).expect("JSON");
    let bytes = |name: &str| plan["asked"][name].as_f64().unwrap_or_else(|| panic!("{name}: {plan}"));
    let planned = bytes("weight_bytes") + bytes("activation_bytes") + bytes("kv_bytes");
    assert!(bytes("weight_bytes") > 200e6, "{plan}");
    let server = Server::of(folio(&[&["serve", "--port", "0"], &options[..]].concat()));
    let body = json!({"messages": [{"role": "user", "content": "Hello! ".repeat(100)}], "max_tokens": 4});
    let answer = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let taken = memory(server.process.id(), "VmHWM");
    assert!(taken < FACTOR * planned, "{:.0} MB are taken, {:.0} MB are planned", taken / 1e6, planned / 1e6);
}

/// Has a model answer, and unloaded again.
fn come_and_go(server: &Server, model: &str) -> f64 {
    let ask = json!({"model": model, "prompt": [5, 6], "max_tokens": 1});
    let answer = server.ask("POST", "/v1/completions", &ask.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let loaded = memory(server.process.id(), "VmRSS");
    let unload = json!({"model": model}).to_string();
    assert!(server.ask("POST", "/models/unload", &unload).starts_with("HTTP/1.1 200"));
    loaded
}

#[test]
fn models_that_are_unloaded_give_their_memory_back() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = wide(folder.path());
    let tiny = repository("tests/data/gguf/tiny-qwen3-Q8_0.gguf").to_string_lossy().into_owned();
    let pool = ["--device", "cpu", "--kv-cache-bytes", "16MiB"];
    let mut command = folio(&[&["serve", "--port", "0", "--model", &path, "--model", &tiny], &pool[..]].concat());
    // Nobody reads the messages, and the pipe that they wait in is not large.
    command.env("FOLIO_LOG", "folio=warn");
    let server = Server::of(command);
    let now = || {
        while !server.ask("GET", "/v1/models/wide", "").contains("\"unloaded\"") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        memory(server.process.id(), "VmRSS")
    };
    come_and_go(&server, "wide");
    let before = now();
    let loaded = come_and_go(&server, "wide");
    let after = now();
    assert!(loaded - before > 200e6, "{before} bytes before it was loaded, {loaded} after");
    assert!(after - before < 0.05 * (loaded - before), "{before} bytes before it was loaded, {after} afterwards");
    // What is lost at each load adds up in every round; what the allocator keeps for its threads does not.
    let round = || {
        let before = now();
        (0..100).for_each(|_| {
            come_and_go(&server, "tiny-qwen3-Q8_0");
        });
        now() - before
    };
    let grown = [round(), round(), round()];
    assert!(grown.iter().any(|grown| *grown < 8e6), "{grown:?} bytes more after 100 loads each");
}
