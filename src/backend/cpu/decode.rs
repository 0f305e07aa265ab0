//! Decodes panels of weights to f32: to memory, or into the sums of a few rows.

use super::simd::{Kernel, LANES, Lanes, Simd, Words};
use super::weight::{Panels, WordLayout};
use crate::plan::WeightFormat;
use crate::plan::format::{Codes, GROUP, Levels, Scales};
use std::ops::Range;

/// Evaluates `$method(s, format)` of a kernel with the format as a constant in each arm, so that its loops do not
/// branch on it.
macro_rules! for_format {
    ($kernel:ident.$method:ident($s:ident, $format:expr)) => {
        for_format!($kernel.$method($s, $format), F32 F16 Bf16 Q8 Q4 Q4Zero Q5 Iq4 Mxfp4 E4m3 Q2K Q3K Q4K Q5K Q6K Iq4K)
    };
    ($kernel:ident.$method:ident($s:ident, $format:expr), $($name:ident)+) => {
        match $format {
            $(WeightFormat::$name => $kernel.$method($s, WeightFormat::$name),)+
        }
    };
}

/// What is done with the columns of a panel. (A closure would not always be compiled with the kernel that it is in.)
pub(super) trait Visit<S: Simd> {
    /// Takes a column's values; columns are counted from the first one that is visited.
    fn visit(&mut self, column: usize, values: S::F);
}

/// Decodes `columns` of consecutive panels: `out` is `[panel][column]`. The first column is a multiple of 32.
pub(super) struct Decode<'a> {
    /// The weights.
    pub(super) weights: Panels<'a>,
    /// Which panels.
    pub(super) panels: Range<usize>,
    /// Which columns.
    pub(super) columns: Range<usize>,
    /// One vector per panel and column.
    pub(super) out: &'a mut [Lanes],
}

impl Kernel for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for_format!(self.run_as(s, self.weights.format));
    }
}

impl Decode<'_> {
    #[inline(always)]
    fn run_as<S: Simd>(self, s: S, format: WeightFormat) {
        let layout = word_layout(format, self.weights.columns);
        for (panel, out) in self.panels.zip(self.out.chunks_exact_mut(self.columns.len())) {
            let vectors = Vectors { s, format, layout, weights: self.weights, panel };
            vectors.each(self.columns.clone(), &mut Store { s, out });
        }
    }
}

/// Stores the values.
pub(super) struct Store<'a, S> {
    pub(super) s: S,
    pub(super) out: &'a mut [Lanes],
}

impl<S: Simd> Visit<S> for Store<'_, S> {
    #[inline(always)]
    fn visit(&mut self, column: usize, values: S::F) {
        // The last group of a row may be visited beyond its end.
        if let Some(out) = self.out.get_mut(column) {
            self.s.store(values, out);
        }
    }
}

/// Adds the products of `M` rows with `columns` of consecutive panels to their sums. The first column is a multiple of
/// 32.
///
/// A sum is a chain of multiply-adds, each of which waits for the one before. Panels take turns after every 32 columns,
/// so that a processor that looks ahead works on several chains at once.
pub(super) struct Dot<'a, const M: usize> {
    /// The weights.
    pub(super) weights: Panels<'a>,
    /// Which panels.
    pub(super) panels: Range<usize>,
    /// Which columns.
    pub(super) columns: Range<usize>,
    /// The rows' elements in these columns, `[column][row]`: one pointer for all rows, which all levels have a register
    /// for.
    pub(super) x: &'a [[f32; M]],
    /// `[panel][row]`.
    pub(super) sums: &'a mut [Lanes],
}

impl<const M: usize> Kernel for Dot<'_, M> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for_format!(self.run_as(s, self.weights.format));
    }
}

impl<const M: usize> Dot<'_, M> {
    #[inline(always)]
    fn run_as<S: Simd>(self, s: S, format: WeightFormat) {
        let layout = word_layout(format, self.weights.columns);
        let sums = self.sums.as_chunks_mut::<M>().0;
        let mut fetch = Fetch::new(self.weights, self.panels.len(), self.columns.start);
        for (x, first) in self.x.chunks(GROUP).zip(self.columns.step_by(GROUP)) {
            for (panel, sums) in self.panels.clone().zip(&mut *sums) {
                let vectors = Vectors { s, format, layout, weights: self.weights, panel };
                let totals = std::array::from_fn(|row| s.load(&sums[row]));
                let mut products = Products { s, x, totals };
                vectors.each(first..first + x.len(), &mut products);
                for (sum, total) in sums.iter_mut().zip(products.totals) {
                    s.store(total, sum);
                }
                fetch.fetch(s, panel);
            }
            fetch.at += fetch.group;
        }
    }
}

