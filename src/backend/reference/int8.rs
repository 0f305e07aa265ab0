//! Activations as signed bytes: what `--int8-activations` makes of a row before its product with a quantized weight.
//!
//! A group of 32 elements is rounded to `scale · code`, with codes from -127 to 127, so that a GPU multiplies and adds
//! four of them in one instruction. Kernels do the same in `shaders/common/int8.wgsl`; the groups are those of the
//! weight.

use crate::plan::format::GROUP;

/// A group whose largest magnitude is below this is rounded to zeros: the reciprocal would overflow.
const SMALLEST: f32 = 1e-30;

/// The distance between two codes of a group.
pub(crate) fn step(group: &[f32]) -> f32 {
    group
        .iter()
        .fold(0.0f32, |largest, value| largest.max(value.abs()))
        / 127.0
}

/// A row, rounded.
pub(crate) fn rounded(row: &[f32]) -> impl Iterator<Item = f64> {
    row.chunks(GROUP).flat_map(|group| {
        let step = step(group);
        let inverse = if 127.0 * step > SMALLEST {
            1.0 / step
        } else {
            0.0
        };
        group
            .iter()
            .map(move |value| f64::from(step) * f64::from((value * inverse).round_ties_even()))
    })
}

#[cfg(test)]
mod tests;
