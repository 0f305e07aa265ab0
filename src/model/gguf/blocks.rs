//! The block types of GGUF tensors, and their lossless repacking into device formats: no number is rounded; codes and
//! scales are only moved.

use super::grids;
use crate::model::repack::RowWriter;
use crate::plan::WeightFormat;
use crate::plan::format::GROUP;
use std::fmt;

/// Element types by their names in ggml.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockType {
    F32,
    F16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq2Xxs,
    Iq2Xs,
    Iq3Xxs,
    Iq1S,
    Iq4Nl,
    Iq3S,
    Iq2S,
    Iq4Xs,
    Iq1M,
    Bf16,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
    Q1_0,
    Q2_0,
}

/// Number in a file, type, name, weights per block, bytes per block, format on the device.
type Row = (u32, BlockType, &'static str, usize, usize, WeightFormat);

#[rustfmt::skip]
const TABLE: [Row; 28] = [
    (0, BlockType::F32, "F32", 1, 4, WeightFormat::F32),
    (1, BlockType::F16, "F16", 1, 2, WeightFormat::F16),
    (2, BlockType::Q4_0, "Q4_0", 32, 18, WeightFormat::Q4),
    (3, BlockType::Q4_1, "Q4_1", 32, 20, WeightFormat::Q4),
    (6, BlockType::Q5_0, "Q5_0", 32, 22, WeightFormat::Q5),
    (7, BlockType::Q5_1, "Q5_1", 32, 24, WeightFormat::Q5),
    (8, BlockType::Q8_0, "Q8_0", 32, 34, WeightFormat::Q8),
    (10, BlockType::Q2K, "Q2_K", 256, 84, WeightFormat::Q2K),
    (11, BlockType::Q3K, "Q3_K", 256, 110, WeightFormat::Q3K),
    (12, BlockType::Q4K, "Q4_K", 256, 144, WeightFormat::Q4K),
    (13, BlockType::Q5K, "Q5_K", 256, 176, WeightFormat::Q5K),
    (14, BlockType::Q6K, "Q6_K", 256, 210, WeightFormat::Q6K),
    (16, BlockType::Iq2Xxs, "IQ2_XXS", 256, 66, WeightFormat::Iq2),
    (17, BlockType::Iq2Xs, "IQ2_XS", 256, 74, WeightFormat::Iq2),
    (18, BlockType::Iq3Xxs, "IQ3_XXS", 256, 98, WeightFormat::Iq3Xxs),
    (19, BlockType::Iq1S, "IQ1_S", 256, 50, WeightFormat::Iq1),
    (20, BlockType::Iq4Nl, "IQ4_NL", 32, 18, WeightFormat::Iq4),
    (21, BlockType::Iq3S, "IQ3_S", 256, 110, WeightFormat::Iq3S),
    (22, BlockType::Iq2S, "IQ2_S", 256, 82, WeightFormat::Iq2),
    (23, BlockType::Iq4Xs, "IQ4_XS", 256, 136, WeightFormat::Iq4K),
    (29, BlockType::Iq1M, "IQ1_M", 256, 56, WeightFormat::Iq1),
    (30, BlockType::Bf16, "BF16", 1, 2, WeightFormat::Bf16),
    (34, BlockType::Tq1_0, "TQ1_0", 256, 54, WeightFormat::Ternary),
    (35, BlockType::Tq2_0, "TQ2_0", 256, 66, WeightFormat::Ternary),
    (39, BlockType::Mxfp4, "MXFP4", 32, 17, WeightFormat::Mxfp4),
    (40, BlockType::Nvfp4, "NVFP4", 64, 36, WeightFormat::Nvfp4),
    (41, BlockType::Q1_0, "Q1_0", 128, 18, WeightFormat::Q1),
    (42, BlockType::Q2_0, "Q2_0", 64, 18, WeightFormat::Ternary),
];

impl BlockType {
    pub(super) fn from_number(number: u32) -> Option<Self> {
        TABLE.iter().find(|row| row.0 == number).map(|row| row.1)
    }

    fn row(self) -> &'static Row {
        TABLE
            .iter()
            .find(|row| row.1 == self)
            .expect("the table has every type")
    }

    /// The number in a file.
    pub(super) fn number(self) -> u32 {
        self.row().0
    }

    /// Weights per block.
    pub(super) fn weights(self) -> usize {
        self.row().3
    }

    /// Bytes per block.
    pub(super) fn bytes(self) -> usize {
        self.row().4
    }

    /// The device format of tensors of this type.
    pub(super) fn format(self) -> WeightFormat {
        self.row().5
    }

    /// Bytes of a row of `columns` weights, in whole blocks.
    pub(super) fn row_bytes(self, columns: usize) -> usize {
        columns / self.weights() * self.bytes()
    }

    /// Repacks a row of whole blocks into a row of [`Self::format`]; `factor` multiplies all weights of a type whose
    /// rows have one on the device.
    pub(super) fn repack(self, source: &[u8], columns: usize, factor: f32, out: &mut [u8]) {
        if !self.format().is_quantised() {
            out.copy_from_slice(source);
            return;
        }
        let mut row = RowWriter::new(self.format(), columns, out);
        if self == Self::Nvfp4 {
            row.factor(factor);
        }
        for (index, block) in source.chunks_exact(self.bytes()).enumerate() {
            match self {
                Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => row.simple(self, index, block),
                Self::Q8_0 => row.group(index, run(&block[2..]), &block[..2]),
                Self::Iq4Nl => row.group(index, &nibbles(&block[2..]), &block[..2]),
                Self::Mxfp4 => row.group(index, &nibbles(&block[1..]), &block[..1]),
                Self::Q4K | Self::Q5K => row.k32_min(self, index, block),
                Self::Q2K => row.q2k(index, block),
                Self::Q3K => row.q3k(index, block),
                Self::Q6K => row.q6k(index, block),
                Self::Iq4Xs => row.iq4xs(index, block),
                Self::Nvfp4 => row.nvfp4(index, block),
                Self::Q1_0 => row.q1(index, block),
                Self::Q2_0 => row.q2(index, block),
                Self::Tq1_0 => row.tq1(index, block),
                Self::Tq2_0 => row.tq2(index, block),
                Self::Iq1S | Self::Iq1M | Self::Iq2Xxs | Self::Iq2Xs | Self::Iq2S => {
                    row.points_of_eight(self, index, block);
                }
                Self::Iq3Xxs | Self::Iq3S => row.points_of_four(self, index, block),
                Self::F32 | Self::F16 | Self::Bf16 => unreachable!("dense rows are copied"),
            }
        }
    }
}

