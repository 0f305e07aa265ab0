//! An engine in its own thread, with the model's tokenizer and chat template. `serve`, `chat`, `run` and `bench` start
//! one.

use super::device::{Device, DeviceJob};
use super::lora::Adapters;
use super::options::{EngineArgs, ModelArgs, TextFiles};
use crate::cli::terminal::output::note;
use crate::cli::terminal::progress::{Phase, Unit};
use anyhow::{Context as _, Result, anyhow, bail};
use folio::backend::{Backend, BackendError};
use folio::config::Config;
use folio::engine::handle::{self, EngineHandle, EngineInbox, EngineInfo, Status};
use folio::engine::request::SamplingParams;
use folio::engine::{self, DeviceQueue, EngineEnd, Others, Progress};
use folio::model::{DrawDefaults, GenerationDefaults, Model};
use folio::server::{ImageReader, ServedAdapter, ServerOptions, ServerState};
use folio::text::TextModel;
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval at which a waiting command checks whether the engine is ready.
const POLL: Duration = Duration::from_millis(5);

/// A model that loads and then runs in its own thread.
pub(crate) struct Session {
    pub(crate) handle: EngineHandle,
    pub(crate) text: Arc<TextModel>,
    /// Sampling defaults of the model: those of its generation_config, else vLLM's.
    generation: GenerationDefaults,
    thread: JoinHandle<Result<(), EngineEnd>>,
    /// Reads images for it, if it reads any.
    pub(crate) images: Option<ImageReader>,
    /// Adapters of the model.
    adapters: Vec<ServedAdapter>,
    is_demo: bool,
}

/// Starts the engine's thread on the selected backend.
struct Spawn {
    model: Model,
    others: Others<Model>,
    config: Config,
    inbox: EngineInbox,
    tells: Tells,
}

/// What is said on stderr of a start that goes well, besides its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tells {
    Nothing,
    /// What the folder for files of KV blocks has.
    Disk,
    /// That, what is allocated, and without a terminal how long kernels took to compile.
    Everything,
}

impl DeviceJob for Spawn {
    type Output = JoinHandle<Result<(), EngineEnd>>;

    fn run<B, F>(self, open: F) -> Self::Output
    where
        B: Backend + 'static,
        F: Fn() -> Result<B, BackendError> + Send + 'static,
    {
        let mut loading = Loading::new(self.tells, &self.model);
        engine::spawn_with(
            open,
            self.model,
            self.others,
            self.config,
            self.inbox,
            move |progress| loading.tell(progress),
        )
    }
}

impl Session {
    /// Checks model, tokenizer, device and limits, then starts to load; [`Self::wait_ready`] waits until loading ends.
    pub(crate) fn start(
        model: &ModelArgs,
        engine: &EngineArgs,
        adapters: &Adapters,
    ) -> Result<Self> {
        let mut config = engine.config()?;
        let opened = Opened::named(model, engine)?.with((adapters, &[]), engine, &mut config)?;
        opened.start(engine.device()?, config, Tells::Disk)
    }

    /// Blocks until the engine accepts requests. Returns the error if loading failed.
    pub(crate) fn wait_ready(self) -> Result<Self> {
        loop {
            match self.handle.status() {
                Status::Ready => return Ok(self),
                Status::Loading if !self.thread.is_finished() => std::thread::sleep(POLL),
                _ => {
                    self.close()?;
                    bail!("the engine stopped before it was ready");
                }
            }
        }
    }

