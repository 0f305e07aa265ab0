//! The memory of a server is what `folio plan` says, and models that are unloaded give theirs back.

use super::{Server, folio, models, packed, result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// Elements of the MLP's inner rows: enough for weights of more than 200 MB.
const WIDE: u64 = 24_576;
/// How much more a process may take than its plan says: the program itself, the tokenizer, requests.
const FACTOR: f64 = 1.35;

/// A row of the memory of a process, in bytes: `VmHWM` is the most that it has had, `VmRSS` what it has now.
fn memory(process: u32, row: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(row)?.strip_prefix(':'))
        .expect("the system tells it");
    line.trim()
        .trim_end_matches(" kB")
        .parse::<f64>()
        .expect("a number")
        * 1024.0
}

/// Writes a model with weights of more than 200 MB, and returns its path.
fn wide(folder: &Path) -> String {
    let mut file = models::demo();
    file.set(
        "qwen3.feed_forward_length",
        super::builder::Item::U32(WIDE as u32),
    );
    for tensor in file
        .tensors
        .iter_mut()
        .filter(|tensor| tensor.name.contains("ffn_") && !tensor.name.contains("norm"))
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
    let options = [
        "--device",
        "cpu",
        "--model",
        &path,
        "--kv-cache-bytes",
        "16MiB",
    ];

    let plan: Value =
        serde_json::from_str(&result(&[&["plan", "--json"], &options[..]].concat())).expect("JSON");
    let bytes = |name: &str| {
        plan["asked"][name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {plan}"))
    };
    let planned = bytes("weight_bytes") + bytes("activation_bytes") + bytes("kv_bytes");
    assert!(bytes("weight_bytes") > 200e6, "{plan}");
    let server = Server::of(folio(&[&["serve", "--port", "0"], &options[..]].concat()));
    let body =
        json!({"messages": [{"role": "user", "content": "Hello! ".repeat(100)}], "max_tokens": 4});
    let answer = server.ask("POST", "/v1/chat/completions", &body.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let taken = memory(server.process.id(), "VmHWM");
    assert!(
        taken < FACTOR * planned,
        "{:.0} MB are taken, {:.0} MB are planned",
        taken / 1e6,
        planned / 1e6
    );
}

/// What requests may take of a process beside the model, in bytes; `docs/dev/promises.md` states it.
const HOSTILE_MAX: f64 = 300e6;

/// The longest that a health check takes beside them.
const HEALTH_MAX: Duration = Duration::from_secs(2);

#[test]
fn no_request_takes_the_memory_or_the_time_of_others() {
    let server = Server::with(&["--device", "fake"]);
    let process = server.process.id();
    let before = memory(process, "VmRSS");
    let objects = format!(
        "{{\"model\":\"demo\",\"input\":[{}{{\"\":0}}]}}",
        "{\"\":0},".repeat(550_000)
    );
    let grammar = |schema: Value| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        let message = json!([{"role": "user", "content": "Hello!"}]);
        (
            "/v1/chat/completions",
            json!({"messages": message, "response_format": format, "max_tokens": 9}).to_string(),
        )
    };
    let regex = |regex: &str| {
        (
            "/v1/completions",
            json!({"prompt": "a", "structured_outputs": {"regex": regex}, "max_tokens": 9})
                .to_string(),
        )
    };
    let slow = json!({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 1_999_993}}});
    let message = json!([{"role": "user", "content": "Hello!"}]);
    let tool = json!([{"type": "function", "function": {"name": "f", "parameters": slow}}]);
    let forced =
        json!({"messages": message, "tools": tool, "tool_choice": "required", "max_tokens": 9});
    let structure = json!([{"begin": "<a>", "schema": slow, "end": "</a>"}]);
    let tag = json!({"type": "structural_tag", "structures": structure, "triggers": ["<a>"]});
    let tagged = json!({"messages": message, "response_format": tag, "max_tokens": 9});
    let hostile = [
        ("/v1/chat/completions", forced.to_string()),
        ("/v1/chat/completions", tagged.to_string()),
        ("/v1/responses", objects),
        grammar(json!({"type": "integer", "multipleOf": 1_999_993})),
        grammar(json!({"type": "string", "pattern": "^(ab|c)*$", "minLength": 100_000_000})),
        grammar(json!({"type": "string", "pattern": "a{10000000}"})),
        regex("a{10000000}"),
        regex("[ab]c{10000000}"),
    ];
    std::thread::scope(|scope| {
        for (path, body) in &hostile {
            for _ in 0..3 {
                scope.spawn(|| server.ask("POST", path, body));
            }
        }
        let start = Instant::now();
        assert!(server.ask("GET", "/health", "").starts_with("HTTP/1.1 200"));
        assert!(start.elapsed() < HEALTH_MAX, "{:?}", start.elapsed());
    });
    let taken = memory(process, "VmHWM") - before;
    assert!(taken < HOSTILE_MAX, "{:.0} MB", taken / 1e6);
}

/// Has a model answer, which loads it. Returns the memory of the process then.
fn load(server: &Server, model: &str) -> f64 {
    let ask = json!({"model": model, "prompt": [5, 6], "max_tokens": 1});
    let answer = server.ask("POST", "/v1/completions", &ask.to_string());
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    memory(server.process.id(), "VmRSS")
}

/// The number of open files of a process, and of its threads.
fn files_and_threads(process: u32) -> [usize; 2] {
    ["fd", "task"].map(|kind| {
        fs::read_dir(format!("/proc/{process}/{kind}"))
            .expect("it runs")
            .count()
    })
}

