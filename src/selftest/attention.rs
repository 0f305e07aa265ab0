//! Test cases for the steps that work on heads and the KV pool: RopeStoreKv, AttendPaged.

use super::compare::{RELATIVE, attention};
use super::fixture::{
    Allowed, Check, Fixture, Mutant, Noise, Run, codes, each, either, expect_rows, names_of,
    paged_batch, pool_content, relative,
};
use super::{RowKind, Shapes};
use crate::backend::KvHalf;
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows};
use crate::plan::{
    AttendPaged, BufferId, HeadNorm, KvFormat, QueryGrowth, Rope, RopeStoreKv, Rows, Step, Storage,
    StoreOptions, WeightFormat, Window,
};

/// A name, and (rows, context) per sequence.
pub(super) type Batch = (&'static str, &'static [(u32, u32)]);

/// Decode lengths around block boundaries, chunks with and without a prefix, mixed, and drafts, whose rows are
/// sequences of their own ([`row_by_row`]).
pub(super) const BATCHES: [Batch; 7] = [
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
const LONG: [Batch; 2] = [
    ("several tiles", &[(75, 75), (1, 130), (90, 330), (2, 2)]),
    (
        "chunks after long prefixes",
        &[(43, 300), (17, 129), (64, 448), (1, 513)],
    ),
];

/// Size and numbers of heads.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) head_dim: u32,
    pub(super) query: u32,
    pub(super) kv: u32,
}

impl Heads {
    pub(super) const fn new(head_dim: u32, query: u32, kv: u32) -> Self {
        Self {
            head_dim,
            query,
            kv,
        }
    }

    /// Columns of a row of queries.
    pub(super) fn columns(self) -> u32 {
        self.query * self.head_dim
    }
}

const HEADS: [Heads; 9] = [
    Heads::new(8, 3, 1),
    Heads::new(16, 4, 4),
    Heads::new(64, 4, 2),
    Heads::new(80, 7, 1),
    Heads::new(96, 2, 2),
    Heads::new(128, 4, 1),
    Heads::new(192, 2, 1),
    Heads::new(256, 2, 2),
    Heads::new(512, 4, 1),
];
/// Heads in pools of codes.
const HEADS_OF_CODES: [Heads; 7] = [
    Heads::new(8, 3, 1),
    Heads::new(40, 6, 2),
    Heads::new(64, 4, 2),
    Heads::new(80, 7, 1),
    Heads::new(128, 4, 1),
    Heads::new(256, 2, 2),
    Heads::new(512, 4, 1),
];
/// Heads whose options are checked.
const USUAL_HEADS: Heads = Heads::new(64, 6, 2);

/// All fixtures of these steps, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let (all, some) = (shapes.of(&BATCHES), shapes.of(&BATCHES[1..4]));
    let attend = |format, heads, batches| {
        let attend = Attend {
            format,
            heads,
            view: PLAIN_VIEW,
            batches,
        };
        attend.fixture(kind)
    };
    let mut fixtures = Vec::new();
    for &heads in shapes.of(&HEADS) {
        for format in [KvFormat::F32, KvFormat::F16] {
            fixtures.push(rope_store_kv(kind.storage, format, heads, whole(heads)));
        }
        fixtures.push(attend(KvFormat::F32, heads, all));
        fixtures.push(attend(KvFormat::F16, heads, some));
    }
    for &heads in shapes.of(&HEADS_OF_CODES) {
        for format in KvFormat::CODED {
            fixtures.push(rope_store_kv(kind.storage, format, heads, whole(heads)));
            fixtures.push(attend(format, heads, some));
        }
    }
    for format in [KvFormat::F16, KvFormat::Q8] {
        for rotation in rotations() {
            fixtures.push(rope_store_kv(kind.storage, format, USUAL_HEADS, rotation));
        }
    }
    for attend in attends(shapes) {
        fixtures.push(attend.fixture(kind));
    }
    fixtures
}

/// Options of `RopeStoreKv`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rotation {
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

