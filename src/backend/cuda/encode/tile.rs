//! The tiles of `cuda/common/tile.cuh`: sizes, shared memory, and defines of the kernels that use them.

use super::super::kernel::Kernel;
use crate::plan::format::Scales;
use crate::plan::{Storage, WeightFormat};

/// How a block's tile is divided; the fields correspond to the defines of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: u32,
    pub(super) outputs: u32,
    warp_rows: u32,
    warp_outputs: u32,
    slices: u32,
    stages: u32,
    /// Columns per stage.
    pub(super) chunk: u32,
}

/// Sizes of a tile. In the first two, several warps share the columns, since the tile alone has too little work for
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    /// 16 rows.
    Tiny,
    /// 32 rows.
    Small,
    /// 64 rows.
    Middle,
    /// 128 rows.
    Large,
    /// 128 rows, and more outputs: for dense weights with long rows.
    Wide,
}

impl Tile {
    /// The tile of a size for a format, with as many stages as fit in `shared_bytes_max`; the next smaller size if none
    /// fits.
    pub(super) fn new(size: Size, format: WeightFormat, shared_bytes_max: u32) -> Self {
        let quantised = format.is_quantised();
        let tile = |(rows, outputs), (warp_rows, warp_outputs), slices, stages, chunk| Self {
            rows,
            outputs,
            warp_rows,
            warp_outputs,
            slices,
            stages,
            chunk,
        };
        // Chunks of quantized weights have 128 columns; slices need that many groups of 32.
        let chunk = if quantised { 128 } else { 64 };
        let (most, smaller) = match size {
            Size::Tiny => (
                tile((16, 64), (16, 32), 4, if quantised { 6 } else { 4 }, 128),
                None,
            ),
            Size::Small => (tile((32, 64), (32, 32), 4, 4, 128), Some(Size::Tiny)),
            Size::Middle => (
                tile((64, 64), (32, 32), 2, if quantised { 3 } else { 4 }, chunk),
                Some(Size::Small),
            ),
            Size::Wide if !quantised => {
                (tile((128, 256), (64, 64), 1, 3, chunk), Some(Size::Large))
            }
            Size::Large | Size::Wide => {
                (tile((128, 128), (64, 32), 1, 3, chunk), Some(Size::Middle))
            }
        };
        let mut stages = (2..=most.stages)
            .rev()
            .map(|stages| Self { stages, ..most });
        let fits =
            stages.find(|tile| tile.shared_bytes(format) + tile.rows * 4 + 16 <= shared_bytes_max);
        match (fits, smaller) {
            (Some(tile), _) => tile,
            (None, Some(smaller)) => Self::new(smaller, format, shared_bytes_max),
            (None, None) => Self { stages: 2, ..most },
        }
    }

    fn warps(self) -> u32 {
        self.rows / self.warp_rows * (self.outputs / self.warp_outputs) * self.slices
    }

    /// Threads per block.
    pub(super) fn threads(self) -> u32 {
        32 * self.warps()
    }

    /// The same as `TILE_SHARED_BYTES` of `cuda/common/tile.cuh`.
    pub(super) fn shared_bytes(self, format: WeightFormat) -> u32 {
        let stage = self.rows * 2 * self.chunk + self.outputs * chunk_bytes(format, self.chunk);
        4 * self.rows + self.stages * stage + self.warps() * self.warp_scale_bytes(format)
    }

    /// Bytes of the scales that a warp decodes for its outputs.
    fn warp_scale_bytes(self, format: WeightFormat) -> u32 {
        if !format.is_quantised() {
            return 0;
        }
        let scales = format.parts().2;
        let halves = if matches!(scales, Scales::K16 | Scales::K16Min | Scales::E4m3) {
            2
        } else {
            1
        };
        let with_minimum = matches!(
            scales,
            Scales::HalfMin | Scales::HalfZero | Scales::K32Min | Scales::K16Min
        );
        let kinds = if with_minimum { 2 } else { 1 };
        self.chunk / 32 / self.slices * halves * kinds * self.warp_outputs * 4
    }

    /// A kernel with this tile, for weights in `format` and output rows in `storage`.
    pub(super) fn kernel(
        self,
        stem: &'static str,
        format: WeightFormat,
        storage: Storage,
    ) -> Kernel {
        Kernel::new(stem)
            .define("WEIGHT", format!("{format:?}"))
            .define_type("OUT_TYPE", storage)
            .define("TILE_ROWS", self.rows)
            .define("TILE_OUTPUTS", self.outputs)
            .define("WARP_ROWS", self.warp_rows)
            .define("WARP_OUTPUTS", self.warp_outputs)
            .define("SLICES", self.slices)
            .define("STAGES", self.stages)
            .define("CHUNK", self.chunk)
    }
}

/// Bytes that a chunk of one weight row takes in shared memory.
fn chunk_bytes(format: WeightFormat, chunk: u32) -> u32 {
    if let Some(bytes) = format.element_bytes() {
        return bytes * chunk;
    }
    // At 1024 columns no section has padding. Halves shared by 256 columns take a word of their own in every chunk.
    debug_assert!(1024u32.is_multiple_of(chunk), "a row has whole chunks");
    let layout = format.layout(1024);
    let own = layout.supers as u32 / (1024 / chunk);
    if layout.row_bytes > layout.supers {
        own + 4
    } else {
        own
    }
}

#[cfg(test)]
mod tests;
