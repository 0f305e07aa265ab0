//! Test cases for the steps that keep a state: ShortConvolution.

use super::Shapes;
use super::compare::PRODUCTS;
use super::dense::expect_rows;
use super::fixture::{Check, Fixture, Mutant, Noise, Run, each, plain_batch, relative, unwritten};
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows, StateRows};
use crate::plan::{ConvolutionForm, Rows, ShortConvolution, StateLayer, Step, Storage, WeightFormat};

/// State slots: more than a batch has sequences.
const SLOTS: u32 = 9;

/// Rows of each sequence, and whether it starts with the batch. Shorter than the state, as long, and longer.
type Sequences = &'static [(u32, bool)];

const BATCHES: [Sequences; 6] = [
    &[(1, false)],
    &[(1, true)],
    &[(70, true)],
    &[(1, false), (1, true), (1, false)],
    &[(2, false), (33, false), (3, true), (1, false), (6, false), (7, true)],
    &[(5, true), (1, false), (4, false), (130, false)],
];

/// All fixtures of these steps, with `storage` in row buffers.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &columns in shapes.of(&[8, 40, 1032]) {
        for &taps in shapes.of(&[2, 3, 4, 7, 8]) {
            fixtures.extend([false, true].map(|bias| short_convolution(storage, columns, taps, bias)));
        }
    }
    fixtures
}

fn short_convolution(storage: Storage, columns: u32, taps: u32, with_bias: bool) -> Fixture {
    let names = if with_bias { ", bias" } else { "" };
    let mut fixture = Fixture::new("short_convolution", format!("{storage:?}, {taps} taps{names}"));
    let mut noise = Noise::new(&format!("short_convolution {} {columns}", fixture.option));
    let weight = fixture.weight("weight", 1, WeightFormat::F32, &noise.values((columns * taps) as usize));
    let bias = with_bias.then(|| fixture.weight("bias", 1, WeightFormat::F32, &noise.values(columns as usize)));
    let gated = fixture.buffer("gated", Rows::Tokens, 3 * columns, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    fixture.state_slots = SLOTS;
    fixture.plan.state_layers.push(StateLayer { elements: (taps - 1) * columns });
    fixture.push(Step::ShortConvolution(ShortConvolution {
        x: gated,
        form: ConvolutionForm::Gated,
        layer: 0,
        taps,
        weight,
        bias,
        out,
    }));
    for sequences in BATCHES {
        let inputs = batch(sequences, &mut noise);
        let rows = u32::try_from(inputs.token_ids.len()).expect("a test batch is small");
        let mut run = Run::new(format!("{columns} columns, {} sequences of {rows} rows", sequences.len()), inputs);
        let values: Vec<f32> = (0..rows * 3 * columns).map(|_| noise.uniform()).collect();
        let states = states(&run.inputs, ((taps - 1) * columns) as usize, &mut noise);
        let sums = absolute_sums(&fixture, &run.inputs, &values, &states, weight, bias);
        run.buffers.push((gated, values));
        run.states.push(states);
        run.checks.push(Check::State { layer: 0, allowed: relative(1e-6) });
        run.mutants.push(Mutant::SwapHeads(gated, columns, 0, 1));
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(gated, 0, rows - 1));
        }
        if sequences.len() > 1 {
            run.mutants.extend([Mutant::SwapStates(0, 1), Mutant::StartAgain]);
        }
        expect_rows(&fixture, &mut run, out, rows, each(sums));
        fixture.runs.push(run);
    }
    fixture
}

/// A batch of these sequences in shuffled slots; one sequence moves its state to another slot.
fn batch(sequences: Sequences, noise: &mut Noise) -> BatchInputs {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let mut inputs = plain_batch(rows);
    inputs.sequences.clear();
    inputs.positions.clear();
    let slots = noise.shuffled(SLOTS);
    let mut row_start = 0;
    for (index, &(row_count, starts)) in sequences.iter().enumerate() {
        let before = if starts { 0 } else { 11 };
        inputs.sequences.push(SequenceRows { row_start, row_count, context_len: before + row_count });
        inputs.positions.extend(before..before + row_count);
        let to = slots[index];
        let from = if index == 3 { slots[sequences.len()] } else { to };
        inputs.states.push(StateRows { from: if starts { NONE } else { from }, to });
        row_start += row_count;
    }
    inputs
}

/// States in the slots that the batch reads, and NaN in the others.
fn states(inputs: &BatchInputs, elements: usize, noise: &mut Noise) -> Vec<f32> {
    let mut states = unwritten(SLOTS as usize * elements);
    for state in inputs.states.iter().filter(|state| state.from != NONE) {
        states[state.from as usize * elements..][..elements].fill_with(|| noise.uniform());
    }
    states
}

/// The tolerance of each output: that of products, for the sum of the absolute products of its taps.
fn absolute_sums(
    fixture: &Fixture,
    inputs: &BatchInputs,
    gated: &[f32],
    states: &[f32],
    weight: crate::plan::WeightId,
    bias: Option<crate::plan::WeightId>,
) -> Vec<f64> {
    let weights = fixture.weight_values(weight);
    let columns = gated.len() / 3 / inputs.token_ids.len();
    let taps = weights.len() / columns;
    let biases = bias.map_or_else(|| vec![0.0; columns], |bias| fixture.weight_values(bias));
    let mut sums = Vec::new();
    for (rows, state) in inputs.sequences.iter().zip(&inputs.states) {
        let mut products = match state.from {
            NONE => vec![0.0; (taps - 1) * columns],
            from => states[from as usize * (taps - 1) * columns..][..(taps - 1) * columns].to_vec(),
        };
        for row in rows.row_start..rows.row_start + rows.row_count {
            let row = &gated[row as usize * 3 * columns..][..3 * columns];
            products.extend((0..columns).map(|column| row[column] * row[2 * columns + column]));
            let window = &products[products.len() - taps * columns..];
            sums.extend((0..columns).map(|column| {
                let tap = |tap: usize| f64::from((weights[column * taps + tap] * window[tap * columns + column]).abs());
                let sum: f64 = (0..taps).map(tap).sum();
                PRODUCTS * f64::from(row[columns + column].abs()) * (sum + f64::from(biases[column].abs()))
            }));
        }
    }
    sums
}
