//! `RouteAdapters`: which matrices of the adapter slots a token's rows are multiplied by.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation};

/// Routes each token to the slot of its sequence's adapter, so that products with adapters are
/// [`MatMulExperts`](super::MatMulExperts) whose experts are the slots. With the routes of a mixture of experts, whose
/// adapters have matrices for each expert: to the expert's matrix in the slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteAdapters {
    /// The output of [`RouteExperts`](super::RouteExperts), and the number of experts.
    pub experts: Option<(BufferId, u32)>,
    /// `Rows::Routes(n)`, 2 columns, f32; n is 1, or that of the experts' routes. With e and w the expert and the
    /// weight of a route, or else 0 and 1: `slot · experts + e`, and w.
    pub routes: BufferId,
}

impl RouteAdapters {
    /// Matrices of a slot.
    pub fn experts_per_slot(&self) -> u32 {
        self.experts.map_or(1, |(_, experts)| experts)
    }
}

impl Operation for RouteAdapters {
    fn stem(&self) -> &'static str {
        "route_adapters"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let routes = self.experts.map(|(routes, _)| (routes, Access::Read));
        let mut buffers: Vec<_> = routes.into_iter().collect();
        buffers.push((self.routes, Access::Write));
        buffers
    }

    fn weights(&self) -> Vec<WeightId> {
        Vec::new()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        operands.check_f32(self.routes)?;
        let per_token = match self.experts {
            Some((routes, experts)) => {
                let per_token = operands.routes_per_token(routes, experts)?;
                operands.check_buffer(routes, Rows::Routes(per_token), 2)?;
                per_token
            }
            None => 1,
        };
        operands.check_buffer(self.routes, Rows::Routes(per_token), 2)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let routes = operands.buffer_name(self.routes);
        match self.experts {
            Some((of, experts)) => {
                let of = operands.buffer_name(of);
                format!("{routes} = route_adapters({of}, {experts} experts)")
            }
            None => format!("{routes} = route_adapters()"),
        }
    }
}
