//! Products of rows with panels: the loop that matrix products and attention have in common.
//!
//! A panel is sixteen outputs; a vector is one column of it. Columns are taken in blocks of 256: within a block, an
//! output is a chain of multiply-adds in the order of columns, and the sums of blocks are added in order. Every output
//! is computed this way, however many rows, panels or threads there are, so it depends on nothing but its own row and
//! panel.
//!
//! Several panels are decoded to a buffer that fits the first-level cache, and multiplied from there with several rows
//! at once, so that a decoded vector is used by many rows, and enough chains run at once to hide their latency.
//! Meanwhile the next panels are fetched from memory, which is idle otherwise.

use super::decode::{Decode, Dot};
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
/// Panels that are multiplied at once with one row, without storing what is decoded. Fewer leave the processor waiting
/// for chains of multiply-adds, more are too many streams from memory; measured with one, two, four and eight.
const DOT_PANELS: usize = 4;

/// Sixteen outputs per panel.
pub(super) trait Source {
    /// Whether one row is multiplied without storing what is decoded.
    const DOTS: bool = false;

    /// Decodes `columns` of consecutive panels: `out` is `[panel][column]`. The first column is a multiple of 32.
    fn decode<S: Simd>(&self, s: S, panels: Range<usize>, columns: Range<usize>, out: &mut [Lanes]);

    /// What is read when these panels are decoded, if it is worth fetching early.
    fn lines(&self, _panels: Range<usize>) -> &[Words] {
        &[]
    }

    /// Adds the products of one row's elements with `columns` of consecutive panels to their sums.
    #[inline(always)]
    fn dot<S: Simd>(&self, _: S, _panels: Range<usize>, _columns: Range<usize>, _x: &[f32], _sums: &mut [Lanes]) {}
}

