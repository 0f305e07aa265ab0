//! Models by name, with a local hub: what is downloaded, cached, resumed, verified and refused.

mod refusals;
mod server;
mod serving;

use super::packed;
use serde_json::{Value, json};
use server::{BadResponse, COMMIT, Hub, TOKEN};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

/// A user with a separate cache and one hub.
struct User {
    home: tempfile::TempDir,
    endpoint: String,
}

impl User {
    fn of(hub: &Hub) -> Self {
        Self {
            home: tempfile::tempdir().expect("a folder for this test"),
            endpoint: hub.endpoint.clone(),
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        // The developer's own settings must not affect a test.
        for (name, _) in std::env::vars() {
            let upper = name.to_ascii_uppercase();
            let steers = ["FOLIO_", "HF_", "HUGGING", "XDG_"]
                .iter()
                .any(|prefix| upper.starts_with(prefix));
            if steers || upper.ends_with("_PROXY") {
                command.env_remove(name);
            }
        }
        command
            .env("HF_HOME", self.home.path())
            .env("HF_ENDPOINT", &self.endpoint);
        command.args(arguments).stdin(Stdio::null());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary starts")
    }

    /// Output of a command that must succeed.
    fn result(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(
            output.status.success(),
            "{arguments:?} failed: {}",
            text(&output.stderr)
        );
        text(&output.stdout).trim_end().to_owned()
    }

    /// The one-line error of a command that must fail; it contains all of `words`.
    fn refusal(&self, arguments: &[&str], words: &[&str]) -> String {
        let output = self.run(arguments);
        let message = text(&output.stderr);
        assert!(
            output
                .status
                .code()
                .is_some_and(|code| code == 1 || code == 2),
            "{arguments:?} must fail: {message}"
        );
        assert_eq!(
            text(&output.stdout),
            "",
            "{arguments:?}: stdout is for results"
        );
        let last = message.lines().last().unwrap_or_default().to_owned();
        assert!(last.starts_with("error: "), "{arguments:?}: {message}");
        for word in words {
            assert!(
                last.contains(word),
                "{arguments:?}: {word:?} is not in {message}"
            );
        }
        last
    }

    fn pull(&self, name: &str) -> PathBuf {
        self.result(&["pull", name]).into()
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join("hub/models--org--tiny")
    }

    fn snapshot(&self) -> PathBuf {
        self.repo().join("snapshots").join(COMMIT)
    }

    /// Names in the folder of blobs.
    fn blobs(&self) -> Vec<String> {
        let entries =
            fs::read_dir(self.repo().join("blobs")).map_or_else(|_| Vec::new(), Iterator::collect);
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("it lists").file_name();
        let mut names: Vec<String> = entries
            .into_iter()
            .map(|entry| name(entry).to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(packed::model("golden/llama").join(name)).expect("it is there")
}

/// The tiny model, with other files that repositories have.
fn tiny() -> Arc<Hub> {
    Hub::new([
        (".gitattributes", b"*.safetensors lfs".to_vec()),
        ("README.md", b"# tiny".to_vec()),
        ("config.json", golden("config.json")),
        ("generation_config.json", golden("generation_config.json")),
        ("model.safetensors", golden("model.safetensors")),
        ("onnx/model.onnx", b"another format".to_vec()),
        ("original/consolidated.00.pth", b"another format".to_vec()),
        ("pytorch_model.bin", b"another format".to_vec()),
    ])
}

fn count(lines: &[String], part: &str) -> usize {
    lines.iter().filter(|line| line.contains(part)).count()
}

#[test]
fn only_what_is_needed_comes_and_it_comes_once() {
    let hub = tiny();
    let user = User::of(&hub);
    let output = user
        .command(&["pull", "org/tiny"])
        .env("HF_TOKEN", TOKEN)
        .output()
        .expect("the binary starts");
    assert_eq!(
        text(&output.stdout).trim_end(),
        user.snapshot().to_string_lossy(),
        "{}",
        text(&output.stderr)
    );
    assert!(
        text(&output.stderr).contains("org/tiny: downloading 3 files, 187"),
        "{}",
        text(&output.stderr)
    );

    let requests = hub.requests();
    let wanted = ["config.json", "generation_config.json", "model.safetensors"];
    for request in &requests {
        let known = wanted
            .iter()
            .any(|name| request.line.ends_with(&format!("/resolve/{COMMIT}/{name}")));
        assert!(
            known || request.line == "GET hub /api/models/org/tiny/revision/main",
            "{}",
            request.line
        );
        let sees_token = request.line.contains(" hub ");
        assert_eq!(
            request.authorization.is_some(),
            sees_token,
            "{}",
            request.line
        );
        assert!(
            request
                .authorization
                .as_deref()
                .is_none_or(|found| found == format!("Bearer {TOKEN}"))
        );
    }
    assert_eq!(
        requests
            .iter()
            .filter(|request| request.line.contains(" cdn "))
            .count(),
        1
    );
    // The layout equals that of Python's client.
    assert_eq!(
        fs::read_to_string(user.repo().join("refs/main")).expect("a revision"),
        COMMIT
    );
    let mut hashes = wanted.map(|name| hub.hash(name));
    hashes.sort();
    assert_eq!(user.blobs(), hashes);
    for name in wanted {
        let path = user.snapshot().join(name);
        assert_eq!(fs::read(&path).expect("it reads"), golden(name));
        if cfg!(unix) {
            let target = fs::read_link(&path).expect("a link");
            assert_eq!(target, Path::new("../../blobs").join(hub.hash(name)));
        }
    }

    user.pull("org/tiny");
    let lines = hub.lines();
    assert_eq!(
        (count(&lines, "HEAD"), lines.len()),
        (3, 4),
        "what is there is compared, not downloaded: {lines:?}"
    );
    user.result(&["pull", "org/tiny", "--offline"]);
    assert!(hub.lines().is_empty(), "offline is without any request");
    // A new commit with the same weights does not download them again.
    let next = COMMIT.replace('0', "f");
    hub.set_commit(&next);
    hub.set_file("config.json", &[&golden("config.json")[..], b"\n"].concat());
    assert!(user.pull("org/tiny").ends_with(&next));
    let lines = hub.lines();
    assert_eq!(
        (count(&lines, "GET cdn"), count(&lines, "GET hub /org")),
        (0, 1),
        "{lines:?}"
    );
}

#[test]
fn a_model_runs_by_name_online_and_off() {
    let hub = tiny();
    let user = User::of(&hub);
    let golden: Value =
        serde_json::from_slice(&golden("golden.json")).expect("the reference is JSON");
    let case = &golden["cases"][0];
    let input = user.home.path().join("in.jsonl");
    let line = json!({"prompt_token_ids": case["prompt"], "max_tokens": 24, "ignore_eos": true});
    fs::write(&input, line.to_string()).expect("the folder takes files");
    let input = input.to_string_lossy();
    let run = [
        "run",
        "--device",
        "cpu",
        "--temperature",
        "0",
        "--input",
        &input,
        "--model",
    ];
    for more in [
        &["org/tiny@main"][..],
        &["org/tiny"],
        &["org/tiny", "--offline"],
    ] {
        let answer: Value =
            serde_json::from_str(&user.result(&[&run[..], more].concat())).expect("a line of JSON");
        assert_eq!(
            answer["outputs"][0]["token_ids"], case["greedy"],
            "{more:?}"
        );
    }
    let lines = hub.lines();
    assert_eq!(
        (count(&lines, "GET cdn"), count(&lines, "HEAD")),
        (1, 3),
        "only `pull` compares what is cached"
    );
}

#[test]
fn a_gguf_by_name_is_the_one_by_path() {
    let file = packed::model("gguf/tiny-qwen3-Q4_0.gguf");
    let hub = Hub::new([("sub/tiny-Q4_0.gguf", fs::read(&file).expect("it is there"))]);
    let user = User::of(&hub);
    let input = user.home.path().join("in.jsonl");
    let line = json!({"prompt_token_ids": [1, 2, 3, 4], "max_tokens": 8, "ignore_eos": true});
    fs::write(&input, line.to_string()).expect("the folder takes files");
    let (input, file) = (input.to_string_lossy(), file.to_string_lossy());
    let run = |model: &str| {
        user.result(&[
            "run",
            "--device",
            "cpu",
            "--temperature",
            "0",
            "--input",
            &input,
            "--model",
            model,
        ])
    };
    let answer = run("org/tiny:q4_0");
    assert!(answer.contains("token_ids"), "{answer}");
    assert_eq!(answer, run(&file));
    assert_eq!(count(&hub.lines(), "GET cdn"), 1);
}

#[test]
fn a_plan_by_name_reads_headers_and_keeps_nothing() {
    let hub = tiny();
    let user = User::of(&hub);
    let asked = |model: &str| -> Value {
        let report = user.result(&["plan", "--json", "--memory", "1GiB", "--model", model]);
        let report: Value = serde_json::from_str(&report).expect("one JSON object");
        report["asked"].clone()
    };
    let local = asked(&packed::model("golden/llama").to_string_lossy());
    assert!(
        hub.lines().is_empty()
            && local["weight_bytes"]
                .as_u64()
                .is_some_and(|bytes| bytes > 0),
        "{local}"
    );
    assert_eq!(asked("org/tiny"), local);
    let (mut ranges, weights) = (0, golden("model.safetensors").len() as u64);
    for request in hub
        .requests()
        .iter()
        .filter(|request| request.line.starts_with("GET cdn"))
    {
        let range = request
            .range
            .as_deref()
            .and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (start, last) = range.expect("weights are asked for by ranges");
        ranges +=
            last.parse::<u64>().expect("a number") + 1 - start.parse::<u64>().expect("a number");
    }
    assert!(
        ranges > 8 && ranges < weights / 2,
        "{ranges} bytes of {weights} are headers"
    );
    assert!(user.blobs().is_empty(), "nothing is kept");
    // A model that does not fit is not downloaded.
    let serve = [
        "serve",
        "--port",
        "0",
        "--device",
        "fake:memory=1000",
        "--model",
        "org/tiny",
    ];
    user.refusal(
        &serve,
        &["no room for a KV pool in 899 B", "use a smaller model"],
    );
    assert!(user.blobs().is_empty(), "nothing was fetched");
    user.pull("org/tiny");
    hub.lines();
    assert_eq!(asked("org/tiny"), local);
    assert!(hub.lines().is_empty(), "what is there is not asked for");

    let name = "tiny-qwen3-Q4_0.gguf";
    let hub = Hub::new([(
        name,
        fs::read(packed::model("gguf").join(name)).expect("it is there"),
    )]);
    let user = User::of(&hub);
    let asked =
        |model: &str| user.result(&["plan", "--json", "--memory", "1GiB", "--model", model]);
    let (far, near) = (
        asked("org/tiny"),
        asked(&packed::model("gguf").join(name).to_string_lossy()),
    );
    assert_eq!(
        far.split("\"asked\"").nth(1),
        near.split("\"asked\"").nth(1)
    );
    assert!(far.contains("\"asked\"") && user.blobs().is_empty());
}

#[test]
fn a_path_wins_over_a_name_and_neither_is_told_as_both() {
    let hub = tiny();
    let user = User::of(&hub);
    let run = |model: &str| {
        let mut command =
            user.command(&["run", "--device", "cpu", "--prompt", "a", "--model", model]);
        text(
            &command
                .current_dir(user.home.path())
                .output()
                .expect("the binary starts")
                .stderr,
        )
    };
    fs::create_dir_all(user.home.path().join("org/tiny")).expect("the folder takes folders");
    let message = run("org/tiny");
    assert!(
        message.contains("config.json") && hub.lines().is_empty(),
        "the folder is meant: {message}"
    );
    let message = run("no/such/folder");
    assert!(
        message.contains("not an existing file or folder"),
        "{message}"
    );
    assert!(
        message.contains("not a model name") && hub.lines().is_empty(),
        "{message}"
    );
    hub.fail(
        1,
        "/api/",
        BadResponse::Status(404, &[("X-Error-Code", "RepoNotFound")]),
    );
    let message = run("org/other");
    assert!(
        message.contains("org/other was not found") && message.contains("no file or folder"),
        "{message}"
    );
    for name in [
        "gpt2",
        "org/tiny@../x",
        "../tiny",
        "org/tiny:../x.gguf",
        "https://hub/org/tiny",
    ] {
        user.refusal(
            &["pull", name],
            &[name
                .rsplit('@')
                .next()
                .unwrap_or_default()
                .trim_start_matches("org/tiny:")],
        );
    }
}

/// The shards `model-0000N-of-0000M.safetensors` come from the index.
#[test]
fn shards_are_those_that_the_index_names() {
    let index = |shard: &str| {
        json!({"weight_map": {"a": "m-2.safetensors", "b": shard}})
            .to_string()
            .into_bytes()
    };
    let hub = Hub::new([
        ("config.json", b"{}".to_vec()),
        ("m-1.safetensors", b"one".to_vec()),
        ("m-2.safetensors", b"two".to_vec()),
        ("m-3.safetensors", b"three".to_vec()),
        ("model.safetensors.index.json", index("m-1.safetensors")),
    ]);
    let user = User::of(&hub);
    let folder = user.pull("org/tiny");
    let there = |name: &str| folder.join(name).exists();
    assert!(there("m-1.safetensors") && there("m-2.safetensors") && !there("m-3.safetensors"));
    fs::remove_file(folder.join("m-2.safetensors")).expect("it is there");
    user.refusal(
        &["pull", "org/tiny", "--offline"],
        &["m-2.safetensors", "missing"],
    );
    for (shard, words) in [
        ("../up.safetensors", "invalid file name"),
        ("m-4.safetensors", "missing"),
    ] {
        hub.set_file("model.safetensors.index.json", &index(shard));
        User::of(&hub).refusal(&["pull", "org/tiny"], &[shard, words]);
    }
}

#[test]
fn gguf_files_are_chosen_by_quantisation_or_name() {
    let names = [
        "README.md",
        "config.json",
        "m-IQ4_XS.gguf",
        "m-Q4_K_M.gguf",
        "m-Q8_0-00001-of-00002.gguf",
        "m-Q8_0-00002-of-00002.gguf",
        "mmproj-F16.gguf",
    ];
    let hub = Hub::new(names.map(|name| (name, name)));
    let user = User::of(&hub);
    let check = |name: &str, first: &str, files: usize| {
        assert_eq!(user.pull(name), user.snapshot().join(first));
        let lines = hub.lines();
        assert_eq!(
            (count(&lines, "GET cdn"), count(&lines, "GET")),
            (files, 2 * files + 1),
            "{lines:?}"
        );
    };
    check("org/tiny:iq4_xs", "m-IQ4_XS.gguf", 1);
    check("org/tiny:Q8_0", "m-Q8_0-00001-of-00002.gguf", 2);
    let output = user.run(&["pull", "org/tiny"]);
    assert!(text(&output.stdout).trim_end().ends_with("m-Q4_K_M.gguf"));
    assert!(
        text(&output.stderr).contains("org/tiny: using m-Q4_K_M.gguf"),
        "the default is said aloud"
    );
    hub.requests();
    check("org/tiny:m-Q4_K_M.gguf", "m-Q4_K_M.gguf", 0);
    user.refusal(
        &["pull", "org/tiny:Q5_K_M"],
        &[
            "Q5_K_M",
            "files: ",
            "m-IQ4_XS.gguf",
            "m-Q8_0-00001-of-00002.gguf (2",
        ],
    );
    user.refusal(
        &["pull", "org/tiny:mmproj-F16.gguf"],
        &["mmproj-F16.gguf", "files: "],
    );
    let offline = user.result(&["pull", "org/tiny:Q8_0", "--offline"]);
    assert!(offline.ends_with("m-Q8_0-00001-of-00002.gguf"));
    fs::remove_file(user.snapshot().join("m-Q8_0-00002-of-00002.gguf")).expect("it is there");
    user.refusal(
        &["pull", "org/tiny:Q8_0", "--offline"],
        &["offline", "2 parts, but only 1"],
    );
}

#[test]
fn a_short_name_is_a_repository_and_a_mistyped_one_gets_a_tip() {
    let hub = tiny();
    let user = User::of(&hub);
    let said = user.refusal(&["pull", "qwen3:0.6b"], &["Qwen/Qwen3-0.6B-GGUF"]);
    assert!(!said.contains("org/repo"), "{said}");
    let asked = hub.requests();
    assert!(
        asked
            .iter()
            .any(|request| request.line.contains("/api/models/Qwen/Qwen3-0.6B-GGUF/")),
        "{asked:?}"
    );
    user.refusal(
        &["run", "--model", "qwen3:0.6", "--prompt", "a"],
        &["nor a short name", "did you mean qwen3:0.6b?"],
    );
}

#[test]
fn a_cut_download_goes_on_where_it_ended() {
    let hub = tiny();
    let weights = golden("model.safetensors");
    let ranges = |hub: &Hub| -> Vec<Option<String>> {
        hub.requests()
            .into_iter()
            .filter(|request| request.line.contains("GET cdn"))
            .map(|found| found.range)
            .collect()
    };
    let whole = |user: &User| {
        assert_eq!(
            fs::read(user.snapshot().join("model.safetensors")).expect("it reads"),
            weights
        );
    };
    // Resumed within one run.
    let user = User::of(&hub);
    hub.fail(2, "GET cdn", BadResponse::Cut(70_000));
    user.pull("org/tiny");
    whole(&user);
    assert_eq!(
        ranges(&hub),
        [
            None,
            Some("bytes=70000-".into()),
            Some("bytes=140000-".into())
        ]
    );
    // Resumed from a partial file of an earlier run or another client.
    let user = User::of(&hub);
    let incomplete = user
        .repo()
        .join("blobs")
        .join(format!("{}.incomplete", hub.hash("model.safetensors")));
    let leave = |bytes: &[u8]| {
        fs::create_dir_all(incomplete.parent().expect("a folder")).expect("the folder is made");
        fs::write(&incomplete, bytes).expect("the folder takes files");
    };
    leave(&weights[..50_000]);
    user.pull("org/tiny");
    whole(&user);
    assert_eq!(ranges(&hub), [Some("bytes=50000-".into())]);
    // A server without range requests sends from the start; a partial file that is too long is discarded.
    for (left, range) in [
        (&weights[..60_000], Some("bytes=60000-")),
        (&[0; 400_000][..], None),
    ] {
        fs::remove_dir_all(user.repo()).expect("it is there");
        leave(left);
        hub.fail(1, "GET cdn", BadResponse::NoRange);
        user.pull("org/tiny");
        whole(&user);
        assert_eq!(ranges(&hub), [range.map(str::to_owned)]);
        hub.requests();
    }
    assert!(!incomplete.exists(), "nothing is left over");
}

#[test]
fn retries_end_and_keep_what_came() {
    let hub = tiny();
    let user = User::of(&hub);
    hub.fail(usize::MAX, "GET cdn", BadResponse::Cut(10));
    user.refusal(
        &["pull", "org/tiny"],
        &["model.safetensors", "keeps failing", "again to resume"],
    );
    let lines = hub.lines();
    assert!(
        (10..100).contains(&count(&lines, "GET cdn")),
        "{}",
        lines.len()
    );
    assert!(
        user.blobs()
            .iter()
            .any(|name| name.ends_with(".incomplete"))
    );
    assert!(
        !user.repo().join("refs/main").exists(),
        "a revision is noted when it is whole"
    );
}

#[test]
fn wrong_contents_are_removed() {
    let hub = tiny();
    let size = golden("model.safetensors").len();
    let check = |part: &str, fault: BadResponse, words: &[&str]| {
        let user = User::of(&hub);
        hub.fail(1, part, fault);
        user.refusal(&["pull", "org/tiny"], words);
        let (lines, hash) = (hub.lines(), hub.hash("model.safetensors"));
        let left: Vec<String> = user
            .blobs()
            .into_iter()
            .filter(|name| name.starts_with(&hash))
            .collect();
        assert!(left.is_empty(), "{left:?} after {lines:?}");
        assert!(user.pull("org/tiny").exists(), "the next try is a new one");
        hub.requests();
    };
    check(
        "GET cdn",
        BadResponse::Garbage,
        &[
            "model.safetensors",
            "hash mismatch: got",
            "expected",
            &hub.hash("model.safetensors"),
            "removed",
        ],
    );
    let longer = vec![0; size + 1];
    check(
        "GET cdn",
        BadResponse::Bytes(longer),
        &[
            "model.safetensors",
            &(size + 1).to_string(),
            &size.to_string(),
            "removed",
        ],
    );
    let shorter = vec![0; size - 1];
    check(
        "GET cdn",
        BadResponse::Bytes(shorter),
        &["model.safetensors", &(size - 1).to_string(), "removed"],
    );
    let lies = BadResponse::Headers(&[("X-Linked-Size", "1000")]);
    check(
        "HEAD hub /org/tiny/resolve/0123456789abcdef0123456789abcdef01234567/model",
        lies,
        &["1000", "removed"],
    );
    // A small file is verified by git's hash.
    let user = User::of(&hub);
    hub.fail(
        1,
        "/config.json",
        BadResponse::Headers(&[("ETag", "\"0123456789012345678901234567890123456789\"")]),
    );
    user.refusal(
        &["pull", "org/tiny"],
        &["config.json", "hash mismatch", &hub.hash("config.json")],
    );
}
