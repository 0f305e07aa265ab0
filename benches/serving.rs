//! Overhead of the API over the engine, each figure a ratio within one run: `cargo bench --bench serving [ADAPTER]
//! [PART]`.
//!
//! Runs a server of the demo model on a real socket, and blocking clients with one connection each. The two sides of a
//! comparison alternate for several rounds; the median of the rounds' ratios counts. ADAPTER is a number from `folio
//! devices`; without it the device is the CPU. PART selects figures whose names contain it. Clients, server and device
//! share the processor, so overhead is never underestimated.

use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{WgpuBackend, WgpuOptions};
use folio::config::Config;
use folio::engine;
use folio::engine::handle::{EngineHandle, Status, channel};
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::model::{Model, demo};
use folio::platform::block_on;
use folio::server::socket::{SocketOptions, serve};
use folio::server::{ServerOptions, ServerState};
use folio::text::TextModel;
use futures_util::{StreamExt, future};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

const ROUNDS: usize = 5;
/// Tokens per answer.
const ANSWER: u32 = 128;
const PROMPT: u32 = 64;
const OVERLOAD: Duration = Duration::from_secs(1);
const SCRAPERS: usize = 10;
/// Factor by which more clients read during the measurement: the cost of ten is below the noise.
const SCRAPERS_MORE: usize = 10;
const SCRAPE_EVERY: Duration = Duration::from_millis(50);

const CONSTRAINED_MIN: f64 = 0.85;
const BESIDE_CONSTRAINED_MIN: f64 = 0.95;
const STREAMING_MIN: f64 = 0.9;
const SCRAPES_MAX: f64 = 0.01;
const REFUSAL_MAX: Duration = Duration::from_millis(50);
const REFUSED_MIN: f64 = 0.99;

/// An engine and its server; both run until the process ends.
struct Server {
    address: SocketAddr,
    engine: EngineHandle,
}

impl Server {
    fn start(adapter: Option<usize>, config: Config) -> Self {
        let (engine, inbox) = channel(config.queue_requests_max);
        drop(match adapter {
            Some(index) => {
                let open = move || {
                    let options = WgpuOptions {
                        adapter: Some(index),
                        ..WgpuOptions::default()
                    };
                    block_on(WgpuBackend::open(&options))
                };
                engine::spawn(open, Model::demo(), config, inbox, |_| {})
            }
            None => engine::spawn(
                || Ok(ReferenceBackend::new()),
                Model::demo(),
                config,
                inbox,
                |_| {},
            ),
        });
        while engine.status() != Status::Ready {
            assert_eq!(engine.status(), Status::Loading, "the engine starts");
            thread::sleep(Duration::from_millis(5));
        }
        let text = TextModel::from_parts(
            Some(demo::TOKENIZER_JSON),
            Some(demo::TOKENIZER_CONFIG_JSON),
            None,
        );
        let text = Arc::new(text.expect("the demo's files are right"));
        let state = ServerState::new(
            engine.clone(),
            text,
            vec!["demo".into()],
            ServerOptions::default(),
        );
        let (told, address) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .enable_all()
                .build()
                .expect("threads start");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
                    .await
                    .expect("a port is free");
                told.send(listener.local_addr().expect("it is bound"))
                    .expect("the receiver waits");
                serve(
                    listener,
                    state,
                    SocketOptions::default(),
                    std::future::pending(),
                )
                .await;
            });
        });
        Self {
            address: address.recv().expect("the server starts"),
            engine,
        }
    }

    /// Sends a request on a new connection and reads the complete answer.
    fn exchange(&self, line: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("the server listens");
        let head = "host: localhost\r\nconnection: close\r\ncontent-type: application/json";
        let length = body.len();
        write!(
            stream,
            "{line} HTTP/1.1\r\n{head}\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    }

    /// Streams all requests concurrently. Returns the tokens per second of the first `counted`, until the last of them
    /// ends.
    fn tokens_per_s(&self, path: &str, bodies: &[Value], counted: usize) -> f64 {
        let line = format!("POST {path}");
        let start = Instant::now();
        thread::scope(|scope| {
            let clients: Vec<_> = bodies
                .iter()
                .map(|body| {
                    let line = &line;
                    scope.spawn(move || completion_tokens(&self.exchange(line, &body.to_string())))
                })
                .collect();
            let (mut tokens, mut seconds) = (0, 0.0);
            for (index, client) in clients.into_iter().enumerate() {
                let told = client.join().expect("a client ends");
                if index < counted {
                    tokens += told;
                    seconds = start.elapsed().as_secs_f64();
                }
            }
            f64::from(tokens) / seconds
        })
    }
}

/// The completion tokens in the last usage record of a stream.
fn completion_tokens(answer: &str) -> u32 {
    let (_, rest) = answer
        .rsplit_once("\"completion_tokens\":")
        .unwrap_or_else(|| panic!("no usage: {answer}"));
    rest.chars()
        .map_while(|c| c.to_digit(10))
        .fold(0, |number, digit| 10 * number + digit)
}

fn chat(seed: usize, more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello!"}], "temperature": 1, "seed": seed,
        "max_tokens": ANSWER, "ignore_eos": true, "stream": true, "stream_options": {"include_usage": true}});
    let (body_map, more) = (
        body.as_object_mut().expect("an object"),
        more.as_object().expect("an object"),
    );
    body_map.extend(more.clone());
    body
}

