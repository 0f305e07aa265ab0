//! Products of rows with panels: the loop that matrix products and attention have in common.
//!
//! A panel is sixteen outputs; a vector is one column of it. Columns are taken in blocks of 256: within a block, an
//! output is a chain of multiply-adds in the order of columns, and the sums of blocks are added in order. Every output
//! is computed this way, however many rows, panels or threads there are, so it depends on nothing but its own row and
//! panel.
//!
//! Several panels are decoded to a buffer that fits the first-level cache, and multiplied from there with several rows
//! at once, so that a decoded vector is used by many rows, and enough chains run at once to hide their latency.
//! Meanwhile the next panels are fetched from memory, which is idle otherwise. A few rows are multiplied as the weights
//! are decoded, without the buffer.

use super::decode::{Decode, Dot};
use super::scratch::ProductScratch;
use super::simd::{Kernel, LANES, Lanes, Simd, Words};
use super::weight::Panels;
use std::ops::Range;

/// Columns of a block.
pub(super) const BLOCK: usize = 256;
/// Decoded vectors: 32 KiB.
const DECODED: usize = 512;
/// Panels that take more bytes are not fetched early: they would replace each other in a second-level cache of 1 MiB.
const FETCHED_MAX: usize = 512 << 10;
/// Rows that share what is decoded; more are multiplied in several passes.
const ROWS_MAX: usize = 256;
/// Maximum rows of a tile.
const TILE_ROWS: usize = 12;
/// Maximum panels of a tile.
const TILE_PANELS: usize = 8;
/// Panels that are multiplied at once with a few rows, without storing what is decoded. Fewer leave the processor
/// waiting for chains of multiply-adds, more are too many streams from memory; measured with one, two, four and eight.
pub(super) const DOT_PANELS: usize = 4;

/// Sixteen outputs per panel.
pub(super) trait Source {
    /// Whether a few rows are multiplied without storing what is decoded.
    const DOTS: bool = false;

    /// Decodes `columns` of consecutive panels: `out` is `[panel][column]`. The first column is a multiple of 32.
    fn decode<S: Simd>(&self, s: S, panels: Range<usize>, columns: Range<usize>, out: &mut [Lanes]);

    /// What is read when these panels are decoded, as far as there are so many, if it is worth fetching early.
    fn lines(&self, _panels: Range<usize>) -> &[Words] {
        &[]
    }

    /// Adds the products of some rows' elements, `[column][row]`, with `columns` of consecutive panels to their sums,
    /// `[panel][row]`.
    #[inline(always)]
    fn dot<S: Simd, const M: usize>(
        &self,
        _: S,
        _panels: Range<usize>,
        _columns: Range<usize>,
        _x: &[[f32; M]],
        _sums: &mut [Lanes],
    ) {
    }
}

impl Source for Panels<'_> {
    const DOTS: bool = true;

    #[inline(always)]
    fn decode<S: Simd>(
        &self,
        s: S,
        panels: Range<usize>,
        columns: Range<usize>,
        out: &mut [Lanes],
    ) {
        Decode {
            weights: *self,
            panels,
            columns,
            out,
        }
        .run(s);
    }

    fn lines(&self, panels: Range<usize>) -> &[Words] {
        let [start, end] =
            [panels.start, panels.end].map(|panel| (panel * self.words).min(self.lines.len()));
        &self.lines[start..end]
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
        Dot {
            weights: *self,
            panels,
            columns,
            x,
            sums,
        }
        .run(s);
    }
}

/// Rows to multiply, at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// From the first element of the first row to the last element of the last one.
    pub(super) values: &'a [f32],
    /// Distance of two rows.
    pub(super) stride: usize,
    /// Number of rows.
    pub(super) count: usize,
    /// Which rows, if not the first ones.
    pub(super) list: Option<&'a [usize]>,
}

impl<'a> Rows<'a> {
    fn row(&self, row: usize) -> &'a [f32] {
        &self.values[self.list.map_or(row, |list| list[row]) * self.stride..]
    }
}

