//! A server without sockets, and helpers to send it requests.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use folio::backend::fake::{FakeBackend, Script};
use folio::backend::reference::ReferenceBackend;
use folio::config::Config;
use folio::engine::handle::{EngineHandle, Status, channel};
use folio::engine::request::SamplingParams;
use folio::engine::{self, EngineEnd};
use folio::model::{Model, demo};
use folio::platform::block_on;
use folio::server::{ServerOptions, ServerState, router};
use folio::text::{TextFolder, TextModel, Tokenizer};
use futures_util::StreamExt;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tower::ServiceExt;

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const MODEL: &str = "demo";
/// Timeout of all waits; ample even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One engine and its routes; drains when dropped.
pub(crate) struct Server {
    pub(crate) app: Router,
    pub(crate) state: ServerState,
    pub(crate) engine: EngineHandle,
    thread: Option<JoinHandle<Result<(), EngineEnd>>>,
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().expect("headers are text"))
    }

    /// The data of each event.
    pub(crate) fn events(&self) -> Vec<&str> {
        events(&self.text)
    }

    /// The JSON of each event except the last, which is `[DONE]`.
    pub(crate) fn chunks(&self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(
            events.pop(),
            Some("[DONE]"),
            "a stream ends with [DONE]: {}",
            self.text
        );
        events
            .into_iter()
            .map(|event| serde_json::from_str(event).expect("an event is JSON"))
            .collect()
    }
}

pub(crate) fn events(text: &str) -> Vec<&str> {
    text.split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("an event has data"))
        .collect()
}

/// A response that is still being streamed.
pub(crate) struct Open {
    body: axum::body::BodyDataStream,
    pub(crate) text: String,
}

impl Open {
    /// Starts a request and returns its response while the body is still open.
    pub(crate) fn start(app: &Router, path: &str, body: &Value) -> Self {
        let response =
            block_on(app.clone().oneshot(post(path, body))).expect("the router never fails");
        assert_eq!(response.status(), StatusCode::OK);
        Self {
            body: response.into_body().into_data_stream(),
            text: String::new(),
        }
    }

    /// Waits for more; false at the end.
    pub(crate) fn more(&mut self) -> bool {
        let Some(bytes) = block_on(self.body.next()) else {
            return false;
        };
        self.text.push_str(
            std::str::from_utf8(&bytes.expect("a body has no errors")).expect("events are UTF-8"),
        );
        true
    }

    pub(crate) fn rest(mut self) -> String {
        while self.more() {}
        self.text
    }
}

static TEXT: LazyLock<Arc<TextModel>> = LazyLock::new(|| {
    let text = TextModel::from_parts(
        Some(demo::TOKENIZER_JSON),
        Some(demo::TOKENIZER_CONFIG_JSON),
        None,
    );
    Arc::new(text.expect("the demo's files are right"))
});

pub(crate) fn demo_text() -> Arc<TextModel> {
    TEXT.clone()
}

/// The demo's tokenizer with other names of its special tokens, in their order.
pub(crate) fn renamed(names: [&str; 4]) -> Tokenizer {
    let own = ["<tool_call>", "</tool_call>", "<think>", "</think>"];
    let text = std::str::from_utf8(demo::TOKENIZER_JSON)
        .expect("JSON is text")
        .to_owned();
    let text = own.iter().zip(names).fold(text, |text, (own, name)| {
        text.replace(&format!("\"{own}\""), &format!("\"{name}\""))
    });
    Tokenizer::from_json(text.as_bytes()).expect("it is a tokenizer")
}

/// The names of Qwen's tokens that mark a gap, and a file.
pub(crate) const QWEN: [&str; 4] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|file_sep|>",
];

pub(crate) fn config() -> Config {
    Config {
        kv_cache_bytes: Some(32 << 20),
        block_size: 16,
        ..Config::default()
    }
}

impl Server {
    /// A server on the fake device, whose tokens are a hash of the history.
    pub(crate) fn fake(script: &str, config: Config, options: ServerOptions) -> Self {
        Self::fake_with(script, config, options, demo_text())
    }

