//! The `folio` command: arguments → `Config` → command. Everything else is in `cli`, one file per command.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
