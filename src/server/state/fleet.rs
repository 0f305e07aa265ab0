//! [`Fleet`]: several models, loaded when a request asks for one and unloaded when nobody does, or when another one
//! needs the memory. What is done when is decided by [`Residents`]; here are the threads, the clock and the requests.
//!
//! One thread keeps the models and does nothing in between. Each load and each unload has a thread of its own, so that
//! none waits for another. A request that needs a model holds a [`Use`] of it until its response has ended; a model in
//! use is not unloaded. `docs/several-models.md` says it for users.

use super::residents::{Need, Phase, Residents, Task};
use super::{ModelFacts, ModelOutline, ModelState, ServerOptions, Shared};
use crate::engine::handle::{EngineHandle, Status};
use crate::engine::request::{DrawDefaults, SamplingParams, SubmitError};
use crate::platform::{self, Instant};
use crate::server::counters::{Metrics, Throughput};
use crate::server::images::ImageReader;
use crate::server::wire::error::ApiError;
use crate::text::TextModel;
use crate::text::answer::AnswerFormat;
use futures_channel::oneshot;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The pause after a panic, so that one that repeats does not take a core.
const AFTER_PANIC: Duration = Duration::from_millis(100);

/// A model of a server of several.
pub struct ModelSource {
    /// Names in requests, at least one; answers call the model by the first.
    pub names: Vec<String>,
    /// Index of the memory that it is loaded into; see [`FleetOptions::places`].
    pub place: usize,
    /// Bytes of that memory which it needs when it is loaded.
    pub bytes: u64,
    /// Why it is never loaded, if so.
    pub refusal: Option<String>,
    /// How long it stays loaded without requests; `None`: until its memory is needed.
    pub idle_unload: Option<Duration>,
    /// How many requests wait until it is loaded; further ones are refused.
    pub queue_requests_max: u32,
    /// What is known of it before it is loaded.
    pub outline: Option<ModelOutline>,
    /// The server's options, with those of this model.
    pub options: ServerOptions,
    /// Loads it; called on a thread of its own, which may take as long as it needs.
    pub load: Load,
}

/// Loads a model, or says why it cannot be loaded.
type Load = Box<dyn Fn() -> Result<LoadedModel, String> + Send + Sync>;

/// A model that has just been loaded.
pub struct LoadedModel {
    /// Its engine, which is ready.
    pub engine: EngineHandle,
    /// Its tokenizer and chat template.
    pub text: Arc<TextModel>,
    /// Reads the images that are sent to it; `None`: it reads text only.
    pub images: Option<ImageReader>,
    /// Its sampling defaults.
    pub defaults: SamplingParams,
    /// Those of them that its files set.
    pub draw_defaults: DrawDefaults,
    /// Waits until the engine has ended and its memory is free; an error says why it ended by itself.
    pub end: End,
}

/// See [`LoadedModel::end`].
type End = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// What several models share.
#[derive(Clone, Debug, Default)]
pub struct FleetOptions {
    /// Bytes that models may take together, for each memory that there is; `None`: unknown, and never full.
    pub places: Vec<Option<u64>>,
    /// How long a request waits for its model, unless its answer is a stream; `None`: as long as it takes.
    pub load_timeout: Option<Duration>,
}

