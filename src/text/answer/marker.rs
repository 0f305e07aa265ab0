//! [`Marker`] finds a fixed text in a stream. It holds back only text that may be the marker's beginning.

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

    /// Takes more of the stream. Returns the text that is certainly before the marker and, once the marker is found,
    /// the text after it.
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

    /// Ends the stream. The held text was not the marker, so it is returned.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Number of bytes at the end of `text` that are a proper prefix of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    let ends = |length: &usize| text.is_char_boundary(text.len() - length) && marker.is_char_boundary(*length);
    let mut lengths = (1..=longest).rev().filter(ends);
    lengths.find(|&length| marker.starts_with(&text[text.len() - length..])).unwrap_or(0)
}
