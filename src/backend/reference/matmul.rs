//! Matrix product, reference. Twin of `shaders/matmul_*.wgsl`.
//!
//! out[r][n] = Σ_k x[r][k] · W[n][k] + bias[n] (+ out[r][n]), rounded once.
//!
//! Every output is one dot product as defined in `dot.rs`, so it depends neither on the other rows nor on how the work
//! is split. A single row of x multiplies weights while decoding them; for more rows, each weight row is decoded once.
//! Where activations are bytes, a single row is rounded first ([`int8`]), for weights with byte codes.

use super::dot::{Kernel, PartialSums, decode_wide, dispatch, dot_encoded, dot_wide, dot_wide_two};
use super::int8;
use super::loaded::LoadedPlan;
use super::memory::Weight;
use crate::plan::inputs::BatchInputs;
use crate::plan::{MatMul, Storage};
use crate::platform::for_each_chunk;
use std::ops::Range;

/// Minimum multiplications per thread.
const CHUNK_PRODUCTS: usize = 1 << 18;

/// Output of the product.
pub(super) struct Output<'a> {
    /// Bias, added to every row.
    pub(super) bias: Option<Vec<f32>>,
    /// Add to `values` instead of replacing them.
    pub(super) accumulate: bool,
    /// `[rows × W.rows]`.
    pub(super) values: &'a mut [f32],
    /// Element type of `values`.
    pub(super) storage: Storage,
}

/// Runs the step.
pub(super) fn run(step: &MatMul, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    loaded.write(step.out, inputs, |loaded, values, storage| {
        let output = Output {
            bias: loaded.vector(step.bias),
            accumulate: step.accumulate,
            values,
            storage,
        };
        matmul(
            loaded.rows(step.x, inputs),
            loaded.weight(step.weight),
            loaded.int8_activations,
            output,
        );
    });
}

/// Multiplies the rows of `x` by the transposed weight.
pub(super) fn matmul(x: &[f32], weight: &Weight, int8_activations: bool, mut output: Output<'_>) {
    let (columns, weight_rows) = (weight.spec().columns as usize, weight.spec().rows as usize);
    assert_eq!(x.len() % columns, 0, "x is whole rows of {columns}");
    let rows = x.len() / columns;
    assert_eq!(
        output.values.len(),
        rows * weight_rows,
        "one output per row and weight row"
    );
    if rows == 0 {
        return;
    }
    let exact: Vec<f64> = x.iter().map(|&value| f64::from(value)).collect();
    let mut sums = Vec::new();
    let mut first = 0;
    for section in &weight.spec().sections {
        let weight_rows = first..first + section.rows as usize;
        first = weight_rows.end;
        let rounds = int8_activations && rows == 1 && section.format.has_byte_codes();
        let rounded: Option<Vec<f64>> = rounds.then(|| int8::rounded(x).collect());
        sums.extend(products(
            rounded.as_ref().unwrap_or(&exact),
            weight,
            weight_rows,
        ));
    }
    finish(&sums, rows, &mut output);
}

/// The products of the rows of `x` with some rows of the weight, `[weight rows × rows]`, so that threads share no row.
pub(super) fn products(x: &[f64], weight: &Weight, weight_rows: Range<usize>) -> Vec<f64> {
    let columns = weight.spec().columns as usize;
    let rows = x.len() / columns;
    let mut products = vec![0.0f64; rows * weight_rows.len()];
    let chunk_rows = (CHUNK_PRODUCTS / (columns * rows)).clamp(2, weight_rows.len().max(2));
    for_each_chunk(&mut products, chunk_rows * rows, |index, out| {
        dispatch(Products {
            x,
            weight,
            first_row: weight_rows.start + index * chunk_rows,
            rows,
            out,
        });
    });
    products
}

/// Adds bias and old values, and rounds.
fn finish(products: &[f64], rows: usize, output: &mut Output<'_>) {
    let weight_rows = products.len() / rows;
    for (row, values) in output.values.chunks_exact_mut(weight_rows).enumerate() {
        for (column, value) in values.iter_mut().enumerate() {
            let mut sum = products[column * rows + row];
            if let Some(bias) = &output.bias {
                sum += f64::from(bias[column]);
            }
            if output.accumulate {
                sum += f64::from(*value);
            }
            *value = output.storage.round(sum as f32);
        }
    }
}

/// The products of all rows of `x` with consecutive weight rows.
struct Products<'a> {
    x: &'a [f64],
    weight: &'a Weight,
    first_row: usize,
    rows: usize,
    /// `[weight rows × rows]`.
    out: &'a mut [f64],
}

impl Kernel for Products<'_> {
    #[inline(always)]
    fn run<S: PartialSums>(self) {
        let format = |row| self.weight.format_of(row);
        if self.rows == 1 {
            for (row, out) in (self.first_row..).zip(self.out.iter_mut()) {
                *out = dot_encoded::<S>(format(row), self.weight.row(row), self.x);
            }
            return;
        }
        let columns = self.weight.spec().columns as usize;
        let mut decoded = vec![0.0f64; 2 * columns];
        for (pair, out) in self.out.chunks_mut(2 * self.rows).enumerate() {
            let (first, second) = decoded.split_at_mut(columns);
            let row = self.first_row + 2 * pair;
            decode_wide::<S>(format(row), self.weight.row(row), first);
            if out.len() == self.rows {
                for (x, out) in self.x.chunks_exact(columns).zip(out) {
                    *out = dot_wide::<S>(first, x);
                }
                return;
            }
            decode_wide::<S>(format(row + 1), self.weight.row(row + 1), second);
            let (first_out, second_out) = out.split_at_mut(self.rows);
            for ((x, first_out), second_out) in
                self.x.chunks_exact(columns).zip(first_out).zip(second_out)
            {
                [*first_out, *second_out] = dot_wide_two::<S>(first, second, x);
            }
        }
    }
}

#[cfg(test)]
mod tests;
