//! Test cases for JoinRows, which runs in batches of a predictor.

use super::Shapes;
use super::compare::RELATIVE;
use super::dense::DENSE;
use super::fixture::{Fixture, Mutant, Noise, Run, expect_rows, plain_batch, relative};
use crate::plan::{JoinRows, NormOptions, Plan, RmsNorm, Rows, Step, Storage, WeightFormat};
use std::sync::Arc;

/// All fixtures of the step, with row buffers of `storage`.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for format in DENSE {
        for &columns in shapes.of(&[8, 40, 1000, 4104]) {
            for one_plus in [false, true] {
                fixtures.push(join_rows(storage, format, columns, one_plus));
            }
        }
    }
    fixtures
}

fn join_rows(storage: Storage, format: WeightFormat, columns: u32, one_plus: bool) -> Fixture {
    let plus = if one_plus { ", 1 + w" } else { "" };
    let mut fixture = Fixture::new("join_rows", format!("{storage:?}, w {format}{plus}"));
    let mut noise = Noise::new(&format!("join_rows {}{columns}", fixture.option));
    let [x_norm, carried_norm] = ["x_norm", "carried_norm"]
        .map(|name| fixture.weight(name, 1, format, &noise.values(columns as usize)));
    let x = fixture.buffer("x", Rows::Tokens, columns, Storage::F32);
    let carried = fixture.buffer("carried", Rows::Tokens, columns, storage);
    let out = fixture.buffer("out", Rows::Tokens, 2 * columns, storage);
    let epsilon = 1e-5;
    let join = JoinRows {
        x,
        carried,
        x_norm,
        carried_norm,
        epsilon,
        one_plus,
        out,
    };
    // As any predictor, it leaves rows for its next batch.
    let leave = RmsNorm {
        x,
        delta: None,
        weight: x_norm,
        epsilon,
        one_plus,
        accumulate: false,
        options: NormOptions::default(),
        out: carried,
    };
    fixture.plan.predictor = Some(Arc::new(Plan {
        body: vec![Step::JoinRows(join), Step::RmsNorm(leave)],
        ..fixture.plan.clone()
    }));
    for rows in [1, 3, 17] {
        let mut run = Run::new(format!("{rows} × {columns}"), plain_batch(rows));
        // Each row once, in another order.
        run.inputs.carried = (0..rows).map(|row| (5 * row + 1) % rows).collect();
        for buffer in [x, carried] {
            let values = noise.values((rows * columns) as usize);
            run.buffers.push((buffer, values));
        }
        if rows > 1 {
            run.mutants.extend([
                Mutant::SwapRows(x, 0, rows - 1),
                Mutant::SwapRows(carried, 0, rows - 1),
                Mutant::SwapCarried(0, rows - 1),
            ]);
        }
        expect_rows(&fixture, &mut run, out, rows, relative(RELATIVE));
        fixture.runs.push(run);
    }
    fixture
}
