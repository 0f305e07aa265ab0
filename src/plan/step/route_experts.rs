//! `RouteExperts`: the router of a mixture of experts.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows};
use super::operation::{Access, Operation};

/// Chooses the experts with the largest logits for each token, largest first, ties by lowest id. Logits are ordered by
/// their bits: −0 is below 0, and NaN is above everything. A weight is the expert's softmax probability over all
/// logits, or over the chosen ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteExperts {
    /// `[tokens × experts]`, f32.
    pub logits: BufferId,
    /// Compute the softmax over the chosen experts only, so that the weights of a token sum to 1.
    pub renormalize: bool,
    /// `Rows::Routes(n)`, 2 columns, f32: the expert's id as a number, and its weight.
    pub routes: BufferId,
}

impl Operation for RouteExperts {
    fn stem(&self) -> &'static str {
        "route_experts"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        vec![(self.logits, Access::Read), (self.routes, Access::Write)]
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let experts = operands.known_buffer(self.logits).columns;
        operands.check_buffer(self.logits, Rows::Tokens, experts)?;
        operands.check_f32(self.logits)?;
        operands.check_f32(self.routes)?;
        let per_token = operands.routes_per_token(self.routes, experts)?;
        operands.check_buffer(self.routes, Rows::Routes(per_token), 2)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (routes, logits) = (operands.buffer_name(self.routes), operands.buffer_name(self.logits));
        let weights = if self.renormalize { ", weights add up to 1" } else { "" };
        format!("{routes} = route_experts({logits}{weights})")
    }
}
