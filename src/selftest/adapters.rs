//! Test cases for RouteAdapters. The products with adapters are products with experts.

use super::Shapes;
use super::fixture::{Fixture, Mutant, Noise, Run, expect_rows, plain_batch, relative};
use crate::plan::inputs::{BatchInputs, SequenceRows};
use crate::plan::{AdapterSlots, BufferId, Plan, RouteAdapters, Rows, Step, Storage};
use std::sync::Arc;

/// Adapter slots, with the empty one.
const SLOTS: u32 = 9;

/// Rows and slot of each sequence.
type Sequences = &'static [(u32, u32)];

const BATCHES: [Sequences; 3] = [
    &[(1, 8)],
    &[(1, 3), (1, 0), (1, 3), (1, 8)],
    &[(70, 1), (1, 0), (33, 5), (1, 7)],
];

/// All fixtures of the step.
pub(super) fn fixtures(shapes: Shapes) -> Vec<Fixture> {
    let of_experts = shapes.of(&[(4, 1), (33, 3), (512, 8)]);
    let mut fixtures = vec![route_adapters(None)];
    fixtures.extend(of_experts.iter().map(|&shape| route_adapters(Some(shape))));
    fixtures
}

/// With the routes of a mixture of so many experts, of which a token chooses so many; or without experts.
fn route_adapters(experts: Option<(u32, u32)>) -> Fixture {
    let option = experts.map_or("plain".into(), |(experts, per_token)| {
        format!("{per_token} of {experts} experts")
    });
    let mut fixture = Fixture::new("route_adapters", option);
    fixture.plan.adapters = Some(AdapterSlots {
        count: SLOTS,
        unused: Arc::new(Plan::default()),
    });
    let per_token = experts.map_or(1, |(_, per_token)| per_token);
    let of_rows = Rows::Routes(per_token);
    let chosen = experts.map(|(experts, _)| {
        let routes = fixture.buffer("routes", of_rows, 2, Storage::F32);
        (routes, experts)
    });
    let routes = fixture.buffer("matrices", of_rows, 2, Storage::F32);
    fixture.push(Step::RouteAdapters(RouteAdapters {
        experts: chosen,
        routes,
    }));
    let mut noise = Noise::new(&fixture.name());
    for sequences in BATCHES {
        let mut run = run(sequences);
        let rows = per_token * run.inputs.token_ids.len() as u32;
        if let Some(chosen) = chosen {
            fill(&mut run, chosen, rows, &mut noise);
        }
        expect_rows(&fixture, &mut run, routes, rows, relative(1e-7));
        fixture.runs.push(run);
    }
    fixture
}

fn run(sequences: Sequences) -> Run {
    let rows = sequences.iter().map(|(rows, _)| rows).sum();
    let mut inputs = BatchInputs {
        sequences: Vec::new(),
        positions: Vec::new(),
        ..plain_batch(rows)
    };
    for &(row_count, slot) in sequences {
        inputs.sequences.push(SequenceRows {
            row_start: inputs.positions.len() as u32,
            row_count,
            context_len: row_count,
        });
        inputs.positions.extend(0..row_count);
        inputs.adapters.push(slot);
    }
    let mut run = Run::new(
        format!("{} sequences of {rows} rows", sequences.len()),
        inputs,
    );
    if sequences.len() > 1 {
        run.mutants.push(Mutant::SwapAdapters(0, 1));
    }
    run
}

/// Random routes to experts.
fn fill(run: &mut Run, (routes, experts): (BufferId, u32), rows: u32, noise: &mut Noise) {
    let route = |_| [noise.below(experts) as f32, 0.1 + noise.uniform().abs()];
    let values = (0..rows).flat_map(route).collect();
    run.buffers.push((routes, values));
    if rows > 1 {
        run.mutants.push(Mutant::SwapRows(routes, 0, rows - 1));
    }
}
