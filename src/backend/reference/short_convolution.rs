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
mod tests {
    use super::*;

    /// Two columns and three taps: the last tap meets the present token.
    #[test]
    fn it_is_its_formula_by_hand() {
        let weight = [1.0, 10.0, 100.0, -1.0, 0.0, 2.0];
        let filter = Filter {
            form: ConvolutionForm::Gated,
            taps: 3,
            weight: &weight,
            bias: Some(&[0.5, -0.5]),
        };
        let row = |b: [f32; 2], c: [f32; 2], u: [f32; 2]| [b, c, u].concat();
        let gated = [
            row([2.0, 1.0], [1.0, 3.0], [3.0, 4.0]),
            row([1.0, 1.0], [2.0, 1.0], [5.0, 7.0]),
        ]
        .concat();
        let mut state = [7.0, 8.0, 9.0, 11.0];
        let mut out = [0.0; 4];
        short_convolution((&gated, 6), filter, &mut state, &mut out, Storage::F32);
        // s = [7, 9, 6, 5] and [8, 11, 4, 7].
        let expected = [
            7.0 + 90.0 + 600.0 + 0.5,
            3.0 * (-8.0 + 8.0 - 0.5),
            2.0 * 569.5,
            -11.0 + 14.0 - 0.5,
        ];
        assert_eq!(out, expected);
        assert_eq!(
            state,
            [6.0, 4.0, 5.0, 7.0],
            "the products of the last two tokens"
        );
    }

    /// The columns of wider rows, with an activation.
    #[test]
    fn plain_columns_are_convolved_and_activated() {
        let filter = Filter {
            form: ConvolutionForm::Silu,
            taps: 2,
            weight: &[1.0, 10.0, -1.0, 2.0],
            bias: None,
        };
        let (mut state, mut out) = ([7.0, 8.0], [0.0; 4]);
        let x = [0.5, 4.0, 99.0, 0.25, -3.0, 99.0];
        short_convolution((&x, 3), filter, &mut state, &mut out, Storage::F32);
        let silu = |x: f64| (x / (1.0 + (-x).exp())) as f32;
        assert_eq!(out, [silu(12.0), silu(0.0), silu(3.0), silu(-10.0)]);
        assert_eq!(
            state,
            [0.25, -3.0],
            "the inputs of the last token, before the convolution"
        );
    }

    #[test]
    fn the_chunks_of_a_sequence_change_nothing() {
        const COLUMNS: usize = 3;
        for taps in [2, 3, 7] {
            let noise = |count: usize, seed: f32| {
                (0..count).map(move |at| (at as f32 * 12.9898 + seed).sin())
            };
            let weight: Vec<f32> = noise(COLUMNS * taps, 1.0).collect();
            let filter = Filter {
                form: ConvolutionForm::Gated,
                taps,
                weight: &weight,
                bias: None,
            };
            let gated: Vec<f32> = noise(3 * COLUMNS * 11, 2.0).collect();
            let run = |chunk: usize| {
                let (mut state, mut all) = (vec![0.0; (taps - 1) * COLUMNS], Vec::new());
                for rows in gated.chunks(3 * COLUMNS * chunk) {
                    let mut out = vec![f32::NAN; rows.len() / 3];
                    short_convolution(
                        (rows, 3 * COLUMNS),
                        filter,
                        &mut state,
                        &mut out,
                        Storage::F32,
                    );
                    all.extend(out);
                }
                (state, all)
            };
            let whole = run(11);
            for chunk in [1, 2, 5] {
                assert_eq!(run(chunk), whole, "{taps} taps in chunks of {chunk}");
            }
        }
    }
}
