//! Commands whose output is closed or cannot be written: `folio list | head -1`, `folio serve 2>/dev/full`.
//!
//! Nothing panics. A reader of stdout that goes away ends a command quietly; any other failure to write results ends it
//! with exit code 1 and one line on stderr. What is lost on stderr changes nothing, and a server continues in any case.

use super::{Server, folio, program, text};
use serde_json::json;
use std::fs::File;
use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Each command with minimal work, and its exit code.
const COMMANDS: [(&[&str], i32); 25] = [
    (&["--help"], 0),
    (&["--version"], 0),
    (&["serve", "--help"], 0),
    (
        &[
            "run",
            "--device",
            "fake",
            "--max-tokens",
            "4",
            "--prompt",
            "a",
        ],
        0,
    ),
    (
        &[
            "run",
            "--device",
            "fake",
            "--max-tokens",
            "4",
            "--prompt",
            "a",
            "--json",
        ],
        0,
    ),
    (
        &[
            "run",
            "--device",
            "fake",
            "--max-tokens",
            "4",
            "--input",
            "-",
        ],
        0,
    ),
    (&["list"], 0),
    (&["list", "--json"], 0),
    (&["devices"], 0),
    (&["devices", "--json"], 0),
    (&["plan", "--memory", "6GiB", "--json"], 0),
    (&["selftest", "--device", "cpu", "--filter", "embed"], 0),
    (&["chat", "--device", "fake", "--max-tokens", "4"], 0),
    (&BENCH, 0),
    (&["generate", "bash"], 0),
    (&["show"], 0),
    (&["show", "--json"], 0),
    (&["pull", "no/model", "--offline"], 1),
    (&["show", "no/model", "--offline"], 1),
    (&["rm", "no/model"], 1),
    (&["ps", "--server", NO_SERVER], 1),
    (&["load", "a", "--server", NO_SERVER], 1),
    (&["stop", "a", "--server", NO_SERVER], 1),
    (
        &[
            "cache",
            "export",
            "--device",
            "fake",
            "no-such-prompt",
            "no-such-file",
        ],
        1,
    ),
    (
        &[
            "cache",
            "import",
            "no-such-file",
            "--kv-disk",
            "no-such-folder",
        ],
        1,
    ),
];

/// Nothing listens on this port.
const NO_SERVER: &str = "http://127.0.0.1:1";

const BENCH: [&str; 12] = [
    "bench",
    "--device",
    "cpu",
    "--scenario",
    "decode",
    "--batch",
    "1",
    "--context",
    "8",
    "--new-tokens",
    "4",
    "--json",
];

/// Wrong arguments, which are reported on stderr.
const WRONG: [&[&str]; 4] = [
    &[],
    &["no-such-command"],
    &["serve", "--no-such-option"],
    &["serve", "--port", "x"],
];

/// A line for `run --input -`, which `chat` reads as a message. The other commands do not read it.
const LINE: &[u8] = b"{\"prompt\": \"a\"}\n";

