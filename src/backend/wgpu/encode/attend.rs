//! `AttendPaged` → dispatches over a work list that is planned here, per batch and KV group.
//!
//! A work item is a few packed rows (query heads of one KV head, over the token rows of one sequence) and a range of
//! keys; a kernel runs every item for every KV head. Sequences with one row and those with more are in separate lists,
//! since their kernels differ; those with many rows use tiles. If a batch has too few items to fill the device, the
//! key ranges of long single-row sequences are split, and a merge dispatch joins the results.
//!
//! The bits of a row's result depend only on its sequence (kernel, tiles) and on the split points. With
//! [`Capacity::deterministic`] nothing is split, so a batch gives the same bits as each sequence alone.

use super::super::super::metadata::{
    Context, ITEM_COUNT, ITEM_KEY_BEGIN, ITEM_KEY_END, ITEM_PACKED, ITEM_POSITION, ITEM_ROW,
    ITEM_SLOT, ITEM_TABLE, ITEM_WORDS, MERGE_ITEM_SPLITS, group_header, record,
};
use super::super::super::{BackendError, Capacity};
use super::super::arena::Binding;
use super::super::device::{Class, Profile, Tier};
use super::super::matrices::Matrices;
use super::super::pipelines::Kernel;
use super::matmul::with_matrices;
use super::{Recorder, Variant, params};
use crate::plan::check::LATENT_DIM_MAX;
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows};
use crate::plan::{AttendPaged, KvFormat, KvLayer, Plan, Step, WeightId};

params! {
    Params {
        items: u32,
        item_start: u32,
        group_header: u32,
        kv_heads: u32,
        head_first: u32,
        head_count: u32,
        group: u32,
        block_shift: u32,
        window: u32,
        scale: f32,
        softcap: f32,
    }
}

/// Maximum packed rows of an item; packed rows of a slot of the partial buffer.
const ROWS_MAX: u32 = 8;
/// Heads up to this size have tiles; larger ones are attended to in a few rows at a time, since a row takes twice the
/// workgroup memory, or four times beyond [`HEAD_DIM_WIDE`].
const HEAD_DIM_USUAL: u32 = 256;
const HEAD_DIM_WIDE: u32 = 512;
/// Maximum packed rows of an item of `attend_paged_prefill`.
const TILE_ROWS: u32 = 32;
/// Keys of a tile of `attend_paged_matrices`.
const TILE_KEYS: u32 = 64;
/// Ranges of keys start and end at multiples of it, except at the ends of a sequence.
const TILE: u32 = 32;
/// Minimum keys of a range after splitting.
const SPLIT_KEYS_MIN: u32 = 32;
/// Maximum ranges per row.
const SPLITS_MAX: u32 = 32;

/// Number of entries in each part of a KV group's work list, in this order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AttendShape {
    /// Items of sequences with one token row.
    pub(crate) single: u32,
    /// Items of sequences with several token rows.
    pub(crate) chunked: u32,
    /// Larger items of such sequences, for the tile kernel.
    pub(crate) tiled: u32,
    /// Merges of the partial results of `single` items.
    pub(crate) merges: u32,
}

/// Query heads per KV head in KV group `group`, if all its layers have the same number.
fn heads_ratio(plan: &Plan, group: usize) -> Option<u32> {
    debug_assert!(group < plan.kv_groups.len(), "a KV group of this plan");
    let mut ratios = plan.body.iter().filter_map(|step| match step {
        Step::AttendPaged(step) => {
            let layer = plan.kv_layers[step.layer as usize];
            (layer.group as usize == group).then_some(step.query_heads / layer.heads.max(1))
        }
        _ => None,
    });
    let first = ratios.next()?;
    ratios.all(|ratio| ratio == first).then_some(first)
}

fn layers(plan: &Plan, group: usize) -> impl Iterator<Item = &KvLayer> {
    plan.kv_layers
        .iter()
        .filter(move |layer| layer.group as usize == group)
}

