//! `folio run`: one prompt streamed to stdout, or a file of prompts answered as one batch.

use super::answer::{self, Answer};
use super::lines::{Defaults, Line};
use super::options::{EngineOptions, ModelOptions};
use super::output::bar_style;
use super::session::Session;
use anyhow::{Context as _, Result};
use clap::Args;
use folio::engine::request::{Token, TokenLogprob};
use folio::platform;
use futures_util::{StreamExt as _, future, stream};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Lines that are read ahead of the first unfinished one; the engine batches among them.
const LINES_IN_FLIGHT: u32 = 1024;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    engine: EngineOptions,
    /// Text to answer; the chat template is applied
    #[arg(long, value_name = "TEXT", required_unless_present = "input", conflicts_with = "input")]
    prompt: Option<String>,
    /// Continue the prompt as it is, without the chat template
    #[arg(long, requires = "prompt")]
    raw: bool,
    /// JSON lines, each {"prompt"}, {"messages"} or {"prompt_token_ids"} with sampling fields; - is stdin
    #[arg(long, value_name = "F.jsonl")]
    input: Option<PathBuf>,
    /// Write results here instead of stdout
    #[arg(long, value_name = "F")]
    output: Option<PathBuf>,
    #[command(flatten)]
    sampling: Sampling,
}

/// Sampling by flags; lines of a file may overrule them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Sampling {
    /// Tokens to generate at most [default: the room left in the context]
    #[arg(long, value_name = "N")]
    max_tokens: Option<u32>,
    /// 0 always takes the most likely token [default: the model's own]
    #[arg(long)]
    temperature: Option<f32>,
    /// Draw from the smallest set of tokens with this probability
    #[arg(long)]
    top_p: Option<f32>,
    /// Draw from this many most likely tokens; 0 for all
    #[arg(long)]
    top_k: Option<u32>,
    /// Draw from tokens at least this likely, relative to the most likely one
    #[arg(long)]
    min_p: Option<f32>,
    /// Stop before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after the model's end tokens
    #[arg(long)]
    ignore_eos: bool,
}

impl Sampling {
    /// These flags over the model's defaults.
    pub(crate) fn defaults(&self, session: &Session, seed: Option<u64>) -> Defaults {
        let mut params = session.defaults();
        params.max_tokens = self.max_tokens.or(params.max_tokens);
        params.temperature = self.temperature.unwrap_or(params.temperature);
        params.top_p = self.top_p.unwrap_or(params.top_p);
        params.top_k = self.top_k.unwrap_or(params.top_k);
        params.min_p = self.min_p.unwrap_or(params.min_p);
        params.ignore_eos = self.ignore_eos;
        params.seed = seed;
        Defaults { params, stop: self.stop.clone() }
    }
}

pub(crate) fn run(options: &Options) -> Result<()> {
    // Files first: a name that is wrong should not cost a load.
    let input = options.input.as_deref().map(open_input).transpose()?;
    let mut output = open_output(options.output.as_deref())?;
    let mut engine = options.engine.clone();
    let in_flight = *engine.queue_requests_max.get_or_insert(LINES_IN_FLIGHT) as usize;
    let session = Session::start(&options.model, &engine)?.wait_ready()?;
    let outcome = match (input, &options.prompt) {
        (Some(input), _) => {
            let defaults = options.sampling.defaults(&session, None);
            platform::block_on(answer_lines(&session, &defaults, input, &mut output, in_flight))
        }
        (None, prompt) => {
            let defaults = options.sampling.defaults(&session, options.engine.seed);
            let line = Line::from_prompt(prompt.as_deref().unwrap_or_default(), options.raw);
            platform::block_on(answer_prompt(&session, &defaults, line, &mut output))
        }
    };
    // An answer that failed is the better message; an engine that ended otherwise comes second.
    outcome.and(session.close())
}

fn open_input(path: &Path) -> Result<Box<dyn BufRead>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    Ok(Box::new(BufReader::new(File::open(path).with_context(|| path.display().to_string())?)))
}

