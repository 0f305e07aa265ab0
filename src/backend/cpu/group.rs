//! Decodes a group of 32 columns of a panel of weights.
//!
//! The format is an argument of each function, never a field: it is a constant wherever they are inlined, and nothing
//! of their branches on it remains. Nor are closures used around them, which are not always compiled with the
//! instruction set of the kernel that they are in.

use super::simd::{LANES, Simd, Words};
use super::weight::WordLayout;
use crate::plan::WeightFormat;
use crate::plan::format::{Codes, GROUP, Levels, Scales, WIDE_GROUPS};

/// What is done with the columns of a panel. (A closure would not always be compiled with the kernel that it is in.)
pub(super) trait Visit<S: Simd> {
    /// Takes a column's values; columns are counted from the first one that is visited.
    fn visit(&mut self, column: usize, values: S::F);
}

/// Columns that are decoded from the same words.
const EIGHT: usize = 8;

/// Visits the columns of a group, of which there are `count`, counted from its first one. Of quantized formats the
/// places beyond them are visited too: decoded, these are finite numbers.
#[inline(always)]
pub(super) fn visit<S: Simd>(format: WeightFormat, count: usize, panels: &mut impl Interleaved<S>) {
    /// Shifts differ by column; without a loop they are constants.
    macro_rules! each_of_eight {
        ($eight:ident: $($i:literal)+) => { $(panels.column(format, $eight, $i);)+ };
    }
    match format {
        WeightFormat::F32 => {
            for column in 0..GROUP.min(count) {
                panels.float(column);
            }
        }
        WeightFormat::F16 | WeightFormat::Bf16 => {
            for pair in 0..(GROUP / 2).min(count.div_ceil(2)) {
                panels.pair(format, pair, count);
            }
        }
        _ => {
            for eight in 0..GROUP / EIGHT {
                panels.load(format, eight);
                each_of_eight!(eight: 0 1 2 3 4 5 6 7);
            }
        }
    }
}

/// One panel, or several that take turns after each column, so that what is done with their columns can overlap.
pub(super) trait Interleaved<S: Simd> {
    /// Visits a column of 32 bits.
    fn float(&mut self, column: usize);

    /// Visits two columns of 16 bits, as far as there are so many.
    fn pair(&mut self, format: WeightFormat, pair: usize, count: usize);

    /// Loads what eight columns have in common.
    fn load(&mut self, format: WeightFormat, eight: usize);

    /// Visits column `i` of the eight that are loaded.
    fn column(&mut self, format: WeightFormat, eight: usize, i: usize);
}

impl<S: Simd, A: Interleaved<S>, B: Interleaved<S>> Interleaved<S> for (A, B) {
    #[inline(always)]
    fn float(&mut self, column: usize) {
        self.0.float(column);
        self.1.float(column);
    }

    #[inline(always)]
    fn pair(&mut self, format: WeightFormat, pair: usize, count: usize) {
        self.0.pair(format, pair, count);
        self.1.pair(format, pair, count);
    }

    #[inline(always)]
    fn load(&mut self, format: WeightFormat, eight: usize) {
        self.0.load(format, eight);
        self.1.load(format, eight);
    }

    #[inline(always)]
    fn column(&mut self, format: WeightFormat, eight: usize, i: usize) {
        self.0.column(format, eight, i);
        self.1.column(format, eight, i);
    }
}

/// A group, what is loaded of it, and what is done with its columns.
pub(super) struct Panel<'a, S: Simd, V> {
    group: Group<'a, S>,
    /// A weight is `a · level + b`; `b` is 0 in formats without one.
    a: S::F,
    b: S::F,
    /// Four or two bits a column, and one or two upper ones if there are more.
    lower: S::I,
    upper: S::I,
    /// With each line of a dense format, the one that is so many lines after it is fetched. Fetched many at a time,
    /// they would have to wait for each other: a fifth of the bandwidth.
    ahead: usize,
    /// Takes the columns.
    pub(super) visitor: V,
}

impl<'a, S: Simd, V> Panel<'a, S, V> {
    /// Nothing is loaded yet.
    #[inline(always)]
    pub(super) fn new(group: Group<'a, S>, ahead: usize, visitor: V) -> Self {
        let (zero, none) = (group.s.splat(0.0), group.s.splat_word(0));
        Self {
            group,
            a: zero,
            b: zero,
            lower: none,
            upper: none,
            ahead,
            visitor,
        }
    }

