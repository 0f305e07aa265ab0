//! What a compiler for real GPUs makes of the WGSL kernels, without such a GPU.
//!
//! Mesa's RADV compiles for AMD chips that are not there, and reports registers, spills, memory, occupancy and the
//! machine code. The figures of every hot kernel are in the tables of `tests/data/gpu_code`, which this test holds: a
//! change that alters one must change the table (`FOLIO_REFRESH=1` writes it). They hold for one version of Mesa; with
//! another, differences are only printed. Spills and scratch memory fail with any version. `docs/dev/gpu-code.md`
//! explains the tables; `docs/dev/gpu-expectations.md` has what GPUs should reach by them.
//!
//! Without RADV, the test is skipped with a message, or fails under `FOLIO_REQUIRE_GPU=1`.

mod listing;
mod radv;

use folio::backend::wgpu::{Variant, variants};
use folio::plan::WeightFormat;
use radv::{Chip, Report};
use std::fmt::Write as _;

/// The version of Mesa for which the table holds: Debian 12's.
const MESA: &str = "22.3.6";
const CHIPS: [Chip; 3] = [
    Chip {
        family: "NAVI21",
        name: "RDNA 2 (Navi 21)",
    },
    Chip {
        family: "GFX1100",
        name: "RDNA 3 (Navi 31)",
    },
    Chip {
        family: "VEGA10",
        name: "GCN 5 (Vega 10)",
    },
];
const TABLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gpu_code");

/// The first of AMD's chips with matrix units, by the name that Mesa 25 has for it.
const MATRICES_CHIP: Chip = Chip {
    family: "NAVI31",
    name: "RDNA 3 (Navi 31)",
};
/// The version of Mesa for which their table holds: Debian 13's.
const MATRICES_MESA: &str = "25.0.7";
/// Cycles that a SIMD unit of that chip takes for a matrix instruction of 32 lanes, and for another one: 512
/// multiply-adds a cycle and compute unit, which has two (AMD, RDNA 3 instruction set architecture).
const MATRIX_CYCLES: u32 = 32;

/// A kernel that takes a share of a model's time.
struct Hot {
    name: String,
    variant: Variant,
    /// Products of a weight with an element of x per invocation and turn of the inner loop.
    products: Option<u32>,
}

/// Name of the format of keys and values.
fn kv_name(variant: &Variant) -> &'static str {
    match ["KV_FP8", "KV_CODES"].map(|define| variant.is_defined(define)) {
        [true, _] => "fp8",
        [_, true] => "q8",
        _ => "f16",
    }
}

/// The kernels that run in every layer, or on all logits, in their usual variants.
fn hot_kernels() -> Vec<Hot> {
    let is_usual = |variant: &Variant| {
        let optional = ["BIAS", "SOFT_HALF", "SOFTCAP", "ALIBI", "SINKS", "TEXELS"];
        !optional.iter().any(|define| variant.is_defined(define))
    };
    let usual_rows = |variant: &Variant| {
        let lanes = if variant.number("ROWS") == Some(1) {
            16
        } else {
            8
        };
        let few = ["SPLITS", "PARTIAL", "GELU_TANH", "CLAMPED_SWIGLU"];
        variant.number("LANES") == Some(lanes) && !few.iter().any(|name| variant.is_defined(name))
    };
    let few = [
        WeightFormat::Bf16,
        WeightFormat::Q4,
        WeightFormat::Q4K,
        WeightFormat::Q6K,
    ];
    // Quantized products are listed with a bias, which only changes their last lines.
    let mut all: Vec<Variant> = variants()
        .into_iter()
        .filter(|variant| !variant.matrices())
        .collect();
    all.retain(|variant| {
        is_usual(variant) || (variant.stem().starts_with("matmul") && !variant.texels())
    });
    let mut kernels: Vec<Hot> = Vec::new();
    for variant in all {
        let number = |name: &str| variant.number(name).unwrap_or(0);
        let dense = !variant.is_defined("GROUPS");
        let format_named = |list: &[WeightFormat]| {
            variant
                .format()
                .is_some_and(|format| list.contains(&format))
        };
        let (name, products) = match variant.stem() {
            "matmul_rows"
                if usual_rows(&variant) && (number("ROWS") == 1 || format_named(&few)) =>
            {
                let (rows, outputs) = (number("ROWS"), number("OUTPUTS"));
                let options = [
                    ("INT8", ", in bytes"),
                    ("NORM", ", after a norm"),
                    ("GATED", ", activated"),
                ];
                let options = options
                    .map(|(define, text)| if variant.is_defined(define) { text } else { "" })
                    .concat();
                let products = if dense { 8 } else { 32 } * rows * outputs;
                (format!("matmul_rows, {rows} rows{options}"), Some(products))
            }
            "matmul_tile" if format_named(&few) => {
                (format!("matmul_tile, {} rows", number("TILE_ROWS")), None)
            }
            "matmul_experts_vec"
                if !variant.is_defined("PARTIAL")
                    && format_named(&[WeightFormat::Mxfp4, WeightFormat::Q4K]) =>
            {
                ("matmul_experts_vec".into(), Some(32 * number("OUTPUTS")))
            }
            "matmul_experts_tile" if format_named(&[WeightFormat::Mxfp4, WeightFormat::Q4K]) => {
                ("matmul_experts_tile".into(), None)
            }
            "attend_paged_decode" | "attend_paged_prefill"
                if [16, 32].contains(&number("HEAD_CHUNKS"))
                    && [0, 1, 4, 8].contains(&number("ROWS")) =>
            {
                let kv = kv_name(&variant);
                let rows = variant.number("ROWS").unwrap_or(32);
                let tier = if variant.subgroups() {
                    ", subgroups"
                } else {
                    ""
                };
                (
                    format!(
                        "{}, head of {}, {kv}, {rows} rows{tier}",
                        variant.stem(),
                        8 * number("HEAD_CHUNKS")
                    ),
                    None,
                )
            }
            "attend_paged_merge" => (variant.stem().into(), None),
            "state_scan" | "state_scan_chunks"
                if !variant.is_defined("SKIP") && number("KEYS_EACH") % 16 == 0 =>
            {
                let keys = 8 * number("KEYS_EACH") + 128 * number("KEY_RUNS");
                (
                    format!("{}, {}, {keys} keys", variant.stem(), rule(&variant)),
                    None,
                )
            }
            "sample" | "sample_survey" | "sample_draw"
                if number("WORKGROUP") == 256 && variant.is_defined("VECTORS") =>
            {
                let options = ["ADJUST", "LOGPROBS"]
                    .into_iter()
                    .filter(|option| variant.is_defined(option));
                let options: Vec<String> = options.map(str::to_lowercase).collect();
                (
                    format!("{} {}", variant.stem(), options.join(", "))
                        .trim()
                        .to_owned(),
                    None,
                )
            }
            _ => continue,
        };
        let name = match variant.format() {
            Some(format) => format!("{name}, {format}"),
            None => name,
        };
        let fused = variant.is_defined("NORM") || variant.is_defined("GATED");
        if variant.is_defined("BIAS") && dense && !fused
            || kernels.iter().any(|hot| hot.name == name)
        {
            continue;
        }
        kernels.push(Hot {
            name,
            variant,
            products,
        });
    }
    kernels
}

