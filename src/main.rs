//! The `folio` command: arguments → `Config` → command. Everything else is in `cli`, one file per command.

// They panic when their reader has gone: `cli::output` writes instead.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
