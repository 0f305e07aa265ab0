//! Test cases for recurrences, and for the norms and gates that follow them: StateScan, GatedNorm, GatedActivation with
//! gates among other columns.

use super::Shapes;
use super::compare::{RELATIVE, SCANS};
use super::dense::DENSE;
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, expect_rows, plain_batch, relative,
};
use super::states::{BATCHES, SLOTS, Sequences, batch, states};
use crate::plan::{
    Activation, GatedActivation, GatedNorm, Gates, Rows, ScanRule, StateLayer, StateScan, Step,
    Storage, Up, WeightFormat,
};

/// Columns before the gates, and after them: no kernel may read them.
const OTHERS: (u32, u32) = (16, 5);

/// Sizes of a recurrence.
#[derive(Clone, Copy)]
struct Sizes {
    heads: u32,
    key_heads: u32,
    key_dim: u32,
    value_dim: u32,
}

impl Sizes {
    const fn new(heads: u32, key_heads: u32, key_dim: u32, value_dim: u32) -> Self {
        Self {
            heads,
            key_heads,
            key_dim,
            value_dim,
        }
    }

    /// Columns of a row of values.
    fn columns(self) -> u32 {
        self.heads * self.value_dim
    }

    /// Elements of a state.
    fn state_elements(self) -> u32 {
        self.heads * self.key_dim * self.value_dim
    }
}

const SIZES: [Sizes; 7] = [
    Sizes::new(1, 1, 8, 8),
    Sizes::new(2, 2, 24, 128),
    Sizes::new(4, 1, 16, 24),
    Sizes::new(6, 2, 40, 72),
    Sizes::new(3, 3, 128, 16),
    Sizes::new(4, 2, 128, 128),
    Sizes::new(2, 1, 256, 64),
];

/// A recurrence, and whether it has a skip connection.
#[derive(Clone, Copy)]
struct Recurrence {
    rule: ScanRule,
    skip: bool,
}

const RECURRENCES: [Recurrence; 4] = [
    Recurrence {
        rule: ScanRule::Delta { beta_scale: 1.0 },
        skip: false,
    },
    Recurrence {
        rule: ScanRule::Delta { beta_scale: 2.0 },
        skip: false,
    },
    Recurrence {
        rule: ScanRule::Mamba2,
        skip: false,
    },
    Recurrence {
        rule: ScanRule::Mamba2,
        skip: true,
    },
];

/// More batches of recurrences: chunks of 16 rows that are one row short, full, and one row long; sequences on both
/// sides of the 8 rows from which on there are chunks.
const CHUNKS: [Sequences; 3] = [
    &[
        (15, false),
        (1, false),
        (16, true),
        (17, false),
        (35, false),
        (7, true),
        (8, false),
    ],
    &[(16, false)],
    &[(9, true), (8, false)],
];

/// All fixtures of these steps, with `storage` in row buffers.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &sizes in shapes.of(&SIZES) {
        fixtures.extend(RECURRENCES.map(|recurrence| state_scan(storage, recurrence, sizes)));
    }
    for format in DENSE {
        for &(groups, group) in shapes.of(&[(1, 8), (3, 40), (2, 1032)]) {
            for shared in [false, true] {
                fixtures
                    .extend([false, true].map(|first| {
                        gated_norm(storage, format, (groups, group), (shared, first))
                    }));
            }
        }
    }
    for (activation, shared_by) in [
        (Activation::Silu, 1),
        (Activation::Sigmoid, 1),
        (Activation::Sigmoid, 8),
        (Activation::Softplus, 1),
        (Activation::Softplus, 8),
    ] {
        let columns = shapes.of(&[8, 40, 1032]).iter();
        fixtures.extend(columns.map(|columns| gates(storage, activation, shared_by, *columns)));
    }
    fixtures
}

fn state_scan(storage: Storage, recurrence: Recurrence, sizes: Sizes) -> Fixture {
    let Sizes {
        heads,
        key_heads,
        key_dim,
        value_dim,
    } = sizes;
    let name = recurrence.name();
    let mut fixture = Fixture::new("state_scan", format!("{storage:?}, {name}"));
    let mut noise = Noise::new(&format!(
        "state_scan {name} {:?}",
        [heads, key_heads, key_dim, value_dim]
    ));
    let step = recurrence.step(&mut fixture, storage, sizes, &mut noise);
    fixture.state_slots = SLOTS;
    fixture.plan.state_layers.push(StateLayer {
        elements: sizes.state_elements(),
    });
    fixture.push(Step::StateScan(step));
    for sequences in BATCHES.into_iter().chain(CHUNKS) {
        let mut run = scan_run(&fixture, &step, sequences, &mut noise);
        run.mutants = recurrence.mutants(&step, sequences);
        let rows = run.inputs.positions.len() as u32;
        let allowed = of_heads(sizes.columns(), value_dim);
        expect_rows(&fixture, &mut run, step.out, rows, allowed);
        run.checks.push(Check::State {
            layer: step.layer,
            allowed: of_heads(sizes.state_elements(), key_dim * value_dim),
        });
        fixture.runs.push(run);
    }
    fixture
}

