//! Tool calls: parses what models write, while it streams.
//!
//! Every model family writes calls in its own format ([`ToolParser`], `formats`). The parser is detected from the chat
//! template, or set on the command line. [`CallParser`] splits an answer's text into content and calls. It reports a
//! call's name as soon as it is certain that there is a call, and texts of the arguments as they are written. What it
//! reports of the arguments can always be completed as JSON. `forced` builds the grammar that forces a call.

mod bare;
mod content;
mod enclosed;
mod forced;
mod form;
mod formats;
mod gemma;
mod invoked;
mod json_call;
mod listed;
mod marked;
mod named;
mod notation;
mod progress;
mod python;
mod python_calls;
mod tags;
mod types;
mod xml;
mod xml_value;

pub(crate) use forced::{calls_or_json, forced_calls};

use super::parts::{CallDelta, Parts};
use super::registry::parsers;
use super::tool_set::ToolSet;
use bare::Bare;
use enclosed::Enclosed;
use formats::CallFormat;
use invoked::Invoked;
use listed::Listed;
use marked::{Hermes, Mistral};
use named::Named;
use serde_json::Value;
use std::sync::Arc;

parsers! {
    /// The format in which a model writes its calls.
    "tool call" ToolParser: CallFormat;

    /// Messages to `functions.name` on the commentary channel: gpt-oss.
    Harmony = formats::harmony::FORMAT;
    /// `[TOOL_CALLS]`, then a JSON list or `name[ARGS]{…}`: Mistral.
    Mistral = formats::mistral::FORMAT;
    /// `<start_function_call>call:name{key:<escape>…<escape>}<end_function_call>`: FunctionGemma.
    Gemma = formats::gemma::FORMAT;
    /// `<|tool_call>call:name{key:<|"|>…<|"|>}<tool_call|>`: Gemma 4.
    Gemma4 = formats::gemma::GEMMA_4;
    /// `<｜DSML｜function_calls>` with calls and arguments in tags: DeepSeek V3.2.
    DeepSeekV32 = formats::deepseek_v32::FORMAT;
    /// `<｜DSML｜tool_calls>` with calls and arguments in tags: DeepSeek V4.
    DeepSeekV4 = formats::deepseek_v32::V4;
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>name`, arguments in a code fence: DeepSeek V3 and R1.
    DeepSeekV3 = formats::deepseek_v3::FORMAT;
    /// `<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}`: DeepSeek V3.1.
    DeepSeekV31 = formats::deepseek_v3::V3_1;
    /// `<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}`: Kimi K2.
    KimiK2 = formats::kimi_k2::FORMAT;
    /// `<minimax:tool_call>` with calls and arguments in tags: MiniMax M2.
    MiniMaxM2 = formats::minimax_m2::FORMAT;
    /// `<|START_ACTION|>[{"tool_name": …, "parameters": …}]<|END_ACTION|>`: Command R7B and Command A.
    CommandR7b = formats::command::FORMAT;
    /// `Action:` and a list in a code fence: Command R.
    CommandR = formats::command::COMMAND_R;
    /// `<|tools_prefix|>[{"name": {…}}]<|tools_suffix|>`: Apertus.
    Apertus = formats::apertus::FORMAT;
    /// `<tool_calls>[…]</tool_calls>`: Hunyuan, Jamba, MiniMax M1.
    Hunyuan = formats::hunyuan::FORMAT;
    /// `<|action_start|><|plugin|>{…}<|action_end|>`: InternLM 2.
    InternLm = formats::internlm::FORMAT;
    /// `<TOOLCALL>[…]</TOOLCALL>`: Nemotron Super v1.5 and Nano v2.
    Nemotron = formats::nemotron::FORMAT;
    /// `functools[…]`: Phi-4-mini.
    Phi4Mini = formats::phi4_mini::FORMAT;
    /// `<|tool_call|>[…]`: Granite 3.
    Granite = formats::granite::FORMAT;
    /// `<function_call> {…}`: Granite 20B for functions.
    Granite20b = formats::granite_20b::FORMAT;
    /// `<function_calls>` and calls as in Python, one a line: OLMo 3.
    Olmo3 = formats::olmo3::FORMAT;
    /// `[name(key="…")]` as the whole answer, calls as in Python: Llama 3.2, ToolACE, Llama 4.
    Pythonic = formats::pythonic::FORMAT;
    /// A JSON list as the whole answer, or in a code fence: xLAM.
    Xlam = formats::xlam::FORMAT;
    /// `<seed:tool_call>`, Qwen3-Coder's tags, `</seed:tool_call>`: Seed-OSS.
    SeedOss = formats::seed_oss::FORMAT;
    /// `<|tool_call_start|>[name(key="…")]<|tool_call_end|>`, calls as in Python: LFM2.
    Lfm2 = formats::lfm2::FORMAT;
    /// `<tool_call>name<arg_key>…</arg_key><arg_value>…</arg_value></tool_call>`: GLM 4.5 and later.
    Glm = formats::glm::FORMAT;
    /// `<tool_call>` JSON `</tool_call>`: Hermes, Qwen and most others. Also Qwen3-Coder's tags between the two.
    Hermes = formats::hermes::FORMAT;
    /// `{"name": …, "parameters": …}`, which may be between two markers: Llama 4.
    Llama4Json = formats::llama4_json::FORMAT;
    /// `{"name": …, "parameters": …}` as the whole answer, several with `;` between: Llama 3.
    Llama3Json = formats::llama3_json::FORMAT;
    /// JSON as the whole answer: a call, or a list of calls.
    #[default]
    Json = formats::json::FORMAT;
}

impl ToolParser {
    /// Detects the parser from a chat template's text; calls of a format that is not known are read as JSON.
    pub(crate) fn of_template(template: &str) -> Self {
        Self::detect(template).unwrap_or_default()
    }

    /// Special tokens of the format.
    pub(crate) fn markers(self) -> &'static [&'static str] {
        self.format().markers
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
    Listed(Listed),
    Named(Named),
    Invoked(Invoked),
}

impl CallParser {
    /// A parser for a request with these tools. Harmony is parsed before this, because its messages are more than
    /// calls.
    pub(crate) fn new(form: ToolParser, tools: &Arc<ToolSet>) -> Self {
        (form.format().parser)(tools)
    }

    /// A parser of the same calls within a thought, whose other text is its content; `None` if there are no calls.
    pub(crate) fn in_thought(&self) -> Option<Self> {
        match self {
            Self::Off => None,
            Self::Bare(parser) => Some(Self::Bare(parser.in_thought())),
            Self::Hermes(parser) => Some(Self::Hermes(parser.in_thought())),
            Self::Mistral(parser) => Some(Self::Mistral(parser.in_thought())),
            Self::Enclosed(parser) => Some(Self::Enclosed(Box::new(parser.in_thought()))),
            Self::Listed(parser) => Some(Self::Listed(parser.in_thought())),
            Self::Invoked(parser) => Some(Self::Invoked(parser.in_thought())),
            Self::Named(_) => Some(self.clone()),
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
            Self::Listed(parser) => parser.push(text, parts),
            Self::Named(parser) => parser.push(text, parts),
            Self::Invoked(parser) => parser.push(text, parts),
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
            Self::Listed(parser) => parser.finish(parts, is_cut),
            Self::Named(parser) => parser.finish(parts, is_cut),
            Self::Invoked(parser) => parser.finish(parts, is_cut),
        }
    }
}

#[cfg(test)]
mod tests;
