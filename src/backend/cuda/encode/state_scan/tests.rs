//! Tests of `backend/cuda/encode/state_scan.rs`.

use super::super::super::arena::{Arena, SideBytes};
use super::super::super::driver::{Command, Driver as _, Facts};
use super::super::super::emulator::{Emulator, Watch};
use super::super::super::modules::Modules;
use super::super::super::{CudaBackend, CudaOptions};
use super::super::{BatchShape, Subject, record};
use super::*;
use crate::backend::layout::{Layout, PoolLayout};
use crate::backend::{Backend as _, Capacity};
use crate::plan::{KvFormat, Plan, Rows, ScanRule, StateLayer, Step, WeightFormat};

fn plan(key_dim: u32, storage: Storage) -> Plan {
    let (heads, value_dim, rule) = (2, 32, ScanRule::Mamba2);
    let mut plan = Plan {
        vocab: 8,
        positions_max: 4096,
        ..Plan::default()
    };
    let [decay, dt_bias] =
        ["decay", "bias"].map(|name| plan.weight(name, 1, heads, WeightFormat::F32));
    let mut buffer = |name, columns| plan.buffer(name, Rows::Tokens, columns, storage);
    let convolved = buffer("convolved", 2 * heads * key_dim + heads * value_dim);
    let [mixed, out] =
        [("mixed", heads), ("out", heads * value_dim)].map(|(name, columns)| buffer(name, columns));
    plan.state_layers = vec![StateLayer {
        elements: heads * key_dim * value_dim,
    }];
    let (gates, layer, key_heads, tiled, skip) = (0, 0, heads, false, None);
    plan.body = vec![Step::StateScan(StateScan {
        convolved,
        mixed,
        gates,
        layer,
        heads,
        key_heads,
        tiled,
        key_dim,
        value_dim,
        rule,
        decay,
        dt_bias,
        skip,
        out,
    })];
    plan
}

/// The kernels that a batch of sequences with so many rows launches.
fn kernels(plan: &Plan, rows: &[u32], deterministic: bool) -> Option<Vec<&'static str>> {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let mut driver = Emulator::open(&sources, (8, 0), Watch::Results).ok()?;
    let backend =
        CudaBackend::emulated(&sources, (8, 0), &CudaOptions::default(), Watch::Results).ok()?;
    let device: Facts = driver.facts().clone();
    let capacity = Capacity {
        tokens_max: 100,
        sequences_max: 20,
        samples_max: 20,
        feed_slots: 40,
        state_slots: 20,
        table_entries_max: 100,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: 16,
        kv_format: KvFormat::F16,
        deterministic,
    };
    let side = SideBytes::new(plan, &capacity, &device);
    let layout = Layout::checked(plan, &capacity, backend.caps()).expect("the plan is small");
    let mut arena = Arena::new(&mut driver, plan, &layout, &side).expect("there is memory");
    let layout =
        PoolLayout::checked(plan, &capacity, backend.caps(), &[]).expect("there is no pool");
    arena
        .allocate_pool(&mut driver, &layout, &[])
        .expect("there is memory");
    let usual = BatchShape::usual(plan, &capacity).remove(0);
    let scan = ScanShape::of(plan, rows.iter().copied());
    let shape = BatchShape {
        samples: 0,
        decode: rows.iter().all(|rows| *rows == 1),
        scan,
        ..usual
    };
    let mut modules = Modules::new(None);
    let subject = Subject {
        plan,
        capacity: &capacity,
        arena: &arena,
        device: &device,
    };
    record(&mut modules, subject, &shape).expect("it is recorded");
    modules.pretend();
    let commands = record(&mut modules, subject, &shape).expect("it is recorded");
    arena.free(&mut driver);
    Some(
        commands
            .iter()
            .map(|command| match command {
                Command::Kernel(launch) => modules.kernel(launch.function).stem,
                Command::Product(_) => "product",
            })
            .collect(),
    )
}

#[test]
fn each_number_of_rows_has_one_kernel() {
    let (few, many) = ("state_scan", "state_scan_chunks");
    let bf16 = plan(256, Storage::Bf16);
    let Some(decode) = kernels(&bf16, &[1; 3], false) else {
        return;
    };
    assert_eq!(decode, [few], "decode batches have one launch");
    for (rows, expected) in [
        (&[7, 1][..], &[few][..]),
        (&[8], &[many]),
        (&[100, 8], &[many]),
        (&[1, 8, 1], &[few, many]),
    ] {
        assert_eq!(
            kernels(&bf16, rows, false).expect("there is a compiler"),
            expected,
            "{rows:?}"
        );
        assert_eq!(
            kernels(&bf16, rows, true).expect("there is a compiler"),
            [few],
            "{rows:?}, deterministic"
        );
    }
    let [small, large] = [128, 256].map(|key_dim| plan(key_dim, Storage::F32));
    assert_eq!(
        kernels(&small, &[100], false).expect("there is a compiler"),
        [many]
    );
    assert_eq!(
        kernels(&large, &[100], false).expect("there is a compiler"),
        [few],
        "rows fill the shared memory"
    );
}
