//! What the sizes of a product decide: the kernel with its tile, and among how many workgroups its columns are split.

use super::super::super::device::{Class, Profile};
use super::super::super::matrices::Matrices;
use super::{LANE_WORKGROUP, TILE_OUTPUTS};
use crate::plan::WeightFormat;

/// Workgroups that each core should have at least: with one, many wait for the slowest.
const WORKGROUPS_MIN: u32 = 2;
/// Beyond that, partial sums may take this share of the weight's bytes.
const SUMS_SHARE: u32 = 4;
/// Invocations of a workgroup of `matmul_rows`.
const ROWS_WORKGROUP: u32 = 64;
/// Outputs per workgroup of `matmul_texel`.
pub(super) const TEXEL_OUTPUTS: u32 = 8;
/// Minimum columns of a part, so that the merge costs little in comparison: a workgroup takes some microseconds for
/// them, as does another dispatch.
const SPLIT_COLUMNS_MIN_ROWS: u32 = 1024;
const SPLIT_COLUMNS_MIN_TILE: u32 = 256;
/// A span of columns is a multiple of a group.
pub(super) const SPAN_COLUMNS: u32 = 32;

/// The sizes of a product of one shard: x is `[rows × columns]`, the weight `[outputs × columns]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct MatmulShape {
    /// Rows of x.
    pub(super) rows: u32,
    /// Columns of x and of the weight, in units of 8.
    pub(super) eights: u32,
    /// Rows of the weight, which are columns of the result.
    pub(super) outputs: u32,
    /// The weight's format.
    pub(super) format: WeightFormat,
}

impl MatmulShape {
    /// Columns of x and of the weight.
    pub(super) fn columns(&self) -> u32 {
        8 * self.eights
    }

    /// Columns that one invocation of `matmul_rows` takes at once, in units of 8.
    fn unit_eights(&self) -> u32 {
        if self.format.is_quantised() { 4 } else { 1 }
    }

    /// Whether at most a quarter of `lanes` invocations that share an output is idle in their last turn.
    fn keeps_busy(&self, lanes: u32) -> bool {
        let units = self.eights.div_ceil(self.unit_eights());
        4 * units >= 3 * units.next_multiple_of(lanes)
    }
}

/// The kernel and its tile: how many rows and outputs of the result a workgroup, or a lane of it, computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tiling {
    /// `matmul_rows`: `lanes` invocations share `outputs` outputs of all rows.
    Rows { rows: u32, outputs: u32, lanes: u32 },
    /// `matmul_tile`: a workgroup has [`TILE_OUTPUTS`] outputs of `rows` rows.
    Tile { rows: u32 },
    /// The same by cooperative matrices.
    Matrices { rows: u32, matrices: Matrices },
    /// `matmul_lane`: an invocation has `outputs` outputs of `rows` rows.
    Lane { rows: u32, outputs: u32 },
    /// `matmul_texel`: a subgroup has [`TEXEL_OUTPUTS`] outputs of `rows` rows.
    Texel {
        rows: u32,
        /// Whether there are more rows than that.
        many: bool,
        /// Whether columns are whole groups of quantized weights.
        groups: bool,
    },
}

impl Tiling {
    /// The tile table: class, rows, columns and outputs → kernel and tile. Deterministic plans use one tile for every
    /// number of rows.
    pub(super) fn choose(profile: &Profile, deterministic: bool, shape: &MatmulShape) -> Self {
        debug_assert!(shape.rows > 0, "a product has rows");
        match profile.class {
            Class::Software if profile.texels => Self::texel(deterministic, shape),
            Class::Software if deterministic => Self::lane(u32::MAX),
            Class::Software => Self::lane(shape.rows),
            _ if deterministic => Self::Tile { rows: 32 },
            _ if shape.rows <= profile.few_rows_max() => Self::few_rows(profile, shape),
            _ => Self::many_rows(profile, shape.rows),
        }
    }

    fn texel(deterministic: bool, shape: &MatmulShape) -> Self {
        let rows = match shape.rows {
            _ if deterministic => 8,
            // A token with five drafts.
            5 | 6 => 6,
            rows => rows.min(8).next_power_of_two(),
        };
        Self::Texel {
            rows,
            many: shape.rows > rows,
            groups: shape.eights.is_multiple_of(4),
        }
    }

