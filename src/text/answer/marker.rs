//! [`Marker`]: a fixed text to be found in a stream, with no more held back than may be its beginning.

/// Finds a text in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    text: &'static str,
    held: String,
}

impl Marker {
    pub(crate) fn new(text: &'static str) -> Self {
        Self { text, held: String::new() }
    }

    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// More of the stream: what certainly comes before the marker, and, once the marker is there, what follows it.
    pub(crate) fn push(&mut self, more: &str) -> (String, Option<String>) {
        self.held.push_str(more);
        if let Some(at) = self.held.find(self.text) {
            let rest = self.held.split_off(at + self.text.len());
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some(rest));
        }
        let certain = self.held.len() - overlap(&self.held, self.text);
        let undecided = self.held.split_off(certain);
        (std::mem::replace(&mut self.held, undecided), None)
    }

    /// The end: what was held back was not the marker.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Bytes at the end of `text` that are a proper beginning of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    let ends = |length: &usize| text.is_char_boundary(text.len() - length) && marker.is_char_boundary(*length);
    let mut lengths = (1..=longest).rev().filter(ends);
    lengths.find(|&length| marker.starts_with(&text[text.len() - length..])).unwrap_or(0)
}
