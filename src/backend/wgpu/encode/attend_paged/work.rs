//! The work list of attention: per batch and KV group, which packed rows attend to which keys in one item.
//!
//! A work item is a few packed rows (query heads of one KV head, over the token rows of one sequence) and a range of
//! keys. Sequences with one row and those with more are in separate lists, since their kernels differ; those with many
//! rows use tiles. If a batch has too few items to fill the device, the key ranges of long single-row sequences are
//! split, and merge items join the results.

use super::super::super::super::Capacity;
use super::super::super::super::metadata::{
    Context, ITEM_COUNT, ITEM_KEY_BEGIN, ITEM_KEY_END, ITEM_PACKED, ITEM_POSITION, ITEM_ROW,
    ITEM_SLOT, ITEM_TABLE, ITEM_WORDS, MERGE_ITEM_SPLITS, record,
};
use super::super::super::device::Profile;
use super::{HEAD_DIM_USUAL, HEAD_DIM_WIDE, ROWS_MAX, TILE_ROWS, has_tiles, is_serial};
use crate::plan::inputs::{BatchInputs, NONE, SequenceRows};
use crate::plan::{KvLayer, Plan, Step, Window};
use std::ops::Range;

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

impl AttendShape {
    /// Index of the first of the `tiled` items.
    pub(super) fn tiled_start(&self) -> u32 {
        self.single + self.chunked
    }

    /// Index of the first of the `merges`.
    pub(super) fn merges_start(&self) -> u32 {
        self.tiled_start() + self.tiled
    }

    /// Number of entries of all parts.
    pub(super) fn entries(&self) -> u32 {
        self.merges_start() + self.merges
    }
}

/// The numbers of query heads per KV head of the layers of KV group `group`, each once. The group has a work list for
/// each of them, in this order.
pub(super) fn heads_ratios(plan: &Plan, group: usize) -> Vec<u32> {
    debug_assert!(group < plan.kv_groups.len(), "a KV group of this plan");
    let mut ratios = Vec::new();
    for step in &plan.body {
        let Step::AttendPaged(step) = step else {
            continue;
        };
        let layer = plan.kv_layers[step.layer as usize];
        let ratio = step.query_heads / layer.heads.max(1);
        if layer.group as usize == group && !ratios.contains(&ratio) {
            ratios.push(ratio);
        }
    }
    ratios
}

fn layers(plan: &Plan, group: usize) -> impl Iterator<Item = &KvLayer> {
    plan.kv_layers
        .iter()
        .filter(move |layer| layer.group as usize == group)
}

/// Maximum packed rows of an item of this group that is no tile.
pub(super) fn rows_max(plan: &Plan, group: usize) -> u32 {
    head_rows_max(
        layers(plan, group)
            .map(|layer| layer.head_dim)
            .max()
            .unwrap_or(0),
    )
}

/// The same for heads of one size.
pub(super) fn head_rows_max(head_dim: u32) -> u32 {
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
            let rows_max = u64::from(rows_max(plan, group));
            let of_ratio = |ratio: u32| {
                let ratio = u64::from(ratio);
                let rows = u64::from(capacity.tokens_max) * ratio / rows_max;
                let ends = u64::from(capacity.sequences_max) * (2 + ratio.div_ceil(rows_max));
                rows + ends + 2 * u64::from(slots_max(plan, group, capacity, profile))
            };
            heads_ratios(plan, group)
                .into_iter()
                .map(of_ratio)
                .sum::<u64>()
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
    /// Start of its block table in the metadata's.
    table_start: u32,
    /// Query heads per KV head: a token row is this many packed rows.
    ratio: u32,
    window: Option<Window>,
}

/// A record of the work list.
type Item = [u32; ITEM_WORDS as usize];

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
    /// Number of packed rows.
    fn packed(&self) -> u32 {
        self.rows.row_count * self.ratio
    }

    /// Range of keys visible to any of some packed rows; it starts at a tile boundary.
    fn keys(&self, packed: &Range<u32>) -> Range<u32> {
        debug_assert!(
            !packed.is_empty() && packed.end <= self.packed(),
            "packed rows of this sequence"
        );
        let begin = self.window.map_or(0, |window| {
            window.first_visible(self.position(packed.start))
        });
        begin / TILE * TILE..self.position(packed.end - 1) + 1
    }

    /// Position in the sequence of a packed row.
    fn position(&self, packed: u32) -> u32 {
        self.first_position() + packed / self.ratio
    }

    fn first_position(&self) -> u32 {
        self.rows.context_len - self.rows.row_count
    }

    /// The item of some packed rows and keys. Its result is partial if it has a `slot` of the scratch.
    fn item(&self, packed: Range<u32>, keys: Range<u32>, slot: u32) -> Item {
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
    fn merge_item(&self, packed: Range<u32>, slots: Range<u32>) -> Item {
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
    fn runs(&self, size: u32) -> impl Iterator<Item = Range<u32>> {
        debug_assert!(size > 0, "a run has rows");
        let end = self.packed();
        (0..end)
            .step_by(size as usize)
            .map(move |start| start..(start + size).min(end))
    }
}

/// A work list while it is written.
struct WorkList<'a> {
    words: &'a mut Vec<u32>,
    shape: AttendShape,
    /// Slots of the partial buffer that are taken.
    slots: u32,
    /// The items that join partial results. They follow all others.
    merges: Vec<Item>,
}

