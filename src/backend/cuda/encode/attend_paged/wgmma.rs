//! Where `attend_paged_wgmma` takes the place of `attend_paged_prefill`, and the check that it must pass before.
//!
//! It multiplies with Hopper's products of warpgroups (`wgmma`), twice as fast as the products of warps that every GPU
//! has. Both kernels read the same list of tiles.

use super::super::super::super::metadata::{GROUP_TABLES, GROUP_WORDS, GROUP_WORK, META_GROUPS};
use super::super::super::driver::{Command, Driver, Function, Launch};
use super::super::super::modules::Modules;
use super::*;
use half::{bf16, f16};

/// Set to 0, `attend_paged_prefill` is used, to compare.
pub(in super::super::super) const VARIABLE: &str = "FOLIO_CUDA_WGMMA";
/// The only architecture that has these products.
const ARCHITECTURE: &str = "sm_90a";

/// Rows of a tile: two warpgroups of 64.
const ROWS: u32 = 128;
const THREADS: u32 = 256;
const KEYS: u32 = 128;
/// Minimum packed rows of a batch, with which a warpgroup can have all its rows.
const ROWS_MIN: u32 = 64;
/// The operands' alignment.
const ALIGNMENT: u32 = 1024;

/// Whether a device of this compute capability, for which kernels are compiled as this architecture, has these
/// products, with this value of [`VARIABLE`].
pub(in super::super::super) fn is_possible(
    compute: (u32, u32),
    architecture: &str,
    variable: Option<&str>,
) -> bool {
    compute == (9, 0) && architecture == ARCHITECTURE && variable != Some("0")
}

fn shared_bytes(head_dim: u32) -> u32 {
    ALIGNMENT + (ROWS + 4 * KEYS) * 2 * head_dim
}

/// Whether the kernel takes heads of this size and format; `is_plain`: without softcap and ALiBi.
fn takes(head_dim: u32, format: KvFormat, is_plain: bool, facts: &Facts) -> bool {
    let is_its_kind = format == KvFormat::F16 && [64, 128].contains(&head_dim) && is_plain;
    facts.warpgroups && is_its_kind && shared_bytes(head_dim) <= facts.shared_bytes_max
}

/// Whether it is the one to use, in batches of up to so many packed rows. With [`Capacity::deterministic`], a
/// sequence's results do not depend on the others.
pub(super) fn is_chosen(
    head_dim: u32,
    is_plain: bool,
    packed_rows: u32,
    capacity: &Capacity,
    facts: &Facts,
) -> bool {
    takes(head_dim, capacity.kv_format, is_plain, facts)
        && (capacity.deterministic || packed_rows >= ROWS_MIN)
}

/// The kernel for heads of this size, with its launch.
pub(super) fn tiles(head_dim: u32, q: Storage, out: Storage) -> Tiles {
    let kernel = typed("attend_paged_wgmma", head_dim, q, out);
    Tiles {
        kernel,
        threads: THREADS,
        shared_bytes: shared_bytes(head_dim),
    }
}

/// Sizes of the heads for which a plan uses the kernel.
pub(in super::super::super) fn heads(
    plan: &Plan,
    capacity: &Capacity,
    facts: &Facts,
) -> Vec<(u32, Storage)> {
    let mut heads: Vec<_> = plan
        .steps()
        .filter_map(|step| {
            let (layer, _) = tensor_step(plan, capacity, facts, step)?;
            let Step::AttendPaged(step) = step else {
                return None;
            };
            let is_plain = step.softcap.is_none() && step.alibi.is_none();
            takes(layer.head_dim, capacity.kv_format, is_plain, facts)
                .then(|| (layer.head_dim, plan.buffer_spec(step.out).storage))
        })
        .collect();
    heads.dedup();
    heads
}

/// The problem of [`check`]: the last rows of a context of three tiles, in blocks that do not follow each other; one
/// tile of rows is full, and one is not.
const BLOCK: u32 = 16;
const BLOCKS: u32 = 20;
const RATIO: u32 = 2;
const SEQUENCE: SequenceRows = SequenceRows {
    row_start: 0,
    row_count: 100,
    context_len: 300,
};

/// Metadata with the block table and the list of the problem.
fn problem() -> Vec<u32> {
    let mut words = vec![0; (META_GROUPS + GROUP_WORDS) as usize];
    words[(META_GROUPS + GROUP_TABLES) as usize] = words.len() as u32;
    words.extend((0..SEQUENCE.context_len.div_ceil(BLOCK)).map(|block| (7 * block + 3) % BLOCKS));
    words[(META_GROUPS + GROUP_WORK) as usize] = words.len() as u32;
    let planner = Planner {
        ratio: RATIO,
        window: None,
        lanes_max: 1,
        tile_rows: ROWS,
        splits: false,
    };
    planner.plan(&[SEQUENCE], &[0], &mut words);
    words
}

/// Numbers between −1 and 1.
fn numbers(seed: u32) -> impl Iterator<Item = f32> {
    std::iter::successors(Some(seed), |state: &u32| {
        Some(state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    })
    .skip(1)
    .map(|state| (state >> 8) as f32 / (1 << 23) as f32 - 1.0)
}

/// Memory of the check, freed at its end.
struct Memory<'a> {
    driver: &'a mut dyn Driver,
    addresses: Vec<u64>,
}