/// One is unloaded by its age and the other by requests. What is lost at each load adds up in every round; with one
/// arena, the allocator keeps nothing for its threads, which would hide that.
#[test]
fn models_that_are_unloaded_give_their_memory_back() {
    const LOADS: u32 = 50;
    const BYTES_PER_LOAD_MAX: f64 = 20e3;
    let folder = tempfile::tempdir().expect("a folder for this test");
    let tiny = packed::model("gguf/tiny-qwen3-Q8_0.gguf");
    let [wide, tiny] = [wide(folder.path()).into(), tiny.to_string_lossy()]
        .map(|path| Value::from(path).to_string());
    let file = folder.path().join("folio.toml");
    let models =
        format!("[models.wide]\nmodel = {wide}\nidle-unload = 1\n[models.tiny]\nmodel = {tiny}\n");
    fs::write(
        &file,
        format!("port = 0\ndevice = \"cpu\"\nkv-cache-bytes = \"16MiB\"\n{models}"),
    )
    .expect("it is written");
    let mut command = folio(&["serve", "--config", &file.to_string_lossy()]);
    // Nobody reads the messages, and the pipe that they wait in is not large.
    command
        .env("FOLIO_LOG", "folio=warn")
        .env("MALLOC_ARENA_MAX", "1");
    let server = Server::of(command);
    let process = server.process.id();
    let unloaded = || {
        while server
            .ask("GET", "/v1/models", "")
            .matches("\"unloaded\"")
            .count()
            < 2
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        memory(process, "VmRSS")
    };
    load(&server, "wide");
    let before = unloaded();
    let loaded = load(&server, "wide");
    let after = unloaded();
    assert!(
        loaded - before > 200e6,
        "{before} bytes before it was loaded, {loaded} after"
    );
    assert!(
        after - before < 0.05 * (loaded - before),
        "{before} bytes before it was loaded, {after} afterwards"
    );

    let come_and_go = || {
        load(&server, "tiny");
        let unload = server.ask(
            "POST",
            "/models/unload",
            &json!({"model": "tiny"}).to_string(),
        );
        assert!(unload.starts_with("HTTP/1.1 200"), "{unload}");
    };
    (0..LOADS / 2).for_each(|_| come_and_go());
    let (mut last, things) = (unloaded(), files_and_threads(process));
    let mut grown = [0, 1, 2].map(|_| {
        (0..LOADS).for_each(|_| come_and_go());
        let before = std::mem::replace(&mut last, unloaded());
        (last - before) / f64::from(LOADS)
    });
    grown.sort_by(f64::total_cmp);
    assert!(
        grown[1] < BYTES_PER_LOAD_MAX,
        "{grown:?} bytes more per load"
    );
    // Connections are closed a little later than their clients see it.
    let is_back = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        files_and_threads(process)
            .iter()
            .zip(things)
            .all(|(now, before)| *now <= before)
    });
    assert!(
        is_back,
        "{things:?} files and threads before, {:?} afterwards",
        files_and_threads(process)
    );
}

/// A query is shared by the pairs that it is in.
#[test]
fn a_long_query_costs_little_whatever_the_number_of_documents() {
    const QUERY_MAX: f64 = 100e6;
    let documents: Vec<_> = (0..1000).map(|index| format!("{index}")).collect();
    for reranker in ["yes-no", "embedding"] {
        let server = Server::with(&["--device", "fake", "--reranker", reranker]);
        let process = server.process.id();
        let before = memory(process, "VmRSS");
        // One that no prompt has room for, and one that may be in one as far as its bytes tell.
        for query in ["a ".repeat(300_000), "a ".repeat(120_000)] {
            for (path, of_query, of_documents) in [
                ("/v1/rerank", "query", "documents"),
                ("/rerank", "query", "texts"),
                ("/score", "text_1", "text_2"),
            ] {
                let body = json!({of_query: query, of_documents: documents});
                let answer = server.ask("POST", path, &body.to_string());
                assert!(answer.starts_with("HTTP/1.1 400"), "{path}: {answer}");
                let taken = memory(process, "VmHWM") - before;
                assert!(taken < QUERY_MAX, "{path}: {:.0} MB", taken / 1e6);
            }
        }
    }
}

/// They are kept as text: values in memory would take many times as much.
#[test]
fn stored_responses_take_hardly_more_than_the_option_says() {
    const STORED: u32 = 4 << 20;
    // Beside the store: the allocator's rest, and what a single request takes while it is read.
    const BESIDE_MAX: f64 = 60e6;
    let bytes = STORED.to_string();
    let device = ["--device", "fake:context=131072"];
    let server = Server::with(&[&device[..], &["--response-store-bytes", &bytes]].concat());
    let process = server.process.id();
    let store = |texts: usize| {
        let text = json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]});
        let body = json!({"input": vec![text; texts], "max_output_tokens": 1});
        let answer = server.ask("POST", "/v1/responses", &body.to_string());
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    };
    store(1000);
    let before = memory(process, "VmRSS");
    // More than the store has room for.
    let answers: Vec<String> = (0..80).map(|_| store(1000)).collect();
    let taken = memory(process, "VmHWM") - before;
    assert!(
        taken < f64::from(STORED) + BESIDE_MAX,
        "{:.0} MB",
        taken / 1e6
    );
    let status = |answer: &String| {
        let body = answer.split("\r\n\r\n").nth(1).expect("a body");
        let response: Value = serde_json::from_str(body).expect("JSON");
        let id = response["id"].as_str().expect("an id").to_owned();
        let found = server.ask("GET", &format!("/v1/responses/{id}"), "");
        found.split(' ').nth(1).map(str::to_owned)
    };
    let [first, last] = [&answers[0], &answers[79]].map(status);
    assert_eq!(
        [first.as_deref(), last.as_deref()],
        [Some("404"), Some("200")]
    );
}
