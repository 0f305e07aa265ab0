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

use super::super::super::{BackendError, Capacity, FEW_ROWS_MAX};
use super::super::arena::Shard;
use super::super::device::{Class, Profile, Tier, Tuning};
use super::super::matrices::Matrices;
use super::super::pipelines::Kernel;
use super::super::preprocess::{HALVES, MATRICES};
use super::{Recorder, RowParams, Variant, for_weight, gated, params};
use crate::plan::fuse::Fused;
use crate::plan::{
    Activation, BufferId, GatedActivation, Gates, MatMul, NormOptions, Plan, RmsNorm, Step, Up,
    WeightFormat, WeightId,
};
use std::collections::BTreeSet;

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

/// The kernel and its tile shape, which determines the grid for given rows and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `lanes` invocations share `outputs` outputs.
    Rows {
        rows: u32,
        outputs: u32,
        lanes: u32,
    },
    Tile {
        rows: u32,
    },
    Matrices {
        rows: u32,
        matrices: Matrices,
    },
    Lane {
        rows: u32,
        outputs: u32,
    },
    Texel {
        rows: u32,
        many: bool,
        groups: bool,
    },
}

/// The steps that run with a product.
#[derive(Clone, Copy, Debug, Default)]
struct Neighbours<'a> {
    norm: Option<&'a RmsNorm>,
    gated: Option<&'a GatedActivation>,
}

/// A product of one shard.
#[derive(Clone, Copy, Debug)]
struct Size {
    rows: u32,
    eights: u32,
    outputs: u32,
    format: WeightFormat,
}

impl Size {
    /// Columns that one invocation of `matmul_rows` takes at once, divided by eight.
    fn unit_eights(&self) -> u32 {
        if self.format.is_quantised() { 4 } else { 1 }
    }
}

/// Invocations of a workgroup of `matmul_lane` and `matmul_experts_lane`.
pub(super) const LANE_WORKGROUP: u32 = 16;
/// Outputs per workgroup of `matmul_texel`.
const TEXEL_OUTPUTS: u32 = 8;
/// Invocations of a workgroup of `matmul_rows`.
const ROWS_WORKGROUP: u32 = 64;
/// Outputs of a tile of `shaders/common/tile.wgsl`.
pub(super) const TILE_OUTPUTS: u32 = 128;
/// Invocations of a workgroup of `matmul_tile`.
const TILE_WORKGROUP: u32 = 128;
/// Maximum rows of `matmul_rows`: beyond, reading x costs more than reading the weights.
const ROWS_MAX: u32 = FEW_ROWS_MAX;
/// Maximum rows, and elements of all rows, that every workgroup normalizes for itself: with more, reading them costs
/// more than a dispatch.
const NORM_ROWS_MAX: u32 = 8;
const NORM_ELEMENTS_MAX: u32 = 16 << 10;
/// Minimum columns of a part, so that the merge costs little in comparison: a workgroup takes some microseconds for
/// them, as does another dispatch.
const SPLIT_COLUMNS_MIN_ROWS: u32 = 1024;
const SPLIT_COLUMNS_MIN_TILE: u32 = 256;
/// A span of columns is a multiple of a group.
const SPAN_COLUMNS: u32 = 32;

