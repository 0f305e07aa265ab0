//! Tests of the sizes of towers' steps.

use super::*;
use crate::backend::{Allocation, DeviceKind};
use crate::plan::{GatherRows, Rows, Step, Storage, Tail, WeightFormat};

fn caps(binding_bytes_max: u64) -> Caps {
    Caps {
        name: "gpu".into(),
        api: "test",
        kind: DeviceKind::Discrete,
        tier: String::new(),
        activations: Storage::F32,
        int8_activations: false,
        half_products: false,
        binding_bytes_max,
        memory_bytes: None,
        memory_source: "",
        machine_bytes: None,
        allocation: Allocation::default(),
    }
}

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
    let tower = TowerPlan::new(plan, 64, &caps(u64::MAX));
    let capacity = &tower.capacity;
    assert_eq!((capacity.tokens_max, capacity.sequences_max), (1024, 64));
    assert_eq!((tower.rows_limited(), tower.room(9).patches), (None, 64));
}

/// Runs of four patches, whose rows take 32 bytes: 100 fit the buffers, and 25 runs.
#[test]
fn tiles_that_do_not_fit_a_devices_buffers_are_not_computed() {
    let mut plan = Plan::default();
    let x = plan.buffer("x", Rows::Tokens, 8, Storage::F32);
    let out = plan.buffer("merged", Rows::Samples, 32, Storage::F32);
    let gather = Step::GatherRows(GatherRows { x, out });
    plan.tails.push((Tail::Pool, vec![gather]));
    for (tile, bytes, patches, limited) in [
        (400, 1 << 20, 400, None),
        (400, 3327, 100, Some(25)),
        (100, 3327, 100, None),
        (104, 3327, 100, Some(25)),
        (400, 1, 4, Some(1)),
    ] {
        let tower = TowerPlan::new(plan.clone(), tile, &caps(bytes));
        let room = tower.room(9);
        assert_eq!((room.patches, tower.rows_limited()), (patches, limited));
        assert_eq!(room.tile_rows(), patches / 4);
        let capacity = &tower.capacity;
        assert!(capacity.tokens_max >= patches);
        assert!(bytes < 128 || u64::from(capacity.tokens_max) * 32 <= bytes);
        assert_eq!(capacity.samples_max, capacity.tokens_max / 4);
    }
}
