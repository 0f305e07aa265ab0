//! Tests of `backend/reference/rotate_rows.rs`.

use crate::backend::reference::rope_store_kv::{Rotation, Transform};
use crate::plan::StoreOptions;
use std::f32::consts::FRAC_PI_2;

#[test]
fn a_quarter_turn_swaps_the_halves_of_each_head() {
    let rotation = Rotation {
        frequencies: vec![FRAC_PI_2],
        interleaved: false,
        scale: 1.0,
    };
    let transform = Transform {
        q_norm: None,
        k_norm: None,
        rotation: Some(rotation),
        options: StoreOptions::default(),
    };
    let turned = transform.turn(&[1.0, 2.0, 3.0, 4.0], &None, 1, 2);
    for (value, expected) in turned.iter().zip([-2.0, 1.0, -4.0, 3.0]) {
        assert!((value - expected).abs() < 1e-6, "{turned:?}");
    }
}