/// A schema for a list that is longer than any answer.
fn people() -> Value {
    let person = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150}, "kind": {"enum": ["friend", "family", "other"]}},
        "required": ["name", "age", "kind"], "additionalProperties": false});
    json!({"type": "json_schema", "json_schema": {"name": "people", "strict": true,
        "schema": {"type": "array", "items": person, "minItems": 200}}})
}

/// Median of a ratio over several rounds.
fn median(mut round: impl FnMut(usize) -> f64) -> f64 {
    let mut ratios: Vec<f64> = (0..ROUNDS).map(&mut round).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

/// Tokens per second with a schema, relative to free decoding. If `more` requests logprobs, every token is sampled:
/// none is forced by the grammar.
fn constrained(server: &Server, more: &Value) -> f64 {
    let path = "/v1/chat/completions";
    let free: Vec<_> = (0..8).map(|seed| chat(seed, more)).collect();
    let schema = json!({"response_format": people()});
    let bound: Vec<_> = free
        .iter()
        .map(|body| {
            let mut body = body.clone();
            body.as_object_mut()
                .expect("an object")
                .extend(schema.as_object().expect("an object").clone());
            body
        })
        .collect();
    median(|_| server.tokens_per_s(path, &bound, 8) / server.tokens_per_s(path, &free, 8))
}

/// Tokens per second of seven free requests beside a constrained one, relative to beside a free one. With logprobs the
/// constrained request samples every token, like the free one; without, it skips tokens that its grammar forces, and so
/// gets ahead faster.
fn beside_constrained(server: &Server, logprobs: bool) -> f64 {
    let path = "/v1/chat/completions";
    let mut bodies: Vec<_> = (0..8).map(|seed| chat(seed, &json!({}))).collect();
    median(|_| {
        bodies[7] = chat(
            7,
            &json!({"response_format": people(), "max_tokens": 4 * ANSWER, "logprobs": logprobs}),
        );
        let beside = server.tokens_per_s(path, &bodies, 7);
        bodies[7] = chat(7, &json!({"max_tokens": 4 * ANSWER}));
        beside / server.tokens_per_s(path, &bodies, 7)
    })
}

/// Tokens per second of 64 streaming clients, relative to the engine alone with the same requests.
fn streaming(server: &Server) -> f64 {
    const CLIENTS: u32 = 64;
    // The prefix cache never hits: every round has its own prompts.
    let prompt = |round: usize, client: u32| -> Vec<u32> {
        (0..PROMPT)
            .map(|index| (7 * index + 31 * client + 1009 * round as u32) % 4000 + 16)
            .collect()
    };
    median(|round| {
        let body = |client| {
            json!({"prompt": prompt(2 * round, client), "max_tokens": ANSWER, "temperature": 0, "ignore_eos": true,
                "stream": true, "stream_options": {"include_usage": true}})
        };
        let bodies: Vec<_> = (0..CLIENTS).map(body).collect();
        let streamed = server.tokens_per_s("/v1/completions", &bodies, CLIENTS as usize);
        let start = Instant::now();
        let alone = (0..CLIENTS).map(|client| {
            let params = SamplingParams {
                max_tokens: Some(ANSWER),
                draw: DrawParams::greedy(),
                ignore_eos: true,
                ..Default::default()
            };
            let request = Request {
                prompt: prompt(2 * round + 1, client).into(),
                params,
                ..Request::default()
            };
            let receiver = server
                .engine
                .submit(request)
                .expect("the engine takes it")
                .remove(0);
            receiver
                .filter(|event| future::ready(matches!(event, Event::Token(_))))
                .count()
        });
        let tokens: usize = block_on(future::join_all(alone.collect::<Vec<_>>()))
            .into_iter()
            .sum();
        streamed / (tokens as f64 / start.elapsed().as_secs_f64())
    })
}

/// The speed while ten clients read `/metrics`, relative to none; derived from the cost of many times as many clients.
fn scraping(server: &Server) -> f64 {
    let bodies: Vec<_> = (0..8)
        .map(|seed| chat(seed, &json!({"max_tokens": 3 * ANSWER})))
        .collect();
    let speed = || server.tokens_per_s("/v1/chat/completions", &bodies, 8);
    let kept = median(|_| {
        let quiet = speed();
        let done = AtomicBool::new(false);
        let scraped = thread::scope(|scope| {
            for _ in 0..SCRAPERS * SCRAPERS_MORE {
                scope.spawn(|| {
                    let mut reader = Scraper::new(server);
                    while !done.load(Ordering::Relaxed) {
                        reader.read();
                        thread::sleep(SCRAPE_EVERY);
                    }
                });
            }
            let scraped = speed();
            done.store(true, Ordering::Relaxed);
            scraped
        });
        scraped / quiet
    });
    println!(
        "speed while {} clients read /metrics: {kept:.3}",
        SCRAPERS * SCRAPERS_MORE
    );
    1.0 - (1.0 - kept) / SCRAPERS_MORE as f64
}

/// A client that reads `/metrics` repeatedly on one connection.
struct Scraper(TcpStream);

impl Scraper {
    fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(server.address).expect("the server listens");
        stream.set_nodelay(true).expect("a socket's option");
        Self(stream)
    }

    fn read(&mut self) {
        self.0
            .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .expect("the server reads");
        let (mut seen, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            let count = self.0.read(&mut buffer).expect("the server answers");
            assert!(count > 0, "the connection stays open");
            seen.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&seen);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = |line: &str| {
                line.to_lowercase()
                    .strip_prefix("content-length: ")?
                    .parse()
                    .ok()
            };
            let length = head.lines().find_map(length);
            if body.len() >= length.unwrap_or(usize::MAX) {
                return;
            }
        }
    }
}

