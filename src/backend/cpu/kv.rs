//! The KV pool of one layer's keys or values.
//!
//! A tile (one block, one head) is stored as panels, so that attention is two products whose weights lie in the pool:
//! keys as `[slot / 16][element][slot % 16]`, where outputs are scores, and values as
//! `[element / 16][slot][element % 16]`, where outputs are elements. In q8 and fp8, the scales of all slots follow.

use super::memory::Lines;
use super::simd::{LANES, Words};
use crate::backend::{BackendError, KvHalf};
use crate::plan::KvFormat;
use crate::plan::format::{KvTile, e4m3_half};

/// How tiles are stored.
#[derive(Clone, Copy)]
pub(super) struct TileLayout {
    /// Format, slots and elements of a row.
    pub(super) tile: KvTile,
    /// Which panels it has.
    pub(super) half: KvHalf,
}

impl TileLayout {
    /// Columns of a panel.
    pub(super) fn columns(&self) -> usize {
        if self.half == KvHalf::Key {
            self.tile.head_dim
        } else {
            self.tile.slots
        }
    }

    /// Panels of a tile.
    fn panels(&self) -> usize {
        (if self.half == KvHalf::Key {
            self.tile.slots
        } else {
            self.tile.head_dim
        })
        .div_ceil(LANES)
    }

    /// Words of the codes, or of all elements.
    pub(super) fn element_words(&self) -> usize {
        self.panels() * self.columns() * self.vector_words()
    }

    /// Words of sixteen elements.
    fn vector_words(&self) -> usize {
        match self.tile.format {
            KvFormat::F32 => LANES,
            KvFormat::F16 => LANES / 2,
            KvFormat::Q8 | KvFormat::Fp8 => LANES / 4,
        }
    }

    /// Words of a tile.
    pub(super) fn words(&self) -> usize {
        let scales = if self.tile.format.is_coded() {
            self.tile.slots.next_multiple_of(LANES)
        } else {
            0
        };
        self.element_words() + scales
    }

    /// Place of an element.
    fn index(&self, slot: usize, element: usize) -> usize {
        let (output, column) = if self.half == KvHalf::Key {
            (slot, element)
        } else {
            (element, slot)
        };
        (output / LANES * self.columns() + column) * LANES + output % LANES
    }

    /// Rounds a row into `slot`; `packed` is a buffer.
    pub(super) fn write(&self, tile: &mut [u32], slot: usize, row: &[f32], packed: &mut Vec<u32>) {
        // One row is encoded as its format says, and its elements are distributed.
        let one = KvTile {
            slots: 1,
            ..self.tile
        };
        packed.resize(one.words(), 0);
        one.encode(packed, 0, row);
        match self.tile.format {
            KvFormat::F32 => self.distribute::<u32>(tile, slot, packed),
            KvFormat::F16 => self.distribute::<u16>(tile, slot, packed),
            KvFormat::Q8 | KvFormat::Fp8 => {
                let (codes, scale) = packed.split_at(self.tile.head_dim / 4);
                self.distribute::<u8>(tile, slot, codes);
                tile[self.element_words() + slot] = scale[0];
            }
        }
    }

    fn distribute<T: bytemuck::Pod>(&self, tile: &mut [u32], slot: usize, row: &[u32]) {
        let elements: &mut [T] = bytemuck::cast_slice_mut(tile);
        for (element, value) in bytemuck::cast_slice::<u32, T>(row).iter().enumerate() {
            elements[self.index(slot, element)] = *value;
        }
    }

    /// Appends a tile in the order of [`KvTile`], bit for bit.
    fn save(&self, tile: &[u32], copy: &mut Vec<u8>) {
        match self.tile.format {
            KvFormat::F32 => self.collect::<u32>(tile, copy),
            KvFormat::F16 => self.collect::<u16>(tile, copy),
            KvFormat::Q8 | KvFormat::Fp8 => {
                self.collect::<u8>(tile, copy);
                copy.extend_from_slice(bytemuck::cast_slice(
                    &tile[self.element_words()..][..self.tile.slots],
                ));
            }
        }
    }

    fn collect<T: bytemuck::Pod>(&self, tile: &[u32], copy: &mut Vec<u8>) {
        let elements: &[T] = bytemuck::cast_slice(tile);
        for slot in 0..self.tile.slots {
            let row = (0..self.tile.head_dim).map(|element| elements[self.index(slot, element)]);
            row.for_each(|value| copy.extend_from_slice(bytemuck::bytes_of(&value)));
        }
    }

