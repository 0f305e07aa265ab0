//! `AttendPaged` → one launch, or two launches over a work list that is planned here for each batch and KV group.
//!
//! The tensor-core kernels take bfloat16 queries and f16 or q8 pools. Packed rows are the query heads of one KV head
//! over a sequence's token rows. A sequence with few packed rows goes to `attend_paged_decode`; any other is cut into
//! tiles for `attend_paged_prefill`. For decode, the keys of all sequences are concatenated and cut into lanes of equal
//! length, one for each block that the device runs at once; the kernel joins the parts of a sequence that was cut. With
//! [`Capacity::deterministic`] nothing is cut. All other cases go to `attend_paged_vec`, which needs no list.
//! On Hopper, [`wgmma`] may take the place of `attend_paged_prefill`.
//! `cuda/common/attend.cuh` has the list's layout.
//!
//! In small decode batches `attend_paged_decode` also runs the `RopeStoreKv` before it ([`stores`]).

pub(in super::super) mod wgmma;

use super::super::super::metadata::{
    ITEM_COUNT, ITEM_KEY_BEGIN, ITEM_KEY_END, ITEM_PACKED, ITEM_POSITION, ITEM_ROW, ITEM_SLOT,
    ITEM_TABLE, LANE_ITEM_COUNTER, LANE_ITEM_PARTS, LANE_ITEM_SLOT_FIRST, LANE_ITEM_WORDS,
    LANE_LIST_ITEMS, LANE_LIST_LANES, LANE_LIST_TILES, LANE_LIST_WORDS, group_header, record,
};
use super::super::super::{BackendError, Capacity};
use super::super::driver::Facts;
use super::rope_store_kv::{self, HeadParams};
use super::{Kernel, Recorder, params};
use crate::plan::check::{LATENT_DIM_MAX, LATENT_HEADS_MAX};
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows};
use crate::plan::{
    AttendPaged, KvFormat, KvLayer, Plan, RopeStoreKv, Step, Storage, WeightId, Window,
};
use std::ops::Range;

params! {
    Params {
        metadata: u64, q: u64, k: u64, v: u64, alibi: u64, sinks: u64, out: u64, scratch: u64, counters: u64,
        group_header: u32,
        kv_heads: u32,
        group: u32,
        block_shift: u32,
        window: u32,
        scale: f32,
        softcap: f32,
        unused: u32,
    }
}

params! {
    /// Params of `attend_paged_decode` if it stores keys and values.
    StoringParams { attend: Params, heads: HeadParams }
}

/// An item of a lane or a tile.
type Item = [u32; LANE_ITEM_WORDS as usize];
/// Packed rows in one item of a lane.
const LANE_ROWS: u32 = 16;
/// Minimum packed rows of a tile.
const TILE_ROWS_MIN: u32 = 64;
/// Lanes start at multiples of this many keys: whole tiles in every variant.
const UNIT: u32 = 32;
/// Minimum length of a lane in units.
const LANE_UNITS_MIN: u32 = 4;
/// Maximum lanes per sequence, not counting one more at its ends.
const SPLITS_MAX: u32 = 48;
/// Parts of a sequence that the kernel has room for.
const PARTS_MAX: u32 = 64;
/// Maximum query heads per KV head of the tensor-core kernels, and of a block of `attend_paged_vec`.
const RATIO_MAX: u32 = 16;
/// Bytes of shared memory that the device reserves in each block.
const SHARED_RESERVED: u32 = 1024;

/// A variant of a tensor-core kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    warps: u32,
    /// Keys per tile.
    keys: u32,
    /// Stages of `attend_paged_decode`, or strips of 16 rows per warp of `attend_paged_prefill`.
    depth: u32,
    shared_bytes: u32,
}

/// A kernel for tiles of many packed rows, with its launch.
struct Tiles {
    kernel: Kernel,
    threads: u32,
    shared_bytes: u32,
}

/// Bytes of a row of 16-byte pieces, padded to an odd number of pieces.
fn stride(pieces: u32) -> u32 {
    (pieces | 1) * 16
}

/// Bytes of a tile's keys and values.
fn tile_bytes(head_dim: u32, format: KvFormat, keys: u32) -> u32 {
    debug_assert!(
        head_dim.is_multiple_of(16),
        "tensor cores take heads of whole pieces"
    );
    match format {
        KvFormat::Q8 | KvFormat::Fp8 => 2 * keys * (stride(head_dim / 16) + 4),
        KvFormat::F16 | KvFormat::F32 => 2 * keys * stride(head_dim / 8),
    }
}

