//! `folio embed`: vectors of texts, one JSON list of numbers a line.

use crate::cli::local::TextsArgs;
use crate::cli::terminal::output::open_output;
use anyhow::{Context as _, Result};
use clap::Args;
use folio::server::LocalApi;
use serde_json::{Map, Value, json};
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

/// Texts that are read and embedded at once.
const TEXTS_AT_ONCE: usize = 1024;

#[derive(Args, Debug)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    texts: TextsArgs,
    /// Texts to embed; without any, each line of stdin is one
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    rest: Vec<String>,
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
        if self.texts.truncate {
            set("truncate_prompt_tokens", (-1).into());
            set("truncation_side", "right".into());
        }
        set("normalize", (!self.no_normalize).into());
        fields
    }
}

pub(crate) fn run(args: &EmbedArgs) -> Result<()> {
    let (model, words) = args.texts.model_and_words(&args.rest)?;
    // Files are opened first, so that a wrong name is reported before the model loads.
    let mut lines = args.texts.lines(&words)?;
    let mut output = open_output(args.output.as_deref())?;
    let model = args.texts.start(&model)?;
    let api = model.api(&[]);
    let outcome = loop {
        match next(&mut lines, &words) {
            Ok(texts) if texts.is_empty() => break output.flush().map_err(Into::into),
            Ok(texts) => {
                let answer = model.wait(embed(&api, args.fields(), texts, &mut output));
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
    model.close(outcome)
}

/// The next texts: those of the command line, or so many lines.
fn next(lines: &mut Option<Box<dyn BufRead + Send>>, words: &[String]) -> Result<Vec<String>> {
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