/// Lines by which a panel is fetched ahead of its multiplication: 16 KiB, so that what four panels wait for fits the
/// smallest second-level caches. The processor's own prefetching ends with every page of 4 KiB: without this, a token
/// took up to 1.8 times as long. Measured with 16 to 512 lines; from 64 on there is little difference.
const AHEAD: usize = 256;

/// What is fetched while panels are multiplied.
struct Fetch<'a> {
    weights: Panels<'a>,
    /// Lines of a panel per group of columns.
    group: usize,
    /// Distance of the lines that the current group fetches from the start of its panel.
    at: usize,
}

impl<'a> Fetch<'a> {
    /// Begins at a column of `panels` panels that take turns. The end of each is followed by the panel that is as many
    /// after it.
    #[inline(always)]
    fn new(weights: Panels<'a>, panels: usize, column: usize) -> Self {
        let at = column * weights.words / weights.columns + AHEAD;
        let at = at + at / weights.words * (panels - 1) * weights.words;
        Self { weights, group: (GROUP * weights.words).div_ceil(weights.columns), at }
    }

    /// Fetches for the current group of a panel.
    #[inline(always)]
    fn fetch<S: Simd>(&self, s: S, panel: usize) {
        let (first, lines) = (panel * self.weights.words + self.at, self.weights.lines);
        let fetched = lines.get(first..(first + self.group).min(lines.len())).unwrap_or_default();
        fetched.iter().for_each(|line| s.prefetch(line));
    }
}

/// Adds the products of the values with the elements of `M` rows.
pub(super) struct Products<'a, S: Simd, const M: usize> {
    pub(super) s: S,
    /// `[column][row]`.
    pub(super) x: &'a [[f32; M]],
    pub(super) totals: [S::F; M],
}

impl<S: Simd, const M: usize> Visit<S> for Products<'_, S, M> {
    #[inline(always)]
    fn visit(&mut self, column: usize, values: S::F) {
        if let Some(x) = self.x.get(column) {
            for (x, total) in x.iter().zip(&mut self.totals) {
                *total = self.s.mul_add(self.s.splat(*x), values, *total);
            }
        }
    }
}

/// Where the parts of a row are; rows of dense formats have no parts.
#[inline(always)]
fn word_layout(format: WeightFormat, columns: usize) -> WordLayout {
    if format.is_quantised() { format.layout(columns).into() } else { WordLayout::default() }
}

/// The columns of a panel.
struct Vectors<'a, S> {
    s: S,
    format: WeightFormat,
    layout: WordLayout,
    weights: Panels<'a>,
    panel: usize,
}

impl<S: Simd> Vectors<'_, S> {
    /// Visits `columns`. If the last group is not whole, the rest of it is visited too.
    #[inline(always)]
    fn each(&self, columns: Range<usize>, visitor: &mut impl Visit<S>) {
        let (s, words) = (self.s, self.weights.words);
        let lines = &self.weights.lines[self.panel * words..][..words];
        match self.format {
            WeightFormat::F32 => {
                for (column, line) in lines[columns].iter().enumerate() {
                    visitor.visit(column, s.float_from_bits(s.load_words(line)));
                }
            }
            // Each word has two columns, the first one in its low half.
            WeightFormat::F16 => {
                for (pair, line) in lines[columns.start / 2..columns.end.div_ceil(2)].iter().enumerate() {
                    let words = s.load_words(line);
                    visitor.visit(2 * pair, s.half(words));
                    visitor.visit(2 * pair + 1, s.half(s.shr(words, 16)));
                }
            }
            WeightFormat::Bf16 => {
                for (pair, line) in lines[columns.start / 2..columns.end.div_ceil(2)].iter().enumerate() {
                    let words = s.load_words(line);
                    visitor.visit(2 * pair, s.float_from_bits(s.shl(words, 16)));
                    visitor.visit(2 * pair + 1, s.float_from_bits(s.and(words, s.splat_word(0xffff_0000))));
                }
            }
            format => {
                let layout = self.layout;
                for (index, group) in (columns.start / GROUP..columns.end.div_ceil(GROUP)).enumerate() {
                    Group { s, format, lines, layout, group }.decode(index * GROUP, visitor);
                }
            }
        }
    }
}

