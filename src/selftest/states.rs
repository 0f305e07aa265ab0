//! Test cases for the steps that keep a state: ShortConvolution.

use super::Shapes;
use super::compare::PRODUCTS;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, each, expect_rows, plain_batch, relative, unwritten,
};
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows, StateRows};
use crate::plan::{
    ConvolutionForm, Rows, ShortConvolution, StateLayer, Step, Storage, WeightFormat,
};

/// State slots: more than a batch has sequences.
pub(super) const SLOTS: u32 = 9;

/// Rows of each sequence, and whether it starts with the batch. Shorter than the state, as long, and longer.
pub(super) type Sequences = &'static [(u32, bool)];

pub(super) const BATCHES: [Sequences; 6] = [
    &[(1, false)],
    &[(1, true)],
    &[(70, true)],
    &[(1, false), (1, true), (1, false)],
    &[
        (2, false),
        (33, false),
        (3, true),
        (1, false),
        (6, false),
        (7, true),
    ],
    &[(5, true), (1, false), (4, false), (130, false)],
];

/// All fixtures of these steps, with `storage` in row buffers.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &columns in shapes.of(&[8, 40, 1032]) {
        for &taps in shapes.of(&[2, 3, 4, 7, 8]) {
            for form in [ConvolutionForm::Gated, ConvolutionForm::Silu] {
                fixtures.extend(
                    [false, true]
                        .map(|bias| short_convolution(storage, columns, taps, (form, bias))),
                );
            }
        }
    }
    fixtures
}

/// Columns after those that are convolved, in rows of values alone.
const OTHERS: u32 = 5;