impl Rotation {
    /// The options that are on, for a name.
    pub(super) fn options(&self, heads: Heads) -> String {
        let partial = self.pairs > 0 && 2 * self.pairs < heads.head_dim;
        names_of(&[
            (self.pairs == 0, ", no rope"),
            (partial, ", partial"),
            (self.interleaved, ", interleaved"),
            (self.norm && !self.q_only, ", q and k norm"),
            (self.q_only, ", q norm"),
            (self.whole_row, " of the row"),
            (self.scaled, ", scaled"),
            (self.one_plus, ", 1 + w"),
            (self.after, ", after rope"),
            (self.v_norm, ", v norm"),
            (self.grows, ", q grows"),
            (self.no_kv, ", q alone"),
            (self.wider, ", wider rows"),
        ])
    }

    /// Columns of q, k and v.
    fn own_columns(&self, heads: Heads) -> u32 {
        let kv = if self.no_kv { 0 } else { 2 * heads.kv };
        (heads.query + kv) * heads.head_dim
    }

    /// Columns of a row of q, k, v and what follows them.
    pub(super) fn columns(&self, heads: Heads) -> u32 {
        self.own_columns(heads) + if self.wider { 24 } else { 0 }
    }

    /// Rows of q, k and v, with NaN in what follows them.
    pub(super) fn rows(&self, heads: Heads, rows: u32, noise: &mut Noise) -> Vec<f32> {
        let columns = self.columns(heads);
        let mut values = noise.values((rows * columns) as usize);
        for row in values.chunks_exact_mut(columns as usize) {
            row[self.own_columns(heads) as usize..].fill(f32::NAN);
        }
        values
    }

    /// Tolerance of queries or keys.
    pub(super) fn allowed(&self, heads: Heads) -> Allowed {
        let allowed = rotated(heads.head_dim, self.pairs, self.interleaved);
        if self.after {
            // The weights of a norm after the rotation separate a pair, whose length then says little of its elements.
            pairs_apart(allowed)
        } else {
            allowed
        }
    }

    /// Tolerance of values.
    pub(super) fn allowed_values(&self) -> Allowed {
        relative(if self.v_norm { RELATIVE } else { 0.0 })
    }
}

/// A rotation of all elements.
pub(super) fn whole(heads: Heads) -> Rotation {
    Rotation {
        pairs: heads.head_dim / 2,
        ..Rotation::default()
    }
}

/// Combinations of options of `RopeStoreKv`, for heads of 64.
fn rotations() -> [Rotation; 20] {
    let plain = whole(USUAL_HEADS);
    let norm = Rotation {
        norm: true,
        ..plain
    };
    [
        Rotation { pairs: 0, ..plain },
        Rotation { pairs: 8, ..plain },
        Rotation {
            interleaved: true,
            ..plain
        },
        Rotation {
            interleaved: true,
            pairs: 12,
            ..plain
        },
        Rotation {
            scaled: true,
            ..plain
        },
        norm,
        Rotation {
            q_only: true,
            ..norm
        },
        Rotation {
            one_plus: true,
            ..norm
        },
        Rotation { pairs: 0, ..norm },
        Rotation {
            whole_row: true,
            ..norm
        },
        Rotation {
            whole_row: true,
            q_only: true,
            one_plus: true,
            pairs: 0,
            ..norm
        },
        Rotation {
            one_plus: true,
            interleaved: true,
            scaled: true,
            pairs: 8,
            ..norm
        },
        Rotation {
            after: true,
            ..norm
        },
        Rotation {
            after: true,
            one_plus: true,
            interleaved: true,
            pairs: 12,
            ..norm
        },
        Rotation {
            v_norm: true,
            ..plain
        },
        Rotation {
            v_norm: true,
            pairs: 0,
            ..norm
        },
        Rotation {
            grows: true,
            ..plain
        },
        Rotation {
            no_kv: true,
            ..norm
        },
        Rotation {
            wider: true,
            ..norm
        },
        Rotation {
            no_kv: true,
            wider: true,
            whole_row: true,
            ..norm
        },
    ]
}

