//! What a person types: lines with editing, a history across sessions, texts of several lines, and completion.

use crate::cli::folders;
use anyhow::{Context as _, Result};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, Helper};
use std::io::IsTerminal as _;
use std::path::PathBuf;

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";
/// The history's file in the user's data folder.
const HISTORY: &str = "chat_history";

/// What a word may be, given what is typed before it and what there is of it.
pub(crate) type Candidates = fn(before: &str, word: &str) -> Vec<String>;

/// What was typed.
pub(crate) enum Typed {
    Text(String),
    Interrupt,
    End,
}

/// The editor of lines.
pub(crate) struct Input {
    editor: Editor<Aid, FileHistory>,
    /// Where the history is kept; `None` without a terminal or without a folder for it.
    history: Option<PathBuf>,
}

impl Input {
    /// An editor that completes words by these candidates.
    pub(crate) fn new(candidates: Candidates) -> Result<Self> {
        let config = Config::builder()
            .max_history_size(10_000)
            .map(|config| config.history_ignore_space(true).build());
        let editor = config.and_then(Editor::with_config);
        let mut editor: Editor<Aid, FileHistory> = editor.context("cannot use the terminal")?;
        editor.set_helper(Some(Aid(candidates)));
        let mut history = None;
        if std::io::stdin().is_terminal() {
            match folders::data() {
                Ok(folder) => history = Some(folder.join(HISTORY)),
                Err(error) => tracing::warn!("no history is kept: {error:#}"),
            }
        }
        // There is no file yet, or it is not readable: then a new one begins.
        history.as_ref().map(|path| editor.load_history(path));
        Ok(Self { editor, history })
    }

    /// Reads a text: one line, or several that belong together.
    pub(crate) fn read(&mut self) -> Result<Typed> {
        let line = match self.editor.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => return Ok(Typed::Interrupt),
            Err(ReadlineError::Eof) => return Ok(Typed::End),
            Err(error) => return Err(error).context("cannot use the terminal"),
        };
        if !line.trim().is_empty() {
            // Failing to keep a line is not an error: the conversation goes on.
            let is_new = self.editor.add_history_entry(&line).unwrap_or(false);
            if let Some(path) = self.history.as_ref()
                && is_new
            {
                let _ = self.editor.append_history(path);
            }
        }
        Ok(Typed::Text(joined(&line)))
    }
}

/// Whether a text goes on in the next line.
fn goes_on(text: &str) -> bool {
    let quoted = text.trim_start().strip_prefix(QUOTES);
    quoted.map_or_else(
        || text.ends_with('\\'),
        |rest| !rest.trim_end().ends_with(QUOTES),
    )
}

/// The text without the marks that joined its lines.
fn joined(text: &str) -> String {
    let quoted = text
        .trim()
        .strip_prefix(QUOTES)
        .and_then(|rest| rest.strip_suffix(QUOTES));
    quoted.map_or_else(
        || text.replace("\\\n", "\n"),
        |inner| inner.trim_matches('\n').to_owned(),
    )
}

/// What the editor asks while a person types.
struct Aid(Candidates);

impl Helper for Aid {}
impl Highlighter for Aid {}

impl Hinter for Aid {
    type Hint = String;
}

impl Validator for Aid {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let goes_on = goes_on(context.input());
        Ok(if goes_on {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Aid {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completed(self.0, &line[..at]))
    }
}

/// Where the last word begins, and what it may be.
pub(crate) fn completed(candidates: Candidates, typed: &str) -> (usize, Vec<String>) {
    let start = typed.rfind(' ').map_or(0, |space| space + 1);
    let (before, word) = typed.split_at(start);
    let mut names = candidates(before, word);
    names.retain(|name| name.starts_with(word));
    (start, names)
}

#[cfg(test)]
mod tests;
