//! Test cases for attention of rows to each other: RotateRows, AttendRows.

use super::attention::Heads;
use super::compare::{RELATIVE, attention};
use super::fixture::{
    Allowed, Fixture, Mutant, Noise, Run, each, expect_rows, names_of, paged_batch,
};
use super::{RowKind, Shapes};
use crate::plan::inputs::{AXES, BatchInputs};
use crate::plan::{
    AttendRows, BufferId, BufferSpec, HeadNorm, KvFormat, Rope, RotateRows, Rows, Step, Storage,
    WeightFormat,
};

/// A name, and the rows of each sequence: short ones beside each other, tiles with parts of tiles at their ends, and
/// several tiles.
type Batch = (&'static str, &'static [u32]);

const BATCHES: [Batch; 4] = [
    ("1 row", &[1]),
    ("short ones", &[2, 1, 9, 5, 3, 1, 20]),
    ("mixed", &[1, 33, 64, 7, 130, 16]),
    ("several tiles", &[257, 65]),
];

const HEADS: [Heads; 7] = [
    Heads::new(8, 3, 1),
    Heads::new(16, 2, 2),
    Heads::new(32, 4, 4),
    Heads::new(64, 4, 2),
    PARTLY_ROTATED,
    Heads::new(128, 2, 2),
    Heads::new(256, 3, 1),
];

/// Heads whose options are checked.
const USUAL_HEADS: Heads = Heads::new(64, 4, 4);
/// Heads of which a part is rotated, in pairs that are no whole number of vectors.
const PARTLY_ROTATED: Heads = Heads::new(80, 2, 1);

/// Options of `RotateRows`.
#[derive(Clone, Copy, Default)]
struct Turn {
    norms: bool,
    interleaved: bool,
    by_axis: bool,
}

/// Options of `AttendRows`.
#[derive(Clone, Copy, Default)]
struct View {
    radius: Option<u32>,
    alibi: bool,
    /// q and k are in a buffer of their own.
    rotated: bool,
}

impl View {
    /// The options as a name.
    fn name(self) -> String {
        let radius = self.radius.map(|radius| format!(", radius {radius}"));
        let others = names_of(&[(self.alibi, ", alibi"), (self.rotated, ", rotated")]);
        radius.unwrap_or_default() + &others
    }
}

/// All fixtures of these steps, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let mut fixtures = Vec::new();
    for &heads in shapes.of(&HEADS) {
        fixtures.push(rotate(kind.storage, heads, Turn::default()));
        fixtures.push(attend(kind, heads, View::default(), shapes));
    }
    for bits in 1..8_u32 {
        let turn = Turn {
            norms: bits & 1 != 0,
            interleaved: bits & 2 != 0,
            by_axis: bits & 4 != 0,
        };
        fixtures.push(rotate(kind.storage, USUAL_HEADS, turn));
    }
    let by_axis = Turn {
        by_axis: true,
        ..Turn::default()
    };
    fixtures.push(rotate(kind.storage, PARTLY_ROTATED, by_axis));
    let plain = View::default();
    let views = [
        View {
            rotated: true,
            ..plain
        },
        View {
            radius: Some(1),
            ..plain
        },
        View {
            radius: Some(24),
            rotated: true,
            ..plain
        },
        View {
            alibi: true,
            ..plain
        },
        View {
            radius: Some(12),
            alibi: true,
            ..plain
        },
    ];
    fixtures.extend(views.map(|view| attend(kind, USUAL_HEADS, view, shapes)));
    fixtures
}

fn rotate(storage: Storage, heads: Heads, turn: Turn) -> Fixture {
    let Turn {
        norms,
        interleaved,
        by_axis,
    } = turn;
    let options = names_of(&[
        (norms, ", norms"),
        (interleaved, ", interleaved"),
        (by_axis, ", by axis"),
    ]);
    let Heads {
        head_dim,
        query,
        kv,
    } = heads;
    let option = format!("{storage:?}, heads of {head_dim}{options}");
    let mut fixture = Fixture::new("rotate_rows", option);
    let mut noise = Noise::new(&format!("rotate_rows {head_dim}{options}"));
    let rotary_dim = rotated_part(head_dim);
    let frequencies = frequencies(rotary_dim, by_axis);
    let frequencies = fixture.weight("frequencies", 1, WeightFormat::F32, &frequencies);
    let mut norm = |name| HeadNorm {
        weight: fixture.weight(name, 1, WeightFormat::F32, &noise.values(head_dim as usize)),
        epsilon: 1e-6,
        one_plus: interleaved,
        whole_row: false,
        after_rotation: false,
    };
    let norms = norms.then(|| [norm("q_norm"), norm("k_norm")]);
    let qkv = fixture.buffer("qkv", Rows::Tokens, (query + 2 * kv) * head_dim, storage);
    let out = fixture.buffer("out", Rows::Tokens, (query + kv) * head_dim, storage);
    let rope = Rope {
        frequencies,
        rotary_dim,
        interleaved,
        scale: if interleaved { 1.25 } else { 1.0 },
        by_axis,
    };
    fixture.push(Step::RotateRows(RotateRows {
        qkv,
        query_heads: query,
        kv_heads: kv,
        head_dim,
        norms,
        rope,
        out,
    }));
    for rows in [1, 17, 65] {
        let sequences = [(1, 1), (rows, rows)];
        let mut inputs = paged_batch(&fixture, &sequences, &mut noise);
        if by_axis {
            inputs.places = (0..rows + 1).map(place).collect();
        }
        let mut run = filled(&fixture, format!("{rows} rows"), inputs, &[qkv], &mut noise);
        let allowed = of_pairs(head_dim as usize, rope);
        expect_rows(&fixture, &mut run, out, rows + 1, allowed);
        fixture.runs.push(run);
    }
    fixture
}

