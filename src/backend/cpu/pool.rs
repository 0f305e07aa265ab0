//! Pooling: sums of hidden states.

use super::loaded::Loaded;
use crate::plan::Pool;
use crate::plan::inputs::BatchInputs;

/// Runs the step.
pub(super) fn run(step: &Pool, loaded: &Loaded, inputs: &BatchInputs) -> Vec<Vec<f32>> {
    let (x, columns) = (loaded.rows(step.x, inputs), loaded.columns(step.x));
    inputs
        .pools
        .iter()
        .map(|row| {
            let mut sums = vec![0.0_f64; columns];
            for values in x[row.row_start as usize * columns..]
                .chunks_exact(columns)
                .take(row.row_count as usize)
            {
                sums.iter_mut()
                    .zip(values)
                    .for_each(|(sum, value)| *sum += f64::from(*value));
            }
            sums.into_iter().map(|sum| sum as f32).collect()
        })
        .collect()
}
