//! The gated short convolution: rows are divided among the threads, then the states are brought up to date.
//!
//! A row sums its products in the order of the taps, whichever of them come from the state, so that the chunks of a
//! sequence change no bit. The step is small beside the products around it, and needs no vectors of its own.

use super::loaded::Loaded;
use super::rows::each_row;
use super::team::Team;
use crate::plan::ShortConvolution;
use crate::plan::inputs::{BatchInputs, NONE};

/// The tokens of a sequence that its rows see: its state, then the rows of the batch.
#[derive(Clone, Copy)]
struct Past<'a> {
    /// `[taps − 1 × columns]`; `None`: zeros.
    state: Option<&'a [f32]>,
    /// `[rows × 3 · columns]`.
    gated: &'a [f32],
    columns: usize,
    /// Tokens in the state.
    kept: usize,
}

impl Past<'_> {
    /// Gate times value of token `at`, counted from the oldest one in the state, for each column.
    fn products(&self, at: usize, mut each: impl FnMut(usize, f32)) {
        let columns = self.columns;
        match (at.checked_sub(self.kept), self.state) {
            (Some(row), _) => {
                let row = &self.gated[row * 3 * columns..][..3 * columns];
                let pairs = row[..columns].iter().zip(&row[2 * columns..]);
                pairs.enumerate().for_each(|(column, (gate, value))| each(column, gate * value));
            }
            (None, Some(state)) => {
                state[at * columns..][..columns]
                    .iter()
                    .enumerate()
                    .for_each(|(column, product)| each(column, *product));
            }
            (None, None) => (0..columns).for_each(|column| each(column, 0.0)),
        }
    }
}

/// Runs the step.
pub(super) fn run(step: &ShortConvolution, loaded: &mut Loaded, team: &mut Team, inputs: &BatchInputs) {
    let mut states = std::mem::take(&mut loaded.states[step.layer as usize]);
    let (taps, columns) = (step.taps as usize, loaded.columns(step.out));
    let elements = (taps - 1) * columns;
    loaded.write(step.out, inputs, |loaded, out, storage| {
        let (weight, bias) = (loaded.vector(step.weight), step.bias.map(|bias| loaded.vector(bias)));
        let gated = loaded.rows(step.gated, inputs);
        let owners: Vec<usize> = inputs
            .sequences
            .iter()
            .enumerate()
            .flat_map(|(index, rows)| std::iter::repeat_n(index, rows.row_count as usize))
            .collect();
        each_row(team, out, columns, |row, out| {
            let past = past(owners[row], gated, &states, columns, taps, inputs);
            let first = row - inputs.sequences[owners[row]].row_start as usize;
            out.fill(0.0);
            for tap in 0..taps {
                past.products(first + tap, |column, product| out[column] += weight[column * taps + tap] * product);
            }
            let gates = &gated[(3 * row + 1) * columns..][..columns];
            for (column, (out, gate)) in out.iter_mut().zip(gates).enumerate() {
                *out = storage.round(gate * (*out + bias.map_or(0.0, |bias| bias[column])));
            }
        });
    });
    let gated = loaded.rows(step.gated, inputs);
    for (index, state) in inputs.states.iter().enumerate() {
        let mut next = vec![0.0; elements];
        let past = past(index, gated, &states, columns, taps, inputs);
        let count = inputs.sequences[index].row_count as usize;
        for (kept, next) in next.chunks_exact_mut(columns).enumerate() {
            past.products(count + kept, |column, product| next[column] = product);
        }
        states[state.to as usize * elements..][..elements].copy_from_slice(&next);
    }
    loaded.states[step.layer as usize] = states;
}

/// What the rows of sequence `index` see.
fn past<'a>(
    index: usize,
    gated: &'a [f32],
    states: &'a [f32],
    columns: usize,
    taps: usize,
    inputs: &BatchInputs,
) -> Past<'a> {
    let (rows, from, elements) = (inputs.sequences[index], inputs.states[index].from, (taps - 1) * columns);
    let state = (from != NONE).then(|| &states[from as usize * elements..][..elements]);
    let rows = 3 * columns * rows.row_start as usize..3 * columns * (rows.row_start + rows.row_count) as usize;
    Past { state, gated: &gated[rows], columns, kept: taps - 1 }
}
