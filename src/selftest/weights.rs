//! Encodes the weights of a fixture in any format.

use crate::plan::WeightFormat;
use crate::plan::format::{Codes, Levels, Scales};
use half::{bf16, f16};

/// Encodes rows of `columns` weights. Values are rounded to a dense format; for a quantized format, codes and scales
/// are drawn from the bits of `values`, so that all of them occur.
pub(super) fn encode(format: WeightFormat, columns: usize, values: &[f32]) -> Vec<u8> {
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
            .flat_map(|(row, values)| draw(format, row, values))
            .collect(),
    }
}

/// A row with random codes and scales whose weights are about 1.
fn draw(format: WeightFormat, row: usize, values: &[f32]) -> Vec<u8> {
    let layout = format.layout(values.len());
    let (codes, levels, scales) = format.parts();
    let mut key = row as u64;
    let mut random = {
        let mut at = 0;
        move || {
            at += 1;
            let value = values[at % values.len()].to_bits();
            key = (key ^ u64::from(value))
                .wrapping_add(at as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15);
            key ^= key >> 29;
            (key >> 40) as u32
        }
    };
    let mut bytes: Vec<u8> = (0..layout.row_bytes).map(|_| random() as u8).collect();
    if levels == Levels::E4m3 {
        // The two NaN codes.
        bytes[..layout.plane]
            .iter_mut()
            .filter(|code| **code & 0x7f == 0x7f)
            .for_each(|code| *code ^= 1);
    }
    let largest = match (codes, levels) {
        (Codes::Eight, Levels::E4m3) => 448.0,
        (Codes::Eight, _) | (_, Levels::Iq4) => 127.0,
        (Codes::Two, _) => 3.0,
        (Codes::TwoOne, _) => 7.0,
        (Codes::FourTwo, _) => 32.0,
        _ => 15.0,
    };
    let mut small = |largest: f32| (0.25 + (random() % 1024) as f32 / 512.0) / largest;
    let mut halves = |from: usize, to: usize, most: f32| {
        for pair in bytes[from..to].chunks_exact_mut(2) {
            pair.copy_from_slice(&f16::from_f32(small(most)).to_le_bytes());
        }
    };
    match scales {
        Scales::None => {}
        Scales::Half | Scales::HalfMin => halves(layout.scales, layout.supers, largest),
        Scales::K32 | Scales::K32Min | Scales::K16 => {
            halves(layout.supers, layout.row_bytes, 128.0 * largest);
        }
        Scales::K16Min => halves(layout.supers, layout.row_bytes, 15.0 * largest),
        Scales::HalfZero => {
            halves(layout.scales, layout.supers, largest);
            for (index, pair) in bytes[layout.scales..]
                .chunks_exact_mut(2)
                .enumerate()
                .filter(|(at, _)| at % 2 == 1)
            {
                pair.copy_from_slice(&(index as i16 % 18).to_le_bytes());
            }
        }
        Scales::Exponent => {
            bytes[layout.scales..]
                .iter_mut()
                .for_each(|biased| *biased = 124 + *biased % 4);
        }
        Scales::Wide => {
            for word in bytes[layout.scales..].chunks_exact_mut(4) {
                word.copy_from_slice(&small(largest).to_le_bytes());
            }
        }
    }
    bytes
}
