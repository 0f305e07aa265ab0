//! A quantized matrix as a checkpoint stores it: where the codes of its weights lie, what they stand for, and their
//! scales and zero points. All published formats of safetensors are combinations of these.
//!
//! A weight is `scale · (level − zero)` or `scale · level + minimum`. A row is repacked into a device format that holds
//! exactly these numbers, or computed in f32 where there is none: codes and scales are moved, not rounded. The two
//! exceptions: bf16 scales below 2⁻¹⁷ are rounded to a half's step of 2⁻²⁴, and rows whose columns belong to groups in
//! any order (GPTQ with act-order) are rounded to `q8`, by at most half a step of 1/127 of a group's largest weight.

use crate::model::quantize::quantize_row;
use crate::model::repack::RowWriter;
use crate::plan::WeightFormat;
use crate::plan::format::{GROUP, Levels, Scales, WIDE_GROUPS, decode_e4m3};
use bytes::Bytes;
use half::{bf16, f16};
use std::ops::Range;

/// Nibble of a word, counted from the lowest, in which AWQ stores each of its outputs 0 to 7.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];
/// Rows and columns of a block that shares a scale.
pub(super) const BLOCK: usize = 128;
/// Groups that share a scale of NF4 and FP4 on the device.
const FLOAT_GROUPS: usize = 2;

/// One quantized matrix.
#[derive(Debug)]
pub(super) struct Matrix {
    /// The tensors it consists of.
    pub(super) parts: Vec<Part>,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) codes: Codes,
    pub(super) levels: Levels,
    pub(super) groups: Groups,
    pub(super) scale: Scale,
    pub(super) zero: Zero,
    /// Numbers that multiply the columns.
    pub(super) column_factors: Option<Numbers>,
    /// On the device.
    pub(super) format: WeightFormat,
}

/// A tensor, or a range of its bytes.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) name: String,
    pub(super) bytes: Range<u64>,
}

/// Where the codes lie in part 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub(super) packing: Packing,
    /// Bits of a code.
    pub(super) bits: usize,
    /// Bits that are inverted to make a code: the sign of bytes that count as unsigned.
    pub(super) inverted: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    /// A stream of codes per row, each row in so many bytes.
    Rows { row_bytes: usize },
    /// A stream of codes down the columns: word `w` of output `r` is word `w · rows + r`.
    Columns,
    /// AWQ: eight outputs of a column in a word, in the order of [`AWQ_PLACES`].
    Outputs,
    /// Nibbles of all rows one after the other, the high one of a byte first.
    Flat,
}

/// Which columns of a row share a scale.
#[derive(Clone, Copy, Debug)]
pub(super) enum Groups {
    /// So many consecutive ones.
    Of(usize),
    /// Those with the same number in this part.
    Listed(usize),
}

/// A tensor of numbers: the part that it is, and its elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) part: usize,
    pub(super) number: Number,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    F32,
    F16,
    Bf16,
    /// A power of two by its biased exponent.
    E8m0,
    E4m3,
    I8,
    U8,
}

/// Which number belongs to a row and a group.
#[derive(Clone, Copy, Debug)]
pub(super) enum Places {
    /// One for the matrix.
    One,
    /// One per row.
    Row,
    /// So many groups for each row.
    Groups(usize),
    /// All rows for each group.
    Rows,
    /// So many blocks of 128 columns for each 128 rows.
    Blocks(usize),
    /// One for so many weights of all rows one after the other.
    Flat(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Scale {
    pub(super) numbers: Numbers,
    pub(super) places: Places,
    pub(super) factor: Factor,
}

/// What becomes of the numbers that scales are stored as.
#[derive(Clone, Debug)]
pub(super) enum Factor {
    None,
    /// They are multiplied by the only number of another tensor.
    Times(Numbers),
    /// They are divided by it.
    Over(Numbers),
    /// They are divided by a constant.
    OverConstant(f32),
    /// They are codes of a table of 256 numbers, times a number for each so many codes, plus an offset.
    Nested {
        table: Numbers,
        scales: Numbers,
        block: usize,
        offset: f32,
    },
}

/// What is subtracted from levels, or added to products.
#[derive(Clone, Copy, Debug)]
pub(super) enum Zero {
    None,
    /// The same for all weights.
    Fixed(i16),
    /// Numbers at the places of the scales, plus a constant.
    Numbers(Numbers, i16),
    /// Codes in words.
    Words(ZeroWords),
    /// Minima at the places of the scales.
    Minimum(Numbers),
}

/// Zero points as streams of codes in the words of a part.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroWords {
    pub(super) part: usize,
    pub(super) bits: usize,
    pub(super) order: ZeroOrder,
    /// What is added to a code.
    pub(super) offset: i16,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ZeroOrder {
    /// The rows of a group in a stream of so many words.
    RowsOfGroup(usize),
    /// The same, eight in a word in AWQ's order.
    Outputs(usize),
    /// The groups of a row in a stream of so many words.
    GroupsOfRow(usize),
    /// The rows of a group in a stream whose words are so many words apart.
    RowsApart(usize),
}

impl Number {
    fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E8m0 | Self::E4m3 | Self::I8 | Self::U8 => 1,
        }
    }

