//! Tool calls: parses what models write, while it streams.
//!
//! Every model family writes calls in its own format ([`ToolParser`]). The parser is detected from the chat template,
//! or set on the command line. [`CallParser`] splits an answer's text into content and calls. It reports a call's name
//! as soon as it is certain that there is a call, and texts of the arguments as they are written. What it reports of
//! the arguments can always be completed as JSON. `forced` builds the grammar that forces a call.

mod bare;
mod content;
mod enclosed;
mod forced;
mod gemma;
mod json_call;
mod marked;
mod notation;
mod progress;
mod python;
mod python_calls;
mod tags;
mod types;
mod xml;
mod xml_value;

pub(crate) use forced::{calls_or_json, forced_calls};

use super::harmony::MARKERS;
use super::parts::{CallDelta, Parts};
use super::tool_set::ToolSet;
use bare::Bare;
use enclosed::Enclosed;
use marked::{Hermes, Mistral};
use serde_json::Value;
use std::str::FromStr;
use std::sync::Arc;

/// The format in which a model writes its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolParser {
    /// `<tool_call>` JSON `</tool_call>`: Hermes, Qwen and most others. Also Qwen3-Coder's tags between the two.
    Hermes,
    /// `{"name": …, "parameters": …}` as the whole answer, several with `;` between: Llama 3.
    Llama3Json,
    /// `[TOOL_CALLS]`, then a JSON list or `name[ARGS]{…}`: Mistral.
    Mistral,
    /// `<start_function_call>call:name{key:<escape>…<escape>}<end_function_call>`: FunctionGemma.
    Gemma,
    /// `<|tool_call>call:name{key:<|"|>…<|"|>}<tool_call|>`: Gemma 4.
    Gemma4,
    /// Messages to `functions.name` on the commentary channel: gpt-oss.
    Harmony,
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM 4.5 and later.
    Glm,
    /// `<seed:tool_call>`, Qwen3-Coder's tags, `</seed:tool_call>`: Seed-OSS.
    SeedOss,
    /// `<|tool_call_start|>[name(key="…")]<|tool_call_end|>`, calls as in Python: LFM2.
    Lfm2,
    /// JSON as the whole answer: a call, or a list of calls.
    #[default]
    Json,
}

impl FromStr for ToolParser {
    type Err = String;

    /// Accepts our names and vLLM's equivalents.
    fn from_str(name: &str) -> Result<Self, String> {
        Ok(match name {
            "hermes" | "qwen" | "qwen3_coder" | "qwen3_xml" | "granite" => Self::Hermes,
            "llama3_json" | "llama4_json" => Self::Llama3Json,
            "mistral" => Self::Mistral,
            "gemma" | "functiongemma" => Self::Gemma,
            "gemma4" => Self::Gemma4,
            "harmony" | "openai" => Self::Harmony,
            "glm" | "glm45" | "glm47" => Self::Glm,
            "seed_oss" => Self::SeedOss,
            "lfm2" => Self::Lfm2,
            "json" => Self::Json,
            _ => {
                return Err(format!(
                    "unknown tool call parser `{name}`; expected one of {}",
                    Self::NAMES.join(", ")
                ));
            }
        })
    }
}

impl ToolParser {
    /// The names that [`FromStr`] accepts, without vLLM's equivalents.
    pub const NAMES: [&str; 10] = [
        "hermes",
        "llama3_json",
        "mistral",
        "gemma",
        "gemma4",
        "harmony",
        "glm",
        "seed_oss",
        "lfm2",
        "json",
    ];

    /// Detects the parser from a chat template's text.
    pub(crate) fn of_template(template: &str) -> Self {
        if template.contains("<|channel|>") && template.contains("<|message|>") {
            Self::Harmony
        } else if template.contains("[TOOL_CALLS]") {
            Self::Mistral
        } else if template.contains("<start_function_call>") {
            Self::Gemma
        } else if template.contains("<|tool_call>") {
            Self::Gemma4
        } else if template.contains("<seed:tool_call>") {
            Self::SeedOss
        } else if template.contains("<|tool_call_start|>")
            || template.contains("<|tool_list_start|>")
        {
            Self::Lfm2
        } else if template.contains("<tool_call>") && template.contains("<arg_key>") {
            Self::Glm
        } else if template.contains("<tool_call>") {
            Self::Hermes
        } else if template.contains("<|python_tag|>") || template.contains("<|start_header_id|>") {
            Self::Llama3Json
        } else {
            Self::Json
        }
    }