fn rope_store_kv(storage: Storage, format: KvFormat, heads: Heads, rotation: Rotation) -> Fixture {
    let options = rotation.options(heads);
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
    let qkv = fixture.buffer("qkv", Rows::Tokens, rotation.columns(heads), storage);
    let q = fixture.buffer("q", Rows::Tokens, heads.columns(), storage);
    let step = rotation_step(&mut fixture, &mut noise, heads, rotation, (layer, qkv, q));
    fixture.push(Step::RopeStoreKv(step));
    for batch in [BATCHES[0], BATCHES[1], BATCHES[3], BATCHES[5]] {
        let run = store_run(&fixture, &step, heads, rotation, batch, &mut noise);
        fixture.runs.push(run);
    }
    fixture
}

/// A run of [`rope_store_kv`].
fn store_run(
    fixture: &Fixture,
    step: &RopeStoreKv,
    heads: Heads,
    rotation: Rotation,
    (shape, sequences): Batch,
    noise: &mut Noise,
) -> Run {
    let mut inputs = paged_batch(fixture, sequences, noise);
    let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
    // A row without a slot writes only q.
    if rows > 4 {
        inputs.groups[0].slot_mapping[2] = NONE;
    }
    let mut run = Run::new(format!("head {}, {shape}", heads.head_dim), inputs);
    run.buffers
        .push((step.qkv, rotation.rows(heads, rows, noise)));
    expect_rows(fixture, &mut run, step.q, rows, rotation.allowed(heads));
    run.kv
        .push([(); 2].map(|()| noise.values(fixture.pool_elements(step.layer))));
    for (half, allowed) in [
        (KvHalf::Key, rotation.allowed(heads)),
        (KvHalf::Value, rotation.allowed_values()),
    ] {
        run.checks.push(Check::Kv {
            layer: step.layer,
            half,
            allowed: or_codes(allowed, fixture.kv_format, 0.5, heads),
        });
    }
    // The first query head with the first key head, or with the last query head.
    let other = heads.query - u32::from(rotation.no_kv);
    run.mutants
        .push(Mutant::SwapHeads(step.qkv, heads.head_dim, 0, other));
    if rows > 4 {
        run.mutants.push(Mutant::SwapRows(step.qkv, 0, rows - 1));
    }
    if rows > 4 && !rotation.no_kv {
        run.mutants.push(Mutant::SwapSlots(0, 0, rows - 1));
    }
    run
}

/// A tolerance of what is stored, and if that is coded, `steps` codes more.
pub(super) fn or_codes(exact: Allowed, format: KvFormat, steps: f64, heads: Heads) -> Allowed {
    if format.is_coded() {
        either(exact, codes(format, steps, heads.head_dim))
    } else {
        exact
    }
}

