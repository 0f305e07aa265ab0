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
mod tests;
