//! Starting an engine, and restarting it after a device loss: record, load, upload, size the pool.

use super::draft_model::{DraftError, DraftModel, DraftPlan};
use super::faults::InjectedFaults;
use super::fit::{Fit, FitReport};
use super::handle::{EngineInbox, EngineInfo};
use super::mover::Mover;
use super::scheduler::{Limits, Scheduler};
use super::source::Source;
use super::streams::Streams;
use super::tiers::TierLimits;
use super::{Engine, EngineEnd, Seeds, sizes};
use crate::backend::{Backend, BackendError, Capacity, Caps};
use crate::config::{Config, ConfigError, SpeculationMethod};
use crate::model::{LoadError, UploadError};
use crate::plan::Plan;
use crate::plan::check::check;
use crate::plan::error::PlanError;
use crate::platform;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Progress reported while an engine starts.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Weights uploaded to the device, in bytes.
    Weights {
        /// Uploaded so far.
        done: u64,
        /// Total.
        total: u64,
    },
    /// Kernels compiled for the device.
    Kernels {
        /// Compiled so far.
        done: u32,
        /// Total.
        total: u32,
    },
    /// What will be allocated. Sent before any allocation.
    Fits(Box<Fit>),
    /// A message for the user.
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
    /// The recorded plan is inconsistent. This is a bug in this program, not an error in the model's files.
    #[error("internal error: the model's plan is inconsistent: {0}")]
    Plan(PlanError),
    /// The weights could not be read.
    #[error(transparent)]
    Weights(#[from] LoadError),
    /// The draft model does not go with the model.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// The weights do not fit, or leave no room for the KV cache of even a short sequence. Detected before anything is
    /// loaded.
    #[error("{0}")]
    DoesNotFit(Box<FitReport>),
}

/// What was loaded, kept for reloading after a device loss.
pub(super) struct LoadedPlan {
    pub(super) config: Config,
    plan: Arc<Plan>,
    capacity: Capacity,
    blocks: Vec<u32>,
    /// The same of the draft model.
    pub(super) draft: Option<Box<Self>>,
}

impl LoadedPlan {
    /// Token rows of the next step: the budget, or fewer if the device's submissions would take too long.
    pub(super) fn tokens_max(&self, hint: Option<u32>) -> u32 {
        let hint = hint.filter(|_| !self.config.deterministic);
        hint.unwrap_or(u32::MAX).clamp(1, self.capacity.tokens_max)
    }

    /// Reloads everything after a device loss.
    pub(super) async fn bring_back<B: Backend>(&self, backend: &mut B, source: &impl Source) -> Result<(), StartError> {
        backend.reset().await?;
        load(backend, source, &self.plan, &self.capacity, &mut |_| {}).await?;
        backend.allocate_pool(&self.blocks)?;
        backend.settle().await?;
        Ok(backend.warm_up(&mut |_, _| {})?)
    }
}

impl From<UploadError<BackendError>> for StartError {
    fn from(error: UploadError<BackendError>) -> Self {
        match error {
            UploadError::Load(error) => Self::Weights(error),
            UploadError::Write(error) => Self::Backend(error),
        }
    }
}

impl<B: Backend, S: Source> Engine<B, S> {
    /// Records the model, loads it, sizes the pool to what the device allows, and starts accepting requests.
    pub async fn start(
        backend: B,
        model: S,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        Self::start_with_draft(backend, model, None, config, inbox, progress).await
    }

    /// [`Engine::start`] with a draft model, if there is one, on a device of its own of the same kind.
    pub async fn start_with_draft(
        backend: B,
        model: S,
        draft: Option<(B, S)>,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        config.check()?;
        let faults = InjectedFaults::default();
        Self::start_with_faults(backend, model, draft, config, inbox, faults, progress).await
    }

