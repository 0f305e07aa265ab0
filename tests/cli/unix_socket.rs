//! `folio serve --host unix:PATH`: it says where it listens, serves, and removes its socket when it is told to end.

use serde_json::json;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

#[test]
fn serve_listens_on_a_socket_and_removes_it() {
    let folder = tempfile::tempdir().expect("a folder for this test");
    let path = folder.path().join("folio.sock");
    let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
    command.args([
        "serve",
        "--device",
        "fake",
        "--host",
        &format!("unix:{}", path.display()),
    ]);
    let mut process = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let mut messages = BufReader::new(process.stderr.take().expect("stderr is piped")).lines();
    let ready = messages.find_map(|line| line.ok().filter(|line| line.contains("ready on")));
    let expected = format!("ready on unix:{} ", path.display());
    assert!(
        ready.as_ref().is_some_and(|line| line.contains(&expected)),
        "{ready:?}"
    );

    let mut stream = UnixStream::connect(&path).expect("it listens");
    let body =
        json!({"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}).to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let length = body.len();
    write!(
        stream,
        "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the answer is text");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"usage\""),
        "{answer}"
    );

    let told = Command::new("kill")
        .args(["-TERM", &process.id().to_string()])
        .status()
        .expect("kill runs");
    assert!(told.success());
    assert_eq!(process.wait().expect("the server ends").code(), Some(0));
    assert!(!path.exists(), "it removes its socket");
}
