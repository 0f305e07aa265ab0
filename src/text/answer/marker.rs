//! [`Marker`] finds a fixed text in a stream, and [`Markers`] the first of several. They hold back only text that may
//! be a marker's beginning.

/// Finds a text in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Marker {
    text: &'static str,
    search: Markers,
}

impl Marker {
    pub(crate) fn new(text: &'static str) -> Self {
        Self {
            text,
            search: Markers::new(vec![text.to_owned()]),
        }
    }

    pub(crate) fn text(&self) -> &'static str {
        self.text
    }

    /// Takes more of the stream. Returns the text that is certainly before the marker and, once the marker is found,
    /// the text after it.
    pub(crate) fn push(&mut self, more: &str) -> (String, Option<String>) {
        let (before, found) = self.search.push(more);
        (before, found.map(|(_, rest)| rest))
    }

    /// Ends the stream. The held text was not the marker, so it is returned.
    pub(crate) fn finish(&mut self) -> String {
        self.search.finish()
    }
}

/// Finds the first of several texts in a stream.
#[derive(Clone, Debug)]
pub(crate) struct Markers {
    texts: Vec<String>,
    /// Their first characters.
    starts: Vec<char>,
    held: String,
}

impl Markers {
    pub(crate) fn new(texts: Vec<String>) -> Self {
        let mut starts: Vec<char> = texts
            .iter()
            .filter_map(|text| text.chars().next())
            .collect();
        starts.sort_unstable();
        starts.dedup();
        Self {
            texts,
            starts,
            held: String::new(),
        }
    }

    /// The text of a marker.
    pub(crate) fn text(&self, index: usize) -> &str {
        &self.texts[index]
    }

    /// Takes more of the stream. Returns the text that is certainly before a marker and, once one is found, its index
    /// and the text after it.
    pub(crate) fn push(&mut self, more: &str) -> (String, Option<(usize, String)>) {
        self.held.push_str(more);
        if !self.held.contains(self.starts.as_slice()) {
            return (std::mem::take(&mut self.held), None);
        }
        let places = self
            .texts
            .iter()
            .enumerate()
            .filter_map(|(index, text)| Some((self.held.find(text)?, index)));
        if let Some((at, index)) = places.min() {
            let rest = self.held.split_off(at + self.texts[index].len());
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), Some((index, rest)));
        }
        let longest = self
            .texts
            .iter()
            .map(|text| overlap(&self.held, text))
            .max()
            .unwrap_or(0);
        let undecided = self.held.split_off(self.held.len() - longest);
        (std::mem::replace(&mut self.held, undecided), None)
    }

    /// Ends the stream. The held text was no marker, so it is returned.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Number of bytes at the end of `text` that are a proper prefix of `marker`.
fn overlap(text: &str, marker: &str) -> usize {
    let longest = text.len().min(marker.len() - 1);
    let mut lengths = (1..=longest).rev().filter(|length| {
        text.is_char_boundary(text.len() - length) && marker.is_char_boundary(*length)
    });
    lengths
        .find(|&length| marker.starts_with(&text[text.len() - length..]))
        .unwrap_or(0)
}

/// Whether `text`, which goes on, begins with `start`; `None` if that is open.
pub(crate) fn begins(text: &str, start: &str) -> Option<bool> {
    if start.len() > text.len() && start.starts_with(text) {
        None
    } else {
        Some(text.starts_with(start))
    }
}
