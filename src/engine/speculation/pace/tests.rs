//! Tests of `engine/speculation/pace.rs`.

use super::*;

/// Notes a step often enough for its time to be known.
fn measure(pace: &mut Pace, rows: u32, drafts: u32, seconds: f64) {
    (0..=TIMES_MIN).for_each(|_| pace.note(rows, drafts, seconds));
}

#[test]
fn as_many_drafts_as_pay() {
    let mut pace = Pace::default();
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.9),
        5,
        "rows are cheap until they are measured"
    );
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.01),
        0,
        "drafts that are never right"
    );
    pace.note(6, 5, 9.0);
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.9),
        0,
        "there is nothing to compare with yet"
    );
    measure(&mut pace, 1, 0, 1.0);
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.9),
        5,
        "one slow step proves nothing"
    );
    for drafts in 1..=5 {
        (0..5).for_each(|_| pace.note(1 + drafts, drafts, 1.0 + 0.5 * f64::from(drafts)));
    }
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.4),
        0,
        "a row costs half a step"
    );
    assert_eq!(
        pace.best(Yield::plain(1), 5, 0.8),
        2,
        "2.44 tokens in 2 steps' time, not 2.95 in 2.5"
    );
    assert_eq!(pace.best(Yield::plain(1), 5, 1.0), 5);
}

#[test]
fn a_full_batch_drafts_only_what_it_gains_by() {
    let mut pace = Pace::default();
    measure(&mut pace, 64, 0, 1.0);
    assert_eq!(
        pace.best(Yield::plain(64), 5, 0.5),
        0,
        "a row that is not measured is not free"
    );
    measure(&mut pace, 69, 5, 1.1);
    assert_eq!(
        pace.best(Yield::plain(64), 5, 0.9),
        0,
        "4 tokens of 64 for a tenth of the time"
    );
}

#[test]
fn a_plain_step_after_one_with_drafts_does_not_count() {
    let mut pace = Pace::default();
    for _ in 0..4 {
        pace.note(6, 5, 2.0);
        pace.note(1, 0, 9.0);
    }
    assert_eq!(pace.plain.at(1), None, "it was not submitted ahead");
    measure(&mut pace, 1, 0, 1.0);
    assert_eq!(pace.plain.at(1), Some(1.0));
}

#[test]
fn times_between_measured_ones_are_interpolated() {
    let mut curve = Curve::default();
    assert_eq!(curve.at(3), None);
    for (rows, seconds) in [(2, 1.0), (6, 3.0)] {
        [90.0, seconds, seconds, 0.0, seconds]
            .into_iter()
            .for_each(|seconds| curve.note(rows, seconds));
    }
    assert_eq!(
        (curve.at(2), curve.at(4), curve.at(6)),
        (Some(1.0), Some(2.0), Some(3.0))
    );
    assert!(curve.at(8) > Some(3.0) && curve.at(1) < Some(1.0));
    curve.note(1 + ROWS_MAX, 1.0);
    assert_eq!(curve.0.len(), 7, "times of huge steps are not kept");
}
