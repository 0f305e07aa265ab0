//! Commands whose output is closed, as in `folio list | head -1`: they end quietly, and a server continues. (`bench`
//! prints in the same way, but would take too long here.)

use super::{Server, folio, text};
use serde_json::json;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// Each command with minimal work.
const COMMANDS: [&[&str]; 9] = [
    &["--help"],
    &["--version"],
    &["run", "--device", "fake", "--max-tokens", "4", "--prompt", "a"],
    &["run", "--device", "fake", "--max-tokens", "4", "--input", "-"],
    &["list"],
    &["devices", "--json"],
    &["plan", "--memory", "6GiB", "--json"],
    &["selftest", "--device", "cpu", "--filter", "embed"],
    &["chat", "--device", "fake", "--max-tokens", "4"],
];

/// A line for `run --input -`, which `chat` reads as a message. The other commands do not read it.
const LINE: &[u8] = b"{\"prompt\": \"a\"}\n";

#[test]
fn a_closed_stdout_ends_a_command_quietly() {
    for arguments in COMMANDS {
        let mut command = folio(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        drop(process.stdout.take());
        // The command may have already ended.
        let _ = process.stdin.take().expect("stdin is piped").write_all(LINE);
        let output = process.wait_with_output().expect("the command ends");
        let said = text(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 141)), "{arguments:?}: {:?} {said}", output.status);
        assert!(!said.contains("error") && !said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_closed_stderr_changes_no_result() {
    for arguments in COMMANDS {
        let mut command = folio(arguments);
        command.env("FOLIO_LOG", "trace").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the binary starts");
        drop(process.stderr.take());
        let output = process.wait_with_output().expect("the command ends");
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_server_goes_on_when_its_terminal_is_closed() {
    let mut server = Server::with(&["--device", "fake"]);
    // Closes the server's stderr; its stdout was never read.
    drop(std::mem::replace(&mut server.messages, Box::new(std::io::empty())));
    let body = json!({"prompt": "Hello", "max_tokens": 2, "no_such_field": 1}).to_string();
    for _ in 0..3 {
        let answer = server.ask("POST", "/v1/completions", &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "a field that is logged: {answer}");
    }
    let id = server.process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    assert_eq!(server.process.wait().expect("the server ends").code(), Some(0));
}
