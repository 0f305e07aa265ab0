//! What every step says of itself: its name, what it touches, which shapes it asks for, and its line of a printed plan.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, WeightId};

/// How a step touches a row buffer or a KV layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Uses what is there.
    Read,
    /// Replaces all of the batch's rows, whatever was there.
    Write,
    /// Uses what is there and changes it.
    Update,
}

impl Access {
    /// Whether what was there before matters.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    /// Whether what is there afterwards is new.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }

    /// The access to an output: added to, or replaced.
    pub(super) const fn output(accumulate: bool) -> Self {
        if accumulate { Self::Update } else { Self::Write }
    }
}

/// One kind of step. What is said here is said nowhere else: the checker, the printer, the encoders and the fusion of
/// neighbours all ask it.
pub(super) trait Operation {
    /// The name of its twin (`src/backend/cpu/<stem>.rs`) and of its kernels.
    fn stem(&self) -> &'static str;

    /// The row buffers it touches, inputs first. A buffer that it writes is listed once.
    fn buffers(&self) -> Vec<(BufferId, Access)>;

    /// The weights it reads.
    fn weights(&self) -> Vec<WeightId> {
        Vec::new()
    }

    /// The layer of the KV pool that it alone works on, an index into `Plan::kv_layers`.
    fn kv_layer(&self) -> Option<(u32, Access)> {
        None
    }

    /// Whether shapes and options agree. All ids that the step names are known to exist.
    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind>;

    /// The step as a line of a printed plan. Options that are off are not shown; ids may name nothing.
    fn line(&self, operands: &Operands<'_>) -> String;
}

/// `=`, or `+=`.
pub(super) const fn assignment(accumulate: bool) -> &'static str {
    if accumulate { "+=" } else { "=" }
}

/// The label and the name of a weight that may be absent.
pub(super) fn optional(operands: &Operands<'_>, label: &str, weight: Option<WeightId>) -> String {
    weight.map(|weight| format!(", {label} {}", operands.weight_name(weight))).unwrap_or_default()
}

/// A number with its label, unless it has its usual value.
pub(super) fn unless(label: &str, value: f32, usual: f32) -> String {
    if value == usual { String::new() } else { format!("{label}{value}") }
}

/// The options of a norm.
pub(super) fn norm_options(epsilon: f32, one_plus: bool) -> String {
    format!("epsilon {epsilon:e}{}", if one_plus { ", 1 + w" } else { "" })
}
