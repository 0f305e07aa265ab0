//! `folio chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program; Ctrl-D ends.

use super::answer;
use super::lines::Line;
use super::options::{EngineOptions, ModelOptions};
use super::output::{self, note};
use super::run::Sampling;
use super::session::Session;
use anyhow::{Context as _, Result};
use clap::Args;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use tokio::signal;

#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    model: ModelOptions,
    #[command(flatten)]
    engine: EngineOptions,
    /// Put before the conversation as the system's message
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    sampling: Sampling,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = Session::start(&options.model, &options.engine)?.wait_ready()?;
    let outcome = converse(&runtime, &session, options);
    outcome.and(session.close())
}

fn converse(runtime: &tokio::runtime::Runtime, session: &Session, options: &Options) -> Result<()> {
    let mut editor = rustyline::DefaultEditor::new().context("the terminal cannot be read")?;
    if std::io::stdin().is_terminal() {
        let device = &session.info()?.device;
        let name = options.model.name();
        note(format_args!("{name} on {device}. /reset starts anew, Ctrl-C stops an answer, Ctrl-D ends."));
    }
    let system = options.system.iter().map(|text| json!({"role": "system", "content": text}));
    let opening: Vec<Value> = system.collect();
    let mut messages = opening.clone();
    loop {
        let text = match editor.readline("> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(fault) => return Err(fault).context("the terminal cannot be read"),
        };
        match text.trim() {
            "" => continue,
            "/reset" => {
                messages.clone_from(&opening);
                continue;
            }
            _ => {}
        }
        // History is a comfort: a line that cannot be kept is no fault.
        let _ = editor.add_history_entry(&text);
        messages.push(json!({"role": "user", "content": text}));
        match runtime.block_on(answer_turn(session, options, &messages)) {
            Ok(said) => messages.push(json!({"role": "assistant", "content": said})),
            Err(fault) if session.is_finished() => return Err(fault),
            Err(fault) => {
                // This turn is void (a context that is full, for example); the conversation goes on without it.
                note(format_args!("error: {fault:#}"));
                messages.pop();
            }
        }
    }
}

/// Streams one answer to stdout; what was said, in full or up to Ctrl-C.
async fn answer_turn(session: &Session, options: &Options, messages: &[Value]) -> Result<String> {
    let defaults = options.sampling.defaults(session, options.engine.seed);
    let job = Line::from_messages(messages.into()).prepare(session, &defaults)?;
    let events = session.handle.submit(job.request.clone())?.remove(0);
    let said = Mutex::new(String::new());
    let answer = answer::collect(events, job.text_stream(session), |piece| {
        said.lock().expect("no holder of this lock panics").push_str(piece);
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(piece.as_bytes())?;
        Ok(stdout.flush()?)
    });
    tokio::select! {
        outcome = answer => drop(outcome?),
        // Dropping the answer drops its receiver, and that cancels it in the engine.
        interrupt = signal::ctrl_c() => interrupt.context("Ctrl-C cannot be watched")?,
    }
    output::result("")?;
    Ok(said.into_inner().expect("no holder of this lock panics"))
}