/// Maximum packed rows of an item of this group that is no tile.
fn rows_max(plan: &Plan, group: usize) -> u32 {
    head_rows_max(
        layers(plan, group)
            .map(|layer| layer.head_dim)
            .max()
            .unwrap_or(0),
    )
}

/// The same for heads of one size.
fn head_rows_max(head_dim: u32) -> u32 {
    match head_dim {
        ..=HEAD_DIM_USUAL => ROWS_MAX,
        dim if dim <= HEAD_DIM_WIDE => ROWS_MAX / 2,
        _ => ROWS_MAX / 4,
    }
}

/// Maximum slots of the partial buffer used by the splits of one batch.
fn slots_max(plan: &Plan, group: usize, capacity: &Capacity, profile: &Profile) -> u32 {
    let heads = layers(plan, group)
        .map(|layer| layer.heads)
        .min()
        .unwrap_or(1)
        .max(1);
    if capacity.deterministic {
        0
    } else {
        profile.attention_workgroups() / heads
    }
}

/// Maximum words that [`work`] appends for one group.
pub(crate) fn work_words_max(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let profile = &profile.with_most_scratch();
    (0..plan.kv_groups.len())
        .map(|group| {
            let ratio = u64::from(heads_ratio(plan, group).unwrap_or(1));
            let rows_max = u64::from(rows_max(plan, group));
            let rows = u64::from(capacity.tokens_max) * ratio / rows_max;
            let ends = u64::from(capacity.sequences_max) * (2 + ratio.div_ceil(rows_max));
            rows + ends + 2 * u64::from(slots_max(plan, group, capacity, profile))
        })
        .max()
        .unwrap_or(0)
        * u64::from(ITEM_WORDS)
}

/// Bytes of scratch for partial results; one buffer, reused by every layer.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let profile = &profile.with_most_scratch();
    plan.kv_layers
        .iter()
        .map(|layer| {
            let slots = slots_max(plan, layer.group as usize, capacity, profile);
            u64::from(slots) * u64::from(layer.heads * ROWS_MAX) * u64::from(layer.head_dim + 4) * 4
        })
        .max()
        .unwrap_or(0)
}

/// The token rows of a sequence and their visible keys.
struct Planned {
    rows: SequenceRows,
    table_start: u32,
    ratio: u32,
    window: Option<u32>,
}

/// The sequences of a batch with their block tables in KV group `group`. With `joins`, single rows that follow each
/// other at consecutive positions of the same blocks, as drafts do, are one sequence of several rows: its keys and
/// values are read once for all of them.
fn sequences(
    inputs: &BatchInputs,
    group: usize,
    block_size: u32,
    joins: bool,
) -> impl Iterator<Item = (SequenceRows, u32)> {
    let group = &inputs.groups[group];
    debug_assert_eq!(
        group.table_starts.len(),
        inputs.sequences.len(),
        "every sequence has a block table"
    );
    let table = move |rows: &SequenceRows, start: u32| {
        &group.block_tables[start as usize..][..rows.context_len.div_ceil(block_size) as usize]
    };
    let continues = move |(rows, start): &(SequenceRows, u32),
                          (next, next_start): &(SequenceRows, u32)| {
        next.row_count == 1
            && next.row_start == rows.row_start + rows.row_count
            && next.context_len == rows.context_len + 1
            && table(next, *next_start).starts_with(table(rows, *start))
    };
    let all = inputs
        .sequences
        .iter()
        .copied()
        .zip(group.table_starts.iter().copied());
    let mut all = all.filter(|(rows, _)| rows.row_count > 0).peekable();
    std::iter::from_fn(move || {
        let mut joined = all.next()?;
        let alone = joined.0.row_count == 1;
        while let Some(next) = all.next_if(|next| joins && alone && continues(&joined, next)) {
            joined = (
                SequenceRows {
                    row_count: joined.0.row_count + 1,
                    row_start: joined.0.row_start,
                    ..next.0
                },
                next.1,
            );
        }
        Some(joined)
    })
}

impl Planned {
    fn packed(&self) -> u32 {
        self.rows.row_count * self.ratio
    }

