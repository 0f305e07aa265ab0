//! Test cases for the store of keys and values and the attention after it, where every sequence has one row: a device
//! may run both as one kernel, which attends to a key that the pool does not have yet.

use super::attention::{Heads, Turn, pairs_apart, rotated, row_by_row, turn_step};
use super::compare::{RELATIVE, attention_of_stored};
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, codes, each, either, paged_batch, pool_content, relative,
    unwritten,
};
use super::{RowKind, Shapes};
use crate::backend::KvHalf;
use crate::plan::inputs::NONE;
use crate::plan::{AttendPaged, KvFormat, Rows, Step, WeightFormat};

/// (rows, context) per sequence: the first position of a sequence and of a block, the last of a block, one sequence
/// that is cut into parts, and more sequences than a device has blocks.
const BATCHES: [(&str, &[(u32, u32)]); 6] = [
    ("first position", &[(1, 1)]),
    (DRAFTS, &[(1, 130), (3, 66), (2, 34)]),
    ("4 lengths", &[(1, 17), (1, 1), (1, 33), (1, 64)]),
    (ONE_STORED, &[(1, 48), (1, 35)]),
    ("a long one", &[(1, 700)]),
    (
        "9 lengths",
        &[
            (1, 3),
            (1, 16),
            (1, 17),
            (1, 33),
            (1, 130),
            (1, 1),
            (1, 32),
            (1, 65),
            (1, 90),
        ],
    ),
];
const DRAFTS: &str = "drafts";
const ONE_STORED: &str = "one that is stored already";

/// Options of attention.
#[derive(Clone, Copy, Default)]
struct View {
    window: Option<u32>,
    softcap: bool,
    sinks: bool,
}

/// All fixtures, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let heads = |head_dim, query, kv| Heads {
        head_dim,
        query,
        kv,
    };
    let (plain, windowed) = (
        View::default(),
        View {
            window: Some(20),
            ..View::default()
        },
    );
    let (sinks, capped) = (
        View {
            sinks: true,
            ..plain
        },
        View {
            softcap: true,
            window: Some(100),
            ..plain
        },
    );
    let (f16, q8, fp8) = (KvFormat::F16, KvFormat::Q8, KvFormat::Fp8);
    let of_row = Turn {
        whole_row: true,
        wider: true,
        ..normed(128)
    };
    let partial = Turn {
        pairs: 12,
        interleaved: true,
        q_only: true,
        ..normed(64)
    };
    let cases = [
        (heads(16, 4, 4), q8, whole(16), plain),
        (heads(64, 4, 2), f16, whole(64), plain),
        (heads(64, 4, 2), q8, normed(64), windowed),
        (heads(64, 6, 2), f16, partial, windowed),
        (
            heads(64, 6, 2),
            fp8,
            Turn {
                grows: true,
                ..whole(64)
            },
            sinks,
        ),
        (heads(80, 7, 1), f16, whole(80), sinks),
        (heads(80, 5, 1), fp8, normed(80), plain),
        (heads(128, 4, 1), f16, normed(128), plain),
        (heads(96, 2, 2), q8, whole(96), capped),
        (heads(128, 8, 2), q8, of_row, plain),
        (heads(128, 16, 1), fp8, whole(128), windowed),
        (
            heads(128, 2, 1),
            f16,
            Turn {
                no_kv: true,
                ..normed(128)
            },
            plain,
        ),
        (
            heads(256, 2, 2),
            f16,
            Turn {
                after: true,
                v_norm: true,
                ..normed(256)
            },
            capped,
        ),
        (heads(256, 4, 1), q8, whole(256), plain),
        (
            heads(256, 3, 1),
            fp8,
            Turn {
                pairs: 0,
                ..normed(256)
            },
            sinks,
        ),
    ];
    shapes
        .of(&cases)
        .iter()
        .map(|case| fixture(kind, *case, shapes.of(&BATCHES)))
        .collect()
}

fn normed(head_dim: u32) -> Turn {
    Turn {
        norm: true,
        ..whole(head_dim)
    }
}

