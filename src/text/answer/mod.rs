//! [`AnswerParser`] splits an answer's text into reasoning, content and tool calls while it streams.
//!
//! Text in, parts out: [`AnswerFormat`] says how a model marks reasoning ([`reasoning`]) and writes calls ([`tools`]);
//! [`harmony`] is a separate format, in which both are messages. For grammars there are [`ReasoningTracker`], which
//! decides when a grammar starts to apply, and the grammars of forced calls ([`forced_calls`], [`calls_or_json`]).
//!
//! Nothing here depends on HTTP, or on the JSON of a reply.

mod citations;
mod envelope;
mod harmony;
mod json_stream;
mod json_text;
mod marker;
mod parts;
mod reasoning;
mod registry;
mod tagged;
mod tool_set;
mod tools;

pub(crate) use parts::{CallDelta, Parts};
pub use reasoning::ReasoningParser;
pub(crate) use reasoning::{ReasoningTracker, Start};
pub(crate) use tool_set::ToolSet;
pub use tools::ToolParser;
pub(crate) use tools::{ToolChoice, calls_or_json, forced_calls};

use super::{LineLimits, StopStrings, TextModel, Tokenizer};
use envelope::Envelope;
use harmony::Harmony;
use reasoning::Splitter;
use std::sync::Arc;
use tagged::Tagged;
use tools::CallParser;

/// How the served model writes reasoning and tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerFormat {
    pub(crate) tools: ToolParser,
    pub(crate) reasoning: ReasoningParser,
}

impl AnswerFormat {
    /// The given parsers, or else those detected from the model's template.
    pub(crate) fn new(
        text: &TextModel,
        tools: Option<ToolParser>,
        reasoning: Option<ReasoningParser>,
    ) -> Self {
        let template = text
            .template
            .as_ref()
            .map_or("", |template| template.source());
        Self {
            tools: tools.unwrap_or_else(|| ToolParser::of_template(template)),
            reasoning: reasoning.unwrap_or_else(|| ReasoningParser::of_template(template)),
        }
    }

    /// Whether a model's template shows tools, and nothing in it tells how calls are written.
    pub(crate) fn is_unknown_to(text: &TextModel) -> bool {
        text.template.as_ref().is_some_and(|template| {
            let source = template.source();
            source.contains("tools") && ToolParser::detect(source).is_none()
        })
    }

    fn is_harmony(self) -> bool {
        self.tools == ToolParser::Harmony || self.reasoning == ReasoningParser::Harmony
    }

    /// Special tokens that must be decoded as text to parse an answer.
    pub(crate) fn kept_ids(self, tokenizer: &Tokenizer, has_tools: bool) -> Arc<[u32]> {
        let tools = if has_tools { self.tools.markers() } else { &[] };
        let harmony: &[&str] = if self.is_harmony() {
            &harmony::MARKERS
        } else {
            &[]
        };
        let tags = self
            .reasoning
            .tags()
            .map_or([""; 2], |(open, close)| [open, close]);
        let around = self.reasoning.answer_tags().as_flattened();
        let all = tools.iter().chain(harmony).chain(&tags).chain(around);
        // Gemma's reasoning starts with a token followed by a word.
        let words = all
            .flat_map(|mark| [Some(*mark), mark.strip_suffix("thought")])
            .flatten();
        words.filter_map(|mark| tokenizer.id_of(mark)).collect()
    }
}

/// Which parts of an answer are told apart; what is not stays content, in the model's own notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parsing {
    pub(crate) reasoning: bool,
    pub(crate) calls: bool,
}

impl Default for Parsing {
    fn default() -> Self {
        Self {
            reasoning: true,
            calls: true,
        }
    }
}

/// Parses one answer, and ends it at a stop string. Stop strings see what the client gets as content, and nothing else:
/// clients know neither the thought nor the markup of calls and messages, where the same text may occur.
#[derive(Clone, Debug)]
pub(crate) struct AnswerParser {
    form: Form,
    stops: StopStrings,
    lines: LineLimits,
    /// Whether a line ended the content.
    is_cut: bool,
    /// Whether only one call is wanted.
    single: bool,
    is_done: bool,
}

#[derive(Clone, Debug)]
enum Form {
    Tagged(Box<Tagged>),
    Harmony(Harmony),
}

