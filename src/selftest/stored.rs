//! Test cases for the store of keys and values and the attention after it, where every sequence has one row: a device
//! may run both as one kernel, which attends to a key that the pool does not have yet.

use super::attention::{
    Batch, Heads, Rotation, block_size, or_codes, rotation_step, row_by_row, whole, window_name,
};
use super::compare::attention_of_stored;
use super::fixture::{
    Check, Fixture, Mutant, Noise, Run, each, expect_rows, names_of, paged_batch, pool_content,
};
use super::{RowKind, Shapes};
use crate::backend::KvHalf;
use crate::plan::inputs::NONE;
use crate::plan::{
    AttendPaged, BufferId, KvFormat, RopeStoreKv, Rows, Step, Storage, WeightFormat, Window,
};

/// (rows, context) per sequence: the first position of a sequence and of a block, the last of a block, one sequence
/// that is cut into parts, and more sequences than a device has blocks.
const BATCHES: [Batch; 6] = [
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
    window: Option<Window>,
    softcap: bool,
    sinks: bool,
}

/// Heads, pool and options of both steps.
#[derive(Clone, Copy)]
struct Case {
    heads: Heads,
    format: KvFormat,
    rotation: Rotation,
    view: View,
}

/// All fixtures, for a device with this kind of rows.
pub(super) fn fixtures(kind: RowKind, shapes: Shapes) -> Vec<Fixture> {
    let cases = cases();
    let cases = shapes.of(&cases).iter();
    cases
        .map(|case| case.fixture(kind, shapes.of(&BATCHES)))
        .collect()
}

fn cases() -> [Case; 15] {
    let plain = View::default();
    let windowed = View {
        window: Some(Window::Last(20)),
        ..plain
    };
    let sinks = View {
        sinks: true,
        ..plain
    };
    let capped = View {
        softcap: true,
        window: Some(Window::Last(100)),
        ..plain
    };
    let case = |[head_dim, query, kv]: [u32; 3], format, rotation: fn(Heads) -> Rotation, view| {
        let heads = Heads::new(head_dim, query, kv);
        Case {
            heads,
            format,
            rotation: rotation(heads),
            view,
        }
    };
    let (f16, q8, fp8) = (KvFormat::F16, KvFormat::Q8, KvFormat::Fp8);
    [
        case([16, 4, 4], q8, whole, plain),
        case([64, 4, 2], f16, whole, plain),
        case([64, 4, 2], q8, normed, windowed),
        case([64, 6, 2], f16, partial, windowed),
        case([64, 6, 2], fp8, growing, sinks),
        case([80, 7, 1], f16, whole, sinks),
        case([80, 5, 1], fp8, normed, plain),
        case([128, 4, 1], f16, normed, plain),
        case([96, 2, 2], q8, whole, capped),
        case([128, 8, 2], q8, normed_rows, plain),
        case([128, 16, 1], fp8, whole, windowed),
        case([128, 2, 1], f16, queries, plain),
        case([256, 2, 2], f16, normed_after, capped),
        case([256, 4, 1], q8, whole, plain),
        case([256, 3, 1], fp8, unrotated, sinks),
    ]
}

fn normed(heads: Heads) -> Rotation {
    Rotation {
        norm: true,
        ..whole(heads)
    }
}

fn normed_rows(heads: Heads) -> Rotation {
    Rotation {
        whole_row: true,
        wider: true,
        ..normed(heads)
    }
}

fn normed_after(heads: Heads) -> Rotation {
    Rotation {
        after: true,
        v_norm: true,
        ..normed(heads)
    }
}

fn partial(heads: Heads) -> Rotation {
    Rotation {
        pairs: 12,
        interleaved: true,
        q_only: true,
        ..normed(heads)
    }
}

fn growing(heads: Heads) -> Rotation {
    Rotation {
        grows: true,
        ..whole(heads)
    }
}

fn queries(heads: Heads) -> Rotation {
    Rotation {
        no_kv: true,
        ..normed(heads)
    }
}

fn unrotated(heads: Heads) -> Rotation {
    Rotation {
        pairs: 0,
        ..normed(heads)
    }
}

