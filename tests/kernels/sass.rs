//! What NVIDIA's assembler makes of the CUDA kernels that take most of a model's time: figures of their inner loops, in
//! the tables of `tests/data/cuda_code`. `docs/dev/cuda-code.md` explains them.

use folio::backend::cuda::{Auditor, CudaBackend, Footprint};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;
use std::sync::Mutex;

/// The version of NVRTC for which the table holds. With another, differences are only printed.
const NVRTC: (i32, i32) = (13, 0);

/// Counts of one turn of the innermost loop with the most products, or with matrix instructions if there are any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Iteration {
    /// All instructions.
    instructions: u32,
    /// Those that multiply and add floats, and what packed ones do counted twice.
    multiply_adds: u32,
    /// Those of matrix units.
    matrix: u32,
    /// Loads of 16 bytes or more from global memory.
    wide_loads: u32,
    /// Other loads from global memory.
    narrow_loads: u32,
    /// Asynchronous copies from global to shared memory.
    copies: u32,
    /// Barriers of a block.
    barriers: u32,
}

impl Iteration {
    fn counts(&mut self) -> [&mut u32; 7] {
        let Self {
            instructions,
            multiply_adds,
            matrix,
            wide_loads,
            narrow_loads,
            copies,
            barriers,
        } = self;
        [
            instructions,
            multiply_adds,
            matrix,
            wide_loads,
            narrow_loads,
            copies,
            barriers,
        ]
    }

    fn count(&mut self, instruction: &str) {
        let (operation, modifiers) = instruction.split_once('.').unwrap_or((instruction, ""));
        self.instructions += 1;
        let is_wide = || {
            modifiers
                .split('.')
                .any(|part| ["128", "256"].contains(&part))
        };
        match operation {
            "FFMA" => self.multiply_adds += 1,
            "FFMA2" | "HFMA2" => self.multiply_adds += 2,
            "LDG" if is_wide() => self.wide_loads += 1,
            "LDG" => self.narrow_loads += 1,
            "LDGSTS" | "UBLKCP" | "UTMALDG" => self.copies += 1,
            "BAR" => self.barriers += 1,
            matrix if matrix.ends_with("MMA") => self.matrix += 1,
            _ => {}
        }
    }
}

/// Numbers with spaces between them.
impl fmt::Display for Iteration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut copy = *self;
        let numbers = copy.counts().map(|count| count.to_string());
        f.write_str(&numbers.join(" "))
    }
}

impl FromStr for Iteration {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut turn = Self::default();
        for (count, number) in turn.counts().into_iter().zip(text.split(' ')) {
            *count = number.parse()?;
        }
        Ok(turn)
    }
}

/// Why a kernel with this listing of `nvdisasm -c` must not begin while the one before it runs: some thread accesses
/// device memory, or ends, before it waits for that one. Calls and loops have no effect on the order of addresses.
fn early_access(listing: &str) -> Option<String> {
    const ACCESSES: [&str; 12] = [
        "ATOM", "ATOMG", "EXIT", "LD", "LDG", "LDGSTS", "RED", "REDG", "ST", "STG", "UBLKCP",
        "UTMALDG",
    ];
    let instructions = listing.lines().filter_map(|line| {
        let (_, rest) = line
            .split_once("*/")
            .filter(|_| line.trim_start().starts_with("/*"))?;
        rest.split_whitespace().find(|word| !word.starts_with('@'))
    });
    let mut early = instructions.take_while(|instruction| *instruction != "ACQBULK");
    let is_access =
        |instruction: &&str| ACCESSES.contains(&instruction.split('.').next().unwrap_or_default());
    let access = early.by_ref().find(is_access).map(str::to_owned);
    access.or_else(|| (!listing.contains("ACQBULK")).then(|| "no wait".to_owned()))
}

/// Asserts that the kernels that were compiled anew wait for those before them, where kernels overlap. Kernels of the
/// table are left out, because [`turns`] looks at them.
pub(crate) fn expect_waits(part: &str, footprints: &[Footprint]) {
    let Some(disassembler) = disassembler() else {
        return;
    };
    let is_fresh = |found: &&Footprint| !found.image.is_empty() && found.architecture == "sm_90a";
    let fresh: Vec<&Footprint> = footprints.iter().filter(is_fresh).collect();
    for found in fresh
        .iter()
        .filter(|found| hot(part, &found.kernel).is_none())
    {
        expect_wait(found, &listing(&disassembler, &found.image));
    }
    println!(
        "{} kernels wait for their predecessors before they access memory",
        fresh.len()
    );
}

