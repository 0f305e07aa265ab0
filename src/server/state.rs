//! [`ServerState`]: what the routes share: the engine's handle, the text model, options, counters.

use super::counters::{Metrics, Throughput};
use super::stored::Responses;
use super::wire::error::ApiError;
use crate::engine::handle::{EngineHandle, EngineInfo, Status};
use crate::engine::request::{SamplingParams, SubmitError};
use crate::platform;
use crate::text::answer::{AnswerFormat, ReasoningParser, ToolParser};
use crate::text::{GrammarError, Grammars, TextModel};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Maximum bytes of prompt per token of context. A longer prompt cannot fit, so it is refused before it is tokenized.
const BYTES_PER_TOKEN_MAX: usize = 8;
/// Input above this many bytes is parsed and tokenized on a separate thread. Rendering a template and compiling a
/// grammar may take long whatever their input is, so they are always off the async threads.
const OFFLOAD_BYTES: usize = 4 << 10;
/// The size of an input whose work always goes to a separate thread.
pub(crate) const ALWAYS: usize = usize::MAX;
/// Maximum number of names that are logged.
const NAMES_MAX: usize = 256;
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

/// The size of the store of responses.
#[derive(Clone, Copy, Debug)]
pub struct ResponseBytes(pub usize);

impl Default for ResponseBytes {
    fn default() -> Self {
        Self(64 << 20)
    }
}

/// Options of a server.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// API keys. Every route except `/health`, `/ping` and the chat page requires one; if the list is empty, none is
    /// required. Waiting requests are served round-robin by key.
    pub api_keys: Vec<String>,
    /// Origins of other sites whose pages may use this server; `*` stands for any characters, an empty list for none.
    pub allowed_origins: Vec<String>,
    /// Host names by which this server may be reached without a key, beside `localhost` and IP addresses; `*` stands
    /// for any characters.
    pub allowed_hosts: Vec<String>,
    /// `/metrics` needs no key.
    pub metrics_open: bool,
    /// The model is served by any name.
    pub any_model: bool,
    /// Sampling defaults, from the model's generation_config.json.
    pub defaults: SamplingParams,
    /// Limits of one request.
    pub limits: Limits,
    /// How the model writes tool calls; `None`: found in its chat template.
    pub tool_call_parser: Option<ToolParser>,
    /// How the model marks its reasoning; `None`: found in its chat template.
    pub reasoning_parser: Option<ReasoningParser>,
    /// Maximum bytes of the responses that clients may refer to by their ids; the oldest go first.
    pub response_store_bytes: ResponseBytes,
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
    /// Names of unknown request fields and tools that were already logged.
    logged_names: Arc<Mutex<BTreeSet<String>>>,
    pub(crate) ids: Arc<AtomicU64>,
    pub(crate) created: u64,
    pub(crate) answer_format: AnswerFormat,
    pub(crate) responses: Arc<Responses>,
    pub(crate) seal: Arc<Seal>,
    /// Created when a request first needs it.
    pub(crate) grammars: Arc<OnceLock<Result<Grammars, GrammarError>>>,
}

impl ServerState {
    /// State of one server. `model_names` has at least one name; answers call the model by the first.
    pub fn new(engine: EngineHandle, text: Arc<TextModel>, model_names: Vec<String>, options: ServerOptions) -> Self {
        assert!(!model_names.is_empty(), "a served model has a name");
        assert!(!options.api_keys.iter().any(String::is_empty), "an API key is not empty");
        let answer_format = AnswerFormat::new(&text, options.tool_call_parser, options.reasoning_parser);
        let responses = Arc::new(Responses::new(options.response_store_bytes.0));
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
            logged_names: Arc::default(),
            ids: Arc::default(),
            created: platform::unix_time(),
            answer_format,
            responses,
            seal: Arc::new(Seal::new()),
            grammars: Arc::default(),
        }
    }

    /// Whether a name of a client's is seen for the first time, so that it is logged. After many names, none is new.
    pub(crate) fn is_new_name(&self, name: &str) -> bool {
        let mut seen = self.logged_names.lock().unwrap_or_else(PoisonError::into_inner);
        seen.len() < NAMES_MAX && seen.insert(name.to_owned())
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
            Some(name) if self.options.any_model || self.model_names.contains(&name) => Ok(name),
            // Ollama's clients add the tag that they see in its lists.
            Some(name) if name.strip_suffix(":latest").is_some_and(|plain| self.is_served(plain)) => Ok(name),
            Some(name) => Err(ApiError::unknown_model(&name)),
        }
    }

    fn is_served(&self, name: &str) -> bool {
        self.model_names.iter().any(|served| served == name)
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

/// Makes texts that clients keep and send back, and that nobody else can make.
pub(crate) struct Seal([u8; 32]);

impl Seal {
    fn new() -> Self {
        let mut key = [0; 32];
        key.chunks_mut(8).for_each(|bytes| bytes.copy_from_slice(&platform::random_u64().to_le_bytes()));
        Self(key)
    }

    /// The text in an opaque form, with a signature.
    pub(crate) fn seal(&self, text: &str) -> String {
        let signature = blake3::keyed_hash(&self.0, text.as_bytes());
        URL_SAFE_NO_PAD.encode([signature.as_bytes(), text.as_bytes()].concat())
    }

    /// The text of a sealed one; `None` if this server did not seal it since it was started.
    pub(crate) fn open(&self, sealed: &str) -> Option<String> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let (signature, text) = bytes.split_first_chunk::<32>()?;
        let expected = blake3::keyed_hash(&self.0, text);
        (expected == blake3::Hash::from_bytes(*signature)).then(|| String::from_utf8(text.to_vec()).ok()).flatten()
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
