//! Tests of the sizes of towers' steps.

use super::*;
use crate::plan::WeightFormat;

#[test]
fn a_step_has_room_for_whole_tiles_only() {
    for (tile, patches) in [
        (64, 1024),
        (100, 1000),
        (676, 676),
        (1024, 1024),
        (4096, 4096),
    ] {
        assert_eq!(TowerPlan::patches(tile), patches);
    }
    let mut plan = Plan::default();
    plan.weight("patches", 1024, 8, WeightFormat::F32);
    let capacity = TowerPlan::new(plan, 64).capacity;
    assert_eq!((capacity.tokens_max, capacity.sequences_max), (1024, 64));
}