/// The rule by which a token changes a state.
fn rule(variant: &Variant) -> &'static str {
    if variant.is_defined("DELTA") {
        "delta rule"
    } else {
        "mamba2"
    }
}

/// One line of the table: the figures of a kernel on every chip.
fn line(hot: &Hot, reports: &[Report]) -> String {
    let mut line = format!("| {} |", hot.name);
    for report in reports {
        let registers = format!("{} · {}", report.vector_registers, report.waves);
        let inner = match (&report.inner, hot.products) {
            (None, _) => "– | –".to_owned(),
            (Some(inner), Some(products)) => {
                format!(
                    "{:.1} | {}",
                    f64::from(inner.vector) / f64::from(products),
                    inner.loads
                )
            }
            (Some(inner), None) => {
                format!(
                    "{:.0} % | {}",
                    100.0 * f64::from(inner.multiply_adds) / f64::from(inner.vector.max(1)),
                    inner.loads
                )
            }
        };
        write!(
            line,
            " {registers} | {} | {inner} |",
            report.workgroup_bytes
        )
        .expect("a string takes everything");
    }
    line
}

#[test]
fn hot_kernels_compile_for_real_gpus_as_the_table_says() {
    if !radv::is_there() {
        let message = "RADV (Debian's mesa-vulkan-drivers) is not installed: the kernels are \
            not compiled for real GPUs";
        assert!(std::env::var_os("FOLIO_REQUIRE_GPU").is_none(), "{message}");
        println!("skipped: {message}");
        return;
    }
    let _alone = radv::alone();
    let kernels = hot_kernels();
    assert!(
        kernels.len() > 60,
        "every hot kernel is listed, not {}",
        kernels.len()
    );
    let compilers = CHIPS.each_ref().map(radv::Compiler::new);
    let mut lines = String::new();
    let mut spilled = Vec::new();
    for hot in &kernels {
        let reports = compilers
            .each_ref()
            .map(|compiler| compiler.compile(&hot.variant));
        for (chip, report) in CHIPS.iter().zip(&reports) {
            if report.spills > 0 || report.scratch_bytes > 0 {
                let (spills, scratch) = (report.spills, report.scratch_bytes);
                spilled.push(format!(
                    "{} on {}: {spills} spills, {scratch} bytes of scratch",
                    hot.name, chip.name
                ));
            }
        }
        lines += &line(hot, &reports);
        lines.push('\n');
    }
    compare(
        &header(),
        &lines,
        ("kernels.md", MESA),
        &compilers[0].version,
    );
    assert!(spilled.is_empty(), "{}", spilled.join("\n"));
}

fn header() -> String {
    let (mut names, mut dashes) = ("| kernel |".to_owned(), "|---|".to_owned());
    for chip in &CHIPS {
        write!(
            names,
            " {}: registers · waves | bytes | work | loads |",
            chip.name
        )
        .expect("a string takes everything");
        dashes += "---|---|---|---|";
    }
    format!("{names}\n{dashes}\n")
}