/// The models of a server, and their threads.
pub(crate) struct Fleet {
    shared: Arc<Shared>,
    pub(super) models: Vec<Configured>,
    residents: Mutex<Residents<Arc<Loaded>, Waiter>>,
    /// Something may have to be done.
    changed: Condvar,
    started: Instant,
    load_timeout: Option<Duration>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

/// A model, loaded or not.
pub(super) struct Configured {
    pub(super) names: Arc<[String]>,
    pub(super) file: Option<String>,
    pub(super) takes_any_name: bool,
    /// What is known of it while it is not loaded.
    pub(super) facts: Option<ModelFacts>,
    pub(super) refusal: Option<String>,
    pub(super) idle_unload: Option<Duration>,
    queue_requests_max: u32,
    /// They outlive the engine.
    pub(super) metrics: Arc<Metrics>,
    pub(super) throughput: Arc<Throughput>,
    /// How often it was loaded.
    pub(super) loads: AtomicU64,
    options: ServerOptions,
    load: Load,
}

/// A loaded model.
pub(super) struct Loaded {
    pub(super) state: ModelState,
    end: Mutex<Option<End>>,
}

type Waiter = oneshot::Sender<Result<Use, ApiError>>;

/// A request to a model.
pub(crate) enum Entry {
    /// The model is loaded.
    Now(Use),
    /// It will be.
    Later(Wait),
}

/// The use of a loaded model, which keeps it loaded.
pub(crate) struct Use {
    fleet: Arc<Fleet>,
    index: usize,
    loaded: Arc<Loaded>,
}

/// A wait for a model. Dropping it cancels the request.
pub(crate) struct Wait {
    fleet: Arc<Fleet>,
    receiver: oneshot::Receiver<Result<Use, ApiError>>,
}

impl Fleet {
    /// Starts the thread that keeps the models.
    pub(super) fn start(
        shared: Arc<Shared>,
        sources: Vec<ModelSource>,
        options: &FleetOptions,
    ) -> Arc<Self> {
        assert!(!sources.is_empty(), "a server has a model");
        let needs: Vec<_> = sources
            .iter()
            .map(|source| {
                (
                    Need {
                        place: source.place,
                        bytes: source.bytes,
                    },
                    source.idle_unload,
                )
            })
            .collect();
        assert!(
            needs
                .iter()
                .all(|(need, _)| need.place < options.places.len()),
            "every model has its place"
        );
        let too_large =
            |need: Need| options.places[need.place].is_some_and(|room| need.bytes > room);
        let refusals = needs
            .iter()
            .map(|(need, _)| too_large(*need).then(|| "it does not fit".to_owned()));
        let models = sources
            .into_iter()
            .zip(refusals)
            .map(|(source, too_large)| Configured::new(source, too_large));
        let fleet = Arc::new(Self {
            shared,
            models: models.collect(),
            residents: Mutex::new(Residents::new(options.places.clone(), needs.into_iter())),
            changed: Condvar::new(),
            started: Instant::now(),
            load_timeout: options.load_timeout,
            keeper: Mutex::new(None),
        });
        let kept = fleet.clone();
        let keeper = std::thread::Builder::new()
            .name("folio-models".into())
            .spawn(move || kept.run());
        *fleet.keeper.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(keeper.expect("this platform has threads"));
        fleet
    }

    /// Begins a request to a model, or a wait for it. Only an answer in a stream waits without a limit. With `idle`,
    /// the model then stays loaded for that long without requests.
    pub(crate) fn enter(
        self: &Arc<Self>,
        index: usize,
        streams: bool,
        idle: Option<Option<Duration>>,
    ) -> Result<Entry, ApiError> {
        let configured = &self.models[index];
        if let Some(reason) = &configured.refusal {
            return Err(ApiError::load_failed(&configured.names[0], reason));
        }
        let now = self.now();
        let mut residents = self.lock();
        residents.set_idle(index, idle.unwrap_or(configured.idle_unload));
        let has_failed = match residents.phase(index) {
            Phase::Loaded(loaded) => loaded.state.engine.status() == Status::Failed,
            _ => false,
        };
        if has_failed {
            residents.unload(index);
        }
        if let Some(loaded) = residents.enter(index, now) {
            return Ok(Entry::Now(Use {
                fleet: self.clone(),
                index,
                loaded,
            }));
        }
        let limit = configured.queue_requests_max;
        if residents.waiting(index) >= limit as usize {
            return Err(ApiError::refused(&SubmitError::Overloaded { limit }, &[]));
        }
        let (sender, receiver) = oneshot::channel();
        // The client of a stream hears that its request waits.
        let timeout = if streams { None } else { self.load_timeout };
        let deadline = timeout.map(|timeout| now.saturating_add(timeout));
        if residents.wait(index, sender, deadline).is_some() {
            return Err(ApiError::shutting_down());
        }
        self.changed.notify_one();
        Ok(Entry::Later(Wait {
            fleet: self.clone(),
            receiver,
        }))
    }

    /// Has a model loaded.
    pub(crate) fn ask(&self, index: usize) -> Result<(), ApiError> {
        let configured = &self.models[index];
        if let Some(reason) = &configured.refusal {
            return Err(ApiError::load_failed(&configured.names[0], reason));
        }
        self.lock().ask(index);
        self.changed.notify_one();
        Ok(())
    }

