//! Test cases for MatMul, alone and between a norm and an activation.

use super::compare::{HALVES, PRODUCTS};
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, each, expect_rows, largest, names_of, plain_batch,
    sample_all, sampled_tail, sections, unwritten,
};
use super::weights::{ScaleSizes, has_half_scales};
use super::{RowKind, Shapes};
use crate::backend::FEW_ROWS_MAX;
use crate::backend::reference::int8;
use crate::plan::format::GROUP;
use crate::plan::{
    Activation, BufferId, GatedActivation, Gates, MatMul, NormOptions, RmsNorm, Rows, Step,
    Storage, Tail, Up, WeightFormat,
};
use crate::platform::for_each_chunk;

/// All fixtures, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for format in WeightFormat::ALL {
        for product in products(format, shapes) {
            fixtures.push(matmul(kind, &product));
        }
    }
    for format in [WeightFormat::Bf16, WeightFormat::Q4, WeightFormat::Q6K] {
        for (norm, gate) in [(true, false), (false, true), (true, true)] {
            let chain = Chain { format, norm, gate };
            fixtures.push(chain.fixture(kind));
        }
    }
    fixtures
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
    /// Scales that are subnormal halves, or small exponents.
    tiny: bool,
    /// Numbers of rows of the runs.
    rows: &'static [u32],
}

const PLAIN: Product = Product {
    format: WeightFormat::F32,
    other_rows: 0,
    columns: 256,
    weight_rows: 33,
    bias: false,
    accumulate: false,
    tail: false,
    tiny: false,
    rows: &[1, 5, 33],
};
const ADDED: Product = Product {
    bias: true,
    accumulate: true,
    ..PLAIN
};
const IN_A_TAIL: Product = Product {
    tail: true,
    weight_rows: 515,
    ..PLAIN
};

/// Rows with and without partial groups; options around the product are covered with dense formats.
const PACKED: [Product; 2] = [
    Product {
        columns: 1000,
        weight_rows: 67,
        rows: &[1, 3, 65],
        ..PLAIN
    },
    Product {
        columns: 288,
        weight_rows: 35,
        rows: &[1, 12, 17],
        ..PLAIN
    },
];

/// Options of one quantized format.
const PACKED_OPTIONS: [Product; 3] = [
    ADDED,
    // So few outputs and so many columns that devices may divide the columns.
    Product {
        columns: 4104,
        weight_rows: 35,
        ..ADDED
    },
    Product {
        columns: 96,
        other_rows: 31,
        rows: &[4, 18],
        ..IN_A_TAIL
    },
];

const TINY: Product = Product {
    tiny: true,
    ..PLAIN
};

const FEW_AND_MANY_ROWS: [u32; 10] = [1, 2, 3, 7, 8, 16, 17, 33, 64, 100];

/// Columns and rows of weights that are not quantized.
const DENSE_SHAPES: [(u32, u32); 4] = [(8, 1), (40, 33), (256, 131), (1000, 259)];

const LONG: Product = Product {
    columns: 8000,
    weight_rows: 65,
    rows: &[1, 2, 17, 64],
    ..PLAIN
};

/// The products of a format.
fn products(format: WeightFormat, shapes: Shapes) -> Vec<Product> {
    let mut products = if format.is_quantised() {
        packed_products(format, shapes)
    } else {
        dense_products(shapes)
    };
    for product in &mut products {
        product.format = format;
    }
    products
}

fn packed_products(format: WeightFormat, shapes: Shapes) -> Vec<Product> {
    let mut products = shapes.of(&PACKED).to_vec();
    if format == WeightFormat::Q4 {
        products.extend(PACKED_OPTIONS);
    }
    products.push(TINY);
    products
}

fn dense_products(shapes: Shapes) -> Vec<Product> {
    let in_all_rows = Product {
        rows: shapes.of(&FEW_AND_MANY_ROWS),
        ..PLAIN
    };
    let mut products = Vec::new();
    for &(columns, weight_rows) in shapes.of(&DENSE_SHAPES) {
        products.push(Product {
            columns,
            weight_rows,
            ..in_all_rows
        });
    }
    if shapes == Shapes::All {
        products.push(LONG);
    }
    products.extend([
        Product {
            bias: true,
            weight_rows: 72,
            ..in_all_rows
        },
        Product {
            accumulate: true,
            columns: 40,
            weight_rows: 257,
            ..in_all_rows
        },
        Product {
            columns: 1000,
            rows: &[1, 3, 16, 33],
            ..ADDED
        },
        Product {
            rows: &[1, 4, 18, 65],
            ..IN_A_TAIL
        },
    ]);
    products
}

