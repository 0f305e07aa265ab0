//! `GatedNorm`: RMS norm of groups of elements with a gate, which follows a recurrence.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, BufferSpec, Operands, Rows, WeightId};
use super::operation::{Access, Operation, norm_options};

/// For each run of `group` columns: `out = norm(x) · w · silu(z)`, or with `gate_first` `out = norm(x · silu(z)) · w`,
/// where `norm(y) = y / sqrt(mean(y²) + epsilon)`. (A gate without a norm is a
/// [`GatedActivation`](super::GatedActivation) whose `up` is x.)
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedNorm {
    /// `[tokens × columns]`.
    pub x: BufferId,
    /// Rows that hold the gates z, another buffer.
    pub mixed: BufferId,
    /// The first gate's column in `mixed`; there are as many as columns of `x`.
    pub gates: u32,
    /// Columns that are normalized together, a multiple of 8: a head, or the part of a Mamba-2 group.
    pub group: u32,
    /// `[1 × group]`, the same for all groups; or `[1 × columns]`.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Whether the gate is applied before the norm.
    pub gate_first: bool,
    /// `[tokens × columns]`, another buffer.
    pub out: BufferId,
}

impl Operation for GatedNorm {
    fn stem(&self) -> &'static str {
        "gated_norm"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![
            (self.x, Access::Read),
            (self.mixed, Access::Read),
            (self.out, Access::Write),
        ]
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let BufferSpec { columns, .. } = *operands.known_buffer(self.x);
        operands.check_buffer(self.x, Rows::Tokens, columns)?;
        operands.check_columns(self.mixed, Rows::Tokens, self.gates, columns)?;
        if self.group == 0 || !self.group.is_multiple_of(8) || !columns.is_multiple_of(self.group) {
            let (what, found) = (
                "group of a norm".into(),
                format!("{} of {columns} columns", self.group),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a multiple of 8 that divides the columns",
            });
        }
        let shared = operands.known_weight(self.weight).columns == self.group;
        operands.check_weight(self.weight, 1, if shared { self.group } else { columns })?;
        operands.check_buffer(self.out, Rows::Tokens, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, x, mixed] = [self.out, self.x, self.mixed].map(|id| operands.buffer_name(id));
        let (weight, options) = (
            operands.weight_name(self.weight),
            norm_options(self.epsilon, false),
        );
        let (group, gates) = (self.group, self.gates);
        let order = if self.gate_first { ", gate first" } else { "" };
        format!(
            "{out} = gated_norm({x} by {group}, gates of {mixed} from column {gates}, {weight}, {options}{order})"
        )
    }
}
