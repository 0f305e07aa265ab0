//! Which neighbouring steps one kernel runs: the norm before a product of few rows, the activation after it.
//!
//! A row buffer between two fused steps is not written, so nobody else may read it: not a later step before the buffer
//! is written anew, and not the tail. Values are rounded on the way as the buffer would have rounded them.

use super::matmul::Fields;
use super::rows::Norm;
use crate::plan::{Activation, BufferId, Plan, Step};

/// A product with its neighbours.
pub(super) struct Fused {
    pub(super) norm: Option<Norm>,
    pub(super) product: Fields,
    /// What follows, and where to.
    pub(super) gated: Option<(Activation, BufferId)>,
}

impl Fused {
    /// Steps that it stands for.
    pub(super) fn steps(&self) -> usize {
        1 + usize::from(self.norm.is_some()) + usize::from(self.gated.is_some())
    }
}

/// What `rest` begins with, if it is a product of which a neighbour can be fused.
pub(super) fn find(plan: &Plan, rest: &[Step]) -> Option<Fused> {
    let norm = match rest.first()? {
        Step::RmsNorm { x, delta: None, weight, epsilon, one_plus, accumulate: false, out } => Some(Norm {
            x: *x,
            delta: None,
            weight: *weight,
            epsilon: *epsilon,
            one_plus: *one_plus,
            accumulate: false,
            out: *out,
        }),
        _ => None,
    };
    let at = usize::from(norm.is_some());
    let Step::MatMul { x, weight, bias, accumulate, out } = *rest.get(at)? else { return None };
    if norm.as_ref().is_some_and(|norm| norm.out != x || is_read_later(plan, x, &rest[at + 1..])) {
        return None;
    }
    let gated = match rest.get(at + 1) {
        Some(Step::GatedActivation { gate_up, activation, out: activated })
            if *gate_up == out && !accumulate && !is_read_later(plan, out, &rest[at + 2..]) =>
        {
            Some((*activation, *activated))
        }
        _ => None,
    };
    let product = Fields { x, weight, bias, accumulate, out };
    (norm.is_some() || gated.is_some()).then_some(Fused { norm, product, gated })
}

/// Whether what is in `buffer` now is read by `rest`, or by the tail after it.
fn is_read_later(plan: &Plan, buffer: BufferId, rest: &[Step]) -> bool {
    let read_first = |steps: &[Step]| {
        let touched = steps.iter().find(|step| reads(step, buffer) || writes(step, buffer));
        touched.map(|step| reads(step, buffer))
    };
    // Nothing in the rest of the body: then any tail may begin with what is there. Of a tail's own steps these are its
    // followers or its predecessors, which is more than there is to ask.
    let tails = || plan.tails.iter().any(|(_, steps)| read_first(steps).unwrap_or(false));
    read_first(rest).unwrap_or_else(tails)
}

fn reads(step: &Step, buffer: BufferId) -> bool {
    match step {
        Step::CopyBlocks | Step::Embed { .. } => false,
        Step::RmsNorm { x, delta, accumulate, out, .. } => {
            *x == buffer || *delta == Some(buffer) || *accumulate && *out == buffer
        }
        Step::MatMul { x, accumulate, out, .. } => *x == buffer || *accumulate && *out == buffer,
        Step::RopeStoreKv { qkv, .. } => *qkv == buffer,
        Step::AttendPaged { q, .. } => *q == buffer,
        Step::GatedActivation { gate_up, .. } => *gate_up == buffer,
        Step::RouteExperts { logits, .. } | Step::ScaleLogits { logits, .. } | Step::Sample { logits } => {
            *logits == buffer
        }
        Step::MatMulExperts { x, routes, accumulate, out, .. } => {
            *x == buffer || *routes == buffer || *accumulate && *out == buffer
        }
        Step::GatherRows { x, .. } | Step::Pool { x } => *x == buffer,
    }
}

/// Whether all of `buffer` is written anew.
fn writes(step: &Step, buffer: BufferId) -> bool {
    match step {
        Step::Embed { out, .. }
        | Step::RmsNorm { out, .. }
        | Step::MatMul { out, .. }
        | Step::AttendPaged { out, .. }
        | Step::GatedActivation { out, .. }
        | Step::MatMulExperts { out, .. }
        | Step::GatherRows { out, .. }
        | Step::RouteExperts { routes: out, .. }
        | Step::RopeStoreKv { q: out, .. } => *out == buffer,
        Step::CopyBlocks | Step::ScaleLogits { .. } | Step::Sample { .. } | Step::Pool { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Rows, Storage, Tail, WeightFormat};

    /// `normed = norm(x); product = normed · Wᵀ; out = act(product)`, then `rest`.
    fn plan(rest: impl FnOnce([BufferId; 4]) -> Vec<Step>) -> Plan {
        let mut plan = Plan::default();
        let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, Storage::F32);
        let [x, normed, product, out] =
            [("x", 8), ("normed", 8), ("product", 16), ("out", 8)].map(|(n, c)| buffer(n, c));
        let weight = plan.weight("w", 16, 8, WeightFormat::F32);
        let (delta, epsilon, one_plus, accumulate) = (None, 1e-5, false, false);
        plan.body = vec![
            Step::RmsNorm { x, delta, weight, epsilon, one_plus, accumulate, out: normed },
            Step::MatMul { x: normed, weight, bias: None, accumulate, out: product },
            Step::GatedActivation { gate_up: product, activation: Activation::Silu, out },
        ];
        plan.body.extend(rest([x, normed, product, out]));
        plan
    }

    fn found(plan: &Plan, from: usize) -> Option<(bool, bool, usize)> {
        find(plan, &plan.body[from..]).map(|fused| (fused.norm.is_some(), fused.gated.is_some(), fused.steps()))
    }

    #[test]
    fn neighbours_are_found() {
        let alone = plan(|_| Vec::new());
        assert_eq!(found(&alone, 0), Some((true, true, 3)));
        assert_eq!(found(&alone, 1), Some((false, true, 2)));
        assert_eq!(found(&alone, 2), None);
    }

    /// Whatever somebody reads later has to be written.
    #[test]
    fn what_others_read_is_not_fused_away() {
        let read =
            |what: usize| move |buffers: [BufferId; 4]| vec![Step::GatherRows { x: buffers[what], out: buffers[0] }];
        assert_eq!(found(&plan(read(1)), 0), None, "the norm is read");
        assert_eq!(found(&plan(read(2)), 0), Some((true, false, 2)), "the product is read");
        let rewritten = plan(|[x, normed, product, out]| {
            let again = Step::GatherRows { x: out, out: normed };
            vec![again, Step::GatherRows { x: normed, out: product }, Step::GatherRows { x: product, out: x }]
        });
        assert_eq!(found(&rewritten, 0), Some((true, true, 3)), "what is written anew may be read");
        let mut tail = plan(|_| Vec::new());
        tail.tails = vec![(Tail::Sample, vec![Step::GatherRows { x: BufferId(1), out: BufferId(3) }])];
        assert_eq!(found(&tail, 0), None, "the tail reads the norm");
    }
}