    /// Special tokens of the format.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        match self {
            Self::Hermes => &marked::TOOL_CALL,
            Self::Glm => &xml::GLM_MARKERS,
            Self::SeedOss => &marked::SEED_TOOL_CALL,
            Self::Llama3Json => &["<|python_tag|>"],
            Self::Mistral => &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"],
            Self::Gemma => &gemma::MARKERS,
            Self::Gemma4 => &gemma::MARKERS_4,
            Self::Lfm2 => &python::MARKERS,
            Self::Harmony => &MARKERS,
            Self::Json => &[],
        }
    }
}

/// The tool settings of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct ToolChoice {
    /// Tools as passed to the template: functions only.
    pub(crate) shown: Option<Value>,
    /// The functions that may be called.
    pub(crate) callable: Arc<ToolSet>,
    /// The model must call one of these functions.
    pub(crate) forced: Option<Vec<Value>>,
    /// Whether at most one call is allowed.
    pub(crate) single: bool,
}

/// A streaming parser that moves from stage to stage.
trait Staged {
    /// Takes text and returns what is left for the next stage.
    fn step(&mut self, text: &str, parts: &mut Parts) -> Option<String>;

    fn push(&mut self, text: &str, parts: &mut Parts) {
        let mut rest = Some(text.to_owned());
        while let Some(text) = rest.take().filter(|text| !text.is_empty()) {
            rest = self.step(&text, parts);
        }
    }
}

/// Splits an answer's text into content and calls.
#[derive(Clone, Debug)]
pub(crate) enum CallParser {
    /// All text is content.
    Off,
    Hermes(Hermes),
    Mistral(Mistral),
    Enclosed(Box<Enclosed>),
    Bare(Bare),
}

impl CallParser {
    /// A parser for a request with these tools. Harmony is parsed before this, because its messages are more than
    /// calls.
    pub(crate) fn new(form: ToolParser, tools: &Arc<ToolSet>) -> Self {
        match form {
            ToolParser::Hermes => {
                Self::Hermes(Hermes::new(tools.clone(), &marked::TOOL_CALL, false))
            }
            ToolParser::Glm => Self::Hermes(Hermes::new(tools.clone(), &marked::TOOL_CALL, true)),
            ToolParser::SeedOss => {
                Self::Hermes(Hermes::new(tools.clone(), &marked::SEED_TOOL_CALL, false))
            }
            ToolParser::Mistral => Self::Mistral(Mistral::new(tools.clone())),
            ToolParser::Gemma => {
                Self::Enclosed(Box::new(Enclosed::gemma(tools.clone(), gemma::MARKERS)))
            }
            ToolParser::Gemma4 => {
                Self::Enclosed(Box::new(Enclosed::gemma(tools.clone(), gemma::MARKERS_4)))
            }
            ToolParser::Lfm2 => {
                Self::Enclosed(Box::new(Enclosed::python(tools.clone(), python::MARKERS)))
            }
            ToolParser::Llama3Json | ToolParser::Json => Self::Bare(Bare::new(tools.clone())),
            ToolParser::Harmony => Self::Off,
        }
    }

    /// A parser of the same calls within a thought, whose other text is its content; `None` if there are no calls.
    pub(crate) fn in_thought(&self) -> Option<Self> {
        match self {
            Self::Off => None,
            Self::Bare(parser) => Some(Self::Bare(parser.in_thought())),
            Self::Hermes(parser) => Some(Self::Hermes(parser.in_thought())),
            Self::Mistral(parser) => Some(Self::Mistral(parser.in_thought())),
            Self::Enclosed(parser) => Some(Self::Enclosed(Box::new(parser.in_thought()))),
        }
    }

    /// Takes more text and adds what is certain to `parts`.
    pub(crate) fn push(&mut self, text: &str, parts: &mut Parts) {
        match self {
            Self::Off => parts.content.push_str(text),
            Self::Hermes(parser) => parser.push(text, parts),
            Self::Mistral(parser) => parser.push(text, parts),
            Self::Enclosed(parser) => parser.push(text, parts),
            Self::Bare(parser) => parser.push(text, parts),
        }
    }

    /// Ends the text. An unfinished beginning of a call was content, unless the text was cut.
    pub(crate) fn finish(&mut self, parts: &mut Parts, is_cut: bool) {
        match self {
            Self::Off => {}
            Self::Hermes(parser) => parser.finish(parts, is_cut),
            Self::Mistral(parser) => parser.finish(parts, is_cut),
            Self::Enclosed(parser) => parser.finish(parts, is_cut),
            Self::Bare(parser) => parser.finish(parts, is_cut),
        }
    }
}

#[cfg(test)]
mod tests;
