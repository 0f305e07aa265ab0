//! Tests beyond the kernel checks: options, limits, rejected batches, a lost device. They run on any adapter.

use super::super::{Backend as _, Inspect as _, KvHalf};
use super::*;
use crate::plan::inputs::{GroupInputs, NONE, SampleRow, SequenceRows};
use crate::plan::{
    AttendPaged, BufferId, CopyBlocks, Embed, KvFormat, KvGroup, KvLayer, MatMul, RowId, Rows,
    Step, WeightFormat,
};
use pollster::block_on;

/// Opens the first adapter with `change` applied; `None`, with a printed note, if there is no adapter.
fn open(change: impl FnOnce(&mut WgpuOptions)) -> Option<WgpuBackend> {
    let mut options = WgpuOptions {
        adapter: Some(0),
        ..WgpuOptions::default()
    };
    change(&mut options);
    match block_on(WgpuBackend::open(&options)) {
        Ok(backend) => Some(backend),
        Err(error) => {
            assert!(
                std::env::var_os("FOLIO_REQUIRE_GPU").is_none(),
                "FOLIO_REQUIRE_GPU is set, but: {error}"
            );
            eprintln!("SKIPPED: {error}");
            None
        }
    }
}

fn capacity(tokens_max: u32) -> Capacity {
    Capacity {
        tokens_max,
        sequences_max: 4,
        samples_max: 8,
        feed_slots: 8,
        state_slots: 0,
        table_entries_max: 32,
        history_max: 8,
        bias_max: 8,
        mask_words_max: 8,
        copies_max: 4,
        block_size: 16,
        kv_format: KvFormat::F32,
        deterministic: false,
    }
}

/// A plan with an embedding and a product: `vocab` ids, rows of 64, 40 outputs.
fn plan(vocab: u32) -> (Arc<Plan>, BufferId) {
    let mut plan = Plan {
        vocab,
        ..Plan::default()
    };
    let x = plan.buffer("x", Rows::Tokens, 64, Storage::F32);
    let out = plan.buffer("out", Rows::Tokens, 40, Storage::F32);
    let table = plan.weight("table", vocab, 64, WeightFormat::Bf16);
    let weight = plan.weight("weight", 40, 64, WeightFormat::F32);
    plan.kv_groups.push(KvGroup { window: None });
    plan.kv_layers.push(KvLayer {
        group: 0,
        heads: 3,
        head_dim: 8,
        latent: false,
    });
    plan.body.push(Step::CopyBlocks(CopyBlocks));
    plan.body.push(Step::Embed(Embed {
        table,
        id: RowId::Token,
        accumulate: false,
        scale: 1.0,
        out: x,
    }));
    plan.body.push(Step::MatMul(MatMul {
        x,
        weight,
        bias: None,
        accumulate: false,
        out,
    }));
    (Arc::new(plan), out)
}

/// Small integers, exact in every format, so that every order of summation gives the same bits.
fn load(backend: &mut WgpuBackend, plan: &Arc<Plan>, tokens_max: u32) {
    backend
        .load(Arc::clone(plan), &capacity(tokens_max))
        .expect("the plan fits");
    for (index, spec) in (0..).zip(&plan.weights) {
        for row in 0..spec.rows {
            let value = |column: u32| ((row * 7 + column * 3 + index) % 11) as f32 - 5.0;
            let bytes: Vec<u8> = match spec.format_of(0) {
                WeightFormat::Bf16 => (0..spec.columns)
                    .flat_map(|c| half::bf16::from_f32(value(c)).to_le_bytes())
                    .collect(),
                _ => (0..spec.columns)
                    .flat_map(|c| value(c).to_le_bytes())
                    .collect(),
            };
            backend
                .write_weight(WeightId(index), row, bytes.into())
                .expect("a row of a weight");
        }
    }
    backend.allocate_pool(&[6]).expect("a small pool");
}

fn batch(ids: &[u32], copies: Vec<(u32, u32)>) -> BatchInputs {
    let rows = u32::try_from(ids.len()).expect("few rows");
    BatchInputs {
        token_ids: ids.to_vec(),
        positions: (0..rows).collect(),
        sequences: vec![SequenceRows {
            row_start: 0,
            row_count: rows,
            context_len: rows,
        }],
        groups: vec![GroupInputs {
            block_tables: vec![NONE; rows.div_ceil(16) as usize],
            table_starts: vec![0],
            slot_mapping: vec![NONE; ids.len()],
            copies,
        }],
        ..BatchInputs::default()
    }
}