fn expect_wait(found: &Footprint, listing: &str) {
    assert_eq!(
        early_access(listing),
        None,
        "{} for {}",
        found.kernel,
        found.architecture
    );
}

/// The innermost loop with the most products in a listing of `nvdisasm -c`; without a loop, all counts are 0.
fn inner_loop(listing: &str) -> Iteration {
    let (mut labels, mut instructions) = (BTreeMap::new(), Vec::new());
    for line in listing.lines() {
        if let Some(label) = line
            .strip_prefix(".L_x_")
            .and_then(|line| line.strip_suffix(':'))
        {
            labels.insert(label, instructions.len());
        } else if let Some((_, rest)) = line
            .split_once("*/")
            .filter(|_| line.trim_start().starts_with("/*"))
        {
            let words: Vec<&str> = rest
                .split_whitespace()
                .skip_while(|word| word.starts_with('@'))
                .collect();
            let Some(&operation) = words.first() else {
                continue;
            };
            let target = words
                .iter()
                .find_map(|word| word.strip_prefix("`(.L_x_")?.split(')').next());
            instructions.push((operation, target));
        }
    }
    let backwards = instructions
        .iter()
        .enumerate()
        .filter_map(|(at, (operation, target))| {
            let to = *labels.get(operation.starts_with("BRA").then_some(*target)??)?;
            (to < at).then_some((to, at))
        });
    let turns = backwards.map(|(first, last)| {
        let mut turn = Iteration::default();
        instructions[first..=last]
            .iter()
            .for_each(|(operation, _)| turn.count(operation));
        (first..=last, turn)
    });
    let mut loops: Vec<_> = turns.collect();
    // A loop around matrix instructions may hold others, which wait or decode.
    if loops.iter().any(|(_, turn)| turn.matrix > 0) {
        loops.retain(|(_, turn)| turn.matrix > 0);
    }
    let is_innermost = |(outer, _): &&(RangeInclusive<usize>, Iteration)| {
        let is_inside = |inner: &RangeInclusive<usize>| {
            outer.contains(inner.start()) && outer.contains(inner.end())
        };
        !loops
            .iter()
            .any(|(inner, _)| inner != outer && is_inside(inner))
    };
    let turns = loops.iter().filter(is_innermost).map(|(_, turn)| *turn);
    // Loops that overlap count some matrix instructions twice: the shortest one is the loop itself.
    let order = |turn: &Iteration| match turn.matrix {
        0 => (turn.multiply_adds, turn.instructions),
        matrix => (matrix, u32::MAX - turn.instructions),
    };
    turns.max_by_key(order).unwrap_or_default()
}

