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
mod error;
mod fields;
mod generate;
mod guard;
mod harmony;
mod health;
mod json;
mod local;
mod marker;
mod messages;
mod metrics;
mod models;
mod reasoning;
mod reply;
mod sampling;
#[cfg(feature = "server")]
pub mod socket;
mod sse;
mod structured;
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
use axum::routing::{get, post};
use error::ApiError;
use metrics::Metrics;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of prompt per token of context: more cannot fit, so it is refused before it is tokenized.
const BYTES_PER_TOKEN_MAX: usize = 8;
/// Input above this many bytes is parsed, rendered and tokenized beside the async threads.
const OFFLOAD_BYTES: usize = 4 << 10;
/// Inputs that are worked on so at once; more are refused like a full queue.
const OFFLOADS_MAX: usize = 64;

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
        Self { body_bytes_max: 64 << 20, choices_max: 8, prompts_max: 64 }
    }
}

/// What a server is told apart from its model.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Needed on every route but `/health`, `/ping` and the page itself.
    pub api_key: Option<String>,
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
    /// Answers that are being generated, until their last byte is handed over.
    active: Arc<AtomicUsize>,
    /// Inputs that are worked on beside the async threads.
    offloads: Arc<AtomicUsize>,
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
            active: Arc::default(),
            offloads: Arc::default(),
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

/// All routes.
pub fn router(state: ServerState) -> Router {
    let panics = tower_http::catch_panic::CatchPanicLayer::custom(|_| {
        tracing::error!("a request handler panicked");
        axum::response::IntoResponse::into_response(ApiError::internal())
    });
    Router::new()
        .route("/", get(ui::page))
        .route("/ui/app.js", get(ui::script))
        .route("/ui/style.css", get(ui::style))
        .route("/health", get(health::health))
        .route("/ping", get(health::health))
        .route("/version", get(health::version))
        .route("/metrics", get(metrics::metrics))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::retrieve))
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(completions::completions))
        .fallback(async |request: Request| ApiError::unknown_route(request.uri().path()))
        .method_not_allowed_fallback(async |request: Request| ApiError::wrong_method(request.method().as_str()))
        .layer(axum::middleware::from_fn_with_state(state.clone(), guard::guard))
        .layer(panics)
        // Bodies are bounded where they are read, with an answer in the API's own form.
        .layer(DefaultBodyLimit::disable())
        .with_state(state)
}
