//! Output of commands: results to stdout, notes to stderr, progress bars to a terminal.
//!
//! `println!` and `eprintln!` panic if the output is closed (`folio list | head -1`), so `main.rs` and `lib.rs` forbid
//! them. If stdout is closed, the command ends quietly; [`is_closed`] recognizes this error. Any other failure to write
//! a result, such as a full disk, is an error. Notes that cannot be written are dropped, so that a server continues
//! when its terminal is closed.

use anyhow::{Context as _, Result};
use indicatif::ProgressStyle;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code after stdout was closed: the code that a shell reports for tools ended by SIGPIPE.
pub(crate) const CLOSED: u8 = 128 + 13;

/// Writes a result and a line break to stdout.
pub(crate) fn result(text: impl Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{}", plain(&text.to_string()).trim_end())?;
    Ok(stdout.flush()?)
}

/// Whether notes are logged.
static LOGS_NOTES: AtomicBool = AtomicBool::new(false);

/// From now on, [`note`] logs.
pub(crate) fn log_notes() {
    LOGS_NOTES.store(true, Ordering::Relaxed);
}

/// Writes a line to stderr, in the form that the log has.
pub(crate) fn note(text: impl Display) {
    if LOGS_NOTES.load(Ordering::Relaxed) {
        tracing::info!(target: "folio::notes", "{}", plain(&text.to_string()));
        return;
    }
    // A single write, so that lines of several threads do not mix.
    let _ = io::stderr().write_all(format!("{}\n", plain(&text.to_string())).as_bytes());
}

/// A text without the characters that control a terminal: it may be another server's, or a file's.
fn plain(text: &str) -> String {
    text.chars()
        .filter(|character| matches!(character, '\n' | '\t') || !character.is_control())
        .collect()
}

/// Whether a command failed because stdout was closed.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    io_error(error).is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

/// Whether an answer failed because it could not be printed: later ones could not be printed either.
pub(crate) fn is_lost(error: &anyhow::Error) -> bool {
    io_error(error).is_some()
}

fn io_error(error: &anyhow::Error) -> Option<&io::Error> {
    error.chain().find_map(|cause| cause.downcast_ref())
}

/// Style of a progress bar. The template is a constant of this program, so it is valid.
pub(crate) fn bar_style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("━╸ ")
}

/// Where results go: a file, or stdout.
pub(crate) fn open_output(path: Option<&Path>) -> Result<Box<dyn Write>> {
    let Some(path) = path else {
        return Ok(Box::new(BufWriter::new(io::stdout())));
    };
    Ok(Box::new(BufWriter::new(
        File::create(path).with_context(|| path.display().to_string())?,
    )))
}

#[cfg(test)]
mod tests;