/// The tiles that use cooperative matrices, for subgroups of 32 and 64 lanes, as a chip with matrix units runs them.
/// Mesa compiles them since 23.3, and for chips that are not there until 25: the test runs under
/// `FOLIO_REQUIRE_MATRICES=1` (`.ci/matrices`).
#[test]
fn kernels_with_matrices_compile_for_a_real_gpu_as_the_table_says() {
    if std::env::var_os("FOLIO_REQUIRE_MATRICES").is_none() {
        println!("skipped: FOLIO_REQUIRE_MATRICES is not set");
        return;
    }
    let _alone = radv::alone();
    let compiler = radv::Compiler::new(&MATRICES_CHIP);
    assert!(
        compiler.has_matrices,
        "Mesa {} has matrices",
        compiler.version
    );
    let few = [
        WeightFormat::Bf16,
        WeightFormat::Q4,
        WeightFormat::Q4K,
        WeightFormat::Q6K,
        WeightFormat::Mxfp4,
    ];
    let is_hot = |variant: &Variant| {
        let number = |name: &str| variant.number(name).unwrap_or(0);
        let is_plain = !["SPLITS", "SOFTCAP"]
            .iter()
            .any(|define| variant.is_defined(define));
        let is_usual = match variant.format() {
            Some(format) => few.contains(&format),
            None => [16, 32].contains(&number("HEAD_CHUNKS")),
        };
        variant.matrices()
            && variant.is_defined("SIZE_16")
            && [2, 4].contains(&subgroups(variant))
            && is_plain
            && is_usual
    };
    let (mut names, mut lines) = (std::collections::BTreeSet::new(), String::new());
    for variant in variants().iter().filter(|variant| is_hot(variant)) {
        let number = |name: &str| variant.number(name).unwrap_or(0);
        let lanes = 128 / subgroups(variant);
        let (stem, rows) = (variant.stem(), number("TILE_ROWS"));
        let name = match variant.format() {
            Some(format) => format!("{stem}, {rows} rows, {lanes} lanes, {format}"),
            None => format!(
                "{stem}, head of {}, {lanes} lanes, {}",
                8 * number("HEAD_CHUNKS"),
                kv_name(variant)
            ),
        };
        if !names.insert(name.clone()) {
            continue;
        }
        let report = compiler.compile(variant);
        assert!(
            report.spills == 0 && report.scratch_bytes == 0,
            "{name}: {report:?}"
        );
        let inner = report
            .inner
            .unwrap_or_else(|| panic!("{name} has an inner loop"));
        let (matrices, others) = (inner.matrices, inner.vector - inner.matrices);
        assert!(matrices > 0, "{name} uses the matrix units");
        let share = 100 * MATRIX_CYCLES * matrices / (MATRIX_CYCLES * matrices + others);
        let (registers, waves, bytes) = (
            report.vector_registers,
            report.waves,
            report.workgroup_bytes,
        );
        let line = format!(
            "| {name} | {registers} · {waves} | {bytes} | {matrices} | {others} | {share} % |"
        );
        lines += &line;
        lines.push('\n');
    }
    assert!(names.len() >= 20, "{names:?}");
    let header = "| kernel | registers · waves | bytes | matrix instructions | others | time on the matrix units |\n\
                  |---|---|---|---|---|---|\n";
    compare(
        header,
        &lines,
        ("matrices.md", MATRICES_MESA),
        &compiler.version,
    );
}

/// Subgroups of a workgroup of a kernel with matrices.
fn subgroups(variant: &Variant) -> u32 {
    let number = |name: &str| variant.number(name).unwrap_or(1);
    number("SUBGROUPS_COUNT") * number("SUBGROUPS_DOWN") * number("SUBGROUPS_ACROSS")
}

/// Compares the lines with those of a table, or writes it. They hold for a version of Mesa.
fn compare(header: &str, lines: &str, (table, mesa): (&str, &str), version: &str) {
    let path = format!("{TABLES}/{table}");
    if std::env::var_os("FOLIO_REFRESH").is_some() {
        std::fs::write(path, format!("{header}{lines}")).expect("the table is written");
        return;
    }
    let text = std::fs::read_to_string(path).expect("the table is there");
    let known = text.strip_prefix(header).expect("the table has its header");
    let changed: Vec<String> = lines
        .lines()
        .filter(|line| !known.lines().any(|known| known == *line))
        .chain(
            known
                .lines()
                .filter(|line| !lines.lines().any(|found| found == *line)),
        )
        .map(str::to_owned)
        .collect();
    let message = format!(
        "tests/data/gpu_code/{table} differs (FOLIO_REFRESH=1 writes it); new and old lines:\n{}",
        changed.join("\n")
    );
    if version.contains(mesa) {
        assert!(changed.is_empty(), "{message}");
    } else if !changed.is_empty() {
        println!("the table holds for Mesa {mesa}, this is {version}: {message}");
    }
}
