//! Test cases for the steps that work on rows: Embed, RmsNorm, GatedActivation, ScaleLogits; and those of [`matmul`].

use super::compare::RELATIVE;
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, each, either, expect_rows, names_of, plain_batch,
    relative, sample_all,
};
use super::{RowKind, Shapes, matmul};
use crate::plan::inputs::{FEED, IMAGE_ROW, SECOND_TEXT};
use crate::plan::{
    Activation, BufferId, Embed, GatedActivation, Gates, NormOptions, RmsNorm, RowId, Rows, Sample,
    ScaleLogits, Step, Storage, Tail, Up, WeightFormat,
};

/// Formats of vectors.
pub(super) const DENSE: [WeightFormat; 3] =
    [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

/// All fixtures of these steps, with `rows` in row buffers.
pub(super) fn fixtures(rows: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let storage = rows.storage;
    let mut fixtures = Vec::new();
    for format in WeightFormat::ALL {
        for &columns in shapes.of(&[8, 40, 1000]) {
            fixtures.push(embed(storage, format, columns));
        }
    }
    for format in DENSE {
        for &columns in shapes.of(&[8, 40, 1000]) {
            fixtures.extend([RowId::Position(2), RowId::Text].map(|id| table(format, columns, id)));
        }
    }
    for &columns in shapes.of(&[8, 40, 1000]) {
        fixtures.push(image_rows(storage, columns));
    }
    for format in DENSE {
        for &columns in shapes.of(&[8, 40, 1000, 4104]) {
            fixtures.extend(NORMS.map(|norm| rms_norm(storage, format, columns, norm)));
        }
    }
    for gated in &ACTIVATIONS {
        for &columns in shapes.of(&[8, 40, 1032]) {
            fixtures.push(gated_activation(storage, gated, columns));
        }
    }
    for &vocab in shapes.of(&[1, 33, 1027]) {
        fixtures.extend([None, Some(3.0)].map(|softcap| scale_logits(vocab, softcap)));
    }
    fixtures.extend(matmul::fixtures(rows, shapes));
    fixtures
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
        id: RowId::Token,
        accumulate: false,
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

/// Rows by position or by text, which are added to others.
fn table(format: WeightFormat, columns: u32, id: RowId) -> Fixture {
    let mut fixture = Fixture::new("embed", format!("{format} of {id:?}"));
    let mut noise = Noise::new(&format!("table {format:?} {columns} {id:?}"));
    fixture.plan.positions_max = 64;
    let rows = if id == RowId::Text { 2 } else { 66 };
    let values = noise.values((rows * columns) as usize);
    let table = fixture.weight("table", rows, format, &values);
    let out = fixture.buffer("out", Rows::Tokens, columns, Storage::F32);
    fixture.push(Step::Embed(Embed {
        table,
        id,
        scale: 1.5,
        accumulate: true,
        out,
    }));
    for rows in [1, 17, 64] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        for row in (0..rows).filter(|row| row % 3 == 1) {
            run.inputs.token_ids[row as usize] |= SECOND_TEXT;
        }
        if rows > 1 && id == RowId::Text {
            run.mutants.push(Mutant::SwapTokens(0, 1));
        }
        expect_rows(&fixture, &mut run, out, rows, relative(RELATIVE));
        add_to(&mut run, noise.values((rows * columns) as usize));
        fixture.runs.push(run);
    }
    fixture
}

/// Tokens, and between them rows of images from another table.
fn image_rows(storage: Storage, columns: u32) -> Fixture {
    let mut fixture = Fixture::new("embed", format!("image rows to {storage:?}"));
    let mut noise = Noise::new(&format!("image rows {columns}"));
    let mut table = |name, rows| {
        let values = noise.values((rows * columns) as usize);
        fixture.weight(name, rows, WeightFormat::F32, &values)
    };
    let (tokens, images) = (table("tokens", 256), table("images", 50));
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    for (table, id, scale) in [(tokens, RowId::Token, 2.5), (images, RowId::Image, 1.0)] {
        fixture.push(Step::Embed(Embed {
            table,
            id,
            scale,
            accumulate: false,
            out,
        }));
    }
    for rows in [1, 17, 65] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        for row in (0..rows).filter(|row| row % 3 == 1) {
            run.inputs.token_ids[row as usize] = IMAGE_ROW | (row * 7 % 50);
        }
        if rows > 1 {
            run.mutants.push(Mutant::SwapTokens(0, 1));
        }
        expect_rows(&fixture, &mut run, out, rows, relative(RELATIVE));
        fixture.runs.push(run);
    }
    fixture
}

