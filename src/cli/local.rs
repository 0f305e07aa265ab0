//! A model that one command asks: it runs in this process, and is asked through the server's own API.

use super::lora::Adapters;
use super::options::{EngineArgs, ModelArgs};
use super::request::server_options;
use super::session::Session;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use folio::server::LocalApi;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _};
use std::path::{Path, PathBuf};
use tokio::runtime::{Builder, Runtime};

/// A model and the texts that it reads, of commands that answer without generating.
#[derive(Args, Debug)]
pub(crate) struct TextsArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// File of texts, one a line; - is stdin
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Cut texts that are longer than the model reads; they are refused otherwise
    #[arg(help_heading = "Task", long)]
    pub(crate) truncate: bool,
}

impl TextsArgs {
    /// The model, and the words after it.
    pub(crate) fn model_and_words(&self, rest: &[String]) -> Result<(ModelArgs, Vec<String>)> {
        self.model.or_words(self.first.as_deref(), rest)
    }

    /// The lines of the file or of stdin; `None` if the texts are on the command line.
    pub(crate) fn lines(&self, words: &[String]) -> Result<Option<Box<dyn BufRead + Send>>> {
        match &self.input {
            Some(path) => open_input(path).map(Some),
            None if !words.is_empty() => Ok(None),
            None => {
                ensure!(
                    !io::stdin().is_terminal(),
                    "there is no text: pass it after the model, or through a pipe"
                );
                Ok(Some(Box::new(BufReader::new(io::stdin()))))
            }
        }
    }

    /// Loads the model.
    pub(crate) fn start(&self, model: &ModelArgs) -> Result<LocalModel> {
        LocalModel::start(model, &self.engine, &Adapters::default())
    }
}

/// A file to read; `-` is stdin.
pub(crate) fn open_input(path: &Path) -> Result<Box<dyn BufRead + Send>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    let file = File::open(path).with_context(|| path.display().to_string())?;
    Ok(Box::new(BufReader::new(file)))
}

/// A loaded model, and the runtime in which it is asked.
pub(crate) struct LocalModel {
    pub(crate) session: Session,
    runtime: Runtime,
    name: String,
}

impl LocalModel {
    /// Loads a model.
    pub(crate) fn start(
        model: &ModelArgs,
        engine: &EngineArgs,
        adapters: &Adapters,
    ) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let session = Session::start(model, engine, adapters)?.wait_ready()?;
        Ok(Self {
            session,
            runtime,
            name: model.name(),
        })
    }

    /// What requests call the model: these names, or without any its own.
    pub(crate) fn names(&self, given: &[String]) -> Vec<String> {
        match given {
            [] => vec![self.name.clone()],
            names => names.to_vec(),
        }
    }

    /// The API over the model, under these names or its own.
    pub(crate) fn api(&self, names: &[String]) -> LocalApi {
        LocalApi::new(
            self.session
                .api_state(self.names(names), server_options(true)),
        )
    }

    /// Waits for an answer.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    /// Ends with the outcome of what was asked. A failed answer is the better error message, so it precedes that of a
    /// failed engine.
    pub(crate) fn close(self, outcome: Result<()>) -> Result<()> {
        outcome.and(self.session.close())
    }
}
