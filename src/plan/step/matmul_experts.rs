//! `MatMulExperts`: the matrix products of a mixture of experts.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, assignment, optional};

/// The product of each route's row with its expert's matrix: `W_e · x + bias_e`. If `out` has `Rows::Routes`, each
/// product is written unchanged; if it has `Rows::Tokens`, the products of a token are weighted and summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulExperts {
    /// `[tokens × W.columns]`, one row for all experts of a token; or `[routes × W.columns]`.
    pub x: BufferId,
    /// The output of [`RouteExperts`](super::RouteExperts).
    pub routes: BufferId,
    /// `[experts · out.columns × W.columns]`, any weight format; its spec has the number of experts.
    pub weight: WeightId,
    /// `[1 × experts · out.columns]`.
    pub bias: Option<WeightId>,
    /// Add to `out` instead of replacing it; only if `out` has `Rows::Tokens`.
    pub accumulate: bool,
    /// `[routes × n]`, or `[tokens × n]`.
    pub out: BufferId,
}

impl Operation for MatMulExperts {
    fn stem(&self) -> &'static str {
        "matmul_experts"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let inputs = [self.x, self.routes].map(|buffer| (buffer, Access::Read));
        inputs.into_iter().chain([(self.out, Access::output(self.accumulate))]).collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.weight].into_iter().chain(self.bias).collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let experts = operands.known_weight(self.weight).experts;
        let of_routes = Rows::Routes(operands.routes_per_token(self.routes, experts)?);
        operands.check_buffer(self.routes, of_routes, 2)?;
        let either = |rows| if rows == Rows::Tokens { Rows::Tokens } else { of_routes };
        let (input, output) = (operands.known_buffer(self.x), operands.known_buffer(self.out));
        operands.check_buffer(self.x, either(input.rows), input.columns)?;
        let stacked = experts.saturating_mul(output.columns);
        operands.check_weight(self.weight, stacked, input.columns)?;
        if let Some(bias) = self.bias {
            operands.check_weight(bias, 1, stacked)?;
        }
        let rows = if self.accumulate { Rows::Tokens } else { either(output.rows) };
        operands.check_buffer(self.out, rows, output.columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, x, routes] = [self.out, self.x, self.routes].map(|buffer| operands.buffer_name(buffer));
        let (sign, weight) = (assignment(self.accumulate), operands.weight_name(self.weight));
        format!("{out} {sign} matmul_experts({x}, {routes}, {weight}{})", optional(operands, "bias", self.bias))
    }
}
