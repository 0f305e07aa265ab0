//! `folio run`: answers one prompt, streamed to stdout, or a file of requests as one batch ([`batch`]). Without any, a
//! person at a terminal gets a conversation ([`chat`]).
//!
//! Text of a pipe or a file on stdin belongs to the prompt, before the words of the command line, as with Ollama:
//! `folio run MODEL "Summarise this." < notes.txt`.

mod batch;

use super::chat;
use crate::cli::local::{LocalModel, open_input};
use crate::cli::lora::AdapterArgs;
use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::pictures;
use crate::cli::request::{MAX_TOKENS_ROOM, RequestArgs, set_default};
use crate::cli::session::Session;
use crate::cli::terminal::cost::Meter;
use crate::cli::terminal::output::{note, open_output};
use crate::cli::terminal::printer::Printer;
use anyhow::{Context as _, Result, ensure};
use batch::Batch;
use clap::Args;
use folio::server::LocalApi;
use futures_util::StreamExt as _;
use serde_json::{Map, Value, json};
use std::io::{self, BufRead, IsTerminal as _, Write};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long stdin is read before a note says so.
const SILENCE: Duration = Duration::from_secs(2);

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    /// Message to answer; without a chat template, text to continue. The text of a pipe or a file on stdin comes first,
    /// then PROMPT on a new line; - is that text alone. In scripts, </dev/null keeps stdin out
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt", "input"])]
    rest: Vec<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    /// The same as PROMPT
    #[arg(
        help_heading = "Task",
        short,
        long,
        value_name = "TEXT",
        conflicts_with = "input"
    )]
    prompt: Option<String>,
    /// System message before the prompt
    #[arg(help_heading = "Task", long, value_name = "TEXT", conflicts_with_all = ["raw", "input"])]
    system: Option<String>,
    /// Image before the prompt, for a model that reads images; may be given several times
    #[arg(help_heading = "Task", long, value_name = "FILE", conflicts_with_all = ["raw", "input"])]
    image: Vec<PathBuf>,
    /// Continue the prompt as text, without the chat template
    #[arg(help_heading = "Task", long)]
    raw: bool,
    /// Tell the tokens and the speed of the answer
    #[arg(help_heading = "Task", long, conflicts_with_all = ["json", "input", "beams"])]
    verbose: bool,
    /// Search for the likeliest answer with this many beams instead of sampling
    #[arg(help_heading = "Task", long, value_name = "N")]
    beams: Option<u32>,
    /// Print the whole response as one JSON object
    #[arg(help_heading = "Task", long, conflicts_with = "input")]
    json: bool,
    /// File of requests, one JSON object per line; - is stdin. A line is {"prompt"}, {"messages"} or
    /// {"prompt_token_ids"} with fields of the API, or has the OpenAI batch format: custom_id, method, url, body. A
    /// prompt is one message of a user; "raw": true, or a model without a chat template, makes it text to continue
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Write results to this file instead of stdout
    #[arg(help_heading = "Task", long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Name of the model in requests; may be given several times [default: the value of --model]
    #[arg(help_heading = "Task", long, env = "FOLIO_SERVED_MODEL_NAME", value_name = "NAME", value_delimiter = ',',
          num_args = 1..)]
    served_model_name: Vec<String>,
    #[command(flatten)]
    request: RequestArgs,
}

/// What is to be answered.
enum Task {
    Prompt(String),
    Lines(Box<dyn BufRead + Send>),
}

impl RunArgs {
    /// Adds the fields that ask for a beam search, if `--beams` does.
    fn add_beams(&self, fields: &mut Map<String, Value>) {
        if let Some(width) = self.beams {
            fields.insert("use_beam_search".to_owned(), true.into());
            fields.insert("best_of".to_owned(), width.into());
        }
    }

    /// The model and the words of the prompt. After --model, the first argument is the prompt's.
    fn model_and_words(&self) -> Result<(ModelArgs, Option<String>)> {
        let mut words = self.rest.clone();
        let mut first = self.first.as_deref();
        if words.is_empty()
            && self.prompt.is_none()
            && self.input.is_none()
            && self.model.is_typed()
        {
            words.extend(first.take().map(|word| word.to_string_lossy().into_owned()));
        }
        let text = (!words.is_empty()).then(|| words.join(" "));
        Ok((
            self.model.or_first(first)?,
            text.or_else(|| self.prompt.clone()),
        ))
    }

    /// What is to be answered; `None` if nothing is given and a person is at the terminal.
    fn task(&self, text: Option<String>) -> Result<Option<Task>> {
        if let Some(path) = &self.input {
            return Ok(Some(Task::Lines(open_input(path)?)));
        }
        let mut parts = Vec::new();
        if !io::stdin().is_terminal() {
            parts.extend(Some(stdin_text()?).filter(|text| !text.is_empty()));
        } else if text.as_deref().is_none_or(|text| text == "-") {
            return Ok(None);
        }
        parts.extend(text.filter(|text| text != "-"));
        ensure!(
            !parts.is_empty(),
            "there is no prompt: pass it after the model, by --prompt, or through a pipe"
        );
        Ok(Some(Task::Prompt(parts.join("\n"))))
    }
}