    /// What the code of column `i` of eight stands for.
    #[inline(always)]
    fn level(&self, format: WeightFormat, eight: usize, i: usize) -> S::F {
        let s = self.group.s;
        let (codes, levels, _) = format.parts();
        match (codes, levels) {
            (Codes::Dense, _) => s.splat(0.0),
            (Codes::Eight, Levels::E4m3) => e4m3(s, self.group.bytes(eight, i)),
            (Codes::Eight, Levels::Signed) => s.load_bytes(self.group.bytes(eight, i)),
            (Codes::Eight, _) => s.to_float(unsigned(s, self.group.bytes(eight, i))),
            _ => match levels.table() {
                Some(table) => s.select(self.code(codes, i), &table),
                None if codes == Codes::Four => s.nibble(self.code(codes, i)),
                None => s.to_float(self.code(codes, i)),
            },
        }
    }

    /// The code of column `i` of eight; of nibbles alone, with further bits above them.
    #[inline(always)]
    fn code(&self, codes: Codes, i: usize) -> S::I {
        let s = self.group.s;
        let nibble = s.shr(self.lower, (8 * (i % 4) + 4 * (i / 4)) as u32);
        let place = (8 * (i / 4) + 2 * (i % 4)) as u32;
        let pair = and(s, s.shr(self.lower, place), 3);
        match codes {
            Codes::Dense | Codes::Eight | Codes::Four => nibble,
            Codes::FourOne => s.or(and(s, nibble, 15), self.upper(i as u32, 4, 1)),
            Codes::FourTwo => s.or(and(s, nibble, 15), self.upper(place, 4, 3)),
            Codes::Two => pair,
            Codes::TwoOne => s.or(pair, self.upper(i as u32, 2, 1)),
            Codes::One => and(s, s.shr(self.lower, i as u32), 1),
        }
    }

    /// The upper bits that begin at bit `from`, in place of bit `to` and those after it.
    #[inline(always)]
    fn upper(&self, from: u32, to: u32, mask: u32) -> S::I {
        let s = self.group.s;
        let moved = if from >= to {
            s.shr(self.upper, from - to)
        } else {
            s.shl(self.upper, to - from)
        };
        and(s, moved, mask << to)
    }
}

impl<S: Simd, V: Visit<S>> Interleaved<S> for Panel<'_, S, V> {
    #[inline(always)]
    fn float(&mut self, column: usize) {
        let line = GROUP * self.group.group + column;
        let bits = self.group.words(line);
        self.group.s.prefetch(&self.group.lines[line], self.ahead);
        self.visitor
            .visit(column, self.group.s.float_from_bits(bits));
    }

    #[inline(always)]
    fn pair(&mut self, format: WeightFormat, pair: usize, count: usize) {
        // The first column is in the low half of each word.
        let (s, line) = (self.group.s, GROUP / 2 * self.group.group + pair);
        let words = self.group.words(line);
        s.prefetch(&self.group.lines[line], self.ahead);
        let [low, high] = match format {
            WeightFormat::F16 => [s.half(words), s.half(s.shr(words, 16))],
            _ => [
                s.float_from_bits(s.shl(words, 16)),
                s.float_from_bits(and(s, words, 0xffff_0000)),
            ],
        };
        self.visitor.visit(2 * pair, low);
        if 2 * pair + 1 < count {
            self.visitor.visit(2 * pair + 1, high);
        }
    }

    #[inline(always)]
    fn load(&mut self, format: WeightFormat, eight: usize) {
        let (group, (codes, _, scales)) = (&self.group, format.parts());
        let has_halves = matches!(scales, Scales::K16 | Scales::K16Min | Scales::E4m3);
        if eight == 0 || has_halves && eight == GROUP / EIGHT / 2 {
            [self.a, self.b] = group.scale(format, eight / (GROUP / EIGHT / 2));
        }
        match codes {
            Codes::Dense | Codes::Eight => {}
            Codes::Four | Codes::FourOne | Codes::FourTwo => {
                self.lower = group.words(4 * group.group + eight);
            }
            Codes::Two | Codes::TwoOne => self.lower = group.twos(0, eight),
            Codes::One => self.lower = group.ones(0, eight),
        }
        match codes {
            Codes::Dense | Codes::Eight | Codes::Four | Codes::Two | Codes::One => {}
            Codes::FourOne | Codes::TwoOne => self.upper = group.ones(group.layout.plane, eight),
            Codes::FourTwo => self.upper = group.twos(group.layout.plane, eight),
        }
    }

    #[inline(always)]
    fn column(&mut self, format: WeightFormat, eight: usize, i: usize) {
        let (s, level) = (self.group.s, self.level(format, eight, i));
        let value = if format.has_offset() {
            s.mul_add(self.a, level, self.b)
        } else {
            s.mul(self.a, level)
        };
        self.visitor.visit(EIGHT * eight + i, value);
    }
}

