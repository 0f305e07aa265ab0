//! Rotations, norms and where keys and values are stored.

use super::*;
use crate::plan::KvFormat;
use crate::plan::QueryGrowth;
use crate::plan::format::KvTile;

const HEADS: Heads = Heads {
    query: 2,
    kv: 1,
    dim: 8,
};

fn run(transform: &Transform, position: u32, slot: u32) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    run_in(KvFormat::F32, transform, position, slot)
}

fn run_in(
    format: KvFormat,
    transform: &Transform,
    position: u32,
    slot: u32,
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let qkv: Vec<f32> = (0..32).map(|i| i as f32 + 1.0).collect();
    let tile = KvTile {
        format,
        slots: 4,
        head_dim: 8,
    };
    let mut keys = KvStore::new(tile, 2).unwrap();
    let mut values = KvStore::new(tile, 2).unwrap();
    let mut q = vec![f32::NAN; 16];
    let mut target = Target {
        keys: &mut keys,
        values: &mut values,
        block_size: 4,
        slots: &[slot],
    };
    rope_store_kv(
        &qkv,
        &[position],
        HEADS,
        transform,
        &mut target,
        (&mut q, Storage::F32),
    );
    let all = |store: &KvStore| {
        let mut out = vec![0.0; store.elements()];
        store.read(0, &mut out);
        out
    };
    (q, all(&keys), all(&values))
}

#[test]
fn q8_rounds_what_was_rotated_once() {
    let transform = rotation(false, 4, 1.0);
    let (q, keys, values) = run(&transform, 1, 6);
    let (q_q8, keys_q8, values_q8) = run_in(KvFormat::Q8, &transform, 1, 6);
    assert_eq!(q, q_q8, "q is no part of the pool");
    for (exact, found, largest) in [(keys, keys_q8, 24.0), (values, values_q8, 32.0)] {
        let half_a_step = largest / 254.0 * 1.0001;
        assert!(
            exact
                .iter()
                .zip(&found)
                .all(|(a, b)| (a - b).abs() <= half_a_step),
            "{found:?}"
        );
        assert!(exact != found, "some element lies between two codes");
    }
}

fn rotation(interleaved: bool, pairs: usize, scale: f32) -> Transform {
    let quarter = std::f32::consts::FRAC_PI_2;
    let rotation = Some(Rotation {
        frequencies: vec![quarter; pairs],
        axes: Vec::new(),
        interleaved,
        scale,
    });
    Transform {
        q_norm: None,
        k_norm: None,
        rotation,
        options: StoreOptions::default(),
    }
}

fn plain(q_norm: Option<(Norm, bool)>) -> Transform {
    Transform {
        q_norm,
        k_norm: None,
        rotation: None,
        options: StoreOptions::default(),
    }
}

fn close(values: &[f32], expected: &[f32]) {
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(expected) {
        assert!(
            (value - expected).abs() <= 1e-5 * (1.0 + expected.abs()),
            "{value} is not {expected}"
        );
    }
}

#[test]
fn without_options_rows_pass_through_to_their_slot() {
    let (q, keys, values) = run(&plain(None), 5, 6);
    assert_eq!(q, (1..=16).map(|i| i as f32).collect::<Vec<_>>());
    // Slot 6 is offset 2 of block 1: elements 32 + 16 on.
    assert_eq!(
        keys[48..56],
        (17..=24).map(|i| i as f32).collect::<Vec<_>>()
    );
    assert_eq!(
        values[48..56],
        (25..=32).map(|i| i as f32).collect::<Vec<_>>()
    );
    assert_eq!(
        keys.iter()
            .chain(&values)
            .filter(|value| **value != 0.0)
            .count(),
        16,
        "nothing else is written"
    );
}

#[test]
fn no_slot_writes_q_alone() {
    let (q, keys, values) = run(&rotation(false, 4, 1.0), 0, NONE);
    assert_eq!(
        q,
        (1..=16).map(|i| i as f32).collect::<Vec<_>>(),
        "position 0 is not rotated"
    );
    assert!(keys.iter().chain(&values).all(|value| *value == 0.0));
}

#[test]
fn a_quarter_turn_swaps_the_pair() {
    let (q, keys, _) = run(&rotation(false, 4, 1.0), 1, 0);
    close(&q[..8], &[-5.0, -6.0, -7.0, -8.0, 1.0, 2.0, 3.0, 4.0]);
    close(
        &keys[..8],
        &[-21.0, -22.0, -23.0, -24.0, 17.0, 18.0, 19.0, 20.0],
    );
    let (q, ..) = run(&rotation(true, 4, 1.0), 1, 0);
    close(&q[..8], &[-2.0, 1.0, -4.0, 3.0, -6.0, 5.0, -8.0, 7.0]);
    let (q, ..) = run(&rotation(false, 2, 3.0), 1, 0);
    close(&q[..8], &[-9.0, -12.0, 3.0, 6.0, 5.0, 6.0, 7.0, 8.0]);
}