/// A group of 32 columns of a panel.
struct Group<'a, S> {
    s: S,
    format: WeightFormat,
    lines: &'a [Words],
    layout: WordLayout,
    group: usize,
}

/// `a` and `b` of each half of a group.
type HalfScales<S> = [(<S as Simd>::F, Option<<S as Simd>::F>); 2];

impl<S: Simd> Group<'_, S> {
    /// Visits the columns of the group; its first one is number `first`.
    #[inline(always)]
    fn decode(&self, first: usize, visitor: &mut impl Visit<S>) {
        let s = self.s;
        let (codes, levels, scales) = self.format.parts();
        let low = self.scale(0);
        let high = if matches!(scales, Scales::K16 | Scales::K16Min) { self.scale(1) } else { low };
        let scales = [low, high];
        match codes {
            Codes::Dense => {}
            Codes::Eight => self.bytes(levels, scales, first, visitor),
            Codes::Four | Codes::FourOne | Codes::FourTwo => self.nibbles(codes, levels, scales, first, visitor),
            Codes::Two | Codes::TwoOne => {
                for column in 0..GROUP {
                    let code = self.and(self.pair(2 * self.group, column, 0), 3);
                    let code = if matches!(codes, Codes::TwoOne) { s.or(code, self.bit(column, 2)) } else { code };
                    visitor.visit(first + column, self.scaled(scales, column, s.to_float(code)));
                }
            }
        }
    }

    /// a · level + b
    #[inline(always)]
    fn scaled(&self, scales: HalfScales<S>, column: usize, level: S::F) -> S::F {
        match scales[column / (GROUP / 2)] {
            (a, Some(b)) => self.s.mul_add(a, level, b),
            (a, None) => self.s.mul(a, level),
        }
    }

    #[inline(always)]
    fn bytes(&self, levels: Levels, scales: HalfScales<S>, first: usize, visitor: &mut impl Visit<S>) {
        let lines: &[[i8; LANES]] = bytemuck::cast_slice(&self.lines[GROUP / 4 * self.group..][..GROUP / 4]);
        for (column, bytes) in lines.iter().enumerate() {
            let level = match levels {
                Levels::E4m3 => self.e4m3(bytes),
                _ => self.s.load_bytes(bytes),
            };
            visitor.visit(first + column, self.scaled(scales, column, level));
        }
    }

    /// Sign, four bits of exponent, three of mantissa: a half whose exponent is 8 too small, also if it is subnormal.
    #[inline(always)]
    fn e4m3(&self, bytes: &[i8; LANES]) -> S::F {
        let s = self.s;
        let words = s.load_words(&bytes.map(|byte| u32::from(byte.cast_unsigned())));
        let magnitude = s.shl(self.and(words, 0x7f), 7);
        let half = s.half(s.or(magnitude, s.shl(self.and(words, 0x80), 8)));
        let value = s.mul(half, s.splat(256.0));
        // The largest magnitude stands for NaN.
        let magnitude = s.to_float(self.and(words, 0x7f));
        s.if_less(magnitude, s.splat(127.0), value, s.splat(f32::NAN))
    }

    #[inline(always)]
    fn nibbles(&self, codes: Codes, levels: Levels, scales: HalfScales<S>, first: usize, visitor: &mut impl Visit<S>) {
        let s = self.s;
        for eight in 0..4 {
            let words = s.load_words(&self.lines[4 * self.group + eight]);
            for i in 0..8 {
                let column = 8 * eight + i;
                let code = s.shr(words, (8 * (i % 4) + 4 * (i / 4)) as u32);
                let four = self.and(code, 15);
                let level = match (codes, levels.table()) {
                    (Codes::FourOne, _) => s.to_float(s.or(four, self.bit(column, 4))),
                    (Codes::FourTwo, _) => {
                        let pair = self.pair(self.layout.plane + 2 * self.group, column, 4);
                        s.to_float(s.or(four, self.and(pair, 48)))
                    }
                    (_, Some(table)) => s.select(code, &table),
                    _ => s.nibble(code),
                };
                visitor.visit(first + column, self.scaled(scales, column, level));
            }
        }
    }

    /// The bit of the second plane for a column, shifted to place `to`.
    #[inline(always)]
    fn bit(&self, column: usize, to: u32) -> S::I {
        let words = self.s.load_words(&self.lines[self.layout.plane + self.group]);
        self.and(self.moved(words, column as u32, to), 1 << to)
    }

    /// The two bits for a column, in words that begin at line `line`, shifted to place `to`. Other bits are not
    /// cleared.
    #[inline(always)]
    fn pair(&self, line: usize, column: usize, to: u32) -> S::I {
        let words = self.s.load_words(&self.lines[line + column / 16]);
        let (eight, i) = (column % 16 / 8, column % 8);
        self.moved(words, (16 * eight + 8 * (i / 4) + 2 * (i % 4)) as u32, to)
    }

    #[inline(always)]
    fn moved(&self, words: S::I, from: u32, to: u32) -> S::I {
        if from >= to { self.s.shr(words, from - to) } else { self.s.shl(words, to - from) }
    }

    #[inline(always)]
    fn and(&self, words: S::I, mask: u32) -> S::I {
        self.s.and(words, self.s.splat_word(mask))
    }

    /// Byte `index` of the bytes that begin at line `line`, one per row: unsigned.
    #[inline(always)]
    fn byte(&self, line: usize, index: usize) -> S::I {
        let words = self.s.load_words(&self.lines[line + index / 4]);
        self.and(self.s.shr(words, 8 * (index % 4) as u32), 255)
    }

    /// Like [`byte`](Self::byte), as a signed number.
    #[inline(always)]
    fn signed_byte(&self, line: usize, index: usize) -> S::F {
        let words = self.s.load_words(&self.lines[line + index / 4]);
        self.s.to_float(self.s.sar(self.s.shl(words, 24 - 8 * (index % 4) as u32), 24))
    }

    /// Half `index` of the halves that begin at line `line`.
    #[inline(always)]
    fn half(&self, line: usize, index: usize) -> S::F {
        let words = self.s.load_words(&self.lines[line + index / 2]);
        self.s.half(self.s.shr(words, 16 * (index % 2) as u32))
    }

    /// `a` and `b` of the columns in half `part` of the group; see `plan/format/weight.rs`.
    #[inline(always)]
    fn scale(&self, part: usize) -> (S::F, Option<S::F>) {
        let (s, group, line) = (self.s, self.group, self.layout.scales);
        let negative = |value: S::F| s.sub(s.splat(0.0), value);
        let unit = |place: usize| self.half(self.layout.supers, 2 * (group / 8) + place);
        match self.format.parts().2 {
            Scales::None => (s.splat(1.0), None),
            Scales::Half => (self.half(line, group), None),
            Scales::HalfMin => (self.half(line, 2 * group), Some(self.half(line, 2 * group + 1))),
            Scales::HalfZero => {
                let a = self.half(line, 2 * group);
                let zero = s.to_float(s.sar(s.load_words(&self.lines[line + group]), 16));
                (a, Some(negative(s.mul(a, zero))))
            }
            Scales::Exponent => {
                // Half of 2^(byte − 127); 2^−127, for byte 0, is subnormal.
                let power = s.float_from_bits(s.shl(self.byte(line, group), 23));
                (s.mul(s.max(power, s.splat(f32::from_bits(1 << 22))), s.splat(0.5)), None)
            }
            Scales::Wide => (s.float_from_bits(s.load_words(&self.lines[line + group / 4])), None),
            Scales::K32 => (s.mul(unit(0), self.signed_byte(line, group)), None),
            Scales::K32Min => {
                let a = s.mul(unit(0), s.to_float(self.byte(line, 2 * group)));
                (a, Some(negative(s.mul(unit(1), s.to_float(self.byte(line, 2 * group + 1))))))
            }
            Scales::K16 => {
                let a = s.mul(unit(0), self.signed_byte(line, 2 * group + part));
                (a, Some(negative(s.mul(a, s.splat(self.offset())))))
            }
            Scales::K16Min => {
                let both = self.byte(line, 2 * group + part);
                let a = s.mul(unit(0), s.to_float(self.and(both, 15)));
                (a, Some(negative(s.mul(unit(1), s.to_float(s.shr(both, 4))))))
            }
        }
    }

    #[inline(always)]
    fn offset(&self) -> f32 {
        match self.format.parts().1 {
            Levels::Unsigned(offset) => f32::from(offset),
            _ => 0.0,
        }
    }
}
