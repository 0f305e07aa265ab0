//! Loading a model, and its draft model if there is one: record, check that both fit, allocate, upload, compile.

use super::disk::file::{LayerForm, NO_ADAPTER};
use super::disk::{Disk, Form};
use super::draft_model::DraftModel;
use super::draft_plan::DraftPlan;
use super::fingerprint::Samples;
use super::fit::{Beside, Fit, FitReport};
use super::handle::EngineInfo;
use super::loaded::{LoadedPlan, Progress, StartError, upload};
use super::memory::{DiskUse, MemoryLimits, TierLimits};
use super::others::Others;
use super::predictor::add_predictor;
use super::scheduler::Limits;
use super::sizes;
use super::source::Source;
use super::tower::{self, Tower};
use super::tower_plan::TowerPlan;
use super::{states, whole};
use crate::backend::{Backend, BackendError, Capacity};
use crate::config::{Config, ConfigError, SpeculationMethod};
use crate::model::adapters::AdapterLayout;
use crate::plan::Plan;
use crate::plan::check::check;
use crate::platform;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Host memory for blocks that are read from files, if the longest sequence needs as much and no more is configured.
const PASSING_BYTES_MAX: u64 = 256 << 20;

/// A model on its way to a device.
pub(super) struct Part<B, S> {
    pub(super) backend: B,
    pub(super) source: S,
    pub(super) plan: Arc<Plan>,
}

impl<B: Backend, S: Source> Part<B, S> {
    /// Records what the model computes.
    fn record(backend: B, source: S) -> Result<Self, StartError> {
        let plan = Arc::new(source.record(backend.caps().activations));
        check(&plan).map_err(StartError::Plan)?;
        Ok(Self {
            backend,
            source,
            plan,
        })
    }

    /// Allocates all buffers but the pool. The weights are uploaded later: a device that knows all its buffers may
    /// compile kernels meanwhile.
    async fn load(&mut self, capacity: &Capacity) -> Result<(), BackendError> {
        self.backend.load(self.plan.clone(), capacity)?;
        self.backend.settle().await
    }

    async fn allocate_pool(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.backend.allocate_pool(blocks)?;
        self.backend.settle().await
    }