    /// Range of keys visible to any of `count` packed rows from `first`; it starts at a tile boundary.
    fn keys(&self, first: u32, count: u32) -> std::ops::Range<u32> {
        debug_assert!(
            count > 0 && first + count <= self.packed(),
            "packed rows of this sequence"
        );
        let begin = self.window.map_or(0, |window| {
            (self.position(first) + 1).saturating_sub(window)
        });
        begin / TILE * TILE..self.position(first + count - 1) + 1
    }

    fn position(&self, packed: u32) -> u32 {
        self.first_position() + packed / self.ratio
    }

    fn first_position(&self) -> u32 {
        self.rows.context_len - self.rows.row_count
    }

    fn item(
        &self,
        packed: std::ops::Range<u32>,
        keys: std::ops::Range<u32>,
        slot: u32,
    ) -> [u32; ITEM_WORDS as usize] {
        debug_assert!(
            keys.start < keys.end && keys.end <= self.rows.context_len,
            "an item has keys of its sequence"
        );
        record(&[
            (ITEM_ROW, self.rows.row_start),
            (ITEM_PACKED, packed.start),
            (ITEM_COUNT, packed.end - packed.start),
            (ITEM_POSITION, self.first_position()),
            (ITEM_KEY_BEGIN, keys.start),
            (ITEM_KEY_END, keys.end),
            (ITEM_TABLE, self.table_start),
            (ITEM_SLOT, slot),
        ])
    }

    /// The item that joins the partial results of `slots`.
    fn merge_item(
        &self,
        packed: std::ops::Range<u32>,
        slots: std::ops::Range<u32>,
    ) -> [u32; ITEM_WORDS as usize] {
        debug_assert!(slots.len() > 1, "one part needs no merge");
        record(&[
            (ITEM_ROW, self.rows.row_start),
            (ITEM_PACKED, packed.start),
            (ITEM_COUNT, packed.end - packed.start),
            (MERGE_ITEM_SPLITS, slots.end - slots.start),
            (ITEM_SLOT, slots.start),
        ])
    }

    /// Splits the packed rows into runs of at most `size`.
    fn runs(&self, size: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
        debug_assert!(size > 0, "a run has rows");
        let end = self.packed();
        (0..end)
            .step_by(size as usize)
            .map(move |start| start..(start + size).min(end))
    }
}

/// Appends the work list of KV group `group` to the metadata; its offset is already in the header (GROUP_WORK).
pub(crate) fn work(
    context: &Context<'_>,
    profile: &Profile,
    inputs: &BatchInputs,
    group: usize,
    words: &mut Vec<u32>,
) -> AttendShape {
    let Some(ratio) = heads_ratio(context.plan, group) else {
        return AttendShape::default();
    };
    let (window, rows_max) = (
        context.plan.kv_groups[group].window,
        rows_max(context.plan, group),
    );
    let words_before = words.len();
    // A GPU has units for every row, and splits the keys of single rows among them.
    let joins = is_serial(profile) && !context.capacity.deterministic;
    let sequences = sequences(inputs, group, context.capacity.block_size, joins);
    let planned: Vec<Planned> = sequences
        .map(|(rows, table_start)| Planned {
            rows,
            table_start,
            ratio,
            window,
        })
        .collect();
    let mut shape = AttendShape::default();
    let mut merges = Vec::new();
    let singles = planned
        .iter()
        .filter(|sequence| sequence.rows.row_count == 1);
    let runs = singles
        .clone()
        .map(|sequence| sequence.packed().div_ceil(rows_max))
        .sum::<u32>();
    let slots = slots_max(context.plan, group, context.capacity, profile);
    let splits_max = (slots / runs.max(1)).clamp(1, SPLITS_MAX);
    let mut slot = 0;
    for sequence in singles {
        for run in sequence.runs(rows_max) {
            let keys = sequence.keys(run.start, run.end - run.start);
            let ranges = split(&keys, splits_max);
            let first = slot;
            for range in &ranges {
                let to = if ranges.len() > 1 { slot } else { NONE };
                words.extend(sequence.item(run.clone(), range.clone(), to));
                slot += u32::from(ranges.len() > 1);
                shape.single += 1;
            }
            if slot > first {
                merges.push(sequence.merge_item(run, first..slot));
            }
        }
    }
    let is_tiled = |sequence: &&Planned| {
        has_tiles(profile) && rows_max == ROWS_MAX && sequence.packed() > rows_max
    };
    for (size, tiled) in [(rows_max, false), (TILE_ROWS, true)] {
        let several = planned
            .iter()
            .filter(|sequence| sequence.rows.row_count > 1);
        for sequence in several.filter(|sequence| is_tiled(sequence) == tiled) {
            for run in sequence.runs(size) {
                let keys = sequence.keys(run.start, run.end - run.start);
                words.extend(sequence.item(run, keys, NONE));
                *(if tiled {
                    &mut shape.tiled
                } else {
                    &mut shape.chunked
                }) += 1;
            }
        }
    }
    shape.merges = u32::try_from(merges.len()).expect("a batch has few sequences");
    words.extend(merges.iter().flatten());
    let words_max = work_words_max(context.plan, context.capacity, profile);
    debug_assert!(
        (words.len() - words_before) as u64 <= words_max,
        "the list fits the metadata: {shape:?}"
    );
    debug_assert!(
        slot <= slots,
        "the partial results fit the scratch: {slot} of {slots} slots"
    );
    shape
}