/// Panels that are multiplied at once with this many rows.
const fn panels_at_once(accumulators: usize, rows: usize) -> usize {
    match accumulators / if rows > TILE_ROWS { TILE_ROWS } else { rows } {
        0 | 1 => 1,
        2 | 3 => 2,
        4..=7 => 4,
        _ => TILE_PANELS,
    }
}

/// Rows of a tile.
const fn tile_rows(accumulators: usize) -> usize {
    match accumulators {
        0..=2 => 2,
        3..=6 => 6,
        _ => TILE_ROWS,
    }
}

/// Prepares the buffers for products of these rows with panels of so many columns, whichever of a source.
#[inline(always)]
pub(super) fn prepare<S: Simd, W: Source>(
    _: S,
    x: Rows<'_>,
    _: &W,
    columns: usize,
    scratch: &mut ProductScratch,
) {
    if scratch.decoded.is_empty() {
        scratch.allocate(DECODED, ROWS_MAX * TILE_PANELS);
    }
    if W::DOTS
        && let Some(padded) = dot_rows::<S>(x.count)
    {
        interleave(x, padded, columns, &mut scratch.interleaved);
    }
}

/// Multiplies `x`, for which the buffers are prepared, with panels of `columns` columns, and calls
/// `emit(row, panel, outputs)` for each of them.
#[inline(always)]
pub(super) fn product<S: Simd, W: Source>(
    s: S,
    x: Rows<'_>,
    source: &W,
    panels: Range<usize>,
    columns: Range<usize>,
    scratch: &mut ProductScratch,
    mut emit: impl FnMut(usize, usize, &Lanes),
) {
    // Equal passes, none of which has few rows.
    let passes = x.count.div_ceil(ROWS_MAX);
    for pass in (0..passes).map(|pass| super::team::share(x.count, pass, passes)) {
        let (first_row, count) = (pass.start, pass.len());
        let rows = match x.list {
            Some(list) => Rows {
                list: Some(&list[first_row..]),
                count,
                ..x
            },
            None => Rows {
                values: x.row(first_row),
                count,
                ..x
            },
        };
        let mut first = panels.start;
        while first < panels.end {
            let mut at_once = panels_at_once(S::ACCUMULATORS, count);
            while at_once > panels.end - first {
                at_once /= 2;
            }
            let group = first..first + at_once;
            let next = group.end..group.end + at_once;
            let [of_row, of_panel] = multiply(
                s,
                rows,
                source,
                [group.clone(), next],
                columns.clone(),
                scratch,
            );
            for row in 0..count {
                for (index, panel) in group.clone().enumerate() {
                    emit(
                        first_row + row,
                        panel,
                        &scratch.totals[row * of_row + index * of_panel],
                    );
                }
            }
            first += at_once;
        }
    }
}

/// Rows that are multiplied without storing what is decoded, at least as many as `count`: the ones beyond it are
/// repetitions of the last. None if the sums of so many rows do not fit the registers.
const fn dot_rows<S: Simd>(count: usize) -> Option<usize> {
    let rows = match count {
        0..=2 => count,
        3..=4 => 4,
        5..=6 => 6,
        _ => 8,
    };
    if S::DOTS && (count == 1 || count <= 8 && rows <= S::ACCUMULATORS) {
        Some(rows)
    } else {
        None
    }
}

/// Leaves the products of all rows with a few panels in `scratch.totals`, and fetches the next panels. Returns the
/// distances of two rows and of two panels there.
#[inline(always)]
fn multiply<S: Simd, W: Source>(
    s: S,
    x: Rows<'_>,
    source: &W,
    [panels, next]: [Range<usize>; 2],
    columns: Range<usize>,
    scratch: &mut ProductScratch,
) -> [usize; 2] {
    if W::DOTS
        && let Some(rows) = dot_rows::<S>(x.count)
    {
        match rows {
            1 => multiply_few::<S, W, 1>(s, source, panels, columns, scratch),
            2 => multiply_few::<S, W, 2>(s, source, panels, columns, scratch),
            4 => multiply_few::<S, W, 4>(s, source, panels, columns, scratch),
            6 => multiply_few::<S, W, 6>(s, source, panels, columns, scratch),
            _ => multiply_few::<S, W, 8>(s, source, panels, columns, scratch),
        }
        return [1, rows];
    }
    let at_once = panels.len();
    multiply_blocks(s, x, source, [panels, next], columns, scratch);
    [at_once, 1]
}

