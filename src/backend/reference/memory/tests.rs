//! Tests of `backend/reference/memory.rs`.

use super::*;
use crate::plan::{Plan, Section};

fn weight() -> Weight {
    let mut plan = Plan::default();
    plan.weight("w", 5, 2, WeightFormat::Bf16);
    Weight::new(plan.weights.remove(0))
}

#[test]
fn rows_may_differ_in_format_and_a_chunk_keeps_to_one() {
    let mut plan = Plan::default();
    let parts = [(3, WeightFormat::Bf16), (2, WeightFormat::F32)];
    plan.weight_in_sections(
        "w",
        2,
        &parts.map(|(rows, format)| Section { rows, format }),
    );
    let mut weight = Weight::new(plan.weights.remove(0));
    let bytes: Bytes = (0..28).collect::<Vec<u8>>().into();
    assert!(
        weight.insert(2, bytes.slice(0..12)).is_err(),
        "rows of two formats"
    );
    weight.insert(3, bytes.slice(12..28)).unwrap();
    weight.insert(0, bytes.slice(0..12)).unwrap();
    assert!(weight.is_whole());
    assert_eq!(
        (weight.row(2), weight.format_of(2)),
        (&bytes[8..12], WeightFormat::Bf16)
    );
    assert_eq!(
        (weight.row(4), weight.format_of(4)),
        (&bytes[20..28], WeightFormat::F32)
    );
}

#[test]
fn chunks_may_come_in_any_order_and_alignment() {
    let bytes: Bytes = (0..21).collect::<Vec<u8>>().into();
    let mut weight = weight();
    weight.insert(3, bytes.slice(13..21)).unwrap();
    assert!(!weight.is_whole());
    weight.insert(0, bytes.slice(1..5)).unwrap();
    weight.insert(1, bytes.slice(5..13)).unwrap();
    assert!(weight.is_whole());
    for row in 0..5 {
        assert_eq!(weight.row(row), &bytes[1 + row * 4..][..4], "row {row}");
    }
}

#[test]
fn wrong_chunks_are_refused() {
    let zeros = |length: usize| Bytes::from(vec![0; length]);
    let mut weight = weight();
    assert!(weight.insert(0, zeros(6)).is_err(), "not whole rows");
    assert!(weight.insert(4, zeros(8)).is_err(), "past the end");
    weight.insert(1, zeros(8)).unwrap();
    assert!(weight.insert(0, zeros(8)).is_err(), "overlaps what follows");
    assert!(
        weight.insert(2, zeros(4)).is_err(),
        "overlaps what precedes"
    );
}
