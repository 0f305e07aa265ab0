//! `folio chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program; Ctrl-D ends.

use super::options::{EngineArgs, ModelArgs};
use super::output::note;
use super::printer::Printer;
use super::request::{RequestArgs, server_options};
use super::session::Session;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use folio::server::LocalApi;
use futures_util::StreamExt as _;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::IsTerminal as _;
use tokio::signal;

#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    /// System message at the start of the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let session = Session::start(&args.model, &args.engine)?;
    if session.text.tokenizer.is_none() || session.text.template.is_none() {
        session.close()?;
        bail!(
            "this model has no chat template: pass --chat-template, or continue text with `folio run --prompt` or \
             POST /v1/completions"
        );
    }
    let session = session.wait_ready()?;
    let outcome = converse(&runtime, &session, args);
    outcome.and(session.close())
}

fn converse(runtime: &tokio::runtime::Runtime, session: &Session, args: &ChatArgs) -> Result<()> {
    let mut editor = rustyline::DefaultEditor::new().context("cannot use the terminal")?;
    let name = args.model.name();
    if std::io::stdin().is_terminal() {
        let device = &session.info()?.device;
        note(format_args!(
            "{name} on {device}. /reset starts a new conversation, Ctrl-C stops an answer, Ctrl-D ends."
        ));
    }
    let api = LocalApi::new(session.api_state(vec![name], server_options(true)));
    let system = args.system.iter().map(|text| json!({"role": "system", "content": text}));
    let opening: Vec<Value> = system.collect();
    let mut messages = opening.clone();
    loop {
        let text = match editor.readline("> ") {
            Ok(text) => text,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(ReadlineError::Io(error)) => return Err(error).context("cannot use the terminal"),
            Err(error) => return Err(error).context("cannot use the terminal"),
        };
        match text.trim() {
            "" => continue,
            "/reset" => {
                messages.clone_from(&opening);
                continue;
            }
            _ => {}
        }
        // Failing to store a line in the history is not an error.
        let _ = editor.add_history_entry(&text);
        messages.push(json!({"role": "user", "content": text}));
        let mut body = args.request.fields_with_seed(args.engine.seed);
        body.insert("messages".to_owned(), messages.clone().into());
        match runtime.block_on(answer(&api, body.into())) {
            Ok(message) => messages.push(message),
            Err(error) if session.is_finished() || super::output::is_lost(&error) => return Err(error),
            Err(error) => {
                // A full context, for example. The conversation goes on without this turn.
                note(format_args!("error: {error:#}"));
                messages.pop();
            }
        }
    }
}

/// Streams one answer to stdout. Returns its message, in full or up to Ctrl-C.
async fn answer(api: &LocalApi, mut body: Value) -> Result<Value> {
    body["stream"] = true.into();
    let mut stdout = std::io::stdout();
    let mut printer = Printer::new(&mut stdout);
    let printing = async {
        let mut events = api.post("/v1/chat/completions", &body).await?.events().await?;
        while let Some(event) = events.next().await {
            printer.print(&event?)?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        outcome = printing => outcome?,
        // Dropping the events cancels the answer in the engine.
        interrupt = signal::ctrl_c() => interrupt.context("cannot watch for Ctrl-C")?,
    }
    printer.finish()
}