    /// What somebody should know of the model before they ask it something.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        if self.is_demo {
            return Some(
                "the built-in demo model is a toy; a real one: folio serve qwen3:0.6b, and more in `folio plan`",
            );
        }
        let lacks_template = self.text.tokenizer.is_some() && self.text.template.is_none();
        lacks_template.then_some(
            "this model has no chat template, so it continues text: `folio run --raw`, POST /v1/completions",
        )
    }

    /// Whether the engine's thread has ended, by itself or after a drain.
    pub(crate) fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Properties that the engine determined while loading.
    pub(crate) fn info(&self) -> Result<&EngineInfo> {
        self.handle.info().context("the engine is not ready")
    }

    /// State of the API over this engine, for a socket or for calls in process. Requests name the model by one of
    /// `names`. Sampling defaults are the model's own.
    pub(crate) fn api_state(&self, names: Vec<String>, options: ServerOptions) -> ServerState {
        let options = ServerOptions {
            defaults: self.defaults(),
            draw_defaults: self.draw_defaults(),
            ..options
        };
        self.api_state_with(names, options)
    }

    /// The same with the sampling defaults of the options.
    pub(crate) fn api_state_with(&self, names: Vec<String>, options: ServerOptions) -> ServerState {
        let options = ServerOptions {
            adapters: self.adapters.clone(),
            images: self.images.clone(),
            ..options
        };
        ServerState::new(self.handle.clone(), self.text.clone(), names, options)
    }

    /// How to draw tokens, as far as the model's files say it.
    pub(crate) fn draw_defaults(&self) -> DrawDefaults {
        self.generation.draw
    }

    /// The model's sampling defaults.
    pub(crate) fn defaults(&self) -> SamplingParams {
        SamplingParams::from_defaults(&self.generation)
    }

    /// Finishes the running requests and ends the thread. Returns an error if the thread had ended by itself.
    pub(crate) fn close(self) -> Result<()> {
        self.handle.drain();
        match self.thread.join() {
            Ok(end) => Ok(end?),
            Err(_) => Err(anyhow!("the engine's thread panicked")),
        }
    }
}

/// A model that is open, with what belongs to it; none of it has begun to load.
pub(crate) struct Opened {
    model: Model,
    text: TextFiles,
    draft: Option<(Model, TextFiles)>,
    tower: Option<(Model, ImageReader)>,
    adapters: Vec<ServedAdapter>,
    device_queue: Option<DeviceQueue>,
}

impl Opened {
    /// The model, with the files of its texts.
    pub(crate) fn new(model: Model, text: TextFiles) -> Self {
        Self {
            model,
            text,
            draft: None,
            tower: None,
            adapters: Vec::new(),
            device_queue: None,
        }
    }

    /// The model that the options name, the draft model, and its tower.
    pub(crate) fn named(model: &ModelArgs, engine: &EngineArgs) -> Result<Self> {
        let (opened, text) = model.open_with_text()?;
        let draft = engine
            .draft_model()
            .map(|name| {
                model
                    .beside(name)
                    .open_with_text()
                    .context("the draft model")
            })
            .transpose()?;
        let tower = match engine.config()?.max_image_rows {
            0 => None,
            _ => model.open_tower(&text)?,
        };
        Ok(Self {
            draft,
            tower,
            ..Self::new(opened, text)
        })
    }

    /// Reads the adapters of the model, which has these names, and makes room for them.
    pub(crate) fn with(
        mut self,
        (adapters, names): (&Adapters, &[String]),
        engine: &EngineArgs,
        config: &mut Config,
    ) -> Result<Self> {
        let rank = engine.limits.get("max_lora_rank");
        self.adapters = adapters.open(names, &mut self.model, (config, rank))?;
        Ok(self)
    }

    /// Several models share the device, one of which loads at a time.
    pub(crate) fn in_queue(self, device_queue: DeviceQueue) -> Self {
        Self {
            device_queue: Some(device_queue),
            ..self
        }
    }

    /// Whether it has a head for classes.
    pub(crate) fn has_classes(&self) -> bool {
        self.model.classes().is_some()
    }

    /// Begins to load. The texts are read meanwhile.
    pub(crate) fn start(self, device: Device, config: Config, tells: Tells) -> Result<Session> {
        let is_demo = self.text.is_demo();
        let (draft, draft_text) = self.draft.unzip();
        let (tower, images) = self.tower.unzip();
        let (handle, inbox) = handle::channel(config.queue_requests_max);
        let inbox = match self.device_queue {
            Some(device_queue) => inbox.with_device_queue(device_queue),
            None => inbox,
        };
        let generation = self.model.generation().clone();
        let model = match &device {
            Device::Fake(script) => match script.context {
                Some(count) => self.model.with_positions(count),
                None => self.model,
            },
            _ => self.model,
        };
        let thread = device.with(Spawn {
            model,
            others: Others { draft, tower },
            config,
            inbox,
            tells,
        });
        match read_texts(self.text, draft_text) {
            Ok(text) => Ok(Session {
                handle,
                text: Arc::new(text),
                generation,
                thread,
                images,
                adapters: self.adapters,
                is_demo,
            }),
            Err(error) => {
                // A process must not end while one of its threads uses a driver. The first error is the one to report.
                handle.drain();
                let _ = thread.join();
                Err(error)
            }
        }
    }
}