    pub(crate) fn fake_with(
        script: &str,
        config: Config,
        options: ServerOptions,
        text: Arc<TextModel>,
    ) -> Self {
        let script: Script = script.parse().expect("a script");
        let spawn = |inbox| {
            engine::spawn(
                move || Ok(FakeBackend::new(script)),
                Model::demo(),
                config,
                inbox,
                |_| {},
            )
        };
        Self::start(spawn, options, text)
    }

    /// A server on the CPU with the demo model.
    pub(crate) fn cpu() -> Self {
        Self::start(
            |inbox| {
                engine::spawn(
                    || Ok(ReferenceBackend::new()),
                    Model::demo(),
                    config(),
                    inbox,
                    |_| {},
                )
            },
            ServerOptions::default(),
            demo_text(),
        )
    }

    pub(crate) fn plain() -> Self {
        Self::plain_with(demo_text())
    }

    pub(crate) fn plain_with(text: Arc<TextModel>) -> Self {
        Self::fake_with("", config(), ServerOptions::default(), text)
    }

    pub(crate) fn start(
        spawn: impl FnOnce(engine::handle::EngineInbox) -> JoinHandle<Result<(), EngineEnd>>,
        options: ServerOptions,
        text: Arc<TextModel>,
    ) -> Self {
        let (handle, inbox) = channel(64);
        let thread = spawn(inbox);
        wait("the engine is ready", || handle.status() == Status::Ready);
        let state = ServerState::new(
            handle.clone(),
            text,
            vec![MODEL.into(), "other/name".into()],
            options,
        );
        Self {
            app: router(state.clone()),
            state,
            engine: handle,
            thread: Some(thread),
        }
    }

    pub(crate) fn send(&self, request: Request<Body>) -> Answer {
        block_on(send(&self.app, request))
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).expect("a request"))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(post(path, body))
    }

    /// See [`Open::start`].
    pub(crate) fn open(&self, path: &str, body: &Value) -> Open {
        Open::start(&self.app, path, body)
    }

    /// Waits until no request runs or waits and no block is in use.
    pub(crate) fn wait_until_idle(&self) {
        wait("the pool is whole again", || {
            let stats = self.engine.stats();
            stats.requests_running + stats.requests_waiting + stats.blocks_used == 0
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.engine.drain();
        if let Some(thread) = self.thread.take() {
            // A test may have stopped the engine on purpose.
            drop(thread.join());
        }
    }
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Answer {
    let response = app
        .clone()
        .oneshot(request)
        .await
        .expect("the router never fails");
    let (parts, body) = response.into_parts();
    let bytes: Bytes = body
        .collect()
        .await
        .expect("a body has no errors")
        .to_bytes();
    let is_binary = parts
        .headers
        .get("content-type")
        .is_some_and(|kind| kind == "application/octet-stream");
    let text = if is_binary {
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        String::from_utf8(bytes.into()).expect("answers are UTF-8")
    };
    Answer {
        status: parts.status,
        headers: parts.headers,
        text,
    }
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Body> {
    let request = Request::post(path).header("content-type", "application/json");
    request
        .body(Body::from(body.to_string()))
        .expect("a request")
}

pub(crate) fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::yield_now();
    }
}

/// A greedy chat request.
pub(crate) fn hello() -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 24})
}

/// `base` with the fields of `more`.
pub(crate) fn with(base: &Value, more: &Value) -> Value {
    let mut base = base.clone();
    let map = base.as_object_mut().expect("an object");
    map.extend(more.as_object().expect("an object").clone());
    base
}

/// The text without its `timings`.
fn untimed(text: &str) -> String {
    let mut parts = text.split("\"timings\":{");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (_, rest) = part.split_once('}').expect("timings end");
        // They are the last key.
        text.strip_suffix(',').unwrap_or(&text).to_owned() + rest
    })
}

