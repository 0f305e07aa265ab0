//! `MatMulExperts`: the matrix products of a mixture of experts.

use super::super::Plan;
use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, assignment, optional};

/// The product of each route's row with its expert's matrix: `W_e · x + bias_e`. If `out` has `Rows::Routes`, each
/// product is written unchanged; if it has `Rows::Tokens`, the products of a token are weighted and summed.
///
/// Without routes, the experts are the heads of a token: each has its own run of x and of `out`, and nothing is summed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatMulExperts {
    /// `[tokens × W.columns]`, one row for all experts of a token; or `[routes × W.columns]`. Without routes,
    /// `[tokens × experts · w]`: the first `W.columns` of the w elements of a head are multiplied.
    pub x: BufferId,
    /// The output of [`RouteExperts`](super::RouteExperts).
    pub routes: Option<BufferId>,
    /// `[experts · out.columns × W.columns]`, any weight format; its spec has the number of experts.
    pub weight: WeightId,
    /// `[1 × experts · out.columns]`.
    pub bias: Option<WeightId>,
    /// Add to `out` instead of replacing it; only if `out` has `Rows::Tokens`.
    pub accumulate: bool,
    /// `[routes × n]`, or `[tokens × n]`; without routes, `[tokens × experts · n]`.
    pub out: BufferId,
}

/// How the rows of a [`MatMulExperts`] lie in its buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertShape {
    /// Routes of a token.
    pub per_token: u32,
    /// Routes that read the same row of x.
    pub x_routes: u32,
    /// Elements from one row of x to the next.
    pub x_stride: u32,
    /// Elements of a product.
    pub outputs: u32,
    /// The products of a token are weighted and summed.
    pub combine: bool,
}

impl ExpertShape {
    /// Routes of this many tokens.
    pub fn routes(&self, tokens: u32) -> u32 {
        tokens.saturating_mul(self.per_token)
    }

    /// What a buffer of routes would hold for a step without routes: head h goes to expert h.
    pub fn head_routes(&self, tokens: u32) -> impl ExactSizeIterator<Item = [f32; 2]> {
        let per_token = self.per_token;
        (0..self.routes(tokens)).map(move |route| [(route % per_token) as f32, 1.0])
    }
}

impl MatMulExperts {
    /// The rows of this step in its plan.
    pub fn shape(&self, plan: &Plan) -> ExpertShape {
        let (x, out) = (plan.buffer_spec(self.x), plan.buffer_spec(self.out));
        match self.routes {
            Some(routes) => {
                let per_token = plan.buffer_spec(routes).rows.count(1, 1);
                let x_routes = if x.rows == Rows::Tokens { per_token } else { 1 };
                let combine = out.rows == Rows::Tokens;
                ExpertShape {
                    per_token,
                    x_routes,
                    x_stride: x.columns,
                    outputs: out.columns,
                    combine,
                }
            }
            None => {
                let heads = plan.weight_spec(self.weight).experts;
                let (x_stride, outputs) = (x.columns / heads.max(1), out.columns / heads.max(1));
                ExpertShape {
                    per_token: heads,
                    x_routes: 1,
                    x_stride,
                    outputs,
                    combine: false,
                }
            }
        }
    }

    /// Checks a product without routes.
    fn check_heads(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let weight = operands.known_weight(self.weight);
        let (x, out) = (
            operands.known_buffer(self.x),
            operands.known_buffer(self.out),
        );
        operands.check_buffer(self.x, Rows::Tokens, x.columns)?;
        operands.check_buffer(self.out, Rows::Tokens, weight.rows)?;
        let heads = weight.experts.max(1);
        let each = x.columns / heads;
        if !x.columns.is_multiple_of(heads) || !each.is_multiple_of(8) || each < weight.columns {
            let (what, found) = (
                format!("columns of {}", x.name),
                format!("{} for {heads} heads", x.columns),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a whole row of the weight for each",
            });
        }
        if self.bias.is_some() || self.accumulate {
            let (what, found) = (format!("product of {}", out.name), "a bias or a sum".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "neither, without routes",
            });
        }
        Ok(())
    }
}

impl Operation for MatMulExperts {
    fn stem(&self) -> &'static str {
        "matmul_experts"
    }

    fn buffers(&self) -> Vec<(BufferId, Access)> {
        let inputs = [self.x]
            .into_iter()
            .chain(self.routes)
            .map(|buffer| (buffer, Access::Read));
        inputs
            .chain([(self.out, Access::output(self.accumulate))])
            .collect()
    }

    fn weights(&self) -> Vec<WeightId> {
        [self.weight].into_iter().chain(self.bias).collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let Some(routes) = self.routes else {
            return self.check_heads(operands);
        };
        let experts = operands.known_weight(self.weight).experts;
        let of_routes = Rows::Routes(operands.routes_per_token(routes, experts)?);
        operands.check_buffer(routes, of_routes, 2)?;
        let either = |rows| {
            if rows == Rows::Tokens {
                Rows::Tokens
            } else {
                of_routes
            }
        };
        let (input, output) = (
            operands.known_buffer(self.x),
            operands.known_buffer(self.out),
        );
        operands.check_buffer(self.x, either(input.rows), input.columns)?;
        let stacked = experts.saturating_mul(output.columns);
        operands.check_weight(self.weight, stacked, input.columns)?;
        if let Some(bias) = self.bias {
            operands.check_weight(bias, 1, stacked)?;
        }
        let rows = if self.accumulate {
            Rows::Tokens
        } else {
            either(output.rows)
        };
        operands.check_buffer(self.out, rows, output.columns)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let [out, x] = [self.out, self.x].map(|buffer| operands.buffer_name(buffer));
        let routes = self
            .routes
            .map_or("heads".into(), |routes| operands.buffer_name(routes));
        let (sign, weight) = (
            assignment(self.accumulate),
            operands.weight_name(self.weight),
        );
        format!(
            "{out} {sign} matmul_experts({x}, {routes}, {weight}{})",
            optional(operands, "bias", self.bias)
        )
    }
}
