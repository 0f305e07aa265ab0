//! `folio embed`: vectors of texts, one JSON list of numbers a line.

use crate::cli::lora::Adapters;
use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::request::server_options;
use crate::cli::session::Session;
use crate::cli::terminal::output::open_output;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use folio::server::LocalApi;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

/// Texts that are read and embedded at once.
const TEXTS_AT_ONCE: usize = 1024;

#[derive(Args, Debug)]
pub(crate) struct EmbedArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    /// Texts to embed; without any, each line of stdin is one
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    rest: Vec<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// File of texts, one a line; - is stdin
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write vectors to this file instead of stdout
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The name of the prompt of the model's files that is put before texts, such as query
    #[arg(help_heading = "Task", long, value_name = "NAME")]
    prompt_name: Option<String>,
    /// Elements to keep of each vector
    #[arg(help_heading = "Task", long, value_name = "N")]
    dimensions: Option<u32>,
    /// Which hidden states count: cls, last, max, mean or weightedmean [default: as the model's files say]
    #[arg(help_heading = "Task", long, value_name = "NAME")]
    pooling: Option<String>,
    /// Leave vectors as long as they are
    #[arg(help_heading = "Task", long)]
    no_normalize: bool,
    /// Cut texts that are longer than the model reads; they are refused otherwise
    #[arg(help_heading = "Task", long)]
    truncate: bool,
}

impl EmbedArgs {
    /// The fields of a request, besides its texts.
    fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        let mut set = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        if let Some(name) = &self.prompt_name {
            set("prompt_name", name.as_str().into());
        }
        if let Some(count) = self.dimensions {
            set("dimensions", count.into());
        }
        if let Some(name) = &self.pooling {
            set("pooling", name.as_str().into());
        }
        if self.truncate {
            set("truncate_prompt_tokens", (-1).into());
            set("truncation_side", "right".into());
        }
        set("normalize", (!self.no_normalize).into());
        fields
    }
}

pub(crate) fn run(args: &EmbedArgs) -> Result<()> {
    let (model, words) = args.model.or_words(args.first.as_deref(), &args.rest)?;
    // Files are opened first, so that a wrong name is reported before the model loads.
    let mut lines = lines(args.input.as_deref(), &words)?;
    let mut output = open_output(args.output.as_deref())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let session = Session::start(&model, &args.engine, &Adapters::default())?.wait_ready()?;
    let api = LocalApi::new(session.api_state(vec![model.name()], server_options(true)));
    let outcome = loop {
        match next(&mut lines, &words) {
            Ok(texts) if texts.is_empty() => break output.flush().map_err(Into::into),
            Ok(texts) => {
                let answer = runtime.block_on(embed(&api, args.fields(), texts, &mut output));
                if answer.is_err() {
                    break answer;
                }
            }
            Err(error) => break Err(error),
        }
        if lines.is_none() {
            break output.flush().map_err(Into::into);
        }
    };
    // A failed answer is the better error message, so it precedes that of a failed engine.
    outcome.and(session.close())
}

/// The lines of a file or of stdin; `None` if the texts are on the command line.
pub(super) fn lines(input: Option<&Path>, words: &[String]) -> Result<Option<Box<dyn BufRead>>> {
    match input {
        Some(path) if path.as_os_str() != "-" => {
            let file = File::open(path).with_context(|| path.display().to_string())?;
            Ok(Some(Box::new(BufReader::new(file))))
        }
        None if !words.is_empty() => Ok(None),
        _ => {
            let is_given = input.is_some() || !io::stdin().is_terminal();
            ensure!(
                is_given,
                "there is no text: pass it after the model, or through a pipe"
            );
            Ok(Some(Box::new(BufReader::new(io::stdin()))))
        }
    }
}

/// The next texts: those of the command line, or so many lines.
fn next(lines: &mut Option<Box<dyn BufRead>>, words: &[String]) -> Result<Vec<String>> {
    match lines {
        None => Ok(words.to_vec()),
        Some(lines) => {
            let texts: io::Result<_> = lines.lines().take(TEXTS_AT_ONCE).collect();
            texts.context("cannot read the texts")
        }
    }
}

/// Embeds texts and writes their vectors.
async fn embed(
    api: &LocalApi,
    mut fields: Map<String, Value>,
    texts: Vec<String>,
    output: &mut dyn Write,
) -> Result<()> {
    fields.insert("input".to_owned(), texts.into());
    let answer: Value = api
        .post("/v1/embeddings", &json!(fields))
        .await?
        .json()
        .await?;
    let entries = answer["data"].as_array().map_or(&[][..], Vec::as_slice);
    for entry in entries {
        writeln!(output, "{}", entry["embedding"])?;
    }
    Ok(())
}
