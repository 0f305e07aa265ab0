//! What the routes share. [`ServerState`] is the server's: its options, and its models. [`ModelState`] is what a
//! request to one model needs: the engine's handle, the text model, counters.
//!
//! A server has one model, which is loaded while the server runs, or several, which are loaded when they are asked for:
//! [`models`] finds them, [`fleet`] loads and unloads them, [`residents`] decides when, and [`facts`] is what is told
//! of them meanwhile.

mod adapters;
mod adapting;
mod answering;
mod compilations;
mod facts;
mod fleet;
mod model;
mod models;
mod residents;

pub(crate) use adapters::{AdapterEntry, AdapterUse, AskedAdapters};
pub use adapters::{AdapterReader, ServedAdapter};
pub(crate) use answering::Answering;
use compilations::Compilations;
pub(crate) use facts::ModelFacts;
pub use facts::ModelOutline;
pub(crate) use fleet::{Entry, Fleet, Use};
pub use fleet::{FleetOptions, LoadedModel, ModelSource};
pub(crate) use model::ModelState;
pub(crate) use models::{ModelStatus, ModelView, Models};

use super::counters::HttpResponses;
use super::images::ImageReader;
use super::stored::Responses;
use super::traces::TraceSink;
use super::wire::error::ApiError;
use super::wire::memory::RequestMemory;
use crate::engine::handle::{EngineHandle, EngineInfo};
use crate::engine::request::{CacheOwner, DrawDefaults, SamplingParams, SubmitError};
use crate::platform;
use crate::text::TextModel;
use crate::text::answer::{ReasoningParser, ToolParser};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Maximum bytes of a prompt per token of context. Tokens have fewer bytes on average, so that what is longer cannot
/// fit and is refused before it is tokenized; what is shorter may be cut to the context (`truncate_prompt_tokens`).
const BYTES_PER_TOKEN_MAX: usize = 64;
/// A prompt may have as many bytes whatever the context, because they cost little.
const PROMPT_BYTES_ALLOWED: usize = 256 << 10;
/// Input above this many bytes is parsed and tokenized on a separate thread. Rendering a template and compiling a
/// grammar may take long whatever their input is, so they are always off the async threads.
const OFFLOAD_BYTES: usize = 4 << 10;
/// The size of an input whose work always goes to a separate thread.
pub(crate) const ALWAYS: usize = usize::MAX;
/// Maximum number of names that are logged.
const NAMES_MAX: usize = 256;
/// Maximum number of such threads; further work is refused like a full queue.
const OFFLOADS_MAX: usize = 64;
/// Domain of the digests of keys that own cached blocks.
const CACHE_OWNER: &str = "folio: the API key that owns cached blocks";
/// Context of the owner of blocks that were cached after a reset.
const CACHE_RESET: &str = "folio: who owns cached blocks after a reset";
pub(crate) fn prompt_bytes_max(info: &EngineInfo) -> usize {
    (info.max_model_len as usize)
        .saturating_mul(BYTES_PER_TOKEN_MAX)
        .max(PROMPT_BYTES_ALLOWED)
}

/// Limits of one request.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum bytes of a body; `None`: 4 MiB, or 48 MiB if images may be in it.
    pub body_bytes_max: Option<usize>,
    /// Maximum images of one request.
    pub images_max: u32,
    /// Maximum bytes that all requests together take as values, while they are parsed, wait and run.
    pub requests_bytes_max: u64,
    /// Maximum bytes of a reply, by what its request asks for.
    pub reply_bytes_max: u64,
    /// Maximum `n`.
    pub choices_max: u32,
    /// Maximum prompts of one completions request.
    pub prompts_max: usize,
}

