//! The command line: [`commands`], one file or folder each, and what they share.
//!
//! [`options`] turns arguments and `FOLIO_…` variables into a `Config`; [`device`] picks the one concrete backend;
//! [`hub`] turns a model's name into a path; [`session`] runs an engine in its own thread, together with the model's
//! tokenizer and chat template; [`terminal`] writes results and notes. Results go to stdout, everything else to stderr;
//! an error is one line `error: …` and an exit code other than 0.
//!
//! `docs/compared.md` compares it, and the chat page, with what people use daily: whoever adds to either updates it.

mod commands;
mod device;
mod drivers;
mod folders;
mod hub;
mod limits;
mod local;
mod lora;
mod options;
mod pictures;
mod remote;
mod request;
mod rivals;
mod session;
mod shares;
mod speculation;
mod terminal;
mod tiers;
mod units;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use commands::{
    bench, cache, chat, devices, embed, generate, list, plan, ps, pull, quantize, rerank, rm, run,
    selftest, serve, show,
};
use folio::platform;
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use terminal::output;

/// The exit code for wrong arguments, as in most Unix tools.
const USAGE: u8 = 2;

/// Runs language models on any GPU.
#[derive(Parser, Debug)]
#[command(name = "folio", version, max_term_width = 110, after_help = LOG_HELP, after_long_help = more_help())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve the OpenAI-compatible HTTP API and a chat page
    Serve(Box<serve::ServeArgs>),
    /// Chat in the terminal
    Chat(chat::ChatArgs),
    /// Answer one prompt, or a file of requests as one batch
    Run(run::RunArgs),
    /// Vectors of texts, one JSON list a line
    Embed(Box<embed::EmbedArgs>),
    /// Documents by how well they answer a query, the best first
    Rerank(Box<rerank::RerankArgs>),
    /// Check whether a model fits a device, with how much context, and what to change if not; loads nothing
    Plan(plan::PlanArgs),
    /// Measure speed, and compare it with the device's own peaks
    Bench(bench::BenchArgs),
    /// Take the KV blocks of a prompt to another process, or to a web page
    Cache(cache::CacheArgs),
    /// Write a GGUF file with smaller weights
    Quantize(quantize::QuantizeArgs),
    /// Download a model into the Hugging Face cache, and print its path
    Pull(pull::PullArgs),
    /// List the models in the Hugging Face cache
    List(list::ListArgs),
    /// Tell what a model is: family, size, format, context, template and licence
    Show(show::ShowArgs),
    /// Remove a model from the Hugging Face cache
    Rm(rm::RmArgs),
    /// List the models of a running server, and which of them are loaded
    Ps(ps::PsArgs),
    /// Have a model of a running server loaded
    Load(ps::NameArgs),
    /// Have a model of a running server unloaded, when its answers are complete
    Stop(ps::NameArgs),
    /// List devices and their limits, and which one is the default
    Devices(devices::DevicesArgs),
    /// Check every kernel of a device against the CPU reference
    Selftest(selftest::SelftestArgs),
    /// Write completions for a shell to stdout, or man pages to a folder
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

/// Options that `-h` shows; `--help` shows all.
const COMMON: [&str; 39] = [
    "first",
    "rest",
    "config",
    "server",
    "idle_unload",
    "model",
    "offline",
    "quantization",
    "chat_template",
    "choice",
    "max_model_len",
    "max_num_seqs",
    "kv_cache_dtype",
    "kv_cache_bytes",
    "seed",
    "host",
    "port",
    "served_model_name",
    "api_key",
    "prompt",
    "raw",
    "json",
    "input",
    "output",
    "system",
    "verbose",
    "max_tokens",
    "temperature",
    "top_p",
    "shape",
    "memory",
    "name",
    "filter",
    "scenario",
    "prompt_name",
    "dimensions",
    "pooling",
    "top_n",
    "instruction",
];

/// The command line; its help has the defaults that depend on the device.
fn command_line() -> clap::Command {
    let cli = Cli::command().mut_subcommand("serve", |serve| {
        // Several models; their number is checked where they are read.
        let serve = serve.mut_arg("model", |model| model.action(ArgAction::Append));
        // vLLM's names.
        serve
            .mut_arg("no_prefix_caching", |arg| {
                arg.alias("no-enable-prefix-caching")
            })
            .mut_arg("kv_cache_bytes", |arg| arg.alias("kv-cache-memory-bytes"))
    });
    cli.mut_subcommands(|command| {
        // As in vLLM, the last one counts: scripts add options to those that they are given.
        let command = command.args_override_self(true);
        let is_long = command.get_arguments().count() > COMMON.len() / 2;
        if !is_long {
            return command;
        }
        let command = command.mut_args(|arg| {
            let is_common = COMMON.contains(&arg.get_id().as_str());
            arg.hide_short_help(!is_common)
        });
        command
            .after_help("--help shows all options")
            .after_long_help(LOG_HELP)
    })
}

/// Parses the arguments and runs the command.
pub(crate) fn main() -> ExitCode {
    hush_display_layer();
    panic_in_one_line();
    // Whatever is written is for this user: models of others, cached prompts, histories.
    #[cfg(unix)]
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let parsed = command_line().try_get_matches_from(arguments());
    let parsed = parsed.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?.command, matches)));
    let (command, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(fault) => return explain(&fault),
    };
    // Which options were given, of the command.
    let given = matches.subcommand().map_or(&matches, |(_, given)| given);
    // A server's file of options may say how it logs.
    if !matches!(command, Command::Serve(_)) {
        log_to_stderr("folio=warn", LogFormat::Text);
    }
    match run_command(command, given) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => end(Err(fault)),
    }
}

