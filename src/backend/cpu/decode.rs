//! Decodes panels of weights to f32.

use super::simd::{Kernel, LANES, Lanes, Simd, Words};
use super::weight::{Panels, WordLayout};
use crate::plan::WeightFormat;
use crate::plan::format::{Codes, GROUP, Levels, Scales};
use std::ops::Range;

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
        let brain = |s: S, words| s.float_from_bits(s.shl(words, 16));
        // The format is a constant in each arm, so the loops do not branch on it.
        macro_rules! match_format {
            ($($grouped:ident)+) => {
                match self.weights.format {
                    WeightFormat::F32 => self.each_panel(|lines, out| dense_f32(s, lines, out)),
                    WeightFormat::F16 => self.each_panel(|lines, out| dense_half(s, lines, out, S::half)),
                    WeightFormat::Bf16 => self.each_panel(|lines, out| dense_half(s, lines, out, brain)),
                    $(WeightFormat::$grouped => self.each_group(s, WeightFormat::$grouped),)+
                }
            };
        }
        match_format!(Q8 Q4 Q4Zero Q5 Iq4 Mxfp4 E4m3 Q2K Q3K Q4K Q5K Q6K Iq4K);
    }
}

impl Decode<'_> {
    /// Calls `decode` with the lines and the output of each panel of a format without groups.
    #[inline(always)]
    fn each_panel(self, decode: impl Fn(&[Words], &mut [Lanes])) {
        let per_line = 4 / self.weights.format.element_bytes().unwrap_or(4) as usize;
        let (first, end) = (self.columns.start / per_line, self.columns.end.div_ceil(per_line));
        for (panel, out) in self.panels.zip(self.out.chunks_exact_mut(self.columns.len())) {
            decode(&self.weights.lines[panel * self.weights.words..][first..end], out);
        }
    }

    #[inline(always)]
    fn each_group<S: Simd>(self, s: S, format: WeightFormat) {
        let layout = format.layout(self.weights.columns).into();
        let first = self.columns.start / GROUP;
        for (panel, out) in self.panels.zip(self.out.chunks_exact_mut(self.columns.len())) {
            let lines = &self.weights.lines[panel * self.weights.words..][..self.weights.words];
            let (groups, rest) = out.as_chunks_mut::<GROUP>();
            let done = first + groups.len();
            for (group, out) in (first..).zip(groups) {
                Group { s, format, lines, layout, group }.decode(out);
            }
            if !rest.is_empty() {
                let mut last = [[0.0; LANES]; GROUP];
                Group { s, format, lines, layout, group: done }.decode(&mut last);
                rest.copy_from_slice(&last[..rest.len()]);
            }
        }
    }
}

#[inline(always)]
fn dense_f32<S: Simd>(s: S, lines: &[Words], out: &mut [Lanes]) {
    for (line, out) in lines.iter().zip(out) {
        s.store(s.float_from_bits(s.load_words(line)), out);
    }
}

/// Each word has two columns, the first one in its low half.
#[inline(always)]
fn dense_half<S: Simd>(s: S, lines: &[Words], out: &mut [Lanes], widen: impl Fn(S, S::I) -> S::F) {
    let (pairs, rest) = out.as_chunks_mut::<2>();
    for (line, [low, high]) in lines.iter().zip(pairs.iter_mut()) {
        let words = s.load_words(line);
        s.store(widen(s, words), low);
        s.store(widen(s, s.shr(words, 16)), high);
    }
    if let ([last], Some(line)) = (rest, lines.get(pairs.len())) {
        s.store(widen(s, s.load_words(line)), last);
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

impl<S: Simd> Group<'_, S> {
    #[inline(always)]
    fn decode(&self, out: &mut [Lanes; GROUP]) {
        let s = self.s;
        let (codes, levels, scales) = self.format.parts();
        let (low, high) = match scales {
            Scales::K16 | Scales::K16Min => (self.scale(0), self.scale(1)),
            _ => (self.scale(0), self.scale(0)),
        };
        let mut write = |column: usize, level: S::F| {
            let (a, b) = if column < GROUP / 2 { low } else { high };
            let value = match b {
                Some(b) => s.mul_add(a, level, b),
                None => s.mul(a, level),
            };
            s.store(value, &mut out[column]);
        };
        match codes {
            Codes::Dense => {}
            Codes::Eight => self.bytes(levels, write),
            Codes::Four | Codes::FourOne | Codes::FourTwo => self.nibbles(codes, levels, write),
            Codes::Two | Codes::TwoOne => {
                for column in 0..GROUP {
                    let code = self.and(self.pair(2 * self.group, column, 0), 3);
                    let code = if matches!(codes, Codes::TwoOne) { s.or(code, self.bit(column, 2)) } else { code };
                    write(column, s.to_float(code));
                }
            }
        }
    }

    #[inline(always)]
    fn bytes(&self, levels: Levels, mut write: impl FnMut(usize, S::F)) {
        let lines: &[[i8; LANES]] = bytemuck::cast_slice(&self.lines[GROUP / 4 * self.group..][..GROUP / 4]);
        for (column, bytes) in lines.iter().enumerate() {
            let level = match levels {
                Levels::E4m3 => self.e4m3(bytes),
                _ => self.s.load_bytes(bytes),
            };
            write(column, level);
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
    fn nibbles(&self, codes: Codes, levels: Levels, mut write: impl FnMut(usize, S::F)) {
        let s = self.s;
        for eight in 0..4 {
            let words = s.load_words(&self.lines[4 * self.group + eight]);
            for i in 0..8 {
                let column = 8 * eight + i;
                let code = s.shr(words, (8 * (i % 4) + 4 * (i / 4)) as u32);
                let wide = |upper: S::I| s.to_float(s.or(self.and(code, 15), upper));
                let level = match (codes, levels.table()) {
                    (Codes::FourOne, _) => wide(self.bit(column, 4)),
                    (Codes::FourTwo, _) => wide(self.and(self.pair(self.layout.plane + 2 * self.group, column, 4), 48)),
                    (_, Some(table)) => s.select(code, &table),
                    _ => s.nibble(code),
                };
                write(column, level);
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