impl Shape {
    /// The tile table: class, rows, columns and outputs → shape.
    fn choose(profile: &Profile, deterministic: bool, size: &Size) -> Self {
        let rows = size.rows;
        debug_assert!(rows > 0, "a product has rows");
        match (profile.class, rows) {
            (Class::Software, _) if profile.texels => {
                let tile = texel_rows(deterministic, rows);
                Self::Texel {
                    rows: tile,
                    many: rows > tile,
                    groups: size.eights.is_multiple_of(4),
                }
            }
            (Class::Software, 1) if !deterministic => Self::Lane {
                rows: 1,
                outputs: 4,
            },
            (Class::Software, 2) if !deterministic => Self::Lane {
                rows: 2,
                outputs: 8,
            },
            (Class::Software, 3..=4) if !deterministic => Self::Lane {
                rows: 4,
                outputs: 8,
            },
            (Class::Software, _) => Self::Lane {
                rows: 8,
                outputs: 8,
            },
            _ if deterministic => Self::Tile { rows: 32 },
            (_, ..=ROWS_MAX) => Self::few_rows(profile, size),
            _ => {
                let rows = if rows <= 32 {
                    32
                } else {
                    profile.tuning.tile_rows
                };
                profile
                    .matrices
                    .map_or(Self::Tile { rows }, |matrices| Self::Matrices {
                        rows,
                        matrices,
                    })
            }
        }
    }

    /// As few lanes per output as fill the device: the fewer, the more outputs of a workgroup share what it loads of x.
    fn few_rows(profile: &Profile, size: &Size) -> Self {
        let outputs = if size.rows > 8 {
            2
        } else {
            profile.tuning.product_outputs
        };
        let units = size.eights.div_ceil(size.unit_eights());
        let shape = |lanes| Self::Rows {
            rows: size.rows.next_power_of_two(),
            outputs,
            lanes,
        };
        // At most a quarter of the lanes is idle in the last turn.
        let busy = || {
            [8, 16, 32, 64]
                .into_iter()
                .filter(|lanes| 4 * units >= 3 * units.next_multiple_of(*lanes))
        };
        shape(
            busy()
                .find(|lanes| shape(*lanes).workgroups(size) >= profile.product_workgroups())
                .or(busy().next_back())
                .unwrap_or(8),
        )
    }

    /// Number of workgroups, without splits.
    fn workgroups(self, size: &Size) -> u32 {
        let Size { rows, outputs, .. } = *size;
        match self {
            Self::Rows {
                outputs: each,
                lanes,
                ..
            } => outputs.div_ceil(each * (ROWS_WORKGROUP / lanes)),
            Self::Tile { rows: tile } | Self::Matrices { rows: tile, .. } => {
                rows.div_ceil(tile) * outputs.div_ceil(TILE_OUTPUTS)
            }
            Self::Texel { rows: tile, .. } => {
                (rows.div_ceil(tile) * outputs.div_ceil(TEXEL_OUTPUTS)).div_ceil(4)
            }
            Self::Lane {
                rows: tile,
                outputs: each,
            } => (rows.div_ceil(tile) * outputs.div_ceil(each)).div_ceil(LANE_WORKGROUP),
        }
    }

    /// Into how many parts the columns are split, and the columns of a part. There is only one if the device has
    /// enough workgroups without splits.
    fn splits(self, profile: &Profile, deterministic: bool, size: &Size) -> (u32, u32) {
        let columns = 8 * size.eights;
        let tiles = self.workgroups(size);
        let Some(least) = self.span_min() else {
            return (1, columns);
        };
        if deterministic || tiles >= 2 * profile.cores {
            return (1, columns);
        }
        let wanted = (profile.product_workgroups() / tiles).clamp(1, (columns / least).max(1));
        let span = columns.div_ceil(wanted).next_multiple_of(SPAN_COLUMNS);
        (columns.div_ceil(span), span)
    }

    /// Minimum columns of a part, if the columns can be split.
    fn span_min(self) -> Option<u32> {
        match self {
            Self::Rows { .. } => Some(SPLIT_COLUMNS_MIN_ROWS),
            Self::Tile { .. } | Self::Matrices { .. } => Some(SPLIT_COLUMNS_MIN_TILE),
            Self::Lane { .. } | Self::Texel { .. } => None,
        }
    }