/// Splits a range of keys into a power of two of parts, at most `splits_max`, none shorter than [`SPLIT_KEYS_MIN`]. A
/// power of two rarely changes while a sequence grows, and each change needs a new program.
fn split(keys: &std::ops::Range<u32>, splits_max: u32) -> Vec<std::ops::Range<u32>> {
    debug_assert!(
        !keys.is_empty() && splits_max > 0,
        "a range has at least one part"
    );
    let length = keys.end - keys.start;
    let parts_max = (length / SPLIT_KEYS_MIN).min(splits_max).max(1);
    let parts = 1 << parts_max.ilog2();
    let cut = |part: u32| match part {
        part if part == parts => keys.end,
        part => {
            keys.start
                + (u64::from(length) * u64::from(part) / u64::from(parts)) as u32 / TILE * TILE
        }
    };
    (0..parts).map(|part| cut(part)..cut(part + 1)).collect()
}

/// `kernel` for a pool in `format`.
pub(super) fn for_kv(kernel: Kernel, format: KvFormat, profile: &Profile) -> Kernel {
    match format {
        KvFormat::F32 => kernel,
        KvFormat::F16 => kernel
            .define("KV_F16")
            .define_if(!profile.half_conversion, "SOFT_HALF"),
        KvFormat::Q8 => kernel.define("KV_CODES"),
        KvFormat::Fp8 => kernel
            .define("KV_CODES")
            .define("KV_FP8")
            .define_if(!profile.half_conversion, "SOFT_HALF"),
    }
}

/// Options of the step that select kernel variants.
#[derive(Clone, Copy, Default)]
struct AttendOptions {
    softcap: bool,
    alibi: bool,
    sinks: bool,
}

/// Whether to use serial kernels: drivers that run shaders on a CPU need kernels without workgroup memory, which reduce
/// by subgroups.
pub(super) fn is_serial(profile: &Profile) -> bool {
    profile.class == Class::Software && profile.tier >= Tier::T1
}

/// Lanes of a workgroup of a serial kernel, all in one subgroup.
pub(super) fn serial_lanes(profile: &Profile) -> u32 {
    if profile.subgroup_size_min >= 8 { 8 } else { 4 }
}

/// The serial kernel is also used for prefill: there a tile costs more in workgroup memory than it saves in loads.
fn has_tiles(profile: &Profile) -> bool {
    !is_serial(profile)
}

