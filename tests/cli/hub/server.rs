//! A hub for tests: the routes that downloads use, on two local ports, with bad responses on demand.
//!
//! The first port is the endpoint. Large files (those in git LFS) are redirected to the second one, which is another
//! origin and must never receive a token.

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub(crate) const TOKEN: &str = "hf_secret";

/// One file of the repository.
#[derive(Clone)]
pub(crate) struct File {
    pub(crate) bytes: Vec<u8>,
    /// In LFS: identified by SHA-256, served by the other origin.
    pub(crate) large: bool,
}

impl File {
    pub(crate) fn hash(&self) -> String {
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
        };
        if self.large {
            return hex(&Sha256::digest(&self.bytes));
        }
        let mut sha1 = Sha1::new();
        sha1.update(format!("blob {}\0", self.bytes.len()));
        sha1.update(&self.bytes);
        hex(&sha1.finalize())
    }
}

/// A bad response to a request.
#[derive(Clone)]
pub(crate) enum BadResponse {
    /// This status with these headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// All headers, then this many bytes, then the connection closes.
    Cut(usize),
    /// Wrong bytes of the right length.
    Garbage,
    /// A file that is longer or shorter, with headers that say so.
    Bytes(Vec<u8>),
    /// The whole file, regardless of the requested range.
    NoRange,
    /// These headers in place of the usual ones of that name.
    Headers(&'static [(&'static str, &'static str)]),
    /// The usual one, so much later.
    Late(Duration),
}

/// One request as received.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// `HEAD hub /org/repo/resolve/…`.
    pub(crate) line: String,
    pub(crate) range: Option<String>,
    pub(crate) authorization: Option<String>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, File>,
    /// Names in the list for which there is no file.
    listed: Vec<String>,
    commit: String,
    /// Bad responses: how often, for which requests (a part of their line), and which response.
    bad_responses: Vec<(usize, String, BadResponse)>,
    log: Vec<Request>,
    /// Bytes are sent only after this many requests of this kind.
    gate: Option<(usize, &'static str)>,
}

pub(crate) struct Hub {
    pub(crate) endpoint: String,
    cdn: String,
    state: Mutex<State>,
    changed: Condvar,
}

impl Hub {
    /// A hub with one repository. Files named `.safetensors` or `.gguf` are large.
    pub(crate) fn new<T: Into<Vec<u8>>>(
        files: impl IntoIterator<Item = (&'static str, T)>,
    ) -> Arc<Self> {
        let large = |name: &str| name.ends_with(".safetensors") || name.ends_with(".gguf");
        let file = |(name, bytes): (&str, T)| {
            (
                name.to_owned(),
                File {
                    bytes: bytes.into(),
                    large: large(name),
                },
            )
        };
        let files = files.into_iter().map(file).collect();
        let listeners = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
        let [endpoint, cdn] = listeners
            .each_ref()
            .map(|listener| format!("http://{}", listener.local_addr().expect("it is bound")));
        let state = State {
            files,
            commit: COMMIT.to_owned(),
            ..State::default()
        };
        let hub = Arc::new(Self {
            endpoint,
            cdn,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        for (listener, place) in listeners.into_iter().zip(["hub", "cdn"]) {
            let hub = hub.clone();
            std::thread::spawn(move || {
                for stream in listener.incoming().flatten() {
                    let hub = hub.clone();
                    std::thread::spawn(move || hub.answer(stream, place));
                }
            });
        }
        hub
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread of the hub has failed")
    }

    /// Answers the next `count` requests whose line contains `part` with `bad`.
    pub(crate) fn fail(&self, count: usize, part: &str, bad: BadResponse) {
        self.state()
            .bad_responses
            .push((count, part.to_owned(), bad));
    }

    pub(crate) fn list(&self, name: &str) {
        self.state().listed.push(name.to_owned());
    }

    pub(crate) fn set_commit(&self, commit: &str) {
        self.state().commit = commit.to_owned();
    }

    pub(crate) fn set_file(&self, name: &str, bytes: &[u8]) {
        let mut state = self.state();
        let large = state.files.get(name).is_some_and(|file| file.large);
        state.files.insert(
            name.to_owned(),
            File {
                bytes: bytes.to_vec(),
                large,
            },
        );
    }

    pub(crate) fn hash(&self, name: &str) -> String {
        self.state().files[name].hash()
    }

    /// Sends no bytes before `count` requests whose line contains `part` have arrived.
    pub(crate) fn hold(&self, count: usize, part: &'static str) {
        self.state().gate = Some((count, part));
    }

    /// Returns and clears the requests so far; checks that none sent a token to the other origin.
    pub(crate) fn requests(&self) -> Vec<Request> {
        let log = std::mem::take(&mut self.state().log);
        for request in log.iter().filter(|request| request.line.contains(" cdn ")) {
            assert_eq!(
                request.authorization, None,
                "{}: the token left the endpoint",
                request.line
            );
        }
        log
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.requests()
            .into_iter()
            .map(|request| request.line)
            .collect()
    }

    fn answer(&self, mut stream: TcpStream, place: &str) {
        let Some(request) = read_request(&stream, place) else {
            return;
        };
        let mut state = self.state();
        state.log.push(request.clone());
        self.changed.notify_all();
        let bad = state
            .bad_responses
            .iter_mut()
            .find(|(count, part, _)| *count > 0 && request.line.contains(part.as_str()));
        let bad = bad.map(|(count, _, bad)| {
            *count -= 1;
            bad.clone()
        });
        drop(state);
        // The client may disconnect at any time.
        let _ = self.reply(&mut stream, &request, place, bad.as_ref());
    }

    fn reply(
        &self,
        out: &mut TcpStream,
        request: &Request,
        place: &str,
        bad: Option<&BadResponse>,
    ) -> std::io::Result<()> {
        if let Some(BadResponse::Status(status, headers)) = bad {
            return send(out, *status, headers, &[], b"", usize::MAX);
        }
        if let Some(BadResponse::Late(pause)) = bad {
            std::thread::sleep(*pause);
        }
        let path = request.line.rsplit(' ').next().unwrap_or_default();
        let state = self.state();
        let commit = state.commit.clone();
        if path.starts_with("/api/models/") {
            let names = state.files.keys().chain(&state.listed);
            let siblings: Vec<_> = names.map(|name| json!({"rfilename": name})).collect();
            let body = json!({"sha": commit, "siblings": siblings}).to_string();
            return send(out, 200, &[], &[], body.as_bytes(), usize::MAX);
        }
        let name = path
            .split_once(&format!("/{commit}/"))
            .map_or("", |(_, name)| name);
        let Some(file) = state.files.get(name).cloned() else {
            return send(
                out,
                404,
                &[("X-Error-Code", "EntryNotFound")],
                &[],
                b"",
                usize::MAX,
            );
        };
        drop(state);
        let (tag, length) = (format!("\"{}\"", file.hash()), file.bytes.len().to_string());
        let over: &[(&str, &str)] = if let Some(BadResponse::Headers(over)) = bad {
            over
        } else {
            &[]
        };
        if place == "hub" && file.large {
            let location = format!("{}{path}", self.cdn);
            let usual = [
                ("Location", location.as_str()),
                ("X-Repo-Commit", &commit),
                ("X-Linked-Etag", &tag),
                ("X-Linked-Size", &length),
                ("ETag", "\"of-the-redirect\""),
            ];
            return send(out, 302, over, &usual, b"", usize::MAX);
        }
        let usual = [("ETag", tag.as_str()), ("X-Repo-Commit", &commit)];
        if request.line.starts_with("HEAD") {
            return head(
                out,
                200,
                over,
                &[&usual[..], &[("Content-Length", &length)]].concat(),
            );
        }
        self.wait_at_gate();
        send_file(out, request, &file.bytes, &usual, over, bad)
    }

    fn wait_at_gate(&self) {
        let closed = |state: &mut State| {
            let gate = state.gate;
            gate.is_some_and(|(count, part)| {
                state
                    .log
                    .iter()
                    .filter(|seen| seen.line.contains(part))
                    .count()
                    < count
            })
        };
        drop(
            self.changed
                .wait_while(self.state(), closed)
                .expect("no thread of the hub has failed"),
        );
    }
}

fn read_request(stream: &TcpStream, place: &str) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let (method, rest) = first.split_once(' ')?;
    let path = rest.split(' ').next()?;
    let mut request = Request {
        line: format!("{method} {place} {path}"),
        range: None,
        authorization: None,
    };
    for line in lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
    {
        let (name, value) = line.split_once(':')?;
        match name.to_ascii_lowercase().as_str() {
            "range" => request.range = Some(value.trim().to_owned()),
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
    Some(request)
}

fn send_file(
    out: &mut TcpStream,
    request: &Request,
    bytes: &[u8],
    usual: &[(&str, &str)],
    over: &[(&str, &str)],
    bad: Option<&BadResponse>,
) -> std::io::Result<()> {
    let (mut bytes, mut cut) = (bytes.to_vec(), usize::MAX);
    match bad {
        Some(BadResponse::Cut(count)) => cut = *count,
        Some(BadResponse::Garbage) => bytes.fill(b'?'),
        Some(BadResponse::Bytes(other)) => bytes.clone_from(other),
        _ => {}
    }
    let range = request.range.as_deref().and_then(|range| {
        let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
        let end = if last.is_empty() {
            usize::MAX
        } else {
            last.parse::<usize>().ok()? + 1
        };
        Some((start.parse::<usize>().ok()?, end.min(bytes.len())))
    });
    match range.filter(|_| !matches!(bad, Some(BadResponse::NoRange))) {
        Some((start, _)) if start >= bytes.len() => send(out, 416, over, usual, b"", cut),
        Some((start, end)) => {
            let range = format!("bytes {start}-{}/{}", end - 1, bytes.len());
            send(
                out,
                206,
                over,
                &[usual, &[("Content-Range", &range)]].concat(),
                &bytes[start..end],
                cut,
            )
        }
        None => send(out, 200, over, usual, &bytes, cut),
    }
}

/// Status and headers; headers in `over` replace those of the same name.
fn head(
    out: &mut TcpStream,
    status: u16,
    over: &[(&str, &str)],
    usual: &[(&str, &str)],
) -> std::io::Result<()> {
    let mut text = format!("HTTP/1.1 {status} \r\nConnection: close\r\n");
    let kept = usual
        .iter()
        .filter(|(name, _)| !over.iter().any(|(other, _)| other == name));
    for (name, value) in over
        .iter()
        .chain(kept)
        .filter(|(_, value)| !value.is_empty())
    {
        write!(text, "{name}: {value}\r\n").expect("a string takes text");
    }
    text += "\r\n";
    out.write_all(text.as_bytes())
}

fn send(
    out: &mut TcpStream,
    status: u16,
    over: &[(&str, &str)],
    usual: &[(&str, &str)],
    body: &[u8],
    cut: usize,
) -> std::io::Result<()> {
    let length = body.len().to_string();
    head(
        out,
        status,
        over,
        &[usual, &[("Content-Length", &length)]].concat(),
    )?;
    out.write_all(&body[..body.len().min(cut)])?;
    out.flush()?;
    out.shutdown(std::net::Shutdown::Write)?;
    // Closing with unread bytes resets the connection, and sent bytes may be lost.
    out.read_to_end(&mut Vec::new()).map(|_| ())
}
