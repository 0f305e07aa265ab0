//! Calls between markers that are read when they are complete, because their notation is not JSON.

use super::super::marker::Marker;
use super::content::Content;
use super::{CallDelta, Parts};

/// Maximum nesting of arguments.
pub(crate) const DEPTH_MAX: usize = 32;

/// Name and arguments of a call; the arguments are JSON.
pub(crate) type Call = (String, String);

/// Parses calls between markers.
#[derive(Clone, Debug)]
pub(crate) struct Complete {
    opening: &'static str,
    closing: &'static str,
    /// Reads the calls between two markers; `None` if the text is none.
    read: fn(&str) -> Option<Vec<Call>>,
    content: Content,
    open: Marker,
    /// The text between the markers so far.
    between: Option<(String, Marker)>,
    calls: usize,
}

impl Complete {
    pub(crate) fn new(
        opening: &'static str,
        closing: &'static str,
        read: fn(&str) -> Option<Vec<Call>>,
    ) -> Self {
        let (content, open) = (Content::default(), Marker::new(opening));
        Self {
            opening,
            closing,
            read,
            content,
            open,
            between: None,
            calls: 0,
        }
    }

    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut text = text.to_owned();
        loop {
            let Some((raw, close)) = &mut self.between else {
                let (before, found) = self.open.push(&text);
                self.content.push(&before, parts);
                let Some(rest) = found else { return };
                self.between = Some((String::new(), Marker::new(self.closing)));
                text = rest;
                continue;
            };
            let (more, found) = close.push(&text);
            raw.push_str(&more);
            let Some(rest) = found else { return };
            self.end(parts);
            text = rest;
        }
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let rest = self.open.finish();
        if !is_cut {
            self.content.push(&rest, parts);
            if let Some((raw, close)) = &mut self.between {
                raw.push_str(&close.finish());
                self.end(parts);
            }
        }
        self.content.finish(parts);
    }

    /// Reports the calls between the markers.
    fn end(&mut self, parts: &mut Parts) {
        let Some((raw, _)) = self.between.take() else {
            return;
        };
        let Some(calls) = (self.read)(&raw) else {
            self.content.push(&format!("{}{raw}", self.opening), parts);
            return;
        };
        for (name, arguments) in calls {
            self.content.call_begins();
            parts.call(
                self.calls,
                CallDelta {
                    name: Some(name),
                    arguments,
                    ..CallDelta::default()
                },
            );
            self.calls += 1;
        }
    }
}
