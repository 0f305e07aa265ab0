//! `MatMul` → one dispatch per shard of the weight.
//!
//! Kernel by number of rows: `matmul_vec` for one row, `matmul_skinny` for 2 to 16, `matmul_tile` for more. Software
//! adapters use `matmul_lane`, which needs no workgroup memory, or `matmul_texel` if buffers have images
//! (`matmul_texel_group` for quantized weights). Deterministic plans use one kernel for every row count, so that the
//! sums of a row do not depend on the other rows.

use super::super::super::BackendError;
use super::super::device::{Class, Profile, Tier};
use super::super::pipelines::Kernel;
use super::{Recorder, RowParams, Variant, for_weight, params};
use crate::plan::{MatMul, WeightFormat};
use std::collections::BTreeSet;

params! {
    Params {
        rows: u32, eights: u32, outputs: u32, output_start: u32, output_stride: u32, accumulate: u32,
        row_vectors: u32, plane: u32, scales: u32, supers: u32,
    }
}

/// The kernel and its tile shape, which determines the grid for given rows and outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Vec { workgroup: u32 },
    Skinny { rows: u32, outputs: u32 },
    Tile { rows: u32 },
    Lane { rows: u32, outputs: u32 },
    Texel { rows: u32, many: bool, groups: bool },
}

/// Outputs per workgroup of `matmul_texel`.
const TEXEL_OUTPUTS: u32 = 8;

impl Shape {
    /// The tile table: class, rows and columns → shape.
    fn choose(profile: &Profile, deterministic: bool, rows: u32, eights: u32) -> Self {
        debug_assert!(rows > 0, "a product has rows");
        match (profile.class, rows) {
            (Class::Software, _) if profile.texels => {
                let tile = texel_rows(deterministic, rows);
                Self::Texel { rows: tile, many: rows > tile, groups: eights.is_multiple_of(4) }
            }
            (Class::Software, _) if deterministic => Self::Lane { rows: 8, outputs: 2 },
            (Class::Software, 1) => Self::Lane { rows: 1, outputs: 4 },
            (Class::Software, 2) => Self::Lane { rows: 2, outputs: 4 },
            (Class::Software, 3..=4) => Self::Lane { rows: 4, outputs: 4 },
            (Class::Software, _) => Self::Lane { rows: 8, outputs: 2 },
            _ if deterministic => Self::Tile { rows: 32 },
            (Class::Discrete, 1) if eights > 128 => Self::Vec { workgroup: 128 },
            (_, 1) => Self::Vec { workgroup: 64 },
            (_, 2) => Self::Skinny { rows: 2, outputs: 4 },
            (_, 3..=4) => Self::Skinny { rows: 4, outputs: 4 },
            (_, 5..=8) => Self::Skinny { rows: 8, outputs: 2 },
            (_, 9..=16) => Self::Skinny { rows: 16, outputs: 2 },
            (_, 17..=32) => Self::Tile { rows: 32 },
            _ => Self::Tile { rows: 64 },
        }
    }

    fn workgroups(self, rows: u32, outputs: u32) -> u32 {
        match self {
            Self::Vec { .. } => outputs.div_ceil(4),
            Self::Skinny { outputs: each, .. } => outputs.div_ceil(16 * each),
            Self::Tile { rows: tile } => rows.div_ceil(tile) * outputs.div_ceil(64),
            Self::Texel { rows: tile, .. } => (rows.div_ceil(tile) * outputs.div_ceil(TEXEL_OUTPUTS)).div_ceil(4),
            Self::Lane { rows: tile, outputs: each } => (rows.div_ceil(tile) * outputs.div_ceil(each)).div_ceil(64),
        }
    }

