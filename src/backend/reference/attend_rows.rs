//! Attention of rows to each other, reference. Twin of `shaders/attend_rows.wgsl`.
//!
//! Row i sees row j if both are of one sequence and |i − j| ≤ radius. Per query head, in f64:
//! s[j] = q[i] · k[j] · scale − slope · |i − j|;  out[i] = Σ_j softmax(s)[j] · v[j].

use super::dot::{Portable, dot};
use super::loaded::LoadedPlan;
use crate::plan::AttendRows;
use crate::plan::inputs::BatchInputs;
use std::ops::Range;

/// Runs the step.
pub(super) fn run(step: &AttendRows, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let attention = Attention {
            step: *step,
            qk: loaded.rows(step.qk, inputs),
            qk_columns: loaded.columns(step.qk),
            v: loaded.rows(step.v, inputs),
            v_columns: loaded.columns(step.v),
            slopes: loaded.vector(step.alibi),
        };
        for sequence in &inputs.sequences {
            let rows =
                sequence.row_start as usize..(sequence.row_start + sequence.row_count) as usize;
            for row in rows.clone() {
                let out = &mut out[row * attention.columns()..][..attention.columns()];
                for (head, out) in out.chunks_exact_mut(step.head_dim as usize).enumerate() {
                    let sums = attention.attend(row, head, rows.clone());
                    for (out, sum) in out.iter_mut().zip(sums) {
                        *out = storage.round(sum as f32);
                    }
                }
            }
        }
    });
}

/// A step and what it reads.
struct Attention<'a> {
    step: AttendRows,
    qk: &'a [f32],
    qk_columns: usize,
    v: &'a [f32],
    v_columns: usize,
    slopes: Option<Vec<f32>>,
}

impl Attention<'_> {
    /// Columns of a row of `out`.
    fn columns(&self) -> usize {
        (self.step.query_heads * self.step.head_dim) as usize
    }

    /// One head of the output of a row, whose sequence has these rows.
    fn attend(&self, row: usize, head: usize, rows: Range<usize>) -> Vec<f64> {
        let dim = self.step.head_dim as usize;
        let queries = self.step.query_heads as usize;
        let (kv_heads, radius) = (self.step.kv_heads as usize, self.step.radius);
        let radius = radius.map_or(usize::MAX, |radius| radius as usize);
        let seen = rows.start.max(row.saturating_sub(radius))
            ..rows.end.min(row.saturating_add(radius).saturating_add(1));
        let key_head = queries + head / (queries / kv_heads);
        let at = |row: usize, head: usize| &self.qk[row * self.qk_columns + head * dim..][..dim];
        let scores = seen.clone().map(|key| {
            let product = dot::<Portable>(at(row, head), at(key, key_head));
            let slope = self
                .slopes
                .as_ref()
                .map_or(0.0, |slopes| f64::from(slopes[head]));
            product * f64::from(self.step.scale) - slope * row.abs_diff(key) as f64
        });
        let scores: Vec<f64> = scores.collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mut sums = vec![0.0; dim];
        for (key, weight) in seen.zip(weights) {
            let value = &self.v[key * self.v_columns + (key_head + kv_heads) * dim..][..dim];
            for (sum, value) in sums.iter_mut().zip(value) {
                *sum += weight / total * f64::from(*value);
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests;
