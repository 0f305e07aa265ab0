//! [`ServerState`]: what the routes share: the engine's handle, the text model, options, counters.

use super::counters::{Metrics, Throughput};
use super::wire::error::ApiError;
use crate::engine::handle::{EngineHandle, EngineInfo, Status};
use crate::engine::request::{SamplingParams, SubmitError};
use crate::platform;
use crate::text::answer::{AnswerFormat, ReasoningParser, ToolParser};
use crate::text::{GrammarError, Grammars, TextModel};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Maximum bytes of prompt per token of context. A longer prompt cannot fit, so it is refused before it is tokenized.
const BYTES_PER_TOKEN_MAX: usize = 8;
/// Input above this many bytes is parsed and tokenized on a separate thread. Rendering a template and compiling a
/// grammar may take long whatever their input is, so they are always off the async threads.
const OFFLOAD_BYTES: usize = 4 << 10;
/// The size of an input whose work always goes to a separate thread.
pub(crate) const ALWAYS: usize = usize::MAX;
/// Maximum number of such threads; further work is refused like a full queue.
const OFFLOADS_MAX: usize = 64;
pub(crate) fn prompt_bytes_max(info: &EngineInfo) -> usize {
    info.max_model_len as usize * BYTES_PER_TOKEN_MAX
}

/// Limits of one request.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum bytes of a body.
    pub body_bytes_max: usize,
    /// Maximum `n`.
    pub choices_max: u32,
    /// Maximum prompts of one completions request.
    pub prompts_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { body_bytes_max: 4 << 20, choices_max: 8, prompts_max: 64 }
    }
}

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// API keys. Every route except `/health`, `/ping` and the chat page requires one; if the list is empty, none is
    /// required. Waiting requests are served round-robin by key.
    pub api_keys: Vec<String>,
    /// Origins of other sites whose pages may use this server; `*` allows all, an empty list none.
    pub allowed_origins: Vec<String>,
    /// Host names by which browsers may reach this server, beside `localhost` and IP addresses; `*` allows all.
    pub allowed_hosts: Vec<String>,
    /// Sampling defaults, from the model's generation_config.json.
    pub defaults: SamplingParams,
    /// Limits of one request.
    pub limits: Limits,
    /// How the model writes tool calls; `None`: found in its chat template.
    pub tool_call_parser: Option<ToolParser>,
    /// How the model marks its reasoning; `None`: found in its chat template.
    pub reasoning_parser: Option<ReasoningParser>,
    /// Refuse unknown request fields; otherwise they are logged and ignored.
    pub strict_fields: bool,
}

/// What the routes share; cheap to clone.
#[derive(Clone)]
pub struct ServerState {
    pub(crate) engine: EngineHandle,
    pub(crate) text: Arc<TextModel>,
    pub(crate) model_names: Arc<[String]>,
    pub(crate) options: Arc<ServerOptions>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) throughput: Arc<Throughput>,
    /// `/health` answers 503, so that clients stop sending; requests are still accepted.
    pub(crate) closing: Arc<AtomicBool>,
    /// Number of running answers, each until its last byte is handed over.
    pub(crate) active: Arc<AtomicUsize>,
    /// Number of inputs being processed on separate threads.
    pub(crate) offloads: Arc<AtomicUsize>,
    /// Names of unknown request fields that were already logged.
    pub(crate) unknown_fields: Arc<Mutex<BTreeSet<String>>>,
    pub(crate) ids: Arc<AtomicU64>,
    pub(crate) created: u64,
    pub(crate) answer_format: AnswerFormat,
    /// Created when a request first needs it.
    pub(crate) grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

impl ServerState {
    /// State of one server. `model_names` has at least one name; answers call the model by the first.
    pub fn new(engine: EngineHandle, text: Arc<TextModel>, model_names: Vec<String>, options: ServerOptions) -> Self {
        assert!(!model_names.is_empty(), "a served model has a name");
        assert!(!options.api_keys.iter().any(String::is_empty), "an API key is not empty");
        let answer_format = AnswerFormat::new(&text, options.tool_call_parser, options.reasoning_parser);
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
            answer_format,
            grammars: Arc::default(),
        }
    }

    /// Number of running answers.
    pub fn active_answers(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// Makes `/health` answer 503. Requests are accepted until the engine drains.
    pub fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The engine's properties, or the error if it cannot serve requests.
    pub(crate) fn ready(&self) -> Result<&EngineInfo, ApiError> {
        match self.engine.status() {
            Status::Ready => self.engine.info().ok_or_else(ApiError::loading),
            Status::Loading => Err(ApiError::loading()),
            Status::Draining => Err(ApiError::shutting_down()),
            Status::Failed => Err(ApiError::device_lost()),
        }
    }

    /// The served name that a request asks for; the first if it names none.
    pub(crate) fn model(&self, asked: Option<String>) -> Result<String, ApiError> {
        match asked {
            None => Ok(self.model_names[0].clone()),
            Some(name) if self.model_names.contains(&name) => Ok(name),
            Some(name) => Err(ApiError::unknown_model(&name)),
        }
    }

    /// Runs `work` on the text model; see [`Self::offload`].
    pub(crate) async fn with_text<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&TextModel) -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let text = self.text.clone();
        self.offload(bytes, move || work(&text)).await
    }

    /// Runs `work` here if its input is small, else on a separate thread, so that other clients are not blocked.
    pub(crate) async fn offload<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes <= OFFLOAD_BYTES {
            return Ok(work());
        }
        // The work holds the count, because it continues when the client disconnects.
        let slot = Counted::new(&self.offloads);
        if self.offloads.load(Ordering::Acquire) > OFFLOADS_MAX {
            let limit = OFFLOADS_MAX as u32;
            return Err(ApiError::refused(&SubmitError::Overloaded { limit }, &[]));
        }
        let done = platform::offload(move || {
            let result = work();
            drop(slot);
            result
        });
        done.await.ok_or_else(ApiError::internal)
    }

    /// `system_fingerprint`: identifies what computed an answer. Answers may differ if their fingerprints do.
    pub(crate) fn fingerprint(&self, info: &EngineInfo) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [env!("CARGO_PKG_VERSION"), &self.model_names[0], &info.device, info.api, &info.tier] {
            hasher.update(part.as_bytes()).update(&[0]);
        }
        format!("fp_{}", &hasher.finalize().to_hex()[..12])
    }

    /// An id that is unique within this server.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.created.to_le_bytes()).update(&count.to_le_bytes());
        hasher.update(&(Arc::as_ptr(&self.ids) as usize).to_le_bytes());
        format!("{prefix}-{}", &hasher.finalize().to_hex()[..24])
    }
}

/// Increments a count for as long as it lives.
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