impl Recurrence {
    fn name(self) -> String {
        match self.rule {
            ScanRule::Delta { beta_scale } => format!("delta rule {beta_scale}"),
            ScanRule::Mamba2 => format!("mamba2{}", if self.skip { ", skip" } else { "" }),
        }
    }

    /// The step, with its weights and buffers.
    fn step(
        self,
        fixture: &mut Fixture,
        storage: Storage,
        sizes: Sizes,
        noise: &mut Noise,
    ) -> StateScan {
        let Sizes {
            heads,
            key_heads,
            key_dim,
            value_dim,
        } = sizes;
        let decay = fixture.weight("decay", 1, WeightFormat::F32, &decays(heads, noise));
        let dt_bias = noise.values(heads as usize);
        let dt_bias = fixture.weight("dt_bias", 1, WeightFormat::Bf16, &dt_bias);
        let skip = self.skip.then(|| {
            let values = noise.values(heads as usize);
            fixture.weight("skip", 1, WeightFormat::F32, &values)
        });
        let channels = 2 * key_heads * key_dim + sizes.columns();
        let mixed_columns = OTHERS.0 + self.rule.gates() * heads + OTHERS.1;
        StateScan {
            convolved: fixture.buffer("convolved", Rows::Tokens, channels, storage),
            mixed: fixture.buffer("mixed", Rows::Tokens, mixed_columns, storage),
            gates: OTHERS.0,
            layer: 0,
            heads,
            key_heads,
            // One of the rules covers both orders of heads.
            tiled: self.rule == ScanRule::Delta { beta_scale: 2.0 },
            key_dim,
            value_dim,
            rule: self.rule,
            decay,
            dt_bias,
            skip,
            out: fixture.buffer("out", Rows::Tokens, sizes.columns(), storage),
        }
    }

    /// Mutants that swap heads, rows and states, where that changes a result.
    fn mutants(self, step: &StateScan, sequences: Sequences) -> Vec<Mutant> {
        let rows: u32 = sequences.iter().map(|(rows, _)| rows).sum();
        let gates = step.gates;
        let (channels, other) = match self.rule {
            ScanRule::Mamba2 => (step.value_dim, 1),
            ScanRule::Delta { .. } => (step.key_dim, step.key_heads),
        };
        let mut mutants = Vec::new();
        if rows > 1 && step.heads > 1 {
            mutants.push(Mutant::SwapHeads(step.convolved, channels, 0, other));
        }
        if rows > 8 && step.heads > 1 {
            mutants.push(Mutant::SwapHeads(step.mixed, 1, gates, gates + 1));
        }
        if rows > 1 {
            mutants.push(Mutant::SwapRows(step.convolved, 0, rows - 1));
        }
        if sequences.len() > 1 {
            mutants.extend([Mutant::SwapStates(0, 1), Mutant::StartAgain]);
        }
        mutants
    }
}

/// Besides others, heads that forget all at once, and heads that forget nothing; not where they would be most of the
/// heads, because neither shows what a sequence started from.
fn decays(heads: u32, noise: &mut Noise) -> Vec<f32> {
    (0..heads)
        .map(|head| match (head % 4, noise.uniform().abs()) {
            (1, _) if heads > 3 => -1e-6,
            (3, _) => -200.0,
            (_, decay) => -0.01 - 2.0 * decay / (1 + head) as f32,
        })
        .collect()
}

/// A batch of these sequences with channels, gates and states.
fn scan_run(fixture: &Fixture, step: &StateScan, sequences: Sequences, noise: &mut Noise) -> Run {
    let inputs = batch(sequences, noise);
    let rows = inputs.token_ids.len();
    let shape = format!(
        "{} × {} heads of {} × {}, {} sequences of {rows} rows",
        step.heads,
        step.key_heads,
        step.key_dim,
        step.value_dim,
        sequences.len()
    );
    let mut run = Run::new(shape, inputs);
    let [channels, width] = [step.convolved, step.mixed]
        .map(|buffer| fixture.plan.buffer_spec(buffer).columns as usize);
    run.buffers
        .push((step.convolved, noise.values(rows * channels)));
    run.buffers
        .push((step.mixed, among_others(rows, width, noise)));
    let elements = (step.heads * step.key_dim * step.value_dim) as usize;
    run.states.push(states(&run.inputs, elements, noise));
    run
}

