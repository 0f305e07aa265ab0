//! `MatMul` → one dispatch per shard of the weight, and one more if its columns are split.
//!
//! Kernel by number of rows: `matmul_rows` for 1 to 16, `matmul_tile` for more, after `matmul_narrow` where the adapter
//! has cooperative matrices. If that gives fewer workgroups than the device has cores for, the columns are split among
//! more workgroups, whose partial sums `matmul_merge` adds. Software adapters use `matmul_lane`, which needs no
//! workgroup memory, or `matmul_texel` if buffers have images (`matmul_texel_group` for quantized weights).
//! Deterministic plans use one kernel for every row count, so that the sums of a row do not depend on the other rows.
//!
//! With few rows, the norm before a product and the activation after it run in `matmul_rows` too
//! ([`crate::plan::fuse`]).
//!
//! `matmul/shape.rs` chooses the tile and the split, `matmul/kernel.rs` has the constants of the kernels; here are
//! their params and bindings.

mod kernel;
mod shape;
mod variants;

pub(super) use kernel::{for_matrices, for_tile, with_matrices};
pub(super) use variants::variants;

use super::super::super::{BackendError, Capacity};
use super::super::arena::{Binding, Shard};
use super::super::device::{Class, Profile};
use super::{Recorder, RowParams, gated_activation, params, weight_offset};
use crate::plan::fuse::Fused;
use crate::plan::{BufferId, GatedActivation, MatMul, Plan, RmsNorm, Step};
use kernel::{MatmulVariant, merge_kernel, narrow_kernel};
use shape::{MatmulShape, SplitK, Tiling};

params! {
    Params {
        rows: u32, eights: u32, outputs: u32, output_start: u32, output_stride: u32, accumulate: u32,
        row_vectors: u32, plane: u32, scales: u32, supers: u32, splits: u32, span: u32,
        epsilon: f32, weight_offset: f32, alpha: f32, limit: f32,
    }
}

params! {
    MergeParams { rows: u32, outputs: u32, output_start: u32, output_stride: u32, accumulate: u32, splits: u32 }
}

params! {
    NarrowParams { rows: u32, vectors: u32 }
}

/// Invocations of a workgroup of `matmul_lane` and `matmul_experts_lane`.
pub(super) const LANE_WORKGROUP: u32 = 16;
/// Outputs of a tile of `shaders/common/tile.wgsl`.
pub(super) const TILE_OUTPUTS: u32 = 128;
/// Maximum rows, and elements of all rows, that every workgroup normalizes for itself: with more, reading them costs
/// more than a dispatch.
const NORM_ROWS_MAX: u32 = 8;
const NORM_ELEMENTS_MAX: u32 = 16 << 10;

/// The steps that run in the kernel of a product.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours<'a> {
    /// The norm of x.
    norm: Option<&'a RmsNorm>,
    /// The activation of the results.
    gated: Option<&'a GatedActivation>,
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &MatMul) -> Result<(), BackendError> {
    let columns = recorder.weight(step.weight).columns;
    if recorder.rows(step.x) == 0 {
        return Ok(());
    }
    if !columns.is_multiple_of(8) {
        return Err(BackendError::columns("matmul", columns, 8));
    }
    debug_assert_eq!(
        columns,
        recorder.columns(step.x),
        "a row of x is as long as a row of the weight"
    );
    record(recorder, step, Neighbours::default())
}

/// Records a product of few rows with its fused steps as one product. Returns `false` if the steps run better
/// separately.
pub(super) fn encode_fused(
    recorder: &mut Recorder<'_>,
    fused: &Fused,
) -> Result<bool, BackendError> {
    let with = Neighbours {
        norm: fused.norm.as_ref(),
        gated: fused.gated.as_ref(),
    };
    let is_better = is_better_fused(recorder, &fused.product, with);
    if is_better {
        record(recorder, &fused.product, with)?;
    }
    Ok(is_better)
}

fn is_better_fused(recorder: &Recorder<'_>, step: &MatMul, with: Neighbours<'_>) -> bool {
    let rows = recorder.rows(step.x);
    let columns = recorder.weight(step.weight).columns;
    let is_gpu = recorder.profile.class != Class::Software;
    if !is_gpu || recorder.capacity.deterministic || !columns.is_multiple_of(8) {
        return false;
    }
    let has_few_rows = (1..=recorder.profile.few_rows_max()).contains(&rows);
    let is_short = rows <= NORM_ROWS_MAX && rows * columns <= NORM_ELEMENTS_MAX;
    has_few_rows
        && (with.norm.is_none() || is_short)
        && (with.gated.is_none() || has_whole_pairs(recorder, step))
}

