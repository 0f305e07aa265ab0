//! Test cases for the steps that work on heads and the KV pool: RopeStoreKv, AttendPaged.

use super::compare::{RELATIVE, attention};
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, codes, each, either, paged_batch, pool_content,
    relative, unwritten,
};
use super::{RowKind, Shapes};
use crate::backend::KvHalf;
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows};
use crate::plan::{
    AttendPaged, BufferId, HeadNorm, KvFormat, QueryGrowth, Rope, RopeStoreKv, Rows, Step, Storage,
    StoreOptions, WeightFormat,
};

/// (rows, context) per sequence: decode lengths around block boundaries, chunks with and without a prefix, mixed, and
/// drafts, whose rows are sequences of their own ([`row_by_row`]).
pub(super) const BATCHES: [(&str, &[(u32, u32)]); 7] = [
    ("decode 1", &[(1, 33)]),
    (
        "decode 7 lengths",
        &[
            (1, 1),
            (1, 15),
            (1, 16),
            (1, 17),
            (1, 33),
            (1, 130),
            (1, 700),
        ],
    ),
    ("prefill 64", &[(64, 64)]),
    ("prefill 5 and 17 after a prefix", &[(5, 33), (17, 130)]),
    ("prefill 3 of 700", &[(3, 700)]),
    ("mixed", &[(1, 130), (33, 33), (1, 16), (9, 47), (2, 2)]),
    // The last sequence continues the row and the position of the one before it, but not its blocks.
    (DRAFTS, &[(1, 130), (6, 68), (3, 34), (1, 35)]),
];

const DRAFTS: &str = "drafts";

/// Chunks whose rows and contexts are several tiles of 128, with parts of tiles at their ends.
const LONG: [(&str, &[(u32, u32)]); 2] = [
    ("several tiles", &[(75, 75), (1, 130), (90, 330), (2, 2)]),
    (
        "chunks after long prefixes",
        &[(43, 300), (17, 129), (64, 448), (1, 513)],
    ),
];

/// (head size, query heads, KV heads)
const HEADS: [(u32, u32, u32); 9] = [
    (8, 3, 1),
    (16, 4, 4),
    (64, 4, 2),
    (80, 7, 1),
    (96, 2, 2),
    (128, 4, 1),
    (192, 2, 1),
    (256, 2, 2),
    (512, 4, 1),
];

/// All fixtures of these steps, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let storage = kind.storage;
    let (all, some) = (shapes.of(&BATCHES), shapes.of(&BATCHES[1..4]));
    let mut fixtures = Vec::new();
    for &(head_dim, query, kv) in shapes.of(&HEADS) {
        let heads = Heads {
            head_dim,
            query,
            kv,
        };
        for format in [KvFormat::F32, KvFormat::F16] {
            fixtures.push(rope_store_kv(
                storage,
                format,
                heads,
                Turn {
                    pairs: head_dim / 2,
                    ..Turn::default()
                },
            ));
        }
        fixtures.push(attend(kind, KvFormat::F32, heads, View::default(), all));
        fixtures.push(attend(kind, KvFormat::F16, heads, View::default(), some));
    }
    for &(head_dim, query, kv) in shapes.of(&[
        (8, 3, 1),
        (40, 6, 2),
        (64, 4, 2),
        (80, 7, 1),
        (128, 4, 1),
        (256, 2, 2),
        (512, 4, 1),
    ]) {
        let heads = Heads {
            head_dim,
            query,
            kv,
        };
        let turn = Turn {
            pairs: head_dim / 2,
            ..Turn::default()
        };
        for format in KvFormat::CODED {
            fixtures.push(rope_store_kv(storage, format, heads, turn));
            fixtures.push(attend(kind, format, heads, View::default(), some));
        }
    }
    fixtures.extend(turns(storage));
    fixtures.extend(views(kind, shapes));
    fixtures
}

#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) head_dim: u32,
    pub(super) query: u32,
    pub(super) kv: u32,
}

