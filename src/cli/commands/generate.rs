//! `folio generate`: completions for shells and man pages, from the command line's own description.

use crate::cli::terminal::output;
use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use clap_complete::Shell;
use std::path::{Path, PathBuf};

/// The program's name.
const NAME: &str = "folio";

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Completions for this shell, or man pages
    #[arg(value_name = "WHAT")]
    what: What,
    /// Folder for the man pages
    #[arg(value_name = "FOLDER", default_value = ".")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
    Man,
}

pub(crate) fn run(args: &GenerateArgs, mut command: clap::Command) -> Result<()> {
    let shell = match args.what {
        What::Bash => Shell::Bash,
        What::Elvish => Shell::Elvish,
        What::Fish => Shell::Fish,
        What::Powershell => Shell::PowerShell,
        What::Zsh => Shell::Zsh,
        What::Man => return man(command, &args.folder),
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, NAME, &mut script);
    output::result(String::from_utf8_lossy(&script))
}

/// A page for the program and one for each command.
fn man(command: clap::Command, folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())
}