    /// Whether a half holds it, but for very small and very large ones.
    fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }
}

impl Numbers {
    fn get(self, parts: &[Bytes], index: usize) -> f32 {
        let size = self.number.bytes();
        let bytes = &parts[self.part][index * size..][..size];
        match self.number {
            Number::F32 => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
            Number::F16 => f16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Number::Bf16 => bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
            Number::E8m0 => match bytes[0] {
                0 => f32::from_bits(1 << 22),
                255 => f32::NAN,
                biased => f32::from_bits(u32::from(biased) << 23),
            },
            Number::E4m3 => decode_e4m3(bytes[0]),
            Number::I8 => bytes[0].cast_signed().into(),
            Number::U8 => bytes[0].into(),
        }
    }
}

impl Scale {
    fn get(&self, parts: &[Bytes], index: usize) -> f32 {
        let own = self.numbers.get(parts, index);
        match &self.factor {
            Factor::None => own,
            Factor::Times(factor) => own * factor.get(parts, 0),
            Factor::Over(divisor) => own / divisor.get(parts, 0),
            Factor::OverConstant(divisor) => own / divisor,
            Factor::Nested {
                table,
                scales,
                block,
                offset,
            } => table.get(parts, own as usize) * scales.get(parts, index / block) + offset,
        }
    }

    /// What multiplies all scales.
    fn factor(&self, parts: &[Bytes]) -> f32 {
        match &self.factor {
            Factor::Times(factor) => factor.get(parts, 0),
            Factor::Over(divisor) => 1.0 / divisor.get(parts, 0),
            _ => 1.0,
        }
    }
}

impl ZeroWords {
    fn get(self, parts: &[Bytes], row: usize, group: usize) -> i16 {
        let words = &parts[self.part];
        let code = match self.order {
            ZeroOrder::RowsOfGroup(each) => stream_code(words, self.bits, [group * each, 1], row),
            ZeroOrder::GroupsOfRow(each) => stream_code(words, self.bits, [row * each, 1], group),
            ZeroOrder::RowsApart(apart) => stream_code(words, self.bits, [group, apart], row),
            ZeroOrder::Outputs(each) => nibble(words, group * each + row / 8, AWQ_PLACES[row % 8]),
        };
        i16::from(code) + self.offset
    }
}

/// Code `at` of a stream of codes: word `k` of the stream is word `start + k · step`.
fn stream_code(words: &[u8], bits: usize, [start, step]: [usize; 2], at: usize) -> u8 {
    let (first, place) = (at * bits / 32, at * bits % 32);
    let mut code = word(words, start + first * step) >> place;
    if place + bits > 32 {
        code |= word(words, start + (first + 1) * step) << (32 - place);
    }
    (code & ((1 << bits) - 1)) as u8
}

/// Code `at` of a stream of codes in bytes.
fn byte_code(bytes: &[u8], bits: usize, at: usize) -> u8 {
    let (first, place) = (at * bits / 8, at * bits % 8);
    let next = bytes.get(first + 1).copied().unwrap_or(0);
    let both = u16::from_le_bytes([bytes[first], next]) >> place;
    (both & ((1 << bits) - 1)) as u8
}

