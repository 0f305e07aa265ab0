//! `folio rerank`: documents by how well they answer a query, the best first.

use super::embed::lines;
use crate::cli::lora::Adapters;
use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::request::server_options;
use crate::cli::session::Session;
use crate::cli::terminal::output::open_output;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use folio::server::LocalApi;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, Write as _};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct RerankArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    /// The query, then documents; without documents, each line of stdin is one
    #[arg(value_name = "TEXT")]
    rest: Vec<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// File of documents, one a line; - is stdin
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Print only this many of the best documents
    #[arg(help_heading = "Task", long, value_name = "N")]
    top_n: Option<u32>,
    /// What makes a document relevant, for models that read an instruction
    #[arg(help_heading = "Task", long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Cut documents that are longer than the model reads; they are refused otherwise
    #[arg(help_heading = "Task", long)]
    truncate: bool,
    /// Print the whole response as one JSON object
    #[arg(help_heading = "Task", long)]
    json: bool,
}

pub(crate) fn run(args: &RerankArgs) -> Result<()> {
    let (model, words) = args.model.or_words(args.first.as_deref(), &args.rest)?;
    let Some((query, documents)) = words.split_first() else {
        anyhow::bail!("there is no query: pass it after the model");
    };
    let documents = match lines(args.input.as_deref(), documents)? {
        None => documents.to_vec(),
        Some(lines) => {
            let lines: io::Result<Vec<_>> = lines.lines().collect();
            lines.context("cannot read the documents")?
        }
    };
    ensure!(!documents.is_empty(), "there are no documents");
    let mut body = json!({"query": query, "documents": documents});
    if let Some(count) = args.top_n {
        body["top_n"] = count.into();
    }
    if let Some(text) = &args.instruction {
        body["instruction"] = text.as_str().into();
    }
    if args.truncate {
        body["truncate_prompt_tokens"] = (-1).into();
    }
    let mut output = open_output(None)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let session = Session::start(&model, &args.engine, &Adapters::default())?.wait_ready()?;
    let api = LocalApi::new(session.api_state(vec![model.name()], server_options(true)));
    let answer = runtime.block_on(async {
        let answer: Value = api.post("/v1/rerank", &body).await?.json().await?;
        anyhow::Ok(answer)
    });
    let outcome = answer.and_then(|answer| {
        if args.json {
            writeln!(output, "{answer}")?;
        } else {
            for result in answer["results"].as_array().map_or(&[][..], Vec::as_slice) {
                let document = result["document"]["text"].as_str().unwrap_or_default();
                let score = result["relevance_score"].as_f64().unwrap_or_default();
                writeln!(output, "{score:.6}\t{document}")?;
            }
        }
        Ok(output.flush()?)
    });
    // A failed answer is the better error message, so it precedes that of a failed engine.
    outcome.and(session.close())
}