/// The step with these options, and its weights.
pub(super) fn rotation_step(
    fixture: &mut Fixture,
    noise: &mut Noise,
    heads: Heads,
    rotation: Rotation,
    (layer, qkv, q): (u32, BufferId, BufferId),
) -> RopeStoreKv {
    let mut head_norm = |name: &str, count: u32, format| {
        let elements = if rotation.whole_row {
            count * heads.head_dim
        } else {
            heads.head_dim
        };
        let weight = fixture.weight(name, 1, format, &noise.values(elements as usize));
        HeadNorm {
            weight,
            epsilon: 1e-6,
            one_plus: rotation.one_plus,
            whole_row: rotation.whole_row,
            after_rotation: rotation.after,
        }
    };
    let has_k_norm = rotation.norm && !rotation.q_only;
    let q_norm = rotation
        .norm
        .then(|| head_norm("q_norm", heads.query, WeightFormat::Bf16));
    let k_norm = has_k_norm.then(|| head_norm("k_norm", heads.kv, WeightFormat::F32));
    let rope = (rotation.pairs > 0).then(|| Rope {
        frequencies: fixture.weight(
            "frequencies",
            1,
            WeightFormat::F32,
            &frequencies(rotation.pairs),
        ),
        rotary_dim: 2 * rotation.pairs,
        interleaved: rotation.interleaved,
        scale: if rotation.scaled { 1.3 } else { 1.0 },
        by_axis: false,
    });
    RopeStoreKv {
        qkv,
        layer,
        query_heads: heads.query,
        q_norm,
        k_norm,
        rope,
        options: StoreOptions {
            v_epsilon: rotation.v_norm.then_some(1e-6),
            query_growth: rotation.grows.then_some(QueryGrowth {
                slope: 0.7,
                positions: 5,
                ahead: u32::from(rotation.q_only),
            }),
            q_only: rotation.no_kv,
        },
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
fn pairs_apart(allowed: Allowed) -> Allowed {
    Box::new(move |expected| {
        allowed(expected)
            .into_iter()
            .map(|allowed| allowed + 16.0 * RELATIVE)
            .collect()
    })
}

/// Tolerance: 1e-5 of the length of the element's rotated pair, which the rotation preserves.
pub(super) fn rotated(head_dim: u32, pairs: u32, interleaved: bool) -> Allowed {
    let (head_dim, pairs) = (head_dim as usize, pairs as usize);
    Box::new(move |expected| {
        assert_eq!(expected.len() % head_dim, 0, "a row is whole heads");
        let mut allowed: Vec<f64> = expected
            .iter()
            .map(|value| RELATIVE * f64::from(value.abs()))
            .collect();
        let heads = expected.chunks_exact(head_dim);
        for (head, allowed) in heads.zip(allowed.chunks_exact_mut(head_dim)) {
            for pair in 0..pairs {
                let (a, b) = if interleaved {
                    (2 * pair, 2 * pair + 1)
                } else {
                    (pair, pair + pairs)
                };
                let length = f64::from(head[a]).hypot(f64::from(head[b]));
                allowed[a] = RELATIVE * length;
                allowed[b] = RELATIVE * length;
            }
        }
        allowed
    })
}

/// Options of `AttendPaged`.
#[derive(Clone, Copy)]
struct View {
    window: Option<Window>,
    softcap: bool,
    alibi: bool,
    sinks: bool,
    /// The values are the keys.
    latent: bool,
    /// The batches are [`LONG`].
    long: bool,
}

const PLAIN_VIEW: View = View {
    window: None,
    softcap: false,
    alibi: false,
    sinks: false,
    latent: false,
    long: false,
};
const LATENT_VIEW: View = View {
    latent: true,
    ..PLAIN_VIEW
};
const LONG_VIEW: View = View {
    long: true,
    ..PLAIN_VIEW
};
const LONG_VIEW_SINKS: View = View {
    sinks: true,
    ..LONG_VIEW
};
const LONG_VIEW_WINDOW: View = View {
    window: Some(Window::Last(100)),
    ..LONG_VIEW
};

const LATENT_HEADS: [Heads; 5] = [
    Heads::new(576, 16, 1),
    Heads::new(24, 3, 1),
    Heads::new(40, 128, 1),
    Heads::new(80, 20, 1),
    Heads::new(576, 1, 1),
];
const LONG_CASES: [(Heads, View); 6] = [
    (
        Heads::new(128, 8, 2),
        View {
            window: Some(Window::Chunk(100)),
            ..LONG_VIEW
        },
    ),
    (Heads::new(64, 6, 2), LONG_VIEW),
    (Heads::new(128, 4, 1), LONG_VIEW_SINKS),
    (Heads::new(128, 8, 1), LONG_VIEW_WINDOW),
    (
        Heads::new(64, 2, 2),
        View {
            sinks: true,
            ..LONG_VIEW_WINDOW
        },
    ),
    (Heads::new(128, 5, 1), LONG_VIEW),
];
/// Numbers of query heads per KV head.
const RATIOS: [Heads; 7] = [
    Heads::new(32, 1, 1),
    Heads::new(32, 6, 2),
    Heads::new(32, 5, 1),
    Heads::new(32, 7, 1),
    Heads::new(32, 16, 2),
    Heads::new(32, 12, 1),
    Heads::new(32, 16, 1),
];

const WINDOWS: [Window; 7] = [
    Window::Last(1),
    Window::Last(16),
    Window::Last(100),
    Window::Last(4096),
    Window::Chunk(1),
    Window::Chunk(24),
    Window::Chunk(4096),
];

/// A case of `AttendPaged`.
struct Attend {
    format: KvFormat,
    heads: Heads,
    view: View,
    batches: &'static [Batch],
}

/// Every combination of options; latents; windows; long batches; ratios of heads.
fn attends(shapes: Shapes) -> Vec<Attend> {
    let (all, some) = (shapes.of(&BATCHES), shapes.of(&BATCHES[1..4]));
    let mut attends = Vec::new();
    let mut add = |format, heads, view, batches| {
        attends.push(Attend {
            format,
            heads,
            view,
            batches,
        });
    };
    for options in 1..16 {
        let view = View::of_bits(options);
        let plain = [KvFormat::F16, KvFormat::F32][options % 2];
        add(plain, USUAL_HEADS, view, all);
        let coded = KvFormat::CODED[options / 2 % 2];
        add(coded, USUAL_HEADS, view, some);
    }
    for &heads in shapes.of(&LATENT_HEADS) {
        for format in KvFormat::ALL {
            let batches = if format == KvFormat::F16 { all } else { some };
            add(format, heads, LATENT_VIEW, batches);
        }
    }
    for &window in shapes.of(&WINDOWS) {
        let view = View {
            window: Some(window),
            ..PLAIN_VIEW
        };
        add(KvFormat::F16, USUAL_HEADS, view, all);
    }
    for &(heads, view) in shapes.of(&LONG_CASES) {
        add(KvFormat::F16, heads, view, shapes.of(&LONG));
    }
    for &heads in shapes.of(&RATIOS) {
        for format in [KvFormat::F16, KvFormat::Q8, KvFormat::Fp8] {
            add(format, heads, PLAIN_VIEW, some);
        }
    }
    attends
}

impl View {
    /// A combination of window, softcap, ALiBi and sinks.
    fn of_bits(bits: usize) -> Self {
        Self {
            window: (bits & 1 != 0).then_some(Window::Last(20)),
            softcap: bits & 2 != 0,
            alibi: bits & 4 != 0,
            sinks: bits & 8 != 0,
            ..PLAIN_VIEW
        }
    }

    /// The options that are on, for a name.
    fn options(&self) -> String {
        let options = names_of(&[
            (self.softcap, ", softcap"),
            (self.alibi, ", ALiBi"),
            (self.sinks, ", sinks"),
            (self.latent, ", latent"),
            (self.long, ", long"),
        ]);
        window_name(self.window) + &options
    }
}

/// A window, for a name.
pub(super) fn window_name(window: Option<Window>) -> String {
    match window {
        None => String::new(),
        Some(Window::Last(tokens)) => format!(", window {tokens}"),
        Some(Window::Chunk(tokens)) => format!(", chunks of {tokens}"),
    }
}

/// A size of blocks for heads of this size: all sizes occur.
pub(super) fn block_size(head_dim: u32) -> u32 {
    [16, 32, 64][(head_dim as usize / 16) % 3]
}

impl Attend {
    fn fixture(&self, kind: RowKind) -> Fixture {
        let (heads, view) = (self.heads, self.view);
        let (storage, format) = (kind.storage, self.format);
        let option = format!("{storage:?}, kv {format:?}{}", view.options());
        let mut fixture = Fixture::new("attend_paged", option);
        let mut noise = Noise::new(&format!(
            "attend {}{}{}",
            fixture.option, heads.head_dim, heads.query
        ));
        fixture.kv_format = format;
        fixture.block_size = block_size(heads.head_dim);
        // The keys of a head fit one binding of the smallest size that is tested, 8 MiB.
        let is_large = heads.head_dim > 256 && fixture.block_size > 16;
        let blocks = if is_large { 60 } else { 70 };
        let layer = fixture.layer(heads.kv, heads.head_dim, view.window, blocks);
        fixture.plan.kv_layers[layer as usize].latent = view.latent;
        let step = self.step(&mut fixture, storage, layer, &mut noise);
        fixture.push(Step::AttendPaged(step));
        for batch in self.batches {
            let run = self.run(&fixture, &step, kind, *batch, &mut noise);
            fixture.runs.push(run);
        }
        fixture
    }

    /// The step, with its weights and buffers.
    fn step(
        &self,
        fixture: &mut Fixture,
        storage: Storage,
        layer: u32,
        noise: &mut Noise,
    ) -> AttendPaged {
        let Heads {
            head_dim, query, ..
        } = self.heads;
        let columns = self.heads.columns();
        let [q, out] =
            ["q", "out"].map(|name| fixture.buffer(name, Rows::Tokens, columns, storage));
        let mut per_head = |on: bool, name: &str, scale: f32| {
            let values: Vec<f32> = (0..query).map(|_| noise.uniform() * scale).collect();
            on.then(|| fixture.weight(name, 1, WeightFormat::F32, &values))
        };
        AttendPaged {
            q,
            layer,
            query_heads: query,
            scale: (head_dim as f32).sqrt().recip(),
            softcap: self.view.softcap.then_some(2.5),
            alibi: per_head(self.view.alibi, "alibi", 0.5),
            sinks: per_head(self.view.sinks, "sinks", 3.0),
            out,
        }
    }

    fn run(
        &self,
        fixture: &Fixture,
        step: &AttendPaged,
        kind: RowKind,
        (name, sequences): Batch,
        noise: &mut Noise,
    ) -> Run {
        let heads = self.heads;
        let mut inputs = paged_batch(fixture, sequences, noise);
        if name == DRAFTS {
            row_by_row(&mut inputs, fixture.block_size);
        }
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let shape = format!("{}×{} heads of {}", heads.query, heads.kv, heads.head_dim);
        let mut run = Run::new(format!("{shape}, {name}"), inputs);
        let elements = (rows * heads.columns()) as usize;
        run.buffers.push((step.q, noise.values(elements)));
        let mut pool = pool_content(fixture, step.layer, &run.inputs, noise);
        if self.view.latent {
            pool[1] = Vec::new();
        }
        let values = &pool[usize::from(!self.view.latent)];
        let allowed = allowed_attention(fixture, kind, &run.inputs, heads, values);
        run.kv.push(pool);
        expect_rows(fixture, &mut run, step.out, rows, each(allowed));
        run.mutants = attention_mutants(fixture, &run.inputs, heads, step.q);
        if self.format.is_coded() {
            for half in [KvHalf::Key, KvHalf::Value] {
                if half == KvHalf::Key || !self.view.latent {
                    run.mutants
                        .push(Mutant::SwapScales(step.layer, half, heads.head_dim));
                }
            }
        }
        run
    }
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
    let window = fixture.plan.kv_groups[0].window;
    let seen =
        |position: u32| position + 1 - window.map_or(0, |window| window.first_visible(position));
    // With a single visible key, the query does not matter.
    let sees_many = inputs.positions.iter().all(|position| seen(*position) > 1);
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
    let several_visible = seen(sequence.context_len - 1) > fixture.block_size;
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
    let window = fixture.plan.kv_groups[0].window;
    let share = attention(kind, fixture.kv_format);
    let mut allowed = Vec::new();
    for (sequence, &start) in inputs.sequences.iter().zip(&group.table_starts) {
        for row in sequence.row_start..sequence.row_start + sequence.row_count {
            let position = inputs.positions[row as usize];
            for head in 0..heads.kv {
                let first = window.map_or(0, |window| window.first_visible(position));
                let seen = first..=position;
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
