//! The CUDA backend without a GPU: its kernels run in an emulator, thread by thread, against the CPU reference.
//!
//! Needs a C++ compiler. Without one, the tests are skipped with a message, or fail under `FOLIO_REQUIRE_GPU=1`.

use crate::emulator::{emulated, opened};
use crate::sass::{self, Iteration};
use crate::versions;
use folio::backend::Backend;
use folio::backend::cuda::{Auditor, CudaBackend, Footprint, Watch, metadata_constants};
use folio::backend::metadata::TABLE;
use folio::backend::reference::ReferenceBackend;
use folio::config::Config;
use folio::engine::request::{DrawParams, Event, Request, SamplingParams};
use folio::engine::{Engine, handle};
use folio::model::Model;
use folio::plan::Storage;
use folio::platform::block_on;
use folio::selftest::{Draws, SelftestOptions, Shapes, run};
use futures_util::StreamExt as _;
use futures_util::future::{join, join_all};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Tokens per answer: few, because the emulator runs each thread as a fiber, which is slow.
const TOKENS: u32 = 3;

/// The answers of an engine to a few prompts, some of which share a prefix.
fn answers<B: Backend>(backend: B, config: &Config) -> Vec<Vec<u32>> {
    let (handle, inbox) = handle::channel(16);
    let engine = block_on(Engine::start(backend, Model::demo(), config, inbox, |_| {}))
        .expect("the demo model starts");
    let shared: Vec<u32> = (0..37).map(|i| 11 + i * 7 % 400).collect();
    let prompts = [
        shared[..3].to_vec(),
        shared.clone(),
        [&shared[..32], &[5, 6]].concat(),
    ];
    let submit = |prompt: &Vec<u32>| {
        let params = SamplingParams {
            max_tokens: Some(TOKENS),
            draw: DrawParams::greedy(),
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let request = Request {
            prompt: prompt.clone().into(),
            params,
            ..Request::default()
        };
        handle
            .submit(request)
            .expect("the request is accepted")
            .remove(0)
    };
    // Two rounds: the second finds the blocks of the first. One client disconnects.
    let receivers: Vec<_> = prompts.iter().chain(&prompts).map(submit).collect();
    drop(submit(&prompts[1]));
    handle.drain();
    let tokens = receivers.into_iter().map(|mut events| async move {
        let mut tokens = Vec::new();
        while let Some(event) = events.next().await {
            match event {
                Event::Token(token) => tokens.push(token.id),
                Event::Finished { .. } | Event::Prompt(_) => {}
                Event::Failed(error) => panic!("{error}"),
            }
        }
        tokens
    });
    let (end, tokens) = block_on(join(engine.run(), join_all(tokens)));
    end.expect("the engine ends without an error");
    tokens
}

/// The whole engine: chunks, batches, graphs, feed slots, two steps in flight, shared blocks; with and without the
/// prefix cache.
#[test]
fn the_engine_answers_as_on_the_cpu() {
    let config = |prefix_caching| Config {
        max_model_len: Some(96),
        max_num_seqs: 4,
        max_num_batched_tokens: 36,
        kv_cache_bytes: Some(4 << 20),
        prefix_caching,
        ..Config::default()
    };
    for prefix_caching in [true, false] {
        let Some(device) = emulated(Storage::F32, (8, 0)) else {
            return;
        };
        let expected = answers(ReferenceBackend::new(), &config(prefix_caching));
        assert!(
            expected
                .iter()
                .all(|tokens| tokens.len() == TOKENS as usize),
            "{expected:?}"
        );
        assert_eq!(
            answers(device, &config(prefix_caching)),
            expected,
            "prefix caching: {prefix_caching}"
        );
    }
}

/// The constants in the kernels' headers equal those with which Rust writes the metadata.
#[test]
fn kernels_know_the_metadata_by_the_numbers_that_rust_writes_it_with() {
    if emulated(Storage::F32, (8, 0)).is_none() {
        return;
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let read = metadata_constants(&sources).unwrap_or_else(|error| panic!("{error}"));
    let expected: Vec<_> = TABLE
        .iter()
        .map(|(name, value)| ((*name).to_owned(), *value))
        .collect();
    assert_eq!(read, expected);
}

/// Kernels over f32 rows, which run only to compare devices. They are compiled for one architecture.
fn is_for_comparison(kernel: &str) -> bool {
    let rows = kernel.contains("X_TYPE=float")
        && !kernel.contains("NORM=1")
        && !kernel.starts_with("rms_norm");
    rows || kernel.starts_with("attend_paged_vec") && kernel.contains("Q_TYPE=float")
}

/// Ampere, Hopper, and both kinds of Blackwell.
const ARCHITECTURES: [&str; 4] = ["sm_80", "sm_90a", "sm_100a", "sm_120"];

/// Attention kernels with separate tile shapes for newer devices.
fn is_tiled_attention(kernel: &str) -> bool {
    kernel.starts_with("attend_paged_decode") || kernel.starts_with("attend_paged_pre")
}

// Runs every step in the emulator, in parts, then compiles every kernel used with NVIDIA's compiler.

#[test]
fn matrix_products_are_the_reference_and_compile() {
    let Some(mut device) = emulated(Storage::Bf16, (8, 0)) else {
        return;
    };
    checked(&mut device, "matmul/");
    compiled(&device, "matmul", is_wanted);
}

#[test]
fn products_of_experts_are_the_reference_and_compile() {
    let Some(mut device) = emulated(Storage::Bf16, (8, 0)) else {
        return;
    };
    checked(&mut device, "matmul_experts/");
    compiled(&device, "experts", is_wanted);
}

#[test]
fn attention_is_the_reference_and_compiles() {
    let Some(mut ampere) = emulated(Storage::Bf16, (8, 0)) else {
        return;
    };
    checked(&mut ampere, "attend_paged");
    compiled(&ampere, "attention", |kernel, architecture| {
        let newer = ["sm_100a", "sm_120"].contains(&architecture);
        is_wanted(kernel, architecture) && !(newer && is_tiled_attention(kernel))
    });
    let Some(mut hopper) = emulated(Storage::Bf16, (9, 0)) else {
        return;
    };
    checked(&mut hopper, "attend_paged/Bf16, kv F16");
    compiled(&hopper, "attention-hopper", |kernel, architecture| {
        architecture == "sm_90a" && kernel.starts_with("attend_paged_wgmma")
    });
    let Some(mut blackwell) = emulated(Storage::Bf16, (12, 0)) else {
        return;
    };
    checked(&mut blackwell, "attend_paged/Bf16");
    compiled(&blackwell, "attention-blackwell", |kernel, architecture| {
        ["sm_100a", "sm_120"].contains(&architecture) && is_tiled_attention(kernel)
    });
}

#[test]
fn all_other_steps_are_the_reference_and_compile() {
    let Some(mut device) = emulated(Storage::Bf16, (8, 0)) else {
        return;
    };
    checked(&mut device, "!matmul/|matmul_experts/|attend_paged");
    compiled(&device, "others", is_wanted);
}

/// Every kernel, with one awkward shape of each step and option: no two accesses to a byte, one of them a write, are
/// left without an order. (`planted` shows which races are found.)
#[test]
fn kernels_order_their_accesses_to_memory() {
    let Some(mut device) = opened(Storage::Bf16, (8, 0), Watch::Races) else {
        return;
    };
    let filter = std::env::var("FOLIO_KERNELS_FILTER").ok();
    let options = SelftestOptions {
        filter,
        shapes: Shapes::One,
        draws: Draws::Few,
        ..SelftestOptions::default()
    };
    let report = block_on(run(&mut device, &options)).expect("the device survives");
    println!("{report}");
    assert!(report.passed(), "{report}");
}

/// The same for products of warpgroups, with all shapes of their kernel.
#[test]
fn products_of_warpgroups_order_their_accesses_to_memory() {
    let Some(mut device) = opened(Storage::Bf16, (9, 0), Watch::Races) else {
        return;
    };
    checked(
        &mut device,
        "attend_paged/Bf16, kv F16, long|attend_paged/Bf16, kv F16, window 100, long",
    );
}

/// Whether a kernel is compiled for an architecture: comparison kernels only for one of them.
fn is_wanted(kernel: &str, architecture: &str) -> bool {
    architecture == ARCHITECTURES[0] || !is_for_comparison(kernel)
}

/// Compiles the kernels that a device has loaded. No kernel may spill registers. A kernel whose source, options and
/// compiler are those of an earlier run is not compiled again, but for a sample. `FOLIO_REFRESH=1` writes what was
/// found.
fn compiled(device: &CudaBackend, part: &str, wanted: impl Fn(&str, &str) -> bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/cuda/{part}.txt"));
    let refresh = std::env::var("FOLIO_REFRESH").is_ok_and(|value| value == "1");
    let earlier = fs::read_to_string(&path).expect("the file is there");
    let lines = earlier
        .lines()
        .map(|line| known_line(line).expect("a key and numbers"));
    let (mut known, mut turns) = (BTreeMap::new(), BTreeMap::new());
    for (key, registers, turn) in lines {
        known.insert(key, registers);
        turns.extend(turn.map(|turn| (key, turn)));
    }
    let auditor = match Auditor::find() {
        Ok(auditor) => auditor,
        Err(fault) => {
            let required = std::env::var("FOLIO_REQUIRE_NVRTC").is_ok_and(|value| value == "1");
            assert!(!required, "FOLIO_REQUIRE_NVRTC=1, but {fault}");
            println!("SKIPPED: {fault}, so no kernel was compiled for a GPU");
            return;
        }
    };
    let footprints = device
        .audit(&auditor, &ARCHITECTURES, wanted, &known)
        .into_iter();
    let footprints: Result<Vec<_>, _> = footprints.collect();
    let footprints = footprints.unwrap_or_else(|fault| panic!("{fault}"));
    let most = footprints.iter().max_by_key(|found| found.registers);
    let fresh = footprints
        .iter()
        .filter(|found| !known.contains_key(&found.key))
        .count();
    println!(
        "{} kernels, {fresh} of them new; most registers: {most:?}",
        footprints.len()
    );
    assert!(
        !footprints.is_empty() || std::env::var("FOLIO_KERNELS_FILTER").is_ok(),
        "a kernel was compiled"
    );
    let spilling: Vec<_> = footprints
        .iter()
        .filter(|found| found.spill_bytes + found.stack_bytes > 0)
        .collect();
    assert!(
        spilling.is_empty(),
        "{} kernels spill: {spilling:#?}",
        spilling.len()
    );
    let others: Vec<_> = footprints
        .iter()
        .filter(|f| known.get(&f.key).is_some_and(|&n| n != f.registers))
        .collect();
    assert!(
        others.is_empty(),
        "{} is wrong: {others:#?}",
        path.display()
    );
    sass::expect_waits(part, &footprints);
    versions::audit(device, part, &ARCHITECTURES, &footprints);
    let Some(turns) = sass::turns(device, &auditor, part, &footprints, &turns) else {
        return;
    };
    if std::env::var("FOLIO_KERNELS_FILTER").is_err() {
        sass::compare(part, &footprints, &turns, refresh);
    }
    if refresh {
        let line = |found: &Footprint| {
            let turn = turns
                .get(&found.key)
                .map(|turn| format!(" {turn}"))
                .unwrap_or_default();
            format!("{:016x} {}{turn}\n", found.key, found.registers)
        };
        let lines: BTreeSet<String> = footprints.iter().map(line).collect();
        fs::write(&path, lines.into_iter().collect::<String>()).expect("the file can be written");
    }
}

/// What a line of such a file says: the key of a kernel, its registers and, if it is in the table, its inner loop.
fn known_line(line: &str) -> Option<(u64, u32, Option<Iteration>)> {
    let (key, rest) = line.split_once(' ')?;
    let (registers, turn) = rest.split_once(' ').unwrap_or((rest, ""));
    let turn = if turn.is_empty() {
        None
    } else {
        Some(turn.parse().ok()?)
    };
    Some((
        u64::from_str_radix(key, 16).ok()?,
        registers.parse().ok()?,
        turn,
    ))
}

/// Compares a device with the reference, for one part of the steps or those that match `FOLIO_KERNELS_FILTER`.
fn checked(device: &mut CudaBackend, part: &str) {
    let filter = Some(std::env::var("FOLIO_KERNELS_FILTER").unwrap_or_else(|_| part.into()));
    let options = SelftestOptions {
        filter,
        draws: Draws::Few,
        ..SelftestOptions::default()
    };
    let report = block_on(run(device, &options)).expect("the device survives");
    println!("{report}");
    assert!(report.passed(), "{report}");
    // Rows of products are called `step/storage · format, options`.
    for row in report
        .rows
        .iter()
        .filter_map(|row| row.name.split_once('/'))
    {
        if let (step, Some((_, format))) = (row.0, row.1.split_once("· ")) {
            crate::support::ran(
                "formats",
                format.split([',', ' ']).next().unwrap_or(format),
                step,
                "cuda",
            );
        }
    }
}