fn run(backend: &mut WgpuBackend, inputs: &BatchInputs) -> Result<(), BackendError> {
    let ticket = backend.submit(inputs)?;
    block_on(backend.read(ticket)).map(|_| ())
}

fn outputs(backend: &mut WgpuBackend, ids: &[u32], out: BufferId) -> Vec<f32> {
    run(backend, &batch(ids, Vec::new())).expect("a batch within limits");
    block_on(backend.read_buffer(out, ids.len() as u32)).expect("a buffer of the plan")
}

/// The expected outputs by definition, computed in integers that f32 holds exactly.
fn expected(ids: &[u32]) -> Vec<f32> {
    let value =
        |row: u32, column: u32, index: u32| ((row * 7 + column * 3 + index) % 11) as f32 - 5.0;
    let product =
        |id: u32, output: u32| (0..64).map(|k| value(id, k, 0) * value(output, k, 1)).sum();
    ids.iter()
        .flat_map(|id| (0..40).map(move |output| product(*id, output)))
        .collect()
}

#[test]
fn weights_cut_by_artificial_limits_give_the_same_result() {
    let (plan, out) = plan(100);
    let ids: Vec<u32> = (0..9).map(|i| i * 11 + 1).collect();
    for class in [Class::Discrete, Class::Software] {
        for limit in [None, Some(3072)] {
            let Some(mut backend) =
                open(|options| (options.binding_bytes_max, options.class) = (limit, Some(class)))
            else {
                return;
            };
            load(&mut backend, &plan, 9);
            let shards = backend.loaded().expect("loaded").arena.weights[0]
                .shards
                .len();
            assert_eq!(
                shards,
                if limit.is_some() { 5 } else { 1 },
                "12,800 bytes in bindings of 3,072"
            );
            assert_eq!(
                outputs(&mut backend, &ids, out),
                expected(&ids),
                "{class:?}, limit {limit:?}"
            );
        }
    }
}

#[test]
fn a_checked_build_gives_the_same_result() {
    let (plan, out) = plan(20);
    let Some(mut backend) = open(|options| options.checked = true) else {
        return;
    };
    load(&mut backend, &plan, 32);
    for rows in [1, 2, 5, 16, 32] {
        let ids: Vec<u32> = (0..rows).map(|i| i * 3 % 20).collect();
        assert_eq!(
            outputs(&mut backend, &ids, out),
            expected(&ids),
            "{rows} rows"
        );
    }
}

#[test]
fn blocks_are_copied_in_every_shard_of_heads() {
    let (plan, _) = plan(4);
    // A head takes 6 blocks x 16 slots x 8 x 4 = 3,072 bytes: one head per shard.
    for limit in [None, Some(4096)] {
        let Some(mut backend) = open(|options| options.binding_bytes_max = limit) else {
            return;
        };
        load(&mut backend, &plan, 4);
        let values: Vec<f32> = (0..6 * 3 * 16 * 8).map(|i| i as f32).collect();
        for half in [KvHalf::Key, KvHalf::Value] {
            backend.write_kv(0, half, &values).expect("a whole half");
        }
        run(&mut backend, &batch(&[1], vec![(1, 4), (0, 5)])).expect("copies within the pool");
        let block = 3 * 16 * 8;
        let mut expected_values = values.clone();
        expected_values.copy_within(block..2 * block, 4 * block);
        expected_values.copy_within(0..block, 5 * block);
        for half in [KvHalf::Key, KvHalf::Value] {
            let got = block_on(backend.read_kv(0, half)).expect("a whole half");
            assert_eq!(got, expected_values, "{half:?}, limit {limit:?}");
        }
    }
}

type Change = fn(&mut BatchInputs);