/// Maximum bytes of a body without images.
pub(crate) const TEXT_BODY_BYTES: usize = 4 << 20;
/// Maximum bytes of a body with images: the largest file in base64, and the text beside it.
const IMAGE_BODY_BYTES: usize = 48 << 20;

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: None,
            images_max: 32,
            requests_bytes_max: 1 << 30,
            reply_bytes_max: 512 << 20,
            choices_max: 8,
            prompts_max: 64,
        }
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

/// Downloads one model at a time into the cache, by its name.
#[derive(Clone)]
pub struct Puller(Arc<Mutex<Download>>);

/// Downloads a model; an error says why it could not.
type Download = Box<dyn FnMut(&str) -> Result<(), String> + Send>;

impl Puller {
    /// Downloads with this function.
    pub fn new(download: impl FnMut(&str) -> Result<(), String> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Box::new(download))))
    }

    /// Downloads a model, which may take hours; `None` if another one is being downloaded.
    pub(crate) fn pull(&self, name: &str) -> Option<Result<(), String>> {
        match self.0.try_lock() {
            Ok(mut download) => Some(download(name)),
            Err(TryLockError::Poisoned(download)) => Some(download.into_inner()(name)),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl fmt::Debug for Puller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Puller").finish_non_exhaustive()
    }
}

/// The name of a model's file without the ending of its format. Other dots are part of a folder's name.
fn stem(file: &str) -> &str {
    match file.rsplit_once('.') {
        Some((stem, ending)) if ending.eq_ignore_ascii_case("gguf") => stem,
        _ => file,
    }
}

/// How a model judges texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reranker {
    /// It is asked whether a document meets the requirements, and the probability of `yes` against `no` is the score:
    /// how Qwen3-Reranker is made.
    YesNo,
    /// The score is the cosine of the embeddings.
    Embedding,
}

impl std::str::FromStr for Reranker {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "yes-no" => Ok(Self::YesNo),
            "embedding" => Ok(Self::Embedding),
            _ => Err("expected yes-no or embedding".into()),
        }
    }
}

/// Options of a server. Those about the model are of its only one; each of several models has its own.
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
    /// The name of the model's file or folder. Without its ending, requests may name the model so, unless another one
    /// is called that.
    pub file: Option<String>,
    /// Sampling defaults, from the model's generation_config.json.
    pub defaults: SamplingParams,
    /// Those of them that the model's files set; some routes have other defaults beside these.
    pub draw_defaults: DrawDefaults,
    /// Limits of one request.
    pub limits: Limits,
    /// How the model writes tool calls; `None`: found in its chat template.
    pub tool_call_parser: Option<ToolParser>,
    /// How the model marks its reasoning; `None`: found in its chat template.
    pub reasoning_parser: Option<ReasoningParser>,
    /// How documents are judged; `None`: by yes or no if a name of the model has `rerank`, else by embeddings.
    pub reranker: Option<Reranker>,
    /// Maximum bytes of the responses that clients may refer to by their ids; the oldest go first.
    pub response_store_bytes: ResponseBytes,
    /// A folder in which these responses are kept as files, and from which they are read; it exists.
    pub response_store: Option<PathBuf>,
    /// Takes a trace of each request that generates; `None`: there are none.
    pub traces: Option<TraceSink>,
    /// Downloads models for clients; `None`: such requests are refused.
    pub pull: Option<Puller>,
    /// Clients with different keys share the cached beginnings of their prompts. Then each can find out what others
    /// have asked, by the time that its answers take.
    pub share_prefixes: bool,
    /// Reads the images that are sent to the model; `None`: it reads text only.
    pub images: Option<ImageReader>,
    /// LoRA adapters of the model, each served by a name of its own.
    pub adapters: Vec<ServedAdapter>,
    /// Reads the adapters that clients load; `None`: they may load none.
    pub adapter_reader: Option<AdapterReader>,
    /// The path under which a proxy offers this server, such as `/llm`; paths of requests may begin with it.
    pub root_path: Option<String>,
    /// Streams end with the numbers of tokens, whatever a request says.
    pub force_usage: bool,
    /// Logprobs name tokens by id, whatever a request says.
    pub tokens_as_ids: bool,
    /// Variables of the chat template for requests that do not set them.
    pub template_defaults: serde_json::Map<String, serde_json::Value>,
    /// Maximum tokens of an answer, whatever a request says; `None`: what fits into the context.
    pub max_new_tokens: Option<u32>,
    /// Refuse unknown request fields; otherwise they are logged and ignored.
    pub strict_fields: bool,
}

