//! Every kernel of every device against the CPU reference. `shaders`: static checks of the WGSL kernels, without a
//! device; `cuda`: the CUDA kernels, emulated on the CPU.
//!
//! Devices are all adapters that wgpu finds, including software ones. Without an adapter, the test is skipped with a
//! message, or fails under `FOLIO_REQUIRE_GPU=1`. Each adapter is opened with several configurations, which share the
//! cases: each case runs at least once, and each configuration runs every option, component of a weight format and
//! size of every step.
//! `FOLIO_KERNELS_FULL=1` runs every case with every configuration, and draws 10⁵ tokens: `.ci/nightly` does so. The
//! other tests need no device: they check the reference against itself, and the comparison against mutants.
//!
//! `FOLIO_KERNELS_BRIEF=1` runs one shape of each step and option: for emulated processors, which are slow, and for
//! further widths of subgroups. `FOLIO_KERNELS_FILTER` selects cases by name.

mod chunks;
#[cfg(all(feature = "cuda", unix))]
mod cuda;
#[cfg(all(feature = "cuda", unix))]
#[path = "../support/cuda.rs"]
mod emulator;
#[cfg(all(feature = "cuda", unix))]
mod planted;
#[cfg(all(feature = "cuda", unix))]
mod sass;
#[cfg(all(feature = "cuda", unix))]
mod scan_mistakes;
mod shaders;
#[path = "../support/mod.rs"]
mod support;
#[cfg(all(feature = "cuda", unix))]
mod versions;

use folio::backend::cpu::{CpuBackend, CpuOptions, Level};
use folio::backend::reference::ReferenceBackend;
use folio::backend::wgpu::{Class, Int8Activations, Tier, WgpuBackend, WgpuOptions};
use folio::backend::{Backend as _, Inspect};
use folio::plan::Storage;
use folio::platform::block_on;
use folio::selftest::{
    Draws, Report, SelftestOptions, Shapes, blind_spots, cover_gaps, run, run_all,
};

fn check(backend: &str, device: &mut impl Inspect, options: &SelftestOptions) {
    expect_passed(
        backend,
        block_on(run(device, options)).expect("the device survives the check"),
    );
}

/// Asserts that everything passed, and records which formats ran.
fn expect_passed(backend: &str, report: Report) {
    println!("{report}");
    assert!(report.passed(), "{report}");
    // Rows of products are called `step/storage · format, options`.
    for row in report.rows {
        if let Some((step, Some((_, format)))) = row
            .name
            .split_once('/')
            .map(|(step, rest)| (step, rest.split_once("· ")))
        {
            let format = format.split([',', ' ']).next().unwrap_or(format);
            support::ran("formats", format, step, backend);
        }
    }
}

/// The checks that the environment asks for.
fn options() -> SelftestOptions {
    let is_on = |name| std::env::var(name).is_ok_and(|value| value == "1");
    let (brief, full) = (is_on("FOLIO_KERNELS_BRIEF"), is_on("FOLIO_KERNELS_FULL"));
    let (shapes, draws) = match (brief, full) {
        (true, _) => (Shapes::One, Draws::Few),
        (false, true) => (Shapes::All, Draws::Many),
        (false, false) => (Shapes::All, Draws::Usual),
    };
    let filter = std::env::var("FOLIO_KERNELS_FILTER").ok();
    SelftestOptions {
        filter,
        shapes,
        draws,
        product: full,
        ..SelftestOptions::default()
    }
}

/// The reference agrees with itself for every storage type, regardless of the machine's load.
#[test]
fn the_reference_repeats_itself() {
    let activations = vec![Storage::F16, Storage::Bf16];
    check(
        "reference",
        &mut ReferenceBackend::new(),
        &SelftestOptions {
            activations,
            ..SelftestOptions::default()
        },
    );
}

/// The native CPU device, with every instruction set of this processor and several numbers of threads.
#[test]
fn every_instruction_set_is_the_reference() {
    let open = |(index, level)| {
        CpuBackend::new(&CpuOptions {
            threads: Some(1 + index % 3),
            level: Some(level),
        })
    };
    let mut devices: Vec<_> = Level::available()
        .into_iter()
        .enumerate()
        .map(open)
        .collect();
    for report in block_on(run_all(&mut devices, &options())).expect("it runs") {
        expect_passed("cpu", report);
    }
}

