//! `matmul_tile`: the part of `MatMul` for one section of a weight and many bfloat16 rows.
//!
//! If there are fewer tiles than the device can run at once, several blocks split the columns of a tile, and the last
//! one adds up their sums. Deterministic plans never split, and use one tile size for all row counts.

use super::super::super::BackendError;
use super::super::arena::DeviceSection;
use super::super::driver::Facts;
use super::tile::{Size, Tile};
use super::{Recorder, params};
use crate::plan::{MatMul, WeightFormat};

params! {
    Params {
        x: u64, weight: u64, bias: u64, out: u64, metadata: u64, scratch: u64, counters: u64,
        columns: u32,
        outputs: u32,
        output_start: u32,
        output_stride: u32,
        count_word: u32,
        count_multiplier: u32,
        accumulate: u32,
        splits: u32,
    }
}

/// Target number of blocks per multiprocessor when splitting.
const BLOCKS_EACH: u32 = 2;
/// Minimum number of column chunks per split.
const SPLIT_CHUNKS_MIN: u32 = 4;
/// Sums in the largest tile that is split.
const SPLIT_SUMS: u32 = 64 * 64;

/// Bytes of scratch for tiles that are split between blocks.
pub(in super::super) fn scratch_bytes(device: &Facts) -> u64 {
    u64::from(counters(device)) * u64::from(SPLIT_SUMS) * 4
}

/// Number of counters for tiles that are split between blocks.
pub(in super::super) fn counters(device: &Facts) -> u32 {
    BLOCKS_EACH * device.sm_count
}

/// Chooses the tile for a product.
fn choose(
    device: &Facts,
    deterministic: bool,
    rows: u32,
    outputs: u32,
    format: WeightFormat,
) -> Tile {
    let tile = |size| Tile::new(size, format, device.shared_bytes_max);
    match rows {
        _ if deterministic => tile(Size::Small),
        0..=16 => tile(Size::Tiny),
        17..=32 => tile(Size::Small),
        33..=64 => tile(Size::Middle),
        _ => {
            // Large tiles load the least per product; they are used if there is one for nearly every multiprocessor.
            let large = [Size::Wide, Size::Large]
                .map(tile)
                .into_iter()
                .find(|tile| {
                    4 * (rows.div_ceil(tile.rows) * outputs.div_ceil(tile.outputs))
                        >= 3 * device.sm_count
                });
            large.unwrap_or_else(|| tile(Size::Middle))
        }
    }
}

/// Number of blocks that split the columns of a tile.
fn splits(device: &Facts, tile: Tile, tiles: u32, columns: u32) -> u32 {
    debug_assert!(tiles > 0 && columns > 0, "a product has sums");
    if tile.rows * tile.outputs > SPLIT_SUMS {
        return 1;
    }
    let most = columns.div_ceil(tile.chunk) / SPLIT_CHUNKS_MIN;
    (counters(device) / tiles.max(1)).min(most).max(1)
}

/// Records the launch.
pub(super) fn encode(
    recorder: &mut Recorder<'_>,
    step: &MatMul,
    section: &DeviceSection,
) -> Result<(), BackendError> {
    let (arena, device) = (recorder.arena, recorder.device);
    let (rows, columns) = (recorder.rows(step.x), recorder.columns(step.x));
    let deterministic = recorder.capacity.deterministic;
    let tile = choose(device, deterministic, rows, section.rows, section.format);
    let (row_tiles, output_tiles) = (
        rows.div_ceil(tile.rows),
        section.rows.div_ceil(tile.outputs),
    );
    let splits = if deterministic {
        1
    } else {
        splits(device, tile, row_tiles * output_tiles, columns)
    };
    debug_assert!(
        section.row_start + section.rows <= recorder.columns(step.out),
        "a section gives columns of out"
    );
    let kernel = tile.kernel("matmul_tile", section.format, recorder.storage(step.out));
    let count = recorder.row_count(step.x);
    let params = Params {
        x: recorder.row_buffer(step.x),
        weight: section.address,
        bias: recorder.optional(step.bias),
        out: recorder.row_buffer(step.out),
        metadata: arena.metadata,
        scratch: arena.tile_scratch,
        counters: arena.tile_counters,
        columns,
        outputs: section.rows,
        output_start: section.row_start,
        output_stride: recorder.columns(step.out),
        count_word: count.header,
        count_multiplier: count.times,
        accumulate: u32::from(step.accumulate),
        splits,
    };
    let grid = [row_tiles, output_tiles, splits];
    recorder.launch(
        &kernel,
        &params,
        grid,
        tile.threads(),
        tile.shared_bytes(section.format),
    )
}

#[cfg(test)]
mod tests;