/// What a server's routes share, whatever model they ask for; cheap to clone.
#[derive(Clone)]
pub struct ServerState {
    pub(crate) shared: Arc<Shared>,
    pub(crate) models: Models,
}

/// What all models of a server share.
pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    /// Maximum bytes of a body.
    pub(crate) body_bytes_max: usize,
    /// `/health` answers 503, so that clients stop sending; requests are still accepted.
    closing: AtomicBool,
    /// Number of running answers, each until its last byte is handed over.
    pub(crate) active: Arc<AtomicUsize>,
    /// Number of inputs being processed on separate threads.
    offloads: Arc<AtomicUsize>,
    pub(crate) compilations: Compilations,
    /// Whose cached blocks a client's prompts share, by the index of its key; empty: all clients share all of them.
    cache_owners: Vec<CacheOwner>,
    /// Number of resets of the prefix cache.
    prefix_resets: AtomicU64,
    pub(crate) http_responses: HttpResponses,
    /// The memory of all requests.
    pub(crate) memory: Arc<RequestMemory>,
    /// Names of unknown request fields and tools that were already logged.
    logged_names: Mutex<BTreeSet<String>>,
    ids: AtomicU64,
    pub(crate) created: u64,
    pub(crate) responses: Responses,
    pub(crate) seal: Seal,
}

impl ServerState {
    /// State of a server of one model. `model_names` has at least one name; answers call the model by the first.
    pub fn new(
        engine: EngineHandle,
        text: Arc<TextModel>,
        model_names: Vec<String>,
        options: ServerOptions,
    ) -> Self {
        let reads_images = options.images.is_some();
        let shared = Arc::new(Shared::new(options.clone(), reads_images));
        let model = ModelState::new(shared.clone(), (engine, text), model_names.into(), options);
        Self {
            shared,
            models: Models::One(Box::new(model)),
        }
    }

    /// State of a server of several models, which are loaded when they are asked for. Requests that name none go to the
    /// first. [`Self::close`] ends the threads of the models.
    pub fn with_models(
        models: Vec<ModelSource>,
        fleet: &FleetOptions,
        options: ServerOptions,
    ) -> Self {
        // A model that is not loaded yet may read images.
        let shared = Arc::new(Shared::new(options, true));
        let models = Models::Many(Fleet::start(shared.clone(), models, fleet));
        Self { shared, models }
    }

    /// Number of running answers.
    pub fn active_answers(&self) -> usize {
        self.shared.active.load(Ordering::Acquire)
    }

    /// Makes `/health` answer 503. Requests are accepted until the engines drain.
    pub fn begin_closing(&self) {
        self.shared.closing.store(true, Ordering::Release);
    }

    /// Refuses new requests from now on. The engines end when the last accepted ones are done.
    pub fn drain(&self) {
        self.models.drain();
    }

    /// Ends all requests, after the steps in flight at the latest.
    pub fn abort(&self) {
        self.models.abort();
    }

    /// Waits until several models are unloaded. What still runs is ended.
    pub fn close(&self) {
        self.models.close();
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.shared.closing.load(Ordering::Acquire)
    }
}

