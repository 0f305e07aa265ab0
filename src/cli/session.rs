//! An engine in its own thread, with the model's tokenizer and chat template. `serve`, `chat`, `run` and `bench` start
//! one.

use super::device::{Device, DeviceJob};
use super::options::{EngineArgs, ModelArgs, TextFiles};
use super::output::{bar_style, note};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use folio::backend::{Backend, BackendError};
use folio::config::Config;
use folio::engine::fit::FitReport;
use folio::engine::handle::{self, EngineHandle, EngineInbox, EngineInfo, Status};
use folio::engine::request::SamplingParams;
use folio::engine::{self, EngineEnd, Progress, StartError};
use folio::model::{GenerationDefaults, Model};
use folio::server::{ServerOptions, ServerState};
use folio::text::TextModel;
use indicatif::{ProgressBar, ProgressDrawTarget};
use std::path::Path;
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
}

/// Starts the engine's thread on the selected backend.
struct Spawn {
    model: Model,
    draft: Option<Model>,
    config: Config,
    inbox: EngineInbox,
    tells_sizes: bool,
}

impl DeviceJob for Spawn {
    type Output = JoinHandle<Result<(), EngineEnd>>;

    fn run<B, F>(self, open: F) -> Self::Output
    where
        B: Backend + 'static,
        F: Fn() -> Result<B, BackendError> + Send + 'static,
    {
        engine::spawn_with_draft(open, self.model, self.draft, self.config, self.inbox, loading_bar(self.tells_sizes))
    }
}

impl Session {
    /// Checks model, tokenizer, device and limits, then starts to load; [`Self::wait_ready`] waits until loading ends.
    pub(crate) fn start(model: &ModelArgs, engine: &EngineArgs) -> Result<Self> {
        let config = engine.config()?;
        let models = Models::open(model, engine)?;
        Self::spawn(engine.device()?, models, config, false)
    }

    /// Like [`Self::start`], for a server: prints a line on stderr with the memory to be allocated, and does not
    /// download a model that does not fit.
    pub(crate) fn start_to_serve(model: &ModelArgs, engine: &EngineArgs) -> Result<Self> {
        let (config, device) = (engine.config()?, engine.device()?);
        if let Some(model) = model.describe_far()? {
            let caps = device.caps()?;
            let report = FitReport::new(&model, &model.record(caps.activations), None, &config, &caps);
            ensure!(report.requested.fits(), StartError::DoesNotFit(Box::new(report)));
        }
        Self::spawn(device, Models::open(model, engine)?, config, true)
    }

    /// Like [`Self::start`], with parts from the caller.
    pub(crate) fn start_on(device: Device, model: Model, text: TextFiles, config: Config) -> Result<Self> {
        Self::spawn(device, Models { model, text, draft: None }, config, false)
    }

    /// Reads the texts while the weights load.
    fn spawn(device: Device, models: Models, config: Config, tells_sizes: bool) -> Result<Self> {
        let Models { model, text, draft } = models;
        let (draft, draft_text) = draft.unzip();
        let (handle, inbox) = handle::channel(config.queue_requests_max);
        let generation = model.generation().clone();
        let model = match &device {
            Device::Fake(script) => match script.context {
                Some(count) => model.with_positions(count),
                None => model,
            },
            _ => model,
        };
        let thread = device.with(Spawn { model, draft, config, inbox, tells_sizes });
        match read_texts(text, draft_text) {
            Ok(text) => Ok(Self { handle, text: Arc::new(text), generation, thread }),
            Err(error) => {
                // A process must not end while one of its threads uses a driver. The first error is the one to report.
                handle.drain();
                let _ = thread.join();
                Err(error)
            }
        }
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
        let options = ServerOptions { defaults: SamplingParams::from_defaults(&self.generation), ..options };
        ServerState::new(self.handle.clone(), self.text.clone(), names, options)
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

/// A model with the files of its texts, and the draft model with its own.
struct Models {
    model: Model,
    text: TextFiles,
    draft: Option<(Model, TextFiles)>,
}

impl Models {
    fn open(model: &ModelArgs, engine: &EngineArgs) -> Result<Self> {
        let (opened, text) = model.open_with_text()?;
        let open_draft = |name: &Path| model.beside(name).open_with_text().context("the draft model");
        let draft = engine.draft_model().map(open_draft).transpose()?;
        Ok(Self { model: opened, text, draft })
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

/// Shows loading progress, in bytes and then in kernels, and the engine's notices, all on stderr. Without a terminal,
/// only the notices; a server (`tells_sizes`) also says how long its kernels took to compile.
fn loading_bar(tells_sizes: bool) -> impl FnMut(Progress) + Send + 'static {
    let bar = |template| {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.with_style(bar_style(template))
    };
    let weights = bar("loading {bar:32} {bytes}/{total_bytes} {binary_bytes_per_sec}");
    let kernels = bar("compiling kernels {bar:32} {pos}/{len}");
    let mut compiling_since = None;
    let move_to = |bar: &ProgressBar, done: u64, total: u64| {
        bar.set_length(total);
        bar.set_position(done);
        if done >= total {
            bar.finish_and_clear();
        }
    };
    move |progress| match progress {
        Progress::Weights { done, total } => move_to(&weights, done, total),
        Progress::Kernels { done, total } => {
            let since = *compiling_since.get_or_insert_with(Instant::now);
            move_to(&kernels, done.into(), total.into());
            if done == total && tells_sizes && kernels.is_hidden() {
                note(format_args!("compiled {total} kernels in {:.1} s", since.elapsed().as_secs_f64()));
            }
        }
        Progress::Fits(fit) if tells_sizes => note(fit),
        Progress::Fits(_) => {}
        Progress::Notice(text) => weights.suspend(|| note(text)),
    }
}
