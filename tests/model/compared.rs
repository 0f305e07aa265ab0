//! Golden numbers, and how results are compared with them.

use super::*;

pub(super) fn numbers(value: &Value) -> Vec<f32> {
    value
        .as_array()
        .expect("a list")
        .iter()
        .map(|number| number.as_f64().expect("a number") as f32)
        .collect()
}

pub(super) fn top_logprobs(prompt: &Value) -> Vec<Vec<(u32, f32)>> {
    let pair = |pair: &Value| {
        (
            pair[0].as_u64().expect("an id") as u32,
            pair[1].as_f64().expect("a logprob") as f32,
        )
    };
    let steps = prompt["top5_logprobs_first_8"]
        .as_array()
        .expect("a list of steps");
    steps
        .iter()
        .map(|step| {
            step.as_array()
                .expect("a list of pairs")
                .iter()
                .map(pair)
                .collect()
        })
        .collect()
}

/// Compares a run with its golden case. Golden cases have no step near a tie, so tokens are identical. Returns the
/// largest difference of logits.
pub(super) fn compare(place: &str, case: &Case, run: &Run, tolerance: f32) -> f32 {
    let difference = largest_difference(&case.logits, &run.logits[0]);
    assert!(
        difference <= tolerance,
        "{place}: logits differ by {difference}, at most {tolerance} is allowed"
    );
    assert_eq!(run.tokens, case.greedy, "{place}: greedy tokens");
    difference
}

pub(super) fn largest_difference(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len(), "a logit for each token");
    assert!(
        found.iter().all(|logit| logit.is_finite()),
        "logits are numbers"
    );
    expected
        .iter()
        .zip(found)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Number of equal leading tokens. They may differ only where the run's own two most likely tokens are nearly tied.
pub(super) fn equal_tokens(case: &Case, run: &Run, tolerance: f32) -> usize {
    for (index, (found, expected)) in run.tokens.iter().zip(&case.greedy).enumerate() {
        if found != expected {
            let top = &run.steps[index].top;
            let margin = top[0].1 - top[1].1;
            assert!(
                margin < 2.0 * tolerance,
                "token {index} is {found}, not {expected}, with a margin of {margin}"
            );
            return index;
        }
    }
    assert_eq!(run.tokens.len(), case.greedy.len());
    case.greedy.len()
}

/// Checks that every expected logprob is reported, or lies within the tolerance of the last one reported.
pub(super) fn compare_top(place: &str, found: &Sampled, expected: &[(u32, f32)], tolerance: f32) {
    assert_eq!(
        found.top.len(),
        expected.len(),
        "{place}: as many as asked for"
    );
    let last = found.top[found.top.len() - 1].1;
    for (id, logprob) in expected {
        let near = found
            .top
            .iter()
            .find(|(found_id, _)| found_id == id)
            .map_or(last, |(_, found)| *found);
        // Unlikely tokens have large logprobs; f16 keys and values move them in proportion.
        let allowed = tolerance * logprob.abs().max(1.0);
        assert!(
            (near - logprob).abs() <= allowed,
            "{place}: logprob of {id} is {near}, not {logprob}"
        );
    }
    let drawn = found
        .top
        .iter()
        .find(|(id, _)| *id == found.token_id)
        .expect("a greedy token is among the likeliest");
    assert_eq!(drawn.1, found.logprob, "{place}: one logprob of one token");
}
