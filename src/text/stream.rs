//! [`TextStream`] turns one choice's ids into text, incrementally.
//!
//! Text is held back for two reasons: a character is incomplete, or the text may be the beginning of a stop string.
//! Exactly the undecided text is held back, so text is never shown and then withdrawn, and never late. The output does
//! not depend on token boundaries: stop strings are matched byte by byte, and the first complete one wins.

use super::Tokenizer;
use std::sync::Arc;

/// Incremental UTF-8 decoder: complete characters are returned at once, an incomplete one is held, invalid bytes become
/// U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// The first bytes of an incomplete character: at most three.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Takes `bytes` and returns the text that is certain.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, wrong) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    rest = wrong;
                    let Some(length) = error.error_len() else {
                        break;
                    };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Ends the stream. An incomplete character counts as invalid.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() {
            String::new()
        } else {
            "\u{FFFD}".to_owned()
        }
    }
}

/// Finds the first complete stop string in a growing text.
#[derive(Clone, Debug)]
pub struct StopStrings {
    matchers: Vec<Matcher>,
    held: String,
    /// Index of the complete one.
    complete: Option<usize>,
    /// Whether the stop string itself is part of the output.
    shown: bool,
    /// Number of further tokens for which stop strings are ignored.
    unstoppable: u32,
}

/// One stop string, and how much of it the text ends with (Knuth–Morris–Pratt).
#[derive(Clone, Debug)]
struct Matcher {
    stop: Vec<u8>,
    /// `borders[k]`: length of the longest proper border of the first k + 1 bytes.
    borders: Vec<usize>,
    matched: usize,
}

impl Matcher {
    fn new(stop: &str) -> Self {
        let stop = stop.as_bytes().to_vec();
        let mut borders = vec![0; stop.len()];
        let mut length = 0;
        for at in 1..stop.len() {
            while length > 0 && stop[at] != stop[length] {
                length = borders[length - 1];
            }
            length += usize::from(stop[at] == stop[length]);
            borders[at] = length;
        }
        Self {
            stop,
            borders,
            matched: 0,
        }
    }

    /// Takes a byte. Returns whether the stop string is now complete.
    fn push(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.stop[self.matched] != byte {
            self.matched = self.borders[self.matched - 1];
        }
        self.matched += usize::from(self.stop[self.matched] == byte);
        self.matched == self.stop.len()
    }
}

impl StopStrings {
    /// Empty strings are ignored.
    pub fn new(stops: &[String]) -> Self {
        let matchers = stops
            .iter()
            .filter(|stop| !stop.is_empty())
            .map(|stop| Matcher::new(stop))
            .collect();
        Self {
            matchers,
            held: String::new(),
            complete: None,
            shown: false,
            unstoppable: 0,
        }
    }

    /// Sets whether the text ends after a stop string (`shown`) or before it.
    pub fn shown(self, shown: bool) -> Self {
        Self { shown, ..self }
    }

    /// Sets the number of the first token in which stop strings count; the first token is 1.
    pub fn min_tokens(self, tokens: u32) -> Self {
        Self {
            unstoppable: tokens.saturating_sub(1),
            ..self
        }
    }

    /// Takes the text of one more token. Returns the text that is certainly before any stop string, and whether one is
    /// complete. After a complete one there is no more output.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let is_stoppable = self.unstoppable == 0;
        self.unstoppable = self.unstoppable.saturating_sub(1);
        if self.matchers.is_empty() || !is_stoppable {
            return (text.to_owned(), false);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            // If several stop strings end here, the longest starts first and wins.
            let matchers = self.matchers.iter_mut().enumerate();
            let complete = matchers
                .filter_map(|(index, m)| m.push(byte).then_some((m.stop.len(), index)))
                .max();
            if let Some((length, index)) = complete {
                self.complete = Some(index);
                self.held
                    .truncate(before + at + 1 - if self.shown { 0 } else { length });
                return (std::mem::take(&mut self.held), true);
            }
        }
        let undecided = self
            .matchers
            .iter()
            .map(|matcher| matcher.matched)
            .max()
            .unwrap_or(0);
        let certain = self.held.len() - undecided;
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Ends the text, or a part of it that no stop string continues. The held text was not a stop string, so it is
    /// returned.
    pub fn finish(&mut self) -> String {
        self.matchers
            .iter_mut()
            .for_each(|matcher| matcher.matched = 0);
        std::mem::take(&mut self.held)
    }

    /// The stop string that is complete.
    pub fn complete(&self) -> Option<&str> {
        std::str::from_utf8(&self.matchers[self.complete?].stop).ok()
    }
}

/// Text that one more token produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// Text that is now certain; often empty.
    pub text: String,
    /// Whether a stop string is complete, so that the choice ends with this token.
    pub stopped: bool,
}

/// Decodes the text of one choice.
#[derive(Clone)]
pub struct TextStream {
    tokenizer: Option<Arc<Tokenizer>>,
    utf8: Utf8Stream,
    stops: StopStrings,
    skip_special: bool,
    /// Special tokens that are not skipped.
    kept: Arc<[u32]>,
    previous: Option<u32>,
}

impl TextStream {
    /// Without a tokenizer there is no text. With `skip_special`, special tokens produce no text.
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, stops: &[String], skip_special: bool) -> Self {
        Self {
            tokenizer,
            utf8: Utf8Stream::default(),
            stops: StopStrings::new(stops),
            skip_special,
            kept: Arc::default(),
            previous: None,
        }
    }

    /// Sets special tokens that produce text even with `skip_special`.
    pub fn keeping(self, kept: Arc<[u32]>) -> Self {
        Self { kept, ..self }
    }

    /// Takes the next token. After `stopped`, call neither `push` nor `finish`.
    pub fn push(&mut self, id: u32) -> TextPiece {
        let Some(tokenizer) = &self.tokenizer else {
            return TextPiece::default();
        };
        let previous = self.previous.replace(id);
        if self.skip_special && tokenizer.is_special(id) && !self.kept.contains(&id) {
            return TextPiece::default();
        }
        let text = self.utf8.push(&tokenizer.token_bytes(id, previous));
        let (text, stopped) = self.stops.push(&text);
        TextPiece { text, stopped }
    }

    /// The stop string that ended the text.
    pub fn stop(&self) -> Option<&str> {
        self.stops.complete()
    }

    /// Ends the choice after its last token. Returns the held text, unless its last character completes a stop string.
    pub fn finish(&mut self) -> TextPiece {
        let text = self.utf8.finish();
        let (mut text, stopped) = self.stops.push(&text);
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        TextPiece { text, stopped }
    }
}
