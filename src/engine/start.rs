//! Starting an engine, on this thread or on one of its own.

use super::disk::{Disk, FolderDisk, Form, MemoryDisk, MemoryFiles};
use super::handle::EngineInbox;
use super::loaded::{LoadedPlan, Progress, StartError};
use super::loading::{Loading, Towering};
use super::mover::Mover;
use super::others::Others;
use super::predictor::Predictor;
use super::scheduler::Scheduler;
use super::source::Source;
use super::streams::Streams;
use super::{Engine, EngineEnd, Seeds};
use crate::backend::{Backend, BackendError};
use crate::config::Config;
use crate::platform;
use std::collections::VecDeque;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;

/// What an engine may be started with besides a device, a model and limits.
#[doc(hidden)]
pub struct Extras<B, S, D> {
    /// Models beside it, each on a device of its own.
    pub others: Others<(B, S)>,
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
        Self::start_beside(backend, model, Others::default(), config, inbox, progress).await
    }

    /// [`Engine::start`] with other models, each on a device of its own of the same kind.
    pub async fn start_beside(
        backend: B,
        model: S,
        others: Others<(B, S)>,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        config.check()?;
        let extras = Extras {
            others,
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
            others: Others::default(),
            host_rows_every: 0,
            open_disk: |form: &Form| {
                Ok(Some(
                    Box::new(MemoryDisk::new(files.clone(), form.clone())) as Box<dyn Disk>
                ))
            },
        };
        Self::start_with(backend, model, extras, config, inbox, progress).await
    }

    /// [`Engine::start_beside`] for the simulator: allows any block size, injects bugs, and has another disk.
    #[doc(hidden)]
    pub async fn start_with(
        backend: B,
        source: S,
        extras: Extras<B, S, impl FnOnce(&Form) -> io::Result<Option<Box<dyn Disk>>>>,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        let Extras {
            others,
            host_rows_every,
            open_disk,
        } = extras;
        let mut loading = Loading::record(backend, source, others, config, progress)?;
        let fit = loading.check_fit()?;
        let blocks = loading.allocate(&fit).await?;
        let samples = loading.upload().await?;
        loading.warm_up().await?;
        let mut limits = loading.limits(&fit, &blocks);
        let (form, fingerprint_took) = loading.form(&fit.capacity, samples);
        let disk = loading.open_disk(open_disk, &form, &mut limits)?;
        let info = loading.info(&fit, &limits);
        let mover = Mover::calibrated(&mut loading.model.backend, &limits).await?;
        let Loading {
            model,
            draft,
            tower,
            config,
            mut progress,
            ..
        } = loading;
        let draft = draft.map(|draft| draft.finish(&fit.capacity, &blocks));
        let loaded = LoadedPlan::new(model.plan, fit.capacity, blocks);
        let mut engine = Self {
            backend: model.backend,
            source: model.source,
            predictor: Predictor::of(&loaded),
            loaded,
            draft,
            tower: tower.map(Towering::finish),
            scheduler: Scheduler::new(limits).with_rates(mover.rates),
            mover,
            disk,
            waits_for_disk: false,
            last_read: None,
            in_flight: VecDeque::new(),
            lease: None,
            inbox,
            streams: Streams::new(),
            seeds: Seeds::new(&config),
            config,
            losses: Vec::new(),
            requests_taken: 0,
            requests_dequeued: 0,
            recoveries: 0,
            host_rows_every,
        };
        engine.look_on_disk(fingerprint_took, &mut progress).await;
        engine.inbox.set_ready(info);
        Ok(engine)
    }

    /// Finds blocks on disk, and says how many, and what telling the model's blocks apart took.
    async fn look_on_disk(&mut self, fingerprint: Duration, progress: &mut impl FnMut(Progress)) {
        self.find_files().await;
        if let Some(disk) = &self.config.kv_disk {
            progress(Progress::Disk {
                folder: disk.folder.clone(),
                blocks: self.scheduler.memory().files().len(),
                fingerprint,
            });
        }
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

/// [`spawn`] with other models beside it: opens the device once for each model.
pub fn spawn_with<B, S, F>(
    open: F,
    model: S,
    others: Others<S>,
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
            let others = others.try_map(|other| Ok((open()?, other)));
            let others = others.map_err(|error: BackendError| StartError::from(error))?;
            Engine::start_beside(backend, model, others, &config, inbox, progress)
                .await?
                .run()
                .await
        },
        |panic| Err(EngineEnd::Panicked(panic)),
    )
}