impl Memory<'_> {
    fn hold(&mut self, bytes: &[u8]) -> Result<u64, BackendError> {
        let address = self
            .driver
            .allocate("a check of a kernel", bytes.len() as u64)?;
        self.addresses.push(address);
        self.driver.write(address, bytes)?;
        Ok(address)
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        self.addresses
            .iter()
            .for_each(|address| self.driver.free(*address));
    }
}

/// Compares the kernel for heads of this size with `attend_paged_prefill` on a small problem; an error says how they
/// differ, or that one does not compile.
pub(in super::super::super) fn check(
    driver: &mut dyn Driver,
    modules: &mut Modules,
    (head_dim, out): (u32, Storage),
) -> Result<(), BackendError> {
    let usual = usual_tiles(
        head_dim,
        (Storage::Bf16, out),
        KvFormat::F16,
        (None, None),
        driver.facts(),
    );
    let tested = [usual, tiles(head_dim, Storage::Bf16, out)];
    let functions = functions(driver, modules, &tested)?;
    let mut memory = Memory {
        driver,
        addresses: Vec::new(),
    };
    let params = hold_problem(&mut memory, head_dim)?;
    let mut results = Vec::new();
    for (tiles, function) in tested.iter().zip(functions) {
        let bytes = results_len(head_dim) * out.bytes() as usize;
        let result = run(&mut memory, tiles, function, params, bytes)?;
        results.push(floats(&result, out));
    }
    drop(memory);
    compare(&tested[1].kernel, &results[0], &results[1])
}

/// The functions of both kernels, which are loaded if they are missing.
fn functions(
    driver: &mut dyn Driver,
    modules: &mut Modules,
    tested: &[Tiles; 2],
) -> Result<[Function; 2], BackendError> {
    loop {
        let functions = tested
            .each_ref()
            .map(|tiles| modules.get(&tiles.kernel, size_of::<Params>()));
        if let [Some(usual), Some(new)] = functions {
            return Ok([usual, new]);
        }
        modules.load_missing(driver)?;
    }
}

/// Writes the operands of the problem. The params lack the address of the results.
fn hold_problem(memory: &mut Memory<'_>, head_dim: u32) -> Result<Params, BackendError> {
    let pool = |seed| {
        let elements = (BLOCKS * BLOCK * head_dim) as usize;
        let values = numbers(seed).map(f16::from_f32);
        values.take(elements).collect::<Vec<f16>>()
    };
    let queries: Vec<bf16> = numbers(1)
        .map(|x| bf16::from_f32(4.0 * x))
        .take(results_len(head_dim))
        .collect();
    Ok(Params {
        metadata: memory.hold(bytemuck::cast_slice(&problem()))?,
        q: memory.hold(bytemuck::cast_slice(&queries))?,
        k: memory.hold(bytemuck::cast_slice(&pool(2)))?,
        v: memory.hold(bytemuck::cast_slice(&pool(3)))?,
        group_header: META_GROUPS,
        kv_heads: 1,
        group: RATIO,
        block_shift: BLOCK.trailing_zeros(),
        window: NONE,
        scale: (head_dim as f32).sqrt().recip(),
        ..bytemuck::Zeroable::zeroed()
    })
}

/// Elements of the queries, and of the results.
fn results_len(head_dim: u32) -> usize {
    (SEQUENCE.row_count * RATIO * head_dim) as usize
}

/// Runs a kernel on the problem, and returns the bytes of its results.
fn run(
    memory: &mut Memory<'_>,
    tiles: &Tiles,
    function: Function,
    params: Params,
    bytes: usize,
) -> Result<Vec<u8>, BackendError> {
    let mut results = vec![0; bytes];
    let params = Params {
        out: memory.hold(&results)?,
        ..params
    };
    memory.driver.run(&[Command::Kernel(Launch {
        function,
        params: bytemuck::bytes_of(&params).into(),
        grid: [(SEQUENCE.row_count * RATIO).div_ceil(ROWS), 1, 1],
        threads: tiles.threads,
        shared_bytes: tiles.shared_bytes,
    })])?;
    memory.driver.read(params.out, &mut results)?;
    Ok(results)
}

fn floats(bytes: &[u8], storage: Storage) -> Vec<f32> {
    match storage {
        Storage::F32 => bytemuck::pod_collect_to_vec(bytes),
        _ => bytemuck::pod_collect_to_vec::<u8, bf16>(bytes)
            .into_iter()
            .map(bf16::to_f32)
            .collect(),
    }
}

/// Values are up to 1, and both kernels round weights to 11 bits.
const ALLOWED: f32 = 1.0 / 64.0;

fn compare(kernel: &Kernel, expected: &[f32], found: &[f32]) -> Result<(), BackendError> {
    let count = expected
        .iter()
        .zip(found)
        .filter(|pair| is_wrong(*pair))
        .count();
    if count == 0 {
        return Ok(());
    }
    let message = format!(
        "{count} of {} results differ from attend_paged_prefill's",
        expected.len()
    );
    Err(BackendError::Kernel {
        kernel: kernel.to_string(),
        message,
    })
}

fn is_wrong((a, b): (&f32, &f32)) -> bool {
    (a - b).abs().partial_cmp(&ALLOWED) != Some(std::cmp::Ordering::Less)
}

#[cfg(all(test, unix))]
mod tests;
