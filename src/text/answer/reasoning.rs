//! Finds where reasoning ends and the answer begins, in text for clients and in tokens for grammars.
//!
//! Models mark their reasoning in a few ways ([`ReasoningParser`]). The parser is detected from the chat template, or
//! set on the command line. [`Splitter`] splits an answer's text while it streams. [`ReasoningTracker`] follows the
//! tokens: a grammar applies only to the answer, so it waits until the reasoning has ended.

use super::envelope::AnswerTags;
use super::marker::{Marker, begins};
use super::registry::parsers;
use crate::text::{Tokenizer, Utf8Stream};
use std::fmt;
use std::sync::Arc;

/// A way to mark reasoning.
pub(super) struct ThoughtFormat {
    /// Names of its parser: ours, then vLLM's.
    names: &'static [&'static str],
    /// A chat template is of this format if it has all texts of one of these groups.
    templates: &'static [&'static [&'static str]],
    /// What stands before and after the reasoning, if it has tags.
    tags: Option<(&'static str, &'static str)>,
    /// Tags that may stand around the answer, too.
    answer: AnswerTags,
}

parsers! {
    /// How a model marks its reasoning.
    "reasoning" ReasoningParser: ThoughtFormat;

    /// The analysis channel of harmony: gpt-oss.
    Harmony = ThoughtFormat {
        names: &["harmony", "openai_gptoss", "gpt_oss"],
        templates: &[&["<|channel|>", "<|message|>"]],
        tags: None,
        answer: &[],
    };
    /// `[THINK]` … `[/THINK]`: Mistral.
    Mistral = ThoughtFormat {
        names: &["mistral"],
        templates: &[&["[THINK]"]],
        tags: Some(("[THINK]", "[/THINK]")),
        answer: &[],
    };
    /// `<|channel>thought` … `<channel|>`: Gemma 4.
    Gemma = ThoughtFormat {
        names: &["gemma", "gemma4"],
        templates: &[&["<|channel>"]],
        tags: Some(("<|channel>thought", "<channel|>")),
        answer: &[],
    };
    /// `<seed:think>` … `</seed:think>`: Seed-OSS.
    Seed = ThoughtFormat {
        names: &["seed", "seed_oss"],
        templates: &[&["<seed:think>"]],
        tags: Some(("<seed:think>", "</seed:think>")),
        answer: &[],
    };
    /// `<|START_THINKING|>` … `<|END_THINKING|>`: Command R7B and Command A.
    Command = ThoughtFormat {
        names: &["command_r7b", "cohere_command3", "cohere_command4"],
        templates: &[&["<|START_THINKING|>"]],
        tags: Some(("<|START_THINKING|>", "<|END_THINKING|>")),
        answer: &[["<|START_RESPONSE|>", "<|END_RESPONSE|>"], ["<|START_TEXT|>", "<|END_TEXT|>"]],
    };
    /// `<|inner_prefix|>` … `<|inner_suffix|>`: Apertus.
    Apertus = ThoughtFormat {
        names: &["apertus"],
        templates: &[&["<|inner_prefix|>"]],
        tags: Some(("<|inner_prefix|>", "<|inner_suffix|>")),
        answer: &[],
    };
    /// `Here is my thought process:` … `Here is my response:`: Granite 3.2.
    Granite = ThoughtFormat {
        names: &["granite"],
        templates: &[&["Here is my thought process:", "Here is my response:"]],
        tags: Some(("Here is my thought process:", "Here is my response:")),
        answer: &[],
    };
    /// `<think>` … `</think>`, `<answer>` … `</answer>`: Hunyuan.
    Hunyuan = ThoughtFormat {
        names: &["hunyuan_a13b"],
        templates: &[&["<think>", "<answer>"], &["<think>", "<|extra_0|>"]],
        tags: Some(("<think>", "</think>")),
        answer: &[["<answer>", "</answer>"]],
    };
    /// `<think>` … `</think>`, `<response>` … `</response>`: ERNIE 4.5 and Granite 3.3.
    Ernie = ThoughtFormat {
        names: &["ernie45"],
        templates: &[&["<response>", "think_mode"], &["<think></think>", "<response></response>"]],
        tags: Some(("<think>", "</think>")),
        answer: &[["<response>", "</response>"]],
    };
    /// `<think>` … `</think>`: Qwen, DeepSeek and most others.
    Think = ThoughtFormat {
        names: &[
            "think", "deepseek_r1", "deepseek_v3", "deepseek_v4", "glm45", "glm47", "granite_thinking_parser", "holo2",
            "hy_v3", "kimi_k2", "mimo", "minimax_m2", "nemotron_v3", "olmo3", "qwen3", "step3p5",
        ],
        templates: &[&["<think>"], &["</think>"]],
        tags: Some(("<think>", "</think>")),
        answer: &[],
    };
    /// It has no reasoning.
    #[default]
    None = ThoughtFormat { names: &["none"], templates: &[], tags: None, answer: &[] };
}

impl ReasoningParser {
    /// Detects the parser from a chat template's text.
    pub(crate) fn of_template(template: &str) -> Self {
        Self::detect(template).unwrap_or_default()
    }