impl fmt::Display for BlockType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().2)
    }
}

/// Sixteen bytes unpacked into nibbles: all low ones, then all high ones.
fn nibbles(bytes: &[u8]) -> [u8; GROUP] {
    let bytes: &[u8; 16] = run(bytes);
    let mut codes = [0; GROUP];
    for (index, byte) in bytes.iter().enumerate() {
        (codes[index], codes[16 + index]) = (byte & 15, byte >> 4);
    }
    codes
}

/// The first bytes of a part of a block. With a length that the compiler knows, loops over them become vector code.
fn run<const N: usize>(bytes: &[u8]) -> &[u8; N] {
    bytes.first_chunk().expect("blocks are whole")
}

/// Scale and minimum number `index`, from the twelve bytes in which Q4_K and Q5_K pack eight pairs of 6-bit numbers.
fn six_bits(packed: &[u8], index: usize) -> [u8; 2] {
    if index < 4 {
        return [packed[index] & 63, packed[index + 4] & 63];
    }
    let low = packed[index + 4];
    [
        low & 15 | packed[index - 4] >> 6 << 4,
        low >> 4 | packed[index] >> 6 << 4,
    ]
}

impl RowWriter<'_> {
    fn group(&mut self, group: usize, codes: &[u8; GROUP], scale: &[u8]) {
        self.codes(group, codes);
        self.scale(group, scale);
    }

    /// A group of 32 codes of 4 or 5 bits, with one or two f16 scales. If codes are centered on 8 or 16, the minimum
    /// becomes −8 or −16 times the scale. An f16 holds this exactly unless it overflows, and then the scale itself
    /// exceeds any weight.
    fn simple(&mut self, kind: BlockType, group: usize, block: &[u8]) {
        let (has_min, has_bit) = match kind {
            BlockType::Q4_0 => (false, false),
            BlockType::Q4_1 => (true, false),
            BlockType::Q5_0 => (false, true),
            _ => (true, true),
        };
        let head = if has_min { 4 } else { 2 };
        let tail = &block[head + if has_bit { 4 } else { 0 }..];
        let mut codes = nibbles(tail);
        if has_bit {
            let bits = u32::from_le_bytes(*run(&block[head..]));
            for (index, code) in codes.iter_mut().enumerate() {
                *code |= ((bits >> index & 1) << 4) as u8;
            }
        }
        let scale = half::f16::from_le_bytes([block[0], block[1]]);
        let around = if has_bit { -16.0 } else { -8.0 };
        let centred = half::f16::from_f32(scale.to_f32() * around).to_le_bytes();
        let min = if has_min {
            [block[2], block[3]]
        } else {
            centred
        };
        self.group(group, &codes, &[block[0], block[1], min[0], min[1]]);
    }

    fn k32_min(&mut self, kind: BlockType, index: usize, block: &[u8]) {
        let (packed, high): (_, &[u8; GROUP]) = (&block[4..16], run(&block[16..]));
        let (low, fifths) = if kind == BlockType::Q5K {
            (&block[48..], 1)
        } else {
            (&block[16..], 0)
        };
        for group in 0..8 {
            let bytes: &[u8; GROUP] = run(&low[32 * (group / 2)..]);
            let codes = std::array::from_fn(|i| {
                bytes[i] >> (4 * (group % 2)) & 15 | (high[i] >> group & fifths) << 4
            });
            self.group(8 * index + group, &codes, &six_bits(packed, group));
        }
        self.supers(index, [&block[..2], &block[2..4]]);
    }

    fn q2k(&mut self, index: usize, block: &[u8]) {
        for group in 0..8 {
            let bytes: &[u8; GROUP] = run(&block[16 + 32 * (group / 4)..]);
            let codes = std::array::from_fn(|i| bytes[i] >> (2 * (group % 4)) & 3);
            self.group(8 * index + group, &codes, &block[2 * group..][..2]);
        }
        self.supers(index, [&block[80..82], &block[82..84]]);
    }

    fn q3k(&mut self, index: usize, block: &[u8]) {
        let (mask, low, packed): (&[u8; GROUP], _, _) =
            (run(block), &block[32..96], &block[96..108]);
        let scale = |at: usize| {
            let low = packed[at % 8] >> (4 * (at / 8)) & 15;
            let high = packed[8 + at % 4] >> (2 * (at / 4)) & 3;
            (low | high << 4).wrapping_sub(32)
        };
        for group in 0..8 {
            let bytes: &[u8; GROUP] = run(&low[32 * (group / 4)..]);
            let codes = std::array::from_fn(|i| {
                bytes[i] >> (2 * (group % 4)) & 3 | (mask[i] >> group & 1) << 2
            });
            self.group(
                8 * index + group,
                &codes,
                &[scale(2 * group), scale(2 * group + 1)],
            );
        }
        self.supers(index, [&block[108..110], &[]]);
    }

    fn q6k(&mut self, index: usize, block: &[u8]) {
        for group in 0..8 {
            let (half, quarter) = (group / 4, group % 4);
            let low: &[u8; GROUP] = run(&block[64 * half + 32 * (quarter % 2)..]);
            let high: &[u8; GROUP] = run(&block[128 + 32 * half..]);
            let codes = std::array::from_fn(|i| {
                low[i] >> (4 * (quarter / 2)) & 15 | (high[i] >> (2 * quarter) & 3) << 4
            });
            self.group(8 * index + group, &codes, &block[192 + 2 * group..][..2]);
        }
        self.supers(index, [&block[208..210], &[]]);
    }

    fn iq4xs(&mut self, index: usize, block: &[u8]) {
        let high = u16::from_le_bytes([block[2], block[3]]);
        for group in 0..8 {
            let low = block[4 + group / 2] >> (4 * (group % 2)) & 15;
            let scale = (low | ((high >> (2 * group) & 3) as u8) << 4).wrapping_sub(32);
            self.group(
                8 * index + group,
                &nibbles(&block[8 + 16 * group..]),
                &[scale],
            );
        }
        self.supers(index, [&block[..2], &[]]);
    }
}

