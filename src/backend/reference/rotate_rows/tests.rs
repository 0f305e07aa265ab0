//! Tests of `backend/reference/rotate_rows.rs`.

use crate::backend::reference::rope_store_kv::{Rotation, Transform};
use crate::plan::StoreOptions;
use crate::plan::inputs::AXES;
use std::f32::consts::FRAC_PI_2;

#[test]
fn a_quarter_turn_swaps_the_halves_of_each_head() {
    let rotation = Rotation {
        frequencies: vec![FRAC_PI_2],
        axes: Vec::new(),
        interleaved: false,
        scale: 1.0,
    };
    let transform = Transform {
        q_norm: None,
        k_norm: None,
        rotation: Some(rotation),
        options: StoreOptions::default(),
    };
    let turned = transform.turn(&[1.0, 2.0, 3.0, 4.0], &None, [1; AXES], 2);
    for (value, expected) in turned.iter().zip([-2.0, 1.0, -4.0, 3.0]) {
        assert!((value - expected).abs() < 1e-6, "{turned:?}");
    }
}

#[test]
fn each_frequency_turns_by_its_axis() {
    let rotation = Rotation {
        frequencies: vec![0.5, 0.25, 0.125],
        axes: vec![2, 0, 1],
        interleaved: false,
        scale: 1.0,
    };
    let turns = rotation.turns([4, 8, 16]);
    let angles = turns.iter().map(|(cos, sin)| sin.atan2(*cos));
    for (angle, expected) in angles.zip([8.0_f64, 1.0, 1.0]) {
        assert!((angle.sin() - expected.sin()).abs() < 1e-9, "{turns:?}");
        assert!((angle.cos() - expected.cos()).abs() < 1e-9, "{turns:?}");
    }
}