    /// The tags around reasoning, if the model uses tags.
    pub(crate) fn tags(self) -> Option<(&'static str, &'static str)> {
        self.format().tags
    }

    /// The tags that the model may put around its answer.
    pub(crate) fn answer_tags(self) -> AnswerTags {
        self.format().answer
    }

    /// Whether the model puts tags around texts for which it names a source.
    pub(crate) fn has_citations(self) -> bool {
        self == Self::Command
    }

    /// The stage in which the answer to `prompt` starts. `continued` is the beginning of the answer with which the
    /// prompt ends.
    pub(crate) fn start(
        self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        continued: Option<&str>,
    ) -> Start {
        let stage = match (
            self.tags(),
            continued.filter(|text| !text.trim().is_empty()),
        ) {
            (Some((open, close)), Some(text)) if text.rfind(open) > text.rfind(close) => {
                Stage::Reasoning
            }
            (_, Some(_)) => Stage::Answering,
            (Some((open, _)), None) => {
                let tail = &prompt[prompt.len().saturating_sub(16)..];
                let bytes: Vec<u8> = tail
                    .iter()
                    .flat_map(|&id| tokenizer.token_bytes(id, None))
                    .collect();
                let is_begun = String::from_utf8_lossy(&bytes).trim_end().ends_with(open);
                if is_begun {
                    Stage::Reasoning
                } else {
                    Stage::Undecided
                }
            }
            (None, None) => Stage::Undecided,
        };
        Start {
            stage,
            is_blank: continued.is_none(),
        }
    }
}

/// The stage in which an answer starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) stage: Stage,
    /// Whether the stage has no text yet.
    pub(crate) is_blank: bool,
}

/// The token of Gemma's opening tag, and the word after it. Models leave out either.
const GEMMA_OPEN: [&str; 2] = ["<|channel>", "thought\n"];

/// Splits an answer into reasoning and the rest.
#[derive(Clone, Debug)]
pub(crate) struct Splitter {
    open: &'static str,
    /// What else opens a thought.
    also: &'static [&'static str],
    close: Marker,
    stage: Stage,
    /// Whether this stage has only white space and tags so far.
    is_blank: bool,
    /// The text of a blank stage, which may become a tag.
    held: String,
    /// White space in a thought, which is none of it if the thought ends there.
    space: String,
}

/// What follows next in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing has been written yet; reasoning may start.
    Undecided,
    Reasoning,
    Answering,
}

impl Splitter {
    pub(crate) fn new(parser: ReasoningParser, start: Start) -> Option<Self> {
        let (open, close) = parser.tags()?;
        let Start { stage, is_blank } = start;
        Some(Self {
            open,
            also: if parser == ReasoningParser::Gemma {
                &GEMMA_OPEN
            } else {
                &[]
            },
            close: Marker::new(close),
            stage,
            is_blank: is_blank || stage == Stage::Undecided,
            held: String::new(),
            space: String::new(),
        })
    }

    pub(crate) fn is_reasoning(&self) -> bool {
        self.stage == Stage::Reasoning
    }

    pub(super) fn close_tag(&self) -> &'static str {
        self.close.text()
    }

    /// Takes more text. Adds certain reasoning to `reasoning`, and returns text that certainly belongs to the answer.
    pub(crate) fn push(&mut self, text: &str, reasoning: &mut String) -> String {
        let mut text = text.to_owned();
        loop {
            if self.is_blank {
                self.held.push_str(&text);
                match self.begin() {
                    Some(first) => text = first,
                    None => return String::new(),
                }
            }
            if self.stage == Stage::Answering {
                return text;
            }
            let (before, found) = self.close.push(&text);
            let thought = std::mem::take(&mut self.space) + &before;
            let (thought, space) = thought.split_at(thought.trim_end().len());
            reasoning.push_str(thought);
            let Some(rest) = found else {
                self.space = space.to_owned();
                return String::new();
            };
            (self.stage, self.is_blank) = (Stage::Answering, true);
            text = rest;
        }
    }

    /// The first text of a stage, once it is known to be no tag. Models repeat tags, and forget the thought between
    /// them. White space around the tags belongs to neither side.
    fn begin(&mut self) -> Option<String> {
        loop {
            let text = self.held.trim_start();
            let Some(tag) = self.tag(text)? else {
                break;
            };
            let rest = text[tag.len()..].to_owned();
            self.stage = if tag == self.close.text() {
                Stage::Answering
            } else {
                Stage::Reasoning
            };
            self.held = rest;
        }
        self.is_blank = false;
        let held = std::mem::take(&mut self.held);
        if self.stage == Stage::Undecided {
            self.stage = Stage::Answering;
            return Some(held);
        }
        Some(held.trim_start().to_owned())
    }

    /// The tag with which a blank stage begins, if any; `None` if that is open.
    fn tag(&self, text: &str) -> Option<Option<&'static str>> {
        let also = if self.stage == Stage::Answering {
            &[]
        } else {
            self.also
        };
        for tag in [self.open].iter().chain(also).chain([&self.close.text()]) {
            if begins(text, tag)? {
                return Some(Some(tag));
            }
        }
        Some(None)
    }

    /// Ends the thought without its tag. Returns the text that was held back.
    pub(super) fn end(&mut self) -> String {
        (self.stage, self.is_blank) = (Stage::Answering, false);
        std::mem::take(&mut self.space) + &self.close.finish()
    }

    /// Ends the text. An unfinished tag was none, unless the text was cut.
    pub(crate) fn finish(&mut self, reasoning: &mut String, is_cut: bool) -> String {
        let held = std::mem::take(&mut self.held);
        match self.stage {
            _ if is_cut => String::new(),
            Stage::Undecided => held,
            Stage::Reasoning => {
                reasoning.push_str(held.trim_start());
                reasoning.push_str(&std::mem::take(&mut self.space));
                reasoning.push_str(&self.close.finish());
                String::new()
            }
            Stage::Answering => held.trim_start().to_owned(),
        }
    }
}

