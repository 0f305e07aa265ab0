//! RMS norm, reference. Twin of `shaders/rms_norm.wgsl`.
//!
//! x[r] += delta[r] (rounded to x's storage), if there is a delta;
//! x'[r] = x[r], or x[r] − mean_c(x[r]) if centered;
//! out[r][c] (=, +=) x'[r][c] / sqrt(mean_c(x'[r]²) + epsilon) · weight[c], or · (1 + weight[c]), + bias[c];
//! out[r] *= scale. A row may consist of several runs, each normalized by itself.

use super::dot::{Portable, dot};
use super::loaded::LoadedPlan;
use crate::plan::inputs::BatchInputs;
use crate::plan::{NormOptions, RmsNorm, Storage};
use std::borrow::Cow;

/// Runs the step.
pub(super) fn run(step: &RmsNorm, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    if let Some(delta) = step.delta {
        loaded.write(step.x, inputs, |loaded, x, storage| {
            add(x, loaded.rows(delta, inputs), storage);
        });
    }
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let weight = loaded.weight(step.weight).vector();
        let norm = Norm {
            weight,
            epsilon: step.epsilon,
            one_plus: step.one_plus,
        };
        let NormOptions {
            center,
            bias,
            scale,
        } = step.options;
        let finish = Finish {
            bias: loaded.vector(bias),
            scale: loaded
                .vector(scale)
                .map_or(1.0, |scale| f64::from(scale[0])),
        };
        let x = loaded.rows(step.x, inputs);
        let x = if center {
            Cow::Owned(centered(x, norm.weight.len()))
        } else {
            Cow::Borrowed(x)
        };
        rms_norm(&x, &norm, &finish, step.accumulate, out, storage);
    });
}

/// Adds `delta` to `x`.
pub(super) fn add(x: &mut [f32], delta: &[f32], storage: Storage) {
    assert_eq!(x.len(), delta.len(), "one delta per element");
    for (x, delta) in x.iter_mut().zip(delta) {
        *x = storage.round((f64::from(*x) + f64::from(*delta)) as f32);
    }
}

/// `1 / sqrt(mean(row²) + epsilon)`.
pub(super) fn inverse_rms(row: &[f32], epsilon: f32) -> f64 {
    assert!(!row.is_empty(), "a row has at least one column");
    1.0 / (dot::<Portable>(row, row) / row.len() as f64 + f64::from(epsilon)).sqrt()
}

/// The factor for a norm weight: `w` or `1 + w`.
pub(super) fn factor(weight: f32, one_plus: bool) -> f64 {
    if one_plus {
        1.0 + f64::from(weight)
    } else {
        f64::from(weight)
    }
}

/// Weight and options of one norm.
pub(super) struct Norm {
    /// One per column.
    pub(super) weight: Vec<f32>,
    /// Added to the mean of squares.
    pub(super) epsilon: f32,
    /// `1 + w` instead of `w`.
    pub(super) one_plus: bool,
}

/// What follows a norm.
pub(super) struct Finish {
    /// Added to each normalized row.
    pub(super) bias: Option<Vec<f32>>,
    /// Factor of the output.
    pub(super) scale: f64,
}

/// Each row minus its mean.
fn centered(x: &[f32], columns: usize) -> Vec<f32> {
    x.chunks_exact(columns)
        .flat_map(|row| {
            let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / row.len() as f64;
            row.iter()
                .map(|&x| (f64::from(x) - mean) as f32)
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Normalizes whole rows of `weight.len()` columns; with `accumulate`, adds them to `out`.
pub(super) fn rms_norm(
    x: &[f32],
    norm: &Norm,
    finish: &Finish,
    accumulate: bool,
    out: &mut [f32],
    storage: Storage,
) {
    let columns = norm.weight.len();
    assert_eq!(x.len(), out.len(), "one output per input");
    assert_eq!(x.len() % columns, 0, "x is whole rows of {columns}");
    for (row, out_row) in x.chunks_exact(columns).zip(out.chunks_exact_mut(columns)) {
        let scale = inverse_rms(row, norm.epsilon);
        for (column, ((out, &x), &weight)) in
            out_row.iter_mut().zip(row).zip(&norm.weight).enumerate()
        {
            let old = if accumulate { f64::from(*out) } else { 0.0 };
            let bias = finish
                .bias
                .as_ref()
                .map_or(0.0, |bias| f64::from(bias[column]));
            let normed = f64::from(x) * scale * factor(weight, norm.one_plus) + bias;
            *out = storage.round(((old + normed) * finish.scale) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
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
}
