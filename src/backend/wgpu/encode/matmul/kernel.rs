//! The kernels of a product, with the constants that they are compiled with.

use super::super::super::device::Profile;
use super::super::super::matrices::Matrices;
use super::super::super::pipelines::Kernel;
use super::super::super::preprocess::{HALVES, MATRICES};
use super::super::{for_weight, gated_activation};
use super::TILE_OUTPUTS;
use super::shape::{MatmulShape, SPAN_COLUMNS, TEXEL_OUTPUTS, Tiling};
use crate::plan::Activation;

/// Invocations of a workgroup of `matmul_tile`.
const TILE_WORKGROUP: u32 = 128;

/// What the kernel of a product is compiled for.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulVariant {
    /// Of its sizes, only the format and whether the columns are whole groups matter.
    pub(super) shape: MatmulShape,
    pub(super) tiling: Tiling,
    /// Whether it computes partial sums, which `matmul_merge` adds.
    pub(super) is_split: bool,
    /// Whether a bias is added, by this kernel or by the merge.
    pub(super) bias: bool,
    /// Whether x is normalized first.
    pub(super) norm: bool,
    /// The activation of the results.
    pub(super) activation: Option<Activation>,
}

impl MatmulVariant {
    pub(super) fn kernel(&self, profile: &Profile) -> Kernel {
        let kernel = for_weight(self.tiled(profile), self.shape.format, profile)
            .define_if(self.is_split, "SPLITS")
            .define_if(self.bias && !self.is_split, "BIAS")
            .define_if(self.norm, "NORM");
        match self.activation {
            Some(activation) => kernel
                .define("GATED")
                .define(gated_activation::activation(activation).0),
            None => kernel,
        }
    }

    /// The kernel with its tile.
    fn tiled(&self, profile: &Profile) -> Kernel {
        match self.tiling {
            Tiling::Rows {
                rows,
                outputs,
                lanes,
            } => self.few_rows(rows, outputs, lanes, profile),
            Tiling::Tile { rows } => for_tile(Kernel::new("matmul_tile"), rows),
            Tiling::Matrices { rows, matrices } => {
                for_matrices(Kernel::new("matmul_tile"), rows, matrices)
            }
            Tiling::Texel { rows, many, groups } => {
                // Quantized rows of whole groups have a separate kernel.
                let stem = if groups && self.shape.format.is_quantised() {
                    "matmul_texel_group"
                } else {
                    "matmul_texel"
                };
                Kernel::new(stem)
                    .number("ROWS", rows)
                    .number("OUTPUTS", TEXEL_OUTPUTS)
                    .define_if(many, "MANY_ROWS")
                    .define("TEXELS")
                    .define("SUBGROUPS")
            }
            Tiling::Lane { rows, outputs } => Kernel::new("matmul_lane")
                .number("ROWS", rows)
                .number("OUTPUTS", outputs),
        }
    }

    /// `matmul_rows`.
    fn few_rows(&self, rows: u32, outputs: u32, lanes: u32, profile: &Profile) -> Kernel {
        let MatmulShape { eights, format, .. } = self.shape;
        let as_bytes = rows == 1 && profile.int8_activations && format.has_byte_codes();
        let has_partial_group = format.is_quantised() && !eights.is_multiple_of(4);
        Kernel::new("matmul_rows")
            .number("ROWS", rows)
            .number("OUTPUTS", outputs)
            .number("LANES", lanes)
            .define_if(rows == 1, "ONE_ROW")
            .define_if(as_bytes, "INT8")
            .define_if(has_partial_group, "PARTIAL")
    }
}

/// `kernel` with tiles of `rows` rows, 32 or 64: see `shaders/common/tile.wgsl`.
pub(in super::super) fn for_tile(kernel: Kernel, rows: u32) -> Kernel {
    kernel
        .number("TILE_ROWS", rows)
        .number("ROWS_EACH", rows / 8)
        .number("VECTORS_EACH", rows / 32)
}

/// `kernel` with tiles of `rows` rows, 32 or 64, by matrices: see `shaders/common/tile_matrices.wgsl`.
pub(in super::super) fn for_matrices(kernel: Kernel, rows: u32, matrices: Matrices) -> Kernel {
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
pub(in super::super) fn with_matrices(kernel: Kernel, matrices: Matrices) -> Kernel {
    let size = match (matrices.height, matrices.size) {
        (8, 8) => "SIZE_8",
        (8, _) => "SIZE_8_16",
        _ => "SIZE_16",
    };
    kernel
        .define("SUBGROUPS")
        .define(HALVES)
        .define(MATRICES)
        .define(size)
        .define_if(matrices.scalar_tiles, "SCALAR_TILES")
}

/// The kernel that rounds rows of x to halves, for cooperative matrices.
pub(super) fn narrow_kernel() -> Kernel {
    Kernel::new("matmul_narrow").define(HALVES)
}

/// The kernel that adds the partial sums of a product whose columns are split.
pub(super) fn merge_kernel(bias: bool) -> Kernel {
    Kernel::new("matmul_merge").define_if(bias, "BIAS")
}