/// A group of 32 columns of a panel.
pub(super) struct Group<'a, S> {
    pub(super) s: S,
    /// Where the parts of a row are.
    pub(super) layout: WordLayout,
    /// Those of the panel.
    pub(super) lines: &'a [Words],
    /// Which one of the panel.
    pub(super) group: usize,
}

impl<'a, S: Simd> Group<'a, S> {
    #[inline(always)]
    fn words(&self, line: usize) -> S::I {
        self.s.load_words(&self.lines[line])
    }

    /// The bytes of column `i` of eight.
    #[inline(always)]
    fn bytes(&self, eight: usize, i: usize) -> &'a [i8; LANES] {
        let lines = &self.lines[GROUP / 4 * self.group + EIGHT / 4 * eight..][..EIGHT / 4];
        &bytemuck::cast_slice(lines)[i]
    }

    /// The bits of eight columns in the plane that begins at line `plane`, from bit 0 on.
    #[inline(always)]
    fn ones(&self, plane: usize, eight: usize) -> S::I {
        self.s
            .shr(self.words(plane + self.group), (EIGHT * eight) as u32)
    }

    /// The two bits for each of eight columns in the plane that begins at line `plane`, from bit 0 on.
    #[inline(always)]
    fn twos(&self, plane: usize, eight: usize) -> S::I {
        self.s.shr(
            self.words(plane + 2 * self.group + eight / 2),
            16 * (eight % 2) as u32,
        )
    }

    /// Byte `index` of the bytes that begin at line `line`, one per row: unsigned.
    #[inline(always)]
    fn byte(&self, line: usize, index: usize) -> S::I {
        let words = self.s.load_words(&self.lines[line + index / 4]);
        and(self.s, self.s.shr(words, 8 * (index % 4) as u32), 255)
    }

    /// Like [`byte`](Self::byte), as a signed number.
    #[inline(always)]
    fn signed_byte(&self, line: usize, index: usize) -> S::F {
        let words = self.s.load_words(&self.lines[line + index / 4]);
        self.s.to_float(
            self.s
                .sar(self.s.shl(words, 24 - 8 * (index % 4) as u32), 24),
        )
    }

    /// Half `index` of the halves that begin at line `line`.
    #[inline(always)]
    fn half(&self, line: usize, index: usize) -> S::F {
        let words = self.s.load_words(&self.lines[line + index / 2]);
        self.s.half(self.s.shr(words, 16 * (index % 2) as u32))
    }

    /// `a` and `b` of the columns in half `part` of the group; `b` is 0 in formats without one. See
    /// `plan/format/weight.rs`.
    #[inline(always)]
    fn scale(&self, format: WeightFormat, part: usize) -> [S::F; 2] {
        let (s, group, line, none) = (self.s, self.group, self.layout.scales, self.s.splat(0.0));
        let part_of_level = s.splat(1.0 / f32::from(format.parts().1.multiple()));
        match format.parts().2 {
            Scales::None => [s.splat(1.0), none],
            Scales::Half => {
                let a = self.half(line, group);
                [a, self.negative(s.mul(a, s.splat(format.offset())))]
            }
            Scales::HalfMin => [self.half(line, 2 * group), self.half(line, 2 * group + 1)],
            Scales::HalfZero => {
                let a = self.half(line, 2 * group);
                let zero = s.to_float(s.sar(self.words(line + group), 16));
                [a, self.negative(s.mul(a, zero))]
            }
            Scales::Exponent => [s.mul(self.power(line), part_of_level), none],
            Scales::Float => [s.float_from_bits(self.words(line + group / 2)), none],
            Scales::Wide => [
                s.float_from_bits(self.words(line + group / WIDE_GROUPS)),
                none,
            ],
            Scales::E4m3 => {
                let byte = e4m3_half(s, self.byte(line, 2 * group + part));
                let own = s.mul(s.mul(byte, s.splat(256.0)), part_of_level);
                let of_row = s.float_from_bits(self.words(self.layout.supers));
                [s.mul(own, of_row), none]
            }
            Scales::K32 | Scales::K32Min | Scales::K16 | Scales::K16Min => {
                self.shared_scale(format, part, part_of_level)
            }
        }
    }

    /// [`scale`](Self::scale) of formats with halves that 256 columns share.
    #[inline(always)]
    fn shared_scale(&self, format: WeightFormat, part: usize, part_of_level: S::F) -> [S::F; 2] {
        let (s, group, line) = (self.s, self.group, self.layout.scales);
        match format.parts().2 {
            Scales::K32 => {
                let unit = s.mul(self.unit(0), part_of_level);
                [s.mul(unit, self.signed_byte(line, group)), s.splat(0.0)]
            }
            Scales::K32Min => {
                let [a, b] = [0, 1].map(|place| {
                    let byte = self.byte(line, 2 * group + place);
                    s.mul(self.unit(place), s.to_float(byte))
                });
                [a, self.negative(b)]
            }
            Scales::K16 => {
                let unit = s.mul(self.unit(0), part_of_level);
                let a = s.mul(unit, self.signed_byte(line, 2 * group + part));
                [a, self.negative(s.mul(a, s.splat(format.offset())))]
            }
            _ => {
                let both = self.byte(line, 2 * group + part);
                let a = s.mul(self.unit(0), s.to_float(and(s, both, 15)));
                let b = s.mul(self.unit(1), s.to_float(s.shr(both, 4)));
                [a, self.negative(b)]
            }
        }
    }

    #[inline(always)]
    fn negative(&self, value: S::F) -> S::F {
        self.s.sub(self.s.splat(0.0), value)
    }

    /// One of the two halves that 256 columns share.
    #[inline(always)]
    fn unit(&self, place: usize) -> S::F {
        self.half(self.layout.supers, 2 * (self.group / 8) + place)
    }

    /// 2^(byte − 127), for the byte of the group; 2^−127, for byte 0, is subnormal.
    #[inline(always)]
    fn power(&self, line: usize) -> S::F {
        let s = self.s;
        let power = s.float_from_bits(s.shl(self.byte(line, self.group), 23));
        s.max(power, s.splat(f32::from_bits(1 << 22)))
    }
}