    fn lane(rows: u32) -> Self {
        let (rows, outputs) = match rows {
            ..=1 => (1, 4),
            2 => (2, 8),
            3..=4 => (4, 8),
            _ => (8, 8),
        };
        Self::Lane { rows, outputs }
    }

    /// As few lanes per output as fill the device: the fewer, the more outputs of a workgroup share what it loads of x.
    fn few_rows(profile: &Profile, shape: &MatmulShape) -> Self {
        let with_lanes = |lanes| Self::Rows {
            rows: shape.rows.next_power_of_two(),
            outputs: if shape.rows > 8 {
                2
            } else {
                profile.tuning.product_outputs
            },
            lanes,
        };
        let mut chosen = with_lanes(8);
        for lanes in [8, 16, 32, 64] {
            if shape.keeps_busy(lanes) {
                chosen = with_lanes(lanes);
                if chosen.workgroups(shape) >= profile.product_workgroups() {
                    break;
                }
            }
        }
        chosen
    }

    fn many_rows(profile: &Profile, rows: u32) -> Self {
        let rows = if rows <= 32 {
            32
        } else {
            profile.tuning.tile_rows
        };
        match profile.matrices() {
            Some(matrices) => Self::Matrices { rows, matrices },
            None => Self::Tile { rows },
        }
    }

    /// Number of workgroups, if the columns are not split.
    pub(super) fn workgroups(self, shape: &MatmulShape) -> u32 {
        let tiles = |rows, outputs| shape.rows.div_ceil(rows) * shape.outputs.div_ceil(outputs);
        match self {
            Self::Rows { outputs, lanes, .. } => {
                shape.outputs.div_ceil(outputs * (ROWS_WORKGROUP / lanes))
            }
            Self::Tile { rows } | Self::Matrices { rows, .. } => tiles(rows, TILE_OUTPUTS),
            // Four subgroups.
            Self::Texel { rows, .. } => tiles(rows, TEXEL_OUTPUTS).div_ceil(4),
            Self::Lane { rows, outputs } => tiles(rows, outputs).div_ceil(LANE_WORKGROUP),
        }
    }

    /// Minimum columns of a part, if the columns can be split.
    pub(super) fn span_min(self) -> Option<u32> {
        match self {
            Self::Rows { .. } => Some(SPLIT_COLUMNS_MIN_ROWS),
            Self::Tile { .. } | Self::Matrices { .. } => Some(SPLIT_COLUMNS_MIN_TILE),
            Self::Lane { .. } | Self::Texel { .. } => None,
        }
    }
}

/// How the columns of a product are divided among workgroups, whose partial sums `matmul_merge` adds (split-K).
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitK {
    /// Number of parts.
    pub(super) parts: u32,
    /// Columns of a part.
    pub(super) span: u32,
}

impl SplitK {
    /// All columns as one part.
    pub(super) fn none(shape: &MatmulShape) -> Self {
        Self {
            parts: 1,
            span: shape.columns(),
        }
    }

    /// The split with which a product fills the device. There is only one part if it has enough workgroups without.
    pub(super) fn choose(
        profile: &Profile,
        deterministic: bool,
        tiling: Tiling,
        shape: &MatmulShape,
    ) -> Self {
        let columns = shape.columns();
        let tiles = tiling.workgroups(shape);
        let Some(span_min) = tiling.span_min() else {
            return Self::none(shape);
        };
        if deterministic || tiles >= WORKGROUPS_MIN * profile.cores {
            return Self::none(shape);
        }
        let parts_max = (columns / span_min).max(1);
        // The weight and the sums of a part have as many rows.
        let cheap = shape.format.row_bytes(columns) / u64::from(SUMS_SHARE * 4 * shape.rows);
        let cheap = u32::try_from(cheap).unwrap_or(u32::MAX);
        let filling = (WORKGROUPS_MIN * profile.cores).div_ceil(tiles);
        let parts = (profile.product_workgroups() / tiles)
            .min(cheap.max(filling))
            .clamp(1, parts_max);
        let span = columns.div_ceil(parts).next_multiple_of(SPAN_COLUMNS);
        Self {
            parts: columns.div_ceil(span),
            span,
        }
    }

    /// Whether there is more than one part.
    pub(super) fn is_split(self) -> bool {
        self.parts > 1
    }

    /// Bytes of the sums of every part.
    pub(super) fn sums_bytes(self, shape: &MatmulShape) -> u64 {
        u64::from(self.parts) * u64::from(shape.rows) * u64::from(shape.outputs) * 4
    }
}
