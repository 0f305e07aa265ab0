//! Encodes the weights of a fixture in any format.

use crate::plan::WeightFormat;
use crate::plan::format::{Codes, GROUP, Levels, Scales};
use half::{bf16, f16};
use std::num::FpCategory;

/// How large the scales of quantized weights are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScaleSizes {
    /// So large that weights are about 1.
    Usual,
    /// Halves below 2⁻¹⁴, of which all occur: they are subnormal. Exponents lie from 2⁻¹²⁷ to 2³, about the same in a
    /// row.
    Small,
}

/// Encodes rows of `columns` weights. Values are rounded to a dense format; for a quantized format, codes and scales
/// are drawn from the bits of `values`, so that all of them occur.
pub(super) fn encode(
    format: WeightFormat,
    columns: usize,
    values: &[f32],
    sizes: ScaleSizes,
) -> Vec<u8> {
    match format {
        WeightFormat::F32 => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
        WeightFormat::F16 => values
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect(),
        WeightFormat::Bf16 => values
            .iter()
            .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
            .collect(),
        _ => values
            .chunks_exact(columns)
            .enumerate()
            .flat_map(|(row, values)| draw(format, row, values, sizes))
            .collect(),
    }
}

/// Where the halves among the scales of a row begin.
fn half_scales(format: WeightFormat, columns: usize) -> impl Iterator<Item = usize> {
    let layout = format.layout(columns);
    let (_, _, scales) = format.parts();
    let (places, each) = match scales {
        Scales::None | Scales::Exponent | Scales::Float | Scales::Wide | Scales::E4m3 => (0..0, 2),
        Scales::Half | Scales::HalfMin => (layout.scales..layout.supers, 2),
        Scales::HalfZero => (layout.scales..layout.supers, 4),
        Scales::K32 | Scales::K32Min | Scales::K16 | Scales::K16Min => {
            (layout.supers..layout.row_bytes, 2)
        }
    };
    // A row ends with padding.
    let last = places.end;
    places.step_by(each).filter(move |at| at + 2 <= last)
}

/// Whether a format has halves among its scales.
pub(super) fn has_half_scales(format: WeightFormat) -> bool {
    half_scales(format, GROUP).next().is_some()
}

/// Replaces the subnormal halves among the scales of a row by zeros, as a device does that flushes them.
pub(super) fn flush_scales(format: WeightFormat, columns: usize, row: &mut [u8]) {
    for at in half_scales(format, columns) {
        if f16::from_le_bytes([row[at], row[at + 1]]).classify() == FpCategory::Subnormal {
            row[at..at + 2].fill(0);
        }
    }
}

/// Random bits that follow from the bits of a row's values.
struct Bits<'a> {
    values: &'a [f32],
    at: usize,
    key: u64,
}

impl Bits<'_> {
    fn next(&mut self) -> u32 {
        self.at += 1;
        let value = self.values[self.at % self.values.len()].to_bits();
        self.key = (self.key ^ u64::from(value))
            .wrapping_add(self.at as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.key ^= self.key >> 29;
        (self.key >> 40) as u32
    }

    /// From 0 to 1023.
    fn ten(&mut self) -> u32 {
        self.next() % 1024
    }

    /// A scale with which the largest of these codes is from 1/4 to 9/4.
    fn scale(&mut self, largest: f32) -> f32 {
        (0.25 + self.ten() as f32 / 512.0) / largest
    }
}

/// A row with random codes and scales.
fn draw(format: WeightFormat, row: usize, values: &[f32], sizes: ScaleSizes) -> Vec<u8> {
    let mut bits = Bits {
        values,
        at: 0,
        key: row as u64,
    };
    let layout = format.layout(values.len());
    let (_, levels, scales) = format.parts();
    let mut bytes: Vec<u8> = (0..layout.row_bytes).map(|_| bits.next() as u8).collect();
    if levels == Levels::E4m3 {
        // The two NaN codes.
        bytes[..layout.plane]
            .iter_mut()
            .filter(|code| **code & 0x7f == 0x7f)
            .for_each(|code| *code ^= 1);
    }
    let largest = largest_code(format);
    for at in half_scales(format, values.len()) {
        let scale = match sizes {
            ScaleSizes::Usual => f16::from_f32(bits.scale(largest * shared_codes(scales))),
            // The subnormal halves, but 0.
            ScaleSizes::Small => f16::from_bits(1 + bits.ten().min(1022) as u16),
        };
        bytes[at..at + 2].copy_from_slice(&scale.to_le_bytes());
    }
    let own = &mut bytes[layout.scales..];
    match scales {
        Scales::HalfZero => draw_zeros(own),
        Scales::Exponent => {
            let base = match sizes {
                ScaleSizes::Usual => 124,
                ScaleSizes::Small => 127 - (row * 16 % 128) as u8,
            };
            own.iter_mut()
                .for_each(|biased| *biased = base + *biased % 4);
        }
        Scales::Float | Scales::Wide => {
            for word in own.chunks_exact_mut(4) {
                word.copy_from_slice(&bits.scale(largest).to_le_bytes());
            }
        }
        Scales::E4m3 => {
            let most = draw_small_floats(own, sizes);
            let factor = bits.scale(largest * most).to_le_bytes();
            bytes[layout.supers..][..4].copy_from_slice(&factor);
        }
        _ => {}
    }
    bytes
}

/// The largest magnitude of a code.
fn largest_code(format: WeightFormat) -> f32 {
    let (codes, levels, _) = format.parts();
    match (codes, levels) {
        (Codes::Eight, Levels::E4m3) => 448.0,
        (Codes::Eight, Levels::Unsigned(_)) => 255.0,
        (Codes::Eight, _) | (_, Levels::Iq4) => 127.0,
        (_, Levels::Iq1) => 1.125,
        (_, Levels::Iq2) => 5.375,
        (_, Levels::E2m1) => 6.0,
        (_, Levels::Nf4 | Levels::Fp4) | (Codes::One, _) => 1.0,
        (Codes::Two, _) => 3.0,
        (Codes::TwoOne, _) => 7.0,
        (Codes::FourTwo, _) => 32.0,
        _ => 15.0,
    }
}

/// The largest scale of a group, where groups have codes for scales that share a half.
fn shared_codes(scales: Scales) -> f32 {
    match scales {
        Scales::K32 | Scales::K32Min | Scales::K16 => 128.0,
        Scales::K16Min => 15.0,
        _ => 1.0,
    }
}

/// E4M3 scales from 1/4 to 15, or subnormal ones. Returns the bound.
fn draw_small_floats(scales: &mut [u8], sizes: ScaleSizes) -> f32 {
    let (first, count, most) = match sizes {
        ScaleSizes::Usual => (0x28, 48, 15.0),
        ScaleSizes::Small => (1, 7, 7.0 / 512.0),
    };
    scales
        .iter_mut()
        .for_each(|byte| *byte = first + *byte % count);
    most
}

/// Zero points beside the halves of groups.
fn draw_zeros(scales: &mut [u8]) {
    let halves = scales.chunks_exact_mut(2).enumerate();
    for (index, half) in halves.filter(|(index, _)| index % 2 == 1) {
        half.copy_from_slice(&(index as i16 % 18).to_le_bytes());
    }
}