/// Whether a workgroup has both operands of an activation, as whole sums: the gates and ups are in one shard, and the
/// columns are not split.
fn has_whole_pairs(recorder: &Recorder<'_>, step: &MatMul) -> bool {
    let [shard] = &recorder.weight(step.weight).shards[..] else {
        return false;
    };
    let shape = MatmulShape::new(recorder, step, shard);
    let tiling = Tiling::choose(recorder.profile, false, &shape);
    let split = SplitK::choose(recorder.profile, false, tiling, &shape);
    shard.rows.is_multiple_of(2) && !split.is_split()
}

/// Records the products of all shards.
fn record(
    recorder: &mut Recorder<'_>,
    step: &MatMul,
    with: Neighbours<'_>,
) -> Result<(), BackendError> {
    let mut products = Vec::new();
    for shard in &recorder.weight(step.weight).shards {
        products.push(ShardProduct::new(recorder, step, with, shard));
    }
    if products.iter().any(ShardProduct::is_by_matrices) {
        narrow(recorder, step.x)?;
    }
    products
        .iter()
        .try_for_each(|product| product.record(recorder))
}

impl MatmulShape {
    /// The product of a step with one shard of its weight.
    fn new(recorder: &Recorder<'_>, step: &MatMul, shard: &Shard) -> Self {
        Self {
            rows: recorder.rows(step.x),
            eights: recorder.weight(step.weight).columns / 8,
            outputs: shard.rows,
            format: shard.format,
        }
    }
}

/// The product of a step with one shard of its weight: what it computes, and how.
struct ShardProduct<'a> {
    step: &'a MatMul,
    with: Neighbours<'a>,
    shard: &'a Shard,
    shape: MatmulShape,
    tiling: Tiling,
    split: SplitK,
}

impl<'a> ShardProduct<'a> {
    fn new(
        recorder: &Recorder<'_>,
        step: &'a MatMul,
        with: Neighbours<'a>,
        shard: &'a Shard,
    ) -> Self {
        let (profile, deterministic) = (recorder.profile, recorder.capacity.deterministic);
        let shape = MatmulShape::new(recorder, step, shard);
        let tiling = match Tiling::choose(profile, deterministic, &shape) {
            Tiling::Matrices { rows, .. } if !can_narrow(recorder, step.x) => Tiling::Tile { rows },
            tiling => tiling,
        };
        let mut split = SplitK::choose(profile, deterministic, tiling, &shape);
        if split.sums_bytes(&shape) > recorder.arena.product_scratch.bytes {
            split = SplitK::none(&shape);
        }
        Self {
            step,
            with,
            shard,
            shape,
            tiling,
            split,
        }
    }

    fn is_by_matrices(&self) -> bool {
        matches!(self.tiling, Tiling::Matrices { .. })
    }

    fn x(&self) -> BufferId {
        self.with.norm.map_or(self.step.x, |norm| norm.x)
    }

    fn out(&self) -> BufferId {
        self.with.gated.map_or(self.step.out, |gated| gated.out)
    }

    fn variant(&self) -> MatmulVariant {
        MatmulVariant {
            shape: self.shape,
            tiling: self.tiling,
            is_split: self.split.is_split(),
            bias: self.step.bias.is_some(),
            norm: self.with.norm.is_some(),
            activation: self.with.gated.map(|gated| gated.activation),
        }
    }

    fn record(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let kernel = self.variant().kernel(recorder.profile);
        let (params, bindings) = (self.params(recorder), self.bindings(recorder));
        let workgroups = self.tiling.workgroups(&self.shape) * self.split.parts;
        recorder.dispatch(&kernel, &params, &bindings, workgroups)?;
        if self.split.is_split() {
            self.record_merge(recorder)?;
        }
        Ok(())
    }

    fn params(&self, recorder: &Recorder<'_>) -> Params {
        let MatmulShape {
            rows,
            eights,
            outputs,
            format,
        } = self.shape;
        let output_stride = recorder.columns(self.out());
        debug_assert!(
            self.with.gated.is_some() || self.shard.row_start + outputs <= output_stride,
            "a shard gives columns of out"
        );
        let row = RowParams::new(format, self.shape.columns());
        let norm = self.with.norm;
        let (_, alpha, limit) = self.with.gated.map_or(("", 0.0, 0.0), |gated| {
            gated_activation::activation(gated.activation)
        });
        Params {
            rows,
            eights,
            outputs,
            output_start: self.shard.row_start,
            output_stride,
            accumulate: u32::from(self.step.accumulate),
            row_vectors: row.row_vectors,
            plane: row.plane,
            scales: row.scales,
            supers: row.supers,
            splits: self.split.parts,
            span: self.split.span,
            epsilon: norm.map_or(0.0, |norm| norm.epsilon),
            weight_offset: weight_offset(norm.is_some_and(|norm| norm.one_plus)),
            alpha,
            limit,
        }
    }