    fn kernel(
        self,
        size: &Size,
        splits: u32,
        bias: bool,
        with: Neighbours<'_>,
        profile: &Profile,
    ) -> Kernel {
        let format = size.format;
        let kernel = match self {
            Self::Rows {
                rows,
                outputs,
                lanes,
            } => Kernel::new("matmul_rows")
                .number("ROWS", rows)
                .number("OUTPUTS", outputs)
                .number("LANES", lanes)
                .define_if(rows == 1, "ONE_ROW")
                .define_if(
                    rows == 1 && profile.int8_activations && format.has_byte_codes(),
                    "INT8",
                )
                .define_if(
                    format.is_quantised() && !size.eights.is_multiple_of(4),
                    "PARTIAL",
                ),
            Self::Tile { rows } => for_tile(Kernel::new("matmul_tile"), rows),
            Self::Matrices { rows, matrices } => {
                for_matrices(Kernel::new("matmul_tile"), rows, matrices)
            }
            Self::Texel { rows, many, groups } => {
                Kernel::new(texel_stem(groups && format.is_quantised()))
                    .number("ROWS", rows)
                    .number("OUTPUTS", TEXEL_OUTPUTS)
                    .define_if(many, "MANY_ROWS")
                    .define("TEXELS")
                    .define("SUBGROUPS")
            }
            Self::Lane { rows, outputs } => Kernel::new("matmul_lane")
                .number("ROWS", rows)
                .number("OUTPUTS", outputs),
        };
        let kernel = for_weight(kernel, format, profile).define_if(splits > 1, "SPLITS");
        let kernel = kernel
            .define_if(bias && splits == 1, "BIAS")
            .define_if(with.norm.is_some(), "NORM");
        match with.gated {
            Some(gated) => kernel
                .define("GATED")
                .define(gated::activation(gated.activation).0),
            None => kernel,
        }
    }
}

/// `kernel` with tiles of `rows` rows, 32 or 64: see `shaders/common/tile.wgsl`.
pub(super) fn for_tile(kernel: Kernel, rows: u32) -> Kernel {
    kernel
        .number("TILE_ROWS", rows)
        .number("ROWS_EACH", rows / 8)
        .number("VECTORS_EACH", rows / 32)
}

/// `kernel` with tiles of `rows` rows, 32 or 64, by matrices: see `shaders/common/tile_matrices.wgsl`.
pub(super) fn for_matrices(kernel: Kernel, rows: u32, matrices: Matrices) -> Kernel {
    let grid = matrices.grid(rows, TILE_OUTPUTS);
    with_matrices(kernel, matrices)
        .number("TILE_ROWS", rows)
        .number("X_VECTORS", rows * SPAN_COLUMNS / 4 / TILE_WORKGROUP)
        .number("SUBGROUPS_DOWN", grid.down)
        .number("SUBGROUPS_ACROSS", grid.across)
        .number("MATRICES_DOWN", grid.matrices_down)
        .number("MATRICES_ACROSS", grid.matrices_across)
}

/// `kernel` with what `shaders/common/matrices.wgsl` needs.
pub(super) fn with_matrices(kernel: Kernel, matrices: Matrices) -> Kernel {
    let kernel = kernel.define("SUBGROUPS").define(HALVES).define(MATRICES);
    kernel.define(if matrices.size == 16 {
        "SIZE_16"
    } else {
        "SIZE_8"
    })
}

fn narrow_kernel() -> Kernel {
    Kernel::new("matmul_narrow").define(HALVES)
}

/// Bytes of `rows` narrow rows: halves, and a vector of four of them for each row's exponent.
fn narrow_rows_bytes(rows: u32, columns: u32) -> u64 {
    u64::from(rows) * (u64::from(columns) * 2 + 8)
}

/// Quantized rows of whole groups have a separate kernel.
fn texel_stem(groups: bool) -> &'static str {
    if groups {
        "matmul_texel_group"
    } else {
        "matmul_texel"
    }
}

/// Rows per tile of `matmul_texel`. Six are a token with five drafts.
fn texel_rows(deterministic: bool, rows: u32) -> u32 {
    match rows {
        _ if deterministic => 8,
        5 | 6 => 6,
        _ => rows.min(8).next_power_of_two(),
    }
}

