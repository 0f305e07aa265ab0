//! `MatMul`: dense matrix product.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, WeightId};
use super::operation::{Access, Operation, assignment, optional};

/// `out (=, +=) x · Wᵀ + bias`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMul {
    /// `[rows × W.columns]`.
    pub x: BufferId,
    /// `[out.columns × x.columns]`, any weight format.
    pub weight: WeightId,
    /// `[1 × out.columns]`.
    pub bias: Option<WeightId>,
    /// Add to `out` instead of replacing it.
    pub accumulate: bool,
    /// `[rows × W.rows]`.
    pub out: BufferId,
}

impl Operation for MatMul {
    fn stem(&self) -> &'static str {
        "matmul"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![
            (self.x, Access::Read),
            (self.out, Access::output(self.accumulate)),
        ]
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.weight].into_iter().chain(self.bias).collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let (input, columns) = (
            operands.known_buffer(self.x),
            operands.known_buffer(self.out).columns,
        );
        operands.check_weight(self.weight, columns, input.columns)?;
        if let Some(bias) = self.bias {
            operands.check_weight(bias, 1, columns)?;
        }
        operands.check_buffer(self.out, input.rows, columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (out, x) = (operands.buffer_name(self.out), operands.buffer_name(self.x));
        let (sign, weight) = (
            assignment(self.accumulate),
            operands.weight_name(self.weight),
        );
        format!(
            "{out} {sign} matmul({x}, {weight}{})",
            optional(operands, "bias", self.bias)
        )
    }
}
