//! Tests of `backend/reference/route_experts.rs`.

use super::*;

fn route(logits: &[f32], per_token: usize, renormalize: bool) -> Vec<f32> {
    let router = Router {
        routing: Routing::softmax(renormalize),
        bias: None,
        scale: None,
    };
    let mut routes = vec![f32::NAN; 2 * per_token];
    router.route(logits, logits.len(), per_token, &mut routes);
    routes
}

/// Biases choose, but do not weigh; the third group has the best expert, but not the best two.
#[test]
fn biased_groups_choose_by_two_and_weigh_without_bias() {
    let groups = Some(ExpertGroups { count: 3, kept: 1 });
    let routing = Routing {
        sigmoid: true,
        groups,
        factor: 2.0,
        ..Routing::softmax(false)
    };
    let bias = Some(vec![0.0, 0.0, 0.5, 0.25, 0.9, -1.0]);
    let router = Router {
        routing,
        bias,
        scale: Some(vec![1.0, 1.0, 3.0, 1.0, 1.0, 1.0]),
    };
    let mut routes = [f32::NAN; 4];
    router.route(&[0.0; 6], 6, 2, &mut routes);
    assert_eq!(routes, [2.0, 3.0, 3.0, 1.0]);
    let routing = Routing {
        renormalize: true,
        ..router.routing
    };
    Router { routing, ..router }.route(&[0.0; 6], 6, 2, &mut routes);
    assert_eq!(routes, [2.0, 3.0, 3.0, 1.0], "two equal scores");
}

/// The second group has the best expert, the first one the best two. Weights are shares of all experts.
#[test]
fn groups_without_bias_choose_by_their_best() {
    let routing = Routing {
        groups: Some(ExpertGroups { count: 3, kept: 1 }),
        ..Routing::softmax(false)
    };
    let router = Router {
        routing,
        bias: None,
        scale: None,
    };
    let logits = [0.5_f32, 0.5, 1.0, 0.25, 0.25, 0.25].map(f32::ln);
    let mut routes = [f32::NAN; 4];
    router.route(&logits, 6, 2, &mut routes);
    let [first, second] = [1.0 / 2.75, 0.25 / 2.75];
    assert_eq!((routes[0], routes[2]), (2.0, 3.0));
    assert!(
        (routes[1] - first).abs() < 1e-6 && (routes[3] - second).abs() < 1e-6,
        "{routes:?}"
    );
}

#[test]
fn the_largest_come_first_and_ties_go_to_the_lowest_id() {
    let routes = route(&[1.0, 3.0, -2.0, 3.0, 2.0], 4, true);
    assert_eq!(
        routes.iter().step_by(2).copied().collect::<Vec<_>>(),
        [1.0, 3.0, 4.0, 0.0]
    );
    let weights: Vec<f32> = routes.iter().skip(1).step_by(2).copied().collect();
    let sum = 2.0 + (-1.0f64).exp() + (-2.0f64).exp();
    let expected = [
        1.0 / sum,
        1.0 / sum,
        (-1.0f64).exp() / sum,
        (-2.0f64).exp() / sum,
    ]
    .map(|weight| weight as f32);
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

/// The bias is added to probabilities of all experts: 1/8, 1/8, 1/4, 1/2.
#[test]
fn a_bias_chooses_among_probabilities() {
    let routing = Routing::softmax(true);
    let router = Router {
        routing,
        bias: Some(vec![0.0, 0.5, 0.3, 0.0]),
        scale: None,
    };
    let logits = [1.0_f32, 1.0, 2.0, 4.0].map(f32::ln);
    let mut routes = [f32::NAN; 4];
    router.route(&logits, 4, 2, &mut routes);
    assert_eq!((routes[0], routes[2]), (1.0, 2.0));
    assert!((routes[1] - 1.0 / 3.0).abs() < 1e-6, "{routes:?}");
    assert!((routes[3] - 2.0 / 3.0).abs() < 1e-6, "{routes:?}");
}

/// The second expert is near the first, the third is not; the fourth is near the second.
#[test]
fn a_sparse_mixer_weighs_each_choice_among_those_near_it() {
    let router = Router {
        routing: Routing {
            mixer: Some(0.2),
            ..Routing::softmax(false)
        },
        bias: None,
        scale: None,
    };
    let mut routes = [f32::NAN; 4];
    router.route(&[2.0, 1.5, -3.0, 1.7], 4, 2, &mut routes);
    let near = |difference: f32| 1.0 / (1.0 + (-difference).exp());
    let expected = [0.0, near(0.3), 3.0, near(0.2)];
    let close = |(found, expected): (&f32, f32)| (found - expected).abs() < 1e-6;
    assert!(routes.iter().zip(expected).all(close), "{routes:?}");
}