/// Bytes of scratch for partial sums: the most that a product of the plan needs at usual numbers of rows. A batch that
/// needs more is not split.
pub(crate) fn scratch_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    let profile = &profile.with_most_scratch();
    let bytes = plan
        .steps()
        .filter_map(|step| match step {
            Step::MatMul(step) => {
                Some((plan.weight_spec(step.weight), plan.buffer_spec(step.x).rows))
            }
            _ => None,
        })
        .flat_map(|(weight, rows)| {
            usual_rows(rows.count(capacity.tokens_max, capacity.samples_max)).map(|rows| {
                let format = weight.format_of(0);
                let size = Size {
                    rows,
                    eights: weight.columns / 8,
                    outputs: weight.rows,
                    format,
                };
                let shape = Shape::choose(profile, capacity.deterministic, &size);
                match shape.splits(profile, capacity.deterministic, &size) {
                    (1, _) => 0,
                    (splits, _) => u64::from(splits) * u64::from(rows) * u64::from(weight.rows) * 4,
                }
            })
        });
    bytes
        .filter(|bytes| *bytes <= profile.buffer_bytes_max)
        .max()
        .unwrap_or(0)
}

fn usual_rows(rows_max: u32) -> impl Iterator<Item = u32> {
    (0..16)
        .map(|power| 1 << power)
        .chain([rows_max])
        .filter(move |r| *r <= rows_max)
}