    /// x, the weight, the norm's weight, the bias and out; or the scratch of partial sums in place of the last two.
    fn bindings<'b>(&'b self, recorder: &Recorder<'b>) -> Vec<Binding<'b>> {
        let x = if self.is_by_matrices() {
            recorder.arena.narrow_rows.read()
        } else {
            recorder.row_buffer(self.x()).fetch()
        };
        let mut bindings = vec![x, self.shard.buffer.fetch()];
        bindings.extend(
            self.with
                .norm
                .map(|norm| recorder.vector(norm.weight).read()),
        );
        if self.split.is_split() {
            bindings.push(recorder.arena.product_scratch.read_write());
        } else {
            bindings.extend(self.bias(recorder));
            bindings.push(recorder.row_buffer(self.out()).read_write());
        }
        bindings
    }

    fn bias<'b>(&self, recorder: &Recorder<'b>) -> Option<Binding<'b>> {
        let bias = self.step.bias?;
        Some(recorder.vector(bias).read())
    }

    /// Records the dispatch that adds the partial sums.
    fn record_merge(&self, recorder: &mut Recorder<'_>) -> Result<(), BackendError> {
        let MatmulShape { rows, outputs, .. } = self.shape;
        let params = MergeParams {
            rows,
            outputs,
            output_start: self.shard.row_start,
            output_stride: recorder.columns(self.out()),
            accumulate: u32::from(self.step.accumulate),
            splits: self.split.parts,
        };
        let mut bindings = vec![recorder.arena.product_scratch.read()];
        bindings.extend(self.bias(recorder));
        bindings.push(recorder.row_buffer(self.out()).read_write());
        let kernel = merge_kernel(self.step.bias.is_some());
        recorder.dispatch(&kernel, &params, &bindings, (rows * outputs).div_ceil(64))
    }
}

/// Records the dispatch that narrows the rows of x.
pub(super) fn narrow(recorder: &mut Recorder<'_>, x: BufferId) -> Result<(), BackendError> {
    let rows = recorder.rows(x);
    let params = NarrowParams {
        rows,
        vectors: recorder.columns(x) / 4,
    };
    let bindings = [
        recorder.row_buffer(x).read(),
        recorder.arena.narrow_rows.read_write(),
    ];
    recorder.dispatch(&narrow_kernel(), &params, &bindings, rows)
}

/// Whether there is room for the narrow rows of x.
pub(super) fn can_narrow(recorder: &Recorder<'_>, x: BufferId) -> bool {
    narrow_rows_bytes(recorder.rows(x), recorder.columns(x)) <= recorder.arena.narrow_rows.bytes
}

/// Bytes of `rows` narrow rows: halves, and a vector of four of them for each row's exponent.
fn narrow_rows_bytes(rows: u32, columns: u32) -> u64 {
    u64::from(rows) * (u64::from(columns) * 2 + 8)
}

/// Bytes of scratch for partial sums: the most that a product of the plan needs at usual numbers of rows. A batch that
/// needs more is not split.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let profile = &profile.with_most_scratch();
    let mut most = 0;
    for step in plan.steps() {
        let Step::MatMul(step) = step else {
            continue;
        };
        let weight = plan.weight_spec(step.weight);
        let rows = plan.buffer_spec(step.x).rows;
        for rows in usual_rows(rows.count(capacity.tokens_max, capacity.samples_max)) {
            let shape = MatmulShape {
                rows,
                eights: weight.columns / 8,
                outputs: weight.rows,
                format: weight.format_of(0),
            };
            let tiling = Tiling::choose(profile, capacity.deterministic, &shape);
            let split = SplitK::choose(profile, capacity.deterministic, tiling, &shape);
            let bytes = split.sums_bytes(&shape);
            if split.is_split() && bytes <= profile.buffer_bytes_max {
                most = most.max(bytes);
            }
        }
    }
    most
}

fn usual_rows(rows_max: u32) -> impl Iterator<Item = u32> {
    (0..16)
        .map(|power| 1 << power)
        .chain([rows_max])
        .filter(move |r| *r <= rows_max)
}

/// Bytes of the largest x of a product by cooperative matrices. Rows that exceed a buffer are multiplied without.
pub(crate) fn narrow_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    if profile.matrices().is_none() || capacity.deterministic {
        return 0;
    }
    let products = plan.steps().filter_map(|step| match step {
        Step::MatMul(step) => Some(plan.buffer_spec(step.x)),
        Step::MatMulExperts(step) => Some(plan.buffer_spec(step.x)),
        _ => None,
    });
    let bytes = products
        .map(|x| {
            narrow_rows_bytes(
                x.rows.count(capacity.tokens_max, capacity.samples_max),
                x.columns,
            )
        })
        .filter(|bytes| *bytes <= profile.buffer_bytes_max);
    bytes.max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
