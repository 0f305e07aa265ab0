//! The command line: one file per command, and what they share.
//!
//! [`options`] turns arguments and `FOLIO_…` variables into a `Config`; [`device`] picks the one concrete backend;
//! [`hub`] turns a model's name into a path; [`session`] runs an engine in its own thread, together with the model's
//! tokenizer and chat template; [`output`] writes results and notes. Results go to stdout, everything else to stderr;
//! an error is one line `error: …` and an exit code other than 0.

mod access;
mod batch;
mod bench;
mod chat;
mod device;
mod devices;
mod hub;
mod list;
mod open_files;
mod options;
mod output;
mod plan;
mod printer;
mod pull;
mod request;
mod run;
mod selftest;
mod serve;
mod session;
mod speculation;
mod tiers;
mod units;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use folio::platform;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

/// The exit code for wrong arguments, as in most Unix tools.
const USAGE: u8 = 2;

/// Runs language models on any GPU.
#[derive(Parser, Debug)]
#[command(name = "folio", version, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve the OpenAI-compatible HTTP API and a chat page
    Serve(serve::ServeArgs),
    /// Chat in the terminal
    Chat(chat::ChatArgs),
    /// Answer one prompt, or a file of requests as one batch
    Run(run::RunArgs),
    /// Check whether a model fits a device, with how much context, and what to change if not; loads nothing
    Plan(plan::PlanArgs),
    /// Measure speed, and compare it with the device's own peaks
    Bench(bench::BenchArgs),
    /// Download a model into the Hugging Face cache, and print its path
    Pull(pull::PullArgs),
    /// List the models in the Hugging Face cache
    List(list::ListArgs),
    /// List devices and their limits, and which one is the default
    Devices(devices::DevicesArgs),
    /// Check every kernel of a device against the CPU reference
    Selftest(selftest::SelftestArgs),
}

/// The command line; its help has the defaults that depend on the device.
fn command_line() -> clap::Command {
    Cli::command().mut_subcommands(options::with_defaults)
}

/// Parses the arguments and runs the command.
pub(crate) fn main() -> ExitCode {
    hush_display_layer();
    log_to_stderr();
    panic_in_one_line();
    let parsed = command_line().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let command = match parsed {
        Ok(cli) => cli.command,
        Err(fault) => return explain(&fault),
    };
    let outcome = match command {
        Command::Serve(options) => serve::run(options),
        Command::Chat(options) => chat::run(&options),
        Command::Run(options) => run::run(&options),
        Command::Plan(options) => match plan::run(&options) {
            Ok(true) => Ok(()),
            // The report on stdout says that the model does not fit.
            Ok(false) => return ExitCode::FAILURE,
            Err(fault) => Err(fault),
        },
        Command::Bench(options) => bench::run(&options),
        Command::Pull(options) => pull::run(&options),
        Command::List(options) => list::run(&options),
        Command::Devices(options) => devices::run(&options),
        Command::Selftest(options) => selftest::run(&options),
    };
    end(outcome)
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
    let asked = ["DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR", "MESA_VK_DEVICE_SELECT", "DRI_PRIME"];
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

/// Prints help and version to stdout. Of an error it prints only the first paragraph, which says what is wrong.
fn explain(fault: &clap::Error) -> ExitCode {
    if !fault.use_stderr() {
        return end(output::result(fault));
    }
    if fault.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::note(fault.to_string().trim_end());
        return ExitCode::from(USAGE);
    }
    let text = fault.to_string();
    let first = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let variable =
        variable_at_fault(fault, std::env::args()).map_or_else(String::new, |name| format!(", set by {name}"));
    fail(&format!("{first}{variable} (try --help)"), USAGE)
}

/// The environment variable that set an option's invalid value; `None` if the value is from the command line.
fn variable_at_fault(fault: &clap::Error, mut arguments: impl Iterator<Item = String>) -> Option<String> {
    let Some(ContextValue::String(option)) = fault.get(ContextKind::InvalidArg) else { return None };
    let flag = option.split(' ').next()?;
    if arguments.any(|argument| argument == flag || argument.starts_with(&format!("{flag}="))) {
        return None;
    }
    let mut cli = command_line();
    cli.build();
    let mut options = cli.get_subcommands().flat_map(clap::Command::get_arguments);
    let name = options.find(|candidate| candidate.to_string() == *option)?.get_env()?.to_str()?;
    std::env::var_os(name).map(|_| name.to_owned())
}

/// Logs warnings to stderr. `FOLIO_LOG=info`, or any `tracing-subscriber` filter, logs more.
fn log_to_stderr() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FOLIO_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("folio=warn"));
    let colours = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    // If stderr is closed, that error cannot be reported anywhere.
    log.log_internal_errors(false).init();
}

/// Reports a panic, which is a bug, as one line that users can report.
fn panic_in_one_line() {
    std::panic::set_hook(Box::new(|panic| {
        let place = panic.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        let _ = writeln!(std::io::stderr(), "bug: folio panicked{place}: {}", one_line(text));
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_well_formed() {
        command_line().debug_assert();
    }

    #[test]
    fn messages_fit_one_line() {
        assert_eq!(one_line("error in kernel\n  at line 3\n"), "error in kernel at line 3");
    }
}