/// The kernel for items of at most `rows` packed rows.
fn kernel(
    options: AttendOptions,
    head_dim: u32,
    rows: u32,
    format: KvFormat,
    profile: &Profile,
) -> Kernel {
    let runs = head_dim / 8;
    let kernel = if profile.texels {
        texel_kernel(runs.div_ceil(8), rows)
    } else if let Some(matrices) = profile.matrices
        && rows > ROWS_MAX
        && format != KvFormat::F32
    {
        matrices_kernel(runs.next_power_of_two().max(8), matrices)
    } else if rows > ROWS_MAX {
        let runs = runs.next_power_of_two().max(8);
        let kernel = Kernel::new("attend_paged_prefill").number("HEAD_RUNS", runs);
        kernel.number("VECTORS_EACH", runs / 8)
    } else if is_serial(profile) {
        let lanes = serial_lanes(profile);
        let kernel = Kernel::new("attend_paged_serial")
            .define("SUBGROUPS")
            .number("ROWS", rows);
        kernel
            .number("LANES", lanes)
            .number("LANE_CHUNKS", runs.div_ceil(lanes))
    } else {
        decode_kernel(runs, rows, profile)
    };
    let kernel = kernel.number("HEAD_CHUNKS", runs);
    let kernel = kernel
        .define_if(options.softcap, "SOFTCAP")
        .define_if(options.alibi, "ALIBI");
    for_kv(kernel.define_if(options.sinks, "SINKS"), format, profile)
}

/// `attend_paged_decode`: its lanes share keys by subgroups if one of any size holds the lanes of a key.
fn decode_kernel(runs: u32, rows: u32, profile: &Profile) -> Kernel {
    debug_assert!(
        rows.is_power_of_two() && rows <= ROWS_MAX,
        "a lane has {ROWS_MAX} scores"
    );
    let lanes = runs.next_power_of_two().max(8);
    let kernel = Kernel::new("attend_paged_decode")
        .define_if(lanes <= profile.subgroup_size_min, "SUBGROUPS");
    let kernel = kernel.number("ROWS", rows).number("KEYS", ROWS_MAX / rows);
    kernel
        .number("LANES", lanes)
        .number("LANE_DOUBLINGS", (lanes / 8).ilog2())
}

/// `attend_paged_matrices`.
fn matrices_kernel(runs: u32, matrices: Matrices) -> Kernel {
    let [scores, results] = [TILE_KEYS, 8 * runs].map(|columns| matrices.grid(TILE_ROWS, columns));
    with_matrices(Kernel::new("attend_paged_matrices"), matrices)
        .number("HEAD_RUNS", runs)
        .number("VALUE_RUNS", runs / 8)
        .number("SUBGROUPS_COUNT", matrices.subgroups())
        .number("SCORES_ACROSS", scores.across)
        .number("SCORE_MATRICES_DOWN", scores.matrices_down)
        .number("SCORE_MATRICES_ACROSS", scores.matrices_across)
        .number("RESULTS_ACROSS", results.across)
        .number("RESULT_MATRICES_DOWN", results.matrices_down)
        .number("RESULT_MATRICES_ACROSS", results.matrices_across)
}

/// `attend_paged_texel`: the more rows and runs per lane, the fewer keys at once, to limit registers.
fn texel_kernel(lane_chunks: u32, rows: u32) -> Kernel {
    debug_assert!(rows > 0 && lane_chunks > 0, "a lane has work");
    let keys = (64 / (rows * lane_chunks).next_power_of_two()).clamp(2, 8);
    let kernel = Kernel::new("attend_paged_texel")
        .define("TEXELS")
        .define("SUBGROUPS")
        .number("ROWS", rows);
    let kernel = kernel
        .number("LANE_CHUNKS", lane_chunks)
        .number("KEYS", keys);
    kernel
        .number("PAIRS", keys / 2)
        .number("QUADS", keys / 4)
        .number("OCTETS", keys / 8)
}