impl Shared {
    fn new(options: ServerOptions, reads_images: bool) -> Self {
        assert!(
            !options.api_keys.iter().any(String::is_empty),
            "an API key is not empty"
        );
        let bytes_max = options.response_store_bytes.0;
        let responses = match &options.response_store {
            Some(folder) => Responses::with_folder(bytes_max, folder, &options.api_keys),
            None => Responses::new(bytes_max),
        };
        let usual = if reads_images {
            IMAGE_BODY_BYTES
        } else {
            TEXT_BODY_BYTES
        };
        Self {
            body_bytes_max: options.limits.body_bytes_max.unwrap_or(usual),
            cache_owners: cache_owners(&options),
            prefix_resets: AtomicU64::new(0),
            http_responses: HttpResponses::default(),
            memory: RequestMemory::new(options.limits.requests_bytes_max),
            compilations: Compilations::new(options.api_keys.len()),
            options,
            closing: AtomicBool::default(),
            active: Arc::default(),
            offloads: Arc::default(),
            logged_names: Mutex::default(),
            ids: AtomicU64::default(),
            created: platform::unix_time(),
            responses,
            seal: Seal::new(),
        }
    }

    /// Whose cached blocks a client's prompts share. After a reset it is somebody else, who has none yet.
    pub(crate) fn cache_owner(&self, client: u32) -> Option<CacheOwner> {
        let owner = self.cache_owners.get(client as usize).copied();
        let resets = self.prefix_resets.load(Ordering::Relaxed);
        if resets == 0 {
            return owner;
        }
        let mut hasher = blake3::Hasher::new_derive_key(CACHE_RESET);
        hasher.update(&self.created.to_le_bytes());
        hasher.update(&resets.to_le_bytes());
        hasher.update(&owner.unwrap_or_default());
        Some(*hasher.finalize().as_bytes())
    }

    /// Lets no later prompt share blocks that are cached now.
    pub(crate) fn reset_prefixes(&self) {
        self.prefix_resets.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a name of a client's is seen for the first time, so that it is logged. After many names, none is new.
    pub(crate) fn is_new_name(&self, name: &str) -> bool {
        let mut seen = self
            .logged_names
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        seen.len() < NAMES_MAX && seen.insert(name.to_owned())
    }

    /// A place among the works on separate threads, for as long as it is kept.
    fn offload_slot(&self) -> Result<Counted, ApiError> {
        let slot = Counted::new(&self.offloads);
        if self.offloads.load(Ordering::Acquire) > OFFLOADS_MAX {
            return Err(ApiError::refused(
                &SubmitError::Overloaded {
                    limit: OFFLOADS_MAX as u32,
                },
                &[],
            ));
        }
        Ok(slot)
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
        let slot = self.offload_slot()?;
        let done = platform::offload(move || {
            let result = work();
            drop(slot);
            result
        });
        done.await.ok_or_else(ApiError::internal)
    }

    /// An id that is unique within this server.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let count = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut hasher = blake3::Hasher::new();
        hasher
            .update(&self.created.to_le_bytes())
            .update(&count.to_le_bytes());
        hasher.update(&std::ptr::from_ref(&self.ids).addr().to_le_bytes());
        format!("{prefix}-{}", &hasher.finalize().to_hex()[..24])
    }
}

/// Digests of the API keys, if there are several whose prompts are kept apart. They are the same after a restart, so
/// that blocks in files are found again.
fn cache_owners(options: &ServerOptions) -> Vec<CacheOwner> {
    let is_apart = options.api_keys.len() > 1 && !options.share_prefixes;
    if !is_apart {
        return Vec::new();
    }
    options
        .api_keys
        .iter()
        .map(|key| blake3::derive_key(CACHE_OWNER, key.as_bytes()))
        .collect()
}

/// Makes texts that clients keep and send back, and that nobody else can make.
pub(crate) struct Seal([u8; 32]);

impl Seal {
    fn new() -> Self {
        Self(platform::random_key())
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
        (expected == blake3::Hash::from_bytes(*signature))
            .then(|| String::from_utf8(text.to_vec()).ok())
            .flatten()
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

#[cfg(test)]
mod tests;