/// Options of `RopeStoreKv`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Rotated pairs; 0: no rotation.
    pub(super) pairs: u32,
    pub(super) interleaved: bool,
    pub(super) scaled: bool,
    /// Whether q and k are normalized.
    pub(super) norm: bool,
    pub(super) one_plus: bool,
    /// Whether only q is normalized.
    pub(super) q_only: bool,
    /// Whether norms are over all heads of a row.
    pub(super) whole_row: bool,
    /// Whether norms follow the rotation.
    pub(super) after: bool,
    /// Whether v is normalized.
    pub(super) v_norm: bool,
    /// Whether q grows with its position.
    pub(super) grows: bool,
    /// Whether k and v are absent.
    pub(super) no_kv: bool,
    /// Whether other columns follow q, k and v.
    pub(super) wider: bool,
}

impl Turn {
    /// The options that are on, for a name.
    pub(super) fn options(&self, heads: Heads) -> String {
        let Self {
            pairs,
            norm,
            q_only,
            ..
        } = *self;
        let partial = pairs > 0 && 2 * pairs < heads.head_dim;
        let flags = [
            (pairs == 0, ", no rope"),
            (partial, ", partial"),
            (self.interleaved, ", interleaved"),
        ];
        let norms = [
            (norm && !q_only, ", q and k norm"),
            (q_only, ", q norm"),
            (self.whole_row, " of the row"),
        ];
        let more = [
            (self.scaled, ", scaled"),
            (self.one_plus, ", 1 + w"),
            (self.after, ", after rope"),
        ];
        let rest = [
            (self.v_norm, ", v norm"),
            (self.grows, ", q grows"),
            (self.no_kv, ", q alone"),
        ];
        let all = flags
            .into_iter()
            .chain(norms)
            .chain(more)
            .chain(rest)
            .chain([(self.wider, ", wider rows")]);
        all.filter(|(on, _)| *on).map(|(_, name)| name).collect()
    }
}

fn turns(storage: Storage) -> Vec<Fixture> {
    let heads = Heads {
        head_dim: 64,
        query: 6,
        kv: 2,
    };
    let all = Turn {
        pairs: 32,
        ..Turn::default()
    };
    let options = [
        Turn { pairs: 0, ..all },
        Turn { pairs: 8, ..all },
        Turn {
            interleaved: true,
            ..all
        },
        Turn {
            interleaved: true,
            pairs: 12,
            ..all
        },
        Turn {
            scaled: true,
            ..all
        },
        Turn { norm: true, ..all },
        Turn {
            norm: true,
            q_only: true,
            ..all
        },
        Turn {
            norm: true,
            one_plus: true,
            ..all
        },
        Turn {
            norm: true,
            pairs: 0,
            ..all
        },
        Turn {
            norm: true,
            whole_row: true,
            ..all
        },
        Turn {
            norm: true,
            whole_row: true,
            q_only: true,
            one_plus: true,
            pairs: 0,
            ..all
        },
        Turn {
            norm: true,
            one_plus: true,
            interleaved: true,
            scaled: true,
            pairs: 8,
            ..all
        },
        Turn {
            norm: true,
            after: true,
            ..all
        },
        Turn {
            norm: true,
            after: true,
            one_plus: true,
            interleaved: true,
            pairs: 12,
            ..all
        },
        Turn {
            v_norm: true,
            ..all
        },
        Turn {
            norm: true,
            v_norm: true,
            pairs: 0,
            ..all
        },
        Turn { grows: true, ..all },
        Turn {
            norm: true,
            no_kv: true,
            ..all
        },
        Turn {
            norm: true,
            wider: true,
            ..all
        },
        Turn {
            norm: true,
            no_kv: true,
            wider: true,
            whole_row: true,
            ..all
        },
    ];
    let formats = [KvFormat::F16, KvFormat::Q8];
    formats
        .iter()
        .flat_map(|format| options.map(|turn| rope_store_kv(storage, *format, heads, turn)))
        .collect()
}