#[test]
fn a_batch_outside_of_its_arrays_is_refused_and_the_device_still_works() {
    let (plan, out) = plan(20);
    let Some(mut backend) = open(|_| {}) else {
        return;
    };
    load(&mut backend, &plan, 8);
    let good = batch(&[1, 2], Vec::new());
    let changes: [(&str, Change); 8] = [
        ("id", |inputs| inputs.token_ids[0] = 20),
        ("feed slot", |inputs| {
            inputs.token_ids[0] = crate::plan::inputs::FEED | 8;
        }),
        ("position", |inputs| inputs.positions[1] = 7),
        ("rows", |inputs| inputs.sequences[0].row_count = 3),
        ("slot", |inputs| inputs.groups[0].slot_mapping[0] = 6 * 16),
        ("table", |inputs| inputs.groups[0].block_tables[0] = 6),
        ("copy", |inputs| inputs.groups[0].copies = vec![(0, 6)]),
        ("logits row", |inputs| inputs.logits_rows = vec![2]),
    ];
    for (what, change) in changes {
        let mut inputs = good.clone();
        change(&mut inputs);
        let outcome = run(&mut backend, &inputs);
        assert!(
            matches!(outcome, Err(BackendError::Validation(_))),
            "{what}: {outcome:?}"
        );
    }
    let mut unsampled = good;
    unsampled.logits_rows = vec![1];
    unsampled.samples = vec![SampleRow::greedy(1, 2)];
    assert!(
        run(&mut backend, &unsampled).is_err(),
        "a sample row without its logits row"
    );
    assert_eq!(outputs(&mut backend, &[1, 2], out), expected(&[1, 2]));
}

#[test]
fn a_lost_device_fails_every_call_until_it_is_reset() {
    let (plan, out) = plan(20);
    let Some(mut backend) = open(|_| {}) else {
        return;
    };
    load(&mut backend, &plan, 8);
    let ticket = backend
        .submit(&batch(&[3], Vec::new()))
        .expect("the device works");
    backend.gpu.device.destroy();
    backend.gpu.errors.lose("destroyed by the test".into());
    assert!(
        matches!(block_on(backend.read(ticket)), Err(BackendError::Lost(_))),
        "a batch in flight is lost"
    );
    assert!(
        matches!(
            run(&mut backend, &batch(&[3], Vec::new())),
            Err(BackendError::Lost(_))
        ),
        "so is every other"
    );
    block_on(backend.reset()).expect("the adapter is still there");
    let outcome = run(&mut backend, &batch(&[3], Vec::new()));
    assert!(
        matches!(outcome, Err(BackendError::Validation(_))),
        "nothing is loaded any more: {outcome:?}"
    );
    load(&mut backend, &plan, 8);
    assert_eq!(outputs(&mut backend, &[3], out), expected(&[3]));
}

#[test]
fn a_batch_that_does_not_come_back_is_a_hang_and_a_reset_helps() {
    let (plan, out) = plan(20);
    let Some(mut backend) = open(|_| {}) else {
        return;
    };
    load(&mut backend, &plan, 8);
    // Retried, because a fast device may already be done at the first poll.
    let mut outcome = Ok(());
    for _ in 0..1000 {
        let ticket = backend
            .submit(&batch(&[3], Vec::new()))
            .expect("the device works");
        backend.gpu.read_timeout = std::time::Duration::ZERO;
        outcome = block_on(backend.read(ticket)).map(|_| ());
        if outcome.is_err() {
            break;
        }
    }
    assert!(
        matches!(outcome, Err(BackendError::Hung(_))),
        "distinct from a loss: {outcome:?}"
    );
    assert!(
        matches!(
            backend.submit(&batch(&[3], Vec::new())),
            Err(BackendError::Hung(_))
        ),
        "and it stays so"
    );
    block_on(backend.reset()).expect("the adapter is still there");
    load(&mut backend, &plan, 8);
    assert_eq!(outputs(&mut backend, &[3], out), expected(&[3]));
}

#[test]
fn kernels_that_a_driver_refuses_give_way_to_portable_ones() {
    let (plan, out) = plan(20);
    let ids = [1, 2, 3, 4, 5];
    for define in ["SUBGROUPS", "TEXELS"] {
        for class in [Class::Discrete, Class::Software] {
            let Some(mut backend) = open(|options| {
                (options.refused_define, options.class) = (Some(define), Some(class));
            }) else {
                return;
            };
            // Of this plan's kernels, only those that read images use either.
            let uses = backend.gpu.profile.texels;
            for _ in 0..2 {
                load(&mut backend, &plan, 8);
                assert_eq!(
                    outputs(&mut backend, &ids, out),
                    expected(&ids),
                    "{class:?} without {define}"
                );
                assert_eq!(
                    outputs(&mut backend, &ids[..1], out),
                    expected(&ids[..1]),
                    "{class:?} without {define}"
                );
                block_on(backend.reset()).expect("the adapter is still there");
            }
            assert!(
                !uses || backend.caps().tier.starts_with("T0"),
                "a new device is not asked again"
            );
        }
    }
    // If the portable kernel is rejected too, the error names it.
    let Some(mut backend) = open(|options| options.refused_define = Some("WEIGHT_BF16")) else {
        return;
    };
    backend
        .load(Arc::clone(&plan), &capacity(8))
        .expect("nothing is compiled yet");
    backend.allocate_pool(&[6]).expect("nor now");
    let outcome = block_on(backend.warm_up(&mut |_, _| {}));
    assert!(
        matches!(&outcome, Err(BackendError::Kernel { kernel, .. }) if kernel.contains("embed")),
        "{outcome:?}"
    );
}