/// Variant of `attend_paged_decode`: three stages if two blocks still fit on a multiprocessor.
fn decode_variant(head_dim: u32, format: KvFormat, facts: &Facts) -> Variant {
    let limit = facts.shared_bytes_max;
    let keys = if format.is_coded() || head_dim <= 64 {
        32
    } else {
        16
    };
    let sized = |warps: u32, depth: u32| {
        let stage = warps * tile_bytes(head_dim, format, keys);
        // As in the kernel: the sums are behind the first stage, and the query is at the end.
        let sums = (warps * LANE_ROWS * (head_dim + 10) * 4).max(PARTS_MAX * LANE_ROWS * 8);
        let query = LANE_ROWS * (head_dim + 8) * 2;
        let stages = if depth > 2 {
            depth * stage
        } else {
            (depth * stage).max(stage + sums) + query
        };
        let operands = if head_dim > 176 { 32 * head_dim } else { 0 };
        let row_bytes = if format.is_coded() {
            head_dim
        } else {
            2 * head_dim
        };
        let fresh = 2 * row_bytes + 16;
        Variant {
            warps,
            keys,
            depth,
            shared_bytes: stages + operands + warps * 8 + fresh,
        }
    };
    let half = (limit + SHARED_RESERVED) / 2 - SHARED_RESERVED;
    let depth = if sized(4, 3).shared_bytes <= half {
        3
    } else {
        2
    };
    let warps = if sized(4, depth).shared_bytes <= limit {
        4
    } else {
        2
    };
    sized(warps, depth)
}

/// Variant of `attend_paged_prefill`: the largest tiles that registers and shared memory allow.
fn prefill_variant(head_dim: u32, format: KvFormat, is_plain: bool, facts: &Facts) -> Variant {
    let sized = |warps: u32, depth: u32, keys: u32| {
        let rows = 16 * depth * warps;
        let row_bytes = stride(head_dim / 8) + if depth > 1 { 4 } else { 0 };
        Variant {
            warps,
            keys,
            depth,
            shared_bytes: rows * row_bytes + tile_bytes(head_dim, format, keys),
        }
    };
    if head_dim <= 128 {
        // Compilers for newer devices use registers that the larger tile needs.
        let is_large = head_dim <= 96 || is_plain && facts.compute.0 < 10;
        return sized(4, 2, if is_large { 64 } else { 32 });
    }
    // The tile's rows do not depend on this step's options: tiles are planned for all steps of a group. Codes need more
    // registers, and those of fp8 the most.
    let is_large = match format {
        KvFormat::F32 | KvFormat::F16 => true,
        KvFormat::Q8 => is_plain,
        KvFormat::Fp8 => false,
    };
    let large = is_large.then(|| sized(8, 1, 64));
    large
        .into_iter()
        .chain([sized(8, 1, 32)])
        .find(|variant| variant.shared_bytes <= facts.shared_bytes_max)
        .unwrap_or(sized(4, 1, 32))
}

/// Blocks of `attend_paged_decode` that a device runs at once.
fn blocks_at_once(layer: &KvLayer, format: KvFormat, facts: &Facts) -> u32 {
    let shared = decode_variant(layer.head_dim, format, facts).shared_bytes;
    let blocks = (facts.shared_bytes_max + SHARED_RESERVED) / (shared + SHARED_RESERVED);
    facts.sm_count * blocks.clamp(1, 2)
}

/// The KV layer and the query heads per KV head, if tensor cores can take this step. Compilers for newer devices run
/// out of registers for the largest heads of 8-bit elements.
fn tensor_step(
    plan: &Plan,
    capacity: &Capacity,
    facts: &Facts,
    step: &Step,
) -> Option<(KvLayer, u32)> {
    let Step::AttendPaged(step) = step else {
        return None;
    };
    let layer = plan.kv_layers[step.layer as usize];
    let ratio = step.query_heads / layer.heads.max(1);
    let fits = plan.buffer_spec(step.q).storage == Storage::Bf16
        && capacity.kv_format != KvFormat::F32
        && layer.head_dim.is_multiple_of(16)
        && (16..=256).contains(&layer.head_dim)
        && (1..=RATIO_MAX).contains(&ratio)
        && step.scale > 0.0
        && !(capacity.kv_format.is_coded() && layer.head_dim > 192 && facts.compute.0 >= 10);
    fits.then_some((layer, ratio))
}

