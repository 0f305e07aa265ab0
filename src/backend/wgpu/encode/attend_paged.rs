//! `AttendPaged` → dispatches over a work list that is planned here, per batch and KV group.
//!
//! A kernel runs every work item (a few packed rows and a range of keys) for every KV head; if the keys of some rows
//! are split, a merge dispatch joins the results.
//!
//! The bits of a row's result depend only on its sequence (kernel, tiles) and on the split points. With
//! [`Capacity::deterministic`](super::super::super::Capacity::deterministic) nothing is split, so a batch gives the
//! same bits as each sequence alone.
//!
//! `attend_paged/work.rs` plans the list, `attend_paged/kernel.rs` has the constants of the kernels; here are their
//! params and bindings.

mod kernel;
mod variants;
mod work;

pub(super) use kernel::for_kv;
pub(super) use variants::variants;
pub(crate) use work::{AttendShape, scratch_bytes, work, work_words_max};

use super::super::super::BackendError;
use super::super::super::metadata::{ITEM_WORDS, group_header};
use super::super::arena::{Binding, KvShard};
use super::super::device::{Class, Profile, Tier};
use super::super::pipelines::Kernel;
use super::{Recorder, params};
use crate::plan::check::LATENT_DIM_MAX;
use crate::plan::inputs::NONE;
use crate::plan::{AttendPaged, KvLayer, Window};
use kernel::{AttendOptions, AttendVariant, merge_kernel};
use std::ops::Range;
use work::{heads_ratios, rows_max};

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
/// Maximum packed rows of an item of the kernels with tiles.
const TILE_ROWS: u32 = 32;

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

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &AttendPaged) -> Result<(), BackendError> {
    let attention = Attention::new(recorder, step)?;
    let lists = attention.lists(recorder);
    for shard in &recorder.arena.kv[step.layer as usize] {
        for list in &lists {
            attention.record_items(recorder, shard, list)?;
        }
    }
    attention.record_merges(recorder)
}

/// The attention of one layer.
struct Attention<'a> {
    step: &'a AttendPaged,
    layer: KvLayer,
    /// Query heads per KV head.
    ratio: u32,
    options: AttendOptions,
    /// Lengths of the parts of the layer's list.
    shape: AttendShape,
    /// Entries of the lists before it.
    before: u32,
}

/// Items of the work list that one kernel runs.
struct Items {
    /// Indices in the list.
    range: Range<u32>,
    /// Maximum packed rows of an item.
    rows: u32,
}

impl<'a> Attention<'a> {
    fn new(recorder: &Recorder<'_>, step: &'a AttendPaged) -> Result<Self, BackendError> {
        let layer = recorder.plan.kv_layers[step.layer as usize];
        let group = layer.group as usize;
        let ratio = step.query_heads / layer.heads;
        if !layer.head_dim.is_multiple_of(8) || layer.head_dim > LATENT_DIM_MAX {
            return Err(BackendError::head_dim("attend_paged", layer.head_dim));
        }
        debug_assert!(
            step.query_heads.is_multiple_of(layer.heads),
            "every KV head has the same number of query heads"
        );
        let list = heads_ratios(recorder.plan, group)
            .iter()
            .position(|listed| *listed == ratio)
            .expect("the group has a list for the ratio of each step");
        let shapes = &recorder.shape.attend[group];
        Ok(Self {
            step,
            layer,
            ratio,
            options: AttendOptions::of(step, recorder.plan.kv_groups[group].window),
            shape: shapes[list],
            before: shapes[..list].iter().map(AttendShape::entries).sum(),
        })
    }

    /// The lists of items, each with its kernel's rows.
    fn lists(&self, recorder: &Recorder<'_>) -> [Items; 3] {
        let rows_max = rows_max(recorder.plan, self.layer.group as usize);
        let tiled = self.shape.tiled_start();
        [
            Items {
                range: 0..self.shape.single,
                rows: self.ratio.next_power_of_two().min(rows_max),
            },
            Items {
                range: self.shape.single..tiled,
                rows: rows_max,
            },
            Items {
                range: tiled..self.shape.merges_start(),
                rows: TILE_ROWS,
            },
        ]
    }

    /// Records the dispatches of a list for the heads of a shard.
    fn record_items(
        &self,
        recorder: &mut Recorder<'_>,
        shard: &KvShard,
        list: &Items,
    ) -> Result<(), BackendError> {
        let kernel = self.kernel(recorder, list.rows);
        let bindings = self.bindings(recorder, shard);
        for items in slices(list.range.clone(), recorder.shape.attend_slices) {
            let workgroups = items.len() as u32 * shard.heads;
            let params = self.params(recorder, items, shard.head_start, shard.heads);
            recorder.dispatch(&kernel, &params, &bindings, workgroups)?;
        }
        Ok(())
    }

    fn kernel(&self, recorder: &Recorder<'_>, rows: u32) -> Kernel {
        let variant = AttendVariant {
            options: self.options,
            head_dim: self.layer.head_dim,
            rows,
            format: recorder.capacity.kv_format,
        };
        if recorder.capacity.deterministic {
            variant.kernel(&Profile {
                matrices: None,
                ..recorder.profile.clone()
            })
        } else {
            variant.kernel(recorder.profile)
        }
    }

    fn params(
        &self,
        recorder: &Recorder<'_>,
        items: Range<u32>,
        head_first: u32,
        head_count: u32,
    ) -> Params {
        let group = &recorder.plan.kv_groups[self.layer.group as usize];
        Params {
            items: items.end - items.start,
            item_start: (self.before + items.start) * ITEM_WORDS,
            group_header: group_header(self.layer.group),
            kv_heads: self.layer.heads,
            head_first,
            head_count,
            group: self.ratio,
            block_shift: recorder.capacity.block_size.trailing_zeros(),
            window: group.window.map_or(NONE, Window::tokens),
            scale: self.step.scale,
            softcap: self.step.softcap.unwrap_or(0.0),
        }
    }

    fn bindings<'b>(&self, recorder: &Recorder<'b>, shard: &'b KvShard) -> [Binding<'b>; 8] {
        let arena = recorder.arena;
        [
            arena.metadata.fetch(),
            recorder.row_buffer(self.step.q).fetch(),
            shard.key.fetch(),
            shard.value().fetch(),
            recorder.optional_vector(self.step.alibi).read(),
            recorder.optional_vector(self.step.sinks).read(),
            arena.attend_scratch.read_write(),
            recorder.row_buffer(self.step.out).read_write(),
        ]
    }

    /// Records the dispatch that joins partial results.
    fn record_merges(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let heads = self.layer.heads;
        let start = self.shape.merges_start();
        let params = self.params(recorder, start..start + self.shape.merges, 0, heads);
        let bindings = [
            recorder.arena.metadata.read(),
            recorder.optional_vector(self.step.sinks).read(),
            recorder.arena.attend_scratch.read(),
            recorder.row_buffer(self.step.out).read_write(),
        ];
        let kernel = merge_kernel(self.options.sinks, self.layer.head_dim);
        let workgroups = self.shape.merges * heads * ROWS_MAX;
        recorder.dispatch(&kernel, &params, &bindings, workgroups)
    }
}

/// Divides a list of items among at most `count` dispatches.
fn slices(items: Range<u32>, count: u32) -> impl Iterator<Item = Range<u32>> {
    let each = (items.len() as u32).div_ceil(count.max(1)).max(1);
    items
        .clone()
        .step_by(each as usize)
        .map(move |start| start..(start + each).min(items.end))
}
