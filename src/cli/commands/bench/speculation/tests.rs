//! Tests of `cli/commands/bench/speculation.rs`.

use super::*;

#[test]
fn as_many_drafts_are_accepted_as_asked_for() {
    for (accepted, drafts, right) in [
        (0.8, 5, 0.926_519),
        (0.8, 1, 0.8),
        (0.0, 5, 0.0),
        (1.0, 5, 1.0),
    ] {
        let found = right_share(accepted, drafts);
        assert!(
            (found - right).abs() < 1e-6,
            "{found} for {accepted} of {drafts}"
        );
    }
    let ids: Vec<u32> = (0..100_000).map(|id| id % 100).collect();
    let spoilt = spoilt(&mut Numbers(1), &ids, right_share(0.6, 4), 100);
    let right: Vec<_> = spoilt
        .iter()
        .zip(&ids)
        .map(|(draft, id)| draft == id)
        .collect();
    let accepted: usize = right
        .chunks(4)
        .map(|step| step.iter().take_while(|right| **right).count())
        .sum();
    assert!(
        (accepted as f64 / 1e5 - 0.6).abs() < 0.01,
        "{accepted} of 100000"
    );
}

#[test]
fn as_many_drafts_are_right_as_asked_for() {
    let ids: Vec<u32> = (0..10_000).map(|id| id % 100).collect();
    for share in [0.0, 0.8, 1.0] {
        let spoilt = spoilt(&mut Numbers(1), &ids, share, 100);
        let right = spoilt
            .iter()
            .zip(&ids)
            .filter(|(draft, id)| draft == id)
            .count();
        assert!(
            (right as f64 / 1e4 - share).abs() < 0.02,
            "{right} of 10000 for {share}"
        );
    }
}
