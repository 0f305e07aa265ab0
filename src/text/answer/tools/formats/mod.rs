//! The formats in which model families write calls, one a file: a [`CallFormat`] has the names of its parser, the
//! templates by which it is detected, the parser, and how calls are forced. A new format is a file here and a line in
//! the list of [`ToolParser`](super::ToolParser).

pub(super) mod apertus;
pub(super) mod command;
pub(super) mod deepseek_v3;
pub(super) mod deepseek_v32;
pub(super) mod gemma;
pub(super) mod glm;
pub(super) mod granite;
pub(super) mod granite_20b;
pub(super) mod harmony;
pub(super) mod hermes;
pub(super) mod hunyuan;
pub(super) mod internlm;
pub(super) mod json;
pub(super) mod kimi_k2;
pub(super) mod lfm2;
pub(super) mod llama3_json;
pub(super) mod llama4_json;
pub(super) mod minimax_m2;
pub(super) mod mistral;
pub(super) mod nemotron;
pub(super) mod olmo3;
pub(super) mod phi4_mini;
pub(super) mod pythonic;
pub(super) mod seed_oss;
pub(super) mod xlam;

use super::form::{Form, Marks};
use super::{CallParser, ToolSet};
use std::sync::Arc;

/// A format of calls.
pub(crate) struct CallFormat {
    /// Names of its parser: ours, then vLLM's.
    pub(crate) names: &'static [&'static str],
    /// A chat template is of this format if it has all texts of one of these groups.
    pub(crate) templates: &'static [&'static [&'static str]],
    /// Special tokens of the format.
    pub(crate) markers: &'static [&'static str],
    /// A parser for a request with these tools.
    pub(crate) parser: fn(&Arc<ToolSet>) -> CallParser,
    /// How forced calls are written; `None`: as JSON, because no grammar can say what the format demands.
    pub(crate) form: Option<fn(&Marks<'_>) -> Form>,
}