/// Where a row's token is on each axis.
fn place(row: u32) -> [u32; AXES] {
    [row, row / 7 + 3, 2 * (row % 7)]
}

/// Elements of a head that are rotated: for one of 80, a part that is no whole number of vectors.
fn rotated_part(head_dim: u32) -> u32 {
    match head_dim == PARTLY_ROTATED.head_dim {
        true => 36,
        false => head_dim,
    }
}

/// The frequencies of a head's pairs, and behind them, with `by_axis`, the axis of each.
fn frequencies(rotary_dim: u32, by_axis: bool) -> Vec<f32> {
    let pairs = 0..rotary_dim / 2;
    let frequency = |pair: u32| 100_f32.powf(-2.0 * pair as f32 / rotary_dim as f32);
    let mut frequencies: Vec<f32> = pairs.clone().map(frequency).collect();
    if by_axis {
        frequencies.extend(pairs.map(|pair| (pair % AXES as u32) as f32));
    }
    frequencies
}

/// A run whose inputs are these buffers, with noise, of which a comparison must notice two swapped rows.
fn filled(
    fixture: &Fixture,
    shape: String,
    inputs: BatchInputs,
    buffers: &[BufferId],
    noise: &mut Noise,
) -> Run {
    let rows = u32::try_from(inputs.positions.len()).expect("a test batch is small");
    let mut run = Run::new(shape, inputs);
    for &buffer in buffers {
        let BufferSpec {
            columns, storage, ..
        } = *fixture.plan.buffer_spec(buffer);
        let values = noise.rounded(storage, (rows * columns) as usize);
        run.buffers.push((buffer, values));
        if rows > 1 {
            run.mutants.push(Mutant::SwapRows(buffer, 0, rows - 1));
        }
    }
    run
}

/// A tolerance relative to the length of each rotated pair, and to elements that are not rotated.
fn of_pairs(head_dim: usize, rope: Rope) -> Allowed {
    Box::new(move |expected| {
        let pairs = rope.rotary_dim as usize / 2;
        let partner = |element: usize| match rope.interleaved {
            _ if element >= 2 * pairs => element,
            true => element ^ 1,
            false if element < pairs => element + pairs,
            false => element - pairs,
        };
        let of_head = |head: &[f32]| {
            let length = |(element, value): (usize, &f32)| {
                let other = f64::from(head[partner(element)]);
                4.0 * RELATIVE * f64::from(*value).hypot(other)
            };
            head.iter().enumerate().map(length).collect::<Vec<_>>()
        };
        expected.chunks_exact(head_dim).flat_map(of_head).collect()
    })
}

/// The step under test, with its buffers.
fn step(fixture: &mut Fixture, storage: Storage, heads: Heads, view: View) -> AttendRows {
    let Heads {
        head_dim,
        query,
        kv,
    } = heads;
    let slopes: Vec<f32> = (1..=query).map(|head| 0.5_f32.powi(head as i32)).collect();
    let alibi = view
        .alibi
        .then(|| fixture.weight("slopes", 1, WeightFormat::F32, &slopes));
    let mut rows = |name, heads: u32| fixture.buffer(name, Rows::Tokens, heads * head_dim, storage);
    let v = rows("qkv", query + 2 * kv);
    AttendRows {
        qk: if view.rotated {
            rows("rotated", query + kv)
        } else {
            v
        },
        v,
        query_heads: query,
        kv_heads: kv,
        head_dim,
        scale: 2.0 / (head_dim as f32).sqrt(),
        radius: view.radius,
        alibi,
        out: rows("out", query),
    }
}

fn attend(kind: RowKind, heads: Heads, view: View, shapes: Shapes) -> Fixture {
    let options = format!("heads of {}{}", heads.head_dim, view.name());
    let mut fixture = Fixture::new("attend_rows", format!("{:?}, {options}", kind.storage));
    let mut noise = Noise::new(&format!("attend_rows {options}"));
    let step = step(&mut fixture, kind.storage, heads, view);
    fixture.push(Step::AttendRows(step));
    for (name, counts) in shapes.of(&BATCHES) {
        let sequences: Vec<(u32, u32)> = counts.iter().map(|&count| (count, count)).collect();
        let inputs = paged_batch(&fixture, &sequences, &mut noise);
        let rows: u32 = counts.iter().sum();
        let buffers = if view.rotated {
            &[step.v, step.qk][..]
        } else {
            &[step.v]
        };
        let mut run = filled(&fixture, (*name).into(), inputs, buffers, &mut noise);
        let most = |most: f32, value: &f32| most.max(value.abs());
        let largest = run.buffers[0].1.iter().fold(0.0, most);
        let allowed = attention(kind, KvFormat::F32) * f64::from(largest);
        let elements = (rows * heads.columns()) as usize;
        let allowed = each(vec![allowed; elements]);
        expect_rows(&fixture, &mut run, step.out, rows, allowed);
        fixture.runs.push(run);
    }
    fixture
}