/// The text with ids, times and fingerprints blanked, which differ between runs.
pub(crate) fn blanked(text: &str) -> String {
    let mut blank = String::new();
    let text = &untimed(text);
    for line in text.split_inclusive('\n') {
        let Some((prefix, rest)) = line.split_once("{\"id\":\"") else {
            blank.push_str(line);
            continue;
        };
        let (id, rest) = rest.split_once('"').expect("an id ends");
        let kind = id.split('-').next().expect("an id has a kind");
        let (middle, rest) = rest
            .split_once("\"created\":")
            .expect("an answer has its time");
        let rest = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let (before, after) = rest
            .split_once("\"fp_")
            .expect("an answer has a fingerprint");
        let rest = format!(
            "{before}\"FP{}",
            &after[after.find('"').expect("a fingerprint ends")..]
        );
        blank.push_str(&format!(
            "{prefix}{{\"id\":\"{kind}-ID\"{middle}\"created\":0{rest}"
        ));
    }
    blank
}

/// A stream without ids and times. Consecutive texts of one choice are merged, because the chunk boundaries depend on
/// the reader's speed.
pub(crate) fn merged(text: &str) -> String {
    let blank = blanked(text);
    let mut merged: Vec<Value> = Vec::new();
    let mut tail = String::new();
    for event in events(&blank) {
        let Ok(chunk) = serde_json::from_str::<Value>(event) else {
            tail.push_str(&format!("data: {event}\n\n"));
            continue;
        };
        let index = chunk["choices"][0]["index"].clone();
        let is_text = |chunk: &Value| {
            let choice = &chunk["choices"][0];
            let has_text = choice["text"].is_string() || choice["delta"]["content"].is_string();
            has_text && choice["delta"]["role"].is_null() && choice["index"] == index
        };
        // The last text of a completion comes with the finish reason; the chunk before it has only text.
        match merged
            .iter_mut()
            .rev()
            .find(|chunk| chunk["choices"][0]["index"] == index)
            .filter(|last| is_text(last))
        {
            Some(last) if is_text(&chunk) => append(&mut last["choices"][0], &chunk["choices"][0]),
            _ => merged.push(chunk),
        }
    }
    merged
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .chain([tail])
        .collect()
}

fn append(last: &mut Value, next: &Value) {
    for path in ["/text", "/delta/content"] {
        if let (Some(Value::String(text)), Some(more)) =
            (last.pointer_mut(path), next.pointer(path))
        {
            text.push_str(more.as_str().expect("a text"));
        }
    }
    last["finish_reason"] = next["finish_reason"].clone();
    if let Some(stop) = next.get("stop_reason") {
        last["stop_reason"] = stop.clone();
    }
}

pub(crate) fn params() -> SamplingParams {
    SamplingParams::default()
}

/// The demo model's end token.
pub(crate) const END: u32 = 4091;

pub(crate) fn ids(text: &str) -> Vec<u32> {
    demo_text()
        .tokenizer
        .as_ref()
        .expect("the demo has one")
        .encode(text, false)
        .expect("it encodes")
}

pub(crate) fn dotted(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(".")
}

/// A script of the fake device with these answers, one per turn.
pub(crate) fn say(answers: &[&str]) -> String {
    let begin = dotted(&ids("<|im_start|>assistant\n"));
    let answers = answers
        .iter()
        .map(|answer| format!(">{}", dotted(&[ids(answer), vec![END]].concat())));
    format!("say={begin}{}", answers.collect::<String>())
}

/// A server whose device says these answers, one per turn.
pub(crate) fn saying(answers: &[&str]) -> Server {
    Server::fake(&say(answers), config(), ServerOptions::default())
}

/// A server on the CPU with the model of a folder.
pub(crate) fn server_of(folder: &std::path::Path) -> Server {
    let mut files = TextFolder::default();
    for name in TextFolder::NAMES {
        if let Ok(bytes) = std::fs::read(folder.join(name)) {
            files.insert(name, bytes);
        }
    }
    let text = TextModel::from_folder(&files, None).expect("the folder's files are right");
    let model = Model::open(folder).expect("the model opens");
    let spawn = |inbox| {
        let backend = || Ok(ReferenceBackend::new());
        engine::spawn(backend, model, config(), inbox, |_| {})
    };
    Server::start(spawn, ServerOptions::default(), Arc::new(text))
}
