//! `RmsNorm`: RMS norm before or after a branch, and before the LM head.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, BufferSpec, Operands, WeightId};
use super::operation::{Access, Operation, assignment, norm_options};

/// Optional `x += delta`; `out (=, +=) x / sqrt(mean(x²) + epsilon) · w`, or `· (1 + w)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Input rows; updated in place if there is a `delta`.
    pub x: BufferId,
    /// Added to `x` first; same shape as `x`.
    pub delta: Option<BufferId>,
    /// `[1 × columns]`.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// Add to `out` instead of replacing it.
    pub accumulate: bool,
    /// Same shape as `x`, another buffer.
    pub out: BufferId,
}

impl Operation for RmsNorm {
    fn stem(&self) -> &'static str {
        "rms_norm"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let x = (self.x, if self.delta.is_some() { Access::Update } else { Access::Read });
        let delta = self.delta.map(|delta| (delta, Access::Read));
        [x].into_iter().chain(delta).chain([(self.out, Access::output(self.accumulate))]).collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.weight]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let BufferSpec { rows, columns, .. } = *operands.known_buffer(self.x);
        if let Some(delta) = self.delta {
            operands.check_buffer(delta, rows, columns)?;
        }
        operands.check_weight(self.weight, 1, columns)?;
        operands.check_buffer(self.out, rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, x) = (operands.buffer_name(self.out), operands.buffer_name(self.x));
        let (sign, weight) = (assignment(self.accumulate), operands.weight_name(self.weight));
        let delta = self.delta.map(|delta| format!(" += {}", operands.buffer_name(delta))).unwrap_or_default();
        let norm = norm_options(self.epsilon, self.one_plus);
        format!("{out} {sign} rms_norm({x}{delta}, {weight}, {norm})")
    }
}
