//! The formats in which model families write calls, one a file: a [`CallFormat`] has the names of its parser, the
//! templates by which it is detected, the parser, and how calls are forced. A new format is a file here and a line in
//! the list of [`ToolParser`](super::ToolParser).

pub(super) mod gemma;
pub(super) mod glm;
pub(super) mod harmony;
pub(super) mod hermes;
pub(super) mod json;
pub(super) mod lfm2;
pub(super) mod llama3_json;
pub(super) mod mistral;
pub(super) mod seed_oss;

use super::forced::{Form, Marks};
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
    /// How forced calls are written.
    pub(crate) form: fn(&Marks<'_>) -> Form,
}
