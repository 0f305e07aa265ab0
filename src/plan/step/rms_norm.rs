//! `RmsNorm`: RMS norm before or after a branch, and before the LM head.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, BufferSpec, Operands, WeightId};
use super::operation::{Access, Operation, assignment, norm_options, optional};

/// What only some norms do, on top of [`RmsNorm`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NormOptions {
    /// Subtract the mean from each row first: LayerNorm.
    pub center: bool,
    /// `[1 × run]`, added to the normalized row.
    pub bias: Option<WeightId>,
    /// `[1 × 1]`: factor of `out`, including what was there before.
    pub scale: Option<WeightId>,
}

/// Optional `x += delta`; `out (=, +=) x / sqrt(mean(x²) + epsilon) · w`, or `· (1 + w)`. A row consists of runs as
/// long as the weight, most often one, and each is normalized by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsNorm {
    /// Input rows; updated in place if there is a `delta`.
    pub x: BufferId,
    /// Added to `x` first; same shape as `x`.
    pub delta: Option<BufferId>,
    /// `[1 × run]`; the length of a run divides the columns.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// Add to `out` instead of replacing it.
    pub accumulate: bool,
    /// What only some norms do.
    pub options: NormOptions,
    /// Same shape as `x`, another buffer.
    pub out: BufferId,
}

impl Operation for RmsNorm {
    fn stem(&self) -> &'static str {
        "rms_norm"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let x = (
            self.x,
            if self.delta.is_some() {
                Access::Update
            } else {
                Access::Read
            },
        );
        let delta = self.delta.map(|delta| (delta, Access::Read));
        [x].into_iter()
            .chain(delta)
            .chain([(self.out, Access::output(self.accumulate))])
            .collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        let NormOptions { bias, scale, .. } = self.options;
        [self.weight].into_iter().chain(bias).chain(scale).collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let BufferSpec { rows, columns, .. } = *operands.known_buffer(self.x);
        if self.delta.is_some() && self.options != NormOptions::default() {
            let (what, found) = ("options of a norm".into(), "a delta".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "no delta",
            });
        }
        if let Some(delta) = self.delta {
            operands.check_buffer(delta, rows, columns)?;
        }
        let run = operands.known_weight(self.weight).columns;
        operands.check_weight(
            self.weight,
            1,
            if columns.is_multiple_of(run) {
                run
            } else {
                columns
            },
        )?;
        if let Some(bias) = self.options.bias {
            operands.check_weight(bias, 1, run)?;
        }
        if let Some(scale) = self.options.scale {
            operands.check_weight(scale, 1, 1)?;
        }
        operands.check_buffer(self.out, rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, x) = (operands.buffer_name(self.out), operands.buffer_name(self.x));
        let (sign, weight) = (
            assignment(self.accumulate),
            operands.weight_name(self.weight),
        );
        let delta = self
            .delta
            .map(|delta| format!(" += {}", operands.buffer_name(delta)))
            .unwrap_or_default();
        let norm = norm_options(self.epsilon, self.one_plus);
        let center = if self.options.center {
            ", centered"
        } else {
            ""
        };
        let bias = optional(operands, "bias", self.options.bias);
        let scale = self
            .options
            .scale
            .map(|scale| format!(" · {}", operands.weight_name(scale)))
            .unwrap_or_default();
        format!("{out} {sign} rms_norm({x}{delta}, {weight}, {norm}{center}{bias}){scale}")
    }
}
