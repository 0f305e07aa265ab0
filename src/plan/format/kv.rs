//! Memory layout of keys and values in the KV pool.
//!
//! The K of a layer, and likewise its V, is an array of `[block][kv_head]` tiles. A tile is contiguous: the rows of a
//! block's slots for one head, packed in `u32`. With scales, a tile has the codes of all slots first, four per word,
//! then one f32 scale per slot. Both parts are whole 16-byte vectors, because a block has at least 16 slots.

use super::clamp_f16;
use half::f16;
use half::slice::HalfFloatSliceExt;
use std::fmt;

/// Element type of the KV pool: `[block][kv_head][slot][head_dim]`, with separate K and V buffers per layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum KvFormat {
    /// 32-bit float.
    F32,
    /// IEEE half precision, two values per `u32`, clamped to ±65504 when written.
    #[default]
    F16,
    /// Signed bytes, four per `u32`, times one f32 scale per head row.
    Q8,
    /// E4M3, four per `u32`, times one f32 scale per head row. (The FP8 of OCP's specification, with the exponent bias
    /// of half precision: 15 instead of 7, so that a code consists of bits of the half with the same value.)
    Fp8,
}

/// Name on the command line.
impl fmt::Display for KvFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Fp8 => "fp8",
        })
    }
}

impl KvFormat {
    /// All formats.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Q8, Self::Fp8];
    /// Those of one byte per element, whose rows have a scale.
    pub const CODED: [Self; 2] = [Self::Q8, Self::Fp8];

    /// Whether elements are bytes, and rows have a scale.
    pub const fn is_coded(self) -> bool {
        matches!(self, Self::Q8 | Self::Fp8)
    }

    /// Bytes of one head row of one token, including its scale.
    pub const fn row_bytes(self, head_dim: u32) -> u64 {
        let elements = head_dim as u64;
        match self {
            Self::F32 => 4 * elements,
            Self::F16 => 2 * elements,
            Self::Q8 | Self::Fp8 => elements + 4,
        }
    }

    /// What the largest code stands for, before the scale; 0 without scales.
    const fn code_max(self) -> f32 {
        match self {
            Self::F32 | Self::F16 => 0.0,
            Self::Q8 => 127.0,
            Self::Fp8 => 1.75,
        }
    }

    /// Distance between the codes around `value`, in a row with this largest magnitude; 0 without scales.
    pub(crate) fn code_step(self, value: f32, largest: f32) -> f32 {
        match self {
            Self::F32 | Self::F16 => 0.0,
            Self::Q8 => largest / self.code_max(),
            Self::Fp8 => (value.abs() / 8.0).max(largest / self.code_max() * E4M3_SMALLEST),
        }
    }
}

/// The smallest magnitude of E4M3 above 0, which is subnormal.
const E4M3_SMALLEST: f32 = 1.0 / 131_072.0;

/// A code of [`KvFormat::Fp8`] as the half with the same value.
pub(crate) fn e4m3_half(code: u8) -> f16 {
    f16::from_bits(u16::from(code & 0x80) << 8 | u16::from(code & 0x7f) << 7)
}

/// The nearest code of [`KvFormat::Fp8`], ties to even; `value` is within ±1.75, or not finite and has any code.
fn e4m3_code(value: f32) -> u8 {
    /// 2⁻¹⁴, the smallest normal magnitude, as bits.
    const NORMAL: u32 = 0x3880_0000;
    let (bits, magnitude) = (value.to_bits(), value.abs());
    let code = if magnitude.to_bits() < NORMAL {
        (magnitude / E4M3_SMALLEST).round_ties_even() as u32
    } else {
        // An exponent of 1 begins with code 8. Adding a bit less than half rounds a tie to even.
        let above = magnitude.to_bits() - NORMAL;
        8 + ((above + 0x7_ffff + (above >> 20 & 1)) >> 20)
    };
    (bits >> 24 & 0x80) as u8 | (code & 0x7f) as u8
}

/// A row whose magnitudes are all below this is stored as zeros: a device might flush its scale to zero, and
/// `127 / largest` would be infinite. `shaders/common/kv_store.wgsl` has the same constant.
const ROW_MIN: f32 = 1e-30;

/// The rows of one head in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvTile {
    /// Element type.
    pub format: KvFormat,
    /// Tokens per block.
    pub slots: usize,
    /// Elements of a row; a multiple of 8.
    pub head_dim: usize,
}

impl KvTile {
    /// `u32` words of the tile.
    pub const fn words(&self) -> usize {
        self.slots * self.format.row_bytes(self.head_dim as u32) as usize / 4
    }