/// q·k depends only on the distance between the positions.
#[test]
fn products_of_rotated_heads_depend_on_distance() {
    let frequencies: Vec<f32> = (0..4).map(|i| 10f32.powi(-i)).collect();
    let rotation = Some(Rotation {
        frequencies,
        axes: Vec::new(),
        interleaved: false,
        scale: 1.0,
    });
    let transform = Transform {
        q_norm: None,
        k_norm: None,
        rotation,
        options: StoreOptions::default(),
    };
    let product = |q_position, k_position| {
        let q = run(&transform, q_position, 0).0;
        let keys = run(&transform, k_position, 0).1;
        q[..8]
            .iter()
            .zip(&keys[..8])
            .map(|(q, k)| f64::from(*q) * f64::from(*k))
            .sum::<f64>()
    };
    let expected = product(7, 3);
    for shift in [1, 20, 333] {
        assert!(
            (product(7 + shift, 3 + shift) - expected).abs() < 1e-2,
            "shift {shift}"
        );
    }
    assert!(
        (product(8, 3) - expected).abs() > 1.0,
        "and it does depend on it"
    );
}

#[test]
fn head_norms_come_before_the_rotation() {
    let norm = |one_plus| Norm {
        weight: vec![2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        epsilon: 0.0,
        one_plus,
    };
    let mut transform = rotation(false, 4, 1.0);
    transform.q_norm = Some((norm(false), false));
    transform.k_norm = Some((norm(true), false));
    let (q, keys, values) = run(&transform, 1, 0);
    let rms = (204.0f32 / 8.0).sqrt();
    close(
        &q[..8],
        &[-5.0, -6.0, -7.0, -8.0, 2.0, 2.0, 3.0, 4.0].map(|v| v / rms),
    );
    let rms = ((17..=24).map(|i| i * i).sum::<i32>() as f32 / 8.0).sqrt();
    close(
        &keys[..8],
        &[-42.0, -44.0, -46.0, -48.0, 51.0, 36.0, 38.0, 40.0].map(|v| v / rms),
    );
    assert_eq!(values[0], 25.0, "values are stored as they are");
}

#[test]
fn a_norm_with_weights_for_all_heads_is_of_the_whole_row() {
    let weight = (0..16).map(|i| if i == 9 { 3.0 } else { 1.0 }).collect();
    let norm = Norm {
        weight,
        epsilon: 0.0,
        one_plus: false,
    };
    let (q, keys, _) = run(&plain(Some((norm, false))), 0, 0);
    let rms = ((1..=16).map(|i| i * i).sum::<i32>() as f32 / 16.0).sqrt();
    let expected: Vec<f32> = (1..=16)
        .map(|i| i as f32 * if i == 10 { 3.0 } else { 1.0 } / rms)
        .collect();
    close(&q, &expected);
    assert_eq!(
        keys[..8],
        (17..=24).map(|i| i as f32).collect::<Vec<_>>(),
        "k is not normalized here"
    );
}

#[test]
fn norms_may_follow_the_rotation_values_may_be_normed_and_queries_may_grow() {
    let weight = vec![2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
    let mut transform = rotation(false, 4, 1.0);
    transform.q_norm = Some((
        Norm {
            weight,
            epsilon: 0.0,
            one_plus: false,
        },
        true,
    ));
    let query_growth = Some(QueryGrowth {
        ahead: 0,
        slope: 2.0,
        positions: 4,
    });
    transform.options = StoreOptions {
        v_epsilon: Some(0.0),
        query_growth,
        q_only: false,
    };
    let (q, _, values) = run(&transform, 1, 0);
    let rms = (204.0f32 / 8.0).sqrt();
    close(
        &q[..8],
        &[-10.0, -6.0, -7.0, -8.0, 1.0, 2.0, 3.0, 4.0].map(|v| v / rms),
    );
    let rms = ((25..=32).map(|i| i * i).sum::<i32>() as f32 / 8.0).sqrt();
    close(
        &values[..8],
        &[25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0, 32.0].map(|v| v / rms),
    );
    let (grown, ..) = run(&transform, 9, 0);
    let growth = 1.0 + 2.0 * 3f32.ln();
    close(
        &grown[..8],
        &[-10.0, -6.0, -7.0, -8.0, 1.0, 2.0, 3.0, 4.0]
            .map(|v| v / (204.0f32 / 8.0).sqrt() * growth),
    );
}
