//! [`Citations`] removes the tags that Command R7B and Command A put around a text for which they name a source:
//! `<co>the text</co: 0:[1,2]>`.

use super::marker::begins;

const OPEN: &str = "<co>";
/// The closing tag up to the numbers of its sources.
const CLOSE: &str = "</co";
/// Maximum bytes of a tag.
const TAG_BYTES_MAX: usize = 128;

/// Removes the tags of citations from a text while it streams.
#[derive(Clone, Debug, Default)]
pub(super) struct Citations {
    /// What may be the beginning of a tag.
    held: String,
}

impl Citations {
    /// Takes more text, and returns what is certainly no tag.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        let mut kept = String::new();
        while let Some(at) = self.held.find('<') {
            let Some(length) = tag(&self.held[at..]) else {
                kept.extend(self.held.drain(..at));
                return kept;
            };
            kept.extend(self.held.drain(..at));
            match length {
                0 => kept.extend(self.held.drain(..1)),
                length => drop(self.held.drain(..length)),
            }
        }
        kept + &std::mem::take(&mut self.held)
    }

    /// Ends the text. The beginning of a tag was none, unless the text was cut.
    pub(super) fn finish(&mut self, is_cut: bool) -> String {
        let held = std::mem::take(&mut self.held);
        if is_cut { String::new() } else { held }
    }
}

/// The bytes of the tag with which a text begins, 0 if it begins with none; `None` if that is open.
fn tag(text: &str) -> Option<usize> {
    if begins(text, OPEN)? {
        return Some(OPEN.len());
    }
    if !begins(text, CLOSE)? {
        return Some(0);
    }
    let sources = &text[CLOSE.len()..];
    let is_source = |c: char| c.is_ascii_digit() || " :,[]".contains(c);
    match sources.find(|c| !is_source(c)) {
        Some(end) if sources[end..].starts_with('>') => Some(CLOSE.len() + end + 1),
        None if text.len() <= TAG_BYTES_MAX => None,
        _ => Some(0),
    }
}

#[cfg(test)]
mod tests;
