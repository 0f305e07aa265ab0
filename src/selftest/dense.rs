//! Test cases for the steps that work on rows: Embed, RmsNorm, MatMul, GatedActivation, Gates, ScaleLogits.

use super::compare::{HALVES, PRODUCTS, RELATIVE};
use super::fixture::{Check, Fixture, Mutant, Noise, Run, each, plain_batch, relative, unwritten};
use super::{RowKind, Shapes};
use crate::backend::FEW_ROWS_MAX;
use crate::backend::reference::int8;
use crate::plan::format::GROUP;
use crate::plan::inputs::{BatchInputs, FEED, SampleRow};
use crate::plan::{
    Activation, BufferId, Embed, GatedActivation, Gates, MatMul, NormOptions, RmsNorm, Rows,
    Sample, ScaleLogits, Section, Step, Storage, Tail, Up, WeightFormat, WeightId,
};
use crate::platform::for_each_chunk;

/// Formats of vectors.
pub(super) const DENSE: [WeightFormat; 3] =
    [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

/// All fixtures of these steps, with `rows` in row buffers.
pub(super) fn fixtures(rows: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let storage = rows.storage;
    let mut fixtures = Vec::new();
    for format in WeightFormat::ALL {
        fixtures.extend(
            shapes
                .of(&[8, 40, 1000])
                .iter()
                .map(|columns| embed(storage, format, *columns)),
        );
    }
    for format in DENSE {
        for &columns in shapes.of(&[8, 40, 1000, 4104]) {
            let plain = Norm::default();
            let options = [
                plain,
                Norm {
                    delta: true,
                    ..plain
                },
                Norm {
                    one_plus: true,
                    ..plain
                },
                Norm {
                    delta: true,
                    one_plus: true,
                    ..plain
                },
                Norm {
                    accumulate: true,
                    ..plain
                },
                Norm {
                    delta: true,
                    one_plus: true,
                    accumulate: true,
                    ..plain
                },
                Norm {
                    center: true,
                    ..plain
                },
                Norm {
                    center: true,
                    bias: true,
                    ..plain
                },
                Norm {
                    scale: true,
                    accumulate: true,
                    ..plain
                },
            ];
            fixtures.extend(options.map(|norm| rms_norm(storage, format, columns, norm)));
        }
    }
    let swiglu = Activation::ClampedSwiglu {
        alpha: 1.702,
        limit: 7.0,
    };
    for (name, activation, place) in [
        ("silu", Activation::Silu, Place::SecondHalf),
        ("gelu_tanh", Activation::GeluTanh, Place::SecondHalf),
        (
            "gelu_tanh, up elsewhere",
            Activation::GeluTanh,
            Place::Elsewhere,
        ),
        ("gelu_tanh, no up", Activation::GeluTanh, Place::Nowhere),
        ("relu2, no up", Activation::Relu2, Place::Nowhere),
        ("xielu, no up", Activation::Xielu, Place::Nowhere),
        ("clamped_swiglu", swiglu, Place::SecondHalf),
    ] {
        let columns = shapes.of(&[8, 40, 1032]).iter();
        fixtures.extend(
            columns.map(|columns| gated_activation(storage, name, (activation, place), *columns)),
        );
    }
    for &vocab in shapes.of(&[1, 33, 1027]) {
        fixtures.extend([None, Some(3.0)].map(|softcap| scale_logits(vocab, softcap)));
    }
    fixtures.extend(matmuls(rows, shapes));
    fixtures.extend(neighbours(rows));
    fixtures
}

/// A product with the norm before it and the activation after it, which a device may fuse.
fn neighbours(rows: RowKind) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for format in [WeightFormat::Bf16, WeightFormat::Q4, WeightFormat::Q6K] {
        for (with_norm, with_gate) in [(true, false), (false, true), (true, true)] {
            fixtures.push(neighbourhood(rows, format, with_norm, with_gate));
        }
    }
    fixtures
}

