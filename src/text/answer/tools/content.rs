//! [`Content`]: text of an answer beside its calls.

use super::Parts;

/// Content before calls. White space at its end is dropped if a call follows, and so is white space between two calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    space: String,
    after_call: bool,
    /// It is a thought up to the first call, and keeps its white space.
    is_thought: bool,
}

impl Content {
    pub(crate) fn of_thought() -> Self {
        Self {
            is_thought: true,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        if self.is_thought {
            return parts.content.push_str(text);
        }
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
        (self.after_call, self.is_thought) = (true, false);
    }

    pub(crate) fn finish(&mut self, parts: &mut Parts) {
        if !self.after_call {
            parts.content.push_str(&std::mem::take(&mut self.space));
        }
    }
}
