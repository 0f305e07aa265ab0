//! Sums of rows, reference. Twin of `shaders/pool.wgsl`.
//!
//! `pooled[p][c] = Σ x[r][c]` over the rows `r` of pool row `p`, summed in f64 and rounded to f32.

use super::loaded::LoadedPlan;
use crate::plan::Pool;
use crate::plan::inputs::{BatchInputs, PoolRow};

/// Runs the step.
pub(super) fn run(step: &Pool, loaded: &LoadedPlan, inputs: &BatchInputs) -> Vec<Vec<f32>> {
    pool(
        loaded.rows(step.x, inputs),
        loaded.columns(step.x),
        &inputs.pools,
    )
}

/// For each pool row, the sum of its rows of `x`, which has `columns` columns.
pub(super) fn pool(x: &[f32], columns: usize, rows: &[PoolRow]) -> Vec<Vec<f32>> {
    rows.iter()
        .map(|row| {
            let (start, count) = (row.row_start as usize, row.row_count as usize);
            let mut sums = vec![0.0_f64; columns];
            for values in x[start * columns..(start + count) * columns].chunks_exact(columns) {
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += f64::from(*value);
                }
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests;
