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
mod tests;
