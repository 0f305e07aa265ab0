//! `folio rerank`: documents by how well they answer a query, the best first.

use crate::cli::local::TextsArgs;
use crate::cli::terminal::output::open_output;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value, json};
use std::io::{self, BufRead as _, Write as _};

#[derive(Args, Debug)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    texts: TextsArgs,
    /// The query, then documents; without documents, each line of stdin is one
    #[arg(value_name = "TEXT")]
    rest: Vec<String>,
    /// Print only this many of the best documents
    #[arg(help_heading = "Task", long, value_name = "N")]
    top_n: Option<u32>,
    /// What makes a document relevant, for models that read an instruction
    #[arg(help_heading = "Task", long, value_name = "TEXT")]
    instruction: Option<String>,
    /// Print the whole response as one JSON object
    #[arg(help_heading = "Task", long)]
    json: bool,
}

pub(crate) fn run(args: &RerankArgs) -> Result<()> {
    let (model, words) = args.texts.model_and_words(&args.rest)?;
    let Some((query, documents)) = words.split_first() else {
        anyhow::bail!("there is no query: pass it after the model");
    };
    let documents = match args.texts.lines(documents)? {
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
    if args.texts.truncate {
        body["truncate_prompt_tokens"] = (-1).into();
    }
    let mut output = open_output(None)?;
    let model = args.texts.start(&model)?;
    let api = model.api(&[]);
    let answer = model.wait(async {
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
    model.close(outcome)
}