/// Leaves the products of all rows with a few panels in `scratch.totals`, `[row][panel]`, and fetches the next panels.
/// Weights are decoded block by block of the columns, once for all rows.
#[inline(always)]
fn multiply_blocks<S: Simd, W: Source>(
    s: S,
    x: Rows<'_>,
    source: &W,
    [panels, next]: [Range<usize>; 2],
    columns: Range<usize>,
    scratch: &mut ProductScratch,
) {
    let at_once = panels.len();
    let outputs = x.count * at_once;
    let (sums, totals) = (&mut scratch.sums[..outputs], &mut scratch.totals[..outputs]);
    totals.fill([0.0; LANES]);
    let part = (DECODED / at_once).min(BLOCK);
    let next = source.lines(next);
    let next = if size_of_val(next) <= FETCHED_MAX {
        next
    } else {
        &[]
    };
    for block in columns.clone().step_by(BLOCK) {
        let block = block..(block + BLOCK).min(columns.end);
        sums.fill([0.0; LANES]);
        for from in block.clone().step_by(part) {
            let part = from..(from + part).min(block.end);
            let decoded = &mut scratch.decoded[..at_once * part.len()];
            source.decode(s, panels.clone(), part.clone(), decoded);
            let part = part.start - columns.start..part.end - columns.start;
            let [start, end] = [part.start, part.end].map(|at| at * next.len() / columns.len());
            multiply_tiles(s, x, part, decoded, &next[start..end], sums);
        }
        s.vectorize(Add {
            to: totals,
            from: sums,
        });
    }
}

/// Adds the products of all rows with decoded columns, tile by tile, and fetches `next` during the first.
#[inline(always)]
fn multiply_tiles<S: Simd>(
    s: S,
    x: Rows<'_>,
    columns: Range<usize>,
    decoded: &[Lanes],
    next: &[Words],
    sums: &mut [Lanes],
) {
    let at_once = sums.len() / x.count;
    let tiles = x.count.div_ceil(tile_rows(S::ACCUMULATORS));
    for tile in 0..tiles {
        let rows = super::team::share(x.count, tile, tiles);
        let sums = &mut sums[rows.start * at_once..rows.end * at_once];
        let fetched = if tile == 0 { next } else { &[] };
        multiply_tile(s, x, rows, columns.clone(), decoded, fetched, sums);
    }
}

/// Writes elements `[column][row]`; rows beyond the last one repeat it.
fn interleave(x: Rows<'_>, padded: usize, columns: usize, to: &mut Vec<f32>) {
    // Grows to the widest product of a plan, in its first steps.
    to.resize(columns * padded, 0.0);
    for row in 0..padded {
        let values = x.row(row.min(x.count - 1))[..columns].iter();
        to[row..]
            .iter_mut()
            .step_by(padded)
            .zip(values)
            .for_each(|(to, value)| *to = *value);
    }
}

/// Leaves the products of `M` interleaved rows with a few panels in `scratch.totals`, `[panel][row]`.
#[inline(always)]
fn multiply_few<S: Simd, W: Source, const M: usize>(
    s: S,
    source: &W,
    panels: Range<usize>,
    columns: Range<usize>,
    scratch: &mut ProductScratch,
) {
    // Instruction sets with few registers do not compile what they never use.
    if const { dot_rows::<S>(M).is_none() } {
        unreachable!("{M} rows are multiplied from the buffer");
    }
    let x = scratch.interleaved.as_chunks::<M>().0;
    let totals = &mut scratch.totals[..panels.len() * M];
    totals.fill([0.0; LANES]);
    for (totals, first) in totals
        .chunks_mut(DOT_PANELS * M)
        .zip(panels.step_by(DOT_PANELS))
    {
        for block in columns.clone().step_by(BLOCK) {
            let block = block..(block + BLOCK).min(columns.end);
            let sums = &mut scratch.sums[..totals.len()];
            sums.fill([0.0; LANES]);
            let x = &x[block.start - columns.start..block.end - columns.start];
            source.dot(s, first..first + totals.len() / M, block, x, sums);
            s.vectorize(Add {
                to: totals,
                from: sums,
            });
        }
    }
}

