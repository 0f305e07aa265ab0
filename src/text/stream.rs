//! [`TextStream`]: one choice's ids to text, piece by piece.
//!
//! Two things hold text back: a character whose bytes are not all there yet, and text that may be the beginning of a
//! stop string. Both hold back exactly what is undecided, so text is never shown and then taken back, and never late.
//! What comes out does not depend on where token borders lie: stop strings are matched byte by byte, and the one that
//! is complete first wins.

use super::Tokenizer;
use std::sync::Arc;

/// Bytes to text: whole characters come out at once, an unfinished one waits, wrong bytes become U+FFFD.
#[derive(Clone, Debug, Default)]
pub struct Utf8Stream {
    /// A proper beginning of a character: at most three bytes.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Text that is certain after `bytes`.
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
                    let Some(length) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &rest[length..];
                }
            }
        }
        self.pending = rest.to_vec();
        text
    }

    /// Bytes of an unfinished character.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// The end: an unfinished character is a wrong one.
    pub fn finish(&mut self) -> String {
        if std::mem::take(&mut self.pending).is_empty() { String::new() } else { "\u{FFFD}".to_owned() }
    }
}

/// Finds the first complete stop string in a growing text.
#[derive(Clone, Debug)]
pub struct StopStrings {
    matchers: Vec<Matcher>,
    held: String,
    /// The stop string itself is shown.
    shown: bool,
}

/// One stop string and how much of it the text ends with (Knuth, Morris and Pratt).
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
        Self { stop, borders, matched: 0 }
    }

    /// Whether the stop string is complete with this byte.
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
        let matchers = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| Matcher::new(stop)).collect();
        Self { matchers, held: String::new(), shown: false }
    }

    /// Takes more text; gives what is certainly before any stop string, and whether one is complete. After that
    /// nothing more comes out.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        if self.matchers.is_empty() {
            return (text.to_owned(), false);
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, byte) in text.bytes().enumerate() {
            // Of several that end here, the longest starts first and hides the others.
            let complete = self.matchers.iter_mut().filter_map(|m| m.push(byte).then_some(m.stop.len())).max();
            if let Some(length) = complete {
                self.held.truncate(before + at + 1 - if self.shown { 0 } else { length });
                return (std::mem::take(&mut self.held), true);
            }
        }
        let undecided = self.matchers.iter().map(|matcher| matcher.matched).max().unwrap_or(0);
        let certain = self.held.len() - undecided;
        let rest = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// The end: what was held back was no stop string.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// What one more token brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPiece {
    /// Text that is certain now; often empty.
    pub text: String,
    /// A stop string is complete: the choice ends with this token.
    pub stopped: bool,
}

/// One choice's text.
pub struct TextStream {
    tokenizer: Option<Arc<Tokenizer>>,
    utf8: Utf8Stream,
    stops: StopStrings,
    skip_special: bool,
    /// Special tokens that are not skipped.
    kept: Arc<[u32]>,
    previous: Option<u32>,
    /// Tokens to come whose text completes no stop string.
    unstoppable: u32,
}

impl TextStream {
    /// Without a tokenizer there is never any text. `skip_special`: special tokens have no text.
    pub fn new(tokenizer: Option<Arc<Tokenizer>>, stops: &[String], skip_special: bool) -> Self {
        Self {
            tokenizer,
            utf8: Utf8Stream::default(),
            stops: StopStrings::new(stops),
            skip_special,
            kept: Arc::default(),
            previous: None,
            unstoppable: 0,
        }
    }

    /// These special tokens have text, whatever holds for others.
    pub fn keeping(self, kept: Arc<[u32]>) -> Self {
        Self { kept, ..self }
    }

    /// Text ends behind a stop string, not before it, if `shown`.
    pub fn show_stops(mut self, shown: bool) -> Self {
        self.stops.shown = shown;
        self
    }

    /// Stop strings count from this token on, the first being 1.
    pub fn min_tokens(mut self, tokens: u32) -> Self {
        self.unstoppable = tokens.saturating_sub(1);
        self
    }

    /// The next token. After `stopped`, push no more and do not finish.
    pub fn push(&mut self, id: u32) -> TextPiece {
        let Some(tokenizer) = &self.tokenizer else { return TextPiece::default() };
        let previous = self.previous.replace(id);
        let stoppable = self.unstoppable == 0;
        self.unstoppable = self.unstoppable.saturating_sub(1);
        if self.skip_special && tokenizer.is_special(id) && !self.kept.contains(&id) {
            return TextPiece::default();
        }
        let text = self.utf8.push(&tokenizer.token_bytes(id, previous));
        if !stoppable {
            return TextPiece { text, stopped: false };
        }
        let (text, stopped) = self.stops.push(&text);
        TextPiece { text, stopped }
    }

    /// The last token has come: what was held back, unless its last character completes a stop string.
    pub fn finish(&mut self) -> TextPiece {
        let text = self.utf8.finish();
        let (mut text, stopped) = self.stops.push(&text);
        if !stopped {
            text.push_str(&self.stops.finish());
        }
        TextPiece { text, stopped }
    }
}