fn merge_kernel(sinks: bool, head_dim: u32) -> Kernel {
    Kernel::new("attend_paged_merge")
        .number("HEAD_CHUNKS", head_dim / 8)
        .define_if(sinks, "SINKS")
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &AttendPaged) -> Result<(), BackendError> {
    let arena = recorder.arena;
    let plan = recorder.plan;
    let layer = plan.kv_layers[step.layer as usize];
    let group = layer.group as usize;
    let ratio = step.query_heads / layer.heads;
    if heads_ratio(plan, group) != Some(ratio) {
        let (what, message) = (
            format!("attend_paged over KV group {group}"),
            "layers of one group must have the same number of query heads per KV head",
        );
        return Err(BackendError::Unsupported {
            what,
            message: message.into(),
        });
    }
    if !layer.head_dim.is_multiple_of(8) || layer.head_dim > LATENT_DIM_MAX {
        return Err(BackendError::head_dim("attend_paged", layer.head_dim));
    }
    debug_assert!(
        step.query_heads.is_multiple_of(layer.heads),
        "every KV head has the same number of query heads"
    );
    let shape = recorder.shape.attend[group];
    let options = AttendOptions {
        softcap: step.softcap.is_some(),
        alibi: step.alibi.is_some(),
        sinks: step.sinks.is_some(),
    };
    let absent = arena.metadata.read();
    let vector =
        |weight: Option<WeightId>| weight.map_or(absent, |weight| recorder.vector(weight).read());
    let (q, out) = (
        recorder.row_buffer(step.q).fetch(),
        recorder.row_buffer(step.out).read_write(),
    );
    let (slopes, sinks) = (vector(step.alibi), vector(step.sinks));
    let params = |items, list_start: u32, head_first, head_count| Params {
        items,
        item_start: list_start * ITEM_WORDS,
        group_header: group_header(layer.group),
        kv_heads: layer.heads,
        head_first,
        head_count,
        group: ratio,
        block_shift: recorder.capacity.block_size.trailing_zeros(),
        window: plan.kv_groups[group].window.unwrap_or(NONE),
        scale: step.scale,
        softcap: step.softcap.unwrap_or(0.0),
    };
    let (format, profile) = (recorder.capacity.kv_format, recorder.profile);
    let exact = Profile {
        matrices: None,
        ..profile.clone()
    };
    let profile = if recorder.capacity.deterministic {
        &exact
    } else {
        profile
    };
    let rows_max = rows_max(plan, group);
    let single_rows = ratio.next_power_of_two().min(rows_max);
    let tiled_start = shape.single + shape.chunked;
    let lists = [
        (shape.single, 0, single_rows),
        (shape.chunked, shape.single, rows_max),
        (shape.tiled, tiled_start, TILE_ROWS),
    ];
    for shard in &arena.kv[step.layer as usize] {
        for (items, start, rows) in lists {
            let kernel = kernel(options, layer.head_dim, rows, format, profile);
            let (k, v) = (shard.key.fetch(), shard.value().fetch());
            let partials = arena.attend_scratch.read_write();
            let bindings: [Binding<'_>; 8] = [
                arena.metadata.fetch(),
                q,
                k,
                v,
                slopes,
                sinks,
                partials,
                out,
            ];
            for slice in slices(items, recorder.shape.attend_slices) {
                let count = slice.end - slice.start;
                let params = params(count, start + slice.start, shard.head_start, shard.heads);
                recorder.dispatch(&kernel, &params, &bindings, count * shard.heads)?;
            }
        }
    }
    let params = params(shape.merges, tiled_start + shape.tiled, 0, layer.heads);
    let bindings = [
        arena.metadata.read(),
        sinks,
        arena.attend_scratch.read(),
        out,
    ];
    let workgroups = shape.merges * layer.heads * ROWS_MAX;
    recorder.dispatch(
        &merge_kernel(options.sinks, layer.head_dim),
        &params,
        &bindings,
        workgroups,
    )
}

/// Divides a list of items among at most `count` dispatches.
fn slices(items: u32, count: u32) -> impl Iterator<Item = std::ops::Range<u32>> {
    let each = items.div_ceil(count.max(1)).max(1);
    (0..items)
        .step_by(each as usize)
        .map(move |start| start..(start + each).min(items))
}

