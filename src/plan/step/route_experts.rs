//! `RouteExperts`: the router of a mixture of experts.

use super::super::error::PlanErrorKind;
use super::super::operands::{BufferId, Operands, Rows, WeightId};
use super::operation::{Access, Operation, optional, unless};
use super::rules::positive_softcap;

/// Maximum groups of experts.
const GROUPS_MAX: u32 = 32;

/// How experts are chosen and weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// An expert's score is `sigmoid(logit)` instead of its softmax probability.
    pub sigmoid: bool,
    /// Divide the weights of a token by their sum, so that they add up to 1.
    pub renormalize: bool,
    /// `[1 × experts]` f32, added to the scores (sigmoids, or probabilities of all experts) to choose experts, not to
    /// weigh them.
    pub bias: Option<WeightId>,
    /// Choose only among the experts of some groups; with [`Routing::sigmoid`], needs a `bias`; without, has none.
    pub groups: Option<ExpertGroups>,
    /// Factor of all weights.
    pub factor: f32,
    /// `[1 × experts]` f32: factor of each expert's weight.
    pub expert_scale: Option<WeightId>,
    /// Soft cap `c` of logits, for sigmoids alone: `c · tanh(logit / c)`.
    pub softcap: Option<f32>,
    /// SparseMixer, with this threshold t: each expert of a token has the largest logit m of those that were not chosen
    /// before, and its weight is its softmax among those of them whose logit l is near, `m − l ≤ t · max(|l|, m)`.
    pub mixer: Option<f32>,
}

/// Equal runs of experts. A group's value is the sum of its two largest biased scores, or without a bias its largest
/// logit; ties go to the first group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; it divides the experts.
    pub count: u32,
    /// Groups whose experts may be chosen.
    pub kept: u32,
}

impl Routing {
    /// Softmax probabilities over all experts, or over the chosen ones.
    pub fn softmax(renormalize: bool) -> Self {
        Self {
            sigmoid: false,
            renormalize,
            bias: None,
            groups: None,
            factor: 1.0,
            expert_scale: None,
            softcap: None,
            mixer: None,
        }
    }
}

/// Chooses the experts with the largest logits (or biased scores) for each token, largest first, ties by lowest id.
/// Numbers are ordered by their bits: −0 is below 0, and NaN is above everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteExperts {
    /// `[tokens × experts]`, f32.
    pub logits: BufferId,
    /// How experts are chosen and weighted.
    pub routing: Routing,
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

    fn weights(&self) -> Vec<WeightId> {
        self.routing
            .bias
            .into_iter()
            .chain(self.routing.expert_scale)
            .collect()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<(), PlanErrorKind> {
        let experts = operands.known_buffer(self.logits).columns;
        operands.check_buffer(self.logits, Rows::Tokens, experts)?;
        operands.check_f32(self.logits)?;
        operands.check_f32(self.routes)?;
        for weight in self.weights() {
            operands.check_f32_vector(weight, experts)?;
        }
        self.routing.check(experts)?;
        let per_token = operands.routes_per_token(self.routes, experts)?;
        let open = self
            .routing
            .groups
            .map_or(experts, |groups| experts / groups.count * groups.kept);
        if per_token > open {
            let (what, found) = (
                "routes of a token".into(),
                format!("{per_token} to {open} experts of the kept groups"),
            );
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "each to another expert",
            });
        }
        operands.check_buffer(self.routes, Rows::Routes(per_token), 2)
    }

    fn line(&self, operands: &Operands<'_>) -> String {
        let (routes, logits) = (
            operands.buffer_name(self.routes),
            operands.buffer_name(self.logits),
        );
        let Routing {
            sigmoid,
            renormalize,
            bias,
            groups,
            factor,
            expert_scale,
            softcap,
            mixer,
        } = self.routing;
        let score = if sigmoid { ", sigmoid" } else { "" };
        let softcap = softcap.map_or(String::new(), |cap| format!(", softcap {cap}"));
        let groups = groups
            .map(|groups| format!(", {} of {} groups", groups.kept, groups.count))
            .unwrap_or_default();
        let weights = if renormalize {
            ", weights add up to 1"
        } else {
            ""
        };
        let (bias, factor) = (
            optional(operands, "bias", bias),
            unless(", times ", factor, 1.0),
        );
        let scale = optional(operands, "scales", expert_scale);
        let mixer = mixer.map_or(String::new(), |threshold| {
            format!(", sparse mixer within {threshold}")
        });
        format!(
            "{routes} = route_experts({logits}{softcap}{score}{bias}{groups}{weights}{factor}{scale}{mixer})"
        )
    }
}

impl Routing {
    fn check(&self, experts: u32) -> Result<(), PlanErrorKind> {
        positive_softcap(self.softcap)?;
        if self.softcap.is_some() && !self.sigmoid {
            let (what, found) = ("softcap of a router".into(), "a softmax".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a sigmoid",
            });
        }
        if self.bias.is_some() && !self.sigmoid && self.groups.is_some() {
            let (what, found) = ("bias of a router".into(), "a softmax in groups".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "a sigmoid",
            });
        }
        if self.mixer.is_some()
            && *self
                != (Self {
                    mixer: self.mixer,
                    ..Self::softmax(false)
                })
        {
            let (what, found) = ("sparse mixer".into(), "other options".into());
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected: "none beside it",
            });
        }
        let Some(ExpertGroups { count, kept }) = self.groups else {
            return Ok(());
        };
        let whole = (1..=GROUPS_MAX).contains(&count)
            && experts.is_multiple_of(count)
            && experts / count > 1;
        if !whole || !(1..=count).contains(&kept) || (self.sigmoid && self.bias.is_none()) {
            let (what, found) = (
                "groups of experts".into(),
                format!("{kept} of {count} groups of {experts} experts"),
            );
            let expected =
                "up to 32 equal groups of at least two experts, with a bias if scores are sigmoids";
            return Err(PlanErrorKind::Unsupported {
                what,
                found,
                expected,
            });
        }
        Ok(())
    }
}
