//! Test cases for the steps that move rows and blocks: GatherRows, Pool, CopyBlocks.

use super::Shapes;
use super::compare::PRODUCTS;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, each, exact, expect_rows, paged_batch, plain_batch,
    relative, sample_all, sampled_tail,
};
use crate::backend::KvHalf;
use crate::plan::inputs::PoolRow;
use crate::plan::{CopyBlocks, GatherRows, KvFormat, Pool, Rows, Step, Storage, Tail, Window};

/// All fixtures of these steps, with row buffers of `storage`.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = vec![gather_rows(storage, 1), gather_rows(storage, 3)];
    for columns in shapes.of(&[8, 40, 1032]) {
        fixtures.push(pool(storage, *columns));
    }
    fixtures.extend(KvFormat::ALL.map(copy_blocks));
    fixtures
}

/// Single rows, or runs of some.
fn gather_rows(storage: Storage, run_length: u32) -> Fixture {
    let mut fixture = Fixture::new("gather_rows", format!("{storage:?}, {run_length} in a row"));
    let mut noise = Noise::new("gather_rows");
    let x = fixture.buffer("x", Rows::Tokens, 40, Storage::F32);
    let out = fixture.buffer("out", Rows::Samples, 40 * run_length, storage);
    fixture.plan.vocab = 40 * run_length;
    fixture.plan.tails.push((
        Tail::Sample,
        sampled_tail(Step::GatherRows(GatherRows { x, out }), out, storage),
    ));
    for (rows, picked) in [
        (run_length, vec![0]),
        (9, vec![8, 2, 2, 0]),
        (70, (0..70).rev().collect()),
    ] {
        let count = u32::try_from(picked.len()).expect("a few rows");
        let mut run = Run::new(format!("{count} of {rows} rows"), plain_batch(rows));
        run.inputs.token_ids.fill(0);
        run.inputs.logits_rows = picked
            .into_iter()
            .map(|row| row.min(rows.saturating_sub(run_length)))
            .collect();
        sample_all(&mut run.inputs);
        run.buffers.push((x, noise.values((rows * 40) as usize)));
        if count > 1 {
            run.mutants.push(Mutant::SwapLogitsRows(0, count - 1));
        }
        expect_rows(&fixture, &mut run, out, count, relative(0.0));
        fixture.runs.push(run);
    }
    fixture
}

/// Sums of one row, of a few and of many, over several workgroups of columns.
fn pool(storage: Storage, columns: u32) -> Fixture {
    let mut fixture = Fixture::new("pool", format!("{storage:?}, {columns} columns"));
    let mut noise = Noise::new(&format!("pool {columns}"));
    let x = fixture.buffer("x", Rows::Tokens, columns, storage);
    fixture
        .plan
        .tails
        .push((Tail::Pool, vec![Step::Pool(Pool { x })]));
    for (rows, pools) in [
        (1, vec![(0, 1)]),
        (9, vec![(0, 4), (8, 1), (4, 4)]),
        (300, vec![(3, 290), (299, 1), (0, 17)]),
    ] {
        let mut run = Run::new(format!("{} of {rows} rows", pools.len()), plain_batch(rows));
        run.inputs.tails = vec![Tail::Pool];
        run.inputs.pools = pools
            .into_iter()
            .map(|(row_start, row_count)| PoolRow {
                row_start,
                row_count,
            })
            .collect();
        let values: Vec<f32> = noise
            .values((rows * columns) as usize)
            .iter()
            .map(|value| storage.round(*value))
            .collect();
        let allowed = run.inputs.pools.iter().flat_map(|pool| {
            let rows = pool.row_start as usize..(pool.row_start + pool.row_count) as usize;
            (0..columns as usize)
                .map(|column| {
                    let of_rows = rows
                        .clone()
                        .map(|row| values[row * columns as usize + column]);
                    PRODUCTS * of_rows.map(|value| f64::from(value.abs())).sum::<f64>()
                })
                .collect::<Vec<_>>()
        });
        run.checks.push(Check::Pooled {
            allowed: each(allowed.collect()),
        });
        run.buffers.push((x, values));
        if rows > 1 {
            run.mutants
                .extend([Mutant::ShorterPool, Mutant::SwapRows(x, 0, rows - 1)]);
        }
        fixture.runs.push(run);
    }
    fixture
}

/// Two groups, three layers, copies in each: whole blocks are copied bit for bit, and nothing else changes.
fn copy_blocks(format: KvFormat) -> Fixture {
    let mut fixture = Fixture::new("copy_blocks", format!("{format:?}"));
    fixture.kv_format = format;
    let mut noise = Noise::new("copy_blocks");
    fixture.layer(3, 8, None, 9);
    fixture.layer(1, 40, Some(Window::Last(20)), 7);
    fixture.plan.kv_layers.push(crate::plan::KvLayer {
        group: 0,
        heads: 2,
        head_dim: 16,
        latent: false,
    });
    fixture.push(Step::CopyBlocks(CopyBlocks));
    for copies in [
        [vec![], vec![]],
        [vec![(8, 0), (1, 2), (8, 5)], vec![(3, 6)]],
        [vec![], vec![(0, 1)]],
    ] {
        let shape = format!("{} and {} copies", copies[0].len(), copies[1].len());
        let mut run = Run::new(shape, paged_batch(&fixture, &[(1, 1)], &mut noise));
        for (group, copies) in copies.into_iter().enumerate() {
            run.mutants
                .extend((!copies.is_empty()).then_some(Mutant::DropCopy(group)));
            run.inputs.groups[group].copies = copies;
        }
        for layer in 0..3 {
            let halves = [(); 2].map(|()| noise.values(fixture.pool_elements(layer)));
            run.kv.push(halves);
            for half in [KvHalf::Key, KvHalf::Value] {
                run.checks.push(Check::Kv {
                    layer,
                    half,
                    allowed: exact(),
                });
            }
        }
        fixture.runs.push(run);
    }
    fixture
}