    /// Word range of a slot's elements.
    fn elements(&self, slot: usize) -> std::ops::Range<usize> {
        debug_assert!(
            slot < self.slots,
            "slot {slot} is one of the {} slots of a tile",
            self.slots
        );
        let words = match self.format {
            KvFormat::F32 => self.head_dim,
            KvFormat::F16 => self.head_dim / 2,
            KvFormat::Q8 | KvFormat::Fp8 => self.head_dim / 4,
        };
        slot * words..(slot + 1) * words
    }

    /// Word index of a slot's scale.
    fn scale(&self, slot: usize) -> usize {
        debug_assert!(
            slot < self.slots,
            "slot {slot} is one of the {} slots of a tile",
            self.slots
        );
        self.slots * self.head_dim / 4 + slot
    }

    /// Widens the row of `slot` to f32. An element of q8 or fp8 is what its code stands for, times the scale.
    pub fn decode(&self, tile: &[u32], slot: usize, row: &mut [f32]) {
        debug_assert_eq!(
            (tile.len(), row.len()),
            (self.words(), self.head_dim),
            "a row of a whole tile"
        );
        let elements = &tile[self.elements(slot)];
        match self.format {
            KvFormat::F32 => row.copy_from_slice(bytemuck::cast_slice(elements)),
            KvFormat::F16 => bytemuck::cast_slice::<u32, f16>(elements).convert_to_f32_slice(row),
            KvFormat::Q8 => {
                let scale = f32::from_bits(tile[self.scale(slot)]);
                for (value, &code) in row
                    .iter_mut()
                    .zip(bytemuck::cast_slice::<u32, i8>(elements))
                {
                    *value = f32::from(code) * scale;
                }
            }
            KvFormat::Fp8 => {
                let scale = f32::from_bits(tile[self.scale(slot)]);
                for (value, &code) in row
                    .iter_mut()
                    .zip(bytemuck::cast_slice::<u32, u8>(elements))
                {
                    *value = e4m3_half(code).to_f32() * scale;
                }
            }
        }
    }

    /// Rounds `row` into `slot`. In q8 and fp8, the scale makes the largest magnitude the largest code (0 for a row of
    /// zeros), and other values get the nearest code, ties to even. A non-finite value makes the scale non-finite.
    pub fn encode(&self, tile: &mut [u32], slot: usize, row: &[f32]) {
        debug_assert_eq!(
            (tile.len(), row.len()),
            (self.words(), self.head_dim),
            "a row of a whole tile"
        );
        let elements = &mut tile[self.elements(slot)];
        match self.format {
            KvFormat::F32 => elements.copy_from_slice(bytemuck::cast_slice(row)),
            KvFormat::F16 => {
                for (element, value) in bytemuck::cast_slice_mut::<u32, f16>(elements)
                    .iter_mut()
                    .zip(row)
                {
                    *element = f16::from_f32(clamp_f16(*value));
                }
            }
            KvFormat::Q8 | KvFormat::Fp8 => {
                let (largest, code_max) = (largest_magnitude(row), self.format.code_max());
                let is_zero = largest < ROW_MIN;
                let inverse = if is_zero { 0.0 } else { code_max / largest };
                for (code, value) in bytemuck::cast_slice_mut::<u32, u8>(elements)
                    .iter_mut()
                    .zip(row)
                {
                    let value = value * inverse;
                    *code = match self.format {
                        KvFormat::Fp8 => e4m3_code(value),
                        _ => (value.round_ties_even() as i8).cast_unsigned(),
                    };
                }
                let scale = if is_zero {
                    0.0
                } else {
                    largest * (1.0 / code_max)
                };
                tile[self.scale(slot)] = scale.to_bits();
            }
        }
    }
}