    async fn upload(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<Samples, StartError> {
        upload(&mut self.backend, &self.source, &self.plan, progress).await
    }

    async fn warm_up(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<(), BackendError> {
        self.backend
            .warm_up(&mut |done, total| progress(Progress::Kernels { done, total }))
            .await
    }
}

/// A draft model on its way to a device of its own.
pub(super) struct Drafting<B, S> {
    part: Part<B, S>,
    plan: DraftPlan,
}

impl<B: Backend, S: Source> Drafting<B, S> {
    fn record(backend: B, source: S, model: &Plan) -> Result<Self, StartError> {
        let part = Part::record(backend, source)?;
        let plan = DraftPlan::new(part.plan.clone(), model)?;
        Ok(Self { part, plan })
    }

    /// The loaded draft model, given the blocks of the model.
    pub(super) fn finish(self, capacity: &Capacity, blocks: &[u32]) -> DraftModel<B, S> {
        let blocks = self.plan.blocks(blocks);
        DraftModel {
            backend: self.part.backend,
            source: self.part.source,
            loaded: LoadedPlan::new(self.part.plan, capacity.clone(), blocks),
            groups: self.plan.groups,
        }
    }
}

/// A tower on its way to a device of its own.
pub(super) struct Towering<B, S> {
    part: Part<B, S>,
    plan: TowerPlan,
}

impl<B: Backend, S: Source> Towering<B, S> {
    /// Records a tower, and makes room for its rows in the model.
    fn record((backend, mut source): (B, S), model: &mut S, rows: u32) -> Result<Self, StartError> {
        let tile = source.tile_patches(rows).unwrap_or(1);
        source.reserve_patches(TowerPlan::patches(tile));
        model.reserve_image_rows(rows);
        let part = Part::record(backend, source)?;
        let plan = TowerPlan::new(part.plan.clone(), tile, part.backend.caps());
        Ok(Self { part, plan })
    }

    /// The loaded tower.
    pub(super) fn finish(self) -> Tower<B, S> {
        let TowerPlan { plan, capacity, .. } = self.plan;
        Tower {
            backend: self.part.backend,
            source: self.part.source,
            loaded: LoadedPlan::new(plan, capacity, Vec::new()),
        }
    }
}

/// A model on its way to a device, with its draft model, and whom to tell about it.
pub(super) struct Loading<B, S, P> {
    pub(super) model: Part<B, S>,
    pub(super) draft: Option<Drafting<B, S>>,
    pub(super) tower: Option<Towering<B, S>>,
    /// The settings that hold for this model.
    pub(super) config: Config,
    pub(super) progress: P,
    /// Which matrices adapters may change, if there is room for any.
    pub(super) adapters: Option<Arc<AdapterLayout>>,
}

impl<B: Backend, S: Source, P: FnMut(Progress)> Loading<B, S, P> {
    /// Records the models, and fails if they cannot do what is asked for.
    pub(super) fn record(
        backend: B,
        mut source: S,
        Others { draft, tower }: Others<(B, S)>,
        config: &Config,
        mut progress: P,
    ) -> Result<Self, StartError> {
        tower::check(tower.is_some(), draft.is_some())?;
        if let Some(tokens) = config.max_model_len {
            source.limit_context(tokens);
        }
        add_predictor(config, &mut source)?;
        let adapters = sizes::adapter_room(config).and_then(|room| source.reserve_adapters(room));
        let rows = config.max_image_rows;
        let tower = tower
            .map(|tower| Towering::record(tower, &mut source, rows))
            .transpose()?;
        let model = Part::record(backend, source)?;
        whole::check(config, draft.is_some(), &model.plan)?;
        let config = &whole::adapted(config, &model.plan);
        let draft = draft
            .map(|(backend, source)| Drafting::record(backend, source, &model.plan))
            .transpose()?;
        check_method(config, draft.is_some())?;
        states::check(config, &model.plan)?;
        let adapted = states::adapted(config, &model.plan);
        if adapted != *config {
            progress(Progress::Notice(states::NOTICE.to_owned()));
        }
        Ok(Self {
            model,
            draft,
            tower,
            config: adapted,
            progress,
            adapters: adapters.map(Arc::new),
        })
    }

    /// Tells the user something.
    fn notice(&mut self, text: String) {
        (self.progress)(Progress::Notice(text));
    }

    /// Checks before anything is loaded that the models fit. A context shorter than requested is reported as a notice.
    pub(super) fn check_fit(&mut self) -> Result<Fit, StartError> {
        let Part {
            backend,
            source,
            plan,
        } = &self.model;
        let beside = Beside {
            draft: self.draft.as_ref().map(|draft| &draft.plan),
            tower: self.tower.as_ref().map(|tower| &tower.plan),
        };
        let report = FitReport::new(source, plan, beside, &self.config, backend.caps());
        if !report.requested.fits() {
            return Err(StartError::DoesNotFit(Box::new(report)));
        }
        (self.progress)(Progress::Fits(Box::new(report.requested.clone())));
        let (own, binding_bytes_max) = (plan.positions_max, backend.caps().binding_bytes_max);
        let tile_rows = beside.tower.and_then(TowerPlan::rows_limited);
        if let Some(parts) = source.left_out() {
            self.notice(parts);
        }
        let tokens = report.requested.capacity.tokens_max;
        let configured = self.config.max_num_batched_tokens;
        if tokens < configured {
            self.notice(format!(
                "a step (max_num_batched_tokens) is limited to {tokens} tokens instead of {configured}, because more \
                 do not fit the device's largest binding ({binding_bytes_max} bytes)"
            ));
        }
        if let Some(rows) = tile_rows {
            self.notice(format!(
                "an image is limited to {rows} tokens, because the tower's rows for more do not fit the device's \
                 largest binding ({binding_bytes_max} bytes)"
            ));
        }
        if let Some(asked) = self.config.max_model_len.filter(|asked| *asked > own) {
            self.notice(format!(
                "the context (max_model_len) is limited to {own} tokens instead of {asked}, because the model has no \
                 positions for more; leave the setting out, or use a model with a longer context"
            ));
        }
        if !report.requested.is_full() {
            self.notice(report.to_string());
        }
        Ok(report.requested)
    }

    /// Allocates all buffers. If a device refuses the pool, tries smaller ones. Returns the blocks of each KV group.
    pub(super) async fn allocate(&mut self, fit: &Fit) -> Result<Vec<u32>, StartError> {
        self.model.load(&fit.capacity).await?;
        if let Some(draft) = &mut self.draft {
            draft.part.load(&fit.capacity).await?;
        }
        if let Some(Towering { part, plan }) = &mut self.tower {
            part.load(&plan.capacity).await?;
            part.allocate_pool(&[]).await?;
        }
        let is_guess = sizes::is_guess(&self.config, self.model.backend.caps());
        let mut blocks = fit.blocks.clone();
        let mut refused = None;
        while let Err(error) = self.allocate_pools(&blocks).await {
            let is_too_large = matches!(
                error,
                BackendError::OutOfMemory { .. } | BackendError::Limit { .. }
            );
            match sizes::shrink(&blocks, is_guess) {
                Some(smaller) if is_too_large => blocks = smaller,
                _ => return Err(error.into()),
            }
            refused.get_or_insert(error);
        }
        if let Some(error) = refused {
            let mib = sizes::kv_bytes(&self.config, &self.model.plan, &blocks) >> 20;
            self.notice(format!("{error}; the KV pool has {mib} MiB instead"));
        }
        Ok(blocks)
    }

    async fn allocate_pools(&mut self, blocks: &[u32]) -> Result<(), BackendError> {
        self.model.allocate_pool(blocks).await?;
        match &mut self.draft {
            Some(draft) => draft.part.allocate_pool(&draft.plan.blocks(blocks)).await,
            None => Ok(()),
        }
    }

    /// Passes the weights to the devices. Returns samples of the model's.
    pub(super) async fn upload(&mut self) -> Result<Samples, StartError> {
        let samples = self.model.upload(&mut self.progress).await?;
        if let Some(draft) = &mut self.draft {
            draft.part.upload(&mut self.progress).await?;
        }
        if let Some(tower) = &mut self.tower {
            tower.part.upload(&mut self.progress).await?;
        }
        Ok(samples)
    }

    /// Compiles the kernels.
    pub(super) async fn warm_up(&mut self) -> Result<(), BackendError> {
        self.model.warm_up(&mut self.progress).await?;
        if let Some(tower) = &mut self.tower {
            tower.part.warm_up(&mut self.progress).await?;
        }
        match &mut self.draft {
            Some(draft) => draft.part.warm_up(&mut self.progress).await,
            None => Ok(()),
        }
    }

    /// The longest sequence that the allocated pool holds. Reports a notice if it is shorter than planned.
    fn model_len_left(&mut self, fit: &Fit, blocks: &[u32]) -> u32 {
        let planned = fit.max_model_len;
        let block_size = self.config.block_size;
        let held = sizes::model_len_held(planned, block_size, &self.model.plan, blocks);
        assert!(
            held >= 2,
            "a pool always keeps the spare blocks and one more"
        );
        if held < planned {
            self.notice(format!(
                "the context (max_model_len) is limited to {held} tokens instead of {planned}, because the device did \
                 not allocate a larger KV pool; to get more, free memory on the device"
            ));
        }
        held
    }

    /// What the scheduler has to keep to.
    pub(super) fn limits(&mut self, fit: &Fit, blocks: &[u32]) -> Limits {
        let max_model_len = self.model_len_left(fit, blocks);
        let (config, capacity, plan) = (&self.config, &fit.capacity, &self.model.plan);
        Limits {
            tokens_max: capacity.tokens_max,
            max_num_seqs: config.max_num_seqs,
            sequences_max: capacity.sequences_max,
            feed_slots: capacity.feed_slots,
            adapter_slots: config.max_loras,
            image_rows: plan.image_row_count(),
            patches_max: self
                .tower
                .as_ref()
                .map_or(0, |tower| tower.plan.capacity.tokens_max),
            table_entries_max: capacity.table_entries_max,
            history_max: capacity.history_max,
            bias_max: capacity.bias_max,
            scores_max: sizes::scores_max(config),
            max_model_len,
            vocab: plan.vocab,
            deterministic: config.deterministic,
            speculation: config.speculation,
            eos_token_ids: self.model.source.eos_token_ids(),
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

    /// What the blocks of this engine have in common, and how long the fingerprint took of the model whose weights
    /// passed.
    pub(super) fn form(&self, capacity: &Capacity, samples: Samples) -> (Form, Duration) {
        let Part {
            backend,
            source,
            plan,
        } = &self.model;
        let caps = backend.caps();
        let (fingerprint, took) =
            samples.fingerprint(|| source.identity(), plan.with_adapters(false));
        let groups = (0..plan.kv_groups.len()).map(|group| {
            let layers = plan.kv_layers.iter();
            layers
                .filter(|layer| layer.group as usize == group)
                .map(LayerForm::from)
                .collect()
        });
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
        let form = Form {
            fingerprint,
            kv_format: self.config.kv_format,
            block_size: self.config.block_size,
            adapter: NO_ADAPTER.to_owned(),
            build: format!("{build} {:?} {}", caps.activations, capacity.tokens_max),
            deterministic: self.config.deterministic,
            layers: groups.chain(states).collect(),
        };
        (form, took)
    }

    /// Opens the disk, if there is one and prefixes are shared, and adapts the limits to it.
    pub(super) fn open_disk(
        &self,
        open: impl FnOnce(&Form) -> io::Result<Option<Box<dyn Disk>>>,
        form: &Form,
        limits: &mut Limits,
    ) -> Result<Option<Box<dyn Disk>>, StartError> {
        if !self.config.prefix_caching {
            return Ok(None);
        }
        let disk = open(form).map_err(|error| no_folder(&self.config, &error))?;
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

    /// What clients may know of the loaded engine.
    pub(super) fn info(&self, fit: &Fit, limits: &Limits) -> EngineInfo {
        let (plan, caps) = (&self.model.plan, self.model.backend.caps());
        let draft_bytes = self.draft.as_ref().map_or(0, |Drafting { plan, .. }| {
            sizes::kv_bytes(
                &self.config,
                &plan.plan,
                &plan.blocks(&limits.memory.blocks),
            )
        });
        let dense = self.model.source.dense();
        EngineInfo {
            device: caps.name.clone(),
            api: caps.api,
            tier: caps.tier.clone(),
            vocab: plan.vocab,
            has_head: self.model.source.has_head(),
            computes_whole_sequences: plan.computes_whole_sequences(),
            classes: self.model.source.classes(),
            marks_texts: self.model.source.marks_texts(),
            dense: dense.clone(),
            max_model_len: limits.max_model_len,
            block_size: limits.memory.block_size,
            blocks: limits.memory.blocks.iter().sum(),
            kv_bytes: sizes::kv_bytes(&self.config, plan, &limits.memory.blocks) + draft_bytes,
            weight_bytes: fit.weight_bytes,
            figures: plan.figures(),
            max_num_seqs: limits.max_num_seqs,
            seed: self.config.seed,
            eos_token_ids: limits.eos_token_ids.clone(),
            embedding_len: dense.last().map_or(plan.pooled_columns(), |last| {
                u32::try_from(last.outputs()).expect("a vector has few elements")
            }),
            num_speculative_tokens: limits
                .speculation
                .map_or(0, |settings| settings.num_speculative_tokens),
            beam_room: limits.beam_room(),
            adapters: self.adapters.clone(),
            images: self
                .tower
                .as_ref()
                .map(|tower| tower.plan.room(plan.image_row_count())),
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
        option: "speculative_config",
        message: message.into(),
    })
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
