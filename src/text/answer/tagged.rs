//! [`Tagged`]: answers whose thought is in tags. What follows it is content and calls; a call also ends the thought.

use super::Parsing;
use super::citations::Citations;
use super::envelope::Envelope;
use super::marker::Marker;
use super::parts::Parts;
use super::reasoning::Splitter;
use super::tools::CallParser;

/// Characters with which a tag or a marker begins.
const STARTS: [char; 2] = ['<', '['];

/// Parses an answer with a thought in tags, content, and calls.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    reasoning: Option<Splitter>,
    /// Looks for calls in the thought that is being written.
    thought: Option<Box<CallParser>>,
    /// Removes the tags around the answer.
    envelope: Option<Envelope>,
    calls: Box<CallParser>,
    /// The closing tag of a thought that a call has ended.
    late: Option<LateTag>,
    /// Removes the tags of citations from the thought and from the content.
    citations: Option<[Citations; 2]>,
}

impl Tagged {
    pub(super) fn new(
        reasoning: Option<Splitter>,
        envelope: Option<Envelope>,
        calls: CallParser,
    ) -> Self {
        Self {
            reasoning,
            thought: None,
            envelope,
            calls: Box::new(calls),
            late: None,
            citations: None,
        }
    }

    /// Removes the tags of citations.
    pub(super) fn without_citations(self) -> Self {
        Self {
            citations: Some(Default::default()),
            ..self
        }
    }

    /// Sets which parts are told apart.
    pub(super) fn telling_apart(self, parsing: Parsing) -> Self {
        Self {
            reasoning: if parsing.reasoning {
                self.reasoning
            } else {
                None
            },
            calls: if parsing.calls {
                self.calls
            } else {
                Box::new(CallParser::Off)
            },
            ..self
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.reasoning.as_ref().is_some_and(Splitter::is_reasoning)
    }

    /// Takes more text and adds what is certain to `parts`.
    pub(super) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut more = Parts::default();
        self.split(text, &mut more);
        if let Some([thought, content]) = &mut self.citations {
            more.reasoning = thought.push(&more.reasoning);
            more.content = content.push(&more.content);
        }
        parts.extend(more);
    }

    fn split(&mut self, text: &str, parts: &mut Parts) {
        // A tag within a call's arguments is none, so what is before a tag is read before it is looked for.
        let mut start = 0;
        for (at, _) in text.match_indices(STARTS).chain([(text.len(), "")]) {
            self.push_piece(&text[start..at], parts);
            start = at;
        }
    }

    fn push_piece(&mut self, text: &str, parts: &mut Parts) {
        let Some(splitter) = &mut self.reasoning else {
            return self.calls.push(text, parts);
        };
        let mut thought = String::new();
        let answer = splitter.push(text, &mut thought);
        self.think(&thought, parts);
        if !self.is_reasoning() {
            self.end_thought(parts, false);
        }
        self.answer(&answer, parts);
    }

    /// More of the thought, up to a call.
    fn think(&mut self, text: &str, parts: &mut Parts) {
        if text.is_empty() {
            return;
        }
        if self.thought.is_none() {
            self.thought = self.calls.in_thought().map(Box::new);
        }
        let Some(thought) = &mut self.thought else {
            return parts.reasoning.push_str(text);
        };
        // What is read with one character is before the call that begins with it.
        for (at, character) in text.char_indices() {
            let mut found = Parts::default();
            thought.push(character.encode_utf8(&mut [0; 4]), &mut found);
            let has_call = !found.calls.is_empty();
            add_thought(found, parts);
            if has_call {
                return self.answer_from_thought(&text[at + character.len_utf8()..], parts);
            }
        }
    }

    /// A call has begun in the thought: the rest of the text, and all that follows, is the answer.
    fn answer_from_thought(&mut self, rest: &str, parts: &mut Parts) {
        let (Some(thought), Some(splitter)) = (self.thought.take(), &mut self.reasoning) else {
            return;
        };
        self.calls = thought;
        self.late = Some(LateTag::new(splitter.close_tag()));
        let undecided = splitter.end();
        self.answer(rest, parts);
        self.answer(&undecided, parts);
    }

    /// The thought has ended with its tag, or with the text.
    fn end_thought(&mut self, parts: &mut Parts, is_cut: bool) {
        let Some(mut thought) = self.thought.take() else {
            return;
        };
        let mut found = Parts::default();
        thought.finish(&mut found, is_cut);
        if !found.calls.is_empty() {
            self.calls = thought;
        }
        add_thought(found, parts);
    }

    fn answer(&mut self, text: &str, parts: &mut Parts) {
        let mut more = Parts::default();
        match &mut self.envelope {
            Some(envelope) => self.calls.push(&envelope.push(text), &mut more),
            None => self.calls.push(text, &mut more),
        }
        self.add_answer(more, parts);
    }

    fn add_answer(&mut self, mut more: Parts, parts: &mut Parts) {
        if let Some(late) = &mut self.late {
            more.content = late.without(&more.content);
        }
        parts.extend(more);
    }

    /// Ends the text. What was held back was neither a tag nor a call, unless the text was cut.
    pub(super) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        let mut more = Parts::default();
        self.end(&mut more, is_cut);
        if let Some([thought, content]) = &mut self.citations {
            more.reasoning = thought.push(&more.reasoning) + &thought.finish(is_cut);
            more.content = content.push(&more.content) + &content.finish(is_cut);
        }
        parts.extend(more);
    }

    fn end(&mut self, parts: &mut Parts, is_cut: bool) {
        if let Some(splitter) = &mut self.reasoning {
            let mut thought = String::new();
            let answer = splitter.finish(&mut thought, is_cut);
            self.think(&thought, parts);
            self.end_thought(parts, is_cut);
            self.answer(&answer, parts);
        }
        let mut more = Parts::default();
        if let Some(envelope) = &mut self.envelope {
            self.calls.push(&envelope.finish(is_cut), &mut more);
        }
        self.calls.finish(&mut more, is_cut);
        self.add_answer(more, parts);
        if let Some(late) = self.late.take().filter(|late| !is_cut && !late.is_found) {
            parts.content.push_str(&late.held());
        }
    }
}

/// Adds what was read in a thought: its text is reasoning.
fn add_thought(found: Parts, parts: &mut Parts) {
    parts.reasoning.push_str(&found.content);
    parts.extend(Parts {
        content: String::new(),
        ..found
    });
}

/// The closing tag of a thought that has ended before it. It is dropped once, with the white space after it.
#[derive(Clone, Debug)]
struct LateTag {
    tag: Marker,
    is_found: bool,
    /// Only white space has followed the tag.
    is_blank: bool,
}

impl LateTag {
    fn new(tag: &'static str) -> Self {
        Self {
            tag: Marker::new(tag),
            is_found: false,
            is_blank: false,
        }
    }

    /// More content, without the tag.
    fn without(&mut self, content: &str) -> String {
        let (mut before, after) = if self.is_found {
            (String::new(), Some(content.to_owned()))
        } else {
            self.tag.push(content)
        };
        let Some(after) = after else { return before };
        self.is_blank |= !std::mem::replace(&mut self.is_found, true);
        let after = if self.is_blank {
            after.trim_start()
        } else {
            &after
        };
        self.is_blank &= after.is_empty();
        before.push_str(after);
        before
    }

    /// Text that has begun like the tag.
    fn held(mut self) -> String {
        self.tag.finish()
    }
}