    /// Has a model unloaded when its requests are done. Returns whether it is loaded.
    pub(crate) fn unload(&self, index: usize) -> bool {
        let is_loaded = self.lock().unload(index);
        self.changed.notify_one();
        is_loaded
    }

    /// The state of a model, the number of those who wait for it, and in how long it will be unloaded.
    pub(super) fn look(&self, index: usize) -> (Phase<Arc<Loaded>>, usize, Option<Duration>) {
        let residents = self.lock();
        let expires = residents
            .expires(index)
            .map(|at| at.saturating_sub(self.now()));
        (
            residents.phase(index).clone(),
            residents.waiting(index),
            expires,
        )
    }

    /// Loads nothing any more, and unloads models when their requests are done.
    pub(super) fn drain(&self) {
        let mut residents = self.lock();
        let waiters = residents.close();
        for index in 0..self.models.len() {
            if let Phase::Draining(loaded) = residents.phase(index) {
                loaded.state.engine.drain();
            }
        }
        drop(residents);
        for (_, waiter) in waiters {
            // The client may be gone.
            drop(waiter.send(Err(ApiError::shutting_down())));
        }
        self.changed.notify_one();
    }

    /// Ends all requests of loaded models.
    pub(super) fn abort(&self) {
        for index in 0..self.models.len() {
            if let Phase::Loaded(loaded) | Phase::Draining(loaded) = self.look(index).0 {
                loaded.state.engine.abort();
            }
        }
    }