/// Sends ten times a small server's capacity within a second. Returns the share of refusals that came within the limit.
fn refusals(adapter: Option<usize>) -> f64 {
    let config = Config {
        max_num_seqs: 8,
        queue_requests_max: 8,
        ..config()
    };
    let server = Server::start(adapter, config);
    let bodies: Vec<_> = (0..160)
        .map(|seed| chat(seed, &json!({})).to_string())
        .collect();
    let mut times: Vec<Duration> = thread::scope(|scope| {
        let clients: Vec<_> = bodies
            .iter()
            .enumerate()
            .map(|(index, body)| {
                let server = &server;
                scope.spawn(move || {
                    thread::sleep(OVERLOAD / 160 * index as u32);
                    let start = Instant::now();
                    let answer = server.exchange("POST /v1/chat/completions", body);
                    let time = start.elapsed();
                    let refused = answer.starts_with("HTTP/1.1 429");
                    assert!(refused || answer.starts_with("HTTP/1.1 200"), "{answer}");
                    assert!(!refused || answer.contains("retry-after: "), "{answer}");
                    refused.then_some(time)
                })
            })
            .collect();
        clients
            .into_iter()
            .filter_map(|client| client.join().expect("a client ends"))
            .collect()
    });
    assert!(!times.is_empty(), "nobody was refused");
    times.sort_unstable();
    println!(
        "{} of 160 refused, half within {:?}",
        times.len(),
        times[times.len() / 2]
    );
    times.iter().filter(|time| **time <= REFUSAL_MAX).count() as f64 / times.len() as f64
}

fn config() -> Config {
    Config {
        kv_cache_bytes: Some(64 << 20),
        max_num_seqs: 64,
        ..Config::default()
    }
}

/// The selected figures, and those below their limit.
struct Report {
    part: Option<String>,
    faults: Vec<String>,
}

impl Report {
    /// Measures and checks a figure, if it is selected.
    fn judge(&mut self, name: &str, least: f64, measure: impl FnOnce() -> f64) {
        if self
            .part
            .as_ref()
            .is_some_and(|part| !name.contains(part.as_str()))
        {
            return;
        }
        let value = measure();
        println!("{name}: {value:.3} (at least {least})");
        if value < least {
            self.faults
                .push(format!("{name}: {value:.3} is less than {least}"));
        }
    }
}

fn main() {
    let arguments: Vec<String> = env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let adapter = arguments.iter().find_map(|argument| argument.parse().ok());
    let part = arguments
        .into_iter()
        .find(|argument| argument.parse::<usize>().is_err());
    let mut report = Report {
        part,
        faults: Vec::new(),
    };
    let server = Server::start(adapter, config());
    // Warm-up: compiles the grammar and the kernels.
    server.tokens_per_s(
        "/v1/chat/completions",
        &[chat(0, &json!({"response_format": people()}))],
        1,
    );
    let drawn = json!({"logprobs": true});
    report.judge(
        "JSON schema, 8 of 8, against free decoding",
        CONSTRAINED_MIN,
        || constrained(&server, &json!({})),
    );
    report.judge(
        "JSON schema, 8 of 8, every token sampled",
        CONSTRAINED_MIN,
        || constrained(&server, &drawn),
    );
    let name = "free answers beside a constrained one, 1 of 8";
    report.judge(name, BESIDE_CONSTRAINED_MIN, || {
        beside_constrained(&server, false)
    });
    let name = "free answers beside a constrained one, every token sampled";
    report.judge(name, BESIDE_CONSTRAINED_MIN, || {
        beside_constrained(&server, true)
    });
    report.judge(
        "64 streaming clients against the engine alone",
        STREAMING_MIN,
        || streaming(&server),
    );
    report.judge(
        "speed while ten clients read /metrics",
        1.0 - SCRAPES_MAX,
        || scraping(&server),
    );
    drop(server);
    report.judge("refusals within the limit", REFUSED_MIN, || {
        refusals(adapter)
    });
    assert!(
        cfg!(debug_assertions) || report.faults.is_empty(),
        "{}",
        report.faults.join("; ")
    );
}
