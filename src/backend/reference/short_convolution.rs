//! Short convolution, reference. Twin of `shaders/short_convolution.wgsl` and `cuda/short_convolution.cu`.
//!
//! sum_t = Σ_j weight[j] · s_{t − taps + 1 + j} + bias, per column. Gated: s_t = b_t · u_t, rounded to f32, and
//! out_t = c_t · sum_t. Silu: s is x itself, and out_t = silu(sum_t). The state is s of the last taps − 1 tokens,
//! oldest first.

use super::loaded::{LoadedPlan, slot_range};
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{ConvolutionForm, ShortConvolution, Storage};

/// Runs the step.
pub(super) fn run(step: &ShortConvolution, loaded: &mut LoadedPlan, inputs: &BatchInputs) {
    let mut states = std::mem::take(&mut loaded.states[step.layer as usize]);
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (x, width, columns) = (
            loaded.rows(step.x, inputs),
            loaded.columns(step.x),
            loaded.columns(step.out),
        );
        let (weight, bias) = (
            loaded.weight(step.weight).vector(),
            loaded.vector(step.bias),
        );
        let (taps, form) = (step.taps as usize, step.form);
        let filter = Filter {
            form,
            taps,
            weight: &weight,
            bias: bias.as_deref(),
        };
        let elements = (taps - 1) * columns;
        for (rows, state) in inputs.sequences.iter().zip(&inputs.states) {
            let (start, count) = (rows.row_start as usize, rows.row_count as usize);
            let mut past = if state.from == NONE {
                vec![0.0; elements]
            } else {
                states[slot_range(state.from, elements)].to_vec()
            };
            let x = &x[start * width..(start + count) * width];
            short_convolution(
                (x, width),
                filter,
                &mut past,
                &mut out[start * columns..][..count * columns],
                storage,
            );
            states[slot_range(state.to, elements)].copy_from_slice(&past);
        }
    });
    loaded.states[step.layer as usize] = states;
}

/// The weights of a convolution: `[columns × taps]`, and optionally `[columns]`.
#[derive(Clone, Copy)]
pub(super) struct Filter<'a> {
    pub(super) form: ConvolutionForm,
    pub(super) taps: usize,
    pub(super) weight: &'a [f32],
    pub(super) bias: Option<&'a [f32]>,
}

/// Computes the rows of one sequence, from rows of `width` elements, and updates its state. Sums are in f64.
pub(super) fn short_convolution(
    (x, width): (&[f32], usize),
    Filter {
        form,
        taps,
        weight,
        bias,
    }: Filter<'_>,
    state: &mut [f32],
    out: &mut [f32],
    storage: Storage,
) {
    let columns = weight.len() / taps;
    assert_eq!(
        state.len(),
        (taps - 1) * columns,
        "a state has the inputs of all taps but the last"
    );
    assert_eq!(x.len() / width, out.len() / columns, "a row in, a row out");
    let mut convolved = state.to_vec();
    for row in x.chunks_exact(width) {
        convolved.extend((0..columns).map(|column| match form {
            ConvolutionForm::Gated => row[column] * row[2 * columns + column],
            ConvolutionForm::Silu => row[column],
        }));
    }
    for (t, (x, out)) in x
        .chunks_exact(width)
        .zip(out.chunks_exact_mut(columns))
        .enumerate()
    {
        for (column, out) in out.iter_mut().enumerate() {
            let sum: f64 = (0..taps)
                .map(|tap| {
                    let input = convolved[(t + tap) * columns + column];
                    f64::from(weight[column * taps + tap]) * f64::from(input)
                })
                .sum();
            let sum = sum + bias.map_or(0.0, |bias| f64::from(bias[column]));
            *out = storage.round(match form {
                ConvolutionForm::Gated => f64::from(x[columns + column]) * sum,
                ConvolutionForm::Silu => sum / (1.0 + (-sum).exp()),
            } as f32);
        }
    }
    state.copy_from_slice(&convolved[convolved.len() - state.len()..]);
}

#[cfg(test)]
mod tests;