fn rope_store_kv(storage: Storage, format: KvFormat, heads: Heads, turn: Turn) -> Fixture {
    let Turn {
        pairs,
        interleaved,
        after,
        v_norm,
        no_kv,
        wider,
        ..
    } = turn;
    let options = turn.options(heads);
    let mut fixture = Fixture::new(
        "rope_store_kv",
        format!("{storage:?}, kv {format:?}{options}"),
    );
    let mut noise = Noise::new(&format!("rope {}{}", fixture.option, heads.head_dim));
    fixture.kv_format = format;
    // Compare with the values before quantization: two devices may round a value between two codes differently.
    fixture.kv_expected = format.is_coded().then_some(KvFormat::F32);
    fixture.block_size = if heads.head_dim.is_multiple_of(32) {
        32
    } else {
        16
    };
    let layer = fixture.layer(heads.kv, heads.head_dim, None, 70);
    let own_columns = (heads.query + if no_kv { 0 } else { 2 * heads.kv }) * heads.head_dim;
    let qkv_columns = own_columns + if wider { 24 } else { 0 };
    let qkv = fixture.buffer("qkv", Rows::Tokens, qkv_columns, storage);
    let q = fixture.buffer("q", Rows::Tokens, heads.query * heads.head_dim, storage);
    let step = turn_step(&mut fixture, &mut noise, heads, turn, (layer, qkv, q));
    fixture.push(Step::RopeStoreKv(step));
    for (shape, sequences) in [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[5]] {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        // A row without a slot writes only q.
        if rows > 4 {
            inputs.groups[0].slot_mapping[2] = NONE;
        }
        let mut run = Run::new(format!("head {}, {shape}", heads.head_dim), inputs);
        let mut values = noise.values((rows * qkv_columns) as usize);
        values
            .chunks_exact_mut(qkv_columns as usize)
            .for_each(|row| row[own_columns as usize..].fill(f32::NAN));
        run.buffers.push((qkv, values));
        run.buffers
            .push((q, unwritten((rows * heads.query * heads.head_dim) as usize)));
        run.kv
            .push([(); 2].map(|()| noise.values(fixture.pool_elements(layer))));
        // The weights of a norm after the rotation separate a pair, whose length then says little of its elements.
        let turned = |columns| match after {
            true => pairs_apart(rotated(columns, heads.head_dim, pairs, interleaved)),
            false => rotated(columns, heads.head_dim, pairs, interleaved),
        };
        run.checks.push(Check::Rows {
            buffer: q,
            rows,
            allowed: turned(heads.query * heads.head_dim),
        });
        let rounded = |exact| {
            if format.is_coded() {
                either(exact, codes(format, 0.5, heads.head_dim))
            } else {
                exact
            }
        };
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Key,
            allowed: rounded(turned(heads.head_dim)),
        });
        let of_values = if v_norm { RELATIVE } else { 0.0 };
        run.checks.push(Check::Kv {
            layer,
            half: KvHalf::Value,
            allowed: rounded(relative(of_values)),
        });
        // The first query head with the first key head, or with the last query head.
        run.mutants.push(Mutant::SwapHeads(
            qkv,
            heads.head_dim,
            0,
            heads.query - u32::from(no_kv),
        ));
        if rows > 4 {
            run.mutants.push(Mutant::SwapRows(qkv, 0, rows - 1));
            run.mutants
                .extend((!no_kv).then_some(Mutant::SwapSlots(0, 0, rows - 1)));
        }
        fixture.runs.push(run);
    }
    fixture
}

/// The step with these options, and its weights.
pub(super) fn turn_step(
    fixture: &mut Fixture,
    noise: &mut Noise,
    heads: Heads,
    turn: Turn,
    (layer, qkv, q): (u32, BufferId, BufferId),
) -> RopeStoreKv {
    let Turn {
        pairs,
        interleaved,
        scaled,
        norm,
        one_plus,
        q_only,
        whole_row,
        after,
        v_norm,
        no_kv,
        ..
    } = turn;
    let mut head_norm = |name: &str, count: u32, format| {
        let elements = if whole_row {
            count * heads.head_dim
        } else {
            heads.head_dim
        };
        let weight = fixture.weight(name, 1, format, &noise.values(elements as usize));
        HeadNorm {
            weight,
            epsilon: 1e-6,
            one_plus,
            whole_row,
            after_rotation: after,
        }
    };
    let q_norm = norm.then(|| head_norm("q_norm", heads.query, WeightFormat::Bf16));
    let k_norm = (norm && !q_only).then(|| head_norm("k_norm", heads.kv, WeightFormat::F32));
    let rope = (pairs > 0).then(|| {
        let frequencies = fixture.weight("frequencies", 1, WeightFormat::F32, &frequencies(pairs));
        Rope {
            frequencies,
            rotary_dim: 2 * pairs,
            interleaved,
            scale: if scaled { 1.3 } else { 1.0 },
        }
    });
    let query_growth = turn.grows.then_some(QueryGrowth {
        slope: 0.7,
        positions: 5,
    });
    let options = StoreOptions {
        v_epsilon: v_norm.then_some(1e-6),
        query_growth,
        q_only: no_kv,
    };
    let query_heads = heads.query;
    RopeStoreKv {
        qkv,
        layer,
        query_heads,
        q_norm,
        k_norm,
        rope,
        options,
        q,
    }
}