impl RowWriter<'_> {
    /// Four sub-blocks of sixteen weights, each with a scale: E4M3 without sign, whose code for NaN counts as zero.
    fn nvfp4(&mut self, index: usize, block: &[u8]) {
        let scale = |at: usize| match block[at] & 0x7f {
            0x7f => 0,
            byte => byte,
        };
        for group in 0..2 {
            let bytes = &block[4 + 16 * group..][..16];
            let codes = std::array::from_fn(|i| {
                let (half, within) = (i / 16, i % 16);
                bytes[8 * half + within % 8] >> (4 * (within / 8)) & 15
            });
            let scales = [scale(2 * group), scale(2 * group + 1)];
            self.group(2 * index + group, &codes, &scales);
        }
    }

    fn q1(&mut self, index: usize, block: &[u8]) {
        for group in 0..4 {
            let bytes = &block[2 + 4 * group..][..4];
            let codes = std::array::from_fn(|i| bytes[i / 8] >> (i % 8) & 1);
            self.group(4 * index + group, &codes, &block[..2]);
        }
    }

    fn q2(&mut self, index: usize, block: &[u8]) {
        for group in 0..2 {
            let bytes = &block[2 + 8 * group..][..8];
            let codes = std::array::from_fn(|i| bytes[i / 4] >> (2 * (i % 4)) & 3);
            self.group(2 * index + group, &codes, &block[..2]);
        }
    }

    fn tq2(&mut self, index: usize, block: &[u8]) {
        for group in 0..8 {
            let bytes = &block[32 * (group / 4)..][..32];
            let codes = std::array::from_fn(|i| bytes[i] >> (2 * (group % 4)) & 3);
            self.group(8 * index + group, &codes, &block[64..66]);
        }
    }

    /// Five digits of base 3 a byte, stored as a fraction of 256.
    fn tq1(&mut self, index: usize, block: &[u8]) {
        const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
        let digit = |byte: u8, at: usize| {
            let fraction = byte.wrapping_mul(POWERS[at]);
            ((u16::from(fraction) * 3) >> 8) as u8
        };
        let code = |weight: usize| match weight {
            0..160 => digit(block[weight % 32], weight / 32),
            160..240 => digit(block[32 + weight % 16], (weight - 160) / 16),
            _ => digit(block[48 + weight % 4], (weight - 240) / 4),
        };
        for group in 0..8 {
            let codes = std::array::from_fn(|i| code(GROUP * group + i));
            self.group(8 * index + group, &codes, &block[52..54]);
        }
    }

    /// Points of eight weights. Of IQ2 they are magnitudes, whose signs lie beside them; of IQ1 they are −1, 0 or 1,
    /// shifted by an eighth.
    fn points_of_eight(&mut self, kind: BlockType, index: usize, block: &[u8]) {
        for group in 0..8 {
            let mut codes = [0; GROUP];
            for (part, codes) in codes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let (point, signs) = kind.point_of_eight(block, group, part);
                *codes = std::array::from_fn(|i| {
                    let (rank, sign) = ((point >> (2 * i) & 3) as u8, signs >> i & 1);
                    match kind {
                        BlockType::Iq1S | BlockType::Iq1M => 2 * rank + 1 - sign,
                        _ if sign == 1 => 2 - rank,
                        _ => 3 + rank,
                    }
                });
            }
            let scales = [0, 1].map(|half| 2 * kind.step_of(block, 2 * group + half) + 1);
            self.group(8 * index + group, &codes, &scales);
        }
        self.supers(index, [&kind.shared_half(block), &[]]);
    }

    /// Points of four weights: magnitudes, whose signs lie beside them.
    fn points_of_four(&mut self, kind: BlockType, index: usize, block: &[u8]) {
        for group in 0..8 {
            let mut codes = [0; GROUP];
            for (part, codes) in codes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let (point, signs) = kind.point_of_four(block, group, part);
                *codes = std::array::from_fn(|i| {
                    let rank = (point >> (3 * i) & 7) as u8;
                    let is_negative = signs >> i & 1 == 1;
                    if is_negative { 7 - rank } else { 8 + rank }
                });
            }
            let scale = 2 * kind.step_of(block, 2 * group) + 1;
            self.group(8 * index + group, &codes, &[scale]);
        }
        self.supers(index, [&kind.shared_half(block), &[]]);
    }
}

