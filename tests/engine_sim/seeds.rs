//! Requests without a seed.

use crate::faults::{request, scripted};
use crate::world::run;
use folio::engine::request::Request;
use std::collections::BTreeSet;

/// The answers to two equal requests without a seed, two choices each.
fn answers(script: &str, seed: Option<u64>) -> Vec<Vec<u32>> {
    let mut without: Request = request(10, 9, 12);
    (without.params.seed, without.params.n) = (None, 2);
    let mut case = scripted(script, vec![(0, without.clone()), (2, without)]);
    case.config.seed = seed;
    run(&case)
        .seen
        .into_iter()
        .flatten()
        .map(|seen| seen.tokens)
        .collect()
}

#[test]
fn requests_without_a_seed_differ_from_each_other_and_from_run_to_run() {
    let all = [
        answers("", None),
        answers("", None),
        answers("", Some(5)),
        answers("", Some(6)),
    ]
    .concat();
    assert!(all.iter().all(|answer| answer.len() == 12));
    assert_eq!(
        all.iter().collect::<BTreeSet<_>>().len(),
        16,
        "no answer comes twice: {all:?}"
    );
}

#[test]
fn a_seed_for_all_repeats_their_answers_also_after_a_loss() {
    let once = answers("", Some(5));
    assert_eq!(answers("seed=9", Some(5)), once);
    assert_eq!(answers("lost@4", Some(5)), once, "a request keeps its seed");
}
