//! Choice of experts, reference. Twin of `shaders/route_experts.wgsl`.
//!
//! Chooses the largest logits of each token, largest first; ties go to the lowest id. Logits are ordered by their bits
//! as integers (−0 is below 0, NaN is above everything), so that every device chooses the same experts. A route is the
//! expert's id and its weight: exp(logit − max) divided by the sum over all experts, or over the chosen ones.

use super::loaded::LoadedPlan;
use crate::plan::RouteExperts;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &RouteExperts, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.routes, inputs, |loaded, routes, _| {
        let (experts, per_token) = (loaded.columns(step.logits), loaded.per_token(step.routes));
        route_experts(loaded.rows(step.logits, inputs), experts, per_token, step.renormalize, routes);
    });
}

/// Writes `per_token` routes of (id, weight) for each row of `experts` logits.
pub(super) fn route_experts(logits: &[f32], experts: usize, per_token: usize, renormalize: bool, routes: &mut [f32]) {
    assert_eq!(logits.len() % experts, 0, "logits are whole rows of {experts}");
    assert_eq!(routes.len(), logits.len() / experts * per_token * 2, "an id and a weight per route");
    for (logits, routes) in logits.chunks_exact(experts).zip(routes.chunks_exact_mut(2 * per_token)) {
        let mut ids: Vec<usize> = (0..experts).collect();
        ids.sort_by_key(|&id| std::cmp::Reverse(order(logits[id])));
        let largest = f64::from(logits[ids[0]]);
        let share = |id: usize| (f64::from(logits[id]) - largest).exp();
        let counted = if renormalize { &ids[..per_token] } else { &ids[..] };
        let sum: f64 = counted.iter().map(|&id| share(id)).sum();
        for (route, &id) in routes.chunks_exact_mut(2).zip(&ids) {
            route[0] = id as f32;
            route[1] = (share(id) / sum) as f32;
        }
    }
}

/// Maps a logit to an integer with the same order.
fn order(logit: f32) -> u32 {
    let bits = logit.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(logits: &[f32], per_token: usize, renormalize: bool) -> Vec<f32> {
        let mut routes = vec![f32::NAN; 2 * per_token];
        route_experts(logits, logits.len(), per_token, renormalize, &mut routes);
        routes
    }

    #[test]
    fn the_largest_come_first_and_ties_go_to_the_lowest_id() {
        let routes = route(&[1.0, 3.0, -2.0, 3.0, 2.0], 4, true);
        assert_eq!(routes.iter().step_by(2).copied().collect::<Vec<_>>(), [1.0, 3.0, 4.0, 0.0]);
        let weights: Vec<f32> = routes.iter().skip(1).step_by(2).copied().collect();
        let sum = 2.0 + (-1.0f64).exp() + (-2.0f64).exp();
        let expected = [1.0 / sum, 1.0 / sum, (-1.0f64).exp() / sum, (-2.0f64).exp() / sum].map(|weight| weight as f32);
        assert_eq!(weights, expected);
    }

    #[test]
    fn weights_are_shares_of_all_experts_or_of_the_chosen() {
        assert_eq!(route(&[0.0; 8], 2, false), [0.0, 0.125, 1.0, 0.125]);
        assert_eq!(route(&[0.0; 8], 2, true), [0.0, 0.5, 1.0, 0.5]);
    }

    #[test]
    fn a_row_that_failed_names_experts_and_weighs_nan() {
        let routes = route(&[f32::NAN; 3], 2, true);
        assert_eq!([routes[0], routes[2]], [0.0, 1.0]);
        assert!(routes[1].is_nan() && routes[3].is_nan());
    }
}