/// The frequencies of these pairs of rotated elements, with a base of ten thousand.
pub(super) fn frequencies(pairs: u32) -> Vec<f32> {
    (0..pairs)
        .map(|pair| 1e4f64.powf(-f64::from(pair) / f64::from(pairs)) as f32)
        .collect()
}

/// Allows a hundred-thousandth of 16 more: a head has a length of 8, and the weights of its norm are small numbers.
pub(super) fn pairs_apart(allowed: Allowed) -> Allowed {
    Box::new(move |expected| {
        allowed(expected)
            .into_iter()
            .map(|allowed| allowed + 16.0 * RELATIVE)
            .collect()
    })
}

/// Tolerance: 1e-5 of the length of the element's rotated pair, which the rotation preserves.
pub(super) fn rotated(columns: u32, head_dim: u32, pairs: u32, interleaved: bool) -> Allowed {
    let (columns, head_dim, pairs) = (columns as usize, head_dim as usize, pairs as usize);
    Box::new(move |expected| {
        let mut allowed: Vec<f64> = expected
            .iter()
            .map(|value| RELATIVE * f64::from(value.abs()))
            .collect();
        assert_eq!(columns % head_dim, 0, "a row is whole heads");
        for (expected, allowed) in expected
            .chunks_exact(head_dim)
            .zip(allowed.chunks_exact_mut(head_dim))
        {
            for pair in 0..pairs {
                let (a, b) = if interleaved {
                    (2 * pair, 2 * pair + 1)
                } else {
                    (pair, pair + pairs)
                };
                let length = f64::from(expected[a]).hypot(f64::from(expected[b]));
                (allowed[a], allowed[b]) = (RELATIVE * length, RELATIVE * length);
            }
        }
        allowed
    })
}

/// Options of `AttendPaged`.
#[derive(Clone, Copy, Debug, Default)]
struct View {
    window: Option<u32>,
    softcap: bool,
    alibi: bool,
    sinks: bool,
    /// The values are the keys.
    latent: bool,
    /// The batches are [`LONG`].
    long: bool,
}

fn views(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let (all, some) = (shapes.of(&BATCHES), shapes.of(&BATCHES[1..4]));
    let heads = Heads {
        head_dim: 64,
        query: 6,
        kv: 2,
    };
    let mut fixtures = Vec::new();
    for options in 1..16u32 {
        let [window, softcap, alibi, sinks] = [1, 2, 4, 8].map(|bit| options & bit != 0);
        let view = View {
            window: window.then_some(20),
            softcap,
            alibi,
            sinks,
            ..View::default()
        };
        let format = if options % 2 == 0 {
            KvFormat::F16
        } else {
            KvFormat::F32
        };
        fixtures.push(attend(kind, format, heads, view, all));
        fixtures.push(attend(
            kind,
            KvFormat::CODED[options as usize / 2 % 2],
            heads,
            view,
            some,
        ));
    }
    for &(head_dim, query) in shapes.of(&[(576, 16), (24, 3), (40, 128), (80, 20), (576, 1)]) {
        let (heads, view) = (
            Heads {
                head_dim,
                query,
                kv: 1,
            },
            View {
                latent: true,
                ..View::default()
            },
        );
        for format in KvFormat::ALL {
            fixtures.push(attend(
                kind,
                format,
                heads,
                view,
                if format == KvFormat::F16 { all } else { some },
            ));
        }
    }
    for &window in shapes.of(&[1, 16, 100, 4096]) {
        let view = View {
            window: Some(window),
            ..View::default()
        };
        fixtures.push(attend(kind, KvFormat::F16, heads, view, all));
    }
    let long = [
        (64, 6, 2, None),
        (128, 4, 1, None),
        (128, 8, 1, Some(100)),
        (64, 2, 2, Some(100)),
        (128, 5, 1, None),
    ];
    for (index, &(head_dim, query, kv, window)) in shapes.of(&long).iter().enumerate() {
        let view = View {
            window,
            sinks: index % 2 == 1,
            long: true,
            ..View::default()
        };
        fixtures.push(attend(
            kind,
            KvFormat::F16,
            Heads {
                head_dim,
                query,
                kv,
            },
            view,
            shapes.of(&LONG),
        ));
    }
    for &(query, kv) in shapes.of(&[(1, 1), (6, 2), (5, 1), (7, 1), (16, 2), (12, 1), (16, 1)]) {
        let heads = Heads {
            head_dim: 32,
            query,
            kv,
        };
        for format in [KvFormat::F16, KvFormat::Q8, KvFormat::Fp8] {
            fixtures.push(attend(kind, format, heads, View::default(), some));
        }
    }
    fixtures
}

