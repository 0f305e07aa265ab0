//! The KV pool of one layer's keys or values.
//!
//! A tile (one block, one head) is stored as panels, so that attention is two products whose weights lie in the pool:
//! keys as `[slot / 16][element][slot % 16]`, where outputs are scores, and values as
//! `[element / 16][slot][element % 16]`, where outputs are elements. In q8, the scales of all slots follow.

use super::decode::{Products, Store};
use super::group::Visit;
use super::memory::Lines;
use super::product::Source;
use super::simd::{Kernel, LANES, Lanes, Simd};
use crate::backend::{BackendError, KvHalf};
use crate::plan::KvFormat;
use crate::plan::format::{GROUP, KvTile};
use crate::plan::inputs::NONE;
use std::ops::Range;

/// How tiles are stored.
#[derive(Clone, Copy)]
pub(super) struct TileLayout {
    /// Format, slots and elements of a row.
    pub(super) tile: KvTile,
    half: KvHalf,
}

impl TileLayout {
    /// Columns of a panel.
    fn columns(&self) -> usize {
        if self.half == KvHalf::Key { self.tile.head_dim } else { self.tile.slots }
    }

    /// Panels of a tile.
    fn panels(&self) -> usize {
        (if self.half == KvHalf::Key { self.tile.slots } else { self.tile.head_dim }).div_ceil(LANES)
    }

    /// Words of the codes, or of all elements.
    fn element_words(&self) -> usize {
        self.panels() * self.columns() * self.vector_words()
    }

    /// Words of sixteen elements.
    fn vector_words(&self) -> usize {
        match self.tile.format {
            KvFormat::F32 => LANES,
            KvFormat::F16 => LANES / 2,
            KvFormat::Q8 => LANES / 4,
        }
    }

    /// Words of a tile.
    pub(super) fn words(&self) -> usize {
        let scales = if self.tile.format == KvFormat::Q8 { self.tile.slots.next_multiple_of(LANES) } else { 0 };
        self.element_words() + scales
    }

    /// Place of an element.
    fn index(&self, slot: usize, element: usize) -> usize {
        let (output, column) = if self.half == KvHalf::Key { (slot, element) } else { (element, slot) };
        (output / LANES * self.columns() + column) * LANES + output % LANES
    }

