//! Tiles → rows of patches.

use super::normalize::Normalization;
use super::picture::Picture;
use std::sync::Arc;

/// One image as a tower sees it, in one pass: all of a small image, or a part of a large one.
#[derive(Clone, Debug, PartialEq)]
pub struct Tile {
    /// `[patches × columns]`: a patch's numbers are channel, row, column; then zeros, up to a multiple of 8 columns.
    pub patches: Arc<[f32]>,
    /// Columns of a row of `patches`.
    pub columns: u32,
    /// Per patch: row · across + column, which is its index in a table of positions.
    pub positions: Arc<[u32]>,
    /// Patches side by side: a patch is in row ⌊position / across⌋.
    pub across: u32,
    /// Rows that the tower makes of it, one for each placeholder.
    pub rows: u32,
    /// Placeholders that follow each other in a prompt: one other token comes before the next so many.
    pub run: u32,
    /// Tells tiles with other pixels apart.
    pub digest: [u8; 32],
}

/// How a tile is cut into patches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grid {
    /// Pixels of a patch's side.
    pub(super) patch: u32,
    /// Patches of the side of a block, of which the tower makes one row.
    pub(super) block: u32,
}

/// Columns of patches of `patch` × `patch` pixels: kernels read rows in runs of 8 numbers.
pub(super) fn columns(patch: u32) -> u32 {
    (3 * patch * patch).next_multiple_of(8)
}

impl Tile {
    /// The patches of a picture, whose sides are multiples of a block's. They come block by block, so that the patches
    /// of one block are consecutive: block row, block column, row and column within the block.
    pub(super) fn new(picture: &Picture, grid: Grid, normalization: &Normalization) -> Self {
        let Grid { patch, block } = grid;
        let side = patch * block;
        let [down, across] = [picture.height(), picture.width()].map(|pixels| {
            debug_assert!(
                pixels.is_multiple_of(side),
                "a tile consists of whole blocks"
            );
            pixels / side
        });
        let columns = columns(patch);
        let count = (down * across * block * block) as usize;
        let mut patches = Vec::with_capacity(count * columns as usize);
        let mut positions = Vec::with_capacity(count);
        for at in 0..down * across * block * block {
            let (blocks, within) = (at / (block * block), at % (block * block));
            let row = blocks / across * block + within / block;
            let column = blocks % across * block + within % block;
            positions.push(row * across * block + column);
            push_patch(
                picture,
                [row * patch, column * patch],
                patch,
                normalization,
                &mut patches,
            );
            patches.resize(positions.len() * columns as usize, 0.0);
        }
        let mut hasher = blake3::Hasher::new_derive_key("folio 2026 pixels of a tile");
        for number in [picture.height(), picture.width(), patch, block] {
            hasher.update(&number.to_le_bytes());
        }
        hasher.update(picture.rgb());
        Self {
            patches: patches.into(),
            columns,
            positions: positions.into(),
            across: across * block,
            rows: down * across,
            run: down * across,
            digest: *hasher.finalize().as_bytes(),
        }
    }
}

/// Adds the numbers of one patch: channel, row, column.
fn push_patch(
    picture: &Picture,
    [top, left]: [u32; 2],
    patch: u32,
    normalization: &Normalization,
    numbers: &mut Vec<f32>,
) {
    for channel in 0..3 {
        for row in top..top + patch {
            for column in left..left + patch {
                let pixel = (row * picture.width() + column) as usize;
                let byte = picture.rgb()[3 * pixel + channel];
                numbers.push(normalization.apply(channel, byte));
            }
        }
    }
}
