//! `JoinRows`: what the layers that predict further tokens read.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, norm_options};

/// `out[t] = [norm(x[t]) · w_x, norm(carried[rows[t]]) · w_carried]`: a token's row beside the row that the batch
/// before left for the token before it, where rows are [`BatchInputs::carried`](crate::plan::inputs::BatchInputs).
/// Norms are RMS norms, and multiply by `w` or by `1 + w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JoinRows {
    /// Rows of the tokens (`Rows::Tokens`).
    pub x: BufferId,
    /// Rows of the batch before (`Rows::Tokens`), same columns.
    pub carried: BufferId,
    /// `[1 × columns]`, of the norm of `x`.
    pub x_norm: WeightId,
    /// `[1 × columns]`, of the norm of `carried`.
    pub carried_norm: WeightId,
    /// Added to the mean of squares.
    pub epsilon: f32,
    /// Multiply by `1 + w` instead of `w`.
    pub one_plus: bool,
    /// Output rows (`Rows::Tokens`), with the columns of both.
    pub out: BufferId,
}

impl Operation for JoinRows {
    fn stem(&self) -> &'static str {
        "join_rows"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![
            (self.x, Access::Read),
            (self.carried, Access::Read),
            (self.out, Access::Write),
        ]
    }

    fn weights(&self) -> Vec<WeightId> {
        vec![self.x_norm, self.carried_norm]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let columns = operands.known_buffer(self.x).columns;
        operands.check_buffer(self.x, Rows::Tokens, columns)?;
        operands.check_buffer(self.carried, Rows::Tokens, columns)?;
        operands.check_weight(self.x_norm, 1, columns)?;
        operands.check_weight(self.carried_norm, 1, columns)?;
        operands.check_buffer(self.out, Rows::Tokens, 2 * columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, x, carried] =
            [self.out, self.x, self.carried].map(|buffer| operands.buffer_name(buffer));
        let [x_norm, carried_norm] =
            [self.x_norm, self.carried_norm].map(|weight| operands.weight_name(weight));
        let norm = norm_options(self.epsilon, self.one_plus);
        format!(
            "{out} = join_rows({x}, {x_norm}, carried rows of {carried}, {carried_norm}, {norm})"
        )
    }
}