    /// [`Engine::start_with_draft`] for the simulator: allows any block size and injects bugs.
    #[doc(hidden)]
    pub async fn start_with_faults(
        mut backend: B,
        source: S,
        draft: Option<(B, S)>,
        config: &Config,
        inbox: EngineInbox,
        faults: InjectedFaults,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        let plan = Arc::new(source.record(backend.caps().activations));
        check(&plan).map_err(StartError::Plan)?;
        let mut draft = draft.map(|(backend, source)| Drafting::new(backend, source, &plan)).transpose()?;
        check_method(config, draft.is_some())?;
        let draft_plan = draft.as_ref().map(|draft| &draft.plan);
        let fit = check_fit(&source, &plan, draft_plan, config, backend.caps(), &mut progress)?;
        let capacity = fit.capacity.clone();
        load(&mut backend, &source, &plan, &capacity, &mut progress).await?;
        if let Some(draft) = &mut draft {
            load(&mut draft.backend, &draft.source, &draft.plan.plan, &capacity, &mut progress).await?;
        }
        let blocks = allocate_pool(&mut backend, draft.as_mut(), config, &plan, &fit, &mut progress).await?;
        backend.warm_up(&mut |done, total| progress(Progress::Kernels { done, total }))?;
        if let Some(draft) = &mut draft {
            draft.backend.warm_up(&mut |done, total| progress(Progress::Kernels { done, total }))?;
        }
        let model_len_max = model_len_left(config, &plan, &fit, &blocks, &mut progress);
        let limits = limits(&source, &plan, &capacity, config, &blocks, model_len_max);
        let bytes = |plan: &Plan, blocks: &[u32]| sizes::kv_bytes(config, plan, blocks);
        let draft_bytes = draft.as_ref().map_or(0, |draft| bytes(&draft.plan.plan, &draft.plan.blocks(&blocks)));
        let kv_bytes = bytes(&plan, &blocks) + draft_bytes;
        inbox.set_ready(info(&backend, &plan, &limits, fit.weight_bytes, kv_bytes));
        let draft_loaded = draft.as_ref().map(|draft| Box::new(draft.loaded(config, &capacity, &blocks)));
        let loaded = LoadedPlan { config: config.clone(), plan, capacity, blocks, draft: draft_loaded };
        let draft = draft.map(Drafting::finish);
        let scheduler = Scheduler::new(limits, faults);
        let mut mover = Mover::new(faults);
        if !scheduler.host().is_off() {
            mover.calibrate(&mut backend).await?;
        }
        Ok(Self {
            backend,
            source,
            loaded,
            draft,
            scheduler,
            mover,
            last_read: None,
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

/// Runs an engine on its own thread and opens the device there. A panic ends all streams and is returned as the result.
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

/// [`spawn`] with a draft model, if there is one: opens the device once for each model.
pub fn spawn_with_draft<B, S, F>(
    open: F,
    model: S,
    draft: Option<S>,
    config: Config,
    inbox: EngineInbox,
    progress: impl FnMut(Progress) + Send + 'static,
) -> JoinHandle<Result<(), EngineEnd>>
where
    B: Backend + 'static,
    S: Source + Send + 'static,
    F: Fn() -> Result<B, BackendError> + Send + 'static,
{
    let serve = move || async move {
        let backend = open().map_err(StartError::from)?;
        let opened = draft.map(|draft| Ok((open()?, draft))).transpose();
        let draft = opened.map_err(|error: BackendError| StartError::from(error))?;
        Engine::start_with_draft(backend, model, draft, &config, inbox, progress).await?.run().await
    };
    platform::spawn("folio-engine", serve, |panic| Err(EngineEnd::Panicked(panic)))
}

/// A draft model while it is loaded.
struct Drafting<B, S> {
    backend: B,
    source: S,
    plan: DraftPlan,
}

impl<B: Backend, S: Source> Drafting<B, S> {
    fn new(backend: B, source: S, model: &Plan) -> Result<Self, StartError> {
        let plan = source.record(backend.caps().activations);
        check(&plan).map_err(StartError::Plan)?;
        let plan = DraftPlan::new(plan, model)?;
        Ok(Self { backend, source, plan })
    }

    fn loaded(&self, config: &Config, capacity: &Capacity, blocks: &[u32]) -> LoadedPlan {
        let (plan, blocks) = (self.plan.plan.clone(), self.plan.blocks(blocks));
        LoadedPlan { config: config.clone(), plan, capacity: capacity.clone(), blocks, draft: None }
    }

    fn finish(self) -> DraftModel<B, S> {
        DraftModel { backend: self.backend, source: self.source, groups: self.plan.groups }
    }
}

/// Checks that there is a draft model if, and only if, drafts come from one.
fn check_method(config: &Config, has_draft: bool) -> Result<(), ConfigError> {
    let method = config.speculation.map(|settings| settings.method);
    let message = match (method == Some(SpeculationMethod::DraftModel), has_draft) {
        (true, false) => "the method `draft_model` needs a `model`",
        (false, true) => "a draft model needs the method `draft_model`",
        _ => return Ok(()),
    };
    Err(ConfigError { option: "speculative-config", message: message.into() })
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

/// Checks before anything is loaded that the model fits. A context shorter than requested is reported as a notice.
fn check_fit(
    source: &impl Source,
    plan: &Plan,
    draft: Option<&DraftPlan>,
    config: &Config,
    caps: &Caps,
    progress: &mut impl FnMut(Progress),
) -> Result<Fit, StartError> {
    let report = FitReport::new(source, plan, draft, config, caps);
    if !report.requested.fits() {
        return Err(StartError::DoesNotFit(Box::new(report)));
    }
    progress(Progress::Fits(Box::new(report.requested.clone())));
    let (tokens, configured) = (report.requested.capacity.tokens_max, config.max_num_batched_tokens);
    if tokens < configured {
        progress(Progress::Notice(format!(
            "a step (max_num_batched_tokens) is limited to {tokens} tokens instead of {configured}, because more do \
             not fit the device's largest binding ({} bytes)",
            caps.binding_bytes_max
        )));
    }
    let own = plan.positions_max;
    if let Some(asked) = config.max_model_len.filter(|asked| *asked > own) {
        progress(Progress::Notice(format!(
            "the context (max_model_len) is limited to {own} tokens instead of {asked}, because the model has no \
             positions for more; leave the setting out, or use a model with a longer context"
        )));
    }
    if !report.requested.is_full() {
        progress(Progress::Notice(report.to_string()));
    }
    Ok(report.requested)
}

/// Allocates the pool, and the draft model's; if the device refuses, tries smaller ones.
async fn allocate_pool<B: Backend, S: Source>(
    backend: &mut B,
    mut draft: Option<&mut Drafting<B, S>>,
    config: &Config,
    plan: &Plan,
    fit: &Fit,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<u32>, StartError> {
    let mut blocks = fit.blocks.clone();
    let is_guess = sizes::is_guess(config, backend.caps());
    loop {
        let mut outcome = backend.allocate_pool(&blocks);
        if outcome.is_ok() {
            outcome = backend.settle().await;
        }
        if let Some(draft) = draft.as_mut().filter(|_| outcome.is_ok()) {
            outcome = draft.backend.allocate_pool(&draft.plan.blocks(&blocks));
            if outcome.is_ok() {
                outcome = draft.backend.settle().await;
            }
        }
        let error = match outcome {
            Ok(()) => return Ok(blocks),
            Err(error @ (BackendError::OutOfMemory { .. } | BackendError::Limit { .. })) => error,
            Err(error) => return Err(error.into()),
        };
        let Some(smaller) = sizes::shrink(&blocks, is_guess) else { return Err(error.into()) };
        blocks = smaller;
        let mib = sizes::kv_bytes(config, plan, &blocks) >> 20;
        progress(Progress::Notice(format!("{error}; trying again with a KV pool of {mib} MiB")));
    }
}

/// The longest sequence that the allocated pool holds. Reports a notice if it is shorter than planned.
fn model_len_left(config: &Config, plan: &Plan, fit: &Fit, blocks: &[u32], progress: &mut impl FnMut(Progress)) -> u32 {
    let planned = fit.model_len_max;
    let held = sizes::model_len_held(planned, config.block_size, plan, blocks);
    assert!(held >= 2, "a pool always keeps the spare blocks and one more");
    if held < planned {
        progress(Progress::Notice(format!(
            "the context (max_model_len) is limited to {held} tokens instead of {planned}, because the device did not \
             allocate a larger KV pool; to get more, free memory on the device"
        )));
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
        sequences_max: config.max_num_seqs,
        draws_max: capacity.sequences_max,
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
        speculation: config.speculation,
        eos_token_ids: source.eos_token_ids(),
        hash_key: std::array::from_fn(|_| platform::random_u64().to_le_bytes()[0]),
        tiers: TierLimits {
            host_bytes: if config.prefix_caching { config.kv_host_bytes } else { 0 },
            block_bytes: sizes::block_bytes(config, plan),
        },
    }
}

fn info<B: Backend>(backend: &B, plan: &Plan, limits: &Limits, weight_bytes: u64, kv_bytes: u64) -> EngineInfo {
    let caps = backend.caps();
    EngineInfo {
        device: caps.name.clone(),
        api: caps.api,
        tier: caps.tier.clone(),
        vocab: plan.vocab,
        max_model_len: limits.model_len_max,
        block_size: limits.block_size,
        blocks: limits.blocks.iter().sum(),
        kv_bytes,
        weight_bytes,
        max_num_seqs: limits.sequences_max,
        eos_token_ids: limits.eos_token_ids.clone(),
        embedding_len: plan.pooled_columns(),
        num_speculative_tokens: limits.speculation.map_or(0, |settings| settings.num_speculative_tokens),
        beam_room: limits.beam_room(),
    }
}
