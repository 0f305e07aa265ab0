//! The `folio` command: arguments → `Config` → command. Everything else is in `cli`, one file or folder per command.

// These macros panic when the output is closed; use `cli::terminal::output` instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
