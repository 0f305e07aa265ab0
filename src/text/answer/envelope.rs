//! [`Envelope`] removes the tags that some models put around an answer, beside those around their reasoning:
//! `<answer>` … `</answer>`, for example.

use super::marker::{Markers, begins};

/// The tags that may be around an answer: each opening tag with its closing tag.
pub(crate) type AnswerTags = &'static [[&'static str; 2]];

/// Removes the tags around an answer, and the white space at them.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    tags: AnswerTags,
    stage: Stage,
}

#[derive(Clone, Debug)]
enum Stage {
    /// White space and the beginning of a tag, perhaps.
    Before(String),
    Within(Within),
    /// After the closing tag, with only white space since.
    Closed,
    /// There are no tags, or they have ended.
    Open,
}

/// An answer after its opening tag.
#[derive(Clone, Debug)]
struct Within {
    /// Finds the closing tag.
    close: Markers,
    /// Whether there was only white space so far.
    is_blank: bool,
    /// White space that is no part of the answer if the closing tag follows.
    space: String,
}

impl Envelope {
    /// `None` if the model has no such tags.
    pub(crate) fn new(tags: AnswerTags) -> Option<Self> {
        let stage = Stage::Before(String::new());
        (!tags.is_empty()).then_some(Self { tags, stage })
    }

    /// Takes more of an answer, and returns what is certainly part of it.
    pub(crate) fn push(&mut self, text: &str) -> String {
        match &mut self.stage {
            Stage::Before(held) => {
                let held = std::mem::take(held) + text;
                self.before(held)
            }
            Stage::Within(within) => {
                let (answer, rest) = within.push(text);
                let Some(rest) = rest else { return answer };
                self.stage = Stage::Closed;
                answer + &self.push(&rest)
            }
            Stage::Closed => {
                let text = text.trim_start();
                if !text.is_empty() {
                    self.stage = Stage::Open;
                }
                text.to_owned()
            }
            Stage::Open => text.to_owned(),
        }
    }

    /// The answer so far, which may begin with an opening tag.
    fn before(&mut self, held: String) -> String {
        let start = held.trim_start();
        let mut found = None;
        for [open, close] in self.tags {
            match begins(start, open) {
                Some(true) => found = Some((start[open.len()..].to_owned(), close)),
                Some(false) => {}
                None => {
                    self.stage = Stage::Before(held);
                    return String::new();
                }
            }
        }
        let Some((rest, close)) = found else {
            self.stage = Stage::Open;
            return held;
        };
        self.stage = Stage::Within(Within {
            close: Markers::new(vec![(*close).to_owned()]),
            is_blank: true,
            space: String::new(),
        });
        self.push(&rest)
    }

    /// Ends the answer. The beginning of a tag was none, unless the answer was cut.
    pub(crate) fn finish(&mut self, is_cut: bool) -> String {
        match &mut self.stage {
            _ if is_cut => String::new(),
            Stage::Before(held) => std::mem::take(held),
            Stage::Within(within) => std::mem::take(&mut within.space) + &within.close.finish(),
            Stage::Closed | Stage::Open => String::new(),
        }
    }
}

impl Within {
    /// What is certainly part of the answer and, once the closing tag has come, what follows it.
    fn push(&mut self, text: &str) -> (String, Option<String>) {
        let (before, found) = self.close.push(text);
        let mut answer = std::mem::take(&mut self.space) + &before;
        if self.is_blank {
            answer = answer.trim_start().to_owned();
            self.is_blank = answer.is_empty();
        }
        let space = answer.split_off(answer.trim_end().len());
        let rest = found.map(|(_, rest)| rest);
        if rest.is_none() {
            self.space = space;
        }
        (answer, rest)
    }
}

#[cfg(test)]
mod tests;
