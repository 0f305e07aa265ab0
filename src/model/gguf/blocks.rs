//! The block types of GGUF tensors, and their lossless repacking into device formats: no number is rounded; codes and
//! scales are only moved.

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
    Iq4Nl,
    Iq4Xs,
    Bf16,
    Mxfp4,
}

/// Number in a file, type, name, weights per block, bytes per block, format on the device.
type Row = (u32, BlockType, &'static str, usize, usize, WeightFormat);

#[rustfmt::skip]
const TABLE: [Row; 16] = [
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
    (20, BlockType::Iq4Nl, "IQ4_NL", 32, 18, WeightFormat::Iq4),
    (23, BlockType::Iq4Xs, "IQ4_XS", 256, 136, WeightFormat::Iq4K),
    (30, BlockType::Bf16, "BF16", 1, 2, WeightFormat::Bf16),
    (39, BlockType::Mxfp4, "MXFP4", 32, 17, WeightFormat::Mxfp4),
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

    /// Repacks a row of whole blocks into a row of [`Self::format`].
    pub(super) fn repack(self, source: &[u8], columns: usize, out: &mut [u8]) {
        if !self.format().is_quantised() {
            out.copy_from_slice(source);
            return;
        }
        let mut row = RowWriter::new(self.format(), columns, out);
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

#[cfg(test)]
mod tests;
