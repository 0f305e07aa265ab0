//! Mistakes planted in the text of `cuda/state_scan_chunks.cu` and its headers, each of which the cases of recurrences,
//! or the watch for races, must notice in the emulator.

use folio::backend::BackendError;
use folio::backend::cuda::{CudaBackend, CudaOptions, Watch};
use folio::plan::Storage;
use folio::platform::block_on;
use folio::selftest::{Draws, SelftestOptions, Shapes, run};
use std::fs;
use std::path::Path;

/// What goes wrong, and the replaced texts of the kernel.
type Mistake = (&'static str, &'static [(&'static str, &'static str)]);

const RESULTS: [Mistake; 11] = [
    (
        "products have 8 bits",
        &[("if (i + j < 3)", "if (i + j < 1)")],
    ),
    (
        "a token's own decay counts twice",
        &[("token > lane) kept", "token >= lane) kept")],
    ),
    (
        "outputs see later tokens",
        &[("lane < CHUNK && token < lane ? 0.0f : kept", "kept")],
    ),
    (
        "the inverse has another sign",
        &[("0.0f) - __shfl_sync", "0.0f) + __shfl_sync")],
    ),
    (
        "what is written does not decay",
        &[("decays.kept[(CHUNK - 1) * KEPT + own]", "1.0f")],
    ),
    (
        "the state does not decay",
        &[(
            "const float whole = chunk.whole;",
            "const float whole = 1.0f;",
        )],
    ),
    (
        "rows behind the last decay",
        &[("Gates{1.0f, 0.0f}", "Gates{0.5f, 0.0f}")],
    ),
    (
        "a warp adds its own sums twice",
        &[("shared.exchanges[warp ^ i]", "shared.exchanges[warp]")],
    ),
    (
        "keys are those of the next head too",
        &[("token < tokens && key < params.key_dim", "token < tokens")],
    ),
    (
        "values are of the chunk before",
        &[(
            "params, place, row + CHUNK, tokens",
            "params, place, row, tokens",
        )],
    ),
    (
        "the last columns are left out",
        &[(
            "{column < params.value_dim,",
            "{column < params.value_dim - 8,",
        )],
    ),
];

const RACES: [Mistake; 3] = [
    (
        "rows are overwritten",
        &[("constexpr u32 STAGES = 3;", "constexpr u32 STAGES = 2;")],
    ),
    (
        "the last copies are not awaited",
        &[("copy_async_wait<0>", "copy_async_wait<1>")],
    ),
    (
        "gates are overwritten",
        &[
            ("shared.decays[next % 2]", "shared.decays[0]"),
            ("shared.decays[last % 2]", "shared.decays[0]"),
        ],
    ),
];

/// The kernel and the headers that are its own.
const FILES: [&str; 3] = [
    "state_scan_chunks.cu",
    "common/state_chunk.cuh",
    "common/parts.cuh",
];

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("the folder can be made");
    for entry in fs::read_dir(from)
        .expect("it is a folder")
        .map(|entry| entry.expect("an entry").path())
    {
        let to = to.join(entry.file_name().expect("it has a name"));
        if entry.is_dir() {
            copy(&entry, &to);
        } else {
            fs::copy(&entry, &to).expect("the file is copied");
        }
    }
}

/// Whether the cases of recurrences pass with a mistake; `None` without a compiler.
fn passes(mistake: &Mistake, storage: Storage, watch: Watch) -> Option<bool> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    copy(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda"),
        folder.path(),
    );
    let files = FILES.map(|name| folder.path().join(name));
    let mut texts = files
        .each_ref()
        .map(|file| fs::read_to_string(file).expect("the file is there"));
    for (right, wrong) in mistake.1 {
        let count: usize = texts.iter().map(|text| text.matches(right).count()).sum();
        assert_eq!(count, 1, "{}: {right}", mistake.0);
        texts = texts.map(|text| text.replace(right, wrong));
    }
    for (file, text) in files.iter().zip(texts) {
        fs::write(file, text).expect("the file can be written");
    }
    let options = CudaOptions {
        activations: storage,
        ..CudaOptions::default()
    };
    let mut device = match CudaBackend::emulated(folder.path(), (8, 0), &options, watch) {
        Ok(device) => device,
        Err(BackendError::Unavailable(fault)) => {
            let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
            assert!(!required, "FOLIO_REQUIRE_GPU=1, but {fault}");
            println!("SKIPPED: {fault}");
            return None;
        }
        Err(fault) => panic!("{fault}"),
    };
    let filter = Some(format!("state_scan/{storage:?}, delta rule 1/4 × 1 heads"));
    let options = SelftestOptions {
        filter,
        shapes: Shapes::All,
        draws: Draws::Few,
        ..SelftestOptions::default()
    };
    // A race ends the launch with an error.
    let report = block_on(run(&mut device, &options));
    println!("{}: {report:?}", mistake.0);
    Some(report.is_ok_and(|report| report.passed()))
}

#[test]
fn wrong_results_of_chunks_are_noticed() {
    let right: Mistake = ("no mistake", &[]);
    let Some(right) = passes(&right, Storage::F32, Watch::Results) else {
        return;
    };
    assert!(right);
    for mistake in &RESULTS {
        assert_eq!(
            passes(mistake, Storage::F32, Watch::Results),
            Some(false),
            "{}",
            mistake.0
        );
    }
}

#[test]
fn races_of_chunks_are_noticed() {
    for mistake in &RACES {
        let Some(found) = passes(mistake, Storage::Bf16, Watch::Races) else {
            return;
        };
        assert!(!found, "{}", mistake.0);
    }
}
