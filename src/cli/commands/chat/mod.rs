//! `folio chat`: a conversation in the terminal. Ctrl-C stops the answer, not the program; Ctrl-D ends.
//!
//! [`commands`] are the lines that begin with `/`, [`conversation`] is what is said. An answer is printed while it
//! arrives; its thoughts are shown and not sent back. The model runs in this process, or with `--server` in a running
//! server.

mod commands;
mod conversation;

use crate::cli::lora::{AdapterArgs, Adapters};
use crate::cli::options::{EngineArgs, ModelArgs};
use crate::cli::pictures;
use crate::cli::remote::{Remote, ServerArgs};
use crate::cli::request::{RequestArgs, server_options, set_fields};
use crate::cli::session::Session;
use crate::cli::terminal::cost::Meter;
use crate::cli::terminal::input::{Input, Typed};
use crate::cli::terminal::output::{note, result};
use crate::cli::terminal::printer::Printer;
use crate::cli::terminal::prose;
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use commands::Command;
use conversation::{Conversation, attached};
use folio::platform;
use folio::server::{LocalApi, field_help, field_names, nearest};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde_json::{Map, Value, json};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;
use tokio::signal;

/// Maximum bytes of a file that is read into a message.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Args, Debug)]
pub(crate) struct ChatArgs {
    /// The model, as --model names it
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    server: ServerArgs,
    /// System message at the start of the conversation
    #[arg(help_heading = "Conversation", long, value_name = "TEXT")]
    system: Option<String>,
    /// Tell the tokens and the speed of each answer
    #[arg(help_heading = "Conversation", long)]
    verbose: bool,
    #[command(flatten)]
    request: RequestArgs,
}

pub(crate) fn run(args: &ChatArgs) -> Result<()> {
    let model = args.model.or_first(args.first.as_deref())?;
    let adapters = args.adapters.adapters();
    let server = args.server.named();
    let mut chat = Chat::open(model, (&args.engine, adapters), &args.request, server)?;
    chat.conversation = Conversation::new(args.system.as_deref());
    chat.is_verbose = args.verbose;
    chat.converse()
}

/// A conversation with a system message, if there is one, and whether it tells each answer's speed.
pub(crate) fn start(
    model: &ModelArgs,
    (engine, adapters): (&EngineArgs, Adapters),
    request: &RequestArgs,
    (system, is_verbose): (Option<&str>, bool),
) -> Result<()> {
    let mut chat = Chat::open(model.clone(), (engine, adapters), request, None)?;
    chat.conversation = Conversation::new(system);
    chat.is_verbose = is_verbose;
    chat.converse()
}

/// A conversation with a model.
struct Chat<'a> {
    runtime: Runtime,
    engine: &'a EngineArgs,
    model: ModelArgs,
    /// Those of the model.
    adapters: Adapters,
    /// `None` only while the model changes, or if none could be loaded.
    partner: Option<Partner>,
    /// Fields of the command line.
    fields: Map<String, Value>,
    conversation: Conversation,
    /// Text of files that the next message begins with.
    files: String,
    /// Images that it begins with, as parts of a message.
    images: Vec<Value>,
    is_verbose: bool,
}

/// Who answers.
enum Partner {
    /// A model of this process.
    Here(Box<Session>),
    /// A model of a running server, by its name.
    There(Remote, String),
}