fn neighbourhood(kind: RowKind, format: WeightFormat, with_norm: bool, with_gate: bool) -> Fixture {
    let storage = kind.storage;
    const COLUMNS: u32 = 264;
    const OUTPUTS: u32 = 72;
    let parts = [
        (with_norm, "norm, "),
        (true, "product"),
        (with_gate, ", activation"),
    ];
    let option = parts.map(|(on, name)| if on { name } else { "" }).concat();
    let mut fixture = Fixture::new("matmul", format!("{storage:?} · {format}, {option}"));
    let mut noise = Noise::new(&format!("neighbours {}", fixture.option));
    let weight = fixture.weight(
        "weight",
        2 * OUTPUTS,
        format,
        &noise.values((2 * OUTPUTS * COLUMNS) as usize),
    );
    let norm = fixture.weight(
        "norm",
        1,
        WeightFormat::F32,
        &noise.values(COLUMNS as usize),
    );
    let x = fixture.buffer(
        "x",
        Rows::Tokens,
        COLUMNS,
        if with_norm { Storage::F32 } else { storage },
    );
    let normed = fixture.buffer("normed", Rows::Tokens, COLUMNS, storage);
    let product = fixture.buffer("product", Rows::Tokens, 2 * OUTPUTS, storage);
    let activated = fixture.buffer("activated", Rows::Tokens, OUTPUTS, storage);
    if with_norm {
        let (delta, one_plus, accumulate) = (None, true, false);
        fixture.push(Step::RmsNorm(RmsNorm {
            x,
            delta,
            weight: norm,
            epsilon: 1e-5,
            one_plus,
            accumulate,
            options: NormOptions::default(),
            out: normed,
        }));
    }
    let rows_of = if with_norm { normed } else { x };
    fixture.push(Step::MatMul(MatMul {
        x: rows_of,
        weight,
        bias: None,
        accumulate: false,
        out: product,
    }));
    if with_gate {
        fixture.push(Step::GatedActivation(GatedActivation {
            gate_up: product,
            gates: Gates::default(),
            up: Up::SecondHalf,
            activation: Activation::Silu,
            numbers: None,
            out: activated,
        }));
    }
    let out = if with_gate { activated } else { product };
    for rows in [1, 2, 3, 8, 9] {
        let mut run = Run::new(format!("{rows} rows"), plain_batch(rows));
        run.buffers
            .push((x, noise.values((rows * COLUMNS) as usize)));
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(x, 0, rows - 1));
        }
        // A norm's output may be rounded either way, which changes every sum by one of its products.
        let bytes = kind.int8 && rows == 1 && format.has_byte_codes();
        let share = match storage {
            Storage::F32 if bytes => 2e-3,
            Storage::F32 => 1e-4,
            _ => 2e-2,
        };
        expect_rows(
            &fixture,
            &mut run,
            out,
            rows,
            Box::new(move |expected: &[f32]| {
                let largest = expected
                    .iter()
                    .fold(0.0f32, |largest, value| largest.max(value.abs()));
                expected
                    .iter()
                    .map(|value| share * f64::from(value.abs()) + 0.01 * share * f64::from(largest))
                    .collect()
            }),
        );
        fixture.runs.push(run);
    }
    fixture
}

/// Fills `buffer` with NaN before the run and compares its rows afterwards.
pub(super) fn expect_rows(
    fixture: &Fixture,
    run: &mut Run,
    buffer: BufferId,
    rows: u32,
    allowed: super::fixture::Allowed,
) {
    run.buffers.push((
        buffer,
        unwritten((rows * fixture.plan.buffer_spec(buffer).columns) as usize),
    ));
    run.checks.push(Check::Rows {
        buffer,
        rows,
        allowed,
    });
}