/// Signs of eight weights from seven bits: an even number of them is negative.
fn with_parity(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

impl BlockType {
    /// The grid's point for weights 8 · part to 8 · part + 7 of a group of 32, and their signs as bits; of IQ1, whether
    /// each is shifted down.
    fn point_of_eight(self, block: &[u8], group: usize, part: usize) -> (u16, u8) {
        let half = |at: usize| u16::from_le_bytes(*run(&block[at..]));
        match self {
            Self::Iq2Xxs => {
                let words = u32::from_le_bytes(*run(&block[2 + 8 * group + 4..]));
                let point = grids::IQ2_XXS[usize::from(block[2 + 8 * group + part])];
                (point, with_parity(words >> (7 * part)))
            }
            Self::Iq2Xs => {
                let word = half(2 + 8 * group + 2 * part);
                let point = grids::IQ2_XS[usize::from(word & 511)];
                (point, with_parity(u32::from(word >> 9)))
            }
            Self::Iq2S => {
                let high = u16::from(block[66 + group] >> (2 * part) & 3) << 8;
                let point =
                    grids::IQ2_S[usize::from(u16::from(block[2 + 4 * group + part]) | high)];
                (point, block[34 + 4 * group + part])
            }
            Self::Iq1S => {
                let word = half(34 + 2 * group);
                let high = (word >> (3 * part) & 7) << 8;
                let point = grids::IQ1[usize::from(u16::from(block[2 + 4 * group + part]) | high)];
                (point, if word >> 15 == 1 { 255 } else { 0 })
            }
            _ => {
                let nibble = block[32 + 2 * group + part / 2] >> (4 * (part % 2)) & 15;
                let high = u16::from(nibble & 7) << 8;
                let point = grids::IQ1[usize::from(u16::from(block[4 * group + part]) | high)];
                (point, if nibble & 8 == 0 { 0 } else { 255 })
            }
        }
    }

    /// The grid's point for weights 4 · part to 4 · part + 3 of a group of 32, and their signs as bits.
    fn point_of_four(self, block: &[u8], group: usize, part: usize) -> (u16, u8) {
        let own = u16::from(block[2 + 8 * group + part]);
        if self == Self::Iq3Xxs {
            let word = u32::from_le_bytes(*run(&block[66 + 4 * group..]));
            let signs = with_parity(word >> (7 * (part / 2)));
            return (grids::IQ3_XXS[usize::from(own)], signs >> (4 * (part % 2)));
        }
        let high = u16::from(block[66 + group] >> part & 1) << 8;
        let signs = block[74 + 4 * group + part / 2];
        (
            grids::IQ3_S[usize::from(own | high)],
            signs >> (4 * (part % 2)),
        )
    }

    /// The number s of sixteen weights whose scale is 2s + 1.
    fn step_of(self, block: &[u8], sixteen: usize) -> u8 {
        let (group, half) = (sixteen / 2, sixteen % 2);
        match self {
            Self::Iq2Xxs => block[2 + 8 * group + 7] >> 4,
            Self::Iq2Xs | Self::Iq2S => {
                let scales = &block[self.bytes() - 8..];
                scales[group] >> (4 * half) & 15
            }
            Self::Iq3Xxs => block[66 + 4 * group + 3] >> 4,
            Self::Iq3S => block[106 + group / 2] >> (4 * (group % 2)) & 15,
            Self::Iq1S => block[34 + 2 * group + 1] >> 4 & 7,
            _ => {
                let word = u16::from_le_bytes(*run(&block[48 + 2 * (sixteen / 4)..]));
                (word >> (3 * (sixteen % 4)) & 7) as u8
            }
        }
    }

    /// The half that all scales of a block refer to.
    fn shared_half(self, block: &[u8]) -> [u8; 2] {
        if self != Self::Iq1M {
            return [block[0], block[1]];
        }
        let nibble = |word: usize| block[48 + 2 * word + 1] >> 4;
        [nibble(0) | nibble(1) << 4, nibble(2) | nibble(3) << 4]
    }
}

#[cfg(test)]
mod tests;