/// The codes of a group from the bytes of their stream.
fn unpack(bytes: &[u8], bits: usize, codes: &mut [u8; GROUP]) {
    match bits {
        8 => codes.copy_from_slice(bytes),
        4 => {
            for (pair, byte) in codes.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        _ => {
            for (at, code) in codes.iter_mut().enumerate() {
                *code = byte_code(bytes, bits, at);
            }
        }
    }
}

fn word(bytes: &[u8], index: usize) -> u32 {
    let word = &bytes[4 * index..][..4];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

fn nibble(words: &[u8], index: usize, place: usize) -> u8 {
    (word(words, index) >> (4 * place)) as u8 & 15
}

impl Matrix {
    /// Reads of each part only the share of one of several stacked matrices.
    pub(super) fn narrow(&mut self, index: u64, count: u64) {
        for part in &mut self.parts {
            let each = (part.bytes.end - part.bytes.start) / count;
            part.bytes = index * each..(index + 1) * each;
        }
    }

    /// The device format that holds exactly the matrix's numbers; f32 if there is none.
    pub(super) fn device_format(&self) -> WeightFormat {
        let Groups::Of(group) = self.groups else {
            return WeightFormat::Q8;
        };
        if self.column_factors.is_some() {
            return WeightFormat::F32;
        }
        let number = self.scale.numbers.number;
        let groups_of = |columns: usize| group >= self.columns || group.is_multiple_of(columns);
        let format = match (self.levels, self.zero) {
            (Levels::E4m3, _) if number == Number::E8m0 => {
                (group == GROUP).then_some(WeightFormat::Mxfp8)
            }
            (Levels::E4m3, _) => groups_of(BLOCK).then_some(WeightFormat::E4m3),
            (Levels::E2m1, _) if number == Number::E8m0 => {
                (group == GROUP).then_some(WeightFormat::Mxfp4)
            }
            (Levels::E2m1, _) => {
                (group == GROUP / 2 && number == Number::E4m3).then_some(WeightFormat::Nvfp4)
            }
            (Levels::Nf4 | Levels::Fp4, _) => self.flat_format(group),
            (Levels::Signed, _) if groups_of(BLOCK) => Some(WeightFormat::Int8),
            (_, Zero::Fixed(_)) if groups_of(BLOCK) && self.codes.bits == 8 => {
                Some(WeightFormat::Int8)
            }
            _ if number.is_half() && groups_of(GROUP) => self.half_format(),
            (_, Zero::Fixed(_)) if groups_of(BLOCK) => Some(WeightFormat::Int8),
            _ => None,
        };
        format.unwrap_or(WeightFormat::F32)
    }

    /// Blocks of bitsandbytes run across the ends of rows, unless rows are whole blocks.
    fn flat_format(&self, block: usize) -> Option<WeightFormat> {
        let fits = [block, self.columns]
            .iter()
            .all(|size| size.is_multiple_of(FLOAT_GROUPS * GROUP));
        let format = if self.levels == Levels::Nf4 {
            WeightFormat::Nf4
        } else {
            WeightFormat::Fp4
        };
        fits.then_some(format)
    }

    /// The format with scales, minima or zero points in halves.
    fn half_format(&self) -> Option<WeightFormat> {
        Some(match (self.codes.bits, self.zero) {
            (1 | 2, Zero::Minimum(_)) => WeightFormat::Q2,
            (3, Zero::Minimum(_)) => WeightFormat::Q3,
            (4, Zero::Minimum(_)) => WeightFormat::Q4,
            (5, Zero::Minimum(_)) => WeightFormat::Q5,
            (6, Zero::Minimum(_)) => WeightFormat::Q6,
            (_, Zero::Minimum(_)) => WeightFormat::Q8Min,
            (_, Zero::None) => WeightFormat::Q8,
            (8, Zero::Fixed(_)) => WeightFormat::Q8,
            (1 | 2, _) => WeightFormat::Q2Zero,
            (3, _) => WeightFormat::Q3Zero,
            (4, _) => WeightFormat::Q4Zero,
            _ => WeightFormat::Q8Zero,
        })
    }

    /// Writes a row in the device's format.
    pub(super) fn write(
        &self,
        parts: &[Bytes],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), &'static str> {
        if self.format == WeightFormat::F32 || matches!(self.groups, Groups::Listed(_)) {
            return self.write_values(parts, row, out);
        }
        let mut writer = RowWriter::new(self.format, self.columns, out);
        if self.format.parts().2 == Scales::E4m3 {
            writer.factor(finite(self.scale.factor(parts))?);
        }
        for at in 0..self.columns.div_ceil(GROUP) {
            let mut codes = self.group_codes(parts, row, GROUP * at);
            if self.levels == Levels::E4m3 && codes.iter().any(|code| code & 0x7f == 0x7f) {
                return Err("contains a NaN");
            }
            if let (Zero::Fixed(zero), Levels::Signed) = (self.zero, self.format.parts().1) {
                codes = codes.map(|code| code.wrapping_sub(zero as u8));
            }
            writer.codes(at, &codes);
            self.write_scale(parts, row, at, &mut writer)?;
        }
        Ok(())
    }

    /// Writes the scales of a group of 32 columns, if it begins those that share one.
    fn write_scale(
        &self,
        parts: &[Bytes],
        row: usize,
        at: usize,
        writer: &mut RowWriter<'_>,
    ) -> Result<(), &'static str> {
        let group = self.group_of(parts, GROUP * at);
        let index = self.scale_index(row, group, GROUP * at);
        match self.format.parts().2 {
            Scales::Exponent => {
                let biased = parts[self.scale.numbers.part][index];
                if biased == 255 {
                    return Err("has a scale that is NaN");
                }
                writer.scale(at, &[biased]);
            }
            Scales::E4m3 => writer.scale(at, &self.small_scales(parts, index, at)?),
            Scales::Float => {
                let scale = self.scale.get(parts, index);
                return write_float(writer, at, FLOAT_GROUPS, scale);
            }
            Scales::Wide => {
                let scale = self.scale.get(parts, index);
                return write_float(writer, at, WIDE_GROUPS, scale);
            }
            Scales::Half => writer.scale(at, &half(self.scale.get(parts, index))?),
            Scales::HalfMin => {
                let Zero::Minimum(minima) = self.zero else {
                    unreachable!("the format was chosen for its minima")
                };
                let scales = [
                    half(self.scale.get(parts, index))?,
                    half(minima.get(parts, index))?,
                ];
                writer.scale(at, &scales.concat());
            }
            Scales::HalfZero => {
                let zero = self.zero_point(parts, row, group, index);
                let scale = half(self.scale.get(parts, index))?;
                writer.scale(at, &[scale, zero.to_le_bytes()].concat());
            }
            Scales::None | Scales::K32 | Scales::K32Min | Scales::K16 | Scales::K16Min => {
                unreachable!("these are scales of GGUF")
            }
        }
        Ok(())
    }

    /// The E4M3 scales of both halves of a group, from number `index` on.
    fn small_scales(
        &self,
        parts: &[Bytes],
        index: usize,
        at: usize,
    ) -> Result<[u8; 2], &'static str> {
        let own = &parts[self.scale.numbers.part][index..];
        let count = (self.columns - GROUP * at).div_ceil(GROUP / 2).min(2);
        let mut bytes = [0; 2];
        bytes[..count].copy_from_slice(&own[..count]);
        if bytes.iter().any(|byte| byte & 0x7f == 0x7f) {
            return Err("has a scale that is NaN");
        }
        Ok(bytes)
    }

    /// Writes a row as the numbers that its weights are, rounded to the format if it is not f32.
    fn write_values(
        &self,
        parts: &[Bytes],
        row: usize,
        out: &mut [u8],
    ) -> Result<(), &'static str> {
        let mut values = vec![0.0; self.columns.next_multiple_of(GROUP)];
        for (column, value) in values.iter_mut().enumerate().take(self.columns) {
            *value = finite(self.value(parts, row, column)?)?;
        }
        if self.format != WeightFormat::F32 {
            quantize_row(self.format, &values, self.columns, out);
            return Ok(());
        }
        for (out, value) in out.chunks_exact_mut(4).zip(values) {
            out.copy_from_slice(&value.to_le_bytes());
        }
        Ok(())
    }

    fn value(&self, parts: &[Bytes], row: usize, column: usize) -> Result<f32, &'static str> {
        let group = self.group_of(parts, column);
        if let Groups::Listed(_) = self.groups
            && group
                >= parts[self.scale.numbers.part].len()
                    / self.rows
                    / self.scale.numbers.number.bytes()
        {
            return Err("has a g_idx beyond its last group");
        }
        let index = self.scale_index(row, group, column);
        let level = self.level(self.code(parts, row, column));
        let scale = self.scale.get(parts, index);
        let value = match self.zero {
            Zero::None => scale * level,
            Zero::Minimum(minima) => scale * level + minima.get(parts, index),
            _ => scale * (level - f32::from(self.zero_point(parts, row, group, index))),
        };
        Ok(match self.column_factors {
            Some(factors) => value * factors.get(parts, column),
            None => value,
        })
    }

    fn group_of(&self, parts: &[Bytes], column: usize) -> usize {
        match self.groups {
            Groups::Of(group) => column / group,
            Groups::Listed(part) => word(&parts[part], column) as usize,
        }
    }

    /// Which number is the scale of a column of a group.
    fn scale_index(&self, row: usize, group: usize, column: usize) -> usize {
        match self.scale.places {
            Places::One => 0,
            Places::Row => row,
            Places::Groups(groups) => row * groups + group,
            Places::Rows => group * self.rows + row,
            Places::Blocks(blocks) => row / BLOCK * blocks + group,
            Places::Flat(block) => (row * self.columns + column) / block,
        }
    }

    fn zero_point(&self, parts: &[Bytes], row: usize, group: usize, index: usize) -> i16 {
        match self.zero {
            Zero::None | Zero::Minimum(_) => 0,
            Zero::Fixed(zero) => zero,
            Zero::Numbers(numbers, offset) => numbers.get(parts, index) as i16 + offset,
            Zero::Words(words) => words.get(parts, row, group),
        }
    }

    fn level(&self, code: u8) -> f32 {
        match self.levels {
            Levels::Signed => code.cast_signed().into(),
            Levels::E4m3 => decode_e4m3(code),
            levels => match levels.table() {
                Some(table) => table[usize::from(code & 15)] / f32::from(levels.multiple()),
                None => code.into(),
            },
        }
    }

    /// The codes of a group of columns; zeros beyond the end of the row.
    fn group_codes(&self, parts: &[Bytes], row: usize, first: usize) -> [u8; GROUP] {
        let (bytes, bits) = (&parts[0], self.codes.bits);
        let mut codes = [0; GROUP];
        let count = (self.columns - first).min(GROUP);
        // As many bytes as a group has codes of 1 to 8 bits.
        let mut gathered = [0; GROUP];
        let group_bytes = &mut gathered[..GROUP / 8 * bits];
        match self.codes.packing {
            Packing::Rows { row_bytes } if count == GROUP => {
                let from = row * row_bytes + first * bits / 8;
                group_bytes.copy_from_slice(&bytes[from..][..GROUP / 8 * bits]);
            }
            Packing::Columns if count == GROUP => {
                for (index, out) in group_bytes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                    let at = (first * bits / 32 + index) * self.rows + row;
                    *out = word(bytes, at).to_le_bytes();
                }
            }
            _ => {
                for (place, code) in codes.iter_mut().enumerate().take(count) {
                    *code = self.code(parts, row, first + place);
                }
                return codes;
            }
        }
        unpack(group_bytes, bits, &mut codes);
        codes.map(|code| code ^ self.codes.inverted)
    }

    fn code(&self, parts: &[Bytes], row: usize, column: usize) -> u8 {
        let (bytes, bits) = (&parts[0], self.codes.bits);
        let code = match self.codes.packing {
            Packing::Rows { row_bytes } if bits == 8 => bytes[row * row_bytes + column],
            Packing::Rows { row_bytes } => {
                byte_code(&bytes[row * row_bytes..][..row_bytes], bits, column)
            }
            Packing::Columns => stream_code(bytes, bits, [row, self.rows], column),
            Packing::Outputs => nibble(
                bytes,
                column * (self.rows / 8) + row / 8,
                AWQ_PLACES[row % 8],
            ),
            Packing::Flat => {
                let at = row * self.columns + column;
                bytes[at / 2] >> (4 * (1 - at % 2)) & 15
            }
        };
        code ^ self.codes.inverted
    }
}

/// Writes the scale of `each` groups, if group `at` is the first of them.
fn write_float(
    writer: &mut RowWriter<'_>,
    at: usize,
    each: usize,
    scale: f32,
) -> Result<(), &'static str> {
    if at.is_multiple_of(each) {
        writer.scale(at / each, &finite(scale)?.to_le_bytes());
    }
    Ok(())
}

fn finite(value: f32) -> Result<f32, &'static str> {
    if value.is_finite() {
        Ok(value)
    } else {
        Err("has a scale that is not finite")
    }
}

/// A scale as a half.
fn half(value: f32) -> Result<[u8; 2], &'static str> {
    let half = f16::from_f32(finite(value)?);
    if half.is_finite() {
        Ok(half.to_le_bytes())
    } else {
        Err("has a scale that a half cannot hold")
    }
}