impl<'a> Chat<'a> {
    fn open(
        model: ModelArgs,
        (engine, adapters): (&'a EngineArgs, Adapters),
        request: &RequestArgs,
        server: Option<Remote>,
    ) -> Result<Self> {
        ensure!(
            server.is_none() || adapters.is_empty(),
            "--lora changes a model of this process, not one of a server"
        );
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let partner = Some(match server {
            None => Partner::Here(Box::new(open(&model, engine, &adapters)?)),
            Some(remote) => {
                let name = model.model.as_ref().map(|_| model.name());
                let name = remote
                    .model(name.as_deref())
                    .map(|found| name.unwrap_or(found.name))?;
                Partner::There(remote, name)
            }
        });
        let fields = request.fields_with_seed(engine.seed());
        let (conversation, files) = (Conversation::default(), String::new());
        Ok(Self {
            runtime,
            engine,
            model,
            adapters,
            partner,
            fields,
            conversation,
            files,
            images: Vec::new(),
            is_verbose: false,
        })
    }

    /// Reads and answers until the end.
    fn converse(mut self) -> Result<()> {
        let outcome = self.talk();
        outcome.and(self.partner.take().map_or(Ok(()), Partner::close))
    }

    fn talk(&mut self) -> Result<()> {
        let mut input = Input::new(commands::candidates)?;
        if io::stdin().is_terminal() {
            note(format_args!(
                "{}. /help lists commands, Ctrl-C stops an answer, Ctrl-D ends.",
                self.in_words()?
            ));
            if let Some(Partner::Here(session)) = &self.partner
                && let Some(advice) = session.advice()
            {
                note(advice);
            }
        }
        loop {
            let text = match input.read()? {
                Typed::Text(text) => text,
                Typed::Interrupt => {
                    note("Ctrl-D or /bye ends.");
                    continue;
                }
                Typed::End => return Ok(()),
            };
            if text.starts_with('/') {
                match commands::parse(text.trim())
                    .map_err(anyhow::Error::msg)
                    .and_then(|command| self.obey(command))
                {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    Err(error) if self.partner.as_ref().is_none_or(Partner::is_finished) => {
                        return Err(error);
                    }
                    Err(error) => note(format_args!("error: {error:#}")),
                }
            } else if !text.trim().is_empty() {
                self.answer(text.trim())?;
            }
        }
    }

    /// Does what a command says; `false` for the end.
    fn obey(&mut self, command: Command) -> Result<bool> {
        match command {
            Command::Help => note(commands::help()),
            Command::Bye => return Ok(false),
            Command::Reset => {
                self.conversation.reset();
                self.files.clear();
                self.images.clear();
            }
            Command::Regen => self.answer_again()?,
            Command::Read(path) => self.read(Path::new(&path))?,
            Command::Image(path) => self.show(Path::new(&path))?,
            Command::Set(setting) => self.set(setting)?,
            Command::System(text) => self.conversation.set_system(text.as_deref()),
            Command::Save(name) => note(format_args!(
                "saved as {}",
                self.conversation.save(&name)?.display()
            )),
            Command::Load(None) => note(conversation::saved()?.join("\n")),
            Command::Load(Some(name)) => {
                self.conversation = Conversation::load(&name)?;
                self.retell()?;
            }
            Command::Model(None) => note(self.in_words()?),
            Command::Model(Some(name)) => self.change_model(&name)?,
            Command::Verbose => {
                self.is_verbose = !self.is_verbose;
                note(if self.is_verbose {
                    "each answer's speed is told"
                } else {
                    "speeds are no longer told"
                });
            }
        }
        Ok(true)
    }

    /// Sets a field of all requests that follow, or tells what is set.
    fn set(&mut self, setting: Option<(String, Option<Value>)>) -> Result<()> {
        let own = &mut self.conversation.fields;
        match setting {
            None => {
                let mut fields = self.fields.clone();
                set_fields(&mut fields, own);
                note(Value::from(fields));
            }
            Some((name, None)) => drop(own.remove(&name)),
            Some((name, Some(_))) if field_help(&name).is_empty() => {
                let near =
                    nearest(&name, field_names()).map(|near| format!(": did you mean {near}?"));
                bail!("there is no field {name}{}", near.unwrap_or_default());
            }
            Some((name, Some(value))) => drop(own.insert(name, value)),
        }
        Ok(())
    }

    /// Goes on with another model. The present one is closed first, because the memory may not hold both.
    fn change_model(&mut self, name: &str) -> Result<()> {
        if let Some(Partner::There(remote, present)) = &mut self.partner {
            remote.model(Some(name))?;
            *present = name.to_owned();
            note(self.in_words()?);
            return Ok(());
        }
        let model = self.model.beside(Path::new(name));
        self.partner.take().map_or(Ok(()), Partner::close)?;
        let adapters = Adapters::default();
        match open(&model, self.engine, &adapters) {
            Ok(session) => {
                self.adapters = adapters;
                (self.model, self.partner) = (model, Some(Partner::Here(Box::new(session))));
                note(self.in_words()?);
                Ok(())
            }
            Err(error) => {
                note(format_args!(
                    "error: {error:#}; going on with {}",
                    self.model.name()
                ));
                let session = open(&self.model, self.engine, &self.adapters)?;
                self.partner = Some(Partner::Here(Box::new(session)));
                Ok(())
            }
        }
    }

    /// The model and its device, or its server.
    fn in_words(&self) -> Result<String> {
        match self.partner.as_ref().context("no model is loaded")? {
            Partner::Here(session) => {
                let info = session.info()?;
                Ok(format!(
                    "{} on {}, context {}",
                    self.model.name(),
                    info.device,
                    info.max_model_len
                ))
            }
            Partner::There(remote, name) => Ok(format!("{name} on {remote}")),
        }
    }

    /// Prints the last question and answer of a loaded conversation.
    fn retell(&self) -> Result<()> {
        let messages = &self.conversation.messages;
        note(format_args!("{} messages", messages.len()));
        let last = messages
            .iter()
            .rev()
            .filter_map(|message| text_of(&message["content"]))
            .take(2);
        for text in last.collect::<Vec<_>>().into_iter().rev() {
            result(text)?;
        }
        Ok(())
    }

    /// Reads a text file, with which the next message begins.
    fn read(&mut self, path: &Path) -> Result<()> {
        let at = || path.display().to_string();
        let bytes = platform::read_file(path, FILE_BYTES_MAX).with_context(at)?;
        let text = String::from_utf8(bytes)
            .ok()
            .with_context(|| format!("{} is not a text in UTF-8", at()))?;
        note(format_args!(
            "{} characters; the next message begins with them",
            text.chars().count()
        ));
        self.files += &attached(&at(), &text);
        Ok(())
    }

    /// Reads an image, with which the next message begins.
    fn show(&mut self, path: &Path) -> Result<()> {
        if let Some(Partner::Here(session)) = &self.partner {
            ensure!(session.images.is_some(), "{}", pictures::TEXT_ONLY);
        }
        self.images.push(pictures::part(path)?);
        note("the next message begins with the image");
        Ok(())
    }

    /// Answers a message and adds both to the conversation. A request that fails, for example because the context is
    /// full, is taken back.
    fn answer(&mut self, text: &str) -> Result<()> {
        let content = pictures::content(&self.images, &format!("{}{text}", self.files));
        self.conversation
            .messages
            .push(json!({"role": "user", "content": content}));
        match self.reply()? {
            true => {
                self.files.clear();
                self.images.clear();
            }
            false => drop(self.conversation.messages.pop()),
        }
        Ok(())
    }

    /// Answers the last message again; the former answer goes, unless this fails.
    fn answer_again(&mut self) -> Result<()> {
        let messages = &mut self.conversation.messages;
        let last = messages
            .iter()
            .rposition(|message| message["role"] == "user");
        let former = messages.split_off(last.context("there is no message to answer")? + 1);
        if !self.reply()? {
            self.conversation.messages.extend(former);
        }
        Ok(())
    }

    /// Adds an answer to the conversation, which ends with a message of the user. Returns whether the request was
    /// accepted; if not, it has said why.
    fn reply(&mut self) -> Result<bool> {
        let partner = self.partner.as_ref().context("no model is loaded")?;
        let messages = &mut self.conversation.messages;
        let mut body = self.fields.clone();
        set_fields(&mut body, &self.conversation.fields);
        body.insert("messages".to_owned(), messages.clone().into());
        match self
            .runtime
            .block_on(answer(partner, &self.model, body.into()))
        {
            Ok((message, meter)) => {
                messages.push(message);
                if self.is_verbose {
                    meter.in_words().into_iter().for_each(note);
                }
                Ok(true)
            }
            Err(error)
                if partner.is_finished() || crate::cli::terminal::output::is_lost(&error) =>
            {
                Err(error)
            }
            Err(error) => {
                note(format_args!("error: {error:#}"));
                Ok(false)
            }
        }
    }
}

/// The text of a content, which stands behind its images.
fn text_of(content: &Value) -> Option<&str> {
    let last = content.as_array().and_then(|parts| parts.last());
    last.map_or(content, |part| &part["text"]).as_str()
}

/// Loads a model that has a chat template.
fn open(model: &ModelArgs, engine: &EngineArgs, adapters: &Adapters) -> Result<Session> {
    let session = Session::start(model, engine, adapters)?;
    if session.text.tokenizer.is_none() || session.text.template.is_none() {
        session.close()?;
        bail!(
            "this model has no chat template: pass --chat-template, or continue text with `folio run --prompt` or \
             POST /v1/completions"
        );
    }
    session.wait_ready()
}

impl Partner {
    /// The events of the answer to a request.
    async fn events(
        &self,
        model: &ModelArgs,
        body: &mut Value,
    ) -> Result<BoxStream<'static, Result<Value>>> {
        const PATH: &str = "/v1/chat/completions";
        Ok(match self {
            Self::Here(session) => {
                let api =
                    LocalApi::new(session.api_state(vec![model.name()], server_options(true)));
                api.post(PATH, body)
                    .await?
                    .events()
                    .await?
                    .map_err(anyhow::Error::from)
                    .boxed()
            }
            Self::There(remote, name) => {
                body["model"] = name.as_str().into();
                remote.events(PATH, body)?.boxed()
            }
        })
    }

