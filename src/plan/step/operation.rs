//! The interface that every step implements: its name, its operands, its shape checks, and its line in a printed plan.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, WeightId};

/// How a step touches a row buffer or a KV layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads the contents.
    Read,
    /// Overwrites all rows of the batch without reading them.
    Write,
    /// Reads the contents and modifies them.
    Update,
}

impl Access {
    /// Whether the previous contents are read.
    pub const fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Update)
    }

    /// Whether the contents change.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }

    /// Access to an output that is either added to or replaced.
    pub(super) const fn output(accumulate: bool) -> Self {
        if accumulate {
            Self::Update
        } else {
            Self::Write
        }
    }
}

/// One kind of step. This is the only place that states these facts: the checker, the printer, the encoders and the
/// fusion of adjacent steps all use it.
pub(super) trait Operation {
    /// File stem of its CPU reference (`src/backend/reference/<stem>.rs`) and of its kernels.
    fn stem(&self) -> &'static str;

    /// The row buffers it reads or writes, inputs first. A buffer that it writes is listed once.
    fn buffers(&self) -> Vec<(BufferId, Access)>;

    /// The weights it reads.
    fn weights(&self) -> Vec<WeightId> {
        Vec::new()
    }

    /// The KV layer that it reads or writes, an index into `Plan::kv_layers`; `None` if it uses no layer, or all.
    fn kv_layer(&self) -> Option<(u32, Access)> {
        None
    }

    /// The state layer that it reads and modifies, an index into `Plan::state_layers`.
    fn state_layer(&self) -> Option<u32> {
        None
    }

    /// Checks shapes and options. The caller has checked that all ids in the step exist.
    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind>;

    /// The step as a line of a printed plan. Options that are off are omitted; unknown ids are allowed.
    fn line(&self, operands: &Operands<'_>) -> String;
}

pub(super) const fn assignment(accumulate: bool) -> &'static str {
    if accumulate { "+=" } else { "=" }
}

/// Label and name of an optional weight.
pub(super) fn optional(operands: &Operands<'_>, label: &str, weight: Option<WeightId>) -> String {
    weight
        .map(|weight| format!(", {label} {}", operands.weight_name(weight)))
        .unwrap_or_default()
}

/// A number with its label, unless it has its default value.
pub(super) fn unless(label: &str, value: f32, usual: f32) -> String {
    if value == usual {
        String::new()
    } else {
        format!("{label}{value}")
    }
}

pub(super) fn norm_options(epsilon: f32, one_plus: bool) -> String {
    format!(
        "epsilon {epsilon:e}{}",
        if one_plus { ", 1 + w" } else { "" }
    )
}