/// Follows the tokens of an answer until its reasoning has ended and a grammar applies.
#[derive(Clone)]
pub(crate) enum ReasoningTracker {
    /// The reasoning has ended, or there is none.
    Ended,
    /// Reasoning may start with this token.
    Undecided {
        tokenizer: Arc<Tokenizer>,
        open_id: Option<u32>,
        close: &'static str,
    },
    /// The reasoning ends with the text `close`; `seen` is text that may be the beginning of it.
    Text {
        tokenizer: Arc<Tokenizer>,
        close: &'static str,
        seen: String,
        utf8: Utf8Stream,
    },
    /// The reasoning ends when harmony's final channel starts; `header` is the text after the last channel token.
    Final {
        tokenizer: Arc<Tokenizer>,
        header: String,
    },
}

impl fmt::Debug for ReasoningTracker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if matches!(self, Self::Ended) {
            "ended"
        } else {
            "reasoning"
        })
    }
}

impl ReasoningTracker {
    /// A tracker for an answer that starts at `start`.
    pub(crate) fn new(parser: ReasoningParser, tokenizer: &Arc<Tokenizer>, start: Start) -> Self {
        match parser.tags() {
            _ if start.stage == Stage::Answering => Self::Ended,
            None if parser == ReasoningParser::Harmony => Self::Final {
                tokenizer: tokenizer.clone(),
                header: String::new(),
            },
            None => Self::Ended,
            Some((_, close)) if start.stage == Stage::Reasoning => {
                Self::until(tokenizer.clone(), close)
            }
            Some((open, close)) => {
                // A tag may be a token and a word after it: the token starts reasoning.
                let token = open.find('>').map_or(open, |end| &open[..=end]);
                Self::Undecided {
                    tokenizer: tokenizer.clone(),
                    open_id: tokenizer.id_of(token),
                    close,
                }
            }
        }
    }

    fn until(tokenizer: Arc<Tokenizer>, close: &'static str) -> Self {
        Self::Text {
            tokenizer,
            close,
            seen: String::new(),
            utf8: Utf8Stream::default(),
        }
    }

    /// Whether the grammar applies to the next token and, if this is undecided, the token that starts reasoning.
    pub(crate) fn state(&self) -> (bool, Option<u32>) {
        match self {
            Self::Ended => (true, None),
            Self::Undecided { open_id, .. } => (true, *open_id),
            Self::Text { .. } | Self::Final { .. } => (false, None),
        }
    }

    /// Whether the next token is in a thought between tags.
    pub(crate) fn is_tagged(&self) -> bool {
        matches!(self, Self::Text { .. })
    }

    /// Takes a token. Returns `true` if the grammar applies to it.
    pub(crate) fn accept(&mut self, token_id: u32) -> bool {
        match self {
            Self::Ended => return true,
            Self::Undecided {
                tokenizer,
                open_id,
                close,
            } if *open_id == Some(token_id) => {
                *self = Self::until(tokenizer.clone(), close);
            }
            Self::Undecided { .. } => {
                *self = Self::Ended;
                return true;
            }
            Self::Text {
                tokenizer,
                close,
                seen,
                utf8,
            } => {
                seen.push_str(&utf8.push(&tokenizer.token_bytes(token_id, None)));
                if seen.contains(*close) {
                    *self = Self::Ended;
                } else {
                    keep_tail(seen, close.len());
                }
            }
            Self::Final { tokenizer, header } => {
                let text =
                    String::from_utf8_lossy(&tokenizer.token_bytes(token_id, None)).into_owned();
                match text.as_str() {
                    "<|channel|>" => header.clear(),
                    "<|message|>" if header.trim_start().starts_with("final") => {
                        *self = Self::Ended;
                    }
                    text if header.len() < 64 => header.push_str(text),
                    _ => {}
                }
            }
        }
        false
    }
}

/// Keeps the last `bytes` bytes, or a few more to end at a character boundary.
fn keep_tail(text: &mut String, bytes: usize) {
    let mut cut = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    text.drain(..cut);
}
