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
    embed(
        &table,
        &[2, 0, FEED | 1],
        &[0, 1],
        2.0,
        &mut out,
        Storage::Bf16,
    );
    assert_eq!(out, [10.0, 12.1875, 2.0, 4.0, 6.0, 8.0]);
}