/// Options of `RmsNorm`.
#[derive(Clone, Copy)]
struct Norm {
    delta: bool,
    one_plus: bool,
    accumulate: bool,
    center: bool,
    bias: bool,
    scale: bool,
}

const PLAIN_NORM: Norm = Norm {
    delta: false,
    one_plus: false,
    accumulate: false,
    center: false,
    bias: false,
    scale: false,
};

/// Combinations of options that models have.
const NORMS: [Norm; 9] = [
    PLAIN_NORM,
    Norm {
        delta: true,
        ..PLAIN_NORM
    },
    Norm {
        one_plus: true,
        ..PLAIN_NORM
    },
    Norm {
        delta: true,
        one_plus: true,
        ..PLAIN_NORM
    },
    Norm {
        accumulate: true,
        ..PLAIN_NORM
    },
    Norm {
        delta: true,
        one_plus: true,
        accumulate: true,
        ..PLAIN_NORM
    },
    Norm {
        center: true,
        ..PLAIN_NORM
    },
    Norm {
        center: true,
        bias: true,
        ..PLAIN_NORM
    },
    Norm {
        scale: true,
        accumulate: true,
        ..PLAIN_NORM
    },
];

impl Norm {
    /// The options as a name.
    fn name(&self) -> String {
        names_of(&[
            (self.delta, ", delta"),
            (self.one_plus, ", 1 + w"),
            (self.accumulate, ", accumulate"),
            (self.center, ", centered"),
            (self.bias, ", bias"),
            (self.scale, ", scale"),
        ])
    }

    /// The options of the step, with their weights.
    fn options(
        &self,
        fixture: &mut Fixture,
        format: WeightFormat,
        columns: u32,
        noise: &mut Noise,
    ) -> NormOptions {
        NormOptions {
            center: self.center,
            bias: self
                .bias
                .then(|| fixture.weight("bias", 1, format, &noise.values(columns as usize))),
            scale: self
                .scale
                .then(|| fixture.weight("scale", 1, format, &[0.75])),
        }
    }

    fn run(
        &self,
        fixture: &Fixture,
        [x, delta, out]: [BufferId; 3],
        rows: u32,
        noise: &mut Noise,
    ) -> Run {
        let columns = fixture.plan.buffer_spec(x).columns;
        let elements = (rows * columns) as usize;
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        run.buffers.push((x, noise.values(elements)));
        run.buffers.push((delta, noise.values(elements)));
        if self.delta {
            run.checks.push(Check::Rows {
                buffer: x,
                rows,
                allowed: relative(0.0),
            });
        }
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(x, 0, rows - 1));
        }
        if rows > 1 && self.delta {
            run.mutants.push(Mutant::SwapRows(delta, 0, 1));
        }
        expect_rows(fixture, &mut run, out, rows, self.allowed());
        if self.accumulate {
            add_to(&mut run, noise.values(elements));
        }
        run
    }

    fn allowed(&self) -> Allowed {
        // What is subtracted or added may leave little of a value.
        let near = if self.center { 10.0 * RELATIVE } else { 0.0 };
        Box::new(move |expected| {
            expected
                .iter()
                .map(|value| RELATIVE * f64::from(value.abs()) + near)
                .collect()
        })
    }
}