/// The largest magnitude, compared as bits: in that order NaN is above everything else.
fn largest_magnitude(row: &[f32]) -> f32 {
    f32::from_bits(
        row.iter()
            .map(|value| value.abs().to_bits())
            .max()
            .unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The row read back, its codes, and its scale.
    fn stored(row: [f32; 8]) -> ([f32; 8], [i8; 8], f32) {
        stored_as(KvFormat::Q8, row)
    }

    fn stored_as(format: KvFormat, row: [f32; 8]) -> ([f32; 8], [i8; 8], f32) {
        let whole = KvTile {
            format,
            slots: 16,
            head_dim: 8,
        };
        let mut tile = vec![0x5555_5555; whole.words()];
        whole.encode(&mut tile, 3, &row);
        let mut read = [f32::NAN; 8];
        whole.decode(&tile, 3, &mut read);
        let codes: &[i8] = bytemuck::cast_slice(&tile[6..8]);
        let untouched = tile.iter().filter(|word| **word == 0x5555_5555).count();
        assert_eq!(
            untouched,
            tile.len() - 3,
            "a row writes its codes and its scale"
        );
        (
            read,
            codes.try_into().unwrap(),
            f32::from_bits(tile[16 * 2 + 3]),
        )
    }

    #[test]
    fn a_constant_row_is_its_largest_code() {
        let (read, codes, scale) = stored([-2.54; 8]);
        assert_eq!((codes, scale), ([-127; 8], 2.54 * (1.0 / 127.0)));
        assert!(
            read.iter().all(|value| (value + 2.54).abs() < 1e-6),
            "{read:?}"
        );
    }

    #[test]
    fn an_outlier_takes_the_resolution_and_ties_go_to_even() {
        // A scale of exactly 1, so that codes are the values.
        let (read, codes, scale) = stored([127.0, 0.5, 1.5, -2.5, 0.49, -126.51, 3.0, -0.0]);
        assert_eq!(codes, [127, 0, 2, -2, 0, -127, 3, 0]);
        assert!((scale - 1.0).abs() < 1e-7);
        assert!((read[5] + 127.0).abs() < 1e-4);
    }

    #[test]
    fn a_row_of_zeros_has_no_scale() {
        for row in [[0.0; 8], [-0.0; 8], [1e-40; 8], [-9.9e-31; 8]] {
            assert_eq!(stored(row), ([0.0; 8], [0; 8], 0.0), "{row:?}");
            let (read, _, scale) = stored_as(KvFormat::Fp8, row);
            assert_eq!((read, scale), ([0.0; 8], 0.0), "{row:?}");
        }
        for format in KvFormat::CODED {
            assert!(stored_as(format, [1.1e-30; 8]).2 > 0.0);
        }
    }

    #[test]
    fn codes_of_fp8_are_those_of_e4m3() {
        let value = |code: u8| e4m3_half(code).to_f32();
        for code in (0..=0xff).filter(|code| code & 0x7f != 0x7f) {
            assert_eq!(value(code), crate::plan::format::decode_e4m3(code) / 256.0);
            assert_eq!(e4m3_code(value(code)), code);
        }
        for code in 0..0x7e {
            let (low, high) = (value(code), value(code + 1));
            let middle = low.midpoint(high);
            assert_eq!(
                e4m3_code(middle),
                if code % 2 == 0 { code } else { code + 1 },
                "a tie after {code}"
            );
            assert_eq!(e4m3_code(middle.next_down()), code);
            assert_eq!(e4m3_code(-middle.next_up()), 0x80 | (code + 1));
            let step = KvFormat::Fp8.code_step(high, 1.75);
            assert!(
                high - low <= step,
                "{low} and {high} are at most {step} apart"
            );
        }
        let (_, codes, scale) = stored_as(
            KvFormat::Fp8,
            [448.0, -1.0, 0.5, 17.0, 19.0, -0.001, 0.0, 240.0],
        );
        assert_eq!(scale, 256.0);
        assert_eq!(
            codes.map(i8::cast_unsigned),
            [0x7e, 0xb8, 0x30, 0x58, 0x5a, 0x81, 0, 0x77]
        );
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for format in KvFormat::CODED {
            let (read, ..) = stored_as(format, [1.0, f32::NAN, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            assert!(
                read.iter().all(|value| value.is_nan()),
                "{format}: {read:?}"
            );
            let (read, ..) = stored_as(format, [f32::NEG_INFINITY; 8]);
            assert!(
                read.iter().all(|value| !value.is_finite()),
                "{format}: {read:?}"
            );
        }
    }

    #[test]
    fn every_row_keeps_to_its_words() {
        for format in KvFormat::ALL {
            for (slots, head_dim) in [(16, 8), (32, 40), (64, 256)] {
                let tile = KvTile {
                    format,
                    slots,
                    head_dim,
                };
                assert_eq!(tile.words() % 4, 0, "a tile is whole vectors of 16 bytes");
                let row = |slot: usize| {
                    (0..head_dim)
                        .map(|at| (slot * 31 + at % 100) as f32)
                        .collect::<Vec<_>>()
                };
                let mut words = vec![0; tile.words()];
                (0..slots).for_each(|slot| tile.encode(&mut words, slot, &row(slot)));
                for slot in 0..slots {
                    let (mut read, expected) = (vec![0.0; head_dim], row(slot));
                    tile.decode(&words, slot, &mut read);
                    let largest = largest_magnitude(&expected);
                    let near = |(a, b): (&f32, &f32)| {
                        let allowed = match format {
                            KvFormat::F32 => 0.0,
                            KvFormat::F16 => largest / 2048.0,
                            KvFormat::Q8 | KvFormat::Fp8 => 0.5001 * format.code_step(*b, largest),
                        };
                        (a - b).abs() <= allowed
                    };
                    assert!(
                        read.iter().zip(&expected).all(near),
                        "{format:?}, slot {slot} of {slots}×{head_dim}"
                    );
                }
            }
        }
    }
}