    /// Rounds a row into `slot`; `packed` is a buffer.
    pub(super) fn write(&self, tile: &mut [u32], slot: usize, row: &[f32], packed: &mut Vec<u32>) {
        // One row is encoded as its format says, and its elements are distributed.
        let one = KvTile { slots: 1, ..self.tile };
        packed.resize(one.words(), 0);
        one.encode(packed, 0, row);
        match self.tile.format {
            KvFormat::F32 => self.distribute::<u32>(tile, slot, packed),
            KvFormat::F16 => self.distribute::<u16>(tile, slot, packed),
            KvFormat::Q8 => {
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
            KvFormat::Q8 => {
                self.collect::<u8>(tile, copy);
                copy.extend_from_slice(bytemuck::cast_slice(&tile[self.element_words()..][..self.tile.slots]));
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
        let rows = self.tile.words() - if self.tile.format == KvFormat::Q8 { self.tile.slots } else { 0 };
        for (slot, row) in words[..rows].chunks_exact(rows / self.tile.slots).enumerate() {
            match self.tile.format {
                KvFormat::F32 => self.distribute::<u32>(tile, slot, row),
                KvFormat::F16 => self.distribute::<u16>(tile, slot, row),
                KvFormat::Q8 => self.distribute::<u8>(tile, slot, row),
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
        let lines = Lines::zeroed((tiles * layout.words()).div_ceil(LANES), "the KV pool")?;
        Ok(Self { layout, tiles, lines })
    }

    /// Number of elements in all rows.
    pub(super) fn elements(&self) -> usize {
        self.tiles * self.layout.tile.slots * self.layout.tile.head_dim
    }

    /// All words.
    pub(super) fn words(&self) -> &[u32] {
        self.lines.lines().as_flattened()
    }

    /// All words, to write.
    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        self.lines.lines_mut().as_flattened_mut()
    }

    /// Rounds rows of all tiles, `[tile][slot][element]`.
    pub(super) fn write_all(&mut self, values: &[f32]) {
        let (layout, mut packed) = (self.layout, Vec::new());
        let KvTile { slots, head_dim, .. } = layout.tile;
        for (tile, rows) in self.words_mut().chunks_exact_mut(layout.words()).zip(values.chunks(slots * head_dim)) {
            for (slot, row) in rows.chunks_exact(head_dim).enumerate() {
                layout.write(tile, slot, row, &mut packed);
            }
        }
    }

    /// Widens all rows.
    pub(super) fn read_all(&self) -> Vec<f32> {
        let KvTile { slots, head_dim, .. } = self.layout.tile;
        let mut values = vec![0.0; self.elements()];
        for (tile, rows) in self.words().chunks_exact(self.layout.words()).zip(values.chunks_mut(slots * head_dim)) {
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
        tiles.chunks_exact(words).for_each(|tile| self.layout.save(tile, copy));
    }

    /// Overwrites tiles, starting at tile `first`, with a copy.
    pub(super) fn restore(&mut self, first: usize, copy: &[u8]) {
        let (layout, mut buffer) = (self.layout, Vec::new());
        let words = layout.words();
        let copies = copy.chunks_exact(layout.tile.words() * 4);
        for (tile, copy) in self.words_mut()[first * words..].chunks_exact_mut(words).zip(copies) {
            layout.restore(tile, copy, &mut buffer);
        }
    }

    /// Copies `count` tiles.
    pub(super) fn copy(&mut self, source: usize, target: usize, count: usize) {
        let words = self.layout.words();
        self.words_mut().copy_within(source * words..(source + count) * words, target * words);
    }
}

/// The tiles of one sequence and head.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    /// Keys or values.
    pub(super) store: &'a KvStore,
    /// What they are read as: the values of a latent are its keys.
    pub(super) half: KvHalf,
    /// Block of each span of positions.
    pub(super) table: &'a [u32],
    /// Heads per block.
    pub(super) heads: usize,
    /// Which head.
    pub(super) head: usize,
}

impl Context<'_> {
    /// The tile with this position, unless it is hidden.
    fn tile(&self, position: usize) -> Option<&[u32]> {
        let layout = self.store.layout;
        let block = *self.table.get(position / layout.tile.slots)?;
        let words = layout.words();
        (block != NONE).then(|| &self.store.words()[(block as usize * self.heads + self.head) * words..][..words])
    }

    /// Decodes sixteen elements of the keys at the positions `columns`, as values: a vector per position.
    #[inline(always)]
    fn turn<S: Simd>(&self, s: S, panel: usize, columns: Range<usize>, out: &mut [Lanes]) {
        let layout = self.store.layout;
        let elements = panel * LANES..((panel + 1) * LANES).min(layout.tile.head_dim);
        for (position, out) in columns.step_by(LANES).zip(out.chunks_mut(LANES)) {
            let slot = position % layout.tile.slots;
            let mut keys = [[0.0; LANES]; LANES];
            let keys_out = &mut keys[..elements.len()];
            let strip =
                Strip { layout, tile: self.tile(position), panel: slot / LANES, columns: elements.clone(), slot };
            strip.each(s, 0, &mut Store { s, out: keys_out });
            for (index, out) in out.iter_mut().enumerate() {
                *out = std::array::from_fn(|element| keys[element][index]);
            }
        }
    }

    /// Starts to fetch what belongs to these positions: of each tile as large a part as they are of its slots.
    pub(super) fn fetch<S: Simd>(&self, s: S, positions: Range<usize>) {
        let slots = self.store.layout.tile.slots;
        for position in positions.step_by(LANES) {
            let (tile, slot) = (self.tile(position).unwrap_or_default(), position % slots);
            let part = tile.len() * slot / slots..tile.len() * (slot + LANES) / slots;
            tile[part].as_chunks().0.iter().for_each(|line| s.prefetch(line));
        }
    }

    /// Whether the keys from this position on, to the next multiple of 16, are visible.
    pub(super) fn is_visible(&self, position: usize) -> bool {
        self.tile(position).is_some()
    }
}

/// Keys: panels are sixteen positions, columns are elements. Values: panels are sixteen elements, columns positions.
impl Source for Context<'_> {
    const DOTS: bool = true;

    #[inline(always)]
    fn decode<S: Simd>(&self, s: S, panels: Range<usize>, columns: Range<usize>, out: &mut [Lanes]) {
        for (panel, out) in panels.zip(out.chunks_exact_mut(columns.len())) {
            if self.half == self.store.layout.half {
                s.vectorize(Widen { context: *self, panel, columns: columns.clone(), out });
            } else {
                self.turn(s, panel, columns.clone(), out);
            }
        }
    }

    #[inline(always)]
    fn dot<S: Simd, const M: usize>(
        &self,
        s: S,
        panels: Range<usize>,
        columns: Range<usize>,
        x: &[[f32; M]],
        sums: &mut [Lanes],
    ) {
        s.vectorize(Dot { context: *self, panels, columns, x, sums });
    }
}

/// Columns of a panel that lie in one tile.
struct Strip<'a> {
    layout: TileLayout,
    /// `None` if its block is not there: all elements are 0.
    tile: Option<&'a [u32]>,
    panel: usize,
    columns: Range<usize>,
    /// The slot of the first output of a panel of keys.
    slot: usize,
}

impl Strip<'_> {
    /// Visits the columns; the first one is number `from`.
    #[inline(always)]
    fn each<S: Simd>(&self, s: S, from: usize, visitor: &mut impl Visit<S>) {
        let (layout, count) = (self.layout, self.columns.len());
        let Some(tile) = self.tile else { return (from..from + count).for_each(|at| visitor.visit(at, s.splat(0.0))) };
        let first = self.panel * layout.columns() + self.columns.start;
        let words = &tile[first * layout.vector_words()..][..count * layout.vector_words()];
        match layout.tile.format {
            KvFormat::F32 => {
                for (at, vector) in (from..).zip(bytemuck::cast_slice::<u32, Lanes>(words)) {
                    visitor.visit(at, s.load(vector));
                }
            }
            KvFormat::F16 => {
                for (at, vector) in (from..).zip(bytemuck::cast_slice::<u32, [u16; LANES]>(words)) {
                    visitor.visit(at, s.load_halves(vector));
                }
            }
            KvFormat::Q8 => {
                let scales: &[f32] = bytemuck::cast_slice(&tile[layout.element_words()..]);
                let vectors = (from..).zip(bytemuck::cast_slice::<u32, [i8; LANES]>(words));
                if layout.half == KvHalf::Key {
                    let scale = s.load(scales[self.slot..].first_chunk().expect("slots are whole panels"));
                    vectors.for_each(|(at, codes)| visitor.visit(at, s.mul(s.load_bytes(codes), scale)));
                    return;
                }
                for ((at, codes), scale) in vectors.zip(&scales[self.columns.start..]) {
                    visitor.visit(at, s.mul(s.load_bytes(codes), s.splat(*scale)));
                }
            }
        }
    }
}

