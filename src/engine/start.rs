//! Starting an engine, and restarting it after a device loss: record, load, upload, size the pool.

use super::disk::file::{LayerForm, NO_ADAPTER};
use super::disk::{Disk, FolderDisk, Form, MemoryDisk, MemoryFiles};
use super::draft_model::{DraftError, DraftModel, DraftPlan};
use super::fingerprint::Samples;
use super::fit::{Fit, FitReport};
use super::handle::{EngineInbox, EngineInfo};
use super::memory::{DiskUse, MemoryLimits, TierLimits};
use super::mover::Mover;
use super::scheduler::{Limits, Scheduler};
use super::source::Source;
use super::states;
use super::streams::Streams;
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
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Host memory for blocks that are read from files, if the longest sequence needs as much and no more is configured.
const PASSING_BYTES_MAX: u64 = 256 << 20;

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
    /// The folder for files of KV blocks is ready.
    Disk {
        /// The folder.
        folder: PathBuf,
        /// Files of this model in it.
        blocks: usize,
        /// How long the model's fingerprint took, by which files are told apart.
        fingerprint: Duration,
    },
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
    /// The folder for files of KV blocks cannot be used.
    #[error("--kv-disk {folder}: {message}")]
    Disk {
        /// The folder.
        folder: String,
        /// The system's message.
        message: String,
    },
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
        // A step of another size may round differently.
        let hint = if self.config.deterministic {
            None
        } else {
            hint
        };
        hint.unwrap_or(u32::MAX).clamp(1, self.capacity.tokens_max)
    }

    /// Reloads everything after a device loss.
    pub(super) async fn bring_back<B: Backend>(
        &self,
        backend: &mut B,
        source: &impl Source,
    ) -> Result<(), StartError> {
        backend.reset().await?;
        backend.load(self.plan.clone(), &self.capacity)?;
        backend.allocate_pool(&self.blocks)?;
        upload(
            backend,
            source,
            &self.plan,
            &mut Samples::default(),
            &mut |_| {},
        )
        .await?;
        Ok(backend.warm_up(&mut |_, _| {}).await?)
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

/// What an engine may be started with besides a device, a model and limits.
#[doc(hidden)]
pub struct Extras<B, S, D> {
    /// A draft model on a device of its own.
    pub draft: Option<(B, S)>,
    /// Every so many-th request needs host work between two tokens, as one with a grammar does; 0 for none.
    pub host_rows_every: u64,
    /// Opens the disk for blocks of this form.
    pub open_disk: D,
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
        let extras = Extras {
            draft,
            host_rows_every: 0,
            open_disk: |form: &Form| {
                let disk = config
                    .kv_disk
                    .as_ref()
                    .map(|disk| FolderDisk::open(&disk.folder, disk.bytes, form));
                Ok(disk
                    .transpose()?
                    .map(|disk| Box::new(disk) as Box<dyn Disk>))
            },
        };
        Self::start_with(backend, model, extras, config, inbox, progress).await
    }

    /// [`Engine::start`], with KV blocks from imported files.
    pub async fn start_with_files(
        backend: B,
        model: S,
        files: &MemoryFiles,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        config.check()?;
        let extras = Extras {
            draft: None,
            host_rows_every: 0,
            open_disk: |form: &Form| {
                Ok(Some(
                    Box::new(MemoryDisk::new(files.clone(), form.clone())) as Box<dyn Disk>
                ))
            },
        };
        Self::start_with(backend, model, extras, config, inbox, progress).await
    }

    /// [`Engine::start_with_draft`] for the simulator: allows any block size, injects bugs, and has another disk.
    #[doc(hidden)]
    pub async fn start_with(
        mut backend: B,
        mut source: S,
        extras: Extras<B, S, impl FnOnce(&Form) -> io::Result<Option<Box<dyn Disk>>>>,
        config: &Config,
        inbox: EngineInbox,
        mut progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        if let Some(tokens) = config.max_model_len {
            source.limit_context(tokens);
        }
        let plan = Arc::new(source.record(backend.caps().activations));
        check(&plan).map_err(StartError::Plan)?;
        let host_rows_every = extras.host_rows_every;
        let mut draft = extras
            .draft
            .map(|(backend, source)| Drafting::new(backend, source, &plan))
            .transpose()?;
        let config = &adapted(config, &plan, draft.is_some(), &mut progress)?;
        let draft_plan = draft.as_ref().map(|draft| &draft.plan);
        let fit = check_fit(
            &source,
            &plan,
            draft_plan,
            config,
            backend.caps(),
            &mut progress,
        )?;
        let capacity = fit.capacity.clone();
        let mut samples = Samples::default();
        let blocks = allocate(
            &mut backend,
            draft.as_mut(),
            config,
            &plan,
            &fit,
            &mut progress,
        )
        .await?;
        upload(&mut backend, &source, &plan, &mut samples, &mut progress).await?;
        if let Some(draft) = &mut draft {
            let (source, plan, samples) =
                (&draft.source, &draft.plan.plan, &mut Samples::default());
            upload(&mut draft.backend, source, plan, samples, &mut progress).await?;
        }
        backend
            .warm_up(&mut |done, total| progress(Progress::Kernels { done, total }))
            .await?;
        if let Some(draft) = &mut draft {
            draft
                .backend
                .warm_up(&mut |done, total| progress(Progress::Kernels { done, total }))
                .await?;
        }
        let model_len_max = model_len_left(config, &plan, &fit, &blocks, &mut progress);
        let (fingerprint, fingerprint_took) = samples.fingerprint(|| source.identity(), &plan);
        let form = form(&backend, &plan, &capacity, config, fingerprint);
        let mut limits = limits(&source, &plan, &capacity, config, &blocks, model_len_max);
        let disk = open(extras.open_disk, &form, config, &mut limits)?;
        let draft_bytes = draft.as_ref().map_or(0, |draft| {
            sizes::kv_bytes(config, &draft.plan.plan, &draft.plan.blocks(&blocks))
        });
        let kv_bytes = sizes::kv_bytes(config, &plan, &blocks) + draft_bytes;
        let info = info(
            &backend,
            &plan,
            &limits,
            [fit.weight_bytes, kv_bytes],
            source.has_head(),
        );
        let draft_loaded = draft
            .as_ref()
            .map(|draft| Box::new(draft.loaded(config, &capacity, &blocks)));
        let loaded = LoadedPlan {
            config: config.clone(),
            plan,
            capacity,
            blocks,
            draft: draft_loaded,
        };
        let mover = Mover::calibrated(&mut backend, &limits).await?;
        let mut scheduler = Scheduler::new(limits);
        scheduler.memory_mut().set_rates(mover.rates);
        let mut engine = Self {
            backend,
            source,
            loaded,
            draft: draft.map(Drafting::finish),
            scheduler,
            mover,
            disk,
            waits_for_disk: false,
            last_read: None,
            in_flight: VecDeque::new(),
            turn: None,
            inbox,
            streams: Streams::new(),
            seeds: Seeds(config.seed.unwrap_or_else(platform::random_u64)),
            losses: Vec::new(),
            requests_taken: 0,
            requests_dequeued: 0,
            recoveries: 0,
            host_rows_every,
        };
        engine.find_files().await;
        tell_found(
            engine.scheduler.memory().files().len(),
            config,
            fingerprint_took,
            &mut progress,
        );
        engine.inbox.set_ready(info);
        Ok(engine)
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
    platform::spawn(
        "folio-engine",
        move || async move {
            let backend = open().map_err(StartError::from)?;
            Engine::start(backend, model, &config, inbox, progress)
                .await?
                .run()
                .await
        },
        |panic| Err(EngineEnd::Panicked(panic)),
    )
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
    platform::spawn(
        "folio-engine",
        move || async move {
            let backend = open().map_err(StartError::from)?;
            let opened = draft.map(|draft| Ok((open()?, draft))).transpose();
            let draft = opened.map_err(|error: BackendError| StartError::from(error))?;
            Engine::start_with_draft(backend, model, draft, &config, inbox, progress)
                .await?
                .run()
                .await
        },
        |panic| Err(EngineEnd::Panicked(panic)),
    )
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
        Ok(Self {
            backend,
            source,
            plan,
        })
    }

    fn loaded(&self, config: &Config, capacity: &Capacity, blocks: &[u32]) -> LoadedPlan {
        let (plan, blocks) = (self.plan.plan.clone(), self.plan.blocks(blocks));
        LoadedPlan {
            config: config.clone(),
            plan,
            capacity: capacity.clone(),
            blocks,
            draft: None,
        }
    }

    fn finish(self) -> DraftModel<B, S> {
        DraftModel {
            backend: self.backend,
            source: self.source,
            groups: self.plan.groups,
        }
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
    Err(ConfigError {
        option: "speculative-config",
        message: message.into(),
    })
}

/// The settings that hold for this model; fails if what it cannot do is asked for.
fn adapted(
    config: &Config,
    plan: &Plan,
    has_draft: bool,
    progress: &mut impl FnMut(Progress),
) -> Result<Config, ConfigError> {
    check_method(config, has_draft)?;
    states::check(config, plan)?;
    let adapted = states::adapted(config, plan);
    if adapted != *config {
        progress(Progress::Notice(states::NOTICE.to_owned()));
    }
    Ok(adapted)
}

/// Passes the weights to the device.
async fn upload<B: Backend>(
    backend: &mut B,
    source: &impl Source,
    plan: &Plan,
    samples: &mut Samples,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), StartError> {
    let (mut done, total) = (0, plan.weight_bytes());
    let mut write = |weight, first_row, rows: Bytes| {
        let bytes = rows.len() as u64;
        samples.add(plan, weight, first_row, &rows);
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
    if let Some(parts) = source.left_out() {
        progress(Progress::Notice(parts));
    }
    let (tokens, configured) = (
        report.requested.capacity.tokens_max,
        config.max_num_batched_tokens,
    );
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

/// Allocates all buffers, also of the draft model. If the device refuses the pool, tries smaller ones. The weights are
/// uploaded later: a device that knows all its buffers may compile kernels meanwhile.
async fn allocate<B: Backend, S: Source>(
    backend: &mut B,
    mut draft: Option<&mut Drafting<B, S>>,
    config: &Config,
    plan: &Arc<Plan>,
    fit: &Fit,
    progress: &mut impl FnMut(Progress),
) -> Result<Vec<u32>, StartError> {
    backend.load(plan.clone(), &fit.capacity)?;
    backend.settle().await?;
    if let Some(draft) = &mut draft {
        draft.backend.load(draft.plan.plan.clone(), &fit.capacity)?;
        draft.backend.settle().await?;
    }
    let mut blocks = fit.blocks.clone();
    let mut refused = None;
    let is_guess = sizes::is_guess(config, backend.caps());
    loop {
        let mut outcome = backend.allocate_pool(&blocks);
        if outcome.is_ok() {
            outcome = backend.settle().await;
        }
        if let Some(draft) = draft.as_mut()
            && outcome.is_ok()
        {
            outcome = draft.backend.allocate_pool(&draft.plan.blocks(&blocks));
            if outcome.is_ok() {
                outcome = draft.backend.settle().await;
            }
        }
        let error = match outcome {
            Ok(()) => {
                if let Some(error) = refused {
                    let mib = sizes::kv_bytes(config, plan, &blocks) >> 20;
                    progress(Progress::Notice(format!(
                        "{error}; the KV pool has {mib} MiB instead"
                    )));
                }
                return Ok(blocks);
            }
            Err(error @ (BackendError::OutOfMemory { .. } | BackendError::Limit { .. })) => error,
            Err(error) => return Err(error.into()),
        };
        let Some(smaller) = sizes::shrink(&blocks, is_guess) else {
            return Err(error.into());
        };
        blocks = smaller;
        refused.get_or_insert(error);
    }
}

/// The longest sequence that the allocated pool holds. Reports a notice if it is shorter than planned.
fn model_len_left(
    config: &Config,
    plan: &Plan,
    fit: &Fit,
    blocks: &[u32],
    progress: &mut impl FnMut(Progress),
) -> u32 {
    let planned = fit.model_len_max;
    let held = sizes::model_len_held(planned, config.block_size, plan, blocks);
    assert!(
        held >= 2,
        "a pool always keeps the spare blocks and one more"
    );
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
        model_len_max,
        vocab: plan.vocab,
        deterministic: config.deterministic,
        speculation: config.speculation,
        eos_token_ids: source.eos_token_ids(),
        memory: MemoryLimits {
            block_size: capacity.block_size,
            windows: plan.kv_groups.iter().map(|group| group.window).collect(),
            blocks: blocks.to_vec(),
            state_slots: capacity.state_slots,
            prefix_caching: config.prefix_caching,
            hash_key: random_key(),
            shared_key: random_key(),
            tiers: TierLimits {
                host_bytes: sizes::host_bytes(config),
                block_bytes: sizes::block_bytes(config, plan),
                disk: DiskUse::Off,
            },
        },
    }
}

fn random_key() -> [u8; 32] {
    std::array::from_fn(|_| platform::random_u64().to_le_bytes()[0])
}

fn no_folder(config: &Config, error: &io::Error) -> StartError {
    let folder = config
        .kv_disk
        .as_ref()
        .map_or_else(String::new, |disk| disk.folder.display().to_string());
    StartError::Disk {
        folder,
        message: error.to_string(),
    }
}

/// What the blocks of this engine have in common.
fn form<B: Backend>(
    backend: &B,
    plan: &Plan,
    capacity: &Capacity,
    config: &Config,
    fingerprint: [u8; 32],
) -> Form {
    let caps = backend.caps();
    let states = plan
        .state_group()
        .map(|_| plan.state_layers.iter().map(LayerForm::from).collect());
    // Fixed chunks depend on the size of a step.
    let build = [
        env!("CARGO_PKG_VERSION"),
        &platform::build_id(),
        caps.api,
        &caps.name,
        &caps.tier,
    ]
    .join(" ");
    Form {
        fingerprint,
        kv_format: config.kv_format,
        block_size: config.block_size,
        adapter: NO_ADAPTER.to_owned(),
        build: format!("{build} {:?} {}", caps.activations, capacity.tokens_max),
        deterministic: config.deterministic,
        layers: (0..plan.kv_groups.len())
            .map(|group| {
                let own = plan
                    .kv_layers
                    .iter()
                    .filter(move |layer| layer.group as usize == group);
                own.map(LayerForm::from).collect()
            })
            .chain(states)
            .collect(),
    }
}

/// Opens the disk, if there is one and prefixes are shared, and adapts the limits to it.
fn open(
    open_disk: impl FnOnce(&Form) -> io::Result<Option<Box<dyn Disk>>>,
    form: &Form,
    config: &Config,
    limits: &mut Limits,
) -> Result<Option<Box<dyn Disk>>, StartError> {
    if !config.prefix_caching {
        return Ok(None);
    }
    let disk = open_disk(form).map_err(|error| no_folder(config, &error))?;
    if let Some(disk) = &disk {
        let disk_use = if disk.is_written() {
            DiskUse::ReadAndWrite
        } else {
            DiskUse::Read
        };
        limits.memory.shared_key = form.key();
        let mut longest = limits.blocks_of_longest();
        // And the state after them.
        longest.resize(limits.memory.tiers.block_bytes.len(), 1);
        limits.memory.tiers = tiers_with_disk(&limits.memory.tiers, disk_use, &longest);
    }
    Ok(disk)
}

/// Says what was found on disk, and what telling the model's blocks apart took.
fn tell_found(
    blocks: usize,
    config: &Config,
    fingerprint: Duration,
    progress: &mut impl FnMut(Progress),
) {
    let Some(disk) = &config.kv_disk else { return };
    progress(Progress::Disk {
        folder: disk.folder.clone(),
        blocks,
        fingerprint,
    });
}

/// Blocks from files pass through host memory: there is room for the longest sequence, within reason.
fn tiers_with_disk(tiers: &TierLimits, disk: DiskUse, longest: &[u32]) -> TierLimits {
    let one: u64 = tiers
        .block_bytes
        .iter()
        .zip(longest)
        .map(|(bytes, &count)| bytes * u64::from(count))
        .sum();
    TierLimits {
        host_bytes: tiers.host_bytes.max(one.min(PASSING_BYTES_MAX)),
        disk,
        ..tiers.clone()
    }
}

fn info<B: Backend>(
    backend: &B,
    plan: &Plan,
    limits: &Limits,
    [weight_bytes, kv_bytes]: [u64; 2],
    has_head: bool,
) -> EngineInfo {
    let caps = backend.caps();
    EngineInfo {
        device: caps.name.clone(),
        api: caps.api,
        tier: caps.tier.clone(),
        vocab: plan.vocab,
        has_head,
        max_model_len: limits.model_len_max,
        block_size: limits.memory.block_size,
        blocks: limits.memory.blocks.iter().sum(),
        kv_bytes,
        weight_bytes,
        max_num_seqs: limits.sequences_max,
        eos_token_ids: limits.eos_token_ids.clone(),
        embedding_len: plan.pooled_columns(),
        num_speculative_tokens: limits
            .speculation
            .map_or(0, |settings| settings.num_speculative_tokens),
        beam_room: limits.beam_room(),
    }
}