/// Adds vectors.
struct Add<'a> {
    to: &'a mut [Lanes],
    from: &'a [Lanes],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (to, from) in self.to.iter_mut().zip(self.from) {
            s.store(s.add(s.load(to), s.load(from)), to);
        }
    }
}

/// Calls the kernel for this number of rows and panels.
#[inline(always)]
fn multiply_tile<S: Simd>(
    s: S,
    x: Rows<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    decoded: &[Lanes],
    fetched: &[Words],
    sums: &mut [Lanes],
) {
    /// One arm per size; the ones that this instruction set never uses are not compiled.
    macro_rules! match_size {
        ($($count:literal: $($panels:literal)+,)+) => {
            match (rows.len(), sums.len() / rows.len()) {
                $($(($count, $panels) if $count * $panels <= S::ACCUMULATORS.max($count) => {
                    let x: [&[f32]; $count] = std::array::from_fn(|row| &x.row(rows.start + row)[columns.clone()]);
                    match fetched {
                        [] => s.vectorize(Tile::<$count, $panels, false> { x, decoded, fetched, sums }),
                        _ => s.vectorize(Tile::<$count, $panels, true> { x, decoded, fetched, sums }),
                    }
                })+)+
                (rows, panels) => unreachable!("a tile of {rows} rows and {panels} panels"),
            }
        };
    }
    match_size!(
        1: 1 2 4 8, 2: 1 2 4 8, 3: 1 2 4 8, 4: 1 2 4, 5: 1 2 4, 6: 1 2 4,
        7: 1 2, 8: 1 2, 9: 1 2, 10: 1 2, 11: 1 2, 12: 1 2,
    );
}

/// Adds the products of `M` rows with `P` panels to the sums, which stay in registers meanwhile.
struct Tile<'a, const M: usize, const P: usize, const FETCHES: bool> {
    x: [&'a [f32]; M],
    decoded: &'a [Lanes],
    /// Lines to fetch meanwhile, if `FETCHES`: the test for a next one takes registers in the inner loop.
    fetched: &'a [Words],
    /// `[row][panel]`.
    sums: &'a mut [Lanes],
}

impl<const M: usize, const P: usize, const FETCHES: bool> Kernel for Tile<'_, M, P, FETCHES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let columns = self.decoded.len() / P;
        let x = self.x.map(|row| &row[..columns]);
        let panels: [&[Lanes]; P] =
            std::array::from_fn(|panel| &self.decoded[panel * columns..][..columns]);
        let mut fetched = self
            .fetched
            .chunks(self.fetched.len().div_ceil(columns).max(1));
        let sums = self.sums.as_chunks_mut::<P>().0;
        let sums: &mut [[Lanes; P]; M] = sums.try_into().expect("one sum per row and panel");
        let mut registers: [[S::F; P]; M] =
            std::array::from_fn(|row| std::array::from_fn(|panel| s.load(&sums[row][panel])));
        for column in 0..columns {
            if FETCHES {
                fetched
                    .next()
                    .unwrap_or_default()
                    .iter()
                    .for_each(|line| s.prefetch(line, 0));
            }
            let weights: [S::F; P] = std::array::from_fn(|panel| s.load(&panels[panel][column]));
            for row in 0..M {
                let value = s.splat(x[row][column]);
                for panel in 0..P {
                    registers[row][panel] = s.mul_add(value, weights[panel], registers[row][panel]);
                }
            }
        }
        for (sums, registers) in sums.iter_mut().zip(registers) {
            for (sum, register) in sums.iter_mut().zip(registers) {
                s.store(register, sum);
            }
        }
    }
}

#[cfg(test)]
mod tests;