impl Case {
    fn fixture(&self, kind: RowKind, batches: &[Batch]) -> Fixture {
        let (heads, rotation) = (self.heads, self.rotation);
        let mut fixture = Fixture::new("attend_paged", self.name(kind.storage));
        let mut noise = Noise::new(&format!(
            "stored {}{}{}",
            fixture.option, heads.head_dim, heads.query
        ));
        fixture.kv_format = self.format;
        fixture.block_size = block_size(heads.head_dim);
        let layer = fixture.layer(heads.kv, heads.head_dim, self.view.window, 70);
        let qkv_columns = rotation.columns(heads);
        let qkv = fixture.buffer("qkv", Rows::Tokens, qkv_columns, kind.storage);
        let [q, out] = ["q", "out"]
            .map(|name| fixture.buffer(name, Rows::Tokens, heads.columns(), kind.storage));
        let store = rotation_step(&mut fixture, &mut noise, heads, rotation, (layer, qkv, q));
        fixture.push(Step::RopeStoreKv(store));
        let attend = self.attend(&mut fixture, &store, out, &mut noise);
        fixture.push(Step::AttendPaged(attend));
        for batch in batches {
            let run = self.run(&fixture, kind, &store, &attend, *batch, &mut noise);
            fixture.runs.push(run);
        }
        fixture
    }

    /// The options as a name.
    fn name(&self, storage: Storage) -> String {
        let (format, view) = (self.format, self.view);
        let turned = self.rotation.options(self.heads);
        let window = window_name(view.window);
        let options = names_of(&[(view.softcap, ", softcap"), (view.sinks, ", sinks")]);
        format!("{storage:?}, kv {format:?}, after its store{turned}{window}{options}")
    }

    /// Attention after a store, with its weights.
    fn attend(
        &self,
        fixture: &mut Fixture,
        store: &RopeStoreKv,
        out: BufferId,
        noise: &mut Noise,
    ) -> AttendPaged {
        let heads = self.heads;
        let sinks: Vec<f32> = (0..heads.query).map(|_| noise.uniform() * 3.0).collect();
        // A norm's weights make scores as large as those of rows without a norm.
        let factor = if self.rotation.norm { 0.25 } else { 1.0 };
        AttendPaged {
            q: store.q,
            layer: store.layer,
            query_heads: heads.query,
            scale: (heads.head_dim as f32).sqrt().recip() * factor,
            softcap: self.view.softcap.then_some(2.5),
            alibi: None,
            sinks: self
                .view
                .sinks
                .then(|| fixture.weight("sinks", 1, WeightFormat::F32, &sinks)),
            out,
        }
    }

    fn run(
        &self,
        fixture: &Fixture,
        kind: RowKind,
        store: &RopeStoreKv,
        attend: &AttendPaged,
        (name, sequences): Batch,
        noise: &mut Noise,
    ) -> Run {
        let (heads, rotation) = (self.heads, self.rotation);
        let mut inputs = paged_batch(fixture, sequences, noise);
        match name {
            DRAFTS => row_by_row(&mut inputs, fixture.block_size),
            ONE_STORED => inputs.groups[0].slot_mapping[1] = NONE,
            _ => {}
        }
        let rows = u32::try_from(inputs.positions.len()).expect("a small batch");
        let shape = format!("{}×{} heads of {}", heads.query, heads.kv, heads.head_dim);
        let mut run = Run::new(format!("{shape}, {name}"), inputs);
        run.buffers
            .push((store.qkv, rotation.rows(heads, rows, noise)));
        run.kv
            .push(pool_content(fixture, store.layer, &run.inputs, noise));
        // Values are at most 20, the size of the outliers.
        let share = attention_of_stored(kind, self.format);
        let allowed = each(vec![share * 20.0; (rows * heads.columns()) as usize]);
        expect_rows(fixture, &mut run, attend.out, rows, allowed);
        for (half, allowed) in [
            (KvHalf::Key, rotation.allowed(heads)),
            (KvHalf::Value, rotation.allowed_values()),
        ] {
            run.checks.push(Check::Kv {
                layer: store.layer,
                half,
                allowed: or_codes(allowed, self.format, 1.0, heads),
            });
        }
        let sees_many = self.view.window != Some(Window::Last(1))
            && run.inputs.positions.iter().all(|position| *position > 0);
        if rows > 1 && sees_many {
            run.mutants.push(Mutant::SwapRows(store.qkv, 0, rows - 1));
        }
        run
    }
}
