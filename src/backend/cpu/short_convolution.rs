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

    /// Sums the products of the tokens from `first` on with the taps, and the bias.
    fn convolve(&self, first: usize, weight: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
        let taps = self.kept + 1;
        out.fill(0.0);
        for tap in 0..taps {
            self.inputs(first + tap, |column, input| {
                out[column] += weight[column * taps + tap] * input;
            });
        }
        if let Some(bias) = bias {
            for (out, bias) in out.iter_mut().zip(bias) {
                *out += bias;
            }
        }
    }
}

/// A step and what it reads.
struct Convolution<'a> {
    step: &'a ShortConvolution,
    inputs: &'a BatchInputs,
    x: &'a [f32],
    /// Columns of x.
    width: usize,
    /// Columns that are convolved.
    columns: usize,
    taps: usize,
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
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let convolution = Convolution::new(step, loaded, inputs);
        let weight = loaded.vector(step.weight);
        let bias = step.bias.map(|bias| loaded.vector(bias));
        let sequences = inputs.sequences.iter().enumerate();
        let owners =
            sequences.flat_map(|(index, rows)| std::iter::repeat_n(index, rows.row_count as usize));
        let owners = ArenaVec::from_iter_in(owners, arena).into_bump_slice();
        each_row(team, out, convolution.columns, |row, out| {
            let past = convolution.past(owners[row], &states);
            let first = row - inputs.sequences[owners[row]].row_start as usize;
            past.convolve(first, weight, bias, out);
            match step.form {
                ConvolutionForm::Gated => {
                    for (out, gate) in out.iter_mut().zip(convolution.gates(row)) {
                        *out = storage.round(gate * *out);
                    }
                }
                ConvolutionForm::Silu => silu(loaded.level, out, storage),
            }
        });
    });
    Convolution::new(step, loaded, inputs).advance(&mut states, arena);
    loaded.states[step.layer as usize] = states;
}

impl<'a> Convolution<'a> {
    fn new(step: &'a ShortConvolution, loaded: &'a Loaded, inputs: &'a BatchInputs) -> Self {
        Self {
            step,
            inputs,
            x: loaded.rows(step.x, inputs),
            width: loaded.columns(step.x),
            columns: loaded.columns(step.out),
            taps: step.taps as usize,
        }
    }

    /// Elements of a state.
    fn elements(&self) -> usize {
        (self.taps - 1) * self.columns
    }

    /// What the rows of sequence `index` see.
    fn past<'b>(&self, index: usize, states: &'b [f32]) -> Past<'b>
    where
        'a: 'b,
    {
        let rows = self.inputs.sequences[index];
        let from = self.inputs.states[index].from;
        let state = (from != NONE).then(|| &states[from as usize * self.elements()..]);
        let (start, end) = (rows.row_start, rows.row_start + rows.row_count);
        Past {
            state: state.map(|state| &state[..self.elements()]),
            x: &self.x[self.width * start as usize..self.width * end as usize],
            form: self.step.form,
            width: self.width,
            columns: self.columns,
            kept: self.taps - 1,
        }
    }

    fn gates(&self, row: usize) -> &[f32] {
        &self.x[row * self.width + self.columns..][..self.columns]
    }

    /// Brings the states up to date.
    fn advance(&self, states: &mut [f32], arena: &Bump) {
        let next = arena.alloc_slice_fill_copy(self.elements(), 0.0);
        for (index, state) in self.inputs.states.iter().enumerate() {
            let past = self.past(index, states);
            let count = self.inputs.sequences[index].row_count as usize;
            for (kept, next) in next.chunks_exact_mut(self.columns).enumerate() {
                past.inputs(count + kept, |column, input| next[column] = input);
            }
            states[state.to as usize * self.elements()..][..self.elements()].copy_from_slice(next);
        }
    }
}