/// Bytes of the largest x of a product by cooperative matrices. Rows that exceed a buffer are multiplied without.
pub(crate) fn narrow_bytes(plan: &Plan, capacity: &Capacity, profile: &Profile) -> u64 {
    if profile.matrices.is_none() || capacity.deterministic {
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

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &MatMul) -> Result<(), BackendError> {
    let weight = recorder.weight(step.weight);
    if recorder.rows(step.x) == 0 {
        return Ok(());
    }
    if !weight.columns.is_multiple_of(8) {
        return Err(BackendError::columns("matmul", weight.columns, 8));
    }
    debug_assert_eq!(
        weight.columns,
        recorder.columns(step.x),
        "a row of x is as long as a row of the weight"
    );
    let alone = Neighbours::default();
    // Whether by matrices depends on the rows, and not on the shard.
    let size = Size {
        rows: recorder.rows(step.x),
        eights: 1,
        outputs: 1,
        format: WeightFormat::F32,
    };
    if matches!(choose(recorder, step.x, &size), Shape::Matrices { .. }) {
        narrow(recorder, step.x)?;
    }
    weight
        .shards
        .iter()
        .try_for_each(|shard| encode_shard(recorder, step, alone, shard, weight.columns))
}

/// Records the dispatch that narrows the rows of x.
pub(super) fn narrow(recorder: &mut Recorder<'_>, x: BufferId) -> Result<(), BackendError> {
    let (rows, columns) = (recorder.rows(x), recorder.columns(x));
    let bindings = [
        recorder.row_buffer(x).read(),
        recorder.arena.narrow_rows.read_write(),
    ];
    recorder.dispatch(
        &narrow_kernel(),
        &NarrowParams {
            rows,
            vectors: columns / 4,
        },
        &bindings,
        rows,
    )
}

/// Whether there is room for the narrow rows of x.
pub(super) fn can_narrow(recorder: &Recorder<'_>, x: BufferId) -> bool {
    narrow_rows_bytes(recorder.rows(x), recorder.columns(x)) <= recorder.arena.narrow_rows.bytes
}

/// The shape of a product of `x`.
fn choose(recorder: &Recorder<'_>, x: BufferId, size: &Size) -> Shape {
    let (profile, deterministic) = (recorder.profile, recorder.capacity.deterministic);
    match Shape::choose(profile, deterministic, size) {
        Shape::Matrices { rows, .. } if !can_narrow(recorder, x) => Shape::Tile { rows },
        shape => shape,
    }
}

/// Records a product of few rows with its fused steps as one product. Returns `false` if the steps run better
/// separately.
pub(super) fn encode_fused(
    recorder: &mut Recorder<'_>,
    fused: &Fused,
) -> Result<bool, BackendError> {
    let (step, norm, gated) = (&fused.product, fused.norm.as_ref(), fused.gated.as_ref());
    let weight = recorder.weight(step.weight);
    let (rows, columns) = (recorder.rows(step.x), weight.columns);
    let short = rows <= NORM_ROWS_MAX && rows * columns <= NORM_ELEMENTS_MAX;
    let few = (1..=ROWS_MAX).contains(&rows) && (norm.is_none() || short);
    let is_gpu = recorder.profile.class != Class::Software;
    if !few || !is_gpu || recorder.capacity.deterministic || !columns.is_multiple_of(8) {
        return Ok(false);
    }
    // An activation needs both of its operands in one workgroup, whole.
    let whole = |shard: &Shard| {
        let size = Size {
            rows,
            eights: columns / 8,
            outputs: shard.rows,
            format: shard.format,
        };
        let shape = Shape::choose(recorder.profile, false, &size);
        shape.splits(recorder.profile, false, &size).0 == 1
    };
    if gated.is_some()
        && !matches!(&weight.shards[..], [shard] if shard.rows.is_multiple_of(2) && whole(shard))
    {
        return Ok(false);
    }
    let with = Neighbours { norm, gated };
    weight
        .shards
        .iter()
        .try_for_each(|shard| encode_shard(recorder, step, with, shard, columns))?;
    Ok(true)
}

fn encode_shard(
    recorder: &mut Recorder<'_>,
    step: &MatMul,
    with: Neighbours<'_>,
    shard: &Shard,
    columns: u32,
) -> Result<(), BackendError> {
    let (profile, deterministic) = (recorder.profile, recorder.capacity.deterministic);
    let size = Size {
        rows: recorder.rows(step.x),
        eights: columns / 8,
        outputs: shard.rows,
        format: shard.format,
    };
    let x = with.norm.map_or(step.x, |norm| norm.x);
    let shape = choose(recorder, x, &size);
    let scratch = &recorder.arena.product_scratch;
    let partial_bytes = u64::from(size.rows) * u64::from(size.outputs) * 4;
    let (splits, span) = match shape.splits(profile, deterministic, &size) {
        (splits, _) if u64::from(splits) * partial_bytes > scratch.bytes => (1, columns),
        split => split,
    };
    let out = with.gated.map_or(step.out, |gated| gated.out);
    let RowParams {
        row_vectors,
        plane,
        scales,
        supers,
    } = RowParams::new(shard.format, columns);
    let (output_start, output_stride) = (shard.row_start, recorder.columns(out));
    debug_assert!(
        with.gated.is_some() || output_start + shard.rows <= output_stride,
        "a shard gives columns of out"
    );
    let (rows, eights, outputs, accumulate) = (
        size.rows,
        size.eights,
        size.outputs,
        u32::from(step.accumulate),
    );
    let (_, alpha, limit) = with
        .gated
        .map_or(("", 0.0, 0.0), |gated| gated::activation(gated.activation));
    let params = Params {
        rows,
        eights,
        outputs,
        output_start,
        output_stride,
        accumulate,
        row_vectors,
        plane,
        scales,
        supers,
        splits,
        span,
        epsilon: with.norm.map_or(0.0, |norm| norm.epsilon),
        weight_offset: with
            .norm
            .map_or(0.0, |norm| if norm.one_plus { 1.0 } else { 0.0 }),
        alpha,
        limit,
    };
    let bias = step.bias.map(|bias| recorder.vector(bias).read());
    let out = recorder.row_buffer(out).read_write();
    let x = match shape {
        Shape::Matrices { .. } => recorder.arena.narrow_rows.read(),
        _ => recorder.row_buffer(x).fetch(),
    };
    let mut bindings = vec![x, shard.buffer.fetch()];
    bindings.extend(with.norm.map(|norm| recorder.vector(norm.weight).read()));
    if splits == 1 {
        bindings.extend(bias);
        bindings.push(out);
    } else {
        bindings.push(scratch.read_write());
    }
    let kernel = shape.kernel(&size, splits, step.bias.is_some(), with, profile);
    recorder.dispatch(
        &kernel,
        &params,
        &bindings,
        shape.workgroups(&size) * splits,
    )?;
    if splits == 1 {
        return Ok(());
    }
    let params = MergeParams {
        rows,
        outputs,
        output_start,
        output_stride,
        accumulate,
        splits,
    };
    let mut bindings = vec![scratch.read()];
    bindings.extend(bias);
    bindings.push(out);
    recorder.dispatch(
        &merge_kernel(bias.is_some()),
        &params,
        &bindings,
        (rows * outputs).div_ceil(64),
    )
}

fn merge_kernel(bias: bool) -> Kernel {
    Kernel::new("matmul_merge").define_if(bias, "BIAS")
}

/// A norm, and one activation of each kind.
fn fusible_steps() -> (RmsNorm, Vec<GatedActivation>) {
    let (x, out) = (BufferId(0), BufferId(1));
    let weight = WeightId(0);
    let options = NormOptions::default();
    let norm = RmsNorm {
        x,
        delta: None,
        weight,
        epsilon: 1e-6,
        one_plus: false,
        accumulate: false,
        options,
        out,
    };
    let kinds = [
        Activation::Silu,
        Activation::GeluTanh,
        Activation::ClampedSwiglu {
            alpha: 1.0,
            limit: 1.0,
        },
    ];
    (
        norm,
        kinds
            .map(|activation| GatedActivation {
                gate_up: x,
                gates: Gates::default(),
                up: Up::SecondHalf,
                activation,
                numbers: None,
                out,
            })
            .into(),
    )
}

/// The biases and neighbours that a shape can have. Activations are the same in every combination: each appears once.
fn neighbours(
    shape: Shape,
    splits: u32,
    (norm, activations): &(RmsNorm, Vec<GatedActivation>),
) -> Vec<(bool, Neighbours<'_>)> {
    let alone = Neighbours::default();
    let mut all = vec![(false, alone), (true, alone)];
    let Shape::Rows { rows, .. } = shape else {
        return all;
    };
    let norm = (rows <= NORM_ROWS_MAX).then_some(norm);
    all.extend(norm.map(|norm| {
        (
            true,
            Neighbours {
                norm: Some(norm),
                gated: None,
            },
        )
    }));
    if splits == 1 {
        all.extend(activations.iter().map(|gated| {
            (
                true,
                Neighbours {
                    norm,
                    gated: Some(gated),
                },
            )
        }));
        all.push((
            false,
            Neighbours {
                norm: None,
                gated: activations.first(),
            },
        ));
    }
    all
}

/// Profiles that select different kernels.
fn profiles() -> Vec<Profile> {
    let gpu = super::test_profile(Class::Discrete, Tier::T0, true);
    let software = |tier| super::test_profile(Class::Software, tier, true);
    let mut profiles = vec![
        gpu.clone(),
        Profile {
            tuning: Tuning {
                product_outputs: 2,
                ..Tuning::USUAL
            },
            ..gpu.clone()
        },
        Profile {
            int8_activations: true,
            ..gpu.clone()
        },
        software(Tier::T0),
        Profile {
            texels: true,
            ..software(Tier::T1)
        },
    ];
    profiles.extend(Matrices::TESTED.map(|matrices| Profile {
        matrices: Some(matrices),
        ..gpu.clone()
    }));
    profiles
}

/// Sizes with every shape that a profile can choose, one for each combination with splits and partial groups.
fn shapes(profile: &Profile) -> Vec<(Shape, u32, Size)> {
    let mut found: Vec<(Shape, u32, Size)> = Vec::new();
    let sizes = [
        (64, 16),
        (64, 4096),
        (64, 1 << 13),
        (64, 1 << 14),
        (64, 1 << 16),
        (65, 1 << 16),
        (512, 4096),
    ];
    for (rows, (eights, outputs)) in (1..=65).flat_map(|rows| sizes.map(|size| (rows, size))) {
        // Dense and quantized weights may have different shapes.
        for (deterministic, format) in [false, true]
            .into_iter()
            .flat_map(|fixed| [(fixed, WeightFormat::F32), (fixed, WeightFormat::Q4)])
        {
            let size = Size {
                rows,
                eights,
                outputs,
                format,
            };
            let shape = Shape::choose(profile, deterministic, &size);
            let (splits, _) = shape.splits(profile, deterministic, &size);
            let key =
                |(shape, splits, size): &(Shape, u32, Size)| (*shape, *splits > 1, size.eights % 4);
            if !found
                .iter()
                .any(|known| key(known) == key(&(shape, splits, size)))
            {
                found.push((shape, splits, size));
            }
        }
    }
    found
}

/// Whether a kernel is listed with this format. A bias only affects the epilogue, so quantized formats are listed with
/// bias only; splits, neighbours and the numbers of lanes and outputs only affect the loops around the products, so few
/// formats are listed with them.
fn is_listed(
    shape: Shape,
    splits: u32,
    bias: bool,
    with: Neighbours<'_>,
    format: WeightFormat,
) -> bool {
    const FEW: [WeightFormat; 5] = [
        WeightFormat::Bf16,
        WeightFormat::Q4,
        WeightFormat::F32,
        WeightFormat::Q6K,
        WeightFormat::Mxfp4,
    ];
    let fused = with.norm.is_some() || with.gated.is_some();
    let (usual_lanes, usual_outputs) = match shape {
        Shape::Rows {
            rows,
            outputs,
            lanes,
        } => ([8, 16].contains(&lanes), rows > 8 || outputs == 4),
        Shape::Matrices { matrices, .. } => (true, [32, 64].contains(&matrices.lanes)),
        _ => (true, true),
    };
    let is_shown = match usual_outputs {
        true => splits == 1 && !fused && usual_lanes || FEW.contains(&format),
        false => splits == 1 && usual_lanes && FEW[..2].contains(&format),
    };
    is_shown && (bias || splits > 1 || !format.is_quantised())
}

/// Every variant that [`encode`] and [`encode_fused`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let merge = |bias| Variant::new::<MergeParams>(merge_kernel(bias), MergeParams::FIELDS);
    let mut variants = vec![merge(false), merge(true)];
    variants.push(Variant::new::<NarrowParams>(
        narrow_kernel(),
        NarrowParams::FIELDS,
    ));
    // Profiles share kernels.
    let mut names = BTreeSet::new();
    let fusible = fusible_steps();
    for profile in profiles() {
        for (shape, splits, size) in shapes(&profile) {
            for (bias, with) in neighbours(shape, splits, &fusible) {
                let all = super::weight_variants(|format, half| {
                    let profile = Profile {
                        half_conversion: half.half_conversion,
                        ..profile.clone()
                    };
                    let kernel =
                        shape.kernel(&Size { format, ..size }, splits, bias, with, &profile);
                    Variant::new::<Params>(kernel, Params::FIELDS)
                });
                variants.extend(all.into_iter().filter(|variant| {
                    variant
                        .format()
                        .is_some_and(|format| is_listed(shape, splits, bias, with, format))
                        && names.insert(variant.name())
                }));
            }
        }
    }
    variants
}

#[cfg(test)]
mod tests;
