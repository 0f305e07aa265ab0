//! Tests of `backend/cuda/encode/mod.rs`.

use super::*;
use crate::plan::inputs::{SampleRow, SequenceRows};

#[test]
fn buckets_hold_their_rows_and_grow_with_them() {
    for bucket in [decode_bucket, mixed_bucket] {
        let sizes: Vec<u32> = (0..=4096).map(bucket).collect();
        assert!(sizes.is_sorted() && (0..).zip(&sizes).all(|(rows, size)| rows <= *size));
        assert!(
            (1..)
                .zip(&sizes[1..])
                .all(|(rows, size)| bucket(*size) == *size && *size <= 16.max(2 * rows))
        );
    }
    let mut sizes: Vec<u32> = (1..=256).map(decode_bucket).collect();
    sizes.dedup();
    assert_eq!(
        sizes.len(),
        4 + 7 + 12,
        "graphs up to 256 sequences: {sizes:?}"
    );
}

fn capacity() -> Capacity {
    Capacity {
        tokens_max: 100,
        sequences_max: 20,
        samples_max: 20,
        feed_slots: 40,
        state_slots: 0,
        table_entries_max: 100,
        history_max: 1,
        bias_max: 1,
        mask_words_max: 1,
        copies_max: 1,
        block_size: 16,
        kv_format: crate::plan::KvFormat::F16,
        deterministic: false,
    }
}

fn batch(row_counts: &[u32], samples: u32) -> BatchInputs {
    let tokens: u32 = row_counts.iter().sum();
    BatchInputs {
        token_ids: vec![0; tokens as usize],
        sequences: row_counts
            .iter()
            .map(|&row_count| SequenceRows {
                row_start: 0,
                row_count,
                context_len: 9,
            })
            .collect(),
        logits_rows: (0..samples).collect(),
        samples: (0..samples).map(|row| SampleRow::greedy(row, 9)).collect(),
        tails: vec![Tail::Sample],
        ..BatchInputs::default()
    }
}

/// A shape holds its batch and stays within the capacity; batches that differ only in contents share it.
#[test]
fn batches_fall_into_shapes() {
    let shape = |row_counts: &[u32], samples| {
        BatchShape::of(&Plan::default(), &batch(row_counts, samples), &capacity())
    };
    let decode = shape(&[1; 5], 5);
    assert_eq!(
        (
            decode.tokens,
            decode.sequences,
            decode.samples,
            decode.decode
        ),
        (8, 8, 8, true)
    );
    assert_eq!(decode, shape(&[1; 7], 7));
    let most = shape(&[1; 19], 19);
    assert_eq!(
        (most.tokens, most.samples),
        (24, 20),
        "no more rows than were allocated"
    );
    let mixed = shape(&[1, 1, 90], 3);
    assert_eq!((mixed.tokens, mixed.samples, mixed.decode), (96, 4, false));
    let prefill = shape(&[97], 0);
    assert_eq!(
        (prefill.tokens, prefill.samples, prefill.logits_rows),
        (100, 0, 0)
    );
    for usual in BatchShape::usual(&Plan::default(), &capacity()) {
        assert!(
            usual.tokens <= 100 && usual.samples <= 20 && usual.sequences <= 20,
            "{usual:?}"
        );
    }
    assert!(
        BatchShape::usual(&Plan::default(), &capacity()).contains(&decode),
        "usual batches are recorded at start"
    );
}

/// Two drafts of one sequence, around the end of a block, and rows that share only blocks that are full.
#[test]
fn drafts_are_not_apart_and_rows_with_a_shared_prefix_are() {
    let batch = |contexts: &[u32], tables: &[u32], starts: &[u32], slots: &[u32]| {
        let row = |(row_start, &context_len)| SequenceRows {
            row_start,
            row_count: 1,
            context_len,
        };
        let (block_tables, table_starts, slot_mapping) =
            (tables.into(), starts.into(), slots.into());
        let group = GroupInputs {
            block_tables,
            table_starts,
            slot_mapping,
            copies: Vec::new(),
        };
        let sequences = (0..).zip(contexts).map(row).collect();
        BatchInputs {
            token_ids: vec![0; contexts.len()],
            sequences,
            groups: vec![group],
            ..BatchInputs::default()
        }
    };
    let is_apart =
        |inputs: &BatchInputs| BatchShape::of(&Plan::default(), inputs, &capacity()).apart;
    assert!(is_apart(&batch(
        &[17, 20],
        &[4, 5, 4, 6],
        &[0, 2],
        &[80, 99]
    )));
    assert!(
        !is_apart(&batch(&[17, 18], &[4, 5, 4, 5], &[0, 2], &[80, 81])),
        "in one block"
    );
    assert!(
        !is_apart(&batch(&[16, 17], &[4, 4, 5], &[0, 1], &[79, 80])),
        "across two"
    );
    assert!(
        is_apart(&batch(&[16, 17], &[4, 4, 5], &[0, 1], &[NONE, 80])),
        "the first is stored already"
    );
    let mut chunk = batch(&[17, 20], &[4, 5, 4, 6], &[0, 2], &[80, 99]);
    chunk.sequences[0].row_count = 2;
    assert!(!is_apart(&chunk), "no decode batch");
}