fn embed(storage: Storage, format: WeightFormat, columns: u32) -> Fixture {
    let mut fixture = Fixture::new("embed", format!("{format} to {storage:?}"));
    let mut noise = Noise::new(&format!("embed {format:?} {columns}"));
    let table = fixture.weight(
        "table",
        256,
        format,
        &noise.values((256 * columns) as usize),
    );
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    fixture.push(Step::Embed(Embed {
        table,
        scale: 3.7,
        out,
    }));
    for rows in [1, 2, 17, 65] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        run.feed = (0..64).map(|slot| slot * 5 % 256).collect();
        for row in (0..rows).filter(|row| row % 3 == 1) {
            run.inputs.token_ids[row as usize] = FEED | (row * 11 % 64);
        }
        if rows > 1 {
            run.mutants.push(Mutant::SwapTokens(0, rows / 2));
        }
        expect_rows(&fixture, &mut run, out, rows, relative(RELATIVE));
        fixture.runs.push(run);
    }
    fixture
}

/// Options of `RmsNorm`.
#[derive(Clone, Copy, Default)]
struct Norm {
    delta: bool,
    one_plus: bool,
    accumulate: bool,
    center: bool,
    bias: bool,
    scale: bool,
}

fn rms_norm(storage: Storage, format: WeightFormat, columns: u32, norm: Norm) -> Fixture {
    let Norm {
        delta: with_delta,
        one_plus,
        accumulate,
        center,
        bias,
        scale,
    } = norm;
    let names = [
        (with_delta, ", delta"),
        (one_plus, ", 1 + w"),
        (accumulate, ", accumulate"),
    ];
    let more = [(center, ", centered"), (bias, ", bias"), (scale, ", scale")];
    let names: String = names
        .iter()
        .chain(&more)
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let mut fixture = Fixture::new("rms_norm", format!("{storage:?}, w {format}{names}"));
    let mut noise = Noise::new(&format!("rms_norm {}{columns}", fixture.option));
    let options = NormOptions {
        center,
        bias: bias.then(|| fixture.weight("bias", 1, format, &noise.values(columns as usize))),
        scale: scale.then(|| fixture.weight("scale", 1, format, &[0.75])),
    };
    let weight = fixture.weight("weight", 1, format, &noise.values(columns as usize));
    // The residual stream is always f32.
    let x = fixture.buffer("x", Rows::Tokens, columns, Storage::F32);
    let delta = fixture.buffer("delta", Rows::Tokens, columns, storage);
    // With `accumulate`, the output is the residual stream.
    let out_storage = if accumulate { Storage::F32 } else { storage };
    let out = fixture.buffer("out", Rows::Tokens, columns, out_storage);
    let delta_id = with_delta.then_some(delta);
    let epsilon = 1e-5;
    fixture.push(Step::RmsNorm(RmsNorm {
        x,
        delta: delta_id,
        weight,
        epsilon,
        one_plus,
        accumulate,
        options,
        out,
    }));
    for rows in [1, 3, 17] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        run.buffers
            .push((x, noise.values((rows * columns) as usize)));
        run.buffers
            .push((delta, noise.values((rows * columns) as usize)));
        if with_delta {
            run.checks.push(Check::Rows {
                buffer: x,
                rows,
                allowed: relative(0.0),
            });
        }
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(x, 0, rows - 1));
            run.mutants
                .extend(with_delta.then_some(Mutant::SwapRows(delta, 0, 1)));
        }
        // What is subtracted or added may leave little of a value.
        let near = if center { 10.0 * RELATIVE } else { 0.0 };
        expect_rows(
            &fixture,
            &mut run,
            out,
            rows,
            Box::new(move |expected: &[f32]| {
                expected
                    .iter()
                    .map(|value| RELATIVE * f64::from(value.abs()) + near)
                    .collect()
            }),
        );
        if accumulate {
            add_to(&mut run, noise.values((rows * columns) as usize));
        }
        fixture.runs.push(run);
    }
    fixture
}

