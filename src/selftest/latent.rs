//! Test cases for latent attention: RopeStoreLatent, and store and attention in a layer. Attention alone and the
//! products of heads are options of their steps' cases.

use super::attention::{BATCHES, frequencies, rotated};
use super::compare::{RELATIVE, attention_of_stored};
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, codes, each, either, paged_batch, pool_content,
    unwritten,
};
use super::layer::move_first_block;
use super::{RowKind, Shapes};
use crate::backend::KvHalf;
use crate::plan::inputs::{BatchInputs, NONE};
use crate::plan::{
    AttendPaged, BufferId, CopyBlocks, KvFormat, QueryGrowth, Rope, RopeStoreLatent, Rows, Step,
    Storage, WeightFormat,
};

/// Sizes of a step.
#[derive(Clone, Copy)]
struct Sizes {
    heads: u32,
    /// Elements of the latent.
    rank: u32,
    rotated: u32,
    /// Elements of a head of `query` that are not rotated.
    plain: u32,
}

impl Sizes {
    fn dim(self) -> u32 {
        self.rank + self.rotated
    }
}

/// All fixtures of these steps, with `storage` for row buffers.
pub(super) fn fixtures(storage: Storage, shapes: Shapes) -> Vec<Fixture> {
    let sizes = [
        (16, 512, 64, 128),
        (3, 16, 8, 0),
        (5, 40, 24, 8),
        (128, 32, 8, 16),
    ];
    let mut fixtures = Vec::new();
    for &(heads, rank, rotated, plain) in shapes.of(&sizes) {
        let sizes = Sizes {
            heads,
            rank,
            rotated,
            plain,
        };
        for (format, interleaved) in KvFormat::ALL.into_iter().zip([true, false, true, false]) {
            fixtures.push(store(storage, format, sizes, interleaved));
        }
    }
    fixtures
        .extend([KvFormat::F32, KvFormat::Q8, KvFormat::Fp8].map(|format| layer(storage, format)));
    fixtures
}

/// The step, with the buffers that it reads and their columns, and the one that it writes.
fn push_store(
    fixture: &mut Fixture,
    noise: &mut Noise,
    storage: Storage,
    layer: u32,
    Sizes {
        heads,
        rank,
        rotated,
        plain,
    }: Sizes,
    interleaved: bool,
) -> ([(BufferId, u32); 3], BufferId) {
    let inputs = [
        ("query", heads * (plain + rotated)),
        ("absorbed", heads * rank),
        ("latent", rank + rotated),
    ]
    .map(|(name, columns)| {
        (
            fixture.buffer(name, Rows::Tokens, columns, storage),
            columns,
        )
    });
    let q = fixture.buffer("q", Rows::Tokens, heads * (rank + rotated), storage);
    let norm = fixture.weight("norm", 1, WeightFormat::Bf16, &noise.values(rank as usize));
    let pairs = rotated / 2;
    let frequencies = fixture.weight("frequencies", 1, WeightFormat::F32, &frequencies(pairs));
    let rope = Rope {
        frequencies,
        rotary_dim: rotated,
        interleaved,
        scale: if interleaved { 1.3 } else { 1.0 },
        by_axis: false,
    };
    let [query, absorbed, latent] = inputs.map(|(buffer, _)| buffer);
    let (query_heads, epsilon) = (heads, 1e-6);
    let step = RopeStoreLatent {
        query,
        absorbed,
        latent,
        layer,
        query_heads,
        norm,
        epsilon,
        rope,
        query_growth: (!interleaved).then_some(QueryGrowth {
            slope: 0.7,
            positions: 5,
            ahead: 1,
        }),
        q,
    };
    fixture.push(Step::RopeStoreLatent(step));
    (inputs, q)
}