fn rms_norm(storage: Storage, format: WeightFormat, columns: u32, norm: Norm) -> Fixture {
    let option = format!("{storage:?}, w {format}{}", norm.name());
    let mut fixture = Fixture::new("rms_norm", option);
    let mut noise = Noise::new(&format!("rms_norm {}{columns}", fixture.option));
    // The residual stream is always f32; with `accumulate`, the output is that too.
    let out_storage = if norm.accumulate {
        Storage::F32
    } else {
        storage
    };
    let options = norm.options(&mut fixture, format, columns, &mut noise);
    let weight = fixture.weight("weight", 1, format, &noise.values(columns as usize));
    let x = fixture.buffer("x", Rows::Tokens, columns, Storage::F32);
    let delta = fixture.buffer("delta", Rows::Tokens, columns, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, out_storage);
    fixture.push(Step::RmsNorm(RmsNorm {
        x,
        delta: norm.delta.then_some(delta),
        weight,
        epsilon: 1e-5,
        one_plus: norm.one_plus,
        accumulate: norm.accumulate,
        options,
        out,
    }));
    for rows in [1, 3, 17] {
        let run = norm.run(&fixture, [x, delta, out], rows, &mut noise);
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
    /// The same, where gates are multiplied by the weights of routes.
    Routed,
    Elsewhere,
    Nowhere,
}

/// An activation to check.
struct Gated {
    name: &'static str,
    activation: Activation,
    place: Place,
}

const ACTIVATIONS: [Gated; 13] = [
    Gated {
        name: "clamped_silu",
        activation: Activation::ClampedSilu { limit: 0.9 },
        place: Place::SecondHalf,
    },
    Gated {
        name: "silu of routes",
        activation: Activation::Silu,
        place: Place::Routed,
    },
    Gated {
        name: "silu",
        activation: Activation::Silu,
        place: Place::SecondHalf,
    },
    Gated {
        name: "gelu_tanh",
        activation: Activation::GeluTanh,
        place: Place::SecondHalf,
    },
    Gated {
        name: "gelu_tanh, up elsewhere",
        activation: Activation::GeluTanh,
        place: Place::Elsewhere,
    },
    Gated {
        name: "gelu_tanh, no up",
        activation: Activation::GeluTanh,
        place: Place::Nowhere,
    },
    Gated {
        name: "gelu",
        activation: Activation::Gelu,
        place: Place::SecondHalf,
    },
    Gated {
        name: "gelu, no up",
        activation: Activation::Gelu,
        place: Place::Nowhere,
    },
    Gated {
        name: "relu",
        activation: Activation::Relu,
        place: Place::SecondHalf,
    },
    Gated {
        name: "relu, no up",
        activation: Activation::Relu,
        place: Place::Nowhere,
    },
    Gated {
        name: "relu2, no up",
        activation: Activation::Relu2,
        place: Place::Nowhere,
    },
    Gated {
        name: "xielu, no up",
        activation: Activation::Xielu,
        place: Place::Nowhere,
    },
    Gated {
        name: "clamped_swiglu",
        activation: Activation::ClampedSwiglu {
            alpha: 1.702,
            limit: 7.0,
        },
        place: Place::SecondHalf,
    },
];

/// With [`Place::Elsewhere`], the first column of what gates are multiplied with, and the columns around it.
const OTHER_START: u32 = 16;
const OTHER_EXTRA: u32 = 24;

impl Gated {
    /// Columns of the gates and what lies beside them.
    fn width(&self, columns: u32) -> u32 {
        match self.place {
            Place::SecondHalf | Place::Routed => 2 * columns,
            Place::Elsewhere | Place::Nowhere => columns,
        }
    }

    fn run(
        &self,
        fixture: &Fixture,
        [gate_up, other, out]: [BufferId; 3],
        routes: Option<BufferId>,
        rows: u32,
        noise: &mut Noise,
    ) -> Run {
        let columns = fixture.plan.buffer_spec(out).columns;
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        let values = noise.values((rows * self.width(columns)) as usize);
        let others = noise.values((rows * (columns + OTHER_EXTRA)) as usize);
        let of_inputs = each(self.allowed(columns, &values, &others));
        let weights: Vec<f32> = (0..rows)
            .flat_map(|row| [row as f32, route_weight(row as usize)])
            .collect();
        run.buffers.extend(routes.map(|routes| (routes, weights)));
        run.buffers.push((gate_up, values));
        run.buffers.push((other, others));
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(gate_up, 0, rows - 1));
        }
        if matches!(self.place, Place::SecondHalf | Place::Routed) {
            run.mutants.push(Mutant::SwapHeads(gate_up, columns, 0, 1));
        }
        if rows > 1 && self.place == Place::Elsewhere {
            run.mutants.push(Mutant::SwapRows(other, 0, 1));
        }
        let allowed = either(relative(RELATIVE), of_inputs);
        expect_rows(fixture, &mut run, out, rows, allowed);
        run
    }

    /// Tolerances of rows of gates and of other rows: relative to the inputs, because in the tail of an activation,
    /// small results are differences of large values.
    fn allowed(&self, columns: u32, rows: &[f32], others: &[f32]) -> Vec<f64> {
        let ones = vec![1.0; columns as usize];
        let rows = rows.chunks_exact(self.width(columns) as usize);
        let others = others.chunks_exact((columns + OTHER_EXTRA) as usize);
        let mut allowed = Vec::new();
        for (index, (row, other)) in rows.zip(others).enumerate() {
            let weight = match self.place {
                Place::Routed => f64::from(route_weight(index)),
                _ => 1.0,
            };
            let (gates, half) = row.split_at(columns as usize);
            let ups = match self.place {
                Place::SecondHalf | Place::Routed => half,
                Place::Elsewhere => &other[OTHER_START as usize..],
                Place::Nowhere => &ones[..],
            };
            for (gate, up) in gates.iter().zip(ups) {
                let product = weight * f64::from(gate.abs()) * (1.0 + f64::from(up.abs()));
                allowed.push(self.jump(*gate) + 0.1 * RELATIVE * product);
            }
        }
        allowed
    }

    /// xIELU jumps at zero, by less than its epsilon, and a device may take a subnormal gate for zero.
    fn jump(&self, gate: f32) -> f64 {
        if self.activation == Activation::Xielu && gate.is_subnormal() {
            -f64::from(XIELU_EPSILON)
        } else {
            0.0
        }
    }
}

