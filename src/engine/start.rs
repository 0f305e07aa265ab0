//! Getting an engine ready, and getting it ready again: record, load, upload, size the pool.

use super::faults::Faults;
use super::fit::{Fit, Outlook};
use super::handle::{EngineInbox, EngineInfo};
use super::scheduler::{Limits, Scheduler};
use super::streams::Streams;
use super::{Engine, EngineEnd, Seeds, sizes};
use crate::backend::{Backend, BackendError, Capacity, Caps};
use crate::config::{Config, ConfigError};
use crate::model::{LoadError, Model, Quantization, UploadError};
use crate::plan::{Plan, Storage, WeightId};
use crate::platform;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What an engine needs of a model.
#[allow(async_fn_in_trait, reason = "one thread owns the engine; a Send bound is not wanted")]
pub trait Source {
    /// The model's plan, with this storage between its steps.
    fn record(&self, activations: Storage) -> Plan;

    /// The plan of the same model if its matrices were quantised like this on load: what to advise when it does not
    /// fit. `None` where that cannot be.
    fn record_quantized(&self, _activations: Storage, _quantization: Quantization) -> Option<Plan> {
        None
    }

    /// Ids that end a sequence.
    fn eos_token_ids(&self) -> Vec<u32>;

    /// Writes every row of every weight of the plan, in chunks of whole rows.
    async fn upload(
        &self,
        plan: &Plan,
        write: &mut dyn FnMut(WeightId, u32, Bytes) -> Result<(), BackendError>,
    ) -> Result<(), StartError>;
}

/// What happens while an engine starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Bytes of weights on the device.
    Weights {
        /// So far.
        done: u64,
        /// In all.
        total: u64,
    },
    /// What will be allocated, before anything is.
    Fits(Box<Fit>),
    /// Something the user should know.
    Notice(String),
}

/// Why an engine did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting outside its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device cannot hold or run the model.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The weights could not be read.
    #[error(transparent)]
    Weights(#[from] LoadError),
    /// The weights, or even a short sequence beside them, do not fit. Known before anything is loaded.
    #[error("{0}")]
    DoesNotFit(Box<Outlook>),
}

/// What was loaded, kept to load it again.
pub(super) struct Loaded {
    pub(super) config: Config,
    plan: Arc<Plan>,
    capacity: Capacity,
    blocks: Vec<u32>,
}

impl Loaded {
    /// Rows of the next step: the budget, or less if the device's submissions would get too long.
    pub(super) fn tokens_max(&self, hint: Option<u32>) -> u32 {
        let hint = hint.filter(|_| !self.config.deterministic);
        hint.unwrap_or(u32::MAX).clamp(1, self.capacity.tokens_max)
    }

    /// Loads everything onto a device that was lost.
    pub(super) async fn bring_back<B: Backend>(&self, backend: &mut B, source: &impl Source) -> Result<(), StartError> {
        backend.reset().await?;
        load(backend, source, &self.plan, &self.capacity, &mut |_| {}).await?;
        backend.allocate_pool(&self.blocks)?;
        Ok(backend.settle().await?)
    }
}

impl<B: Backend, S: Source> Engine<B, S> {
    /// Records the model, loads it, sizes the pool by what the device allows, and opens for requests.
    pub async fn start(
        backend: B,
        model: S,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        config.check()?;
        Self::start_with_faults(backend, model, config, inbox, Faults::default(), progress).await
    }

    /// [`Engine::start`] for the simulator: any block size, and bugs to find.
    #[doc(hidden)]
    pub async fn start_with_faults(
        mut backend: B,
        source: S,
        config: &Config,
        inbox: EngineInbox,
        faults: Faults,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        let plan = Arc::new(source.record(backend.caps().activations));
        let fit = check_fit(&source, &plan, config, backend.caps(), &mut progress)?;
        let capacity = sizes::capacity(config, &plan);
        load(&mut backend, &source, &plan, &capacity, &mut progress).await?;
        let blocks = allocate_pool(&mut backend, config, &plan, &fit, &mut progress).await?;
        let model_len_max = model_len_left(config, &plan, &fit, &blocks, &mut progress);
        let limits = limits(&source, &plan, &capacity, config, &blocks, model_len_max);
        inbox.set_ready(info(&backend, &plan, config, &limits));
        let loaded = Loaded { config: config.clone(), plan, capacity, blocks };
        Ok(Self {
            backend,
            source,
            loaded,
            scheduler: Scheduler::new(limits, faults),
            in_flight: VecDeque::new(),
            inbox,
            streams: Streams::new(),
            seeds: Seeds(config.seed.unwrap_or_else(platform::random_u64)),
            losses: Vec::new(),
            requests_taken: 0,
            requests_dequeued: 0,
            recoveries: 0,
            faults,
        })
    }
}

/// Runs an engine on a thread of its own. The device is opened there; a panic ends all streams and is the result.
pub fn spawn<B, S, F>(
    open: F,
    model: S,
    config: Config,
    inbox: EngineInbox,
    progress: impl FnMut(Progress) + Send + 'static,
) -> JoinHandle<Result<(), EngineEnd>>
where
    B: Backend + 'static,
    S: Source + Send + 'static,
    F: FnOnce() -> Result<B, BackendError> + Send + 'static,
{
    let serve = move || async move {
        let backend = open().map_err(StartError::from)?;
        Engine::start(backend, model, &config, inbox, progress).await?.run().await
    };
    platform::spawn("folio-engine", serve, |panic| Err(EngineEnd::Panicked(panic)))
}