/// Reads the texts of a model. A draft model must have the same tokenizer.
fn read_texts(text: TextFiles, draft: Option<TextFiles>) -> Result<TextModel> {
    let text = text.read()?;
    let Some(draft) = draft else { return Ok(text) };
    let draft = draft.read().context("the draft model")?;
    match (&text.tokenizer, &draft.tokenizer) {
        (Some(own), Some(other)) => {
            if let Some(id) = own.difference(other) {
                bail!("the draft model has another tokenizer: token {id} differs");
            }
        }
        (None, None) => {}
        (Some(_), None) => bail!("the draft model has no tokenizer, but the model has one"),
        (None, Some(_)) => bail!("the draft model has a tokenizer, but the model has none"),
    }
    Ok(text)
}

/// Shows on stderr how loading goes, and the engine's notices.
struct Loading {
    phase: Option<(Stage, Phase)>,
    tells: Tells,
    /// Whether weights are quantized while they load, which takes most of that time.
    quantizes: bool,
    compiling_since: Option<Instant>,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Device,
    Pool,
    Weights,
    Kernels,
    /// After weights and kernels: how fast batches and copies are, and which variants of kernels are the fastest.
    Measurements,
}

impl Stage {
    /// Its name, and what is counted.
    fn in_words(self, quantizes: bool) -> (&'static str, Unit) {
        match self {
            Self::Device => ("opening the device", Unit::Pieces),
            Self::Pool => ("allocating the KV pool", Unit::Pieces),
            Self::Weights if quantizes => ("quantizing weights", Unit::Bytes),
            Self::Weights => ("loading weights", Unit::Bytes),
            Self::Kernels => ("compiling kernels", Unit::Pieces),
            Self::Measurements => ("measuring the device", Unit::Pieces),
        }
    }
}

impl Loading {
    fn new(tells: Tells, model: &Model) -> Self {
        let quantizes = model.quantizes();
        let mut loading = Self {
            phase: None,
            tells,
            quantizes,
            compiling_since: None,
        };
        loading.phase(Stage::Device);
        loading
    }

    /// The phase of a stage; another one ends.
    fn phase(&mut self, stage: Stage) -> &Phase {
        self.phase.take_if(|(present, _)| *present != stage);
        let (_, phase) = self.phase.get_or_insert_with(|| {
            let (name, unit) = stage.in_words(self.quantizes);
            (stage, Phase::start(name, unit))
        });
        phase
    }

    fn tell(&mut self, progress: Progress) {
        match progress {
            Progress::Weights { done, total } => {
                self.phase(Stage::Weights).update(done, total);
                if done >= total {
                    self.phase(Stage::Measurements);
                }
            }
            Progress::Kernels { done, total } => {
                let since = *self.compiling_since.get_or_insert_with(Instant::now);
                self.phase(Stage::Kernels).update(done.into(), total.into());
                if done == total {
                    self.phase(Stage::Measurements);
                    if self.tells == Tells::Everything && !std::io::stderr().is_terminal() {
                        note(format_args!(
                            "compiled {total} kernels in {:.1} s",
                            since.elapsed().as_secs_f64()
                        ));
                    }
                }
            }
            Progress::Fits(fit) => {
                if self.tells == Tells::Everything {
                    self.note(fit);
                }
                self.phase(Stage::Pool);
            }
            Progress::Disk {
                folder,
                blocks,
                fingerprint,
            } if self.tells >= Tells::Disk => {
                let (folder, ms) = (folder.display(), 1e3 * fingerprint.as_secs_f64());
                self.note(format_args!(
                    "{folder} has {blocks} KV blocks of this model, whose fingerprint took {ms:.1} ms"
                ));
            }
            Progress::Disk { .. } => {}
            Progress::Notice(text) => self.note(text),
        }
    }

    fn note(&self, text: impl std::fmt::Display) {
        match &self.phase {
            Some((_, phase)) => phase.note(text),
            None => note(text),
        }
    }
}

#[cfg(test)]
mod tests;
