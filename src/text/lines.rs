//! [`LineLimits`] ends a text at a line: when its time has passed, or before a line that is indented less than wanted.
//! Editors ask for it, whose suggestions should be complete lines.

use crate::platform::Instant;
use std::time::Duration;

/// Where a growing text ends, as far as its lines decide it.
#[derive(Clone, Debug, Default)]
pub struct LineLimits {
    /// The text ends with a token that has a line break and comes later than this after the first token.
    time: Option<Duration>,
    /// The text ends before a line, other than its first, that begins with fewer blanks.
    indent: usize,
    /// When the first token came.
    first: Option<Instant>,
    /// Blanks so far at the beginning of the current line; `None` after them, and in the first line.
    blanks: Option<usize>,
}

impl LineLimits {
    /// No limits where there is no `time` and `indent` is 0.
    pub fn new(time: Option<Duration>, indent: usize) -> Self {
        Self {
            time,
            indent,
            ..Self::default()
        }
    }

    /// Takes the text of one more token. Returns how much of it belongs to the text if the text ends there.
    pub fn push(&mut self, text: &str) -> Option<usize> {
        let first = *self.first.get_or_insert_with(Instant::now);
        if let Some(end) = self.outdented(text) {
            return Some(end);
        }
        let is_late = self.time.is_some_and(|time| first.elapsed() > time);
        (is_late && text.contains('\n')).then_some(text.len())
    }

    /// Where a line begins to say something that is not indented enough.
    fn outdented(&mut self, text: &str) -> Option<usize> {
        for (at, character) in text.char_indices() {
            self.blanks = match (self.blanks, character) {
                (Some(blanks), ' ' | '\t') => Some(blanks + 1),
                (Some(blanks), _) if blanks < self.indent => return Some(at),
                (_, '\n') => Some(0),
                _ => None,
            };
        }
        None
    }
}

#[cfg(test)]
mod tests;
