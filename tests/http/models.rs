//! Several models behind one server: found by name, loaded when they are asked for, unloaded when nobody asks, or when
//! another one needs the memory. All of them run on fake devices, and each says who it is.

mod beside;

use crate::document::golden;
use crate::harness::{
    Answer, CHAT, MODEL, Open, PATIENCE, Server, config, demo_text, events, hello, params, post,
    say, send, wait, with,
};
use axum::Router;
use axum::body::Body;
use axum::http::Request;
use folio::backend::fake::{FakeBackend, Script};
use folio::engine::handle::{EngineInbox, Status, channel};
use folio::engine::request::DrawDefaults;
use folio::engine::{self, DeviceQueue, EngineEnd};
use folio::model::{Model, demo};
use folio::platform::block_on;
use folio::server::{
    FleetOptions, LoadedModel, ModelOutline, ModelSource, ServerOptions, ServerState, router,
};
use folio::text::TextModel;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What happens to models, in order, a gate that loads wait at, and the line of their engines.
#[derive(Default)]
pub(crate) struct Log {
    lines: Mutex<Vec<String>>,
    /// Loads wait until it is open.
    is_shut: Mutex<bool>,
    opened: Condvar,
    /// Of the one device.
    device_queue: DeviceQueue,
}

impl Log {
    fn note(&self, line: String) {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn shut(&self, is_shut: bool) {
        *self.is_shut.lock().unwrap_or_else(PoisonError::into_inner) = is_shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let is_shut = self.is_shut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.opened
                .wait_while(is_shut, |is_shut| *is_shut)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// A server of several models; closes when dropped.
pub(crate) struct Several {
    pub(crate) app: Router,
    state: ServerState,
    log: Arc<Log>,
}

/// The thread of an engine.
pub(crate) type Thread = JoinHandle<Result<(), EngineEnd>>;

/// A model on a fake device with this script, or one that cannot be loaded.
fn source(
    log: &Arc<Log>,
    name: &str,
    bytes: u64,
    script: Result<String, &'static str>,
) -> ModelSource {
    source_of(log, name, bytes, move |inbox| {
        let script: Script = script.clone()?.parse().expect("a script");
        Ok(engine::spawn(
            move || Ok(FakeBackend::new(script)),
            Model::demo(),
            config(),
            inbox,
            |_| {},
        ))
    })
}

/// A model whose engine is started so.
pub(crate) fn source_of(
    log: &Arc<Log>,
    name: &str,
    bytes: u64,
    start: impl Fn(EngineInbox) -> Result<Thread, String> + Send + Sync + 'static,
) -> ModelSource {
    let (log, name) = (log.clone(), name.to_owned());
    let names = vec![name.clone(), format!("{name}-alias")];
    let file = Some(format!("{name}-file.gguf"));
    let load = move || {
        log.note(format!("load {name}"));
        log.pass();
        let (handle, inbox) = channel(64);
        let thread = start(inbox.with_device_queue(log.device_queue.clone()))?;
        wait("the engine is ready", || handle.status() == Status::Ready);
        let (log, name) = (log.clone(), name.clone());
        let end = move || {
            let outcome = thread
                .join()
                .expect("it does not panic")
                .map_err(|end| end.to_string());
            log.note(format!("end {name}"));
            outcome
        };
        Ok(LoadedModel {
            engine: handle,
            text: demo_text(),
            images: None,
            defaults: params(),
            draw_defaults: DrawDefaults::default(),
            end: Box::new(end),
        })
    };
    ModelSource {
        names,
        place: 0,
        bytes,
        refusal: None,
        idle_unload: None,
        queue_requests_max: 64,
        outline: Some(outline()),
        options: ServerOptions {
            file,
            ..ServerOptions::default()
        },
        load: Box::new(load),
    }
}

/// What is known of a model that is not loaded. Its numbers are other ones than those of the model.
fn outline() -> ModelOutline {
    let text = TextModel::from_parts(None, Some(demo::TOKENIZER_CONFIG_JSON), None)
        .expect("the demo's files are right");
    ModelOutline {
        text: Arc::new(text),
        vocab: 7000,
        max_model_len: 1234,
        max_num_seqs: 5,
        pool_tokens: 6170,
        embedding_len: 0,
        weight_bytes: 4321,
        ..ModelOutline::default()
    }
}

impl Several {
    /// Three models that say their names, of which two fit at the same time.
    fn start() -> Self {
        Self::with(|_, _| {})
    }

    fn with(change: impl FnOnce(&mut Vec<ModelSource>, &mut FleetOptions)) -> Self {
        let log = Arc::<Log>::default();
        let model = |name: &str| source(&log, name, 4, Ok(say(&[&format!("I am {name}.")])));
        let mut sources = ["a", "b", "c"].map(model).into();
        let mut options = FleetOptions {
            places: vec![Some(10)],
            load_timeout: Some(PATIENCE),
        };
        change(&mut sources, &mut options);
        Self::of(sources, &options, log)
    }

    pub(crate) fn of(sources: Vec<ModelSource>, options: &FleetOptions, log: Arc<Log>) -> Self {
        let state = ServerState::with_models(sources, options, ServerOptions::default());
        Self {
            app: router(state.clone()),
            state,
            log,
        }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        block_on(send(
            &self.app,
            Request::get(path).body(Body::empty()).expect("a request"),
        ))
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        block_on(send(&self.app, post(path, body)))
    }

    pub(crate) fn open(&self, body: &Value) -> Open {
        Open::start(&self.app, CHAT, body)
    }

    /// What a model says.
    pub(crate) fn ask(&self, model: &str) -> String {
        let answer = self.post(CHAT, &of(model));
        assert_eq!(answer.status, 200, "{}", answer.text);
        let answer = answer.json();
        assert_eq!(answer["model"], model);
        answer["choices"][0]["message"]["content"]
            .as_str()
            .expect("a text")
            .to_owned()
    }

    /// The states of all models.
    fn states(&self) -> Vec<String> {
        let models = self.get("/v1/models").json();
        let cards = models["data"].as_array().expect("a list").iter().step_by(2);
        cards
            .map(|card| card["status"]["value"].as_str().expect("a word").to_owned())
            .collect()
    }

    fn wait_for(&self, states: [&str; 3]) {
        wait(&states.join(", "), || self.states() == states);
    }

    fn waiting(&self, model: &str) -> bool {
        let line = format!("vllm:num_requests_waiting{{engine=\"0\",model_name=\"{model}\"}} 1");
        self.get("/metrics").text.contains(&line)
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        self.log.shut(false);
        self.state.close();
    }
}

pub(crate) fn of(model: &str) -> Value {
    with(&hello(), &json!({"model": model}))
}

#[test]
fn models_are_found_by_name_and_loaded_when_they_are_asked_for() {
    let server = Several::start();
    assert_eq!(server.states(), ["unloaded"; 3]);
    assert_eq!(
        server.get("/health").status,
        200,
        "the server itself takes requests"
    );
    for name in ["b", "b-alias", "b-file", "b:latest"] {
        assert_eq!(server.ask(name), "I am b.", "{name}");
    }
    assert_eq!(
        (server.states(), server.log.take()),
        (
            vec!["unloaded".into(), "loaded".into(), "unloaded".into()],
            vec!["load b".to_owned()]
        )
    );
    let first = server
        .post(CHAT, &with(&hello(), &json!({"model": null})))
        .json();
    assert_eq!(
        first["choices"][0]["message"]["content"], "I am a.",
        "the first, if none is named"
    );
    let unknown = server.post(CHAT, &of("nobody"));
    assert_eq!(
        (
            unknown.status.as_u16(),
            unknown.json()["error"]["code"].as_str()
        ),
        (404, Some("model_not_found"))
    );
    assert!(
        unknown.text.contains("there is `a`, `a-alias`, `b`"),
        "{}",
        unknown.text
    );
    assert_eq!(server.post(CHAT, &json!([])).status, 400);
    assert_eq!(
        server
            .post(CHAT, &with(&hello(), &json!({"model": 5})))
            .status,
        400
    );
    assert_eq!(
        server.get("/v1/models/c").json()["status"]["value"],
        "unloaded"
    );
    assert_eq!(server.get("/v1/models/none").status, 404);
    let text = server.get("/metrics").text;
    for line in [
        "model_loads_total{engine=\"0\",model_name=\"b\"} 1",
        "generation_tokens_total{engine=\"0\",model_name=\"a\"} ",
        "model_loads_total{engine=\"0\",model_name=\"c\"} 0",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(
        server.get("/api/ps").json()["models"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(
        server.get("/api/tags").json()["models"]
            .as_array()
            .map(Vec::len),
        Some(6)
    );
    assert_eq!(
        server.get("/v1/loads").json()["loads"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(server.get("/openapi.json").status, 200);
}

#[test]
fn every_route_of_a_model_forwards() {
    let server = Several::start();
    let messages = json!([{"role": "user", "content": "Hello!"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 2})),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 30}),
        ),
        ("/v1/responses", json!({"input": "Hello!"})),
        ("/v1/embeddings", json!({"input": "a"})),
        ("/tokenize", json!({"prompt": "a"})),
        ("/completion", json!({"prompt": "a", "n_predict": 2})),
        ("/api/chat", json!({"messages": messages, "stream": false})),
        ("/api/embed", json!({"input": "a"})),
    ] {
        let answer = server.post(path, &with(&body, &json!({"model": "c"})));
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
        assert_eq!(
            server
                .post(path, &with(&body, &json!({"model": "nobody"})))
                .status,
            404,
            "{path}"
        );
    }
    assert_eq!(server.log.take(), ["load c"]);
    let wrong = server.get("/v1/completions");
    assert_eq!(wrong.status, 405, "{}", wrong.text);
}

/// Clients ask about every model that they list, and nothing may be loaded or make room for that.
#[test]
fn what_is_known_of_a_model_is_told_without_loading_it() {
    let server = Several::with(|sources, _| {
        sources[2].refusal = Some("its file is damaged".into());
        sources[2].outline = None;
    });
    let show = |model: &str| server.post("/api/show", &json!({"model": model}));
    let told = |context: u64, vocab: u64| {
        let shown = show("b:latest").json();
        let info = &shown["model_info"];
        assert_eq!(
            (&info["folio.context_length"], &info["folio.vocab_size"]),
            (&json!(context), &json!(vocab))
        );
        let props = server.get("/props?model=b%2Dalias").json();
        assert_eq!(
            (
                &props["model_path"],
                &props["default_generation_settings"]["n_ctx"]
            ),
            (&json!("b-file.gguf"), &json!(context))
        );
        assert!(
            props["chat_template"]
                .as_str()
                .is_some_and(|template| template == shown["template"]),
            "{props}"
        );
        let model = server.get("/model_info?model=b-file").json();
        assert_eq!(
            (&model["max_model_len"], &model["vocab_size"]),
            (&json!(context), &json!(vocab))
        );
        assert_eq!(server.get("/v1/models/b").json()["max_model_len"], context);
        shown
    };
    let before = told(1234, 7000);
    assert_eq!(before["capabilities"], json!(["completion", "tools"]));
    assert_eq!(
        server.get("/tokenizer_info?model=b").json()["vocab_size"],
        json!(null)
    );
    let info = server.get("/server_info?model=b").json();
    assert_eq!(
        (&info["max_running_requests"], &info["device"]),
        (&json!(5), &json!(null))
    );
    assert_eq!(server.get("/api/tags").json()["models"][2]["size"], 4321);
    let failed = show("c");
    assert!(
        failed.status == 503 && failed.text.contains("its file is damaged"),
        "{}",
        failed.text
    );
    assert_eq!(
        (
            show("nobody").status.as_u16(),
            server.get("/props?model=nobody").status.as_u16()
        ),
        (404, 404)
    );
    assert_eq!(
        server.post("/api/show", &json!({"name": "a"})).json()["modelfile"],
        "FROM a\n"
    );
    assert_eq!(
        (server.states(), server.log.take()),
        (vec!["unloaded".to_owned(); 3], Vec::new())
    );
    // What is loaded tells of itself.
    assert_eq!(server.ask("b"), "I am b.");
    let vocab = u64::from(Model::demo().spec().vocab);
    assert_eq!(told(2048, vocab)["template"], before["template"]);
    assert!(server.get("/tokenizer_info?model=b").json()["vocab_size"].is_u64());
    assert_eq!(server.get("/server_info?model=b").json()["device"], "fake");
    assert_eq!(server.log.take(), ["load b"]);
}

#[test]
fn a_name_is_preferred_to_the_stem_of_another_models_file() {
    let server = Several::with(|sources, _| sources[0].options.file = Some("b.gguf".into()));
    assert_eq!(server.ask("b"), "I am b.");
    let server = Several::with(|sources, _| sources[2].options.file = Some("d".into()));
    assert_eq!(server.ask("d"), "I am c.");
    assert_eq!(server.post(CHAT, &of("")).json()["model"], "a");
}

#[test]
fn a_single_model_is_found_by_the_stem_of_its_file() {
    let options = ServerOptions {
        file: Some("qwen3.gguf".into()),
        ..ServerOptions::default()
    };
    let server = Server::fake("", config(), options);
    assert_eq!(server.post(CHAT, &of("")).json()["model"], MODEL);
    for name in ["qwen3", "qwen3:latest"] {
        let answer = server.post(CHAT, &of(name));
        assert_eq!(
            (answer.status.as_u16(), answer.json()["model"].as_str()),
            (200, Some(name)),
            "{}",
            answer.text
        );
        assert_eq!(server.get(&format!("/v1/models/{name}")).status, 200);
        assert_eq!(
            server.post("/api/show", &json!({"model": name})).status,
            200
        );
    }
    for unknown in ["qwen", "path/qwen3"] {
        assert_eq!(server.post(CHAT, &of(unknown)).status, 404, "{unknown}");
    }
    let listed = server.get("/v1/models").json();
    assert_eq!(
        listed["data"].as_array().map(Vec::len),
        Some(2),
        "a stem is no name of its own: {listed}"
    );
}

#[test]
fn a_stream_begins_while_its_model_loads_and_others_go_on() {
    let server = Several::start();
    assert_eq!(server.ask("a"), "I am a.");
    server.log.shut(true);
    let mut open = server.open(&with(&of("b"), &json!({"stream": true})));
    assert!(
        open.more() && open.text == ": loading `b`\n\n",
        "{}",
        open.text
    );
    server.wait_for(["loaded", "loading", "unloaded"]);
    assert!(server.waiting("b"), "who waits is counted");
    assert_eq!(server.ask("a"), "I am a.");
    server.log.shut(false);
    let text = open.rest();
    let said: String = events(text.strip_prefix(": loading `b`\n\n").expect("the comment"))
        .iter()
        .filter_map(|event| serde_json::from_str::<Value>(event).ok())
        .filter_map(|event| {
            event["choices"][0]["delta"]["content"]
                .as_str()
                .map(str::to_owned)
        })
        .collect();
    assert_eq!(
        (said.as_str(), text.ends_with("data: [DONE]\n\n")),
        ("I am b.", true),
        "{text}"
    );
    assert!(!server.waiting("b"));
    let refused = server
        .open(&with(&of("c"), &json!({"stream": true, "temperature": -1})))
        .rest();
    assert!(
        refused.contains("\"param\":\"temperature\"") && refused.ends_with("data: [DONE]\n\n"),
        "{refused}"
    );
}

#[test]
fn a_load_that_fails_ends_its_requests_only() {
    let server = Several::with(|sources, _| {
        let good = std::mem::replace(
            &mut sources[1].load,
            Box::new(|| Err("it is damaged".into())),
        );
        let tries = Mutex::new(0);
        sources[1].load = Box::new(move || {
            let mut tries = tries.lock().unwrap_or_else(PoisonError::into_inner);
            *tries += 1;
            if *tries <= 4 {
                Err("it is damaged".into())
            } else {
                good()
            }
        });
        sources[2].load = Box::new(|| panic!("a panic while it loads, planted by this test"));
    });
    let failed = server.post(CHAT, &of("b"));
    assert_eq!(
        (failed.status.as_u16(), failed.header("x-should-retry")),
        (503, "false")
    );
    assert_eq!(failed.json()["error"]["code"], "model_load_failed");
    assert!(failed.text.contains("it is damaged"), "{}", failed.text);
    let card = server.get("/v1/models/b").json();
    assert_eq!(
        card["status"],
        json!({"value": "unloaded", "failed": true, "reason": "it is damaged"})
    );
    let stream = json!({"stream": true});
    let text = server.open(&with(&of("b"), &stream)).rest();
    assert!(
        text.contains("model_load_failed") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    let message = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 9});
    let text = server
        .post(
            "/v1/messages",
            &with(&message, &json!({"model": "b", "stream": true})),
        )
        .text;
    assert!(
        text.contains("event: error\ndata: {\"type\":\"error\""),
        "{text}"
    );
    let text = server
        .post(
            "/v1/responses",
            &json!({"input": "a", "model": "b", "stream": true}),
        )
        .text;
    let (begun, event) = text.split_once("\n\n").expect("a comment, and an event");
    assert_eq!(begun, ": loading `b`");
    let (name, data) = event
        .trim_end()
        .split_once("\ndata: ")
        .expect("a name and data");
    let event: Value = serde_json::from_str(data).expect("JSON");
    assert_eq!(
        (name, &event["sequence_number"]),
        ("event: error", &json!(0))
    );
    golden(
        "tests/data/http/responses_error.jsonl",
        &format!("{event}\n"),
    );
    assert!(server.post(CHAT, &of("c")).text.contains("panicked"));
    assert_eq!(
        (server.ask("a"), server.ask("b")),
        ("I am a.".into(), "I am b.".into()),
        "the next one tries again"
    );
}

/// Neither the model whose end it is nor those that wait for its memory wait for ever.
#[test]
fn a_panic_while_a_model_ends_costs_nobody_a_model() {
    let server = Several::with(|sources, _| {
        let good = std::mem::replace(&mut sources[0].load, Box::new(|| Err(String::new())));
        sources[0].load = Box::new(move || {
            let mut model = good()?;
            let end = std::mem::replace(&mut model.end, Box::new(|| Ok(())));
            model.end = Box::new(move || {
                end()?;
                panic!("a panic while it ends, planted by this test")
            });
            Ok(model)
        });
    });
    for _ in 0..2 {
        let answers = ["a", "b", "c"].map(|name| server.ask(name));
        assert_eq!(answers, ["I am a.", "I am b.", "I am c."]);
    }
}

#[test]
fn a_request_waits_no_longer_than_it_may_and_leaves_when_its_client_does() {
    let server = Several::with(|_, options| options.load_timeout = Some(Duration::from_millis(30)));
    server.log.shut(true);
    let late = server.post(CHAT, &of("a"));
    assert_eq!(
        (late.status.as_u16(), late.json()["error"]["code"].as_str()),
        (503, Some("model_loading"))
    );
    assert_eq!(late.header("retry-after"), "5");
    let open = server.open(&with(&of("a"), &json!({"stream": true})));
    wait("it waits", || server.waiting("a"));
    drop(open);
    wait("nobody waits", || !server.waiting("a"));
    let mut asked = Box::pin(send(&server.app, post(CHAT, &of("a"))));
    assert!(asked.as_mut().now_or_never().is_none());
    drop(asked);
    wait("nobody waits", || !server.waiting("a"));
    server.log.shut(false);
    server.wait_for(["loaded", "unloaded", "unloaded"]);
    assert_eq!(server.ask("a"), "I am a.");
}

#[test]
fn no_more_wait_for_a_model_than_may_queue() {
    let server = Several::with(|sources, _| sources[0].queue_requests_max = 1);
    server.log.shut(true);
    let first = server.open(&with(&of("a"), &json!({"stream": true})));
    wait("it waits", || server.waiting("a"));
    let refused = server.post(CHAT, &of("a"));
    assert_eq!(
        (
            refused.status.as_u16(),
            refused.json()["error"]["code"].as_str()
        ),
        (429, Some("queue_full"))
    );
    server.log.shut(false);
    assert!(first.rest().contains("[DONE]"));
    assert_eq!(server.ask("a"), "I am a.");
}

#[test]
fn models_make_room_in_the_order_of_their_use() {
    let server = Several::start();
    assert_eq!(
        [server.ask("a"), server.ask("b"), server.ask("a")],
        ["I am a.", "I am b.", "I am a."]
    );
    assert_eq!(server.ask("c"), "I am c.");
    assert_eq!(
        server.log.take(),
        ["load a", "load b", "end b", "load c"],
        "b was used before a"
    );
    // A model in use goes when its stream has ended, and that stream is not cut.
    let pause = source(&server.log, "slow", 8, Ok("pause=2".into()));
    let slow = Several::of(
        vec![pause, source(&server.log, "other", 8, Ok(String::new()))],
        &FleetOptions {
            places: vec![Some(10)],
            load_timeout: None,
        },
        server.log.clone(),
    );
    server.log.take();
    let mut open = slow.open(&with(
        &of("slow"),
        &json!({"stream": true, "max_tokens": 100, "ignore_eos": true}),
    ));
    while !open.text.contains("content") {
        assert!(open.more());
    }
    let other = std::thread::scope(|scope| {
        let other = scope.spawn(|| slow.post(CHAT, &of("other")));
        let text = open.rest();
        assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
        other.join().expect("it does not panic")
    });
    assert_eq!(other.status, 200, "{}", other.text);
    assert_eq!(server.log.take(), ["load slow", "end slow", "load other"]);
}

#[test]
fn what_does_not_fit_is_never_loaded() {
    let server = Several::with(|sources, _| {
        sources[1].bytes = 11;
        sources[2].refusal = Some("weights (9.0 GiB) leave no room".into());
    });
    for (model, reason) in [
        ("b", "it does not fit"),
        ("c", "weights (9.0 GiB) leave no room"),
    ] {
        let refused = server.post(CHAT, &of(model));
        assert!(
            refused.status == 503 && refused.text.contains(reason),
            "{}",
            refused.text
        );
        assert_eq!(
            server.post("/models/load", &json!({"model": model})).status,
            503
        );
        assert_eq!(
            server.get(&format!("/v1/models/{model}")).json()["status"]["failed"],
            true
        );
    }
    assert_eq!(
        (server.ask("a"), server.log.take()),
        ("I am a.".into(), vec!["load a".to_owned()])
    );
}

#[test]
fn models_are_loaded_and_unloaded_as_told() {
    let server =
        Several::with(|sources, _| sources[2].idle_unload = Some(Duration::from_millis(30)));
    let told = |path: &str, model: &str| server.post(path, &json!({"model": model}));
    assert_eq!(
        told("/models/load", "a-alias").json(),
        json!({"success": true})
    );
    server.wait_for(["loaded", "unloaded", "unloaded"]);
    assert_eq!(told("/models/unload", "a").json(), json!({"success": true}));
    server.wait_for(["unloaded"; 3]);
    assert_eq!(told("/models/unload", "a").status, 400, "it is not loaded");
    assert_eq!(told("/models/load", "nobody").status, 404);
    assert_eq!(server.log.take(), ["load a", "end a"]);

    assert_eq!(server.ask("c"), "I am c.");
    server.wait_for(["unloaded"; 3]);
    assert_eq!(server.log.take(), ["load c", "end c"], "nobody used it");

    let ollama = |more: Value| {
        let body = json!({"model": "c", "prompt": "Hello!", "stream": false, "options": {"num_predict": 5}});
        server.post("/api/generate", &with(&body, &more))
    };
    let durations = |answer: Answer| {
        let answer = answer.json();
        ["load_duration", "total_duration"].map(|name| answer[name].as_u64().expect("nanoseconds"))
    };
    let [load, total] = durations(ollama(json!({"keep_alive": -1})));
    assert!(load > 0 && load < total, "{load} ns of {total} ns");
    let expires = server.get("/api/ps").json()["models"][0]["expires_at"].to_string();
    assert!(expires.starts_with("\"21"), "{expires}");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.states()[2], "loaded", "it stays");
    assert_eq!(
        durations(ollama(json!({"keep_alive": 0})))[0],
        0,
        "it was loaded"
    );
    server.wait_for(["unloaded"; 3]);
    assert_eq!(
        ollama(json!({"prompt": "", "keep_alive": "10m"})).json()["done_reason"],
        "load"
    );
    server.wait_for(["unloaded", "unloaded", "loaded"]);
    let done = ollama(json!({"prompt": "", "keep_alive": 0})).json();
    assert_eq!(done["done_reason"], "unload");
    server.wait_for(["unloaded"; 3]);
    assert_eq!(ollama(json!({"keep_alive": "a while"})).status, 400);
    assert_eq!(
        Server::plain()
            .post("/models/unload", &json!({"model": "demo"}))
            .status,
        400,
        "its only model stays"
    );
}

#[test]
fn a_request_keeps_its_model_loaded_for_itself_only() {
    let server =
        Several::with(|sources, _| sources[2].idle_unload = Some(Duration::from_millis(30)));
    let body =
        json!({"model": "c", "prompt": "Hello!", "stream": false, "options": {"num_predict": 2}});
    let kept = server.post("/api/generate", &with(&body, &json!({"keep_alive": "1h"})));
    assert_eq!(kept.status, 200);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(server.states()[2], "loaded", "it was asked for");
    assert_eq!(server.ask("c"), "I am c.");
    server.wait_for(["unloaded"; 3]);
}

#[test]
fn the_longest_keep_alive_harms_nobody() {
    let server = Several::start();
    let body =
        json!({"model": "c", "prompt": "Hello!", "stream": false, "options": {"num_predict": 2}});
    for longest in [
        json!(u64::MAX),
        json!(1e18),
        json!(1e300),
        json!("1e308"),
        json!("9999999999999999h"),
        json!(2e9),
    ] {
        let start = Instant::now();
        let answer = server.post(
            "/api/generate",
            &with(&body, &json!({"keep_alive": longest})),
        );
        assert_eq!(answer.status, 200, "{longest}: {}", answer.text);
        let listed = server.get("/api/ps").json();
        let expires = listed["models"][0]["expires_at"]
            .as_str()
            .expect("a time")
            .to_owned();
        assert!(expires.starts_with("20"), "{longest}: {expires}");
        assert!(
            start.elapsed() < Duration::from_secs(2),
            "{longest}: {:?}",
            start.elapsed()
        );
    }
    assert_eq!(server.ask("a"), "I am a.", "models are still loaded");
}