async fn load<B: Backend>(
    backend: &mut B,
    source: &impl Source,
    plan: &Arc<Plan>,
    capacity: &Capacity,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), StartError> {
    backend.load(plan.clone(), capacity)?;
    let (mut done, total) = (0, plan.weight_bytes());
    let mut write = |weight, first_row, rows: Bytes| {
        let bytes = rows.len() as u64;
        backend.write_weight(weight, first_row, rows)?;
        done += bytes;
        progress(Progress::Weights { done, total });
        Ok(())
    };
    source.upload(plan, &mut write).await?;
    Ok(backend.settle().await?)
}

/// Judges before anything is loaded; says it aloud if the context is lowered.
fn check_fit(
    source: &impl Source,
    plan: &Plan,
    config: &Config,
    caps: &Caps,
    progress: &mut impl FnMut(Progress),
) -> Result<Fit, StartError> {
    let outlook = Outlook::new(source, plan, config, caps);
    if !outlook.asked.fits() {
        return Err(StartError::DoesNotFit(Box::new(outlook)));
    }
    progress(Progress::Fits(Box::new(outlook.asked.clone())));
    if !outlook.asked.is_full() {
        progress(Progress::Notice(outlook.to_string()));
    }
    Ok(outlook.asked)
}

/// Takes as large a pool as the device gives.
async fn allocate_pool<B: Backend>(
    backend: &mut B,
    config: &Config,
    plan: &Plan,
    fit: &Fit,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<u32>, StartError> {
    let mut blocks = fit.blocks.clone();
    loop {
        let mut outcome = backend.allocate_pool(&blocks);
        if outcome.is_ok() {
            outcome = backend.settle().await;
        }
        let error = match outcome {
            Ok(()) => return Ok(blocks),
            Err(error @ (BackendError::OutOfMemory { .. } | BackendError::Limit { .. })) => error,
            Err(error) => return Err(error.into()),
        };
        let Some(smaller) = sizes::shrink(&blocks) else { return Err(error.into()) };
        blocks = smaller;
        let mib = sizes::kv_bytes(config, plan, &blocks) >> 20;
        progress(Progress::Notice(format!("{error}; trying a KV pool of {mib} MiB")));
    }
}

/// The longest sequence that the pool holds after all, said aloud if it is less than was reckoned.
fn model_len_left(config: &Config, plan: &Plan, fit: &Fit, blocks: &[u32], progress: &mut impl FnMut(Progress)) -> u32 {
    let reckoned = fit.model_len_max;
    let held = sizes::model_len_held(reckoned, config.block_size, plan, blocks);
    assert!(held >= 2, "a pool is not shrunk below the spare blocks and one more");
    if held < reckoned {
        let text = format!("max_model_len lowered from {reckoned} to {held}: the KV pool holds no longer sequence");
        progress(Progress::Notice(text));
    }
    held
}

fn limits(
    source: &impl Source,
    plan: &Plan,
    capacity: &Capacity,
    config: &Config,
    blocks: &[u32],
    model_len_max: u32,
) -> Limits {
    Limits {
        tokens_max: capacity.tokens_max,
        sequences_max: capacity.sequences_max,
        feed_slots: capacity.feed_slots,
        table_entries_max: capacity.table_entries_max,
        history_max: capacity.history_max,
        bias_max: capacity.bias_max,
        scores_max: sizes::scores_max(config),
        block_size: capacity.block_size,
        model_len_max,
        vocab: plan.vocab,
        windows: plan.kv_groups.iter().map(|group| group.window).collect(),
        blocks: blocks.to_vec(),
        prefix_caching: config.prefix_caching,
        deterministic: config.deterministic,
        eos_token_ids: source.eos_token_ids(),
        hash_key: std::array::from_fn(|_| platform::random_u64().to_le_bytes()[0]),
    }
}

fn info<B: Backend>(backend: &B, plan: &Plan, config: &Config, limits: &Limits) -> EngineInfo {
    let caps = backend.caps();
    EngineInfo {
        device: caps.name.clone(),
        api: caps.api,
        tier: caps.tier.clone(),
        vocab: plan.vocab,
        max_model_len: limits.model_len_max,
        block_size: limits.block_size,
        blocks: limits.blocks.iter().sum(),
        kv_bytes: sizes::kv_bytes(config, plan, &limits.blocks),
        weight_bytes: plan.weight_bytes(),
        max_num_seqs: limits.sequences_max,
        eos_token_ids: limits.eos_token_ids.clone(),
        embedding_len: plan.pooled_columns(),
    }
}

impl Source for Model {
    fn record(&self, activations: Storage) -> Plan {
        Model::record(self, activations)
    }

    fn record_quantized(&self, activations: Storage, quantization: Quantization) -> Option<Plan> {
        Model::record_quantized(self, activations, quantization).ok()
    }

    fn eos_token_ids(&self) -> Vec<u32> {
        self.generation().eos_token_ids.clone()
    }

    async fn upload(
        &self,
        plan: &Plan,
        write: &mut dyn FnMut(WeightId, u32, Bytes) -> Result<(), BackendError>,
    ) -> Result<(), StartError> {
        Model::upload(self, plan, write).await.map_err(|error| match error {
            UploadError::Load(error) => StartError::Weights(error),
            UploadError::Write(error) => StartError::Backend(error),
        })
    }
}
