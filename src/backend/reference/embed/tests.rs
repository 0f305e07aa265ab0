//! Tests of `backend/reference/embed.rs`.

use super::*;
use crate::plan::{Plan, WeightFormat};

#[test]
fn rows_come_from_the_batch_or_from_a_feed_slot() {
    let mut plan = Plan::default();
    plan.weight("t", 3, 2, WeightFormat::F32);
    let mut table = Weight::new(plan.weights.remove(0));
    let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.1]
        .iter()
        .flat_map(|v| v.to_le_bytes())
        .collect();
    table.insert(0, bytes.into()).unwrap();
    let mut out = [0.0; 6];
    let mut step = Embed {
        table: crate::plan::WeightId(0),
        id: RowId::Token,
        scale: 2.0,
        accumulate: false,
        out: crate::plan::BufferId(0),
    };
    let inputs = BatchInputs {
        token_ids: vec![2 | SECOND_TEXT, 0, FEED | 1],
        positions: vec![0, 1, 0],
        ..BatchInputs::default()
    };
    let of = |id| ids(id, &inputs, &[0, 1]);
    embed(&table, of(RowId::Token), &step, &mut out, Storage::Bf16);
    assert_eq!(out, [10.0, 12.1875, 2.0, 4.0, 6.0, 8.0]);
    (step.scale, step.accumulate) = (1.0, true);
    embed(
        &table,
        of(RowId::Position(1)),
        &step,
        &mut out,
        Storage::F32,
    );
    assert_eq!(out, [13.0, 16.1875, 7.0, 10.1, 9.0, 12.0]);
    assert_eq!(Vec::from_iter(of(RowId::Text)), [Some(1), Some(0), Some(0)]);
    assert_eq!(Vec::from_iter(of(RowId::Image)), [None; 3]);
}

#[test]
fn rows_of_images_are_looked_up_by_their_own_step_alone() {
    let inputs = BatchInputs {
        token_ids: vec![7, IMAGE_ROW | 2, FEED | 1, IMAGE_ROW],
        positions: vec![0, 1, 2, 3],
        ..BatchInputs::default()
    };
    let of = |id| Vec::from_iter(ids(id, &inputs, &[0, 5]));
    assert_eq!(of(RowId::Token), [Some(7), None, Some(5), None]);
    assert_eq!(of(RowId::Image), [None, Some(2), None, Some(0)]);
}