fn matmul(kind: RowKind, product: &Product) -> Fixture {
    let mut fixture = Fixture::new("matmul", product.name(kind.storage));
    let mut noise = Noise::new(&format!(
        "matmul {}{}{}",
        fixture.option, product.columns, product.weight_rows
    ));
    let step = product.add_step(&mut fixture, kind.storage, &mut noise);
    for &rows in product.rows {
        let run = product.run(&fixture, &step, kind, rows, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

impl Product {
    /// The options as a name.
    fn name(&self, storage: Storage) -> String {
        let options = names_of(&[
            (self.other_rows > 0, " and Bf16"),
            (self.bias, ", bias"),
            (self.accumulate, ", accumulate"),
            (self.tail, ", in a tail"),
            (self.tiny, ", small scales"),
        ]);
        format!("{storage:?} · {}{options}", self.format)
    }

    /// Rows of the weight in its format.
    fn own_rows(&self) -> u32 {
        self.weight_rows - self.other_rows
    }

    /// Adds the step, with its weights and buffers.
    fn add_step(&self, fixture: &mut Fixture, storage: Storage, noise: &mut Noise) -> MatMul {
        if self.tiny {
            fixture.scale_sizes = ScaleSizes::Small;
        }
        let values = noise.values((self.columns * self.weight_rows) as usize);
        let sections = sections(self.format, self.weight_rows, self.other_rows);
        let weight = fixture.weight_in_sections("weight", &sections, &values);
        let bias = self.bias.then(|| {
            let values = noise.values(self.weight_rows as usize);
            fixture.weight("bias", 1, self.format, &values)
        });
        let rows = if self.tail {
            Rows::Samples
        } else {
            Rows::Tokens
        };
        // Accumulated outputs and logits are f32.
        let out_storage = if self.accumulate || self.tail {
            Storage::F32
        } else {
            storage
        };
        let step = MatMul {
            x: fixture.buffer("x", rows, self.columns, storage),
            weight,
            bias,
            accumulate: self.accumulate,
            out: fixture.buffer("out", rows, self.weight_rows, out_storage),
        };
        if self.tail {
            let steps = sampled_tail(Step::MatMul(step), step.out, out_storage);
            fixture.plan.vocab = self.weight_rows;
            fixture.plan.tails.push((Tail::Sample, steps));
        } else {
            fixture.push(Step::MatMul(step));
        }
        step
    }

    fn run(
        &self,
        fixture: &Fixture,
        step: &MatMul,
        kind: RowKind,
        rows: u32,
        noise: &mut Noise,
    ) -> Run {
        let (columns, weight_rows) = (self.columns, self.weight_rows);
        let shape = format!("{rows} × {columns} × {weight_rows}");
        let mut run = Run::new(shape, plain_batch(rows));
        if self.tail {
            run.inputs.logits_rows = (0..rows).collect();
            sample_all(&mut run.inputs);
        }
        let x = noise.rounded(kind.storage, (rows * columns) as usize);
        let outputs = (rows * weight_rows) as usize;
        let start = self.accumulate.then(|| noise.values(outputs));
        let mut allowed = allowed_products(fixture, step, &x, start.as_deref());
        if kind.halves && rows > FEW_ROWS_MAX {
            allow_halves(&mut allowed, &x, weight_rows as usize);
        }
        if kind.int8 && rows == 1 && self.format.has_byte_codes() {
            let weights = fixture.weight_values(step.weight);
            let own = (self.own_rows() * columns) as usize;
            add_one_code(&mut allowed, &x, &weights[..own]);
        }
        run.buffers.push((step.x, x));
        let start = start.unwrap_or_else(|| unwritten(outputs));
        run.buffers.push((step.out, start));
        run.checks.push(Check::Rows {
            buffer: step.out,
            rows,
            allowed: each(allowed),
        });
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(step.x, 0, rows - 1));
        }
        if weight_rows > 1 {
            let last = self.own_rows() - 1;
            run.mutants
                .push(Mutant::SwapWeightRows(step.weight, 0, last));
        }
        if self.tiny && has_half_scales(self.format) {
            run.mutants.push(Mutant::FlushScales(step.weight));
        }
        run
    }
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
    step: &MatMul,
    x: &[f32],
    start: Option<&[f32]>,
) -> Vec<f64> {
    let spec = fixture.plan.weight_spec(step.weight);
    let (columns, weight_rows) = (spec.columns as usize, spec.rows as usize);
    let weights = fixture.weight_values(step.weight);
    let bias = step.bias.map(|bias| fixture.weight_values(bias));
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

/// A product with the norm before it and the activation after it, which a device may fuse.
struct Chain {
    format: WeightFormat,
    norm: bool,
    gate: bool,
}

/// Columns of the weight of a chain, and of what is activated.
const CHAIN_COLUMNS: u32 = 264;
const CHAIN_OUTPUTS: u32 = 72;

impl Chain {
    fn fixture(&self, kind: RowKind) -> Fixture {
        let (storage, format) = (kind.storage, self.format);
        let option = names_of(&[
            (self.norm, "norm, "),
            (true, "product"),
            (self.gate, ", activation"),
        ]);
        let mut fixture = Fixture::new("matmul", format!("{storage:?} · {format}, {option}"));
        let mut noise = Noise::new(&format!("neighbours {}", fixture.option));
        let (x, out) = self.add_steps(&mut fixture, storage, &mut noise);
        for rows in [1, 2, 3, 8, 9] {
            let mut run = Run::new(format!("{rows} rows"), plain_batch(rows));
            run.buffers
                .push((x, noise.values((rows * CHAIN_COLUMNS) as usize)));
            if rows > 1 {
                run.mutants.push(Mutant::SwapRows(x, 0, rows - 1));
            }
            expect_rows(&fixture, &mut run, out, rows, self.allowed(kind, rows));
            fixture.runs.push(run);
        }
        fixture
    }

    /// Adds the steps, and returns their input and their output.
    fn add_steps(
        &self,
        fixture: &mut Fixture,
        storage: Storage,
        noise: &mut Noise,
    ) -> (BufferId, BufferId) {
        let values = noise.values((2 * CHAIN_OUTPUTS * CHAIN_COLUMNS) as usize);
        let weight = fixture.weight("weight", 2 * CHAIN_OUTPUTS, self.format, &values);
        let values = noise.values(CHAIN_COLUMNS as usize);
        let norm_weight = fixture.weight("norm", 1, WeightFormat::F32, &values);
        let x_storage = if self.norm { Storage::F32 } else { storage };
        let x = fixture.buffer("x", Rows::Tokens, CHAIN_COLUMNS, x_storage);
        let normed = fixture.buffer("normed", Rows::Tokens, CHAIN_COLUMNS, storage);
        let product = fixture.buffer("product", Rows::Tokens, 2 * CHAIN_OUTPUTS, storage);
        let activated = fixture.buffer("activated", Rows::Tokens, CHAIN_OUTPUTS, storage);
        if self.norm {
            fixture.push(Step::RmsNorm(RmsNorm {
                x,
                delta: None,
                weight: norm_weight,
                epsilon: 1e-5,
                one_plus: true,
                accumulate: false,
                options: NormOptions::default(),
                out: normed,
            }));
        }
        fixture.push(Step::MatMul(MatMul {
            x: if self.norm { normed } else { x },
            weight,
            bias: None,
            accumulate: false,
            out: product,
        }));
        if !self.gate {
            return (x, product);
        }
        fixture.push(Step::GatedActivation(GatedActivation {
            gate_up: product,
            gates: Gates::default(),
            up: Up::SecondHalf,
            activation: Activation::Silu,
            numbers: None,
            routes: None,
            out: activated,
        }));
        (x, activated)
    }

    /// A norm's output may be rounded either way, which changes every sum by one of its products; so does a device that
    /// rounds operands to bytes or halves.
    fn allowed(&self, kind: RowKind, rows: u32) -> Allowed {
        let as_bytes = kind.int8 && rows == 1 && self.format.has_byte_codes();
        let as_halves = kind.halves && rows > FEW_ROWS_MAX;
        let share = match kind.storage {
            Storage::F32 if as_bytes => 2e-3,
            // Both operands have 11 bits.
            Storage::F32 if as_halves => 6e-3,
            Storage::F32 => 1e-4,
            _ => 2e-2,
        };
        // A small result may be the product of a small gate, which has the error of a large one, and a large up.
        let floor_share = if as_halves { 0.1 } else { 0.01 };
        Box::new(move |expected| {
            let floor = floor_share * share * f64::from(largest(expected));
            expected
                .iter()
                .map(|value| share * f64::from(value.abs()) + floor)
                .collect()
        })
    }
}
