//! What folio says: the line of a ready server, one line for each request, tips for mistyped names, help,
//! completions, and what is known of a model.

use super::{Server, folio, packed, refusal, result, signal, text};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, Read as _};
use std::net::TcpListener;

/// The lines of the access log among a server's messages until it ends.
fn logged(mut server: Server) -> Vec<String> {
    signal(&server, "-TERM");
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
    assert!(
        messages.contains("ending; Ctrl-C again ends at once"),
        "{messages}"
    );
    messages
        .lines()
        .filter(|line| line.contains("folio::access"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_server_logs_one_line_for_each_request_without_its_text() {
    let server = Server::with(&["--device", "fake"]);
    assert!(
        server.greeting.contains("(chat page; API: http://"),
        "{}",
        server.greeting
    );
    assert!(
        server.greeting.contains("/v1): folio-tiny on "),
        "{}",
        server.greeting
    );
    let body = json!({"prompt": "a secret", "max_tokens": 3, "ignore_eos": true});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = stream.into();
        assert!(
            server
                .ask("POST", "/v1/completions?q=secret", &body.to_string())
                .starts_with("HTTP/1.1 200")
        );
    }
    server.ask("GET", "/health", "");
    server.ask("GET", "/no/such/route", "");
    let lines = logged(server);
    assert_eq!(
        lines.len(),
        3,
        "/health is asked too often for a line: {lines:?}"
    );
    for line in &lines[..2] {
        for part in [
            "POST /v1/completions ",
            "status=200",
            "tokens_out=3",
            "cached=",
            "first_token_ms=",
            "total_ms=",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        assert!(
            !line.contains("tokens_in=0 ") && !line.contains("secret"),
            "{line}"
        );
    }
    assert!(
        lines[2].contains("GET /no/such/route status=404"),
        "{}",
        lines[2]
    );

    let mut quiet = folio(&["serve", "--port", "0", "--device", "fake"]);
    quiet.env("FOLIO_LOG", "folio=warn");
    let server = Server::of(quiet);
    server.ask("GET", "/v1/models", "");
    assert_eq!(logged(server), Vec::<String>::new());
}

#[test]
fn the_first_signal_says_that_an_answer_is_awaited() {
    let mut server = Server::with(&["--device", "fake:pause=20"]);
    let mut stream = super::begun(&server, 50);
    signal(&server, "-INT");
    let mut line = String::new();
    while !line.contains("Ctrl-C again ends at once") {
        line.clear();
        assert!(
            server.messages.read_line(&mut line).expect("stderr reads") > 0,
            "it says so"
        );
    }
    assert!(line.contains("after the answer that is running"), "{line}");
    stream.read_to_string(&mut line).expect("the stream reads");
    assert!(line.contains("[DONE]"), "{line}");
}

#[test]
fn mistyped_names_get_tips() {
    refusal(&["sevre"], &["similar subcommand exists: 'serve'"]);
    refusal(
        &["run", "--promt", "a"],
        &["similar argument exists: '--prompt'"],
    );
    let field = [
        "run",
        "--device",
        "fake",
        "--prompt",
        "a",
        "--extra-body",
        r#"{"temprature": 1}"#,
    ];
    refusal(
        &field,
        &["unknown field `temprature`", "did you mean `temperature`?"],
    );
    let folder = tempfile::tempdir().expect("a folder for this test");
    let place = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::write(place("small-Q4_0.gguf"), "").expect("the folder takes files");
    let folder_name = folder.path().to_string_lossy();
    refusal(
        &["run", &folder_name, "a"],
        &["holds GGUF files", "small-Q4_0.gguf"],
    );
    refusal(
        &["run", &place("smal-Q4_0.gguf"), "a"],
        &["did you mean", "/small-Q4_0.gguf?"],
    );
    refusal(
        &["run", &place("xyz"), "a"],
        &["this folder has: small-Q4_0.gguf"],
    );
}

#[test]
fn a_port_in_use_names_another() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("it has an address").port();
    refusal(
        &["serve", "--device", "cpu", "--port", &port.to_string()],
        &[&port.to_string(), "is free"],
    );
}

#[test]
fn help_is_short_or_long_and_in_groups() {
    let (short, long) = (result(&["serve", "-h"]), result(&["serve", "--help"]));
    assert!(short.lines().count() * 2 < long.lines().count(), "{short}");
    for heading in ["Model:", "Device and engine:", "Server:", "Access:"] {
        assert!(
            short.contains(heading) && long.contains(heading),
            "{heading}"
        );
    }
    assert!(!short.contains("--shutdown-grace") && long.contains("--shutdown-grace"));
    assert!(long.contains("FOLIO_LOG") && result(&["--help"]).contains("FOLIO_LOG"));
}

#[test]
fn completions_and_man_pages_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            result(&["generate", shell]).contains("max-num-seqs"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().expect("a folder for this test");
    assert_eq!(
        result(&["generate", "man", &folder.path().to_string_lossy()]),
        ""
    );
    let page =
        fs::read_to_string(folder.path().join("folio-serve.1")).expect("a page of each command");
    assert!(page.contains(".TH") && page.contains("port"), "{page}");
    assert!(!result(&["-h"]).contains("generate"), "it is hidden");
}

#[test]
fn show_tells_what_a_model_is() {
    let file = packed::model("gguf/tiny-qwen3-Q4_0.gguf")
        .to_string_lossy()
        .into_owned();
    let shown: Value = serde_json::from_str(&result(&["show", &file, "--json"])).expect("JSON");
    assert_eq!(
        (&shown["family"], &shown["layers"]),
        (&json!("Qwen3ForCausalLM"), &json!(2))
    );
    assert!(
        shown["format"]
            .as_str()
            .is_some_and(|format| format.contains("Q4")),
        "{shown}"
    );
    assert!(
        shown["parameters"]
            .as_u64()
            .is_some_and(|count| count > 100_000),
        "{shown}"
    );
    let said = result(&["show"]);
    for words in [
        "folio-tiny",
        "context      2048 tokens",
        "template     yes",
        "licence",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn rm_removes_a_repository_of_the_cache_and_nothing_else() {
    let cache = tempfile::tempdir().expect("a folder for this test");
    let repo = cache.path().join("models--org--small");
    let blob = repo.join("blobs/abc");
    fs::create_dir_all(blob.parent().expect("it lies in a folder"))
        .expect("the folder takes folders");
    fs::write(&blob, "weights").expect("the folder takes files");
    fs::create_dir_all(cache.path().join("models--org--other")).expect("the folder takes folders");
    let rm = |name: &str| {
        let output = folio(&["rm", name])
            .env("HF_HUB_CACHE", cache.path())
            .output()
            .expect("the binary starts");
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let (code, said) = rm("org/smal");
    assert!(
        code == Some(1) && said.contains("did you mean org/small?"),
        "{said}"
    );
    let (code, said) = rm("org/small:Q4_0");
    assert!(
        code == Some(1) && said.contains("only a whole repository"),
        "{said}"
    );
    let (code, said) = rm("org/small");
    assert!(
        code == Some(0) && said.starts_with("removed org/small"),
        "{said}"
    );
    assert!(!repo.exists() && cache.path().join("models--org--other").exists());
    assert_eq!(rm("org/small").0, Some(1), "it is gone");
}