/// The kernels of one layer of the demo model, for some sequences.
#[cfg(unix)]
fn layer_kernels(sequences: u32, apart: bool) -> Option<Vec<String>> {
    use crate::backend::Backend as _;
    use crate::backend::cuda::arena::SideBytes;
    use crate::backend::cuda::driver::Driver as _;
    use crate::backend::cuda::emulator::{Emulator, Watch};
    use crate::backend::cuda::{CudaBackend, CudaOptions};
    use crate::backend::layout::{Layout, PoolLayout};
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let mut driver = Emulator::open(&sources, (9, 0), Watch::Results).ok()?;
    let device = Facts {
        sm_count: 132,
        ..driver.facts().clone()
    };
    let backend =
        CudaBackend::emulated(&sources, (9, 0), &CudaOptions::default(), Watch::Results).ok()?;
    let caps = backend.caps();
    let (plan, capacity) = (
        crate::model::Model::demo().record(Storage::Bf16),
        capacity(),
    );
    let side = SideBytes::new(&plan, &capacity, &device);
    let layout = Layout::checked(&plan, &capacity, caps).expect("the demo model is small");
    let mut arena = Arena::new(&mut driver, &plan, &layout, &side).expect("there is memory");
    let blocks = vec![8; plan.kv_groups.len()];
    let layout = PoolLayout::checked(&plan, &capacity, caps, &blocks).expect("a small pool");
    arena
        .allocate_pool(&mut driver, &layout, &blocks)
        .expect("there is memory");
    let mut modules = Modules::new(None);
    let subject = Subject {
        plan: &plan,
        capacity: &capacity,
        arena: &arena,
        device: &device,
    };
    let usual = BatchShape::usual(&plan, &capacity)
        .into_iter()
        .find(|shape| shape.decode)?;
    let (tokens, logits_rows, samples) = (sequences, sequences, sequences);
    let shape = BatchShape {
        tokens,
        sequences,
        logits_rows,
        samples,
        apart,
        ..usual
    };
    record(&mut modules, subject, &shape).expect("it is recorded");
    modules.pretend();
    let commands = record(&mut modules, subject, &shape).expect("it is recorded");
    arena.free(&mut driver);
    let name = |command: &Command| match command {
        Command::Kernel(launch) => modules.kernel(launch.function).stem.to_owned(),
        Command::Product(_) => "product".to_owned(),
    };
    let names: Vec<String> = commands.iter().map(name).collect();
    let attentions: Vec<usize> = (0..names.len())
        .filter(|at| names[*at].starts_with("attend"))
        .collect();
    // From one attention to the next are the kernels of one layer.
    Some(names[attentions[0]..attentions[1]].to_vec())
}

#[cfg(unix)]
#[test]
fn a_layer_of_a_decode_batch_is_few_kernels() {
    let Some(few) = layer_kernels(1, true) else {
        return;
    };
    let [attend, vec] = ["attend_paged_decode", "matmul_vec"];
    assert_eq!(
        few,
        [attend, vec, vec, vec, vec],
        "output; norm, gate, up, activation; down; norm, qkv"
    );
    let drafts = layer_kernels(1, false).expect("there is a compiler");
    assert_eq!(drafts, [attend, vec, vec, vec, vec, "rope_store_kv"]);
    let sixteen = layer_kernels(16, true).expect("there is a compiler");
    let [product, norm, gated] = ["product", "rms_norm", "gated_activation"];
    assert_eq!(
        sixteen,
        [
            attend, product, norm, product, gated, product, norm, product
        ]
    );
}