/// Fills the last checked output with `old` before the run; the tolerance covers both summands.
fn add_to(run: &mut Run, old: Vec<f32>) {
    let Some(Check::Rows { allowed, .. }) = run.checks.last_mut() else {
        unreachable!("rows are checked last")
    };
    let of_old: Vec<f64> = old
        .iter()
        .map(|value| RELATIVE * f64::from(value.abs()))
        .collect();
    *allowed = Box::new(move |expected| {
        let both = expected
            .iter()
            .zip(&of_old)
            .map(|(value, of_old)| RELATIVE * f64::from(value.abs()) + of_old);
        both.collect()
    });
    run.buffers.last_mut().expect("the output is filled last").1 = old;
}

/// Bound of the exponent in xIELU, as in Apertus.
const XIELU_EPSILON: f32 = -1e-6;

/// Where an activation finds what it multiplies the gate with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    SecondHalf,
    Elsewhere,
    Nowhere,
}

fn gated_activation(
    storage: Storage,
    name: &str,
    (activation, place): (Activation, Place),
    columns: u32,
) -> Fixture {
    let mut fixture = Fixture::new("gated_activation", format!("{name}, {storage:?}"));
    let mut noise = Noise::new(&format!("gated {name} {columns}"));
    let width = if place == Place::SecondHalf {
        2 * columns
    } else {
        columns
    };
    let gate_up = fixture.buffer("gate_up", Rows::Tokens, width, storage);
    let other = fixture.buffer("up", Rows::Tokens, columns + 24, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    let up = match place {
        Place::SecondHalf => Up::SecondHalf,
        Place::Elsewhere => Up::Of(other, 16),
        Place::Nowhere => Up::One,
    };
    let is_xielu = activation == Activation::Xielu;
    let numbers = is_xielu.then(|| {
        fixture.weight(
            "numbers",
            1,
            WeightFormat::F32,
            &[0.3, -0.8, 0.5, XIELU_EPSILON],
        )
    });
    fixture.push(Step::GatedActivation(GatedActivation {
        gate_up,
        gates: Gates::default(),
        up,
        activation,
        numbers,
        out,
    }));
    for rows in [1, 5, 33] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        let values = noise.values((rows * width) as usize);
        let others = noise.values((rows * (columns + 24)) as usize);
        // Relative to the inputs: in the tail of an activation, small results are differences of large values.
        let ones = vec![1.0; columns as usize];
        let allowed = values
            .chunks_exact(width as usize)
            .zip(others.chunks_exact(columns as usize + 24));
        let allowed = allowed.flat_map(|(row, other)| {
            let (gates, half) = row.split_at(columns as usize);
            let ups = match place {
                Place::SecondHalf => half,
                Place::Elsewhere => &other[16..][..columns as usize],
                Place::Nowhere => &ones[..],
            };
            // xIELU jumps at zero, by less than its epsilon, and a device may take a subnormal gate for zero.
            let jump = |gate: &f32| {
                if is_xielu && gate.is_subnormal() {
                    -f64::from(XIELU_EPSILON)
                } else {
                    0.0
                }
            };
            gates
                .iter()
                .zip(ups)
                .map(|(gate, up)| {
                    let product = f64::from(gate.abs()) * (1.0 + f64::from(up.abs()));
                    jump(gate) + 0.1 * RELATIVE * product
                })
                .collect::<Vec<_>>()
        });
        let of_inputs: Vec<f64> = allowed.collect();
        run.buffers.push((gate_up, values));
        run.buffers.push((other, others));
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(gate_up, 0, rows - 1));
        }
        run.mutants.extend(
            (place == Place::SecondHalf).then_some(Mutant::SwapHeads(gate_up, columns, 0, 1)),
        );
        run.mutants.extend(
            (rows > 1 && place == Place::Elsewhere).then_some(Mutant::SwapRows(other, 0, 1)),
        );
        let allowed = Box::new(move |expected: &[f32]| {
            let relative = expected
                .iter()
                .map(|value| RELATIVE * f64::from(value.abs()));
            relative
                .zip(&of_inputs)
                .map(|(relative, of_inputs)| relative + of_inputs)
                .collect()
        });
        expect_rows(&fixture, &mut run, out, rows, allowed);
        fixture.runs.push(run);
    }
    fixture
}