fn attend(
    kind: RowKind,
    format: KvFormat,
    heads: Heads,
    view: View,
    batches: &[(&str, &[(u32, u32)])],
) -> Fixture {
    let storage = kind.storage;
    let window = view
        .window
        .map(|window| format!(", window {window}"))
        .unwrap_or_default();
    let flags = [
        (view.softcap, ", softcap"),
        (view.alibi, ", ALiBi"),
        (view.sinks, ", sinks"),
        (view.latent, ", latent"),
    ];
    let flags = flags.into_iter().chain([(view.long, ", long")]);
    let options: String = flags.filter(|(on, _)| *on).map(|(_, name)| name).collect();
    let mut fixture = Fixture::new(
        "attend_paged",
        format!("{storage:?}, kv {format:?}{window}{options}"),
    );
    let mut noise = Noise::new(&format!(
        "attend {}{}{}",
        fixture.option, heads.head_dim, heads.query
    ));
    fixture.kv_format = format;
    fixture.block_size = [16, 32, 64][(heads.head_dim as usize / 16) % 3];
    // The keys of a head fit one binding of the smallest size that is tested, 8 MiB.
    let blocks = if heads.head_dim > 256 && fixture.block_size > 16 {
        60
    } else {
        70
    };
    let layer = fixture.layer(heads.kv, heads.head_dim, view.window, blocks);
    fixture.plan.kv_layers[layer as usize].latent = view.latent;
    let columns = heads.query * heads.head_dim;
    let q = fixture.buffer("q", Rows::Tokens, columns, storage);
    let out = fixture.buffer("out", Rows::Tokens, columns, storage);
    let mut per_head = |on: bool, name: &str, scale: f32| {
        let values: Vec<f32> = (0..heads.query).map(|_| noise.uniform() * scale).collect();
        on.then(|| fixture.weight(name, 1, WeightFormat::F32, &values))
    };
    let (alibi, sinks) = (
        per_head(view.alibi, "alibi", 0.5),
        per_head(view.sinks, "sinks", 3.0),
    );
    fixture.push(Step::AttendPaged(AttendPaged {
        q,
        layer,
        query_heads: heads.query,
        scale: (heads.head_dim as f32).sqrt().recip(),
        softcap: view.softcap.then_some(2.5),
        alibi,
        sinks,
        out,
    }));
    for (shape, sequences) in batches {
        let mut inputs = paged_batch(&fixture, sequences, &mut noise);
        if *shape == DRAFTS {
            row_by_row(&mut inputs, fixture.block_size);
        }
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let mut run = Run::new(
            format!(
                "{}×{} heads of {}, {shape}",
                heads.query, heads.kv, heads.head_dim
            ),
            inputs,
        );
        run.buffers
            .push((q, noise.values((rows * columns) as usize)));
        run.buffers
            .push((out, unwritten((rows * columns) as usize)));
        run.kv
            .push(pool_content(&fixture, layer, &run.inputs, &mut noise));
        if view.latent {
            run.kv[0][1] = Vec::new();
        }
        let values = &run.kv[0][usize::from(!view.latent)];
        let allowed = allowed_attention(&fixture, kind, &run.inputs, heads, values);
        run.checks.push(Check::Rows {
            buffer: out,
            rows,
            allowed: each(allowed),
        });
        run.mutants = attention_mutants(&fixture, &run.inputs, heads, q);
        if format.is_coded() {
            let halves = [KvHalf::Key, KvHalf::Value]
                .into_iter()
                .filter(|half| *half == KvHalf::Key || !view.latent);
            run.mutants
                .extend(halves.map(|half| Mutant::SwapScales(layer, half, heads.head_dim)));
        }
        fixture.runs.push(run);
    }
    fixture
}