fn spawn(arguments: &[&str], stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Child {
    piped(folio(arguments), stdout, stderr)
}

fn piped(mut command: Command, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Child {
    // An empty cache: `list` has nothing to print to stdout but JSON, and a note on stderr.
    command.env(
        "HF_HUB_CACHE",
        std::env::temp_dir().join("folio-no-such-cache"),
    );
    command
        .stdin(Stdio::piped())
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .expect("the program starts")
}

/// Waits for the end of a command; returns its exit code and what it wrote to a piped stderr.
fn end(mut process: Child) -> (Option<i32>, String) {
    // The command may have already ended.
    let _ = process
        .stdin
        .take()
        .expect("stdin is piped")
        .write_all(LINE);
    let output = process.wait_with_output().expect("the command ends");
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_closed_stdout_ends_a_command_quietly() {
    for (arguments, code) in COMMANDS {
        let mut process = spawn(arguments, Stdio::piped(), Stdio::piped());
        drop(process.stdout.take());
        let (ended, said) = end(process);
        assert!(
            ended == Some(code) || ended == Some(141),
            "{arguments:?}: {ended:?} {said}"
        );
        assert!(
            !said.contains("panicked") && (code != 0 || !said.contains("error")),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_closed_stderr_changes_no_result() {
    for (arguments, code) in COMMANDS
        .into_iter()
        .chain(WRONG.map(|arguments| (arguments, 2)))
    {
        let mut process = spawn(arguments, Stdio::null(), Stdio::piped());
        drop(process.stderr.take());
        assert_eq!(end(process).0, Some(code), "{arguments:?}");
    }
}

/// Every write to this file fails, as on a full disk.
#[cfg(target_os = "linux")]
fn full() -> File {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("Linux has /dev/full")
}

#[cfg(target_os = "linux")]
#[test]
fn results_that_cannot_be_written_are_an_error() {
    for (arguments, _) in COMMANDS
        .iter()
        .filter(|(arguments, code)| *code == 0 && *arguments != ["list"])
    {
        let (ended, said) = end(spawn(arguments, full(), Stdio::piped()));
        assert_eq!(ended, Some(1), "{arguments:?}: {said}");
        let errors: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("error: "))
            .collect();
        assert!(
            matches!(errors[..], [error] if error.contains("No space left")),
            "{arguments:?}: {said}"
        );
        assert_eq!(
            end(spawn(arguments, full(), full())).0,
            Some(1),
            "{arguments:?}, with a full stderr too"
        );
    }
    let prompt = std::env::temp_dir().join(format!("folio-closed-{}", std::process::id()));
    std::fs::write(&prompt, "Blocks of a prompt. ".repeat(20)).expect("a prompt is written");
    for files in [
        &[
            "run",
            "--device",
            "fake",
            "--max-tokens",
            "4",
            "--input",
            "-",
            "--output",
            "/dev/full",
        ][..],
        &[
            "cache",
            "export",
            "--device",
            "cpu",
            prompt.to_str().expect("UTF-8"),
            "/dev/full",
        ],
    ] {
        let (ended, said) = end(spawn(files, Stdio::null(), Stdio::piped()));
        assert!(
            ended == Some(1) && said.contains("No space left"),
            "{files:?}: {ended:?} {said}"
        );
    }
    std::fs::remove_file(&prompt).expect("the prompt is removed");
}

/// A closed descriptor (`>&-`) is like `/dev/null`: the runtime opens that in its place before `main`, so that no file
/// which the command opens later gets its number and is written over.
#[cfg(unix)]
#[test]
fn a_closed_descriptor_is_like_dev_null() {
    for (arguments, code) in COMMANDS {
        let words: Vec<String> = arguments.iter().map(|word| format!("'{word}'")).collect();
        for closed in [">&-", "2>&-", ">&- 2>&-"] {
            let line = format!(
                "exec '{}' {} {closed}",
                env!("CARGO_BIN_EXE_folio"),
                words.join(" ")
            );
            let (ended, said) = end(piped(
                program("sh", &["-c", &line]),
                Stdio::null(),
                Stdio::piped(),
            ));
            assert!(
                ended == Some(code) && !said.contains("panicked"),
                "{line}: {ended:?} {said}"
            );
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_stderr_changes_no_result() {
    for (arguments, code) in COMMANDS
        .into_iter()
        .chain(WRONG.map(|arguments| (arguments, 2)))
    {
        assert_eq!(
            end(spawn(arguments, Stdio::null(), full())).0,
            Some(code),
            "{arguments:?}"
        );
    }
}

/// A server whose messages nobody can read, on a port that was free just before.
#[cfg(target_os = "linux")]
fn mute(script: &str, log: &str, stderr: impl Into<Stdio>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    drop(listener);
    let mut command = folio(&[
        "serve",
        "--device",
        script,
        "--port",
        &address.port().to_string(),
    ]);
    command.env("FOLIO_LOG", log).stdout(full()).stderr(stderr);
    let process = command.spawn().expect("the binary starts");
    let messages = Box::new(std::io::empty());
    let server = Server {
        process,
        messages,
        address: address.to_string(),
        greeting: String::new(),
        headers: Vec::new(),
    };
    while !std::net::TcpStream::connect(address)
        .is_ok_and(|_| server.ask("GET", "/health", "").contains("200 OK"))
    {
        sleep(Duration::from_millis(10));
    }
    server
}

/// Every fault that a server survives, without anybody to read its messages.
#[cfg(target_os = "linux")]
#[test]
fn a_server_survives_faults_without_a_terminal() {
    let faults = [
        "lost@3",
        "lost-submit@3",
        "hang@3",
        "invalid@3",
        "failed@3",
        "nan=17",
        "lost@3,lost@5,failed@7",
    ];
    for (index, fault) in faults.into_iter().enumerate() {
        for log in ["debug", "trace"] {
            let (reader, writer) = std::io::pipe().expect("a pipe");
            let stderr: Stdio = if index % 2 == 0 {
                full().into()
            } else {
                writer.into()
            };
            drop(reader);
            let mut server = mute(&format!("fake:{fault}"), log, stderr);
            let body =
                json!({"prompt": "Hello", "max_tokens": 8, "ignore_eos": true, "no_such_field": 1})
                    .to_string();
            for _ in 0..3 {
                let answer = server.ask("POST", "/v1/completions", &body);
                let expected = if ["invalid", "failed", "nan"]
                    .iter()
                    .any(|word| fault.contains(word))
                {
                    "HTTP/1.1 "
                } else {
                    "HTTP/1.1 200"
                };
                assert!(answer.starts_with(expected), "{fault}: {answer}");
            }
            assert!(
                server.ask("GET", "/health", "").starts_with("HTTP/1.1 200"),
                "{fault}"
            );
            assert_eq!(terminate(&mut server), Some(0), "{fault}");
        }
    }
}

/// Faults that end the engine end the process with a failure, also if nobody can read why.
#[cfg(target_os = "linux")]
#[test]
fn a_server_that_fails_without_a_terminal_ends() {
    for fault in ["dead@3", "panic@3"] {
        let mut server = mute(&format!("fake:{fault}"), "trace", full());
        let answer = server.ask(
            "POST",
            "/v1/completions",
            r#"{"prompt": "Hello", "max_tokens": 8, "ignore_eos": true}"#,
        );
        assert!(answer.starts_with("HTTP/1.1 5"), "{fault}: {answer}");
        assert_eq!(
            server.process.wait().expect("the server ends").code(),
            Some(1),
            "{fault}"
        );
    }
}

#[cfg(unix)]
fn terminate(server: &mut Server) -> Option<i32> {
    super::signal(server, "-TERM");
    server.process.wait().expect("the server ends").code()
}

#[cfg(unix)]
#[test]
fn a_server_goes_on_when_its_terminal_is_closed() {
    let mut server = Server::with(&["--device", "fake"]);
    // Closes the server's stderr; its stdout was never read.
    drop(std::mem::replace(
        &mut server.messages,
        Box::new(std::io::empty()),
    ));
    let body = json!({"prompt": "Hello", "max_tokens": 2, "no_such_field": 1}).to_string();
    for _ in 0..3 {
        let answer = server.ask("POST", "/v1/completions", &body);
        assert!(
            answer.starts_with("HTTP/1.1 200"),
            "a field that is logged: {answer}"
        );
    }
    assert_eq!(terminate(&mut server), Some(0));
}