impl Context<'_> {
    /// Visits columns of a panel, tile by tile.
    #[inline(always)]
    fn each<S: Simd>(&self, s: S, panel: usize, columns: Range<usize>, visitor: &mut impl Visit<S>) {
        let layout = self.store.layout;
        let slots = layout.tile.slots;
        if layout.half == KvHalf::Key {
            let (position, slot) = (panel * LANES, panel * LANES % slots);
            return Strip { layout, tile: self.tile(position), panel: slot / LANES, columns, slot }.each(s, 0, visitor);
        }
        let mut from = columns.start;
        while from < columns.end {
            let end = ((from / slots + 1) * slots).min(columns.end);
            let (slot, part) = (from % slots, from % slots..from % slots + (end - from));
            let strip = Strip { layout, tile: self.tile(from), panel, columns: part, slot };
            strip.each(s, from - columns.start, visitor);
            from = end;
        }
    }
}

/// Widens columns of a panel.
struct Widen<'a> {
    context: Context<'a>,
    panel: usize,
    columns: Range<usize>,
    out: &'a mut [Lanes],
}

impl Kernel for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.context.each(s, self.panel, self.columns, &mut Store { s, out: self.out });
    }
}

/// Adds the products of `M` rows with `columns` of consecutive panels to their sums, as the one of weights does.
struct Dot<'a, const M: usize> {
    context: Context<'a>,
    panels: Range<usize>,
    columns: Range<usize>,
    /// `[column][row]`.
    x: &'a [[f32; M]],
    /// `[panel][row]`.
    sums: &'a mut [Lanes],
}

