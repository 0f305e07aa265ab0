//! Which continuations a search selects.

use super::*;

fn search(width: u32, length_penalty: f32, early_stopping: bool) -> BeamSearch<u32> {
    BeamSearch::new(BeamParams {
        width,
        length_penalty,
        early_stopping,
    })
}

/// One step from a single beam; tokens from 100 on end.
fn step(search: &mut BeamSearch<u32>, length: u32, candidates: &[(u32, f32)]) -> Vec<u32> {
    let ranked = ranked([(0.0, candidates)].into_iter());
    let fate = |c: &Continuation| {
        if c.token_id < 100 {
            Fate::Continues
        } else {
            Fate::Ends(FinishReason::Stop)
        }
    };
    let next = search.select(&ranked, length, fate, |c| c.token_id);
    next.iter().map(|c| c.token_id).collect()
}

#[test]
fn an_end_counts_only_among_the_best_and_is_replaced_by_the_next_best() {
    let mut search = search(2, 1.0, false);
    assert_eq!(
        step(
            &mut search,
            1,
            &[(100, -1.0), (1, -2.0), (101, -3.0), (2, -4.0), (3, -5.0)]
        ),
        [1, 2]
    );
    let found: Vec<_> = search
        .into_finished()
        .iter()
        .map(|h| (h.answer, h.score))
        .collect();
    assert_eq!(found, [(100, -1.0)], "rank 2 is too late for an end");
}

#[test]
fn a_search_is_over_when_no_beam_can_be_better_or_as_soon_as_it_may() {
    let two = [(100, -4.0), (101, -5.0), (1, -6.0), (2, -7.0)];
    assert_eq!(
        step(&mut search(2, 1.0, false), 4, &two),
        [0; 0],
        "-6 is worse than both"
    );
    let near = [(100, -4.0), (1, -4.5), (101, -5.0), (2, -7.0)];
    let mut patient = search(2, 0.0, false);
    assert_eq!(
        step(&mut patient, 1, &near),
        [1, 2],
        "one hypothesis is not enough"
    );
    assert_eq!(
        step(&mut patient, 2, &[(100, -6.0), (1, -5.5), (2, -8.0)]),
        [1, 2],
        "-5.5 may still improve on -6"
    );
    let mut hasty = search(2, 0.0, true);
    assert_eq!(step(&mut hasty, 1, &near), [1, 2]);
    assert_eq!(
        step(&mut hasty, 2, &[(100, -6.0), (1, -5.5), (2, -8.0)]),
        [0; 0]
    );
}

#[test]
fn long_answers_gain_by_a_length_penalty() {
    let mut search = search(2, 2.0, false);
    step(&mut search, 1, &[(100, -2.0), (1, -3.0), (2, -3.0)]);
    step(&mut search, 4, &[(101, -16.0), (1, -17.0), (2, -17.0)]);
    let found: Vec<_> = search
        .into_finished()
        .iter()
        .map(|h| (h.answer, h.score))
        .collect();
    assert_eq!(found, [(101, -1.0), (100, -2.0)]);
}

#[test]
fn candidates_cover_all_ends() {
    let count = |stops: usize, ignore_eos| {
        let params = SamplingParams {
            stop_token_ids: vec![1; stops],
            ignore_eos,
            ..SamplingParams::default()
        };
        candidates(&params, 4, 2)
    };
    assert_eq!(
        [
            count(0, true),
            count(0, false),
            count(1, true),
            count(3, false)
        ],
        [8, 12, 8, 24]
    );
    assert_eq!(count(128, false), TOP_LOGPROBS_MAX);
}