#[test]
fn four_batches_may_be_in_flight_and_a_fifth_is_refused() {
    let (plan, _) = plan(20);
    let Some(mut backend) = open(|_| {}) else {
        return;
    };
    load(&mut backend, &plan, 8);
    let inputs = batch(&[1, 2, 3], Vec::new());
    let tickets: Vec<Ticket> = (0..4)
        .map(|_| backend.submit(&inputs).expect("the ring has four slots"))
        .collect();
    assert!(
        matches!(backend.submit(&inputs), Err(BackendError::Validation(_))),
        "nothing has been read"
    );
    for ticket in tickets {
        block_on(backend.read(ticket)).expect("every batch ends");
    }
    run(&mut backend, &inputs).expect("the slots are free again");
}

#[test]
fn a_size_that_no_device_holds_is_a_limit_not_a_panic() {
    let (plan, _) = plan(20);
    let Some(mut backend) = open(|options| options.binding_bytes_max = Some(1024)) else {
        return;
    };
    let outcome = backend.load(Arc::clone(&plan), &capacity(8));
    assert!(
        matches!(outcome, Err(BackendError::Limit { .. })),
        "8 rows of 64 floats: {outcome:?}"
    );
    let Some(mut backend) = open(|_| {}) else {
        return;
    };
    load(&mut backend, &plan, 8);
    let outcome = backend.allocate_pool(&[1 << 30]);
    let typed = matches!(
        outcome,
        Err(BackendError::Limit { .. } | BackendError::OutOfMemory { .. })
    );
    assert!(typed, "1.6 TB of keys: {outcome:?}");
    backend
        .allocate_pool(&[6])
        .expect("a smaller pool still fits");
    run(&mut backend, &batch(&[1], Vec::new())).expect("and the device works");
}

#[test]
fn an_adapter_that_does_not_exist_is_named() {
    let error = block_on(WgpuBackend::open(&WgpuOptions {
        adapter: Some(99),
        ..WgpuOptions::default()
    }))
    .err();
    let message = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("no wgpu adapter 99"), "{message}");
    for report in WgpuBackend::adapters() {
        assert!(
            message.contains(&report.name),
            "{message} lists {}",
            report.name
        );
        let software = report.kind == super::super::DeviceKind::Software;
        assert!(
            !(software && report.chosen),
            "auto never takes a software adapter: {report:?}"
        );
    }
}

#[test]
fn grids_stay_within_the_limit_and_cover_every_workgroup() {
    for workgroups in [1, 2, 65_535, 65_536, 131_071, 10_000_000] {
        let (x, y) = encode::spread(workgroups);
        assert!(x <= 65_535 && y <= 65_535, "{workgroups}");
        assert!(
            u64::from(x) * u64::from(y) >= u64::from(workgroups),
            "{workgroups} are covered by {x} x {y}"
        );
        assert!(
            u64::from(x) * u64::from(y) < u64::from(workgroups) + u64::from(y),
            "{workgroups}: little waste"
        );
    }
}