impl WorkList<'_> {
    /// Adds packed rows of a single-row sequence: one item, or one for each of at most `splits_max` ranges of its keys,
    /// and a merge.
    fn add_single(&mut self, sequence: &Planned, run: &Range<u32>, splits_max: u32) {
        let ranges = split(&sequence.keys(run), splits_max);
        let first_slot = self.slots;
        for keys in &ranges {
            let mut slot = NONE;
            if ranges.len() > 1 {
                slot = self.slots;
                self.slots += 1;
            }
            self.words
                .extend(sequence.item(run.clone(), keys.clone(), slot));
            self.shape.single += 1;
        }
        if self.slots > first_slot {
            self.merges
                .push(sequence.merge_item(run.clone(), first_slot..self.slots));
        }
    }

    /// Adds items of at most `rows` packed rows, and returns their number.
    fn add_whole(&mut self, sequences: &[Planned], rows: u32) -> u32 {
        let mut items = 0;
        for sequence in sequences {
            for run in sequence.runs(rows) {
                let keys = sequence.keys(&run);
                self.words.extend(sequence.item(run, keys, NONE));
                items += 1;
            }
        }
        items
    }

    /// Adds the merges.
    fn finish(&mut self) {
        self.shape.merges = u32::try_from(self.merges.len()).expect("a batch has few sequences");
        self.words.extend(self.merges.iter().flatten());
    }
}

/// Appends the work lists of KV group `group` to the metadata, one for each of [`heads_ratios`]; their offset is
/// already in the header (GROUP_WORK).
pub(crate) fn work(
    context: &Context<'_>,
    profile: &Profile,
    inputs: &BatchInputs,
    group: usize,
    words: &mut Vec<u32>,
) -> Vec<AttendShape> {
    let words_before = words.len();
    let shapes: Vec<AttendShape> = heads_ratios(context.plan, group)
        .into_iter()
        .map(|ratio| list(context, profile, inputs, (group, ratio), words))
        .collect();
    debug_assert!(
        (words.len() - words_before) as u64
            <= work_words_max(context.plan, context.capacity, profile),
        "the lists fit the metadata: {shapes:?}"
    );
    shapes
}

/// Appends the work list of the layers of a group with so many query heads per KV head.
fn list(
    context: &Context<'_>,
    profile: &Profile,
    inputs: &BatchInputs,
    (group, ratio): (usize, u32),
    words: &mut Vec<u32>,
) -> AttendShape {
    let (plan, capacity) = (context.plan, context.capacity);
    let rows_max = rows_max(plan, group);
    let slots_max = slots_max(plan, group, capacity, profile);
    let planned = planned(context, profile, inputs, (group, ratio));
    let (single, several): (Vec<_>, Vec<_>) =
        planned.into_iter().partition(|one| one.rows.row_count == 1);
    let group_has_tiles = has_tiles(profile) && rows_max == ROWS_MAX;
    let (tiled, chunked): (Vec<_>, Vec<_>) = several
        .into_iter()
        .partition(|one| group_has_tiles && one.packed() > rows_max);
    let mut list = WorkList {
        words,
        shape: AttendShape::default(),
        slots: 0,
        merges: Vec::new(),
    };
    let runs: u32 = single
        .iter()
        .map(|one| one.packed().div_ceil(rows_max))
        .sum();
    let splits_max = (slots_max / runs.max(1)).clamp(1, SPLITS_MAX);
    for sequence in &single {
        for run in sequence.runs(rows_max) {
            list.add_single(sequence, &run, splits_max);
        }
    }
    list.shape.chunked = list.add_whole(&chunked, rows_max);
    list.shape.tiled = list.add_whole(&tiled, TILE_ROWS);
    list.finish();
    debug_assert!(
        list.slots <= slots_max,
        "the partial results fit the scratch: {} of {slots_max} slots",
        list.slots
    );
    list.shape
}

/// The sequences of a batch.
fn planned(
    context: &Context<'_>,
    profile: &Profile,
    inputs: &BatchInputs,
    (group, ratio): (usize, u32),
) -> Vec<Planned> {
    // A GPU has units for every row, and splits the keys of single rows among them.
    let joins = is_serial(profile) && !context.capacity.deterministic;
    sequences(inputs, group, context.capacity.block_size, joins)
        .map(|(rows, table_start)| Planned {
            rows,
            table_start,
            ratio,
            window: context.plan.kv_groups[group].window,
        })
        .collect()
}

/// Splits a range of keys into a power of two of parts, at most `splits_max`, none shorter than [`SPLIT_KEYS_MIN`]. A
/// power of two rarely changes while a sequence grows, and each change needs a new program.
fn split(keys: &Range<u32>, splits_max: u32) -> Vec<Range<u32>> {
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

#[cfg(test)]
mod tests;