/// The planner of a KV group's list, if the group needs one: planned for the head ratio of its first step that tensor
/// cores can take. Steps with another ratio do not use the list.
fn planner(plan: &Plan, capacity: &Capacity, facts: &Facts, group: usize) -> Option<Planner> {
    debug_assert!(group < plan.kv_groups.len(), "a KV group of this plan");
    let steps = || {
        plan.body
            .iter()
            .filter_map(move |step| tensor_step(plan, capacity, facts, step))
    };
    let in_group = || steps().filter(move |(layer, _)| layer.group as usize == group);
    let (_, ratio) = in_group().next()?;
    let layers = || {
        in_group()
            .filter(move |(_, other)| *other == ratio)
            .map(|(layer, _)| layer)
    };
    Some(Planner {
        ratio,
        window: plan.kv_groups[group].window,
        lanes_max: layers()
            .map(|layer| {
                (blocks_at_once(&layer, capacity.kv_format, facts) / layer.heads.max(1)).max(1)
            })
            .max()?,
        tile_rows: layers()
            .map(|layer| {
                let variant = prefill_variant(layer.head_dim, capacity.kv_format, true, facts);
                16 * variant.depth * variant.warps
            })
            .min()?,
        splits: !capacity.deterministic,
    })
}

/// The KV groups that need a list.
fn planners<'a>(
    plan: &'a Plan,
    capacity: &'a Capacity,
    facts: &'a Facts,
) -> impl Iterator<Item = (usize, Planner)> + 'a {
    (0..plan.kv_groups.len())
        .filter_map(move |group| Some((group, planner(plan, capacity, facts, group)?)))
}

/// Maximum words that [`work`] appends for one group.
pub(in super::super) fn work_words_max(plan: &Plan, capacity: &Capacity, facts: &Facts) -> u64 {
    planners(plan, capacity, facts)
        .map(|(_, planner)| {
            let (lanes, sequences) = (
                u64::from(planner.lanes_max),
                u64::from(capacity.sequences_max),
            );
            let tiles = u64::from(capacity.tokens_max) * u64::from(planner.ratio)
                / u64::from(TILE_ROWS_MIN)
                + sequences;
            u64::from(LANE_LIST_WORDS)
                + lanes.max(sequences)
                + 1
                + (sequences + lanes + tiles) * u64::from(LANE_ITEM_WORDS)
        })
        .max()
        .unwrap_or(0)
}

/// Maximum of `number` over the layers that tensor cores may take, called with the lanes of their group.
fn largest(
    plan: &Plan,
    capacity: &Capacity,
    facts: &Facts,
    number: impl Fn(&KvLayer, u64) -> u64,
) -> u64 {
    planners(plan, capacity, facts)
        .map(|(group, planner)| {
            let layers = plan
                .kv_layers
                .iter()
                .filter(move |layer| layer.group as usize == group);
            layers
                .map(|layer| number(layer, u64::from(planner.lanes_max)))
                .max()
                .unwrap_or(0)
        })
        .max()
        .unwrap_or(0)
}

/// Bytes of scratch for partial sums; one buffer, reused by every layer.
pub(in super::super) fn scratch_bytes(plan: &Plan, capacity: &Capacity, facts: &Facts) -> u64 {
    // A lane has at most two partial items: one continued from the lane before, one continued in the next.
    if capacity.deterministic {
        0
    } else {
        largest(plan, capacity, facts, |layer: &KvLayer, lanes: u64| {
            2 * lanes
                * u64::from(layer.heads)
                * u64::from(LANE_ROWS)
                * u64::from(layer.head_dim + 2)
                * 4
        })
    }
}