/// A device so slow that attention of a layer is divided among many dispatches, each in a submission of its own.
#[test]
fn sliced_attention_gives_the_same_bits() {
    let (rows, heads, head_dim) = (40, 4, 16);
    let mut plan = Plan {
        vocab: 4,
        positions_max: 64,
        ..Plan::default()
    };
    plan.kv_groups.push(KvGroup { window: None });
    plan.kv_layers.push(KvLayer {
        group: 0,
        heads: 2,
        head_dim,
        latent: false,
    });
    let [q, out] =
        ["q", "out"].map(|name| plan.buffer(name, Rows::Tokens, heads * head_dim, Storage::F32));
    let attend = AttendPaged {
        q,
        layer: 0,
        query_heads: heads,
        scale: 0.25,
        softcap: None,
        alibi: None,
        sinks: None,
        out,
    };
    plan.body.push(Step::AttendPaged(attend));
    let plan = Arc::new(plan);
    let Some(mut backend) = open(|options| options.class = Some(Class::Discrete)) else {
        return;
    };
    load(&mut backend, &plan, rows);
    let noise = |count: u32| -> Vec<f32> {
        (0..count)
            .map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0)
            .collect()
    };
    for half in [KvHalf::Key, KvHalf::Value] {
        backend
            .write_kv(0, half, &noise(6 * 2 * 16 * head_dim))
            .expect("a whole half");
    }
    let mut inputs = batch(&vec![1; rows as usize], Vec::new());
    inputs.groups[0].block_tables = vec![4, 0, 5];
    let mut outputs = || {
        backend
            .write_buffer(q, &noise(rows * heads * head_dim))
            .expect("a buffer of the plan");
        run(&mut backend, &inputs).expect("a batch within limits");
        let values = block_on(backend.read_buffer(out, rows)).expect("a buffer of the plan");
        let dispatches = backend.dispatches().expect("a batch was submitted");
        let work = Work {
            operations: 1.0,
            bytes: 1.0,
        };
        backend.throttle.note(
            Load { tokens: rows, work },
            std::time::Duration::from_secs(1),
        );
        (values, dispatches)
    };
    let (whole, sliced) = (outputs(), outputs());
    assert_eq!(whole.0, sliced.0);
    assert!(
        whole.0.iter().any(|value| *value != 0.0),
        "attention wrote its rows"
    );
    assert!(
        sliced.1 > whole.1 + 1,
        "{} dispatches, sliced {}",
        whole.1,
        sliced.1
    );
}

/// What [`warm_up::usual_kinds`] and [`warm_up::rare_kinds`] leave out would be compiled while a user waits.
#[test]
fn no_kernel_is_compiled_for_a_request() {
    let plan = Arc::new(crate::model::Model::demo().record(Storage::F32));
    let capacity = Capacity {
        sequences_max: 24,
        samples_max: 32,
        tokens_max: 200,
        ..capacity(200)
    };
    let capacity = Capacity {
        table_entries_max: 24 * 16,
        history_max: 64,
        mask_words_max: 512,
        ..capacity
    };
    let groups = plan.kv_groups.len();
    for (class, deterministic) in [
        (Class::Discrete, false),
        (Class::Discrete, true),
        (Class::Software, false),
    ] {
        let Some(mut backend) = open(|options| options.class = Some(class)) else {
            return;
        };
        let capacity = Capacity {
            deterministic,
            ..capacity.clone()
        };
        backend
            .load(Arc::clone(&plan), &capacity)
            .expect("the plan fits");
        backend
            .allocate_pool(&vec![64; groups])
            .expect("the pool fits");
        let (mut told, mut total) = (0, 0);
        backend
            .compile(&mut |done, all| (told, total) = (told.max(done), all))
            .expect("all kernels compile");
        let compiled = backend.recordings.pipelines.len();
        assert_eq!(
            (told, total as usize),
            (total, compiled),
            "progress counts every kernel"
        );
        for batch in mixed_batches(&plan, &capacity) {
            backend.prepare(&batch).expect("the batch is valid");
            let now = backend.recordings.pipelines.len();
            let rows: Vec<_> = batch.sequences.iter().map(|rows| rows.row_count).collect();
            assert_eq!(
                now, compiled,
                "{class:?}, deterministic {deterministic}: rows {rows:?}"
            );
        }
    }
}

/// Batches of sequences with any numbers of rows, contexts and options.
fn mixed_batches(plan: &Plan, capacity: &Capacity) -> Vec<BatchInputs> {
    let mut state = 7_u32;
    let mut below = move |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % limit
    };
    let mut batches = Vec::new();
    for _ in 0..150 {
        let mut batch = BatchInputs {
            tails: plan.tails.iter().map(|(tail, _)| *tail).collect(),
            ..Default::default()
        };
        let mut group = GroupInputs::default();
        let (sequences, rows_max) = (1 + below(capacity.sequences_max), 1 + below(60));
        for _ in 0..sequences {
            let row_start = batch.token_ids.len() as u32;
            let row_count = (1 + below(rows_max)).min(capacity.tokens_max - row_start);
            if row_count == 0 {
                break;
            }
            let context_len = row_count + below(180);
            batch.token_ids.extend((0..row_count).map(|_| 1));
            batch.positions.extend(context_len - row_count..context_len);
            batch.sequences.push(SequenceRows {
                row_start,
                row_count,
                context_len,
            });
            group.table_starts.push(group.block_tables.len() as u32);
            group
                .block_tables
                .extend((0..context_len.div_ceil(16)).map(|_| NONE));
            group.slot_mapping.extend((0..row_count).map(|_| NONE));
            if below(4) > 0 {
                let mut sample = SampleRow::greedy(batch.logits_rows.len() as u32, context_len);
                sample.draw.temperature = below(2) as f32;
                sample.draw.top_p = [1.0, 0.5][below(2) as usize];
                sample.draw.presence_penalty = below(2) as f32;
                sample.logprob = below(2) > 0;
                batch.logits_rows.push(row_start + row_count - 1);
                batch.samples.push(sample);
            }
        }
        batch.groups = vec![group; plan.kv_groups.len()];
        batches.push(batch);
    }
    batches
}

