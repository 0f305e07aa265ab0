//! What a command writes: results to stdout, notes to stderr, progress bars to a terminal.
//!
//! `println!` and `eprintln!` panic once the reader has gone (`folio list | head -1`), so `main.rs` forbids them. A
//! result that nobody reads ends the command quietly: [`is_closed`] recognises it. A note that nobody reads is dropped:
//! a server goes on when its terminal is closed.

use anyhow::Result;
use indicatif::ProgressStyle;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write as _};

/// The exit code after stdout was closed, as a shell reports it of tools that SIGPIPE ends.
pub(crate) const CLOSED: u8 = 128 + 13;

/// Writes a result and a line break to stdout.
pub(crate) fn result(text: impl Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", text.to_string().trim_end())?;
    Ok(stdout.flush()?)
}

/// Writes a line to stderr.
pub(crate) fn note(text: impl Display) {
    // One write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Whether a command failed because the reader of its results has gone.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let kind = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref().map(io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(ErrorKind::BrokenPipe))
}

/// A progress bar's look; the template is ours, so it is well formed.
pub(crate) fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸ ")
}
