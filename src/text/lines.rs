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
mod tests {
    use super::*;

    /// The text of these pieces up to its end, and whether it ends.
    fn ended(mut limits: LineLimits, pieces: &[&str]) -> (String, bool) {
        let mut text = String::new();
        for piece in pieces {
            match limits.push(piece) {
                Some(end) => return (text + &piece[..end], true),
                None => text.push_str(piece),
            }
        }
        (text, false)
    }

    #[test]
    fn a_text_ends_before_a_line_that_is_indented_less() {
        let indented = |indent, pieces: &[&str]| ended(LineLimits::new(None, indent), pieces);
        let lines = ["a = 1;\n", "    b", " = 2;\n  ", "}"];
        assert_eq!(
            indented(4, &lines),
            ("a = 1;\n    b = 2;\n  ".to_owned(), true)
        );
        assert_eq!(indented(2, &lines), (lines.concat(), false));
        assert_eq!(indented(0, &lines), (lines.concat(), false));
        assert_eq!(indented(1, &["a\n\tb\n\nc"]), ("a\n\tb\n".to_owned(), true));
        assert_eq!(indented(3, &["a\n  ", " b"]), ("a\n   b".to_owned(), false));
        assert_eq!(
            indented(1, &["no line ", "break"]),
            ("no line break".to_owned(), false)
        );
    }

    #[test]
    fn a_text_ends_at_a_line_break_once_its_time_has_passed() {
        let timed = |time: Duration| {
            ended(
                LineLimits::new(Some(time), 0),
                &["a\n", "b", "c\n d", "e\n"],
            )
        };
        assert_eq!(
            timed(Duration::from_secs(3600)),
            ("a\nbc\n de\n".to_owned(), false)
        );
        let mut limits = LineLimits::new(Some(Duration::from_millis(1)), 0);
        assert_eq!(
            limits.push("a\n"),
            None,
            "no time has passed before the first token"
        );
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(limits.push("b"), None);
        assert_eq!(limits.push("c\n d"), Some(4));
    }
}