    /// Whether no answer can follow.
    fn is_finished(&self) -> bool {
        match self {
            Self::Here(session) => session.is_finished(),
            Self::There(..) => false,
        }
    }

    fn close(self) -> Result<()> {
        match self {
            Self::Here(session) => session.close(),
            Self::There(..) => Ok(()),
        }
    }
}

/// Streams one answer to stdout. Returns its message, in full or up to Ctrl-C, and what it cost.
async fn answer(partner: &Partner, model: &ModelArgs, mut body: Value) -> Result<(Value, Meter)> {
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let is_terminal = io::stdout().is_terminal();
    let mut output: Box<dyn Write> = if is_terminal {
        Box::new(prose::answer())
    } else {
        Box::new(io::stdout())
    };
    let mut printer = Printer::new(&mut *output);
    let mut meter = Meter::start();
    let printing = async {
        let mut events = partner.events(model, &mut body).await?;
        while let Some(event) = events.next().await {
            let event = event?;
            meter.see(&event);
            printer.print(&event)?;
        }
        anyhow::Ok(())
    };
    tokio::select! {
        outcome = printing => outcome?,
        // Dropping the events cancels the answer in the engine.
        interrupt = signal::ctrl_c() => interrupt.context("cannot watch for Ctrl-C")?,
    }
    Ok((printer.finish()?, meter))
}
