//! Starting an engine, on this thread or on one of its own.

use super::disk::{Disk, FolderDisk, Form, MemoryDisk, MemoryFiles};
use super::handle::EngineInbox;
use super::loaded::{LoadedPlan, Progress, StartError};
use super::loading::Loading;
use super::mover::Mover;
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
        backend: B,
        source: S,
        extras: Extras<B, S, impl FnOnce(&Form) -> io::Result<Option<Box<dyn Disk>>>>,
        config: &Config,
        inbox: EngineInbox,
        progress: impl FnMut(Progress),
    ) -> Result<Self, StartError> {
        let Extras {
            draft,
            host_rows_every,
            open_disk,
        } = extras;
        let mut loading = Loading::record(backend, source, draft, config, progress)?;
        let fit = loading.check_fit()?;
        let blocks = loading.allocate(&fit).await?;
        let samples = loading.upload().await?;
        loading.warm_up().await?;
        let mut limits = loading.limits(&fit, &blocks);
        let (form, fingerprint_took) = loading.form(&fit.capacity, samples);
        let disk = loading.open_disk(open_disk, &form, &mut limits)?;
        let info = loading.info(&fit, &limits);
        let mover = Mover::calibrated(&mut loading.model.backend, &limits).await?;
        let mut scheduler = Scheduler::new(limits);
        scheduler.memory_mut().set_rates(mover.rates);
        let Loading {
            model,
            draft,
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
            scheduler,
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
        engine.find_files().await;
        engine.tell_found(fingerprint_took, &mut progress);
        engine.inbox.set_ready(info);
        Ok(engine)
    }

    /// Says what was found on disk, and what telling the model's blocks apart took.
    fn tell_found(&self, fingerprint: Duration, progress: &mut impl FnMut(Progress)) {
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