/// The text of stdin, without its last line break. A parent that leaves a pipe open is not waited for in silence.
fn stdin_text() -> Result<String> {
    let (ended, ends) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if ends.recv_timeout(SILENCE) == Err(RecvTimeoutError::Timeout) {
            note(
                "reading text before the prompt from stdin, which has not ended; </dev/null keeps stdin out",
            );
        }
    });
    let text = io::read_to_string(io::stdin()).context("cannot read the prompt from stdin")?;
    drop(ended);
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (model, text) = args.model_and_words()?;
    // Files are opened first, so that a wrong name is reported before the model loads.
    let images = args.image.iter().map(|path| pictures::part(path));
    let images = images.collect::<Result<Vec<_>>>().context("--image")?;
    let Some(task) = args.task(text)? else {
        ensure!(
            images.is_empty(),
            "--image needs a prompt; in a conversation, /image FILE shows one"
        );
        return chat::start(
            &model,
            (&args.engine, args.adapters.adapters()),
            &args.request,
            (args.system.as_deref(), args.verbose),
        );
    };
    let mut output = open_output(args.output.as_deref())?;
    let mut engine = args.engine.clone();
    let queue = engine.limits.get("queue_requests_max");
    let lines_in_flight = queue.unwrap_or(batch::LINES_IN_FLIGHT.into()) as usize;
    if matches!(task, Task::Lines(_)) {
        engine.limits = engine
            .limits
            .with("queue_requests_max", batch::QUEUE_REQUESTS_MAX.into());
    }
    let model = LocalModel::start(&model, &engine, &args.adapters.adapters())?;
    let (session, names) = (&model.session, &args.served_model_name);
    let outcome = match task {
        Task::Lines(input) => {
            let mut fields = args.request.fields();
            args.add_beams(&mut fields);
            let names = model.names(names);
            let batch = Batch::new(session, &names, (fields, args.raw), lines_in_flight);
            model.wait(batch.answer(input, &mut output))
        }
        Task::Prompt(prompt) => {
            let api = model.api(names);
            let prompt = (prompt.as_str(), &*images);
            model.wait(answer_prompt(&api, session, args, prompt, &mut output))
        }
    };
    model.close(outcome)
}

async fn answer_prompt(
    api: &LocalApi,
    session: &Session,
    args: &RunArgs,
    prompt: (&str, &[Value]),
    output: &mut dyn Write,
) -> Result<()> {
    let (path, mut body) = prompt_request(session, args, prompt)?;
    if args.json {
        let answer = api.post(path, &body).await?.json().await?;
        writeln!(output, "{answer}")?;
        return Ok(output.flush()?);
    }
    let choices = body["n"].as_u64().unwrap_or(1);
    ensure!(
        choices == 1,
        "`n` is {choices}: pass --json to print all choices"
    );
    let mut printer = Printer::new(output);
    if body["use_beam_search"] == true {
        // The best answer is known only at the end.
        let answer: Value = api.post(path, &body).await?.json().await?;
        let choice = &answer["choices"][0];
        printer.print(
            &json!({"choices": [{"index": 0, "delta": choice["message"], "text": choice["text"]}]}),
        )?;
        return printer.finish().map(|_| ());
    }
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let mut meter = Meter::start();
    let mut events = api.post(path, &body).await?.events().await?;
    while let Some(event) = events.next().await {
        let event = event?;
        meter.see(&event);
        printer.print(&event)?;
    }
    printer.finish()?;
    if args.verbose {
        meter.in_words().into_iter().for_each(note);
    }
    Ok(())
}

/// The route for a prompt, with images before it, and the request's body.
fn prompt_request(
    session: &Session,
    args: &RunArgs,
    (prompt, images): (&str, &[Value]),
) -> Result<(&'static str, Value)> {
    ensure!(
        session.text.tokenizer.is_some(),
        "this model has no tokenizer: pass token ids, as `prompt_token_ids` in a file for --input"
    );
    // A beam search draws nothing.
    let seed = if args.beams.is_none() {
        args.engine.seed()
    } else {
        None
    };
    let mut body = args.request.fields_with_seed(seed);
    args.add_beams(&mut body);
    let has_template = session.text.template.is_some();
    ensure!(
        has_template || args.system.is_none(),
        "--system needs a chat template, which this model does not have (--chat-template sets one)"
    );
    ensure!(
        images.is_empty() || session.images.is_some(),
        "--image: {}",
        pictures::TEXT_ONLY
    );
    ensure!(
        has_template || images.is_empty(),
        "--image needs a chat template, which this model does not have (--chat-template sets one)"
    );
    if has_template && !args.raw {
        let prompt = pictures::content(images, prompt);
        let system = args
            .system
            .iter()
            .map(|text| json!({"role": "system", "content": text}));
        let messages = system.chain([json!({"role": "user", "content": prompt})]);
        body.insert("messages".to_owned(), messages.collect());
        return Ok(("/v1/chat/completions", body.into()));
    }
    if !has_template && !args.raw {
        note(
            "this model has no chat template: continuing the prompt as text (--chat-template sets a template)",
        );
    }
    body.insert("prompt".to_owned(), prompt.into());
    set_default(&mut body, "max_tokens", MAX_TOKENS_ROOM.into());
    Ok(("/v1/completions", body.into()))
}