fn whole(head_dim: u32) -> Turn {
    Turn {
        pairs: head_dim / 2,
        ..Turn::default()
    }
}

fn fixture(
    kind: RowKind,
    (heads, format, turn, view): (Heads, KvFormat, Turn, View),
    batches: &[(&str, &[(u32, u32)])],
) -> Fixture {
    let (
        storage,
        Heads {
            head_dim,
            query,
            kv,
        },
    ) = (kind.storage, heads);
    let window = view
        .window
        .map(|window| format!(", window {window}"))
        .unwrap_or_default();
    let flags = [(view.softcap, ", softcap"), (view.sinks, ", sinks")];
    let options: String = flags
        .iter()
        .filter(|(on, _)| *on)
        .map(|(_, name)| *name)
        .collect();
    let turned = turn.options(heads);
    let mut fixture = Fixture::new(
        "attend_paged",
        format!("{storage:?}, kv {format:?}, after its store{turned}{window}{options}"),
    );
    let mut noise = Noise::new(&format!("stored {}{head_dim}{query}", fixture.option));
    fixture.kv_format = format;
    fixture.block_size = [16, 32, 64][(head_dim as usize / 16) % 3];
    let layer = fixture.layer(kv, head_dim, view.window, 70);
    let own_columns = (query + if turn.no_kv { 0 } else { 2 * kv }) * head_dim;
    let (qkv_columns, columns) = (
        own_columns + if turn.wider { 24 } else { 0 },
        query * head_dim,
    );
    let qkv = fixture.buffer("qkv", Rows::Tokens, qkv_columns, storage);
    let [q, out] = ["q", "out"].map(|name| fixture.buffer(name, Rows::Tokens, columns, storage));
    let step = turn_step(&mut fixture, &mut noise, heads, turn, (layer, qkv, q));
    fixture.push(Step::RopeStoreKv(step));
    let values: Vec<f32> = (0..query).map(|_| noise.uniform() * 3.0).collect();
    let sinks = view
        .sinks
        .then(|| fixture.weight("sinks", 1, WeightFormat::F32, &values));
    // A norm's weights make scores as large as those of rows without a norm.
    let scale = (head_dim as f32).sqrt().recip() * if turn.norm { 0.25 } else { 1.0 };
    let (query_heads, softcap, alibi) = (query, view.softcap.then_some(2.5), None);
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
    for (shape, sequences) in batches {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        match *shape {
            DRAFTS => row_by_row(&mut inputs, fixture.block_size),
            ONE_STORED => inputs.groups[0].slot_mapping[1] = NONE,
            _ => {}
        }
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let mut run = Run::new(format!("{query}×{kv} heads of {head_dim}, {shape}"), inputs);
        let mut values = noise.values((rows * qkv_columns) as usize);
        values
            .chunks_exact_mut(qkv_columns as usize)
            .for_each(|row| row[own_columns as usize..].fill(f32::NAN));
        run.buffers.push((qkv, values));
        run.buffers
            .push((out, unwritten((rows * columns) as usize)));
        run.kv
            .push(pool_content(&fixture, layer, &run.inputs, &mut noise));
        // Values are at most 20, the size of the outliers.
        let share = attention_of_stored(kind, format);
        let allowed = vec![share * 20.0; (rows * columns) as usize];
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(allowed),
        });
        let rounded = |exact| {
            if format.is_coded() {
                either(exact, codes(format, 1.0, head_dim))
            } else {
                exact
            }
        };
        let turned = rotated(head_dim, head_dim, turn.pairs, turn.interleaved);
        let turned = if turn.after {
            pairs_apart(turned)
        } else {
            turned
        };
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Key,
            allowed: rounded(turned),
        });
        let of_values = relative(if turn.v_norm { RELATIVE } else { 0.0 });
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Value,
            allowed: rounded(of_values),
        });
        let sees_many =
            view.window != Some(1) && run.inputs.positions.iter().all(|position| *position > 0);
        run.mutants
            .extend((rows > 1 && sees_many).then_some(Mutant::SwapRows(qkv, 0, rows - 1)));
        fixture.runs.push(run);
    }
    fixture
}