/// Makes every row a sequence of its own, over the blocks of its sequence, as rows that verify drafts are.
pub(super) fn row_by_row(inputs: &mut BatchInputs, block_size: u32) {
    let sequences = std::mem::take(&mut inputs.sequences);
    for group in &mut inputs.groups {
        let (starts, tables) = (
            std::mem::take(&mut group.table_starts),
            std::mem::take(&mut group.block_tables),
        );
        for (sequence, start) in sequences.iter().zip(starts) {
            for context in sequence.context_len - sequence.row_count + 1..=sequence.context_len {
                group
                    .table_starts
                    .push(u32::try_from(group.block_tables.len()).expect("a test batch is small"));
                group
                    .block_tables
                    .extend(&tables[start as usize..][..context.div_ceil(block_size) as usize]);
            }
        }
    }
    inputs.sequences = sequences
        .iter()
        .flat_map(|sequence| {
            let before = sequence.context_len - sequence.row_count;
            (0..sequence.row_count).map(move |row| SequenceRows {
                row_start: sequence.row_start + row,
                row_count: 1,
                context_len: before + row + 1,
            })
        })
        .collect();
}

/// Mutants that swap rows, heads and visible blocks, where that changes a result.
fn attention_mutants(
    fixture: &Fixture,
    inputs: &BatchInputs,
    heads: Heads,
    q: BufferId,
) -> Vec<Mutant> {
    let mut mutants = Vec::new();
    let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
    let window = fixture.plan.kv_groups[0].window.unwrap_or(u32::MAX);
    // With a single visible key, the query does not matter.
    let sees_many = window > 1 && inputs.positions.iter().all(|position| *position > 0);
    if sees_many {
        mutants.extend((rows > 1).then_some(Mutant::SwapRows(q, 0, rows - 1)));
        mutants.extend((heads.query > 1).then_some(Mutant::SwapHeads(
            q,
            heads.head_dim,
            0,
            heads.query - 1,
        )));
    }
    let longest =
        (0..inputs.sequences.len()).max_by_key(|index| inputs.sequences[*index].context_len);
    let longest = longest.expect("a batch has sequences");
    let sequence = &inputs.sequences[longest];
    let last =
        inputs.groups[0].table_starts[longest] + (sequence.context_len - 1) / fixture.block_size;
    let several_visible = sequence.context_len > fixture.block_size && window > fixture.block_size;
    mutants.extend(several_visible.then(|| Mutant::SwapBlocks(0, last - 1, last)));
    mutants
}

/// Tolerance: a share of the largest value visible to each row and KV head.
fn allowed_attention(
    fixture: &Fixture,
    kind: RowKind,
    inputs: &BatchInputs,
    heads: Heads,
    values: &[f32],
) -> Vec<f64> {
    let (size, group) = (fixture.block_size, &inputs.groups[0]);
    let window = fixture.plan.kv_groups[0].window.unwrap_or(u32::MAX);
    let share = attention(kind, fixture.kv_format);
    let mut allowed = Vec::new();
    for (sequence, &start) in inputs.sequences.iter().zip(&group.table_starts) {
        for row in sequence.row_start..sequence.row_start + sequence.row_count {
            let position = inputs.positions[row as usize];
            for head in 0..heads.kv {
                let seen = (position + 1).saturating_sub(window)..=position;
                let largest = seen.map(|key| {
                    let block = group.block_tables[(start + key / size) as usize];
                    let at =
                        (((block * heads.kv + head) * size + key % size) * heads.head_dim) as usize;
                    values[at..at + heads.head_dim as usize]
                        .iter()
                        .fold(0.0, |max, v| f32::max(max, v.abs()))
                });
                let largest = largest.fold(0.0, f32::max);
                let elements = (heads.query / heads.kv * heads.head_dim) as usize;
                allowed.extend(std::iter::repeat_n(share * f64::from(largest), elements));
            }
        }
    }
    allowed
}