    fn kernel(self, format: WeightFormat, bias: bool, profile: &Profile) -> Kernel {
        let kernel = match self {
            Self::Vec { workgroup } => Kernel::new("matmul_vec")
                .number("WORKGROUP", workgroup)
                .define_if(profile.tier >= Tier::T1, "SUBGROUPS"),
            Self::Skinny { rows, outputs } => {
                Kernel::new("matmul_skinny").number("ROWS", rows).number("OUTPUTS", outputs)
            }
            Self::Tile { rows } => Kernel::new("matmul_tile").number("TILE_ROWS", rows),
            Self::Texel { rows, many, groups } => Kernel::new(texel_stem(groups && format.is_quantised()))
                .number("ROWS", rows)
                .number("OUTPUTS", TEXEL_OUTPUTS)
                .define_if(many, "MANY_ROWS")
                .define("TEXELS")
                .define("SUBGROUPS"),
            Self::Lane { rows, outputs } => Kernel::new("matmul_lane").number("ROWS", rows).number("OUTPUTS", outputs),
        };
        for_weight(kernel, format, profile).define_if(bias, "BIAS")
    }
}

/// Quantized rows of whole groups have a separate kernel.
fn texel_stem(groups: bool) -> &'static str {
    if groups { "matmul_texel_group" } else { "matmul_texel" }
}

/// Rows per tile of `matmul_texel`.
fn texel_rows(deterministic: bool, rows: u32) -> u32 {
    if deterministic { 8 } else { rows.min(8).next_power_of_two() }
}

/// Records the dispatches.
pub(super) fn encode(recorder: &mut Recorder<'_>, step: &MatMul) -> Result<(), BackendError> {
    let weight = recorder.weight(step.weight);
    let (rows, eights) = (recorder.rows(step.x), weight.columns / 8);
    if rows == 0 {
        return Ok(());
    }
    if !weight.columns.is_multiple_of(8) {
        return Err(BackendError::columns("matmul", weight.columns, 8));
    }
    let shape = Shape::choose(recorder.profile, recorder.capacity.deterministic, rows, eights);
    let output_stride = recorder.columns(step.out);
    debug_assert_eq!(weight.columns, recorder.columns(step.x), "a row of x is as long as a row of the weight");
    for shard in &weight.shards {
        let kernel = shape.kernel(shard.format, step.bias.is_some(), recorder.profile);
        let RowParams { row_vectors, plane, scales, supers } = RowParams::new(shard.format, weight.columns);
        debug_assert!(shard.row_start + shard.rows <= output_stride, "a shard gives columns of out");
        let params = Params {
            rows,
            eights,
            outputs: shard.rows,
            output_start: shard.row_start,
            output_stride,
            accumulate: u32::from(step.accumulate),
            row_vectors,
            plane,
            scales,
            supers,
        };
        let mut bindings = vec![recorder.row_buffer(step.x).fetch(), shard.buffer.fetch()];
        bindings.extend(step.bias.map(|bias| recorder.vector(bias).read()));
        bindings.push(recorder.row_buffer(step.out).read_write());
        recorder.dispatch(&kernel, &params, &bindings, shape.workgroups(rows, params.outputs))?;
    }
    Ok(())
}

/// Every variant that [`encode`] can use.
pub(super) fn variants() -> Vec<Variant> {
    let mut variants = Vec::new();
    for (class, tier, texels) in [
        (Class::Discrete, Tier::T0, false),
        (Class::Discrete, Tier::T1, false),
        (Class::Software, Tier::T0, false),
        (Class::Software, Tier::T1, true),
    ] {
        let with = |half| Profile { texels, ..super::test_profile(class, tier, half) };
        let mut shapes: Vec<Shape> = Vec::new();
        for (deterministic, rows, eights) in (1..=65).flat_map(|rows| {
            [(false, rows, 64), (false, rows, 65), (false, rows, 512), (true, rows, 64), (true, rows, 65)]
        }) {
            let shape = Shape::choose(&with(true), deterministic, rows, eights);
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        for shape in shapes {
            for bias in [false, true] {
                variants.extend(super::weight_variants(|format, profile| {
                    let profile = with(profile.half_conversion);
                    Variant::new::<Params>(shape.kernel(format, bias, &profile), Params::FIELDS)
                }));
            }
        }
    }
    // Tiers and classes share kernels. A bias only affects the epilogue, so quantized formats appear with bias only.
    let mut seen = BTreeSet::new();
    variants.retain(|variant| (variant.has_bias() || !variant.is_quantised()) && seen.insert(variant.name()));
    variants
}