/// Rows of gates, with NaN in the columns around them.
fn among_others(rows: usize, width: usize, noise: &mut Noise) -> Vec<f32> {
    let mut values = noise.values(rows * width);
    for row in values.chunks_exact_mut(width) {
        row[..OTHERS.0 as usize].fill(f32::NAN);
        row[width - OTHERS.1 as usize..].fill(f32::NAN);
    }
    values
}

/// Tolerance of the values of heads, in rows of `columns`: relative to the largest value of the head.
fn of_heads(columns: u32, head_columns: u32) -> Allowed {
    let (columns, head_columns) = (columns as usize, head_columns as usize);
    Box::new(move |expected| {
        let mut largest = vec![0.0f32; columns / head_columns];
        let head = |at: usize| at % columns / head_columns;
        for (at, value) in expected.iter().enumerate() {
            largest[head(at)] = largest[head(at)].max(value.abs());
        }
        (0..expected.len())
            .map(|at| SCANS * f64::from(largest[head(at)]))
            .collect()
    })
}

fn gated_norm(
    storage: Storage,
    format: WeightFormat,
    (groups, group): (u32, u32),
    (shared, gate_first): (bool, bool),
) -> Fixture {
    let flags = [(shared, ", shared weight"), (gate_first, ", gate first")];
    let options = flags.map(|(on, name)| if on { name } else { "" }).concat();
    let mut fixture = Fixture::new("gated_norm", format!("{storage:?}, {format}{options}"));
    let mut noise = Noise::new(&format!("gated_norm {options} {groups} {group}"));
    let columns = groups * group;
    let weights = noise.values(if shared { group } else { columns } as usize);
    let weight = fixture.weight("weight", 1, format, &weights);
    let x = fixture.buffer("x", Rows::Tokens, columns, storage);
    let mixed = fixture.buffer(
        "mixed",
        Rows::Tokens,
        OTHERS.0 + columns + OTHERS.1,
        storage,
    );
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    let (epsilon, gates) = (1e-5, OTHERS.0);
    fixture.push(Step::GatedNorm(GatedNorm {
        x,
        mixed,
        gates,
        group,
        weight,
        epsilon,
        gate_first,
        out,
    }));
    for rows in [1, 5, 33] {
        let mut run = Run::new(
            format!("{groups} × {group} columns, {rows} rows"),
            plain_batch(rows),
        );
        run.buffers
            .push((x, noise.values((rows * columns) as usize)));
        let width = fixture.plan.buffer_spec(mixed).columns as usize;
        run.buffers
            .push((mixed, among_others(rows as usize, width, &mut noise)));
        if rows > 1 {
            run.mutants.extend([
                Mutant::SwapRows(x, 0, rows - 1),
                Mutant::SwapRows(mixed, 0, rows - 1),
            ]);
        }
        run.mutants
            .extend((groups > 1).then_some(Mutant::SwapHeads(x, group, 0, groups - 1)));
        // An activation and a norm.
        expect_rows(&fixture, &mut run, out, rows, relative(2.0 * RELATIVE));
        fixture.runs.push(run);
    }
    fixture
}

/// Gates of another buffer's columns, as of attention.
fn gates(storage: Storage, activation: Activation, shared_by: u32, columns: u32) -> Fixture {
    let mut fixture = Fixture::new(
        "gated_activation",
        format!("{storage:?}, {activation} of {shared_by}"),
    );
    let mut noise = Noise::new(&format!("gates {} {columns}", fixture.option));
    let width = OTHERS.0 + columns / shared_by + if shared_by == 1 { 8 } else { OTHERS.1 };
    let gate_up = fixture.buffer("mixed", Rows::Tokens, width, storage);
    let x = fixture.buffer("x", Rows::Tokens, columns, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    let gates = Gates {
        first: OTHERS.0,
        shared_by,
    };
    fixture.push(Step::GatedActivation(GatedActivation {
        gate_up,
        gates,
        up: Up::Of(x, 0),
        activation,
        numbers: None,
        routes: None,
        out,
    }));
    for rows in [1, 5, 33] {
        let mut run = Run::new(format!("{columns} columns, {rows} rows"), plain_batch(rows));
        run.buffers.push((
            gate_up,
            among_others(rows as usize, width as usize, &mut noise),
        ));
        run.buffers
            .push((x, noise.values((rows * columns) as usize)));
        if rows > 1 {
            run.mutants.extend([
                Mutant::SwapRows(gate_up, 0, rows - 1),
                Mutant::SwapRows(x, 0, rows - 1),
            ]);
        }
        expect_rows(&fixture, &mut run, out, rows, relative(2.0 * RELATIVE));
        fixture.runs.push(run);
    }
    fixture
}