/// Unsigned bytes.
#[inline(always)]
fn unsigned<S: Simd>(s: S, bytes: &[i8; LANES]) -> S::I {
    s.load_words(&bytes.map(|byte| u32::from(byte.cast_unsigned())))
}

/// E4M3: the half that consists of its bits has an exponent that is 8 too small.
#[inline(always)]
fn e4m3<S: Simd>(s: S, bytes: &[i8; LANES]) -> S::F {
    let words = unsigned(s, bytes);
    let value = s.mul(e4m3_half(s, words), s.splat(256.0));
    // The largest magnitude stands for NaN.
    let magnitude = s.to_float(and(s, words, 0x7f));
    s.if_less(magnitude, s.splat(127.0), value, s.splat(f32::NAN))
}

/// The halves whose sign, exponent and mantissa begin with those of E4M3, also if they are subnormal.
#[inline(always)]
pub(super) fn e4m3_half<S: Simd>(s: S, codes: S::I) -> S::F {
    let magnitude = s.shl(and(s, codes, 0x7f), 7);
    s.half(s.or(magnitude, s.shl(and(s, codes, 0x80), 8)))
}

#[inline(always)]
fn and<S: Simd>(s: S, words: S::I, mask: u32) -> S::I {
    s.and(words, s.splat_word(mask))
}
