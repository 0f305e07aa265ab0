//! Tests of `backend/cuda/encode/attend_paged/wgmma.rs`.

use super::super::super::super::emulator::{Emulator, Watch};
use super::*;
use std::path::{Path, PathBuf};

#[test]
fn products_of_warpgroups_are_for_hopper() {
    assert!(is_possible((9, 0), "sm_90a", None) && is_possible((9, 0), "sm_90a", Some("1")));
    assert!(
        !is_possible((9, 0), "compute_89", None),
        "code of an old compiler"
    );
    assert!(!is_possible((10, 0), "sm_100a", None) && !is_possible((9, 0), "sm_90a", Some("0")));
}

/// The repository's `cuda/` with a change to one file, in a temporary folder.
fn changed(folder: &Path, file: &str, (from, to): (&str, &str)) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    for part in ["", "common", "emulator"] {
        std::fs::create_dir_all(folder.join(part)).expect("the folder is writable");
        for entry in std::fs::read_dir(sources.join(part))
            .expect("the sources are there")
            .flatten()
        {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), folder.join(part).join(entry.file_name()))
                    .expect("the folder has room for a copy");
            }
        }
    }
    let text = std::fs::read_to_string(folder.join(file)).expect("the file is there");
    assert!(text.contains(from), "{file} has {from}");
    std::fs::write(folder.join(file), text.replace(from, to)).expect("the folder is writable");
    folder.to_owned()
}

fn outcome(sources: &Path, head: (u32, Storage)) -> Option<Result<(), BackendError>> {
    let mut emulator = match Emulator::open(sources, (9, 0), Watch::Results) {
        Ok(emulator) => emulator,
        Err(missing) => {
            assert!(std::env::var_os("FOLIO_REQUIRE_GPU").is_none(), "{missing}");
            println!("SKIPPED: {missing}");
            return None;
        }
    };
    Some(check(&mut emulator, &mut Modules::new(None), head))
}

#[test]
fn the_check_passes() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    for head in [
        (64, Storage::Bf16),
        (128, Storage::Bf16),
        (128, Storage::F32),
    ] {
        let Some(outcome) = outcome(&sources, head) else {
            return;
        };
        assert!(outcome.is_ok(), "{head:?}: {outcome:?}");
    }
}

#[test]
fn the_check_notices_a_kernel_that_is_wrong_or_does_not_compile() {
    let kernel = "attend_paged_wgmma.cu";
    for (change, message) in [
        (
            (
                "KEYS_PANEL + column), step > 0",
                "KEYS_PANEL + column), step > 1",
            ),
            "results differ",
        ),
        (
            (
                "u64 b = describe_panels(values, KEYS_PANEL)",
                "u64 b = describe_panels(values, 1024)",
            ),
            "results differ",
        ),
        (("products_wait<1>();", ""), "results differ"),
        (("#pragma unroll", "#error"), "#error"),
    ] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let sources = changed(folder.path(), kernel, change);
        let Some(outcome) = outcome(&sources, (128, Storage::Bf16)) else {
            return;
        };
        let Err(fault) = outcome else {
            panic!("{change:?} was not noticed")
        };
        let fault = fault.to_string();
        assert!(
            fault.contains(message) && fault.contains("attend_paged_wgmma"),
            "{fault}"
        );
    }
}
