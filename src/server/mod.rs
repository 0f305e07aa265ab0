//! The OpenAI-compatible HTTP API as an axum router, without sockets: it also builds for a browser tab.
//!
//! [`router`] turns a [`ServerState`] into the routes. A request passes `guard` (host, origin, key), is read strictly
//! (`json`), checked field by field (`fields`, `sampling`, and the endpoint's own file), becomes token ids through
//! [`crate::text`], and goes to the engine. What comes back is one receiver per choice; `generate` turns them into
//! pieces of text, `reply` into JSON, `sse` into a stream. Dropping the response drops the receivers, and that is the
//! one way to cancel.
//!
//! Nothing here knows a device, a model's weights or the engine's thread; only [`socket`] (feature `server`) knows
//! connections, timeouts and signals.

mod answer;
mod chat;
mod completions;
mod embeddings;
mod error;
mod fields;
mod generate;
mod guard;
mod harmony;
mod health;
mod json;
mod llama;
mod load;
mod local;
mod marker;
mod messages;
mod metrics;
mod models;
mod openapi;
mod reasoning;
mod reply;
mod sampling;
#[cfg(feature = "server")]
pub mod socket;
mod sse;
mod structured;
mod tokens;
mod tools;
mod ui;

pub use error::BodyTimeout;
pub use local::{LocalAnswer, LocalApi, LocalBody, NotHttp};
pub use reasoning::ReasoningParser;
pub use tools::ToolParser;

use crate::engine::handle::{EngineHandle, EngineInfo, Status};
use crate::engine::request::{SamplingParams, SubmitError};
use crate::platform;
use crate::text::{GrammarError, Grammars, TextModel};
use answer::Dialect;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderName, HeaderValue, Method};
use axum::routing::{MethodRouter, get, post};
use error::ApiError;
use metrics::Metrics;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Bytes of prompt per token of context: more cannot fit, so it is refused before it is tokenized.
const BYTES_PER_TOKEN_MAX: usize = 8;
/// Input above this many bytes is parsed, rendered and tokenized beside the async threads.
const OFFLOAD_BYTES: usize = 4 << 10;
/// Inputs that are worked on so at once; more are refused like a full queue.
const OFFLOADS_MAX: usize = 64;
/// How long a browser may remember what a page of another site may do.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);

fn prompt_bytes_max(info: &EngineInfo) -> usize {
    info.max_model_len as usize * BYTES_PER_TOKEN_MAX
}

/// Ceilings of one request.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes_max: usize,
    /// `n`.
    pub choices_max: u32,
    /// Prompts in one completions request.
    pub prompts_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: 4 << 20, choices_max: 8, prompts_max: 64 }
    }
}

/// What a server is told apart from its model.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// One of these is needed on every route but `/health`, `/ping` and the page itself; empty: none is. Whoever has
    /// another key is another client, and clients take turns.
    pub api_keys: Vec<String>,
    /// Other sites whose pages may use this server; `*`: all. Empty: none.
    pub allowed_origins: Vec<String>,
    /// Host names by which browsers may reach this server, beside `localhost` and IP addresses; `*` allows all.
    pub allowed_hosts: Vec<String>,
    /// Sampling of requests that do not say; from the model's generation_config.json.
    pub defaults: SamplingParams,
    /// Ceilings of one request.
    pub limits: Limits,
    /// How the model writes tool calls; `None`: as its chat template says.
    pub tool_call_parser: Option<ToolParser>,
    /// How the model marks its thoughts; `None`: as its chat template says.
    pub reasoning_parser: Option<ReasoningParser>,
}

/// Everything the routes need; cheap to clone.
#[derive(Clone)]
pub struct ServerState {
    pub(crate) engine: EngineHandle,
    pub(crate) text: Arc<TextModel>,
    pub(crate) model_names: Arc<[String]>,
    pub(crate) options: Arc<ServerOptions>,
    metrics: Arc<Metrics>,
    throughput: Arc<load::Throughput>,
    /// It says that it is not well, so that nobody sends more, although requests are still taken.
    closing: Arc<AtomicBool>,
    /// Answers that are being generated, until their last byte is handed over.
    active: Arc<AtomicUsize>,
    /// Inputs that are worked on beside the async threads.
    offloads: Arc<AtomicUsize>,
    /// Names of request fields that were logged as unknown.
    unknown_fields: Arc<Mutex<BTreeSet<String>>>,
    ids: Arc<AtomicU64>,
    created: u64,
    dialect: Dialect,
    /// Made when a request first needs it.
    grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

impl ServerState {
    /// State of one server. The first of `model_names` is what answers call the model; there is at least one.
    pub fn new(engine: EngineHandle, text: Arc<TextModel>, model_names: Vec<String>, options: ServerOptions) -> Self {
        assert!(!model_names.is_empty(), "a served model has a name");
        let dialect = Dialect::new(&text, options.tool_call_parser, options.reasoning_parser);
        Self {
            engine,
            text,
            model_names: model_names.into(),
            options: Arc::new(options),
            metrics: Arc::default(),
            throughput: Arc::default(),
            closing: Arc::default(),
            active: Arc::default(),
            offloads: Arc::default(),
            unknown_fields: Arc::default(),
            ids: Arc::default(),
            created: platform::unix_time(),
            dialect,
            grammars: Arc::default(),
        }
    }

