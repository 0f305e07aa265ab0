//! Model files that change while a server uses them.

use super::{Server, folio, packed, text};
use serde_json::{Value, json};
use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A copy of a test checkpoint, as a folder.
fn copy(folder: &Path) -> PathBuf {
    let weights = folder.join("model.safetensors");
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        fs::copy(packed::model("golden/llama").join(file), folder.join(file))
            .expect("the file copies");
    }
    weights
}

fn logprobs(answer: &str) -> Option<Value> {
    let body: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()?;
    Some(body["choices"][0]["logprobs"].clone()).filter(|logprobs| !logprobs.is_null())
}

fn ask(server: &Server) -> String {
    let prompt: Vec<u32> = (3..40).collect();
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, "ignore_eos": true});
    server.ask("POST", "/v1/completions", &body.to_string())
}

/// Overwrites every byte of the weights in place, or cuts the file.
fn damage(weights: &Path, cut: bool) {
    let file = fs::OpenOptions::new()
        .write(true)
        .open(weights)
        .expect("it opens");
    let bytes = file.metadata().expect("it has a length").len();
    if cut {
        file.set_len(100).expect("it can be cut");
    } else {
        fs::write(weights, vec![0x55; bytes as usize]).expect("it can be overwritten");
    }
}

#[test]
fn a_model_that_is_loaded_does_not_need_its_files() {
    for cut in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let weights = copy(folder.path());
        let server = Server::with(&[
            "--device",
            "cpu",
            "--model",
            folder.path().to_str().expect("a path"),
        ]);
        let before = logprobs(&ask(&server)).expect("an answer");
        damage(&weights, cut);
        assert_eq!(logprobs(&ask(&server)), Some(before.clone()));
        fs::remove_file(&weights).expect("it can be removed");
        assert_eq!(logprobs(&ask(&server)), Some(before));
    }
}

/// A map needs the file: if it is truncated, the engine ends with an error that names it, and without a signal.
#[cfg(unix)]
#[test]
fn a_truncated_map_ends_the_engine_with_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let weights = copy(folder.path());
    let path = folder.path().to_str().expect("a path");
    let mut server = Server::with(&["--device", "reference", "--mmap", "--model", path]);
    assert!(logprobs(&ask(&server)).is_some(), "a map is read");
    damage(&weights, true);
    let answer = ask(&server);
    assert!(
        answer.starts_with("HTTP/1.1 5"),
        "no answer from zeros: {answer}"
    );
    let mut messages = String::new();
    server
        .messages
        .read_to_string(&mut messages)
        .expect("stderr reads");
    assert_eq!(
        server.process.wait().expect("the server ends").code(),
        Some(1),
        "{messages}"
    );
    let last = messages.lines().last().unwrap_or_default();
    assert!(
        last.contains("truncated") && last.contains("model.safetensors"),
        "{messages}"
    );
}

#[test]
fn a_map_and_a_copy_give_the_same_answer() {
    let run = |options: &[&str]| {
        let gguf = packed::model("gguf/tiny-llama-Q4_K_M.gguf");
        let path = gguf.to_str().expect("a path").to_owned();
        let input = ["run", "--device", "cpu", "--model", &path, "--input", "-"];
        let mut command = folio(&[&input[..], options].concat());
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        let line = br#"{"prompt_token_ids": [3, 4, 5], "max_tokens": 8, "temperature": 0}"#;
        std::io::Write::write_all(&mut process.stdin.take().expect("stdin"), line)
            .expect("it reads");
        text(&process.wait_with_output().expect("it ends").stdout)
    };
    let copied = run(&[]);
    assert!(copied.contains("token_ids"), "{copied}");
    assert_eq!(run(&["--mmap"]), copied);
}

#[cfg(unix)]
#[test]
fn a_pipe_in_place_of_a_model_is_refused_at_once() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let weights = copy(folder.path());
    for name in [
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "model.gguf",
    ] {
        let path = weights.with_file_name(name);
        drop(fs::remove_file(&path));
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("mkfifo starts").success());
        let model = if name == "model.gguf" {
            path.clone()
        } else {
            folder.path().to_owned()
        };
        let start = Instant::now();
        let output = folio(&[
            "run",
            "--device",
            "fake",
            "--prompt",
            "a",
            "--model",
            &model.to_string_lossy(),
        ])
        .output();
        let output = output.expect("it starts");
        let errors = text(&output.stderr);
        assert!(
            !output.status.success() && errors.contains("not a regular file"),
            "{name}: {errors}"
        );
        assert!(start.elapsed() < Duration::from_secs(20), "{name}");
        fs::remove_file(&path).expect("it is there");
        copy(folder.path());
    }
}

/// What is taken otherwise than a file says, or not at all, is told, and the model answers.
#[test]
fn what_is_ignored_of_a_model_is_told() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let warnings = |model: &Path| {
        let path = model.to_str().expect("a path");
        let options = [
            "run",
            "--device",
            "cpu",
            "--max-tokens",
            "1",
            "--model",
            path,
        ];
        let input = ["--input", "-"];
        let mut command = folio(&[&options[..], &input].concat());
        command
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        let line = br#"{"prompt_token_ids": [3, 4, 5], "max_tokens": 1}"#;
        std::io::Write::write_all(&mut process.stdin.take().expect("stdin"), line)
            .expect("it reads");
        let output = process.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let gguf = fs::read(packed::model("gguf/tiny-qwen3-Q4_0.gguf")).expect("the file reads");
    let place = |key: &str| {
        let found = gguf
            .windows(key.len())
            .position(|bytes| bytes == key.as_bytes());
        found.expect("the file has the key") + key.len()
    };
    let file = folder.path().join("model.gguf");
    let mut without_split = gguf.clone();
    without_split[place("tokenizer.ggml.pre") - 1] = b'x';
    fs::write(&file, without_split).expect("it can be written");
    let told = warnings(&file);
    assert!(told.contains("tokenizer.ggml.pre is missing"), "{told}");
    let mut end_beyond = gguf.clone();
    // Behind the key stand the type of its value and the value.
    let value = place("tokenizer.ggml.eos_token_id") + 4;
    end_beyond[value..value + 4].copy_from_slice(&9999u32.to_le_bytes());
    fs::write(&file, end_beyond).expect("it can be written");
    let told = warnings(&file);
    assert!(
        told.contains("tokenizer.ggml.eos_token_id is 9999") && told.contains("it is ignored"),
        "{told}"
    );
    fs::write(&file, gguf).expect("it can be written");
    assert!(!warnings(&file).contains("WARN"), "a whole file has none");
    copy(folder.path());
    let generation = br#"{"top_p": 1.5, "eos_token_id": 100000}"#;
    fs::write(folder.path().join("generation_config.json"), generation).expect("it can be written");
    fs::remove_file(&file).expect("it is there");
    let told = warnings(folder.path());
    assert!(
        told.contains("top_p") && told.contains("it is ignored"),
        "{told}"
    );
}