/// The first start with a model measures, the next takes what the first has kept.
#[test]
fn what_was_measured_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let (plan, _) = plan(20);
    let start = |deterministic: bool| {
        let set = |options: &mut WgpuOptions| {
            (options.class, options.cache_dir) =
                (Some(Class::Discrete), Some(folder.path().into()));
        };
        let mut backend = open(set)?;
        let capacity = Capacity {
            deterministic,
            ..capacity(16)
        };
        backend
            .load(Arc::clone(&plan), &capacity)
            .expect("the plan fits");
        backend.allocate_pool(&[6]).expect("the pool fits");
        block_on(backend.warm_up(&mut |_, _| {})).expect("the device works");
        Some(backend)
    };
    let files = || {
        let files = std::fs::read_dir(folder.path())
            .expect("the folder")
            .map(|file| file.expect("a file").path());
        files
            .filter(|path| path.extension().is_some_and(|name| name == "tuning"))
            .collect::<Vec<_>>()
    };
    let Some(deterministic) = start(true) else {
        return;
    };
    let of = |backend: &WgpuBackend| backend.gpu.profile.tuning;
    assert_eq!((of(&deterministic), files().len()), (Tuning::USUAL, 0));
    let first = start(false).expect("as before");
    let [file] = &files()[..] else {
        panic!("one adapter has one file")
    };
    let written = std::fs::read(file).expect("the file was written");
    let mut second = start(false).expect("as before");
    assert_eq!(of(&first), of(&second));
    assert!(second.recall_tuning(), "nothing is left to measure");
    assert_eq!(
        std::fs::read(file).expect("the file"),
        written,
        "the second start measured nothing"
    );
    std::fs::write(file, b"what another program wrote").expect("the file can be written");
    assert!(!second.recall_tuning(), "a foreign file counts for nothing");
}

/// A layer takes six dispatches for a few sequences: norm and qkv, rotation and store, attention, o, norm with gate, up
/// and activation, down.
#[test]
fn neighbours_share_dispatches() {
    let plan = Arc::new(crate::model::Model::demo().record(Storage::F32));
    let layers = plan.kv_layers.len();
    let Some(mut backend) = open(|options| options.class = Some(Class::Discrete)) else {
        return;
    };
    let capacity = Capacity {
        sequences_max: 16,
        samples_max: 16,
        tokens_max: 16,
        ..capacity(16)
    };
    backend
        .load(Arc::clone(&plan), &capacity)
        .expect("the plan fits");
    backend
        .allocate_pool(&vec![8; plan.kv_groups.len()])
        .expect("the pool fits");
    // Matrices multiply 16 rows: each of four products narrows x, or adds partial sums, or both.
    let most = if backend.gpu.profile.matrices().is_some() {
        14
    } else {
        8
    };
    let mut dispatches = |rows: u32| {
        let batch = warm_up::decoding(&plan, &capacity, rows).expect("the capacity has room");
        backend
            .prepare(&batch)
            .expect("the batch is valid")
            .program
            .len() as usize
    };
    // Around the layers: look-up; gathered rows, norm and head, survey and merge, and pooling with its own norm.
    let around = 8;
    for (rows, each) in [(1, 6), (4, 6), (8, 6), (16, most)] {
        let found = dispatches(rows);
        assert!(
            found <= layers * each + around,
            "{rows} rows: {found} dispatches for {layers} layers"
        );
        assert!(
            found >= layers * each.min(8),
            "{rows} rows: the test counts {found} dispatches for {layers} layers"
        );
    }
}