    /// Overwrites a tile with a copy; `words` is a buffer.
    fn restore(&self, tile: &mut [u32], copy: &[u8], words: &mut Vec<u32>) {
        words.resize(self.tile.words(), 0);
        bytemuck::cast_slice_mut(words).copy_from_slice(copy);
        let rows = self.tile.words()
            - if self.tile.format.is_coded() {
                self.tile.slots
            } else {
                0
            };
        for (slot, row) in words[..rows]
            .chunks_exact(rows / self.tile.slots)
            .enumerate()
        {
            match self.tile.format {
                KvFormat::F32 => self.distribute::<u32>(tile, slot, row),
                KvFormat::F16 => self.distribute::<u16>(tile, slot, row),
                KvFormat::Q8 | KvFormat::Fp8 => self.distribute::<u8>(tile, slot, row),
            }
        }
        tile[self.element_words()..][..words.len() - rows].copy_from_slice(&words[rows..]);
    }

    /// Widens the row of `slot`.
    fn read(&self, tile: &[u32], slot: usize, row: &mut [f32]) {
        let scale = f32::from_bits(*tile.get(self.element_words() + slot).unwrap_or(&0));
        for (element, value) in row.iter_mut().enumerate() {
            let index = self.index(slot, element);
            *value = match self.tile.format {
                KvFormat::F32 => f32::from_bits(tile[index]),
                KvFormat::F16 => bytemuck::cast_slice::<u32, half::f16>(tile)[index].to_f32(),
                KvFormat::Q8 => f32::from(bytemuck::cast_slice::<u32, i8>(tile)[index]) * scale,
                KvFormat::Fp8 => {
                    e4m3_half(bytemuck::cast_slice::<u32, u8>(tile)[index]).to_f32() * scale
                }
            };
        }
    }
}

/// Keys or values of one layer: `[block][kv_head]` tiles.
pub(super) struct KvStore {
    /// How they are stored.
    pub(super) layout: TileLayout,
    tiles: usize,
    lines: Lines,
}

impl KvStore {
    /// Allocates `tiles` tiles of zeros.
    pub(super) fn new(tile: KvTile, half: KvHalf, tiles: usize) -> Result<Self, BackendError> {
        let layout = TileLayout { tile, half };
        // Addresses have 32 bits in a browser's tab: what cannot be counted cannot be allocated.
        let words = tiles.saturating_mul(layout.words());
        let lines = Lines::zeroed(words.div_ceil(LANES), "the KV pool")?;
        Ok(Self {
            layout,
            tiles,
            lines,
        })
    }

    /// Number of elements in all rows.
    pub(super) fn elements(&self) -> usize {
        self.tiles * self.layout.tile.slots * self.layout.tile.head_dim
    }

    /// All lines; a tile has whole ones.
    pub(super) fn lines(&self) -> &[Words] {
        self.lines.lines()
    }

    /// All words.
    pub(super) fn words(&self) -> &[u32] {
        self.lines().as_flattened()
    }

    /// All words, to write.
    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        self.lines.lines_mut().as_flattened_mut()
    }

    /// Rounds rows of all tiles, `[tile][slot][element]`.
    pub(super) fn write_all(&mut self, values: &[f32]) {
        let (layout, mut packed) = (self.layout, Vec::new());
        let KvTile {
            slots, head_dim, ..
        } = layout.tile;
        for (tile, rows) in self
            .words_mut()
            .chunks_exact_mut(layout.words())
            .zip(values.chunks(slots * head_dim))
        {
            for (slot, row) in rows.chunks_exact(head_dim).enumerate() {
                layout.write(tile, slot, row, &mut packed);
            }
        }
    }

    /// Widens all rows.
    pub(super) fn read_all(&self) -> Vec<f32> {
        let KvTile {
            slots, head_dim, ..
        } = self.layout.tile;
        let mut values = vec![0.0; self.elements()];
        for (tile, rows) in self
            .words()
            .chunks_exact(self.layout.words())
            .zip(values.chunks_mut(slots * head_dim))
        {
            for (slot, row) in rows.chunks_exact_mut(head_dim).enumerate() {
                self.layout.read(tile, slot, row);
            }
        }
        values
    }

    /// Appends `count` tiles, starting at tile `first`, in the order of [`KvTile`].
    pub(super) fn save(&self, first: usize, count: usize, copy: &mut Vec<u8>) {
        let words = self.layout.words();
        let tiles = &self.words()[first * words..(first + count) * words];
        tiles
            .chunks_exact(words)
            .for_each(|tile| self.layout.save(tile, copy));
    }

    /// Overwrites tiles, starting at tile `first`, with a copy.
    pub(super) fn restore(&mut self, first: usize, copy: &[u8]) {
        let (layout, mut buffer) = (self.layout, Vec::new());
        let words = layout.words();
        let copies = copy.chunks_exact(layout.tile.words() * 4);
        for (tile, copy) in self.words_mut()[first * words..]
            .chunks_exact_mut(words)
            .zip(copies)
        {
            layout.restore(tile, copy, &mut buffer);
        }
    }

    /// Copies `count` tiles.
    pub(super) fn copy(&mut self, source: usize, target: usize, count: usize) {
        let words = self.layout.words();
        self.words_mut()
            .copy_within(source * words..(source + count) * words, target * words);
    }
}