impl AnswerParser {
    /// A parser that treats the whole answer as content.
    pub(crate) fn plain() -> Self {
        Self::of(
            Form::Tagged(Box::new(Tagged::new(None, None, CallParser::Off))),
            false,
        )
    }

    /// A parser for an answer that starts at `start`.
    pub(crate) fn new(format: AnswerFormat, start: Start, tools: &ToolChoice) -> Self {
        let form = if format.is_harmony() {
            Form::Harmony(Harmony::new(start, tools.callable.clone()))
        } else {
            let reasoning = Splitter::new(format.reasoning, start);
            let has_tools = tools.shown.is_some();
            let calls = if has_tools {
                CallParser::new(format.tools, &tools.callable)
            } else {
                CallParser::Off
            };
            let envelope = Envelope::new(format.reasoning.answer_tags());
            let tagged = Tagged::new(reasoning, envelope, calls);
            Form::Tagged(Box::new(if format.reasoning.has_citations() {
                tagged.without_citations()
            } else {
                tagged
            }))
        };
        Self::of(form, tools.single)
    }

    fn of(form: Form, single: bool) -> Self {
        Self {
            form,
            stops: StopStrings::new(&[]),
            lines: LineLimits::default(),
            is_cut: false,
            single,
            is_done: false,
        }
    }

    /// Sets which parts are told apart.
    pub(crate) fn telling_apart(self, parsing: Parsing) -> Self {
        if parsing == Parsing::default() {
            return self;
        }
        let form = match self.form {
            Form::Tagged(tagged) => Form::Tagged(Box::new(tagged.telling_apart(parsing))),
            // Both are messages of one notation.
            Form::Harmony(_) => return Self::plain(),
        };
        Self { form, ..self }
    }

    /// Sets the stop strings.
    pub(crate) fn stopping_at(self, stops: StopStrings) -> Self {
        Self { stops, ..self }
    }

    /// Sets how lines end the content.
    pub(crate) fn within(self, lines: LineLimits) -> Self {
        Self { lines, ..self }
    }

    /// Whether a limit of its lines ended the content.
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The stop string that ended the content.
    pub(crate) fn stop(&self) -> Option<&str> {
        self.stops.complete()
    }

    /// Whether the next text is reasoning.
    pub(crate) fn is_reasoning(&self) -> bool {
        match &self.form {
            Form::Tagged(tagged) => tagged.is_reasoning(),
            Form::Harmony(harmony) => harmony.is_reasoning(),
        }
    }

    /// Whether nothing that is wanted can follow.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Takes the text of one more token and adds what is certain to `parts`.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut more = Parts::default();
        self.split(text, &mut more);
        let (content, stopped) = self.stops.push(&more.content);
        more.content = content;
        if let Some(end) = self.lines.push(&more.content) {
            more.content.truncate(end);
            self.is_cut = !stopped;
        }
        self.is_done |= stopped || self.is_cut;
        if !self.is_done && !more.calls.is_empty() {
            more.content.push_str(&self.stops.finish());
        }
        parts.extend(more);
        self.drop_unwanted(parts);
    }

    fn split(&mut self, text: &str, parts: &mut Parts) {
        match &mut self.form {
            Form::Tagged(tagged) => tagged.push(text, parts),
            Form::Harmony(harmony) => harmony.push(text, parts),
        }
    }

    /// Ends the text. If it was cut by a limit, the beginning of a call or of a tag is left out: it is no content.
    /// After a stop string or the last line there is nothing more.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        if self.stop().is_some() || self.is_cut {
            return;
        }
        let mut more = Parts::default();
        self.end(&mut more, is_cut);
        let (mut content, stopped) = self.stops.push(&more.content);
        if !stopped {
            content.push_str(&self.stops.finish());
        }
        more.content = content;
        parts.extend(more);
        self.drop_unwanted(parts);
    }

    fn end(&mut self, parts: &mut Parts, is_cut: bool) {
        match &mut self.form {
            Form::Tagged(tagged) => tagged.finish(parts, is_cut),
            Form::Harmony(harmony) => harmony.finish(parts, is_cut),
        }
    }

    fn drop_unwanted(&mut self, parts: &mut Parts) {
        if self.single && parts.calls.iter().any(|call| call.index > 0) {
            parts.calls.retain(|call| call.index == 0);
            self.is_done = true;
        }
    }
}

#[cfg(test)]
mod tests;