fn scale_logits(vocab: u32, softcap: Option<f32>) -> Fixture {
    let mut fixture = Fixture::new(
        "scale_logits",
        if softcap.is_some() {
            "softcap"
        } else {
            "plain"
        },
    );
    let mut noise = Noise::new(&format!("scale_logits {vocab}"));
    let logits = fixture.buffer("logits", Rows::Samples, vocab, Storage::F32);
    fixture.plan.vocab = vocab;
    let steps = vec![
        Step::ScaleLogits(ScaleLogits {
            logits,
            scale: 0.7,
            softcap,
        }),
        Step::Sample(Sample { logits }),
    ];
    fixture.plan.tails.push((Tail::Sample, steps));
    for rows in [1, 3, 65] {
        let mut run = Run::new(format!("{rows} rows of {vocab}"), plain_batch(rows));
        run.inputs.token_ids.fill(0);
        run.inputs.logits_rows = (0..rows).collect();
        sample_all(&mut run.inputs);
        let mut values = noise.values((rows * vocab) as usize);
        // Non-finite logits must be kept.
        values[0] = f32::NAN;
        expect_rows(&fixture, &mut run, logits, rows, relative(RELATIVE));
        run.buffers.last_mut().expect("the logits are filled").1 = values;
        run.mutants
            .extend((rows > 1).then_some(Mutant::SwapRows(logits, 0, rows - 1)));
        fixture.runs.push(run);
    }
    fixture
}

/// Adds `step` and a draw from its output, without which a device may skip the tail. Logits are f32.
pub(super) fn sampled_tail(step: Step, logits: BufferId, storage: Storage) -> Vec<Step> {
    let sample = (storage == Storage::F32).then_some(Step::Sample(Sample { logits }));
    std::iter::once(step).chain(sample).collect()
}

/// A greedy sample row for every logits row.
pub(super) fn sample_all(inputs: &mut BatchInputs) {
    inputs.tails = vec![Tail::Sample];
    inputs.samples = (0..)
        .zip(&inputs.logits_rows)
        .map(|(row, _)| SampleRow::greedy(row, 0))
        .collect();
}

/// A matrix product to check.
#[derive(Clone, Copy)]
struct Product {
    format: WeightFormat,
    /// Number of last rows of the weight that are bf16 instead.
    other_rows: u32,
    columns: u32,
    weight_rows: u32,
    bias: bool,
    accumulate: bool,
    tail: bool,
    /// Weights so small that their scales are subnormal halves.
    tiny: bool,
}

