//! Servers whose model comes from the hub: what they say and answer meanwhile.

use super::server::BadResponse;
use super::{User, tiny};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A server that is killed when this is dropped, and the lines that it writes to stderr.
struct Serving(Child, mpsc::Receiver<String>);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Serving {
    fn start(mut command: Command) -> Self {
        let mut process = command
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let stderr = BufReader::new(process.stderr.take().expect("stderr is piped"));
        let (send, lines) = mpsc::channel();
        // It ends with the process, or with this.
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| send.send(line))
        });
        Self(process, lines)
    }

    fn wait_for(&self, words: &str, limit: Duration) {
        let end = Instant::now() + limit;
        let mut heard = Vec::new();
        while let Ok(line) = self
            .1
            .recv_timeout(end.saturating_duration_since(Instant::now()))
        {
            if line.contains(words) {
                return;
            }
            heard.push(line);
        }
        panic!("nothing says {words:?} within {limit:?}: {heard:?}");
    }
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n");
    stream
        .write_all(request.as_bytes())
        .expect("the server takes the request");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .expect("the answer is text");
    answer
}

#[test]
fn a_server_that_waits_for_the_hub_says_so_and_answers() {
    let hub = tiny();
    let (list, weights) = (Duration::from_secs(3), Duration::from_secs(2));
    hub.fail(1, "/api/models", BadResponse::Late(list));
    // For the headers, and for the whole file.
    hub.fail(2, "GET cdn", BadResponse::Late(weights));
    // Free until another process takes it.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|free| free.local_addr())
        .expect("a free port")
        .port();
    let user = User::of(&hub);
    let command = user.command(&[
        "serve",
        "org/tiny",
        "--device",
        "cpu",
        "--port",
        &port.to_string(),
    ]);
    let server = Serving::start(command);
    server.wait_for("org/tiny", Duration::from_secs(1));
    assert!(
        get(port, "/health").starts_with("HTTP/1.1 503"),
        "the model is not there"
    );
    let waiting = std::thread::spawn(move || get(port, "/v1/models"));
    server.wait_for(
        "org/tiny: downloading 3 files",
        list + weights + Duration::from_secs(2),
    );
    assert!(
        get(port, "/health").starts_with("HTTP/1.1 503"),
        "the weights are not there"
    );
    let models = waiting.join().expect("it does not panic");
    assert!(
        models.starts_with("HTTP/1.1 200") && models.contains("org/tiny"),
        "{models}"
    );
    assert!(get(port, "/health").starts_with("HTTP/1.1 200"));
}