    /// Answers that are being generated now.
    pub fn active_answers(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Tells those who ask for its health that it will end; requests are taken until the engine drains.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The engine's facts, or why no request can be served.
    fn ready(&self) -> Result<&EngineInfo, ApiError> {
        match self.engine.status() {
            Status::Ready => self.engine.info().ok_or_else(ApiError::loading),
            Status::Loading => Err(ApiError::loading()),
            Status::Draining => Err(ApiError::shutting_down()),
            Status::Failed => Err(ApiError::device_lost()),
        }
    }

    /// The served name that a request means; absent means the first.
    fn model(&self, asked: Option<String>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.model_names[0].clone()),
            Some(name) if self.model_names.contains(&name) => Ok(name),
            Some(name) => Err(ApiError::unknown_model(&name)),
        }
    }

    /// Runs `work` on the text model; see [`Self::offload`].
    async fn with_text<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&TextModel) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let text = self.text.clone();
        self.offload(bytes, move || work(&text)).await
    }

    /// Runs `work` here if its input has few bytes, else on a thread of its own, so that other clients are served
    /// meanwhile.
    async fn offload<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= OFFLOAD_BYTES {
            return Ok(work());
        }
        // The count lives in the work, which goes on when the client is gone.
        let slot = Counted::new(&self.offloads);
        if self.offloads.load(Ordering::Acquire) > OFFLOADS_MAX {
            let limit = OFFLOADS_MAX as u32;
            return Err(ApiError::refused(&SubmitError::Overloaded { limit }, "prompt"));
        }
        let done = platform::offload(move || {
            let result = work();
            drop(slot);
            result
        });
        done.await.ok_or_else(ApiError::internal)
    }

    /// What answers were computed by, in a few characters: they may differ where these do.
    fn fingerprint(&self, info: &EngineInfo) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [env!("CARGO_PKG_VERSION"), &self.model_names[0], &info.device, info.api, &info.tier] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        format!("fp_{}", &hasher.finalize().to_hex()[..12])
    }

    /// A name that no other answer of this server has.
    fn new_id(&self, prefix: &str) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.created.to_le_bytes()).update(&count.to_le_bytes());
        hasher.update(&(Arc::as_ptr(&self.ids) as usize).to_le_bytes());
        format!("{prefix}-{}", &hasher.finalize().to_hex()[..24])
    }
}

/// One more in a count, as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Every path with what it takes. Those of OpenAI's API are there without `/v1` too, which clients of llama.cpp leave
/// out.
fn routes() -> Vec<(&'static str, MethodRouter<ServerState>)> {
    vec![
        ("/", get(ui::page)),
        ("/ui/app.js", get(ui::script)),
        ("/ui/style.css", get(ui::style)),
        ("/openapi.json", get(openapi::document)),
        ("/health", get(health::health)),
        ("/v1/health", get(health::health)),
        ("/ping", get(health::health).post(health::health)),
        ("/version", get(health::version)),
        ("/metrics", get(metrics::metrics)),
        ("/load", get(load::load)),
        ("/v1/loads", get(load::loads)),
        ("/v1/models", get(models::list)),
        ("/models", get(models::list)),
        ("/v1/models/{*name}", get(models::retrieve)),
        ("/models/{*name}", get(models::retrieve)),
        ("/v1/chat/completions", post(chat::chat)),
        ("/chat/completions", post(chat::chat)),
        ("/v1/chat/completions/render", post(tokens::render_chat)),
        ("/v1/completions", post(completions::completions)),
        ("/completions", post(completions::completions)),
        ("/v1/completions/render", post(tokens::render_completions)),
        ("/v1/embeddings", post(embeddings::embeddings)),
        ("/embeddings", post(embeddings::embeddings)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/tokenizer_info", get(tokens::tokenizer_info)),
        ("/props", get(llama::props)),
        ("/apply-template", post(llama::apply_template)),
        ("/completion", post(llama::completion)),
    ]
}

/// The paths of [`router`], as they are written in its document.
pub fn paths() -> Vec<&'static str> {
    routes().into_iter().map(|(path, _)| path).collect()
}

/// Lets pages of other sites in, if there are any to let in.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let any = origins.iter().any(|origin| origin == "*");
    let listed = origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok());
    let origin = if any { AllowOrigin::mirror_request() } else { AllowOrigin::list(listed) };
    let seen = ["x-request-id", "x-should-retry", "retry-after"].map(HeaderName::from_static);
    let layer = CorsLayer::new().allow_origin(origin).allow_methods([Method::GET, Method::POST]);
    let layer = layer.allow_headers(AllowHeaders::mirror_request()).expose_headers(seen);
    (!origins.is_empty()).then(|| layer.max_age(PREFLIGHT_MAX_AGE))
}

/// All routes.
pub fn router(state: ServerState) -> Router {
    let panics = tower_http::catch_panic::CatchPanicLayer::custom(|_| {
        tracing::error!("a request handler panicked");
        axum::response::IntoResponse::into_response(ApiError::internal())
    });
    let cors = cors(&state.options.allowed_origins);
    let mut router = Router::new();
    for (path, handlers) in routes() {
        router = router.route(path, handlers);
    }
    let router = router
        .fallback(async |request: Request| ApiError::unknown_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| ApiError::wrong_method(request.method().as_str()))
        .layer(axum::middleware::from_fn_with_state(state.clone(), guard::guard));
    // Outside the guard: a browser asks whether it may send the key before it sends it.
    let router = if let Some(cors) = cors { router.layer(cors) } else { router };
    router
        .layer(panics)
        // Bodies are bounded where they are read, with an answer in the API's own form.
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}