fn matmuls(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let all_rows = shapes.of(&[1, 2, 3, 7, 8, 16, 17, 33, 64, 100]);
    let mut fixtures = Vec::new();
    for format in WeightFormat::ALL {
        let plain = |columns, weight_rows| Product {
            format,
            other_rows: 0,
            columns,
            weight_rows,
            bias: false,
            accumulate: false,
            tail: false,
            tiny: false,
        };
        if format.is_quantised() {
            // Rows with and without partial groups; options around the product are covered with dense formats.
            for (columns, weight_rows, rows) in
                shapes.of(&[(1000, 67, [1, 3, 65]), (288, 35, [1, 12, 17])])
            {
                fixtures.push(matmul(kind, plain(*columns, *weight_rows), rows));
            }
            if format == WeightFormat::Q4 {
                let added = Product {
                    bias: true,
                    accumulate: true,
                    ..plain(256, 33)
                };
                fixtures.push(matmul(kind, added, &[1, 5, 33]));
                // So few outputs and so many columns that devices may divide the columns.
                let long = Product {
                    bias: true,
                    accumulate: true,
                    ..plain(4104, 35)
                };
                fixtures.push(matmul(kind, long, &[1, 5, 33]));
                fixtures.push(matmul(
                    kind,
                    Product {
                        tail: true,
                        other_rows: 31,
                        ..plain(96, 515)
                    },
                    &[4, 18],
                ));
            }
            if matches!(format, WeightFormat::Q4 | WeightFormat::Q8) {
                fixtures.push(matmul(
                    kind,
                    Product {
                        tiny: true,
                        ..plain(256, 33)
                    },
                    &[1, 5, 33],
                ));
            }
            continue;
        }
        for &(columns, weight_rows) in shapes.of(&[(8, 1), (40, 33), (256, 131), (1000, 259)]) {
            fixtures.push(matmul(kind, plain(columns, weight_rows), all_rows));
        }
        if shapes == Shapes::All {
            fixtures.push(matmul(kind, plain(8000, 65), &[1, 2, 17, 64]));
        }
        fixtures.push(matmul(
            kind,
            Product {
                bias: true,
                ..plain(256, 72)
            },
            all_rows,
        ));
        fixtures.push(matmul(
            kind,
            Product {
                accumulate: true,
                ..plain(40, 257)
            },
            all_rows,
        ));
        fixtures.push(matmul(
            kind,
            Product {
                bias: true,
                accumulate: true,
                ..plain(1000, 33)
            },
            &[1, 3, 16, 33],
        ));
        fixtures.push(matmul(
            kind,
            Product {
                tail: true,
                ..plain(256, 515)
            },
            &[1, 4, 18, 65],
        ));
    }
    fixtures
}

fn matmul(kind: RowKind, product: Product, all_rows: &[u32]) -> Fixture {
    let storage = kind.storage;
    let Product {
        format,
        other_rows,
        columns,
        weight_rows,
        bias,
        accumulate,
        tail,
        tiny,
    } = product;
    let flags = [
        (other_rows > 0, " and Bf16"),
        (bias, ", bias"),
        (accumulate, ", accumulate"),
        (tail, ", in a tail"),
        (tiny, ", subnormal scales"),
    ];
    let options = flags.map(|(on, name)| if on { name } else { "" }).concat();
    let mut fixture = Fixture::new("matmul", format!("{storage:?} · {format}{options}"));
    let mut noise = Noise::new(&format!("matmul {}{columns}{weight_rows}", fixture.option));
    // Scales below 2⁻¹⁴ are subnormal as halves.
    let factor = if tiny { 1e-5 } else { 1.0 };
    let values: Vec<f32> = noise
        .values((columns * weight_rows) as usize)
        .iter()
        .map(|value| factor * value)
        .collect();
    let own_rows = weight_rows - other_rows;
    let sections = [(own_rows, format), (other_rows, WeightFormat::Bf16)];
    let sections = sections.map(|(rows, format)| Section { rows, format });
    let sections = if other_rows > 0 {
        &sections[..]
    } else {
        &sections[..1]
    };
    let weight = fixture.weight_in_sections("weight", sections, &values);
    let bias = bias.then(|| fixture.weight("bias", 1, format, &noise.values(weight_rows as usize)));
    let rows_kind = if tail { Rows::Samples } else { Rows::Tokens };
    let x = fixture.buffer("x", rows_kind, columns, storage);
    // Accumulated outputs and logits are f32.
    let out_storage = if accumulate || tail {
        Storage::F32
    } else {
        storage
    };
    let out = fixture.buffer("out", rows_kind, weight_rows, out_storage);
    let step = Step::MatMul(MatMul {
        x,
        weight,
        bias,
        accumulate,
        out,
    });
    if tail {
        fixture.plan.vocab = weight_rows;
        fixture
            .plan
            .tails
            .push((Tail::Sample, sampled_tail(step, out, out_storage)));
    } else {
        fixture.push(step);
    }
    for &rows in all_rows {
        let mut run = Run::new(
            format!("{rows} × {columns} × {weight_rows}"),
            plain_batch(rows),
        );
        if tail {
            run.inputs.logits_rows = (0..rows).collect();
            sample_all(&mut run.inputs);
        }
        let x_values: Vec<f32> = noise
            .values((rows * columns) as usize)
            .into_iter()
            .map(|v| storage.round(v))
            .collect();
        let start = accumulate.then(|| noise.values((rows * weight_rows) as usize));
        let mut allowed = allowed_products(&fixture, &x_values, weight, bias, start.as_deref());
        if kind.halves && rows > FEW_ROWS_MAX {
            allow_halves(&mut allowed, &x_values, weight_rows as usize);
        }
        if kind.int8 && rows == 1 && format.has_byte_codes() {
            add_one_code(
                &mut allowed,
                &x_values,
                &fixture.weight_values(weight)[..(own_rows * columns) as usize],
            );
        }
        run.buffers.push((x, x_values));
        run.buffers.push((
            out,
            start.unwrap_or_else(|| unwritten((rows * weight_rows) as usize)),
        ));
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(allowed),
        });
        run.mutants
            .extend((rows > 1).then_some(Mutant::SwapRows(x, 0, rows - 1)));
        run.mutants
            .extend((weight_rows > 1).then_some(Mutant::SwapWeightRows(weight, 0, own_rows - 1)));
        fixture.runs.push(run);
    }
    fixture
}

