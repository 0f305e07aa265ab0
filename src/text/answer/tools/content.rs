//! [`Content`]: text of an answer beside its calls.

use super::Parts;

/// Content before calls. White space at its end is dropped if a call follows, and so is white space between two calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    space: String,
    after_call: bool,
}

impl Content {
    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut text = std::mem::take(&mut self.space) + text;
        let end = text.trim_end().len();
        self.space = text.split_off(end);
        if !text.is_empty() {
            let text = if std::mem::take(&mut self.after_call) {
                text.trim_start()
            } else {
                &text
            };
            parts.content.push_str(text);
        }
    }

    pub(crate) fn call_begins(&mut self) {
        self.space.clear();
        self.after_call = true;
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts) {
        if !self.after_call {
            parts.content.push_str(&std::mem::take(&mut self.space));
        }
    }
}