/// A swapped row, head, block, slot or seed fails every case that it affects.
#[test]
fn mutants_are_noticed() {
    let (mutants, unnoticed) =
        block_on(blind_spots(&SelftestOptions::default())).expect("the reference runs");
    assert!(mutants > 500, "only {mutants} mutants");
    assert!(
        unnoticed.is_empty(),
        "{} of {mutants} mutants pass:\n{}",
        unnoticed.len(),
        unnoticed.join("\n")
    );
}

/// Configurations with which every adapter is opened: its own limits; WebGPU's minimum; each class of tile shapes;
/// small limits.
fn openings() -> Vec<(&'static str, WgpuOptions)> {
    let plain = WgpuOptions::default;
    vec![
        // Tier T2 has less exact products, and its own check below.
        (
            "as it is",
            WgpuOptions {
                tier: Some(Tier::T1),
                ..plain()
            },
        ),
        (
            "T0",
            WgpuOptions {
                tier: Some(Tier::T0),
                ..plain()
            },
        ),
        (
            "discrete class, 8 MiB bindings",
            WgpuOptions {
                class: Some(Class::Discrete),
                tier: Some(Tier::T1),
                binding_bytes_max: Some(8 << 20),
                ..plain()
            },
        ),
        (
            "integrated class, T0, checked",
            WgpuOptions {
                class: Some(Class::Integrated),
                tier: Some(Tier::T0),
                checked: true,
                ..plain()
            },
        ),
    ]
}

/// Each case runs, and each configuration runs each option, component of a weight format and size of each step.
#[test]
fn openings_share_the_cases() {
    let openings = openings().len();
    let ([cases, runs, compiled], gaps) = cover_gaps(&SelftestOptions::default(), openings);
    println!(
        "{cases} cases, {runs} runs of {}, {compiled} sets of kernels",
        cases * openings
    );
    assert!(gaps.is_empty(), "{}", gaps.join("\n"));
    assert!(
        runs >= cases && runs * 2 < cases * openings,
        "{runs} runs of {cases} cases: too few, or too many"
    );
}

#[test]
fn every_adapter_is_the_reference() {
    let adapters = WgpuBackend::adapters();
    if adapters.is_empty() {
        let required = std::env::var("FOLIO_REQUIRE_GPU").is_ok_and(|value| value == "1");
        assert!(!required, "FOLIO_REQUIRE_GPU=1, but wgpu finds no adapter");
        println!(
            "SKIPPED: wgpu finds no adapter, so no kernel was checked. Install a Vulkan driver, such as Mesa's."
        );
        return;
    }
    let options = options();
    for adapter in adapters {
        let (names, opened): (Vec<_>, Vec<_>) = openings().into_iter().unzip();
        println!("{} {}: {}", adapter.api, adapter.name, names.join("; "));
        let open = |options| {
            block_on(WgpuBackend::open(&WgpuOptions {
                adapter: Some(adapter.index),
                ..options
            }))
        };
        let opened = opened
            .into_iter()
            .map(|options| open(options).expect("an adapter that is listed opens"));
        let mut devices: Vec<WgpuBackend> = opened.collect();
        for report in
            block_on(run_all(&mut devices, &options)).expect("the devices survive the check")
        {
            expect_passed("wgpu", report);
        }
    }
}

/// Products of a single row that is rounded to bytes. The instruction itself is emulated where the adapter has none.
#[test]
fn products_of_bytes_are_the_reference() {
    for adapter in WgpuBackend::adapters() {
        let options = WgpuOptions {
            adapter: Some(adapter.index),
            class: Some(Class::Discrete),
            int8_activations: Int8Activations::Always,
            ..Default::default()
        };
        let mut device =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        assert!(device.caps().int8_activations, "{}", device.caps().tier);
        check(
            "wgpu",
            &mut device,
            &SelftestOptions {
                filter: Some("/1 × |/1 rows".into()),
                ..SelftestOptions::default()
            },
        );
    }
}