fn short_convolution(
    storage: Storage,
    columns: u32,
    taps: u32,
    (form, has_bias): (ConvolutionForm, bool),
) -> Fixture {
    let names = if has_bias { ", bias" } else { "" };
    let mut fixture = Fixture::new(
        "short_convolution",
        format!("{storage:?}, {form:?}, {taps} taps{names}"),
    );
    let mut noise = Noise::new(&format!("short_convolution {} {columns}", fixture.option));
    let weight = fixture.weight(
        "weight",
        1,
        WeightFormat::F32,
        &noise.values((columns * taps) as usize),
    );
    let bias = has_bias.then(|| {
        fixture.weight(
            "bias",
            1,
            WeightFormat::F32,
            &noise.values(columns as usize),
        )
    });
    let width = if form == ConvolutionForm::Gated {
        3 * columns
    } else {
        columns + OTHERS
    };
    let x = fixture.buffer("x", Rows::Tokens, width, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    fixture.state_slots = SLOTS;
    fixture.plan.state_layers.push(StateLayer {
        elements: (taps - 1) * columns,
    });
    let step = ShortConvolution {
        x,
        form,
        layer: 0,
        taps,
        weight,
        bias,
        out,
    };
    fixture.push(Step::ShortConvolution(step));
    for sequences in BATCHES {
        let run = convolution_run(&fixture, &step, sequences, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

fn convolution_run(
    fixture: &Fixture,
    step: &ShortConvolution,
    sequences: Sequences,
    noise: &mut Noise,
) -> Run {
    let x = step.x;
    let columns = fixture.plan.buffer_spec(step.out).columns;
    let width = fixture.plan.buffer_spec(x).columns;
    let inputs = batch(sequences, noise);
    let rows = u32::try_from(inputs.token_ids.len()).expect("a test batch is small");
    let count = sequences.len();
    let mut run = Run::new(
        format!("{columns} columns, {count} sequences of {rows} rows"),
        inputs,
    );
    let mut values: Vec<f32> = (0..rows * width).map(|_| noise.uniform()).collect();
    if step.form == ConvolutionForm::Silu {
        let others = values.chunks_exact_mut(width as usize);
        others.for_each(|row| row[columns as usize..].fill(f32::NAN));
    }
    let elements = ((step.taps - 1) * columns) as usize;
    let states = states(&run.inputs, elements, noise);
    let sums = absolute_sums(fixture, &run.inputs, &values, &states, step);
    run.buffers.push((x, values));
    run.states.push(states);
    run.checks.push(Check::State {
        layer: 0,
        allowed: relative(1e-6),
    });
    let swapped = match step.form {
        ConvolutionForm::Gated => columns,
        ConvolutionForm::Silu => columns / 2,
    };
    run.mutants.push(Mutant::SwapHeads(x, swapped, 0, 1));
    if rows > 1 {
        run.mutants.push(Mutant::SwapRows(x, 0, rows - 1));
    }
    if count > 1 {
        run.mutants
            .extend([Mutant::SwapStates(0, 1), Mutant::StartAgain]);
    }
    expect_rows(fixture, &mut run, step.out, rows, each(sums));
    run
}

/// A batch of these sequences in shuffled slots; up to two of them begin with the state of one other slot.
pub(super) fn batch(sequences: Sequences, noise: &mut Noise) -> BatchInputs {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let mut inputs = plain_batch(rows);
    inputs.sequences.clear();
    inputs.positions.clear();
    let slots = noise.shuffled(SLOTS);
    let mut row_start = 0;
    for (index, &(row_count, starts)) in sequences.iter().enumerate() {
        let before = if starts { 0 } else { 11 };
        inputs.sequences.push(SequenceRows {
            row_start,
            row_count,
            context_len: before + row_count,
        });
        inputs.positions.extend(before..before + row_count);
        let to = slots[index];
        let from = if matches!(index, 3 | 4) {
            slots[sequences.len()]
        } else {
            to
        };
        inputs.states.push(StateRows {
            from: if starts { NONE } else { from },
            to,
        });
        row_start += row_count;
    }
    inputs
}

/// States in the slots that the batch reads, and NaN in the others.
pub(super) fn states(inputs: &BatchInputs, elements: usize, noise: &mut Noise) -> Vec<f32> {
    let mut states = unwritten(SLOTS as usize * elements);
    for state in inputs.states.iter().filter(|state| state.from != NONE) {
        states[state.from as usize * elements..][..elements].fill_with(|| noise.uniform());
    }
    states
}

/// The tolerance of each output: that of products, for the sum of the absolute products of its taps. The slope of an
/// activation is at most 1.1.
fn absolute_sums(
    fixture: &Fixture,
    inputs: &BatchInputs,
    x: &[f32],
    states: &[f32],
    step: &ShortConvolution,
) -> Vec<f64> {
    let weights = fixture.weight_values(step.weight);
    let (taps, columns) = (step.taps as usize, weights.len() / step.taps as usize);
    let biases = step
        .bias
        .map_or_else(|| vec![0.0; columns], |bias| fixture.weight_values(bias));
    let (width, is_gated) = (
        x.len() / inputs.token_ids.len(),
        step.form == ConvolutionForm::Gated,
    );
    let mut sums = Vec::new();
    for (rows, state) in inputs.sequences.iter().zip(&inputs.states) {
        let mut convolved = match state.from {
            NONE => vec![0.0; (taps - 1) * columns],
            from => states[from as usize * (taps - 1) * columns..][..(taps - 1) * columns].to_vec(),
        };
        for row in rows.row_start..rows.row_start + rows.row_count {
            let row = &x[row as usize * width..][..width];
            let factor = |column: usize| {
                if is_gated {
                    row[2 * columns + column]
                } else {
                    1.0
                }
            };
            convolved.extend((0..columns).map(|column| row[column] * factor(column)));
            let window = &convolved[convolved.len() - taps * columns..];
            sums.extend((0..columns).map(|column| {
                let sum = (0..taps)
                    .map(|tap| {
                        f64::from(
                            (weights[column * taps + tap] * window[tap * columns + column]).abs(),
                        )
                    })
                    .sum::<f64>()
                    + f64::from(biases[column].abs());
                PRODUCTS
                    * sum
                    * if is_gated {
                        f64::from(row[columns + column].abs())
                    } else {
                        1.1
                    }
            }));
        }
    }
    sums
}