    /// Waits until nothing is loaded. Requests that still run are ended.
    pub(super) fn close(&self) {
        self.drain();
        self.abort();
        self.lock().force();
        self.changed.notify_one();
        let keeper = self
            .keeper
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(keeper) = keeper {
            drop(keeper.join());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Residents<Arc<Loaded>, Waiter>> {
        self.residents
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Keeps the models, also after a panic, which is told to all who wait.
    fn run(self: Arc<Self>) {
        survive(|| self.keep(), || self.tell_panic());
    }

    fn tell_panic(&self) {
        let waiters = self.lock().take_all_waiting();
        for (_, waiter) in waiters {
            // The client may be gone.
            drop(waiter.send(Err(ApiError::internal())));
        }
    }

    /// Does what is to be done until the server is closed and nothing is loaded.
    fn keep(self: &Arc<Self>) {
        let mut residents = self.lock();
        loop {
            let step = residents.step(self.now());
            if !step.tasks.is_empty() || !step.expired.is_empty() {
                drop(residents);
                step.expired
                    .into_iter()
                    .for_each(|(index, waiter)| self.tell_expired(index, waiter));
                step.tasks.into_iter().for_each(|task| self.begin(task));
                residents = self.lock();
                continue;
            }
            if residents.is_closed() {
                return;
            }
            residents = match step.next {
                None => self
                    .changed
                    .wait(residents)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let pause = at.saturating_sub(self.now());
                    self.changed
                        .wait_timeout(residents, pause)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    fn tell_expired(&self, index: usize, waiter: Waiter) {
        let seconds = self.load_timeout.unwrap_or_default().as_secs();
        // The client may be gone.
        drop(waiter.send(Err(ApiError::still_loading(
            &self.models[index].names[0],
            seconds,
        ))));
    }

    /// Starts the thread of a task. Where no thread can be started, a load fails and an unload is done here.
    fn begin(self: &Arc<Self>, task: Task<Arc<Loaded>>) {
        let fleet = self.clone();
        match task {
            Task::Load(index) => {
                let builder = std::thread::Builder::new().name("folio-load".into());
                if let Err(error) = builder.spawn(move || fleet.load(index)) {
                    self.has_loaded(index, Err(format!("no thread could be started: {error}")));
                }
            }
            Task::Unload(index, loaded) => {
                let builder = std::thread::Builder::new().name("folio-unload".into());
                let unloaded = loaded.clone();
                if builder.spawn(move || fleet.end(index, &unloaded)).is_err() {
                    self.end(index, &loaded);
                }
            }
        }
    }

    fn load(self: Arc<Self>, index: usize) {
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.models[index].load)()));
        let outcome =
            outcome.unwrap_or_else(|_| Err("loading it panicked, which is a bug".to_owned()));
        self.has_loaded(index, outcome);
    }

    /// Tells the outcome of a load to all who wait for the model.
    fn has_loaded(self: &Arc<Self>, index: usize, outcome: Result<LoadedModel, String>) {
        let configured = &self.models[index];
        let outcome = outcome.map(|model| Arc::new(configured.loaded(self.shared.clone(), model)));
        match &outcome {
            Ok(_) => drop(configured.loads.fetch_add(1, Ordering::Relaxed)),
            Err(reason) => tracing::error!("{} could not be loaded: {reason}", configured.names[0]),
        }
        let waiters = self.lock().loaded(index, outcome.clone(), self.now());
        for waiter in waiters {
            let result = match &outcome {
                Ok(loaded) => Ok(Use {
                    fleet: self.clone(),
                    index,
                    loaded: loaded.clone(),
                }),
                Err(reason) => Err(ApiError::load_failed(&configured.names[0], reason)),
            };
            // A client that has gone meanwhile ends its use.
            drop(waiter.send(result));
        }
        self.changed.notify_one();
    }

    fn end(&self, index: usize, loaded: &Loaded) {
        loaded.state.engine.drain();
        let end = loaded
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let outcome = match end.map(|end| catch_unwind(AssertUnwindSafe(end))) {
            None => Ok(()),
            Some(outcome) => {
                outcome.unwrap_or_else(|_| Err("ending it panicked, which is a bug".to_owned()))
            }
        };
        platform::return_freed_memory();
        if let Err(reason) = &outcome {
            tracing::error!("{}: {reason}", self.models[index].names[0]);
        }
        self.lock().unloaded(index, outcome);
        self.changed.notify_one();
    }
}

/// Does `work` until it ends without a panic. After each panic, `recover` is called and a moment passes.
fn survive(work: impl Fn(), recover: impl Fn()) {
    while catch_unwind(AssertUnwindSafe(&work)).is_err() {
        tracing::error!("a thread of the models panicked, which is a bug; it goes on");
        recover();
        platform::pause(AFTER_PANIC);
    }
}

impl Configured {
    fn new(source: ModelSource, too_large: Option<String>) -> Self {
        assert!(!source.names.is_empty(), "a model has a name");
        let ServerOptions {
            tool_call_parser,
            reasoning_parser,
            ..
        } = source.options;
        let facts = source.outline.map(|outline| ModelFacts {
            answer_format: AnswerFormat::new(&outline.text, tool_call_parser, reasoning_parser),
            outline,
            device: None,
            reads_images: false,
        });
        Self {
            names: source.names.into(),
            file: source.options.file.clone(),
            takes_any_name: source.options.any_model,
            facts,
            refusal: source.refusal.or(too_large),
            idle_unload: source.idle_unload,
            queue_requests_max: source.queue_requests_max,
            metrics: Arc::default(),
            throughput: Arc::default(),
            loads: AtomicU64::new(0),
            // The name was found before the request comes here.
            options: ServerOptions {
                any_model: true,
                ..source.options
            },
            load: source.load,
        }
    }

    fn loaded(&self, shared: Arc<Shared>, model: LoadedModel) -> Loaded {
        let options = ServerOptions {
            images: model.images,
            defaults: model.defaults,
            draw_defaults: model.draw_defaults,
            ..self.options.clone()
        };
        let state = ModelState::new(
            shared,
            (model.engine, model.text),
            self.names.clone(),
            options,
        );
        let (metrics, throughput) = (self.metrics.clone(), self.throughput.clone());
        Loaded {
            state: ModelState {
                metrics,
                throughput,
                ..state
            },
            end: Mutex::new(Some(model.end)),
        }
    }
}

impl Use {
    /// The model.
    pub(crate) fn state(&self) -> &ModelState {
        &self.loaded.state
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        self.fleet.lock().leave(self.index, self.fleet.now());
        self.fleet.changed.notify_one();
    }
}

impl Wait {
    /// Waits until the model is loaded.
    pub(crate) async fn done(mut self) -> Result<Use, ApiError> {
        // Every waiter is answered before it is dropped.
        (&mut self.receiver)
            .await
            .unwrap_or_else(|_| Err(ApiError::internal()))
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.receiver.close();
        self.fleet.lock().retain(|waiter| !waiter.is_canceled());
        self.fleet.changed.notify_one();
    }
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ModelSource")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