/// Allows what rounding to halves changes, also of a weight below the smallest normal half: 2⁻²⁴. Small elements of x
/// do not matter, because its rows are scaled.
fn allow_halves(allowed: &mut [f64], x: &[f32], weight_rows: usize) {
    let columns = x.len() / (allowed.len() / weight_rows);
    for (allowed, x) in allowed
        .chunks_exact_mut(weight_rows)
        .zip(x.chunks_exact(columns))
    {
        let smallest = 2f64.powi(-24) * x.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        allowed
            .iter_mut()
            .for_each(|allowed| *allowed = HALVES / PRODUCTS * *allowed + smallest);
    }
}

/// An element of x halfway between two codes may be rounded either way: allows the largest product of a weight with a
/// step between codes. There is one tolerance for each row of `weights`, and there may be more for other rows.
fn add_one_code(allowed: &mut [f64], x: &[f32], weights: &[f32]) {
    for (allowed, weights) in allowed.iter_mut().zip(weights.chunks_exact(x.len())) {
        let groups = x.chunks(GROUP).zip(weights.chunks(GROUP));
        let largest = |(x, weights): (&[f32], &[f32])| {
            int8::step(x)
                * weights
                    .iter()
                    .fold(0.0f32, |largest, weight| largest.max(weight.abs()))
        };
        *allowed += groups
            .map(largest)
            .fold(0.0, |largest, product| f64::from(product).max(largest));
    }
}

/// Tolerance: 1e-5 · (Σ |x·w| + |bias| + |old value|) for every output.
fn allowed_products(
    fixture: &Fixture,
    x: &[f32],
    weight: WeightId,
    bias: Option<WeightId>,
    start: Option<&[f32]>,
) -> Vec<f64> {
    let spec = fixture.plan.weight_spec(weight);
    let (columns, weight_rows) = (spec.columns as usize, spec.rows as usize);
    let weights = fixture.weight_values(weight);
    let bias = bias.map(|bias| fixture.weight_values(bias));
    let mut allowed = vec![0.0; x.len() / columns * weight_rows];
    for_each_chunk(&mut allowed, weight_rows, |row, allowed| {
        let x = &x[row * columns..][..columns];
        for (column, (allowed, weights)) in allowed
            .iter_mut()
            .zip(weights.chunks_exact(columns))
            .enumerate()
        {
            let products = x.iter().zip(weights).map(|(x, w)| f64::from((x * w).abs()));
            let bias = bias
                .as_ref()
                .map_or(0.0, |bias| f64::from(bias[column].abs()));
            let start = start.map_or(0.0, |start| {
                f64::from(start[row * weight_rows + column].abs())
            });
            *allowed = PRODUCTS * (products.sum::<f64>() + bias + start);
        }
    });
    allowed
}