/// NVIDIA's disassembler: in `PATH`, or beside the folder of NVRTC, where its Python wheel puts it.
fn disassembler() -> Option<PathBuf> {
    let beside = std::env::var_os("FOLIO_CUDA_LIBRARIES")
        .map(|folder| Path::new(&folder).join("../bin/nvdisasm"));
    let mut places = beside.into_iter().chain([PathBuf::from("nvdisasm")]);
    places.find(|place| {
        Command::new(place)
            .arg("--version")
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

fn listing(disassembler: &Path, image: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), image).expect("the file is writable");
    let output = Command::new(disassembler)
        .arg("-c")
        .arg(file.path())
        .output()
        .expect("the disassembler runs");
    assert!(
        output.status.success(),
        "nvdisasm: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The architectures of the table.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_90a", "sm_120"];
/// Its parts, one a file.
const TABLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/cuda_code");

/// The kernels of each part of the table.
const PARTS: [(&str, &[&str]); 6] = [
    ("matmul", &["matmul_vec", "matmul_tile"]),
    ("experts", &["matmul_experts_vec", "matmul_experts_tile"]),
    (
        "attention",
        &[
            "attend_paged_decode",
            "attend_paged_prefill",
            "attend_paged_vec",
        ],
    ),
    ("attention-hopper", &["attend_paged_wgmma"]),
    (
        "attention-blackwell",
        &["attend_paged_decode", "attend_paged_prefill"],
    ),
    (
        "others",
        &["state_scan", "state_scan_chunks", "sample", "sample_argmax"],
    ),
];

/// The name in a part of the table of a kernel that takes most of a model's time, from its stem and defines; `None` for
/// others.
fn hot(part: &str, kernel: &str) -> Option<String> {
    let (stem, defines) = kernel.strip_suffix(')')?.split_once('(')?;
    let (_, stems) = PARTS.iter().find(|(name, _)| *name == part)?;
    let defines: BTreeMap<&str, &str> = defines
        .split(", ")
        .filter_map(|define| define.split_once('='))
        .collect();
    let is =
        |name: &str, values: &[&str]| defines.get(name).is_none_or(|value| values.contains(value));
    let usual = is("OUT_TYPE", &["u16"])
        && !["SOFTCAP", "ALIBI", "KV_F32", "CHUNKS"]
            .iter()
            .any(|name| defines.contains_key(name));
    let few = match stem {
        "matmul_vec" => is("WEIGHT", &["Bf16", "Q8", "Q4", "Q4K", "Q6K", "Mxfp4"]),
        "matmul_tile" | "matmul_experts_vec" | "matmul_experts_tile" => {
            is("WEIGHT", &["Bf16", "Q4K", "Mxfp4"])
        }
        "attend_paged_decode" | "attend_paged_prefill" | "attend_paged_wgmma" => {
            is("HEAD_DIM", &["64", "128", "256"])
        }
        "attend_paged_vec" => is("HEAD_DIM", &["576"]) && is("GROUP", &["16"]),
        "state_scan" => is("KEYS_EACH", &["16", "32"]),
        "state_scan_chunks" => is("STEPS", &["4"]),
        _ => true,
    };
    if !(usual && few && stems.contains(&stem)) {
        return None;
    }
    let number = |name: &str| defines.get(name).copied().unwrap_or_default();
    let mut name = stem.to_owned();
    let mut add = |text: &str| {
        name += ", ";
        name += text;
    };
    for (define, value) in &defines {
        match *define {
            "WEIGHT" => add(&value.to_lowercase()),
            "HEAD_DIM" => add(&format!("head of {value}")),
            "ROWS" => add(&format!("rows {value}")),
            "OUTPUTS" => add(&format!("outputs {value}")),
            "TILE_ROWS" => add(&format!("{value} × {}", number("TILE_OUTPUTS"))),
            "KEYS_EACH" => add(&format!("keys {value}")),
            "SLICES" if stem.starts_with("state_scan") => add(&format!("slices {value}")),
            "STEPS" => add(&format!("steps {value}")),
            "NORM" => add("after a norm"),
            "GATED" => add("activated"),
            "KV_Q8" => add("q8"),
            "KV_FP8" => add("fp8"),
            "KV_F16" => add("f16"),
            "COMBINE" => add("combined"),
            "HEADS" => add("heads"),
            "STORES" => add("stores"),
            "DELTA" => add(if *value == "1" {
                "delta rule"
            } else {
                "mamba2"
            }),
            _ => {}
        }
    }
    Some(name)
}

/// The figures of the kernels of the table, by the keys of their footprints; `None` without a disassembler. `known` has
/// those of earlier runs.
pub(crate) fn turns(
    device: &CudaBackend,
    auditor: &Auditor,
    part: &str,
    footprints: &[Footprint],
    known: &BTreeMap<u64, Iteration>,
) -> Option<BTreeMap<u64, Iteration>> {
    let is_listed = |found: &&Footprint| {
        hot(part, &found.kernel).is_some() && ARCHITECTURES.contains(&found.architecture.as_str())
    };
    let listed: Vec<&Footprint> = footprints.iter().filter(is_listed).collect();
    let mut turns: BTreeMap<u64, Iteration> = listed
        .iter()
        .filter_map(|found| Some((found.key, *known.get(&found.key)?)))
        .collect();
    let Some(disassembler) = disassembler() else {
        let required = std::env::var("FOLIO_REQUIRE_NVRTC").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "FOLIO_REQUIRE_NVRTC=1, but there is no nvdisasm (Python package nvidia-cuda-nvdisasm)"
        );
        println!("SKIPPED: without nvdisasm, no inner loop was counted");
        return None;
    };
    let is_missing = |kernel: &str, architecture: &str| {
        let is_it =
            |found: &&&Footprint| found.kernel == kernel && found.architecture == architecture;
        listed
            .iter()
            .find(is_it)
            .is_some_and(|found| found.image.is_empty() && !known.contains_key(&found.key))
    };
    let compiled = device
        .audit(auditor, &ARCHITECTURES, is_missing, &BTreeMap::new())
        .into_iter();
    let compiled: Vec<Footprint> = compiled
        .map(|found| found.unwrap_or_else(|fault| panic!("{fault}")))
        .collect();
    for found in listed
        .into_iter()
        .chain(&compiled)
        .filter(|found| !found.image.is_empty())
    {
        let listing = listing(&disassembler, &found.image);
        if found.architecture != "sm_80" {
            expect_wait(found, &listing);
        }
        let turn = inner_loop(&listing);
        let earlier = turns.insert(found.key, turn);
        let (kernel, architecture) = (&found.kernel, &found.architecture);
        assert!(
            earlier.is_none_or(|earlier| earlier == turn),
            "{kernel} for {architecture}: {earlier:?}, now {turn:?}"
        );
    }
    Some(turns)
}

/// Compares a part of the table with these figures, or writes it. With another NVRTC than the table's, differences are
/// printed.
pub(crate) fn compare(
    part: &str,
    footprints: &[Footprint],
    turns: &BTreeMap<u64, Iteration>,
    refresh: bool,
) {
    /// Parts are written one after another.
    static WRITING: Mutex<()> = Mutex::new(());
    let mut lines = BTreeSet::new();
    for found in footprints {
        if let (Some(name), Some(turn)) = (hot(part, &found.kernel), turns.get(&found.key)) {
            let counts = turn.to_string().replace(' ', " | ");
            lines.insert(format!(
                "| {name} | {} | {} | {counts} |\n",
                found.architecture, found.registers
            ));
        }
    }
    let lines: String = lines.into_iter().collect();
    let _writing = WRITING
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let path = format!("{TABLES}/{part}.md");
    if refresh {
        std::fs::write(path, format!("{HEADER}{lines}")).expect("the table is written");
        return;
    }
    let table = std::fs::read_to_string(path).expect("the table is there");
    let known = table
        .strip_prefix(HEADER)
        .expect("the table has its header");
    if known != lines {
        let is_new = |line: &&str| !known.lines().any(|known| known == *line);
        let changed: Vec<&str> = lines.lines().filter(is_new).collect();
        let message = format!(
            "tests/data/cuda_code/{part}.md differs (FOLIO_REFRESH=1 writes it); new lines:\n{}",
            changed.join("\n")
        );
        assert!(
            footprints.iter().any(|found| found.compiler != NVRTC),
            "{message}"
        );
        println!("the table holds for NVRTC {NVRTC:?}: {message}");
    }
}

const HEADER: &str = "\
| kernel | architecture | registers | instructions | multiply-adds | matrix | wide loads | others | copies | barriers |
|---|---|---|---|---|---|---|---|---|---|
";

#[test]
fn the_innermost_loop_with_the_most_products_is_counted() {
    let listing = "\
.text.kernel:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   FFMA R2, R3, R4, R2 ;
.L_x_2:
        /*0020*/                   LDG.E.128.CONSTANT R8, desc[UR4][R8.64] ;
        /*0030*/              @!P1 LDG.E.U16 R9, desc[UR4][R8.64] ;
        /*0040*/                   LDGSTS.E.BYPASS.128 [R5], desc[UR4][R8.64] ;
        /*0050*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0060*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;
        /*0070*/               @P0 BRA `(.L_x_2) ;
        /*0080*/                   FFMA R2, R3, R4, R2 ;
        /*0090*/               @P0 BRA `(.L_x_1) ;
.L_x_3:
        /*00a0*/                   BRA `(.L_x_3);
";
    let turn = inner_loop(listing);
    assert_eq!(turn.to_string(), "6 0 1 1 1 1 1");
    assert_eq!(turn.to_string().parse(), Ok(turn));
    assert_eq!(
        inner_loop("        /*0000*/                   EXIT ;\n"),
        Iteration::default()
    );
}

#[test]
fn a_kernel_that_accesses_memory_or_ends_before_its_wait_is_found() {
    let listing = |early: &str| {
        let [load, wait, exit] = ["LDC R1, c[0x0][0x28]", "ACQBULK", "@P0 EXIT"];
        let line = |text: &str| format!("        /*0000*/                   {text} ;\n");
        [
            load,
            "UBLKPF.L2 [UR6], UR4",
            early,
            wait,
            "LDG.E R4, desc[UR4][R4.64]",
            exit,
        ]
        .map(line)
        .concat()
    };
    assert_eq!(early_access(&listing("NOP")), None);
    for (instruction, name) in [
        (
            "LDG.E.128.CONSTANT R8, desc[UR4][R8.64]",
            "LDG.E.128.CONSTANT",
        ),
        ("@!P1 STG.E [R2], R3", "STG.E"),
        ("@P0 EXIT", "EXIT"),
    ] {
        assert_eq!(early_access(&listing(instruction)).as_deref(), Some(name));
    }
    assert_eq!(
        early_access("        /*0000*/                   NOP ;\n").as_deref(),
        Some("no wait")
    );
}