/// Every variant that [`encode`] can use, at a small, an odd and the largest head size.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    let off = AttendOptions::default();
    let all = AttendOptions {
        softcap: true,
        alibi: true,
        sinks: true,
    };
    let cases = [
        (off, KvFormat::F16),
        (all, KvFormat::F16),
        (AttendOptions { sinks: true, ..off }, KvFormat::F32),
        (off, KvFormat::Q8),
        (all, KvFormat::Q8),
        (off, KvFormat::Fp8),
        (all, KvFormat::Fp8),
    ];
    let classes = [
        (Class::Discrete, Tier::T0, false),
        (Class::Discrete, Tier::T1, false),
        (Class::Software, Tier::T1, false),
        (Class::Software, Tier::T1, true),
    ];
    for (class, tier, texels) in classes {
        for head_dim in [8, 96, 128, 256, 512, LATENT_DIM_MAX] {
            for rows in [1, 2, 4, 8, TILE_ROWS] {
                let wide = head_dim > HEAD_DIM_USUAL && rows > head_rows_max(head_dim);
                if wide || texels && rows > ROWS_MAX {
                    continue;
                }
                let mut profile = Profile {
                    texels,
                    ..super::test_profile(class, tier, rows != 4)
                };
                if class == Class::Discrete && tier == Tier::T1 {
                    profile.subgroup_size_min = 32;
                }
                for (options, format) in cases {
                    let kernel = kernel(options, head_dim, rows, format, &profile);
                    variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
                }
            }
        }
    }
    for matrices in Matrices::TESTED {
        let profile = Profile {
            matrices: Some(matrices),
            subgroup_size_min: matrices.lanes,
            ..super::test_profile(Class::Discrete, Tier::T2, true)
        };
        for head_dim in [8, 128, 256] {
            for (options, format) in cases
                .into_iter()
                .filter(|(_, format)| *format != KvFormat::F32)
            {
                let kernel = kernel(options, head_dim, TILE_ROWS, format, &profile);
                variants.push(Variant::new::<Params>(kernel, Params::FIELDS));
            }
        }
    }
    for sinks in [false, true] {
        variants.push(Variant::new::<Params>(
            merge_kernel(sinks, 128),
            Params::FIELDS,
        ));
    }
    variants
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::inputs::GroupInputs;

    /// First row, rows, context and block table of a sequence.
    type Given = (u32, u32, u32, &'static [u32]);

    fn joined(all: &[Given], joins: bool) -> Vec<(u32, u32, u32, u32)> {
        let mut group = GroupInputs::default();
        let mut inputs = BatchInputs::default();
        for &(row_start, row_count, context_len, table) in all {
            inputs.sequences.push(SequenceRows {
                row_start,
                row_count,
                context_len,
            });
            group
                .table_starts
                .push(u32::try_from(group.block_tables.len()).expect("a small batch"));
            group.block_tables.extend(table);
        }
        inputs.groups.push(group);
        let found = sequences(&inputs, 0, 16, joins);
        found
            .map(|(rows, start)| (rows.row_start, rows.row_count, rows.context_len, start))
            .collect()
    }

    #[test]
    fn rows_of_one_sequence_are_joined_and_no_others() {
        let drafts: [Given; 3] = [(4, 1, 16, &[7]), (5, 1, 17, &[7, 2]), (6, 1, 18, &[7, 2])];
        assert_eq!(joined(&drafts, true), [(4, 3, 18, 3)]);
        assert_eq!(
            joined(&drafts, false),
            [(4, 1, 16, 0), (5, 1, 17, 1), (6, 1, 18, 3)]
        );
        let others: [[Given; 2]; 6] = [
            // Other blocks; a block that has left the window; a gap in positions; the same position; a gap in rows; a
            // chunk.
            [(0, 1, 16, &[7]), (1, 1, 17, &[3, 2])],
            [(0, 1, 17, &[7, 2]), (1, 1, 18, &[NONE, 2])],
            [(0, 1, 16, &[7]), (1, 1, 18, &[7, 2])],
            [(0, 1, 16, &[7]), (1, 1, 16, &[7])],
            [(0, 1, 16, &[7]), (2, 1, 17, &[7, 2])],
            [(0, 2, 16, &[7]), (2, 1, 17, &[7, 2])],
        ];
        for pair in others {
            assert_eq!(joined(&pair, true), joined(&pair, false), "{pair:?}");
        }
    }
}
