//! The CUDA kernels with other versions of NVRTC than the one on this machine: all compile, and none spills a register.
//!
//! `FOLIO_NVRTC_VERSIONS` lists folders that hold one each, as in `PATH`. `.ci/nvrtc` installs them, and makes a table
//! of what is written to the folder `FOLIO_NVRTC_KEPT`: a file for each version, architecture and part of the kernels,
//! from which the next run knows what need not be compiled again. `FOLIO_NVRTC_ARCHITECTURES` selects architectures.
//! `FOLIO_NVRTC_TIGHTEST` is how many variants of each kernel are compiled: those with the most registers.

use folio::backend::cuda::{Auditor, CudaBackend, Footprint};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// NVRTC 12.5 alone makes products of warpgroups wait for each other in this kernel, which is right but slower.
const SLOWER: &str = "NVRTC 12.5: failed kernel attend_paged_wgmma(HEAD_DIM=128, Q_TYPE=u16, OUT_TYPE=u16) for sm_90a \
                      could not be built: ptxas info    : (C7517) warpgroup.wait is injected";

/// Compiles the kernels of a part that were compiled for `usual`, with each version and for each of the architectures
/// that it knows.
pub(crate) fn audit(device: &CudaBackend, part: &str, architectures: &[&str], usual: &[Footprint]) {
    let Some(folders) = std::env::var_os("FOLIO_NVRTC_VERSIONS") else {
        return;
    };
    let kept = std::env::var_os("FOLIO_NVRTC_KEPT").map(PathBuf::from);
    let chosen = std::env::var("FOLIO_NVRTC_ARCHITECTURES").ok();
    let is_chosen = |name: &str| {
        chosen
            .as_ref()
            .is_none_or(|names| names.split(' ').any(|chosen| chosen == name))
    };
    let tightest = std::env::var("FOLIO_NVRTC_TIGHTEST")
        .ok()
        .map(|count| count.parse().expect("a number of variants"));
    let mut faults = Vec::new();
    for folder in std::env::split_paths(&folders) {
        let auditor = Auditor::of(&folder).unwrap_or_else(|fault| panic!("{fault}"));
        let (major, minor) = auditor.version();
        for architecture in architectures
            .iter()
            .filter(|name| is_chosen(name) && auditor.knows(name))
        {
            let names = selected(usual, architecture, tightest);
            if names.is_empty() {
                continue;
            }
            let file = kept
                .as_ref()
                .map(|kept| kept.join(format!("{major}.{minor} {architecture} {part}")));
            let known = file.as_deref().map(known).unwrap_or_default();
            let found = device.audit(
                &auditor,
                &[architecture],
                |kernel, _| names.contains(kernel),
                &known,
            );
            let lines: Vec<String> = found.iter().map(|found| line(found.as_ref())).collect();
            if let Some(file) = file {
                fs::write(file, lines.concat()).expect("the file can be written");
            }
            println!(
                "NVRTC {major}.{minor} for {architecture}: {} kernels",
                lines.len()
            );
            let is_fault = |line: &&String| !line.contains(" 0 bytes of spills, 0 bytes of stack");
            let named = lines
                .iter()
                .filter(is_fault)
                .map(|line| format!("NVRTC {major}.{minor}: {line}"));
            faults.extend(named.filter(|fault| !fault.starts_with(SLOWER)));
        }
    }
    assert!(
        faults.is_empty(),
        "{} kernels do not compile, or spill:\n{}",
        faults.len(),
        faults.concat()
    );
}

/// Names of the kernels to compile for an architecture: all, or the `tightest` of each stem.
fn selected<'a>(
    usual: &'a [Footprint],
    architecture: &str,
    tightest: Option<usize>,
) -> BTreeSet<&'a str> {
    let mut stems: BTreeMap<&str, Vec<&Footprint>> = BTreeMap::new();
    for found in usual
        .iter()
        .filter(|found| found.architecture == architecture)
    {
        stems
            .entry(found.kernel.split('(').next().unwrap_or_default())
            .or_default()
            .push(found);
    }
    for variants in stems.values_mut() {
        variants.sort_by_key(|found| (Reverse(found.registers), &found.kernel));
        variants.truncate(tightest.unwrap_or(usize::MAX));
    }
    stems
        .into_values()
        .flatten()
        .map(|found| found.kernel.as_str())
        .collect()
}

/// What is kept of a kernel: its key, registers and bytes of spills, and all of it for readers.
fn line(found: Result<&Footprint, &folio::backend::BackendError>) -> String {
    match found {
        Ok(found) => format!(
            "{:016x} {} {} {found:?}\n",
            found.key, found.registers, found.spill_bytes
        ),
        Err(fault) => format!("failed {}\n", fault.to_string().replace('\n', " ")),
    }
}

/// Registers of the kernels in a file of lines that neither spilled nor used a stack, by their keys.
fn known(file: &Path) -> BTreeMap<u64, u32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let fine = text
        .lines()
        .filter(|line| line.contains(" 0 bytes of spills, 0 bytes of stack"));
    let numbers = fine.filter_map(|line| {
        let mut words = line.split(' ');
        Some((
            u64::from_str_radix(words.next()?, 16).ok()?,
            words.next()?.parse().ok()?,
        ))
    });
    numbers.collect()
}

#[test]
fn a_kernel_that_neither_spilled_nor_failed_is_known_the_next_time() {
    let found = |key, registers, spill_bytes| Footprint {
        kernel: format!("scan(N={key})"),
        architecture: "sm_80".into(),
        registers,
        spill_bytes,
        stack_bytes: 0,
        key,
        compiler: (12, 0),
        image: Vec::new(),
    };
    let all = [found(1, 40, 0), found(2, 255, 8), found(3, 90, 0)];
    let fault = folio::backend::BackendError::Validation("no\nsuch option".into());
    let lines = all
        .iter()
        .map(|found| line(Ok(found)))
        .chain([line(Err(&fault))]);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), lines.collect::<String>()).expect("the file is writable");
    assert_eq!(known(file.path()), BTreeMap::from([(1, 40), (3, 90)]));
    assert_eq!(
        selected(&all, "sm_80", Some(2)),
        BTreeSet::from(["scan(N=2)", "scan(N=3)"])
    );
    assert!(selected(&all, "sm_90a", None).is_empty());
}
