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
use crate::plan::inputs::NONE;
use crate::plan::{
    AttendPaged, BufferId, CopyBlocks, KvFormat, Rope, RopeStoreLatent, Rows, Step, Storage,
    WeightFormat,
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
    for (shape, sequences) in [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[5]] {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        // A row without a slot writes only q.
        if rows > 4 {
            inputs.groups[0].slot_mapping[2] = NONE;
        }
        let mut run = Run::new(
            format!("{} heads of {}, {shape}", sizes.heads, sizes.dim()),
            inputs,
        );
        run.buffers.extend(
            buffers.map(|(buffer, columns)| (buffer, noise.values((rows * columns) as usize))),
        );
        run.buffers
            .push((q, unwritten((rows * sizes.heads * sizes.dim()) as usize)));
        run.kv
            .push([noise.values(fixture.pool_elements(layer)), Vec::new()]);
        run.checks.push(Check::Rows {
            buffer: q,
            rows,
            allowed: turned(sizes, interleaved),
        });
        let turned_by = turned(sizes, interleaved);
        let stored = if format.is_coded() {
            either(turned_by, codes(format, 0.5, sizes.dim()))
        } else {
            turned_by
        };
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Key,
            allowed: stored,
        });
        if rows > 4 {
            run.mutants
                .extend(buffers.map(|(buffer, _)| Mutant::SwapRows(buffer, 0, rows - 1)));
            run.mutants.push(Mutant::SwapSlots(0, 0, rows - 1));
        }
        run.mutants.push(Mutant::SwapHeads(
            buffers[1].0,
            sizes.rank,
            0,
            sizes.heads - 1,
        ));
        fixture.runs.push(run);
    }
    fixture
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
    let (query_heads, scale, softcap, alibi, sinks) = (sizes.heads, 0.125, None, None, None);
    fixture.push(Step::AttendPaged(AttendPaged {
        q,
        layer,
        query_heads,
        scale,
        softcap,
        alibi,
        sinks,
        out,
    }));
    for (shape, sequences) in [
        ("a chunk", &[(9, 47)][..]),
        ("mixed", &[(1, 130), (1, 16), (2, 2)]),
    ] {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let mut kv = pool_content(&fixture, layer, &inputs, &mut noise);
        kv[1] = Vec::new();
        move_first_block(&fixture, &mut inputs, &mut kv);
        let mut run = Run::new(shape, inputs);
        run.buffers.extend(
            buffers.map(|(buffer, columns)| (buffer, noise.values((rows * columns) as usize))),
        );
        let elements = (rows * sizes.heads * sizes.dim()) as usize;
        run.buffers.push((q, unwritten(elements)));
        run.buffers.push((out, unwritten(elements)));
        run.kv.push(kv);
        // Values are at most 20, the size of the outliers.
        let share = attention_of_stored(
            RowKind {
                storage,
                ..RowKind::default()
            },
            format,
        );
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(vec![share * 20.0; elements]),
        });
        run.mutants.extend([
            Mutant::SwapRows(buffers[2].0, 0, rows - 1),
            Mutant::DropCopy(0),
        ]);
        fixture.runs.push(run);
    }
    fixture
}
