//! The short convolution: rows are divided among the threads, then the states are brought up to date.
//!
//! A row sums its products in the order of the taps, whichever of them come from the state, so that the chunks of a
//! sequence change no bit. The step is small beside the products around it, and needs no vectors of its own.

use super::loaded::Loaded;
use super::rows::{each_row, silu};
use super::team::Team;
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{ConvolutionForm, ShortConvolution};
use bumpalo::Bump;
use bumpalo::collections::Vec as ArenaVec;

/// The tokens of a sequence that its rows see: its state, then the rows of the batch.
#[derive(Clone, Copy)]
struct Past<'a> {
    /// `[taps − 1 × columns]`; `None`: zeros.
    state: Option<&'a [f32]>,
    /// `[rows × width]`.
    x: &'a [f32],
    form: ConvolutionForm,
    width: usize,
    columns: usize,
    /// Tokens in the state.
    kept: usize,
}

impl Past<'_> {
    /// What is convolved of token `at`, counted from the oldest one in the state, for each column.
    fn inputs(&self, at: usize, mut each: impl FnMut(usize, f32)) {
        let columns = self.columns;
        match (at.checked_sub(self.kept), self.state) {
            (Some(row), _) => {
                let row = &self.x[row * self.width..][..self.width];
                let own = row[..columns].iter().enumerate();
                match self.form {
                    ConvolutionForm::Gated => {
                        own.zip(&row[2 * columns..])
                            .for_each(|((column, gate), value)| each(column, gate * value));
                    }
                    ConvolutionForm::Silu => own.for_each(|(column, value)| each(column, *value)),
                }
            }
            (None, Some(state)) => {
                let state = state[at * columns..][..columns].iter().enumerate();
                state.for_each(|(column, input)| each(column, *input));
            }
            (None, None) => (0..columns).for_each(|column| each(column, 0.0)),
        }
    }
}

/// Runs the step.
pub(super) fn run(
    step: &ShortConvolution,
    loaded: &mut Loaded,
    team: &mut Team,
    arena: &Bump,
    inputs: &BatchInputs,
) {
    let mut states = std::mem::take(&mut loaded.states[step.layer as usize]);
    let (taps, columns, width) = (
        step.taps as usize,
        loaded.columns(step.out),
        loaded.columns(step.x),
    );
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (weight, bias) = (
            loaded.vector(step.weight),
            step.bias.map(|bias| loaded.vector(bias)),
        );
        let (x, level) = (loaded.rows(step.x, inputs), loaded.level);
        let sequences = inputs.sequences.iter().enumerate();
        let owners =
            sequences.flat_map(|(index, rows)| std::iter::repeat_n(index, rows.row_count as usize));
        let owners = ArenaVec::from_iter_in(owners, arena).into_bump_slice();
        each_row(team, out, columns, |row, out| {
            let past = past(step, owners[row], (x, width), &states, columns, inputs);
            let first = row - inputs.sequences[owners[row]].row_start as usize;
            out.fill(0.0);
            for tap in 0..taps {
                past.inputs(first + tap, |column, input| {
                    out[column] += weight[column * taps + tap] * input;
                });
            }
            if let Some(bias) = bias {
                out.iter_mut()
                    .zip(bias)
                    .for_each(|(out, bias)| *out += bias);
            }
            match step.form {
                ConvolutionForm::Gated => {
                    let gates = &x[row * width + columns..][..columns];
                    out.iter_mut()
                        .zip(gates)
                        .for_each(|(out, gate)| *out = storage.round(gate * *out));
                }
                ConvolutionForm::Silu => silu(level, out, storage),
            }
        });
    });
    let x = loaded.rows(step.x, inputs);
    let elements = (taps - 1) * columns;
    let next = arena.alloc_slice_fill_copy(elements, 0.0);
    for (index, state) in inputs.states.iter().enumerate() {
        let past = past(step, index, (x, width), &states, columns, inputs);
        let count = inputs.sequences[index].row_count as usize;
        for (kept, next) in next.chunks_exact_mut(columns).enumerate() {
            past.inputs(count + kept, |column, input| next[column] = input);
        }
        states[state.to as usize * elements..][..elements].copy_from_slice(next);
    }
    loaded.states[step.layer as usize] = states;
}

/// What the rows of sequence `index` see.
fn past<'a>(
    step: &ShortConvolution,
    index: usize,
    (x, width): (&'a [f32], usize),
    states: &'a [f32],
    columns: usize,
    inputs: &BatchInputs,
) -> Past<'a> {
    let (rows, from, kept) = (
        inputs.sequences[index],
        inputs.states[index].from,
        step.taps as usize - 1,
    );
    let elements = kept * columns;
    let state = (from != NONE).then(|| &states[from as usize * elements..][..elements]);
    let rows = width * rows.row_start as usize..width * (rows.row_start + rows.row_count) as usize;
    Past {
        state,
        x: &x[rows],
        form: step.form,
        width,
        columns,
        kept,
    }
}