fn store(storage: Storage, format: KvFormat, sizes: Sizes, interleaved: bool) -> Fixture {
    let pairs = if interleaved { ", interleaved" } else { "" };
    let mut fixture = Fixture::new(
        "rope_store_latent",
        format!("{storage:?}, kv {format:?}{pairs}"),
    );
    let mut noise = Noise::new(&format!("latent {}{}", fixture.option, sizes.dim()));
    fixture.kv_format = format;
    // Compare with the values before quantization: two devices may round a value between two codes differently.
    fixture.kv_expected = format.is_coded().then_some(KvFormat::F32);
    fixture.block_size = if sizes.dim().is_multiple_of(32) {
        32
    } else {
        16
    };
    let layer = fixture.layer(1, sizes.dim(), None, 70);
    fixture.plan.kv_layers[layer as usize].latent = true;
    let (buffers, q) = push_store(&mut fixture, &mut noise, storage, layer, sizes, interleaved);
    let stored = Stored {
        sizes,
        interleaved,
        layer,
        buffers,
        q,
    };
    for (shape, sequences) in [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[5]] {
        let inputs = paged_batch(&fixture, sequences, &mut noise);
        let run = store_run(&fixture, stored, shape, inputs, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

/// A pushed step: what it reads, and where it writes.
#[derive(Clone, Copy)]
struct Stored {
    sizes: Sizes,
    interleaved: bool,
    layer: u32,
    buffers: [(BufferId, u32); 3],
    q: BufferId,
}

fn store_run(
    fixture: &Fixture,
    Stored {
        sizes,
        interleaved,
        layer,
        buffers,
        q,
    }: Stored,
    shape: &str,
    mut inputs: BatchInputs,
    noise: &mut Noise,
) -> Run {
    let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
    // A row without a slot writes only q.
    if rows > 4 {
        inputs.groups[0].slot_mapping[2] = NONE;
    }
    let (heads, dim) = (sizes.heads, sizes.dim());
    let mut run = Run::new(format!("{heads} heads of {dim}, {shape}"), inputs);
    for (buffer, columns) in buffers {
        let values = noise.values((rows * columns) as usize);
        run.buffers.push((buffer, values));
    }
    run.buffers
        .push((q, unwritten((rows * heads * dim) as usize)));
    let keys = noise.values(fixture.pool_elements(layer));
    run.kv.push([keys, Vec::new()]);
    run.checks.push(Check::Rows {
        buffer: q,
        rows,
        allowed: turned(sizes, interleaved),
    });
    let mut stored = turned(sizes, interleaved);
    if fixture.kv_format.is_coded() {
        stored = either(stored, codes(fixture.kv_format, 0.5, dim));
    }
    run.checks.push(Check::Kv {
        layer,
        half: KvHalf::Key,
        allowed: stored,
    });
    if rows > 4 {
        let swapped = buffers.map(|(buffer, _)| Mutant::SwapRows(buffer, 0, rows - 1));
        run.mutants.extend(swapped);
        run.mutants.push(Mutant::SwapSlots(0, 0, rows - 1));
    }
    let absorbed = buffers[1].0;
    run.mutants
        .push(Mutant::SwapHeads(absorbed, sizes.rank, 0, heads - 1));
    run
}

/// Tolerance: 1e-5 of an element, or of the length of its rotated pair.
fn turned(
    Sizes {
        rank,
        rotated: turning,
        ..
    }: Sizes,
    interleaved: bool,
) -> Allowed {
    let pairs = rotated(turning, turning / 2, interleaved);
    Box::new(move |expected| {
        expected
            .chunks_exact((rank + turning) as usize)
            .flat_map(|row| {
                let (plain, turned) = row.split_at(rank as usize);
                plain
                    .iter()
                    .map(|value| RELATIVE * f64::from(value.abs()))
                    .chain(pairs(turned))
                    .collect::<Vec<_>>()
            })
            .collect()
    })
}

/// Copy-on-write, store and attention of a chunk in one batch.
fn layer(storage: Storage, format: KvFormat) -> Fixture {
    let sizes = Sizes {
        heads: 20,
        rank: 48,
        rotated: 16,
        plain: 8,
    };
    let mut fixture = Fixture::new(
        "layer",
        format!("{storage:?}, kv {format:?}, copy, store, attend, latent"),
    );
    let mut noise = Noise::new(&fixture.name());
    fixture.kv_format = format;
    let layer = fixture.layer(1, sizes.dim(), None, 24);
    fixture.plan.kv_layers[layer as usize].latent = true;
    fixture.push(Step::CopyBlocks(CopyBlocks));
    let (buffers, q) = push_store(&mut fixture, &mut noise, storage, layer, sizes, true);
    let out = fixture.buffer("out", Rows::Tokens, sizes.heads * sizes.dim(), storage);
    fixture.push(Step::AttendPaged(AttendPaged {
        q,
        layer,
        query_heads: sizes.heads,
        scale: 0.125,
        softcap: None,
        alibi: None,
        sinks: None,
        out,
    }));
    for (shape, sequences) in [
        ("a chunk", &[(9, 47)][..]),
        ("mixed", &[(1, 130), (1, 16), (2, 2)]),
    ] {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        let mut kv = pool_content(&fixture, layer, &inputs, &mut noise);
        kv[1] = Vec::new();
        move_first_block(&fixture, &mut inputs, &mut kv);
        let mut run = Run::new(shape, inputs);
        run.kv.push(kv);
        fill_layer(&mut run, sizes, buffers, [q, out], &mut noise);
        let elements = run.buffers.last().map_or(0, |(_, values)| values.len());
        run.checks.push(Check::Rows {
            buffer: out,
            rows: run.inputs.positions.len() as u32,
            allowed: each(vec![attended(storage, format); elements]),
        });
        fixture.runs.push(run);
    }
    fixture
}

/// Fills what the layer reads, and its outputs with values that it must replace.
fn fill_layer(
    run: &mut Run,
    sizes: Sizes,
    inputs: [(BufferId, u32); 3],
    outputs: [BufferId; 2],
    noise: &mut Noise,
) {
    let rows = u32::try_from(run.inputs.positions.len()).expect("a small batch");
    for (buffer, columns) in inputs {
        let values = noise.values((rows * columns) as usize);
        run.buffers.push((buffer, values));
    }
    for buffer in outputs {
        let values = unwritten((rows * sizes.heads * sizes.dim()) as usize);
        run.buffers.push((buffer, values));
    }
    let latent = inputs[2].0;
    run.mutants.push(Mutant::SwapRows(latent, 0, rows - 1));
    run.mutants.push(Mutant::DropCopy(0));
}

/// Tolerance of attention to values of at most 20, the size of the outliers.
fn attended(storage: Storage, format: KvFormat) -> f64 {
    let rows = RowKind {
        storage,
        ..RowKind::default()
    };
    20.0 * attention_of_stored(rows, format)
}