/// The weight of a row's route.
fn route_weight(row: usize) -> f32 {
    0.25 + 0.5 * (row % 3) as f32
}

fn gated_activation(storage: Storage, gated: &Gated, columns: u32) -> Fixture {
    let name = gated.name;
    let mut fixture = Fixture::new("gated_activation", format!("{name}, {storage:?}"));
    let mut noise = Noise::new(&format!("gated {name} {columns}"));
    let gate_up = fixture.buffer("gate_up", Rows::Tokens, gated.width(columns), storage);
    let other = fixture.buffer("up", Rows::Tokens, columns + OTHER_EXTRA, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    let numbers = [0.3, -0.8, 0.5, XIELU_EPSILON];
    let numbers = (gated.activation == Activation::Xielu)
        .then(|| fixture.weight("numbers", 1, WeightFormat::F32, &numbers));
    let routes = (gated.place == Place::Routed)
        .then(|| fixture.buffer("routes", Rows::Tokens, 2, Storage::F32));
    fixture.push(Step::GatedActivation(GatedActivation {
        gate_up,
        gates: Gates::default(),
        up: match gated.place {
            Place::SecondHalf | Place::Routed => Up::SecondHalf,
            Place::Elsewhere => Up::Of(other, OTHER_START),
            Place::Nowhere => Up::One,
        },
        activation: gated.activation,
        numbers,
        routes,
        out,
    }));
    for rows in [1, 5, 33] {
        let run = gated.run(&fixture, [gate_up, other, out], routes, rows, &mut noise);
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
