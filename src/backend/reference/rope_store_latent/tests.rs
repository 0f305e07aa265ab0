//! Tests of `backend/reference/rope_store_latent.rs`.

use super::*;

/// A quarter turn per position.
fn quarter(interleaved: bool) -> Rotation {
    Rotation {
        frequencies: vec![std::f32::consts::FRAC_PI_2; 2],
        axes: Vec::new(),
        interleaved,
        scale: 2.0,
    }
}

#[test]
fn a_latent_is_normed_and_what_follows_it_is_rotated() {
    let norm = Norm {
        weight: vec![1.0, 2.0],
        epsilon: 0.0,
        one_plus: false,
    };
    let row = [3.0, 4.0, 5.0, 6.0, 7.0, 8.0];
    let close = |found: Vec<f32>, expected: [f64; 6]| {
        for (found, expected) in found.into_iter().zip(expected) {
            assert!(
                (f64::from(found) - expected).abs() < 1e-5,
                "{found} is not {expected}"
            );
        }
    };
    let rms = 12.5f64.sqrt();
    close(
        key(&row, &norm, &quarter(true), 1),
        [3.0 / rms, 8.0 / rms, -12.0, 10.0, -16.0, 14.0],
    );
    close(
        key(&row, &norm, &quarter(false), 1),
        [3.0 / rms, 8.0 / rms, -14.0, -16.0, 10.0, 12.0],
    );
    close(
        key(&row, &norm, &quarter(false), 0),
        [3.0 / rms, 8.0 / rms, 10.0, 12.0, 14.0, 16.0],
    );
}

#[test]
fn a_query_grows_and_only_its_last_elements_are_rotated() {
    let mut q = [f32::NAN; 7];
    write_query(
        &[9.0, 5.0, 6.0, 7.0, 8.0],
        &[1.0, 2.0, 3.0],
        &quarter(true),
        (1, 0.5),
        (&mut q, Storage::F32),
    );
    for (found, expected) in q.into_iter().zip([0.5, 1.0, 1.5, -6.0, 5.0, -8.0, 7.0]) {
        assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
    }
}
