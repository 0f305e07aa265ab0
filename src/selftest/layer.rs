//! A layer: copy-on-write, store and attention of a chunk in one batch.

use super::RowKind;
use super::attention::Heads;
use super::compare::attention_of_stored;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, codes, each, exact, paged_batch, pool_content, unwritten,
};
use crate::backend::KvHalf;
use crate::plan::inputs::BatchInputs;
use crate::plan::{
    AttendPaged, CopyBlocks, KvFormat, Rope, RopeStoreKv, Rows, Step, StoreOptions, WeightFormat,
};

/// All fixtures, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for format in [KvFormat::F32, KvFormat::Q8, KvFormat::Fp8] {
        fixtures.push(layer(kind, format, None));
        fixtures.push(layer(kind, format, Some(20)));
    }
    fixtures
}

/// Copy-on-write, store and attention of a chunk in one batch: attention reads what the same batch has written.
fn layer(kind: RowKind, format: KvFormat, window: Option<u32>) -> Fixture {
    let storage = kind.storage;
    let heads = Heads {
        head_dim: 64,
        query: 4,
        kv: 2,
    };
    let window_option = window
        .map(|window| format!(", window {window}"))
        .unwrap_or_default();
    let option = format!("{storage:?}, kv {format:?}, copy, store, attend{window_option}");
    let mut fixture = Fixture::new("layer", option);
    let mut noise = Noise::new(&fixture.name());
    fixture.kv_format = format;
    let layer = fixture.layer(heads.kv, heads.head_dim, window, 24);
    let qkv_columns = (heads.query + 2 * heads.kv) * heads.head_dim;
    let qkv = fixture.buffer("qkv", Rows::Tokens, qkv_columns, storage);
    let q = fixture.buffer("q", Rows::Tokens, heads.query * heads.head_dim, storage);
    let out = fixture.buffer("out", Rows::Tokens, heads.query * heads.head_dim, storage);
    let frequencies: Vec<f32> = (0..32)
        .map(|pair| 1e4f32.powf(-(pair as f32) / 32.0))
        .collect();
    let frequencies = fixture.weight("frequencies", 1, WeightFormat::F32, &frequencies);
    let rope = Some(Rope {
        frequencies,
        rotary_dim: 64,
        interleaved: false,
        scale: 1.0,
    });
    fixture.push(Step::CopyBlocks(CopyBlocks));
    let query_heads = heads.query;
    let (q_norm, k_norm, options) = (None, None, StoreOptions::default());
    fixture.push(Step::RopeStoreKv(RopeStoreKv {
        qkv,
        layer,
        query_heads,
        q_norm,
        k_norm,
        rope,
        options,
        q,
    }));
    let (alibi, sinks) = (None, None);
    fixture.push(Step::AttendPaged(AttendPaged {
        q,
        layer,
        query_heads,
        scale: 0.125,
        softcap: None,
        alibi,
        sinks,
        out,
    }));
    for (shape, sequences) in [
        ("chunks", &[(5, 40), (17, 100)][..]),
        ("mixed", &[(1, 40), (33, 33), (1, 16), (2, 2)]),
    ] {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let mut kv = pool_content(&fixture, layer, &inputs, &mut noise);
        move_first_block(&fixture, &mut inputs, &mut kv);
        let mut run = Run::new(shape, inputs);
        run.buffers
            .push((qkv, noise.values((rows * qkv_columns) as usize)));
        run.buffers
            .push((q, unwritten((rows * heads.query * heads.head_dim) as usize)));
        run.buffers.push((
            out,
            unwritten((rows * heads.query * heads.head_dim) as usize),
        ));
        run.kv.push(kv);
        // Values are at most 20, the size of the outliers.
        let elements = (rows * heads.query * heads.head_dim) as usize;
        let values = if format.is_coded() {
            codes(format, 1.0, heads.head_dim)
        } else {
            exact()
        };
        let share = attention_of_stored(kind, format);
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(vec![share * 20.0; elements]),
        });
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Value,
            allowed: values,
        });
        run.mutants
            .extend([Mutant::SwapRows(qkv, 0, rows - 1), Mutant::DropCopy(0)]);
        fixture.runs.push(run);
    }
    fixture
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