impl<const M: usize> Kernel for Dot<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let sums = self.sums.as_chunks_mut::<M>().0;
        for (x, first) in self.x.chunks(GROUP).zip(self.columns.step_by(GROUP)) {
            let columns = first..first + x.len();
            for (panel, sums) in self.panels.clone().zip(&mut *sums) {
                let mut products = Products { s, x, totals: std::array::from_fn(|row| s.load(&sums[row])) };
                if self.context.half == self.context.store.layout.half {
                    self.context.each(s, panel, columns.clone(), &mut products);
                } else {
                    let turned = &mut [[0.0; LANES]; GROUP][..x.len()];
                    self.context.turn(s, panel, columns.clone(), turned);
                    turned.iter().enumerate().for_each(|(at, values)| products.visit(at, s.load(values)));
                }
                for (sum, total) in sums.iter_mut().zip(products.totals) {
                    s.store(total, sum);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::simd::{Level, with_simd};
    use super::*;

    /// Keys read as values are the values that the same rows would be.
    #[test]
    fn keys_are_read_as_values() {
        for format in KvFormat::ALL {
            let tile = KvTile { format, slots: 32, head_dim: 40 };
            let stores = [KvHalf::Key, KvHalf::Value].map(|half| {
                let mut store = KvStore::new(tile, half, 3).unwrap();
                let values: Vec<f32> = (0..store.elements()).map(|at| (at as f32 * 12.9898).sin()).collect();
                store.write_all(&values);
                store
            });
            for level in Level::available() {
                let read = stores.each_ref().map(|store| {
                    let context = Context { store, half: KvHalf::Value, table: &[2, 0, NONE], heads: 1, head: 0 };
                    let mut out = vec![[f32::NAN; LANES]; 3 * 64];
                    with_simd!(level, s => context.decode(s, 0..3, 32..96, &mut out));
                    // Elements beyond the head are not defined.
                    let defined = |(at, lanes): (usize, &Lanes)| lanes[..if at / 64 == 2 { 8 } else { LANES }].to_vec();
                    out.iter().enumerate().map(defined).collect::<Vec<_>>()
                });
                assert!(read[0] == read[1], "{format} {level}");
            }
        }
    }

    #[test]
    fn panels_hold_what_the_format_says() {
        for (format, half) in KvFormat::ALL.into_iter().flat_map(|f| [(f, KvHalf::Key), (f, KvHalf::Value)]) {
            let tile = KvTile { format, slots: 32, head_dim: 24 };
            let mut store = KvStore::new(tile, half, 6).unwrap();
            let values: Vec<f32> = (0..store.elements()).map(|at| (at as f32 * 12.9898).sin()).collect();
            store.write_all(&values);
            store.copy(0, 4, 2);
            let (read, mut expected) = (store.read_all(), vec![0.0; 24]);
            let mut packed = vec![0; tile.words()];
            for (row, (values, read)) in values.chunks(24).zip(read.chunks(24)).take(4 * 32).enumerate() {
                tile.encode(&mut packed, row % 32, values);
                tile.decode(&packed, row % 32, &mut expected);
                assert_eq!(read, expected, "{format}");
            }
            assert_eq!(read[..2 * 32 * 24], read[4 * 32 * 24..]);
            // Blocks 1 and 2 hold positions 0 to 63 of head 1.
            let context = Context { store: &store, half, table: &[1, 2, NONE], heads: 2, head: 1 };
            for level in Level::available() {
                let (panels, columns) = if half == KvHalf::Key { (1..6, 0..24) } else { (0..2, 32..96) };
                let mut out = vec![[f32::NAN; LANES]; panels.len() * columns.len()];
                with_simd!(level, s => context.decode(s, panels.clone(), columns.clone(), &mut out));
                for (at, lane) in (0..out.len()).flat_map(|at| (0..LANES).map(move |lane| (at, lane))) {
                    let (output, column) =
                        ((panels.start + at / columns.len()) * LANES + lane, columns.start + at % columns.len());
                    let (position, element) = if half == KvHalf::Key { (output, column) } else { (column, output) };
                    if element >= 24 {
                        continue;
                    }
                    let tile = [2 + 1, 4 + 1].get(position / 32);
                    let expected = tile.map_or(0.0, |tile| read[(tile * 32 + position % 32) * 24 + element]);
                    assert_eq!(out[at][lane], expected, "{format} {level} {position} {element}");
                }
            }
        }
    }
}