impl Source for Panels<'_> {
    const DOTS: bool = true;

    #[inline(always)]
    fn decode<S: Simd>(&self, s: S, panels: Range<usize>, columns: Range<usize>, out: &mut [Lanes]) {
        s.vectorize(Decode { weights: *self, panels, columns, out });
    }

    fn lines(&self, panels: Range<usize>) -> &[Words] {
        &self.lines[panels.start * self.words..panels.end * self.words]
    }

    #[inline(always)]
    fn dot<S: Simd>(&self, s: S, panels: Range<usize>, columns: Range<usize>, x: &[f32], sums: &mut [Lanes]) {
        s.vectorize(Dot { weights: *self, panels, columns, x, sums });
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

/// Buffers of a thread.
pub(super) struct Scratch {
    decoded: Vec<Lanes>,
    /// Sums of the current block, `[row][panel]`.
    sums: Vec<Lanes>,
    /// Sums of all earlier blocks.
    totals: Vec<Lanes>,
}

impl Scratch {
    /// Allocates the buffers.
    pub(super) fn new() -> Self {
        let outputs = vec![[0.0; LANES]; ROWS_MAX * TILE_PANELS];
        Self { decoded: vec![[0.0; LANES]; DECODED], sums: outputs.clone(), totals: outputs }
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

/// Multiplies `x` with panels of `columns` columns and calls `emit(row, panel, outputs)` for each of them.
#[inline(always)]
pub(super) fn product<S: Simd>(
    s: S,
    x: Rows<'_>,
    source: &impl Source,
    panels: Range<usize>,
    columns: Range<usize>,
    scratch: &mut Scratch,
    mut emit: impl FnMut(usize, usize, &Lanes),
) {
    for first_row in (0..x.count).step_by(ROWS_MAX) {
        let count = (x.count - first_row).min(ROWS_MAX);
        let rows = match x.list {
            Some(list) => Rows { list: Some(&list[first_row..]), count, ..x },
            None => Rows { values: x.row(first_row), count, ..x },
        };
        let mut first = panels.start;
        while first < panels.end {
            let mut at_once = panels_at_once(S::ACCUMULATORS, count);
            while at_once > panels.end - first {
                at_once /= 2;
            }
            let group = first..first + at_once;
            let next = group.end..(group.end + at_once).min(panels.end);
            multiply(s, rows, source, [group.clone(), next], columns.clone(), scratch);
            for row in 0..count {
                for (panel, outputs) in group.clone().zip(&scratch.totals[row * at_once..]) {
                    emit(first_row + row, panel, outputs);
                }
            }
            first += at_once;
        }
    }
}

/// Leaves the products of all rows with a few panels in `scratch.totals`, and fetches the next panels.
#[inline(always)]
fn multiply<S: Simd, W: Source>(
    s: S,
    x: Rows<'_>,
    source: &W,
    [panels, next]: [Range<usize>; 2],
    columns: Range<usize>,
    scratch: &mut Scratch,
) {
    let at_once = panels.len();
    let outputs = x.count * at_once;
    let (sums, totals) = (&mut scratch.sums[..outputs], &mut scratch.totals[..outputs]);
    totals.fill([0.0; LANES]);
    if x.count == 1 && W::DOTS {
        for (index, totals) in totals.chunks_mut(DOT_PANELS).enumerate() {
            let first = panels.start + index * DOT_PANELS;
            for block in columns.clone().step_by(BLOCK) {
                let block = block..(block + BLOCK).min(columns.end);
                let sums = &mut sums[..totals.len()];
                sums.fill([0.0; LANES]);
                let x = &x.row(0)[block.start - columns.start..block.end - columns.start];
                source.dot(s, first..first + totals.len(), block, x, sums);
                s.vectorize(Add { to: totals, from: sums });
            }
        }
        return;
    }
    let tiles = x.count.div_ceil(tile_rows(S::ACCUMULATORS));
    let part = (DECODED / at_once).min(BLOCK);
    let next = source.lines(next);
    let next = if size_of_val(next) <= FETCHED_MAX { next } else { &[] };
    for block in columns.clone().step_by(BLOCK) {
        let block = block..(block + BLOCK).min(columns.end);
        sums.fill([0.0; LANES]);
        for from in block.clone().step_by(part) {
            let part = from..(from + part).min(block.end);
            let decoded = &mut scratch.decoded[..at_once * part.len()];
            source.decode(s, panels.clone(), part.clone(), decoded);
            let part = part.start - columns.start..part.end - columns.start;
            for tile in 0..tiles {
                let rows = super::team::share(x.count, tile, tiles);
                let sums = &mut sums[rows.start * at_once..rows.end * at_once];
                let [start, end] = [part.start, part.end].map(|at| at * next.len() / columns.len());
                let fetched = if tile == 0 { &next[start..end] } else { &[] };
                multiply_tile(s, x, rows, part.clone(), decoded, fetched, sums);
            }
        }
        s.vectorize(Add { to: totals, from: sums });
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
        let panels: [&[Lanes]; P] = std::array::from_fn(|panel| &self.decoded[panel * columns..][..columns]);
        let mut fetched = self.fetched.chunks(self.fetched.len().div_ceil(columns).max(1));
        let sums = self.sums.as_chunks_mut::<P>().0;
        let sums: &mut [[Lanes; P]; M] = sums.try_into().expect("one sum per row and panel");
        let mut registers: [[S::F; P]; M] =
            std::array::from_fn(|row| std::array::from_fn(|panel| s.load(&sums[row][panel])));
        for column in 0..columns {
            if FETCHES {
                fetched.next().unwrap_or_default().iter().for_each(|line| s.prefetch(line));
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
mod tests {
    use super::super::simd::{Level, with_simd};
    use super::*;

    /// Panels of f32 in memory, `[panel][column]`.
    struct Plain(usize, Vec<Lanes>);

    impl Source for Plain {
        fn decode<S: Simd>(&self, _: S, panels: Range<usize>, columns: Range<usize>, out: &mut [Lanes]) {
            for (panel, out) in panels.zip(out.chunks_exact_mut(columns.len())) {
                out.copy_from_slice(&self.1[panel * self.0..][columns.clone()]);
            }
        }
    }

    fn noise(at: usize) -> f32 {
        (at as f32 * 12.9898).sin()
    }

    /// Right, and the same bits for each row alone.
    #[test]
    fn outputs_are_sums_of_products_and_depend_on_their_row_and_panel_alone() {
        for (count, panels, columns) in [(1, 11, 300), (2, 3, 8), (5, 5, 600), (13, 2, 64), (40, 3, 264), (300, 1, 40)]
        {
            let values: Vec<f32> = (0..count * columns).map(noise).collect();
            let lanes = |at: usize| std::array::from_fn(|lane| noise(at * LANES + lane + 7));
            let plain = Plain(columns, (0..panels * columns).map(lanes).collect());
            for level in Level::available() {
                let run = |values: &[f32], count| {
                    let mut found = vec![[f32::NAN; LANES]; count * panels];
                    let x = Rows { values, stride: columns, count, list: None };
                    let mut scratch = Scratch::new();
                    let emit = |row: usize, panel: usize, out: &Lanes| found[row * panels + panel] = *out;
                    with_simd!(level, s => product(s, x, &plain, 0..panels, 0..columns, &mut scratch, emit));
                    found
                };
                let together = run(&values, count);
                for row in 0..count {
                    let x = &values[row * columns..][..columns];
                    assert_eq!(run(x, 1), together[row * panels..][..panels], "row {row} of {count}, {level}");
                    for (panel, found) in together[row * panels..][..panels].iter().enumerate() {
                        for (lane, found) in found.iter().enumerate() {
                            let weight = |column: usize| f64::from(plain.1[panel * columns + column][lane]);
                            let products = x.iter().enumerate().map(|(at, &value)| f64::from(value) * weight(at));
                            let expected: f64 = products.sum();
                            assert!((f64::from(*found) - expected).abs() < 1e-4, "{row} {panel} {lane} {level}");
                        }
                    }
                }
            }
        }
    }
}