/// Products by cooperative matrices, where an adapter has them: recent versions of Mesa's software driver do. Without,
/// the test is skipped with a message, or fails under `FOLIO_REQUIRE_MATRICES=1`.
#[test]
fn products_of_matrices_are_the_reference() {
    let mut found = false;
    for adapter in WgpuBackend::adapters() {
        // Software adapters have them only with a GPU's kernels.
        let class = (adapter.class == Class::Software).then_some(Class::Discrete);
        // The tiles of a subgroup size that the driver does not choose are right too: it runs fewer subgroups than
        // expected, or more. So are those that Metal takes.
        let ways = [
            (None, None, false),
            (Some(8 << 20), Some(4), false),
            (None, Some(32), true),
        ]
        .map(
            |(binding_bytes_max, matrix_lanes, scalar_tiles)| WgpuOptions {
                adapter: Some(adapter.index),
                class,
                binding_bytes_max,
                matrix_lanes,
                scalar_tiles,
                ..Default::default()
            },
        );
        let open = |options| {
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens")
        };
        // A driver that refuses them is used without them.
        let refused = open(WgpuOptions {
            refused_define: Some("MATRICES"),
            ..ways[0].clone()
        });
        assert!(!refused.caps().half_products, "{}", refused.caps().tier);
        // So is one whose products are wrong, or its attention.
        let weights = ("weights = coopLoad<", "weights = coopLoadT<");
        for planted in [weights, ("values = coopLoadT<", "values = coopLoad<")] {
            let mut wrong = open(WgpuOptions {
                planted: Some(planted),
                ..ways[0].clone()
            });
            assert!(!wrong.caps().half_products, "{}", wrong.caps().tier);
            let products = SelftestOptions {
                filter: Some("matmul/F32 · bf16".into()),
                ..options()
            };
            check("wgpu", &mut wrong, &products);
        }
        let mut devices = ways.map(open);
        if devices[0].caps().half_products {
            found = true;
            let products = SelftestOptions {
                filter: Some("matmul/|matmul_experts/".into()),
                ..options()
            };
            for report in
                block_on(run_all(&mut devices, &products)).expect("the devices survive the check")
            {
                expect_passed("wgpu", report);
            }
            // A software driver takes seconds to compile each kernel of attention.
            let views = [
                "F16/3×1 heads of 8,",
                "F16/7×1 heads of 80,",
                "F16/4×1 heads of 128,",
                "F16/2×2 heads of 256,",
            ];
            let others = [
                "Q8/4×1 heads of 128,",
                "Fp8/4×2 heads of 64,",
                "F16, softcap/",
                "F16, softcap, ALiBi, sinks/",
            ];
            let usual: String = views
                .into_iter()
                .chain(others)
                .map(|view| format!("kv {view}|"))
                .collect();
            let filters = [
                &(usual + "kv F16, window 16/"),
                "kv F16/4×2 heads of 64,",
                "kv Q8/4×1 heads of 128,",
            ];
            for (device, filter) in devices.iter_mut().zip(filters) {
                check(
                    "wgpu",
                    device,
                    &SelftestOptions {
                        filter: Some(filter.into()),
                        ..options()
                    },
                );
            }
        }
    }
    if !found {
        let required = std::env::var("FOLIO_REQUIRE_MATRICES").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "FOLIO_REQUIRE_MATRICES=1, but no adapter has cooperative matrices of halves"
        );
        println!("SKIPPED: no adapter has cooperative matrices of halves.");
    }
}

/// Keys and values that exceed the binding limit are split between heads; in q8, the scales are split with their heads.
#[test]
fn heads_in_shards_are_the_reference() {
    for adapter in WgpuBackend::adapters() {
        // A binding holds one of the two heads of 256 in the pool.
        let options = WgpuOptions {
            adapter: Some(adapter.index),
            binding_bytes_max: Some(1 << 20),
            ..Default::default()
        };
        let mut device =
            block_on(WgpuBackend::open(&options)).expect("an adapter that is listed opens");
        for filter in ["F32, kv Q8/head 256", "F32, kv Q8/2×2 heads of 256"] {
            check(
                "wgpu",
                &mut device,
                &SelftestOptions {
                    filter: Some(filter.into()),
                    ..SelftestOptions::default()
                },
            );
        }
    }
}