/// Runs a command; false: what it printed says that it failed.
fn run_command(command: Command, given: &clap::ArgMatches) -> anyhow::Result<bool> {
    let outcome = match command {
        Command::Serve(options) => serve::run(*options, given),
        Command::Chat(options) => chat::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Embed(options) => embed::run(&options),
        Command::Rerank(options) => rerank::run(&options),
        Command::Plan(options) => return plan::run(&options, given),
        Command::Bench(options) => bench::run(&options),
        Command::Cache(options) => cache::run(&options),
        Command::Quantize(options) => quantize::run(&options),
        Command::Pull(options) => pull::run(&options),
        Command::List(options) => list::run(&options),
        Command::Show(options) => show::run(&options),
        Command::Rm(options) => rm::run(&options),
        Command::Ps(options) => ps::run(&options),
        Command::Load(options) => ps::load(&options),
        Command::Stop(options) => ps::stop(&options),
        Command::Generate(options) => generate::run(&options, command_line()),
        Command::Devices(options) => devices::run(&options),
        Command::Selftest(options) => selftest::run(&options),
    };
    outcome.map(|()| true)
}

/// The arguments, with the long names of short options that `serve` knows from vLLM.
fn arguments() -> Vec<OsString> {
    let arguments = std::env::args_os();
    match std::env::args_os().nth(1) {
        Some(name) if name == "serve" => serve::foreign::with_long_names(arguments),
        _ => arguments.collect(),
    }
}

/// The exit code of a command. The reader of its results may go away; any other failure is an error.
fn end(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if output::is_closed(&error) => ExitCode::from(output::CLOSED),
        Err(error) => fail(&format!("{error:#}"), 1),
    }
}

/// Mesa's device-select layer asks the display server for its preferred adapter, and prints a complaint on stderr if
/// there is none. This disables the layer if there is no display, unless the user selected an adapter through it.
fn hush_display_layer() {
    let asked = [
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XDG_RUNTIME_DIR",
        "MESA_VK_DEVICE_SELECT",
        "DRI_PRIME",
    ];
    if asked.iter().all(|name| std::env::var_os(name).is_none()) {
        platform::set_variable_while_alone("NODEVICE_SELECT", "1");
    }
}

fn fail(message: &str, code: u8) -> ExitCode {
    output::note(format_args!("error: {}", one_line(message)));
    ExitCode::from(code)
}

/// Joins the lines of a message: drivers and compilers write causes of several lines.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Prints help and version to stdout. Of an error it prints the first paragraph, which says what is wrong, and tips.
fn explain(fault: &clap::Error) -> ExitCode {
    if !fault.use_stderr() {
        return end(output::result(fault));
    }
    if fault.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::note(fault.to_string().trim_end());
        return ExitCode::from(USAGE);
    }
    let text = fault.to_string();
    let mut paragraphs = text.split("\n\n").map(str::trim);
    let first = paragraphs
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let variable = variable_at_fault(fault, std::env::args())
        .map_or_else(String::new, |name| format!(", set by {name}"));
    let tips: Vec<&str> = paragraphs
        .filter(|paragraph| paragraph.starts_with("tip: "))
        .collect();
    let advice = if tips.is_empty() {
        "try --help".to_owned()
    } else {
        tips.join("; ")
    };
    fail(&format!("{first}{variable} ({advice})"), USAGE)
}

/// The environment variable that set an option's invalid value; `None` if the value is from the command line.
fn variable_at_fault(
    fault: &clap::Error,
    mut arguments: impl Iterator<Item = String>,
) -> Option<String> {
    let Some(ContextValue::String(option)) = fault.get(ContextKind::InvalidArg) else {
        return None;
    };
    let flag = option.split(' ').next()?;
    if arguments.any(|argument| argument == flag || argument.starts_with(&format!("{flag}="))) {
        return None;
    }
    let mut cli = command_line();
    cli.build();
    let mut options = cli.get_subcommands().flat_map(clap::Command::get_arguments);
    let name = options
        .find(|candidate| candidate.to_string() == *option)?
        .get_env()?
        .to_str()?;
    std::env::var_os(name).map(|_| name.to_owned())
}

/// What `FOLIO_LOG` means, for the help.
const LOG_HELP: &str = "FOLIO_LOG=folio=info, or another filter of the Rust crate tracing-subscriber, sets what is \
                        logged on stderr; by default warnings, and of `serve` one line for each request \
                        (folio=warn,folio::access=info,folio::notes=info)";

/// What the long help says after the commands.
fn more_help() -> String {
    format!(
        "folio generate bash (or elvish, fish, powershell, zsh) writes completions for a shell, folio generate man \
         FOLDER man pages.\n\n{LOG_HELP}"
    )
}

/// The form of lines on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    /// An object a line, what is usually told in sentences too.
    Json,
}

/// Logs to stderr what passes a filter; `FOLIO_LOG` sets another one.
pub(crate) fn log_to_stderr(usual: &str, format: LogFormat) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOLIO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(usual));
    // In a terminal, unless `NO_COLOR` or `CLICOLOR=0` is set.
    let colours = console::colors_enabled_stderr();
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours)
        .with_writer(std::io::stderr);
    // If stderr is closed, that error cannot be reported anywhere.
    let log = log.log_internal_errors(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => {
            output::log_notes();
            log.json().with_ansi(false).init();
        }
    }
}

/// Reports a panic, which is a bug, as one line that users can report.
fn panic_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic
            .location()
            .map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let _ = writeln!(
            std::io::stderr(),
            "bug: folio panicked{place}: {}",
            one_line(text)
        );
    }));
}

#[cfg(test)]
mod tests;