/// Number of counters: one per KV head for each set of rows that is cut into parts.
pub(in super::super) fn counters(plan: &Plan, capacity: &Capacity, facts: &Facts) -> u32 {
    let count = largest(plan, capacity, facts, |layer, lanes| {
        lanes * u64::from(layer.heads)
    });
    if capacity.deterministic {
        0
    } else {
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

/// Appends the work list of KV group `group`.
pub(in super::super) fn work(
    plan: &Plan,
    capacity: &Capacity,
    facts: &Facts,
    inputs: &BatchInputs,
    group: usize,
    words: &mut Vec<u32>,
) {
    let words_before = words.len();
    if let Some(planner) = planner(plan, capacity, facts, group) {
        planner.plan(&inputs.sequences, &inputs.groups[group].table_starts, words);
    }
    let words_max = work_words_max(plan, capacity, facts);
    debug_assert!(
        (words.len() - words_before) as u64 <= words_max,
        "the list fits the metadata"
    );
}

/// What a group's list depends on, apart from the batch.
#[derive(Clone, Copy, Debug)]
struct Planner {
    ratio: u32,
    window: Option<Window>,
    lanes_max: u32,
    tile_rows: u32,
    splits: bool,
}

/// Packed rows of a sequence, and the range of keys that any of them sees.
#[derive(Clone, Debug)]
struct Run {
    sequence: SequenceRows,
    table_start: u32,
    packed: Range<u32>,
    keys: Range<u32>,
}

impl Run {
    /// The key range in units; the first and last may be partial.
    fn units(&self) -> Range<u32> {
        self.keys.start / UNIT..self.keys.end.div_ceil(UNIT)
    }

    fn item(&self, units: Range<u32>) -> Item {
        debug_assert!(
            self.units().start <= units.start && units.end <= self.units().end,
            "keys of this run"
        );
        let begin = (units.start * UNIT).max(self.keys.start);
        let end = (units.end * UNIT).min(self.keys.end);
        record(&[
            (ITEM_ROW, self.sequence.row_start),
            (ITEM_PACKED, self.packed.start),
            (ITEM_COUNT, self.packed.end - self.packed.start),
            (
                ITEM_POSITION,
                self.sequence.context_len - self.sequence.row_count,
            ),
            (ITEM_KEY_BEGIN, begin),
            (ITEM_KEY_END, end),
            (ITEM_TABLE, self.table_start),
            (ITEM_SLOT, NONE),
            (LANE_ITEM_PARTS, 1),
        ])
    }
}

/// The lanes of a list.
#[derive(Default)]
struct Lanes {
    /// First item of each lane.
    starts: Vec<u32>,
    items: Vec<Item>,
}

impl Planner {
    fn plan(&self, sequences: &[SequenceRows], table_starts: &[u32], words: &mut Vec<u32>) {
        debug_assert_eq!(
            sequences.len(),
            table_starts.len(),
            "every sequence has a block table"
        );
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for (sequence, table_start) in sequences.iter().zip(table_starts) {
            let packed = sequence.row_count * self.ratio;
            if packed <= LANE_ROWS {
                few.extend(self.runs(*sequence, *table_start, LANE_ROWS));
            } else {
                many.extend(self.runs(*sequence, *table_start, self.tile_rows));
            }
        }
        sort_longest_first(&mut many);
        let lanes = if self.splits {
            self.lanes(&few)
        } else {
            sort_longest_first(&mut few);
            let items: Vec<_> = few.iter().map(|run| run.item(run.units())).collect();
            Lanes {
                starts: (0..).take(items.len()).collect(),
                items,
            }
        };
        let items = count(lanes.items.len());
        words.extend(record::<{ LANE_LIST_WORDS as usize }>(&[
            (LANE_LIST_LANES, count(lanes.starts.len())),
            (LANE_LIST_ITEMS, items),
            (LANE_LIST_TILES, count(many.len())),
        ]));
        words.extend(lanes.starts.iter().chain([&items]));
        words.extend(lanes.items.iter().flatten());
        words.extend(many.iter().flat_map(|run| run.item(run.units())));
    }

    /// Cuts a sequence's packed rows into runs of at most `size` rows.
    fn runs(
        &self,
        sequence: SequenceRows,
        table_start: u32,
        size: u32,
    ) -> impl Iterator<Item = Run> + use<> {
        debug_assert!(
            size > 0 && sequence.row_count <= sequence.context_len,
            "rows are the context's last tokens"
        );
        let Self { ratio, window, .. } = *self;
        let end = sequence.row_count * ratio;
        let first_position = sequence.context_len - sequence.row_count;
        (0..end).step_by(size as usize).map(move |start| {
            let packed = start..(start + size).min(end);
            let position = |packed: u32| first_position + packed / ratio;
            let begin = window.map_or(0, |window| window.first_visible(position(packed.start)));
            let keys = begin..position(packed.end - 1) + 1;
            Run {
                sequence,
                table_start,
                packed,
                keys,
            }
        })
    }

    /// Distributes the units of all runs, in order, over lanes of equal length.
    fn lanes(&self, runs: &[Run]) -> Lanes {
        let total: u64 = runs.iter().map(|run| run.units().len() as u64).sum();
        let longest = runs
            .iter()
            .map(|run| run.units().len() as u32)
            .max()
            .unwrap_or(0);
        let even = u32::try_from(total.div_ceil(u64::from(self.lanes_max))).unwrap_or(u32::MAX);
        let length = even.max(longest.div_ceil(SPLITS_MAX)).max(LANE_UNITS_MIN);
        let mut lanes = Lanes::default();
        let (mut left, mut slots, mut counters) = (0, 0, 0);
        for run in runs {
            let first_item = lanes.items.len();
            let mut units = run.units();
            while !units.is_empty() {
                if left == 0 {
                    lanes.starts.push(lanes.items.len() as u32);
                    left = length;
                }
                let cut = units.start + left.min(units.end - units.start);
                lanes.items.push(run.item(units.start..cut));
                left -= cut - units.start;
                units.start = cut;
            }
            let parts = &mut lanes.items[first_item..];
            if parts.len() > 1 {
                let count = parts.len() as u32;
                for (slot, item) in (slots..).zip(parts) {
                    item[ITEM_SLOT as usize] = slot;
                    item[LANE_ITEM_SLOT_FIRST as usize] = slots;
                    item[LANE_ITEM_PARTS as usize] = count;
                    item[LANE_ITEM_COUNTER as usize] = counters;
                }
                slots += count;
                counters += 1;
            }
        }
        debug_assert!(
            lanes.starts.len() <= self.lanes_max as usize,
            "every lane has a block"
        );
        debug_assert!(
            slots <= 2 * self.lanes_max && counters <= self.lanes_max,
            "the parts fit the scratch"
        );
        lanes
    }
}

fn sort_longest_first(runs: &mut [Run]) {
    runs.sort_by_key(|run| std::cmp::Reverse(run.units().len()));
}

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Records the launches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &AttendPaged) -> Result<(), BackendError> {
    let plan = recorder.plan;
    let layer = plan.kv_layers[step.layer as usize];
    let ratio = step.query_heads / layer.heads.max(1);
    if !layer.head_dim.is_multiple_of(8) || !(8..=LATENT_DIM_MAX).contains(&layer.head_dim) {
        return Err(BackendError::head_dim("attend_paged", layer.head_dim));
    }
    let ratio_max = if layer.latent {
        LATENT_HEADS_MAX
    } else {
        RATIO_MAX
    };
    if !(1..=ratio_max).contains(&ratio) {
        let (what, message) = (
            format!("attend_paged with {ratio} query heads per KV head"),
            format!("1 to {ratio_max} are supported"),
        );
        return Err(BackendError::Unsupported { what, message });
    }
    let params = params(recorder, step);
    match tensor_planner(recorder, step) {
        Some(planner) => encode_tensor(recorder, step, &params, &layer, &planner),
        None => encode_vec(recorder, step, &params, &layer),
    }
}

/// The planner of the step's list, if tensor cores take the step.
fn tensor_planner(recorder: &Recorder<'_>, step: &AttendPaged) -> Option<Planner> {
    let (plan, capacity) = (recorder.plan, recorder.capacity);
    let layer = plan.kv_layers[step.layer as usize];
    let is_tensor = recorder.storage(step.q) == Storage::Bf16
        && capacity.kv_format != KvFormat::F32
        && layer.head_dim.is_multiple_of(16)
        && layer.head_dim <= 256
        && step.scale > 0.0
        // These would need more registers than there are; no model has both.
        && !(layer.head_dim > 192 && step.softcap.is_some() && step.alibi.is_some());
    if !is_tensor {
        return None;
    }
    let planner = planner(plan, capacity, recorder.device, layer.group as usize);
    planner.filter(|planner| planner.ratio == step.query_heads / layer.heads.max(1))
}

fn params(recorder: &Recorder<'_>, step: &AttendPaged) -> Params {
    let (plan, arena) = (recorder.plan, recorder.arena);
    let layer = plan.kv_layers[step.layer as usize];
    let ratio = step.query_heads / layer.heads.max(1);
    debug_assert_eq!(
        step.query_heads,
        ratio * layer.heads,
        "every KV head has the same number of query heads"
    );
    let [k, v] = arena.kv(step.layer);
    Params {
        metadata: arena.metadata,
        q: recorder.row_buffer(step.q),
        k,
        v,
        alibi: recorder.optional(step.alibi),
        sinks: recorder.optional(step.sinks),
        out: recorder.row_buffer(step.out),
        scratch: arena.attend_scratch,
        counters: arena.attend_counters,
        group_header: group_header(layer.group),
        kv_heads: layer.heads,
        group: ratio,
        block_shift: recorder.capacity.block_size.trailing_zeros(),
        window: plan.kv_groups[layer.group as usize]
            .window
            .map_or(NONE, Window::tokens),
        scale: step.scale,
        softcap: step.softcap.unwrap_or(0.0),
        unused: 0,
    }
}

/// Whether `attend_paged_decode` makes the query of a step, and stores its keys and values, instead of a kernel before
/// it. Each block makes the queries of its items: with more items than blocks, that takes longer than a launch.
fn stores(recorder: &Recorder<'_>, store: &RopeStoreKv, step: &AttendPaged) -> bool {
    let layer = recorder.plan.kv_layers[step.layer as usize];
    let blocks = blocks_at_once(&layer, recorder.capacity.kv_format, recorder.device);
    recorder.shape.apart
        && recorder.shape.sequences * layer.heads <= blocks
        && recorder.storage(store.qkv) == Storage::Bf16
        // Rows of a prompt get their keys from the other kernel, which the compiler may round in another way.
        && !recorder.capacity.deterministic
        && tensor_planner(recorder, step).is_some()
}

/// Records a store and the attention after it as one launch. Returns `false` if they run better separately.
pub(super) fn encode_fused(
    recorder: &mut Recorder<'_>,
    store: &RopeStoreKv,
    step: &AttendPaged,
) -> Result<bool, BackendError> {
    if !stores(recorder, store, step) {
        return Ok(false);
    }
    let layer = recorder.plan.kv_layers[step.layer as usize];
    let attend = Params {
        q: 0,
        ..params(recorder, step)
    };
    let params = StoringParams {
        attend,
        heads: rope_store_kv::head_params(recorder, store),
    };
    let kernel = decode_kernel(recorder, step, &layer).define("STORES", 1);
    let kernel = rope_store_kv::with_heads(recorder, store, kernel);
    launch_decode(recorder, &kernel, &params, &layer)?;
    Ok(true)
}

/// `kernel` for a head and buffers of these types.
fn typed(kernel: &'static str, head_dim: u32, q: Storage, out: Storage) -> Kernel {
    Kernel::new(kernel)
        .define("HEAD_DIM", head_dim)
        .define_type("Q_TYPE", q)
        .define_type("OUT_TYPE", out)
}

/// Whether a query of this layer sees the keys of its chunk.
fn has_chunks(recorder: &Recorder<'_>, layer: &KvLayer) -> bool {
    let group = &recorder.plan.kv_groups[layer.group as usize];
    matches!(group.window, Some(Window::Chunk(_)))
}

/// A tensor-core kernel with what it is compiled for besides.
fn optioned(
    kernel: Kernel,
    format: KvFormat,
    softcap: Option<f32>,
    alibi: Option<WeightId>,
) -> Kernel {
    let kernel = kernel
        .flag_if(format == KvFormat::Q8, "KV_Q8")
        .flag_if(format == KvFormat::Fp8, "KV_FP8");
    kernel
        .flag_if(softcap.is_some(), "SOFTCAP")
        .flag_if(alibi.is_some(), "ALIBI")
}

/// `attend_paged_prefill` for q and out of these types.
fn usual_tiles(
    head_dim: u32,
    (q, out): (Storage, Storage),
    format: KvFormat,
    (softcap, alibi): (Option<f32>, Option<WeightId>),
    facts: &Facts,
) -> Tiles {
    let is_plain = softcap.is_none() && alibi.is_none();
    let Variant {
        warps,
        keys,
        depth,
        shared_bytes,
    } = prefill_variant(head_dim, format, is_plain, facts);
    let kernel = optioned(
        typed("attend_paged_prefill", head_dim, q, out),
        format,
        softcap,
        alibi,
    );
    let kernel = kernel
        .define("WARPS", warps)
        .define("WARP_STRIPS", depth)
        .define("TILE_KEYS", keys);
    Tiles {
        kernel,
        threads: 32 * warps,
        shared_bytes,
    }
}

fn encode_vec(
    recorder: &mut Recorder<'_>,
    step: &AttendPaged,
    params: &Params,
    layer: &KvLayer,
) -> Result<(), BackendError> {
    let format = match recorder.capacity.kv_format {
        KvFormat::F32 => "KV_F32",
        KvFormat::F16 => "KV_F16",
        KvFormat::Q8 => "KV_Q8",
        KvFormat::Fp8 => "KV_FP8",
    };
    let kernel = typed(
        "attend_paged_vec",
        layer.head_dim,
        recorder.storage(step.q),
        recorder.storage(step.out),
    );
    let shared_bytes = |group: u32| 4 * (group * (layer.head_dim + 19) + 16 * (layer.head_dim + 4));
    let group = (1..=params.group.min(RATIO_MAX))
        .rev()
        .find(|group| {
            params.group.is_multiple_of(*group)
                && shared_bytes(*group) <= recorder.device.shared_bytes_max
        })
        .unwrap_or(1);
    let (kernel, shared_bytes) = (
        kernel
            .define("GROUP", group)
            .define(format, 1)
            .flag_if(has_chunks(recorder, layer), "CHUNKS"),
        shared_bytes(group),
    );
    let blocks = recorder.rows(step.q) * (step.query_heads / group);
    recorder.launch(&kernel, params, [blocks, 1, 1], 128, shared_bytes)
}

fn decode_kernel(recorder: &Recorder<'_>, step: &AttendPaged, layer: &KvLayer) -> Kernel {
    let format = recorder.capacity.kv_format;
    let variant = decode_variant(layer.head_dim, format, recorder.device);
    let kernel = typed(
        "attend_paged_decode",
        layer.head_dim,
        recorder.storage(step.q),
        recorder.storage(step.out),
    );
    let kernel = optioned(kernel, format, step.softcap, step.alibi);
    kernel
        .define("WARPS", variant.warps)
        .define("TILE_KEYS", variant.keys)
        .define("STAGES", variant.depth)
        .flag_if(has_chunks(recorder, layer), "CHUNKS")
}

fn launch_decode<P: bytemuck::Pod>(
    recorder: &mut Recorder<'_>,
    kernel: &Kernel,
    params: &P,
    layer: &KvLayer,
) -> Result<(), BackendError> {
    let (format, device) = (recorder.capacity.kv_format, recorder.device);
    let variant = decode_variant(layer.head_dim, format, device);
    let grid = [blocks_at_once(layer, format, device), 1, 1];
    recorder.launch(
        kernel,
        params,
        grid,
        32 * variant.warps,
        variant.shared_bytes,
    )
}

fn encode_tensor(
    recorder: &mut Recorder<'_>,
    step: &AttendPaged,
    params: &Params,
    layer: &KvLayer,
    planner: &Planner,
) -> Result<(), BackendError> {
    debug_assert_eq!(
        params.group, planner.ratio,
        "the list was planned for this step"
    );
    let kernel = decode_kernel(recorder, step, layer);
    launch_decode(recorder, &kernel, params, layer)?;
    // In a decode batch every sequence has one row, few enough for lanes.
    if recorder.shape.decode {
        return Ok(());
    }
    let is_plain = step.softcap.is_none() && step.alibi.is_none();
    let (format, device, head_dim) = (recorder.capacity.kv_format, recorder.device, layer.head_dim);
    let (q, out) = (recorder.storage(step.q), recorder.storage(step.out));
    let packed_rows = recorder.shape.tokens * planner.ratio;
    let Tiles {
        kernel,
        threads,
        shared_bytes,
    } = match wgmma::is_chosen(head_dim, is_plain, packed_rows, recorder.capacity, device) {
        true => wgmma::tiles(head_dim, q, out),
        false => usual_tiles(
            head_dim,
            (q, out),
            format,
            (step.softcap, step.alibi),
            device,
        ),
    };
    let kernel = kernel.flag_if(has_chunks(recorder, layer), "CHUNKS");
    let tiles = packed_rows / planner.tile_rows + recorder.shape.sequences;
    recorder.launch(
        &kernel,
        params,
        [tiles * layer.heads, 1, 1],
        threads,
        shared_bytes,
    )
}

#[cfg(test)]
mod tests;
