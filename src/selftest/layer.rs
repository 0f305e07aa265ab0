//! A layer: copy-on-write, store and attention of a chunk in one batch.

use super::RowKind;
use super::attention::{Batch, Heads, window_name};
use super::compare::attention_of_stored;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, codes, each, exact, expect_rows, paged_batch, pool_content,
    unwritten,
};
use crate::backend::KvHalf;
use crate::plan::inputs::BatchInputs;
use crate::plan::{
    AttendPaged, CopyBlocks, KvFormat, Rope, RopeStoreKv, Rows, Step, Storage, StoreOptions,
    WeightFormat, Window,
};

const HEADS: Heads = Heads::new(64, 4, 2);

const BATCHES: [Batch; 2] = [
    ("chunks", &[(5, 40), (17, 100)]),
    ("mixed", &[(1, 40), (33, 33), (1, 16), (2, 2)]),
];

/// All fixtures, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for format in [KvFormat::F32, KvFormat::Q8, KvFormat::Fp8] {
        fixtures.push(layer(kind, format, None));
        fixtures.push(layer(kind, format, Some(Window::Last(20))));
    }
    fixtures
}

/// Copy-on-write, store and attention of a chunk in one batch: attention reads what the same batch has written.
fn layer(kind: RowKind, format: KvFormat, window: Option<Window>) -> Fixture {
    let window_option = window_name(window);
    let option = format!(
        "{:?}, kv {format:?}, copy, store, attend{window_option}",
        kind.storage
    );
    let mut fixture = Fixture::new("layer", option);
    let mut noise = Noise::new(&fixture.name());
    fixture.kv_format = format;
    let layer = fixture.layer(HEADS.kv, HEADS.head_dim, window, 24);
    let (store, attend) = steps(&mut fixture, kind.storage, layer);
    fixture.push(Step::CopyBlocks(CopyBlocks));
    fixture.push(Step::RopeStoreKv(store));
    fixture.push(Step::AttendPaged(attend));
    for batch in BATCHES {
        let run = run(&fixture, kind, &store, &attend, batch, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

/// Store and attention, with their weights and buffers.
fn steps(fixture: &mut Fixture, storage: Storage, layer: u32) -> (RopeStoreKv, AttendPaged) {
    let qkv_columns = (HEADS.query + 2 * HEADS.kv) * HEADS.head_dim;
    let qkv = fixture.buffer("qkv", Rows::Tokens, qkv_columns, storage);
    let q = fixture.buffer("q", Rows::Tokens, HEADS.columns(), storage);
    let out = fixture.buffer("out", Rows::Tokens, HEADS.columns(), storage);
    let frequencies: Vec<f32> = (0..32)
        .map(|pair| 1e4f32.powf(-(pair as f32) / 32.0))
        .collect();
    let rope = Rope {
        frequencies: fixture.weight("frequencies", 1, WeightFormat::F32, &frequencies),
        rotary_dim: 64,
        interleaved: false,
        scale: 1.0,
        by_axis: false,
    };
    let store = RopeStoreKv {
        qkv,
        layer,
        query_heads: HEADS.query,
        q_norm: None,
        k_norm: None,
        rope: Some(rope),
        options: StoreOptions::default(),
        q,
    };
    let attend = AttendPaged {
        q,
        layer,
        query_heads: HEADS.query,
        scale: 0.125,
        softcap: None,
        alibi: None,
        sinks: None,
        out,
    };
    (store, attend)
}

fn run(
    fixture: &Fixture,
    kind: RowKind,
    store: &RopeStoreKv,
    attend: &AttendPaged,
    (shape, sequences): Batch,
    noise: &mut Noise,
) -> Run {
    let mut inputs = paged_batch(fixture, sequences, noise);
    let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
    let mut kv = pool_content(fixture, store.layer, &inputs, noise);
    move_first_block(fixture, &mut inputs, &mut kv);
    let mut run = Run::new(shape, inputs);
    let elements = (rows * HEADS.columns()) as usize;
    let qkv_columns = fixture.plan.buffer_spec(store.qkv).columns;
    let qkv = noise.values((rows * qkv_columns) as usize);
    run.buffers.push((store.qkv, qkv));
    run.buffers.push((store.q, unwritten(elements)));
    run.kv.push(kv);
    // Values are at most 20, the size of the outliers.
    let share = attention_of_stored(kind, fixture.kv_format);
    let allowed = each(vec![share * 20.0; elements]);
    expect_rows(fixture, &mut run, attend.out, rows, allowed);
    run.checks.push(Check::Kv {
        layer: store.layer,
        half: KvHalf::Value,
        allowed: if fixture.kv_format.is_coded() {
            codes(fixture.kv_format, 1.0, HEADS.head_dim)
        } else {
            exact()
        },
    });
    run.mutants = vec![
        Mutant::SwapRows(store.qkv, 0, rows - 1),
        Mutant::DropCopy(0),
    ];
    run
}

/// Moves the last block of the first sequence to a spare block, from which the batch must copy it.
pub(super) fn move_first_block(
    fixture: &Fixture,
    inputs: &mut BatchInputs,
    kv: &mut [Vec<f32>; 2],
) {
    let group = &mut inputs.groups[0];
    let entry = group.table_starts[0] + (inputs.sequences[0].context_len - 1) / fixture.block_size;
    let target = group.block_tables[entry as usize];
    let source = (0..fixture.blocks[0])
        .find(|block| !group.block_tables.contains(block))
        .expect("the pool has a spare block");
    let elements = fixture.pool_elements(0) / fixture.blocks[0] as usize;
    for half in kv.iter_mut().filter(|half| !half.is_empty()) {
        half.copy_within(
            target as usize * elements..(target as usize + 1) * elements,
            source as usize * elements,
        );
        half[target as usize * elements..][..elements].fill(f32::NAN);
    }
    group.copies.push((source, target));
}