fn open_output(path: Option<&Path>) -> Result<Box<dyn Write>> {
    let Some(path) = path else { return Ok(Box::new(BufWriter::new(io::stdout()))) };
    Ok(Box::new(BufWriter::new(File::create(path).with_context(|| path.display().to_string())?)))
}

async fn answer_prompt(session: &Session, defaults: &Defaults, line: Line, output: &mut dyn Write) -> Result<()> {
    let job = line.prepare(session, defaults)?;
    let events = session.handle.submit(job.request.clone())?.remove(0);
    let answer = answer::collect(events, job.text_stream(session), |piece| {
        output.write_all(piece.as_bytes())?;
        Ok(output.flush()?)
    });
    let answer = answer.await?;
    if answer.text.is_none() {
        let ids: Vec<String> = answer.tokens.iter().map(|token| token.id.to_string()).collect();
        write!(output, "{}", ids.join(" "))?;
    }
    writeln!(output)?;
    Ok(output.flush()?)
}

/// Answers every line, in order, `in_flight` at once: as many as may wait in the engine's queue, so that it never
/// refuses one for being full.
async fn answer_lines(
    session: &Session,
    defaults: &Defaults,
    input: Box<dyn BufRead>,
    output: &mut dyn Write,
    in_flight: usize,
) -> Result<()> {
    let bar = ProgressBar::new_spinner().with_style(bar_style("{spinner} {pos} answers, {per_sec}, {elapsed}"));
    let lines = input.lines().filter(|line| line.as_ref().map_or(true, |text| !text.trim().is_empty()));
    let mut answers = stream::iter(lines.enumerate())
        .map(|(index, line)| async move {
            let answered = match line.context("the input cannot be read") {
                Ok(line) => answer_line(session, defaults, &line).await,
                Err(fault) => Err(fault),
            };
            match answered {
                Ok(Value::Object(fields)) => with_index(index, fields),
                Ok(other) => json!({"index": index, "outputs": other}),
                Err(fault) => json!({"index": index, "error": format!("{fault:#}")}),
            }
        })
        .buffered(in_flight);
    while let Some(answer) = answers.next().await {
        serde_json::to_writer(&mut *output, &answer).map_err(io::Error::from)?;
        output.write_all(b"\n")?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(output.flush()?)
}

fn with_index(index: usize, fields: serde_json::Map<String, Value>) -> Value {
    let mut object = serde_json::Map::from_iter([("index".to_owned(), json!(index))]);
    object.extend(fields);
    Value::Object(object)
}

async fn answer_line(session: &Session, defaults: &Defaults, line: &str) -> Result<Value> {
    let job = Line::parse(line)?.prepare(session, defaults)?;
    let choices = session.handle.submit(job.request.clone())?;
    let collected = choices.into_iter().map(|events| answer::collect(events, job.text_stream(session), |_| Ok(())));
    let answers = future::try_join_all(collected).await?;
    let first = answers.first().map(|answer| answer.usage).unwrap_or_default();
    let completion_tokens: u32 = answers.iter().map(|answer| answer.usage.completion_tokens).sum();
    let usage = json!({
        "prompt_tokens": job.request.prompt.len(),
        "cached_tokens": first.cached_tokens,
        "completion_tokens": completion_tokens,
    });
    let with_logprobs = job.request.params.logprobs.is_some();
    let outputs: Vec<Value> = answers.iter().map(|answer| output_json(answer, with_logprobs)).collect();
    Ok(json!({"outputs": outputs, "usage": usage}))
}

fn output_json(answer: &Answer, with_logprobs: bool) -> Value {
    let ids: Vec<u32> = answer.tokens.iter().map(|token| token.id).collect();
    let mut output = json!({"text": answer.text, "token_ids": ids, "finish_reason": answer.finish_reason});
    if with_logprobs {
        output["logprobs"] = answer.tokens.iter().map(logprob_json).collect();
    }
    output
}

fn logprob_json(token: &Token) -> Value {
    let entry = |entry: &TokenLogprob| json!({"token_id": entry.token_id, "logprob": entry.logprob});
    let top: Vec<Value> = token.top_logprobs.iter().map(entry).collect();
    json!({"token_id": token.id, "logprob": token.logprob, "top": top})
}
