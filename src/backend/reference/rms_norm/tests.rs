//! Tests of `backend/reference/rms_norm.rs`.

use super::*;

const NOTHING: Finish = Finish {
    bias: None,
    scale: 1.0,
};

fn norm(x: &[f32], weight: &[f32], epsilon: f32, one_plus: bool) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    rms_norm(
        x,
        &Norm {
            weight: weight.to_vec(),
            epsilon,
            one_plus,
        },
        &NOTHING,
        false,
        &mut out,
        Storage::F32,
    );
    out
}

#[test]
fn accumulating_adds_the_row_to_what_was_there() {
    let mut out = [100.0, -1.0];
    let norm = Norm {
        weight: vec![1.0, 2.0],
        epsilon: 0.0,
        one_plus: false,
    };
    rms_norm(&[5.0, 5.0], &norm, &NOTHING, true, &mut out, Storage::F32);
    assert_eq!(out, [101.0, 1.0]);
    let finish = Finish {
        bias: Some(vec![2.0, -3.0]),
        scale: 0.5,
    };
    rms_norm(&[5.0, 5.0], &norm, &finish, true, &mut out, Storage::F32);
    assert_eq!(out, [52.0, 0.0], "the scale multiplies what was there, too");
}

#[test]
fn a_centered_row_has_no_mean() {
    assert_eq!(centered(&[1.0, 3.0, 5.0, 5.0], 2), [-1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn closed_form() {
    // mean of squares 12.5, so 3 / sqrt(12.5) = 0.848528…
    let out = norm(&[3.0, 4.0], &[1.0, 10.0], 0.0, false);
    assert_eq!(
        out,
        [3.0 / 12.5f64.sqrt() as f32, (40.0 / 12.5f64.sqrt()) as f32]
    );
    assert_eq!(norm(&[3.0, 4.0], &[0.0, 9.0], 0.0, true), out, "1 + w");
    assert_eq!(
        norm(&[0.0, 0.0], &[1.0, 1.0], 1e-6, false),
        [0.0, 0.0],
        "a zero row stays zero"
    );
}

#[test]
fn scaling_a_row_changes_nothing_without_epsilon() {
    let x: Vec<f32> = (0..40).map(|i| (i as f32 * 0.7).sin()).collect();
    let scaled: Vec<f32> = x.iter().map(|x| x * 1024.0).collect();
    let weight = vec![0.5; 40];
    assert_eq!(
        norm(&x, &weight, 0.0, false),
        norm(&scaled, &weight, 0.0, false)
    );
}

#[test]
fn every_row_has_unit_mean_square() {
    let x: Vec<f32> = (0..120)
        .map(|i| (i as f32 * 1.3).cos() * (i as f32))
        .collect();
    for row in norm(&x, &[1.0; 24], 0.0, false).chunks(24) {
        let mean: f32 = row.iter().map(|v| v * v).sum::<f32>() / 24.0;
        assert!((mean - 1.0).abs() < 1e-5, "{mean}");
    }
}

#[test]
fn the_sum_is_rounded_to_its_storage_before_the_norm() {
    let mut x = [1.0, 256.0];
    add(&mut x, &[1.0, 1.0], Storage::Bf16);
    assert_eq!(x, [2.0, 256.0], "257 is not a bfloat16");
}
